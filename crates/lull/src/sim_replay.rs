//! `lull sim replay` and `lull sim worlds`: shows one random world of the simulated plane, or checks many.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use lull_sim::random::{Plan, Shape, Tally, report};

use crate::failure::Failure;
use crate::measure_args::ended;
use crate::output::{out, outln, say};

/// Worlds between two lines of progress.
const PROGRESS_EVERY: u64 = 1_000;
/// How many failing worlds are shrunk and shown; of the others only the seeds are listed.
const REPORTS_MAX: usize = 3;

/// Arguments of `lull sim replay`.
#[derive(Args)]
pub struct Replay {
    /// The world's seed.
    seed: u64,
    /// Shrink a failing world first: remove everything that is not needed for the failure.
    #[arg(long)]
    shrunk: bool,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Show this many of the last events.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    limit: u32,
}

/// Arguments of `lull sim worlds`.
#[derive(Args)]
pub struct Worlds {
    /// How many worlds to run.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// The first world's seed; the others follow it.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// The kind of worlds.
#[derive(Args, Clone, Copy)]
struct ShapeArgs {
    /// Every world has busy-polling CPU groups; without this option three in ten have.
    #[arg(long)]
    groups: bool,
    /// Every world has such groups, and transmit queues with a queueing discipline.
    #[arg(long, conflicts_with = "groups")]
    transmit: bool,
}

impl ShapeArgs {
    fn shape(self) -> Shape {
        match self {
            ShapeArgs { transmit: true, .. } => Shape::Transmit,
            ShapeArgs { groups: true, .. } => Shape::Groups,
            ShapeArgs { .. } => Shape::Any,
        }
    }
}

/// Runs `lull sim replay`; the status is 1 if an invariant broke.
pub fn replay(args: &Replay) -> Result<ExitCode, Failure> {
    let mut plan = Plan::random_of(args.seed, args.shape.shape());
    if args.shrunk {
        let Some(shrunk) = plan.shrink() else {
            let seed = args.seed;
            return Err(
                format!("seed {seed} keeps every invariant, there is nothing to shrink: leave out --shrunk").into()
            );
        };
        outln!("shrunk in {} worlds\n", shrunk.tries)?;
        plan = shrunk.plan;
    }
    outln!("{plan}")?;
    let timeline = plan.timeline(args.limit as usize);
    outln!("{timeline}")?;
    let outcome = &timeline.outcome;
    let (polled, dropped, flushed) = outcome.packets;
    outln!(
        "{} ms of virtual time, {} transitions of the core, {} events; {polled} packets polled, {dropped} dropped, \
         {flushed} lost by resets; digest {:016x}",
        outcome.time_ns / 1_000_000,
        outcome.transitions,
        outcome.events,
        outcome.digest
    )?;
    match (&outcome.violation, outcome.bound) {
        (Some(violation), _) => {
            outln!("FAILED, {violation}")?;
            Ok(ExitCode::FAILURE)
        }
        (None, Some(bound)) => {
            outln!("{bound}: until then every invariant held")?;
            Ok(ExitCode::SUCCESS)
        }
        (None, None) => {
            outln!(
                "every invariant held, and everything was delivered {} us after the last request",
                outcome.drain_ns / 1_000
            )?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs `lull sim worlds`; the status is 1 if an invariant broke in one of them, and 130 if a signal ended it before
/// all had run.
pub fn worlds(args: &Worlds, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    let Some(end) = args.from.checked_add(args.count) else {
        return Err(format!("--from {} and --count {} pass the last seed, {}", args.from, args.count, u64::MAX).into());
    };
    let begun = Instant::now();
    let mut tally = Tally::default();
    for seed in args.from..end {
        if stop.load(Ordering::Relaxed) {
            say!("stopped after {} worlds", tally.worlds);
            break;
        }
        let outcome = Plan::random_of(seed, args.shape.shape()).run();
        tally.add(seed, &outcome);
        if outcome.violation.is_some() && tally.failed.len() <= REPORTS_MAX {
            out!("{}", report(seed, args.shape.shape()))?;
        }
        if tally.worlds.is_multiple_of(PROGRESS_EVERY) && tally.worlds < args.count {
            say!("{} of {} worlds, {} failed", tally.worlds, args.count, tally.failed.len());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    out!("{}{tally}", tally.covered)?;
    let rate = |count: u64| count as f64 / seconds / 1e6;
    outln!(
        "{seconds:.1} s: {:.2} M transitions of the core a second, {:.2} M events a second",
        rate(tally.transitions),
        rate(tally.events)
    )?;
    Ok(if tally.failed.is_empty() { ended(stop, false) } else { ExitCode::FAILURE })
}
