//! Follows one instance by the core's reports: who polls it (I1), with what budget it is completed (I5), how many
//! deferral rounds it has (I7), and how long its timers run (I8).

use lull_core::Unpolled;
use lull_core::event::EventKind;

use crate::engine::id::QueueId;
use crate::engine::sim::Sim;
use crate::engine::transition::Transition;
use crate::random::check::violation::Violation;
use crate::random::script::Script;

/// Timers are kept in units of 16 ns, rounded up.
const TIMER_UNIT_NS: u64 = 16;

/// Deferral rounds since the last productive poll, while only the timer drives them.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    expected: u32,
    done: u32,
    writes: u32,
}

/// What is known of one instance from its events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Followed {
    pub(super) polling: Option<u32>,
    /// Whether the last poll took its whole budget, and nobody asked it to yield.
    full: bool,
    productive: bool,
    by_timer: bool,
    timer_pending: bool,
    rounds: Option<Rounds>,
    /// Whether a deferral has run out, and nobody has busy polled since.
    ran_out: bool,
    thread_busy: bool,
    yielding: bool,
    /// Whether it was released with its interrupt unmasked, so that a timer that settling starts is for GRO only.
    unmasking: bool,
}

/// When something was reported, and of which instance.
pub(super) struct Said<'a> {
    pub(super) sim: &'a mut Sim,
    pub(super) script: &'a Script,
    pub(super) at_ns: u64,
    pub(super) napi: u32,
}

impl Said<'_> {
    fn broken<T>(&self, rule: &'static str, found: String) -> Result<T, Violation> {
        Err(Violation { rule, at_ns: self.at_ns, found })
    }

    fn covered(&mut self, transition: Transition) {
        self.sim.env.tally.covered.add(transition);
    }
}

impl Followed {
    /// Follows a report about the instance. Returns the transition that it was, if it was one.
    pub(super) fn follow(&mut self, said: &mut Said<'_>, kind: EventKind) -> Result<Option<Transition>, Violation> {
        match kind {
            EventKind::PollBegin { .. }
            | EventKind::PollEnd { .. }
            | EventKind::Repoll
            | EventKind::Yield
            | EventKind::YieldToDisable => self.polled(said, kind),
            EventKind::Kept | EventKind::Again | EventKind::Complete { .. } => self.completed(said, kind),
            EventKind::TimerArm { .. } | EventKind::TimerFire { .. } => self.timed(said, kind),
            _ => Ok(self.taken(kind)),
        }
    }

    fn polled(&mut self, said: &Said<'_>, kind: EventKind) -> Result<Option<Transition>, Violation> {
        let napi = said.napi;
        let transition = match kind {
            EventKind::PollBegin { budget } => {
                if budget == 0 {
                    return said.broken("I5", format!("queue {napi} is polled with a budget of 0"));
                }
                if let Some(other) = self.polling.replace(budget) {
                    return said
                        .broken("I1", format!("queue {napi} is polled while a poll of {other} packets goes on"));
                }
                return Ok(None);
            }
            EventKind::PollEnd { work } => {
                let Some(budget) = self.polling.take() else {
                    return said.broken("I1", format!("a poll of queue {napi} ends that never began"));
                };
                self.yielding = false;
                self.full = work == budget;
                self.productive = work > 0;
                match &mut self.rounds {
                    Some(rounds) if work == 0 && self.by_timer => rounds.done += 1,
                    other => *other = None,
                }
                self.by_timer = false;
                if self.full {
                    Transition::PollFull
                } else if work > 0 {
                    Transition::PollSome
                } else {
                    Transition::PollEmpty
                }
            }
            EventKind::Repoll => Transition::Repoll,
            EventKind::Yield => {
                self.full = false;
                self.rounds = None;
                self.yielding = true;
                Transition::Yield
            }
            EventKind::YieldToDisable => {
                self.full = false;
                Transition::YieldToDisable
            }
            _ => return Ok(None),
        };
        Ok(Some(transition))
    }

    fn completed(&mut self, said: &mut Said<'_>, kind: EventKind) -> Result<Option<Transition>, Violation> {
        let napi = said.napi;
        if self.full && kind != EventKind::Kept {
            return said.broken("I5", format!("queue {napi} was completed after a full budget"));
        }
        let rearm = match kind {
            EventKind::Complete { rearm } => rearm,
            EventKind::Again => {
                self.rounds = None;
                return Ok(Some(Transition::CompleteAgain));
            }
            _ => return Ok(Some(Transition::CompleteKept)),
        };
        if std::mem::take(&mut self.yielding) {
            said.covered(if rearm { Transition::YieldAgain } else { Transition::YieldParked });
        }
        self.unmasking = rearm;
        let productive = std::mem::take(&mut self.productive);
        let settings = said.sim.nic.queues[QueueId::new(napi)].napi.settings();
        if self.ran_out && settings.unpolled == Unpolled::Interrupt {
            self.rounds = None;
            if !rearm {
                let found = format!("queue {napi} is deferred again, and nobody has polled since a deferral ran out");
                return said.broken("I7", found);
            }
        }
        if let Some(rounds) = self.rounds
            && rounds.writes == said.script.writes
            && (rounds.done >= rounds.expected) != rearm
        {
            let Rounds { expected, done, .. } = rounds;
            let found = format!("queue {napi} unmasks: {rearm}, after {done} of {expected} deferral rounds");
            return said.broken("I7", found);
        }
        if rearm {
            self.rounds = None;
        } else if productive {
            self.rounds = Some(Rounds { expected: settings.defer_hard_irqs, done: 0, writes: said.script.writes });
        }
        Ok(Some(if rearm { Transition::CompleteUnmask } else { Transition::CompleteDefer }))
    }

    fn timed(&mut self, said: &mut Said<'_>, kind: EventKind) -> Result<Option<Transition>, Violation> {
        let transition = match kind {
            EventKind::TimerArm { deadline_ns } => {
                let longest_ns = said.script.timeout_max_ns[QueueId::new(said.napi)];
                if deadline_ns > said.at_ns + longest_ns + TIMER_UNIT_NS {
                    let timer_ns = deadline_ns - said.at_ns;
                    let napi = said.napi;
                    let found = format!("queue {napi} starts a timer of {timer_ns} ns, at most {longest_ns} may be");
                    return said.broken("I8", found);
                }
                if std::mem::take(&mut self.unmasking) {
                    said.covered(Transition::TimerForGro);
                }
                let replaced = std::mem::replace(&mut self.timer_pending, true);
                if replaced { Transition::TimerReplaced } else { Transition::TimerStarted }
            }
            EventKind::TimerFire { swallowed, .. } => {
                self.timer_pending = false;
                self.by_timer = !swallowed;
                self.ran_out |= !swallowed;
                if swallowed { Transition::WatchdogSwallowed } else { Transition::WatchdogTaken }
            }
            _ => return Ok(None),
        };
        Ok(Some(transition))
    }

    /// Somebody asks for the instance, takes it, or gives it back.
    fn taken(&mut self, kind: EventKind) -> Option<Transition> {
        Some(match kind {
            EventKind::Schedule { missed } => {
                self.rounds = None;
                self.by_timer = false;
                if missed { Transition::ScheduleMissed } else { Transition::ScheduleOwned }
            }
            EventKind::Refused => Transition::ScheduleRefused,
            EventKind::Suspend => {
                self.rounds = None;
                self.unmasking = false;
                Transition::Suspend
            }
            EventKind::Resume { scheduled } => {
                if scheduled {
                    Transition::ResumeScheduled
                } else {
                    Transition::ResumeNot
                }
            }
            EventKind::BusyAcquire { owned, prefer } => {
                self.rounds = None;
                self.ran_out &= !owned;
                match (owned, prefer) {
                    (true, _) => Transition::BusyOwned,
                    (false, true) => Transition::BusyLostPrefer,
                    (false, false) => Transition::BusyLost,
                }
            }
            EventKind::Park => {
                self.full = false;
                self.rounds = None;
                Transition::BusyParked
            }
            EventKind::HandOver => Transition::BusyHandOver,
            EventKind::ThreadWake => Transition::RouteThread,
            EventKind::ThreadRound { busy } => {
                let before = std::mem::replace(&mut self.thread_busy, busy);
                match (before, busy) {
                    (false, true) => Transition::ThreadBusy,
                    (true, false) => Transition::ThreadBusyOver,
                    _ => Transition::ThreadRound,
                }
            }
            EventKind::Disable => {
                *self = Followed { thread_busy: self.thread_busy, ..Followed::default() };
                return None;
            }
            _ => return None,
        })
    }
}
