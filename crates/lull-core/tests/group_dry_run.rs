//! Dry runs of a group's pollers (§15): when they are made, of whom, and that they change nothing. That a walk leaves the
//! instance as it was, [`World`] asserts at each.
#![cfg(not(loom))]

mod group_world;

use group_world::{Did, MS, US, World};
use lull_core::NapiSettings;
use lull_core::group::poller::dry_run::{DRY_RUN_AFTER_NS, DRY_RUN_EVERY_NS};
use lull_core::group::{Budget, GroupConfig};

fn dry() -> GroupConfig {
    GroupConfig { dry_run: true, ..GroupConfig::default() }
}

fn run_for(world: &mut World, ns: u64) {
    let until_ns = world.now_ns + ns;
    world.run_until("the time", |world| world.now_ns >= until_ns);
}

fn walks(world: &World) -> Vec<u64> {
    let mut walks: Vec<u64> = world.queues.iter().flat_map(|queue| queue.walks.iter().copied()).collect();
    walks.sort_unstable();
    walks
}

#[test]
fn nobody_walks_unless_asked_to() {
    let mut world = World::with(GroupConfig::default(), 2, 1);
    run_for(&mut world, 10 * MS);
    assert!(walks(&world).is_empty());
    assert_eq!(world.group.pollers()[0].stats.dry_runs, 0);
}

#[test]
fn members_are_walked_in_turn_and_not_more_often_than_the_interval() {
    let mut world = World::with(dry(), 3, 1);
    run_for(&mut world, 10 * MS);
    let walks = walks(&world);
    assert!(walks.windows(2).all(|pair| pair[1] - pair[0] >= DRY_RUN_EVERY_NS), "{walks:?}");
    let possible = 10 * MS / DRY_RUN_EVERY_NS;
    assert!((possible - possible / 50..=possible).contains(&(walks.len() as u64)), "{}", walks.len());
    assert_eq!(world.group.pollers()[0].stats.dry_runs, walks.len() as u64);
    let counts: Vec<usize> = world.queues.iter().map(|queue| queue.walks.len()).collect();
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
}

#[test]
fn nobody_walks_between_packets_that_follow_each_other() {
    let mut world = World::with(dry(), 1, 1);
    world.run_until("the first visit", |world| !world.queues[0].polls.is_empty());
    for _ in 0..200 {
        world.packets(0, 1);
        world.run_until("its visit", |world| world.queues[0].ring == 0);
        run_for(&mut world, DRY_RUN_AFTER_NS / 2);
    }
    assert!(walks(&world).is_empty(), "the path is warm");
    let last_ns = world.now_ns;
    world.run_until("a walk", |world| !walks(world).is_empty());
    assert!(walks(&world)[0] >= last_ns + DRY_RUN_AFTER_NS / 2);
}

#[test]
fn pollers_walk_those_that_are_at_home_with_them_whoever_is_awake() {
    let mut world = World::with(dry(), 4, 2);
    run_for(&mut world, 5 * MS);
    let by_poller: Vec<u64> = world.group.pollers().iter().map(|poller| poller.stats.dry_runs).collect();
    assert_eq!(by_poller.iter().sum::<u64>(), walks(&world).len() as u64);
    assert!(world.queues.iter().all(|queue| !queue.walks.is_empty()), "every member has a home, and is walked there");
}

/// Whoever comes to ring the doorbell of a transmit queue and finds its claim taken leaves the doorbell to the holder, and a
/// walk rings none.
#[test]
fn a_queue_that_transmits_is_not_walked() {
    let mut world = World::new(dry(), 2, NapiSettings::default());
    world.transmits(1, 64);
    world.attach(0);
    (0..2).for_each(|queue| world.enter(queue).unwrap());
    run_for(&mut world, 5 * MS);
    assert!(!world.queues[0].walks.is_empty());
    assert!(world.queues[1].walks.is_empty(), "{:?}", world.queues[1].walks);
}

/// I11 and I9: what comes during a walk is visited by the pass that follows.
#[test]
fn a_packet_that_comes_during_a_walk_is_visited_at_once() {
    let mut world = World::with(dry(), 1, 1);
    world.run_until("the first visit", |world| !world.queues[0].polls.is_empty());
    let walk = world.begin_walk(0);
    world.packets(0, 1);
    // An interrupt that was in flight as the group masked the line.
    world.queues[0].hints = false;
    world.interrupt(0);
    assert!(!world.end_walk(0, &walk));
    assert_eq!(world.step(0), Did::Polled { queue: 0, work: 1 });
}

#[test]
fn a_member_that_is_removed_during_a_walk_leaves_when_the_walk_ends() {
    let mut world = World::with(dry(), 1, 1);
    world.run_until("the first visit", |world| !world.queues[0].polls.is_empty());
    let walk = world.begin_walk(0);
    assert!(!world.remove(0), "its holder lets it go");
    assert!(world.end_walk(0, &walk));
    world.check();
    assert_eq!(world.group.census().members, 0);
}

/// I16: walks are empty passes.
#[test]
fn walks_are_within_the_budget_of_empty_passes() {
    let budget = Budget { empty_percent: Some(10), total_percent: None };
    let mut world = World::with(GroupConfig { budget, ..dry() }, 1, 1);
    let began_ns = world.now_ns;
    run_for(&mut world, 100 * MS);
    let stats = world.group.pollers()[0].stats;
    let periods = (world.now_ns - began_ns).div_ceil(10 * MS) + 1;
    assert!(stats.dry_runs > 0);
    assert!(stats.empty_ns <= periods * (MS + 100 * US), "{} ns in {periods} periods", stats.empty_ns);
}
