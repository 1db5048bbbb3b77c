//! One thread of the kernel client.

mod connections;

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::KernelConfig;
use super::link::{Link, Pending, State};
use crate::load::clock::{Clock, MonotonicClock};
use crate::load::dist::{Rng, mix};
use crate::load::recorder::{Recorder, Window};
use crate::load::schedule::{Schedule, seed_of_run};
use crate::load::workload::{Query, Workload};
use crate::load::{LoadError, Pace};

/// The number of events taken at a time.
const EVENTS: usize = 128;
/// The number of bytes read at a time.
const READ_BYTES: usize = 64 * 1024;
/// The number of requests sent before the worker checks for arrivals again.
const TX_BATCH: usize = 32;
/// The longest sleep, which is how late `stop` is noticed.
const SLEEP_NS_MAX: u64 = 50_000_000;

/// A run, as all threads share it.
pub(super) struct Run<'a> {
    pub load: Pace,
    pub warmup: Duration,
    pub duration: Duration,
    pub stop: &'a AtomicBool,
    pub failed: &'a AtomicBool,
    pub threads: usize,
    /// The number of the repetition.
    pub number: u32,
}

/// A worker's part of the records of a preload: every `step`th, starting with `next`.
#[derive(Clone, Copy, Debug)]
struct Preload {
    next: u64,
    step: u64,
}

#[derive(Debug)]
pub(super) struct Worker {
    config: KernelConfig,
    index: usize,
    workload: Arc<Workload>,
    clock: MonotonicClock,
    epoll: OwnedFd,
    links: Vec<Link>,
    to_open: VecDeque<u32>,
    /// The lost connections and the time at which to open each again, in order of time.
    to_reopen: VecDeque<(u64, u32)>,
    opening: usize,
    established: usize,
    running: bool,
    schedule: Schedule,
    recorder: Recorder,
    rng: Rng,
    preload: Option<Preload>,
    /// Intended and eligible times of the requests that were drawn and not written yet. All belong to one connection.
    unsent: Vec<(u64, u64)>,
    /// The connections that have events, and their events.
    events: Vec<(u32, epoll::EventFlags)>,
    input: Vec<u8>,
    last_progress_ns: u64,
    lost_connections: u64,
    last_failure: String,
}

impl Worker {
    pub fn new(
        config: KernelConfig,
        index: usize,
        connections: usize,
        workload: Arc<Workload>,
        clock: MonotonicClock,
    ) -> Result<Worker, LoadError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| LoadError::Os { what: "make an epoll instance", source: error.into() })?;
        Ok(Worker {
            rng: Rng::new(mix(config.seed).wrapping_add(index as u64)),
            config,
            index,
            workload,
            clock,
            epoll,
            links: (0..connections).map(|_| Link::new()).collect(),
            to_open: (0..connections as u32).collect(),
            to_reopen: VecDeque::new(),
            opening: 0,
            established: 0,
            running: false,
            schedule: Schedule::new(&Pace::Closed { depth: 1 }, connections, 0, 0),
            recorder: Recorder::new(Window::default()),
            preload: None,
            unsent: Vec::with_capacity(TX_BATCH),
            events: Vec::with_capacity(EVENTS),
            input: Vec::with_capacity(READ_BYTES),
            last_progress_ns: 0,
            lost_connections: 0,
            last_failure: "no answer".to_owned(),
        })
    }

    pub fn established(&self) -> usize {
        self.established
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns the numbers of unanswered requests, of requests that were not sent, and of lost connections of the last
    /// run.
    pub fn left_over(&self) -> (u64, u64, u64) {
        let backlog = self.schedule.backlog(self.recorder.window().to_ns);
        (self.schedule.outstanding(), backlog, self.lost_connections)
    }

    pub fn connect_all(&mut self, timeout: Duration) -> Result<(), LoadError> {
        let deadline_ns = self.clock.now_ns().saturating_add(nanoseconds(timeout));
        while self.established < self.links.len() {
            let now_ns = self.clock.now_ns();
            if now_ns >= deadline_ns {
                return Err(LoadError::Connect {
                    connected: self.established,
                    wanted: self.links.len(),
                    why: self.last_failure.clone(),
                });
            }
            self.open_more(now_ns)?;
            self.wait(now_ns, deadline_ns.min(now_ns + SLEEP_NS_MAX))?;
            self.handle_events()?;
        }
        Ok(())
    }

    pub fn run(&mut self, run: &Run<'_>) -> Result<(), LoadError> {
        if !self.config.spin {
            // By default a thread's timers may be 50 us late, so that the kernel can batch them. If the change is
            // refused, the lag is measured all the same.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
        self.begin(run);
        let result = self.drive(run);
        self.running = false;
        result
    }

    fn begin(&mut self, run: &Run<'_>) {
        let now_ns = self.clock.now_ns();
        for index in 0..self.links.len() as u32 {
            // Requests that an earlier run left unanswered must not be taken for this one's.
            if !self.links[index as usize].pending.is_empty() {
                self.lose(index, now_ns, "unanswered requests".to_owned());
            }
        }
        let load = match run.load {
            Pace::Open { qps, arrivals, depth } => {
                let share = self.links.len() as f64 / self.config.connections as f64;
                Pace::Open { qps: qps * share, arrivals, depth }
            }
            load => load,
        };
        self.preload = matches!(load, Pace::Preload { .. })
            .then_some(Preload { next: self.index as u64, step: run.threads as u64 });
        let from_ns = if self.preload.is_some() { now_ns } else { now_ns.saturating_add(nanoseconds(run.warmup)) };
        let to_ns = if self.preload.is_some() { u64::MAX } else { from_ns.saturating_add(nanoseconds(run.duration)) };
        self.recorder = Recorder::new(Window { from_ns, to_ns });
        let seed = seed_of_run(self.config.seed, run.number).wrapping_add(self.index as u64);
        self.schedule = Schedule::new(&load, self.links.len(), now_ns, seed);
        self.lost_connections = 0;
        self.last_progress_ns = now_ns;
        self.running = true;
        for index in 0..self.links.len() as u32 {
            if let State::Up(_) = self.links[index as usize].state {
                self.schedule.up(index, now_ns);
            }
        }
    }

    fn drive(&mut self, run: &Run<'_>) -> Result<(), LoadError> {
        let mut until_ns = self.recorder.window().to_ns;
        let mut draining = false;
        let mut turn_from_ns = self.clock.now_ns();
        loop {
            let now_ns = turn_from_ns;
            if !draining && (now_ns >= until_ns || self.exhausted() || run.stop.load(Relaxed)) {
                if !self.exhausted() {
                    self.recorder.end_window(now_ns);
                }
                draining = true;
                until_ns = now_ns.saturating_add(self.config.drain_ns_max);
            }
            let over = self.schedule.outstanding() == 0 || (now_ns >= until_ns && !self.exhausted());
            if draining && over || run.failed.load(Relaxed) {
                self.recorder.end_window(now_ns);
                return Ok(());
            }
            self.check_progress(now_ns)?;
            let due_ns = if draining { u64::MAX } else { self.schedule.next_due_ns() };
            let wake_ns = due_ns.min(until_ns).min(now_ns + SLEEP_NS_MAX);
            self.wait(now_ns, wake_ns)?;
            let woken_ns = self.clock.now_ns();
            // Time spent asleep or in vain counts as idle. If a spinning thread finds something, it counts as work.
            let mut worked = !self.events.is_empty();
            self.recorder.turn(turn_from_ns, woken_ns, self.config.spin && worked);
            self.handle_events()?;
            let now_ns = self.clock.now_ns();
            self.open_more(now_ns)?;
            if !draining {
                worked |= self.send_due(now_ns);
            }
            turn_from_ns = self.clock.now_ns();
            self.recorder.turn(woken_ns, turn_from_ns, worked);
        }
    }

    fn check_progress(&self, now_ns: u64) -> Result<(), LoadError> {
        let outstanding = self.schedule.outstanding();
        let silent_ns = now_ns.saturating_sub(self.last_progress_ns);
        if (outstanding > 0 || self.established == 0) && silent_ns > self.config.silence_ns_max {
            return Err(LoadError::NoProgress { silent_s: silent_ns as f64 / 1e9, outstanding });
        }
        Ok(())
    }

    fn exhausted(&self) -> bool {
        self.preload.is_some_and(|preload| preload.next >= u64::from(self.workload.records()))
    }

    /// Collects events. It sleeps until there are some, or until `until_ns`.
    fn wait(&mut self, now_ns: u64, until_ns: u64) -> Result<(), LoadError> {
        let sleep_ns = if self.config.spin { 0 } else { until_ns.saturating_sub(now_ns) };
        // The sleep lasts at most SLEEP_NS_MAX, which is below a second.
        let timeout = Timespec { tv_sec: 0, tv_nsec: sleep_ns as _ };
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS];
        self.events.clear();
        match epoll::wait(&self.epoll, &mut buffer[..], Some(&timeout)) {
            Ok((events, _)) => {
                self.events.extend(events.iter().map(|event| {
                    let (data, flags) = (event.data, event.flags);
                    (data.u64() as u32, flags)
                }));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(LoadError::Os { what: "wait for events", source: error.into() }),
        }
    }

    fn handle_events(&mut self) -> Result<(), LoadError> {
        let mut events = std::mem::take(&mut self.events);
        for (index, flags) in events.drain(..) {
            self.handle(index, flags)?;
        }
        self.events = events;
        Ok(())
    }

    fn handle(&mut self, index: u32, flags: epoll::EventFlags) -> Result<(), LoadError> {
        match &self.links[index as usize].state {
            // This is an event of a socket that was closed in this batch.
            State::Waiting => Ok(()),
            State::Connecting(_) => self.connected(index),
            State::Up(_) => {
                if flags.contains(epoll::EventFlags::OUT) {
                    self.flush(index)?;
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.receive(index);
                }
                Ok(())
            }
        }
    }

    fn watch(&mut self, index: u32, write: bool) -> Result<(), LoadError> {
        let line = &mut self.links[index as usize];
        line.watches_write = write;
        let State::Up(fd) = &line.state else { return Ok(()) };
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, write);
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(u64::from(index)), flags)
            .map_err(|error| LoadError::Os { what: "watch a socket", source: error.into() })
    }

    /// Writes the pending output of a connection, and watches for room if some of it is left.
    fn flush(&mut self, index: u32) -> Result<(), LoadError> {
        let line = &mut self.links[index as usize];
        match line.flush() {
            Ok(all) => {
                if all == line.watches_write {
                    self.watch(index, !all)?;
                }
            }
            Err(error) => {
                let now_ns = self.clock.now_ns();
                self.lose(index, now_ns, error.to_string());
            }
        }
        Ok(())
    }

    /// Reads what has arrived on a connection. What is left after one full buffer has to wait for its turn.
    fn receive(&mut self, index: u32) {
        let line = &mut self.links[index as usize];
        let State::Up(fd) = &line.state else { return };
        self.input.clear();
        let received = rustix::net::recv(fd, spare_capacity(&mut self.input), RecvFlags::empty());
        let now_ns = self.clock.now_ns();
        match received {
            Ok((0, _)) => self.lose(index, now_ns, "connection closed by the server".to_owned()),
            Ok(_) => {
                let input = std::mem::take(&mut self.input);
                if !self.take_answers(index, &input, now_ns) {
                    self.lose(index, now_ns, "an answer that nobody asked for".to_owned());
                }
                self.input = input;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => self.lose(index, now_ns, io::Error::from(error).to_string()),
        }
    }

    fn take_answers(&mut self, index: u32, mut bytes: &[u8], now_ns: u64) -> bool {
        while !bytes.is_empty() {
            let line = &mut self.links[index as usize];
            let Some(pending) = line.pending.front().copied() else { return false };
            let (used, outcome) = line.checker.feed(&self.workload, pending.request, bytes);
            bytes = &bytes[used..];
            let Some(outcome) = outcome else { continue };
            line.pending.pop_front();
            self.recorder.answered(pending.intended_ns, now_ns, outcome);
            self.schedule.completed(index, now_ns);
            self.last_progress_ns = now_ns;
        }
        true
    }

    /// Sends the requests that are due, at most a batch. Consecutive requests of one connection leave by one call, as
    /// mutilate's do, because libevent writes all that a turn of the loop has put into a connection's buffer.
    fn send_due(&mut self, now_ns: u64) -> bool {
        let mut drawn = 0;
        let mut unsent = None;
        while drawn < TX_BATCH && !self.exhausted() {
            let was_idle = self.schedule.outstanding() == 0;
            let Some(due) = self.schedule.next(now_ns) else { break };
            if was_idle {
                self.last_progress_ns = now_ns;
            }
            if let Some(before) = unsent.replace(due.connection).filter(|before| *before != due.connection) {
                self.send(before);
            }
            let request = match &mut self.preload {
                Some(preload) => {
                    let record = preload.next;
                    preload.next += preload.step;
                    // `exhausted` has checked that it is a record, of which there are fewer than 2^32.
                    Query::set(record as u32)
                }
                None => self.workload.draw(&mut self.rng),
            };
            let pending = Pending { intended_ns: due.intended_ns, request };
            self.links[due.connection as usize].enqueue(&self.workload, pending);
            self.unsent.push((due.intended_ns, due.eligible_ns));
            drawn += 1;
        }
        if let Some(last) = unsent {
            self.send(last);
        }
        drawn > 0
    }

    /// Writes the requests that were drawn for a connection.
    fn send(&mut self, connection: u32) {
        let now_ns = self.clock.now_ns();
        for (intended_ns, eligible_ns) in self.unsent.drain(..) {
            self.recorder.sent(intended_ns, eligible_ns, now_ns);
        }
        if self.flush(connection).is_err() {
            let now_ns = self.clock.now_ns();
            self.lose(connection, now_ns, "epoll refused".to_owned());
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
