//! The slots of the agenda: an alarm for each CPU, NAPI timer, moderation timer and thread.

use crate::engine::id::{CpuId, QueueId, Side, ThreadId};

/// Which slot of the agenda is whose.
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
}

impl Slots {
    pub(crate) fn cpu(self, cpu: CpuId) -> u32 {
        u32::from(cpu.raw())
    }

    pub(crate) fn napi_timer(self, queue: QueueId) -> u32 {
        self.cpus + queue.raw()
    }

    pub(crate) fn moderation(self, queue: QueueId, side: Side) -> u32 {
        self.cpus + self.queues * if side == Side::Rx { 1 } else { 2 } + queue.raw()
    }

    pub(crate) fn thread(self, thread: ThreadId) -> u32 {
        self.cpus + 3 * self.queues + thread.raw()
    }

    pub(super) fn count(self) -> usize {
        (self.cpus + 3 * self.queues + self.threads) as usize
    }

    pub(super) fn owner(self, slot: u32) -> SlotOwner {
        if slot < self.cpus {
            return SlotOwner::Cpu(CpuId::new(slot as u16));
        }
        let slot = slot - self.cpus;
        match slot / self.queues.max(1) {
            0 if self.queues > 0 => SlotOwner::NapiTimer(QueueId::new(slot)),
            1 if self.queues > 0 => SlotOwner::Moderation(QueueId::new(slot - self.queues), Side::Rx),
            2 if self.queues > 0 => SlotOwner::Moderation(QueueId::new(slot - 2 * self.queues), Side::Tx),
            _ => SlotOwner::Thread(ThreadId::new(slot - 3 * self.queues)),
        }
    }
}
