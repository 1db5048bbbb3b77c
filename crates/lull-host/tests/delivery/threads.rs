//! ksoftirqd, and NAPI threads.

use super::*;

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
