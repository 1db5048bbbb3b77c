//! The durations of single operations on this machine, measured one at a time.
//!
//! Each is measured in batches, and the median batch counts: other load on the machine makes some of the batches slow
//! and none fast.

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

/// The number of batches of an operation.
const BATCHES: usize = 25;
/// The number of operations in a batch, for those that take a microsecond or less.
const OPERATIONS: usize = 2_000;
/// The number of wake-ups, timers and interruptions that are measured.
const WAKES: usize = 300;
/// The pause between two wake-ups, after which the thread that is woken is asleep.
const PAUSE: Duration = Duration::from_micros(200);
/// A gap within this time after a wake-up is attributed to the wake-up.
const AFTER_NS: u64 = 150_000;
/// If a reading of the clock comes this much later than the one before, the thread was interrupted in between.
const GAP_NS: u64 = 1_000;
/// The duration that a timer is set to.
const TIMER_NS: i64 = 20_000;
/// The number of bytes that are copied at a time, and a number of bytes that no cache holds.
const COPY_BYTES: usize = 4 << 10;
const COLD_BYTES: usize = 256 << 20;

/// A measured operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Micro {
    /// The operation, in words.
    pub what: &'static str,
    /// The key of a world file for which it is measured, if it is measured for one alone.
    pub key: Option<&'static str>,
    /// The duration in nanoseconds.
    pub ns: Estimate,
}

/// Measures all operations on the core of a service and that of a generator, which may be the same, until `stop` is
/// set.
///
/// # Errors
///
/// This fails if the system refuses a descriptor or a core, and with [`io::ErrorKind::Interrupted`] if it was stopped.
pub fn measure(service: usize, generator: usize, stop: &AtomicBool) -> io::Result<Vec<Micro>> {
    // A core that cannot be used is reported before a thread waits for another.
    on(service, || Ok(()))?;
    on(generator, || Ok(()))?;
    let mut all = vec![
        micro("system call", None, &on(service, || system_calls(stop))?),
        micro("copying 1 KiB, warm", None, &on(service, || copies(COPY_BYTES, stop))?),
        micro("copying 1 KiB, cold", None, &on(service, || copies(COLD_BYTES, stop))?),
        micro("switch between threads of a core", Some("costs.switch"), &switches(service, stop)?),
        micro("starting a kernel timer", Some("costs.timer_start"), &on(service, || timer_starts(stop))?),
        micro("lateness of a timer of 20 us", Some("costs.timer_late"), &on(service, || timer_lateness(stop))?),
        micro(
            "a thread whose timer fires on a busy core: what it takes from the other",
            Some("costs.timer_irq"),
            &timer_interruptions(service, stop)?,
        ),
    ];
    if service == generator {
        return Ok(all);
    }
    let woken = wakes(service, generator, stop)?;
    all.push(micro(
        "waking a thread of another core: the waker's time (doorbell in memory)",
        Some("costs.wake"),
        &woken.waker,
    ));
    all.push(micro("until it runs", Some("costs.idle_shallow_exit"), &woken.latency));
    all.push(micro("CPU time of sleeping and being woken", Some("costs.epoll_sleep"), &woken.sleep));
    let broken = interruptions(service, generator, stop)?;
    all.push(micro("a thread that wakes on a busy core: what it takes from the other", Some("costs.irq"), &broken));
    Ok(all)
}

/// Fails once `stop` is set.
fn goes_on(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

fn micro(what: &'static str, key: Option<&'static str>, samples: &[f64]) -> Micro {
    Micro { what, key, ns: stats::median(samples).unwrap_or(Estimate::exact(0.0)) }
}

/// Runs `work` on a thread that is pinned to a core. The caller's thread stays where it is.
fn on<T: Send>(core: usize, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let pinned = || pin_thread(&[core]).and_then(|()| work());
    std::thread::scope(|scope| scope.spawn(pinned).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Returns the nanoseconds that an operation takes, batch by batch.
fn batches(operations: usize, stop: &AtomicBool, mut each: impl FnMut() -> io::Result<()>) -> io::Result<Vec<f64>> {
    let mut batch = || {
        goes_on(stop)?;
        let start = Instant::now();
        (0..operations).try_for_each(|_| each())?;
        Ok(start.elapsed().as_nanos() as f64 / operations as f64)
    };
    batch()?;
    (0..BATCHES).map(|_| batch()).collect()
}

fn system_calls(stop: &AtomicBool) -> io::Result<Vec<f64>> {
    batches(OPERATIONS, stop, || {
        black_box(rustix::process::getppid());
        Ok(())
    })
}

/// Copies out of a buffer of `from_bytes`, piece by piece. Returns the nanoseconds for each KiB.
fn copies(from_bytes: usize, stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let from = vec![1u8; from_bytes];
    let mut to = vec![0u8; COPY_BYTES];
    let mut at = 0;
    let each = || {
        to.copy_from_slice(black_box(&from[at..at + COPY_BYTES]));
        black_box(&mut to);
        at = (at + COPY_BYTES) % from_bytes;
        Ok(())
    };
    let of_a_kib = |ns: f64| ns * 1_024.0 / COPY_BYTES as f64;
    Ok(batches(OPERATIONS, stop, each)?.into_iter().map(of_a_kib).collect())
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

/// Lets two threads of a core wake each other in turn: half a round is a wake-up, a sleep and a switch.
fn switches(core: usize, stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let (there, back, over) = (event()?, event()?, AtomicBool::new(false));
    let answer = || -> io::Result<()> {
        pin_thread(&[core])?;
        loop {
            wait(&there)?;
            if over.load(Ordering::Acquire) {
                return Ok(());
            }
            signal(&back)?;
        }
    };
    let ask = || on(core, || batches(OPERATIONS / 4, stop, || signal(&there).and_then(|()| wait(&back))));
    let ((), samples) = beside(answer, ask, &over, &there)?;
    Ok(samples.into_iter().map(|ns| ns / 2.0).collect())
}

/// Runs `sleeps` in a thread of its own until `work` is done. The last wake-up by `event` tells the thread that it is
/// over.
fn beside<S: Send, W>(
    sleeps: impl FnOnce() -> io::Result<S> + Send,
    work: impl FnOnce() -> io::Result<W>,
    over: &AtomicBool,
    event: &OwnedFd,
) -> io::Result<(S, W)> {
    std::thread::scope(|scope| {
        let sleeping = scope.spawn(sleeps);
        let worked = work();
        over.store(true, Ordering::Release);
        signal(event)?;
        let slept = sleeping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The error of `work` comes first: a sleeper that was stopped has no error of its own.
        let worked = worked?;
        Ok((slept?, worked))
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

/// Moves a timer between two near times, so that each write goes to the clock event device.
fn timer_starts(stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let timer = timer()?;
    set(&timer, 1_000_000)?;
    let mut near = false;
    batches(OPERATIONS / 4, stop, || {
        near = !near;
        set(&timer, if near { 500_000 } else { 1_000_000 })
    })
}

fn timer_lateness(stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let timer = timer()?;
    let mut late = Vec::with_capacity(WAKES);
    for _ in 0..WAKES {
        goes_on(stop)?;
        let start = Instant::now();
        set(&timer, TIMER_NS)?;
        wait(&timer)?;
        late.push((start.elapsed().as_nanos() as f64 - TIMER_NS as f64).max(0.0));
    }
    Ok(late)
}

/// What was measured of wake-ups.
struct Wakes {
    waker: Vec<f64>,
    latency: Vec<f64>,
    /// CPU time of the thread that slept, for each sleep.
    sleep: Vec<f64>,
}

/// Waits without sleeping, because the core of a thread that sleeps would go idle.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Lets a thread of one core wake one that sleeps on another.
fn wakes(sleeper: usize, waker: usize, stop: &AtomicBool) -> io::Result<Wakes> {
    let (event, start, awake_ns) = (event()?, Instant::now(), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let now_ns = || start.elapsed().as_nanos() as u64;
    let sleep = || -> io::Result<Vec<f64>> {
        pin_thread(&[sleeper])?;
        let (mut before_ns, mut each) = (thread_cpu_ns(thread_id())?, Vec::with_capacity(WAKES));
        loop {
            wait(&event)?;
            if over.load(Ordering::Acquire) {
                return Ok(each);
            }
            awake_ns.store(now_ns(), Ordering::Release);
            let cpu_ns = thread_cpu_ns(thread_id())?;
            each.push((cpu_ns - before_ns) as f64);
            before_ns = cpu_ns;
        }
    };
    let wake = || {
        let (mut waking, mut latency) = (Vec::with_capacity(WAKES), Vec::with_capacity(WAKES));
        for _ in 0..WAKES {
            spin(PAUSE);
            let at_ns = now_ns();
            signal(&event)?;
            waking.push((now_ns() - at_ns) as f64);
            while awake_ns.load(Ordering::Acquire) < at_ns {
                goes_on(stop)?;
                std::hint::spin_loop();
            }
            latency.push(awake_ns.load(Ordering::Acquire).saturating_sub(at_ns) as f64);
        }
        Ok((waking, latency))
    };
    let (sleep, (waking, latency)) = beside(sleep, || on(waker, wake), &over, &event)?;
    Ok(Wakes { waker: waking, latency, sleep })
}

/// Returns the median time in nanoseconds from the moment at which a thread of one core wakes a thread that sleeps on
/// another until that thread runs, or `None` once `stop` is set.
///
/// # Errors
///
/// This fails if the system refuses a core or a descriptor.
pub fn wake_latency_ns(sleeper: usize, waker: usize, stop: &AtomicBool) -> io::Result<Option<f64>> {
    match wakes(sleeper, waker, stop) {
        Ok(wakes) => Ok(stats::median(&wakes.latency).map(|latency| latency.value)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets a thread compute while another thread of its core is woken from outside, checks, and sleeps again. Returns the
/// time that this takes from the first.
fn interruptions(core: usize, waker: usize, stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let (event, over) = (event()?, AtomicBool::new(false));
    let sleep = || -> io::Result<()> {
        pin_thread(&[core])?;
        // Several wake-ups that come before the thread runs count as one, so it cannot count them.
        while !over.load(Ordering::Acquire) {
            wait(&event)?;
        }
        Ok(())
    };
    let wake = |now_ns: &dyn Fn() -> u64| {
        let mut woken = Vec::with_capacity(WAKES);
        for _ in 0..WAKES {
            goes_on(stop)?;
            spin(PAUSE);
            woken.push(now_ns());
            signal(&event)?;
        }
        spin(PAUSE);
        Ok(woken)
    };
    taken_from_who_computes(core, |now_ns| {
        let woken = || pin_thread(&[waker]).and_then(|()| wake(now_ns));
        beside(sleep, woken, &over, &event).map(|((), woken)| woken)
    })
}

/// Does the same as [`interruptions`] with a timer of the sleeping thread, which no other thread starts anew.
fn timer_interruptions(core: usize, stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let timer = timer()?;
    let every = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
    let periodic = Itimerspec { it_interval: every, it_value: every };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &periodic)?;
    taken_from_who_computes(core, |now_ns| {
        pin_thread(&[core])?;
        let mut woken = Vec::with_capacity(WAKES);
        while woken.len() < WAKES {
            goes_on(stop)?;
            wait(&timer)?;
            woken.push(now_ns());
        }
        Ok(woken)
    })
}

/// Lets a thread compute on a core until `wake`, on a thread of its own, has woken another thread of that core. `wake`
/// returns the times of the wake-ups, by the clock that it is given. Returns the time that each wake-up has taken from
/// the computing thread.
fn taken_from_who_computes(
    core: usize,
    wake: impl FnOnce(&dyn Fn() -> u64) -> io::Result<Vec<u64>> + Send,
) -> io::Result<Vec<f64>> {
    let (start, over) = (Instant::now(), AtomicBool::new(false));
    let now_ns = || start.elapsed().as_nanos() as u64;
    let (ready, computing) = mpsc::channel();
    let compute = || -> io::Result<Vec<(u64, u64)>> {
        let ready = ready;
        pin_thread(&[core])?;
        let mut gaps = Vec::new();
        // The waking thread waits for this.
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
    };
    let (gaps, woken) = std::thread::scope(|scope| {
        let computer = scope.spawn(compute);
        let waker = scope.spawn(|| {
            let computing = computing;
            let _ = computing.recv();
            wake(&now_ns)
        });
        let woken = waker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        over.store(true, Ordering::Relaxed);
        let gaps = computer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, io::Error>((gaps?, woken?))
    })?;
    let taken = |at_ns: u64| {
        let of_it = gaps.iter().filter(|(end_ns, _)| (at_ns..at_ns + AFTER_NS).contains(end_ns));
        of_it.map(|(_, gap_ns)| *gap_ns).sum::<u64>() as f64
    };
    Ok(woken.into_iter().map(taken).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_stops_it_waits_for_no_thread() {
        let cores = lull_host::usable_cores();
        let (service, generator) = (cores[0], cores[cores.len() - 1]);
        let stopped = AtomicBool::new(true);
        let interrupted = |done: io::Result<usize>| assert_eq!(done.unwrap_err().kind(), io::ErrorKind::Interrupted);
        interrupted(measure(service, generator, &stopped).map(|all| all.len()));
        interrupted(switches(service, &stopped).map(|all| all.len()));
        interrupted(timer_lateness(&stopped).map(|all| all.len()));
        interrupted(interruptions(service, generator, &stopped).map(|all| all.len()));
        interrupted(timer_interruptions(service, &stopped).map(|all| all.len()));
    }
}
