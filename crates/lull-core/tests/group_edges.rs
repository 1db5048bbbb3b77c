//! The numbered edge cases of busy-polling CPU groups (§15), one test each, and what bounds their pollers. Those that take
//! threads, sockets or an operator's commands are in `lull-host/tests/groups.rs`.
#![cfg(not(loom))]

mod group_world;

use group_world::{Did, MS, PACKET_NS, US, World};
use lull_core::group::{Budget, EnterRefused, GroupConfig};
use lull_core::{
    AfterResume, BusyEnd, BusyLoop, BusyPlan, BusyRound, Completion, NapiSettings, Polled, Schedule, state,
};

fn rests(rest_ns: u64) -> GroupConfig {
    GroupConfig { rest_ns: Some(rest_ns), ..GroupConfig::default() }
}

fn never_rests() -> GroupConfig {
    GroupConfig::default()
}

const SUSPENDING: NapiSettings = NapiSettings {
    defer_hard_irqs: 2,
    gro_flush_timeout_ns: 20 * US,
    irq_suspend_timeout_ns: 20 * MS,
    threaded: lull_core::Threaded::Off,
    unpolled: lull_core::Unpolled::Deferral,
};

/// A queue was delivered by softirq, and its application suspends it while it computes; packets wait.
fn suspended(world: &mut World, queue: usize, waiting: u32) {
    world.packets(queue, 1);
    world.softirq(queue);
    let cx = world.cx(1);
    assert!(world.queues[queue].napi.suspend(&cx).is_some());
    assert!(world.queues[queue].masked);
    world.queues[queue].ring += waiting;
}

#[test]
fn edge_g01_a_member_that_enters_suspended_loses_its_timer_and_its_first_visit_polls_what_waited() {
    let mut world = World::new(never_rests(), 1, SUSPENDING);
    suspended(&mut world, 0, 3);
    world.queues[0].hints = true;
    world.attach(0);
    world.enter(0).unwrap();
    assert_eq!(world.queues[0].napi.timer().pending(), None);
    world.run_until("the first visit", |world| world.queues[0].ring == 0);
    assert_eq!(world.polls_of(0), [3]);
}

#[test]
fn edge_g02_a_member_that_leaves_full_is_parked_with_its_timer_or_handed_to_softirq() {
    for (settings, timer) in [(SUSPENDING, true), (NapiSettings::default(), false)] {
        let mut world = World::new(never_rests(), 1, settings);
        world.attach(0);
        world.enter(0).unwrap();
        world.run_until("the first visit", |world| !world.queues[0].polls.is_empty());
        world.packets(0, 200);
        assert!(world.remove(0));
        assert_eq!(world.polls_of(0), [0, 64], "its last poll takes a whole budget");
        assert_eq!(world.queues[0].napi.timer().pending().is_some(), timer);
        assert_eq!(world.queues[0].softirq.len(), usize::from(!timer));
        assert!(world.queues[0].masked && !world.queues[0].napi.snapshot().any(state::GROUPED | state::IN_BUSY_POLL));
        if !timer {
            world.softirq(0);
            assert_eq!((world.queues[0].ring, world.queues[0].masked), (0, false));
        }
    }
}

#[test]
fn edge_g03_an_application_that_prefers_to_poll_a_member_loses_and_neither_resumes_nor_suspends_it() {
    let mut world = World::new(never_rests(), 1, SUSPENDING);
    world.attach(0);
    world.enter(0).unwrap();
    world.run_until("the first visit", |world| !world.queues[0].polls.is_empty());
    let napi = &world.queues[0].napi;
    let plan = BusyPlan { napi_id: napi.id(), prefer: true, budget: 8, end: BusyEnd::OneRound, catch_up: false };
    let mut busy = BusyLoop::begin(napi, &plan, &world.cx(1));
    assert_eq!(busy.round(napi, &world.cx(1)), BusyRound::Lost);
    assert!(busy.stop(napi, &world.cx(1)).is_none());
    assert!(napi.resume_to(AfterResume::Deferral, &world.cx(1)).is_none());
    assert!(napi.snapshot().has(state::MISSED));
    let deadline_ns = napi.suspend(&world.cx(1)).unwrap();
    assert!(napi.timer_expired(&lull_core::Cx::new(1, deadline_ns)).is_none(), "swallowed");
    // None of it keeps the group from serving, nor the member from leaving.
    world.packets(0, 2);
    world.run_until("another visit", |world| world.queues[0].ring == 0);
    assert!(world.remove(0));
    assert!(!world.queues[0].napi.snapshot().any(state::SCHED | state::MISSED | state::GROUPED));
}

#[test]
fn edge_g05_threads_and_groups_exclude_each_other() {
    let mut world = World::new(never_rests(), 1, NapiSettings::default());
    world.attach(0);
    world.queues[0].napi.threaded_on(false);
    assert_eq!(world.enter(0), Err(EnterRefused::Threaded));
    let _ = world.queues[0].napi.threaded_off();
    world.enter(0).unwrap();
    let napi = &world.queues[0].napi;
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| napi.threaded_on(true)));
    assert!(panics.is_err(), "I10: whoever asks first is refused by the executor");
}

#[test]
fn edge_g07_two_groups_want_one_instance() {
    let mut world = World::new(never_rests(), 1, NapiSettings::default());
    world.attach(0);
    world.enter(0).unwrap();
    let other = lull_core::Group::new(1, never_rests()).unwrap();
    let _poller = other.attach(5, &world.cx(5)).unwrap();
    assert_eq!(other.enter(&world.queues[0].napi, 64, &world.cx(5)), Err(EnterRefused::Grouped));
    assert_eq!(other.census().members, 0);
}

#[test]
fn edge_g08_a_disable_waits_for_one_visit() {
    let mut world = World::with(never_rests(), 1, 1);
    world.packets(0, 5);
    world.begin(0);
    world.queues[0].napi.disable_begin();
    assert!(!world.remove(0), "the poller serves it just now");
    assert_eq!(world.queues[0].napi.disable_claim(), lull_core::DisableClaim::Owned);
    world.finish(0);
    world.check();
    assert!(world.queues[0].slot.is_none(), "it left at the end of the visit");
    assert_eq!(world.queues[0].napi.disable_claim(), lull_core::DisableClaim::Claimed);
}

/// The operator finds the claim held; the holder's giving back is refused, and it leaves.
#[test]
fn a_member_that_is_removed_during_a_visit_leaves_at_its_end() {
    let mut world = World::with(never_rests(), 2, 1);
    world.packets(1, 5);
    let served = world.begin(0);
    assert!(!world.remove(served), "the poller serves it just now");
    world.finish(0);
    world.check();
    assert!(world.queues[served].slot.is_none());
    assert_eq!(world.group.census().members, 1);
}

#[test]
fn edge_g09_a_device_that_gives_no_hint_is_polled_in_every_pass() {
    let mut world = World::with(never_rests(), 2, 1);
    world.queues[0].hints = false;
    world.run_until("ten passes", |world| world.queues[0].polls.len() == 10);
    assert_eq!(world.polls_of(1), [0], "one that gives a hint is polled when it enters, and then when it says so");
}

#[test]
fn edge_g11_a_shard_whose_lock_is_held_keeps_nobody_waiting_and_is_visited_again() {
    let mut world = World::with(rests(50 * US), 2, 1);
    world.run_until("a rest", World::is_at_rest);
    world.packets(0, 4);
    world.packets(1, 4);
    let held = world.begin(0);
    world.find_locked(0);
    world.run_until("the other one's visit", |world| world.queues[1 - held].ring == 0);
    // As long as it is held the group does not rest, and lets others run, one of whom may have the lock.
    let (yields, busy_ns) = (world.group.pollers()[0].stats.yields, world.group.pollers()[0].stats.busy_ns);
    for _ in 0..100 {
        world.begin(0);
        world.now_ns += 50 * US;
        world.find_locked(0);
    }
    assert!(!world.group.census().resting);
    let stats = world.group.pollers()[0].stats;
    assert!(stats.yields >= yields + 99 && stats.busy_ns <= busy_ns + 1_000, "{stats:?}");
    world.run_until("its visit", |world| world.queues[held].ring == 0);
}

#[test]
fn edge_g12_one_more_poller_is_woken_only_after_the_hysteresis_if_the_first_does_not_come() {
    let mut world = World::with(never_rests(), 8, 4);
    (0..8).for_each(|queue| world.queues[queue].ring = 1_000_000);
    // Only the first poller runs; those that it wakes have their cores taken.
    let mut woken = Vec::new();
    while woken.len() < 3 && world.now_ns < 200 * MS {
        let _ = world.step(0);
        woken = world.pollers[1..].iter().flat_map(|poller| poller.wakes.clone()).collect();
    }
    woken.sort_unstable();
    assert_eq!(woken.len(), 3, "pressure persists, so the next ones are woken");
    for pair in woken.windows(2) {
        assert!(pair[1] - pair[0] >= 128 * US, "a window apart at least: {woken:?}");
    }
}

// ---- what bounds a group ----

/// I12: a flooded member of eight does not keep the others for longer than the sum of the others' weights.
#[test]
fn a_flooded_member_delays_the_others_by_a_visit_each_and_no_more() {
    let mut world = World::with(never_rests(), 8, 1);
    world.run_until("first visits", |world| world.queues.iter().all(|queue| !queue.polls.is_empty()));
    for round in 0..200 {
        world.queues[0].ring = 10_000;
        let victim = 1 + round % 7;
        let (arrived_ns, before) = (world.now_ns, world.queues[victim].polls.len());
        world.packets(victim, 1);
        world.run_until("its visit", |world| world.queues[victim].polls.len() > before);
        let waited_ns = world.queues[victim].polls[before].0 - arrived_ns;
        assert!(waited_ns <= (64 + 2) * PACKET_NS, "{waited_ns} ns");
    }
}

#[test]
fn members_that_are_always_full_share_by_their_weights() {
    let mut world = World::new(never_rests(), 3, NapiSettings::default());
    world.attach(0);
    for (queue, weight) in [(0, 64), (1, 16), (2, 1)] {
        world.enter_with(queue, weight).unwrap();
    }
    (0..3).for_each(|queue| world.queues[queue].ring = 1_000_000);
    world.run_until("a hundred visits", |world| world.queues[0].polls.len() == 100);
    let packets: Vec<u32> = (0..3).map(|queue| world.polls_of(queue).iter().sum()).collect();
    assert!(
        packets[0] == 6_400 && (1_584..=1_600).contains(&packets[1]) && (99..=100).contains(&packets[2]),
        "{packets:?}"
    );
}

/// I12 with a home that is held up in the middle of a visit: another poller comes by.
#[test]
fn a_stalled_poller_is_worked_around_by_stray_visits_and_is_seen() {
    let mut world = World::with(never_rests(), 8, 2);
    assert_eq!(world.awake(), [0]);
    // Both awake: pressure for a while.
    (0..8).for_each(|queue| world.queues[queue].ring = 20_000);
    world.run_until("a second poller", |world| world.awake().len() == 2);
    world.run_until("quiet", |world| world.queues.iter().all(|queue| queue.ring == 0) && world.awake().len() == 2);
    // Poller 0 is stopped in a visit to one of its members.
    let stuck = loop {
        (0..8).for_each(|queue| world.queues[queue].ring += 1);
        let stuck = world.begin(0);
        if world.awake().len() == 2 {
            break stuck;
        }
        world.finish(0);
    };
    let stopped_ns = world.now_ns;
    let others = |world: &World| (0..8).filter(|queue| *queue != stuck).all(|queue| world.queues[queue].ring == 0);
    while !others(&world) {
        assert!(world.now_ns - stopped_ns < MS, "the other poller serves all members but the one that is held");
        assert_ne!(world.step(1), Did::Sleeps, "it does not park beside one that does not run");
    }
    assert_eq!(world.queues[stuck].ring, 1);
    while world.now_ns - stopped_ns < 2 * MS {
        assert_ne!(world.step(1), Did::Sleeps, "it does not park beside one that does not run");
    }
    let stats = world.group.pollers()[1].stats;
    assert!(stats.strays > 0 && stats.stalls_seen == 1, "{stats:?}");
    world.finish(0);
    assert_eq!(world.queues[stuck].ring, 0);
}

/// I13: the last poller stays whoever wants to park, and no poller parks within 1 ms of being woken.
#[test]
fn pollers_come_under_pressure_and_park_when_it_is_over_but_for_one() {
    let mut world = World::with(never_rests(), 8, 4);
    (0..8).for_each(|queue| world.queues[queue].ring = 100_000);
    world.run_until("four pollers", |world| world.awake().len() == 4);
    world.run_until("the end of the pressure", |world| world.queues.iter().all(|queue| queue.ring == 0));
    world.run_until("one poller", |world| world.awake().len() == 1);
    let last = world.awake();
    for turn in 0..200_000 {
        let _ = world.step(turn % 4);
        assert_eq!(world.awake(), last);
    }
    for poller in &world.pollers {
        // The first park of each is its beginning.
        for park in poller.parks.iter().skip(1) {
            assert!(
                poller.wakes.iter().all(|wake| park < wake || park - wake >= MS),
                "{:?} {:?}",
                poller.wakes,
                poller.parks
            );
        }
    }
}

#[test]
fn no_more_pollers_are_awake_than_there_are_members() {
    let mut world = World::with(never_rests(), 1, 3);
    world.queues[0].ring = 1_000_000;
    for turn in 0..90_000 {
        let _ = world.step(turn % 3);
        assert_eq!(world.awake().len(), 1);
    }
}

/// I16: empty passes of a period are bounded by the budget, and what comes is served all the same.
#[test]
fn a_budget_bounds_empty_passes_and_the_group_rests_between_packets() {
    let budget = Budget { empty_percent: Some(10), total_percent: None };
    let mut world = World::with(GroupConfig { budget, ..never_rests() }, 4, 1);
    let began_ns = world.now_ns;
    for arrival in 0..400_u64 {
        world.packets((arrival % 4) as usize, 1);
        world.run_until("its visit", |world| world.queues.iter().all(|queue| queue.ring == 0));
        world.run_until("the next arrival", |world| world.now_ns >= began_ns + arrival * 250 * US);
    }
    let periods = (world.now_ns - began_ns).div_ceil(10 * MS) + 1;
    let spent_ns = world.group.pollers()[0].stats.empty_ns;
    assert!(spent_ns <= periods * MS + periods * 100 * US, "{spent_ns} ns in {periods} periods");
    assert!(spent_ns > 5 * MS, "and it is used: {spent_ns} ns");
}

#[test]
fn a_total_budget_that_is_spent_puts_packets_off_to_the_next_period() {
    let budget = Budget { empty_percent: None, total_percent: Some(20) };
    let mut world = World::with(GroupConfig { budget, ..never_rests() }, 1, 1);
    world.run_until("it sleeps", |world| world.pollers[0].until_ns.is_some());
    let until_ns = world.pollers[0].until_ns.unwrap();
    assert_eq!(until_ns % (10 * MS), 0);
    world.packets(0, 1);
    world.run_until("its visit", |world| world.queues[0].ring == 0);
    assert!(world.queues[0].polls.last().unwrap().0 >= until_ns);
}

#[test]
fn softirqs_come_between_visits_and_others_run_when_they_wait_or_a_tick_has_passed() {
    let mut world = World::with(never_rests(), 2, 1);
    world.queues[0].ring = 1_000_000;
    let (mut visits, mut turns) = (0, 0);
    while turns < 100 {
        match world.step_with(0, true, false) {
            Did::Polled { .. } => visits += 1,
            _ => turns += 1,
        }
    }
    assert!(world.pollers[0].softirqs >= 90 && visits >= 90, "in turn, and neither starves the other");
    let (yields, now_ns) = (world.pollers[0].yields, world.now_ns);
    while world.now_ns < now_ns + 20 * MS {
        let _ = world.step(0);
    }
    assert!((18..=21).contains(&(world.pollers[0].yields - yields)), "each millisecond");
    let yields = world.pollers[0].yields;
    assert_eq!(world.step_with(0, false, true), Did::Other);
    assert_eq!(world.pollers[0].yields, yields + 1, "at once, if a thread is known to wait");
}

/// I14 and I11: a poller that goes hands on what it watches, resting or not.
#[test]
fn a_cpu_that_is_detached_hands_its_watch_on() {
    for rest_ns in [None, Some(20 * US)] {
        let mut world = World::with(GroupConfig { rest_ns, ..never_rests() }, 3, 2);
        if rest_ns.is_some() {
            world.run_until("a rest", World::is_at_rest);
        }
        world.detach(0);
        assert_eq!(world.awake(), [1]);
        world.packets(2, 3);
        world.run_until("its visit", |world| world.queues[2].ring == 0);
        assert!(world.group.detach(1).is_err(), "the last one stays while there are members");
        (0..3).for_each(|queue| assert!(world.remove(queue)));
        world.detach(1);
        assert_eq!(world.group.census().awake, 0);
    }
}

#[test]
fn a_member_that_enters_a_group_that_rests_is_polled_and_rests_with_the_others() {
    let mut world = World::new(rests(20 * US), 2, NapiSettings::default());
    world.attach(0);
    world.enter(0).unwrap();
    world.run_until("a rest", World::is_at_rest);
    // Owned by softirq: it is asked to yield, and enters when it has.
    let Schedule::Owned(owner) = world.queues[1].napi.schedule(&world.cx(0)) else { panic!("free") };
    world.queues[1].masked = true;
    assert_eq!(world.enter(1), Err(EnterRefused::Owned));
    assert!(world.queues[1].napi.snapshot().has(state::PREFER_BUSY_POLL));
    let polled = world.queues[1].napi.softirq_polled(owner, 1, false, &world.cx(0), |_| ());
    let Polled::Completed(Completion::Released(release)) = polled else { panic!("a short poll completes") };
    let _ = release.settle(&world.queues[1].napi, &world.cx(0));
    world.enter(1).unwrap();
    world.run_until("a rest", |world| world.is_at_rest() && !world.queues[1].masked);
    world.packets(1, 2);
    assert!(!world.group.census().resting, "its interrupt ends the rest");
    world.run_until("its visit", |world| world.queues[1].ring == 0);
    assert!(world.queues[1].masked, "and its visit masks it again");
}

/// An interrupt without frames, as for room in a transmit ring: the member is visited though its device says that nothing waits.
#[test]
fn a_raise_is_answered_by_a_visit_whatever_the_hint_says() {
    for rest_ns in [None, Some(20 * US)] {
        let mut world = World::with(GroupConfig { rest_ns, ..never_rests() }, 2, 1);
        world.run_until("first visits", |world| world.queues.iter().all(|queue| queue.polls.len() == 1));
        if rest_ns.is_some() {
            world.run_until("a rest", World::is_at_rest);
        }
        world.interrupt(1);
        world.run_until("a visit", |world| world.queues[1].polls.len() == 2);
        assert_eq!(world.polls_of(0), [0]);
    }
}

/// What a seed draws: arrivals, CPUs and queues that come and go, pollers that are stopped in the middle of a visit.
#[test]
fn random_walks_keep_the_invariants_and_lose_no_packet() {
    let mut seed = 0x1234_5678_9abc_def0_u64;
    let mut below = move |limit: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % limit
    };
    for walk in 0..300 {
        let rest_ns = [None, Some(10 * US), Some(100 * US)][walk % 3];
        let empty_percent = (walk % 4 == 0).then_some(5);
        let budget = Budget { empty_percent, total_percent: None };
        let mut world = World::new(GroupConfig { rest_ns, budget, ..never_rests() }, 6, NapiSettings::default());
        world.attach(0);
        for _ in 0..400 {
            let queue = below(6) as usize;
            match below(12) {
                0..=2 => world.packets(queue, below(100) as u32),
                3 if world.queues[queue].slot.is_none() => drop(world.enter(queue)),
                4 => drop(world.remove(queue)),
                5 => {
                    let cpu = below(5) as u16;
                    let is_there = world.group.pollers().iter().any(|poller| poller.cpu == cpu);
                    match (is_there, world.group.census()) {
                        (false, _) => world.attach(cpu),
                        (true, census) if census.attached > 1 || census.members == 0 => {
                            world.detach(cpu);
                            if world.group.census().attached == 0 {
                                world.attach(0);
                            }
                        }
                        _ => {}
                    }
                }
                6 => world.interrupt(queue),
                7 => (0..6).for_each(|queue| world.softirq(queue)),
                _ => {
                    for _ in 0..below(60) {
                        let poller = below(world.pollers.len() as u64) as usize;
                        if world.step(poller) == Did::Sleeps {
                            world.now_ns += below(50) * US;
                        }
                    }
                }
            }
            world.check();
        }
        world.run_until("everything to be delivered", |world| {
            let members = |queue: &group_world::Queue| queue.slot.is_none() || queue.ring == 0;
            world.queues.iter().all(members)
        });
        for queue in 0..6 {
            assert!(world.remove(queue));
            world.softirq(queue);
            assert_eq!(world.queues[queue].ring, 0, "walk {walk}");
        }
    }
}
