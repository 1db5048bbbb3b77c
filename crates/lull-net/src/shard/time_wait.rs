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
    /// The records in the order in which they entered. A record whose time was renewed goes to the back when its entry
    /// comes up; one that is gone leaves its entry behind.
    order: VecDeque<(u64, u32, u32)>,
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

    pub(super) fn insert(&mut self, record: TimeWait) -> u32 {
        // As often as it pays: each look finds as many entries of records that are gone as were added since the last one.
        const ENTRIES_KEPT: usize = 64;
        if self.order.len() >= 2 * self.records.len() + ENTRIES_KEPT {
            self.order.retain(|&(_, index, generation)| self.records.generation(index) == generation);
        }
        let until_ns = record.until_ns;
        let index = self.records.insert(record);
        self.order.push_back((until_ns, index, self.records.generation(index)));
        index
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::flow::{Owner, hash_state};
    use super::*;

    /// A port that is used again and again, each time before the sixty seconds of the last one are over.
    #[test]
    fn records_that_are_gone_leave_a_bounded_number_of_entries() {
        let (mut time_waits, mut flows) = (TimeWaits::new(), FlowTable::with_hasher(hash_state(1)));
        let enter = |time_waits: &mut TimeWaits, flows: &mut FlowTable, port: u16, until_ns: u64| {
            let own = Ipv4Addr::LOCALHOST.into();
            let flow = FlowKey::new(6, own, port, own, 80);
            let (snd_nxt, rcv_nxt, window, timestamps, quiet_until_ns) = (0, 0, 0, None, 0);
            let record = TimeWait { flow, snd_nxt, rcv_nxt, window, timestamps, until_ns, quiet_until_ns };
            let index = time_waits.insert(record);
            flows.insert(flow, Owner::TimeWait(index));
            index
        };
        let stays: Vec<u32> = (0..100).map(|port| enter(&mut time_waits, &mut flows, port, 1)).collect();
        for nth in 0..100_000 {
            let index = enter(&mut time_waits, &mut flows, 1000, 2 + nth);
            time_waits.forget(index, &mut flows);
            assert!(time_waits.order.len() <= 300, "after {nth}");
        }
        assert_eq!((time_waits.len(), time_waits.next_deadline_ns()), (stays.len(), 1));
        time_waits.expire(1, &mut flows);
        assert_eq!((time_waits.len(), flows.len()), (0, 0), "each has its own entry still");
    }
}
