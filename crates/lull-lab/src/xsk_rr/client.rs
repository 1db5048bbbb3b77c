//! The client: it sends requests when they are due, and receives the answers.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use lull_host::Clock;

use super::flight::{Flight, Sent};
use super::record::{Percentiles, ReceiveTimes, Report, histogram};
use super::{RawSocket, Settings, frame};

/// A closed loop that has had no answer for this time gives up on all outstanding ones.
const GIVE_UP_NS: u64 = 1_000_000_000;
/// For this time after the window the client sends requests that could not be sent in time, and waits for the window's
/// answers. It also waits for this time after the last of them.
const GRACE_NS: u64 = 2_000_000_000;

/// The state that sender and receiver share.
pub(super) struct Shared<'a, S> {
    pub(super) socket: &'a S,
    pub(super) settings: &'a Settings,
    pub(super) clock: &'a Clock,
    pub(super) flight: Flight,
    /// The last number that was sent.
    pub(super) sent: AtomicU64,
    /// The number of requests that were answered or given up.
    pub(super) done: AtomicU64,
    /// The number of requests of the window that were sent.
    pub(super) counted: AtomicU64,
    /// The number of requests of the window that were due and were never sent. It is known when the sender has ended.
    pub(super) unsent: AtomicU64,
    /// Whether the sender has ended, so that no request follows.
    pub(super) all_sent: AtomicBool,
    /// The beginning of the window and its end.
    pub(super) window_ns: (u64, u64),
    pub(super) stop: &'a AtomicBool,
    /// Whether threads that spin share a core, and so have to let one another run.
    pub(super) yields: bool,
}

impl<'a, S> Shared<'a, S> {
    pub(super) fn new(
        (socket, settings, clock): (&'a S, &'a Settings, &'a Clock),
        window_ns: (u64, u64),
        stop: &'a AtomicBool,
        yields: bool,
    ) -> Shared<'a, S> {
        let (flight, all_sent) = (Flight::new(), AtomicBool::new(false));
        let [sent, done, counted, unsent] = [(); 4].map(|()| AtomicU64::new(0));
        Shared { socket, settings, clock, flight, sent, done, counted, unsent, all_sent, window_ns, stop, yields }
    }

    fn counts(&self, at_ns: u64) -> bool {
        (self.window_ns.0..self.window_ns.1).contains(&at_ns)
    }

    /// Returns the number of the window's requests whose answers were awaited at `now_ns`, when the run was stopped:
    /// those of the last second. Earlier ones count as lost.
    pub(super) fn under_way(&self, now_ns: u64) -> u64 {
        let waited_for =
            |sent: Sent| self.counts(sent.intended_ns) && now_ns.saturating_sub(sent.sent_ns) <= GIVE_UP_NS;
        self.flight.count(self.sent.load(Ordering::Acquire), waited_for)
    }

    /// Whether late answers are no longer awaited either.
    fn is_past_grace(&self, now_ns: u64) -> bool {
        now_ns >= self.window_ns.1 + GRACE_NS
    }

    pub(super) fn pause(&self) {
        if self.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Sends the requests, in a thread of its own or in the receiver's.
pub(super) struct Sender<'a, S> {
    shared: &'a Shared<'a, S>,
    request: Vec<u8>,
    /// The time at which the next request of an open loop is due.
    due_ns: u64,
}

impl<'a, S: RawSocket> Sender<'a, S> {
    pub(super) fn new(shared: &'a Shared<'a, S>, addresses: frame::Addresses) -> Sender<'a, S> {
        let request = frame::request(addresses, shared.settings.payload_bytes);
        // A sender that starts late still owes all requests of the window.
        Sender { shared, request, due_ns: shared.clock.now_ns().min(shared.window_ns.0) }
    }

    /// Sends the next request if it is due. Returns whether it did.
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
        self.due_ns = self.due_ns.saturating_add(settings.period_ns.unwrap_or(0));
        Ok(true)
    }

    /// Ends the sending if no request of the window is due any more, or if those that could not be sent are given up.
    /// Returns whether it did. Requests that a full ring or a slow program kept back are sent late, and their latency
    /// from the intended send has to show that.
    fn try_end(&self, now_ns: u64) -> bool {
        let Shared { settings, window_ns, unsent, all_sent, .. } = self.shared;
        let is_through = settings.period_ns.map_or(now_ns, |_| self.due_ns) >= window_ns.1;
        if !is_through && !self.shared.is_past_grace(now_ns) {
            return false;
        }
        if let Some(period_ns) = settings.period_ns {
            let due_before = |ns: u64| ns.saturating_sub(self.due_ns).div_ceil(period_ns);
            unsent.store(due_before(window_ns.1) - due_before(window_ns.0), Ordering::Relaxed);
        }
        all_sent.store(true, Ordering::Release);
        true
    }

    /// Sends all requests that are due, and does nothing else.
    pub(super) fn run(mut self) -> io::Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now_ns = self.shared.clock.now_ns();
            if self.try_end(now_ns) {
                break;
            }
            if !self.step(now_ns)? {
                self.shared.pause();
            }
        }
        Ok(())
    }
}

/// The counts of the receiver.
pub(super) struct Received {
    pub(super) from_send: Histogram<u64>,
    pub(super) from_intended: Histogram<u64>,
    pub(super) receive_times: ReceiveTimes,
    /// Answers that differ from the request.
    pub(super) corrupt: u64,
    /// Answers to requests that are not outstanding: second answers, or those to a request that was given up.
    pub(super) unexpected: u64,
    /// Frames that do not belong to this program.
    pub(super) foreign: u64,
    /// The time at which the run was stopped, or `None` if it ended by itself.
    pub(super) stopped_ns: Option<u64>,
}

/// Receives the answers, and also sends the requests unless another thread does.
pub(super) struct Receiver<'a, S> {
    shared: &'a Shared<'a, S>,
    /// `None` if another thread sends, or if all is sent.
    sender: Option<Sender<'a, S>>,
    seen: Received,
    /// The last request that was given up, together with all earlier ones that had no answer.
    given_up: u64,
    /// The time until which it does not read its ring: the application's delay.
    blind_until_ns: u64,
    /// The time of the last answer, or of the last request that was given up.
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
            stopped_ns: None,
        };
        let report_ns = shared.settings.report.map_or(u64::MAX, |report| report.as_nanos() as u64);
        Receiver {
            sender,
            seen,
            given_up: 0,
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
            let is_over = self.is_over(now_ns);
            if stop.load(Ordering::Relaxed) || is_over {
                self.seen.stopped_ns = (!is_over).then_some(now_ns);
                if settings.report.is_some() && !self.interval.is_empty() {
                    self.report(on_report);
                }
                return Ok(self.seen);
            }
            if self.sender.as_ref().is_some_and(|sender| sender.try_end(now_ns)) {
                self.sender = None;
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
                    // The window's last answers are awaited for as long as the others.
                    if begin_ns >= self.shared.window_ns.0 {
                        self.seen.receive_times.add(clock.now_ns().saturating_sub(begin_ns));
                    }
                }
                self.shared.pause();
                self.give_up(now_ns);
            }
        }
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let Shared { sent, done, all_sent, .. } = self.shared;
        let is_answered = || sent.load(Ordering::Acquire) == done.load(Ordering::Relaxed);
        // A receiver that is slow, on a core that it shares, has not lost the answers that are still in its ring.
        let is_past_grace = || self.shared.is_past_grace(now_ns) && now_ns >= self.progress_ns.saturating_add(GRACE_NS);
        all_sent.load(Ordering::Acquire) && (is_answered() || is_past_grace())
    }

    fn took(&mut self, received: &[u8]) {
        let Shared { settings, clock, flight, done, .. } = self.shared;
        let at_ns = clock.now_ns();
        let Some(number) = frame::read(received) else {
            self.seen.foreign += 1;
            return;
        };
        let Some(sent) = flight.end(number).filter(|_| number > self.given_up) else {
            self.seen.unexpected += 1;
            return;
        };
        if settings.verify && !frame::is_whole(received, number, settings.payload_bytes) {
            self.seen.corrupt += 1;
        }
        done.fetch_add(1, Ordering::Release);
        (self.progress_ns, self.blind_until_ns) = (at_ns, at_ns.saturating_add(settings.delay_ns));
        if self.shared.counts(sent.intended_ns) {
            // The clocks of two cores may differ a little.
            let from_send_ns = at_ns.saturating_sub(sent.sent_ns).max(1);
            self.seen.from_send.saturating_record(from_send_ns);
            self.seen.from_intended.saturating_record(at_ns.saturating_sub(sent.intended_ns).max(1));
            self.interval.saturating_record(from_send_ns);
        }
    }

    fn report(&mut self, on_report: &mut dyn FnMut(Report)) {
        on_report(Report { answered: self.interval.len(), from_send_ns: Percentiles::of(&self.interval) });
        self.interval.reset();
        let report_ns = self.shared.settings.report.map_or(u64::MAX, |report| report.as_nanos() as u64);
        self.report_at_ns = self.report_at_ns.saturating_add(report_ns);
    }

    /// Without this, a closed loop whose answers are lost would stop.
    fn give_up(&mut self, now_ns: u64) {
        let Shared { settings, sent, done, .. } = self.shared;
        if settings.period_ns.is_none() && now_ns.saturating_sub(self.progress_ns) > GIVE_UP_NS {
            self.given_up = sent.load(Ordering::Acquire);
            done.store(self.given_up, Ordering::Release);
            self.progress_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::xsk_rr::Polling;

    const MS: u64 = 1_000_000;
    const ADDRESSES: frame::Addresses = frame::Addresses { from: [2; 6], to: [4; 6] };

    /// A socket that keeps the sent frames while it has room, and receives nothing by itself.
    struct Keeps {
        room: AtomicBool,
        sent: Mutex<Vec<Vec<u8>>>,
    }

    impl Keeps {
        fn new(room: bool) -> Keeps {
            Keeps { room: AtomicBool::new(room), sent: Mutex::default() }
        }

        fn frame(&self, at: usize) -> Vec<u8> {
            self.sent.lock().unwrap()[at].clone()
        }
    }

    impl RawSocket for Keeps {
        fn send(&self, frame: &[u8]) -> io::Result<bool> {
            let room = self.room.load(Ordering::Relaxed);
            if room {
                self.sent.lock().unwrap().push(frame.to_vec());
            }
            Ok(room)
        }

        fn try_recv(&self, _: &mut [u8]) -> Option<usize> {
            None
        }

        fn receive_call(&self) {}
    }

    /// Begins a run with a window of 10 ms that begins now.
    fn run_of(settings: &Settings, room: bool, check: impl FnOnce(&Shared<'_, Keeps>, u64)) {
        let (socket, clock, stop) = (Keeps::new(room), Clock::new(), AtomicBool::new(false));
        let now_ns = clock.now_ns();
        check(&Shared::new((&socket, settings, &clock), (now_ns, now_ns + 10 * MS), &stop, false), now_ns);
    }

    #[test]
    fn an_answer_to_what_was_given_up_is_unexpected_and_a_closed_loop_goes_on() {
        run_of(&Settings::new(Polling::Interrupts), true, |shared, now_ns| {
            let mut sender = Sender::new(shared, ADDRESSES);
            let mut receiver = Receiver::new(shared, None);
            assert!(sender.step(now_ns).unwrap() && !sender.step(now_ns).unwrap(), "one is outstanding");
            receiver.give_up(receiver.progress_ns + GIVE_UP_NS + 1);
            assert!(sender.step(now_ns).unwrap());
            receiver.took(&shared.socket.frame(0));
            assert_eq!((receiver.seen.unexpected, receiver.seen.from_send.len()), (1, 0));
            assert!(!sender.step(now_ns).unwrap(), "one is outstanding");
            receiver.took(&shared.socket.frame(1));
            assert_eq!((receiver.seen.unexpected, receiver.seen.from_send.len()), (1, 1));
            assert!(sender.step(now_ns).unwrap());
        });
    }

    fn open_loop() -> Settings {
        Settings { period_ns: Some(MS), ..Settings::new(Polling::Interrupts) }
    }

    #[test]
    fn what_is_under_way_when_a_run_is_stopped_is_not_lost() {
        let settings = Settings { outstanding: 3, ..Settings::new(Polling::Interrupts) };
        run_of(&settings, true, |shared, now_ns| {
            let mut sender = Sender::new(shared, ADDRESSES);
            assert_eq!((0..).take_while(|_| sender.step(now_ns).unwrap()).count(), 3);
            let mut receiver = Receiver::new(shared, None);
            receiver.took(&shared.socket.frame(1));
            assert_eq!(shared.under_way(shared.clock.now_ns()), 2);
            assert_eq!(shared.under_way(now_ns + 2 * GIVE_UP_NS), 0, "what is waited for no longer is lost");
            // A request for which there was no room was begun, and is not sent.
            shared.socket.room.store(false, Ordering::Relaxed);
            assert!(!sender.step(now_ns).unwrap());
            assert_eq!(shared.under_way(shared.clock.now_ns()), 2);
            shared.stop.store(true, Ordering::Relaxed);
            assert!(receiver.run(&mut |_| ()).unwrap().stopped_ns.is_some());
        });
    }

    #[test]
    fn a_period_of_centuries_sends_one_request() {
        let settings = Settings { period_ns: Some(u64::MAX), ..open_loop() };
        run_of(&settings, true, |shared, now_ns| {
            let mut sender = Sender::new(shared, ADDRESSES);
            assert_eq!((0..).take_while(|_| sender.step(now_ns + MS).unwrap()).count(), 1);
            assert!(sender.try_end(now_ns + 10 * MS));
        });
    }

    #[test]
    fn what_had_no_room_in_the_window_is_sent_behind_it_and_its_wait_counts() {
        run_of(&open_loop(), false, |shared, now_ns| {
            let mut sender = Sender::new(shared, ADDRESSES);
            let mut receiver = Receiver::new(shared, None);
            let behind_ns = now_ns + 20 * MS;
            assert!(!sender.step(now_ns + 9 * MS).unwrap() && !sender.try_end(behind_ns));
            assert!(!receiver.is_over(behind_ns), "requests of the window are owed");
            shared.socket.room.store(true, Ordering::Relaxed);
            let sent = (0..).take_while(|_| sender.step(behind_ns).unwrap()).count();
            assert_eq!(sent, 10);
            assert!(sender.try_end(behind_ns) && !receiver.is_over(behind_ns), "answers are owed");
            // The last request was due 9 ms after the first.
            while shared.clock.now_ns() < now_ns + 9 * MS {
                std::hint::spin_loop();
            }
            (0..10).for_each(|at| receiver.took(&shared.socket.frame(at)));
            assert!(receiver.is_over(behind_ns));
            assert_eq!((receiver.seen.from_intended.len(), shared.unsent.load(Ordering::Relaxed)), (10, 0));
            let spread_ns = receiver.seen.from_intended.max() - receiver.seen.from_intended.min();
            assert!(spread_ns > 8 * MS, "{spread_ns} ns between a wait of 9 ms more and none");
        });
    }

    #[test]
    fn what_was_never_sent_is_counted() {
        run_of(&open_loop(), true, |shared, now_ns| {
            let mut sender = Sender::new(shared, ADDRESSES);
            assert!((0..4).all(|_| sender.step(now_ns + 5 * MS).unwrap()));
            assert!(sender.try_end(now_ns + 10 * MS + GRACE_NS));
            assert_eq!(shared.counted.load(Ordering::Relaxed) + shared.unsent.load(Ordering::Relaxed), 10);
        });
    }

    #[test]
    fn only_the_window_counts_and_a_report_has_what_came_since_the_last() {
        let settings = Settings {
            warm_up: Duration::ZERO,
            report: Some(Duration::from_secs(60)),
            ..Settings::new(Polling::Interrupts)
        };
        run_of(&settings, true, |shared, now_ns| {
            let mut receiver = Receiver::new(shared, None);
            assert!(shared.counts(now_ns) && !shared.counts(now_ns - 1) && !shared.counts(now_ns + 10 * MS));
            Sender::new(shared, ADDRESSES).step(now_ns).unwrap();
            receiver.took(&shared.socket.frame(0));
            shared.all_sent.store(true, Ordering::Relaxed);
            let mut reported = Vec::new();
            // It ends at once, because everything is answered.
            let received = receiver.run(&mut |report| reported.push(report.answered)).unwrap();
            assert_eq!((reported, received.receive_times.calls()), (vec![1], 0));
        });
    }
}
