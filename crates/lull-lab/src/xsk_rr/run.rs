//! One run: the threads of both ends, or of one.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use lull_host::{Clock, pin_thread, thread_id};
use serde::Serialize;

use super::client::{Received, Receiver, Sender, Shared};
use super::flight::Flight;
use super::frame::Addresses;
use super::record::{Percentiles, ReceiveTimes, Report};
use super::{Placement, RawSocket, Settings, server};
use crate::bench::BenchError;

/// What there is to run on: both ends, or one whose other end is another program's.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a, S> {
    /// The client's socket.
    pub client: Option<&'a S>,
    /// The server's socket.
    pub server: Option<&'a S>,
    /// Where the two are.
    pub addresses: Addresses,
    /// Where the server's thread ids go, for whoever tells who polled.
    pub server_threads: &'a Mutex<Vec<i32>>,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Requests of the window that were sent.
    pub sent: u64,
    /// Those of them that were answered.
    pub answered: u64,
    /// Those that were not.
    pub lost: u64,
    /// Answers that differ from what was sent; looked for with `-v` alone.
    pub corrupt: u64,
    /// Answers to nothing that is under way.
    pub unexpected: u64,
    /// Received frames that are none of this program's.
    pub foreign: u64,
    /// Seconds of the window.
    pub seconds: f64,
    /// Latency from the actual send, in nanoseconds.
    pub from_send_ns: Percentiles,
    /// Latency from when a request should have been sent, in nanoseconds.
    pub from_intended_ns: Percentiles,
    /// Time inside the client's receive calls.
    pub receive_calls: ReceiveTimes,
    /// Requests that the server answered, the warm-up's included.
    pub served: u64,
    #[serde(skip)]
    histograms: [Histogram<u64>; 2],
}

impl Outcome {
    fn new(counted: u64, seconds: f64, received: Received, served: u64) -> Outcome {
        let answered = received.from_send.len();
        Outcome {
            sent: counted,
            answered,
            lost: counted.saturating_sub(answered),
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

    /// Adds another pair's run at the same time.
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
        self.corrupt += other.corrupt;
        self.unexpected += other.unexpected;
        self.foreign += other.foreign;
        self.served += other.served;
        self.receive_calls.merge(&other.receive_calls);
    }
}

/// Ends the others when one thread ends, however it does.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the threads of `ends`, each on its core. Without a client it serves until `stop`, and measures nothing.
///
/// # Errors
/// A setting out of its limits, a core that cannot be had, a device that is gone.
pub fn run<S: RawSocket>(
    ends: Ends<'_, S>,
    settings: &Settings,
    placement: &Placement,
    stop: &AtomicBool,
    on_report: &mut (dyn FnMut(Report) + Send),
) -> Result<Option<Outcome>, BenchError> {
    settings.check()?;
    let clock = Clock::new();
    let begin_ns = clock.now_ns();
    let from_ns = begin_ns + settings.warm_up.as_nanos() as u64;
    let window_ns = (from_ns, from_ns + settings.window.as_nanos() as u64);
    let over = AtomicBool::new(false);
    let over = &over;
    let pause = || if placement.oversubscribed { std::thread::yield_now() } else { std::hint::spin_loop() };
    let poller = |socket: &S, core: usize| -> io::Result<()> {
        pin_thread(&[core])?;
        while !over.load(Ordering::Relaxed) {
            socket.receive_call();
            pause();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let serving = ends.server.map(|socket| {
            let threads = ends.server_threads;
            let tell = move || threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(thread_id());
            let polling = settings.receive_thread.then(|| {
                scope.spawn(move || {
                    tell();
                    poller(socket, placement.server_poller.unwrap_or(placement.server))
                })
            });
            let serving = scope.spawn(move || {
                let _ends = EndsAll(over);
                pin_thread(&[placement.server])?;
                tell();
                server::serve(socket, ends.addresses.to, settings, over, pause)
            });
            (polling, serving)
        });
        let measured = match ends.client {
            Some(socket) => {
                let shared = Shared {
                    socket,
                    settings,
                    clock: &clock,
                    flight: Flight::new(),
                    sent: AtomicU64::new(0),
                    done: AtomicU64::new(0),
                    counted: AtomicU64::new(0),
                    window_ns,
                    stop: over,
                    yields: placement.oversubscribed,
                };
                Some(measure(&shared, ends.addresses, placement, (stop, over), &poller, on_report))
            }
            None => {
                while !stop.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                None
            }
        };
        over.store(true, Ordering::Relaxed);
        let mut served = 0;
        if let Some((polling, serving)) = serving {
            if let Some(polling) = polling {
                joined(polling)?;
            }
            served = joined(serving)?;
        }
        let Some(measured) = measured else { return Ok(None) };
        let (counted, received) = measured?;
        Ok(Some(Outcome::new(counted, settings.window.as_secs_f64(), received, served)))
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The client's threads; the requests of the window, and what came back.
fn measure<S: RawSocket>(
    shared: &Shared<'_, S>,
    addresses: Addresses,
    placement: &Placement,
    (stop, over): (&AtomicBool, &AtomicBool),
    poller: &(impl Fn(&S, usize) -> io::Result<()> + Sync),
    on_report: &mut (dyn FnMut(Report) + Send),
) -> io::Result<(u64, Received)> {
    std::thread::scope(|scope| {
        let apart = shared.settings.send_thread;
        let sending = apart.then(|| {
            let core = placement.sender.unwrap_or(placement.client);
            scope.spawn(move || {
                pin_thread(&[core])?;
                Sender::new(shared, addresses).run()
            })
        });
        let polling = shared.settings.receive_thread.then(|| {
            let core = placement.client_poller.unwrap_or(placement.client);
            scope.spawn(move || poller(shared.socket, core))
        });
        let receiving = scope.spawn(move || {
            let _ends = EndsAll(over);
            pin_thread(&[placement.client])?;
            let sender = (!apart).then(|| Sender::new(shared, addresses));
            Receiver::new(shared, sender).run(on_report)
        });
        while !receiving.is_finished() {
            if stop.load(Ordering::Relaxed) {
                over.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let received = joined(receiving)?;
        if let Some(sending) = sending {
            joined(sending)?;
        }
        if let Some(polling) = polling {
            joined(polling)?;
        }
        Ok((shared.counted.load(Ordering::Relaxed), received))
    })
}
