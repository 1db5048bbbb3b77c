//! `lull merge`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use lull_lab::csv::atomic;
use lull_lab::load::Summary;
use lull_lab::load::log::LoadLog;
use lull_units::counted;

use crate::failure::Failure;
use crate::load::print_summary;
use crate::output::{outln, say};
use crate::outputs;

/// If the windows of generators have less than this share in common, a warning says so, because their rates are of
/// different times.
const COMMON_SHARE: f64 = 0.95;

/// Arguments of `lull merge`.
#[derive(Args)]
pub struct MergeArgs {
    /// Files that `lull load --hdr` or `lull merge --hdr` has written.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the sum as a histogram log, which can be merged in turn.
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Print the sum as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints a line for each file, and the sum.
pub fn run(args: &MergeArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.hdr {
        outputs::writable(path)?;
    }
    let logs = args.files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let mut sum = logs[0].clone();
    for (path, log) in args.files.iter().zip(&logs).skip(1) {
        sum.add(log).map_err(|error| format!("cannot add {} to those before it: {error}", path.display()))?;
    }
    if let Some(path) = &args.hdr {
        atomic::write(path, &sum.to_bytes())?;
    }
    let summary = sum.summary();
    let longest_s = logs.iter().map(|log| log.summary().duration_s).fold(0.0, f64::max);
    if summary.duration_s < COMMON_SHARE * longest_s {
        say!(
            "the generators measured together for {:.1} s of {longest_s:.1} s only, so the sum of their rates is of \
             different times: start them with the same --start-at and --seconds",
            summary.duration_s
        );
    }
    if args.json {
        outln!("{}", json(&sum, &summary))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (path, log) in args.files.iter().zip(&logs) {
        let one = log.summary();
        outln!("{}: {:.0} queries/s, p99 {:.1} us", path.display(), one.qps, one.latency_p99_ns as f64 / 1e3)?;
    }
    let (generators, connections) = (sum.generators(), sum.connections());
    let servers = sum.servers().join(", ");
    outln!(
        "{}, {} to {servers}, {:.1} s together",
        counted(generators, "generator"),
        counted(connections, "connection"),
        summary.duration_s
    )?;
    print_summary(&summary)?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<LoadLog, Failure> {
    let unusable = |why: String| format!("cannot use {}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    Ok(LoadLog::parse(&bytes).map_err(|error| unusable(error.to_string()))?)
}

fn json(sum: &LoadLog, s: &Summary) -> serde_json::Value {
    serde_json::json!({
        "generators": sum.generators(),
        "connections": sum.connections(),
        "servers": sum.servers(),
        "began": humantime::format_rfc3339_nanos(sum.began()).to_string(),
        "seconds": s.duration_s,
        "qps": s.qps,
        "latency_ns": {
            "avg": s.latency_avg_ns, "p50": s.latency_p50_ns, "p95": s.latency_p95_ns, "p99": s.latency_p99_ns,
            "p99.9": s.latency_p999_ns, "max": s.latency_max_ns,
        },
        "lag_p99_ns": s.lag_p99_ns,
        "sent": s.sent,
        "received": s.received,
        "hits": s.hits,
        "misses": s.misses,
        "stored": s.stored,
        "errors": s.errors,
        "lost": s.lost,
        "unanswered": s.unanswered,
        "backlog": s.backlog,
        "reconnects": s.reconnects,
        "busy_fraction": s.busy_fraction,
        "kept_up": s.kept_up,
    })
}
