//! Latencies counted in buckets. The difference of two counts is that of the interval between them, and counts of
//! several queues add up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Latency;

/// Buckets of each power of two, so that a value is known to within 1/64 of itself.
const FINE: u64 = 64;
/// A latency below this many nanoseconds counts as this one.
const LEAST_NS: u64 = 1 << LEAST_BITS;
const LEAST_BITS: u32 = 10;
/// How many powers of two have buckets, from [`LEAST_NS`] on. A latency of more than two minutes counts as one of two
/// minutes.
const POWERS: u64 = 27;

/// How many latencies there were of each size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Sparse", into = "Sparse")]
pub struct Latencies {
    /// The counts by bucket; empty until the first latency is recorded.
    counts: Vec<u64>,
    sum_ns: u64,
}

/// The form in which counts are written: only the buckets that are not empty.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Sparse {
    counts: BTreeMap<usize, u64>,
    sum_ns: u64,
}

impl From<Latencies> for Sparse {
    fn from(latencies: Latencies) -> Sparse {
        let counts = latencies.counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        Sparse { counts, sum_ns: latencies.sum_ns }
    }
}

impl From<Sparse> for Latencies {
    fn from(Sparse { counts, sum_ns }: Sparse) -> Latencies {
        let mut latencies = Latencies { counts: Vec::new(), sum_ns };
        for (bucket, count) in counts.into_iter().filter(|(bucket, _)| *bucket < buckets()) {
            latencies.counts()[bucket] += count;
        }
        latencies
    }
}

fn buckets() -> usize {
    (POWERS * FINE) as usize
}

fn bucket_of(ns: u64) -> usize {
    let Some(above) = ns.max(LEAST_NS).ilog2().checked_sub(LEAST_BITS) else { return 0 };
    let fine = (ns.max(LEAST_NS) >> (above + LEAST_BITS - FINE.ilog2())) % FINE;
    ((u64::from(above) * FINE + fine) as usize).min(buckets() - 1)
}

/// The middle of a bucket, in nanoseconds.
fn middle_ns(bucket: usize) -> u64 {
    let (above, fine) = (bucket as u64 / FINE, bucket as u64 % FINE);
    let width = (LEAST_NS / FINE) << above;
    (FINE + fine) * width + width / 2
}

impl Latencies {
    fn counts(&mut self) -> &mut [u64] {
        if self.counts.is_empty() {
            self.counts = vec![0; buckets()];
        }
        &mut self.counts
    }

    /// Counts one latency.
    pub fn record(&mut self, ns: u64) {
        self.counts()[bucket_of(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Latencies) {
        if other.counts.is_empty() {
            return;
        }
        self.counts().iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// What was counted since `before`, an earlier state of the same count. If `before` has more, it is of another
    /// process, and everything here is new.
    #[must_use]
    pub fn since(&self, before: &Latencies) -> Latencies {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&before.counts) {
            let Some(left) = count.checked_sub(*before) else { return self.clone() };
            *count = left;
        }
        since.sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        since
    }

    /// How many latencies were counted.
    pub fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Whether none were counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of all latencies, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// How many latencies were shorter than this, as exactly as the buckets tell.
    pub fn below(&self, ns: u64) -> u64 {
        self.counts.iter().take(bucket_of(ns)).sum()
    }

    /// The statistics of these latencies.
    pub fn latency(&self) -> Latency {
        let answers = self.len();
        let at = |percent: u64| {
            let (wanted, mut seen) = ((answers * percent).div_ceil(100).max(1), 0);
            let reaches = |count: &u64| {
                seen += count;
                seen >= wanted
            };
            self.counts.iter().position(reaches).map_or(0, middle_ns)
        };
        let avg_ns = self.sum_ns / answers.max(1);
        Latency { answers, avg_ns, p50_ns: at(50), p95_ns: at(95), p99_ns: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_within_a_64th_of_what_was_recorded() {
        let mut latencies = Latencies::default();
        (1..=1_000).for_each(|us| latencies.record(us * 1_000));
        let latency = latencies.latency();
        assert_eq!((latency.answers, latency.avg_ns), (1_000, 500_500));
        for (found, exact) in [(latency.p50_ns, 500_000.0), (latency.p95_ns, 950_000.0), (latency.p99_ns, 990_000.0)] {
            assert!((found as f64 / exact - 1.0).abs() < 1.0 / 64.0, "{found} {exact}");
        }
        assert!(latencies.below(500_000).abs_diff(499) < 10, "{}", latencies.below(500_000));
        for ns in [0, 5, 1_023, u64::MAX] {
            latencies.record(ns);
        }
        assert_eq!(latencies.len(), 1_004);
        assert_eq!(Latencies::default().latency(), Latency::default());
    }

    #[test]
    fn an_interval_is_the_difference_and_another_process_begins_anew() {
        let mut before = Latencies::default();
        before.record(50_000);
        let mut after = before.clone();
        (0..10).for_each(|_| after.record(90_000));
        let since = after.since(&before).latency();
        assert_eq!((since.answers, since.avg_ns), (10, 90_000));
        assert!(since.p50_ns.abs_diff(90_000) < 1_500, "{since:?}");
        let mut other = Latencies::default();
        other.record(7_000);
        assert_eq!(other.since(&after), other);
        let mut sum = before.clone();
        sum.add(&after);
        assert_eq!(sum.len(), 12);
    }

    #[test]
    fn what_is_written_is_read_back_and_what_is_no_bucket_is_passed_over() {
        let mut latencies = Latencies::default();
        [3_000, 80_000, 80_100, 5_000_000].into_iter().for_each(|ns| latencies.record(ns));
        let text = serde_json::to_string(&latencies).unwrap();
        assert!(text.len() < 100, "{text}");
        assert_eq!(serde_json::from_str::<Latencies>(&text).unwrap(), latencies);
        assert_eq!(serde_json::from_str::<Latencies>(r#"{"counts":{"99999":5}}"#).unwrap().len(), 0);
    }
}
