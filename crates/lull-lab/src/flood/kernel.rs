//! A flood on Linux's stack, over a veth pair between two network namespaces of its own. With them everything is gone that
//! was set.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lull_core::{Mode, Threaded};
use lull_host::pin_thread;
use lull_linux::Roots;
use lull_linux::device::Device;
use lull_linux::netdev::{NapiChange, Netdev};
use lull_linux::sched as linux_sched;

use super::mode::FloodMode;
use super::own::{device_counts, pass};
use super::sched::SchedStat;
use super::sinks::{BUFFER_BYTES, LOOK_INTERVAL, Sinks};
use super::{Cell, Flood, Marks, PORT_FIRST, observed, senders};
use crate::bench::BenchError;
use crate::bench::kernel::ksoftirqds;
use crate::bench::kernel::napi_threads;
use crate::bench::kernel::pair::{Pair, ServerStack, Side, linux};
use crate::case::{Effort, Observed};
use crate::cell::Enforcement;

/// Why a mode cannot be here.
pub fn refusal(mode: &FloodMode) -> Option<String> {
    if mode.mode().group.is_some() {
        let nearest =
            "Linux has no busy-polling groups of CPUs; the nearest is threaded-busy with its threads on some CPUs";
        return Some(nearest.to_owned());
    }
    if mode.is_realtime() {
        return Some("Linux runs softirq in interrupt context: softirq is that row here".to_owned());
    }
    lull_linux::plan::check_kernel_has(mode.mode()).err().map(|error| error.to_string())
}

/// The receiving half: the sinks, and who delivers to them.
struct Receiving {
    sinks: Sinks,
    pair: Pair,
    /// The NAPI's thread, or the ksoftirqd of the sinks' core.
    delivery: Vec<i32>,
    threaded: bool,
}

/// One run of a row, in namespaces of its own.
pub(super) fn measure(
    flood: &Flood,
    cell: &Cell<'_>,
    cores: &[usize],
    effort: &Effort<'_>,
) -> Result<Observed, BenchError> {
    let receiving = Receiving::start(flood, cell, cores[0])?;
    let over = AtomicBool::new(false);
    let (pair, to) = (&receiving.pair, receiving.pair.server.address());
    let std::net::IpAddr::V4(to) = to else { return Err(BenchError::Invalid("a veth pair with IPv4".to_owned())) };
    let (before, after) = std::thread::scope(|scope| {
        let over = &over;
        let sending = scope.spawn(move || -> io::Result<u64> {
            pair.client.enter()?;
            pin_thread(&cores[1..2])?;
            let ports = PORT_FIRST..PORT_FIRST + cell.flows as u16;
            senders::over_sockets(to, ports, cell.bytes, flood.per_second, over)
        });
        let received = || receiving.sinks.received();
        pass(effort, effort.warm_up, received);
        let before = receiving.marks();
        pass(effort, effort.window, received);
        let after = receiving.marks();
        over.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))??;
        Ok::<_, BenchError>((before?, after?))
    })?;
    Ok(observed(&before, &after, receiving.verdict(&before, &after)))
}

impl Receiving {
    fn start(flood: &Flood, cell: &Cell<'_>, core: usize) -> Result<Receiving, BenchError> {
        let pair = Pair::make(1, ServerStack::Kernel)?;
        let address = pair.server.address();
        let flows = cell.flows as u16;
        let bind =
            || (0..flows).map(|flow| socket((address, PORT_FIRST + flow).into())).collect::<io::Result<Vec<_>>>();
        let sockets = pair.server.within(bind)??;
        let sinks = Sinks::start(core, sockets.into_iter().map(receive))?;
        let threaded = cell.mode.has_threads();
        let delivery = match threaded {
            true => set_napis(&pair.server, cell.mode.mode(), core)?,
            false => {
                steer(&pair, core)?;
                ksoftirqds(&[core])
            }
        };
        for thread in delivery.iter().filter(|_| threaded) {
            if let Some(policy) = flood.policy {
                linux_sched::set_policy(*thread, policy).map_err(|error| {
                    let remedy = linux_sched::remedy(&error);
                    BenchError::Invalid(format!("cannot run NAPI thread {thread} as {policy}: {error}; {remedy}"))
                })?;
            }
        }
        Ok(Receiving { sinks, pair, delivery, threaded })
    }

    fn marks(&self) -> Result<Marks, BenchError> {
        let Pair { server, client } = &self.pair;
        // What the pair's queue has no room for counts as dropped by its sender, what the core's backlog has none for by the
        // receiver.
        let sent = client.within(|| device_counts(client.device()).send_dropped)?;
        let (received, socket) = server.within(|| (device_counts(server.device()).receive_dropped, socket_drops()))?;
        Ok(Marks {
            at: Instant::now(),
            received: self.sinks.received(),
            ring: sent + received,
            socket,
            sinks: self.sinks.sched(),
            delivery: SchedStat::read(&self.delivery),
            napi: None,
        })
    }

    fn verdict(&self, before: &Marks, after: &Marks) -> Enforcement {
        if after.received == before.received {
            return Enforcement::not_in_force("no sink got a datagram, so there is nothing to see the mode by");
        }
        if self.threaded && !after.delivery.since(&before.delivery).ran() {
            return Enforcement::not_in_force("the NAPI's thread did not run");
        }
        Enforcement::InForce
    }
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_read_timeout(Some(LOOK_INTERVAL))?;
    Ok(socket)
}

fn receive(socket: UdpSocket) -> impl FnMut() -> io::Result<bool> + Send + 'static {
    let mut buffer = vec![0; BUFFER_BYTES];
    move || match socket.recv(&mut buffer) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts the settings of a mode on the NAPIs of one end, in its namespace. Their threads, if the mode has some, are on `core`
/// when this returns them.
pub fn set_napis(side: &Side, mode: &Mode, core: usize) -> Result<Vec<i32>, BenchError> {
    let work = || -> Result<Vec<i32>, BenchError> {
        let mut netdev = Netdev::new();
        let ifindex = Device::open(side.device(), &mut netdev, &Roots::default()).map_err(linux)?.ifindex;
        for napi in netdev.napis(ifindex).map_err(linux)? {
            let change = NapiChange::between(&napi.settings, &mode.napi);
            if !change.is_empty() {
                netdev.set(napi.id, &change).map_err(linux)?;
            }
        }
        if mode.napi.threaded == Threaded::Off {
            return Ok(Vec::new());
        }
        napi_threads::pin(&mut netdev, ifindex, &[core])
    };
    side.within(work)?
}

/// Receive packet steering of the server's device to one core. `/sys` shows the devices of the namespace in which it was
/// mounted, so a process with a mount of its own writes it.
pub fn steer(pair: &Pair, core: usize) -> Result<(), BenchError> {
    let failed = |why: String| BenchError::Invalid(format!("cannot steer packets to core {core} (RPS): {why}"));
    // The mask is in groups of 32 bits, the highest first.
    let mut groups = vec!["00000000".to_owned(); core / 32];
    groups.insert(0, format!("{:x}", 1_u32 << (core % 32)));
    let script = "mount -t sysfs sysfs /sys && echo \"$2\" > \"/sys/class/net/$1/queues/rx-0/rps_cpus\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", pair.server.device(), &groups.join(",")]);
    let output = pair.server.within(|| command.output())?;
    let output = output.map_err(|error| failed(format!("cannot run unshare ({error}); install util-linux")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(failed(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("no reason given").to_owned()))
        }
    }
}

/// Datagrams that sockets of the calling thread's namespace had no room for.
fn socket_drops() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let at = names.split_whitespace().position(|name| name == "RcvbufErrors");
    at.and_then(|at| values.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0)
}
