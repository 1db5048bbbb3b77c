//! `lull sim`: the simulated plane against published tables, and its calibration.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand, ValueEnum};
use lull_core::Mode;
use lull_lab::csv::atomic;
use lull_lab::group_cases::GroupCase;
use lull_lab::published;
use lull_sim::fit::{Fit, FitBudget, fit, perturbed};
use lull_sim::params::Params;
use lull_sim::published::summary::judge;
use lull_sim::published::{
    Budget, CALIBRATION_CSV, KNOWN, LOADS, PARAMS_TOML, START_TOML, Table, simulate, tcp_rr, udp_stream, xsk_rr,
};
use lull_sim::worldfile::EXAMPLES;

use crate::failure::Failure;
use crate::output::{out, outln, say};
use crate::outputs::{Outputs, writable};
use crate::sim_control::{self, Control};
use crate::sim_replay::{self, Replay, Worlds};

/// Arguments of `lull sim`.
#[derive(Args)]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

impl SimArgs {
    /// Whether the command ends by itself when it is asked to, with what it has found so far.
    pub fn looks_at_stop(&self) -> bool {
        matches!(self.command, SimCommand::Worlds(_) | SimCommand::Control(_))
    }
}

#[derive(Subcommand)]
enum SimCommand {
    /// Simulates published tables and shows them beside the published values.
    ///
    /// Tables: irq (IRQ suspension, 12 cases at 6 loads), tcp_rr (TCP_RR with interrupts and with busy polling, 4 rows), xsk_rr
    /// (AF_XDP request/response, 5 rates and delays by 4 polling modes), udp_stream (UDP_STREAM into a guest with NAPI threads, 30
    /// rows by 3 modes), all.
    Published(PublishedArgs),
    /// Calibrates the parameters of the simulated machine on published cells.
    Fit(FitArgs),
    /// Shows the random world of a seed: its parts, what happened, and whether every invariant held.
    Replay(Replay),
    /// Simulates busy-polling CPU groups on more cores than most machines have.
    ///
    /// Cases: parking (a load that steps from nothing to six cores and back), fairness (one flooded member of eight),
    /// many-queues (44 cores and queues, 100,000 connections, 40 Gbit/s of small packets, by interrupts and by groups),
    /// saturated (a service at its maximum, for which busy-polling NAPI threads or a group deliver on one core),
    /// tx-trap (two workers of one transmit queue, one of which floods: how long the other's send calls take, by who
    /// drains the queueing discipline), overload (a flood of small datagrams at 1 to 200 flows, which softirq, a NAPI
    /// thread or a group delivers).
    Groups(GroupsArgs),
    /// Runs random worlds, and checks the invariants of delivery after every step.
    Worlds(Worlds),
    /// Runs a controller on a described machine under load that changes at random, and scores it.
    ///
    /// The controller chooses the timeouts for a latency objective while the load steps, ramps, bursts, shares a queue
    /// with another program and goes idle. It is compared with the fixed setting that is the best for each phase in
    /// hindsight: the objective should be met in 99 % of the windows in which that setting meets it (of 1,000 answers
    /// or more, 2 s after a phase began), at 1.15 times its CPU or less. docs/control.md describes the controller.
    Control(Control),
    /// Lists the commented world files that ship, or prints one, from which you can start your own for lull predict and
    /// lull tune.
    Example(Example),
}

/// A case of `lull sim groups`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Pollers that are woken and parked as the load comes and goes.
    Parking,
    /// One flooded member of eight.
    Fairness,
    /// 44 queues, by interrupts and by groups.
    ManyQueues,
    /// A service at its maximum, by busy-polling threads and by a group on their core.
    Saturated,
    /// Two workers of one transmit queue, one of which floods, without and with a group that sends.
    TxTrap,
    /// A flood at 1 to 200 flows, by softirq, a NAPI thread and a group.
    Overload,
}

#[derive(Args)]
struct GroupsArgs {
    /// The case; by default all, one after the other.
    #[arg(long, value_enum)]
    case: Option<Case>,
    #[command(flatten)]
    outputs: Outputs,
    /// Seed of the runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct Example {
    /// The name of an example; without one, all are listed.
    name: Option<String>,
}

/// A published table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Which {
    /// IRQ suspension, net-next v6: 12 cases at 6 loads.
    Irq,
    /// TCP_RR with interrupts and with busy polling, netdev 2.1: 4 rows.
    TcpRr,
    /// AF_XDP request/response by polling mode, net-next v4: 20 cells.
    XskRr,
    /// UDP_STREAM into a guest with NAPI threads, 2016: 30 rows by 3 modes.
    UdpStream,
    /// All of them.
    All,
}

/// A table that calibration knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Fitted {
    /// IRQ suspension: 24 of 72 cells.
    Irq,
    /// TCP_RR: 1 of 4 rows.
    TcpRr,
    /// AF_XDP request/response: 6 of 20 cells.
    XskRr,
    /// UDP_STREAM: 10 of 30 rows.
    UdpStream,
}

#[derive(Args)]
struct PublishedArgs {
    /// Which published table.
    #[arg(long, value_enum, default_value_t = Which::Irq)]
    table: Which,
    /// A file with parameters of the table's machine; by default those that ship with lull. Not with --table all.
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
    /// Seed of the runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct FitArgs {
    /// Which published table.
    #[arg(long, value_enum, default_value_t = Fitted::Irq)]
    table: Fitted,
    /// The cells to fit, as CSV in the columns of the published summary; by default the 24 that calibration may see
    /// (irq only).
    #[arg(long, value_name = "FILE")]
    cells: Option<PathBuf>,
    /// Parameters to start from. By default, for irq, these are the start of its fit, and otherwise what the last fit
    /// has found, as they ship with lull.
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// The file for the parameters that are found; by default they go to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How often all cells are evaluated.
    #[arg(long, default_value_t = 600)]
    evaluations: usize,
    /// By how much of its range each parameter of the start is moved at random before the fit, in percent (irq only)
    /// [default: 30].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    perturb: Option<u8>,
    /// Move only the parameters whose names begin with this, such as client_; the others keep the values they start
    /// with (irq only).
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    only: String,
    /// Seed of the search and of the runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The default of `--perturb`, in percent of a parameter's range.
const PERTURB_DEFAULT: u8 = 30;

impl FitArgs {
    fn perturb(&self) -> u8 {
        self.perturb.unwrap_or(PERTURB_DEFAULT)
    }
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()).into())
}

fn params(path: Option<&PathBuf>, shipped: &str, known: &[(&'static str, &'static str)]) -> Result<Params, Failure> {
    let text = path.map_or_else(|| Ok(shipped.to_owned()), read)?;
    Params::parse(&text, known).map_err(|error| match path {
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
        SimCommand::Groups(args) => groups(&args),
        SimCommand::Worlds(args) => sim_replay::worlds(&args, stop),
        SimCommand::Control(args) => sim_control::control(&args, stop),
        SimCommand::Example(args) => example(args.name.as_deref()),
    }
}

fn example(name: Option<&str>) -> Result<ExitCode, Failure> {
    let Some(name) = name else {
        for (file, text) in EXAMPLES {
            outln!("{:<12} {}", file.trim_end_matches(".toml"), what_it_is(text))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let Some((_, text)) = EXAMPLES.iter().find(|(file, _)| file.trim_end_matches(".toml") == name) else {
        let names: Vec<&str> = EXAMPLES.iter().map(|(file, _)| file.trim_end_matches(".toml")).collect();
        return Err(format!("no example is named '{name}': there are {}", names.join(", ")).into());
    };
    out!("{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// Says what an example is: the beginning of its comment, up to the end of a sentence or a colon.
fn what_it_is(text: &str) -> String {
    let first: Vec<&str> = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    let what = first.join(" ");
    let end = [": ", ". "].iter().filter_map(|end| what.find(end)).min();
    what[..end.unwrap_or(what.len())].to_owned()
}

fn published(args: &PublishedArgs) -> Result<ExitCode, Failure> {
    if args.table == Which::All && args.params.is_some() {
        return Err("--params is one table's: name the table with --table irq, tcp_rr, xsk_rr or udp_stream".into());
    }
    if args.table == Which::All && args.outputs.any() {
        return Err("a file has one table: name it with --table irq, tcp_rr, xsk_rr or udp_stream".into());
    }
    args.outputs.check()?;
    let path = args.params.as_ref();
    let tables = match args.table {
        Which::All => vec![Which::Irq, Which::TcpRr, Which::XskRr, Which::UdpStream],
        one => vec![one],
    };
    for table in tables {
        let simulated = match table {
            Which::Irq | Which::All => published::irq(&params(path, PARAMS_TOML, &KNOWN)?, args.seed)?,
            Which::TcpRr => published::tcp_rr(&params(path, tcp_rr::PARAMS_TOML, &tcp_rr::KNOWN)?, args.seed)?,
            Which::XskRr => published::xsk_rr(&params(path, xsk_rr::PARAMS_TOML, &xsk_rr::KNOWN)?, args.seed)?,
            Which::UdpStream => {
                published::udp_stream(&params(path, udp_stream::PARAMS_TOML, &udp_stream::KNOWN)?, args.seed)?
            }
        };
        outln!("{}", simulated.text.trim_end())?;
        args.outputs.write(&simulated)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn groups(args: &GroupsArgs) -> Result<ExitCode, Failure> {
    if args.case.is_none() && args.outputs.any() {
        return Err(
            "a file has one case: name it with --case parking, fairness, many-queues, saturated, tx-trap or overload"
                .into(),
        );
    }
    args.outputs.check()?;
    let cases = args.case.map_or_else(|| Case::value_variants().to_vec(), |case| vec![case]);
    for case in cases {
        let table = match case {
            Case::Parking => lull_sim::groups::parking(args.seed)?,
            Case::Fairness => lull_sim::groups::fairness(args.seed)?,
            Case::ManyQueues => lull_sim::groups::many_queues(args.seed)?,
            Case::Saturated => lull_sim::groups::saturated(args.seed)?,
            Case::TxTrap => lull_sim::groups::tx_trap(args.seed)?,
            Case::Overload => lull_sim::groups::overload(args.seed)?,
        };
        outln!("{}", table.text())?;
        args.outputs.write(&GroupCase(table))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn calibrate(args: &FitArgs) -> Result<ExitCode, Failure> {
    if args.evaluations == 0 {
        return Err("--evaluations is 0: a fit takes at least one".into());
    }
    if args.table != Fitted::Irq && !args.only.is_empty() {
        return Err("--only is for --table irq only: the other tables' fits choose what they move".into());
    }
    if args.table != Fitted::Irq && args.cells.is_some() {
        return Err("--cells is for --table irq only: the other tables' calibration rows are fixed".into());
    }
    if args.table != Fitted::Irq && args.perturb.is_some() {
        return Err("--perturb is for --table irq only: the other tables' fits begin with what they are given".into());
    }
    if let Some(path) = &args.out {
        writable(path)?;
    }
    let progress = |evaluation: usize, best: f64| {
        if evaluation.is_multiple_of(20) {
            say!("{evaluation} of {}: {best:.2}", args.evaluations);
        }
    };
    let path = args.params.as_ref();
    let found = match args.table {
        Fitted::Irq => fit_irq(args, progress)?,
        Fitted::TcpRr => {
            let start = params(path, tcp_rr::PARAMS_TOML, &tcp_rr::KNOWN)?;
            tcp_rr::fit(&start, args.evaluations, args.seed, progress)?
        }
        Fitted::XskRr => {
            let start = params(path, xsk_rr::PARAMS_TOML, &xsk_rr::KNOWN)?;
            xsk_rr::fit(&start, args.evaluations, args.seed, progress)?
        }
        Fitted::UdpStream => {
            let start = params(path, udp_stream::START_TOML, &udp_stream::KNOWN)?;
            udp_stream::fit(&start, args.evaluations, args.seed, progress)?
        }
    };
    say!("{:.2} before, {:.2} after", found.before, found.after);
    let text = origin(args, &found) + &found.params.to_toml()?;
    match &args.out {
        Some(path) => atomic::write(path, text.as_bytes())?,
        None => out!("{text}")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Says where the parameters come from, for the head of their file.
fn origin(args: &FitArgs, found: &Fit) -> String {
    let table = args.table.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let option = |name: &str, path: &Option<PathBuf>| {
        path.as_ref().map_or_else(String::new, |path| format!(" --{name} {}", path.display()))
    };
    let only = if args.only.is_empty() { String::new() } else { format!(" --only {}", args.only) };
    format!(
        "# What `lull sim fit --table {table} --evaluations {}{}{}` found: {:.2} before, {:.2} after.\n# No parameter belongs to \
         a cell or a case.\n\n",
        args.evaluations,
        format_args!(
            " --seed {}{}",
            args.seed,
            if args.table == Fitted::Irq { format!(" --perturb {}{only}", args.perturb()) } else { String::new() }
        ),
        option("cells", &args.cells) + &option("params", &args.params),
        found.before,
        found.after,
    )
}

fn fit_irq(args: &FitArgs, progress: impl FnMut(usize, f64)) -> Result<Fit, Failure> {
    let start = params(args.params.as_ref(), START_TOML, &KNOWN)?;
    let text = args.cells.as_ref().map_or_else(|| Ok(CALIBRATION_CSV.to_owned()), read)?;
    let cells = Table::parse(&text)?;
    if let Some(cell) = cells.cells.iter().find(|cell| cell.case.parse::<Mode>().is_err()) {
        return Err(format!("the table's case '{}' is no delivery mode", cell.case).into());
    }
    say!("{} cells", cells.cells.len());
    let budget = FitBudget { evaluations: args.evaluations, cell: Budget::short(), seed: args.seed };
    let known = start;
    if !known.iter().any(|(name, _)| name.starts_with(&args.only)) {
        return Err(format!("--only {}: no parameter's name begins so", args.only).into());
    }
    let start = perturbed(&known.held_but(&args.only), f64::from(args.perturb()) / 100.0, args.seed);
    let before = goals_met(&start, &cells, args.seed)?;
    let mut found = fit(&start, &cells, &budget, progress)?;
    found.params = found.params.with_ranges_of(&known);
    let after = goals_met(&found.params, &cells, args.seed)?;
    say!("goals of the fitted cells: {before} met before, {after} after; lull sim published judges the others");
    Ok(found)
}

/// Says how many goals of these cells are met, and of how many.
fn goals_met(params: &Params, cells: &Table, seed: u64) -> Result<String, Failure> {
    let loads = LOADS.map(|(load, _)| load);
    let simulated = simulate(params, &modes_of(cells)?, &loads, Budget::full(), seed)?;
    let judged = judge(&simulated.table, cells);
    Ok(format!("{} of {}", judged.iter().filter(|judged| judged.is_met()).count(), judged.len()))
}

/// Returns the modes of a table's cells, each once; a table may be ordered by load or by case.
fn modes_of(cells: &Table) -> Result<Vec<Mode>, Failure> {
    let cases: BTreeSet<&str> = cells.cells.iter().map(|cell| cell.case.as_str()).collect();
    cases.into_iter().map(|case| Ok(case.parse()?)).collect()
}

#[cfg(test)]
mod tests {
    use lull_sim::published::CALIBRATION_CASES;

    use super::*;

    #[test]
    fn an_example_is_listed_by_its_first_sentence() {
        let listed: Vec<String> = EXAMPLES.iter().map(|(_, text)| what_it_is(text)).collect();
        assert!(
            listed.contains(&"A service of 2 workers whose answers leave through a queueing discipline".to_owned())
        );
        assert!(listed.iter().all(|what| !what.is_empty() && what.len() < 100), "{listed:?}");
    }

    #[test]
    fn each_case_of_a_table_is_simulated_once() {
        let modes = modes_of(&Table::parse(CALIBRATION_CSV).unwrap()).unwrap();
        assert_eq!(modes.iter().map(Mode::to_string).collect::<Vec<_>>(), CALIBRATION_CASES);
    }
}
