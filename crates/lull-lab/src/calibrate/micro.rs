//! What single operations of this machine take, one at a time.
//!
//! Each is measured in batches, and what counts is the middle batch: whatever else runs on the machine makes some of them
//! slow and none fast.

use std::hint::black_box;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lull_host::{pin_thread, thread_cpu_ns, thread_id};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::stats::{self, Estimate};

/// Batches of an operation.
const BATCHES: usize = 25;
/// Operations in a batch, of those that take a microsecond or less.
const OPERATIONS: usize = 2_000;
/// Wake-ups, timers and interruptions that are measured.
const WAKES: usize = 300;
/// Between two wake-ups: the thread that is woken is asleep by then.
const PAUSE: Duration = Duration::from_micros(200);
/// What follows a wake-up within this time is its doing.
const AFTER_NS: u64 = 150_000;
/// A look at the clock that comes so much later than the one before was interrupted.
const GAP_NS: u64 = 1_000;
/// How long a timer is asked to take.
const TIMER_NS: i64 = 20_000;
/// Bytes that are copied at a time, and those that no cache holds.
const COPY_BYTES: usize = 4 << 10;
const COLD_BYTES: usize = 256 << 20;

/// A measured operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Micro {
    /// What it is, in words.
    pub what: &'static str,
    /// The key of a world file that it is measured for, if it is for one alone.
    pub key: Option<&'static str>,
    /// Nanoseconds.
    pub ns: Estimate,
}

/// Measures everything on the core of a service and that of a generator, which may be the same.
///
/// # Errors
/// A descriptor that the system refuses, or a core.
pub fn measure(service: usize, generator: usize) -> io::Result<Vec<Micro>> {
    // A core that cannot be used is said before a thread waits for another.
    on(service, || Ok(()))?;
    on(generator, || Ok(()))?;
    let mut all = vec![
        micro("system call", None, &on(service, system_calls)?),
        micro("copying 1 KiB, warm", None, &on(service, || Ok(copies(COPY_BYTES)))?),
        micro("copying 1 KiB, cold", None, &on(service, || Ok(copies(COLD_BYTES)))?),
        micro("switch between threads of a core", Some("costs.switch"), &switches(service)?),
        micro("starting a kernel timer", Some("costs.timer_start"), &on(service, timer_starts)?),
        micro("lateness of a timer of 20 us", Some("costs.timer_late"), &on(service, timer_lateness)?),
    ];
    if service == generator {
        return Ok(all);
    }
    let woken = wakes(service, generator)?;
    all.push(micro(
        "waking a thread of another core: the waker's time (doorbell in memory)",
        Some("costs.wake"),
        &woken.waker,
    ));
    all.push(micro("until it runs", Some("costs.idle_shallow_exit"), &woken.latency));
    all.push(micro("CPU time of sleeping and being woken", Some("costs.epoll_sleep"), &[woken.sleep_ns]));
    let broken = interruptions(service, generator)?;
    all.push(micro("a thread that wakes on a busy core: what it takes from the other", Some("costs.irq"), &broken));
    Ok(all)
}

fn micro(what: &'static str, key: Option<&'static str>, samples: &[f64]) -> Micro {
    Micro { what, key, ns: stats::median(samples).unwrap_or(Estimate::exact(0.0)) }
}

/// Runs on a thread that is pinned to a core: the caller's is left where it is.
fn on<T: Send>(core: usize, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let pinned = || pin_thread(&[core]).and_then(|()| work());
    std::thread::scope(|scope| scope.spawn(pinned).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Nanoseconds an operation, batch by batch.
fn batches(operations: usize, mut each: impl FnMut()) -> Vec<f64> {
    let mut batch = || {
        let start = Instant::now();
        (0..operations).for_each(|_| each());
        start.elapsed().as_nanos() as f64 / operations as f64
    };
    batch();
    (0..BATCHES).map(|_| batch()).collect()
}

fn system_calls() -> io::Result<Vec<f64>> {
    Ok(batches(OPERATIONS, || {
        black_box(rustix::process::getppid());
    }))
}

/// Copies out of a buffer of `from_bytes`, in turn: nanoseconds a KiB.
fn copies(from_bytes: usize) -> Vec<f64> {
    let from = vec![1u8; from_bytes];
    let mut to = vec![0u8; COPY_BYTES];
    let mut at = 0;
    let each = || {
        to.copy_from_slice(black_box(&from[at..at + COPY_BYTES]));
        black_box(&mut to);
        at = (at + COPY_BYTES) % from_bytes;
    };
    batches(OPERATIONS, each).into_iter().map(|ns| ns * 1_024.0 / COPY_BYTES as f64).collect()
}

fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC)?)
}

fn signal(event: &OwnedFd) -> io::Result<()> {
    rustix::io::write(event, &1u64.to_ne_bytes())?;
    Ok(())
}

fn wait(event: &OwnedFd) -> io::Result<()> {
    rustix::io::read(event, &mut [0u8; 8])?;
    Ok(())
}

/// Two threads of a core wake each other in turn: half a round is a wake-up, a sleep and a switch.
fn switches(core: usize) -> io::Result<Vec<f64>> {
    let rounds = OPERATIONS / 4;
    let (there, back) = (event()?, event()?);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| -> io::Result<()> {
            pin_thread(&[core])?;
            // One batch more, which warms up.
            for _ in 0..(BATCHES + 1) * rounds {
                wait(&there)?;
                signal(&back)?;
            }
            Ok(())
        });
        let asked = on(core, || {
            let mut failed = None;
            let samples = batches(rounds, || {
                if let Err(error) = signal(&there).and_then(|()| wait(&back)) {
                    failed = Some(error);
                }
            });
            failed.map_or(Ok(samples), Err)
        });
        let answered = answering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        answered.and(asked).map(|samples| samples.into_iter().map(|ns| ns / 2.0).collect())
    })
}

fn timer() -> io::Result<OwnedFd> {
    Ok(rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?)
}

fn set(timer: &OwnedFd, ns: i64) -> io::Result<()> {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let once = Itimerspec {
        it_interval: none,
        it_value: Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 },
    };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

/// Moves a timer between two near times: each write goes to the clock event device.
fn timer_starts() -> io::Result<Vec<f64>> {
    let timer = timer()?;
    set(&timer, 1_000_000)?;
    let mut near = false;
    Ok(batches(OPERATIONS / 4, || {
        near = !near;
        // It was accepted above.
        let _ = set(&timer, if near { 500_000 } else { 1_000_000 });
    }))
}

fn timer_lateness() -> io::Result<Vec<f64>> {
    let timer = timer()?;
    let mut late = Vec::with_capacity(WAKES);
    for _ in 0..WAKES {
        let start = Instant::now();
        set(&timer, TIMER_NS)?;
        wait(&timer)?;
        late.push((start.elapsed().as_nanos() as f64 - TIMER_NS as f64).max(0.0));
    }
    Ok(late)
}

/// What wakes showed.
struct Wakes {
    waker: Vec<f64>,
    latency: Vec<f64>,
    /// CPU time of the thread that slept, for each sleep.
    sleep_ns: f64,
}

/// Spins: a thread that sleeps would let its core go idle.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A thread of one core wakes one that sleeps on another.
fn wakes(sleeper: usize, waker: usize) -> io::Result<Wakes> {
    let (event, start, awake_ns) = (event()?, Instant::now(), AtomicU64::new(0));
    let now_ns = || start.elapsed().as_nanos() as u64;
    std::thread::scope(|scope| {
        let sleeping = scope.spawn(|| -> io::Result<f64> {
            pin_thread(&[sleeper])?;
            let before_ns = thread_cpu_ns(thread_id())?;
            for _ in 0..WAKES {
                wait(&event)?;
                awake_ns.store(now_ns(), Ordering::Release);
            }
            Ok((thread_cpu_ns(thread_id())? - before_ns) as f64 / WAKES as f64)
        });
        let (waking, latency) = on(waker, || {
            let (mut waking, mut latency) = (Vec::with_capacity(WAKES), Vec::with_capacity(WAKES));
            for _ in 0..WAKES {
                spin(PAUSE);
                let at_ns = now_ns();
                signal(&event)?;
                waking.push((now_ns() - at_ns) as f64);
                while awake_ns.load(Ordering::Acquire) < at_ns {
                    std::hint::spin_loop();
                }
                latency.push(awake_ns.load(Ordering::Acquire).saturating_sub(at_ns) as f64);
            }
            Ok((waking, latency))
        })?;
        let sleep_ns = sleeping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Wakes { waker: waking, latency, sleep_ns })
    })
}

/// A thread computes while another one of its core is woken from outside, looks, and sleeps again: what that takes from
/// the first.
fn interruptions(core: usize, waker: usize) -> io::Result<Vec<f64>> {
    let (event, start, over) = (event()?, Instant::now(), AtomicBool::new(false));
    let now_ns = || start.elapsed().as_nanos() as u64;
    std::thread::scope(|scope| {
        let (ready, computing) = mpsc::channel();
        let computer = scope.spawn(|| -> io::Result<Vec<(u64, u64)>> {
            let ready = ready;
            pin_thread(&[core])?;
            let mut gaps = Vec::new();
            // The waker waits for it.
            let _ = ready.send(());
            let mut last_ns = now_ns();
            while !over.load(Ordering::Relaxed) {
                let at_ns = now_ns();
                if at_ns - last_ns > GAP_NS {
                    gaps.push((at_ns, at_ns - last_ns));
                }
                last_ns = at_ns;
            }
            Ok(gaps)
        });
        let sleeping = scope.spawn(|| -> io::Result<()> {
            pin_thread(&[core])?;
            // Wake-ups that come before it runs are one, so it cannot count them.
            while !over.load(Ordering::Acquire) {
                wait(&event)?;
            }
            Ok(())
        });
        let _ = computing.recv();
        let woken = on(waker, || {
            let mut woken = Vec::with_capacity(WAKES);
            for _ in 0..WAKES {
                spin(PAUSE);
                woken.push(now_ns());
                signal(&event)?;
            }
            spin(PAUSE);
            Ok(woken)
        });
        over.store(true, Ordering::Release);
        signal(&event)?;
        let slept = sleeping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let gaps = computer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        slept?;
        let taken = |at_ns: u64| {
            let of_it = gaps.iter().filter(|(end_ns, _)| (at_ns..at_ns + AFTER_NS).contains(end_ns));
            of_it.map(|(_, gap_ns)| *gap_ns).sum::<u64>() as f64
        };
        Ok(woken?.into_iter().map(taken).collect())
    })
}
