//! `lull sim`: the simulated plane against published tables, and its calibration.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::{Args, Subcommand};
use lull_core::Mode;
use lull_core::mode::PUBLISHED;
use lull_sim::fit::{FitBudget, fit};
use lull_sim::params::Params;
use lull_sim::published::{
    Budget, CALIBRATION_CSV, KNOWN, LOADS, PARAMS_TOML, Simulated, Table, V4_CSV, V6_CSV, page, simulate, statements,
    summary, v4,
};

use crate::Failure;
use crate::sim_replay::{self, Replay, Worlds};

/// Arguments of `lull sim`.
#[derive(Args)]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Simulates the published IRQ suspension runs, 12 cases at 6 loads, and shows them beside the published values.
    Published(PublishedArgs),
    /// Calibrates the parameters of the simulated machine on published cells.
    Fit(FitArgs),
    /// Shows the random world of a seed: what there is, what happened, and whether every invariant held.
    Replay(Replay),
    /// Runs random worlds, with the invariants of delivery looked at after every step.
    Worlds(Worlds),
}

#[derive(Args)]
struct PublishedArgs {
    /// Parameters of the machine; by default those that ship with lull.
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// Write the simulated table as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write everything as a self-contained page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Seed of the runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct FitArgs {
    /// The cells to fit, as CSV in the columns of the published summary; by default the 24 that calibration may see.
    #[arg(long, value_name = "FILE")]
    cells: Option<PathBuf>,
    /// Parameters to start from; by default those that ship with lull.
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// Where the parameters found go; by default standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Evaluations of all cells.
    #[arg(long, default_value_t = 600)]
    evaluations: usize,
    /// Seed of the search and of the runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()).into())
}

fn write(path: &PathBuf, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

fn params(path: Option<&PathBuf>) -> Result<Params, Failure> {
    let text = path.map_or_else(|| Ok(PARAMS_TOML.to_owned()), read)?;
    Params::parse(&text, &KNOWN).map_err(|error| match path {
        Some(path) => format!("{}: {error}", path.display()).into(),
        None => error.into(),
    })
}

/// Runs `lull sim`.
pub fn run(args: SimArgs, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    match args.command {
        SimCommand::Published(args) => published(&args),
        SimCommand::Fit(args) => calibrate(&args),
        SimCommand::Replay(args) => sim_replay::replay(&args),
        SimCommand::Worlds(args) => sim_replay::worlds(&args, stop),
    }
}

fn modes(names: &[&str]) -> Result<Vec<Mode>, Failure> {
    names.iter().map(|name| name.parse().map_err(Failure::from)).collect()
}

fn published(args: &PublishedArgs) -> Result<ExitCode, Failure> {
    let params = params(args.params.as_ref())?;
    let loads: Vec<&str> = LOADS.iter().map(|(name, _)| *name).collect();
    let (v6, earlier) = (Table::parse(V6_CSV)?, Table::parse(V4_CSV)?);
    let begun = Instant::now();
    let simulated = simulate(&params, &modes(&PUBLISHED)?, &loads, Budget::full(), args.seed)?;
    let rejected = simulate(&params, &modes(&COUNTER_DESIGNS)?, &loads, Budget::full(), args.seed)?;
    let elapsed_s = begun.elapsed().as_secs_f64();
    let judged = summary::judge(&simulated.table, &v6);
    let verdicts = statements::check(&simulated);
    let sections = [
        ("The 72 cells", summary::table_text(&simulated.table, &v6)),
        ("By column", summary::columns_text(&simulated.table, &v6)),
        ("Goals", summary::goals_text(&judged)),
        ("Predicted values that miss their goal", summary::misses_text(&judged)),
        ("Statements", verdicts.iter().map(|verdict| verdict.line() + "\n").collect()),
        ("The earlier run", v4::text(&simulated.table, &earlier)),
        ("Rejected designs", rejected_text(&simulated, &rejected)),
    ];
    for (title, text) in &sections {
        println!("{title}\n\n{text}");
    }
    println!(
        "{} events, {} transitions of the core, {elapsed_s:.1} s",
        simulated.events + rejected.events,
        simulated.transitions + rejected.transitions
    );
    if let Some(path) = &args.csv {
        write(path, &simulated.table.to_csv())?;
    }
    if let Some(path) = &args.html {
        write(path, &page::render(&simulated.table, &v6, &sections))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The two designs that the series' FAQ rejects, the first with a short and a long coalescing time.
const COUNTER_DESIGNS: [&str; 3] = ["coalesce-20", "coalesce-200", "longgro"];

fn rejected_text(simulated: &Simulated, rejected: &Simulated) -> String {
    let rows = ["base", "suspend20", "suspend200"].iter().map(|case| (&simulated.table, *case));
    let rows = rows.chain(COUNTER_DESIGNS.iter().map(|case| (&rejected.table, *case)));
    summary::cases_text(&rows.collect::<Vec<_>>())
}

fn calibrate(args: &FitArgs) -> Result<ExitCode, Failure> {
    let start = params(args.params.as_ref())?;
    let text = args.cells.as_ref().map_or_else(|| Ok(CALIBRATION_CSV.to_owned()), read)?;
    let cells = Table::parse(&text)?;
    if let Some(cell) = cells.cells.iter().find(|cell| cell.case.parse::<Mode>().is_err()) {
        return Err(format!("the table's case '{}' is no delivery mode", cell.case).into());
    }
    if args.evaluations == 0 {
        return Err("--evaluations is 0: a fit takes at least one".into());
    }
    let budget = FitBudget { evaluations: args.evaluations, cell: Budget::short(), seed: args.seed };
    let found = fit(&start, &cells, &budget, |evaluation, best| {
        if evaluation % 20 == 0 {
            eprintln!("{evaluation} of {}: {best:.2}", args.evaluations);
        }
    })?;
    eprintln!("{} cells: {:.2} before, {:.2} after", cells.cells.len(), found.before, found.after);
    let text = found.params.to_toml()?;
    match &args.out {
        Some(path) => write(path, &text)?,
        None => print!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}
