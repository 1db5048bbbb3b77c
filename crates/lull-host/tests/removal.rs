//! Instances that are removed: their places serve others, whoever still has their index finds nothing, and nobody else
//! loses anything by it.

#![cfg(not(loom))]

mod common;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use common::*;
use lull_core::{BusyEnd, NapiSettings, Threaded};
use lull_host::{Host, HostConfig, HostError, NapiBinding, Sleep, Worker};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, IrqLine, IrqSink};

/// Few enough that every place is used again and again.
const NAPIS_MAX: usize = 4;
const RECONNECTS: u32 = 10_000;

fn host(cpus: usize, napis_max: usize) -> Host {
    Host::new(HostConfig { cpus: vec![None; cpus], napis_max, ..HostConfig::default() }).unwrap()
}

/// A line whose sink somebody else keeps, longer than the instance lives.
struct Overheard(Arc<dyn IrqLine>, Arc<Mutex<Vec<Arc<dyn IrqSink>>>>);

impl IrqLine for Overheard {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.1.lock().unwrap().push(sink.clone());
        self.0.connect(sink);
    }

    fn mask(&self) {
        self.0.mask();
    }

    fn unmask(&self) {
        self.0.unmask();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

/// Ends the other threads, also when a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How the n-th connection is delivered.
fn settings(round: u32) -> NapiSettings {
    let deferred = NapiSettings { defer_hard_irqs: 3, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() };
    match round % 4 {
        0 => NapiSettings::default(),
        1 => deferred,
        2 => NapiSettings { irq_suspend_timeout_ns: 100_000, ..deferred },
        _ if round % 100 == 99 => NapiSettings { threaded: Threaded::On, ..NapiSettings::default() },
        _ => deferred,
    }
}

/// A device reconnects, while one worker polls whatever is there by its id, on another CPU too, and somebody raises the
/// lines of the present and of former instances. A second queue of the CPU must not lose an interrupt by it.
#[test]
fn a_device_reconnects_ten_thousand_times_while_its_queue_is_polled() {
    let host = host(2, NAPIS_MAX);
    let (steady, steady_client) = mem_queue(&host, 0);
    let threads_before = host.threads().len();
    let (over, id) = (AtomicBool::new(false), AtomicU32::new(0));
    let sinks: Arc<Mutex<Vec<Arc<dyn IrqSink>>>> = Arc::default();
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let (host, over, id, steady) = (&host, &over, &id, &steady);
            scope.spawn(move || {
                let worker = Worker::new(host, cpu).unwrap();
                while !over.load(Ordering::Acquire) {
                    let napi_id = id.load(Ordering::Acquire);
                    let end = BusyEnd::AfterUsecs(50);
                    worker.turn().busy_loop(&lull_core::BusyPlan { napi_id, ..steady.plan(end) }, &mut |_| false);
                    worker.turn().suspend(napi_id);
                    worker.turn().resume(napi_id);
                    let until_ns = Some(host.now_ns() + 20_000);
                    worker.turn().sleep(&Sleep { until_ns, fd: None }, &mut || over.load(Ordering::Acquire));
                }
            });
        }
        let raiser = (&over, &sinks);
        scope.spawn(move || {
            while !raiser.0.load(Ordering::Acquire) {
                let sinks = raiser.1.lock().unwrap().clone();
                sinks.iter().for_each(|sink| sink.raise());
                std::thread::yield_now();
            }
        });
        let _ends = Ends(&over);
        let mut steady_sent = 0;
        for round in 0..RECONNECTS {
            let (service, client) = mem::pair(MemConfig { ring_slots: 64, ..MemConfig::default() });
            let (ours, mut theirs) = (service.take_queue(0).unwrap(), client.take_queue(0).unwrap());
            let cpu = (round / 7 % 2) as u16;
            let bound = Bound::new(&host, cpu, ours.rx, Arc::new(Overheard(ours.irq, sinks.clone())));
            bound.set(settings(round));
            id.store(bound.id, Ordering::Release);
            if round % 100 == 99 {
                for sent in 1..=8 {
                    theirs.tx.transmit(lull_nic::Frame::copy_from(&[0; 64])).unwrap();
                    theirs.tx.doorbell();
                    bound.await_delivered(sent);
                }
                assert!(steady_client.send(1));
                steady_sent += 1;
                steady.await_delivered(steady_sent);
            }
            host.disable(bound.napi).unwrap();
            host.remove_device(bound.device).unwrap();
            let mut sinks = sinks.lock().unwrap();
            if sinks.len() > 8 {
                sinks.remove(0);
            }
        }
    });
    assert_eq!(host.napis().len(), 1);
    assert_eq!(host.threads().len(), threads_before, "NAPI threads end with their instances");
}

#[test]
fn what_is_enabled_cannot_be_removed_and_what_was_removed_is_not_there() {
    let host = host(1, NAPIS_MAX);
    let (bound, client) = mem_queue(&host, 0);
    for refused in [host.remove_napi(bound.napi), host.remove_device(bound.device)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, HostError::InUse { .. }), "{error}");
        assert!(error.to_string().ends_with("it is enabled; disable it first"), "{error}");
    }
    assert!(client.send(1));
    bound.await_delivered(1);
    host.disable(bound.napi).unwrap();
    host.remove_napi(bound.napi).unwrap();
    assert!(host.napis().is_empty());
    assert_eq!((host.napi_id(bound.napi), host.napi_cpu(bound.napi)), (0, None));
    let settings = NapiSettings::default();
    for refused in [
        host.remove_napi(bound.napi),
        host.enable(bound.napi).map(|_| ()),
        host.disable(bound.napi),
        host.set_napi(bound.napi, &settings),
    ] {
        assert!(matches!(refused, Err(HostError::Removed { napi }) if napi == bound.napi), "{refused:?}");
    }
    host.remove_device(bound.device).unwrap();
    for refused in [host.remove_device(bound.device), host.set_device(bound.device, &settings)] {
        assert!(matches!(refused, Err(HostError::NoDevice { .. })), "{refused:?}");
    }
    let worker = Worker::new(&host, 0).unwrap();
    assert_eq!(worker.turn().busy_loop(&bound.plan(BusyEnd::AfterUsecs(i32::MAX as u32)), &mut |_| false), None);
}

/// The line that raises belongs to an instance that is gone, and the place to another.
#[test]
fn the_line_of_a_removed_instance_raises_nothing() {
    let host = host(1, 1);
    let flood = Flood::new();
    let gone = Bound::new(&host, 0, Box::new(FloodRx(flood.clone())), Arc::new(FloodLine(flood.clone())));
    host.disable(gone.napi).unwrap();
    host.remove_napi(gone.napi).unwrap();
    let (bound, client) = mem_queue(&host, 0);
    assert_ne!((bound.napi, bound.id), (gone.napi, gone.id), "neither is given out twice");
    let interrupts = host.cpu_stats(0).interrupts;
    FloodLine(flood.clone()).unmask();
    flood.start();
    host.room_sink(gone.napi).raise();
    host.schedule(gone.napi);
    host.delivery().set_receiver_deadline(gone.napi, 1);
    host.delivery().take_down_queue(gone.napi, "a late call");
    // What comes later on the same CPU was delivered, so what came earlier was seen to.
    assert!(client.send(1));
    bound.await_delivered(1);
    // A poll is counted when it returns, which is after it delivered.
    bound.await_released();
    assert_eq!(host.cpu_stats(0).interrupts, interrupts + 1);
    assert_eq!(bound.stats().polls, 1);
}

/// Both interrupts are on the CPU's list, the steady one behind the other, when that one's instance is removed.
#[test]
fn interrupts_in_flight_behind_that_of_a_removed_instance_arrive() {
    for place_is_taken_again in [false, true] {
        let host = host(1, 2);
        let (steady, client) = mem_queue(&host, 0);
        let flood = Flood::new();
        let gone = Bound::new(&host, 0, Box::new(FloodRx(flood.clone())), Arc::new(FloodLine(flood.clone())));
        let mut later = None;
        let worker = Worker::new(&host, 0).unwrap();
        steady.queue.wakes(&worker);
        worker.turn().sleep(&Sleep { until_ns: None, fd: None }, &mut || {
            // The worker has the seat here, so that interrupts wait for it.
            if later.is_none() {
                assert!(client.send(1));
                flood.start();
                host.disable(gone.napi).unwrap();
                host.remove_napi(gone.napi).unwrap();
                later = Some(place_is_taken_again.then(|| mem_queue(&host, 0)));
                return false;
            }
            steady.delivered() == 1
        });
    }
}

#[test]
fn a_full_table_says_what_to_do_and_has_room_after_a_removal() {
    let host = host(1, 1);
    let (first, _client) = mem_queue(&host, 0);
    let add = || {
        let device = host.add_device("second", 1, true);
        let (ours, theirs) = mem::pair(MemConfig::default());
        let queue = ours.take_queue(0).unwrap();
        let receiver = Counting::new(queue.rx);
        host.add_napi(NapiBinding { device, queue: 0, cpu: 0, irq: queue.irq, receiver }).map(|napi| (napi, theirs))
    };
    let error = add().map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("1 NAPI instances (HostConfig::napis_max): remove those of devices that are gone"),
        "{error}"
    );
    host.disable(first.napi).unwrap();
    host.remove_napi(first.napi).unwrap();
    let (second, _theirs) = add().unwrap();
    assert_ne!(second, first.napi);
    host.enable(second).unwrap();
}

/// The remedy that the error names.
#[test]
fn a_queue_that_a_panic_took_down_is_removed_and_added_anew() {
    let host = host(1, 1);
    let (bad, client) = mem_queue(&host, 0);
    bad.queue.panic_in("poll", "irq/");
    assert!(client.send(1));
    eventually("the queue to be taken down", || bad.queue.is_down(&host.delivery()));
    host.disable(bad.napi).unwrap();
    let error = host.enable(bad.napi).unwrap_err().to_string();
    assert!(error.ends_with("remove it and add it anew"), "{error}");
    host.remove_napi(bad.napi).unwrap();
    let (service, client) = mem::pair(MemConfig::default());
    let (ours, mut theirs) = (service.take_queue(0).unwrap(), client.take_queue(0).unwrap());
    let anew = Bound::on_known_device(&host, bad.device, 0, ours.rx, ours.irq);
    theirs.tx.transmit(lull_nic::Frame::copy_from(&[0; 64])).unwrap();
    theirs.tx.doorbell();
    anew.await_delivered(1);
}

/// A worker that sleeps in the seat polls the descriptors itself: it lets go of one that is removed and watches the others
/// on.
#[test]
fn a_descriptor_is_closed_though_a_worker_slept_on_it() {
    let host = host(1, 2);
    let (other, other_device) = fd_queue(&host, 0);
    let (removed, removed_device) = fd_queue(&host, 0);
    let thread = sleeping_thread(&other, 0, "worker", 1);
    host.disable(removed.napi).unwrap();
    host.remove_device(removed.device).unwrap();
    let device = Arc::downgrade(&removed_device);
    drop((removed, removed_device));
    eventually("the descriptor to be closed", || device.strong_count() == 0);
    let (_third, _device) = fd_queue(&host, 0);
    other_device.send(1);
    thread.join().unwrap();
}

/// The timer of an instance runs on the CPU that completed its poll, which is not always the interrupt's (§6); and that
/// CPU forgets it with the removal.
#[test]
fn timers_on_another_cpu_fire_there_and_are_forgotten_with_the_instance() {
    let host = host(2, 2);
    let (bound, client) = mem_queue(&host, 1);
    bound.set(NapiSettings { defer_hard_irqs: 2, gro_flush_timeout_ns: 1_000_000, ..NapiSettings::default() });
    let worker = Worker::new(&host, 0).unwrap();
    let (mut sent, mut before) = (0, 0);
    for round in 1..=20 {
        worker.turn().busy_loop(&bound.plan(BusyEnd::AfterUsecs(i32::MAX as u32)), &mut |_| {
            if sent < round {
                sent += 1;
                assert!(client.send(1));
            }
            // The timer that the end of the loop starts may have fired before this thread runs on.
            before = bound.stats().timer_fires;
            bound.delivered() == round
        });
        // The worker computes: the interrupt stays masked until the timers of its CPU have run out.
        eventually("a timer", || bound.stats().timer_fires > before);
    }
    host.disable(bound.napi).unwrap();
    host.remove_napi(bound.napi).unwrap();
    let receiver = Arc::downgrade(&bound.queue);
    drop(bound);
    eventually("nobody to have the instance", || receiver.strong_count() == 0);
}
