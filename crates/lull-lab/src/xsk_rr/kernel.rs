//! The benchmark on the kernel plane: AF_XDP sockets of the kernel, on the two ends of a veth pair or on one interface.
//!
//! The sockets are opened by lull's own loader. They copy, as the posted tool asks for (XDP_COPY), unless zero-copy is
//! asked for and the driver has it. The output says which of the two is in use.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lull_core::{Mode, NapiSettings, Threaded};
use lull_linux::Roots;
use lull_linux::device::Device as LinuxDevice;
use lull_linux::netdev::{NapiChange, Netdev};
use lull_linux::polls::{Options, Polls};
use lull_nic::xdp::{Xdp, XdpBusyPoll, XdpCalls, XdpConfig};
use lull_nic::{Device, Doorbell, Frame, FramePool, Link, RxQueue, TxQueue};

use super::frame::Addresses;
use super::record::Report;
use super::user::Shown;
use super::{BUSY_POLL_BUDGET, Ends, Outcome, Placement, RawSocket, Settings, run};
use crate::bench::BenchError;
use crate::bench::kernel::pair::{Pair, ServerStack, Side, linux};
use crate::bench::kernel::traced::Traced;
use crate::bench::kernel::{napi_threads, usage};
use crate::cell::Enforcement;
use crate::check::{Evidence, enforcement};

/// How long a link may take to come up.
const LINK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the trace is read.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// The most doorbells of one send call. If the device takes nothing for now, the next call asks it again.
const DOORBELLS_MAX: usize = 64;
/// The number of frames taken off the ring at a time.
const BATCH: usize = 64;

/// An AF_XDP socket of the kernel.
pub struct XdpSocket {
    device: Arc<Xdp>,
    rx: Mutex<Received>,
    tx: Mutex<Sending>,
    calls: XdpCalls,
}

struct Received {
    queue: Box<dyn RxQueue>,
    pool: FramePool,
    frames: VecDeque<Frame>,
}

struct Sending {
    queue: Box<dyn TxQueue>,
    pool: FramePool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked has moved only whole frames.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl XdpSocket {
    /// Opens queue `queue` of an interface of the calling thread's namespace. The socket takes all frames of the queue.
    ///
    /// # Errors
    ///
    /// This fails if the process lacks the right, if there is no such interface or queue, or if another program has the
    /// queue.
    pub fn open(interface: &str, queue: u32, settings: &Settings, zero_copy: bool) -> Result<XdpSocket, BenchError> {
        let mode = settings.polling.mode();
        let busy_poll = if settings.polling.calls_poll() {
            XdpBusyPoll::ByCalls { usecs: mode.socket_busy_poll_usecs, budget: BUSY_POLL_BUDGET }
        } else {
            XdpBusyPoll::Off
        };
        let config = XdpConfig {
            name: interface.to_owned(),
            queues: vec![queue],
            busy_poll,
            copy: !zero_copy,
            ..XdpConfig::default()
        };
        let device = Arc::new(Xdp::open(&config)?);
        let queue = device.take_queue(0)?;
        let Some(calls) = device.calls(0) else { unreachable!("the device has the queue that was just taken") };
        let pool = || FramePool::new(BATCH);
        Ok(XdpSocket {
            rx: Mutex::new(Received { queue: queue.rx, pool: pool(), frames: VecDeque::new() }),
            tx: Mutex::new(Sending { queue: queue.tx, pool: pool() }),
            calls,
            device,
        })
    }

    /// Waits until frames can be sent, because the kernel reports a carrier with a delay (`linkwatch`).
    fn wait_for_link(&self) -> Result<(), BenchError> {
        let until = Instant::now() + LINK_TIMEOUT;
        while self.device.link() == Link::Down {
            if Instant::now() > until {
                let name = self.device.info().name;
                return Err(BenchError::Invalid(format!(
                    "cannot send by {name}: its link is down; bring it up (ip link)"
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns the interface's Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.device.info().mac
    }

    /// Returns how it works, in words.
    pub fn words(&self) -> String {
        let report = self.device.report();
        let copies = if report.zero_copy.iter().all(|zero_copy| *zero_copy) { "zero-copy" } else { "copy mode" };
        format!("AF_XDP, {} program, {copies}", report.mode)
    }

    /// Returns why calls on it cannot poll the driver, or `None` if they do.
    fn cannot_busy_poll(&self) -> Option<String> {
        if let lull_nic::xdp::BusyPoll::Refused(why) = self.device.report().busy_poll {
            return Some(format!("the kernel refused SO_PREFER_BUSY_POLL: {why}"));
        }
        (self.calls.napi_id() == 0).then(|| {
            "SO_BUSY_POLL has no effect: the driver names no NAPI that can be polled (SO_INCOMING_NAPI_ID is 0, as on a veth)"
                .to_owned()
        })
    }
}

impl RawSocket for XdpSocket {
    fn send(&self, frame: &[u8]) -> io::Result<bool> {
        let Sending { queue, pool } = &mut *lock(&self.tx);
        queue.reap_sent(pool);
        if queue.free_slots() == 0 {
            queue.doorbell();
            return Ok(false);
        }
        let mut copy = pool.alloc_for(frame.len());
        copy.set_len(frame.len());
        copy.data_mut().copy_from_slice(frame);
        if let Err(copy) = queue.transmit(copy) {
            pool.recycle(copy);
            return Ok(false);
        }
        for _ in 0..DOORBELLS_MAX {
            if queue.doorbell() == Doorbell::Done {
                break;
            }
        }
        Ok(true)
    }

    fn try_recv(&self, buffer: &mut [u8]) -> Option<usize> {
        let Received { queue, pool, frames } = &mut *lock(&self.rx);
        if frames.is_empty() {
            queue.poll(BATCH, pool, &mut |frame, _| frames.push_back(frame));
        }
        let frame = frames.pop_front()?;
        let mut bytes = 0;
        for segment in frame.segments() {
            let room = &mut buffer[bytes..];
            let fits = segment.len().min(room.len());
            room[..fits].copy_from_slice(&segment.data()[..fits]);
            bytes += fits;
        }
        pool.recycle(frame);
        Some(bytes)
    }

    fn receive_call(&self) {
        self.calls.receive();
    }
}

/// Returns why the kernel cannot poll in this way, or `None` if it can.
pub fn refusal(settings: &Settings) -> Option<String> {
    let mode = settings.polling.mode();
    if mode.group.is_some() {
        return Some(
            "Linux has no busy-polling groups of CPUs; the nearest is threaded-busy, a thread for each NAPI (Linux 6.19)"
                .to_owned(),
        );
    }
    lull_linux::plan::check_kernel_has(&mode).err().map(|error| error.to_string())
}

/// Runs client and server on AF_XDP sockets at the two ends of a veth pair, in namespaces that end with it.
///
/// # Errors
///
/// This fails without root, `ip` or tracefs, or if the kernel refuses a setting.
pub fn veth(
    settings: &Settings,
    placement: &Placement,
    stop: &AtomicBool,
    on_report: &mut (dyn FnMut(Report) + Send),
) -> Result<(Shown, String), BenchError> {
    settings.check()?;
    if let Some(reason) = refusal(settings) {
        return Err(BenchError::Invalid(format!("cannot poll by {}: {reason}", settings.polling.name())));
    }
    let pair = Pair::make(1, ServerStack::Lull)?;
    let open = |side: &Side| -> Result<XdpSocket, BenchError> {
        side.within(|| XdpSocket::open(side.device(), 0, settings, false))?
    };
    let (client, server) = (open(&pair.client)?, open(&pair.server)?);
    client.wait_for_link()?;
    server.wait_for_link()?;
    let mode = settings.polling.mode();
    let mut threads = Vec::new();
    for (side, core) in [(&pair.client, placement.client_irq), (&pair.server, placement.server_irq)] {
        threads = side.within(|| set_mode(side.device(), &mode, core))??;
    }
    let words = server.words();
    let options = Options { timers: true, ..Options::default() };
    let polls = Polls::open(pair.server.device(), options).map_err(trace_error)?;
    let server_threads = Mutex::default();
    let ends = Ends {
        client: Some(&client),
        server: Some(&server),
        addresses: Addresses { from: client.mac(), to: server.mac() },
        threads: &server_threads,
    };
    let sleeps = |threads: &[i32]| threads.iter().filter_map(|tid| usage::sleeps(*tid)).sum::<u64>();
    let slept = sleeps(&threads);
    let run = || run(ends, settings, placement, stop, on_report);
    let (outcome, mut traced) = traced(polls, &mode, run)?;
    let Some(outcome) = outcome else { unreachable!("there is a client") };
    let slept = sleeps(&threads).saturating_sub(slept);
    let evidence = traced.evidence(&lock(&server_threads), outcome.answered, slept);
    let cannot = settings.polling.calls_poll().then(|| server.cannot_busy_poll()).flatten();
    let verdict = cannot.map_or_else(|| enforcement(&mode, &evidence), Enforcement::not_in_force);
    Ok((Shown { outcome, verdict, realtime_refused: None }, words))
}

/// Returns the result of `run`, and what the trace shows meanwhile.
fn traced(
    mut polls: Polls,
    mode: &Mode,
    run: impl FnOnce() -> Result<Option<Outcome>, BenchError>,
) -> Result<(Option<Outcome>, Traced), BenchError> {
    let over = AtomicBool::new(false);
    let mut traced = Traced::new(mode);
    let outcome = std::thread::scope(|scope| {
        let reading = scope.spawn(|| -> Result<(), BenchError> {
            loop {
                let last = over.load(Ordering::Acquire);
                polls.drain(|record| traced.add(record)).map_err(trace_error)?;
                if last {
                    return Ok(());
                }
                std::thread::sleep(DRAIN_INTERVAL);
            }
        });
        let outcome = run();
        over.store(true, Ordering::Release);
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        outcome
    })?;
    traced.sum();
    Ok((outcome, traced))
}

/// Runs one end on an interface of this namespace: a client whose server is `server_mac`, or, without that, the server
/// until `stop`. The interface's settings are not changed. If the client's calls poll, their polls are counted, and its
/// NAPI's settings are compared with those of the mode.
///
/// # Errors
///
/// This fails for the same reasons as [`XdpSocket::open`].
pub fn one(
    (interface, queue, zero_copy): (&str, u32, bool),
    server_mac: Option<[u8; 6]>,
    settings: &Settings,
    placement: &Placement,
    stop: &AtomicBool,
    on_report: &mut (dyn FnMut(Report) + Send),
) -> Result<(Option<Shown>, String), BenchError> {
    settings.check()?;
    let socket = XdpSocket::open(interface, queue, settings, zero_copy)?;
    socket.wait_for_link()?;
    let words = socket.words();
    let threads = Mutex::default();
    let ends = Ends {
        client: server_mac.is_some().then_some(&socket),
        server: server_mac.is_none().then_some(&socket),
        addresses: Addresses { from: socket.mac(), to: server_mac.unwrap_or(socket.mac()) },
        threads: &threads,
    };
    let mode = settings.polling.mode();
    let is_judged = settings.polling.calls_poll() && server_mac.is_some();
    let polls = is_judged.then(|| Polls::open(interface, Options { timers: true, ..Options::default() }));
    let run = || run(ends, settings, placement, stop, on_report);
    let (outcome, evidence) = match polls {
        None => (run()?, Err("nobody asked".to_owned())),
        Some(Err(error)) => (run()?, Err(error.to_string())),
        Some(Ok(polls)) => {
            let (outcome, mut traced) = traced(polls, &mode, run)?;
            let answered = outcome.as_ref().map_or(0, |outcome| outcome.answered);
            // The interface's NAPIs may have threads. The mode excludes them, so their sleeps are not counted.
            (outcome, Ok(traced.evidence(&lock(&threads), answered, 0)))
        }
    };
    let shown = outcome.map(|outcome| {
        let verdict = match is_judged {
            true => {
                let cannot = socket.cannot_busy_poll();
                verdict_of_one((interface, &mode), cannot, settings_of(interface, socket.calls.napi_id()), evidence)
            }
            false => Enforcement::not_in_force(format!(
                "the interface's settings are whoever's that set them: lull stat {interface} says who polls"
            )),
        };
        Shown { outcome, verdict, realtime_refused: None }
    });
    Ok((shown, words))
}

/// Whether a mode whose calls poll was in force on an interface with settings of another program: its sockets can poll,
/// its NAPI has the mode's settings, and the counted polls are those of the mode.
fn verdict_of_one(
    (interface, mode): (&str, &Mode),
    cannot: Option<String>,
    settings: Result<NapiSettings, String>,
    evidence: Result<Evidence, String>,
) -> Enforcement {
    if let Some(why) = cannot {
        return Enforcement::not_in_force(why);
    }
    match settings {
        Ok(settings) if NapiChange::between(&settings, &mode.napi).is_empty() => {}
        Ok(settings) => {
            let thread = if settings.threaded == mode.napi.threaded { "" } else { " and a thread" };
            return Enforcement::not_in_force(format!(
                "the queue of {interface} has gro-flush-timeout {} and defer-hard-irqs {}{thread}, and the mode {} and {}: lull \
                 apply {interface} --mode {mode} sets them",
                settings.gro_flush_timeout_ns,
                settings.defer_hard_irqs,
                mode.napi.gro_flush_timeout_ns,
                mode.napi.defer_hard_irqs
            ));
        }
        Err(why) => return Enforcement::not_in_force(format!("the settings of {interface} cannot be read: {why}")),
    }
    match evidence {
        Ok(evidence) => enforcement(mode, &evidence),
        Err(why) => Enforcement::not_in_force(format!("the polls of {interface} cannot be counted: {why}")),
    }
}

/// Returns the settings in force on the NAPI with this id.
fn settings_of(interface: &str, napi_id: u32) -> Result<NapiSettings, String> {
    let (mut netdev, roots) = (Netdev::new(), Roots::default());
    let device = LinuxDevice::open(interface, &mut netdev, &roots).map_err(|error| error.to_string())?;
    let snapshot = device.snapshot(&mut netdev, &roots).map_err(|error| error.to_string())?;
    let napi = snapshot.napis.iter().find(|napi| napi.id == napi_id).ok_or("it has no such NAPI any more")?;
    let values =
        napi.in_force(snapshot.defaults.as_ref()).ok_or("this kernel tells those of the whole device alone")?;
    Ok(values.into())
}

/// Puts the interface's half of a mode in force on every NAPI, with its threads on `core`. Returns the threads.
fn set_mode(device: &str, mode: &Mode, core: usize) -> Result<Vec<i32>, BenchError> {
    let mut netdev = Netdev::new();
    let device = LinuxDevice::open(device, &mut netdev, &Roots::default()).map_err(linux)?;
    for napi in netdev.napis(device.ifindex).map_err(linux)? {
        let change = NapiChange::between(&napi.settings, &mode.napi);
        if !change.is_empty() {
            netdev.set(napi.id, &change).map_err(linux)?;
        }
    }
    if mode.napi.threaded == Threaded::Off {
        return Ok(Vec::new());
    }
    napi_threads::pin(&mut netdev, device.ifindex, &[core])
}

fn trace_error(error: lull_linux::polls::PollsError) -> BenchError {
    BenchError::Invalid(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::ThreadsRest;

    #[test]
    fn at_one_end_a_mode_is_in_force_only_where_its_settings_and_its_polls_are_seen() {
        let mode: Mode = "busyread".parse().unwrap();
        let evidence = Evidence {
            queries: 100,
            busy_polls: 50,
            thread_polls: 0,
            softirq_polls: 3,
            group_polls: 0,
            threads_rest: ThreadsRest::Sleeps { sleeps: 0, empty_polls: 0 },
            deferrals: 5,
            suspensions: 0,
            lateness_ns: None,
        };
        let reason = |cannot: Option<&str>, settings, evidence| {
            let cannot = cannot.map(str::to_owned);
            verdict_of_one(("eth0", &mode), cannot, settings, evidence).reason().unwrap_or_default().to_owned()
        };
        assert_eq!(reason(None, Ok(mode.napi), Ok(evidence)), "");
        assert_eq!(reason(Some("the kernel refused"), Ok(mode.napi), Ok(evidence)), "the kernel refused");
        let off = reason(None, Ok(NapiSettings::default()), Ok(evidence));
        assert!(off.contains("the queue of eth0 has gro-flush-timeout 0 and defer-hard-irqs 0, and the mode"), "{off}");
        let unread = reason(None, Err("there is no netlink".to_owned()), Ok(evidence));
        assert!(unread.contains("cannot be read: there is no netlink"), "{unread}");
        let uncounted = reason(None, Ok(mode.napi), Err("there is no tracefs".to_owned()));
        assert!(uncounted.contains("cannot be counted: there is no tracefs"), "{uncounted}");
        for unlike in [
            Evidence { queries: 0, ..evidence },
            Evidence { busy_polls: 0, ..evidence },
            Evidence { deferrals: 0, ..evidence },
            Evidence { thread_polls: 7, ..evidence },
        ] {
            assert_ne!(reason(None, Ok(mode.napi), Ok(unlike)), "", "{unlike:?}");
        }
    }
}
