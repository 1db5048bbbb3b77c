//! The client's loop: it receives, handles answers, sends what is due, and rings the doorbell.

mod lifecycle;
mod run;
mod tcp;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use lull_nic::{Frame, Queue, RxQueue};

use super::WireConfig;
use super::connection::{Connection, NEVER, RoundTrip, Slot, State};
use super::egress::Egress;
use super::packet::{Arp, Received, Template};
use crate::load::clock::Clock;
use crate::load::dist::{Rng, mix};
use crate::load::recorder::{Recorder, Window};
use crate::load::schedule::Schedule;
use crate::load::workload::{Query, Workload};
use crate::load::{LoadError, Pace};

/// The number of requests sent before the device is told, so that the first of many due requests does not wait for all.
const TX_BATCH: usize = 32;
/// The time after which a lost connection is opened again.
const REOPEN_NS: u64 = 100_000_000;
/// The first port that connections are opened from. Those below are for servers.
const PORT_FIRST: u16 = 1024;
/// Stands for "no connection" in the table of ports.
const NOBODY: u32 = u32::MAX;

/// The state of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no load.
    Idle,
    /// It sends until this time.
    Sending { until_ns: u64 },
    /// It waits for the last answers, until this time at the latest.
    Draining { until_ns: u64 },
    /// The load has ended.
    Done,
}

/// A memcached load generator on a queue of a NIC. One thread owns the queue and polls it.
pub struct WireClient<C> {
    config: WireConfig,
    clock: C,
    workload: Arc<Workload>,
    rx: Box<dyn RxQueue>,
    /// This keeps the interrupt line, which stays masked.
    _irq: Arc<dyn lull_nic::IrqLine>,
    egress: Egress,
    peer_known: bool,
    connections: Vec<Connection>,
    /// Lower bounds of the connections' deadlines, stored side by side so that they can be scanned.
    deadlines: Vec<u64>,
    /// The rings of requests: `ring` slots for each connection, a power of two.
    slots: Vec<Slot>,
    ring: usize,
    /// The connection of each local port.
    ports: Vec<u32>,
    next_port: u16,
    /// Whether answers to a local port come back to this client's queue.
    comes_back: Option<Box<dyn Fn(u16) -> bool + Send>>,
    to_open: VecDeque<u32>,
    opening: usize,
    established: usize,
    phase: Phase,
    load: Pace,
    /// The next record to preload, or `None` if requests are drawn.
    preload_next: Option<u32>,
    schedule: Schedule,
    recorder: Recorder,
    rng: Rng,
    round_trip: RoundTrip,
    batch: Vec<Frame>,
    /// Intended and eligible times of the requests that were sent since the last doorbell.
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
    /// The number of the repetition.
    run: u32,
}

impl<C: Clock> WireClient<C> {
    /// Makes a client with no connection yet. The queue's interrupt stays masked, because the client polls.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::Invalid`] if a setting is outside its limits.
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
        let load = Pace::Closed { depth: 1 };
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
            comes_back: None,
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
            run: 0,
            config,
            clock,
            workload,
        };
        client.make_rings(1);
        Ok(client)
    }

    /// Tells the client how to read the nanoseconds that its doorbells have spent raising the peer's interrupts so far
    /// (a counter that only grows). They are reported apart, because with a real NIC the device spends them.
    pub fn set_raise_counter(&mut self, raise_ns: impl FnMut() -> u64 + Send + 'static) {
        self.raise_ns = Some(Box::new(raise_ns));
    }

    /// Tells the client which of its ports' answers come back to its queue, on a device on which several clients have
    /// one queue each. The client opens connections from those ports alone.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::Invalid`] if there are fewer such ports than connections.
    pub fn set_comes_back(&mut self, comes_back: impl Fn(u16) -> bool + Send + 'static) -> Result<(), LoadError> {
        let ports = (PORT_FIRST..=u16::MAX).filter(|port| comes_back(*port)).count();
        if ports < self.connections.len() {
            let why = format!("{} need as many ports, and the answers to {ports} come back", self.connections.len());
            return Err(LoadError::Invalid { what: "connections", why });
        }
        self.comes_back = Some(Box::new(comes_back));
        Ok(())
    }

    /// Returns the number of connections that the client has, up or not.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of connections that are up.
    pub fn established(&self) -> usize {
        self.established
    }

    /// Returns the clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns the recorder of the current or last run, for its histograms.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Opens all connections, and polls until they are up.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::Connect`] if they are not up within `timeout`.
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

    /// Closes all connections, and polls until the server has closed them too or `timeout` has passed. Connections that
    /// are left over are reset. The client cannot be used afterwards.
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

    /// Does one turn of the loop.
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

    /// Tells the device of the sent requests, and records the time that it took.
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
            // The batch has one time, which is read when all of it was there, so that no answer counts as earlier than
            // it came.
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

    /// Sends the requests that are due, at most a batch.
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
                    Query::set(*next - 1)
                }
                None => self.workload.draw(&mut self.rng),
            };
            self.enqueue(due, request, now_ns);
            sent += 1;
        }
        sent > 0
    }
}

fn template(config: &WireConfig, peer_mac: [u8; 6]) -> Template {
    let local: ([u8; 6], Ipv4Addr) = (config.local_mac, config.local_ip);
    Template::new(local, (peer_mac, config.peer_ip, config.peer_port), config.tx_checksum_offload)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
