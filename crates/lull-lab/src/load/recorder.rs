//! The measurements of a run.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::LoadError;
use super::checker::Outcome;

/// The largest value of the histograms, which range from 1 ns to 100 s at 3 significant digits.
const LATENCY_NS_MAX: u64 = 100_000_000_000;
/// A generator's lag up to this is acceptable, however short the latencies are.
const LAG_FREE_NS: u64 = 20_000;
/// A generator that is busy for more than this share of the time is the bottleneck of a closed loop.
pub const BUSY_SHARE_MAX: f64 = 0.97;

/// The part of a run that counts, in nanoseconds of the generator's clock: from the end of the warm-up for the
/// duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// First nanosecond that counts.
    pub from_ns: u64,
    /// The first nanosecond behind the window.
    pub to_ns: u64,
}

impl Window {
    /// Whether a moment is inside the window.
    #[inline]
    pub fn contains(&self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && at_ns < self.to_ns
    }
}

/// Counters and histograms of one generator.
///
/// A request counts if it was sent after the window began and was *meant* to be sent before it ended. An answer counts
/// if it came after the window began, however late, to a request that was meant to be sent before it ended. So neither
/// a stall at the end nor requests that had to wait since the warm-up drop out of the latencies.
#[derive(Clone, Debug)]
pub struct Recorder {
    window: Window,
    latency: Histogram<u64>,
    lag: Histogram<u64>,
    counts: Counts,
}

/// The counters of a generator. The figures of [`Summary`] come from these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    sent: u64,
    completed: u64,
    hits: u64,
    misses: u64,
    stored: u64,
    wrong: u64,
    refused: u64,
    lost: u64,
    busy_ns: u64,
    watched_ns: u64,
    doorbells: u64,
    doorbell_ns: u64,
    raise_ns: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.sent += other.sent;
        self.completed += other.completed;
        self.hits += other.hits;
        self.misses += other.misses;
        self.stored += other.stored;
        self.wrong += other.wrong;
        self.refused += other.refused;
        self.lost += other.lost;
        self.busy_ns += other.busy_ns;
        self.watched_ns += other.watched_ns;
        self.doorbells += other.doorbells;
        self.doorbell_ns += other.doorbell_ns;
        self.raise_ns += other.raise_ns;
    }
}

impl Recorder {
    /// Makes an empty recorder for a window.
    pub fn new(window: Window) -> Recorder {
        let histogram = || {
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("1 < the maximum, and 3 digits are within 0 to 5")
        };
        Recorder { window, latency: histogram(), lag: histogram(), counts: Counts::default() }
    }

    /// Makes a recorder from what [`Recorder::latency`], [`Recorder::lag`] and [`Recorder::counts`] returned, or `None`
    /// if a histogram has other bounds than a recorder's.
    pub(super) fn from_parts(
        window: Window,
        latency: Histogram<u64>,
        lag: Histogram<u64>,
        counts: Counts,
    ) -> Option<Recorder> {
        let mut recorder = Recorder::new(window);
        recorder.latency.add(&latency).ok()?;
        recorder.lag.add(&lag).ok()?;
        recorder.counts = counts;
        Some(recorder)
    }

    /// Returns the window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Ends the window at `to_ns` if that is sooner, because the run was stopped or had no end of its own.
    pub fn end_window(&mut self, to_ns: u64) {
        self.window.to_ns = self.window.to_ns.min(to_ns.max(self.window.from_ns));
    }

    /// Records that a request was sent at `now_ns`; see [`super::Due`] for the other two times.
    #[inline]
    pub fn sent(&mut self, intended_ns: u64, eligible_ns: u64, now_ns: u64) {
        if now_ns >= self.window.from_ns && intended_ns < self.window.to_ns {
            self.counts.sent += 1;
            self.lag.saturating_record(now_ns.saturating_sub(eligible_ns).max(1));
        }
    }

    /// Records that the answer to a request came at `now_ns`.
    #[inline]
    pub fn answered(&mut self, intended_ns: u64, now_ns: u64, outcome: Outcome) {
        if self.window.contains(now_ns) {
            self.counts.completed += 1;
        }
        if now_ns < self.window.from_ns || intended_ns >= self.window.to_ns {
            return;
        }
        self.latency.saturating_record(now_ns.saturating_sub(intended_ns).max(1));
        match outcome {
            Outcome::Hit => self.counts.hits += 1,
            Outcome::Miss => self.counts.misses += 1,
            Outcome::Stored => self.counts.stored += 1,
            Outcome::Wrong => self.counts.wrong += 1,
            Outcome::Refused => self.counts.refused += 1,
        }
    }

    /// Records that requests were lost with their connection.
    pub fn lost(&mut self, requests: u64) {
        self.counts.lost += requests;
    }

    /// Records whether a turn of the generator's loop from `from_ns` to `to_ns` did work.
    #[inline]
    pub fn turn(&mut self, from_ns: u64, to_ns: u64, worked: bool) {
        if self.window.contains(from_ns) {
            let spent = to_ns - from_ns;
            self.counts.watched_ns += spent;
            if worked {
                self.counts.busy_ns += spent;
            }
        }
    }

    /// Records that a doorbell took from `from_ns` to `to_ns`.
    #[inline]
    pub fn doorbell(&mut self, from_ns: u64, to_ns: u64) {
        if self.window.contains(from_ns) {
            self.counts.doorbells += 1;
            self.counts.doorbell_ns += to_ns - from_ns;
        }
    }

    /// Returns the number of doorbells rung in the window.
    pub fn doorbells(&self) -> u64 {
        self.counts.doorbells
    }

    /// Sets the part of the doorbells' time in which they raised interrupts on the peer's behalf.
    pub fn set_raise_ns(&mut self, raise_ns: u64) {
        self.counts.raise_ns = raise_ns;
    }

    /// Adds what another generator of the same run recorded. The windows should have the same length.
    pub fn merge(&mut self, other: &Recorder) {
        self.latency.add(&other.latency).expect("all recorders have the same bounds");
        self.lag.add(&other.lag).expect("all recorders have the same bounds");
        self.counts.add(&other.counts);
    }

    /// Returns the histogram of latencies in nanoseconds.
    pub fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }

    /// Returns the histogram of the generator's lag in nanoseconds.
    pub fn lag(&self) -> &Histogram<u64> {
        &self.lag
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the summary. `open_loop` selects the rule of [`Summary::kept_up`]; `unanswered` requests were
    /// outstanding when the run stopped waiting; `backlog` requests were due in the window and never sent.
    pub fn summarize(&self, open_loop: bool, unanswered: u64, backlog: u64) -> Summary {
        let duration_s = (self.window.to_ns - self.window.from_ns) as f64 / 1e9;
        let received =
            self.counts.hits + self.counts.misses + self.counts.stored + self.counts.wrong + self.counts.refused;
        let busy_fraction = self.counts.busy_ns as f64 / self.counts.watched_ns.max(1) as f64;
        let quantile = |share| if received == 0 { 0 } else { self.latency.value_at_quantile(share) };
        let lag_p99_ns = if self.counts.sent == 0 { 0 } else { self.lag.value_at_quantile(0.99) };
        let latency_p99_ns = quantile(0.99);
        let kept_up = if open_loop {
            lag_p99_ns <= LAG_FREE_NS.max(latency_p99_ns / 10)
        } else {
            busy_fraction <= BUSY_SHARE_MAX
        };
        Summary {
            duration_s,
            qps: self.counts.completed as f64 / duration_s.max(1e-9),
            sent: self.counts.sent,
            received,
            hits: self.counts.hits,
            misses: self.counts.misses,
            stored: self.counts.stored,
            errors: self.counts.wrong + self.counts.refused,
            lost: self.counts.lost,
            unanswered,
            backlog,
            latency_avg_ns: if received == 0 { 0.0 } else { self.latency.mean() },
            latency_p50_ns: quantile(0.5),
            latency_p95_ns: quantile(0.95),
            latency_p99_ns,
            latency_p999_ns: quantile(0.999),
            latency_max_ns: if received == 0 { 0 } else { self.latency.max() },
            lag_avg_ns: if self.counts.sent == 0 { 0.0 } else { self.lag.mean() },
            lag_p99_ns,
            busy_fraction,
            doorbells: self.counts.doorbells,
            doorbell_ns: self.counts.doorbell_ns,
            raise_ns: self.counts.raise_ns,
            retransmits: 0,
            reconnects: 0,
            kept_up,
        }
    }
}

impl Summary {
    /// Returns the number of requests that were sent and had no answer: they were lost with their connection, or the
    /// run stopped waiting.
    pub fn without_answer(&self) -> u64 {
        self.lost + self.unanswered
    }

    /// Returns the summary of a preload that stored every record or was stopped, and an error otherwise.
    pub(super) fn of_preload(self, stopped: bool) -> Result<Summary, LoadError> {
        if stopped || self.errors + self.without_answer() == 0 {
            return Ok(self);
        }
        Err(LoadError::Preload {
            sent: self.sent,
            stored: self.stored,
            errors: self.errors,
            unanswered: self.without_answer(),
        })
    }
}

/// The figures of a run; see [`Recorder`] for which requests count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Length of the window in seconds.
    pub duration_s: f64,
    /// Answers per second in the window.
    pub qps: f64,
    /// Requests sent.
    pub sent: u64,
    /// Answers of any kind, to requests of the window and to those that were outstanding when it began.
    pub received: u64,
    /// Reads that found their record.
    pub hits: u64,
    /// Reads that found no record.
    pub misses: u64,
    /// Updates that were stored.
    pub stored: u64,
    /// Answers that were errors, or had the wrong size.
    pub errors: u64,
    /// Requests that were lost with their connection, in or outside the window.
    pub lost: u64,
    /// Requests outstanding when the run stopped waiting for answers.
    pub unanswered: u64,
    /// The approximate number of requests that were due before the end of the window and not sent by then, because
    /// their connection was waiting for answers. More than a few mean that the offered load exceeds what the server can
    /// serve.
    pub backlog: u64,
    /// Mean latency in nanoseconds.
    pub latency_avg_ns: f64,
    /// Median.
    pub latency_p50_ns: u64,
    /// 95th percentile.
    pub latency_p95_ns: u64,
    /// 99th percentile.
    pub latency_p99_ns: u64,
    /// 99.9th percentile.
    pub latency_p999_ns: u64,
    /// Largest latency in nanoseconds.
    pub latency_max_ns: u64,
    /// Mean of the generator's lag in nanoseconds, from the moment when a request could be sent to its sending.
    pub lag_avg_ns: f64,
    /// 99th percentile of the generator's lag.
    pub lag_p99_ns: u64,
    /// Share of the generator's time spent on work rather than on polling in vain, as the mean over its threads.
    pub busy_fraction: f64,
    /// The number of times that the device was told of requests to send.
    pub doorbells: u64,
    /// The time that the doorbells took, in nanoseconds.
    pub doorbell_ns: u64,
    /// The part of it that went into raising the peer's interrupt.
    pub raise_ns: u64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Connections opened again after a loss.
    pub reconnects: u64,
    /// Whether the generator was fast enough for the run to say something about the server.
    ///
    /// In an open loop, the 99th percentile of its lag must be within 20 us or a tenth of the 99th percentile of the
    /// latency, whichever is more. In a closed loop, the generator must have been idle for at least 3 % of the time.
    pub kept_up: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { from_ns: 1_000, to_ns: 1_000_001_000 };

    #[test]
    fn what_waits_at_either_end_of_the_window_counts() {
        let mut recorder = Recorder::new(WINDOW);
        recorder.sent(500, 500, 600);
        recorder.answered(500, 900, Outcome::Refused);
        recorder.sent(1_000_001_000, 1_000_001_000, 1_000_001_000);
        recorder.answered(1_000_001_000, 1_000_002_000, Outcome::Refused);
        recorder.sent(5_000, 5_000, 6_000);
        recorder.answered(5_000, 105_000, Outcome::Miss);
        recorder.sent(1_000_000_000, 1_000_000_000, 1_000_000_000);
        recorder.answered(1_000_000_000, 2_000_000_000, Outcome::Stored);
        let summary = recorder.summarize(true, 0, 0);
        assert_eq!((summary.sent, summary.received, summary.misses, summary.stored), (2, 2, 1, 1));
        assert_eq!((summary.qps, summary.errors), (1.0, 0));
        assert!((summary.latency_max_ns as f64 / 1e9 - 1.0).abs() < 0.001);
        assert!((summary.latency_p50_ns as f64 / 1e5 - 1.0).abs() < 0.001);
    }

    #[test]
    fn a_slow_generator_is_marked() {
        let mut recorder = Recorder::new(WINDOW);
        for at_ns in (2_000..1_000_000).step_by(1_000) {
            recorder.sent(at_ns, at_ns, at_ns + 30_000);
            recorder.answered(at_ns, at_ns + 100_000, Outcome::Hit);
        }
        assert!(!recorder.summarize(true, 0, 0).kept_up);
        recorder.turn(2_000, 99_000, true);
        recorder.turn(99_000, 100_000, false);
        assert!(!recorder.summarize(false, 0, 0).kept_up);
        recorder.turn(100_000, 110_000, false);
        assert!(recorder.summarize(false, 0, 0).kept_up);
    }

    #[test]
    fn merged_recorders_are_one() {
        let mut one = Recorder::new(WINDOW);
        let mut other = Recorder::new(WINDOW);
        one.sent(2_000, 2_000, 2_000);
        one.answered(2_000, 3_000, Outcome::Hit);
        other.sent(2_000, 2_000, 2_000);
        other.answered(2_000, 9_000, Outcome::Refused);
        one.merge(&other);
        let summary = one.summarize(true, 0, 0);
        assert_eq!((summary.sent, summary.received, summary.errors), (2, 2, 1));
    }

    #[test]
    fn nothing_measured_is_zero() {
        let summary = Recorder::new(WINDOW).summarize(true, 3, 4);
        assert_eq!((summary.latency_avg_ns, summary.latency_max_ns, summary.qps), (0.0, 0, 0.0));
        assert_eq!((summary.unanswered, summary.backlog, summary.kept_up), (3, 4, true));
    }
}
