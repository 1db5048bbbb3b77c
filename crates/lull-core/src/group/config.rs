//! How a group behaves, and within which limits.

use super::budget::{BUDGET_PERCENT_MAX, Budget};
use super::governor::Thresholds;

/// How a group behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupConfig {
    /// The last poller that is awake rests after so many nanoseconds of empty passes; `None`: it never does.
    pub rest_ns: Option<u64>,
    /// What the pollers may spend.
    pub budget: Budget,
    /// When pollers are woken and parked.
    pub thresholds: Thresholds,
    /// Pollers without packets walk their members' receive path now and then ([`super::poller::dry_run`]).
    pub dry_run: bool,
}

/// Why a group was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupConfigError {
    /// The budget is 0, or more than the pollers of a group can spend.
    Budget {
        /// In percent of one CPU.
        percent: u32,
    },
    /// A threshold is above 100 %, or the lower one is not below the upper one.
    Thresholds {
        /// As given.
        given: Thresholds,
    },
}

impl std::fmt::Display for GroupConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GroupConfigError::Budget { percent } => write!(
                f,
                "a group cannot work with a budget of {percent} %: give 1 to {} % of one CPU, or no budget",
                BUDGET_PERCENT_MAX
            ),
            GroupConfigError::Thresholds { given } => write!(
                f,
                "a group cannot wake pollers above {} % and park them below {} %: both are at most 100 %, and the second \
                 is below the first",
                given.wake_above, given.park_below
            ),
        }
    }
}

impl std::error::Error for GroupConfigError {}

impl GroupConfig {
    /// Checks it against its limits.
    ///
    /// # Errors
    /// A budget of 0, or thresholds that would wake and park in turn.
    pub fn check(&self) -> Result<(), GroupConfigError> {
        for percent in [self.budget.empty_percent, self.budget.total_percent].into_iter().flatten() {
            if !(1..=BUDGET_PERCENT_MAX).contains(&percent) {
                return Err(GroupConfigError::Budget { percent });
            }
        }
        let given = self.thresholds;
        if given.wake_above > 100 || given.park_below >= given.wake_above {
            return Err(GroupConfigError::Thresholds { given });
        }
        Ok(())
    }
}
