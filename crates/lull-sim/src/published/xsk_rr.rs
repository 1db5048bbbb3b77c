//! The published AF_XDP request/response latencies ("Add support to do threaded napi busy poll", net-next v4) as
//! worlds: five rates and application delays by four polling modes. The letter's version 8 has the same rows, measured again
//! ([`REPEATED_CSV`]): nothing here was fitted to them.
//!
//! A client and a server whose sockets are bound with XDP_COPY, as the posted tool binds them: a send call hands a copy of the
//! frame to the device on its own CPU, after a round of busy polling if the socket busy polls (`__xsk_sendmsg`). On the
//! client a thread sends at a fixed rate whatever comes back, and another takes the answers and is busy for the
//! application's delay after each; the server answers inline. The interrupt has a core of its own. The modes, on both sides:
//!
//! - *interrupts*: what arrives interrupts that core, unless the interrupt is still deferred since the frame before; the
//!   receiving thread's calls find nothing to poll;
//! - *inline*: the receiving thread's non-blocking calls poll, one round each, and so does each send call;
//! - *separate core*: the same calls by a thread that does nothing else; the receiving thread looks at its ring;
//! - *threaded*: a busy-polling NAPI thread; the receiving thread looks at its ring.
//!
//! The sockets that busy poll prefer it, and their interrupts are deferred (the settings of the mode `busyread`).
//! Calibration sees six of the twenty p50: the four of 12 K/s without delay, and interrupts and inline at 12 K/s with
//! 78 us. All else is predicted, with two exceptions: the deferral of the mode *interrupts* was found with all of its rows in
//! view, and so was what a send call costs where nobody polls all the time.
//!
//! **What the tool calls percentiles.** Its `print_percentile` prints the mean of the lowest share of the latencies, in whole
//! buckets of 100 ns that are rounded down at each step, and each call cuts off the bucket in which its share ends for the calls
//! after it. So it shows where a distribution begins, and little of where it ends: [`printed`] does the same to what is simulated.

use hdrhistogram::Histogram;
use lull_core::{Mode, NapiSettings, Threaded};

use crate::costs::Costs;
use crate::engine::metrics::Outcome;
use crate::fit::Fit;
use crate::params::Params;
use crate::published::rows::{Row, fit_rows, within};
use crate::published::statements::Statement;
use crate::world::{NetSpec, PeerKind, PeerSpec, QueueSpec, Receive, SocketSpec, Transmit, World};
use crate::{RunError, Sim};

/// The published table.
pub const CSV: &str = include_str!("../../data/threaded_busy_poll_xsk_rr.csv");
/// The same rows in the letter's version 8 of 2025-08-29.
pub const REPEATED_CSV: &str = include_str!("../../data/threaded_busy_poll_xsk_rr_v8.csv");
/// The parameters.
pub const PARAMS_TOML: &str = include_str!("../../data/xsk_rr.toml");

/// The parameters and their units.
pub const KNOWN: [(&str, &str); 16] = [
    ("irq_ns", "ns"),
    ("timer_irq_ns", "ns"),
    ("softirq_ns", "ns"),
    ("poll_ns", "ns"),
    ("rx_ns", "ns"),
    ("tx_frame_ns", "ns"),
    ("tx_done_ns", "ns"),
    ("busy_call_ns", "ns"),
    ("busy_round_ns", "ns"),
    ("recv_call_ns", "ns"),
    ("recv_take_ns", "ns"),
    ("send_ns", "ns"),
    ("cold_busy_ns", "ns"),
    ("wire_ns", "ns"),
    ("deferral_ns", "ns"),
    ("deferral_polls", "polls"),
];
/// The parameters that the fit may change. The others are round figures, which the six values could not separate from
/// these.
const FITTED: [&str; 4] = ["irq_ns", "recv_call_ns", "cold_busy_ns", "wire_ns"];

/// A look at a ring, in nanoseconds.
const SPIN_NS: u32 = 50;

/// Rates in packets per second, and application delays in microseconds.
pub const POINTS: [(u32, u64); 5] = [(12_000, 0), (125_000, 6), (25_000, 38), (32_000, 30), (12_000, 78)];
/// Published percentiles.
const PERCENTILES: [u32; 4] = [5, 50, 95, 99];
/// The tool's buckets: how many there are, and how wide each is. The last has all longer latencies.
const BUCKETS: usize = 20_000;
const BUCKET_NS: u64 = 100;

/// A polling mode, in the order of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// By interrupts.
    Interrupts,
    /// By the application's own calls.
    Inline,
    /// By calls of a thread on a core of its own.
    SeparateCore,
    /// By a busy-polling NAPI thread on a core of its own.
    Threaded,
}

/// All modes, in the order of the table's columns.
pub const MODES: [Polling; 4] = [Polling::Interrupts, Polling::Inline, Polling::SeparateCore, Polling::Threaded];

impl Polling {
    fn name(self) -> &'static str {
        match self {
            Polling::Interrupts => "interrupts",
            Polling::Inline => "inline",
            Polling::SeparateCore => "separate core",
            Polling::Threaded => "threaded",
        }
    }
}

fn is_fitted(point: (u32, u64), mode: Polling, percentile: u32) -> bool {
    let inline_or_irq = matches!(mode, Polling::Interrupts | Polling::Inline);
    percentile == 50 && (point == (12_000, 0) || (point == (12_000, 78) && inline_or_irq))
}

/// Returns a value of a table, which has one for each point, mode and percentile.
fn value(table: &str, point: (u32, u64), mode: Polling, percentile: u32) -> f64 {
    let prefix = format!("{},{},{percentile},", point.0, point.1);
    let value =
        table.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').nth(mode as usize)?.trim().parse().ok());
    value.unwrap_or(f64::NAN)
}

/// Returns what the tool prints for these latencies for 5, 50, 95 and 99 %, in nanoseconds (`print_percentile` of the
/// posted tool).
pub fn printed(latency_ns: &Histogram<u64>) -> [u64; 4] {
    let mut buckets = vec![0_u64; BUCKETS];
    for recorded in latency_ns.iter_recorded() {
        let bucket =
            usize::try_from(recorded.value_iterated_to() / BUCKET_NS).map_or(BUCKETS - 1, |at| at.min(BUCKETS - 1));
        buckets[bucket] += recorded.count_at_value();
    }
    PERCENTILES.map(|percentile| {
        let share = buckets.iter().sum::<u64>() * u64::from(percentile) / 100;
        let (mut mean, mut count) = (0, 0);
        for (at, bucket) in (0..).zip(&mut buckets) {
            if count == share {
                break;
            }
            *bucket = (*bucket).min(share - count);
            mean = (*bucket * at + count * mean).checked_div(count + *bucket).unwrap_or(mean);
            count += *bucket;
        }
        mean * BUCKET_NS
    })
}

// The CPUs of a world: two for the client's application, and one each for the client's poller, the server's application
// and the server's poller.
const RECEIVER: u16 = 0;
const SENDER: u16 = 1;
const CLIENT_POLLER: u16 = 2;
const SERVER: u16 = 3;
const SERVER_POLLER: u16 = 4;
// The letter's script pins the interrupt to another core than the program.
const CLIENT_IRQ: u16 = 5;
const SERVER_IRQ: u16 = 6;

/// Makes the world of one rate (packets per second) and delay (microseconds) under one mode.
pub fn world(params: &Params, (per_s, delay_us): (u32, u64), mode: Polling, window_ns: u64) -> World {
    let busy_read = match "busyread".parse::<Mode>() {
        Ok(mode) => mode,
        Err(_) => unreachable!("a mode of the core"),
    };
    let calls = matches!(mode, Polling::Inline | Polling::SeparateCore);
    let napi = match mode {
        Polling::Interrupts => NapiSettings {
            defer_hard_irqs: params.whole("deferral_polls"),
            gro_flush_timeout_ns: u64::from(params.whole("deferral_ns")),
            ..NapiSettings::default()
        },
        Polling::Inline | Polling::SeparateCore => busy_read.napi,
        Polling::Threaded => NapiSettings { threaded: Threaded::BusyPoll, ..NapiSettings::default() },
    };
    let queue = |cpu: u16, thread_cpu: u16| QueueSpec { napi, thread_cpu, ..QueueSpec::new(cpu) };
    let socket = |own: u32, peer: u32| SocketSpec {
        queue: own,
        tx_queue: own,
        peer,
        transmit: Transmit::Copy,
        wire_ns: params.whole("wire_ns"),
        busy_poll_usecs: if calls { busy_read.socket_busy_poll_usecs } else { 0 },
        prefer_busy_poll: calls,
        busy_poll_budget: 64,
    };
    // With interrupts the program calls recvfrom as well, and that finds nothing to do.
    let receive = if matches!(mode, Polling::Interrupts | Polling::Inline) { Receive::Call } else { Receive::Spin };
    let peer = |cpu: u16, socket: u32, kind: PeerKind, receive: Receive| PeerSpec { cpu, socket, kind, receive };
    let mut peers = vec![
        peer(RECEIVER, 0, PeerKind::Taker { delay_ns: delay_us * 1_000 }, receive),
        peer(SENDER, 0, PeerKind::Pacer { period_ns: 1_000_000_000 / u64::from(per_s) }, Receive::Spin),
        peer(SERVER, 1, PeerKind::Responder, receive),
    ];
    if mode == Polling::SeparateCore {
        peers.push(peer(CLIENT_POLLER, 0, PeerKind::Poller, Receive::Call));
        peers.push(peer(SERVER_POLLER, 1, PeerKind::Poller, Receive::Call));
    }
    World {
        cpus: vec![true; 7],
        // The interrupt's core does nothing else, so the way out of idle is part of irq_ns.
        costs: Costs { idle_shallow_exit_ns: 0, idle_deep_exit_ns: 0, ..costs(params) },
        queues: vec![queue(CLIENT_IRQ, CLIENT_POLLER), queue(SERVER_IRQ, SERVER_POLLER)],
        sockets: vec![socket(0, 1), socket(1, 0)],
        peers,
        net: NetSpec { tx_done_ns: params.whole("wire_ns") / 2, ..NetSpec::default() },
        warmup_ns: 2_000_000,
        window_ns,
        ..World::default()
    }
}

/// The costs of both machines.
pub(crate) fn costs(params: &Params) -> Costs {
    Costs {
        irq_ns: params.whole("irq_ns"),
        timer_irq_ns: params.whole("timer_irq_ns"),
        softirq_ns: params.whole("softirq_ns"),
        poll_ns: params.whole("poll_ns"),
        rx_request_ns: params.whole("rx_ns"),
        tx_frame_ns: params.whole("tx_frame_ns"),
        tx_done_ns: params.whole("tx_done_ns"),
        busy_call_ns: params.whole("busy_call_ns"),
        busy_round_ns: params.whole("busy_round_ns"),
        recv_call_ns: params.whole("recv_call_ns"),
        recv_take_ns: params.whole("recv_take_ns"),
        send_ns: params.whole("send_ns"),
        cold_busy_ns: params.whole("cold_busy_ns"),
        spin_ns: SPIN_NS,
        ..Costs::default()
    }
}

fn row_name(point: (u32, u64), mode: Polling, percentile: u32) -> String {
    format!("{}/s, delay {} us, {}, p{percentile}", point.0, point.1, mode.name())
}

fn rows_of(point: (u32, u64), mode: Polling, out: &Outcome) -> impl Iterator<Item = Row> {
    let row = move |percentile: u32, simulated: f64| Row {
        name: row_name(point, mode, percentile),
        fitted: is_fitted(point, mode, percentile),
        published: value(CSV, point, mode, percentile),
        simulated,
    };
    let values = printed(&out.latency_ns);
    PERCENTILES.into_iter().zip(values).map(move |(percentile, value)| row(percentile, value as f64))
}

/// Returns the figures of the letter's version 8 in place of the simulated ones, beside those of version 4, in the
/// order of [`simulate`]: by point, then mode, then percentile. They show how well the measurement agrees with itself.
pub fn repeated() -> Vec<Row> {
    let cells = POINTS.into_iter().flat_map(|point| MODES.map(|mode| (point, mode)));
    let rows = cells.flat_map(|(point, mode)| {
        PERCENTILES.map(|percentile| Row {
            name: row_name(point, mode, percentile),
            fitted: false,
            published: value(CSV, point, mode, percentile),
            simulated: value(REPEATED_CSV, point, mode, percentile),
        })
    });
    rows.collect()
}

/// Simulates the eighty values, in nanoseconds: by point, then mode, then percentile.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn simulate(params: &Params, window_ns: u64, seed: u64) -> Result<Vec<Row>, RunError> {
    let mut rows = Vec::new();
    for point in POINTS {
        for mode in MODES {
            let out = Sim::new(&world(params, point, mode, window_ns), seed).run()?;
            rows.extend(rows_of(point, mode, &out));
        }
    }
    Ok(rows)
}

/// Fits the parameters to the six p50 that calibration may see.
///
/// # Errors
///
/// This fails if a world hit its bound at the start.
pub fn fit(start: &Params, evaluations: usize, seed: u64, progress: impl FnMut(usize, f64)) -> Result<Fit, RunError> {
    let simulate = |params: &Params| {
        let mut rows = Vec::new();
        for point in POINTS {
            for mode in MODES {
                if is_fitted(point, mode, 50) {
                    let out = Sim::new(&world(params, point, mode, FIT_WINDOW_NS), seed).run()?;
                    rows.extend(rows_of(point, mode, &out));
                }
            }
        }
        Ok(rows)
    };
    fit_rows(start, &FITTED, evaluations, seed, simulate, progress)
}

/// How long `lull sim published` simulates each world, in nanoseconds.
pub const WINDOW_NS: u64 = 100_000_000;
const FIT_WINDOW_NS: u64 = 10_000_000;

/// Checks the statements about the published table on the simulated one (in the order of [`simulate`]). A difference
/// may be off by 0.3 us, three times the table's resolution.
pub fn statements(rows: &[Row]) -> Vec<Statement> {
    let us = |point: usize, mode: Polling, percentile: usize| {
        let index = (point * MODES.len() + mode as usize) * PERCENTILES.len() + percentile;
        rows.get(index).map_or(f64::NAN, |row| row.simulated / 1_000.0)
    };
    let p50 = |point: usize, mode: Polling| us(point, mode, 1);
    let spread = |mode: Polling| {
        let values = (0..POINTS.len()).map(|point| p50(point, mode));
        values.clone().fold(f64::MIN, f64::max) - values.fold(f64::MAX, f64::min)
    };
    let [mut lowest, mut separate, mut inline, mut interrupts] = [const { Vec::new() }; 4];
    for point in 0..POINTS.len() {
        let threaded = p50(point, Polling::Threaded);
        let next = MODES[..3].iter().map(|&mode| p50(point, mode)).fold(f64::MAX, f64::min);
        within(&mut lowest, &format!("threaded at row {}", point + 1), threaded, 0.0, next);
        let width = us(point, Polling::Threaded, 3) - us(point, Polling::Threaded, 0);
        within(&mut lowest, &format!("threaded p99 - p5 at row {}", point + 1), width, 0.0, 0.3);
        if point > 0 {
            let added = p50(point, Polling::Inline) - p50(0, Polling::Inline);
            within(&mut inline, &format!("inline added at row {}", point + 1), added, 3.2 - 0.3, 3.7 + 0.3);
        }
    }
    within(&mut lowest, "threaded p50 spread", spread(Polling::Threaded), 0.0, 0.3);
    within(&mut separate, "separate-core p50 spread", spread(Polling::SeparateCore), 0.9 - 0.3, 0.9 + 0.3);
    for (point, added) in [(2, 8.6), (3, 6.8), (4, -0.1)] {
        let (rate, delay) = POINTS[point];
        let value = p50(point, Polling::Interrupts) - p50(0, Polling::Interrupts);
        within(&mut interrupts, &format!("added at {rate}/s, {delay} us"), value, added - 0.3, added + 0.3);
    }
    let statement =
        |number: u32, says: &'static str, broken: Vec<String>| Statement { number, says, broken, near: Vec::new() };
    vec![
        statement(1, "threaded busy polling is lowest in every row, p50 spread and p99 - p5 at most 0.3 us", lowest),
        statement(2, "a separate core polling from user space spreads 0.9 us (0.3 us allowed)", separate),
        statement(3, "inline polling costs 3.2 to 3.7 us (0.3 us allowed) once there is an application delay", inline),
        statement(
            4,
            "interrupts +8.6 us at 25K/38 us, +6.8 at 32K/30 us, -0.1 at 12K/78 us (0.3 us allowed)",
            interrupts,
        ),
    ]
}
