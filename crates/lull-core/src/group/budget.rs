//! How many cycles a group may burn: nanoseconds of its pollers in each period.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Length of a period, in nanoseconds.
pub const BUDGET_PERIOD_NS: u64 = 10_000_000;
/// The largest budget, in percent of one CPU: as many pollers as a group can have.
pub const BUDGET_PERCENT_MAX: u32 = 100 * super::watch::GROUP_POLLERS_MAX as u32;

/// What the pollers of a group may spend, in percent of one CPU; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// On passes that find nothing. Spent: all but one park, and that one rests between packets, whatever the mode says.
    pub empty_percent: Option<u32>,
    /// On all passes. Spent: all sleep to the end of the period, interrupts masked.
    pub total_percent: Option<u32>,
}

/// What is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Enough,
    /// No more empty passes in this period.
    NoEmpty,
    /// Nothing at all before then.
    NothingUntil(u64),
}

/// The nanoseconds spent in one period: the period's number above, nanoseconds below, so that a new period begins with the
/// first charge to it.
#[derive(Debug, Default)]
struct Spent(AtomicU64);

const NS_BITS: u32 = 32;

impl Spent {
    /// Adds to what was spent in the period of `now_ns`, and returns the sum.
    fn charge(&self, now_ns: u64, ns: u64) -> u64 {
        let period = now_ns / BUDGET_PERIOD_NS;
        let spent =
            |word: u64| if word >> NS_BITS == period & u64::from(u32::MAX) { word & u64::from(u32::MAX) } else { 0 };
        let sum = |word: u64| (spent(word) + ns).min(u64::from(u32::MAX));
        let before = self.0.fetch_update(Relaxed, Relaxed, |word| Some(period << NS_BITS | sum(word)));
        before.map_or(0, sum)
    }
}

#[derive(Debug)]
pub(crate) struct Ledger {
    budget: Budget,
    empty: Spent,
    total: Spent,
}

impl Ledger {
    pub(crate) fn new(budget: Budget) -> Ledger {
        Ledger { budget, empty: Spent::default(), total: Spent::default() }
    }

    /// A pass took `ns`. Nothing is written for a group without a budget.
    #[inline]
    pub(crate) fn charge(&self, now_ns: u64, ns: u64, worked: bool) -> Left {
        if let Some(percent) = self.budget.total_percent
            && self.total.charge(now_ns, ns) >= per_period(percent)
        {
            return Left::NothingUntil((now_ns / BUDGET_PERIOD_NS + 1) * BUDGET_PERIOD_NS);
        }
        if let Some(percent) = self.budget.empty_percent
            && self.empty.charge(now_ns, if worked { 0 } else { ns }) >= per_period(percent)
        {
            return Left::NoEmpty;
        }
        Left::Enough
    }
}

fn per_period(percent: u32) -> u64 {
    BUDGET_PERIOD_NS / 100 * u64::from(percent)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn empty_passes_are_bounded_per_period_and_the_next_period_begins_anew() {
        let ledger = Ledger::new(Budget { empty_percent: Some(30), total_percent: None });
        assert_eq!(ledger.charge(1, 2_999_999, false), Left::Enough);
        assert_eq!(ledger.charge(2, 9_000_000, true), Left::Enough, "busy passes are free");
        assert_eq!(ledger.charge(3, 1, false), Left::NoEmpty);
        assert_eq!(ledger.charge(BUDGET_PERIOD_NS, 1, false), Left::Enough);
    }

    #[test]
    fn a_total_that_is_spent_lasts_to_the_periods_end() {
        let ledger = Ledger::new(Budget { empty_percent: None, total_percent: Some(50) });
        assert_eq!(ledger.charge(1, 4_000_000, true), Left::Enough);
        assert_eq!(ledger.charge(4_000_000, 1_000_000, false), Left::NothingUntil(BUDGET_PERIOD_NS));
        assert_eq!(ledger.charge(BUDGET_PERIOD_NS, 1, true), Left::Enough);
    }
}
