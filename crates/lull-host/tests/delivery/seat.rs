//! Who runs a CPU's delivery.

use std::os::fd::AsFd;

use super::*;

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
        let (delivery, queue) = (delivery.clone(), queue.clone());
        let send = world.client;
        std::thread::Builder::new().name("holder".to_owned()).spawn(move || {
            queue.call(&delivery, || {
                assert!(send.send(1));
                eventually("softirq to leave its ownership", || queue.handed() == 1);
            });
            send
        })
    };
    let _client = locker.unwrap().join().unwrap();
    world.bound.await_delivered(1);
    assert_eq!(world.bound.queue.deliverers(), ["holder"]);
    world.bound.await_released();
}

/// As many workers as a CPU has places for.
fn places(world: &World) -> Vec<Worker> {
    (0..64).map(|_| Worker::new(&world.host, 0).unwrap()).collect()
}

#[test]
fn a_worker_beyond_the_places_is_woken_by_who_delivers() {
    let world = World::new();
    let places = places(&world);
    for count in 1..=5 {
        world.bound.queue.forget_deliverers();
        let beside = sleeping_thread(&world.bound, 0, "beside", count);
        assert!(world.client.send(1));
        beside.join().unwrap();
        assert_eq!(world.bound.queue.deliverers(), ["irq/0"]);
        world.bound.await_released();
    }
    // A place that is free is the next one's.
    drop(places);
    world.bound.queue.forget_deliverers();
    let thread = sleeping_thread(&world.bound, 0, "worker", 6);
    assert!(world.client.send(1));
    thread.join().unwrap();
    assert_eq!(world.bound.queue.deliverers(), ["worker"]);
}

/// It may busy poll in the seat, which it leaves before it sleeps: somebody delivers and keeps the timers meanwhile.
#[test]
fn a_worker_beyond_the_places_does_not_sleep_in_the_seat() {
    let world = World::new();
    let _places = places(&world);
    let worker = Worker::new(&world.host, 0).unwrap();
    world.bound.set(NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: MS, ..NapiSettings::default() });
    let readable = rustix::event::eventfd(1, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    // The first loop does without the seat, and no other timer is under way then.
    for (count, end) in (1..=6).zip([BusyEnd::LastPoll, BusyEnd::AfterUsecs(1)].into_iter().cycle()) {
        let mut turn = worker.turn();
        // What it polls is deferred: the timer is somebody's to keep while it sleeps.
        turn.busy_loop(&world.bound.plan(end), &mut |_| false);
        let until_ns = Some(world.host.now_ns() + MS);
        let mut was_sent = false;
        let mut ready = || {
            assert!(was_sent || world.client.send(1));
            was_sent = true;
            false
        };
        assert_eq!(turn.sleep(&Sleep { until_ns, fd: None }, &mut ready), Woke::TimedOut);
        world.bound.await_delivered(count);
        assert_eq!(world.bound.queue.deliverers(), ["irq/0"]);
        assert_eq!(turn.sleep(&Sleep { until_ns: None, fd: Some(readable.as_fd()) }, &mut || false), Woke::Fd);
    }
}

#[test]
fn as_many_threads_may_wait_as_there_are() {
    let world = World::new();
    let threads: Vec<_> = (0..100).map(|_| sleeping_thread(&world.bound, 0, "worker", 1)).collect();
    assert!(world.client.send(1));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
