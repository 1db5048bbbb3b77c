//! Interrupts that the kernel raises as readable descriptors: who watches them, and that somebody always does.

#![cfg(not(loom))]

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use lull_core::{BusyEnd, NapiSettings};
use lull_host::{Host, HostConfig, Sleep, Woke, Worker};

fn host(cpus: usize) -> Host {
    let host = Host::new(HostConfig { cpus: vec![None; cpus], ..HostConfig::default() }).unwrap();
    for cpu in 0..cpus as u16 {
        eventually("the threads to stand by", || host.cpu_stats(cpu).syscalls >= 2);
    }
    host
}

#[test]
fn a_worker_that_sleeps_in_the_seat_watches_and_the_interrupt_thread_does_while_it_computes() {
    let host = host(1);
    let (bound, device) = fd_queue(&host, 0);
    for round in 0..5 {
        bound.queue.forget_deliverers();
        let thread = sleeping_thread(&bound, 0, "worker", 2 * round + 1);
        device.send(1);
        thread.join().unwrap();
        assert_eq!(bound.queue.deliverers(), ["worker"]);
        bound.queue.forget_deliverers();
        device.send(1);
        bound.await_delivered(2 * round + 2);
        assert_eq!(bound.queue.deliverers(), ["irq/0"]);
    }
}

/// What a tour polled is deferred: its descriptor is left alone until its timer, even where it was being watched.
#[test]
fn a_descriptor_that_a_tour_masked_is_no_interrupt_until_the_timer() {
    let host = host(1);
    let (bound, device) = fd_queue(&host, 0);
    let worker = Worker::new(&host, 0).unwrap();
    let far = NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: u64::MAX / 4, ..NapiSettings::default() };
    bound.set(far);
    let tours = || worker.turn().busy_loop(&bound.plan(BusyEnd::LastPoll), &mut |_| false);
    for round in 0..3 {
        tours();
        device.send(1);
        await_standing_by(&host);
        assert_eq!((bound.delivered(), host.napi_irqs(bound.napi)), (2 * round, round), "it was not masked");
        tours();
        assert_eq!(bound.delivered(), 2 * round + 1);
        // Its next timer is at once, and then it interrupts.
        bound.set(NapiSettings { gro_flush_timeout_ns: 1, ..far });
        let polls = bound.stats().polls;
        tours();
        eventually("the timer's poll", || bound.stats().polls == polls + 2);
        bound.await_released();
        bound.set(far);
        device.send(1);
        bound.await_delivered(2 * round + 2);
        assert_eq!(host.napi_irqs(bound.napi), round + 1);
        bound.await_released();
    }
}

/// The interrupt of an instance that is polled on another CPU is watched by that of its own.
#[test]
fn an_instance_of_another_cpu_keeps_its_interrupt() {
    let host = host(2);
    let (bound, device) = fd_queue(&host, 1);
    let worker = Worker::new(&host, 0).unwrap();
    for round in 1..=10 {
        // The interrupt comes while a worker of the first CPU busy polls, in the seat of that CPU: it finds an owner, and
        // it is the busy poller who unmasks.
        let before = host.napi_irqs(bound.napi);
        let mut sent = false;
        worker.turn().busy_loop(&bound.plan(BusyEnd::AfterUsecs(i32::MAX as u32)), &mut |_| {
            if !std::mem::replace(&mut sent, true) {
                device.send(1);
                eventually("the interrupt", || host.napi_irqs(bound.napi) > before);
            }
            bound.delivered() == 2 * round - 1
        });
        bound.await_released();
        device.send(1);
        bound.await_delivered(2 * round);
    }
}

/// A worker that watches the descriptors in its sleep loses the seat to a busy poller, wakes up for nothing and sleeps on
/// outside the seat: somebody else has to watch from then on.
#[test]
fn descriptors_are_watched_when_the_watcher_loses_the_seat() {
    let host = host(1);
    let (polled, _polled_device) = fd_queue(&host, 0);
    let (other, device) = fd_queue(&host, 0);
    let looks = Arc::new(AtomicU64::new(0));
    let (counted, queue) = (looks.clone(), other.queue.clone());
    let asleep = host.cpu_stats(0).syscalls;
    let sleeper = worker_thread(&other, 0, "sleeper", move |worker| {
        worker.turn().sleep(&Sleep { until_ns: None, fd: None }, &mut || {
            counted.fetch_add(1, Ordering::AcqRel);
            queue.delivered() == 1
        });
    });
    // It takes the watches over with a call each, and sleeps with another.
    eventually("the worker to sleep", || host.cpu_stats(0).syscalls >= asleep + 3);
    let worker = Worker::new(&host, 0).unwrap();
    let mut step = 0;
    let start = std::time::Instant::now();
    worker.turn().busy_loop(&polled.plan(BusyEnd::AfterUsecs(i32::MAX as u32)), &mut |_| {
        match step {
            0 => {
                step = looks.load(Ordering::Acquire);
                other.queue.wake_all();
            }
            _ if step != u64::MAX && looks.load(Ordering::Acquire) > step => {
                step = u64::MAX;
                device.send(1);
            }
            _ => {}
        }
        assert!(start.elapsed() < LONG, "nobody watches");
        other.delivered() == 1
    });
    sleeper.join().unwrap();
}

/// As before, but nobody wakes the watcher: its time is up, and it leaves.
#[test]
fn descriptors_are_watched_when_the_watchers_time_is_up_while_another_has_the_seat() {
    let host = host(1);
    let (polled, _polled_device) = fd_queue(&host, 0);
    let (other, device) = fd_queue(&host, 0);
    let asleep = host.cpu_stats(0).syscalls;
    let left = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let worker = Worker::new(&host, 0).unwrap();
            let until_ns = Some(host.now_ns() + 300_000_000);
            assert_eq!(worker.turn().sleep(&Sleep { until_ns, fd: None }, &mut || false), Woke::TimedOut);
            left.store(true, Ordering::Release);
        });
        // It takes the watches over with a call each, and sleeps with another.
        eventually("the worker to sleep", || host.cpu_stats(0).syscalls >= asleep + 3);
        let worker = Worker::new(&host, 0).unwrap();
        let mut sent = false;
        let start = std::time::Instant::now();
        worker.turn().busy_loop(&polled.plan(BusyEnd::AfterUsecs(i32::MAX as u32)), &mut |_| {
            if left.load(Ordering::Acquire) && !std::mem::replace(&mut sent, true) {
                device.send(1);
            }
            assert!(start.elapsed() < LONG, "nobody watches");
            other.delivered() == 1
        });
    });
}

/// While one thread busy polls a queue for long in the seat, another queue of the CPU has its interrupts.
#[test]
fn a_long_busy_loop_leaves_no_descriptor_unwatched() {
    let host = host(1);
    let (polled, _polled_device) = fd_queue(&host, 0);
    let (other, device) = fd_queue(&host, 0);
    let sleeper = sleeping_thread(&other, 0, "sleeper", u64::from(u16::MAX));
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let worker = Worker::new(&host, 0).unwrap();
            let plan = polled.plan(BusyEnd::AfterUsecs(i32::MAX as u32));
            worker.turn().busy_loop(&plan, &mut |_| enough.load(Ordering::Acquire));
        });
        eventually("the loop", || polled.stats().busy_polls > 10);
        for count in 1..=20 {
            device.send(1);
            eventually("a packet of the other queue", || other.delivered() == count);
        }
        enough.store(true, Ordering::Release);
        poller.join().unwrap();
    });
    device.send(u64::from(u16::MAX) - 20);
    sleeper.join().unwrap();
}

/// As before, but nobody sleeps who would watch instead: the busy poller itself leaves the descriptors that its softirq
/// unmasked to the interrupt thread.
#[test]
fn a_busy_loop_beside_which_nobody_sleeps_leaves_no_descriptor_unwatched() {
    let host = host(1);
    let (polled, _polled_device) = fd_queue(&host, 0);
    let (other, device) = fd_queue(&host, 0);
    let worker = Worker::new(&host, 0).unwrap();
    let mut sent = 0;
    let start = std::time::Instant::now();
    worker.turn().busy_loop(&polled.plan(BusyEnd::AfterUsecs(i32::MAX as u32)), &mut |_| {
        if other.delivered() == sent && sent < 20 {
            sent += 1;
            device.send(1);
        }
        assert!(start.elapsed() < LONG, "{} of {sent} frames: nobody watches", other.delivered());
        other.delivered() == 20
    });
}

/// As before, but the busy poller watched the descriptors itself in a sleep of the same turn, and has kept the seat.
#[test]
fn a_busy_loop_behind_a_sleep_leaves_no_descriptor_unwatched() {
    let host = host(1);
    let (polled, _polled_device) = fd_queue(&host, 0);
    let (other, device) = fd_queue(&host, 0);
    let worker = Worker::new(&host, 0).unwrap();
    other.queue.wakes(&worker);
    let mut turn = worker.turn();
    let mut looks = 0;
    let woke = turn.sleep(&Sleep { until_ns: None, fd: None }, &mut || {
        looks += 1;
        if looks == 1 {
            device.send(1);
        }
        other.delivered() == 1
    });
    assert_eq!(woke, Woke::Ready);
    let (mut sent, start) = (false, std::time::Instant::now());
    turn.busy_loop(&polled.plan(BusyEnd::AfterUsecs(i32::MAX as u32)), &mut |_| {
        if !std::mem::replace(&mut sent, true) {
            device.send(1);
        }
        assert!(start.elapsed() < LONG, "nobody watches");
        other.delivered() == 2
    });
}

/// One round is over at once: whoever leaves the seat arms, and a call that sleeps again does not.
#[test]
fn a_round_behind_a_sleep_costs_no_system_call() {
    let host = host(1);
    let (bound, device) = fd_queue(&host, 0);
    let worker = Worker::new(&host, 0).unwrap();
    bound.queue.wakes(&worker);
    let mut turn = worker.turn();
    for end in [BusyEnd::OneRound, BusyEnd::LastPoll, BusyEnd::AfterUsecs(i32::MAX as u32)] {
        let count = bound.delivered() + 1;
        let mut sent = false;
        turn.sleep(&Sleep { until_ns: None, fd: None }, &mut || {
            if !std::mem::replace(&mut sent, true) {
                device.send(1);
            }
            bound.delivered() == count
        });
        let (before, mut looks) = (host.cpu_stats(0).syscalls, 0);
        turn.busy_loop(&bound.plan(end), &mut |_| {
            looks += 1;
            looks == 10
        });
        assert_eq!(host.cpu_stats(0).syscalls, before, "{end:?}");
    }
}

#[test]
fn a_flood_on_one_queue_leaves_no_descriptor_unwatched() {
    let host = host(1);
    let flood = Flood::new();
    let line = Arc::new(FloodLine(flood.clone()));
    let flooded = Bound::new(&host, 0, Box::new(FloodRx(flood.clone())), line);
    let (bound, device) = fd_queue(&host, 0);
    flood.start();
    eventually("ksoftirqd", || host.cpu_stats(0).ksoftirqd_wakes > 0);
    for count in 1..=20 {
        device.send(1);
        bound.await_delivered(count);
    }
    flood.stop();
    flooded.await_released();
}

#[test]
fn the_applications_own_descriptor_ends_a_sleep() {
    let host = host(1);
    let (bound, device) = fd_queue(&host, 0);
    let worker = Worker::new(&host, 0).unwrap();
    let own = rustix::event::eventfd(1, rustix::event::EventfdFlags::empty()).unwrap();
    let until_ns = Some(host.now_ns() + LONG.as_nanos() as u64);
    let woke = worker.turn().sleep(&Sleep { until_ns, fd: Some(own.as_fd()) }, &mut || false);
    assert_eq!(woke, Woke::Fd);
    device.send(1);
    bound.await_delivered(1);
}

/// More interrupts than a sleeping worker can watch: the interrupt thread watches the rest.
#[test]
fn there_may_be_more_descriptors_than_a_worker_watches() {
    let host = host(1);
    let queues: Vec<_> = (0..80).map(|_| fd_queue(&host, 0)).collect();
    let worker = Worker::new(&host, 0).unwrap();
    let all = || queues.iter().all(|(bound, _)| bound.delivered() == 1);
    queues.iter().for_each(|(bound, _)| bound.queue.wakes(&worker));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (_, device) in &queues {
                device.send(1);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let until_ns = Some(host.now_ns() + LONG.as_nanos() as u64);
        assert_eq!(worker.turn().sleep(&Sleep { until_ns, fd: None }, &mut || all()), Woke::Ready);
    });
}

/// A descriptor whose device is deleted: the kernel ends its watch, as it does for a TAP that is deleted.
#[test]
fn a_device_that_is_deleted_is_not_watched_any_more_and_the_others_are() {
    let host = host(1);
    let (deleted, gone) = fd_queue(&host, 0);
    let (bound, device) = fd_queue(&host, 0);
    gone.send(1);
    deleted.await_delivered(1);
    deleted.await_released();
    gone.delete();
    let worker = Worker::new(&host, 0).unwrap();
    for count in 1..=3 {
        // The watches go to the sleeping worker, and back to the interrupt thread while it computes.
        let until_ns = Some(host.now_ns() + 1_000_000);
        assert_eq!(worker.turn().sleep(&Sleep { until_ns, fd: None }, &mut || false), Woke::TimedOut);
        host.schedule(deleted.napi);
        device.send(1);
        bound.await_delivered(count);
        deleted.await_released();
    }
    host.disable(deleted.napi).unwrap();
}
