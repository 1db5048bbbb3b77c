//! The shard's state and its three entries from outside: a frame, the passing of time, room in the ring.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use lull_nic::{Checksum, Frame, FramePool, TxQueue};

use super::config::{OutOfLimits, StackConfig};
use super::connection::Connection;
use super::counters::StackCounters;
use super::demux::{self, Inbound, Local, Packet, Reason};
use super::device::{Looped, Port};
use super::ended::Ended;
use super::error::NetError;
use super::flow::{FlowTable, hash_state};
use super::fragment::Identifications;
use super::half_open::HalfOpens;
use super::handing_on::HandingOn;
use super::held_back::{Batch, HeldBack};
use super::isn::{Secret, mix};
use super::listener::{Listener, PortTable};
use super::narrow::{Interfaces, PathMtus};
use super::neighbour::{HOPS, HOPS_MAX, Hop, Neighbours, Unresolved};
use super::reassembly::{self, Reassembly};
use super::requests::Answers;
use super::slab::Slab;
use super::socket::{Change, Egress, Ready, SocketId, SocketKind};
use super::sources::Sources;
use super::time_wait::TimeWaits;
use super::timers::{NEVER_NS, Timers};
use super::udp_socket::UdpSocket;
use super::wire;

/// What a call may use of the outside world. Only [`TxQueue::transmit`], [`TxQueue::free_slots`] and [`TxQueue::room_for`] are
/// called: the caller rings the doorbell, once per batch, and reaps what was sent.
pub struct Io<'a> {
    /// The present, in nanoseconds of any clock that never runs backwards.
    pub now_ns: u64,
    /// The transmit half of the shard's queue.
    pub tx: &'a mut dyn TxQueue,
    /// Where frames come from and go back to.
    pub pool: &'a mut FramePool,
    /// What became ready is appended here.
    pub changes: &'a mut Vec<Change>,
    /// The batch of events that the caller answers.
    pub batch: Batch,
}

/// A TCP/IP stack for one shard.
pub struct Stack {
    pub(super) config: StackConfig,
    pub(super) port: Port,
    pub(super) locals: Vec<Local>,
    pub(super) sources: Sources,
    pub(super) iface: Interfaces,
    pub(super) path_mtus: PathMtus,
    /// As `path_mtus`, for datagrams. Whoever says so need not know more than two addresses, so no connection goes by
    /// it.
    pub(super) datagram_path_mtus: PathMtus,
    pub(super) reassembly: Reassembly,
    pub(super) identifications: Identifications,
    pub(super) connections: Slab<Connection>,
    pub(super) flows: FlowTable,
    pub(super) timers: Timers,
    pub(super) half_opens: HalfOpens,
    pub(super) handing_on: HandingOn,
    pub(super) ended: Ended,
    /// Connections that other stacks have made.
    pub(super) claimed: Ended,
    pub(super) time_waits: TimeWaits,
    pub(super) listeners: Slab<Listener>,
    pub(super) listener_ports: PortTable,
    pub(super) udps: Slab<UdpSocket>,
    pub(super) udp_ports: PortTable,
    /// UDP sockets that take several datagrams as one.
    pub(super) udp_joiners: u32,
    pub(super) neighbours: Arc<Neighbours>,
    pub(super) unresolved: Unresolved,
    pub(super) hops: Vec<Option<Hop>>,
    /// The table's version when this shard last looked for what it waits for.
    pub(super) neighbours_seen: u32,
    /// Sockets that found the transmit ring full, oldest first.
    pub(super) blocked: VecDeque<SocketId>,
    /// What connections asked for on their way out, those few that did, by their index.
    pub(super) egress: HashMap<u32, Egress>,
    pub(super) held_back: HeldBack,
    pub(super) looped: Looped,
    /// See [`Stack::set_siblings`].
    pub(super) siblings: Option<crate::siblings::Siblings>,
    pub(super) secret: Secret,
    /// When its clock is next compared with that of the other stacks; never, if there are none.
    epoch_due_ns: u64,
    pub(super) ports_tried: u32,
    pub(super) reset_budget: Budget,
    pub(super) icmp_budget: Budget,
    /// The allowances for copies to other stacks, of what neighbours say unasked and of what they answer.
    pub(super) unasked_budget: Budget,
    pub(super) answers_budget: Budget,
    pub(super) buffer_bytes: usize,
    /// The most that it was since memory was last given back.
    pub(super) buffer_bytes_peak: usize,
    pub(super) counters: StackCounters,
    /// See [`Stack::time_answers`].
    pub(super) answers: Option<Box<Answers>>,
    /// See [`Stack::take_down`].
    down: bool,
    /// See [`Stack::set_unreachable`].
    pub(super) unreachable: bool,
}

/// A token bucket for what strangers can make us send.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: u32,
    burst: u32,
    interval_ns: u64,
    refilled_ns: u64,
}

impl Budget {
    fn new(per_second: u64, burst: u32) -> Budget {
        Budget { tokens: burst, burst, interval_ns: 1_000_000_000 / per_second, refilled_ns: 0 }
    }

    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        let due = now_ns.saturating_sub(self.refilled_ns) / self.interval_ns;
        if due > 0 {
            self.tokens = self.tokens.saturating_add(due.min(u64::from(self.burst)) as u32).min(self.burst);
            self.refilled_ns += due * self.interval_ns;
        }
        let granted = self.tokens > 0;
        self.tokens -= u32::from(granted);
        granted
    }
}

impl Stack {
    /// A stack without sockets. An IPv6 link-local address is added if there are IPv6 addresses but none of that kind.
    ///
    /// # Errors
    /// A setting is out of its limits (see [`StackConfig::validate`]).
    pub fn new(config: StackConfig, neighbours: Arc<Neighbours>) -> Result<Stack, OutOfLimits> {
        config.validate()?;
        let mut addresses = config.addresses.clone();
        let has = |test: fn(&std::net::Ipv6Addr) -> bool| {
            addresses.iter().any(|(ip, _)| matches!(ip, IpAddr::V6(ip) if test(ip)))
        };
        if has(|_| true) && !has(|ip| ip.is_unicast_link_local()) {
            addresses.push((IpAddr::V6(wire::link_local(config.mac)), 64));
        }
        let locals: Vec<Local> = addresses
            .iter()
            .map(|&(ip, prefix)| Local {
                ip,
                prefix,
                broadcast: match ip {
                    IpAddr::V4(ip) => wire::subnet_broadcast(ip, prefix),
                    IpAddr::V6(_) => None,
                },
            })
            .collect();
        let port = Port {
            mac: config.mac,
            mtu_bytes: config.mtu_bytes,
            tx_checksum_offload: config.tx_checksum_offload,
            tx_segmentation_offload: config.tx_segmentation_offload,
        };
        Ok(Stack {
            port,
            sources: Sources::new(&locals, &config),
            locals,
            iface: Interfaces::new(port),
            path_mtus: PathMtus::default(),
            datagram_path_mtus: PathMtus::default(),
            reassembly: Reassembly::default(),
            identifications: Identifications::new(mix(config.seed ^ 4)),
            connections: Slab::with_capacity(config.connections_max),
            flows: FlowTable::with_hasher(hash_state(mix(config.seed ^ 1))),
            timers: Timers::new(),
            half_opens: HalfOpens::new(),
            handing_on: HandingOn::new(),
            ended: Ended::new(),
            claimed: Ended::new(),
            time_waits: TimeWaits::new(),
            listeners: Slab::with_capacity(0),
            listener_ports: PortTable::default(),
            udps: Slab::with_capacity(0),
            udp_ports: PortTable::default(),
            udp_joiners: 0,
            unresolved: Unresolved::new(neighbours.clone()),
            hops: vec![None; HOPS],
            neighbours_seen: 0,
            neighbours,
            blocked: VecDeque::new(),
            egress: HashMap::new(),
            held_back: HeldBack::new(),
            looped: Looped::new(),
            siblings: None,
            epoch_due_ns: if config.others().is_some() { 0 } else { u64::MAX },
            secret: match config.others() {
                Some(elsewhere) => Secret::common(mix(elsewhere.secret()), config.epoch_ns),
                None => Secret::new(mix(config.seed ^ 2)),
            },
            ports_tried: mix(config.seed ^ 3) as u32,
            // Linux's `icmp_msgs_per_sec` and `icmp_msgs_burst`; resets get the same allowance, as BSDs give them.
            reset_budget: Budget::new(1000, 200),
            icmp_budget: Budget::new(1000, 50),
            // The burst is as many next hops as a stack may ask for. Whoever needs a copy that was left out asks again.
            unasked_budget: Budget::new(1000, HOPS_MAX as u32),
            answers_budget: Budget::new(1000, HOPS_MAX as u32),
            buffer_bytes: 0,
            buffer_bytes_peak: 0,
            counters: StackCounters::default(),
            answers: None,
            down: false,
            unreachable: false,
            config,
        })
    }

    /// Forgets every socket, whatever state a panic left it in; calls for one fail from now on, and nobody can open any.
    pub fn take_down(&mut self) {
        let (config, counters) = (self.config.clone(), self.counters);
        if let Ok(empty) = Stack::new(config, self.neighbours.clone()) {
            *self = Stack { counters, ..empty };
        }
        self.down = true;
    }

    /// What a call for a socket that is not there fails with.
    pub(super) fn no_socket(&self) -> NetError {
        if self.down { NetError::NetworkDown } else { NetError::InvalidSocket }
    }

    /// Whether it was taken down ([`Stack::take_down`]).
    pub(crate) fn is_down(&self) -> bool {
        self.down
    }

    /// Whether sockets can be opened.
    pub(super) fn check_up(&self) -> Result<(), NetError> {
        if self.down { Err(NetError::NetworkDown) } else { Ok(()) }
    }

    /// Takes a received frame. Its effects on sockets are in `io.changes`; replies of the protocol are on the ring.
    pub fn receive(&mut self, frame: Frame, io: &mut Io<'_>) {
        self.counters.rx_frames += 1;
        self.take(frame, false, io);
    }

    /// Takes a frame from the device, or one that looped: only that may come from an own address.
    pub(super) fn take(&mut self, frame: Frame, looped: bool, io: &mut Io<'_>) {
        let mut frame = linear(frame, io.pool);
        let mut inbound = demux::classify(&frame, self.port.mac, &self.locals, looped);
        // Each round takes four bytes of the frame away.
        while matches!(inbound, Ok(Inbound::PriorityTagged)) {
            demux::untag(&mut frame);
            inbound = demux::classify(&frame, self.port.mac, &self.locals, looped);
        }
        if let Ok(Inbound::Fragment(packet)) = inbound {
            let Some(whole) = self.reassemble(frame, &packet, io) else { return };
            inbound =
                demux::classify(&whole, self.port.mac, &self.locals, false).and_then(reassembly::of_whole(&whole));
            frame = whole;
        }
        let refused = match inbound {
            Ok(Inbound::Ip(packet)) if !looped && !self.allows(&packet, &frame) => {
                Err((|counters| &mut counters.drop_not_allowed) as Reason)
            }
            Ok(Inbound::Ip(mut packet)) => match packet.protocol {
                wire::PROTOCOL_TCP => self.tcp_input(&mut frame, &mut packet, io),
                wire::PROTOCOL_UDP => match self.udp_input(frame, &packet, io) {
                    // The socket keeps the frame.
                    Ok(()) => return,
                    Err((reason, back)) => {
                        frame = back;
                        Err(reason)
                    }
                },
                wire::PROTOCOL_ICMP if packet.source.is_ipv4() => match self.icmpv4_input(&frame, &packet, io) {
                    Err(_) if self.icmp_is_elsewhere(&frame, &packet) => Ok(()),
                    other => other,
                },
                wire::PROTOCOL_ICMPV6 if packet.source.is_ipv6() => match self.icmpv6_input(&frame, &packet, io) {
                    Err(_) if self.icmp_is_elsewhere(&frame, &packet) => Ok(()),
                    other => other,
                },
                _ => Err((|counters| &mut counters.drop_protocol) as Reason),
            },
            Ok(Inbound::Arp) => self.arp_input(&frame, io),
            Ok(Inbound::PriorityTagged | Inbound::Fragment(_)) => Err(demux::MALFORMED),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = refused {
            *reason(&mut self.counters) += 1;
        }
        io.pool.recycle(frame);
    }

    /// Whether the source of a packet may send here. Neighbour discovery always may, because without it nobody could be
    /// answered.
    #[inline]
    pub(super) fn allows(&self, packet: &Packet, frame: &Frame) -> bool {
        let allowed = &self.config.allowed_sources;
        allowed.is_empty()
            || allowed.iter().any(|&(network, prefix)| wire::inside(packet.source, network, prefix))
            || packet.is_neighbour_discovery(frame)
    }

    /// The clocks of this stack and of those elsewhere run at rates of their own, a few parts in a million apart. Peers
    /// whose connections another stack may go on with are told the time of the clock that all stacks have, so now and
    /// then this stack's clock is compared with that.
    #[inline]
    pub(crate) fn keep_time(&mut self, now_ns: u64, epoch_ns: impl FnOnce() -> u64) {
        const LOOKS_APART_NS: u64 = 1_000_000_000;
        if now_ns >= self.epoch_due_ns {
            self.epoch_due_ns = now_ns + LOOKS_APART_NS;
            self.secret.set_epoch(epoch_ns());
        }
    }

    /// Does what time has made due: retransmissions, delayed acknowledgements, timeouts, requests for neighbours. Call
    /// it at [`Stack::next_deadline_ns`] or later; sooner does no harm.
    pub fn run_timers(&mut self, io: &mut Io<'_>) {
        while let Some(index) = self.timers.pop_due(io.now_ns) {
            self.connection_timer(index, io);
        }
        while let Some(index) = self.half_opens.timers.pop_due(io.now_ns) {
            self.half_open_timer(index, io);
        }
        self.time_waits.expire(io.now_ns, &mut self.flows);
        self.run_handing_on(io);
        if self.held_back_until_ns() <= io.now_ns {
            self.let_go_of_all(io);
        }
        self.run_unresolved(io);
        self.run_reassembly(io);
    }

    /// When [`Stack::run_timers`] is wanted next, in nanoseconds of [`Io::now_ns`]'s clock. It may be early, because a
    /// deadline that was put off is looked at when it first comes up, but never late.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let of_connections = self.timers.next_deadline_ns().min(self.half_opens.timers.next_deadline_ns());
        let of_the_rest = self.time_waits.next_deadline_ns().min(self.unresolved.next_deadline_ns());
        let of_the_rest = of_the_rest.min(self.handing_on.next_deadline_ns()).min(self.reassembly.next_deadline_ns());
        let deadline_ns = of_connections.min(of_the_rest).min(self.held_back_until_ns());
        (deadline_ns != NEVER_NS).then_some(deadline_ns)
    }

    /// Whether sockets wait for room in the transmit ring: [`Stack::flush_blocked`] is wanted once there is some.
    #[inline]
    pub fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Lets the sockets that found the transmit ring full try again, in the order in which they did, until the ring is
    /// full again.
    pub fn flush_blocked(&mut self, io: &mut Io<'_>) {
        // Whoever finds the ring full again queues up behind the present ones.
        for _ in 0..self.blocked.len() {
            if io.tx.free_slots() == 0 {
                return;
            }
            let Some(id) = self.blocked.pop_front() else { return };
            match id.kind() {
                SocketKind::Udp => self.udp_unblocked(id, io),
                _ => self.connection_unblocked(id, io),
            }
        }
    }

    /// Counts what happened so far.
    pub fn counters(&self) -> StackCounters {
        self.counters
    }

    /// Frames put on the ring so far: the caller rings the doorbell when it grew.
    #[inline]
    pub fn tx_frames(&self) -> u64 {
        self.counters.tx_frames
    }

    /// The settings that the stack was made with.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Connections in any state but TIME-WAIT, accepted or not, half open ones included.
    pub fn connections(&self) -> usize {
        self.connections.len() + self.half_opens.len()
    }

    /// How many connections are in TIME-WAIT.
    pub fn time_waits(&self) -> usize {
        self.time_waits.len()
    }

    /// Memory that connections, their buffers and the tables hold, in bytes. Buffers are counted at their full size,
    /// though the kernel gives their pages only as they are used.
    pub fn memory_bytes(&self) -> usize {
        let entry = size_of::<super::flow::FlowKey>() + size_of::<super::flow::Owner>() + 1;
        self.buffer_bytes
            + self.connections.len() * Connection::overhead_bytes()
            + self.connections.memory_bytes()
            + self.timers.memory_bytes()
            + self.flows.capacity() * entry
            + self.half_opens.memory_bytes()
            + self.time_waits.memory_bytes()
            + self.ended.memory_bytes()
            + self.claimed.memory_bytes()
            + self.reassembly.memory_bytes()
            + self.udps.iter().map(|(_, socket)| socket.memory_bytes()).sum::<usize>()
    }

    /// Whether a crowd of connections has gone since this was last asked: most of what their buffers held is free, and worth
    /// giving back to the system.
    #[inline]
    pub fn take_crowd_gone(&mut self) -> bool {
        /// Less than this is kept for those who come next.
        const CROWD_BYTES_MIN: usize = 4 << 20;
        let gone = self.buffer_bytes_peak > CROWD_BYTES_MIN && self.buffer_bytes < self.buffer_bytes_peak / 4;
        if gone {
            self.buffer_bytes_peak = self.buffer_bytes;
        }
        gone
    }

    pub(super) fn notify(&mut self, socket: SocketId, ready: Ready, edges: Ready, io: &mut Io<'_>) {
        if !edges.is_empty() {
            io.changes.push(Change { socket, ready, edges });
        }
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack")
            .field("config", &self.config)
            .field("connections", &self.connections.len())
            .field("time_waits", &self.time_waits.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// The frame in one piece. Only large receive offload, the device's or ours, makes chains.
fn linear(frame: Frame, pool: &mut FramePool) -> Frame {
    if frame.next().is_none() {
        return frame;
    }
    let mut whole = pool.alloc_for(frame.chain_len());
    whole.set_len(frame.chain_len());
    whole.set_checksum(frame.checksum());
    whole.set_segmentation(frame.segmentation());
    whole.set_rss_hash(frame.rss_hash());
    let mut at = 0;
    let mut part = Some(&frame);
    while let Some(segment) = part {
        whole.data_mut()[at..at + segment.len()].copy_from_slice(segment.data());
        at += segment.len();
        part = segment.next();
    }
    debug_assert_eq!(whole.checksum() == Checksum::None, frame.checksum() == Checksum::None);
    pool.recycle(frame);
    whole
}

const _: () = {
    const fn send<T: Send>() {}
    send::<Stack>();
};
