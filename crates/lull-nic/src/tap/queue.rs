//! The queue halves of a TAP interface.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{Shared, TX_RING_SLOTS};
use crate::checksum;
use crate::device::{Doorbell, IrqLine, IrqSink, Queue, RxQueue, TxQueue};
use crate::frame::{Checksum, FRAME_BYTES, Frame, FramePool, LARGE_FRAME_BYTES, LargeFrames, Segmentation};
use crate::line::AlwaysRoom;
use crate::tally::{Tally, add};
use crate::virtio;

pub(super) fn new(shared: &Arc<Shared>, index: usize) -> Queue {
    Queue {
        index,
        rx: Box::new(TapRx { shared: shared.clone(), index, spare: None, large: None }),
        tx: Box::new(TapTx { shared: shared.clone(), index, staged: Vec::new(), sent: Vec::new(), resets: 0 }),
        irq: Arc::new(TapIrq { shared: shared.clone(), index }),
        // The doorbell writes whatever was staged: the kernel bounds a TAP's send buffer only if told to.
        tx_irq: Arc::new(AlwaysRoom::default()),
    }
}

struct TapRx {
    shared: Arc<Shared>,
    index: usize,
    /// The buffer that the last read left empty.
    spare: Option<Frame>,
    /// Where buffers come from if a frame may be too large for those of the pool.
    large: Option<LargeFrames>,
}

/// What one read brought.
enum Got {
    Frame(Frame),
    Nothing,
    /// Longer than the buffer, a header that makes no sense, or an error that the next read need not have.
    Failed,
    /// A signal came first.
    Again,
}

impl TapRx {
    fn file(&self) -> &File {
        &self.shared.files[self.index]
    }

    fn counters(&self) -> &Tally {
        &self.shared.counters[self.index]
    }

    fn buffer(&mut self, bytes: usize, pool: &mut FramePool) -> Frame {
        let mut frame = match self.spare.take() {
            Some(spare) if spare.capacity() >= bytes => spare,
            _ if bytes <= FRAME_BYTES => pool.alloc(),
            _ => self.large(bytes),
        };
        frame.set_len(frame.capacity());
        frame
    }

    #[cold]
    fn large(&mut self, bytes: usize) -> Frame {
        // A larger MTU makes new ones; the old ones are freed as they come home.
        let large = self.large.take().filter(|large| large.bytes() >= bytes);
        self.large.insert(large.unwrap_or_else(|| LargeFrames::new(bytes))).take()
    }

    #[inline]
    fn read(&mut self, pool: &mut FramePool) -> Got {
        if self.shared.virtio { self.read_behind_header(pool) } else { self.read_bare(pool) }
    }

    /// The buffer of each read has room for the longest segment; what is short is copied out of it, which costs less than
    /// to hand the kernel two buffers. The header goes into the headroom.
    fn read_behind_header(&mut self, pool: &mut FramePool) -> Got {
        let mut frame = self.buffer(LARGE_FRAME_BYTES, pool);
        frame.push_front(virtio::BYTES);
        let got = rustix::io::read(self.file(), frame.data_mut());
        let cut_off = got == Ok(frame.len());
        let header = frame.data().first_chunk().copied();
        frame.pull_front(virtio::BYTES);
        let got = match (got, header) {
            (Err(error), _) => self.failed(error),
            (Ok(len), Some(header)) if len >= virtio::BYTES && !cut_off => {
                frame.set_len(len - virtio::BYTES);
                match virtio::received(header, &mut frame) {
                    Ok(()) if frame.len() > FRAME_BYTES => return Got::Frame(frame),
                    Ok(()) => Got::Frame(short_copy(&frame, pool)),
                    Err(virtio::Malformed) => Got::Failed,
                }
            }
            (Ok(_), _) => Got::Failed,
        };
        frame.set_checksum(Checksum::None);
        frame.set_segmentation(Segmentation::None);
        self.spare = Some(frame);
        got
    }

    fn read_bare(&mut self, pool: &mut FramePool) -> Got {
        // One byte more than a frame: a read that fills the buffer was cut off.
        let mut frame = self.buffer(self.shared.frame_bytes_max() + 1, pool);
        let got = rustix::io::read(self.file(), frame.data_mut());
        match got {
            Ok(len) if len < frame.len() => {
                frame.set_len(len);
                Got::Frame(frame)
            }
            Ok(_) => {
                self.shared.reread_mtu();
                self.spare = Some(frame);
                Got::Failed
            }
            Err(error) => {
                self.spare = Some(frame);
                self.failed(error)
            }
        }
    }

    fn failed(&self, error: Errno) -> Got {
        match error {
            Errno::AGAIN => Got::Nothing,
            Errno::INTR => Got::Again,
            _ if self.shared.check_gone(self.file()) => Got::Nothing,
            _ => Got::Failed,
        }
    }
}

/// A frame of the pool with what is in `frame`, which fits it.
fn short_copy(frame: &Frame, pool: &mut FramePool) -> Frame {
    let mut copy = pool.alloc();
    copy.set_len(frame.len());
    copy.data_mut().copy_from_slice(frame.data());
    copy.set_checksum(frame.checksum());
    copy.set_segmentation(frame.segmentation());
    copy
}

impl RxQueue for TapRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let (mut taken, mut frames, mut bytes, mut syscalls) = (0, 0, 0, 0);
        while taken < budget && !self.shared.gone() {
            syscalls += 1;
            match self.read(pool) {
                Got::Nothing => break,
                Got::Again => continue,
                Got::Failed => {
                    self.counters().rx_errors.fetch_add(1, Ordering::Relaxed);
                }
                Got::Frame(frame) => {
                    frames += 1;
                    bytes += frame.len() as u64;
                    deliver(frame, pool);
                }
            }
            // A failed read counts as well, so that the budget bounds the loop.
            taken += 1;
        }
        let counters = self.counters();
        add(&counters.rx_frames, frames);
        add(&counters.rx_bytes, bytes);
        add(&counters.rx_syscalls, syscalls);
        taken
    }
}

struct TapTx {
    shared: Arc<Shared>,
    index: usize,
    staged: Vec<Frame>,
    /// Buffers to give back on `reap_sent`.
    sent: Vec<Frame>,
    resets: u64,
}

impl TapTx {
    fn counters(&self) -> &Tally {
        &self.shared.counters[self.index]
    }

    /// The frame as it is to be written; `None` if it cannot be sent at all.
    fn prepared(&self, frame: Frame) -> Option<Frame> {
        let uncut = frame.segmentation() == Segmentation::None;
        let bytes_max = if uncut { self.shared.frame_bytes_max() } else { LARGE_FRAME_BYTES };
        if frame.chain_len() > bytes_max || !uncut && !self.shared.virtio {
            return None;
        }
        if !self.shared.virtio {
            return Some(checksum::complete(frame));
        }
        let header = virtio::to_send(&frame).ok()?;
        let mut frame = frame;
        if frame.headroom() < virtio::BYTES {
            frame = with_headroom(frame);
        }
        frame.push_front(virtio::BYTES).copy_from_slice(&header);
        Some(frame)
    }

    fn heed_reset(&mut self) {
        let resets = self.shared.resets.load(Ordering::Relaxed);
        if resets != self.resets {
            self.resets = resets;
            self.discard();
        }
    }

    fn discard(&mut self) {
        add(&self.counters().tx_dropped, self.staged.len() as u64);
        self.staged.clear();
    }
}

/// The same frame, in one piece, with room in front of it.
#[cold]
fn with_headroom(frame: Frame) -> Frame {
    let mut whole = Frame::with_capacity(frame.chain_len());
    whole.set_len(frame.chain_len());
    let mut rest = whole.data_mut();
    for segment in frame.segments() {
        let (part, behind) = rest.split_at_mut(segment.len());
        part.copy_from_slice(segment.data());
        rest = behind;
    }
    whole
}

/// Writes a frame with one system call, whatever its segments.
fn write(file: &File, frame: &Frame) -> rustix::io::Result<usize> {
    if frame.next().is_none() {
        return rustix::io::write(file, frame.data());
    }
    let slices: Vec<_> = frame.segments().map(|segment| IoSlice::new(segment.data())).collect();
    rustix::io::writev(file, &slices)
}

impl TxQueue for TapTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.heed_reset();
        if self.free_slots() == 0 {
            return Err(frame);
        }
        match self.prepared(frame) {
            Some(frame) => self.staged.push(frame),
            None => add(&self.counters().tx_dropped, 1),
        }
        Ok(())
    }

    /// Writes the staged frames. One that the kernel does not take (no memory, interface down) is dropped and
    /// counted, never kept: no later doorbell may come to retry it, and the protocols above resend.
    fn doorbell(&mut self) -> Doorbell {
        self.heed_reset();
        if self.shared.gone() || !self.shared.up.load(Ordering::Relaxed) {
            self.discard();
            return Doorbell::Done;
        }
        let file = &self.shared.files[self.index];
        let header_bytes = if self.shared.virtio { virtio::BYTES } else { 0 };
        let (mut frames, mut bytes, mut dropped, mut syscalls) = (0, 0, 0, 0);
        for frame in self.staged.drain(..) {
            let result = loop {
                syscalls += 1;
                match write(file, &frame) {
                    Err(Errno::INTR) => {}
                    result => break result,
                }
            };
            match result {
                Ok(len) => {
                    frames += 1;
                    bytes += len.saturating_sub(header_bytes) as u64;
                }
                Err(error) => {
                    dropped += 1;
                    if error == Errno::BADFD {
                        self.shared.check_gone(file);
                    }
                }
            }
            if self.sent.len() < TX_RING_SLOTS {
                self.sent.push(frame);
            }
        }
        self.counters().sent(frames, bytes, dropped, syscalls);
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

/// The kernel's interrupt: the descriptor. Once the interface is gone it is never readable again, and a watch on it
/// has ended: re-arming that watch fails with ENOENT.
struct TapIrq {
    shared: Arc<Shared>,
    index: usize,
}

impl IrqLine for TapIrq {
    fn connect(&self, _sink: Arc<dyn IrqSink>) {}

    fn mask(&self) {}

    fn unmask(&self) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.files[self.index].as_fd())
    }
}
