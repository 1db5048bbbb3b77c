//! A flood on lull's own stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_host::{Host, HostConfig, pin_thread, usable_cores};
use lull_linux::sched::{self as linux_sched, ThreadPolicy};
use lull_net::{GroupCpus, Network, NetworkConfig, UdpOptions, UdpSocket};
use lull_nic::mem::{self, MemConfig};
use lull_nic::tap::{Tap, TapConfig};
use lull_nic::{Device, Queue, wire};

use super::sched::SchedStat;
use super::senders::{self, Station};
use super::sinks::{BUFFER_BYTES, LOOK_INTERVAL, Sinks};
use super::{Cell, Flood, Marks, PORT_FIRST, Path, observed};
use crate::bench::{BenchError, CLIENT_IP, GroupSetup, SERVICE_IP};
use crate::case::{Effort, Observed};
use crate::cell::Enforcement;
use crate::check::{Evidence, enforcement};

/// The slots of the ring, as many as virtio_net has.
const RING_SLOTS: usize = 256;
/// The largest IP packet.
const MTU_BYTES: usize = 1_500;
/// How long the sent frames may take to be counted once the senders have ended. It only bounds a failure.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a warm-up or a window without any arrival goes on. Then that is the result.
const FIRST_ARRIVAL_MAX: Duration = Duration::from_secs(20);
/// How late a stop is noticed.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
/// The interval at which to check whether something has arrived.
const DRAIN_INTERVAL: Duration = Duration::from_millis(1);

/// Returns why a row is impossible over the in-memory NIC. The kernel sends as many fragments as a datagram takes.
pub fn refusal(bytes: usize) -> Option<String> {
    let most = MTU_BYTES - wire::IPV4 - wire::UDP;
    (bytes > most).then(|| {
        format!(
            "the in-memory generator does not send fragments: {most} bytes are what one frame of {MTU_BYTES} holds; use the TAP"
        )
    })
}

/// The receiving machine: one CPU with the queue's interrupt, and those of a group's pollers.
struct Machine {
    // The fields stand in the order in which they have to be dropped.
    sinks: Sinks,
    network: Network,
    host: Host,
    /// The queue on which the generator sends, on the in-memory NIC.
    queue: Option<Queue>,
    /// This keeps that NIC's other end.
    _peer: Option<Arc<dyn Device>>,
    tap: Option<String>,
}

/// Measures one run of a row, on a machine of its own.
pub(super) fn measure(
    flood: &Flood,
    cell: &Cell<'_>,
    cores: &[usize],
    effort: &Effort<'_>,
) -> Result<Observed, BenchError> {
    let mut machine = Machine::start(flood, cell, cores[0])?;
    let over = AtomicBool::new(false);
    let queue = machine.queue.take();
    let frames = machine.frames(cell);
    let (sent, before, after) = std::thread::scope(|scope| {
        let (machine, over) = (&machine, &over);
        let sending = scope.spawn(move || {
            pin_thread(&cores[1..2])?;
            let ports = PORT_FIRST..PORT_FIRST + cell.flows as u16;
            match queue {
                Some(queue) => Ok(senders::on_ring(queue, &frames, flood.per_second, over)),
                None => senders::over_sockets(SERVICE_IP, ports, cell.bytes, flood.per_second, over),
            }
        });
        let received = || machine.sinks.received();
        pass(effort, effort.warm_up, received);
        let before = machine.marks();
        pass(effort, effort.window, received);
        let after = machine.marks();
        over.store(true, Ordering::Relaxed);
        let sent = sending.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))??;
        Ok::<_, BenchError>((sent, before, after))
    })?;
    if flood.path == Path::Mem {
        machine.account_for(sent)?;
    }
    let verdict = machine.verdict(cell, &before, &after);
    Ok(observed(&before, &after, verdict))
}

/// Waits for `time`, and then until `arrived` has grown since the call or the run is stopped. A window without arrivals
/// would show nothing, and on a busy machine a generator may get its first turn only after a warm-up's time.
pub fn pass(effort: &Effort<'_>, time: Duration, arrived: impl Fn() -> u64) {
    let (begun, before) = (Instant::now(), arrived());
    while !effort.stop.load(Ordering::Relaxed) {
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() && (arrived() != before || begun.elapsed() > time + FIRST_ARRIVAL_MAX) {
            return;
        }
        std::thread::sleep(left.clamp(DRAIN_INTERVAL, STOP_INTERVAL));
    }
}

impl Machine {
    fn start(flood: &Flood, cell: &Cell<'_>, core: usize) -> Result<Machine, BenchError> {
        let (device, peer): (Arc<dyn Device>, Option<Arc<dyn Device>>) = match flood.path {
            Path::Tap => (Arc::new(tap()?), None),
            _ => {
                let config = MemConfig { ring_slots: RING_SLOTS, drop_when_full: true, ..MemConfig::default() };
                let (ours, theirs) = mem::pair(config);
                (Arc::new(ours), Some(Arc::new(theirs)))
            }
        };
        let tap = peer.is_none().then(|| device.info().name);
        let setup = flood.group.clone().unwrap_or_else(|| GroupSetup { cores: vec![core], ..GroupSetup::default() });
        let grouped = cell.mode.mode().group.is_some();
        let mut cpus = vec![Some(core)];
        if grouped {
            cpus.extend(setup.cores.iter().map(|core| Some(*core)));
        }
        let group = grouped.then(|| GroupCpus { cpus: (1..cpus.len() as u16).collect(), options: setup.options });
        let host = Host::new(HostConfig { cpus, realtime: cell.mode.is_realtime(), ..HostConfig::default() })?;
        let config = NetworkConfig {
            addresses: vec![(SERVICE_IP.into(), 24)],
            neighbours: peer.iter().map(|peer| (IpAddr::V4(CLIENT_IP), peer.info().mac)).collect(),
            cpus: vec![0],
            group,
            ..NetworkConfig::default()
        };
        let network = Network::new(&host, device, config)?;
        // No epoll context has the sinks: the modes of a flood need none.
        network.set_mode(cell.mode.mode())?.without_epoll().map_err(io::Error::from)?;
        if let Some(policy) = flood.policy {
            set_policy(&host, policy)?;
        }
        let sockets = (0..cell.flows as u16).map(|flow| sink_socket(&network, PORT_FIRST + flow));
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        let sinks = Sinks::start(core, sockets.into_iter().map(receive))?;
        let queue = peer.as_ref().map(|peer| peer.take_queue(0)).transpose()?;
        Ok(Machine { sinks, network, host, queue, _peer: peer, tap })
    }

    /// Returns a frame for each flow.
    fn frames(&self, cell: &Cell<'_>) -> Vec<Vec<u8>> {
        let Some(peer) = &self._peer else { return Vec::new() };
        let from = Station { mac: peer.info().mac, ip: CLIENT_IP };
        let to = Station { mac: self.network.device().info().mac, ip: SERVICE_IP };
        (0..cell.flows as u16).map(|flow| senders::datagram(from, to, PORT_FIRST + flow, cell.bytes)).collect()
    }

    fn marks(&self) -> Marks {
        let delivery: Vec<i32> = self.host.threads().into_iter().map(|thread| thread.tid).collect();
        let napi = self.host.napi_stats(self.network.napis()[0]);
        Marks {
            at: Instant::now(),
            received: self.sinks.received(),
            ring: match &self.tap {
                // If the reader of the TAP leaves frames there, the kernel drops further ones in front of it.
                Some(name) => device_counts(name).send_dropped,
                None => self.network.device().counters(0).rx_dropped,
            },
            socket: self.network.stack_counters()[0].drop_socket_full,
            sinks: self.sinks.sched(),
            delivery: SchedStat::read(&delivery),
            delivery_sleeps: 0,
            napi: Some(napi),
        }
    }

    /// Waits until every frame that the ring took was received, or dropped and counted.
    fn account_for(&self, sent: u64) -> Result<(), BenchError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let Marks { received, ring, socket, .. } = self.marks();
            if received + ring + socket == sent {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(BenchError::Invalid(format!(
                    "of {sent} datagrams sent, {received} were received, {ring} dropped by the ring and {socket} by sockets: \
                     the rest is lost"
                )));
            }
            std::thread::sleep(DRAIN_INTERVAL);
        }
    }

    fn verdict(&self, cell: &Cell<'_>, before: &Marks, after: &Marks) -> Enforcement {
        if cell.mode.is_realtime()
            && let Some(error) = self.host.realtime_error()
        {
            return Enforcement::not_in_force(format!("the interrupt contexts run without SCHED_FIFO: {error}"));
        }
        let Some((then, now)) = before.napi.zip(after.napi) else {
            return Enforcement::not_in_force("nothing was counted");
        };
        let evidence = Evidence::of_core(&(now - then), None, after.received - before.received);
        enforcement(cell.mode.mode(), &evidence)
    }
}

/// Makes a TAP. The kernel's side of it has the senders' address.
fn tap() -> Result<Tap, BenchError> {
    let tap = Tap::open(TapConfig::default())?;
    tap.kernel_side(CLIENT_IP.into(), 24)?;
    Ok(tap)
}

fn sink_socket(network: &Network, port: u16) -> io::Result<UdpSocket> {
    let address = SocketAddr::from((SERVICE_IP, port));
    let socket = UdpSocket::bind_with(network, 0, address, UdpOptions::default())?;
    socket.set_read_timeout(Some(LOOK_INTERVAL))?;
    Ok(socket)
}

fn receive(socket: UdpSocket) -> impl FnMut() -> io::Result<bool> + Send + 'static {
    let mut buffer = vec![0; BUFFER_BYTES];
    move || match socket.recv(&mut buffer) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives every NAPI thread of a host a policy. The deadline policy is for threads that may run on all cores.
fn set_policy(host: &Host, policy: ThreadPolicy) -> Result<(), BenchError> {
    let everywhere = usable_cores();
    let cpus = matches!(policy, ThreadPolicy::Deadline { .. }).then_some(&everywhere[..]);
    for thread in host.napis().iter().filter_map(|napi| napi.thread) {
        if let Some(cpus) = cpus {
            linux_sched::set_cpus(thread, cpus)?;
        }
        linux_sched::set_policy(thread, policy).map_err(|error| {
            let remedy = linux_sched::remedy(&error);
            BenchError::Invalid(format!("cannot run NAPI thread {thread} as {policy}: {error}; {remedy}"))
        })?;
    }
    Ok(())
}

/// The kernel's counters of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceCounts {
    /// Frames that were received.
    pub received: u64,
    /// Received frames that were dropped.
    pub receive_dropped: u64,
    /// Frames that the device should have sent, and dropped.
    pub send_dropped: u64,
}

/// Returns the kernel's counters of a device of the calling thread's namespace.
pub fn device_counts(name: &str) -> DeviceCounts {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:")).map(str::to_owned));
    let fields: Vec<u64> = line.unwrap_or_default().split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // The fields are bytes, packets, errs, drop, fifo, frame, compressed and multicast, then the same eight for
    // sending.
    let field = |at: usize| fields.get(at).copied().unwrap_or(0);
    DeviceCounts { received: field(1), receive_dropped: field(3), send_dropped: field(11) }
}
