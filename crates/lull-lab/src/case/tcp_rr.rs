//! TCP_RR: one connection, a byte each way, one transaction at a time. It compares interrupts with coalescing to busy
//! polling of the receiving socket, on two networks of lull over an in-memory NIC, or on Linux's stack over a veth pair
//! (`kernel`).

mod kernel;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lull_core::mode::Plane;
use lull_core::{Mode, Stats};
use lull_host::{Host, HostConfig, pin_thread};
use lull_net::{AppHalf, Network, NetworkConfig, Shutdown, TcpListener, TcpStream};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, Moderation};
use lull_sim::params::Params;
use lull_sim::published::tcp_rr::{KNOWN, PARAMS_TOML, simulate};

use super::{CaseTable, Effort, Measure, Observed, Placed};
use crate::bench::{BenchError, PORT};
use crate::cell::Enforcement;
use crate::check::{Evidence, enforcement};

const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// How long the connection may take to come up, and an answer to come. It only bounds a failure.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest transaction that the histogram distinguishes.
const TRANSACTION_NS_MAX: u64 = 100_000_000_000;

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct TcpRr {
    /// lull's own stack, or Linux's.
    pub plane: Plane,
    /// The coalescing of both ends. There is none on the kernel plane, because a veth has none.
    pub moderations: Vec<Moderation>,
    /// The delivery modes of both ends: modes that need no epoll context.
    pub modes: Vec<Mode>,
    /// The cores of the two ends. If it is empty, the first usable cores are taken.
    pub cores: Vec<usize>,
}

/// One row: its coalescing, if there is one, and its mode.
type Cell<'a> = (Option<Moderation>, &'a Mode);

impl TcpRr {
    /// Measures every mode with every coalescing.
    ///
    /// # Errors
    ///
    /// This fails if a mode acts in epoll only, or if one of the two ends fails.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        for mode in &self.modes {
            AppHalf::of(mode).without_epoll().map_err(|error| BenchError::Invalid(error.to_string()))?;
        }
        let placed = Placed::new(&self.cores, &["the client", "the server"])?;
        let moderations: Vec<Option<Moderation>> = match (self.plane, &self.moderations[..]) {
            (Plane::Kernel, []) => vec![None],
            (Plane::Kernel, _) => return Err(BenchError::Invalid(kernel::NO_COALESCING.to_owned())),
            (_, given) => given.iter().copied().map(Some).collect(),
        };
        let cells: Vec<Cell<'_>> =
            moderations.iter().flat_map(|moderation| self.modes.iter().map(move |mode| (*moderation, mode))).collect();
        let mut table = self.table(&cells, &placed, effort)?;
        table.measure(0..cells.len(), effort, &mut |row, _| {
            let (moderation, mode) = cells[row];
            match moderation {
                Some(moderation) => measure((moderation, mode), &placed.cores, effort),
                None => kernel::measure(mode, &placed.cores, effort),
            }
        })?;
        table.notes.extend(waits(&cells, &table));
        Ok(table)
    }
}

impl TcpRr {
    /// Makes the rows, with the published values and the simulator's prediction for the published machine.
    fn table(&self, cells: &[Cell<'_>], placed: &Placed, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        let is_kernel = self.plane == Plane::Kernel;
        let interrupts =
            if is_kernel { "polls by softirq and timers, of both ends" } else { "hard interrupts, of both ends" };
        let measures = [
            Measure { name: "transactions_per_s", help: "requests answered" },
            Measure { name: "p50_us", help: "median time of a transaction" },
            Measure { name: "p99_us", help: "its 99th percentile" },
            match is_kernel {
                false => Measure { name: "interrupts_per_transaction", help: interrupts },
                true => Measure { name: "softirq_polls_per_transaction", help: interrupts },
            },
            Measure { name: "busy_polls_per_transaction", help: "polls by receive calls, of both ends" },
        ];
        let title = match is_kernel {
            false => {
                "TCP_RR: one connection between two networks of lull's over an in-memory NIC, a core each, a byte each way."
            }
            true => {
                "TCP_RR: one connection between two network namespaces over a veth pair, a core each, a byte each way."
            }
        };
        let mut table = CaseTable::new("tcp-rr", title, &["rx-usecs/frames", "mode"], &measures);
        let nic = if is_kernel { "veth (kernel plane)" } else { "nic mem" };
        table.set_up = format!("{nic}, 1 connection; {}", effort.words());
        let invalid = |error: String| BenchError::Invalid(error);
        let params = Params::parse(PARAMS_TOML, &KNOWN).map_err(|error| invalid(error.to_string()))?;
        let published = simulate(&params, 1).map_err(|error| invalid(error.to_string()))?;
        for (moderation, mode) in cells {
            let words = |moderation: &Moderation| format!("{}/{}", moderation.rx_usecs, moderation.rx_frames);
            let coalescing = moderation.as_ref().map_or_else(|| "none".to_owned(), words);
            let row = table.row(vec![coalescing, mode.name().to_owned()]);
            row.short_of_cores.clone_from(&placed.short);
            if let Some(same) = beside(*moderation, mode).and_then(|same| published.get(same)) {
                row.values[0].published = Some(same.published);
                row.values[0].simulated = Some(same.simulated);
            }
        }
        table.notes.push(
            "Published are mlx4's 10 Gbit/s figures of netdev 2.1. Busy polling waits for no interrupt, so its rows are held \
             against the same 77,000 of Linux 4.11 (Linux 3.11: 63,000)."
                .to_owned(),
        );
        table.notes.push(if is_kernel { kernel::NOTE } else { NOTE }.to_owned());
        Ok(table)
    }
}

const NOTE: &str = "An interrupt here wakes a thread that then wakes the one that receives, and coalescing is a timer of the \
                    kernel: a transaction with interrupts takes four such wake-ups, where a NIC's are a microsecond each.";

/// Returns the published row that a row is compared with. The published rows are, in this order: interrupts at 16/44
/// and at 1/1, busy polling on Linux 3.11 and on 4.11.
fn beside(moderation: Option<Moderation>, mode: &Mode) -> Option<usize> {
    match (mode.name(), moderation.map(|moderation| (moderation.rx_usecs, moderation.rx_frames))) {
        ("base", Some((16, 44))) => Some(0),
        // A veth raises an interrupt for each frame.
        ("base", Some((1, 1)) | None) => Some(1),
        ("busyread", _) => Some(3),
        // A deferral stands in for coalescing.
        (_, None) if mode.deferral_ns() == Some(kernel::DEFERRAL_NS) => Some(0),
        _ => None,
    }
}

/// Returns a sentence that compares, here and as published, two rows that differ by one wait for coalescing in each
/// direction.
fn waits(cells: &[Cell<'_>], table: &CaseTable) -> Option<String> {
    let period_us = |usecs: u32, frames: u32| {
        let asked = Some(Moderation { rx_usecs: usecs, rx_frames: frames });
        let row = cells.iter().position(|(moderation, mode)| mode.name() == "base" && *moderation == asked)?;
        Some(1e6 / table.rows[row].values[0].ours?.value)
    };
    let saved_us = period_us(16, 44)? - period_us(1, 1)?;
    Some(format!(
        "From rx-usecs 16 to 1 a transaction of base is {saved_us:.1} us shorter here; published 30.1 us, one wait of 15 us \
         in each direction."
    ))
}

/// Makes the network of one end.
fn end(host: &Host, port: MemPort, own: Ipv4Addr, cpu: u16, other: (Ipv4Addr, [u8; 6])) -> Result<Network, BenchError> {
    let config = NetworkConfig {
        addresses: vec![(own.into(), 24)],
        neighbours: vec![(IpAddr::V4(other.0), other.1)],
        cpus: vec![cpu],
        ..NetworkConfig::default()
    };
    Ok(Network::new(host, Arc::new(port), config)?)
}

/// Measures one run of a row, with two ends of its own.
fn measure(
    (moderation, mode): (Moderation, &Mode),
    cores: &[usize],
    effort: &Effort<'_>,
) -> Result<Observed, BenchError> {
    let (client_port, server_port) = mem::pair(MemConfig::default());
    let (client_mac, server_mac) = (client_port.info().mac, server_port.info().mac);
    for port in [&client_port, &server_port] {
        port.set_moderation(moderation)?;
    }
    let cpus = cores.iter().map(|core| Some(*core)).collect();
    let host = Host::new(HostConfig { cpus, ..HostConfig::default() })?;
    let client = end(&host, client_port, CLIENT_IP, 0, (SERVER_IP, server_mac))?;
    let server = end(&host, server_port, SERVER_IP, 1, (CLIENT_IP, client_mac))?;
    for network in [&client, &server] {
        network.set_mode(mode)?.without_epoll().map_err(io::Error::from)?;
    }
    let address = SocketAddr::from((SERVER_IP, PORT));
    let listener = TcpListener::bind(&server, address)?;
    let counted = || {
        let stats = [&client, &server].map(|network| host.napi_stats(network.napis()[0]));
        let interrupts = (0..2).map(|cpu| host.cpu_stats(cpu).interrupts).sum::<u64>();
        (stats[0] + stats[1], interrupts)
    };
    let over = AtomicBool::new(false);
    let (latencies, seconds, before, after) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| answer(&listener, cores[1], &over));
        let asked = ask(&client, address, cores[0], effort, &counted);
        over.store(true, Ordering::Release);
        if asked.is_err() {
            // The listener may still wait for a connection.
            let _ = listener.shutdown(Shutdown::Both);
        }
        let served = serving.join().map_err(|_| BenchError::Invalid("the server panicked".to_owned()))?;
        let asked = asked?;
        served?;
        Ok::<_, BenchError>(asked)
    })?;
    let (napi, interrupts): (Stats, u64) = (after.0 - before.0, after.1 - before.1);
    let verdict = enforcement(mode, &Evidence::of_core(&napi, None, latencies.len()));
    Ok(observed(&latencies, seconds, interrupts, napi.busy_polls, verdict))
}

/// Returns the measures of a window, in the order of the table's.
fn observed(latencies: &Histogram<u64>, seconds: f64, raised: u64, busy_polls: u64, verdict: Enforcement) -> Observed {
    let transactions = latencies.len();
    let per_transaction = |count: u64| (transactions > 0).then(|| count as f64 / transactions as f64);
    let us = |quantile| (transactions > 0).then(|| latencies.value_at_quantile(quantile) as f64 / 1e3);
    Observed {
        values: vec![
            Some(transactions as f64 / seconds),
            us(0.5),
            us(0.99),
            per_transaction(raised),
            per_transaction(busy_polls),
        ],
        verdict,
        load: None,
    }
}

/// A connection, with the operations that both planes have.
trait Connection {
    fn send_byte(&self) -> io::Result<()>;

    /// Waits for a byte. Returns false at the end of the stream.
    fn receive_byte(&self) -> io::Result<bool>;
}

impl Connection for TcpStream {
    fn send_byte(&self) -> io::Result<()> {
        self.send(&[1]).map(|_| ())
    }

    fn receive_byte(&self) -> io::Result<bool> {
        Ok(self.recv(&mut [0])? != 0)
    }
}

/// Runs the server: it answers each byte with one, until the client closes.
fn answer(listener: &TcpListener, core: usize, over: &AtomicBool) -> io::Result<()> {
    pin_thread(&[core])?;
    let stream = match listener.accept() {
        Ok((stream, _)) => stream,
        Err(_) if over.load(Ordering::Acquire) => return Ok(()),
        Err(error) => return Err(error),
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    echo(&stream, over)
}

/// Answers each byte with one, until the client closes.
fn echo(stream: &impl Connection, over: &AtomicBool) -> io::Result<()> {
    loop {
        match stream.receive_byte() {
            Ok(false) => return Ok(()),
            Ok(true) => stream.send_byte()?,
            // The client gave up, and has reported why.
            Err(_) if over.load(Ordering::Acquire) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The durations of the transactions, the window's length in seconds, and the counters at its two ends.
type Asked<M> = (Histogram<u64>, f64, M, M);

/// Runs the client: it makes one transaction after the other, and counts those of the window.
fn ask<M: Send>(
    network: &Network,
    address: SocketAddr,
    core: usize,
    effort: &Effort<'_>,
    mark: &(impl Fn() -> M + Sync),
) -> Result<Asked<M>, BenchError> {
    let ask = || -> io::Result<Asked<M>> {
        pin_thread(&[core])?;
        let stream = TcpStream::connect_timeout(network, address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        transact(&stream, effort, mark)
    };
    // The client has a thread of its own, so that the calling thread keeps its cores.
    std::thread::scope(|scope| {
        let asked = scope.spawn(ask);
        asked.join().map_err(|_| BenchError::Invalid("the client panicked".to_owned()))?.map_err(BenchError::from)
    })
}

/// Makes one transaction after the other, for as long as the effort says.
fn transact<M>(stream: &impl Connection, effort: &Effort<'_>, mark: &impl Fn() -> M) -> io::Result<Asked<M>> {
    let mut latencies =
        Histogram::new_with_bounds(1, TRANSACTION_NS_MAX, 3).map_err(|error| io::Error::other(error.to_string()))?;
    let once = || -> io::Result<Duration> {
        let begun = Instant::now();
        stream.send_byte()?;
        if stream.receive_byte()? { Ok(begun.elapsed()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    };
    let stopped = || effort.stop.load(Ordering::Relaxed);
    let settled = Instant::now() + effort.warm_up;
    while Instant::now() < settled && !stopped() {
        once()?;
    }
    let (before, begun) = (mark(), Instant::now());
    while begun.elapsed() < effort.window && !stopped() {
        latencies.saturating_record((once()?.as_nanos() as u64).max(1));
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok((latencies, seconds, before, mark()))
}
