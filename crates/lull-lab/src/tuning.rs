//! The results of `lull tune` for people: the search over threads, and its answer in words and tables.

pub mod confirm;
pub mod words;

use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;

use lull_sim::tune::{self, Answer, Figures, Objective, Tried, TuneError, us_text};
use lull_sim::{PredictError, WorldFile};
use serde_json::{Value, json};

use crate::csv::push_record;
use crate::document::{Document, pretty};
use crate::simulated::run_all;
use crate::table::grid::{Align, Grid, wrap};
use words::{against_base, elsewhere, lines, notes, objective_text, reasons, standing, steady};

/// The number of requests that a run should answer, so that its p99 is based on a few hundred.
const REQUESTS: f64 = 20_000.0;
/// The shortest and the longest window chosen, in nanoseconds.
const WINDOW_NS: (f64, f64) = (50e6, 1e9);

/// An answer with its question, as a document.
pub struct Tuned<'a> {
    /// The world that was searched.
    pub file: &'a WorldFile,
    /// The answer.
    pub answer: &'a Answer,
    /// The device's name in the commands to type.
    pub dev: &'a str,
    /// The command that repeats it.
    pub command: &'a str,
}

/// A column of [`Tuned`]'s table, with the field that it shows.
type FiguresColumn = (&'static str, fn(&Figures) -> f64);

const FIGURES: [FiguresColumn; 6] = [
    ("answered_per_s", |figures| figures.per_s),
    ("avg_us", |figures| figures.avg_us),
    ("p50_us", |figures| figures.p50_us),
    ("p95_us", |figures| figures.p95_us),
    ("p99_us", |figures| figures.p99_us),
    ("cpu_percent", |figures| figures.cpu_percent),
];

impl Document for Tuned<'_> {
    /// Returns a row for each setting that was tried, in the order of trying. The figures are means over seeds.
    fn csv(&self) -> String {
        let mut text = String::new();
        let names = FIGURES.iter().map(|(name, _)| *name);
        push_record(&mut text, ["setting", "seeds"].into_iter().chain(names).chain(["objective"]).map(str::to_owned));
        for tried in &self.answer.tried {
            let figure = |(_, of): &FiguresColumn| match tried.runs.is_empty() {
                true => String::new(),
                false => format!("{:.3}", tried.mean(of)),
            };
            let first = [tried.setting.to_string(), tried.runs.len().to_string()];
            let last = standing(self.answer, tried);
            push_record(&mut text, first.into_iter().chain(FIGURES.iter().map(figure)).chain([last]));
        }
        text
    }

    fn json(&self) -> std::io::Result<String> {
        let figures = |figures: &Figures| {
            let values: serde_json::Map<String, Value> =
                FIGURES.iter().map(|(name, of)| ((*name).to_owned(), json!(of(figures)))).collect();
            Value::Object(values)
        };
        let tried = |tried: &Tried| {
            json!({
                "setting": tried.setting.to_string(),
                "offered_per_s": tried.per_s,
                "runs": tried.runs.iter().map(figures).collect::<Vec<_>>(),
                "objective": standing(self.answer, tried),
            })
        };
        pretty(&json!({
            "command": self.command,
            "world": self.file.describe(),
            "objective": objective_text(&self.answer.objective),
            "recommended": self.answer.recommended.as_ref().map(&tried),
            "tried": self.answer.tried.iter().map(&tried).collect::<Vec<_>>(),
        }))
    }

    fn html(&self) -> String {
        crate::html::tuning::render(self.file, self.answer, self.dev, self.command)
    }
}

/// Returns the virtual time that a run at this load should count, in nanoseconds.
pub fn window_ns(per_s: f64) -> u64 {
    (REQUESTS / per_s * 1e9).clamp(WINDOW_NS.0, WINDOW_NS.1) as u64
}

/// Searches, with runs spread over threads.
///
/// # Errors
///
/// See [`TuneError`].
pub fn search(file: &WorldFile, objective: &Objective, threads: usize, stop: &AtomicBool) -> Result<Answer, TuneError> {
    tune::reachable(file, objective)?;
    tune::tune(objective, &mut |jobs| {
        let outcomes = run_all(file, jobs, threads, stop);
        let figures = |outcome: Result<lull_sim::Outcome, PredictError>| outcome.map(|outcome| Figures::of(&outcome));
        outcomes.into_iter().map(|outcome| outcome.map(figures)).collect()
    })
}

/// Returns the answer as text.
pub fn render(file: &WorldFile, answer: &Answer, dev: &str, columns: usize) -> String {
    let mut out = wrap(&format!("SIMULATED {}", file.describe()), columns, "");
    out += &wrap(&file.provenance(), columns, "");
    if let Some(mismatch) = file.mismatch() {
        out += &wrap(&mismatch, columns, "");
    }
    let _ = writeln!(out, "Objective: {}", objective_text(&answer.objective));
    if let Some(recommended) = &answer.recommended {
        let _ = writeln!(out, "\nRecommended: {}\n", recommended.setting);
        for (line, note) in lines(file, answer, dev) {
            let note = if note.is_empty() { note } else { format!("   # {note}") };
            let _ = writeln!(out, "  {line}{note}");
        }
        out.push('\n');
        let notes = against_base(answer).into_iter().chain(reasons(answer)).chain(notes(file, answer));
        for sentence in notes {
            out += &wrap(&sentence, columns, "  ");
        }
    }
    let first = answer.objective.slo.first().statistic;
    let frontier = answer.frontier();
    if !frontier.is_empty() {
        let _ = writeln!(out, "\nFrontier of {first} against CPU (no other setting is lower in both):\n");
        out += &grid(answer, &frontier).to_string();
    }
    if !answer.elsewhere.is_empty() {
        out += "\nIf the load moves:\n";
        for at in &answer.elsewhere {
            out += &wrap(&elsewhere(answer, at), columns, "  ");
        }
        out += &wrap(&steady(answer), columns, "  ");
    }
    out
}

fn grid(answer: &Answer, rows: &[&Tried]) -> Grid {
    let mut grid = Grid::default();
    grid.column("setting", Align::Left);
    for head in ["CPU_percent", "avg", "p50", "p95", "p99"] {
        grid.column(head, Align::Right);
    }
    grid.column("objective", Align::Left);
    for tried in rows {
        let us = |of: fn(&Figures) -> f64| us_text(tried.mean(of));
        grid.row(vec![
            tried.setting.to_string(),
            format!("{:.1}", tried.mean(|run| run.cpu_percent)),
            us(|run| run.avg_us),
            us(|run| run.p50_us),
            us(|run| run.p95_us),
            us(|run| run.p99_us),
            standing(answer, tried),
        ]);
    }
    grid
}
