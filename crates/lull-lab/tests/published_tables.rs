//! The published tables themselves: they are the averages of their runs, the fit has only its share of them, and the
//! statements about them hold in them.

use std::path::Path;

use lull_lab::published::{V6_CSV, V6_LETTER_CSV};
use lull_sim::published::cells::together;
use lull_sim::published::statements::{Standing, check};
use lull_sim::published::{CALIBRATION_CASES, CALIBRATION_CSV, COLUMNS, Cell, Column, Simulated, Table, V2_CSV};

/// Every single run of v6 and v2.
const RUNS_CSV: &str = include_str!("../data/irqsuspend_runs.csv");

/// The single runs of a series, case by case and load by load.
fn runs_of(series: &str) -> Vec<Cell> {
    let (header, rest) = RUNS_CSV.split_once('\n').unwrap();
    let of_series: Vec<&str> = rest.lines().filter(|line| line.starts_with(&format!("{series},"))).collect();
    Table::parse(&format!("{header}\n{}\n", of_series.join("\n"))).unwrap().cells
}

#[test]
fn each_summary_is_what_its_runs_average_to() {
    for (series, summary, cells) in [("v6", V6_CSV, 72), ("v2", V2_CSV, 66)] {
        let (summary, runs) = (Table::parse(summary).unwrap(), runs_of(series));
        assert_eq!(summary.cells.len(), cells);
        for cell in &summary.cells {
            let of_cell = runs.iter().filter(|run| (&run.case, &run.load) == (&cell.case, &cell.load));
            let average = together(&cell.case, &cell.load, &of_cell.cloned().collect::<Vec<_>>());
            for (column, name) in COLUMNS {
                let (runs, summary) = (average.get(column), cell.get(column));
                // A percentage that is nearly 0 was truncated before it was averaged.
                let allowed = if column.is_percent() { 0.02 } else { 1e-3 * summary.abs() };
                assert!(
                    (runs - summary).abs() <= allowed,
                    "{series} {} {} {name}: {runs}, not {summary}",
                    cell.case,
                    cell.load
                );
            }
        }
    }
}

#[test]
fn the_fit_has_24_cells_and_the_simulator_has_none_of_the_others() {
    let all = Table::parse(V6_CSV).unwrap();
    let calibration = Table::parse(CALIBRATION_CSV).unwrap();
    assert_eq!((all.cells.len(), calibration.cells.len()), (72, 24));
    for cell in &calibration.cells {
        assert!(CALIBRATION_CASES.contains(&cell.case.as_str()));
        assert_eq!(Some(cell), all.cell(&cell.case, &cell.load));
    }
    assert!(all.cells[0].standard_error(Column::Qps) > 0.0);
    // A cell is identified by its polls, which no other has.
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lull-sim/data");
    let Ok(files) = std::fs::read_dir(data) else {
        println!("SKIP: the simulator's sources are not beside the lab's");
        return;
    };
    let files: Vec<String> = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let held = |cell: &Cell| {
        let polls = format!(",{}.", cell.get(Column::Polls).floor());
        files.iter().any(|file| file.contains(&polls))
    };
    for cell in &all.cells {
        let fitted = CALIBRATION_CASES.contains(&cell.case.as_str());
        assert_eq!(held(cell), fitted, "{} {}", cell.case, cell.load);
    }
}

fn published() -> Simulated {
    let table = Table::parse(V6_CSV).unwrap();
    let cycles = |case: &str, load: &str| {
        let start = format!("{case},{load},");
        let line = V6_LETTER_CSV.lines().find(|line| line.starts_with(&start)).unwrap();
        line.split(',').nth(7).unwrap().parse::<f64>().unwrap()
    };
    let busy_ns_per_query = table.cells.iter().map(|cell| cycles(&cell.case, &cell.load)).collect();
    Simulated { table, busy_ns_per_query, events: 0, transitions: 0 }
}

#[test]
fn every_statement_holds_in_the_published_table() {
    let statements = check(&published());
    assert_eq!(statements.len(), 10);
    for statement in statements {
        assert_eq!(statement.standing(), Standing::Holds, "{statement:?}");
    }
}

#[test]
fn a_figure_that_is_missed_by_less_than_its_goal_is_near_and_by_more_fails() {
    let standing = |qps: f64| {
        let mut simulated = published();
        let base = simulated.table.cell("base", "MAX").unwrap().get(Column::Qps);
        let place = simulated.table.cells.iter().position(|cell| (&*cell.case, &*cell.load) == ("suspend10", "MAX"));
        simulated.table.cells[place.unwrap()].set(Column::Qps, base * qps);
        let first = check(&simulated).swap_remove(0);
        (first.number, first.standing())
    };
    assert_eq!(standing(1.17), (1, Standing::Holds));
    assert_eq!(standing(1.25), (1, Standing::Near));
    assert_eq!(standing(1.35), (1, Standing::Broken));
}

#[test]
fn a_table_in_which_suspension_does_nothing_breaks_the_statements_about_it() {
    let mut simulated = published();
    let defer: Vec<_> = simulated.table.cells.iter().filter(|cell| cell.case.starts_with("defer")).cloned().collect();
    for cell in &mut simulated.table.cells {
        if let Some(timeout) = cell.case.strip_prefix("suspend")
            && let Some(twin) = defer.iter().find(|twin| twin.case[5..] == *timeout && twin.load == cell.load)
        {
            let case = std::mem::take(&mut cell.case);
            *cell = twin.clone();
            cell.case = case;
        }
    }
    let broken: Vec<u32> = check(&simulated)
        .iter()
        .filter(|statement| !statement.broken.is_empty())
        .map(|statement| statement.number)
        .collect();
    for number in [1, 2, 3, 4, 5] {
        assert!(broken.contains(&number), "{number} not in {broken:?}");
    }
}
