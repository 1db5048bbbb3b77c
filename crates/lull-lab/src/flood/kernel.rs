//! A flood on Linux's stack, over a veth pair between two network namespaces, whose settings end with them.

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
use crate::bench::kernel::usage::sleeps;
use crate::case::{Effort, Observed};
use crate::cell::Enforcement;

/// Returns why a mode is impossible here.
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

/// The receiving half: the sinks, and the threads that deliver to them.
struct Receiving {
    sinks: Sinks,
    pair: Pair,
    /// The NAPI's thread, or the ksoftirqd of the sinks' core.
    delivery: Vec<i32>,
    mode: Mode,
}

/// Measures one run of a row, in namespaces of its own.
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
        Ok(Receiving { sinks, pair, delivery, mode: cell.mode.mode().clone() })
    }

    fn marks(&self) -> Result<Marks, BenchError> {
        let Pair { server, client } = &self.pair;
        // Frames that the pair's queue has no room for count as dropped by its sender, and frames that the core's
        // backlog has no room for as dropped by the receiver.
        let sent = client.within(|| device_counts(client.device()).send_dropped)?;
        let (received, socket) = server.within(|| (device_counts(server.device()).receive_dropped, socket_drops()))?;
        Ok(Marks {
            at: Instant::now(),
            received: self.sinks.received(),
            ring: sent + received,
            socket,
            sinks: self.sinks.sched(),
            delivery: SchedStat::read(&self.delivery),
            delivery_sleeps: sleeps_of(&self.delivery),
            napi: None,
        })
    }

    fn verdict(&self, before: &Marks, after: &Marks) -> Enforcement {
        if after.received == before.received {
            return Enforcement::not_in_force("no sink got a datagram, so there is nothing to see the mode by");
        }
        let sleeps = after.delivery_sleeps.saturating_sub(before.delivery_sleeps);
        let seconds = (after.at - before.at).as_secs_f64();
        threads_in_force(&self.mode, &after.delivery.since(&before.delivery), sleeps, seconds)
    }
}

/// Returns how often these threads have gone to sleep.
pub fn sleeps_of(threads: &[i32]) -> u64 {
    threads.iter().filter_map(|tid| sleeps(*tid)).sum()
}

/// A thread that never slept was awake for at least this share of the time, since the kernel's counters are coarse.
const AWAKE_SHARE_MIN: f64 = 0.9;

/// Whether the NAPI's thread did what the mode says, by the scheduler's counters of a window. A thread that busy polls
/// never sleeps. If it did sleep for a lock of a real-time kernel, it was awake for nearly all of the time. A thread
/// that is woken for work may not sleep either, as long as there is always some.
pub fn threads_in_force(mode: &Mode, ran: &SchedStat, sleeps: u64, seconds: f64) -> Enforcement {
    match mode.napi.threaded {
        Threaded::On | Threaded::BusyPoll if !ran.ran() => Enforcement::not_in_force("the NAPI's thread did not run"),
        Threaded::BusyPoll if sleeps > 0 && ran.awake_share(seconds) < AWAKE_SHARE_MIN => {
            Enforcement::not_in_force("the NAPI's thread slept until there was work: it did not busy poll")
        }
        _ => Enforcement::InForce,
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

/// Puts the settings of a mode on the NAPIs of one end, in its namespace. Returns their threads, if the mode has some,
/// which then run on `core`.
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

/// Steers the packets of the server's device to one core (RPS). `/sys` shows the devices of the namespace in which it
/// was mounted, so a process with a mount of its own writes the setting.
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

/// Returns the number of datagrams that sockets of the calling thread's namespace had no room for.
fn socket_drops() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let at = names.split_whitespace().position(|name| name == "RcvbufErrors");
    at.and_then(|at| values.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::Path;

    #[test]
    fn a_thread_that_sleeps_until_there_is_work_is_no_busy_polling_one() {
        let in_force = |mode: &str, run_ms: u64, wait_ms: u64, sleeps| {
            let ran = SchedStat::of_ns(run_ms * 1_000_000, wait_ms * 1_000_000);
            threads_in_force(&mode.parse().unwrap(), &ran, sleeps, 1.0) == Enforcement::InForce
        };
        assert!(in_force("threaded-busy", 600, 400, 0));
        assert!(in_force("threaded-busy", 300, 200, 0), "it never slept, whatever was counted");
        assert!(in_force("threaded-busy", 600, 380, 5), "it slept for a lock");
        assert!(!in_force("threaded-busy", 300, 100, 5_000));
        assert!(in_force("threaded", 300, 100, 5_000) && in_force("threaded", 900, 100, 0));
        assert!(!in_force("threaded", 0, 100, 0) && !in_force("threaded-busy", 0, 100, 0));
        assert!(in_force("base", 0, 0, 0));
    }

    /// A veth pair whose receiving NAPI has a thread that sleeps is labelled as one that busy polls.
    #[test]
    fn threaded_napis_behind_a_row_of_threaded_busy_are_not_in_force() {
        let threaded: FloodMode = "threaded".parse().unwrap();
        if !rustix::process::geteuid().is_root() || refusal(&threaded).is_some() {
            println!("SKIP: a flood of a veth pair with NAPI threads takes root and a kernel that has them");
            return;
        }
        let cores = lull_host::usable_cores();
        let flood = Flood {
            bytes: vec![64],
            flows: vec![1],
            modes: vec![threaded.clone()],
            path: Path::Kernel,
            per_second: None,
            cores: Vec::new(),
            policy: None,
            group: None,
        };
        let mut receiving = match Receiving::start(&flood, &Cell { bytes: 64, flows: 1, mode: &threaded }, cores[0]) {
            Ok(receiving) => receiving,
            Err(error) => {
                println!("SKIP: no veth pair with NAPI threads here: {error}");
                return;
            }
        };
        let std::net::IpAddr::V4(to) = receiving.pair.server.address() else { panic!("an IPv4 address") };
        let socket = receiving.pair.client.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        let before = receiving.marks().unwrap();
        let after = loop {
            receiving.pair.client.within(|| socket.send_to(&[0; 64], (to, PORT_FIRST))).unwrap().unwrap();
            let after = receiving.marks().unwrap();
            if after.received > before.received && after.delivery_sleeps > before.delivery_sleeps + 10 {
                break after;
            }
            std::thread::yield_now();
        };
        assert_eq!(receiving.verdict(&before, &after), Enforcement::InForce, "it is threaded");
        receiving.mode = "threaded-busy".parse().unwrap();
        let verdict = receiving.verdict(&before, &after);
        // If the machine is busy, the thread may have waited for its core all the time.
        let seconds = (after.at - before.at).as_secs_f64();
        let was_awake = after.delivery.since(&before.delivery).awake_share(seconds) >= AWAKE_SHARE_MIN;
        assert!(was_awake || verdict.reason().is_some_and(|why| why.contains("did not busy poll")), "{verdict:?}");
    }
}
