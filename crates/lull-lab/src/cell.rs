//! A cell is one test case at one load: the measurements of its runs, their summary, and whether they count.
//!
//! The runner fills one [`RunResult`] per run; [`summarise`] folds them into [`CellSummary`]s; a [`Report`] is the
//! cells with what produced them, and is what the table, the files and the page are rendered from.
//!
//! | module | holds |
//! | --- | --- |
//! | [`load`] | how much is asked of the server |
//! | [`run`] | one run's measurements |
//! | [`verdict`] | whether the mode was in force, and whether the cell counts |
//! | [`summary`] | runs folded, with confidence intervals |
//! | [`report`] | all cells, the machine and the command |
//! | [`drift`] | whether the machine's speed was the same throughout |
//! | [`compare`] | one cell against another, run by run, and against the published table |

pub mod compare;
pub mod drift;
pub mod load;
pub mod report;
pub mod run;
pub mod summary;
pub mod verdict;

pub use load::{Load, LoadNameError};
pub use report::Report;
pub use run::{Answers, PolledBy, RunResult};
pub use summary::{CellSummary, Counts, summarise};
pub use verdict::{Enforcement, Standing};
