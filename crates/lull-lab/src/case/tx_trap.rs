//! The transmit trap: two workers of one queue. One of them floods the queue, and the other sends a small datagram each
//! millisecond. A worker that drains the queueing discipline also sends the other's frames, and is trapped in its send
//! call meanwhile. If a group of CPUs drains the queue, no worker is trapped.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lull_core::Mode;
use lull_host::{GroupOptions, Host, HostConfig, pin_thread};
use lull_net::{GroupCpus, Network, NetworkConfig, Qdisc, TransmitStats, UdpSocket};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, FramePool};

use super::{CaseTable, Effort, Measure, Observed, Placed};
use crate::bench::BenchError;
use crate::cell::Enforcement;

const OWN_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 9;
/// The payload of the flood's datagrams, which makes IP packets of 1500 bytes.
const FLOOD_BYTES: usize = 1_472;
/// The payload of a request, in bytes.
const REQUEST_BYTES: usize = 64;
/// How often the other worker sends.
const PERIOD: Duration = Duration::from_millis(1);
/// The longest send call that the histogram distinguishes.
const SEND_NS_MAX: u64 = 100_000_000_000;
/// The slots of the transmit ring, as many as NICs usually have.
const RING_SLOTS: usize = 256;

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct TxTrap {
    /// The disciplines, each of which is measured in each of the modes.
    pub qdiscs: Vec<Qdisc>,
    /// The delivery modes.
    pub modes: Vec<Mode>,
    /// Cores for the flooding worker, the asking one, the group and the wire. If it is empty, the first usable cores
    /// are taken.
    pub cores: Vec<usize>,
}

impl TxTrap {
    /// Measures every discipline in every mode.
    ///
    /// # Errors
    ///
    /// This fails if there is no discipline or no mode, or if the workers fail.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        if self.qdiscs.is_empty() || self.modes.is_empty() {
            return Err(BenchError::Invalid("cannot compare nothing: name a discipline and a mode".to_owned()));
        }
        let parts = ["the flooding worker", "the asking worker", "the group", "the wire"];
        let placed = Placed::new(&self.cores, &parts)?;
        let cells: Vec<(Qdisc, &Mode)> =
            self.qdiscs.iter().flat_map(|qdisc| self.modes.iter().map(move |mode| (*qdisc, mode))).collect();
        let mut table = table(&cells, &placed, effort);
        table.measure(0..cells.len(), effort, &mut |row, _| measure(cells[row], &placed.cores, effort))?;
        Ok(table)
    }
}

fn table(cells: &[(Qdisc, &Mode)], placed: &Placed, effort: &Effort<'_>) -> CaseTable {
    let measures = [
        Measure { name: "send_p50_us", help: "median time inside the asking worker's send calls" },
        Measure { name: "send_p99_us", help: "its 99th percentile" },
        Measure { name: "send_p999_us", help: "its 99.9th percentile" },
        Measure { name: "trapped_us_per_ms", help: "time in the drain on frames of others, of both workers" },
        Measure { name: "doorbells_per_frame", help: "doorbells that the discipline's runner rang" },
        Measure { name: "flood_kfps", help: "frames of the flood, in thousands a second" },
        Measure { name: "dropped_per_s", help: "frames that the discipline dropped" },
    ];
    let title = "The transmit trap: two workers of one queue, one floods with packets of 1500 bytes, one sends a small \
                 datagram each millisecond.";
    let mut table = CaseTable::new("tx-trap", title, &["qdisc", "mode", "sent by"], &measures);
    table.set_up = format!("nic mem with {RING_SLOTS} slots, 2 UDP sockets of one queue; {}", effort.words());
    for (qdisc, mode) in cells {
        let by_group = mode.group.is_some_and(|group| group.transmit);
        let sent_by = match (by_group, mode.group) {
            (true, _) => "the group",
            (false, Some(_)) => "applications (tx outside)",
            (false, None) => "applications",
        };
        let row = table.row(vec![qdisc.to_string(), mode.name().to_owned(), sent_by.to_owned()]);
        row.short_of_cores.clone_from(&placed.short);
    }
    table.notes.push(
        "With noqueue outside groups each worker puts its own frames on the ring, so there is neither a trap nor a count of \
         doorbells; what a send call waits for then is the shard's lock and room in the ring."
            .to_owned(),
    );
    table
}

/// Takes every frame that comes, as the wire and the peer would.
fn wire(port: &MemPort, core: usize, over: &AtomicBool) -> Result<(), BenchError> {
    pin_thread(&[core])?;
    let mut queue = port.take_queue(0)?;
    let mut pool = FramePool::new(64);
    while !over.load(Ordering::Relaxed) {
        let taken = queue.rx.poll(64, &mut pool, &mut |frame, pool| pool.recycle(frame));
        if taken == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Sends as fast as possible. Returns the number of frames.
fn flood(socket: &UdpSocket, core: usize, over: &AtomicBool) -> Result<u64, BenchError> {
    pin_thread(&[core])?;
    let (to, data) = (SocketAddr::from((PEER_IP, PORT)), [0; FLOOD_BYTES]);
    let mut sent = 0;
    socket.set_write_timeout(Some(Duration::from_millis(100)))?;
    while !over.load(Ordering::Relaxed) {
        match socket.send_to(&data, to) {
            Ok(_) => sent += 1,
            // The wire has ended before this.
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}

/// Sends a datagram each millisecond until `until`. The duration of each call goes to `record`.
fn ask(socket: &UdpSocket, until: Instant, stop: &AtomicBool, mut record: impl FnMut(u64)) -> Result<(), BenchError> {
    let to = SocketAddr::from((PEER_IP, PORT));
    let mut next = Instant::now();
    while next < until && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let begun = Instant::now();
        socket.send_to(&[1; REQUEST_BYTES], to)?;
        record(begun.elapsed().as_nanos() as u64);
        // The worker does not catch up on the datagrams that were due during a long call.
        next = (next + PERIOD).max(Instant::now());
    }
    Ok(())
}

fn network(
    host: &Host,
    port: MemPort,
    peer_mac: [u8; 6],
    (qdisc, mode): (Qdisc, &Mode),
) -> Result<Network, BenchError> {
    let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    let config = NetworkConfig {
        addresses: vec![(OWN_IP.into(), 24)],
        neighbours: vec![(IpAddr::V4(PEER_IP), peer_mac)],
        cpus: vec![0],
        qdisc: Some(qdisc),
        group: Some(GroupCpus { cpus: vec![1], options }),
        ..NetworkConfig::default()
    };
    Ok(Network::new(host, Arc::new(port), config.with_mode(mode))?)
}

/// Measures one run of a row.
fn measure(cell: (Qdisc, &Mode), cores: &[usize], effort: &Effort<'_>) -> Result<Observed, BenchError> {
    let (own_port, peer_port) = mem::pair(MemConfig { ring_slots: RING_SLOTS, ..MemConfig::default() });
    let host = Host::new(HostConfig { cpus: vec![Some(cores[1]), Some(cores[2])], ..HostConfig::default() })?;
    let network = network(&host, own_port, peer_port.info().mac, cell)?;
    let [floods, asks] = [1, 2].map(|port| UdpSocket::bind(&network, SocketAddr::from((OWN_IP, port))));
    let (floods, asks) = (floods?, asks?);
    let sums = || network.transmit_stats().first().copied().unwrap_or_default();
    let (over, wire_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut calls =
        Histogram::<u64>::new_with_bounds(1, SEND_NS_MAX, 3).map_err(|error| BenchError::Invalid(error.to_string()))?;
    let (seconds, before, after) = std::thread::scope(|scope| {
        let wire = scope.spawn(|| wire(&peer_port, cores[3], &wire_over));
        let flooding = scope.spawn(|| flood(&floods, cores[0], &over));
        let asking = scope.spawn(|| -> Result<_, BenchError> {
            pin_thread(&[cores[1]])?;
            ask(&asks, Instant::now() + effort.warm_up, effort.stop, |_| ())?;
            let (before, begun) = (sums(), Instant::now());
            ask(&asks, begun + effort.window, effort.stop, |ns| calls.saturating_record(ns.max(1)))?;
            Ok((begun.elapsed().as_secs_f64(), before, sums()))
        });
        let asked = asking.join();
        // The wire ends last, so that no worker waits for room.
        over.store(true, Ordering::Relaxed);
        let flooded = flooding.join();
        wire_over.store(true, Ordering::Relaxed);
        let wired = wire.join();
        let panicked = |_| BenchError::Invalid("a worker panicked".to_owned());
        wired.map_err(panicked)??;
        flooded.map_err(panicked)??;
        asked.map_err(panicked)?
    })?;
    let delta = |of: fn(&TransmitStats) -> u64| of(&after) - of(&before);
    let us = |quantile| (!calls.is_empty()).then(|| calls.value_at_quantile(quantile) as f64 / 1e3);
    let queued = !network.transmit_stats().is_empty();
    let frames = delta(|stats| stats.frames);
    let per_s = |count: u64| queued.then_some(count as f64 / seconds);
    Ok(Observed {
        values: vec![
            us(0.5),
            us(0.99),
            us(0.999),
            per_s(delta(|stats| stats.trapped_ns)).map(|ns_per_s| ns_per_s / 1e6),
            (queued && frames > 0).then(|| delta(|stats| stats.doorbells) as f64 / frames as f64),
            per_s(frames).map(|per_s| per_s / 1e3),
            per_s(delta(|stats| stats.dropped)),
        ],
        verdict: verdict(cell, &network, delta(|stats| stats.runs), frames),
        load: None,
    })
}

/// Whether the discipline was there, and the part that should drain it did.
fn verdict((qdisc, mode): (Qdisc, &Mode), network: &Network, runs: u64, frames: u64) -> Enforcement {
    let by_group = mode.group.is_some_and(|group| group.transmit);
    match network.qdisc() {
        found if found != qdisc => Enforcement::not_in_force(format!("the discipline was {found}")),
        Qdisc::NoQueue if !by_group => Enforcement::InForce,
        _ if frames == 0 => Enforcement::not_in_force("nothing was sent"),
        _ if by_group && runs != 0 => Enforcement::not_in_force("senders drained the queue beside the group"),
        _ if !by_group && runs == 0 => Enforcement::not_in_force("no sender drained the queue"),
        _ => Enforcement::InForce,
    }
}
