//! How late timers were: a small histogram that any thread may add to.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets per power of two: the median is known to 1/8.
const SUB_BITS: u32 = 3;
const BUCKETS: usize = 48 << SUB_BITS;

/// Lateness of timers, in nanoseconds.
#[derive(Debug)]
pub struct Lateness {
    buckets: Box<[AtomicU64]>,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

/// A copy of the histogram at one moment.
#[derive(Clone, Debug)]
pub struct LatenessSnapshot(Vec<u64>);

fn bucket(late_ns: u64) -> usize {
    let value = late_ns + (1 << SUB_BITS);
    let exponent = 63 - value.leading_zeros();
    let sub = (value >> (exponent - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
    ((((exponent - SUB_BITS) as usize) << SUB_BITS) + sub).min(BUCKETS - 1)
}

fn lower_bound_ns(bucket: usize) -> u64 {
    let exponent = (bucket >> SUB_BITS) as u32 + SUB_BITS;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    ((1 << exponent) | (sub << (exponent - SUB_BITS))) - (1 << SUB_BITS)
}

impl Lateness {
    pub(crate) fn record(&self, late_ns: u64) {
        self.buckets[bucket(late_ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Copies the counts as they are now.
    pub fn snapshot(&self) -> LatenessSnapshot {
        LatenessSnapshot(self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
}

impl LatenessSnapshot {
    /// What was added since `before`.
    pub fn since(&self, before: &LatenessSnapshot) -> LatenessSnapshot {
        LatenessSnapshot(self.0.iter().zip(&before.0).map(|(now, then)| now - then).collect())
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &LatenessSnapshot) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// How many timers are in each bucket, up to the last that has one: how it is told to another process.
    pub fn counts(&self) -> &[u64] {
        let used = self.0.iter().rposition(|count| *count != 0).map_or(0, |last| last + 1);
        &self.0[..used]
    }

    /// The histogram of such counts.
    pub fn of_counts(counts: &[u64]) -> LatenessSnapshot {
        let mut buckets = vec![0; BUCKETS];
        buckets.iter_mut().zip(counts).for_each(|(bucket, count)| *bucket = *count);
        LatenessSnapshot(buckets)
    }

    /// How many timers were counted.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The median in nanoseconds, to within an eighth; `None` if there was no timer.
    pub fn median_ns(&self) -> Option<u64> {
        let half = self.count().div_ceil(2);
        if half == 0 {
            return None;
        }
        let mut seen = 0;
        let at = self.0.iter().position(|count| {
            seen += count;
            seen >= half
        })?;
        Some((lower_bound_ns(at) + lower_bound_ns(at + 1)) / 2)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_known_to_an_eighth() {
        for late_ns in [0, 1, 7, 100, 18_000, 1_000_000, 30_000_000_000] {
            let lateness = Lateness::default();
            (0..5).for_each(|_| lateness.record(late_ns));
            let median = lateness.snapshot().median_ns().unwrap();
            assert!(median.abs_diff(late_ns) <= late_ns / 8 + 1, "{median} for {late_ns}");
        }
        assert_eq!(Lateness::default().snapshot().median_ns(), None);
    }

    #[test]
    fn counts_make_the_same_histogram_elsewhere() {
        let lateness = Lateness::default();
        [3, 18_000, 1_000_000].into_iter().for_each(|late_ns| lateness.record(late_ns));
        let here = lateness.snapshot();
        let there = LatenessSnapshot::of_counts(here.counts());
        assert_eq!((there.count(), there.median_ns()), (3, here.median_ns()));
        assert!(Lateness::default().snapshot().counts().is_empty());
    }
}
