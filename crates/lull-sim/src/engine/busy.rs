//! The busy loop of a thread (`napi_busy_loop`), which executes the core's step machine.

use lull_core::{BusyEnd, BusyLoop, BusyPlan, BusyRound, BusyStop, BusyStopped};

use crate::engine::id::{CpuId, QueueId, ThreadId};
use crate::engine::recorder::Whom;
use crate::engine::sim::Sim;
use crate::engine::thread::{Next, Segment};
use crate::engine::transition::Transition;

#[derive(Debug)]
enum Stage {
    Polling(BusyLoop),
    Between(BusyLoop),
    LastPoll(BusyStop),
    /// The loop was stopped only to let another thread run; it begins again unless it is over.
    Yielded,
}

/// A busy-poll call in progress.
#[derive(Debug)]
pub(crate) struct Busier {
    plan: BusyPlan,
    queue: QueueId,
    cpu: CpuId,
    start_ns: u64,
    stage: Option<Stage>,
    yielding: bool,
    polls: u32,
    most: u32,
}

impl Busier {
    /// The most packets that one poll took.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Begins a call; returns `None` if no instance has the id any more.
    pub(crate) fn begin(sim: &mut Sim, plan: BusyPlan, cpu: CpuId) -> Option<(Busier, Next)> {
        let Some(queue) = sim.nic.lookup(plan.napi_id) else {
            sim.env.tally.covered.add(Transition::BusyIdGone);
            return None;
        };
        let start_ns = sim.env.now_ns;
        let mut busier = Busier { plan, queue, cpu, start_ns, stage: None, yielding: false, polls: 0, most: 0 };
        let cost_ns = u64::from(sim.env.world.costs.busy_call_ns);
        let busy = BusyLoop::begin(&sim.nic.queues[queue].napi, &plan, &sim.env.cx(cpu));
        let next = busier.round(sim, busy, cost_ns);
        Some((busier, next))
    }

    /// The former segment has ended. Returns `None` when the call is over.
    pub(crate) fn step(&mut self, sim: &mut Sim, me: ThreadId, ready: bool) -> Option<Next> {
        let (queue, cpu) = (self.queue, self.cpu);
        match self.stage.take()? {
            Stage::Polling(mut busy) => {
                if let Some(cost_ns) = sim.poll_goes_on(queue, cpu) {
                    self.stage = Some(Stage::Polling(busy));
                    return Some(Next::Run(Segment::bottom_halves_off(cost_ns)));
                }
                self.polls += 1;
                let q = &sim.nic.queues[queue];
                let work = q.reported(cpu);
                self.most = self.most.max(work);
                busy.polled(&q.napi, work, &sim.env.cx(cpu));
                self.stage = Some(Stage::Between(busy));
                // Bottom halves are enabled here, so pending softirqs run before this segment.
                Some(Next::Run(Segment::sys(u64::from(sim.env.world.costs.busy_round_ns))))
            }
            Stage::Between(busy) => {
                let time_is_up = ready || self.plan.end.reached(self.start_ns, sim.env.now_ns);
                let over = time_is_up && !busy.catches_up();
                let resched = sim.cpus.need_resched(me);
                if !over && !resched {
                    return Some(self.round(sim, busy, 0));
                }
                self.yielding = !over;
                self.stop(sim, busy, 0).or_else(|| self.stopped())
            }
            Stage::LastPoll(stop) => {
                if let Some(cost_ns) = sim.poll_goes_on(queue, cpu) {
                    self.stage = Some(Stage::LastPoll(stop));
                    return Some(Next::Run(Segment::bottom_halves_off(cost_ns)));
                }
                self.polls += 1;
                // I5: seen from outside, one round that wins ownership is two polls.
                let due = match self.plan.end {
                    BusyEnd::LastPoll => Some(1),
                    BusyEnd::OneRound => Some(2),
                    BusyEnd::AfterUsecs(_) => None,
                }
                .filter(|_| !self.plan.catch_up);
                assert!(due.is_none_or(|due| self.polls == due), "{:?} polled {} times", self.plan.end, self.polls);
                let q = &sim.nic.queues[queue];
                sim.env.tally.transitions += 1;
                let work = q.reported(cpu);
                self.most = self.most.max(work);
                let gro_held = q.spec.gro_holds && work > 0;
                match stop.polled(&q.napi, work, gro_held, &sim.env.cx(cpu), |_| ()) {
                    BusyStopped::Completed(completion) => {
                        sim.nic.completion(&mut sim.env, &mut sim.cpus, queue, completion, cpu)
                    }
                    BusyStopped::ToSoftirq(owner) => sim.nic.route(&mut sim.env, &mut sim.cpus, owner, cpu),
                }
                self.stopped()
            }
            Stage::Yielded => {
                if ready || self.plan.end.reached(self.start_ns, sim.env.now_ns) {
                    return None;
                }
                self.queue = sim.nic.lookup(self.plan.napi_id)?;
                // A thread that waited for a core may continue on another one.
                self.cpu = sim.cpus.threads[me].cpu;
                let cpu = self.cpu;
                sim.env.note(cpu, Whom::Queue(self.queue), Transition::BusyYielded);
                let napi = &sim.nic.queues[self.queue].napi;
                let busy = BusyLoop::begin(napi, &self.plan, &sim.env.cx(cpu));
                Some(self.round(sim, busy, 0))
            }
        }
    }

    /// Makes the last poll, if the call owns the instance.
    fn stop(&mut self, sim: &mut Sim, busy: BusyLoop, extra_ns: u64) -> Option<Next> {
        let (queue, cpu) = (self.queue, self.cpu);
        sim.env.tally.transitions += 1;
        let stop = busy.stop(&sim.nic.queues[queue].napi, &sim.env.cx(cpu));
        sim.nic.sync_timer(&mut sim.env, &mut sim.cpus, queue);
        let stop = stop?;
        let cost_ns = sim.poll_begins(queue, stop.budget(), cpu, false);
        self.stage = Some(Stage::LastPoll(stop));
        Some(Next::Run(Segment::bottom_halves_off(cost_ns + extra_ns)))
    }

    fn stopped(&mut self) -> Option<Next> {
        if !self.yielding {
            return None;
        }
        self.stage = Some(Stage::Yielded);
        Some(Next::Yield(Segment::sys(0)))
    }

    fn round(&mut self, sim: &mut Sim, mut busy: BusyLoop, extra_ns: u64) -> Next {
        sim.env.tally.transitions += 1;
        let napi = &sim.nic.queues[self.queue].napi;
        match busy.round(napi, &sim.env.cx(self.cpu)) {
            BusyRound::Poll { budget } => {
                let cost_ns = sim.poll_begins(self.queue, budget, self.cpu, false);
                self.stage = Some(Stage::Polling(busy));
                Next::Run(Segment::bottom_halves_off(cost_ns + extra_ns))
            }
            BusyRound::Last => {
                sim.nic.mask(&mut sim.env, self.queue);
                let Some(next) = self.stop(sim, busy, extra_ns) else { unreachable!("a round that won ownership") };
                next
            }
            BusyRound::Lost => {
                self.stage = Some(Stage::Between(busy));
                Next::Run(Segment::sys(u64::from(sim.env.world.costs.busy_round_ns) + extra_ns))
            }
        }
    }

    /// Releases what it owns at the end of a run.
    pub(crate) fn abandon(self) {
        match self.stage {
            // Dropping a busy loop or a stop would check that its owner polls again; but the run is over, and nobody
            // does.
            Some(Stage::Polling(busy) | Stage::Between(busy)) => std::mem::forget(busy),
            Some(Stage::LastPoll(stop)) => std::mem::forget(stop),
            Some(Stage::Yielded) | None => {}
        }
    }
}
