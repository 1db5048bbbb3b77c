//! Who delivers, how often, and that nothing is ever left behind. Waits are bounded generously, and no assertion
//! depends on how fast the machine is.

#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::*;
use lull_core::{AfterResume, BusyEnd, NapiSettings, Threaded};
use lull_host::{Host, HostConfig, HostError, Sleep, Woke, Worker};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

// ---- who runs a CPU's delivery ----

#[test]
fn an_interrupt_wakes_the_sleeping_worker_who_delivers_itself() {
    let world = World::new();
    let thread = sleeping_thread(&world.bound, 0, "worker", 1);
    assert!(world.client.send(1));
    thread.join().unwrap();
    assert_eq!(world.bound.queue.deliverers(), ["worker"]);
    assert_eq!(world.host.napi_irqs(world.bound.napi), 1);
    assert_eq!(world.host.cpu_stats(0).wakeups, 1, "one thread was woken, and no other");
}

#[test]
fn an_interrupt_while_the_worker_computes_is_delivered_by_the_interrupt_thread() {
    let world = World::new();
    let worker = Worker::new(&world.host, 0).unwrap();
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
    assert_eq!(world.bound.queue.deliverers(), ["irq/0"]);
    drop(worker);
}

/// Hard interrupts come in between two polls, and are taken then: nobody raises them once more.
#[test]
fn an_interrupt_during_a_poll_of_another_queue_is_delivered_by_the_same_run() {
    let world = World::new();
    let (other, other_client) = mem_queue(&world.host, 0);
    for count in 1..=20 {
        let client = other_client.clone();
        world.bound.queue.during_poll(move || assert!(client.send(1)));
        assert!(world.client.send(1));
        other.await_delivered(count);
        world.bound.await_delivered(count);
        other.await_released();
        world.bound.await_released();
    }
}

#[test]
fn two_workers_on_one_cpu_one_of_them_computing() {
    let world = World::new();
    let computing = Worker::new(&world.host, 0).unwrap();
    let sleeper = sleeping_thread(&world.bound, 0, "sleeper", 1);
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
    sleeper.join().unwrap();
    assert_eq!(world.bound.queue.deliverers(), ["sleeper"], "the computing worker is not waited for");

    // The sleeper computes now too: it gave the seat back.
    world.bound.queue.forget_deliverers();
    assert!(world.client.send(1));
    world.bound.await_delivered(2);
    assert_eq!(world.bound.queue.deliverers(), ["irq/0"]);

    // The worker that computed comes by before the interrupt thread, or after it: either way it is delivered once.
    assert!(world.client.send(1));
    computing.poll_point();
    world.bound.await_delivered(3);
}

#[test]
fn the_seat_goes_from_a_waking_worker_to_one_that_sleeps() {
    let world = World::new();
    let first = sleeping_thread(&world.bound, 0, "worker", 1);
    let second = sleeping_thread(&world.bound, 0, "worker", 2);
    assert!(world.client.send(1));
    first.join().unwrap();
    assert!(world.client.send(1));
    second.join().unwrap();
    assert_eq!(world.bound.queue.deliverers(), ["worker"]);
}

#[test]
fn softirq_that_finds_the_shard_locked_leaves_the_poll_to_the_holder() {
    let world = World::new();
    let delivery = world.host.delivery();
    let queue = &world.bound.queue;
    let locker = {
        let (delivery, queue, bound) = (delivery.clone(), queue.clone(), world.bound.napi);
        let host = world.host.clone();
        let send = world.client;
        std::thread::Builder::new().name("holder".to_owned()).spawn(move || {
            queue.call(&delivery, || {
                assert!(send.send(1));
                eventually("softirq to come by", || host.napi_irqs(bound) == 1);
                // Softirq is at the lock or about to be; either of the two delivers.
                std::thread::sleep(Duration::from_millis(20));
            });
            send
        })
    };
    let _client = locker.unwrap().join().unwrap();
    world.bound.await_delivered(1);
    world.bound.await_released();
}

// ---- timers ----

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
    eventually("the timer", || world.bound.stats().timer_fires == 1);
    assert_eq!(world.host.napi_lateness(world.bound.napi).count(), 1);
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

// ---- suspension ----

fn suspension(timeout_ns: u64) -> NapiSettings {
    NapiSettings {
        defer_hard_irqs: 100,
        // Far: nothing but the suspension's own timer may fire within a test.
        gro_flush_timeout_ns: 3_600 * SECOND,
        irq_suspend_timeout_ns: timeout_ns,
        ..NapiSettings::default()
    }
}

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

// ---- busy polling ----

#[test]
fn a_busy_loop_of_no_usecs_that_prefers_polls_exactly_twice() {
    let world = World::new();
    let worker = Worker::new(&world.host, 0).unwrap();
    // The first packet's interrupt masks itself, and stays masked for an hour: nobody but the loop polls from then on.
    world.bound.set(suspension(0));
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
    world.bound.await_released();
    for frames in [0, 5, 0] {
        let before = world.bound.stats();
        assert!(world.client.send(frames));
        worker.turn().busy_loop(&world.bound.plan(BusyEnd::OneRound), &mut |_| false);
        let two = world.bound.stats() - before;
        assert_eq!((two.busy_calls, two.polls, two.busy_polls, two.work), (1, 2, 2, frames as u64));
    }
    assert_eq!(world.host.napi_irqs(world.bound.napi), 1);
}

#[test]
fn a_busy_loop_ends_when_there_is_something() {
    let world = World::new();
    let worker = Worker::new(&world.host, 0).unwrap();
    let bound = &world.bound;
    let mut sent = false;
    let plan = bound.plan(BusyEnd::AfterUsecs(i32::MAX as u32));
    worker.turn().busy_loop(&plan, &mut |_| {
        if !std::mem::replace(&mut sent, true) {
            assert!(world.client.send(1));
        }
        bound.delivered() == 1
    });
    assert_eq!(bound.delivered(), 1);
    bound.await_released();
    assert!(world.client.send(1));
    bound.await_delivered(2);
}

// ---- ksoftirqd ----

#[test]
fn ksoftirqd_takes_over_under_a_flood_and_the_worker_still_runs() {
    let world = World::new();
    let flood = Flood::new();
    let flooded = Bound::new(&world.host, 0, Box::new(FloodRx(flood.clone())), Arc::new(FloodLine(flood.clone())));
    let runs = Arc::new(AtomicBool::new(false));
    let told = runs.clone();
    let worker = worker_thread(&flooded, 0, "worker", move |worker| {
        let sleep = |ms: u64| {
            let until_ns = Some(worker.host().now_ns() + ms * MS);
            worker.turn().sleep(&Sleep { until_ns, fd: None }, &mut || false)
        };
        eventually("ksoftirqd", || worker.host().cpu_stats(0).ksoftirqd_wakes > 0);
        (0..20).for_each(|_| assert_eq!(sleep(1), Woke::TimedOut));
        told.store(true, Ordering::Release);
    });
    flood.start();
    eventually("the worker to run", || runs.load(Ordering::Acquire));
    // The other queue has its turn too.
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
    flood.stop();
    worker.join().unwrap();
    flooded.await_released();
    assert!(flooded.queue.deliverers().contains(&"ksoftirqd/0".to_owned()), "{:?}", flooded.queue.deliverers());
    assert!(world.client.send(1));
    world.bound.await_delivered(2);
}

// ---- NAPI threads ----

#[test]
fn a_napi_thread_delivers_and_is_turned_off_and_on() {
    let world = World::new();
    let threaded = |threaded| NapiSettings { threaded, ..NapiSettings::default() };
    let mut sent = 0;
    let mut deliver = |by: &str| {
        world.bound.queue.forget_deliverers();
        assert!(world.client.send(1));
        sent += 1;
        world.bound.await_delivered(sent);
        assert_eq!(world.bound.queue.deliverers(), [by]);
        world.bound.await_released();
    };
    for _ in 0..3 {
        world.bound.set(threaded(Threaded::On));
        deliver("napi/0");
        deliver("napi/0");
        world.bound.set(threaded(Threaded::Off));
        deliver("irq/0");
    }
    assert_eq!(world.host.threads().iter().filter(|thread| thread.role == "napi/0").count(), 1);
}

#[test]
fn a_busy_polling_napi_thread_delivers_without_interrupts_and_is_turned_off_and_on() {
    let world = World::new();
    let threaded = |threaded| NapiSettings { threaded, ..NapiSettings::default() };
    let mut sent = 0;
    for _ in 0..2 {
        world.bound.set(threaded(Threaded::BusyPoll));
        let polls = world.bound.stats().thread_polls;
        eventually("the thread to spin", || world.bound.stats().thread_polls > polls + 100);
        let irqs = world.host.napi_irqs(world.bound.napi);
        world.bound.queue.forget_deliverers();
        for _ in 0..10 {
            assert!(world.client.send(2));
            sent += 2;
            world.bound.await_delivered(sent);
        }
        assert_eq!(world.bound.queue.deliverers(), ["napi/0"]);
        assert!(world.host.napi_irqs(world.bound.napi) <= irqs + 1, "only one that was raised before the thread began");

        world.bound.set(threaded(Threaded::Off));
        world.bound.await_released();
        world.bound.queue.forget_deliverers();
        assert!(world.client.send(1));
        sent += 1;
        world.bound.await_delivered(sent);
        assert_eq!(world.bound.queue.deliverers(), ["irq/0"]);
    }
}

// ---- operators ----

#[test]
fn disable_and_enable_under_traffic_lose_no_liveness() {
    let world = World::new();
    let bound = &world.bound;
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    let worker = worker_thread(bound, 0, "worker", move |worker| {
        let ready = &mut || told.load(Ordering::Acquire);
        assert_eq!(worker.turn().sleep(&Sleep { until_ns: None, fd: None }, ready), Woke::Ready);
    });
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                // A full ring waits for the queue to come back.
                if sent - bound.delivered() < 500 && world.client.send(1) {
                    sent += 1;
                }
                std::thread::yield_now();
            }
            sent
        });
        for round in 0..60 {
            let settings = match round % 3 {
                0 => NapiSettings::default(),
                1 => NapiSettings { defer_hard_irqs: 10, gro_flush_timeout_ns: MS / 10, ..NapiSettings::default() },
                _ => NapiSettings { threaded: Threaded::On, ..NapiSettings::default() },
            };
            bound.set(settings);
            std::thread::sleep(Duration::from_millis(3));
            world.host.disable(bound.napi).unwrap();
            assert_eq!(world.host.napi_id(bound.napi), 0);
            assert_eq!(world.host.napi_by_id(bound.id), None);
            let before = bound.delivered();
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(bound.delivered(), before, "nobody polls a disabled instance");
            assert_eq!(world.host.enable(bound.napi).unwrap(), bound.id, "a device with slots keeps its ids");
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    bound.await_delivered(sent);
    over.store(true, Ordering::Release);
    bound.queue.wake_all();
    worker.join().unwrap();
}

/// Neither is idempotent (§11): a second disable would wait for ever for the first one's ownership, with the control lock
/// held.
#[test]
fn disabling_the_disabled_and_enabling_the_enabled_is_refused_and_holds_nothing() {
    let world = World::new();
    let (host, napi) = (&world.host, world.bound.napi);
    assert!(matches!(host.enable(napi), Err(HostError::Enabled { .. })));
    host.disable(napi).unwrap();
    let (told, answer) = std::sync::mpsc::channel();
    let again = host.clone();
    std::thread::spawn(move || told.send(again.disable(napi)));
    let second = answer.recv_timeout(LONG).expect("the second disable returns");
    assert!(matches!(second, Err(HostError::Disabled { .. })));
    assert_eq!(host.enable(napi).unwrap(), world.bound.id);

    // Of many at once one succeeds, and the others are told.
    for enabling in [false, true, false, true] {
        let done = std::thread::scope(|scope| {
            let one = || if enabling { host.enable(napi).is_ok() } else { host.disable(napi).is_ok() };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|done| *done).count()
        });
        assert_eq!(done, 1);
    }
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
}

#[test]
fn settings_outlive_a_disable_only_on_a_device_that_keeps_them() {
    let host = Host::new(HostConfig::default()).unwrap();
    let (bound, _client) = mem_queue(&host, 0);
    let settings = NapiSettings { defer_hard_irqs: 7, gro_flush_timeout_ns: 9, ..suspension(5) };
    bound.set(settings);
    host.disable(bound.napi).unwrap();
    assert_eq!(host.enable(bound.napi).unwrap(), bound.id);
    assert_eq!(host.napis()[0].settings, settings);

    let refused = NapiSettings { defer_hard_irqs: u32::MAX, ..settings };
    assert!(host.set_napi(bound.napi, &refused).is_err());
    assert_eq!(host.napis()[0].settings, settings, "nothing is changed by a refusal");

    let flood = Flood::new();
    let (rx, line) = (Box::new(FloodRx(flood.clone())), Arc::new(FloodLine(flood)));
    let forgetful = Bound::on_device(&host, 0, rx, line, false);
    forgetful.set(settings);
    host.disable(forgetful.napi).unwrap();
    assert_ne!(host.enable(forgetful.napi).unwrap(), forgetful.id);
    assert_eq!(host.napis()[1].settings, NapiSettings::default());
}

#[test]
fn settings_of_one_instance_may_be_changed_by_many_threads() {
    let world = World::new();
    std::thread::scope(|scope| {
        for threaded in [Threaded::On, Threaded::Off, Threaded::BusyPoll, Threaded::On] {
            let world = &world;
            scope.spawn(move || {
                (0..20).for_each(|_| world.bound.set(NapiSettings { threaded, ..NapiSettings::default() }));
            });
        }
    });
    world.bound.set(NapiSettings::default());
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
}

#[test]
fn a_host_goes_while_work_is_on_its_way_and_wakers_outlive_it() {
    for _ in 0..10 {
        let world = World::new();
        let flood = Flood::new();
        let line = Arc::new(FloodLine(flood.clone()));
        let flooded = Bound::new(&world.host, 0, Box::new(FloodRx(flood.clone())), line);
        let worker = Worker::new(&world.host, 0).unwrap();
        let waker = worker.waker();
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let thread = std::thread::spawn(move || {
            let ready = &mut || told.load(Ordering::Acquire);
            assert_eq!(worker.turn().sleep(&Sleep { until_ns: None, fd: None }, ready), Woke::Ready);
        });
        flood.start();
        assert!(world.client.send(10));
        over.store(true, Ordering::Release);
        waker.wake();
        thread.join().unwrap();
        world.host.schedule(world.bound.napi);
        let delivery = world.host.delivery();
        drop(flooded);
        drop(world);
        // The threads are gone; what is raised from now on goes nowhere, and nothing that was owned is missed.
        waker.wake();
        drop(delivery);
        waker.wake();
    }
}

#[test]
fn counters_are_read_while_a_softirq_runs() {
    let world = World::new();
    let (enter, entered) = channel();
    let (leave, left) = channel::<()>();
    world.bound.queue.during_poll(move || {
        enter.send(()).unwrap();
        let _ = left.recv();
    });
    assert!(world.client.send(1));
    entered.recv().unwrap();
    let (tell, told) = channel();
    let host = world.host.clone();
    let reader = std::thread::spawn(move || {
        tell.send((host.cpu_stats(0), host.napis().len(), host.epoll_contexts().len())).unwrap();
    });
    let (stats, napis, _) = told.recv_timeout(LONG).expect("whoever reads counters does not wait for the softirq");
    assert_eq!((stats.interrupts, napis, world.bound.delivered()), (1, 1, 0));
    leave.send(()).unwrap();
    world.bound.await_delivered(1);
    reader.join().unwrap();
}

#[test]
fn an_idle_host_makes_hardly_any_system_calls() {
    let world = World::new();
    let thread = sleeping_thread(&world.bound, 0, "worker", 1);
    let before = world.host.cpu_stats(0);
    std::thread::sleep(Duration::from_millis(300));
    let idle = world.host.cpu_stats(0) - before;
    // The worker may still have been on its way into its sleep.
    assert!(idle.syscalls <= 2, "{idle:?}");
    assert_eq!((idle.interrupts, idle.wakeups, idle.timer_ops), (0, 0, 0));
    assert!(world.client.send(1));
    thread.join().unwrap();
}

#[test]
fn a_refusal_of_real_time_scheduling_is_reported() {
    if rustix::process::geteuid().is_root() {
        println!("SKIP: root is not refused SCHED_FIFO");
        return;
    }
    if rustix::process::getrlimit(rustix::process::Resource::Rtprio).current != Some(0) {
        println!("SKIP: this user may use real-time priorities (RLIMIT_RTPRIO)");
        return;
    }
    let host = Host::new(HostConfig { realtime: true, ..HostConfig::default() }).unwrap();
    assert!(host.realtime_error().is_some());
    let host = Host::new(HostConfig::default()).unwrap();
    assert_eq!(host.realtime_error(), None, "not asked for");
}
