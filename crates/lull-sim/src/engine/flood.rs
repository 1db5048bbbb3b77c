//! A flood of datagrams: its senders, the wire, and the sockets of the sinks.
//!
//! Senders are closed-loop programs (`netperf -t UDP_STREAM`). Each sends as fast as a send call allows; as many send
//! at a time as their machine has cores, and all of them together are no faster than the wire, on which a datagram
//! larger than the MTU is several frames. What the receiving side cannot take is lost at the first full queue: the
//! ring, the hypervisor's device ([`crate::engine::relay`]), or the socket's receive buffer. A datagram that loses a
//! frame is lost as a whole.

use std::collections::VecDeque;

use crate::costs::Costs;
use crate::engine::agenda::{Event, PacketKind};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{ConnId, CpuId, FlowId, QueueId, Table, ThreadId};
use crate::engine::nic::{Nic, Packet};
use crate::engine::rng::{Component, Stream};
use crate::world::FloodSpec;

/// IPv4 and UDP headers.
const IP_BYTES: u32 = 20;
const UDP_BYTES: u32 = 8;
/// The least payload of an Ethernet frame.
const FRAME_PAYLOAD_MIN: u32 = 46;
/// Ethernet header and checksum, preamble, gap.
const FRAME_BYTES: u32 = 14 + 4 + 8 + 12;
/// The bits of [`Packet::part`] that hold a fragment's number: a datagram has at most 44 frames at an MTU of 1500.
const PART_BITS: u32 = 8;

/// The unit of the capacity of interference in a world with a flood.
pub(crate) const COLD_UNIT_BYTES: u64 = 1_024;

impl FloodSpec {
    /// Data of a fragment: a multiple of eight bytes.
    fn fragment_bytes(&self) -> u32 {
        (self.mtu - IP_BYTES) & !7
    }

    /// The number of frames of a datagram.
    pub fn frames(&self) -> u32 {
        let bytes = self.bytes + UDP_BYTES;
        if bytes <= self.mtu - IP_BYTES { 1 } else { bytes.div_ceil(self.fragment_bytes()) }
    }

    /// Bytes of the IP packet in frame `part`.
    pub fn packet_bytes(&self, part: u32) -> u32 {
        let bytes = self.bytes + UDP_BYTES;
        match self.frames() {
            1 => IP_BYTES + bytes,
            frames if part + 1 < frames => IP_BYTES + self.fragment_bytes(),
            frames => IP_BYTES + bytes - (frames - 1) * self.fragment_bytes(),
        }
    }

    /// Time that frame `part` takes on the wire, in nanoseconds.
    pub fn wire_ns(&self, part: u32) -> u64 {
        let bytes = self.packet_bytes(part).max(FRAME_PAYLOAD_MIN) + FRAME_BYTES;
        u64::from(bytes) * 8 * 1_000_000_000 / self.wire_bits_per_s.max(1)
    }

    /// What a datagram costs its sender, in nanoseconds.
    pub fn send_ns(&self) -> f64 {
        let later = f64::from(self.frames() - 1) * f64::from(self.sender.fragment_ns);
        f64::from(self.sender.datagram_ns) + later + f64::from(self.bytes) * f64::from(self.sender.byte_ps) / 1_000.0
    }

    /// The mean time between two datagrams by the speed of the senders' machine, in nanoseconds; the wire may be
    /// slower.
    fn gap_ns(&self) -> f64 {
        self.send_ns() / self.sender.cores.min(f64::from(self.flows)).max(0.01)
    }
}

/// The socket of a sink, by flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct SinkSocket {
    /// Datagrams that a receive call would return: for each, how many bytes of memory all sockets had received when it
    /// came.
    pub(crate) ready: VecDeque<u64>,
    /// The thread asleep in it.
    pub(crate) waiter: Option<ThreadId>,
    /// The datagram that is being put together, and the number of its frames so far.
    datagram: u32,
    parts: u32,
}

/// A flood in time.
#[derive(Debug)]
pub(crate) struct Flood {
    pub(crate) spec: FloodSpec,
    rng: Stream,
    pub(crate) sockets: Table<FlowId, SinkSocket>,
    /// The connection of the first flow.
    pub(crate) first: ConnId,
    /// Memory that a datagram holds in a receive buffer.
    datagram_bytes: u32,
    /// The memory that all datagrams so far took, in bytes. It is the clock for what has left the caches since.
    received_bytes: u64,
    frames: u32,
    wire_ns: [u64; 2],
    datagram_wire_ns: u64,
    gap_ns: f64,
    flow: u32,
    datagram: u32,
    part: u32,
    next_ns: u64,
}

impl Flood {
    pub(crate) fn new(spec: &FloodSpec, first: ConnId, seed: u64) -> Flood {
        let frames = spec.frames();
        Flood {
            rng: Stream::new(seed, Component::Load, first.raw()),
            sockets: (0..spec.flows).map(|_| SinkSocket::default()).collect(),
            first,
            datagram_bytes: (0..frames).map(|part| spec.frame_memory(part)).sum(),
            received_bytes: 0,
            frames,
            wire_ns: [spec.wire_ns(0), spec.wire_ns(frames - 1)],
            datagram_wire_ns: (0..frames).map(|part| spec.wire_ns(part)).sum(),
            gap_ns: spec.gap_ns(),
            flow: 0,
            datagram: 0,
            part: 0,
            next_ns: 0,
            spec: spec.clone(),
        }
    }

    /// Whether a datagram is several frames.
    pub(crate) fn is_fragmented(&self) -> bool {
        self.frames > 1
    }

    /// Bytes of the packet of this frame.
    pub(crate) fn packet_bytes(&self, part: u32) -> u32 {
        self.spec.packet_bytes(part & ((1 << PART_BITS) - 1))
    }
}

impl FloodSpec {
    /// Memory that the frame holds until the datagram is read (`truesize`).
    fn frame_memory(&self, part: u32) -> u32 {
        let bytes = self.packet_bytes(part);
        self.buffer_small_bytes + if bytes > self.copied_bytes { self.buffer_large_bytes } else { 0 }
    }
}

impl Flood {
    /// Starts the flood.
    pub(crate) fn start(&self, env: &mut Env) {
        env.agenda.push(env.now_ns + 1_000, Event::Flood);
    }

    /// The next frame has passed the wire.
    pub(crate) fn due(&mut self, env: &mut Env, cpus: &mut Cpus, nic: &mut Nic) {
        if env.faults.quiet {
            return;
        }
        if self.part == 0 {
            self.flow = self.rng.below(self.spec.flows);
            self.datagram = self.datagram.wrapping_add(1);
            env.tally.counts.issued += 1;
            self.next_ns += self.rng.uniform_ns(0.5 * self.gap_ns, 1.5 * self.gap_ns);
        }
        let (flow, part) = (self.flow, self.part);
        let packet =
            Packet { conn: self.first.plus(flow), kind: PacketKind::Frame, part: (self.datagram << PART_BITS) | part };
        self.part = (part + 1) % self.frames;
        let last_next = self.part + 1 == self.frames;
        let wire_free_ns = env.now_ns + self.wire_ns[usize::from(last_next)];
        let at_ns = if self.part == 0 { wire_free_ns.max(self.next_ns) } else { wire_free_ns };
        // Senders run ahead of the wire only by the datagram that their sockets hold.
        if self.part == 0 {
            self.next_ns = self.next_ns.max(at_ns.saturating_sub(self.datagram_wire_ns));
        }
        let queue = QueueId::new(self.spec.queues[flow as usize % self.spec.queues.len()]);
        env.agenda.push(at_ns, Event::Flood);
        let _ = nic.packet_arrives(env, cpus, queue, packet);
    }

    /// Returns what receiving a frame costs a poll, without the driver's own cost.
    pub(crate) fn frame_cost(&self, costs: &Costs) -> u64 {
        u64::from(costs.rx_frame_ns + if self.is_fragmented() { costs.reassemble_ns } else { 0 })
    }

    /// A frame has passed the stack.
    pub(crate) fn delivered(&mut self, env: &mut Env, cpus: &mut Cpus, packet: Packet, cpu: CpuId) {
        let datagram = packet.part >> PART_BITS;
        let flow = FlowId::new(packet.conn.after(self.first));
        let socket = &mut self.sockets[flow];
        if socket.datagram != datagram {
            (socket.datagram, socket.parts) = (datagram, 0);
        }
        socket.parts += 1;
        if socket.parts < self.frames {
            return;
        }
        // `sock_queue_rcv_skb`: a socket that holds less than its limit takes one more datagram.
        if socket.ready.len() as u64 * u64::from(self.datagram_bytes) >= u64::from(self.spec.receive_buffer_bytes) {
            env.tally.counts.socket_dropped += 1;
            return;
        }
        socket.ready.push_back(self.received_bytes);
        self.received_bytes += u64::from(self.datagram_bytes);
        if let Some(thread) = socket.waiter.take() {
            cpus.wake(env, thread, cpu);
        }
    }

    /// Returns what taking the next datagram of this flow out of its socket costs. Its buffers are the colder, the more
    /// has come after it.
    pub(crate) fn receive_cost_ns(&self, env: &Env, flow: FlowId) -> u64 {
        let bytes = u64::from(self.spec.bytes);
        let since_bytes = self.sockets[flow].ready.front().map_or(0, |came| self.received_bytes - came);
        let costs = &env.world.costs;
        let cold_ns = env.coldness.of(env.world.cache.cold_request_ns, since_bytes / COLD_UNIT_BYTES);
        u64::from(costs.recv_take_ns) + bytes * u64::from(costs.copy_byte_ps) / 1_000 + cold_ns * u64::from(self.frames)
    }

    /// The sink of a flow has taken a datagram.
    pub(crate) fn received(&mut self, env: &mut Env, flow: FlowId) {
        if self.sockets[flow].ready.pop_front().is_some() {
            env.tally.counts.served += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::SenderSpec;

    fn spec(bytes: u32) -> FloodSpec {
        FloodSpec { flows: 1, bytes, sender: SenderSpec::default(), ..FloodSpec::default() }
    }

    #[test]
    fn frames_and_the_wire_are_those_of_ethernet() {
        // 1438 bytes are the largest that the published runs send in one frame; 10 Gbit/s carry 831 thousand of them.
        let frames = [(1, 1), (1_438, 1), (1_472, 1), (1_473, 2), (4_096, 3), (64_000, 44)];
        for (bytes, count) in frames {
            assert_eq!(spec(bytes).frames(), count, "{bytes}");
        }
        assert_eq!(spec(1).wire_ns(0), 84 * 8 / 10);
        assert_eq!(1_000_000_000 / spec(1_438).wire_ns(0), 831_255);
        let datagram_ns: u64 = (0..44).map(|part| spec(64_000).wire_ns(part)).sum();
        assert_eq!(1_000_000_000 / datagram_ns, 18_786);
        let bytes: u32 = (0..44).map(|part| spec(64_000).packet_bytes(part) - IP_BYTES).sum();
        assert_eq!(bytes, 64_000 + UDP_BYTES);
    }
}
