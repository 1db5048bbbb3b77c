//! The poller of one CPU of a busy-polling group, which executes the core's step machine.

use std::sync::Arc;

use lull_core::group::budget::BUDGET_PERIOD_NS;
use lull_core::group::{Ring, Transmitted, Visit, Walk};
use lull_core::{BusyStop, GroupPoller, GroupStep};

use crate::engine::id::{CpuId, GroupId, QueueId, ThreadId};
use crate::engine::recorder::Whom;
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment, Spin};
use crate::engine::transition::Transition;

/// What the segment that has ended was.
#[derive(Debug)]
enum Stage {
    Visit(Visit),
    Transmit(Visit, Transmitted),
    Doorbell(Ring),
    DryRun(Walk),
    LastPoll(QueueId, BusyStop),
    /// Empty passes; `alone` says that the others that are awake did not run when the passes began.
    Spinning {
        alone: bool,
    },
    /// On its way to sleep: until when, and whether it first unmasks all members.
    ToSleep {
        until_ns: Option<u64>,
        rests: bool,
    },
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct GroupPollerProgram {
    group: GroupId,
    cpu: CpuId,
    poller: Option<GroupPoller>,
    stage: Option<Stage>,
}

impl GroupPollerProgram {
    pub(crate) fn new(group: GroupId, cpu: CpuId) -> GroupPollerProgram {
        GroupPollerProgram { group, cpu, poller: None, stage: None }
    }

    /// Asks the step machine, until a step takes time.
    fn ask(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        let (id, cpu) = (self.group, self.cpu);
        let group = Arc::clone(&sim.nic.groups.table[id].group);
        loop {
            let seat = sim.nic.groups.table[id].seat(cpu);
            if self.poller.is_none() {
                self.poller = seat.arriving.take();
            }
            let Some(poller) = &mut self.poller else { return Next::Sleep(None) };
            sim.env.tally.transitions += 1;
            let queues = &sim.nic.queues;
            let hint = |_, napi: u32| Some(queues[QueueId::new(napi)].has_work());
            let due = sim.cpus[cpu].softnet.is_raised();
            let waits = sim.cpus.need_resched(me);
            match poller.next(&group, hint, due, waits, &sim.env.cx(cpu)) {
                GroupStep::Poll(visit) => return self.visit(sim, visit),
                GroupStep::Spin => return self.spin(sim, me),
                GroupStep::Softirqs => return Next::Softirqs,
                GroupStep::Yield => return Next::Yield(Segment::sys(u64::from(sim.env.world.costs.group_pass_ns))),
                GroupStep::Wake(wake) => {
                    sim.nic.groups.wake(&mut sim.env, &mut sim.cpus, id, &wake, cpu);
                    // The homes of members change.
                    sim.nic.pollers_notice(&mut sim.env, &mut sim.cpus, id);
                }
                GroupStep::Park => {
                    sim.nic.pollers_notice(&mut sim.env, &mut sim.cpus, id);
                    return self.goes_to_sleep(sim, None, false);
                }
                GroupStep::Transmit(visit) => return self.transmits(sim, visit),
                GroupStep::Doorbell(ring) => {
                    self.stage = Some(Stage::Doorbell(ring));
                    return Next::Run(Segment::bottom_halves_off(u64::from(sim.env.world.costs.doorbell_ns)));
                }
                GroupStep::DryRun(walk) => {
                    self.stage = Some(Stage::DryRun(walk));
                    return Next::Run(Segment::bottom_halves_off(u64::from(sim.env.world.costs.dry_run_ns)));
                }
                GroupStep::Rest { until_ns } => {
                    sim.nic.groups.table[id].seat(cpu).settles = true;
                    return self.goes_to_sleep(sim, until_ns, true);
                }
                GroupStep::Sleep { until_ns } => {
                    sim.env.note(cpu, Whom::Group(id), Transition::GroupSleep);
                    return self.goes_to_sleep(sim, Some(until_ns), false);
                }
                GroupStep::Detached => {
                    self.poller = None;
                    sim.nic.groups.table[id].seat(cpu).taken = false;
                    sim.nic.pollers_notice(&mut sim.env, &mut sim.cpus, id);
                }
            }
        }
    }

    fn visit(&mut self, sim: &mut Sim, visit: Visit) -> Next {
        let queue = QueueId::new(visit.napi);
        if visit.mask {
            sim.nic.shut(&mut sim.env, queue);
        }
        let claim_ns = u64::from(sim.env.world.costs.group_claim_ns);
        let cost_ns = claim_ns + sim.poll_begins(queue, visit.budget, self.cpu, false);
        self.stage = Some(Stage::Visit(visit));
        Next::Run(Segment::bottom_halves_off(cost_ns))
    }

    /// The visit's poll has ended.
    fn visited(&mut self, sim: &mut Sim, visit: Visit) -> Option<Next> {
        let (cpu, queue) = (self.cpu, QueueId::new(visit.napi));
        sim.env.tally.transitions += 1;
        let group = Arc::clone(&sim.nic.groups.table[self.group].group);
        let q = &sim.nic.queues[queue];
        let poller = self.poller.as_mut()?;
        let stop = poller.polled(&group, &q.napi, q.poll.work, &sim.env.cx(cpu), |_| ());
        self.given_back(sim, queue, stop)
    }

    fn transmits(&mut self, sim: &mut Sim, visit: Visit) -> Next {
        let queue = QueueId::new(visit.napi);
        if visit.mask {
            sim.nic.shut(&mut sim.env, queue);
        }
        let (sent, cost_ns) = sim.transmit_visit_begins(queue, visit.budget);
        self.stage = Some(Stage::Transmit(visit, sent));
        let costs = &sim.env.world.costs;
        let fixed_ns = u64::from(costs.group_claim_ns) + u64::from(costs.poll_ns);
        Next::Run(Segment::bottom_halves_off(fixed_ns + cost_ns))
    }

    fn transmitted(&mut self, sim: &mut Sim, visit: Visit, sent: &Transmitted) -> Option<Next> {
        let (cpu, queue) = (self.cpu, QueueId::new(visit.napi));
        sim.env.tally.transitions += 1;
        sim.transmit_visit_ends(queue, sent);
        let group = &sim.nic.groups.table[self.group].group;
        let stop = self.poller.as_mut()?.transmitted(group, &sim.nic.queues[queue].napi, sent, &sim.env.cx(cpu));
        self.given_back(sim, queue, stop)
    }

    fn rung(&mut self, sim: &mut Sim, ring: Ring) -> Option<Next> {
        let (cpu, queue) = (self.cpu, QueueId::new(ring.napi));
        sim.env.tally.transitions += 1;
        let frames = sim.rings(queue);
        assert_eq!(frames, ring.frames, "I15: a group counts what was not rung for");
        let group = &sim.nic.groups.table[self.group].group;
        let stop = self.poller.as_mut()?.rung(group, &sim.nic.queues[queue].napi, &sim.env.cx(cpu));
        self.given_back(sim, queue, stop)
    }

    fn walked(&mut self, sim: &mut Sim, walk: Walk) -> Option<Next> {
        let (cpu, queue) = (self.cpu, QueueId::new(walk.napi));
        sim.env.tally.transitions += 1;
        let group = &sim.nic.groups.table[self.group].group;
        let stop = self.poller.as_mut()?.dry_ran(group, &sim.nic.queues[queue].napi, &sim.env.cx(cpu));
        self.given_back(sim, queue, stop)
    }

    /// A visit has ended; a member that leaves is polled once more.
    fn given_back(&mut self, sim: &mut Sim, queue: QueueId, stop: Option<BusyStop>) -> Option<Next> {
        let cpu = self.cpu;
        // Other pollers can see what is left as well.
        sim.nic.group_notices(&mut sim.env, &mut sim.cpus, queue);
        let stop = stop?;
        sim.nic.left_group(queue);
        sim.nic.shut(&mut sim.env, queue);
        let cost_ns = sim.poll_begins(queue, stop.budget(), cpu, false);
        self.stage = Some(Stage::LastPoll(queue, stop));
        Some(Next::Run(Segment::bottom_halves_off(cost_ns)))
    }

    /// Makes passes that find nothing, until something happens or one of them would have another outcome.
    fn spin(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        let Some(poller) = &self.poller else { return Next::Sleep(None) };
        let group = &sim.nic.groups.table[self.group].group;
        let now_ns = sim.env.now_ns;
        let costs = &sim.env.world.costs;
        let looks_ns = u64::from(costs.group_look_ns) * u64::from(group.census().members);
        let pass_ns = looks_ns + u64::from(costs.group_pass_ns.max(1));
        let queues = &sim.nic.queues;
        let hint = |_, napi: u32| Some(queues[QueueId::new(napi)].has_work());
        let passes = (poller.spins_until(group, hint, &sim.env.cx(self.cpu)) - now_ns).div_ceil(pass_ns).max(1);
        let thread = &mut sim.cpus.threads[me];
        thread.spins = Some(Spin { began_ns: now_ns, pass_ns, own_ns: thread.own_ns() });
        let alone = sim.nic.groups.table[self.group].group.watches_alone(self.cpu.raw(), now_ns);
        self.stage = Some(Stage::Spinning { alone });
        Next::Run(Segment { preemptible: true, ..Segment::sys(passes * pass_ns) })
    }

    /// The passes are over. The current one began within the last `pass_ns` that the thread ran.
    fn spun(&mut self, sim: &mut Sim, me: ThreadId, alone: bool) {
        let now_ns = sim.env.now_ns;
        let thread = &mut sim.cpus.threads[me];
        let Some(Spin { began_ns, pass_ns, own_ns }) = thread.spins.take() else { return };
        // Time that others owe the CPU, for a completion that is held up or a thread that softirq woke, is not time of
        // the passes.
        let ran_ns = u64::try_from(thread.own_ns() - own_ns).unwrap_or(0);
        let broken_ns = (now_ns - began_ns).saturating_sub(ran_ns);
        let looked_ns = now_ns.saturating_sub(pass_ns + broken_ns).max(began_ns);
        // The pass that goes on may find something.
        self.charge(sim, (ran_ns / pass_ns, ran_ns.saturating_sub(pass_ns)), looked_ns, alone);
    }

    /// The CPU is taken while passes are made: they are charged before anybody else looks.
    fn broken_into(&mut self, sim: &mut Sim, me: ThreadId, alone: bool) {
        let now_ns = sim.env.now_ns;
        let thread = &mut sim.cpus.threads[me];
        let Some(Spin { pass_ns, own_ns, .. }) = thread.spins else { return };
        let ran_ns = u64::try_from(thread.own_ns() - own_ns).unwrap_or(0);
        let amid_ns = ran_ns % pass_ns;
        if ran_ns == amid_ns {
            return;
        }
        let began_ns = now_ns - amid_ns;
        thread.spins = Some(Spin { began_ns, pass_ns, own_ns: thread.own_ns() - amid_ns as i64 });
        self.charge(sim, (ran_ns / pass_ns, ran_ns - amid_ns), began_ns, alone);
    }

    /// Charges this many passes, which took this long and found nothing; the current one began at `looked_ns`.
    fn charge(&mut self, sim: &mut Sim, (passes, took_ns): (u64, u64), looked_ns: u64, alone: bool) {
        let now_ns = sim.env.now_ns;
        let it = &mut sim.nic.groups.table[self.group];
        if let Some(poller) = &mut self.poller {
            poller.spun(&it.group, passes, looked_ns, now_ns);
        }
        // Beside a poller that does not run, this one goes on, whatever the budget is.
        if alone || it.group.watches_alone(self.cpu.raw(), now_ns) {
            return;
        }
        let (period, seat) = (now_ns / BUDGET_PERIOD_NS, it.seat(self.cpu));
        let so_far_ns = if seat.empty.0 == period { seat.empty.1 } else { 0 };
        seat.empty = (period, so_far_ns + took_ns);
    }

    /// Going to sleep takes a while, and a wake-up that comes meanwhile is kept.
    fn goes_to_sleep(&mut self, sim: &Sim, until_ns: Option<u64>, rests: bool) -> Next {
        self.stage = Some(Stage::ToSleep { until_ns, rests });
        Next::Run(Segment::sys(u64::from(sim.env.world.costs.recv_sleep_ns)))
    }

    fn sleeps(&mut self, sim: &mut Sim, until_ns: Option<u64>, rests: bool) -> Option<Next> {
        if rests {
            let mut members = Vec::new();
            sim.nic.groups.table[self.group].group.unmask_for_rest(|member| members.push(QueueId::new(member.napi)));
            for queue in members {
                sim.nic.unmask(&mut sim.env, &mut sim.cpus, queue);
            }
        }
        sim.nic.groups.table[self.group].seat(self.cpu).settles = false;
        let kept = sim.nic.groups.take_kept(self.group, self.cpu);
        (!kept).then_some(Next::Sleep(until_ns))
    }
}

impl Program for GroupPollerProgram {
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        let cpu = self.cpu;
        let next = match self.stage.take() {
            Some(Stage::Visit(visit)) => match sim.poll_goes_on(QueueId::new(visit.napi), cpu) {
                Some(cost_ns) => {
                    self.stage = Some(Stage::Visit(visit));
                    Some(Next::Run(Segment::bottom_halves_off(cost_ns)))
                }
                None => self.visited(sim, visit),
            },
            Some(Stage::Transmit(visit, sent)) => self.transmitted(sim, visit, &sent),
            Some(Stage::Doorbell(ring)) => self.rung(sim, ring),
            Some(Stage::DryRun(walk)) => self.walked(sim, walk),
            Some(Stage::LastPoll(queue, stop)) => match sim.poll_goes_on(queue, cpu) {
                Some(cost_ns) => {
                    self.stage = Some(Stage::LastPoll(queue, stop));
                    Some(Next::Run(Segment::bottom_halves_off(cost_ns)))
                }
                None => {
                    sim.last_poll_of_group(queue, stop, cpu);
                    None
                }
            },
            Some(Stage::Spinning { alone }) => {
                self.spun(sim, me, alone);
                None
            }
            Some(Stage::ToSleep { until_ns, rests }) => self.sleeps(sim, until_ns, rests),
            None => None,
        };
        next.unwrap_or_else(|| self.ask(sim, me))
    }

    fn event(&mut self, sim: &mut Sim, me: ThreadId, _token: u32) {
        if let Some(Stage::Spinning { alone }) = self.stage {
            self.broken_into(sim, me, alone);
        }
    }

    fn abandon(self: Box<Self>) {
        if let Some(poller) = self.poller {
            poller.abandon();
        }
        if let Some(Stage::LastPoll(_, stop)) = self.stage {
            // Dropping a stop would check that its owner polls again; but the run is over, and nobody does.
            std::mem::forget(stop);
        }
    }
}
