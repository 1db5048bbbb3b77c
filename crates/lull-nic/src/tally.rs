//! What the devices of the kernel (TAP, AF_XDP, AF_PACKET) count of a queue themselves.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Counters;

/// Counters of one queue. Each is written by the owner of one half, but for `rx_errors` of a TAP: a reset adds to it as well.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) rx_frames: AtomicU64,
    pub(crate) rx_bytes: AtomicU64,
    pub(crate) rx_errors: AtomicU64,
    pub(crate) rx_syscalls: AtomicU64,
    pub(crate) tx_frames: AtomicU64,
    pub(crate) tx_bytes: AtomicU64,
    pub(crate) tx_dropped: AtomicU64,
    pub(crate) tx_syscalls: AtomicU64,
}

impl Tally {
    /// As a device reports them. What the kernel dropped is asked of the kernel; `interrupts` stays 0, because the kernel
    /// raises them.
    pub(crate) fn read(&self, rx_dropped: u64) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            rx_frames: read(&self.rx_frames),
            rx_bytes: read(&self.rx_bytes),
            rx_dropped,
            rx_errors: read(&self.rx_errors),
            tx_frames: read(&self.tx_frames),
            tx_bytes: read(&self.tx_bytes),
            tx_dropped: read(&self.tx_dropped),
            interrupts: 0,
            syscalls: read(&self.rx_syscalls) + read(&self.tx_syscalls),
        }
    }

    /// Counts one doorbell of a device that sends staged frames by system calls.
    pub(crate) fn sent(&self, frames: u64, bytes: u64, dropped: u64, syscalls: u64) {
        add(&self.tx_frames, frames);
        add(&self.tx_bytes, bytes);
        add(&self.tx_dropped, dropped);
        add(&self.tx_syscalls, syscalls);
    }
}

/// Adds to a counter that one half alone writes.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }
}
