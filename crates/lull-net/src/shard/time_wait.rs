//! TIME-WAIT without a socket: what has to be remembered of a connection that is over.

use std::collections::VecDeque;

use super::flow::{self, FlowKey, FlowTable};
use super::paws::Timestamps;
use super::slab::Slab;
use super::timers::NEVER_NS;

/// A finished connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeWait {
    pub(super) flow: FlowKey,
    /// Next sequence number of ours.
    pub(super) snd_nxt: u32,
    /// Next sequence number of the peer's.
    pub(super) rcv_nxt: u32,
    pub(super) window: u16,
    pub(super) timestamps: Option<Timestamps>,
    pub(super) until_ns: u64,
    /// A needless acknowledgement is not sent before this (RFC 5961 section 7).
    pub(super) quiet_until_ns: u64,
}

/// The connections in TIME-WAIT of a shard.
#[derive(Debug)]
pub(super) struct TimeWaits {
    pub(super) records: Slab<TimeWait>,
    /// By time of entry. A record whose time was renewed goes to the back when it comes up.
    pub(super) order: VecDeque<(u64, u32, u32)>,
}

impl TimeWaits {
    pub(super) fn new() -> TimeWaits {
        TimeWaits { records: Slab::with_capacity(0), order: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.records.memory_bytes() + self.order.capacity() * size_of::<(u64, u32, u32)>()
    }

    pub(super) fn next_deadline_ns(&self) -> u64 {
        self.order.front().map_or(NEVER_NS, |&(at, _, _)| at)
    }

    pub(super) fn forget(&mut self, index: u32, flows: &mut FlowTable) {
        if let Some(record) = self.records.remove(index) {
            flow::forget(flows, &record.flow);
        }
    }

    /// Forgets the oldest, to make room.
    pub(super) fn recycle(&mut self, flows: &mut FlowTable) {
        while let Some((_, index, generation)) = self.order.pop_front() {
            if self.records.generation(index) == generation {
                return self.forget(index, flows);
            }
        }
    }

    pub(super) fn expire(&mut self, now_ns: u64, flows: &mut FlowTable) {
        while let Some(&(at, index, generation)) = self.order.front() {
            if at > now_ns {
                break;
            }
            self.order.pop_front();
            if self.records.generation(index) != generation {
                continue;
            }
            match self.records.get(index) {
                Some(record) if record.until_ns > now_ns => {
                    self.order.push_back((record.until_ns, index, generation));
                }
                _ => self.forget(index, flows),
            }
        }
        const ENTRIES_KEPT: usize = 256;
        if self.order.capacity() > ENTRIES_KEPT && self.order.len() * 4 < self.order.capacity() {
            self.order.shrink_to(self.order.len() * 2);
        }
    }
}
