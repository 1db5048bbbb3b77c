//! TIME-WAIT without a socket: what has to be remembered of a connection that is over.

use std::collections::VecDeque;

use super::demux::{Packet, Reason};
use super::flow::{self, FlowKey, FlowTable, Owner};
use super::options::Offer;
use super::paws::Timestamps;
use super::slab::Slab;
use super::stack::{Io, Stack};
use super::tcp::Segment;
use super::wire::{self, BareSegment, seq_lt};

/// A finished connection.
#[derive(Clone, Copy, Debug)]
struct TimeWait {
    flow: FlowKey,
    /// Next sequence number of ours.
    snd_nxt: u32,
    /// Next sequence number of the peer's.
    rcv_nxt: u32,
    window: u16,
    timestamps: Option<Timestamps>,
    until_ns: u64,
    /// A needless acknowledgement is not sent before this (RFC 5961 section 7).
    quiet_until_ns: u64,
}

/// The connections in TIME-WAIT of a shard.
#[derive(Debug)]
pub(super) struct TimeWaits {
    records: Slab<TimeWait>,
    /// By time of entry. A record whose time was renewed goes to the back when it comes up.
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

    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.order.front().map(|&(at, _, _)| at)
    }

    fn forget(&mut self, index: u32, flows: &mut FlowTable) {
        if let Some(record) = self.records.remove(index) {
            flow::forget(flows, &record.flow);
        }
    }

    /// Forgets the oldest, to make room.
    fn recycle(&mut self, flows: &mut FlowTable) {
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

impl Stack {
    /// Enters TIME-WAIT in place of whoever has the 4-tuple.
    pub(super) fn time_wait(
        &mut self,
        flow: FlowKey,
        snd_nxt: u32,
        rcv_nxt: u32,
        window: u16,
        timestamps: Option<Timestamps>,
        now_ns: u64,
    ) {
        if self.time_waits.len() >= self.config.time_wait_max {
            self.counters.time_wait_recycled += 1;
            self.time_waits.recycle(&mut self.flows);
        }
        let until_ns = now_ns + self.config.timeouts.time_wait_ns;
        let record = TimeWait { flow, snd_nxt, rcv_nxt, window, timestamps, until_ns, quiet_until_ns: 0 };
        let index = self.time_waits.records.insert(record);
        self.time_waits.order.push_back((until_ns, index, self.time_waits.records.generation(index)));
        self.flows.insert(flow, Owner::TimeWait(index));
    }

    /// A segment for a connection in TIME-WAIT (RFC 9293 section 3.10.7.4, `tcp_timewait_state_process`). `Ok`: it
    /// opens a new connection, for which the 4-tuple is free now, at this listener and with this initial sequence number.
    pub(super) fn time_wait_input(
        &mut self,
        index: u32,
        packet: &Packet,
        segment: &Segment,
        io: &mut Io<'_>,
    ) -> Result<(u32, u32), Reason> {
        const SWALLOWED: Reason = |counters| &mut counters.drop_time_wait;
        let Some(record) = self.time_waits.records.get_mut(index) else { return Err(SWALLOWED) };
        if segment.flags & wire::RST != 0 {
            // RFC 1337: a stray reset must not end TIME-WAIT.
            return Err(SWALLOWED);
        }
        // Its timestamp, too, can show that a SYN is new (RFC 6191), and that it is old.
        let both = record.timestamps.zip(segment.timestamp);
        let old = both.is_some_and(|(known, option)| known.is_old(option.value, io.now_ns));
        let newer = both.is_some_and(|(known, option)| known.is_newer(option.value));
        let fresh = !old && (newer || seq_lt(record.rcv_nxt.wrapping_sub(1), segment.seq));
        if segment.flags & (wire::SYN | wire::ACK) == wire::SYN && fresh {
            let (flow, snd_nxt) = (record.flow, record.snd_nxt);
            // Beyond anything that may still be on its way (`tcp_timewait_state_process`).
            let isn = snd_nxt.wrapping_add(65_535 + 2);
            // Only if somebody would take it: otherwise TIME-WAIT keeps protecting the port.
            let listener = self.listener_for(packet, &flow);
            if let Some(listener) = listener {
                self.counters.time_wait_reused += 1;
                self.time_waits.forget(index, &mut self.flows);
                return Ok((listener, isn));
            }
        }
        let Some(record) = self.time_waits.records.get_mut(index) else { return Err(SWALLOWED) };
        let occupies = segment.length > 0 || segment.flags & (wire::FIN | wire::SYN) != 0;
        if segment.flags & wire::FIN != 0 && !old {
            record.until_ns = io.now_ns + self.config.timeouts.time_wait_ns;
        }
        // The peer has not heard our last acknowledgement, or is confused: tell it, at most twice a second.
        if (occupies || segment.seq != record.rcv_nxt) && record.quiet_until_ns <= io.now_ns {
            record.quiet_until_ns = io.now_ns + 500_000_000;
            let reply = BareSegment {
                source: packet.destination,
                source_port: segment.destination_port,
                destination: packet.source,
                destination_port: segment.source_port,
                seq: record.snd_nxt,
                ack: record.rcv_nxt,
                flags: wire::ACK,
                window: record.window,
            };
            let timestamp = record.timestamps.map(|timestamps| timestamps.option(io.now_ns));
            let options = Offer { timestamp, ..Offer::default() };
            let frame = reply.build_with(&options.write(), io.pool);
            self.send_ip(frame, packet.source, io);
        }
        Err(SWALLOWED)
    }
}
