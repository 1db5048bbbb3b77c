//! One run: the threads of both ends, or of one.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use lull_host::{Clock, pin_thread, thread_id};
use serde::Serialize;

use super::client::{Received, Receiver, Sender, Shared};
use super::frame::Addresses;
use super::record::{Percentiles, ReceiveTimes, Report};
use super::{Placement, RawSocket, Settings, server};
use crate::bench::BenchError;

/// The interval at which to check whether the run was stopped.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// The sockets to run on: both ends, or one whose other end belongs to another program.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a, S> {
    /// The client's socket.
    pub client: Option<&'a S>,
    /// The server's socket.
    pub server: Option<&'a S>,
    /// The addresses of the two.
    pub addresses: Addresses,
    /// The list to which thread ids are added, to find out what polled: those of the server, or, without one here,
    /// those of the client.
    pub threads: &'a Mutex<Vec<i32>>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The number of the window's requests that were sent.
    pub sent: u64,
    /// The number of those that were answered.
    pub answered: u64,
    /// The number of those that were not answered, and that the run stopped waiting for.
    pub lost: u64,
    /// The number of those whose answers were still awaited when the run was stopped.
    pub under_way: u64,
    /// The number of requests of an open loop's window that were due and never sent, because there was no room or no
    /// time for them.
    pub unsent: u64,
    /// Answers that differ from the request. Only `-v` looks for them.
    pub corrupt: u64,
    /// Answers to requests that are not outstanding.
    pub unexpected: u64,
    /// Received frames that do not belong to this program.
    pub foreign: u64,
    /// The length of the window in seconds, as far as it ran.
    pub seconds: f64,
    /// Latency from the actual send, in nanoseconds; `None` if nothing was answered.
    pub from_send_ns: Option<Percentiles>,
    /// Latency from when a request should have been sent, in nanoseconds; `None` if nothing was answered.
    pub from_intended_ns: Option<Percentiles>,
    /// Time inside the client's receive calls, from the window's begin until its last answer.
    pub receive_calls: ReceiveTimes,
    /// The number of requests that the server answered, including those of the warm-up.
    pub served: u64,
    #[serde(skip)]
    histograms: [Histogram<u64>; 2],
}

impl Outcome {
    fn new([counted, unsent, under_way]: [u64; 3], seconds: f64, received: Received, served: u64) -> Outcome {
        let answered = received.from_send.len();
        Outcome {
            sent: counted,
            answered,
            lost: counted.saturating_sub(answered + under_way),
            under_way,
            unsent,
            corrupt: received.corrupt,
            unexpected: received.unexpected,
            foreign: received.foreign,
            seconds,
            from_send_ns: Percentiles::of(&received.from_send),
            from_intended_ns: Percentiles::of(&received.from_intended),
            receive_calls: received.receive_times,
            served,
            histograms: [received.from_send, received.from_intended],
        }
    }

    /// Adds the outcome of another pair that ran at the same time.
    pub fn add(&mut self, other: &Outcome) {
        for (sum, histogram) in self.histograms.iter_mut().zip(&other.histograms) {
            // Both have the same bounds.
            let _ = sum.add(histogram);
        }
        let [from_send, from_intended] = &self.histograms;
        (self.from_send_ns, self.from_intended_ns) = (Percentiles::of(from_send), Percentiles::of(from_intended));
        self.sent += other.sent;
        self.answered += other.answered;
        self.lost += other.lost;
        self.under_way += other.under_way;
        self.unsent += other.unsent;
        self.corrupt += other.corrupt;
        self.unexpected += other.unexpected;
        self.foreign += other.foreign;
        self.served += other.served;
        self.receive_calls.merge(&other.receive_calls);
    }
}

/// Ends the other threads when one ends for any reason.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The state that all threads of a run share.
#[derive(Clone, Copy)]
struct Stage<'a> {
    settings: &'a Settings,
    placement: &'a Placement,
    /// Set when the run ends.
    over: &'a AtomicBool,
}

type Handle<'scope, T> = std::thread::ScopedJoinHandle<'scope, io::Result<T>>;

impl Stage<'_> {
    /// Pauses a spinning thread that has found nothing to do.
    fn pause(&self) {
        if self.placement.oversubscribed {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Makes receive calls on `core`, and does nothing else.
    fn poll<S: RawSocket>(&self, socket: &S, core: usize, tell: impl Fn()) -> io::Result<()> {
        pin_thread(&[core])?;
        tell();
        while !self.over.load(Ordering::Relaxed) {
            socket.receive_call();
            self.pause();
        }
        Ok(())
    }
}

/// Adds the id of the calling thread to the list, if there is one.
fn tell(ids: Option<&Mutex<Vec<i32>>>) {
    if let Some(ids) = ids {
        ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(thread_id());
    }
}

/// Starts the server's threads: the one that polls, if there is one, and the one that answers.
fn serve<'scope, 'env, S: RawSocket>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    (socket, own): (&'env S, [u8; 6]),
    ids: &'env Mutex<Vec<i32>>,
    stage: Stage<'env>,
) -> (Option<Handle<'scope, ()>>, Handle<'scope, u64>) {
    let Stage { settings, placement, over } = stage;
    let tell = move || tell(Some(ids));
    let polling = settings.receive_thread.then(|| {
        let core = placement.server_poller.unwrap_or(placement.server);
        scope.spawn(move || stage.poll(socket, core, tell))
    });
    let serving = scope.spawn(move || {
        let _ends = EndsAll(over);
        pin_thread(&[placement.server])?;
        tell();
        server::serve(socket, own, settings, over, || stage.pause())
    });
    (polling, serving)
}

/// Runs the threads of `ends`, each on its core. Without a client it serves until `stop`, and measures nothing.
///
/// # Errors
///
/// This fails if a setting is outside its limits, if a core cannot be used, or if a device is gone.
pub fn run<S: RawSocket>(
    ends: Ends<'_, S>,
    settings: &Settings,
    placement: &Placement,
    stop: &AtomicBool,
    on_report: &mut (dyn FnMut(Report) + Send),
) -> Result<Option<Outcome>, BenchError> {
    settings.check()?;
    let clock = Clock::new();
    let from_ns = clock.now_ns() + settings.warm_up.as_nanos() as u64;
    let window_ns = (from_ns, from_ns + settings.window.as_nanos() as u64);
    let over = &AtomicBool::new(false);
    let stage = Stage { settings, placement, over };
    std::thread::scope(|scope| {
        let serving = ends.server.map(|socket| serve(scope, (socket, ends.addresses.to), ends.threads, stage));
        let measured = match ends.client {
            Some(socket) => {
                let shared = Shared::new((socket, settings, &clock), window_ns, over, placement.oversubscribed);
                let ids = ends.server.is_none().then_some(ends.threads);
                Some(measure(&shared, (ends.addresses, ids), stage, stop, on_report))
            }
            None => {
                while !stop.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                    std::thread::sleep(WATCH_INTERVAL);
                }
                None
            }
        };
        over.store(true, Ordering::Relaxed);
        let mut served = 0;
        if let Some((polling, serving)) = serving {
            polling.map_or(Ok(()), joined)?;
            served = joined(serving)?;
        }
        let Some(measured) = measured else { return Ok(None) };
        let (counts, received) = measured?;
        // Stopping the run cuts its window short.
        let window_ns = clock.now_ns().clamp(window_ns.0, window_ns.1) - window_ns.0;
        Ok(Some(Outcome::new(counts, window_ns as f64 / 1e9, received, served)))
    })
}

fn joined<T>(thread: Handle<'_, T>) -> io::Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs the client's threads. Returns how many requests of the window were sent, how many were not, and how many were
/// outstanding when it was stopped, and the counts of the receiver.
fn measure<S: RawSocket>(
    shared: &Shared<'_, S>,
    (addresses, ids): (Addresses, Option<&Mutex<Vec<i32>>>),
    stage: Stage<'_>,
    stop: &AtomicBool,
    on_report: &mut (dyn FnMut(Report) + Send),
) -> io::Result<([u64; 3], Received)> {
    let Stage { placement, over, .. } = stage;
    std::thread::scope(|scope| {
        let apart = shared.settings.send_thread;
        let sending = apart.then(|| {
            let core = placement.sender.unwrap_or(placement.client);
            scope.spawn(move || {
                pin_thread(&[core])?;
                tell(ids);
                Sender::new(shared, addresses).run()
            })
        });
        let polling = shared.settings.receive_thread.then(|| {
            let core = placement.client_poller.unwrap_or(placement.client);
            scope.spawn(move || stage.poll(shared.socket, core, || tell(ids)))
        });
        let receiving = scope.spawn(move || {
            let _ends = EndsAll(over);
            pin_thread(&[placement.client])?;
            tell(ids);
            let sender = (!apart).then(|| Sender::new(shared, addresses));
            Receiver::new(shared, sender).run(on_report)
        });
        while !receiving.is_finished() {
            if stop.load(Ordering::Relaxed) {
                over.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(WATCH_INTERVAL);
        }
        let received = joined(receiving)?;
        sending.map_or(Ok(()), joined)?;
        polling.map_or(Ok(()), joined)?;
        let [counted, unsent] = [&shared.counted, &shared.unsent].map(|count| count.load(Ordering::Relaxed));
        let under_way = received.stopped_ns.map_or(0, |at_ns| shared.under_way(at_ns));
        Ok(([counted, unsent, under_way], received))
    })
}
