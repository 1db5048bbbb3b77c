//! The slots of the agenda: an alarm for each CPU, NAPI timer, moderation timer, thread, and kernel timer of an interrupt
//! thread.

use crate::engine::id::{CpuId, QueueId, Side, ThreadId};

/// Which slot of the agenda belongs to what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(super) cpus: u32,
    pub(super) queues: u32,
    pub(super) threads: u32,
}

#[derive(Debug)]
pub(super) enum SlotOwner {
    Cpu(CpuId),
    NapiTimer(QueueId),
    Moderation(QueueId, Side),
    Thread(ThreadId),
    Backstop(CpuId),
}

impl Slots {
    pub(crate) fn cpu(self, cpu: CpuId) -> u32 {
        u32::from(cpu.raw())
    }

    pub(crate) fn napi_timer(self, queue: QueueId) -> u32 {
        2 * self.cpus + queue.raw()
    }

    pub(crate) fn moderation(self, queue: QueueId, side: Side) -> u32 {
        2 * self.cpus + self.queues * if side == Side::Rx { 1 } else { 2 } + queue.raw()
    }

    pub(crate) fn thread(self, thread: ThreadId) -> u32 {
        2 * self.cpus + 3 * self.queues + thread.raw()
    }

    /// The kernel timer of the interrupt thread of this CPU, on lull's own host.
    pub(crate) fn backstop(self, cpu: CpuId) -> u32 {
        self.cpus + u32::from(cpu.raw())
    }

    pub(super) fn count(self) -> usize {
        (2 * self.cpus + 3 * self.queues + self.threads) as usize
    }

    pub(super) fn owner(self, slot: u32) -> SlotOwner {
        if slot < self.cpus {
            return SlotOwner::Cpu(CpuId::new(slot as u16));
        }
        if slot < 2 * self.cpus {
            return SlotOwner::Backstop(CpuId::new((slot - self.cpus) as u16));
        }
        let slot = slot - 2 * self.cpus;
        match slot / self.queues.max(1) {
            0 if self.queues > 0 => SlotOwner::NapiTimer(QueueId::new(slot)),
            1 if self.queues > 0 => SlotOwner::Moderation(QueueId::new(slot - self.queues), Side::Rx),
            2 if self.queues > 0 => SlotOwner::Moderation(QueueId::new(slot - 2 * self.queues), Side::Tx),
            _ => SlotOwner::Thread(ThreadId::new(slot - 3 * self.queues)),
        }
    }
}
