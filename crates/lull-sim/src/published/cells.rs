//! Published tables: cells by case and load, columns by name.

/// A column of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Queries per second.
    Qps,
    /// Mean latency, microseconds.
    Avg,
    /// Median latency, microseconds.
    P50,
    /// 95th percentile, microseconds.
    P95,
    /// 99th percentile, microseconds.
    P99,
    /// CPU, percent of the eight cores.
    Cpu,
    /// User part of it.
    Usr,
    /// System part of it.
    Sys,
    /// Softirq part of it.
    Softirq,
    /// Interrupts in 30 s.
    Irqs,
    /// Packets received in 30 s.
    RxPackets,
    /// NAPI polls in 30 s.
    Polls,
    /// Polls that found nothing.
    EmptyPolls,
    /// Calls of epoll that returned events, in 30 s.
    EpollCalls,
    /// Events per call.
    EpollEvents,
}

/// All columns with their names in the file, in its order.
pub const COLUMNS: [(Column, &str); 15] = [
    (Column::Qps, "qps"),
    (Column::Avg, "avg_latency_us"),
    (Column::P50, "p50_latency_us"),
    (Column::P95, "p95_latency_us"),
    (Column::P99, "p99_latency_us"),
    (Column::Cpu, "cpu_percent"),
    (Column::Usr, "cpu_usr_percent"),
    (Column::Sys, "cpu_sys_percent"),
    (Column::Softirq, "cpu_softirq_percent"),
    (Column::Irqs, "irqs"),
    (Column::RxPackets, "rx_packets"),
    (Column::Polls, "napi_polls"),
    (Column::EmptyPolls, "napi_empty_polls"),
    (Column::EpollCalls, "epoll_calls"),
    (Column::EpollEvents, "epoll_mean_events"),
];

impl Column {
    /// Its name in the file.
    pub fn name(self) -> &'static str {
        COLUMNS.iter().find(|(column, _)| *column == self).map_or("", |(_, name)| name)
    }

    /// Whether it is a share in percent, which is compared by difference and not by ratio.
    pub fn is_percent(self) -> bool {
        matches!(self, Column::Cpu | Column::Usr | Column::Sys | Column::Softirq)
    }

    /// Whether it is a latency.
    pub fn is_latency(self) -> bool {
        matches!(self, Column::Avg | Column::P50 | Column::P95 | Column::P99)
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// The values of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The case.
    pub case: String,
    /// The load.
    pub load: String,
    /// Values by column; `NAN` if the table has none.
    values: [f64; COLUMNS.len()],
    /// Standard errors of the published values; 0 if the table has none.
    errors: [f64; COLUMNS.len()],
}

impl Cell {
    /// Makes an empty cell.
    pub fn new(case: &str, load: &str) -> Cell {
        let (case, load) = (case.to_owned(), load.to_owned());
        Cell { case, load, values: [f64::NAN; COLUMNS.len()], errors: [0.0; COLUMNS.len()] }
    }

    /// A value.
    pub fn get(&self, column: Column) -> f64 {
        self.values[column.index()]
    }

    /// Sets a value.
    pub fn set(&mut self, column: Column, value: f64) {
        self.values[column.index()] = value;
    }

    /// Returns the standard error of a value; 0 if it is not known.
    pub fn standard_error(&self, column: Column) -> f64 {
        self.errors[column.index()]
    }
}

/// Puts several runs of a cell together: the mean of each column over the runs, or the median for latencies, as in the
/// published tables.
pub fn together(case: &str, load: &str, runs: &[Cell]) -> Cell {
    let mut cell = Cell::new(case, load);
    for (column, _) in COLUMNS {
        let mut values: Vec<f64> = runs.iter().map(|run| run.get(column)).filter(|value| value.is_finite()).collect();
        if values.is_empty() {
            continue;
        }
        values.sort_by(f64::total_cmp);
        let middle = (values.len() - 1) / 2;
        let median = (values[middle] + values[values.len() / 2]) / 2.0;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        cell.set(column, if column.is_latency() { median } else { mean });
    }
    cell
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its cells, in the file's order.
    pub cells: Vec<Cell>,
}

/// The error of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the table: {what}")]
pub struct TableError {
    line: usize,
    what: String,
}

impl Table {
    /// Reads a table with a header line. Columns that are not ours are skipped; an empty field is a value that is not
    /// known.
    ///
    /// # Errors
    ///
    /// This fails for a line without a case, a load, or a number.
    pub fn parse(text: &str) -> Result<Table, TableError> {
        let mut lines = text.lines().enumerate();
        let (_, header) = lines.next().ok_or_else(|| TableError { line: 1, what: "there is no header".into() })?;
        let names: Vec<&str> = header.split(',').collect();
        let place = |name: &str| names.iter().position(|other| *other == name);
        let fail = |line: usize, what: &str| TableError { line: line + 1, what: what.to_owned() };
        let (case, load) = (place("testcase"), place("load"));
        let (Some(case), Some(load)) = (case, load) else {
            return Err(fail(0, "the header names no testcase and load"));
        };
        let mut cells = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let fields: Vec<&str> = line.split(',').collect();
            if fields.len() != names.len() {
                return Err(fail(number, &format!("it has {} fields, the header {}", fields.len(), names.len())));
            }
            let read = |place: usize| {
                let name = names[place];
                if fields[place].is_empty() {
                    return Ok(f64::NAN);
                }
                fields[place]
                    .parse::<f64>()
                    .map_err(|_| fail(number, &format!("{name} '{}' is no number", fields[place])))
            };
            let mut cell = Cell::new(fields[case], fields[load]);
            let runs = place("runs").map(read).transpose()?.unwrap_or(1.0);
            for (column, name) in COLUMNS {
                if let Some(place) = place(name) {
                    cell.set(column, read(place)?);
                }
                if let Some(place) = place(&format!("{name}_sd")) {
                    cell.errors[column.index()] = read(place)? / libm::sqrt(runs);
                }
            }
            cells.push(cell);
        }
        Ok(Table { cells })
    }

    /// Returns the cell of this case and load.
    pub fn cell(&self, case: &str, load: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.case == case && cell.load == load)
    }

    /// Returns the table as CSV, in our columns.
    pub fn to_csv(&self) -> String {
        let mut text = String::from("testcase,load");
        for (_, name) in COLUMNS {
            text.push(',');
            text.push_str(name);
        }
        text.push('\n');
        for cell in &self.cells {
            text.push_str(&format!("{},{}", cell.case, cell.load));
            for (column, _) in COLUMNS {
                text.push_str(&format!(",{:.3}", cell.get(column)));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_put_together_by_mean_and_latencies_by_median() {
        let runs = Table::parse(
            "testcase,load,qps,p99_latency_us,napi_polls\nbase,200K,1,10,\nbase,200K,2,20,3\nbase,200K,6,90,5\n",
        )
        .unwrap();
        let cell = together("base", "200K", &runs.cells);
        assert_eq!((cell.get(Column::Qps), cell.get(Column::P99)), (3.0, 20.0));
        // A run that did not count something is left out of the mean, and does not count as zero.
        assert_eq!(cell.get(Column::Polls), 4.0);
        assert!(cell.get(Column::Cpu).is_nan());
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = Table::parse("testcase,load,qps\nbase,200K,x\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("'x'"), "{error}");
        assert!(Table::parse("qps\n1\n").is_err());
        assert!(Table::parse("testcase,load,qps\nbase,200K\n").is_err());
    }
}
