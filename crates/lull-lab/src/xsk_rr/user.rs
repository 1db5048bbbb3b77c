//! The benchmark on lull's own packet sockets: over the in-memory NIC, over two TAPs with a bridge of the kernel
//! between them, and on one end of any device.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use lull_core::Stats;
use lull_core::settings::WEIGHT_DEFAULT;
use lull_host::{GroupOptions, Host, HostConfig};
use lull_net::{PacketDevice, PacketOptions, PacketSocket};
use lull_nic::Device;
use lull_nic::mem::{self, MemConfig};
use lull_nic::tap::{Tap, TapConfig};

use super::frame::Addresses;
use super::record::Report;
use super::{BUSY_POLL_BUDGET, Ends, Outcome, Placement, Settings, run};
use crate::bench::BenchError;
use crate::bench::kernel::pair::ip;
use crate::cell::Enforcement;
use crate::check::{Evidence, enforcement};

/// The devices between which the frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The in-memory NIC.
    Mem,
    /// Two TAPs, and a bridge between them, in a network namespace of their own.
    Taps,
}

/// The outcome of a run, and whether its way of polling was in force.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The figures.
    pub outcome: Outcome,
    /// Whether it was in force: at both ends of lull's sockets, and at the server's end of the kernel's.
    pub verdict: Enforcement,
    /// Why interrupts have no precedence over ordinary threads, if that was asked for.
    pub realtime_refused: Option<String>,
}

/// A packet socket with its host and device.
struct End {
    socket: PacketSocket,
    mac: [u8; 6],
}

/// Makes the socket of one end, on CPU `cpu` of the host, polled as the settings say.
fn end(
    host: &Host,
    device: Arc<dyn Device>,
    (cpu, settings): (u16, &Settings),
    oversubscribe: bool,
) -> Result<End, BenchError> {
    let mode = settings.polling.mode();
    let mac = device.info().mac;
    let device = PacketDevice::new(host, device)?;
    let socket = PacketSocket::bind(&device, 0, &PacketOptions { cpu, napi: mode.napi, ..PacketOptions::default() })?;
    socket.set_nonblocking(true);
    if settings.polling.calls_poll() {
        let busy = socket.busy();
        let set = busy
            .set_usecs(mode.socket_busy_poll_usecs)
            .and_then(|()| busy.set_prefer(true, true))
            .and_then(|()| busy.set_budget(BUSY_POLL_BUDGET, true));
        set.map_err(lull_host::HostError::Setting)?;
    }
    if mode.group.is_some() {
        let group = host.new_group(GroupOptions { oversubscribe, ..GroupOptions::default() })?;
        host.group_attach(group, cpu)?;
        host.group_add(group, socket.napi(), WEIGHT_DEFAULT)?;
    }
    Ok(End { socket, mac })
}

/// Makes a host with a CPU for each end that is here.
fn host(cores: Vec<usize>, settings: &Settings, realtime: bool) -> Result<Host, BenchError> {
    let cpus = cores.into_iter().map(Some).collect();
    // Interrupts have precedence over ordinary threads, as on the letter's machine. NAPI threads and groups are
    // ordinary threads.
    let realtime = realtime && !settings.polling.has_poller();
    Ok(Host::new(HostConfig { cpus, realtime, ..HostConfig::default() })?)
}

/// Whether the way of polling was in force for a socket, by lull-core's own counters.
fn verdict(host: &Host, socket: &PacketSocket, before: &Stats, settings: &Settings, answered: u64) -> Enforcement {
    let napi = socket.napi();
    let stats = host.napi_stats(napi) - *before;
    let mode = settings.polling.mode();
    let lateness_ns = host.napi_lateness(napi).median_ns();
    enforcement(&mode, &Evidence::of_core(&stats, lateness_ns, answered))
}

/// Runs client and server at the two ends of a wire.
///
/// # Errors
///
/// This fails if a setting is outside its limits, if the process may not make TAPs, or if a core cannot be used.
pub fn both(
    wire: Wire,
    settings: &Settings,
    placement: &Placement,
    realtime: bool,
    stop: &AtomicBool,
    on_report: &mut (dyn FnMut(Report) + Send),
) -> Result<Shown, BenchError> {
    settings.check()?;
    let [client, server]: [Arc<dyn Device>; 2] = match wire {
        Wire::Mem => {
            let (client, server) = mem::pair(MemConfig { ring_slots: 4096, ..MemConfig::default() });
            [Arc::new(client), Arc::new(server)]
        }
        Wire::Taps => taps()?,
    };
    let host = host(vec![placement.client_irq, placement.server_irq], settings, realtime)?;
    let shared = placement.oversubscribed;
    let client = end(&host, client, (0, settings), shared)?;
    let server = end(&host, server, (1, settings), shared)?;
    let before = [&client, &server].map(|end| host.napi_stats(end.socket.napi()));
    let ends = Ends {
        client: Some(&client.socket),
        server: Some(&server.socket),
        addresses: Addresses { from: client.mac, to: server.mac },
        threads: &Mutex::default(),
    };
    let Some(outcome) = run(ends, settings, placement, stop, on_report)? else { unreachable!("there is a client") };
    let verdicts = [(&client, &before[0]), (&server, &before[1])]
        .map(|(end, before)| verdict(&host, &end.socket, before, settings, outcome.answered));
    let [client, server] = verdicts;
    let verdict = if client.shows_mode() { server } else { client };
    Ok(Shown { outcome, verdict, realtime_refused: host.realtime_error() })
}

/// Runs one end on `device`: a client whose server is `server_mac`, or, without that, the server until `stop`.
///
/// # Errors
///
/// This fails if a setting is outside its limits, if a core cannot be used, or if a device is gone.
pub fn one(
    device: Arc<dyn Device>,
    server_mac: Option<[u8; 6]>,
    settings: &Settings,
    (placement, realtime): (&Placement, bool),
    stop: &AtomicBool,
    on_report: &mut (dyn FnMut(Report) + Send),
) -> Result<Option<Shown>, BenchError> {
    settings.check()?;
    let core = if server_mac.is_some() { placement.client_irq } else { placement.server_irq };
    let host = host(vec![core], settings, realtime)?;
    let end = end(&host, device, (0, settings), placement.oversubscribed)?;
    let before = host.napi_stats(end.socket.napi());
    let ends = Ends {
        client: server_mac.is_some().then_some(&end.socket),
        server: server_mac.is_none().then_some(&end.socket),
        addresses: Addresses { from: end.mac, to: server_mac.unwrap_or(end.mac) },
        threads: &Mutex::default(),
    };
    let outcome = run(ends, settings, placement, stop, on_report)?;
    Ok(outcome.map(|outcome| {
        let verdict = verdict(&host, &end.socket, &before, settings, outcome.answered);
        Shown { outcome, verdict, realtime_refused: host.realtime_error() }
    }))
}

/// Makes two TAPs that a bridge of the kernel connects, in a namespace that lasts as long as they do.
fn taps() -> Result<[Arc<dyn Device>; 2], BenchError> {
    let make = || -> Result<[Arc<dyn Device>; 2], BenchError> {
        lull_nic::namespace::enter_private()?;
        for which in ["all", "default"] {
            // A kernel without IPv6 has none to turn off.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        let open = |name: &str| Tap::open(TapConfig { name: name.to_owned(), ..TapConfig::default() });
        let taps = [open("lull-rr0")?, open("lull-rr1")?];
        ip("link add lull-rr type bridge\nlink set lull-rr0 master lull-rr up\nlink set lull-rr1 master lull-rr up\n\
            link set lull-rr up\n")?;
        let [client, server] = taps;
        Ok([Arc::new(client), Arc::new(server)])
    };
    let made = std::thread::scope(|scope| scope.spawn(make).join());
    made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
