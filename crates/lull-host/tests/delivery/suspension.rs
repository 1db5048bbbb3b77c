//! Suspension, and how it ends.

use super::*;

#[test]
fn suspension_holds_the_interrupt_back_until_the_application_resumes() {
    let world = World::new();
    world.bound.set(suspension(3_600 * SECOND));
    let worker = Worker::new(&world.host, 0).unwrap();
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
    world.bound.await_released();
    worker.turn().suspend(world.bound.id);
    assert!(world.client.send(3));
    await_standing_by(&world.host);
    assert_eq!(world.bound.delivered(), 1, "held back");

    let here = std::thread::current().name().unwrap().to_owned();
    world.bound.queue.forget_deliverers();
    worker.turn().resume(world.bound.id);
    assert_eq!(world.bound.delivered(), 4, "the resume's poll runs in its caller");
    assert_eq!(world.bound.queue.deliverers(), [here]);
    let stats = world.bound.stats();
    assert_eq!((stats.suspends, stats.resumes), (1, 1));
    assert_eq!(world.host.napi_irqs(world.bound.napi), 1);
}

#[test]
fn suspension_ends_with_its_timeout_if_the_application_never_returns() {
    let world = World::new();
    world.bound.set(suspension(100 * MS));
    let worker = Worker::new(&world.host, 0).unwrap();
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
    world.bound.await_released();
    // The deferral holds it back, and then the suspension does, whose timer must not fire before it is there.
    assert!(world.client.send(1));
    worker.turn().suspend(world.bound.id);
    world.bound.await_delivered(2);
    let stats = world.bound.stats();
    assert_eq!((stats.suspends, stats.resumes, stats.timer_fires), (1, 0, 1));
    assert_eq!(world.host.napi_irqs(world.bound.napi), 1, "the timer delivered, not the interrupt");
}

/// The timers are an hour away: what is delivered came by interrupt.
#[test]
fn a_resume_to_the_interrupt_that_finds_nothing_ends_the_deferral() {
    for (after_resume, delivered) in [(AfterResume::Deferral, 1), (AfterResume::Interrupt, 2)] {
        let world = World::with(HostConfig { after_resume, ..HostConfig::default() });
        world.bound.set(suspension(3_600 * SECOND));
        let worker = Worker::new(&world.host, 0).unwrap();
        assert!(world.client.send(1));
        world.bound.await_delivered(1);
        world.bound.await_released();
        worker.turn().suspend(world.bound.id);
        {
            let mut turn = worker.turn();
            turn.busy_loop(&world.bound.plan(BusyEnd::OneRound), &mut |_| false);
            turn.resume(world.bound.id);
        }
        // If the interrupt thread still has the seat, the resume's poll is its to run.
        world.bound.await_released();
        assert!(world.client.send(1));
        if after_resume == AfterResume::Interrupt {
            world.bound.await_delivered(2);
        }
        assert_eq!((world.bound.delivered(), world.host.napi_irqs(world.bound.napi)), (delivered, delivered));
    }
}

/// Packets that bring no event (the worker waits for more) start a deferral of an hour, which the worker's next sleep ends.
#[test]
fn a_sleep_ends_the_deferral_of_an_instance_that_suspends() {
    let world = World::with(HostConfig { after_resume: AfterResume::Interrupt, ..HostConfig::default() });
    world.bound.set(suspension(3_600 * SECOND));
    let thread = sleeping_thread(&world.bound, 0, "worker", 3);
    for count in 1..=3 {
        assert!(world.client.send(1));
        world.bound.await_delivered(count);
    }
    thread.join().unwrap();
    assert_eq!(world.bound.stats().timer_fires, 0);
}

#[test]
fn a_resume_wakes_no_other_thread() {
    let world = World::new();
    world.bound.set(suspension(3_600 * SECOND));
    let worker = Worker::new(&world.host, 0).unwrap();
    let before = world.host.cpu_stats(0).wakeups;
    (0..10).for_each(|_| worker.turn().resume(world.bound.id));
    assert_eq!(world.bound.stats().resumes, 10);
    assert_eq!(world.host.cpu_stats(0).wakeups, before);
}

#[test]
fn a_turn_that_polls_and_suspends_sets_no_kernel_timer_for_the_deferral_in_between() {
    let world = World::new();
    let settings = NapiSettings { gro_flush_timeout_ns: 600 * SECOND, ..suspension(3_600 * SECOND) };
    world.bound.set(settings);
    let worker = Worker::new(&world.host, 0).unwrap();
    let cycle = || {
        let mut turn = worker.turn();
        turn.busy_loop(&world.bound.plan(BusyEnd::AfterUsecs(1)), &mut |_| false);
        turn.suspend(world.bound.id);
    };
    // The first cycle's suspension sets one; later ones only move the deadline away.
    cycle();
    let before = world.host.cpu_stats(0);
    (0..10).for_each(|_| cycle());
    let after = world.host.cpu_stats(0) - before;
    assert_eq!((after.timer_ops, after.wakeups), (0, 0));
    assert_eq!(world.bound.stats().suspends, 11);
}

#[test]
fn an_interrupt_during_a_turn_in_the_seat_is_delivered_at_its_end() {
    let world = World::new();
    let worker = Worker::new(&world.host, 0).unwrap();
    let mut turn = worker.turn();
    turn.busy_loop(&world.bound.plan(BusyEnd::AfterUsecs(1)), &mut |_| false);
    assert!(world.client.send(1));
    drop(turn);
    assert_eq!(world.bound.delivered(), 1);
    assert_eq!(world.bound.queue.deliverers(), [std::thread::current().name().unwrap()]);
    assert!(world.client.send(1));
    world.bound.await_delivered(2);
    assert!(world.bound.queue.deliverers().contains(&"irq/0".to_owned()), "the seat was given back");
}
