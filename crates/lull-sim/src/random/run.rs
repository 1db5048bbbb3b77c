//! One run of a random world: laps of its script under load, then without load, until everything is delivered.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use lull_core::state;

use crate::engine::app::socket_reader::SocketReader;
use crate::engine::cpu::Irq;
use crate::engine::id::{ContextId, CpuId, QueueId};
use crate::engine::recorder::{Entry, Listener, Recorder};
use crate::engine::sim::Sim;
use crate::engine::socket::busy_options;
use crate::engine::transition::Coverage;
use crate::random::check::{Checker, Violation};
use crate::random::plan::{AHEAD_MAX, Plan};
use crate::random::script::{Operating, Script};

/// How much scheduling may add to the bound of I8 at the end: the CPUs still have to handle what is in the rings,
/// behind threads of a fair scheduler with slices of 3 ms.
const SCHEDULING_MAX_NS: u64 = 200_000_000;
/// How long a worker takes at the most for a ready event, besides what it does between two calls. A script may make
/// more events ready, and stall the worker for longer, than a lap has time for; what is left at the end is served one
/// after the other.
const READY_MAX_NS: u64 = 100_000;
/// How long a step of the script may wait at the most once the load has ended: a disable for an owner, a group for a
/// member.
const SCRIPT_MAX_NS: u64 = 20_000_000_000;
/// How long a CPU may do nothing but deliver at the end.
const DELIVERY_MAX_NS: u64 = 20_000_000_000;
/// After this many laps without a transition a world counts as dead.
const BARREN_LAPS_MAX: u32 = 100;
/// How many steps are taken before the first look whether all is done. Each later look comes after one step more: what
/// is left of a world repeats itself, and looks at a constant distance would see the same moment of it again and again.
const LOOK_AFTER: u32 = 32;

/// The bound of a world that was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The events of its agenda.
    Events(u64),
    /// The events that were pending at one time.
    Ahead(usize),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::Events(bound) => write!(f, "stopped at its bound of {bound} events"),
            Bound::Ahead(bound) => write!(f, "stopped at its bound of {bound} events ahead"),
        }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct WorldOutcome {
    /// The invariant that broke, if one did.
    pub violation: Option<Violation>,
    /// The bound that ended it early, if one did.
    pub bound: Option<Bound>,
    /// Transitions of the core, over the whole run.
    pub transitions: u64,
    /// Events of the agenda, over the whole run.
    pub events: u64,
    /// Virtual time, in nanoseconds.
    pub time_ns: u64,
    /// How long it took from the last request until everything was delivered, in nanoseconds.
    pub drain_ns: u64,
    /// Packets that were polled, dropped on the way, and lost by resets.
    pub packets: (u64, u64, u64),
    /// The longest time that packets were in a ring before a poll looked, per queue, in nanoseconds.
    pub unseen_max_ns: Vec<u64>,
    /// Which transitions were taken.
    pub covered: Coverage,
    /// A digest of everything that the core reported, which is equal for equal runs.
    pub digest: u64,
}

/// A run in progress.
struct Run {
    sim: Sim,
    script: Rc<RefCell<Script>>,
    checker: Checker,
    recorder: Arc<Recorder>,
    /// The last entries, for a timeline.
    kept: VecDeque<Entry>,
    keep: usize,
    total: u64,
}

/// The reason why a run does not go on.
enum Stop {
    Broken(Violation),
    Bound(Bound),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Broken(violation)
    }
}

/// The last entries of a run, and how many there were.
pub(crate) type Kept = (VecDeque<Entry>, u64);

impl Plan {
    /// Runs the plan.
    pub fn run(&self) -> WorldOutcome {
        self.run_keeping(0).0
    }

    /// Runs the plan and keeps the last `keep` entries.
    pub(crate) fn run_keeping(&self, keep: usize) -> (WorldOutcome, Kept) {
        let mut run = Run::new(self, keep);
        // A core that panics has broken a rule of its own, which is a finding like any other.
        let stopped = catch_unwind(AssertUnwindSafe(|| run.all(self)));
        let now_ns = run.sim.env.now_ns;
        let (stop, drain_ns) = match stopped {
            Ok(Ok(drain_ns)) => (None, drain_ns),
            Ok(Err(stop)) => (Some(stop), 0),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
                let found = text.unwrap_or_else(|| "without words".to_owned());
                (Some(Stop::Broken(Violation { rule: "panic", at_ns: now_ns, found })), 0)
            }
        };
        // Entries that were not read because of a panic also belong to the timeline.
        if keep > 0 {
            run.keep_entries();
        }
        let (violation, bound) = match stop {
            None => (None, None),
            Some(Stop::Broken(violation)) => (Some(violation), None),
            Some(Stop::Bound(bound)) => (None, Some(bound)),
        };
        let flushed = run.sim.nic.queues.iter().map(|queue| queue.flushed).sum();
        let outcome = WorldOutcome {
            violation,
            bound,
            transitions: run.sim.env.tally.covered.transitions(),
            events: run.sim.env.tally.events,
            time_ns: now_ns,
            drain_ns,
            packets: (run.polled(), run.sim.env.tally.counts.dropped, flushed),
            unseen_max_ns: run.sim.nic.queues.iter().map(|queue| queue.unseen_max_ns).collect(),
            covered: std::mem::take(&mut run.sim.env.tally.covered),
            digest: run.checker.digest,
        };
        (outcome, (std::mem::take(&mut run.kept), run.total))
    }
}

impl Run {
    fn new(plan: &Plan, keep: usize) -> Run {
        let recorder = Arc::new(Recorder::new(keep > 0));
        let mut sim = Sim::with_sink(&plan.world, plan.seed, Some(Box::new(Listener(recorder.clone()))));
        sim.env.recorder = Some(recorder.clone());
        for reader in &plan.readers {
            let socket = busy_options(&plan.world.sysctl, reader.usecs, reader.prefer, reader.budget);
            let (context, queue, cpu) =
                (ContextId::new(reader.context), QueueId::new(reader.queue), CpuId::new(reader.cpu));
            let program = SocketReader::new(context, queue, cpu, socket, reader.nonblocking);
            sim.start(cpu, Box::new(program));
            sim.cpus.interrupt(&mut sim.env, cpu, Irq::Resched);
        }
        let script = Rc::new(RefCell::new(Script::new(&sim, plan.script.clone(), plan.persistent)));
        sim.operator = Some(Box::new(Operating(script.clone())));
        let checker = Checker::new(plan.world.queues.len(), plan.world.cpus.len(), plan.world.groups.len());
        Run { sim, script, checker, recorder, kept: VecDeque::new(), keep, total: 0 }
    }

    fn polled(&self) -> u64 {
        // The work of a transmit queue consists of frames that it sent.
        let receives = self.sim.nic.queues.iter().filter(|queue| queue.transmit.is_none());
        receives.map(|queue| queue.napi.stats().work).sum()
    }

    /// Runs the whole plan, and returns how long the end took.
    fn all(&mut self, plan: &Plan) -> Result<u64, Stop> {
        self.check()?;
        let mut barren = 0;
        while self.sim.env.tally.covered.transitions() < plan.transitions_goal {
            self.script.borrow_mut().lap(&mut self.sim);
            let end_ns = self.sim.env.now_ns + plan.lap_ns;
            let before = self.sim.env.tally.covered.transitions();
            while self.sim.env.now_ns < end_ns {
                if !self.step()? {
                    break;
                }
            }
            barren = if self.sim.env.tally.covered.transitions() == before { barren + 1 } else { 0 };
            if barren == BARREN_LAPS_MAX {
                // Nothing happens in this world any more.
                break;
            }
        }
        self.drain()
    }

    #[inline]
    fn step(&mut self) -> Result<bool, Stop> {
        let goes_on = self.sim.step();
        self.check()?;
        if self.sim.env.tally.events >= self.sim.env.world.events_max {
            return Err(Stop::Bound(Bound::Events(self.sim.env.world.events_max)));
        }
        if self.sim.env.agenda.len() > AHEAD_MAX {
            return Err(Stop::Bound(Bound::Ahead(AHEAD_MAX)));
        }
        Ok(goes_on)
    }

    fn check(&mut self) -> Result<(), Violation> {
        let checked = self.checker.after_step(&mut self.sim, &self.script.borrow(), &self.recorder);
        if self.keep > 0 {
            self.keep_entries();
        }
        checked
    }

    fn keep_entries(&mut self) {
        for entry in self.recorder.told() {
            if self.kept.len() == self.keep {
                self.kept.pop_front();
            }
            self.kept.push_back(entry);
            self.total += 1;
        }
    }

    /// Ends the load: everything that is left must be delivered without new requests, within the time that I8 allows.
    fn drain(&mut self) -> Result<u64, Stop> {
        self.sim.env.faults.quiet = true;
        let last_ns = self.sim.env.now_ns + SCRIPT_MAX_NS;
        while self.script.borrow().ahead > 0 {
            if !self.step()? {
                break;
            }
            if self.sim.env.now_ns > last_ns {
                let found = self.script.borrow().waiting();
                return Err(Stop::Broken(Violation { rule: "liveness", at_ns: self.sim.env.now_ns, found }));
            }
        }
        let begin_ns = self.sim.env.now_ns;
        let longest_ns = self.script.borrow().timeout_max_ns.iter().copied().max().unwrap_or(0);
        let spec = &self.sim.env.faults.spec;
        let faults_ns = u64::from(spec.stall_max_ns) + u64::from(spec.timer_late_max_ns);
        // A group that may run only for a share of the time takes that much longer.
        let totals = self.sim.env.world.groups.iter().filter_map(|group| group.config.budget.total_percent);
        let share = totals.min().map_or(1, |percent| u64::from(100_u32.div_ceil(percent)));
        let ready = self.sim.contexts.iter().map(|context| context.ready.len() as u64).sum::<u64>();
        let ready_ns = ready * (READY_MAX_NS + u64::from(spec.between_calls_ns));
        let patience_ns = longest_ns + faults_ns + ready_ns + SCHEDULING_MAX_NS * share;
        let before_ns = self.delivery_ns();
        // The instances that were owned when all else was done, and have not been released since.
        let mut held: Option<Vec<QueueId>> = None;
        for steps in LOOK_AFTER.. {
            let mut goes_on = true;
            for _ in 0..steps {
                goes_on &= self.step()?;
                if let Some(held) = &mut held {
                    held.retain(|queue| self.is_held(*queue));
                }
            }
            let left = self.left();
            held = left.is_none().then(|| held.unwrap_or_else(|| self.held()));
            let left = left.or_else(|| self.still_held(held.as_ref()?));
            match left {
                None => break,
                Some(left) if !goes_on || self.is_overdue((begin_ns, patience_ns), &before_ns) => {
                    return Err(Stop::Broken(Violation { rule: "liveness", at_ns: self.sim.env.now_ns, found: left }));
                }
                Some(_) => {}
            }
        }
        // A busy poller may never end its poll, so what it took so far counts.
        let amid = self.sim.nic.queues.rows().filter(|&(index, _)| self.checker.is_polled(index));
        let amid: u64 =
            amid.filter(|(_, queue)| queue.transmit.is_none()).map(|(_, queue)| u64::from(queue.poll.work)).sum();
        let (arrived, polled) = (self.sim.env.tally.counts.rx_packets, self.polled() + amid);
        let flushed: u64 = self.sim.nic.queues.iter().map(|queue| queue.flushed).sum();
        if arrived != polled + flushed {
            let found = format!("{arrived} packets arrived, {polled} were polled and {flushed} lost by resets");
            return Err(Stop::Broken(Violation { rule: "conservation", at_ns: self.sim.env.now_ns, found }));
        }
        Ok(self.sim.env.now_ns - begin_ns)
    }

    /// Returns what interrupts and softirq took of each CPU so far.
    fn delivery_ns(&self) -> Vec<u64> {
        let used = self.sim.cpus.ids().map(|cpu| self.sim.cpus[cpu].used);
        used.map(|used| used.softirq_ns + used.uncharged_ns).collect()
    }

    /// Whether the world has had its time. Time in which a CPU does nothing but deliver does not count, because its
    /// threads do not get it: instances whose timers are as short as their polls leave them little, for as long as
    /// programs poll and so start the timers anew.
    fn is_overdue(&self, (begin_ns, patience_ns): (u64, u64), before_ns: &[u64]) -> bool {
        let since_ns = self.sim.env.now_ns - begin_ns;
        let delivering = self.delivery_ns().iter().zip(before_ns).map(|(now_ns, before_ns)| now_ns - before_ns).max();
        since_ns.saturating_sub(delivering.unwrap_or(0)) > patience_ns || since_ns > patience_ns + DELIVERY_MAX_NS
    }

    /// Returns the instances that are owned now, and that have to be released.
    fn held(&self) -> Vec<QueueId> {
        self.sim.nic.queues.rows().map(|(queue, _)| queue).filter(|queue| self.is_held(*queue)).collect()
    }

    /// Whether an instance is owned, or was released and is not settled. A busy poller may own its instance as long as
    /// it likes, and a thread for ever.
    fn is_held(&self, queue: QueueId) -> bool {
        let now = self.sim.nic.queues[queue].napi.snapshot();
        let owned = now.has(state::SCHED) && !now.has(state::IN_BUSY_POLL) && !self.checker.is_polled(queue);
        owned || !self.sim.nic.queues[queue].unsettled.is_empty()
    }

    /// Returns an instance that was owned at the end and has not been released since. Each is checked alone, because if
    /// programs poll without a pause and timers are short, there may be no moment at which none is owned.
    fn still_held(&self, held: &[QueueId]) -> Option<String> {
        let queue = *held.first()?;
        let q = &self.sim.nic.queues[queue];
        Some(match q.unsettled.is_empty() {
            true => format!("queue {queue} is owned and not let go ({:?})", q.napi.snapshot()),
            false => format!("queue {queue} is not settled"),
        })
    }

    /// Returns what is not delivered yet.
    fn left(&self) -> Option<String> {
        let sim = &self.sim;
        for (index, queue) in sim.nic.queues.rows() {
            let now = queue.napi.snapshot();
            if !queue.ring.is_empty() || queue.tx_done > 0 {
                let (packets, sent) = (queue.ring.len(), queue.tx_done);
                return Some(format!("queue {index} has {packets} packets and {sent} sent frames unpolled ({now:?})"));
            }
            if let Some(tx) = queue.transmit.as_ref().filter(|tx| tx.waiting() + tx.on_ring() != 0) {
                let (waiting, on_ring) = (tx.waiting(), tx.on_ring());
                return Some(format!("queue {index} has {waiting} frames to send and {on_ring} on its ring ({now:?})"));
            }
        }
        if let Some((queue, _)) = sim.nic.groups.leaving.first() {
            return Some(format!("queue {queue} has left its group, and its last poll has not begun"));
        }
        let (inside, on_wire) = (sim.clients.inside, sim.clients.on_wire);
        if inside > 0 || on_wire > 0 {
            return Some(format!("{inside} requests are not served and {on_wire} on the wire"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four instances of one CPU have timers of 10 us, which leave its threads nothing until a hundred rounds are over,
    /// and programs that poll and so start the rounds anew. The last request is served after 314 ms, and at no look is
    /// every instance released.
    #[test]
    fn a_world_whose_timers_take_the_cpu_has_the_time_that_threads_had_of_it() {
        let outcome = Plan::random_transmitting(900_029_720).run();
        assert_eq!(outcome.violation, None);
        assert_eq!(outcome.bound, None);
    }

    #[test]
    fn an_owner_that_is_lost_is_found_at_the_end() {
        let mut plan = Plan::random(7);
        plan.world.groups.clear();
        plan.script.clear();
        let mut run = Run::new(&plan, 0);
        let cx = run.sim.env.cx(CpuId::new(0));
        let lost = run.sim.nic.queues[QueueId::new(0)].napi.schedule(&cx);
        let lull_core::Schedule::Owned(lost) = lost else { panic!("nobody has it yet: {lost:?}") };
        lost.abandon();
        let Err(Stop::Broken(Violation { rule, found, .. })) = run.drain() else {
            panic!("a lost owner was not found")
        };
        assert_eq!(rule, "liveness");
        assert!(found.starts_with("queue 0 is owned and not let go"), "{found}");
    }
}
