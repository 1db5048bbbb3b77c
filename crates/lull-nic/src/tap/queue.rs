//! The queue halves of a TAP interface.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::large::LargeFrames;
use super::{QueueCounters, Shared, TX_RING_SLOTS};
use crate::checksum;
use crate::device::{Doorbell, IrqLine, IrqSink, Queue, RxQueue, TxQueue};
use crate::frame::{FRAME_BYTES, Frame, FramePool, Segmentation};
use crate::line::AlwaysRoom;

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

/// Adds to a counter that one half alone writes (`rx_errors`, which a reset adds to as well, is not one).
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

struct TapRx {
    shared: Arc<Shared>,
    index: usize,
    /// The buffer that the last read left empty.
    spare: Option<Frame>,
    /// Where buffers come from if the MTU is too large for those of the pool.
    large: Option<LargeFrames>,
}

/// What one read brought.
enum Got {
    Frame(Frame),
    Nothing,
    /// Longer than the buffer, or an error that the next read need not have.
    Failed,
}

impl TapRx {
    fn file(&self) -> &File {
        &self.shared.files[self.index]
    }

    fn counters(&self) -> &QueueCounters {
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

    fn read(&mut self, pool: &mut FramePool) -> Got {
        // One byte more than a frame: a read that fills the buffer was cut off.
        let mut frame = self.buffer(self.shared.frame_bytes_max() + 1, pool);
        let got = self.file().read(frame.data_mut());
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
                match error.kind() {
                    ErrorKind::WouldBlock => Got::Nothing,
                    ErrorKind::Interrupted => self.read(pool),
                    _ if self.shared.check_gone(self.file()) => Got::Nothing,
                    _ => Got::Failed,
                }
            }
        }
    }
}

impl RxQueue for TapRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let (mut taken, mut frames, mut bytes, mut syscalls) = (0, 0, 0, 0);
        while taken < budget && !self.shared.gone() {
            syscalls += 1;
            match self.read(pool) {
                Got::Nothing => break,
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
    fn counters(&self) -> &QueueCounters {
        &self.shared.counters[self.index]
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

/// Writes a frame with one system call, whatever its segments.
fn write(mut file: &File, frame: &Frame) -> io::Result<usize> {
    if frame.next().is_none() {
        return file.write(frame.data());
    }
    let slices: Vec<_> = frame.segments().map(|segment| IoSlice::new(segment.data())).collect();
    file.write_vectored(&slices)
}

impl TxQueue for TapTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.heed_reset();
        if self.free_slots() == 0 {
            return Err(frame);
        }
        if frame.chain_len() > self.shared.frame_bytes_max() || frame.segmentation() != Segmentation::None {
            add(&self.counters().tx_dropped, 1);
            return Ok(());
        }
        self.staged.push(checksum::complete(frame));
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
        let (mut frames, mut bytes, mut dropped, mut syscalls) = (0, 0, 0, 0);
        for frame in self.staged.drain(..) {
            let result = loop {
                syscalls += 1;
                match write(file, &frame) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    result => break result,
                }
            };
            match result {
                Ok(len) => {
                    frames += 1;
                    bytes += len as u64;
                }
                Err(error) => {
                    dropped += 1;
                    if error.raw_os_error() == Some(libc::EBADFD) {
                        self.shared.check_gone(file);
                    }
                }
            }
            if self.sent.len() < TX_RING_SLOTS {
                self.sent.push(frame);
            }
        }
        let counters = self.counters();
        add(&counters.tx_frames, frames);
        add(&counters.tx_bytes, bytes);
        add(&counters.tx_dropped, dropped);
        add(&counters.tx_syscalls, syscalls);
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
