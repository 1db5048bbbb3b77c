//! A worker of an event-driven service. It waits in `epoll_wait` and serves each event in turn: it reads, serves and
//! writes, or takes and answers the frames of an AF_XDP socket.
//!
//! The core's `EpollWait` decides about delivery; this program executes its steps and gives them their costs.

use lull_core::{BusyDone, BusyPlan, EpollWait, WaitStep};

use crate::engine::app::xsk_responder::XskBatch;
use crate::engine::busy::Busier;
use crate::engine::epoll::Item;
use crate::engine::id::{ConnId, ContextId, CpuId, ThreadId};
use crate::engine::recorder::Whom;
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};
use crate::engine::transition::Transition;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before `epoll_wait`.
    Call,
    /// It has just entered `epoll_wait`.
    Entered,
    /// It is between two steps of `epoll_wait`.
    Steps,
    /// Events were copied.
    Copied(usize),
    /// It is about to sleep.
    Falling,
    Slept,
    /// Serving the event at this place of the batch.
    Serve(usize),
}

/// The cost of a look at a ring from outside, at a cache line that the device may have written. No published figure
/// includes it, since Linux has no such look.
const RING_LOOK_NS: u64 = 50;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct EpollWorker {
    context: ContextId,
    cpu: CpuId,
    timeout_ns: Option<u64>,
    events_max: u32,
    stage: Stage,
    wait: Option<EpollWait>,
    owed: Option<WaitStep>,
    busier: Option<Busier>,
    batch: Vec<Item>,
    /// The frames of an AF_XDP socket, if that is the event that is being served.
    frames: Option<XskBatch>,
    /// Answers that are held back so that they leave together
    /// ([`World::answers_together`](crate::World::answers_together)).
    written: Vec<ConnId>,
    sleep_until_ns: Option<u64>,
}

impl EpollWorker {
    pub(crate) fn new(context: ContextId, cpu: CpuId, timeout_ns: Option<u64>, events_max: u32) -> EpollWorker {
        EpollWorker {
            context,
            cpu,
            timeout_ns,
            events_max,
            stage: Stage::Call,
            wait: None,
            owed: None,
            busier: None,
            batch: Vec::with_capacity(1_024),
            frames: None,
            written: Vec::new(),
            sleep_until_ns: None,
        }
    }

    fn is_available(&self, sim: &Sim) -> bool {
        sim.contexts[self.context].is_available()
    }

    /// Executes steps of `epoll_wait` until one costs time.
    fn steps(&mut self, sim: &mut Sim) -> Next {
        loop {
            let Some(wait) = &mut self.wait else { unreachable!("a step of epoll_wait outside of it") };
            let step = match self.owed.take() {
                Some(owed) => owed,
                None => wait.next(&sim.contexts[self.context].ep),
            };
            match step {
                WaitStep::Copy => return self.copy(sim),
                WaitStep::Busy(plan)
                    if wait.may_leave_out(&sim.contexts[self.context].ep) && sim.nic.is_idle(plan.napi_id) =>
                {
                    let (available, now_ns) = (sim.contexts[self.context].is_available(), sim.env.now_ns);
                    wait.left_out(&sim.contexts[self.context].ep, available, now_ns);
                    self.stage = Stage::Steps;
                    return Next::Run(Segment::sys(RING_LOOK_NS));
                }
                WaitStep::Busy(plan) => {
                    self.note_busy(sim, &plan);
                    if let Some((busier, next)) = Busier::begin(sim, plan, self.cpu) {
                        self.busier = Some(busier);
                        return next;
                    }
                    self.busy_over(sim, true, 0);
                }
                WaitStep::Suspend(id) => {
                    self.note(sim, Transition::EpollSuspend);
                    sim.nic.suspend(&mut sim.env, &mut sim.cpus, id, self.cpu);
                }
                WaitStep::Resume(id) => {
                    self.note(sim, Transition::EpollResume);
                    sim.nic.resume(&mut sim.env, &mut sim.cpus, id, self.cpu);
                    self.stage = Stage::Steps;
                    return Next::Run(Segment::sys(u64::from(sim.env.world.costs.busy_round_ns)));
                }
                WaitStep::Sleep(until_ns) => {
                    self.sleep_until_ns = until_ns;
                    self.stage = Stage::Falling;
                    return Next::Run(Segment::sys(sim.env.world.falling_ns()));
                }
                WaitStep::Done(0) => {
                    self.wait = None;
                    sim.cpus[self.cpu].in_turn = false;
                    sim.cover(self.cpu);
                    sim.contexts[self.context].inside -= 1;
                    let zero = self.timeout_ns == Some(0);
                    self.note(sim, if zero { Transition::EpollZero } else { Transition::EpollTimeout });
                    sim.env.tally.counts.epoll_timeouts += 1;
                    self.stage = Stage::Call;
                    return Next::Run(Segment::mixed(0, u64::from(sim.env.faults.spec.between_calls_ns)));
                }
                WaitStep::Done(events) => {
                    self.wait = None;
                    sim.cpus[self.cpu].in_turn = false;
                    sim.cover(self.cpu);
                    sim.contexts[self.context].inside -= 1;
                    sim.env.tally.counts.epoll_calls += 1;
                    sim.env.tally.counts.epoll_events += events as u64;
                    self.stage = Stage::Serve(0);
                    return self.serve(sim, 0);
                }
            }
        }
    }

    fn copy(&mut self, sim: &mut Sim) -> Next {
        let context = &mut sim.contexts[self.context];
        let count = context.ready.len().min(self.events_max as usize);
        self.batch.clear();
        self.batch.extend(context.ready.drain(..count));
        context.ep.in_turn(&mut self.batch, |item| match *item {
            Item::Connection(conn) => sim.nic.queues[sim.clients.connections[conn].queue].napi.id(),
            Item::Other => 0,
        });
        let looked_at = count as u64 + u64::from(std::mem::take(&mut context.stale));
        context.stale = count as u32;
        self.stage = Stage::Copied(count);
        Next::Run(Segment::sys(looked_at * u64::from(sim.env.world.costs.epoll_event_ns)))
    }

    fn note(&self, sim: &mut Sim, transition: Transition) {
        sim.env.note(self.cpu, Whom::Context(self.context), transition);
    }

    fn note_busy(&self, sim: &mut Sim, plan: &BusyPlan) {
        if self.is_available(sim) {
            self.note(sim, Transition::EpollCapPolls);
        } else if self.timeout_ns == Some(0) {
            self.note(sim, Transition::EpollZeroPolls);
        }
        let spins = plan.end.spins();
        self.note(sim, if spins { Transition::EpollSpin } else { Transition::EpollOneRound });
    }

    fn busy_over(&mut self, sim: &mut Sim, gone: bool, most: u32) {
        let available = self.is_available(sim);
        self.note(sim, if available { Transition::EpollFound } else { Transition::EpollNothing });
        if let Some(wait) = &mut self.wait {
            let done = BusyDone { available, gone, most, now_ns: sim.env.now_ns };
            self.owed = wait.busy_done(&sim.contexts[self.context].ep, done);
        }
    }

    fn serve(&mut self, sim: &mut Sim, place: usize) -> Next {
        sim.look_at_timers(self.cpu);
        if place == self.batch.len() {
            self.doorbell(sim);
            self.stage = Stage::Call;
            return self.call(sim);
        }
        let Item::Connection(conn) = self.batch[place] else {
            let stall_ns = sim.env.faults.stall_ns();
            return Next::Run(Segment::mixed(0, u64::from(sim.env.world.costs.request_user_ns) + stall_ns));
        };
        if let Some(xsk) = sim.ends.xsk_of(conn) {
            sim.ends.xsk_returned(xsk);
            let Some((frames, next)) = XskBatch::begin(sim, xsk, self.cpu) else { return self.served(sim, place) };
            self.frames = Some(frames);
            return next;
        }
        let mut segment = sim.clients.request_cost(&sim.env, &mut sim.cpus, conn, self.cpu);
        segment.cost_ns += sim.env.faults.stall_ns();
        Next::Run(segment)
    }

    fn served(&mut self, sim: &mut Sim, place: usize) -> Next {
        self.stage = Stage::Serve(place + 1);
        self.serve(sim, place + 1)
    }

    /// Sends the answers that were written.
    fn doorbell(&mut self, sim: &mut Sim) {
        for conn in self.written.drain(..) {
            sim.answers(conn, self.cpu);
        }
    }

    fn call(&mut self, sim: &Sim) -> Next {
        self.stage = Stage::Entered;
        Next::Run(Segment::mixed(u64::from(sim.env.world.costs.epoll_call_ns), 0))
    }
}

impl Program for EpollWorker {
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        self.cpu = sim.cpus.threads[me].cpu;
        if let Some(mut busier) = self.busier.take() {
            let ready = self.is_available(sim);
            if let Some(next) = busier.step(sim, me, ready) {
                self.busier = Some(busier);
                return next;
            }
            self.busy_over(sim, false, busier.most());
            return self.steps(sim);
        }
        match self.stage {
            Stage::Call => self.call(sim),
            Stage::Entered => {
                sim.cpus[self.cpu].in_turn = true;
                // Timers that fell due on the way here are looked at now.
                sim.look_at_timers(self.cpu);
                let available = self.is_available(sim);
                sim.contexts[self.context].inside += 1;
                let ep = &sim.contexts[self.context].ep;
                self.wait = Some(EpollWait::begin(ep, self.timeout_ns, available, sim.env.now_ns));
                self.steps(sim)
            }
            Stage::Steps => self.steps(sim),
            Stage::Copied(count) => {
                let copied = if count > 0 { Transition::EpollCopy } else { Transition::EpollStale };
                self.note(sim, copied);
                if let Some(wait) = &mut self.wait {
                    self.owed = wait.copied(&sim.contexts[self.context].ep, count);
                }
                self.steps(sim)
            }
            Stage::Falling => {
                if self.is_available(sim) {
                    if let Some(wait) = &mut self.wait {
                        wait.woke(true, false);
                    }
                    return self.steps(sim);
                }
                if sim.end_deferrals(self.cpu) {
                    // Its poll runs before the next step, and may bring events.
                    return Next::Run(Segment::sys(0));
                }
                self.note(sim, Transition::EpollSleep);
                sim.cpus[self.cpu].in_turn = false;
                sim.contexts[self.context].waiters.push(me);
                self.stage = Stage::Slept;
                Next::Sleep(self.sleep_until_ns)
            }
            Stage::Slept => {
                sim.cpus[self.cpu].in_turn = true;
                let timed_out = std::mem::take(&mut sim.cpus.threads[me].timed_out);
                let context = &mut sim.contexts[self.context];
                context.waiters.retain(|&waiter| waiter != me);
                let available = context.is_available();
                if let Some(wait) = &mut self.wait {
                    wait.woke(available, timed_out);
                }
                self.steps(sim)
            }
            Stage::Serve(place) => {
                if let Some(mut frames) = self.frames.take() {
                    if let Some(next) = frames.step(sim, me) {
                        self.frames = Some(frames);
                        return next;
                    }
                    return self.served(sim, place);
                }
                if let Item::Connection(conn) = self.batch[place] {
                    self.written.push(conn);
                    if self.written.len() >= sim.env.world.answers_together as usize {
                        self.doorbell(sim);
                    }
                }
                self.served(sim, place)
            }
        }
    }

    fn abandon(self: Box<Self>) {
        if let Some(busier) = self.busier {
            busier.abandon();
        }
        if let Some(frames) = self.frames {
            frames.abandon();
        }
    }
}
