//! The published TCP_RR figures (E. Dumazet, netdev 2.1) as a world: one connection, one transaction at a time,
//! interrupts against busy polling of the receiving socket.
//!
//! There are two hosts of one CPU each. A host has two queues, because mlx4 has a NAPI and a moderation period for its
//! transmit completions apart from those of its receive queues. Both share one interrupt vector
//! (`mlx4_en_activate_cq`), whose handler takes what both have reported (`mlx4_eq_int`). Both hosts coalesce
//! interrupts. Calibration sees one row of four (interrupts, rx-usecs 1) and fits one parameter, the wire. The costs of
//! delivery come from an early fit of the IRQ suspension machine, which is another table; calls have round figures.
//!
//! The core's busy polling is that of today's kernels. The published row of Linux 3.11, whose drivers had a busy-poll
//! method of their own under a lock, and the row of 4.11 are both compared with it.

use lull_core::{NapiSettings, Sysctl};

use crate::costs::Costs;
use crate::engine::dim::Moderation;
use crate::engine::metrics::Outcome;
use crate::fit::Fit;
use crate::params::Params;
use crate::published::rows::{Row, fit_rows, within};
use crate::published::statements::Statement;
use crate::world::{
    ModerationSpec, NetSpec, PeerKind, PeerSpec, Period, QueueSpec, Receive, SocketSpec, Transmit, World,
};
use crate::{RunError, Sim};

/// The published table.
pub const CSV: &str = include_str!("../../data/busy_polling_tcp_rr.csv");
/// The parameters.
pub const PARAMS_TOML: &str = include_str!("../../data/tcp_rr.toml");

/// The parameters and their units.
pub const KNOWN: [(&str, &str); 15] = [
    ("irq_ns", "ns"),
    ("softirq_ns", "ns"),
    ("poll_ns", "ns"),
    ("rx_ns", "ns"),
    ("tx_done_ns", "ns"),
    ("wake_ns", "ns"),
    ("switch_ns", "ns"),
    ("idle_exit_ns", "ns"),
    ("busy_call_ns", "ns"),
    ("busy_round_ns", "ns"),
    ("recv_call_ns", "ns"),
    ("recv_take_ns", "ns"),
    ("recv_sleep_ns", "ns"),
    ("send_ns", "ns"),
    ("wire_ns", "ns"),
];
/// The parameters that the fit may change.
const FITTED: [&str; 1] = ["wire_ns"];

/// One of the published configurations.
#[derive(Clone, Copy, Debug)]
struct Config {
    /// Its name in the table.
    row: &'static str,
    /// SO_BUSY_POLL (by `net.core.busy_read`), in microseconds.
    busy_usecs: u32,
    /// Receive coalescing.
    rx: Moderation,
    fitted: bool,
}

/// mlx4's defaults.
const RX_DEFAULT: Moderation = Moderation { usecs: 16, frames: 44 };
const TX_DEFAULT: Moderation = Moderation { usecs: 16, frames: 16 };
/// The usual advice for `net.core.busy_read`.
const BUSY_USECS: u32 = 50;
/// How long a row is simulated.
const WINDOW_NS: u64 = 200_000_000;

const CONFIGS: [Config; 4] = [
    Config { row: "mlx4 10G, interrupts, rx-usecs 16 rx-frames 44", busy_usecs: 0, rx: RX_DEFAULT, fitted: false },
    Config {
        row: "mlx4 10G, interrupts, rx-usecs 1 rx-frames 1",
        busy_usecs: 0,
        rx: Moderation { usecs: 1, frames: 1 },
        fitted: true,
    },
    Config { row: "mlx4 10G, busy polling, linux-3.11", busy_usecs: BUSY_USECS, rx: RX_DEFAULT, fitted: false },
    Config { row: "mlx4 10G, busy polling, linux-4.11", busy_usecs: BUSY_USECS, rx: RX_DEFAULT, fitted: false },
];

fn published(row: &str) -> f64 {
    let value = CSV.lines().find_map(|line| line.strip_prefix(&format!("\"{row}\","))?.trim().parse().ok());
    value.unwrap_or(f64::NAN)
}

/// Makes one pair of hosts: `busy_usecs` of SO_BUSY_POLL (0 means interrupts), and coalescing of receive and transmit
/// completions.
pub fn world(params: &Params, busy_usecs: u32, rx: ModerationSpec, tx: ModerationSpec) -> World {
    let queue = |cpu: u16, rx: ModerationSpec, tx: ModerationSpec| QueueSpec {
        napi: NapiSettings::default(),
        rx,
        tx,
        rx_period: Period::First,
        tx_period: Period::First,
        vector: Some(u32::from(cpu)),
        ..QueueSpec::new(cpu)
    };
    let socket = |own: u32, peer: u32| SocketSpec {
        queue: 2 * own,
        tx_queue: 2 * own + 1,
        peer,
        transmit: Transmit::Doorbell,
        wire_ns: params.whole("wire_ns"),
        busy_poll_usecs: busy_usecs,
        prefer_busy_poll: false,
        busy_poll_budget: 0,
    };
    let peer = |own: u16, kind: PeerKind| PeerSpec { cpu: own, socket: u32::from(own), kind, receive: Receive::Block };
    let off = ModerationSpec::Off;
    World {
        cpus: vec![true; 2],
        costs: costs(params),
        sysctl: Sysctl { busy_read_usecs: busy_usecs, ..Sysctl::default() },
        queues: vec![queue(0, rx, off), queue(0, off, tx), queue(1, rx, off), queue(1, off, tx)],
        sockets: vec![socket(0, 1), socket(1, 0)],
        peers: vec![peer(0, PeerKind::Requester), peer(1, PeerKind::Responder)],
        net: NetSpec { tx_done_ns: params.whole("wire_ns") / 2, ..NetSpec::default() },
        warmup_ns: 5_000_000,
        window_ns: WINDOW_NS,
        ..World::default()
    }
}

fn costs(params: &Params) -> Costs {
    Costs {
        irq_ns: params.whole("irq_ns"),
        softirq_ns: params.whole("softirq_ns"),
        poll_ns: params.whole("poll_ns"),
        rx_request_ns: params.whole("rx_ns"),
        tx_done_ns: params.whole("tx_done_ns"),
        wake_ns: params.whole("wake_ns"),
        switch_ns: params.whole("switch_ns"),
        idle_shallow_exit_ns: params.whole("idle_exit_ns"),
        busy_call_ns: params.whole("busy_call_ns"),
        busy_round_ns: params.whole("busy_round_ns"),
        recv_call_ns: params.whole("recv_call_ns"),
        recv_take_ns: params.whole("recv_take_ns"),
        recv_sleep_ns: params.whole("recv_sleep_ns"),
        send_ns: params.whole("send_ns"),
        ..Costs::default()
    }
}

fn run(params: &Params, config: &Config, seed: u64) -> Result<Outcome, RunError> {
    let fixed = ModerationSpec::Fixed;
    Sim::new(&world(params, config.busy_usecs, fixed(config.rx), fixed(TX_DEFAULT)), seed).run()
}

/// Simulates the four rows, in transactions per second.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn simulate(params: &Params, seed: u64) -> Result<Vec<Row>, RunError> {
    let row = |config: &Config| {
        let simulated = run(params, config, seed)?.qps();
        Ok(Row { name: config.row.to_owned(), fitted: config.fitted, published: published(config.row), simulated })
    };
    CONFIGS.iter().map(row).collect()
}

/// Fits the wire to the row that calibration may see.
///
/// # Errors
///
/// This fails if a world hit its bound at the start.
pub fn fit(start: &Params, evaluations: usize, seed: u64, progress: impl FnMut(usize, f64)) -> Result<Fit, RunError> {
    let simulate = |params: &Params| {
        let fitted = CONFIGS.iter().filter(|config| config.fitted);
        let row = |config: &Config| {
            let simulated = run(params, config, seed)?.qps();
            Ok(Row { name: config.row.to_owned(), fitted: true, published: published(config.row), simulated })
        };
        fitted.map(row).collect()
    };
    fit_rows(start, &FITTED, evaluations, seed, simulate, progress)
}

/// Checks the statements about the published table on the simulated one (in the order of [`simulate`]).
pub fn statements(rows: &[Row]) -> Vec<Statement> {
    let per_s = |index: usize| rows.get(index).map_or(f64::NAN, |row| row.simulated);
    let us = |index: usize| 1e6 / per_s(index);
    let mut waits = Vec::new();
    within(&mut waits, "us saved", us(0) - us(1), 30.1 * 0.9, 30.1 * 1.1);
    // The lower ends are the statement's (Linux 3.11), and the upper ones are the same ratios with the row of 4.11.
    let mut busy = Vec::new();
    within(&mut busy, "busy polling over default coalescing", per_s(3) / per_s(0), 3.6, 4.4);
    within(&mut busy, "busy polling over rx-usecs 1", per_s(3) / per_s(1), 1.7, 2.1);
    vec![
        Statement {
            number: 1,
            says: "rx-usecs 16 to 1 saves 30.1 us a transaction (10 % allowed): one wait in each direction",
            broken: waits,
            near: Vec::new(),
        },
        Statement {
            number: 2,
            says: "busy polling is 3.6 (4.11: 4.4) times interrupts at default coalescing, 1.7 (2.1) at rx-usecs 1",
            broken: busy,
            near: Vec::new(),
        },
    ]
}
