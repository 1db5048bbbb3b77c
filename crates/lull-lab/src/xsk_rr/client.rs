//! The client: it sends requests when they are due, and takes the answers.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use lull_host::Clock;

use super::flight::{Flight, Sent};
use super::record::{Percentiles, ReceiveTimes, Report, histogram};
use super::{RawSocket, Settings, frame};

/// A closed loop gives up on an answer after so long.
const GIVE_UP_NS: u64 = 1_000_000_000;
/// Answers are waited for so long after the window.
const GRACE_NS: u64 = 2_000_000_000;

/// What sender and receiver share.
pub(super) struct Shared<'a, S> {
    pub(super) socket: &'a S,
    pub(super) settings: &'a Settings,
    pub(super) clock: &'a Clock,
    pub(super) flight: Flight,
    /// The last number that was sent.
    pub(super) sent: AtomicU64,
    /// Requests that are answered or given up.
    pub(super) done: AtomicU64,
    /// Requests of the window.
    pub(super) counted: AtomicU64,
    /// Begin of the window and its end.
    pub(super) window_ns: (u64, u64),
    pub(super) stop: &'a AtomicBool,
    /// Several threads that spin have a core: they let one another run.
    pub(super) yields: bool,
}

impl<S> Shared<'_, S> {
    fn counts(&self, intended_ns: u64) -> bool {
        (self.window_ns.0..self.window_ns.1).contains(&intended_ns)
    }

    pub(super) fn pause(&self) {
        if self.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Who sends.
pub(super) struct Sender<'a, S> {
    shared: &'a Shared<'a, S>,
    request: Vec<u8>,
    /// When the next request of an open loop is due.
    due_ns: u64,
}

impl<'a, S: RawSocket> Sender<'a, S> {
    pub(super) fn new(shared: &'a Shared<'a, S>, addresses: frame::Addresses) -> Sender<'a, S> {
        let request = frame::request(addresses, shared.settings.payload_bytes);
        Sender { shared, request, due_ns: shared.clock.now_ns() }
    }

    /// Sends the next request if it is due; whether it did.
    pub(super) fn step(&mut self, now_ns: u64) -> io::Result<bool> {
        let Shared { socket, settings, clock, flight, sent, done, counted, .. } = self.shared;
        let number = sent.load(Ordering::Relaxed) + 1;
        let intended_ns = match settings.period_ns {
            Some(_) if now_ns < self.due_ns => return Ok(false),
            Some(_) => self.due_ns,
            None if number - 1 - done.load(Ordering::Acquire) >= settings.outstanding as u64 => return Ok(false),
            None => now_ns,
        };
        if intended_ns >= self.shared.window_ns.1 {
            return Ok(false);
        }
        frame::number(&mut self.request, number);
        flight.begin(number, Sent { intended_ns, sent_ns: clock.now_ns() });
        if !socket.send(&self.request)? {
            return Ok(false);
        }
        sent.store(number, Ordering::Release);
        if self.shared.counts(intended_ns) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        self.due_ns += settings.period_ns.unwrap_or(0);
        Ok(true)
    }

    /// A thread that does nothing else.
    pub(super) fn run(mut self) -> io::Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now_ns = self.shared.clock.now_ns();
            if now_ns >= self.shared.window_ns.1 {
                break;
            }
            if !self.step(now_ns)? {
                self.shared.pause();
            }
        }
        Ok(())
    }
}

/// What the receiver saw.
pub(super) struct Received {
    pub(super) from_send: Histogram<u64>,
    pub(super) from_intended: Histogram<u64>,
    pub(super) receive_times: ReceiveTimes,
    /// Answers that differ from what was sent.
    pub(super) corrupt: u64,
    /// Answers to nothing that is under way: a second time, or after it was given up.
    pub(super) unexpected: u64,
    /// Frames that are none of this program's.
    pub(super) foreign: u64,
}

/// Who receives; it sends, too, unless another thread does.
pub(super) struct Receiver<'a, S> {
    shared: &'a Shared<'a, S>,
    sender: Option<Sender<'a, S>>,
    seen: Received,
    /// Until when it does not look at its ring: the application's delay.
    blind_until_ns: u64,
    /// When something was answered last, or given up.
    progress_ns: u64,
    interval: Histogram<u64>,
    report_at_ns: u64,
}

impl<'a, S: RawSocket> Receiver<'a, S> {
    pub(super) fn new(shared: &'a Shared<'a, S>, sender: Option<Sender<'a, S>>) -> Receiver<'a, S> {
        let seen = Received {
            from_send: histogram(),
            from_intended: histogram(),
            receive_times: ReceiveTimes::default(),
            corrupt: 0,
            unexpected: 0,
            foreign: 0,
        };
        let report_ns = shared.settings.report.map_or(u64::MAX, |report| report.as_nanos() as u64);
        Receiver {
            sender,
            seen,
            blind_until_ns: 0,
            progress_ns: shared.clock.now_ns(),
            interval: histogram(),
            report_at_ns: shared.window_ns.0.saturating_add(report_ns),
            shared,
        }
    }

    pub(super) fn run(mut self, on_report: &mut dyn FnMut(Report)) -> io::Result<Received> {
        let Shared { socket, settings, clock, stop, .. } = self.shared;
        let calls = !settings.no_receive_call && !settings.receive_thread;
        let mut buffer = vec![0; frame::FRAME_BYTES_MAX];
        loop {
            let now_ns = clock.now_ns();
            if stop.load(Ordering::Relaxed) || self.is_over(now_ns) {
                return Ok(self.seen);
            }
            if let Some(sender) = &mut self.sender {
                sender.step(now_ns)?;
            }
            if now_ns >= self.report_at_ns {
                self.report(on_report);
            }
            if now_ns < self.blind_until_ns {
                self.shared.pause();
            } else if let Some(bytes) = socket.try_recv(&mut buffer) {
                self.took(&buffer[..bytes]);
            } else {
                if calls {
                    let begin_ns = clock.now_ns();
                    socket.receive_call();
                    self.seen.receive_times.add(clock.now_ns().saturating_sub(begin_ns));
                }
                self.shared.pause();
                self.give_up(now_ns);
            }
        }
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let Shared { sent, done, window_ns, .. } = self.shared;
        let answered = sent.load(Ordering::Acquire) == done.load(Ordering::Relaxed);
        now_ns >= window_ns.1 && (answered || now_ns >= window_ns.1 + GRACE_NS)
    }

    fn took(&mut self, received: &[u8]) {
        let Shared { settings, clock, flight, done, .. } = self.shared;
        let at_ns = clock.now_ns();
        let Some(number) = frame::read(received) else {
            self.seen.foreign += 1;
            return;
        };
        let Some(sent) = flight.end(number) else {
            self.seen.unexpected += 1;
            return;
        };
        if settings.verify && !frame::is_whole(received, number, settings.payload_bytes) {
            self.seen.corrupt += 1;
        }
        done.fetch_add(1, Ordering::Release);
        (self.progress_ns, self.blind_until_ns) = (at_ns, at_ns + settings.delay_ns);
        if self.shared.counts(sent.intended_ns) {
            // The clocks of two cores may be a little apart.
            let from_send_ns = at_ns.saturating_sub(sent.sent_ns).max(1);
            self.seen.from_send.saturating_record(from_send_ns);
            self.seen.from_intended.saturating_record(at_ns.saturating_sub(sent.intended_ns).max(1));
            self.interval.saturating_record(from_send_ns);
        }
    }

    fn report(&mut self, on_report: &mut dyn FnMut(Report)) {
        on_report(Report { answered: self.interval.len(), from_send_ns: Percentiles::of(&self.interval) });
        self.interval.reset();
        self.report_at_ns += self.shared.settings.report.map_or(u64::MAX, |report| report.as_nanos() as u64);
    }

    /// A closed loop whose answers are lost would stand still.
    fn give_up(&mut self, now_ns: u64) {
        let Shared { settings, sent, done, .. } = self.shared;
        if settings.period_ns.is_none() && now_ns.saturating_sub(self.progress_ns) > GIVE_UP_NS {
            done.store(sent.load(Ordering::Acquire), Ordering::Release);
            self.progress_ns = now_ns;
        }
    }
}
