//! The client: receives, answers, sends what is due, rings the doorbell, over and over.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lull_nic::{Frame, Queue, RxQueue};

use super::WireConfig;
use super::connection::{Connection, NEVER, RTO_NS_MIN, RoundTrip, Slot, State, before};
use super::egress::Egress;
use super::packet::{ACK, Arp, FIN, Fields, PSH, RST, Received, SYN, Segment, Template, WINDOW};
use crate::load::clock::Clock;
use crate::load::dist::{Rng, mix};
use crate::load::recorder::{Recorder, Summary, Window};
use crate::load::schedule::{Due, Schedule};
use crate::load::workload::{Request, Workload};
use crate::load::{Load, LoadError};

/// Requests sent before the device is told, so that the first of many due does not wait for all.
const TX_BATCH: usize = 32;
/// Connections being opened at a time: what any listener's queue holds.
const OPENING_MAX: usize = 64;
/// An answer is acknowledged after this, or [`SWEEP_NS`] later, if no request carries the acknowledgement.
const ACK_DELAY_NS: u64 = 20_000_000;
/// How often deadlines are looked at.
const SWEEP_NS: u64 = 5_000_000;
/// A lost connection is opened again after this.
const REOPEN_NS: u64 = 100_000_000;
/// Retransmissions of a segment before the connection counts as lost.
const RETRIES_MAX: u8 = 8;
/// Duplicate acknowledgements that stand for a loss.
const DUPLICATE_ACKS: u8 = 3;
/// Ports that connections are opened from; those below are for servers.
const PORT_FIRST: u16 = 1024;
/// "No connection" in the table of ports.
const NOBODY: u32 = u32::MAX;

/// What the run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No load.
    Idle,
    /// Sending until this time.
    Sending { until_ns: u64 },
    /// Waiting for the last answers, until this time at the latest.
    Draining { until_ns: u64 },
    /// Over.
    Done,
}

/// A memcached load generator on a queue of a NIC. One thread owns it and polls.
pub struct WireClient<C> {
    config: WireConfig,
    clock: C,
    workload: Arc<Workload>,
    rx: Box<dyn RxQueue>,
    /// Keeps the interrupt line, which stays masked.
    _irq: Arc<dyn lull_nic::IrqLine>,
    egress: Egress,
    peer_known: bool,
    connections: Vec<Connection>,
    /// Lower bounds of the connections' deadlines, side by side to be scanned.
    deadlines: Vec<u64>,
    /// The rings of requests: `ring` slots for each connection, a power of two.
    slots: Vec<Slot>,
    ring: usize,
    /// Connection of each local port.
    ports: Vec<u32>,
    next_port: u16,
    to_open: VecDeque<u32>,
    opening: usize,
    established: usize,
    phase: Phase,
    load: Load,
    /// Records left to preload; `None`: requests are drawn.
    preload_next: Option<u32>,
    schedule: Schedule,
    recorder: Recorder,
    rng: Rng,
    round_trip: RoundTrip,
    batch: Vec<Frame>,
    /// Intended and eligible times of what was sent since the last doorbell.
    unrung: Vec<(u64, u64)>,
    turn_from_ns: u64,
    next_sweep_ns: u64,
    next_arp_ns: u64,
    last_progress_ns: u64,
    retransmits: u64,
    lost_connections: u64,
    last_failure: &'static str,
    raise_ns: Option<Box<dyn FnMut() -> u64 + Send>>,
    raise_ns_before: u64,
}

impl<C: Clock> WireClient<C> {
    /// A client with no connection yet. The queue's interrupt stays masked: the client polls.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] if a setting is outside its limits.
    pub fn new(
        config: WireConfig,
        workload: Arc<Workload>,
        queue: Queue,
        clock: C,
    ) -> Result<WireClient<C>, LoadError> {
        config.validate()?;
        queue.irq.mask();
        let peer_mac = config.peer_mac;
        let connections = config.connections;
        let load = Load::Closed { depth: 1 };
        let now_ns = clock.now_ns();
        let mut client = WireClient {
            egress: Egress::new(queue.tx, template(&config, peer_mac.unwrap_or([0xff; 6]))),
            rx: queue.rx,
            _irq: queue.irq,
            peer_known: peer_mac.is_some(),
            connections: vec![Connection::new(); connections],
            deadlines: vec![NEVER; connections],
            slots: Vec::new(),
            ring: 1,
            ports: vec![NOBODY; 1 << 16],
            next_port: PORT_FIRST,
            to_open: (0..connections as u32).collect(),
            opening: 0,
            established: 0,
            phase: Phase::Idle,
            load,
            preload_next: None,
            schedule: Schedule::new(&load, connections, now_ns, 0),
            recorder: Recorder::new(Window::default()),
            rng: Rng::new(mix(config.seed)),
            round_trip: RoundTrip::default(),
            batch: Vec::with_capacity(config.rx_batch),
            unrung: Vec::with_capacity(TX_BATCH),
            turn_from_ns: now_ns,
            next_sweep_ns: now_ns,
            next_arp_ns: now_ns,
            last_progress_ns: now_ns,
            retransmits: 0,
            lost_connections: 0,
            last_failure: "no answer",
            raise_ns: None,
            raise_ns_before: 0,
            config,
            clock,
            workload,
        };
        client.make_rings(1);
        Ok(client)
    }

    /// Tells the client how to read the nanoseconds that its doorbells have spent raising the peer's interrupts so far
    /// (a counter that only grows), to be reported apart: on a real NIC the device spends them.
    pub fn set_raise_counter(&mut self, raise_ns: impl FnMut() -> u64 + Send + 'static) {
        self.raise_ns = Some(Box::new(raise_ns));
    }

    /// Connections that the client has, up or not.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Connections that are up.
    pub fn established(&self) -> usize {
        self.established
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The recorder of the present or last run, for its histograms.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Opens all connections, polling until they are up.
    ///
    /// # Errors
    /// [`LoadError::Connect`] if they are not within `timeout`.
    pub fn connect_all(&mut self, timeout: Duration) -> Result<(), LoadError> {
        let deadline_ns = self.clock.now_ns().saturating_add(nanoseconds(timeout));
        loop {
            self.step();
            if self.established == self.connections.len() {
                return Ok(());
            }
            if self.turn_from_ns >= deadline_ns {
                let why =
                    if self.peer_known { self.last_failure } else { "the server's address is not answered by ARP" };
                return Err(LoadError::Connect {
                    connected: self.established,
                    wanted: self.connections.len(),
                    why: why.to_owned(),
                });
            }
        }
    }

    /// Puts a load on: `warmup` that does not count, then `duration` that does, then a wait for the last answers.
    /// `stop` ends it early.
    ///
    /// # Errors
    /// [`LoadError::NoProgress`] if the server falls silent, [`LoadError::Invalid`] if the load is outside its limits.
    pub fn run(
        &mut self,
        load: Load,
        warmup: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<Summary, LoadError> {
        self.begin(load, warmup, duration)?;
        while self.poll()? {
            if stop.load(Relaxed) {
                self.stop();
            }
        }
        Ok(self.finish())
    }

    /// Sets all records through the protocol, each once.
    ///
    /// # Errors
    /// As [`WireClient::run`].
    pub fn preload(&mut self, stop: &AtomicBool) -> Result<Summary, LoadError> {
        self.run(Load::Preload { depth: 4 }, Duration::ZERO, Duration::ZERO, stop)
    }

    /// Starts a load; then call [`WireClient::poll`] until it returns false, and [`WireClient::finish`].
    ///
    /// # Errors
    /// [`LoadError::Invalid`] if the load is outside its limits.
    pub fn begin(&mut self, load: Load, warmup: Duration, duration: Duration) -> Result<(), LoadError> {
        if let Load::Open { qps, .. } = load
            && !(qps.is_finite() && qps > 0.0)
        {
            return Err(LoadError::Invalid { what: "load", why: format!("{qps} requests a second") });
        }
        let now_ns = self.clock.now_ns();
        // What an earlier run left unanswered must not be taken for this one's answers.
        for connection in 0..self.connections.len() as u32 {
            let line = &self.connections[connection as usize];
            if line.answered != line.enqueued {
                self.abort(connection, now_ns, "unanswered requests");
            }
        }
        self.make_rings(load.depth());
        let preload = matches!(load, Load::Preload { .. });
        let from_ns = if preload { now_ns } else { now_ns.saturating_add(nanoseconds(warmup)) };
        let to_ns = if preload { NEVER } else { from_ns.saturating_add(nanoseconds(duration)) };
        self.load = load;
        self.preload_next = preload.then_some(0);
        self.recorder = Recorder::new(Window { from_ns, to_ns });
        self.schedule = Schedule::new(&load, self.connections.len(), now_ns, mix(self.config.seed ^ 0x6c6f6164));
        for connection in 0..self.connections.len() as u32 {
            if self.connections[connection as usize].state == State::Established {
                self.schedule.up(connection, now_ns);
            }
        }
        self.phase = Phase::Sending { until_ns: to_ns };
        (self.retransmits, self.lost_connections) = (0, 0);
        self.last_progress_ns = now_ns;
        self.raise_ns_before = self.raise_ns.as_mut().map_or(0, |raise_ns| raise_ns());
        Ok(())
    }

    /// Ends the present load early: what was measured so far counts.
    pub fn stop(&mut self) {
        if let Phase::Sending { .. } = self.phase {
            self.phase = Phase::Sending { until_ns: 0 };
        }
    }

    /// Does one turn of a begun load. False when it is over.
    ///
    /// # Errors
    /// [`LoadError::NoProgress`] if the server has fallen silent; the load is over then.
    pub fn poll(&mut self) -> Result<bool, LoadError> {
        self.step();
        let now_ns = self.turn_from_ns;
        match self.phase {
            Phase::Idle | Phase::Done => return Ok(false),
            Phase::Sending { until_ns } => {
                if now_ns >= until_ns || self.exhausted() {
                    // A preload counts to its last answer.
                    if !self.exhausted() {
                        self.recorder.end_window(now_ns);
                    }
                    let until_ns = now_ns.saturating_add(self.config.drain_ns_max);
                    self.phase = Phase::Draining { until_ns };
                }
            }
            Phase::Draining { until_ns } => {
                if self.schedule.outstanding() == 0 || (now_ns >= until_ns && !self.exhausted()) {
                    self.recorder.end_window(now_ns);
                    self.phase = Phase::Done;
                    return Ok(false);
                }
            }
        }
        let outstanding = self.schedule.outstanding();
        let silent_ns = now_ns.saturating_sub(self.last_progress_ns);
        if (outstanding > 0 || self.established == 0) && silent_ns > self.config.silence_ns_max {
            self.phase = Phase::Done;
            return Err(LoadError::NoProgress { silent_s: silent_ns as f64 / 1e9, outstanding });
        }
        Ok(true)
    }

    /// The figures of the load that has ended.
    pub fn finish(&mut self) -> Summary {
        self.phase = Phase::Idle;
        let raise_ns = self.raise_ns.as_mut().map_or(0, |raise_ns| raise_ns());
        self.recorder.set_raise_ns(raise_ns - self.raise_ns_before);
        let open_loop = matches!(self.load, Load::Open { .. });
        let backlog = self.schedule.backlog(self.recorder.window().to_ns);
        let mut summary = self.recorder.summarize(open_loop, self.schedule.outstanding(), backlog);
        summary.retransmits = self.retransmits;
        summary.reconnects = self.lost_connections;
        summary
    }

    /// Closes all connections, polling until the server has closed them too or `timeout` has passed; those left over
    /// are reset. The client is of no use afterwards.
    pub fn close_all(&mut self, timeout: Duration) {
        self.phase = Phase::Idle;
        self.to_open.clear();
        let now_ns = self.clock.now_ns();
        let deadline_ns = now_ns.saturating_add(nanoseconds(timeout));
        for connection in 0..self.connections.len() as u32 {
            match self.connections[connection as usize].state {
                State::Established => self.send_fin(connection, now_ns),
                State::SynSent => self.abort(connection, now_ns, "closed"),
                State::Waiting | State::FinSent | State::Closed => {}
            }
        }
        let open = |client: &WireClient<C>| client.connections.iter().any(|line| line.state == State::FinSent);
        while open(self) && self.turn_from_ns < deadline_ns {
            self.to_open.clear();
            self.step();
        }
        for connection in 0..self.connections.len() as u32 {
            if self.connections[connection as usize].state == State::FinSent {
                self.abort(connection, deadline_ns, "closed");
            }
            let line = &mut self.connections[connection as usize];
            (line.state, line.rto_at) = (State::Closed, NEVER);
        }
        self.ring_doorbell();
    }

    fn make_rings(&mut self, depth: u16) {
        self.ring = usize::from(depth).next_power_of_two();
        self.slots = vec![Slot::default(); self.ring * self.connections.len()];
    }

    #[inline]
    fn slot(&mut self, connection: u32, request: u32) -> &mut Slot {
        let index = connection as usize * self.ring + (request as usize & (self.ring - 1));
        &mut self.slots[index]
    }

    /// Whether a preload has nothing left to send.
    #[inline]
    fn exhausted(&self) -> bool {
        self.preload_next.is_some_and(|next| next >= self.workload.records())
    }

    /// One turn of the loop; true if there was anything to do.
    fn step(&mut self) {
        let mut worked = self.receive();
        let now_ns = self.clock.now_ns();
        if now_ns >= self.next_sweep_ns {
            self.sweep(now_ns);
        }
        if !self.to_open.is_empty() {
            self.open_more(now_ns);
        }
        worked |= self.send_due(now_ns);
        let mut end_ns = now_ns;
        if self.egress.wants_doorbell() {
            worked = true;
            end_ns = self.ring_doorbell();
        }
        self.recorder.turn(self.turn_from_ns, end_ns, worked);
        self.turn_from_ns = end_ns;
    }

    /// Tells the device of what was sent, and books the time.
    fn ring_doorbell(&mut self) -> u64 {
        let from_ns = self.clock.now_ns();
        for (intended_ns, eligible_ns) in self.unrung.drain(..) {
            self.recorder.sent(intended_ns, eligible_ns, from_ns);
        }
        self.egress.doorbell();
        let to_ns = self.clock.now_ns();
        self.recorder.doorbell(from_ns, to_ns);
        to_ns
    }

    fn receive(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let taken = self.rx.poll(self.config.rx_batch, &mut self.egress.pool, &mut |frame, _pool| batch.push(frame));
        if taken > 0 {
            // One time for the batch, read when all of it was there: no answer counts as earlier than it came.
            let now_ns = self.clock.now_ns();
            for frame in batch.drain(..) {
                match self.egress.template().read(&frame) {
                    Received::Segment(segment) => self.segment(segment, &frame, now_ns),
                    Received::Arp(arp) => self.arp(arp),
                    Received::Other => {}
                }
                self.egress.pool.recycle(frame);
            }
        }
        self.batch = batch;
        taken > 0
    }

    fn arp(&mut self, arp: Arp) {
        let us = (self.config.local_mac, self.config.local_ip);
        if arp.sender == self.config.peer_ip && !self.peer_known {
            self.peer_known = true;
            self.egress.set_template(template(&self.config, arp.sender_mac));
        }
        if arp.request && arp.target == us.1 {
            self.egress.arp(false, us, (arp.sender_mac, arp.sender));
        }
    }

    /// Sends what is due, a batch at most.
    fn send_due(&mut self, now_ns: u64) -> bool {
        let Phase::Sending { until_ns } = self.phase else {
            self.egress.congested();
            return false;
        };
        if now_ns >= until_ns || self.egress.congested() {
            return false;
        }
        let mut sent = 0;
        while sent < TX_BATCH && !self.exhausted() {
            let was_idle = self.schedule.outstanding() == 0;
            let Some(due) = self.schedule.next(now_ns) else { break };
            if was_idle {
                self.last_progress_ns = now_ns;
            }
            let request = match &mut self.preload_next {
                Some(next) => {
                    *next += 1;
                    Request::set(*next - 1)
                }
                None => self.workload.draw(&mut self.rng),
            };
            self.enqueue(due, request, now_ns);
            sent += 1;
        }
        sent > 0
    }

    /// Puts a request behind those of its connection, and sends it as far as the window allows.
    #[inline]
    fn enqueue(&mut self, due: Due, request: Request, now_ns: u64) {
        let bytes = self.workload.request_bytes(request) as u32;
        let connection = due.connection;
        let line = &mut self.connections[connection as usize];
        let end_seq = line.snd_end.wrapping_add(bytes);
        let at_end = line.snd_nxt == line.snd_end;
        let index = line.enqueued;
        line.enqueued = index.wrapping_add(1);
        line.snd_end = end_seq;
        let whole = at_end && bytes <= u32::from(line.mss) && bytes <= line.room();
        *self.slot(connection, index) = Slot { intended_ns: due.intended_ns, request, end_seq };
        self.unrung.push((due.intended_ns, due.eligible_ns));
        if whole {
            self.send_part(connection, request, 0, bytes, now_ns);
        } else {
            self.pump(connection, now_ns);
        }
    }

    /// Sends what is enqueued, as far as the peer's window allows.
    fn pump(&mut self, connection: u32, now_ns: u64) {
        let (mut index, enqueued) = {
            let line = &self.connections[connection as usize];
            (line.answered, line.enqueued)
        };
        while index != enqueued {
            let slot = *self.slot(connection, index);
            let line = &mut self.connections[connection as usize];
            let left = slot.end_seq.wrapping_sub(line.snd_nxt);
            if !before(line.snd_nxt, slot.end_seq) {
                index = index.wrapping_add(1);
                continue;
            }
            let wanted = left.min(u32::from(line.mss));
            let bytes = wanted.min(line.room());
            // No silly windows: a part is only worth a segment when nothing else is under way.
            if bytes == 0 || (bytes < wanted && line.in_flight() > 0) {
                if line.rto_at == NEVER {
                    line.rto_at = now_ns + RTO_NS_MIN;
                    self.lower_deadline(connection, now_ns + RTO_NS_MIN);
                }
                return;
            }
            let from = self.workload.request_bytes(slot.request) as u32 - left;
            self.send_part(connection, slot.request, from, bytes, now_ns);
        }
    }

    /// Sends `bytes` bytes of a request from its byte `from` on, at `snd_nxt`.
    #[inline]
    fn send_part(&mut self, connection: u32, request: Request, from: u32, bytes: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        let fields = Fields { port: line.port, seq: line.snd_nxt, ack: line.rcv_nxt, flags: ACK | PSH };
        line.snd_nxt = line.snd_nxt.wrapping_add(bytes);
        if before(line.snd_max, line.snd_nxt) {
            line.snd_max = line.snd_nxt;
            if line.timed_at == 0 {
                (line.timed_at, line.timed_seq) = (now_ns, line.snd_nxt);
            }
        } else {
            self.retransmits += 1;
        }
        line.ack_at = NEVER;
        line.unacknowledged = 0;
        if line.rto_at == NEVER {
            line.rto_at = now_ns + self.round_trip.timeout_ns(line.retries);
            let rto_at = line.rto_at;
            self.lower_deadline(connection, rto_at);
        }
        let workload = &self.workload;
        self.egress.segment(fields, bytes as usize, |payload| {
            if from == 0 && payload.len() == workload.request_bytes(request) {
                workload.encode(request, payload);
            } else {
                workload.encode_range(request, from as usize, payload);
            }
        });
    }

    /// Sends a segment without payload.
    fn send_bare(&mut self, connection: u32, seq: u32, flags: u8) {
        let line = &mut self.connections[connection as usize];
        line.ack_at = NEVER;
        line.unacknowledged = 0;
        let fields = Fields { port: line.port, seq, ack: line.rcv_nxt, flags };
        self.egress.segment(fields, 0, |_| {});
    }

    fn send_ack(&mut self, connection: u32) {
        let seq = self.connections[connection as usize].snd_nxt;
        self.send_bare(connection, seq, ACK);
    }

    #[inline]
    fn lower_deadline(&mut self, connection: u32, at_ns: u64) {
        let deadline = &mut self.deadlines[connection as usize];
        *deadline = (*deadline).min(at_ns);
    }

    fn segment(&mut self, segment: Segment, frame: &Frame, now_ns: u64) {
        let connection = self.ports[usize::from(segment.port)];
        if connection == NOBODY {
            self.refuse(segment);
            return;
        }
        let line = &self.connections[connection as usize];
        match line.state {
            State::SynSent => self.segment_in_syn_sent(connection, segment, now_ns),
            State::Established | State::FinSent => {
                if segment.flags & RST != 0 {
                    if segment.seq.wrapping_sub(line.rcv_nxt) <= u32::from(WINDOW) {
                        self.lose(connection, now_ns, "connection reset by the server");
                    }
                } else if segment.flags & SYN != 0 {
                    // Our acknowledgement of the handshake was lost.
                    self.send_ack(connection);
                } else if segment.flags & ACK != 0 {
                    self.segment_in_established(connection, segment, frame, now_ns);
                }
            }
            State::Waiting | State::Closed => debug_assert!(false, "a port without a connection"),
        }
    }

    /// Tells the server that a connection of old is no more, so that it does not keep it.
    fn refuse(&mut self, segment: Segment) {
        if segment.flags & RST != 0 {
            return;
        }
        let ack = segment.seq.wrapping_add(segment.payload_bytes as u32);
        let fields = Fields { port: segment.port, seq: segment.ack, ack, flags: RST | ACK };
        self.egress.segment(fields, 0, |_| {});
    }

    fn segment_in_syn_sent(&mut self, connection: u32, segment: Segment, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        if segment.flags & ACK == 0 || segment.ack != line.snd_nxt {
            return;
        }
        if segment.flags & RST != 0 {
            self.lose(connection, now_ns, "connection refused");
        } else if segment.flags & SYN != 0 {
            line.state = State::Established;
            line.rcv_nxt = segment.seq.wrapping_add(1);
            line.snd_una = segment.ack;
            line.snd_wnd = u32::from(segment.window);
            // 536 is what a peer takes that does not say (RFC 9293, 3.7.1).
            let mss = if segment.mss == 0 { 536 } else { segment.mss };
            line.mss = mss.clamp(64, self.config.mss_bytes);
            line.rto_at = NEVER;
            line.retries = 0;
            self.opening -= 1;
            self.established += 1;
            self.last_progress_ns = now_ns;
            self.send_ack(connection);
            if self.phase != Phase::Idle {
                self.schedule.up(connection, now_ns);
            }
        }
    }

    fn segment_in_established(&mut self, connection: u32, segment: Segment, frame: &Frame, now_ns: u64) {
        self.take_acknowledgement(connection, segment, now_ns);
        let line = &mut self.connections[connection as usize];
        // What of the payload is old, and whether any of it is new and next.
        let old = line.rcv_nxt.wrapping_sub(segment.seq);
        let bytes = segment.payload_bytes as u32;
        let fin = segment.flags & FIN != 0;
        let len = bytes + u32::from(fin);
        if len == 0 {
            return;
        }
        if old > len || old == len && old > 0 {
            // A duplicate, or something ahead of a gap: say what is wanted.
            self.send_ack(connection);
            return;
        }
        if old < bytes {
            line.rcv_nxt = line.rcv_nxt.wrapping_add(bytes - old);
            line.unacknowledged += bytes - old;
            if !self.deliver(connection, segment, old as usize, frame, now_ns) {
                self.abort(connection, now_ns, "an answer that nobody asked for");
                return;
            }
        }
        if fin {
            let line = &mut self.connections[connection as usize];
            line.rcv_nxt = line.rcv_nxt.wrapping_add(1);
            self.server_closes(connection, now_ns);
            return;
        }
        let line = &mut self.connections[connection as usize];
        if old > 0 || line.unacknowledged >= 2 * u32::from(line.mss) {
            self.send_ack(connection);
        } else if line.ack_at == NEVER {
            line.ack_at = now_ns + ACK_DELAY_NS;
            self.lower_deadline(connection, now_ns + ACK_DELAY_NS);
        }
    }

    #[inline]
    fn take_acknowledgement(&mut self, connection: u32, segment: Segment, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        let window_before = std::mem::replace(&mut line.snd_wnd, u32::from(segment.window));
        let mut pump = line.snd_nxt != line.snd_end && line.snd_wnd > window_before;
        if line.acknowledge(segment.ack) {
            if line.timed_at != 0 && !before(segment.ack, line.timed_seq) {
                self.round_trip.sample(now_ns - line.timed_at);
                line.timed_at = 0;
            }
            line.rto_at = if line.snd_una == line.snd_max && line.snd_nxt == line.snd_end {
                NEVER
            } else {
                now_ns + self.round_trip.timeout_ns(0)
            };
            pump |= line.snd_nxt != line.snd_end;
            let deadline = &mut self.deadlines[connection as usize];
            *deadline = (*deadline).min(line.rto_at);
        } else if segment.ack == line.snd_una
            && segment.payload_bytes == 0
            && segment.flags & FIN == 0
            && line.in_flight() > 0
            && line.snd_wnd == window_before
        {
            line.duplicate_acks = line.duplicate_acks.saturating_add(1);
            if line.duplicate_acks == DUPLICATE_ACKS && line.state == State::Established {
                line.snd_nxt = line.snd_una;
                line.timed_at = 0;
                pump = true;
            }
        }
        if pump && line.state == State::Established {
            self.pump(connection, now_ns);
        }
    }

    /// Takes the payload but for its first `old` bytes; false if it answers nothing.
    #[inline]
    fn deliver(&mut self, connection: u32, segment: Segment, old: usize, frame: &Frame, now_ns: u64) -> bool {
        let mut skip = segment.payload_at + old;
        let mut left = segment.payload_bytes - old;
        let mut part = Some(frame);
        while let Some(at) = part {
            let data = at.data();
            if skip < data.len() {
                let data = &data[skip..];
                let data = &data[..data.len().min(left)];
                left -= data.len();
                skip = 0;
                if !self.take_answers(connection, data, now_ns) {
                    return false;
                }
            } else {
                skip -= data.len();
            }
            part = at.next();
        }
        true
    }

    #[inline]
    fn take_answers(&mut self, connection: u32, mut bytes: &[u8], now_ns: u64) -> bool {
        let base = connection as usize * self.ring;
        while !bytes.is_empty() {
            let line = &mut self.connections[connection as usize];
            if line.answered == line.enqueued {
                return false;
            }
            let slot = self.slots[base + (line.answered as usize & (self.ring - 1))];
            let (used, outcome) = line.checker.feed(&self.workload, slot.request, bytes);
            bytes = &bytes[used..];
            let Some(outcome) = outcome else { continue };
            line.answered = line.answered.wrapping_add(1);
            // Who answers a request has received it, whatever became of the acknowledgement.
            if line.acknowledge(slot.end_seq) && line.snd_una == line.snd_end {
                line.rto_at = NEVER;
                line.timed_at = 0;
            }
            self.recorder.answered(slot.intended_ns, now_ns, outcome);
            self.schedule.completed(connection, now_ns);
            self.last_progress_ns = now_ns;
        }
        true
    }

    /// The server's FIN is in: ours goes out at once, and the connection is opened again from another port.
    fn server_closes(&mut self, connection: u32, now_ns: u64) {
        let line = &self.connections[connection as usize];
        if line.state == State::FinSent {
            self.send_ack(connection);
        } else {
            // If this FIN is lost, the server's next segment is answered with a reset, which ends it as well.
            let seq = line.snd_nxt;
            self.send_bare(connection, seq, FIN | ACK);
        }
        self.lose(connection, now_ns, "connection closed by the server");
    }

    fn send_fin(&mut self, connection: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        if line.state == State::Established {
            line.state = State::FinSent;
            self.established -= 1;
            line.snd_nxt = line.snd_end;
            line.snd_end = line.snd_end.wrapping_add(1);
            line.snd_max = line.snd_end;
        }
        line.rto_at = now_ns + self.round_trip.timeout_ns(line.retries);
        let (rto_at, seq) = (line.rto_at, line.snd_end.wrapping_sub(1));
        line.snd_nxt = line.snd_end;
        self.lower_deadline(connection, rto_at);
        self.send_bare(connection, seq, FIN | ACK);
    }

    /// Resets a connection.
    fn abort(&mut self, connection: u32, now_ns: u64, why: &'static str) {
        let seq = self.connections[connection as usize].snd_nxt;
        self.send_bare(connection, seq, RST | ACK);
        self.lose(connection, now_ns, why);
    }

    /// A connection is gone: books its requests as lost and has it opened again later.
    fn lose(&mut self, connection: u32, now_ns: u64, why: &'static str) {
        let line = &mut self.connections[connection as usize];
        self.ports[usize::from(line.port)] = NOBODY;
        match line.state {
            State::SynSent => self.opening -= 1,
            State::Established => {
                self.established -= 1;
                self.lost_connections += 1;
                let lost = if self.phase == Phase::Idle { 0 } else { self.schedule.down(connection) };
                self.recorder.lost(lost);
            }
            State::Waiting | State::FinSent | State::Closed => {}
        }
        let closed = line.state == State::FinSent;
        *line = Connection::new();
        if closed {
            line.state = State::Closed;
            return;
        }
        self.last_failure = why;
        line.rto_at = now_ns + REOPEN_NS;
        self.lower_deadline(connection, now_ns + REOPEN_NS);
    }

    /// Opens connections that wait for it, a few at a time.
    fn open_more(&mut self, now_ns: u64) {
        if !self.peer_known {
            if now_ns >= self.next_arp_ns {
                self.next_arp_ns = now_ns + REOPEN_NS;
                let us = (self.config.local_mac, self.config.local_ip);
                self.egress.arp(true, us, ([0; 6], self.config.peer_ip));
            }
            return;
        }
        while self.opening < OPENING_MAX {
            let Some(connection) = self.to_open.pop_front() else { return };
            let port = self.free_port();
            self.ports[usize::from(port)] = connection;
            let isn = self.rng.next_u64() as u32;
            let line = &mut self.connections[connection as usize];
            *line = Connection::new();
            line.port = port;
            line.state = State::SynSent;
            (line.snd_una, line.snd_nxt) = (isn, isn.wrapping_add(1));
            (line.snd_max, line.snd_end) = (line.snd_nxt, line.snd_nxt);
            self.opening += 1;
            self.send_syn(connection, now_ns);
        }
    }

    /// The next port that is not in use. There always is one: [`super::CONNECTIONS_MAX`] is less than half of them.
    fn free_port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = if port == u16::MAX { PORT_FIRST } else { port + 1 };
            if self.ports[usize::from(port)] == NOBODY {
                return port;
            }
        }
    }

    fn send_syn(&mut self, connection: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        line.rto_at = now_ns + self.round_trip.timeout_ns(line.retries);
        let rto_at = line.rto_at;
        let fields = Fields { port: line.port, seq: line.snd_una, ack: 0, flags: SYN };
        self.egress.syn(fields, self.config.mss_bytes);
        self.lower_deadline(connection, rto_at);
    }

    /// Looks at all deadlines.
    fn sweep(&mut self, now_ns: u64) {
        self.next_sweep_ns = now_ns + SWEEP_NS;
        for connection in 0..self.deadlines.len() as u32 {
            if self.deadlines[connection as usize] <= now_ns {
                // Set before: what expires may lower it.
                self.deadlines[connection as usize] = NEVER;
                self.expire(connection, now_ns);
                let deadline = self.connections[connection as usize].deadline();
                self.lower_deadline(connection, deadline);
            }
        }
    }

    fn expire(&mut self, connection: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        if line.ack_at <= now_ns {
            self.send_ack(connection);
        }
        let line = &mut self.connections[connection as usize];
        if line.rto_at > now_ns {
            return;
        }
        line.rto_at = NEVER;
        match line.state {
            State::Closed => return,
            State::Waiting => {
                self.to_open.push_back(connection);
                return;
            }
            State::SynSent | State::Established | State::FinSent => {}
        }
        if line.retries >= RETRIES_MAX {
            self.abort(connection, now_ns, "no answer to retransmissions");
            return;
        }
        line.retries += 1;
        line.timed_at = 0;
        match line.state {
            State::SynSent => self.send_syn(connection, now_ns),
            State::FinSent => self.send_fin(connection, now_ns),
            _ => {
                line.snd_nxt = line.snd_una;
                // A window of 0 is probed with a byte (RFC 9293, 3.8.6.1).
                line.snd_wnd = line.snd_wnd.max(1);
                self.pump(connection, now_ns);
            }
        }
    }
}

fn template(config: &WireConfig, peer_mac: [u8; 6]) -> Template {
    let local: ([u8; 6], Ipv4Addr) = (config.local_mac, config.local_ip);
    Template::new(local, (peer_mac, config.peer_ip, config.peer_port), config.tx_checksum_offload)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
