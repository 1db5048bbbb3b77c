//! Checks the invariants of busy-polling CPU groups (I9 to I14, I16) in the same way: by the core's reports, and by the
//! state in which a step leaves every group.

use lull_core::event::EventKind;
use lull_core::group::budget::BUDGET_PERIOD_NS;
use lull_core::group::governor::CHANGE_NS;
use lull_core::group::poller::STEAL_AFTER_NS;
use lull_core::state;

use super::violation::{Violation, waits_in_vain};
use super::visits::Visits;
use crate::engine::cpu::{Irq, Level};
use crate::engine::id::{CpuId, GroupId, QueueId, Side, Table};
use crate::engine::nic::Queue;
use crate::engine::seats::{Seat, SimGroup};
use crate::engine::sim::Sim;
use crate::engine::thread::{Spin, ThreadState};
use crate::engine::transition::Transition;
use crate::random::script::Script;

/// How many passes a poller may take, after the time from which it steals, until it has seen that a member waits.
const STRAY_PASSES: u64 = 4;
/// How far a poller may exceed a spent budget before it looks again, in nanoseconds.
const BUDGET_LOOK_NS: u64 = 1_000;

/// What is known of one instance from its events.
#[derive(Debug, Default)]
pub(super) struct Member {
    grouped: bool,
    /// The CPU whose poller visits it.
    pub(super) claimed: Option<u16>,
    /// The CPU whose poller had it last, which is responsible for its doorbell.
    pub(super) answers: Option<u16>,
    /// The CPU that last visited it as its home, since homes changed.
    home: Option<u16>,
    /// Since when it has been free again.
    pub(super) free_since_ns: u64,
    /// Since when it waits, and which members its home has visited since.
    waits_since_ns: Option<u64>,
    passed_over: Vec<u32>,
    visits: Visits,
}

/// What is known of one CPU in one group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Poller {
    woken_ns: Option<u64>,
    parked_ns: Option<u64>,
    /// Since when it has run without finding anything.
    pub(super) idle_since_ns: Option<u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct GroupChecker {
    pub(super) members: Table<QueueId, Member>,
    /// The pollers by group, then by CPU.
    pub(super) pollers: Table<GroupId, Vec<Poller>>,
    /// When an operator last changed something, and how many changes there were by then.
    changed: (u64, u32),
    /// When homes last changed, from which moment pollers look anew who waits.
    moved_ns: u64,
    /// What the homes in each group depended on when a member was last visited.
    views: Table<GroupId, (u32, u32)>,
    /// How often a group began to rest in a period, with the period's number.
    rests: Table<GroupId, (u64, u64)>,
}

impl GroupChecker {
    pub(super) fn new(queues: usize, cpus: usize, groups: usize) -> GroupChecker {
        GroupChecker {
            members: (0..queues).map(|_| Member::default()).collect(),
            pollers: (0..groups).map(|_| vec![Poller::default(); cpus]).collect(),
            changed: (0, 0),
            moved_ns: 0,
            views: (0..groups).map(|_| (0, 0)).collect(),
            rests: (0..groups).map(|_| (0, 0)).collect(),
        }
    }

    /// Follows a report about an instance. `Ok(None)` means that it is not one that only groups cause.
    pub(super) fn follow_member(
        &mut self,
        sim: &Sim,
        (at_ns, cpu): (u64, u16),
        napi: u32,
        kind: EventKind,
    ) -> Result<Option<Transition>, Violation> {
        let broken = |rule, what: &str| {
            Err(Violation { rule, at_ns, found: format!("queue {napi} {what} on cpu {cpu} ({kind:?})") })
        };
        let it = &mut self.members[QueueId::new(napi)];
        let transition = match kind {
            EventKind::GroupEnter => {
                if it.grouped {
                    return broken("I9", "enters a second group");
                }
                *it = Member { grouped: true, free_since_ns: at_ns, ..Member::default() };
                self.changes(at_ns);
                Transition::GroupEntered
            }
            EventKind::GroupLeave => {
                if !it.grouped || it.claimed.is_some_and(|holder| holder != cpu) {
                    return broken("I9", "leaves a group while another serves it");
                }
                *it = Member::default();
                self.changes(at_ns);
                Transition::GroupLeft
            }
            EventKind::GroupClaim { stray } => {
                if !it.grouped || it.claimed.is_some() {
                    return broken("I9", "is visited while another serves it, or as no member");
                }
                self.follow_homes(sim);
                let held_since_ns = self.held_since_ns(sim, napi, cpu);
                let transmits = sim.nic.queues[QueueId::new(napi)].transmit.is_some();
                let it = &mut self.members[QueueId::new(napi)];
                it.visits.begins(at_ns, held_since_ns, transmits);
                (it.claimed, it.answers) = (Some(cpu), Some(cpu));
                it.waits_since_ns = None;
                it.home = if stray { it.home } else { Some(cpu) };
                if !stray {
                    self.in_turn(sim, (at_ns, cpu), napi)?;
                }
                if stray { Transition::GroupStray } else { Transition::GroupClaim }
            }
            EventKind::Doorbell { .. } => {
                if !it.grouped || it.claimed.is_some() {
                    return broken("I9", "is rung for while another serves it, or as no member");
                }
                (it.claimed, it.answers) = (Some(cpu), Some(cpu));
                Transition::TxDoorbell
            }
            EventKind::DryRun => {
                if !it.grouped || it.claimed.is_some() {
                    return broken("I9", "is walked while another serves it, or as no member");
                }
                it.claimed = Some(cpu);
                return Ok(None);
            }
            EventKind::GroupRelease => {
                if it.claimed.take() != Some(cpu) {
                    return broken("I9", "is given back by somebody who does not serve it");
                }
                it.free_since_ns = at_ns;
                let unrung = sim.nic.queues[QueueId::new(napi)].transmit.as_ref().map_or(0, |tx| tx.unrung());
                return match it.visits.ends(at_ns, unrung) {
                    Ok(()) => Ok(None),
                    Err(found) => broken("I15", &found),
                };
            }
            EventKind::PollEnd { work } if it.grouped && it.claimed == Some(cpu) => {
                it.visits.polled(work);
                return Ok(None);
            }
            EventKind::GroupStalled { .. } => Transition::GroupStalled,
            EventKind::PollBegin { .. } | EventKind::PollEnd { .. } if it.grouped && it.claimed != Some(cpu) => {
                return broken("I9", "is polled without its claim");
            }
            EventKind::Schedule { missed: false }
            | EventKind::BusyAcquire { owned: true, .. }
            | EventKind::TimerFire { swallowed: false, .. }
            | EventKind::ThreadRound { .. }
            | EventKind::ThreadWake
            | EventKind::Repoll
            | EventKind::Again
            | EventKind::Complete { .. }
                if it.grouped =>
            {
                return broken("I10", "is somebody else's while a group polls it");
            }
            _ => return Ok(None),
        };
        Ok(Some(transition))
    }

    /// Returns since when frames have waited for a doorbell for which the poller of this CPU is responsible, in the
    /// group of that queue.
    fn held_since_ns(&self, sim: &Sim, napi: u32, cpu: u16) -> Option<u64> {
        let group = |queue: QueueId| sim.nic.queues[queue].group.map(|(group, _)| group);
        let ours = |queue: QueueId| group(queue) == group(QueueId::new(napi));
        let held =
            self.members.rows().filter(|(queue, it)| it.answers == Some(cpu) && it.claimed.is_none() && ours(*queue));
        held.filter_map(|(_, it)| it.visits.unrung_since_ns).min()
    }

    /// I12: a home that visits this member has not left out another one that waited for two such visits.
    fn in_turn(&mut self, sim: &Sim, (at_ns, cpu): (u64, u16), napi: u32) -> Result<(), Violation> {
        let group = sim.nic.queues[QueueId::new(napi)].group.map(|(group, _)| group);
        for (index, queue) in sim.nic.queues.rows() {
            let it = &mut self.members[index];
            let waits = index.raw() != napi
                && queue.group.map(|(group, _)| group) == group
                && it.home == Some(cpu)
                && it.claimed.is_none()
                && queue.unseen_since_ns().is_some_and(|since_ns| since_ns < at_ns)
                && !queue.napi.snapshot().has(state::DISABLE);
            if !waits {
                it.waits_since_ns = None;
                continue;
            }
            if it.waits_since_ns.is_none() {
                it.waits_since_ns = Some(at_ns);
                it.passed_over.clear();
            }
            if it.passed_over.contains(&napi) {
                let found = format!("queue {napi} is visited twice on cpu {cpu} while queue {index} waits there");
                return Err(Violation { rule: "I12", at_ns, found });
            }
            it.passed_over.push(napi);
        }
        Ok(())
    }

    /// Follows a report about a group.
    pub(super) fn follow_group(
        &mut self,
        (sim, script): (&Sim, &Script),
        (at_ns, cpu): (u64, u16),
        group: u32,
        kind: EventKind,
    ) -> Result<Transition, Violation> {
        let id = GroupId::new(group);
        let it = &sim.nic.groups.table[id];
        self.note_changes(script, at_ns);
        // An operator wakes and parks pollers at any time, and so does a spent budget.
        let calm = at_ns - self.changed.0 > CHANGE_NS
            && it.group.config().budget == lull_core::group::Budget::default()
            && it.group.census().members != 0;
        let soon = |when_ns: Option<u64>| calm && when_ns.is_some_and(|when_ns| at_ns - when_ns < CHANGE_NS);
        let broken =
            |what: &str| Err(Violation { rule: "I13", at_ns, found: format!("a poller of group {group} {what}") });
        let transition = match kind {
            EventKind::GroupWake { cpu: woken } => {
                let poller = &mut self.pollers[id][usize::from(woken)];
                if soon(poller.parked_ns.take()) {
                    return broken("is woken too soon after it parked");
                }
                poller.woken_ns = Some(at_ns);
                Transition::GroupWake
            }
            EventKind::GroupPark => {
                let poller = &mut self.pollers[id][usize::from(cpu)];
                if soon(poller.woken_ns.take()) {
                    return broken("parks too soon after it was woken");
                }
                poller.parked_ns = Some(at_ns);
                Transition::GroupPark
            }
            EventKind::GroupRest => {
                let (period, rests) = (at_ns / BUDGET_PERIOD_NS, &mut self.rests[id]);
                *rests = (period, if rests.0 == period { rests.1 + 1 } else { 1 });
                return Ok(Transition::GroupRest);
            }
            _ => return Ok(Transition::GroupRestEnd),
        };
        self.homes_move(at_ns);
        Ok(transition)
    }

    /// Homes also change when a detached poller has drained, which nobody reports: turns begin anew in that group.
    fn follow_homes(&mut self, sim: &Sim) {
        for (id, it) in sim.nic.groups.table.rows() {
            let view = it.group.homes_hang_on();
            if self.views[id] == view {
                continue;
            }
            self.views[id] = view;
            self.moved_ns = sim.env.now_ns;
            for (queue, _) in sim.nic.queues.rows().filter(|(_, queue)| queue.group.is_some_and(|(of, _)| of == id)) {
                self.members[queue].home = None;
            }
        }
    }

    /// A poller or a member came or went, or an operator changed something.
    fn changes(&mut self, at_ns: u64) {
        self.changed.0 = at_ns;
        self.homes_move(at_ns);
    }

    /// Turns begin anew.
    fn homes_move(&mut self, at_ns: u64) {
        self.moved_ns = at_ns;
        self.members.iter_mut().for_each(|member| member.home = None);
    }

    fn note_changes(&mut self, script: &Script, at_ns: u64) {
        if self.changed.1 != script.group_changes {
            self.changed.1 = script.group_changes;
            self.changes(at_ns);
        }
    }

    /// Checks the state of every group between two steps.
    pub(super) fn check_state(&mut self, sim: &Sim, script: &Script) -> Result<(), Violation> {
        self.note_changes(script, sim.env.now_ns);
        for (id, it) in sim.nic.groups.table.rows() {
            let at_ns = sim.env.now_ns;
            let broken = |rule, found: String| Err(Violation { rule, at_ns, found: format!("group {id}: {found}") });
            if let Err(found) = it.group.census().check() {
                let (rule, found) = found.split_once(": ").unwrap_or(("I11", found));
                return broken(if rule == "I13" { "I13" } else { "I11" }, found.to_owned());
            }
            for seat in &it.seats {
                check_seat(sim, it, seat).or_else(|(rule, found)| broken(rule, found))?;
                let holds = |member: &&Member| member.claimed == Some(seat.cpu.raw());
                let others = || sim.nic.groups.table.iter().any(|other| runs_in(other, seat.cpu));
                if !seat.taken && self.members.iter().any(|member| holds(&member)) && !others() {
                    return broken("I14", format!("cpu {} is detached and serves a member", seat.cpu));
                }
                self.idles(sim, id, seat);
            }
            self.check_budget(sim, id, it).or_else(|found| broken("I16", found))?;
            self.check_waits(sim, id, it).or_else(|found| broken("I12", found))?;
        }
        self.check_transmit(sim)
    }

    /// Follows since when this poller has run without finding anything.
    fn idles(&mut self, sim: &Sim, group: GroupId, seat: &Seat) {
        let cpu = &sim.cpus[seat.cpu];
        let due_ns = sim.env.agenda.slot_ns(sim.env.slots.cpu(seat.cpu));
        // A segment that lasts for longer than a pass, though something waits, bears what others owe the CPU.
        let looks = sim.cpus.threads[seat.thread].spins.zip(due_ns);
        let looks = looks.is_some_and(|(spin, due_ns)| due_ns <= sim.env.now_ns + spin.pass_ns);
        let runs = looks && cpu.level == Level::Thread && cpu.current == Some(seat.thread);
        let poller = &mut self.pollers[group][usize::from(seat.cpu.raw())];
        poller.idle_since_ns = runs.then(|| poller.idle_since_ns.unwrap_or(sim.env.now_ns));
    }

    /// I12: a member whose home is held up is served by any poller that has nothing to do.
    fn check_waits(&self, sim: &Sim, id: GroupId, it: &SimGroup) -> Result<(), String> {
        let now_ns = sim.env.now_ns;
        let members = u64::from(it.group.census().members);
        for seat in &it.seats {
            let Some(idle_since_ns) = self.pollers[id][usize::from(seat.cpu.raw())].idle_since_ns else { continue };
            let Some(Spin { pass_ns, .. }) = sim.cpus.threads[seat.thread].spins else { continue };
            // Of the members that wait the one that was served longest ago comes first, and each of the others may come
            // between.
            let bound_ns = members * (STEAL_AFTER_NS + STRAY_PASSES * pass_ns);
            for (index, queue) in sim.nic.queues.rows() {
                let member = &self.members[index];
                let Some(unseen_since_ns) = queue.unseen_since_ns() else { continue };
                if queue.group.map(|(group, _)| group) != Some(id) || member.claimed.is_some() {
                    continue;
                }
                let since_ns = unseen_since_ns.max(idle_since_ns).max(member.free_since_ns).max(self.moved_ns);
                if now_ns - since_ns > bound_ns && !queue.napi.snapshot().has(state::DISABLE) {
                    let waits_ns = now_ns - since_ns;
                    return Err(format!("queue {index} waits for {waits_ns} ns beside cpu {}, which idles", seat.cpu));
                }
            }
        }
        Ok(())
    }

    /// I16: checks what empty passes took in this period. The way to each rest is one.
    fn check_budget(&self, sim: &Sim, id: GroupId, it: &SimGroup) -> Result<(), String> {
        let Some(percent) = it.group.config().budget.empty_percent else { return Ok(()) };
        let period = sim.env.now_ns / BUDGET_PERIOD_NS;
        let spent_ns: u64 = it.seats.iter().filter(|seat| seat.empty.0 == period).map(|seat| seat.empty.1).sum();
        let costs = &sim.env.world.costs;
        let members = u64::from(it.group.census().members);
        let pass_ns = u64::from(costs.group_pass_ns) + u64::from(costs.group_look_ns) * (members + 1);
        let budget_ns = BUDGET_PERIOD_NS / 100 * u64::from(percent);
        let rests = if self.rests[id].0 == period { self.rests[id].1 } else { 0 };
        let over_ns = it.seats.len() as u64 * (BUDGET_LOOK_NS + 2 * pass_ns) + rests * pass_ns;
        if spent_ns <= budget_ns + over_ns {
            return Ok(());
        }
        Err(format!("empty passes took {spent_ns} ns of a period, {budget_ns} ns may be spent"))
    }
}

fn runs_in(it: &SimGroup, cpu: CpuId) -> bool {
    it.seats.iter().any(|seat| seat.cpu == cpu && seat.taken)
}

/// I11: whoever has to watch can do so.
fn check_seat(sim: &Sim, it: &SimGroup, seat: &Seat) -> Result<(), (&'static str, String)> {
    let (cpu, census) = (seat.cpu, it.group.census());
    if !seat.taken || !it.group.is_awake(cpu.raw()) {
        return Ok(());
    }
    let sleeps = sim.cpus.threads[seat.thread].state == ThreadState::Sleeping;
    if !census.resting {
        let alarm = sim.env.slots.thread(seat.thread);
        let has_alarm = sim.env.agenda.slot_ns(alarm).is_some();
        if sleeps && !has_alarm && !sim.cpus.is_in_flight(Irq::Sleeper(seat.thread)) {
            return Err(("I11", format!("cpu {cpu} is awake, and its poller sleeps for ever")));
        }
        return Ok(());
    }
    // Between RESTING and the last unmask nobody looks yet; a wake-up that comes then is kept.
    if seat.settles || !sleeps {
        return Ok(());
    }
    for (index, queue) in sim.nic.queues.rows() {
        let ours = queue.group.is_some_and(|(group, _)| group.raw() == it.group.index());
        if ours && let Some(what) = unwatched(sim, index, queue) {
            return Err(("I11", format!("cpu {cpu} rests, and queue {index} {what}")));
        }
    }
    Ok(())
}

/// Returns what a member lacks for its group to rest.
fn unwatched(sim: &Sim, index: QueueId, queue: &Queue) -> Option<&'static str> {
    if sim.cpus.is_in_flight(Irq::Device(index)) {
        return None;
    }
    if !(queue.rx.armed && queue.tx.armed) {
        return Some("is masked");
    }
    let waits = [Side::Rx, Side::Tx].into_iter().any(|side| waits_in_vain(sim, index, queue, side));
    waits.then_some("has something in its rings and neither interrupt nor timer")
}
