//! `lull xsk-rr`: AF_XDP request/response.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{ArgAction, Args};
use lull_lab::bench::check_cores;
use lull_lab::cell::Enforcement;
use lull_lab::xsk_rr::table::{self, TableConfig, Where};
use lull_lab::xsk_rr::user::{self, Shown, Wire};
use lull_lab::xsk_rr::{Here, Outcome, Percentiles, Placement, Polling, Report, Settings, kernel};
use lull_nic::Device;
use lull_nic::tap::{Tap, TapConfig};

use crate::failure::Failure;
use crate::measure_args::ended;
use crate::output::{WriteError, outln};
use crate::{units, xdp};

/// Arguments of `lull xsk-rr`.
///
/// A client sends small frames and a server sends them back, on sockets for whole frames, as the tool xsk_rr does that
/// was posted with Linux's threaded busy polling; the options have its letters. Answers are matched to requests by
/// numbers. Latency is measured from the actual send, as published, and from the time when the request should have been
/// sent.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct XskRrArgs {
    /// What the frames go over. With both ends in this process: mem (in memory), taps (two TAPs and the kernel's bridge
    /// between them) or veth (AF_XDP sockets of the kernel on a veth pair of its own; root). With one end here:
    /// tap:NAME, or xdp:DEV:QUEUE, all of whose frames AF_XDP takes.
    #[arg(long, default_value = "mem")]
    nic: String,
    /// Who polls: interrupts, inline, separate, threaded, threaded-busy or group.
    #[arg(long, default_value = "interrupts")]
    mode: Polling,
    /// Run the letter's table, five rates and delays in every mode, and print the published cells beside it.
    #[arg(long, conflicts_with_all = ["mode", "serve", "server_mac", "period", "outstanding", "delay", "send_thread",
        "receive_thread", "no_receive_call", "verify", "report", "zero_copy"])]
    table: bool,
    /// With one end: be the server, until SIGINT.
    #[arg(long, short = 'h')]
    serve: bool,
    /// With one end: the Ethernet address of the server; by default frames go to all stations.
    #[arg(long, value_name = "MAC", value_parser = mac)]
    server_mac: Option<[u8; 6]>,
    /// Send a request at this period, whatever comes back: nanoseconds, or a time with its unit, such as 83us. Without
    /// it a closed loop keeps --outstanding requests under way.
    #[arg(long, short = 'P', value_name = "TIME", value_parser = nanoseconds)]
    period: Option<u64>,
    /// Requests that a closed loop keeps outstanding.
    #[arg(long, short = 'o', default_value_t = 1)]
    outstanding: usize,
    /// After an answer the client does not look at its ring for this time: nanoseconds, or a time with its unit.
    #[arg(long, short = 'd', value_name = "TIME", value_parser = nanoseconds, default_value = "0")]
    delay: u64,
    /// Payload of a request, in bytes; it begins with a mark and a number.
    #[arg(long, short = 'B', default_value_t = 64)]
    payload: usize,
    /// Send from a separate thread.
    #[arg(long, short = 'T')]
    send_thread: bool,
    /// Make receive calls in a thread that does nothing else (the mode separate does so without this option).
    #[arg(long, short = 't')]
    receive_thread: bool,
    /// Make no receive calls at all (threaded, threaded-busy and group make none without this option).
    #[arg(long, short = 'n')]
    no_receive_call: bool,
    /// Compare every byte of the answers.
    #[arg(long, short = 'v')]
    verify: bool,
    /// Report latencies at this interval, in seconds.
    #[arg(long, short = 'l', value_name = "SECONDS", value_parser = units::seconds)]
    report: Option<Duration>,
    /// Seconds measured for each cell. A signal ends them earlier, with what was measured until then and exit status
    /// 130.
    #[arg(long, value_parser = units::seconds, default_value = "2")]
    seconds: Duration,
    /// The machine's cores to use, such as 0,2-5; by default all. They are given to the client, the server, the sending
    /// thread, the pollers (client, server) and the interrupts, in this order. An end that another program is takes
    /// none.
    #[arg(long, value_parser = units::List::parse)]
    cores: Option<units::List>,
    /// Run also with too few cores: threads that spin then share one, and the scheduler determines the figures.
    #[arg(long)]
    oversubscribe: bool,
    /// Do not ask for SCHED_FIFO for lull's interrupt threads. An interrupt thread that shares the core of a thread that spins
    /// otherwise waits for its turn.
    #[arg(long)]
    no_realtime: bool,
    /// With xdp:DEV, let the driver read and write the frames' memory itself, if it can; the posted tool copies.
    #[arg(long)]
    zero_copy: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// What `--nic` names.
enum Nic {
    Both(Where),
    Tap(String),
    Xdp(String, u32),
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("'{text}' is no Ethernet address such as 02:00:00:00:0a:02"))
}

/// Reads a time; a number without a unit is nanoseconds, as in the posted tool.
fn nanoseconds(text: &str) -> Result<u64, String> {
    text.parse().or_else(|_| lull_units::time_ns(text))
}

fn nic(args: &XskRrArgs) -> Result<Nic, Failure> {
    let nic = match (args.nic.as_str(), args.nic.split_once(':')) {
        ("mem", _) => Nic::Both(Where::User(Wire::Mem)),
        ("taps", _) => Nic::Both(Where::User(Wire::Taps)),
        ("veth", _) => Nic::Both(Where::Veth),
        (_, Some(("tap", name))) if !name.is_empty() => Nic::Tap(name.to_owned()),
        (_, Some(("xdp", spec))) => match &xdp::named(spec)? {
            (name, queues) if queues.len() <= 1 => Nic::Xdp(name.clone(), queues.first().copied().unwrap_or(0)),
            _ => return Err(format!("cannot use {}: a socket has one queue; name one", args.nic).into()),
        },
        (other, _) => {
            return Err(format!("unknown NIC '{other}': use mem, taps, veth, tap:NAME or xdp:DEV[:QUEUE]").into());
        }
    };
    let both = matches!(nic, Nic::Both(_));
    let is_xdp = matches!(nic, Nic::Xdp(..));
    let is_lulls = matches!(nic, Nic::Both(Where::User(_)) | Nic::Tap(_));
    for (option, given, needs, has) in [
        ("--serve", args.serve, "one end (tap:NAME or xdp:DEV)", !both),
        ("--server-mac", args.server_mac.is_some(), "one end (tap:NAME or xdp:DEV)", !both),
        ("--zero-copy", args.zero_copy, "xdp:DEV", is_xdp),
        ("--table", args.table, "both ends (mem, taps or veth)", both),
        ("--no-realtime", args.no_realtime, "lull's own interrupt threads (mem, taps or tap:NAME)", is_lulls),
    ] {
        if given && !has {
            return Err(format!("{option} takes {needs}, and --nic is {}", args.nic).into());
        }
    }
    Ok(nic)
}

fn settings(args: &XskRrArgs) -> Settings {
    let by_mode = Settings::new(args.mode);
    Settings {
        period_ns: args.period,
        outstanding: args.outstanding,
        delay_ns: args.delay,
        payload_bytes: args.payload,
        send_thread: args.send_thread,
        receive_thread: args.receive_thread || by_mode.receive_thread,
        no_receive_call: args.no_receive_call || (by_mode.no_receive_call && !args.receive_thread),
        verify: args.verify,
        report: args.report,
        window: args.seconds,
        ..by_mode
    }
}

/// Runs the benchmark and prints what it measured.
pub fn run(args: &XskRrArgs, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let nic = nic(args)?;
    let cores = match &args.cores {
        Some(cores) => check_cores(&cores.0)?.to_vec(),
        None => lull_host::usable_cores(),
    };
    if let (true, Nic::Both(place)) = (args.table, &nic) {
        return print_table(args, *place, cores, stop);
    }
    let settings = settings(args);
    settings.check()?;
    if matches!(nic, Nic::Xdp(..))
        && let Some(reason) = kernel::refusal(&settings)
    {
        return Err(format!("cannot poll by {}: {reason}", args.mode.name()).into());
    }
    let here = match (&nic, args.serve) {
        (Nic::Both(_), _) => Here::Both,
        (_, true) => Here::Server,
        (_, false) => Here::Client,
    };
    let placement = Placement::new(&settings, here, &cores, args.oversubscribe)
        .map_err(|lacking| format!("{lacking}; --oversubscribe runs it nevertheless"))?;
    let json = args.json;
    let mut unwritten = None;
    let mut report = |report: Report| {
        if !json && let Err(error) = print_report(&report) {
            unwritten.get_or_insert(error);
        }
    };
    let (shown, words) = one_run(args, &nic, &settings, &placement, stop, &mut report)?;
    if let Some(error) = unwritten {
        return Err(error.into());
    }
    // A server has nothing to show: it goes on until it is told to end.
    let Some(shown) = shown else { return Ok(ExitCode::SUCCESS) };
    let code = ended(stop, false);
    if json {
        let state = table::State::from(shown.verdict);
        outln!(
            "{}",
            serde_json::json!({ "mode": args.mode.name(), "device": words, "state": state, "outcome": shown.outcome })
        )?;
        return Ok(code);
    }
    print_run(args, &settings, &placement, &shown, words.as_deref())?;
    Ok(code)
}

type Ran = (Option<Shown>, Option<String>);

fn one_run(
    args: &XskRrArgs,
    nic: &Nic,
    settings: &Settings,
    placement: &Placement,
    stop: &Arc<AtomicBool>,
    report: &mut (dyn FnMut(Report) + Send),
) -> Result<Ran, Failure> {
    const EVERYBODY: [u8; 6] = [0xff; 6];
    let server_mac = (!args.serve).then(|| args.server_mac.unwrap_or(EVERYBODY));
    Ok(match nic {
        Nic::Both(Where::User(wire)) => {
            (Some(user::both(*wire, settings, placement, !args.no_realtime, stop, report)?), None)
        }
        Nic::Both(Where::Veth) => {
            let (shown, words) = kernel::veth(settings, placement, stop, report)?;
            (Some(shown), Some(words))
        }
        Nic::Tap(name) => {
            let tap: Arc<dyn Device> = Arc::new(Tap::open(TapConfig { name: name.clone(), ..TapConfig::default() })?);
            let realtime = !args.no_realtime;
            (user::one(tap, server_mac, settings, (placement, realtime), stop, report)?, None)
        }
        Nic::Xdp(name, queue) => {
            let device = (name.as_str(), *queue, args.zero_copy);
            let (shown, words) = kernel::one(device, server_mac, settings, placement, stop, report)?;
            (shown, Some(words))
        }
    })
}

fn print_table(args: &XskRrArgs, place: Where, cores: Vec<usize>, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let config = TableConfig {
        place,
        cores,
        oversubscribe: args.oversubscribe,
        realtime: !args.no_realtime,
        payload_bytes: args.payload,
        window: args.seconds,
    };
    settings(args).check()?;
    if !args.json {
        let send = if config.send_thread() { "a sending thread of its own" } else { "sending by the client's thread" };
        outln!("xsk_rr over {}, {} cores, {send}; latency from the actual send", args.nic, config.cores.len())?;
        outln!("{}", table::heading())?;
    }
    let mut unwritten = None;
    let rows = table::run(&config, stop, &mut |row| {
        if !args.json
            && let Err(error) = outln!("{}", table::line(row)).and_then(|()| crate::output::flush())
        {
            unwritten.get_or_insert(error);
        }
    })?;
    if let Some(error) = unwritten {
        return Err(error.into());
    }
    // The rows that were not reached are missing.
    let interrupted = stop.load(Ordering::Relaxed);
    let code = ended(stop, false);
    if args.json {
        outln!("{}", serde_json::json!({ "nic": args.nic, "interrupted": interrupted, "rows": rows }))?;
        return Ok(code);
    }
    if interrupted {
        outln!("INTERRUPTED: the table ends here, and a cell that was being measured is left out")?;
    }
    if let Some(row) = table::with_published_receive_calls(&rows) {
        outln!(
            "inline at 32000/s with a delay of 30 us, {}",
            table::receive_calls(&row.receive_calls, true).trim_end()
        )?;
    }
    outln!(
        "The published column is of two machines with 100 Gbit/s between them; the order within a row is what compares. \
         threaded, group and the two pairs were not published."
    )?;
    Ok(code)
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1_000.0
}

fn print_report(report: &Report) -> Result<(), WriteError> {
    let Some(Percentiles { p5, p50, p95, p99, .. }) = report.from_send_ns else {
        outln!("0 answers")?;
        return crate::output::flush();
    };
    outln!(
        "{} answers, p5 {:.1}  p50 {:.1}  p95 {:.1}  p99 {:.1} us",
        report.answered,
        us(p5),
        us(p50),
        us(p95),
        us(p99)
    )?;
    crate::output::flush()
}

fn print_run(
    args: &XskRrArgs,
    settings: &Settings,
    placement: &Placement,
    shown: &Shown,
    words: Option<&str>,
) -> Result<(), WriteError> {
    let Outcome { sent, answered, lost, under_way, unsent, corrupt, unexpected, foreign, seconds, .. } = &shown.outcome;
    let on = words.map_or_else(|| args.nic.clone(), |words| format!("{}, {words}", args.nic));
    outln!("{} over {on}: {}", args.mode.name(), table::State::from(shown.verdict.clone()))?;
    // A run that was stopped before its window has no rate.
    let rate = if *answered > 0 { *answered as f64 / seconds } else { 0.0 };
    outln!("requests         {sent} sent, {answered} answered, {lost} lost, {unsent} never sent, {rate:.0} answers/s")?;
    if *under_way > 0 {
        outln!("stopped          {under_way} requests were under way when it was stopped")?;
    }
    if settings.verify || corrupt + unexpected + foreign > 0 {
        outln!("frames           {corrupt} corrupt, {unexpected} unexpected, {foreign} of others")?;
    }
    for (what, of) in [("from send", shown.outcome.from_send_ns), ("from intended", shown.outcome.from_intended_ns)] {
        let Some(Percentiles { p5, p50, p95, p99, max }) = of else {
            outln!("{what:<13} us - (nothing was answered)")?;
            continue;
        };
        outln!(
            "{what:<13} us p5 {:.1}  p50 {:.1}  p95 {:.1}  p99 {:.1}  max {:.1}",
            us(p5),
            us(p50),
            us(p95),
            us(p99),
            us(max)
        )?;
    }
    if shown.outcome.receive_calls.calls() > 0 {
        outln!("{}", table::receive_calls(&shown.outcome.receive_calls, false).trim_end())?;
    }
    if let Some(note) = placement.note() {
        outln!("{note}")?;
    }
    if let Some(why) = &shown.realtime_refused {
        outln!("interrupt threads are ordinary threads, because SCHED_FIFO was refused: {why}")?;
    }
    if matches!(shown.verdict, Enforcement::NotInForce { .. }) {
        outln!("The figures are not those of {}.", args.mode.name())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_numbers_are_nanoseconds() {
        assert_eq!(nanoseconds("83333"), Ok(83_333));
        assert_eq!(nanoseconds("83us"), Ok(83_000));
        assert!(nanoseconds("x").is_err());
    }

    #[test]
    fn ethernet_addresses() {
        assert_eq!(mac("02:00:00:00:0a:ff"), Ok([2, 0, 0, 0, 10, 255]));
        for bad in ["", "02:00:00:00:0a", "02:00:00:00:0a:02:01", "zz:00:00:00:0a:02", "020000000a02"] {
            assert!(mac(bad).is_err(), "{bad}");
        }
    }
}
