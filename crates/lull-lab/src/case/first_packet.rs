//! The first packet after a pause, with a group whose poller makes dry runs meanwhile and with one that does not. If a
//! poller only checks whether a ring is empty, other users of the core's caches evict the rest of the receive path.
//!
//! A datagram is timed from its sending until its socket is readable, so that no application's thread is in between.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lull_core::Mode;
use lull_core::group::poller::dry_run::{DRY_RUN_AFTER_NS, DRY_RUN_EVERY_NS};
use lull_host::{GroupOptions, Host, HostConfig, pin_thread};
use lull_net::{GroupCpus, Network, NetworkConfig, Ready, UdpSocket};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, FramePool, Queue};

use super::{CaseTable, Effort, Measure, Observed, Placed};
use crate::bench::{BenchError, CLIENT_IP, SERVICE_IP};
use crate::cell::Enforcement;
use crate::flood::senders::{Station, datagram};

/// Pauses, from shorter than the time after which a poller makes a dry run to longer than anything stays in the cache.
pub const GAPS_DEFAULT: [Duration; 4] =
    [Duration::from_micros(10), Duration::from_micros(100), Duration::from_millis(1), Duration::from_millis(10)];
const PORT: u16 = 9;
/// The payload of a datagram, in bytes.
const BYTES: usize = 18;
/// How much memory the neighbour reads, about as much as most cores' second-level caches hold, and how long it sleeps
/// between two passes, so that the poller has the core most of the time.
const NEIGHBOUR_BYTES: usize = 1 << 20;
const NEIGHBOUR_SLEEP: Duration = Duration::from_micros(500);
/// The size of a cache line.
const LINE_BYTES: usize = 64;
/// How long a datagram may take. It only bounds a failure.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest wait that the histogram distinguishes.
const WAIT_NS_MAX: u64 = 100_000_000_000;

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct FirstPacket {
    /// Pauses before each datagram.
    pub gaps: Vec<Duration>,
    /// The group's core, then the sender's. If it is empty, the first usable cores are taken.
    pub cores: Vec<usize>,
}

/// One row: the pause, and whether a neighbour reads memory beside the poller.
type Cell = (Duration, bool);

/// What was measured with one of the two groups in a run.
struct Found {
    waits: Histogram<u64>,
    dry_runs: u64,
    visits: u64,
}

impl Found {
    fn median_ns(&self) -> Option<f64> {
        (!self.waits.is_empty()).then(|| self.waits.value_at_quantile(0.5) as f64)
    }
}

impl FirstPacket {
    /// Measures each pause, alone on the poller's core and with a neighbour. A run of a row has a half without dry runs
    /// and one with them, in an order that changes from run to run.
    ///
    /// # Errors
    ///
    /// This fails if there is no pause, or if the network fails.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        if self.gaps.is_empty() {
            return Err(BenchError::Invalid("cannot measure no pause: name one".to_owned()));
        }
        let placed = Placed::new(&self.cores, &["the group", "the sender"])?;
        let cells: Vec<Cell> = self.gaps.iter().flat_map(|gap| [(*gap, false), (*gap, true)]).collect();
        let mut table = table(&cells, &placed, effort);
        table.measure(0..cells.len(), effort, &mut |row, run| {
            let mut halves = [None, None];
            for dry_run in [run % 2 == 1, run % 2 == 0] {
                halves[usize::from(dry_run)] = Some(half(cells[row], dry_run, &placed.cores, effort)?);
            }
            let [Some(without), Some(with)] = halves else { unreachable!("both halves were measured") };
            Ok(observed(cells[row].0, &without, &with))
        })?;
        table.notes.extend(notes(&table));
        Ok(table)
    }
}

fn table(cells: &[Cell], placed: &Placed, effort: &Effort<'_>) -> CaseTable {
    let measures = [
        Measure {
            name: "without_p50_ns",
            help: "median time from the sending of a datagram until its socket is readable",
        },
        Measure { name: "with_p50_ns", help: "the same with dry runs" },
        Measure { name: "saved_ns", help: "what the second is less, run by run" },
        Measure { name: "dry_runs_per_datagram", help: "walks that the poller made between two datagrams" },
    ];
    let title = "The first datagram after a pause, delivered by a group of one CPU without and with dry runs.";
    let mut table = CaseTable::new("first-packet", title, &["pause", "neighbour"], &measures);
    table.set_up = format!("nic mem, 1 queue, 1 UDP socket; {}, half of it each way", effort.words());
    for (gap, neighbour) in cells {
        let beside = if *neighbour { "walks 1 MiB each 500 us" } else { "none" };
        let row = table.row(vec![format!("{gap:?}"), beside.to_owned()]);
        row.short_of_cores.clone_from(&placed.short);
    }
    table
}

/// Returns notes on whether dry runs have an effect, judged by the intervals.
fn notes(table: &CaseTable) -> Vec<String> {
    let saved = table.measure_at("saved_ns");
    let say = |row: &super::CaseRow| {
        let ours = row.values[saved].ours?;
        let interval = ours.interval?;
        let what = match (ours.excludes(0.0), ours.value > 0.0) {
            (false, _) => "which is none that can be told from 0",
            (true, true) => "less with dry runs",
            (true, false) => "so it is more with dry runs",
        };
        let (low, high, percent) = (interval.low, interval.high, 100.0 * interval.coverage);
        let (pause, beside) = (&row.keys[0], &row.keys[1]);
        Some(format!("Pause {pause}, neighbour {beside}: {low:.0} to {high:.0} ns ({percent:.0} % interval), {what}."))
    };
    table.rows.iter().filter_map(say).collect()
}

fn observed(gap: Duration, without: &Found, with: &Found) -> Observed {
    let (before, after) = (without.median_ns(), with.median_ns());
    let datagrams = with.waits.len();
    let walks = (datagrams > 0).then(|| with.dry_runs as f64 / datagrams as f64);
    Observed {
        values: vec![before, after, before.zip(after).map(|(before, after)| before - after), walks],
        verdict: verdict(gap, without, with),
        load: None,
    }
}

/// Whether the group delivered, and made dry runs if it was asked to.
fn verdict(gap: Duration, without: &Found, with: &Found) -> Enforcement {
    let first_walk = Duration::from_nanos(DRY_RUN_AFTER_NS + DRY_RUN_EVERY_NS);
    match (without, with) {
        _ if without.waits.is_empty() || with.waits.is_empty() => Enforcement::not_in_force("nothing was delivered"),
        _ if without.visits == 0 || with.visits == 0 => Enforcement::not_in_force("the group polled nothing"),
        _ if without.dry_runs != 0 => Enforcement::not_in_force("the poller walked without being asked to"),
        _ if with.dry_runs == 0 && gap > first_walk => Enforcement::not_in_force("the poller did not walk"),
        _ => Enforcement::InForce,
    }
}

/// Measures one half of a run: a group, a socket, a sender, and perhaps a neighbour.
fn half(cell: Cell, dry_run: bool, cores: &[usize], effort: &Effort<'_>) -> Result<Found, BenchError> {
    let (gap, neighbour) = cell;
    let (ours, theirs) = mem::pair(MemConfig::default());
    let [from, to] = [(&theirs, CLIENT_IP), (&ours, SERVICE_IP)].map(|(port, ip)| Station { mac: port.info().mac, ip });
    let host = Host::new(HostConfig { cpus: vec![Some(cores[0]), Some(cores[0])], ..HostConfig::default() })?;
    let network = network(&host, ours, from.mac, dry_run)?;
    let socket = UdpSocket::bind(&network, SocketAddr::from((SERVICE_IP, PORT)))?;
    socket.set_nonblocking(true)?;
    let frame = datagram(from, to, PORT, BYTES);
    let counts = || {
        let stats = host.groups()[0].pollers[0].info.stats;
        (stats.dry_runs, stats.polls)
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = neighbour.then(|| scope.spawn(|| walk_memory(cores[0], &over)));
        let sending = scope.spawn(|| -> Result<Found, BenchError> {
            pin_thread(&[cores[1]])?;
            let mut sender = Sender { queue: theirs.take_queue(0)?, pool: FramePool::new(64), frame, socket: &socket };
            sender.queue.irq.mask();
            sender.send_for(effort.warm_up / 2, gap, effort.stop, |_| ())?;
            let bounds = Histogram::new_with_bounds(1, WAIT_NS_MAX, 3);
            let mut waits = bounds.map_err(|error| BenchError::Invalid(error.to_string()))?;
            let before = counts();
            sender.send_for(effort.window / 2, gap, effort.stop, |ns| waits.saturating_record(ns.max(1)))?;
            let after = counts();
            Ok(Found { waits, dry_runs: after.0 - before.0, visits: after.1 - before.1 })
        });
        let found = sending.join();
        over.store(true, Ordering::Relaxed);
        let panicked = |_| BenchError::Invalid("a thread of the case panicked".to_owned());
        if let Some(beside) = beside {
            beside.join().map_err(panicked)??;
        }
        found.map_err(panicked)?
    })
}

fn network(host: &Host, port: MemPort, peer_mac: [u8; 6], dry_run: bool) -> Result<Network, BenchError> {
    let mode: Mode =
        "group-rx".parse().map_err(|error: lull_core::ModeError| BenchError::Invalid(error.to_string()))?;
    let mut options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    options.config.dry_run = dry_run;
    let config = NetworkConfig {
        addresses: vec![(SERVICE_IP.into(), 24)],
        neighbours: vec![(IpAddr::V4(CLIENT_IP), peer_mac)],
        cpus: vec![0],
        group: Some(GroupCpus { cpus: vec![1], options }),
        ..NetworkConfig::default()
    };
    Ok(Network::new(host, Arc::new(port), config.with_mode(&mode))?)
}

/// Sends one datagram at a time, each after a pause.
struct Sender<'a> {
    queue: Queue,
    pool: FramePool,
    frame: Vec<u8>,
    socket: &'a UdpSocket,
}

impl Sender<'_> {
    /// Sends for `time`, and at least one datagram. The duration of each goes to `record`.
    fn send_for(
        &mut self,
        time: Duration,
        gap: Duration,
        stop: &AtomicBool,
        mut record: impl FnMut(u64),
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            let due = Instant::now() + gap;
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            record(self.send_one()?);
            if begun.elapsed() >= time || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Sends a datagram and returns the nanoseconds until the socket is readable. Then it takes the datagram.
    fn send_one(&mut self) -> Result<u64, BenchError> {
        let mut frame = self.pool.alloc_for(self.frame.len());
        frame.set_len(self.frame.len());
        frame.data_mut().copy_from_slice(&self.frame);
        let sent = Instant::now();
        if self.queue.tx.transmit(frame).is_err() {
            return Err(BenchError::Invalid("the ring was full with one datagram at a time".to_owned()));
        }
        self.queue.tx.doorbell();
        while !self.socket.ready().contains(Ready::READABLE) {
            if sent.elapsed() > PATIENCE {
                return Err(BenchError::Invalid(format!("a datagram was not delivered in {PATIENCE:?}")));
            }
            std::hint::spin_loop();
        }
        let took_ns = sent.elapsed().as_nanos() as u64;
        self.socket.recv(&mut [0; BYTES])?;
        self.queue.tx.reap_sent(&mut self.pool);
        Ok(took_ns)
    }
}

/// Runs the neighbour: it reads its memory, and sleeps.
fn walk_memory(core: usize, over: &AtomicBool) -> Result<(), BenchError> {
    pin_thread(&[core])?;
    let memory = vec![1_u8; NEIGHBOUR_BYTES];
    while !over.load(Ordering::Relaxed) {
        let sum: u64 = memory.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum();
        std::hint::black_box(sum);
        std::thread::sleep(NEIGHBOUR_SLEEP);
    }
    Ok(())
}
