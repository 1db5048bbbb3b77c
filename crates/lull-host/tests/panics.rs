//! A panic above one queue takes that queue down and nothing else, in whatever context it comes; anywhere else it ends the
//! process with a message that says where.

#![cfg(not(loom))]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use lull_core::event::{Event, EventSink};
use lull_core::{BusyEnd, NapiSettings, Threaded};
use lull_host::{GroupOptions, Host, HostConfig, HostError, Sleep, Woke, Worker};

const LONG_BUSY: BusyEnd = BusyEnd::AfterUsecs(i32::MAX as u32);

/// Two queues on one CPU, one of which is to fail.
struct Cpu {
    host: Host,
    bad: Bound,
    bad_client: Client,
    good: Bound,
    good_client: Client,
}

impl Cpu {
    fn new() -> Cpu {
        let host = Host::new(HostConfig::default()).unwrap();
        let (bad, bad_client) = mem_queue(&host, 0);
        let (good, good_client) = mem_queue(&host, 0);
        Cpu { host, bad, bad_client, good, good_client }
    }

    fn send_to_bad(&self) {
        assert!(self.bad_client.send(1));
    }

    /// Exactly the one queue is down: with its reason, its shard, its waiters and its operator knowing, and the other
    /// delivers in every way.
    #[track_caller]
    fn assert_only_the_bad_queue_is_down(self, context: &str) {
        let Cpu { host, bad, bad_client, good, good_client } = self;
        let failure = |bound: &Bound| host.napis()[bound.napi as usize].failure.clone();
        eventually("the queue to be taken down", || failure(&bad).is_some() && bad.queue.is_down(&host.delivery()));
        let why = failure(&bad).expect("the failure is reported");
        assert!(why.contains(context), "{why}");
        assert_eq!(failure(&good), None);

        let mut delivered = good.delivered();
        let mut one_more = || {
            assert!(good_client.send(1));
            delivered += 1;
            good.await_delivered(delivered);
        };
        one_more();
        std::thread::scope(|scope| {
            let (host, bad) = (&host, &bad);
            let sleeper = sleeping_thread(&good, 0, "sleeper", good.delivered() + 1);
            one_more();
            sleeper.join().unwrap();
            // Whoever polls the queue that is down finds nothing, and comes back.
            let poller = scope
                .spawn(move || Worker::new(host, 0).unwrap().turn().busy_loop(&bad.plan(LONG_BUSY), &mut |_| false));
            poller.join().unwrap();
            let before = bad.delivered();
            assert!(bad_client.send(1));
            one_more();
            assert_eq!(bad.delivered(), before, "nobody delivers from a queue that is down");
        });
        // Nothing was left owned, so this does not wait for ever; and it stays down.
        let (told, done) = std::sync::mpsc::channel();
        let (operator, napi) = (host.clone(), 0);
        std::thread::spawn(move || told.send((operator.disable(napi), operator.enable(napi))));
        let (disabled, enabled) = done.recv_timeout(LONG).expect("the ownership was let go");
        assert!(disabled.is_ok());
        assert!(matches!(enabled, Err(HostError::Failed { .. })), "{enabled:?}");
        one_more();
    }
}

#[test]
fn a_queue_that_is_down_is_refused_by_a_group_with_the_reason() {
    let cpu = Cpu::new();
    cpu.bad.queue.panic_in("poll", "irq/");
    cpu.send_to_bad();
    eventually("the queue to be down", || cpu.host.napis()[0].failure.is_some());
    let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    let group = cpu.host.new_group(options).unwrap();
    cpu.host.group_attach(group, 0).unwrap();
    let refused = cpu.host.group_add(group, 0, 64).unwrap_err();
    assert!(matches!(&refused, HostError::Failed { napi: 0, why } if why.contains("softirq")), "{refused}");
    cpu.host.group_add(group, 1, 64).unwrap();
}

#[test]
fn in_softirq_in_the_interrupt_thread() {
    let cpu = Cpu::new();
    cpu.bad.queue.panic_in("poll", "irq/");
    cpu.send_to_bad();
    cpu.assert_only_the_bad_queue_is_down("softirq");
}

#[test]
fn in_softirq_in_a_worker_that_sleeps_in_the_seat_and_waits_for_the_queue() {
    let cpu = Cpu::new();
    let (queue, delivery) = (cpu.bad.queue.clone(), cpu.host.delivery());
    let asleep = cpu.host.cpu_stats(0).syscalls;
    let waiter = worker_thread(&cpu.bad, 0, "worker", move |worker| {
        let woke = worker.turn().sleep(&Sleep { until_ns: None, fd: None }, &mut || queue.is_down(&delivery));
        assert_eq!(woke, Woke::Ready, "waiters are told");
    });
    eventually("the worker to sleep", || cpu.host.cpu_stats(0).syscalls > asleep);
    // Whichever of the two has the seat.
    cpu.bad.queue.panic_in("poll", "");
    cpu.send_to_bad();
    waiter.join().unwrap();
    cpu.assert_only_the_bad_queue_is_down("softirq");
}

#[test]
fn in_ksoftirqd() {
    let cpu = Cpu::new();
    let flood = Flood::new();
    let flooded = Bound::new(&cpu.host, 0, Box::new(FloodRx(flood.clone())), Arc::new(FloodLine(flood.clone())));
    flood.start();
    eventually("ksoftirqd", || cpu.host.cpu_stats(0).ksoftirqd_wakes > 0);
    cpu.bad.queue.panic_in("poll", "ksoftirqd/");
    let mut sent = 0;
    eventually("a poll by ksoftirqd", || {
        // The interrupt thread may take one in between.
        if sent == cpu.bad.delivered() {
            sent += 1;
            cpu.send_to_bad();
        }
        cpu.bad.queue.is_down(&cpu.host.delivery())
    });
    flood.stop();
    flooded.await_released();
    cpu.assert_only_the_bad_queue_is_down("softirq");
}

#[test]
fn in_the_busy_loop() {
    let cpu = Cpu::new();
    let worker = Worker::new(&cpu.host, 0).unwrap();
    let mut sent = false;
    worker.turn().busy_loop(&cpu.bad.plan(LONG_BUSY), &mut |_| {
        if !std::mem::replace(&mut sent, true) {
            cpu.bad.queue.panic_in("poll", "");
            cpu.send_to_bad();
        }
        false
    });
    drop(worker);
    cpu.assert_only_the_bad_queue_is_down("busy polling");
}

#[test]
fn in_the_last_poll_of_a_busy_loop_of_a_thread_without_a_worker() {
    let cpu = Cpu::new();
    cpu.host.delivery().busy_loop(&cpu.bad.plan(BusyEnd::OneRound), &mut |_| {
        cpu.bad.queue.panic_in("poll", "");
        cpu.send_to_bad();
        true
    });
    cpu.assert_only_the_bad_queue_is_down("the last poll of a busy loop");
}

#[test]
fn in_a_napi_thread() {
    for threaded in [Threaded::On, Threaded::BusyPoll] {
        let cpu = Cpu::new();
        cpu.bad.set(NapiSettings { threaded, ..NapiSettings::default() });
        cpu.bad.queue.panic_in("poll", "napi/");
        cpu.send_to_bad();
        cpu.assert_only_the_bad_queue_is_down("a NAPI thread");
    }
}

#[test]
fn in_timers() {
    let cpu = Cpu::new();
    cpu.bad.queue.panic_in("timers", "irq/");
    cpu.host.delivery().set_receiver_deadline(cpu.bad.napi, cpu.host.now_ns());
    cpu.assert_only_the_bad_queue_is_down("timers");
}

/// The caller's own work is done and its call returns; only the poll that it made for softirq failed.
#[test]
fn in_a_poll_for_a_softirq_that_found_the_shard_locked() {
    let cpu = Cpu::new();
    cpu.bad.queue.panic_in("poll", "");
    cpu.bad.queue.call(&cpu.host.delivery(), || {
        cpu.send_to_bad();
        eventually("softirq to leave its ownership", || cpu.bad.queue.handed() == 1);
    });
    cpu.assert_only_the_bad_queue_is_down("a poll for softirq");
}

/// An ownership that softirq parks with a holder that panics is let go.
#[test]
fn in_a_call_while_softirq_leaves_its_ownership() {
    let cpu = Cpu::new();
    let delivery = cpu.host.delivery();
    let called = catch_unwind(AssertUnwindSafe(|| {
        cpu.bad.queue.call(&delivery, || {
            cpu.send_to_bad();
            eventually("softirq to leave its ownership", || cpu.bad.queue.handed() == 1);
            panic!("a bug in a socket call");
        });
    }));
    assert!(called.is_err(), "the caller's own panic is the caller's");
    delivery.take_down_queue(cpu.bad.napi, "a socket call");
    cpu.assert_only_the_bad_queue_is_down("a socket call");
}

#[test]
fn a_device_that_takes_more_than_its_budget_is_taken_down() {
    let cpu = Cpu::new();
    let greedy = Flood::new();
    let line = Arc::new(FloodLine(greedy.clone()));
    let bound = Bound::new(&cpu.host, 0, Box::new(GreedyRx(greedy.clone())), line);
    greedy.start();
    eventually("the queue to be taken down", || cpu.host.napis()[bound.napi as usize].failure.is_some());
    let why = cpu.host.napis()[bound.napi as usize].failure.clone().unwrap();
    assert!(why.contains("took 65 packets with a budget of 64"), "{why}");
    greedy.stop();
    assert!(cpu.good_client.send(1));
    cpu.good.await_delivered(1);
}

/// What the application looks for, while its thread has the seat and owns a queue, is the application's own code.
#[test]
fn a_panic_of_the_application_gives_the_seat_and_the_ownership_back() {
    let cpu = Cpu::new();
    let worker = Worker::new(&cpu.host, 0).unwrap();
    let polled = catch_unwind(AssertUnwindSafe(|| {
        worker.turn().busy_loop(&cpu.bad.plan(LONG_BUSY), &mut |_| panic!("the application's"));
    }));
    assert!(polled.is_err());
    let guest = catch_unwind(AssertUnwindSafe(|| {
        cpu.host.delivery().busy_loop(&cpu.good.plan(LONG_BUSY), &mut |_| panic!("the application's"));
    }));
    assert!(guest.is_err());
    let slept = catch_unwind(AssertUnwindSafe(|| {
        let sleep = Sleep { until_ns: None, fd: None };
        worker.turn().sleep(&sleep, &mut || panic!("the application's"))
    }));
    assert!(slept.is_err());
    for (bound, client) in [(&cpu.bad, &cpu.bad_client), (&cpu.good, &cpu.good_client)] {
        bound.await_released();
        assert!(client.send(1));
        bound.await_delivered(1);
    }
}

struct Panics(AtomicBool);

impl EventSink for Panics {
    fn event(&self, event: Event) {
        if matches!(event.kind, lull_core::event::EventKind::Irq) && self.0.swap(false, Ordering::AcqRel) {
            panic!("a bug in the sink");
        }
    }
}

/// The process that ends is this test once more, as a child.
#[test]
fn a_panic_outside_any_queue_ends_the_process_and_says_where() {
    const CHILD: &str = "LULL_TEST_PANICS_OUTSIDE_ANY_QUEUE";
    if std::env::var_os(CHILD).is_some() {
        let sink: Box<dyn EventSink + Send> = Box::new(Panics(AtomicBool::new(true)));
        let host = Host::new(HostConfig { sink: Some(sink), ..HostConfig::default() }).unwrap();
        let (bound, client) = mem_queue(&host, 0);
        assert!(client.send(1));
        bound.await_delivered(1);
        return;
    }
    let this = std::env::current_exe().unwrap();
    let name = "a_panic_outside_any_queue_ends_the_process_and_says_where";
    let child = Command::new(this).args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&child.stderr);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.status), Some(6), "aborted: {stderr}");
    assert!(stderr.contains("lull: a panic in the event sink"), "{stderr}");
}
