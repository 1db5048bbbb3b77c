//! The measurements of a run.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The largest value of the histograms, which range from 1 ns to 100 s at 3 significant digits.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// Makes an empty histogram of nanoseconds.
pub(super) fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("bounds that are constants"),
    }
}

/// The letter's percentiles, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// The 5th percentile.
    pub p5: u64,
    /// The median.
    pub p50: u64,
    /// The 95th percentile.
    pub p95: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The longest latency.
    pub max: u64,
}

impl Percentiles {
    /// Returns the percentiles, or `None` if the histogram is empty, because a latency of 0 would look like a good one.
    pub(super) fn of(histogram: &Histogram<u64>) -> Option<Percentiles> {
        if histogram.is_empty() {
            return None;
        }
        let at = |percentile: f64| histogram.value_at_percentile(percentile);
        Some(Percentiles { p5: at(5.0), p50: at(50.0), p95: at(95.0), p99: at(99.0), max: histogram.max() })
    }

    /// Returns p5, p50, p95 and p99, in the table's order.
    pub fn row(&self) -> [u64; 4] {
        [self.p5, self.p50, self.p95, self.p99]
    }
}

/// Time inside receive calls, by powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReceiveTimes {
    /// The number of calls that took at least `2^n` and less than `2^(n+1)` ns. Calls of less than a nanosecond are in
    /// the first.
    pub by_log2_ns: Vec<u64>,
}

impl ReceiveTimes {
    pub(super) fn add(&mut self, ns: u64) {
        let bucket = ns.max(1).ilog2() as usize;
        if self.by_log2_ns.len() <= bucket {
            self.by_log2_ns.resize(bucket + 1, 0);
        }
        self.by_log2_ns[bucket] += 1;
    }

    pub(super) fn merge(&mut self, other: &ReceiveTimes) {
        if self.by_log2_ns.len() < other.by_log2_ns.len() {
            self.by_log2_ns.resize(other.by_log2_ns.len(), 0);
        }
        self.by_log2_ns.iter_mut().zip(&other.by_log2_ns).for_each(|(sum, calls)| *sum += calls);
    }

    /// Returns the number of all calls.
    pub fn calls(&self) -> u64 {
        self.by_log2_ns.iter().sum()
    }
}

/// One interval of a run, as `-l` asks for.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The number of answers in it.
    pub answered: u64,
    /// Latency from the actual send, or `None` without an answer.
    pub from_send_ns: Option<Percentiles>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_times_are_counted_by_powers_of_two() {
        let mut times = ReceiveTimes::default();
        for ns in [0, 1, 2, 3, 128, 255, 256, 4096] {
            times.add(ns);
        }
        let mut other = ReceiveTimes::default();
        other.add(1 << 20);
        times.merge(&other);
        let at = |log2: usize| times.by_log2_ns[log2];
        assert_eq!((at(0), at(1), at(7), at(8), at(12), at(20)), (2, 2, 2, 1, 1, 1));
        assert_eq!(times.calls(), 9);
    }
}
