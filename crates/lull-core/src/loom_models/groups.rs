//! Groups of CPUs (§15): entering, claims, leaving, parking, resting and detaching against one another and against interrupts.
//!
//! One instance, and up to two pollers. A poller that the group puts to sleep is asleep until somebody wakes it; whoever ends
//! the model looks whether a packet waits for a poller that nobody will wake.

use super::*;
use crate::group::claim::Released;
use crate::group::{GroupConfig, GroupMember, GroupWake, Removal};
use crate::{GroupPoller, GroupStep};

/// A group with its pollers' sleeps.
pub(super) struct Pollers {
    group: Group,
    /// By slot: asleep, and a wake-up that came before the sleep.
    sleeps: Mutex<[(bool, bool); 2]>,
}

/// The place of the only member.
const MEMBER: u16 = 0;

impl World {
    fn pollers(&self) -> &Pollers {
        self.group.as_ref().expect("a model of a group")
    }

    fn the_group(&self) -> &Group {
        &self.pollers().group
    }

    fn wake(&self, wake: GroupWake) {
        let mut sleeps = self.pollers().sleeps.lock().expect("no context panics with the sleeps in hand");
        let (asleep, kept) = &mut sleeps[usize::from(wake.slot)];
        if std::mem::take(asleep) {
            return;
        }
        *kept = true;
    }

    pub(super) fn raised(&self) {
        if let Some(wake) = self.the_group().raised(MEMBER, &Cx::new(0, NOW)) {
            self.wake(wake);
        }
    }

    fn enter(&self) {
        let entered = self.the_group().enter(&self.napi, 2, &Cx::new(0, NOW));
        let Ok(entered) = entered else { return };
        self.line(|line| line.masked = true);
        if let Some(wake) = entered.wake {
            self.wake(wake);
        }
    }

    fn leave(&self, stop: BusyStop) {
        self.line(|line| line.masked = true);
        let work = self.poll(stop.budget());
        match stop.polled(&self.napi, work, false, &Cx::new(0, NOW), |_| ()) {
            BusyStopped::Completed(Completion::Released(release)) => self.settle(release, NOW),
            BusyStopped::Completed(Completion::Again(owner)) | BusyStopped::ToSoftirq(owner) => self.run(owner, NOW),
            BusyStopped::Completed(Completion::Kept(_)) => panic!("a member that left is nobody's to keep"),
        }
    }

    fn remove(&self) {
        if let Removal::Mine(stop) = self.the_group().remove(MEMBER, &self.napi, &Cx::new(0, NOW)) {
            self.leave(stop);
        }
    }

    /// One step of a poller. False if it sleeps, or has ended.
    fn step(&self, poller: &mut GroupPoller, now_ns: u64) -> bool {
        let cx = Cx::new(u16::from(poller.slot()), now_ns);
        let slot = usize::from(poller.slot());
        if self.pollers().sleeps.lock().expect("no context panics with the sleeps in hand")[slot].0 {
            return false;
        }
        match poller.next(self.the_group(), |_, _| Some(self.ring() > 0), false, false, &cx) {
            GroupStep::Poll(visit) => {
                if visit.mask {
                    self.line(|line| line.masked = true);
                }
                let work = self.poll(visit.budget);
                if let Some(stop) = poller.polled(self.the_group(), &self.napi, work, &cx, |_| ()) {
                    self.leave(stop);
                }
            }
            GroupStep::Wake(wake) => self.wake(wake),
            GroupStep::Park => self.sleep(slot),
            GroupStep::Rest { .. } => {
                self.the_group().unmask_for_rest(|GroupMember { slot, .. }| {
                    assert_eq!(slot, MEMBER);
                    self.unmask(NOW);
                });
                self.sleep(slot);
            }
            GroupStep::Detached => return false,
            GroupStep::Spin | GroupStep::Yield => {}
            GroupStep::Softirqs | GroupStep::Sleep { .. } => panic!("nothing is due and nothing is spent"),
            GroupStep::Transmit(_) | GroupStep::Doorbell(_) => panic!("the member receives"),
            GroupStep::DryRun(_) => panic!("the path is walked only if that is asked for"),
        }
        true
    }

    fn sleep(&self, slot: usize) {
        let mut sleeps = self.pollers().sleeps.lock().expect("no context panics with the sleeps in hand");
        let (asleep, kept) = &mut sleeps[slot];
        *asleep = !std::mem::take(kept);
    }

    /// All contexts have ended: the pollers run on, for as long as they do not sleep.
    fn assert_served(&self, pollers: &mut [GroupPoller]) {
        self.the_group().census().check().expect("somebody watches");
        let mut now_ns = NOW;
        for _ in 0..16 {
            now_ns += 1_000;
            let awake = pollers.iter_mut().map(|poller| self.step(poller, now_ns)).filter(|ran| *ran).count();
            if awake == 0 {
                break;
            }
        }
        let (seen, truth) = (self.owned.load(Loom::Relaxed), self.owned_in_truth.load(Loom::Relaxed));
        assert_eq!(seen, truth, "I9: two who polled in a row are not ordered");
        let (word, census) = (self.napi.snapshot(), self.the_group().census());
        assert_eq!(self.ring(), 0, "I11: a packet waits for a group that sleeps: {word:?}, {census:?}");
        if !self.napi.snapshot().has(state::GROUPED) {
            self.assert_live();
        }
    }
}

/// An instance, and a group with so many CPUs that rests at the first pass without packets. Returns the pollers.
fn group_of(cpus: u16, member: bool) -> (Arc<World>, Vec<GroupPoller>) {
    let config = GroupConfig { rest_ns: Some(0), ..GroupConfig::default() };
    let group = Group::with_members_max(0, config, 1).expect("within the limits");
    let world = World::in_group(settings(0, 0), Some(Pollers { group, sleeps: Mutex::new([(false, false); 2]) }));
    let attach = |cpu| world.the_group().attach(cpu, &Cx::new(cpu, NOW)).expect("there is room");
    let pollers = (0..cpus).map(attach).collect();
    if member {
        world.enter();
    }
    (world, pollers)
}

fn model(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    explorer(preemptions).check(body);
}

#[test]
fn loom_group_enter_against_interrupt() {
    model(None, || {
        let (world, mut pollers) = group_of(1, false);
        let device = world.clone();
        let interrupt = thread::spawn(move || device.arrive(NOW));
        world.enter();
        interrupt.join().unwrap();
        world.assert_served(&mut pollers);
    });
}

#[test]
fn loom_group_enter_against_a_busy_poller() {
    model(Some(3), || {
        let (world, mut pollers) = group_of(1, false);
        let app = world.clone();
        let busy = thread::spawn(move || app.busy(2, true));
        world.arrived.fetch_add(1, Loom::Relaxed);
        world.line(|line| line.pending = true);
        world.enter();
        busy.join().unwrap();
        if !world.napi.snapshot().has(state::GROUPED) {
            world.unmask(NOW);
        }
        world.assert_served(&mut pollers);
    });
}

#[test]
fn loom_group_the_last_poller_rests_against_an_arrival() {
    model(Some(3), || {
        let (world, mut pollers) = group_of(1, true);
        let device = world.clone();
        let arrival = thread::spawn(move || device.arrive(NOW));
        for _ in 0..3 {
            world.step(&mut pollers[0], NOW + 1_000);
        }
        arrival.join().unwrap();
        world.assert_served(&mut pollers);
    });
}

/// An interrupt that was in flight when its line was masked, without anything that a hint would show.
#[test]
fn loom_group_rest_against_a_raise_without_a_hint() {
    model(Some(3), || {
        let (world, mut pollers) = group_of(1, true);
        world.step(&mut pollers[0], NOW);
        let before = world.owned_in_truth.load(Loom::Relaxed);
        let device = world.clone();
        let raise = thread::spawn(move || device.irq(NOW));
        world.step(&mut pollers[0], NOW + 1_000);
        world.step(&mut pollers[0], NOW + 2_000);
        raise.join().unwrap();
        world.assert_served(&mut pollers);
        assert!(world.owned_in_truth.load(Loom::Relaxed) > before, "nobody visited what was raised");
    });
}

#[test]
fn loom_group_a_member_enters_while_the_last_poller_rests() {
    model(Some(3), || {
        let (world, mut pollers) = group_of(1, true);
        world.step(&mut pollers[0], NOW);
        world.remove();
        let operator = world.clone();
        let enters = thread::spawn(move || {
            operator.arrived.fetch_add(1, Loom::Relaxed);
            operator.line(|line| line.masked = true);
            operator.enter();
        });
        world.step(&mut pollers[0], NOW + 1_000);
        world.step(&mut pollers[0], NOW + 2_000);
        enters.join().unwrap();
        world.assert_served(&mut pollers);
    });
}

#[test]
fn loom_group_two_claims_against_remove() {
    model(Some(2), || {
        let (world, mut pollers) = group_of(2, true);
        world.arrived.fetch_add(3, Loom::Relaxed);
        // The second poller was woken as well.
        assert!(world.the_group().watch.wake(1));
        let mut second = pollers.pop().expect("there are two");
        let other = world.clone();
        let stray = thread::spawn(move || {
            other.step(&mut second, NOW);
            second
        });
        let operator = world.clone();
        let removal = thread::spawn(move || operator.remove());
        world.step(&mut pollers[0], NOW);
        pollers.push(stray.join().unwrap());
        removal.join().unwrap();
        assert!(!world.napi.snapshot().has(state::GROUPED), "the remove never ends");
        world.assert_served(&mut pollers);
    });
}

/// What only a claim's holder touches is ordered by the claim alone.
#[test]
fn loom_group_holders_of_a_claim_in_a_row() {
    model(None, || {
        let (world, pollers) = group_of(2, true);
        let visit = |world: &World, slot| {
            let claim = &world.the_group().members[usize::from(MEMBER)].claim;
            if claim.take(Group::claimant(slot)) {
                world.own();
                assert_eq!(claim.release(Group::claimant(slot)), Released::Free);
            }
        };
        let other = world.clone();
        let second = thread::spawn(move || visit(&other, 1));
        visit(&world, 0);
        second.join().unwrap();
        let (seen, truth) = (world.owned.load(Loom::Relaxed), world.owned_in_truth.load(Loom::Relaxed));
        assert_eq!(seen, truth, "I9: two who polled in a row are not ordered");
        drop(pollers);
    });
}

#[test]
fn loom_group_two_pollers_of_which_one_stays() {
    model(None, || {
        let (world, pollers) = group_of(2, true);
        assert!(world.the_group().watch.wake(1));
        let other = world.clone();
        let parks = thread::spawn(move || other.the_group().watch.park(1));
        let first = world.the_group().watch.park(0);
        let second = parks.join().unwrap();
        assert!(first != second, "I13: one parks, and the other stays");
        world.the_group().census().check().expect("somebody watches");
        drop(pollers);
    });
}

#[test]
fn loom_group_park_against_wake_and_detach() {
    model(None, || {
        let (world, pollers) = group_of(2, true);
        assert!(world.the_group().watch.wake(1));
        let other = world.clone();
        let goes = thread::spawn(move || {
            // It drains here: nobody sleeps who would have to be woken for it.
            let _ = other.the_group().detach(0).expect("there is another CPU");
            other.the_group().drained(0, &Cx::new(0, NOW))
        });
        let parked = world.the_group().watch.park(1);
        let heir = goes.join().unwrap();
        assert_eq!(heir.is_some(), parked, "whoever parked is the heir, and is woken");
        let census = world.the_group().census();
        assert_eq!((census.awake, census.attached), (1, 1));
        drop(pollers);
    });
}

#[test]
fn loom_group_detach_against_claim() {
    model(Some(2), || {
        let (world, mut pollers) = group_of(2, true);
        world.arrived.fetch_add(1, Loom::Relaxed);
        let operator = world.clone();
        let detach = thread::spawn(move || {
            let wake = operator.the_group().detach(0).expect("there is another CPU");
            operator.wake(wake);
        });
        for _ in 0..3 {
            world.step(&mut pollers[0], NOW);
        }
        detach.join().unwrap();
        while world.step(&mut pollers[0], NOW) {}
        world.assert_served(&mut pollers[1..]);
    });
}

#[test]
fn loom_group_disable_against_claim() {
    model(Some(3), || {
        let (world, mut pollers) = group_of(1, true);
        world.arrived.fetch_add(1, Loom::Relaxed);
        let operator = world.clone();
        let disable = thread::spawn(move || {
            operator.napi.disable_begin();
            operator.remove();
        });
        world.step(&mut pollers[0], NOW);
        world.step(&mut pollers[0], NOW);
        disable.join().unwrap();
        assert_eq!(world.napi.disable_claim(), DisableClaim::Claimed, "nobody has it any more");
        let (seen, truth) = (world.owned.load(Loom::Relaxed), world.owned_in_truth.load(Loom::Relaxed));
        assert_eq!(seen, truth, "I9: two who polled in a row are not ordered");
    });
}
