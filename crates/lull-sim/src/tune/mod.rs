//! Which mode and which timeout for an objective at a load.
//!
//! [`tune`] looks for the setting that meets an objective at the least CPU. In order:
//!
//! 1. every mode, and a grid of timeouts, with a few seeds each;
//! 2. timeouts between those of the grid, around the best of each family;
//! 3. other values of `irq_suspend_timeout` and `defer_hard_irqs` than the modes' own around the best so far and the
//!    best of each family, twice. They are taken only if they earn it: a point of CPU, or 5 % of latency at no more
//!    CPU;
//! 4. confirmation: the best is run with all seeds. It is recommended if every seed meets every bound, and the bound
//!    that holds for one further seed with 95 % (a prediction interval) does too. If not, the next best has its turn;
//! 5. robustness: recommendation and base at half and at double the load, and what would be best there. Only latency is
//!    judged: the limit of CPU belongs to the load that was asked for.
//!
//! Settings that stay below every latency bound with something to spare are preferred ([`Objective::spare_percent`]);
//! without one, those that just meet them have their turn.
//!
//! Only a setting that carries the load can be recommended: in an open loop with one request outstanding a connection,
//! latencies stay finite in overload, and would look like an answer. Latencies within the model's error of a bound are
//! said to be so by [`Answer::margin`], which the reader should hold against how well the costs were calibrated.
//!
//! The search runs nothing itself: it hands out [`Job`]s, all that are known at a time, and takes [`Figures`].

mod answer;
mod best;
mod figures;
mod search;
mod setting;
mod tried;

pub use self::answer::{Answer, Elsewhere, Runner, TuneError, reachable};
pub use self::figures::{Figures, us_text};
pub use self::search::tune;
pub use self::setting::{Family, Setting};
pub use self::tried::{CARRIED_SHARE_MIN, Objective, Tried, carried_share_min};
#[cfg(doc)]
use crate::predict::Job;
