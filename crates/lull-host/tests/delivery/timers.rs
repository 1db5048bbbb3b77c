//! Timers, whoever runs them.

use super::*;

#[test]
fn deferral_polls_by_timer_n_times_and_then_unmasks() {
    let world = World::new();
    world.bound.set(NapiSettings { defer_hard_irqs: 3, gro_flush_timeout_ns: 2 * MS, ..NapiSettings::default() });
    for round in 1..=3 {
        let before = world.bound.stats();
        assert!(world.client.send(1));
        eventually("the deferral to end", || (world.bound.stats() - before).empty_polls == 3);
        let after = world.bound.stats() - before;
        assert_eq!((after.work, after.polls, after.empty_polls), (1, 4, 3));
        assert_eq!((after.deferrals, after.timer_arms, after.timer_fires), (3, 3, 3));
        world.bound.await_released();
        assert_eq!(world.host.napi_irqs(world.bound.napi), round);
    }
    assert_eq!(world.bound.queue.deliverers(), ["irq/0"], "nobody called: the kernel timer stood behind every one");
}

#[test]
fn a_sleeping_worker_runs_the_deferral_timers_itself() {
    let world = World::new();
    world.bound.set(NapiSettings { defer_hard_irqs: 3, gro_flush_timeout_ns: 2 * MS, ..NapiSettings::default() });
    let thread = sleeping_thread(&world.bound, 0, "worker", 2);
    assert!(world.client.send(1));
    eventually("the deferral to end", || world.bound.stats().empty_polls == 3);
    let stats = world.bound.stats();
    assert_eq!((stats.polls, stats.timer_fires, stats.deferrals), (4, 3, 3));
    assert_eq!(world.host.napi_irqs(world.bound.napi), 1);
    assert!(world.client.send(1));
    thread.join().unwrap();
    assert_eq!(world.bound.queue.deliverers(), ["worker"]);
}

#[test]
fn the_timer_of_a_long_computing_worker_fires_by_the_backstop() {
    let world = World::new();
    world.bound.set(NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: 5 * MS, ..NapiSettings::default() });
    let thread = sleeping_thread(&world.bound, 0, "worker", 1);
    assert!(world.client.send(1));
    // The worker delivered, armed the timer, and makes no call from now on.
    thread.join().unwrap();
    assert_eq!(world.bound.queue.deliverers(), ["worker"]);
    // How late it was is noted behind its count.
    eventually("the timer", || world.host.napi_lateness(world.bound.napi).count() == 1);
    assert_eq!(world.bound.stats().timer_fires, 1);
    assert!(world.client.send(1));
    world.bound.await_delivered(2);
    assert_eq!(world.bound.queue.deliverers(), ["irq/0", "worker"]);
}

#[test]
fn a_worker_that_does_not_sleep_after_all_leaves_no_deadline_behind() {
    let world = World::new();
    let (other, other_client) = mem_queue(&world.host, 0);
    world.bound.set(NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: 50 * MS, ..NapiSettings::default() });
    let worker = Worker::new(&world.host, 0).unwrap();
    let mut looks = 0;
    // Each time the worker is about to sleep an interrupt comes: the first starts the timer, and the second finds the
    // worker with that deadline in mind.
    let woke = worker.turn().sleep(&Sleep { until_ns: None, fd: None }, &mut || {
        looks += 1;
        match looks {
            1 => assert!(world.client.send(1)),
            2 => assert!(other_client.send(1)),
            _ => {}
        }
        other.delivered() == 1
    });
    assert_eq!((woke, world.bound.delivered()), (Woke::Ready, 1));
    assert_eq!(world.bound.stats().deferrals, 1);
    // From now on it computes.
    eventually("the timer", || world.bound.stats().timer_fires == 1);
}
