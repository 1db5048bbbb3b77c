//! One poll of a queue by its owner: transmit completions are reaped, and packets are taken off the ring and delivered.
//!
//! A poll goes on while its budget lasts and the ring has packets, including those that arrive meanwhile. It is
//! executed in chunks of eight packets, as the stack receives them (`gro_normal_batch`), which are delivered at the end
//! of the chunk.

use crate::engine::agenda::PacketKind;
use crate::engine::id::{CpuId, QueueId};
use crate::engine::sim::Sim;

/// Packets per chunk.
const CHUNK: u32 = 8;

impl Sim {
    /// Begins a poll; returns the cost of its first chunk.
    pub(crate) fn poll_begins(&mut self, queue: QueueId, budget: u32, cpu: CpuId, breaking_in: bool) -> u64 {
        let q = &mut self.nic.queues[queue];
        q.poll.budget = budget;
        q.poll.work = 0;
        q.poll.begins_at(self.env.now_ns);
        q.poll.looked_last = false;
        q.poll.breaking_in = breaking_in;
        debug_assert!(q.poll.batch.is_empty(), "two polls of one queue at once");
        if q.transmit.is_some() {
            self.env.tally.transitions += 1;
            return u64::from(self.env.world.costs.poll_ns) + self.transmit_poll_begins(queue);
        }
        let reaped = std::mem::take(&mut q.tx_done);
        std::mem::swap(&mut q.poll.sending, &mut q.tx_ring);
        let sends = q.poll.sending.len() as u64;
        self.env.tally.transitions += 1;
        let costs = &self.env.world.costs;
        let fixed_ns = u64::from(costs.poll_ns) + u64::from(reaped) * u64::from(costs.tx_done_ns);
        let sent_ns = sends * u64::from(costs.tx_frame_ns);
        fixed_ns + sent_ns + self.env.faults.slow_poll_ns() + self.take_chunk(queue, cpu)
    }

    /// A chunk has ended: delivers its packets. Returns the cost of the next chunk, or `None` if the poll is over.
    pub(crate) fn poll_goes_on(&mut self, queue: QueueId, cpu: CpuId) -> Option<u64> {
        if self.nic.queues[queue].transmit.is_some() {
            return self.transmit_poll_goes_on(queue, cpu);
        }
        if !self.nic.queues[queue].poll.sending.is_empty() {
            let mut sending = std::mem::take(&mut self.nic.queues[queue].poll.sending);
            for frame in sending.drain(..) {
                self.frame_leaves(frame, queue);
            }
            self.nic.queues[queue].poll.sending = sending;
        }
        let mut batch = std::mem::take(&mut self.nic.queues[queue].poll.batch);
        for packet in batch.drain(..) {
            self.deliver(queue, packet, cpu);
        }
        let q = &mut self.nic.queues[queue];
        q.poll.batch = batch;
        if q.poll.looked_last {
            return None;
        }
        if q.poll.work < q.poll.budget && !q.ring.is_empty() {
            return Some(self.take_chunk(queue, cpu));
        }
        q.poll.looked_last = true;
        if let Some(relay) = &mut self.relay {
            relay.guest_polled(&mut self.env, &mut self.cpus, &self.nic, queue, cpu);
        }
        let tail_ns = self.env.faults.tail_ns();
        (tail_ns > 0).then_some(tail_ns)
    }

    fn take_chunk(&mut self, queue: QueueId, cpu: CpuId) -> u64 {
        if self.flood.is_some() {
            return self.take_frames(queue);
        }
        let costs = &self.env.world.costs;
        let q = &mut self.nic.queues[queue];
        q.looked_at(self.env.now_ns);
        let mut cost_ns = 0;
        let room = (q.poll.budget - q.poll.work).min(CHUNK);
        let far = !self.env.world.cores.share_node(q.spec.cpu, cpu.raw());
        let cache = &self.env.world.cache;
        let broken_ns = if q.poll.breaking_in { u64::from(cache.broken_packet_ns) } else { 0 };
        let remote_ns = if far { u64::from(cache.remote_packet_ns) } else { 0 };
        for _ in 0..room {
            let Some(packet) = q.ring.pop_front() else { break };
            q.poll.work += 1;
            let connection = &mut self.clients.connections[packet.conn];
            cost_ns += connection.touch(&self.env, &self.cpus, cpu, cache.cold_packet_ns, cache.cross_packet_ns);
            cost_ns += broken_ns
                + remote_ns
                + u64::from(match packet.kind {
                    PacketKind::Request | PacketKind::Message | PacketKind::Frame => costs.rx_request_ns,
                    PacketKind::Ack => costs.rx_ack_ns,
                });
            q.poll.batch.push(packet);
        }
        cost_ns
    }

    /// Does the same as [`Sim::take_chunk`] in a world with a flood, in which all packets are its frames.
    fn take_frames(&mut self, queue: QueueId) -> u64 {
        let q = &mut self.nic.queues[queue];
        q.looked_at(self.env.now_ns);
        let room = (q.poll.budget - q.poll.work).min(CHUNK);
        let mut cost_ns = 0;
        let frame_ns = self.frame_cost(queue);
        for _ in 0..room {
            let Some(packet) = self.nic.queues[queue].ring.pop_front() else { break };
            cost_ns += frame_ns;
            let poll = &mut self.nic.queues[queue].poll;
            poll.work += 1;
            poll.batch.push(packet);
        }
        cost_ns
    }

    /// Returns what receiving a frame of a flood costs a poll of this queue, without the driver's own cost.
    fn frame_cost(&self, queue: QueueId) -> u64 {
        if let Some(relay) = self.relay.as_ref().filter(|relay| relay.forwards(queue)) {
            return relay.forward_cost_ns(&self.nic, queue);
        }
        self.flood.as_ref().map_or(0, |flood| flood.frame_cost(&self.env.world.costs))
    }
}
