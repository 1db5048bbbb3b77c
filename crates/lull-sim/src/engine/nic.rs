//! The NIC: rings, completion queues and their moderated interrupts.
//!
//! A queue pair has two completion queues, receive and transmit, that share an interrupt vector and a NAPI (like mlx5's
//! channels). Each is armed when the NAPI completes. An armed queue raises the interrupt when its moderation says so,
//! and is disarmed by that. So a queue whose interrupt is masked is one that is not armed.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use lull_core::event::EventKind;
use lull_core::{Napi, Stats};

use crate::engine::agenda::PacketKind;
use crate::engine::cpu::Irq;
use crate::engine::cpus::Cpus;
use crate::engine::dim::{Dim, Moderation, RX_CQE, TX_EQE};
use crate::engine::env::Env;
use crate::engine::id::{ConnId, CpuId, GroupId, Id, QueueId, Side, SocketId, Table, ThreadId, XskId};
use crate::engine::recorder::What;
use crate::engine::rng::{Component, Stream};
use crate::engine::seats::Groups;
use crate::engine::transmit::TransmitQueue;
use crate::world::{Masking, ModerationSpec, Period, QueueSpec, World};

/// A packet in a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) conn: ConnId,
    pub(crate) kind: PacketKind,
    /// For a frame of a flood: the number of its datagram, and its own number in it. Otherwise it is 0.
    pub(crate) part: u32,
}

impl Packet {
    /// Makes a packet that is not part of a flood.
    pub(crate) fn new(conn: ConnId, kind: PacketKind) -> Packet {
        Packet { conn, kind, part: 0 }
    }
}

/// A frame on its way through a responder, or in a transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message of a request/response pair: its socket, and when its transaction began.
    Message { socket: SocketId, begun_ns: u64 },
    /// A client's request, or the answer to it.
    Request { conn: ConnId },
}

/// One completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    spec: ModerationSpec,
    dim: Dim,
    pub(crate) armed: bool,
    /// How many completions came since the last interrupt.
    since: u32,
    first_ns: u64,
    last_ns: u64,
    /// When it interrupted last.
    event_ns: u64,
    /// How many completions it has had since the world began, which adaptive moderation compares.
    completions: u64,
    bytes: u64,
    events: u64,
}

impl CompletionQueue {
    fn new(spec: ModerationSpec, ladder: [Moderation; 5]) -> CompletionQueue {
        CompletionQueue {
            spec,
            dim: Dim::new(ladder),
            armed: false,
            since: 0,
            first_ns: 0,
            last_ns: 0,
            event_ns: 0,
            completions: 0,
            bytes: 0,
            events: 0,
        }
    }

    fn moderation(&self) -> Moderation {
        match self.spec {
            ModerationSpec::Off => Moderation { usecs: 0, frames: 1 },
            ModerationSpec::Fixed(moderation) => moderation,
            ModerationSpec::Adaptive => self.dim.moderation(),
        }
    }

    /// Returns the step of an adaptive queue.
    pub(crate) fn rung(&self) -> Option<usize> {
        (self.spec == ModerationSpec::Adaptive).then(|| self.dim.rung())
    }
}

/// A poll of a queue that is in progress.
#[derive(Debug, Default)]
pub(crate) struct Poll {
    pub(crate) budget: u32,
    /// When it began.
    began_ns: u64,
    /// Since when one poll has followed the other.
    since_ns: u64,
    /// Packets taken so far.
    pub(crate) work: u32,
    /// Packets taken but not delivered yet.
    pub(crate) batch: Vec<Packet>,
    /// Whether it has looked at the ring for the last time.
    pub(crate) looked_last: bool,
    /// The frames that it sends.
    pub(crate) sending: Vec<Frame>,
    /// Whether it interrupts a thread, which makes each packet cost more.
    pub(crate) breaking_in: bool,
}

/// Polls that begin within this time after the former one ended follow one another, in nanoseconds.
const FOLLOWS_NS: u64 = 1_000;

impl Poll {
    pub(crate) fn begins_at(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.began_ns) >= FOLLOWS_NS {
            self.since_ns = now_ns;
        }
        self.began_ns = now_ns;
    }

    /// Returns for how long one poll has followed the other until now; 0 if the last was some time ago.
    pub(crate) fn followed_ns(&self, now_ns: u64) -> u64 {
        let follows = now_ns.saturating_sub(self.began_ns) < FOLLOWS_NS;
        if follows { now_ns.saturating_sub(self.since_ns) } else { 0 }
    }
}

/// One queue pair and its NAPI.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) spec: QueueSpec,
    pub(crate) napi: Napi,
    pub(crate) ring: VecDeque<Packet>,
    /// Transmit completions that no poll has reaped.
    pub(crate) tx_done: u32,
    /// Frames of AF_XDP sockets that the next poll sends.
    pub(crate) tx_ring: Vec<Frame>,
    /// The responder's AF_XDP socket that its packets go to.
    pub(crate) xsk: Option<XskId>,
    /// Its transmit queue, if it sends through a discipline.
    pub(crate) transmit: Option<TransmitQueue>,
    pub(crate) rx: CompletionQueue,
    pub(crate) tx: CompletionQueue,
    pub(crate) poll: Poll,
    /// The group in which it is a member, with its place there.
    pub(crate) group: Option<(GroupId, u16)>,
    /// Its NAPI thread.
    pub(crate) thread: Option<ThreadId>,
    /// Since when packets that no poll has looked at have been in the ring; and the longest such time so far.
    unseen_since_ns: Option<u64>,
    pub(crate) unseen_max_ns: u64,
    /// Each such time, if they are asked for.
    pub(crate) waits: Option<Histogram<u64>>,
    /// Completions that are held up between release and settling, with their CPU.
    pub(crate) unsettled: VecDeque<(lull_core::Release, CpuId)>,
    /// Packets that a reset of the device dropped from the ring.
    pub(crate) flushed: u64,
    /// Since when its receive moderation has been on its step.
    rung_since_ns: u64,
}

impl Queue {
    pub(crate) fn new(index: QueueId, spec: &QueueSpec) -> Queue {
        let napi = Napi::new(index.raw());
        napi.set(&spec.napi);
        Queue {
            napi,
            ring: VecDeque::with_capacity(spec.ring_packets as usize),
            tx_done: 0,
            tx_ring: Vec::new(),
            xsk: None,
            transmit: spec.transmits.as_ref().map(TransmitQueue::new),
            rx: CompletionQueue::new(spec.rx, RX_CQE),
            tx: CompletionQueue::new(spec.tx, TX_EQE),
            poll: Poll { batch: Vec::with_capacity(64), ..Poll::default() },
            group: None,
            thread: None,
            unseen_since_ns: None,
            unseen_max_ns: 0,
            waits: None,
            unsettled: VecDeque::new(),
            flushed: 0,
            rung_since_ns: 0,
            spec: spec.clone(),
        }
    }

    /// The CPU of its interrupt.
    pub(crate) fn cpu(&self) -> CpuId {
        CpuId::new(self.spec.cpu)
    }

    /// Interrupts that its receive side has raised since the world began.
    pub(crate) fn raised(&self) -> u64 {
        self.rx.events
    }

    /// Returns what the poll on `cpu` reports as its work.
    pub(crate) fn reported(&self, cpu: CpuId) -> u32 {
        let full = self.poll.work == self.poll.budget && self.poll.work > 0;
        if full && self.spec.completes_off_affinity && cpu != self.cpu() { self.poll.work - 1 } else { self.poll.work }
    }

    pub(crate) fn side(&mut self, side: Side) -> &mut CompletionQueue {
        match side {
            Side::Rx => &mut self.rx,
            Side::Tx => &mut self.tx,
        }
    }

    /// Whether a poll would find something.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        let sends = || self.transmit.as_ref().is_some_and(TransmitQueue::hint);
        !self.ring.is_empty() || !self.tx_ring.is_empty() || self.tx_done != 0 || sends()
    }

    /// Returns since when packets that no poll has looked at have been in the ring.
    pub(crate) fn unseen_since_ns(&self) -> Option<u64> {
        self.unseen_since_ns
    }

    /// Notes that something came that no poll has looked at.
    pub(super) fn noticed(&mut self, now_ns: u64) {
        self.unseen_since_ns.get_or_insert(now_ns);
    }

    /// Notes that a poll looks at the ring.
    #[inline]
    pub(crate) fn looked_at(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.unseen_since_ns.take() {
            self.unseen_max_ns = self.unseen_max_ns.max(now_ns - since_ns);
            if let Some(waits) = &mut self.waits {
                waits.saturating_record(now_ns - since_ns);
            }
        }
    }

    /// Whether a runner that is not a group runs it.
    pub(crate) fn is_run(&self) -> bool {
        self.transmit.as_ref().is_some_and(|tx| tx.is_run() || !tx.word.is_idle() && !tx.word.is_grouped())
    }

    pub(crate) fn unpolled(&self, side: Side) -> u32 {
        match side {
            Side::Rx => self.ring.len() as u32,
            Side::Tx => self.tx_done,
        }
    }
}

/// The NIC: its queues, by which CPU transmits, and the sizes of its frames.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) queues: Table<QueueId, Queue>,
    /// The transmit queue of each CPU (XPS); there is none in a world without queues.
    pub(crate) tx_queue: Table<CpuId, Option<QueueId>>,
    pub(crate) groups: Groups,
    sizes: Stream,
}

impl Nic {
    pub(crate) fn new(world: &World, seed: u64) -> Nic {
        let queues = world.queues.len();
        // If there are queues that only send, only these send.
        let sends: Vec<usize> = (0..queues).filter(|queue| world.queues[*queue].transmits.is_some()).collect();
        let sends = if sends.is_empty() { (0..queues).collect() } else { sends };
        let own = |cpu: usize| sends.iter().copied().find(|queue| usize::from(world.queues[*queue].cpu) == cpu);
        let spread = |cpu: usize| (!sends.is_empty()).then(|| sends[cpu % sends.len()]);
        let tx_queue = (0..world.cpus.len()).map(|cpu| own(cpu).or(spread(cpu)).map(QueueId::at)).collect();
        Nic { queues: Table::new(), tx_queue, groups: Groups::new(), sizes: Stream::new(seed, Component::Sizes, 0) }
    }

    /// Returns the queues that receive. Those that only send have no mode of delivery.
    pub(crate) fn receiving(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter().filter(|queue| queue.transmit.is_none())
    }

    /// Returns what the NAPIs that receive have counted so far.
    pub(crate) fn napi_stats(&self) -> Stats {
        self.receiving().fold(Stats::default(), |sum, queue| sum + queue.napi.stats())
    }
}

impl Nic {
    /// A packet reaches the NIC. Returns false if the ring was full.
    pub(crate) fn packet_arrives(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, packet: Packet) -> bool {
        let q = &mut self.queues[queue];
        if q.ring.len() as u32 >= q.spec.ring_packets || env.faults.link_down {
            env.tally.counts.dropped += 1;
            let cpu = q.cpu();
            env.cx(cpu).emit(queue.raw(), EventKind::Drop { frames: 1 });
            return false;
        }
        q.ring.push_back(packet);
        q.unseen_since_ns.get_or_insert(env.now_ns);
        env.tally.counts.rx_packets += 1;
        env.tell(self.queues[queue].cpu(), What::Packet(queue));
        let bytes = env.world.frames.received(packet.kind, &mut self.sizes);
        self.completion_written(env, cpus, queue, Side::Rx, bytes);
        true
    }

    /// A frame has left.
    pub(crate) fn frame_sent(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId) {
        if !self.queues[queue].spec.tx_completions {
            return;
        }
        self.queues[queue].tx_done += 1;
        let bytes = env.world.frames.sent(&mut self.sizes);
        self.completion_written(env, cpus, queue, Side::Tx, bytes);
    }

    fn completion_written(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, side: Side, bytes: u64) {
        let now_ns = env.now_ns;
        let cq = self.queues[queue].side(side);
        if cq.since == 0 {
            cq.first_ns = now_ns;
        }
        cq.since += 1;
        cq.last_ns = now_ns;
        cq.completions += 1;
        cq.bytes += bytes;
        if cq.armed {
            self.moderate(env, cpus, queue, side);
        }
        self.group_notices(env, cpus, queue);
    }

    /// Raises the interrupt of an armed queue, or sets the time at which it will be raised.
    fn moderate(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, side: Side) {
        let now_ns = env.now_ns;
        let spec = &self.queues[queue].spec;
        let period = if side == Side::Rx { spec.rx_period } else { spec.tx_period };
        let cq = self.queues[queue].side(side);
        let moderation = cq.moderation();
        let from_ns = match period {
            Period::Completion => cq.last_ns,
            Period::First => cq.first_ns,
            Period::Interrupt => cq.event_ns,
        };
        let due_ns = from_ns + u64::from(moderation.usecs) * 1_000;
        if cq.since >= moderation.frames || due_ns <= now_ns {
            self.raise(env, cpus, queue, side);
        } else {
            env.agenda.set(env.slots.moderation(queue, side), due_ns);
        }
    }

    fn raise(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, side: Side) {
        env.agenda.clear(env.slots.moderation(queue, side));
        let now_ns = env.now_ns;
        let q = &mut self.queues[queue];
        let cpu = q.cpu();
        let stays_armed = q.spec.masking == Masking::Mask;
        let cq = q.side(side);
        cq.event_ns = now_ns;
        cq.armed = stays_armed;
        cq.since = 0;
        cq.events += 1;
        cpus.interrupt(env, cpu, Irq::Device(queue));
    }

    /// The moderation timer has expired.
    pub(crate) fn moderation_expired(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, side: Side) {
        if self.queues[queue].side(side).armed {
            self.raise(env, cpus, queue, side);
        }
    }

    /// The handler has scheduled the NAPI, or a busy poller masks it: a device whose interrupt can be masked is masked
    /// now.
    pub(crate) fn mask(&mut self, env: &mut Env, queue: QueueId) {
        if self.queues[queue].spec.masking == Masking::Mask {
            self.shut(env, queue);
        }
    }

    /// No interrupt comes until the queue is unmasked.
    pub(crate) fn shut(&mut self, env: &mut Env, queue: QueueId) {
        for side in [Side::Rx, Side::Tx] {
            env.agenda.clear(env.slots.moderation(queue, side));
            self.queues[queue].side(side).armed = false;
        }
    }

    /// The device is set up again, and looks at its rings, however it masks.
    pub(crate) fn set_up(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId) {
        let q = &mut self.queues[queue];
        (q.rx.since, q.tx.since) = (q.unpolled(Side::Rx), q.unpolled(Side::Tx));
        self.unmask(env, cpus, queue);
    }

    /// The NAPI has completed and returns the queue to its interrupts: moderation adapts, and both completion queues
    /// are armed.
    pub(crate) fn unmask(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId) {
        for side in [Side::Tx, Side::Rx] {
            self.adapt(env, queue, side);
        }
        for side in [Side::Rx, Side::Tx] {
            let q = &mut self.queues[queue];
            // A masked device reports what came since; a disarmed one what is in its rings.
            let unpolled = if q.spec.masking == Masking::Mask { q.side(side).since } else { q.unpolled(side) };
            let cq = q.side(side);
            cq.armed = true;
            cq.since = unpolled;
            if unpolled > 0 {
                self.moderate(env, cpus, queue, side);
            }
        }
        self.room(env, cpus, queue);
    }

    fn adapt(&mut self, env: &mut Env, queue: QueueId, side: Side) {
        let now_ns = env.now_ns;
        let q = &mut self.queues[queue];
        let cq = q.side(side);
        if cq.spec != ModerationSpec::Adaptive {
            return;
        }
        let rung = cq.dim.rung();
        let changed = cq.dim.sample(now_ns, cq.completions, cq.bytes, cq.events);
        env.tally.counts.moderation_changes += u64::from(changed);
        if changed && side == Side::Rx {
            let since_ns = std::mem::replace(&mut q.rung_since_ns, now_ns);
            env.tally.rung_ns[rung] += now_ns - since_ns.max(env.tally.counting_since_ns).min(now_ns);
        }
    }

    /// Adds the time on the current steps at the end of a run.
    pub(crate) fn close_rungs(&self, env: &mut Env) {
        for queue in self.queues.iter() {
            if let Some(rung) = queue.rx.rung() {
                env.tally.rung_ns[rung] +=
                    env.now_ns - queue.rung_since_ns.max(env.tally.counting_since_ns).min(env.now_ns);
            }
        }
    }
}
