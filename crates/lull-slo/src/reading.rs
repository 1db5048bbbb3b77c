//! A window's figures: a controller decides by them, and they are what is shown of it.
//!
//! Whoever runs the controller gathers them once, per NAPI; a screen or an exporter reads the same values.

use lull_core::Stats;
use serde::{Deserialize, Serialize};

use crate::{Slo, Statistic};

/// How many answers a window should have, as a statistic of fewer says little. They are waited for until
/// [`WINDOW_NS_MAX`].
pub const ANSWERS_PER_WINDOW: u64 = 1_000;
/// If there are fewer answers than this, latency counts as unknown.
pub const ANSWERS_MIN: u64 = 100;
/// A window lasts at least this long, in nanoseconds.
pub const WINDOW_NS_MIN: u64 = 100_000_000;
/// A window lasts at most this long, in nanoseconds.
pub const WINDOW_NS_MAX: u64 = 1_000_000_000;

/// Whether a window is over because there is enough to see, or because it has lasted long enough. `answers` is `None`
/// if latency cannot be known.
pub fn window_is_over(elapsed_ns: u64, answers: Option<u64>) -> bool {
    elapsed_ns >= WINDOW_NS_MAX
        || elapsed_ns >= WINDOW_NS_MIN && answers.is_some_and(|answers| answers >= ANSWERS_PER_WINDOW)
}

/// The latencies of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many answers were timed.
    pub answers: u64,
    /// Their mean, in nanoseconds.
    pub avg_ns: u64,
    /// Their median, in nanoseconds.
    pub p50_ns: u64,
    /// Their 95th percentile, in nanoseconds.
    pub p95_ns: u64,
    /// Their 99th percentile, in nanoseconds.
    pub p99_ns: u64,
}

impl Latency {
    /// A statistic, in nanoseconds.
    pub fn ns(&self, statistic: Statistic) -> u64 {
        match statistic {
            Statistic::Avg => self.avg_ns,
            Statistic::P50 => self.p50_ns,
            Statistic::P95 => self.p95_ns,
            Statistic::P99 => self.p99_ns,
        }
    }

    /// Whether every bound holds.
    pub fn meets(&self, slo: &Slo) -> bool {
        slo.bounds().iter().all(|bound| self.ns(bound.statistic) < bound.limit_ns)
    }
}

/// What happened on one NAPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiReading {
    /// The NAPI's id.
    pub id: u32,
    /// How many polls there were.
    pub polls: u64,
    /// How many packets the polls took.
    pub work: u64,
    /// How many timers ran out, if that is counted.
    pub timers: Option<u64>,
    /// How many suspensions there were, if that is counted.
    pub suspends: Option<u64>,
}

impl NapiReading {
    /// The reading from the differences of a NAPI's counters.
    pub fn of(id: u32, stats: &Stats) -> NapiReading {
        NapiReading {
            id,
            polls: stats.polls,
            work: stats.work,
            timers: Some(stats.timer_fires),
            suspends: Some(stats.suspends),
        }
    }
}

/// What was seen in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// When the window ended, in nanoseconds of a clock that never goes back.
    pub now_ns: u64,
    /// How long it was, in nanoseconds.
    pub window_ns: u64,
    /// What happened on each NAPI.
    pub napis: Vec<NapiReading>,
    /// The use of the CPUs that serve and deliver, in percent, if it is known.
    pub cpu_percent: Option<f64>,
    /// The latency, if it is known.
    pub latency: Option<Latency>,
}

impl Reading {
    /// Packets per second, over all NAPIs.
    pub(crate) fn packets_per_s(&self) -> u64 {
        let packets: u64 = self.napis.iter().map(|napi| napi.work).sum();
        (u128::from(packets) * 1_000_000_000 / u128::from(self.window_ns.max(1))) as u64
    }

    /// The latency, if there were enough answers to judge by it.
    pub(crate) fn judged(&self) -> Option<&Latency> {
        self.latency.as_ref().filter(|latency| latency.answers >= ANSWERS_MIN)
    }
}
