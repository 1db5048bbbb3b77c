//! `lull load`.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use lull_lab::cell::Load;
use lull_lab::csv::atomic;
use lull_lab::load::kernel::{KernelClient, KernelConfig};
use lull_lab::load::log::LoadLog;
use lull_lab::load::{
    ANNOUNCEMENT, Arrivals, BUSY_SHARE_MAX, Clock, DEPTH_MAX, Pace, Summary, Workload, WorkloadConfig,
};

use crate::failure::Failure;
use crate::measure_args::ended;
use crate::output::{WriteError, out, outln, say};
use crate::outputs;
use crate::units;

/// Arguments of `lull load`.
#[derive(Args)]
pub struct LoadArgs {
    /// The memcached server, as HOST:PORT.
    server: String,
    /// The load: queries per second (200K) for an open loop, or MAX for a closed one.
    #[arg(long, default_value = "MAX")]
    load: String,
    /// Connections of all threads together.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Requests that a connection may have outstanding.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(DEPTH_MAX)), default_value_t = 1)]
    depth: u16,
    /// Inter-arrival times of an open loop: poisson or facebook.
    #[arg(long, value_parser = units::arrivals, default_value = "poisson")]
    arrivals: Arrivals,
    /// The seed from which the times of requests and their records are drawn. The same seed draws the same. It is 1, or
    /// with --start-at one that no other generator has: generators with the same seed would send at the same moments.
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds measured. A signal ends them earlier, with what was measured until then and exit status 130. The exit
    /// status is 2 if the server goes away, or leaves most requests unanswered or answers them with errors.
    #[arg(long, value_parser = units::seconds, default_value = "5")]
    seconds: Duration,
    /// Seconds of load before the measurement, which do not count.
    #[arg(long, value_parser = units::seconds, default_value = "1")]
    warm_up: Duration,
    /// Seconds within which all connections have to come up.
    #[arg(long, value_parser = units::seconds, default_value = "10")]
    connect_timeout: Duration,
    /// How many records are asked for.
    #[arg(long, default_value_t = WorkloadConfig::default().records)]
    records: u64,
    /// Share of requests that are sets, 0 to 1.
    #[arg(long, default_value_t = WorkloadConfig::default().update_ratio)]
    update: f64,
    /// Do not store the records first, because the server has them.
    #[arg(long)]
    no_preload: bool,
    /// Poll without sleeping: this is exact, and takes a core for each thread.
    #[arg(long)]
    spin: bool,
    /// Begin to measure at this moment, after the warm-up: 2026-11-22T10:00:00Z, seconds since 1970, or +10s from now.
    /// Several generators that are given the same moment measure together, each at its own --load.
    #[arg(long, value_name = "TIME", value_parser = units::moment)]
    start_at: Option<SystemTime>,
    /// Write what was measured as a histogram log, which `lull merge` adds up with those of other generators; with `-`
    /// the log goes to standard output, and the figures are not printed.
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Print a line on standard error when the measured seconds begin.
    #[arg(long)]
    announce: bool,
}

/// Runs the load and prints its figures.
pub fn run(args: LoadArgs, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let pace = match args.load.parse()? {
        Load::Max => Pace::Closed { depth: args.depth },
        Load::Rate { qps } => Pace::Open { qps: qps as f64, arrivals: args.arrivals, depth: args.depth },
        Load::Percent { .. } => {
            return Err(format!(
                "the load {} is a share of a maximum that this command does not measure: use a rate (200K) or MAX",
                args.load
            )
            .into());
        }
    };
    let to_stdout = args.hdr.as_deref() == Some(Path::new("-"));
    if let Some(path) = args.hdr.as_deref().filter(|_| !to_stdout) {
        outputs::writable(path)?;
    }
    let server = resolve(&args.server)?;
    let workload = WorkloadConfig { records: args.records, update_ratio: args.update, ..WorkloadConfig::default() };
    let workload = Arc::new(Workload::new(workload)?);
    let (threads, spin, seed) = (args.threads, args.spin, seed(args.seed, args.start_at.is_some()));
    let config = KernelConfig { threads, spin, seed, ..KernelConfig::new(server, args.connections) };
    let mut client = KernelClient::connect(config, workload, args.connect_timeout)?;
    if !args.no_preload {
        client.preload(stop)?;
    }
    if let Some(at) = args.start_at
        && !wait_until(at, args.warm_up, stop)?
    {
        return Ok(ended(stop, false));
    }
    let over = AtomicBool::new(!args.announce);
    let measured = std::thread::scope(|scope| {
        scope.spawn(|| announce(args.warm_up, &over, stop));
        let measured = client.run_recorded(pace, args.warm_up, args.seconds, stop);
        over.store(true, Relaxed);
        measured
    });
    let (summary, recorder) = measured?;
    if let Some(path) = &args.hdr {
        let now = (SystemTime::now(), client.clock().now_ns());
        let is_open = matches!(pace, Pace::Open { .. });
        let log = LoadLog::new(&[args.server], args.connections, is_open, (&summary, recorder), now);
        if to_stdout {
            // The log has everything that the figures would show, failures as well.
            out!("{}", String::from_utf8_lossy(&log.to_bytes()))?;
            return Ok(ended(stop, false));
        }
        atomic::write(path, &log.to_bytes())?;
    }
    print_summary(&summary)?;
    let is_up = client.established() > 0 || stop.load(Relaxed);
    match failure(&summary, is_up) {
        Some(why) if !stop.load(Relaxed) => Err(why.into()),
        _ => Ok(ended(stop, false)),
    }
}

/// Returns the seed that was asked for. Otherwise it is always the same, except for one of several generators, whose
/// seed differs each time: the generators stand for independent clients, whose requests do not come at the same
/// moments.
fn seed(asked: Option<u64>, one_of_several: bool) -> u64 {
    asked.unwrap_or_else(|| if one_of_several { RandomState::new().hash_one(()) } else { 1 })
}

/// Returns why the figures are not those of a service, or `None` if they are. `is_up`: the server still has
/// connections. A load that is more than the server can do is no failure: requests that were never sent are printed
/// beside those that were answered.
fn failure(s: &Summary, is_up: bool) -> Option<String> {
    let failed = s.errors + s.without_answer();
    let sent = s.received + s.without_answer();
    let counts = format!(
        "of {sent} requests {} were answered by an error, and {} had no answer; {} more were never sent",
        s.errors,
        s.without_answer(),
        s.backlog
    );
    if !is_up {
        return Some(format!(
            "the server went away while it was measured: {counts}; see whether it has ended, and why"
        ));
    }
    let remedy = "check that a memcached listens there";
    (2 * failed > sent).then(|| format!("the server did not do what it was asked for: {counts}; {remedy}"))
}

/// Prints a line when the warm-up is over, unless the run is over before that.
fn announce(warm_up: Duration, over: &AtomicBool, stop: &AtomicBool) {
    let begin = Instant::now() + warm_up;
    while !over.load(Relaxed) && !stop.load(Relaxed) {
        let left = begin.saturating_duration_since(Instant::now());
        if left.is_zero() {
            say!("lull: {ANNOUNCEMENT}");
            return;
        }
        std::thread::sleep(left.min(SLEEP_MAX));
    }
}

/// The longest sleep before the start, and so the longest time until `stop` is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Sleeps until the warm-up before `at` has to begin. Returns false if the command is to stop.
fn wait_until(at: SystemTime, warm_up: Duration, stop: &AtomicBool) -> Result<bool, Failure> {
    let begin = at.checked_sub(warm_up).unwrap_or(SystemTime::UNIX_EPOCH);
    if let Ok(late) = SystemTime::now().duration_since(begin) {
        return Err(format!(
            "cannot begin to measure at the time of --start-at: the warm-up would have begun {:.1} s ago; give a later \
             time (connections and records come before it), or --no-preload",
            late.as_secs_f64()
        )
        .into());
    }
    while let Ok(left) = begin.duration_since(SystemTime::now()) {
        if stop.load(Relaxed) {
            return Ok(false);
        }
        std::thread::sleep(left.min(SLEEP_MAX));
    }
    Ok(true)
}

fn resolve(server: &str) -> Result<SocketAddr, Failure> {
    let unusable = |why: String| format!("cannot use the server '{server}': {why}; give it as HOST:PORT");
    let mut addresses = server.to_socket_addrs().map_err(|error| unusable(error.to_string()))?;
    Ok(addresses.next().ok_or_else(|| unusable("it has no address".to_owned()))?)
}

/// Prints the figures of a run, or of several that were added up.
pub fn print_summary(s: &Summary) -> Result<(), WriteError> {
    let us = |ns: u64| ns as f64 / 1_000.0;
    outln!("queries/s    {:.0}", s.qps)?;
    outln!(
        "latency us   avg {:.1}  p50 {:.1}  p95 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}",
        s.latency_avg_ns / 1_000.0,
        us(s.latency_p50_ns),
        us(s.latency_p95_ns),
        us(s.latency_p99_ns),
        us(s.latency_p999_ns),
        us(s.latency_max_ns)
    )?;
    outln!(
        "answers      {} ({} hits, {} misses, {} stored, {} errors), {} lost, {} unanswered",
        s.received,
        s.hits,
        s.misses,
        s.stored,
        s.errors,
        s.lost,
        s.unanswered
    )?;
    if s.reconnects > 0 {
        outln!("connections  {} were lost and opened again", s.reconnects)?;
    }
    if let Some(unsent) = unsent(s) {
        outln!("never sent   {unsent}")?;
    }
    outln!("generator    {:.0} % busy, lag p99 {:.1} us{}", 100.0 * s.busy_fraction, us(s.lag_p99_ns), fault(s))
}

/// Says how many due requests the latencies leave out, if there are more than can be waiting for their connections at
/// the end.
fn unsent(s: &Summary) -> Option<String> {
    (s.backlog > s.sent / 100)
        .then(|| format!("about {} requests were due and never sent; the latencies leave them out", s.backlog))
}

/// Says what is wrong with the generator's figures.
fn fault(s: &Summary) -> &'static str {
    if s.kept_up {
        ""
    } else if s.busy_fraction > BUSY_SHARE_MAX {
        "; IT COULD NOT KEEP UP: these figures are its own, not the server's"
    } else {
        "; IT SENT LATE, with time to spare: its threads were woken or scheduled late, so the latencies are partly its \
         own; --spin polls without sleeping"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_dies_or_answers_by_errors_ends_the_command_with_a_failure() {
        let of = Summary { sent: 50_000, received: 50_000, hits: 50_000, ..Summary::default() };
        assert_eq!(failure(&of, true), None);
        assert_eq!(failure(&Summary { backlog: 64, lost: 3, ..of.clone() }, true), None, "it served nearly everything");
        assert!(failure(&of, false).unwrap().contains("went away"));
        let frozen = Summary { backlog: 200_000, unanswered: 64, ..of.clone() };
        assert_eq!(failure(&frozen, true), None, "what it did is told, and what was never sent beside it");
        let silent = Summary { unanswered: 50_001, ..of.clone() };
        assert!(failure(&silent, true).unwrap().contains("of 100001 requests"));
        assert!(unsent(&frozen).unwrap().contains("200000 requests were due and never sent"));
        assert_eq!(unsent(&Summary { backlog: 64, ..of.clone() }), None);
        let other_protocol = Summary { errors: 50_000, hits: 0, ..of };
        assert!(failure(&other_protocol, true).unwrap().contains("50000 were answered by an error"));
    }

    #[test]
    fn generators_that_add_up_have_arrivals_of_their_own_and_one_alone_the_same_each_time() {
        assert_ne!(seed(None, true), seed(None, true));
        assert_eq!([seed(None, false), seed(Some(7), true), seed(Some(7), false)], [1, 7, 7]);
    }

    #[test]
    fn a_generator_with_time_to_spare_is_not_said_to_be_too_slow() {
        let summary = |kept_up, busy_fraction| Summary { kept_up, busy_fraction, ..Summary::default() };
        assert_eq!(fault(&summary(true, 0.16)), "");
        assert!(fault(&summary(false, 0.16)).contains("SENT LATE"));
        assert!(fault(&summary(false, 0.99)).contains("COULD NOT KEEP UP"));
    }
}
