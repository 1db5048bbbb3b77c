//! A service at its maximum, with a group of one CPU, and with busy-polling NAPI threads on that CPU instead.
//!
//! On two cores the group would share its core with the worker or with the clients. Here it has one to itself.

use lull_core::Mode;

use super::table::CaseTable;
use crate::engine::error::RunError;
use crate::engine::sim::Sim;
use crate::world::Traffic;
use crate::worldfile::WorldFile;

const WINDOW_NS: u64 = 200_000_000;
const MODES: [&str; 3] = ["threaded-busy", "group-rx", "group"];
/// The goal with one queue: the group's answers as a share of the thread's.
const ONE_QUEUE: f64 = 0.98;
/// The goals with four queues: the same share, and the p99 as a share of the threads'.
const FOUR_QUEUES: (f64, f64) = (1.0, 0.5);

/// Runs a service whose packets one core delivers, with one queue and with four.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn saturated(seed: u64) -> Result<CaseTable, RunError> {
    let (mut rows, mut statements) = (Vec::new(), Vec::new());
    for (queues, workers) in [(1, 1), (4, 3)] {
        let runs = MODES.map(|mode| run(queues, workers, mode, seed));
        let mut threads = None;
        for (mode, run) in MODES.iter().zip(runs) {
            let (per_s, p99_us) = run?;
            let (threads_per_s, threads_p99_us) = *threads.get_or_insert((per_s, p99_us));
            let (share, of_p99) = (per_s / threads_per_s, p99_us / threads_p99_us);
            let of = if queues == 1 { "one queue".to_owned() } else { format!("{queues} queues") };
            rows.push((format!("{of}, {mode}"), vec![per_s / 1_000.0, p99_us, share, of_p99]));
            if *mode == MODES[0] {
                continue;
            }
            statements.push(match queues {
                1 => (
                    share >= ONE_QUEUE,
                    format!("one queue: {mode} answers at least {ONE_QUEUE} of what the busy-polling thread does: {share:.2}"),
                ),
                _ => (
                    share >= FOUR_QUEUES.0 && of_p99 <= FOUR_QUEUES.1,
                    format!(
                        "{queues} queues: {mode} answers at least {:.2} of what the busy-polling threads do, at a p99 of {} of \
                         theirs at the most: {share:.2}, at {of_p99:.2}",
                        FOUR_QUEUES.0, FOUR_QUEUES.1
                    ),
                ),
            });
        }
    }
    Ok(CaseTable {
        title: "A service at its maximum, one core beside its workers delivers: busy-polling NAPI threads that take turns, or a group. \
                256 connections, a request of 4 us in base, pfifo_fast, doorbells of 400 ns"
            .to_owned(),
        columns: vec!["answered K/s", "p99 us", "of threads'", "p99 of theirs"],
        rows,
        statements,
    })
}

/// Returns the answers a second, and the p99 in us.
fn run(queues: u16, workers: u16, mode: &str, seed: u64) -> Result<(f64, f64), RunError> {
    let (Ok(file), Ok(mode)) = (WorldFile::parse("saturated", &world(queues, workers)), mode.parse::<Mode>()) else {
        unreachable!("a file and modes of this module's own");
    };
    let outcome = Sim::new(&file.world(&mode, Traffic::Closed, WINDOW_NS), seed).run()?;
    Ok((outcome.qps(), outcome.latency_us(99.0)))
}

/// Workers have the first cores, and the last core delivers.
fn world(queues: u16, workers: u16) -> String {
    format!(
        r#"
[machine]
cores = {}
idle = "shallow"
[nic]
queues = {queues}
speed = "100Gbit/s"
rx_usecs = "8us"
[network]
latency = "10us"
[service]
kind = "epoll"
workers = {workers}
connections = 256
request_cost = "4us"
[transmit]
qdisc = "pfifo_fast"
ring = 256
[group]
cpus = "{workers}"
[costs]
doorbell = "400ns"
"#,
        workers + 1
    )
}
