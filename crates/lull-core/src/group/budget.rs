//! How many cycles a group may burn: nanoseconds of its pollers in each period.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Length of a period, in nanoseconds.
pub const BUDGET_PERIOD_NS: u64 = 10_000_000;
/// The largest budget, in percent of one CPU: as many pollers as a group can have.
pub const BUDGET_PERCENT_MAX: u32 = 100 * super::watch::GROUP_POLLERS_MAX as u32;

/// What the pollers of a group may spend, in percent of one CPU; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// What they may spend on passes that find nothing. When it is spent, all but one park, and that one rests between
    /// packets, whatever the mode says.
    pub empty_percent: Option<u32>,
    /// What they may spend on all passes. When it is spent, all sleep to the end of the period with interrupts masked.
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
/// How long a poller goes on at least between two looks at a budget that is spent, in nanoseconds.
const LOOK_NS: u64 = 1_000;

impl Spent {
    /// What was spent in the period of `now_ns`.
    fn so_far(&self, now_ns: u64) -> u64 {
        Spent::in_period(self.0.load(Relaxed), now_ns / BUDGET_PERIOD_NS)
    }

    /// Adds to what was spent in the period of `now_ns`, and returns the sum.
    fn charge(&self, now_ns: u64, ns: u64) -> u64 {
        let period = now_ns / BUDGET_PERIOD_NS;
        let sum = |word: u64| (Spent::in_period(word, period) + ns).min(u64::from(u32::MAX));
        let before = self.0.fetch_update(Relaxed, Relaxed, |word| Some(period << NS_BITS | sum(word)));
        before.map_or(0, sum)
    }

    fn in_period(word: u64, period: u64) -> u64 {
        if word >> NS_BITS == period & u64::from(u32::MAX) { word & u64::from(u32::MAX) } else { 0 }
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

    /// How long `pollers` of them can go on without packets until the budget is spent or the period ends;
    /// `uncharged_ns` is how long the other pollers have run since they were last charged.
    pub(crate) fn lasts_until(&self, now_ns: u64, pollers: u32, uncharged_ns: u64) -> u64 {
        let Budget { empty_percent, total_percent } = self.budget;
        if empty_percent.is_none() && total_percent.is_none() {
            return u64::MAX;
        }
        let left_ns = |percent: u32, spent: &Spent| per_period(percent).saturating_sub(spent.so_far(now_ns));
        let empty_ns = empty_percent.map_or(u64::MAX, |percent| left_ns(percent, &self.empty));
        let total_ns = total_percent.map_or(u64::MAX, |percent| left_ns(percent, &self.total));
        // All of them go on meanwhile, so each of them finds the same end.
        let each_ns = empty_ns.min(total_ns).saturating_sub(uncharged_ns) / u64::from(pollers.max(1));
        let period_ends_ns = (now_ns / BUDGET_PERIOD_NS + 1) * BUDGET_PERIOD_NS;
        // The only one that is awake rests with its next pass.
        let at_least_ns = if pollers > 1 { LOOK_NS } else { 0 };
        now_ns.saturating_add(each_ns.max(at_least_ns)).min(period_ends_ns)
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
    fn pollers_that_look_at_different_times_find_the_same_end() {
        let ledger = Ledger::new(Budget { empty_percent: Some(5), total_percent: None });
        // Two of them spin; one is charged every now and then, the other not before the end.
        for (now_ns, charged_ns) in [(0, 0), (100_000, 100_000), (160_000, 60_000), (249_000, 89_000)] {
            let _ = ledger.charge(now_ns, charged_ns, false);
            assert_eq!(ledger.lasts_until(now_ns, 2, now_ns), 250_000_u64.max(now_ns + LOOK_NS));
        }
        assert_eq!(ledger.lasts_until(249_500, 1, 0), 249_500 + 500_000 - 249_000);
    }

    #[test]
    fn a_total_that_is_spent_lasts_to_the_periods_end() {
        let ledger = Ledger::new(Budget { empty_percent: None, total_percent: Some(50) });
        assert_eq!(ledger.charge(1, 4_000_000, true), Left::Enough);
        assert_eq!(ledger.charge(4_000_000, 1_000_000, false), Left::NothingUntil(BUDGET_PERIOD_NS));
        assert_eq!(ledger.charge(BUDGET_PERIOD_NS, 1, true), Left::Enough);
    }
}
