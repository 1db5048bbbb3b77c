//! The queue halves of a packet device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Shared, TX_RING_SLOTS};
use crate::checksum;
use crate::device::{Doorbell, IrqLine, IrqSink, Queue, RxQueue, TxQueue};
use crate::frame::{Checksum, FRAME_BYTES, Frame, FramePool, Segmentation};
use crate::line::AlwaysRoom;
use crate::tally::add;

pub(super) fn new(shared: &Arc<Shared>) -> Queue {
    let next = Arc::new(AtomicUsize::new(0));
    Queue {
        index: 0,
        rx: Box::new(PacketRx { shared: shared.clone(), next: next.clone() }),
        tx: Box::new(PacketTx { shared: shared.clone(), staged: Vec::new(), sent: Vec::new() }),
        irq: Arc::new(PacketIrq { shared: shared.clone(), next }),
        // The doorbell sends or loses whatever was staged.
        tx_irq: Arc::new(AlwaysRoom::default()),
    }
}

struct PacketRx {
    shared: Arc<Shared>,
    /// The next slot that the kernel fills. Written by this half alone.
    next: Arc<AtomicUsize>,
}

impl PacketRx {
    /// Copies the next frame out of the ring: a slot is not kept for as long as a frame may live.
    fn take(&mut self, pool: &mut FramePool) -> Option<Result<Frame, ()>> {
        let Shared { ring, .. } = &*self.shared;
        let at = self.next.load(Ordering::Relaxed);
        let slot = ring.filled(at)?;
        let taken = if slot.is_cut {
            Err(())
        } else {
            let length = slot.data.len();
            let mut frame = if length <= FRAME_BYTES { pool.alloc() } else { Frame::with_capacity(length) };
            frame.set_len(length);
            frame.data_mut().copy_from_slice(slot.data);
            if slot.status & libc::TP_STATUS_CSUMNOTREADY != 0 {
                frame.set_checksum(Checksum::Partial);
            } else if slot.status & libc::TP_STATUS_CSUM_VALID != 0 {
                frame.set_checksum(Checksum::Unnecessary);
            }
            Ok(frame)
        };
        ring.give_back(at);
        self.next.store((at + 1) % ring.slots(), Ordering::Relaxed);
        Some(taken)
    }
}

impl RxQueue for PacketRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        if self.shared.interface.gone() {
            // Its last interrupt is an error, by which it stays readable.
            self.shared.takes_error();
            return 0;
        }
        let (mut count, mut bytes, mut errors) = (0, 0, 0);
        while count < budget
            && let Some(taken) = self.take(pool)
        {
            count += 1;
            match taken {
                Ok(frame) => {
                    bytes += frame.len() as u64;
                    deliver(frame, pool);
                }
                Err(()) => errors += 1,
            }
        }
        let counters = &self.shared.counters;
        if count == 0 && budget > 0 {
            // An interrupt without a frame: an error is what made the socket readable.
            if self.shared.takes_error() {
                self.shared.interface.look_again();
            }
            add(&counters.rx_syscalls, 1);
        }
        add(&counters.rx_frames, (count - errors) as u64);
        add(&counters.rx_bytes, bytes);
        add(&counters.rx_errors, errors as u64);
        count
    }
}

struct PacketTx {
    shared: Arc<Shared>,
    staged: Vec<Frame>,
    /// Buffers to give back on `reap_sent`.
    sent: Vec<Frame>,
}

impl PacketTx {
    /// Sends staged frames with one call; how many of those from `from` on the kernel took.
    fn send(&self, from: usize) -> io::Result<usize> {
        let parts: Vec<Vec<libc::iovec>> = self.staged[from..].iter().map(parts).collect();
        let message = |parts: &Vec<libc::iovec>| {
            // SAFETY: a C structure of integers and pointers, for which zero is a value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = parts.as_ptr().cast_mut();
            message.msg_hdr.msg_iovlen = parts.len() as _;
            message
        };
        let mut messages: Vec<libc::mmsghdr> = parts.iter().map(message).collect();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: messages, their parts and the frames that those point to outlive the call; nothing of the frames is
        // written.
        let sent = unsafe {
            libc::sendmmsg(self.shared.socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, flags as _)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

fn parts(frame: &Frame) -> Vec<libc::iovec> {
    let part =
        |segment: &Frame| libc::iovec { iov_base: segment.data().as_ptr().cast_mut().cast(), iov_len: segment.len() };
    frame.segments().map(part).collect()
}

impl TxQueue for PacketTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.free_slots() == 0 {
            return Err(frame);
        }
        // The kernel refuses what is longer than the MTU.
        if self.shared.interface.gone() || frame.segmentation() != Segmentation::None {
            add(&self.shared.counters.tx_dropped, 1);
            return Ok(());
        }
        self.staged.push(checksum::complete(frame));
        Ok(())
    }

    /// Sends the staged frames. One that the kernel does not take (the device is full or down, the frame too long) is
    /// dropped and counted: the protocols above resend.
    fn doorbell(&mut self) -> Doorbell {
        let (mut at, mut frames, mut bytes, mut dropped, mut syscalls) = (0, 0, 0, 0, 0);
        while at < self.staged.len() && !self.shared.interface.gone() {
            syscalls += 1;
            match self.send(at) {
                Ok(count) => {
                    frames += count as u64;
                    bytes += self.staged[at..at + count].iter().map(|frame| frame.chain_len() as u64).sum::<u64>();
                    at += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The socket's own error may have been read when the link went down, before the interface was deleted.
                    let is_gone = matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
                    if self.shared.takes_error() || is_gone {
                        self.shared.interface.look_again();
                    }
                    dropped += 1;
                    at += 1;
                }
            }
        }
        dropped += (self.staged.len() - at) as u64;
        self.sent.append(&mut self.staged);
        self.shared.counters.sent(frames, bytes, dropped, syscalls);
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        TX_RING_SLOTS - self.staged.len()
    }

    fn reap_sent(&mut self, pool: &mut FramePool) -> usize {
        let count = self.sent.len();
        for frame in self.sent.drain(..) {
            pool.recycle(frame);
        }
        count
    }
}

/// The kernel's interrupt: the socket, which is readable while the ring holds a frame.
struct PacketIrq {
    shared: Arc<Shared>,
    next: Arc<AtomicUsize>,
}

impl IrqLine for PacketIrq {
    fn connect(&self, _sink: Arc<dyn IrqSink>) {}

    fn mask(&self) {}

    fn unmask(&self) {}

    fn pending(&self) -> Option<bool> {
        Some(self.shared.ring.is_filled(self.next.load(Ordering::Relaxed)))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.socket.as_fd())
    }
}
