//! The comparison as a table for a terminal.
//!
//! The columns are the published ones, then the internal counts, then the verdict. If the terminal is too narrow, the
//! extra columns are left out first, then the intervals, then the costs per query, each with a note. The verdict is
//! never left out. A row whose mode was not in force has a `!` at its name and the reason in a footnote.

pub(crate) mod grid;

use std::io::IsTerminal;

use console::Style;

pub use self::grid::wrap;
use self::grid::{Align, Grid};
use crate::cell::compare::{against_base, low_load, ratio};
use crate::cell::report::find;
use crate::cell::{CellSummary, Enforcement, Load, PolledBy, Report, compare::Metric};
use crate::csv::{CsvRow, EXTRA_COLUMNS, NOT_RUN, PUBLISHED_COLUMNS, number};
use crate::html::narrate;
use crate::stats::Estimate;

/// Prose is not wrapped to fewer columns than this.
pub(crate) const PROSE_COLUMNS_MIN: usize = 40;

/// The largest width of prose, in columns.
pub(crate) const PROSE_COLUMNS_MAX: usize = 120;

/// The largest width of the table without a terminal, which a pager or a mail still shows. `--csv` has every column.
const PIPED_COLUMNS: usize = 160;

/// The style of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// Columns of the terminal; `None` for no limit.
    pub width_columns: Option<usize>,
    /// Whether to use colours.
    pub colour: bool,
}

impl TableStyle {
    /// Returns the style for standard output: its width and colours if it is a terminal, and otherwise a width that
    /// files and mails still show, and no colours. `NO_COLOR` is honoured.
    pub fn for_stdout() -> TableStyle {
        if !std::io::stdout().is_terminal() {
            return TableStyle { width_columns: Some(PIPED_COLUMNS), colour: false };
        }
        let width_columns = console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        TableStyle { width_columns, colour: console::colors_enabled() }
    }
}

/// Returns the whole report as text: machine, table, footnotes, low load against `base`, and in words.
pub fn render(report: &Report, style: TableStyle) -> String {
    let prose = style.width_columns.unwrap_or(PROSE_COLUMNS_MAX).clamp(PROSE_COLUMNS_MIN, PROSE_COLUMNS_MAX);
    let mut out = String::new();
    for line in header(report) {
        out.push_str(&wrap(&line, prose, ""));
    }
    out.push('\n');
    let mut footnotes = Footnotes::default();
    let (table, omitted) = table(report, style, &mut footnotes);
    out.push_str(&table);
    out.push('\n');
    for (i, note) in footnotes.0.iter().enumerate() {
        out.push_str(&wrap(&format!("[{}] {note}", i + 1), prose, "    "));
    }
    for line in legend(report, omitted).into_iter().chain(report.notes.iter().cloned()) {
        out.push_str(&wrap(&line, prose, ""));
    }
    out.push_str(&polled_by_section(report, style));
    out.push_str(&low_load_section(report, style));
    out.push('\n');
    out.push_str(&wrap(&narrate(&report.cells), prose, ""));
    out
}

fn header(report: &Report) -> Vec<String> {
    [report.machine.to_string(), report.set_up()]
        .into_iter()
        .chain(report.stopped().map(|s| s.to_uppercase()))
        .collect()
}

/// Columns that a variant of the table leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Omitted {
    extras: bool,
    intervals: bool,
    costs: bool,
}

/// The variants from the widest to the narrowest, in the order in which columns are left out.
const VARIANTS: [Omitted; 4] = [
    Omitted { extras: false, intervals: false, costs: false },
    Omitted { extras: true, intervals: false, costs: false },
    Omitted { extras: true, intervals: true, costs: false },
    Omitted { extras: true, intervals: true, costs: true },
];

/// Returns the widest variant that fits, and what it leaves out. If none fits, it is the narrowest.
fn table(report: &Report, style: TableStyle, footnotes: &mut Footnotes) -> (String, Omitted) {
    let mut last = (String::new(), VARIANTS[0]);
    for omitted in VARIANTS {
        *footnotes = Footnotes::default();
        let grid = grid(report, omitted, style, footnotes);
        let fits = style.width_columns.is_none_or(|width| grid.width() <= width);
        last = (grid.to_string(), omitted);
        if fits {
            break;
        }
    }
    last
}

fn grid(report: &Report, omitted: Omitted, style: TableStyle, footnotes: &mut Footnotes) -> Grid {
    let costs = if omitted.costs { 2 } else { 0 };
    let published = &PUBLISHED_COLUMNS[..PUBLISHED_COLUMNS.len() - costs];
    let extras: &[&str] = if omitted.extras { &[] } else { &EXTRA_COLUMNS };
    let mut grid = Grid::default();
    for (i, name) in published.iter().chain(extras).enumerate() {
        grid.column(name, if i == 0 { Align::Left } else { Align::Right });
    }
    grid.column("verdict", Align::Left);
    let mut last_load = None;
    for (testcase, load, cell) in report.rows() {
        if last_load.is_some_and(|last| last != load) {
            grid.gap();
        }
        last_load = Some(load);
        let paint = paint(cell, style.colour);
        let row = cell.map_or_else(|| CsvRow::not_run(testcase, load), CsvRow::of_cell);
        let mut texts = vec![name(testcase, cell), load.to_string()];
        let values = row.published_values();
        let intervals = cell.map_or([None; 7], CellSummary::published_estimates);
        for (value, interval) in values.iter().zip(intervals).take(published.len() - 2) {
            let spread = interval.filter(|_| !omitted.intervals).and_then(|e| e.spread_percent());
            let spread = spread.map_or(String::new(), |percent| format!(" ±{}%", percent_text(percent)));
            texts.push(number(*value).to_string() + &spread);
        }
        if !omitted.extras {
            texts.extend(row.extras.map(number));
        }
        texts.push(verdict(cell, footnotes));
        grid.row(texts.into_iter().map(|text| paint.apply_to(text).to_string()).collect());
    }
    grid
}

/// Returns the name, marked if the row does not show what it names.
fn name(testcase: &str, cell: Option<&CellSummary>) -> String {
    let mark = if cell.is_some_and(|c| !c.verdict.shows_mode()) { "!" } else { "" };
    format!("{mark}{testcase}")
}

pub(crate) fn percent_text(percent: f64) -> String {
    if percent < 0.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

/// Returns the verdict and the standing, with a footnote if there is more to say.
fn verdict(cell: Option<&CellSummary>, footnotes: &mut Footnotes) -> String {
    let Some(cell) = cell else { return NOT_RUN.to_string() };
    match cell.note() {
        note if note.is_empty() => verdict_alone(cell),
        note => format!("{} [{}]", verdict_alone(cell), footnotes.number(note)),
    }
}

fn verdict_alone(cell: &CellSummary) -> String {
    match (&cell.verdict, cell.standing.counts()) {
        (_, true) => cell.verdict.to_string(),
        (Enforcement::InForce, false) => cell.standing.to_string(),
        (_, false) => format!("{}, {}", cell.verdict, cell.standing),
    }
}

fn paint(cell: Option<&CellSummary>, colour: bool) -> Style {
    let style = Style::new().force_styling(colour);
    match cell {
        None => style.dim(),
        Some(c) if !c.verdict.shows_mode() => style.red().dim(),
        Some(c) if !c.standing.counts() => style.yellow(),
        Some(c) if c.verdict != Enforcement::InForce => style.cyan(),
        Some(_) => style,
    }
}

/// The footnotes. Each text appears once.
#[derive(Default)]
pub(crate) struct Footnotes(pub(crate) Vec<String>);

impl Footnotes {
    pub(crate) fn number(&mut self, note: String) -> usize {
        let at = self.0.iter().position(|known| *known == note);
        at.unwrap_or_else(|| {
            self.0.push(note);
            self.0.len() - 1
        }) + 1
    }
}

fn legend(report: &Report, omitted: Omitted) -> Vec<String> {
    let mut lines = vec![format!(
        "Latencies are medians over runs, the rest means; ± is the farther end of the interval of all runs (95 %; for \
             medians of fewer than six runs their range). {} Counts are totals of one window; lag is the 99th percentile \
             of how late the generator sent, in us.",
        report.cycles_by.sentence()
    )];
    let raised: Vec<f64> =
        report.cells.iter().flat_map(|c| &c.runs).filter_map(|r| Some(r.raise_us? / r.window_s)).collect();
    if let Some(mean) = crate::stats::mean(&raised) {
        // The percentage is of one core, because the generator has at most as many threads as the service. A
        // microsecond per second is a millionth.
        lines.push(format!("Raising interrupts took the generator {:.1} % of a core.", mean.value / 1e4));
    }
    if omitted.costs {
        lines.push("Too narrow for the costs per query, the intervals and the extra columns: widen the terminal, or write --csv, --json.".into());
    } else if omitted.intervals {
        lines.push(
            "Too narrow for the intervals and the extra columns: widen the terminal, or write --csv, --json.".into(),
        );
    } else if omitted.extras {
        lines.push(format!(
            "Too narrow for the extra columns ({}): widen the terminal, or write --csv.",
            EXTRA_COLUMNS.join(", ")
        ));
    }
    lines
}

/// A column of [`polled_by_section`]: its head and its value.
type PolledByColumn = (&'static str, fn(&PolledBy) -> f64);

/// Returns the shares of the contexts that polled the packets, as means over runs. It is empty if no run has them.
fn polled_by_section(report: &Report, style: TableStyle) -> String {
    const COLUMNS: [PolledByColumn; 8] = [
        ("client's_softirq", |by| by.client_softirq),
        ("server's_softirq", |by| by.server_softirq),
        ("timer", |by| by.timer),
        ("other_softirq", |by| by.other_softirq),
        ("ksoftirqd", |by| by.ksoftirqd),
        ("napi_thread", |by| by.napi_thread),
        ("busy_poll", |by| by.busy_poll),
        ("other", |by| by.other),
    ];
    let mut grid = Grid::default();
    grid.column("testcase", Align::Left);
    grid.column("load", Align::Right);
    COLUMNS.iter().for_each(|(head, _)| grid.column(head, Align::Right));
    let mut rows = 0;
    for (testcase, load, cell) in report.rows() {
        let Some(cell) = cell else { continue };
        let by: Vec<PolledBy> = cell.runs.iter().filter_map(|run| run.polled_by).collect();
        let mean = |of: fn(&PolledBy) -> f64| crate::stats::mean(&by.iter().map(of).collect::<Vec<_>>());
        let shares: Vec<String> =
            COLUMNS.iter().filter_map(|(_, of)| mean(*of)).map(|e| format!("{:.1}", e.value)).collect();
        if shares.len() < COLUMNS.len() {
            continue;
        }
        rows += 1;
        let paint = paint(Some(cell), style.colour);
        let texts = [name(testcase, Some(cell)), load.to_string()].into_iter().chain(shares);
        grid.row(texts.map(|text| paint.apply_to(text).to_string()).collect());
    }
    if rows == 0 { String::new() } else { format!("\nWho polled the packets, in percent:\n{grid}") }
}

/// Returns p99 and CPU of each mode against `base` at low load, and the ratio at MAX that the published series is
/// about.
fn low_load_section(report: &Report, style: TableStyle) -> String {
    let mut out = String::new();
    if let Some(load) = low_load(&report.cells) {
        let rows = against_base(&report.cells, load);
        if !rows.is_empty() {
            let mut grid = Grid::default();
            grid.column("testcase", Align::Left);
            for head in ["p99_/ base", "published", "cpu_/ base", "published", "verdict"] {
                grid.column(head, Align::Right);
            }
            for row in rows {
                let paint = paint(Some(row.cell), style.colour);
                let published = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.2}"));
                let texts = [
                    name(&row.cell.testcase, Some(row.cell)),
                    ratio_text(row.p99),
                    published(row.published_p99),
                    ratio_text(row.cpu),
                    published(row.published_cpu),
                    verdict_alone(row.cell),
                ];
                grid.row(texts.into_iter().map(|text| paint.apply_to(text).to_string()).collect());
            }
            out.push_str(&format!("\nAgainst base at {load}, run by run:\n{grid}"));
        }
    }
    let at_max = |mode| find(&report.cells, mode, Load::Max);
    if let (Some(suspend), Some(full)) = (at_max("suspend20"), at_max("fullbusy")) {
        let doubt =
            if suspend.usable() && full.usable() { "" } else { " (one of the two does not count: see its row)" };
        if let Some(ratio) = ratio(Metric::Qps, suspend, full) {
            let text = ratio_text(Some(ratio));
            out.push_str(&format!("\nsuspend20 / fullbusy at MAX, queries per second: {text}{doubt}\n"));
        }
    }
    out
}

/// Formats a ratio: `0.98 [0.97, 0.99]`.
fn ratio_text(ratio: Option<Estimate>) -> String {
    match ratio {
        None => String::new(),
        Some(Estimate { value, interval: None, .. }) => format!("{value:.3}"),
        Some(Estimate { value, interval: Some(i), .. }) => format!("{value:.3} [{:.3}, {:.3}]", i.low, i.high),
    }
}
