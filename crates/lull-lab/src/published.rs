//! Published tables, simulated, beside the published values: as text, and as files.

mod cells;
mod earlier;
mod rows;
mod trivial;

use std::time::Instant;

use lull_core::Mode;
use lull_core::mode::PUBLISHED;
use lull_sim::RunError;
use lull_sim::params::Params;
use lull_sim::published::rows::Row;
use lull_sim::published::{
    Budget, CALIBRATION_CSV, COLUMNS, Cell, Column, LOADS, Simulated, Table, V2_CSV, simulate, statements, summary,
    tcp_rr, udp_stream, xsk_rr,
};
use serde_json::{Value, json};

pub use crate::csv::V6_LETTER_CSV;
use crate::document::{Document, pretty};
use crate::html::published as page;

/// The two designs that the series' FAQ rejects; the first has a short and a long coalescing time.
const COUNTER_DESIGNS: [&str; 3] = ["coalesce-20", "coalesce-200", "longgro"];

/// The published table (v6, averaged over runs). The calibration uses 24 of its 72 cells
/// ([`lull_sim::published::CALIBRATION_CSV`]); the others are only here.
pub const V6_CSV: &str = include_str!("../data/irqsuspend_v6_summary.csv");
/// An earlier run (v4) of eleven of its cases.
pub const V4_CSV: &str = include_str!("../data/irq_suspension_v4.csv");

/// A simulated table, in every form.
pub struct PublishedTable {
    /// The text that is printed.
    pub text: String,
    csv: String,
    json: Value,
    html: String,
}

impl Document for PublishedTable {
    fn csv(&self) -> String {
        self.csv.clone()
    }

    fn json(&self) -> std::io::Result<String> {
        pretty(&self.json)
    }

    fn html(&self) -> String {
        self.html.clone()
    }
}

/// Simulates IRQ suspension: twelve cases at six loads.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn irq(params: &Params, seed: u64) -> Result<PublishedTable, RunError> {
    let loads: Vec<&str> = LOADS.iter().map(|(name, _)| *name).collect();
    let (v6, fitted, earlier, structure) =
        (shipped(V6_CSV), shipped(CALIBRATION_CSV), shipped(V4_CSV), shipped(V2_CSV));
    let begun = Instant::now();
    let simulated = simulate(params, &modes(&PUBLISHED), &loads, Budget::full(), seed)?;
    let rejected = simulate(params, &modes(&COUNTER_DESIGNS), &loads, Budget::full(), seed)?;
    let elapsed_s = begun.elapsed().as_secs_f64();
    let judged = summary::judge(&simulated.table, &v6);
    let sections = [
        ("The 72 cells", cells::table_text(&simulated.table, &v6)),
        ("By column", cells::columns_text(&simulated.table, &v6)),
        ("Goals", cells::goals_text(&judged)),
        ("Predicted values that miss their goal", cells::misses_text(&judged)),
        (
            "Statements (NEAR: missed, but by less than a cell's goal allows)",
            statements::check(&simulated).iter().map(|statement| rows::line(statement) + "\n").collect(),
        ),
        ("Beside predictors without a model", trivial::text(&simulated.table, &fitted, &v6)),
        ("The earlier run v4", earlier::text("v4", &simulated.table, &earlier)),
        (
            "The earlier run v2, on which the model's structure was chosen",
            earlier::text("v2", &simulated.table, &structure),
        ),
        ("Rejected designs", rejected_text(&simulated, &rejected)),
    ];
    let mut text: String = sections.iter().map(|(title, text)| format!("{title}\n\n{text}\n")).collect();
    text += &format!(
        "{} events, {} transitions of the core, {elapsed_s:.1} s\n",
        simulated.events + rejected.events,
        simulated.transitions + rejected.transitions
    );
    Ok(PublishedTable {
        text,
        csv: simulated.table.to_csv(),
        json: cells_json(&simulated.table, &v6),
        html: page::cells(&simulated.table, &v6, &sections),
    })
}

/// Simulates TCP_RR with interrupts and with busy polling: four rows.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn tcp_rr(params: &Params, seed: u64) -> Result<PublishedTable, RunError> {
    let simulated = tcp_rr::simulate(params, seed)?;
    let text = rows::text(&simulated, "transactions/s", &tcp_rr::statements(&simulated));
    Ok(of_rows("TCP_RR, transactions per second", &simulated, "per_s", &[""], &text))
}

/// Simulates AF_XDP request/response by polling mode: twenty cells.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn xsk_rr(params: &Params, seed: u64) -> Result<PublishedTable, RunError> {
    let simulated = xsk_rr::simulate(params, xsk_rr::WINDOW_NS, seed)?;
    let text = rows::text(&simulated, "ns", &xsk_rr::statements(&simulated));
    let text = format!("{text}\n{}", repeated_text(&simulated));
    Ok(of_rows("AF_XDP request/response, latency in ns, as the posted tool prints it", &simulated, "ns", &[""], &text))
}

/// Compares the letter's own repetition, as a predictor of the table, with the model, and lists the statements it
/// meets.
fn repeated_text(simulated: &[Row]) -> String {
    let repeated = xsk_rr::repeated();
    let medians = |predicted: &dyn Fn(usize) -> f64| {
        let errors = repeated.iter().enumerate().filter(|(_, row)| row.name.ends_with("p50"));
        let mut errors: Vec<f64> =
            errors.map(|(at, row)| 100.0 * (predicted(at) / row.simulated - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let within = errors.iter().filter(|error| **error <= 10.0).count();
        let (median, worst) = (errors.get(errors.len() / 2), errors.last());
        format!(
            "|error| median {:.1} %, worst {:.1} %, {within} of {} within 10 %",
            median.copied().unwrap_or(f64::NAN),
            worst.copied().unwrap_or(f64::NAN),
            errors.len()
        )
    };
    let model = medians(&|at| simulated.get(at).map_or(f64::NAN, |row| row.simulated));
    let earlier = medians(&|at| repeated.get(at).map_or(f64::NAN, |row| row.published));
    let statements: String =
        xsk_rr::statements(&repeated).iter().map(|statement| rows::line(statement) + "\n").collect();
    format!(
        "The letter's own repetition (version 8), to which nothing was fitted, p50:\nthe model: {model}\nthe table above: \
         {earlier}\n\nThe statements, of the repetition itself:\n{statements}"
    )
}

/// Simulates UDP_STREAM into a guest with NAPI threads: thirty rows by three modes.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn udp_stream(params: &Params, seed: u64) -> Result<PublishedTable, RunError> {
    let begun = Instant::now();
    let simulated = udp_stream::simulate(params, udp_stream::FULL, seed)?;
    let elapsed_s = begun.elapsed().as_secs_f64();
    let text = rows::text(&simulated, "thousands/s", &udp_stream::statements(&simulated));
    let text = format!("{text}\n{}", rows::columns_text(&simulated));
    let modes = udp_stream::MODES.map(udp_stream::Threads::name);
    let mut table = of_rows("UDP_STREAM, thousands of datagrams per second", &simulated, "kpps", &modes, &text);
    table.text += &format!("{elapsed_s:.1} s\n");
    Ok(table)
}

/// Makes a table of rows. `groups` are ends of their names, each with a chart of its own.
fn of_rows(title: &str, simulated: &[Row], unit: &str, groups: &[&str], text: &str) -> PublishedTable {
    let row = |row: &Row| {
        json!({
            "row": row.name,
            format!("published_{unit}"): row.published,
            format!("simulated_{unit}"): row.simulated,
            "fitted": row.fitted,
        })
    };
    PublishedTable {
        text: format!("{title}\n\n{text}\n"),
        csv: rows::to_csv(simulated, unit),
        json: Value::Array(simulated.iter().map(row).collect()),
        html: page::rows(title, simulated, groups, text),
    }
}

/// Returns every cell with the simulated and the published value of every column; a value that was not published is
/// null.
fn cells_json(simulated: &Table, published: &Table) -> Value {
    let cell = |cell: &Cell| {
        let reference = published.cell(&cell.case, &cell.load);
        let column = |(column, name): &(Column, &str)| {
            let published = reference.map(|reference| reference.get(*column));
            ((*name).to_owned(), json!({ "simulated": cell.get(*column), "published": published }))
        };
        let values: serde_json::Map<String, Value> = COLUMNS.iter().map(column).collect();
        json!({ "testcase": cell.case, "load": cell.load, "values": values })
    };
    Value::Array(simulated.cells.iter().map(cell).collect())
}

fn rejected_text(simulated: &Simulated, rejected: &Simulated) -> String {
    let rows = ["base", "suspend20", "suspend200"].iter().map(|case| (&simulated.table, *case));
    let rows = rows.chain(COUNTER_DESIGNS.iter().map(|case| (&rejected.table, *case)));
    cells::cases_text(&rows.collect::<Vec<_>>())
}

fn shipped(csv: &str) -> Table {
    Table::parse(csv).expect("the tables that ship with lull can be read, as its tests do")
}

fn modes(names: &[&str]) -> Vec<Mode> {
    names.iter().map(|name| name.parse().expect("a mode of the catalogue")).collect()
}
