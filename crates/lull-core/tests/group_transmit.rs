//! Transmit queues in busy-polling CPU groups (§16): who sends, when doorbells ring, and that nothing is left behind.
#![cfg(not(loom))]

mod group_world;

use group_world::{Did, MS, US, World};
use lull_core::NapiSettings;
use lull_core::group::{Budget, GroupConfig};

fn rests(rest_ns: u64) -> GroupConfig {
    GroupConfig { rest_ns: Some(rest_ns), ..GroupConfig::default() }
}

/// Queue 0 receives, queue 1 transmits, on so many slots.
fn world(config: GroupConfig, cpus: u16, slots: u32) -> World {
    let mut world = World::new(config, 2, NapiSettings::default());
    world.transmits(1, slots);
    (0..cpus).for_each(|cpu| world.attach(cpu));
    world.enter(0).unwrap();
    world.enter(1).unwrap();
    world
}

#[test]
fn a_sender_leaves_its_frames_and_the_group_sends_them() {
    let mut world = world(GroupConfig::default(), 1, 256);
    (0..100).for_each(|_| world.enqueue(1, 0));
    assert_eq!(world.tx(1).waiting(), 100, "no sender runs beside a group");
    world.run_until("all rung for", |world| {
        world.group.unrung(1) == 0 && world.queues[1].tx.as_ref().unwrap().waiting() == 0
    });
    let doorbells = world.tx(1).doorbells.clone();
    assert_eq!(doorbells.iter().sum::<u32>(), 100);
    assert!(doorbells.len() <= 3, "visits as long as a doorbell may wait: {doorbells:?}");
}

#[test]
fn frames_that_are_far_apart_wait_for_two_empty_drains_and_no_longer() {
    let mut world = world(GroupConfig::default(), 1, 256);
    for frame in 1..=20 {
        world.now_ns += 10 * US;
        world.enqueue(1, 0);
        let began_ns = world.now_ns;
        world.run_until("rung for", |world| world.queues[1].tx.as_ref().unwrap().doorbells.len() == frame);
        assert!(world.now_ns - began_ns <= 2 * US, "{} ns", world.now_ns - began_ns);
    }
}

/// A pass takes a fifth of what lies between two frames. Counted, not timed.
#[test]
fn a_sender_that_is_busy_has_a_doorbell_for_many_frames() {
    for (gap_ns, most) in [(200, 0.05), (500, 0.11), (1_000, 0.21), (2_000, 0.4)] {
        let mut world = world(GroupConfig::default(), 1, 100_000);
        world.run_until("the first visits", |world| !world.queues[0].polls.is_empty());
        let (mut next_ns, mut frames) = (world.now_ns, 0);
        while frames < 1_000 {
            while next_ns <= world.now_ns {
                world.enqueue(1, 0);
                (next_ns, frames) = (next_ns + gap_ns, frames + 1);
            }
            // The age is checked after each step.
            world.step(0);
        }
        let doorbells = world.tx(1).doorbells.len() as f64 / f64::from(frames);
        assert!(doorbells <= most, "{doorbells} a frame at {gap_ns} ns");
    }
}

#[test]
fn a_busy_queue_beside_it_does_not_make_a_doorbell_late() {
    let mut world = world(GroupConfig::default(), 1, 256);
    world.run_until("the first visits", |world| !world.queues[0].polls.is_empty());
    // The age is checked after each step.
    let held_ns = held_beside(&mut world, 100_000);
    assert!(held_ns <= 5 * US && world.queues[0].ring > 90_000, "{held_ns} ns");
}

/// Frames of a busy sender wait for the doorbell of queue 1, and queue 0 has so many packets. Returns how long the first of them
/// waited.
fn held_beside(world: &mut World, packets: u32) -> u64 {
    let rung = world.tx(1).doorbells.len();
    // Two within 5 us: the sender is busy, so that two empty passes ring for neither.
    for frame in 1..=2 {
        world.enqueue(1, 0);
        world.run_until("sent", |world| world.queues[1].tx.as_ref().unwrap().waiting() == 0);
        assert_eq!((world.tx(1).unrung(), world.tx(1).doorbells.len()), (frame, rung));
    }
    world.queues[0].ring = packets;
    world.run_until("rung for", |world| world.queues[1].tx.as_ref().unwrap().doorbells.len() > rung);
    *world.tx(1).held_ns.last().unwrap()
}

#[test]
fn a_doorbell_rings_before_a_visit_that_is_expected_to_take_too_long() {
    let mut world = world(GroupConfig::default(), 1, 256);
    for _ in 0..3 {
        // 8 us, and not the whole weight.
        world.queues[0].ring = 40;
        world.run_until("polled", |world| world.queues[0].ring == 0);
    }
    let held_ns = held_beside(&mut world, 40);
    assert!(held_ns < 5 * US, "{held_ns} ns");
    assert_eq!(world.queues[0].ring, 40, "the doorbell came first");
    world.run_until("polled", |world| world.queues[0].ring == 0);
    assert_eq!(world.polls_of(0).last(), Some(&40), "no visit is cut short once it has rung");
}

#[test]
fn a_visit_that_finds_more_than_those_before_ends_in_time_for_a_doorbell() {
    let mut world = world(GroupConfig::default(), 1, 256);
    for _ in 0..500 {
        world.queues[0].ring = 2;
        world.run_until("polled", |world| world.queues[0].ring == 0);
    }
    let held_ns = held_beside(&mut world, 64);
    assert!((4 * US..=5 * US).contains(&held_ns), "{held_ns} ns");
    let first = *world.polls_of(0).last().unwrap();
    assert!((10..=25).contains(&first), "{first} packets of 200 ns");
    world.run_until("polled", |world| world.queues[0].ring == 0);
    assert_eq!(world.polls_of(0).last(), Some(&(64 - first)), "no visit is cut short once it has rung");
}

#[test]
fn a_visit_that_sends_ends_in_time_for_its_own_doorbell() {
    let mut world = world(GroupConfig::default(), 1, 256);
    world.queues[1].packet_ns = 400;
    world.enqueue(1, 0);
    world.run_until("rung for", |world| world.queues[1].tx.as_ref().unwrap().doorbells.len() == 1);
    (0..64).for_each(|_| world.enqueue(1, 0));
    world.run_until("all rung for", |world| {
        world.queues[1].tx.as_ref().unwrap().waiting() == 0 && world.group.unrung(1) == 0
    });
    let tx = world.tx(1);
    assert_eq!(tx.doorbells.iter().sum::<u32>(), 65);
    assert!(tx.doorbells.iter().all(|frames| *frames <= 12), "5 us of 400 ns: {:?}", tx.doorbells);
    assert!(tx.held_ns.iter().all(|held_ns| *held_ns <= 5 * US), "{:?}", tx.held_ns);
}

/// A visit that ends for the sake of a doorbell has not filled the weight: four of them are less than one poller's work.
#[test]
fn visits_that_end_in_time_for_a_doorbell_ask_for_no_second_poller() {
    let mut world = world(GroupConfig::default(), 2, 1_024);
    world.queues[1].packet_ns = 400;
    world.enqueue(1, 0);
    world.run_until("rung for", |world| world.queues[1].tx.as_ref().unwrap().doorbells.len() == 1);
    let send = |world: &mut World, frames: u32| {
        (0..frames).for_each(|_| world.enqueue(1, 0));
        world.run_until("all sent", |world| world.queues[1].tx.as_ref().unwrap().waiting() == 0);
        world.run_until("a pass", |world| world.group.unrung(1) == 0);
        world.pollers[1].wakes.len()
    };
    // Ten visits or more, each of which leaves some behind; of the weight that is two.
    assert_eq!(send(&mut world, 128), 0, "{:?}", world.tx(1).doorbells);
    assert_eq!(send(&mut world, 512), 1, "eight times its weight waits");
}

/// Whatever visits take, and whatever comes.
#[test]
fn random_visits_hold_no_doorbell_back_for_too_long() {
    let (mut rung, mut by_age) = (0, 0);
    for seed in 1..=300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (receive, transmit) = (1 + random(4) as usize, 1 + random(2) as usize);
        let mut world = World::new(GroupConfig::default(), receive + transmit, NapiSettings::default());
        (receive..receive + transmit).for_each(|queue| world.transmits(queue, 64 + random(200) as u32));
        for queue in 0..receive + transmit {
            world.queues[queue].visit_ns = random(300);
            world.queues[queue].packet_ns = 20 + random(if queue < receive { 900 } else { 130 });
        }
        world.attach(0);
        (0..receive + transmit).for_each(|queue| world.enter_with(queue, 1 + random(64) as u32).unwrap());
        let (busy, burst) = (1 + random(30), 1 + random(64));
        for _ in 0..2_000 {
            let queue = random((receive + transmit) as u64) as usize;
            if random(busy) == 0 {
                match queue {
                    _ if queue < receive => world.queues[queue].ring += random(burst) as u32,
                    _ => (0..=random(4)).for_each(|_| world.enqueue(queue, 0)),
                }
            }
            // The age is checked after each step.
            world.step(0);
            (receive..receive + transmit).for_each(|queue| world.wire(queue, 64));
        }
        for queue in receive..receive + transmit {
            rung += world.tx(queue).held_ns.len();
            by_age += world.tx(queue).held_ns.iter().filter(|held_ns| **held_ns > 3 * US).count();
        }
    }
    // What is checked does happen.
    assert!(rung > 10_000 && by_age > 1_000, "{rung} doorbells, {by_age} of them late");
}

/// One poller answers for a doorbell while another is in the middle of a visit of that queue which sends nothing.
#[test]
fn a_doorbell_that_is_due_during_anothers_visit_rings_after_it() {
    for due_during in [true, false] {
        let mut world = world(GroupConfig::default(), 2, 256);
        world.queues[0].ring = 100_000;
        world.run_until("two pollers", |world| world.awake().len() == 2);
        world.queues[0].ring = 0;
        // Whoever is at home with the queue sends a frame.
        world.enqueue(1, 0);
        let sent = |world: &mut World, index| matches!(world.step(index), Did::Sent { queue: 1, frames: 1 });
        let home = (0..100).map(|step| step % 2).find(|index| sent(&mut world, *index)).expect("somebody sends it");
        // A frame that has to wait takes the other there, which has done nothing else since.
        let until_ns = world.now_ns + MS;
        world.enqueue(1, until_ns);
        while world.begin(1 - home) != 1 {
            world.finish(1 - home);
        }
        if due_during {
            world.now_ns += 5 * US;
            assert_ne!(world.step(home), Did::Rang { queue: 1, frames: 1 }, "the other has the claim");
        }
        assert_eq!(world.finish(1 - home), Did::Sent { queue: 1, frames: 0 });
        let began_ns = world.now_ns;
        world.run_until("rung for", |world| world.group.unrung(1) == 0);
        assert!(world.now_ns - began_ns <= 5 * US, "{} ns after the visit", world.now_ns - began_ns);
    }
}

#[test]
fn whoever_runs_softirqs_rings_first() {
    let mut world = world(GroupConfig::default(), 1, 256);
    world.run_until("the first visits", |world| !world.queues[0].polls.is_empty());
    world.enqueue(1, 0);
    let sent = (0..50).any(|_| matches!(world.step(0), Did::Sent { frames: 1, .. }));
    assert!(sent);
    // They may take milliseconds.
    assert_eq!(world.step_with(0, true, false), Did::Rang { queue: 1, frames: 1 });
    assert_eq!((world.step_with(0, true, false), world.pollers[0].softirqs), (Did::Other, 1));
}

#[test]
fn whoever_rests_rings_first_and_a_frame_that_comes_ends_the_rest() {
    let mut world = world(rests(0), 1, 256);
    world.run_until("a rest", World::is_at_rest);
    for frames in 1..=10 {
        world.enqueue(1, 0);
        assert!(!world.group.census().resting, "the sender ends the rest");
        world.run_until("a rest", World::is_at_rest);
        let tx = world.tx(1);
        assert_eq!((tx.waiting(), tx.unrung(), tx.doorbells.len()), (0, 0, frames));
    }
}

#[test]
fn a_poller_that_yields_or_spends_its_budget_rings_first() {
    let total = Budget { total_percent: Some(1), ..Budget::default() };
    for config in [GroupConfig::default(), GroupConfig { budget: total, ..GroupConfig::default() }] {
        let mut world = world(config, 1, 256);
        world.run_until("the first visits", |world| !world.queues[0].polls.is_empty());
        world.enqueue(1, 0);
        let sent = (0..50).any(|_| matches!(world.step(0), Did::Sent { frames: 1, .. }));
        assert!(sent);
        world.now_ns += 100;
        if config.budget == total {
            world.now_ns += 10 * MS / 50;
        }
        let resched = config.budget != total;
        let did: Vec<_> = (0..3).map(|_| world.step_with(0, false, resched)).collect();
        assert!(did.contains(&Did::Rang { queue: 1, frames: 1 }), "{did:?}");
        assert_eq!(world.tx(1).unrung(), 0);
    }
}

#[test]
fn a_detached_poller_leaves_no_doorbell_behind_and_a_member_that_leaves_neither() {
    for leaves in [false, true] {
        let mut world = world(GroupConfig::default(), 2, 256);
        world.run_until("the first visits", |world| !world.queues[0].polls.is_empty());
        for _ in 0..50 {
            world.enqueue(1, 0);
            let sender = (0..200)
                .find_map(|step| matches!(world.step(step % 2), Did::Sent { frames: 1, .. }).then_some(step % 2));
            let sender = sender.expect("somebody sends it");
            if leaves {
                while !world.remove(1) {
                    world.step(sender);
                }
                assert_eq!((world.tx(1).unrung(), world.tx(1).waiting()), (0, 0));
                world.enter(1).unwrap();
            } else {
                let cpu = world.pollers[sender].cpu;
                world.detach(cpu);
                assert_eq!(world.tx(1).unrung(), 0, "I14");
                break;
            }
        }
    }
}

#[test]
fn a_full_ring_is_rung_for_at_once_and_its_room_is_waited_for_at_rest_as_well() {
    let mut world = world(rests(20 * US), 1, 8);
    (0..30).for_each(|_| world.enqueue(1, 0));
    let mut sent = 0;
    while sent < 30 {
        world.run_until("a rest", World::is_at_rest);
        assert!(world.tx(1).unrung() == 0 && world.tx(1).room() == 0 || sent + 8 >= 30);
        world.wire(1, 8);
        assert!(!world.group.census().resting || world.tx(1).waiting() == 0, "room ends the rest");
        sent = world.tx(1).sent;
    }
    assert_eq!(world.tx(1).waiting(), 0);
}

#[test]
fn a_frame_that_may_not_leave_yet_bounds_the_rest() {
    let mut world = world(rests(20 * US), 1, 8);
    let due_ns = world.now_ns + MS;
    world.enqueue(1, due_ns);
    world.run_until("a rest", World::is_at_rest);
    world.run_until("sent", |world| world.queues[1].tx.as_ref().unwrap().waiting() == 0);
    assert!((due_ns..due_ns + 50 * US).contains(&world.now_ns), "{} after it was due", world.now_ns - due_ns);
}

#[test]
fn a_member_that_left_is_run_by_its_senders_and_one_that_enters_is_not() {
    let mut world = world(GroupConfig::default(), 1, 256);
    world.run_until("the first visits", |world| !world.queues[0].polls.is_empty());
    // What senders left to the group is sent as it lets go.
    (0..3).for_each(|_| world.enqueue(1, 0));
    assert!(world.remove(1));
    assert_eq!((world.tx(1).waiting(), world.tx(1).unrung()), (0, 0));
    world.enqueue(1, 0);
    assert_eq!(world.tx(1).waiting(), 0, "the sender runs");
    world.enter(1).unwrap();
    world.enqueue(1, 0);
    assert_eq!(world.tx(1).waiting(), 1);
}

#[test]
fn a_flooded_queue_does_not_starve_another() {
    let mut world = World::new(GroupConfig::default(), 3, NapiSettings::default());
    world.transmits(1, 100_000);
    world.transmits(2, 100_000);
    world.attach(0);
    (0..3).for_each(|queue| world.enter(queue).unwrap());
    (0..10_000).for_each(|_| world.enqueue(1, 0));
    for _ in 0..20 {
        world.enqueue(2, 0);
        let began_ns = world.now_ns;
        world.run_until("the other's frame", |world| world.queues[2].tx.as_ref().unwrap().waiting() == 0);
        // I12: one visit of the flooded one, and the pass around it.
        assert!(world.now_ns - began_ns <= 2 * 64 * 100 + 3 * US, "{}", world.now_ns - began_ns);
    }
    assert!(world.tx(1).waiting() > 7_000);
}

/// Whatever comes in whatever order, every frame arrives.
#[test]
fn random_walks_with_transmit_queues_keep_the_invariants_and_lose_nothing() {
    for seed in 0..300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let rest_ns = [None, Some(0), Some(30 * US)][random(3) as usize];
        let config = GroupConfig { rest_ns, ..GroupConfig::default() };
        let mut world = World::new(config, 4, NapiSettings::default());
        (2..4).for_each(|queue| {
            world.transmits(queue, 4 + random(60) as u32);
            // Senders tell the group; a hint only brings visits forward.
            world.queues[queue].hints = random(2) == 0;
        });
        (0..2).for_each(|cpu| world.attach(cpu));
        (0..4).for_each(|queue| world.enter(queue).unwrap());
        for _ in 0..2_000 {
            let (queue, tx) = (random(4) as usize, 2 + random(2) as usize);
            match random(24) {
                0..=3 => {
                    let not_before_ns = if random(4) == 0 { world.now_ns + random(100_000) } else { 0 };
                    (0..=random(40)).for_each(|_| world.enqueue(tx, not_before_ns));
                }
                4..=5 => world.wire(tx, random(40) as u32),
                6 => world.packets((queue % 2).min(1), 1 + random(100) as u32),
                7 if random(4) == 0 => {
                    if world.queues[queue].slot.is_some() {
                        let _ = world.remove(queue);
                    } else {
                        let _ = world.enter(queue);
                    }
                }
                8 if random(4) == 0 => {
                    let attached: Vec<u16> = world.group.pollers().iter().map(|poller| poller.cpu).collect();
                    match attached[..] {
                        [cpu, _, ..] if random(2) == 0 => world.detach(cpu),
                        _ => {
                            let free = (0..9).find(|cpu| !attached.contains(cpu)).expect("nine are enough");
                            if attached.len() < 4 {
                                world.attach(free);
                            }
                        }
                    }
                }
                9 => {
                    world.now_ns +=
                        random(50_000) * u64::from(world.pollers.iter().all(|poller| poller.until_ns.is_some()))
                }
                10 => world.transmit_softirq(tx),
                _ => {
                    let index = random(world.pollers.len() as u64) as usize;
                    world.halts = random(4) == 0;
                    let _ = world.step_with(index, random(8) == 0, random(16) == 0);
                }
            }
        }
        world.halts = false;
        let settled = |world: &World| {
            world.queues.iter().filter_map(|queue| queue.tx.as_ref()).all(|tx| tx.waiting() == 0 && tx.unrung() == 0)
        };
        for _ in 0..10_000 {
            if settled(&world) {
                break;
            }
            for tx in 2..4 {
                world.wire(tx, 64);
                world.transmit_softirq(tx);
            }
            let mut moved = false;
            (0..world.pollers.len()).for_each(|index| moved |= world.step(index) != Did::Sleeps);
            if !moved {
                world.now_ns += 5 * US;
            }
        }
        assert!(settled(&world), "I15: seed {seed}: frames that nobody sends");
    }
}
