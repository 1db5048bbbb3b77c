//! What operators do, and what they see.

use super::*;

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
            world.host.schedule(bound.napi);
            await_standing_by(&world.host);
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

/// Whether a thread of this process sleeps until somebody wakes it: in a call that waits, without a time limit. `None`: the
/// kernel does not say in which call a thread is.
fn sleeps_until_woken(tid: i32) -> Option<bool> {
    let said = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?;
    // "number argument argument ... stack-pointer program-counter", or "running".
    let words: Vec<&str> = said.split_whitespace().collect();
    let [number, arguments @ ..] = &words[..] else { return Some(false) };
    let limit = match number.parse::<i64>() {
        Ok(libc::SYS_futex) => arguments[3],
        Ok(libc::SYS_ppoll) => arguments[2],
        _ => return Some(false),
    };
    Some(limit == "0x0")
}

/// It does not look again by the clock, either: whatever wakes a thread is something that happened.
#[test]
fn an_idle_host_sleeps_until_it_is_woken() {
    let world = World::new();
    let (tell, told) = channel();
    let queue = world.bound.queue.clone();
    let thread = worker_thread(&world.bound, 0, "worker", move |worker| {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let woke = worker.turn().sleep(&Sleep { until_ns: None, fd: None }, &mut || queue.delivered() >= 1);
        assert_eq!(woke, Woke::Ready);
    });
    let sleepers =
        [vec![told.recv().unwrap()], world.host.threads().iter().map(|thread| thread.tid).collect()].concat();
    assert_eq!(sleepers.len(), 3, "the worker, the interrupt thread, ksoftirqd");
    if sleepers_tell(&sleepers) {
        eventually("a sleep without a time limit", || {
            sleepers.iter().all(|tid| sleeps_until_woken(*tid) == Some(true))
        });
    }
    let idle = world.host.cpu_stats(0);
    assert_eq!((idle.interrupts, idle.timer_ops), (0, 0), "{idle:?}");
    assert!(world.client.send(1));
    thread.join().unwrap();
}

fn sleepers_tell(sleepers: &[i32]) -> bool {
    let tell = sleepers.iter().all(|tid| sleeps_until_woken(*tid).is_some());
    if !tell {
        println!("SKIP: how an idle host sleeps: this kernel has no /proc/self/task/TID/syscall");
    }
    tell
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
