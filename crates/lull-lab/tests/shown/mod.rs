//! Tables of cases, measured until every row shows what it names, because on a busy machine a thread may not run once
//! in a short window.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lull_lab::case::{CaseRow, CaseTable, Effort};
use lull_lab::cell::Enforcement;
use lull_lab::progress::ProgressMode;

const WINDOW_FIRST: Duration = Duration::from_millis(400);
/// A table that shows nothing in a window of this length or more is returned unchanged, so that the test fails.
const WINDOW_LAST: Duration = Duration::from_secs(20);

/// One run, with 50 ms to settle and a window.
pub fn effort(stop: &AtomicBool, window: Duration) -> Effort<'_> {
    Effort { runs: 1, warm_up: Duration::from_millis(50), window, stop, progress: ProgressMode::Off }
}

/// Whether what the row names was in force. The time at which timers fired depends on the machine.
pub fn is_shown(row: &CaseRow) -> bool {
    row.verdict.as_ref().is_some_and(Enforcement::shows_mode)
}

/// Measures with `run`, in longer and longer windows, until every row is in force and has a positive value of each
/// measure.
pub fn table(measures: &[&str], run: impl Fn(&Effort<'_>) -> CaseTable) -> CaseTable {
    let stop = AtomicBool::new(false);
    let mut window = WINDOW_FIRST;
    loop {
        let table = run(&effort(&stop, window));
        let has = |row: &CaseRow, name: &&str| row.values[table.measure_at(name)].ours.is_some_and(|it| it.value > 0.0);
        let shows = |row: &CaseRow| is_shown(row) && measures.iter().all(|measure| has(row, measure));
        if window >= WINDOW_LAST || table.rows.iter().all(shows) {
            return table;
        }
        window *= 4;
    }
}
