//! No lost wake-up: interrupts at random against workers that sleep, compute, busy poll, suspend and resume at random,
//! under settings that change at random. A packet that waits for more than two minutes fails the test.

#![cfg(not(loom))]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use lull_core::{BusyEnd, NapiSettings, Threaded};
use lull_host::{Host, HostConfig, Sleep, Worker};

/// What the traffic of one run may take, and how long a packet may wait.
/// How long traffic goes on at least, ...
const RUN: Duration = Duration::from_millis(1_500);
/// ... and how often its packets are waited for: a busy machine does little in that time.
const ROUNDS_MIN: u32 = 50;
const WAIT: Duration = Duration::from_secs(120);

/// xorshift64*: the choices of a run follow from its seed, though the interleaving does not.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

fn settings(random: &mut Random, with_threads: bool) -> NapiSettings {
    let us = 1_000;
    match random.below(if with_threads { 7 } else { 5 }) {
        0 => NapiSettings::default(),
        1 => NapiSettings { defer_hard_irqs: 2, gro_flush_timeout_ns: 20 * us, ..NapiSettings::default() },
        2 => NapiSettings { defer_hard_irqs: 100, gro_flush_timeout_ns: 300 * us, ..NapiSettings::default() },
        3 | 4 => NapiSettings {
            defer_hard_irqs: 3,
            gro_flush_timeout_ns: 50 * us,
            irq_suspend_timeout_ns: 2_000 * us,
            ..NapiSettings::default()
        },
        5 => NapiSettings { threaded: Threaded::On, ..NapiSettings::default() },
        _ => NapiSettings { threaded: Threaded::BusyPoll, ..NapiSettings::default() },
    }
}

fn spin(random: &mut Random, us: u64) {
    let until = Instant::now() + Duration::from_micros(random.below(us));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// One thing that an application does.
fn work(worker: &Worker, queues: &[&Bound], random: &mut Random, stop: &AtomicBool) {
    let bound = queues[random.below(queues.len() as u64) as usize];
    let now_ns = worker.host().now_ns();
    match random.below(10) {
        0..=2 => {
            let seen: Vec<u64> = queues.iter().map(|bound| bound.delivered()).collect();
            let until_ns = (random.below(2) == 0).then(|| now_ns + random.below(3_000_000));
            worker.turn().sleep(&Sleep { until_ns, fd: None }, &mut || {
                stop.load(Ordering::Acquire) || queues.iter().zip(&seen).any(|(bound, seen)| bound.delivered() > *seen)
            });
        }
        3 => spin(random, 500),
        4 => worker.poll_point(),
        5 => {
            let usecs = random.below(100) as u32;
            let end = if usecs < 50 { BusyEnd::OneRound } else { BusyEnd::AfterUsecs(usecs) };
            worker.turn().busy_loop(&bound.plan(end), &mut |_| stop.load(Ordering::Relaxed));
        }
        6 => {
            worker.turn().suspend(bound.id);
            spin(random, 300);
        }
        7 => worker.turn().resume(bound.id),
        // Softirq that comes meanwhile leaves its ownership with the caller.
        _ => bound.queue.call(&bound.host.delivery(), || spin(random, 50)),
    }
}

/// A device's side: some frames, then until they are delivered nothing, for at most [`WAIT`].
fn traffic(bound: &Bound, send: &dyn Fn(u64), random: &mut Random, until: Instant) {
    let mut sent = 0;
    for round in 0.. {
        if round >= ROUNDS_MIN && Instant::now() >= until {
            break;
        }
        for _ in 0..=random.below(3) {
            let frames = 1 + random.below(70);
            send(frames);
            sent += frames;
            spin(random, 60);
        }
        let start = Instant::now();
        while bound.delivered() < sent {
            if start.elapsed() > WAIT {
                panic!("{} of {sent} packets after {WAIT:?}: {:#?}", bound.delivered(), bound.host.napis());
            }
            std::thread::yield_now();
        }
        assert_eq!(bound.delivered(), sent);
        if random.below(4) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(2_000)));
        }
    }
}

/// A queue and its device's side.
type Sends = (Bound, Box<dyn Fn(u64) + Send + Sync>);

fn mem_device(host: &Host, cpu: u16) -> Sends {
    let (bound, client) = mem_queue(host, cpu);
    (bound, Box::new(move |frames| assert!(client.send(frames as usize))))
}

fn fd_device(host: &Host, cpu: u16) -> Sends {
    let (bound, device) = fd_queue(host, cpu);
    (bound, Box::new(move |frames| device.send(frames)))
}

fn run(seed: u64, cpus: usize, workers: usize, with_threads: bool) {
    let host = Host::new(HostConfig { cpus: vec![None; cpus], ..HostConfig::default() }).unwrap();
    let last = cpus as u16 - 1;
    let devices = [mem_device(&host, 0), mem_device(&host, last), fd_device(&host, last)];
    run_over(seed, &host, &devices, workers, with_threads);
}

fn run_over(seed: u64, host: &Host, devices: &[Sends], workers: usize, with_threads: bool) {
    let queues: Vec<&Bound> = devices.iter().map(|(bound, _)| bound).collect();
    let cpus = host.cpus();
    let until = Instant::now() + RUN;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for at in 0..workers {
            let (queues, stop) = (&queues, &stop);
            let worker = Worker::new(host, (at % cpus) as u16).unwrap();
            queues.iter().for_each(|bound| bound.queue.wakes(&worker));
            scope.spawn(move || {
                let mut random = Random(seed + 1 + at as u64);
                while !stop.load(Ordering::Acquire) {
                    work(&worker, queues, &mut random, stop);
                }
            });
        }
        let operator = {
            let (queues, stop) = (&queues, &stop);
            scope.spawn(move || {
                let mut random = Random(seed + 100);
                while !stop.load(Ordering::Acquire) {
                    let bound = queues[random.below(queues.len() as u64) as usize];
                    if random.below(10) == 0 {
                        bound.host.disable(bound.napi).unwrap();
                        bound.host.enable(bound.napi).unwrap();
                    } else {
                        bound.set(settings(&mut random, with_threads));
                    }
                    std::thread::sleep(Duration::from_millis(random.below(20)));
                }
            })
        };
        let devices = devices.iter().enumerate().map(|(at, (bound, send))| {
            scope.spawn(move || traffic(bound, send, &mut Random(seed + 200 + at as u64), until))
        });
        let ended: Vec<_> = devices.collect::<Vec<_>>().into_iter().map(|device| device.join()).collect();
        stop.store(true, Ordering::Release);
        // Those who sleep for ever wait for this.
        queues.iter().for_each(|bound| bound.queue.wake_all());
        operator.join().unwrap();
        ended.into_iter().for_each(|device| device.unwrap());
    });
}

#[test]
fn stress_three_workers_on_one_cpu() {
    run(0x5eed, 1, 3, false);
}

#[test]
fn stress_two_cpus_with_napi_threads() {
    run(0xfeed, 2, 3, true);
}

#[test]
fn stress_no_worker_at_all() {
    run(0xbead, 1, 0, false);
}

/// Several queues repair each other: an interrupt of one has the CPU look after all. With one queue, what is lost stays lost.
#[test]
fn stress_one_queue() {
    for (seed, device) in [(0xace, mem_device as fn(&Host, u16) -> Sends), (0xbee, fd_device)] {
        for workers in [0, 1, 2] {
            let host = Host::new(HostConfig::default()).unwrap();
            let devices = [device(&host, 0)];
            run_over(seed + workers as u64, &host, &devices, workers, workers == 2);
        }
    }
}
