//! The figures of a run that an objective can ask for.

use lull_slo::Statistic;

use crate::engine::metrics::Outcome;

/// The figures of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Requests answered per second.
    pub per_s: f64,
    /// How many were answered.
    pub answers: u64,
    /// Virtual time that counted, in nanoseconds.
    pub window_ns: u64,
    /// Mean latency, in microseconds.
    pub avg_us: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 95th percentile, in microseconds.
    pub p95_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// CPU of the service's cores as Linux's accounting shows it, in percent.
    pub cpu_percent: f64,
    /// How long the cores were not idle, charged or not, in percent: accounting does not see interrupts that come out
    /// of idle, such as a NAPI's timer.
    pub busy_percent: f64,
}

impl Figures {
    /// Returns a statistic of latency, in microseconds.
    pub fn latency_us(&self, statistic: Statistic) -> f64 {
        match statistic {
            Statistic::Avg => self.avg_us,
            Statistic::P50 => self.p50_us,
            Statistic::P95 => self.p95_us,
            Statistic::P99 => self.p99_us,
        }
    }

    /// Returns the figures of a run.
    pub fn of(outcome: &Outcome) -> Figures {
        Figures {
            per_s: outcome.qps(),
            answers: outcome.counts.answered,
            window_ns: outcome.window_ns,
            avg_us: outcome.latency_mean_us(),
            p50_us: outcome.latency_us(50.0),
            p95_us: outcome.latency_us(95.0),
            p99_us: outcome.latency_us(99.0),
            cpu_percent: outcome.cpu.percent(),
            busy_percent: 100.0 * outcome.cpu.busy_ns() as f64
                / (outcome.cpu.busy_ns() + outcome.cpu.idle_ns).max(1) as f64,
        }
    }
}

/// Writes microseconds with three digits: `63.6us`, `412us`, `4.25ms`.
pub fn us_text(us: f64) -> String {
    match us {
        us if us >= 9_995.0 => format!("{:.1}ms", us / 1e3),
        us if us >= 999.5 => format!("{:.2}ms", us / 1e3),
        us if us >= 99.95 => format!("{us:.0}us"),
        us => format!("{us:.1}us"),
    }
}
