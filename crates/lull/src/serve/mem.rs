//! The service on the in-memory NIC under the lab's load, with a line of figures per second, until a signal comes.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lull_core::Mode;
use lull_lab::bench::{Bench, BenchConfig, BenchError, MemBench, Run};
use lull_lab::cell::{Load, RunResult};
use lull_units::counted;

use super::{Serve, decorated, offer, refuse};
use crate::failure::Failure;
use crate::output::{outln, say};

/// The time that one line covers; the rest of the second before it lets the load settle.
const WINDOW: Duration = Duration::from_millis(950);
const SETTLE: Duration = Duration::from_millis(50);
/// How many lines are printed between two headings.
const HEADING_EVERY: u32 = 20;

/// Serves until a signal comes.
pub(super) fn run(args: &Serve, mode: &Mode, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    refuse(
        &[
            ("--addr", !args.addr.is_empty()),
            ("--gateway", !args.gateway.is_empty()),
            ("--peer-addr", args.peer_addr.is_some()),
            ("--port", args.port.is_some()),
            ("--memory-megabytes", args.memory_megabytes.is_some()),
            ("--item-bytes-max", args.item_bytes_max.is_some()),
            ("--connections-max", args.connections_max.is_some()),
            ("--idle-timeout", args.idle_timeout.is_some()),
            ("--offloads", args.offloads.is_some()),
            ("--steer", args.steer.is_some()),
        ],
        "mem",
        "the lab sets that; serve on tap:NAME to choose it",
    )?;
    refuse(&args.xdp.given(), "mem", "it is for xdp:DEV")?;
    let load = one_load(args.load.as_deref().unwrap_or("MAX"))?;
    let config = BenchConfig {
        workers: args.threads,
        connections: args.connections.unwrap_or(BenchConfig::default().connections),
        cores: args.cores.clone().unwrap_or_default(),
        buffer_bytes: args.buffer_bytes,
        realtime: args.realtime,
        after_resume: args.after_resume.into(),
        group: args.group.setup(std::slice::from_ref(mode))?,
        qdisc: args.qdisc,
        ..BenchConfig::default()
    };
    let connections = config.connections;
    let mut bench = MemBench::start_with(config, |device| {
        decorated(args, device).map_err(|error| BenchError::Invalid(error.to_string()))
    })?;
    bench.server().set_mode(mode)?;
    bench.notes().iter().for_each(|note| say!("lull: {note}"));
    // The service is offered before the first line, because whoever reads that may ask at once.
    let _offered = offer(args, mode, bench.server().network())?;
    outln!(
        "serving memcached on the in-memory NIC in mode {mode} with {}; load {load} over {}",
        counted(args.threads, "worker"),
        counted(connections, "connection")
    )?;
    let mut lines = 0;
    while !stop.load(Ordering::Relaxed) {
        let offered_qps = load.offered_qps(None);
        let run = Run { mode, load, offered_qps, run: lines, warm_up: SETTLE, window: WINDOW, stop };
        let second = bench.observe(&run)?;
        if lines % HEADING_EVERY == 0 {
            outln!(
                "{:>9} {:>9} {:>9} {:>6} {:>10} {:>9} {:>9} {:>9}  mode",
                "queries/s",
                "avg us",
                "p99 us",
                "cpu %",
                "interrupts",
                "polls",
                "mean work",
                "wakeups"
            )?;
        }
        lines += 1;
        outln!("{}", line(&second, args.slo.is_given()))?;
    }
    outln!("stopped")?;
    Ok(ExitCode::SUCCESS)
}

fn line(second: &RunResult, is_controlled: bool) -> String {
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let count = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    format!(
        "{:>9.0} {:>9} {:>9} {:>6} {:>10} {:>9} {:>9} {:>9}  {}{}",
        second.qps,
        figure(second.avg_latency_us),
        figure(second.p99_latency_us),
        figure(second.cpu_percent),
        count(second.interrupts),
        count(second.polls),
        figure(second.mean_work),
        count(second.wakeups),
        // A controller's timeouts are not those of the mode, so no verdict is given.
        if is_controlled { "by --slo".to_owned() } else { second.verdict.to_string() },
        if second.kept_up { "" } else { "; the generator could not keep up" },
    )
}

fn one_load(text: &str) -> Result<Load, Failure> {
    let loads = Load::parse_list(text)?;
    match loads[..] {
        [load @ (Load::Max | Load::Rate { .. })] => Ok(load),
        _ => {
            Err(format!("cannot put '{text}' on the in-memory NIC: use queries per second, such as 200K, or MAX")
                .into())
        }
    }
}
