//! The table as a file: the columns of the published IRQ suspension table, then the internal counts, then the verdict.
//!
//! The first nine columns are those of the published table ([`V6_LETTER_CSV`]), which this module reads too, so that a
//! program that plots one can plot the other. A field is empty if nothing was measured. `cycles_per_query` is counted
//! by the hardware if it counts, and otherwise is TSC frequency times server CPU time; the JSON says which.

pub mod atomic;

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use crate::cell::{CellSummary, Load, Report};

/// The table as it was posted, with cycles and instructions per query.
pub const V6_LETTER_CSV: &str = include_str!("../data/irq_suspension_v6.csv");

/// The columns of the published table, in order.
pub const PUBLISHED_COLUMNS: [&str; 9] = [
    "testcase",
    "load",
    "qps",
    "avg_latency_us",
    "p95_latency_us",
    "p99_latency_us",
    "cpu_percent",
    "cycles_per_query",
    "instructions_per_query",
];

/// The columns that follow. Counts are totals of one window, as means over runs; `lag` is in microseconds.
pub const EXTRA_COLUMNS: [&str; 11] = [
    "interrupts",
    "polls",
    "mean_work",
    "empty_polls",
    "softirq_ms",
    "epoll_calls",
    "mean_events",
    "wakeups",
    "timer_ops",
    "syscalls",
    "lag",
];

/// The last columns: whether the row shows its mode, and what else a reader has to know about it.
pub const VERDICT_COLUMNS: [&str; 2] = ["verdict", "note"];

/// The verdict of a planned cell that has no run.
pub const NOT_RUN: &str = "not run";

/// One row of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvRow {
    /// Name of the test case.
    pub testcase: String,
    /// The load asked for.
    pub load: Load,
    /// Queries answered per second.
    pub qps: Option<f64>,
    /// Mean latency, in microseconds.
    pub avg_latency_us: Option<f64>,
    /// 95th percentile of latency, in microseconds.
    pub p95_latency_us: Option<f64>,
    /// 99th percentile of latency, in microseconds.
    pub p99_latency_us: Option<f64>,
    /// Server CPU, in percent of its cores.
    pub cpu_percent: Option<f64>,
    /// Cycles per query.
    pub cycles_per_query: Option<f64>,
    /// Instructions per query.
    pub instructions_per_query: Option<f64>,
    /// The values of [`EXTRA_COLUMNS`].
    pub extras: [Option<f64>; EXTRA_COLUMNS.len()],
    /// `in force`, `had 38 us`, `not in force` or [`NOT_RUN`]; empty in a published table.
    pub verdict: String,
    /// See [`CellSummary::note`].
    pub note: String,
}

/// The reason why a table cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// The file cannot be read, or is no CSV.
    #[error("cannot read the table: {0}")]
    Read(#[from] ::csv::Error),
    /// The header does not begin with [`PUBLISHED_COLUMNS`].
    #[error("not a table of this kind: its header is `{0}`, not `{names}...`", names = PUBLISHED_COLUMNS.join(","))]
    Header(String),
    /// A field does not hold what its column says.
    #[error("line {line}: `{text}` is no {column}")]
    Field {
        /// Line in the file, from 1.
        line: u64,
        /// Name of the column.
        column: String,
        /// The field's text.
        text: String,
    },
}

impl CsvRow {
    /// Makes the row of a planned cell that did not run.
    pub fn not_run(testcase: &str, load: Load) -> Self {
        CsvRow {
            testcase: testcase.to_string(),
            load,
            qps: None,
            avg_latency_us: None,
            p95_latency_us: None,
            p99_latency_us: None,
            cpu_percent: None,
            cycles_per_query: None,
            instructions_per_query: None,
            extras: [None; EXTRA_COLUMNS.len()],
            verdict: NOT_RUN.to_string(),
            note: String::new(),
        }
    }

    /// Makes the row of a cell.
    pub fn of_cell(cell: &CellSummary) -> Self {
        let c = &cell.counts;
        CsvRow {
            testcase: cell.testcase.clone(),
            load: cell.load,
            qps: (!cell.verdict.is_refused()).then_some(cell.qps.value),
            avg_latency_us: cell.avg_latency_us.map(|e| e.value),
            p95_latency_us: cell.p95_latency_us.map(|e| e.value),
            p99_latency_us: cell.p99_latency_us.map(|e| e.value),
            cpu_percent: cell.cpu_percent.map(|e| e.value),
            cycles_per_query: cell.cycles_per_query.map(|e| e.value),
            instructions_per_query: cell.instructions_per_query.map(|e| e.value),
            extras: [
                c.interrupts,
                c.polls,
                c.mean_work,
                c.empty_polls,
                c.softirq_ms,
                c.epoll_calls,
                c.mean_events,
                c.wakeups,
                c.timer_ops,
                c.syscalls,
                c.lag_us,
            ],
            verdict: cell.verdict.to_string(),
            note: cell.note(),
        }
    }

    /// Returns the values of the published columns after `testcase` and `load`.
    pub fn published_values(&self) -> [Option<f64>; 7] {
        [
            self.qps,
            self.avg_latency_us,
            self.p95_latency_us,
            self.p99_latency_us,
            self.cpu_percent,
            self.cycles_per_query,
            self.instructions_per_query,
        ]
    }
}

/// Returns every planned cell of a report as a row, in the table's order.
pub fn rows(report: &Report) -> Vec<CsvRow> {
    let row = |(testcase, load, cell): (&str, Load, Option<&CellSummary>)| match cell {
        Some(cell) => CsvRow::of_cell(cell),
        None => CsvRow::not_run(testcase, load),
    };
    report.rows().into_iter().map(row).collect()
}

/// Returns the rows as CSV, with the header.
pub fn to_string(rows: &[CsvRow]) -> String {
    let mut text = String::new();
    let header = PUBLISHED_COLUMNS.iter().chain(&EXTRA_COLUMNS).chain(&VERDICT_COLUMNS);
    push_record(&mut text, header.map(ToString::to_string));
    for row in rows {
        let numbers = row.published_values().into_iter().chain(row.extras).map(number);
        let fields = [row.testcase.clone(), row.load.to_string()].into_iter().chain(numbers);
        push_record(&mut text, fields.chain([row.verdict.clone(), row.note.clone()]));
    }
    text
}

/// Writes a report's table. It replaces the file whole or not at all.
///
/// # Errors
///
/// This fails for the same reasons as [`atomic::write`].
pub fn write(path: &Path, report: &Report) -> io::Result<()> {
    atomic::write(path, to_string(&rows(report)).as_bytes())
}

/// Reads a table that lull wrote, or a published one, which has only the first nine columns.
///
/// # Errors
///
/// See [`CsvError`].
pub fn read(path: &Path) -> Result<Vec<CsvRow>, CsvError> {
    parse(&std::fs::read_to_string(path).map_err(|error| CsvError::Read(error.into()))?)
}

/// Reads a table from text.
///
/// # Errors
///
/// See [`CsvError`].
pub fn parse(text: &str) -> Result<Vec<CsvRow>, CsvError> {
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers()?.clone();
    if header.iter().take(PUBLISHED_COLUMNS.len()).ne(PUBLISHED_COLUMNS) {
        return Err(CsvError::Header(header.iter().collect::<Vec<_>>().join(",")));
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        rows.push(row(&Record { header: &header, fields: record? })?);
    }
    Ok(rows)
}

/// Returns the published table: twelve test cases at six loads (net-next v6 of the series "Suspend IRQs during
/// application busy periods").
pub fn published() -> &'static [CsvRow] {
    static ROWS: OnceLock<Vec<CsvRow>> = OnceLock::new();
    // The file is part of the program, and a test reads it. An unreadable one would be an empty table here.
    ROWS.get_or_init(|| parse(V6_LETTER_CSV).unwrap_or_default())
}

struct Record<'a> {
    header: &'a ::csv::StringRecord,
    fields: ::csv::StringRecord,
}

impl Record<'_> {
    /// Returns the text of a column, which is empty if the table has no such column.
    fn text(&self, column: &str) -> &str {
        let index = self.header.iter().position(|name| name == column);
        index.and_then(|i| self.fields.get(i)).unwrap_or("")
    }

    fn number(&self, column: &str) -> Result<Option<f64>, CsvError> {
        match self.text(column) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| self.wrong(column)),
        }
    }

    fn wrong(&self, column: &str) -> CsvError {
        CsvError::Field {
            line: self.fields.position().map_or(0, ::csv::Position::line),
            column: column.to_string(),
            text: self.text(column).to_string(),
        }
    }
}

fn row(record: &Record<'_>) -> Result<CsvRow, CsvError> {
    let mut extras = [None; EXTRA_COLUMNS.len()];
    for (value, column) in extras.iter_mut().zip(EXTRA_COLUMNS) {
        *value = record.number(column)?;
    }
    Ok(CsvRow {
        testcase: record.text("testcase").to_string(),
        load: record.text("load").parse().map_err(|_| record.wrong("load"))?,
        qps: record.number("qps")?,
        avg_latency_us: record.number("avg_latency_us")?,
        p95_latency_us: record.number("p95_latency_us")?,
        p99_latency_us: record.number("p99_latency_us")?,
        cpu_percent: record.number("cpu_percent")?,
        cycles_per_query: record.number("cycles_per_query")?,
        instructions_per_query: record.number("instructions_per_query")?,
        extras,
        verdict: record.text("verdict").to_string(),
        note: record.text("note").to_string(),
    })
}

/// Formats a number with three significant digits, or with all digits before the point if there are more. `None` gives
/// an empty text.
pub fn number(value: Option<f64>) -> String {
    match value {
        Some(v) if !v.is_finite() => String::new(),
        Some(v) if v.abs() >= 99.95 || v == 0.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 9.995 => format!("{v:.1}"),
        Some(v) => format!("{v:.2}"),
        None => String::new(),
    }
}

/// Adds a line of fields, which are quoted if necessary.
pub(crate) fn push_record(text: &mut String, fields: impl Iterator<Item = String>) {
    let quoted = |field: String| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    };
    text.push_str(&fields.map(quoted).collect::<Vec<_>>().join(","));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> CsvRow {
        CsvRow {
            qps: Some(12_345.4),
            avg_latency_us: Some(54.37),
            p99_latency_us: Some(6.789),
            cpu_percent: Some(99.97),
            extras: std::array::from_fn(|i| (i % 2 == 0).then_some(i as f64 * 1000.0)),
            verdict: "not in force".to_string(),
            note: "because of \"this\", and that".to_string(),
            ..CsvRow::not_run("suspend20", Load::Percent { permille: 250 })
        }
    }

    #[test]
    fn the_header_is_the_published_one_and_then_ours() {
        let text = to_string(&[]);
        assert_eq!(
            text.trim_end(),
            "testcase,load,qps,avg_latency_us,p95_latency_us,p99_latency_us,cpu_percent,cycles_per_query,\
             instructions_per_query,interrupts,polls,mean_work,empty_polls,softirq_ms,epoll_calls,mean_events,wakeups,\
             timer_ops,syscalls,lag,verdict,note"
        );
        let published = V6_LETTER_CSV.lines().next().unwrap();
        assert!(text.starts_with(published));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let written = to_string(&[row(), CsvRow::not_run("base", Load::Max)]);
        let read = parse(&written).unwrap();
        assert_eq!(to_string(&read), written);
        assert_eq!(read[0].note, row().note);
        assert_eq!(read[0].p95_latency_us, None);
        assert_eq!(read[0].avg_latency_us, Some(54.4));
        assert_eq!(read[1], CsvRow::not_run("base", Load::Max));
    }

    #[test]
    fn numbers_are_short_and_nothing_is_empty() {
        let cases = [
            (Some(12_345.4), "12345"),
            (Some(54.37), "54.4"),
            (Some(6.789), "6.79"),
            (Some(99.97), "100"),
            (Some(9.996), "10.0"),
            (Some(0.0), "0"),
            (Some(f64::NAN), ""),
            (None, ""),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text, "{value:?}");
        }
    }

    #[test]
    fn the_published_table_is_whole() {
        assert_eq!(published().len(), 72);
        assert!(published().iter().all(|r| r.published_values().iter().all(Option::is_some) && r.verdict.is_empty()));
    }

    #[test]
    fn a_wrong_table_is_refused_with_its_place() {
        assert!(matches!(parse("a,b\n1,2\n"), Err(CsvError::Header(_))));
        let text = to_string(&[row()]).replace("54.4", "quick");
        let error = parse(&text).unwrap_err().to_string();
        assert_eq!(error, "line 2: `quick` is no avg_latency_us");
    }
}
