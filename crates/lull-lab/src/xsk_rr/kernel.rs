//! The benchmark on the kernel plane: AF_XDP sockets of the kernel, on the two ends of a veth pair or on one interface.
//!
//! The sockets are opened by the project's own loader. They copy, as the posted tool asks for (XDP_COPY), unless zero-copy is
//! asked for and the driver has it; what it came to is said.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lull_core::{Mode, Threaded};
use lull_linux::Roots;
use lull_linux::device::Device as LinuxDevice;
use lull_linux::netdev::{NapiChange, Netdev};
use lull_linux::polls::{Options, Polls};
use lull_nic::xdp::{Xdp, XdpBusyPoll, XdpCalls, XdpConfig};
use lull_nic::{Device, Doorbell, Frame, FramePool, Link, RxQueue, TxQueue};

use super::frame::Addresses;
use super::record::Report;
use super::user::Shown;
use super::{BUSY_POLL_BUDGET, Ends, Placement, RawSocket, Settings, run};
use crate::bench::BenchError;
use crate::bench::kernel::pair::{Pair, ServerStack, Side, linux};
use crate::bench::kernel::traced::Traced;
use crate::bench::kernel::{napi_threads, usage};
use crate::cell::Enforcement;
use crate::check::enforcement;

/// How long a link may take to come up.
const LINK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the trace is read.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// Doorbells of one send call at most: a device that takes nothing for now is asked again by the next call.
const DOORBELLS_MAX: usize = 64;
/// Frames taken off the ring at a time.
const BATCH: usize = 64;

/// An AF_XDP socket of the kernel's.
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
    // Frames are moved whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl XdpSocket {
    /// Opens queue `queue` of an interface of the calling thread's namespace, whose frames it takes all.
    ///
    /// # Errors
    /// No right to, no such interface or queue, or another program has it.
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

    /// Waits until frames can be sent: a carrier is told of with a delay (`linkwatch`).
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

    /// The interface's Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.device.info().mac
    }

    /// How it works, in words.
    pub fn words(&self) -> String {
        let report = self.device.report();
        let copies = if report.zero_copy.iter().all(|zero_copy| *zero_copy) { "zero-copy" } else { "copy mode" };
        format!("AF_XDP, {} program, {copies}", report.mode)
    }

    /// Why calls on it cannot poll the driver; `None` if they do.
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

/// Why the kernel cannot poll so; `None` if it can.
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
/// No root, no `ip`, no tracefs, or a setting that the kernel refuses.
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
    let mut polls = Polls::open(pair.server.device(), options).map_err(trace_error)?;
    let server_threads = Mutex::default();
    let ends = Ends {
        client: Some(&client),
        server: Some(&server),
        addresses: Addresses { from: client.mac(), to: server.mac() },
        server_threads: &server_threads,
    };
    let sleeps = |threads: &[i32]| threads.iter().filter_map(|tid| usage::sleeps(*tid)).sum::<u64>();
    let slept = sleeps(&threads);
    let over = AtomicBool::new(false);
    let mut traced = Traced::new(&mode);
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
        let outcome = run(ends, settings, placement, stop, on_report);
        over.store(true, Ordering::Release);
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        outcome
    })?;
    let Some(outcome) = outcome else { unreachable!("there is a client") };
    traced.sum();
    let slept = sleeps(&threads).saturating_sub(slept);
    let evidence = traced.evidence(&lock(&server_threads), outcome.answered, slept);
    let cannot = settings.polling.calls_poll().then(|| server.cannot_busy_poll()).flatten();
    let verdict = cannot.map_or_else(|| enforcement(&mode, &evidence), Enforcement::not_in_force);
    Ok((Shown { outcome, verdict, realtime_refused: None }, words))
}

/// Runs one end on an interface of this namespace: a client whose server is `server_mac`, or, without that, the server until
/// `stop`. The interface's settings are left as they are.
///
/// # Errors
/// As [`XdpSocket::open`].
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
    let ends = Ends {
        client: server_mac.is_some().then_some(&socket),
        server: server_mac.is_none().then_some(&socket),
        addresses: Addresses { from: socket.mac(), to: server_mac.unwrap_or(socket.mac()) },
        server_threads: &Mutex::default(),
    };
    let outcome = run(ends, settings, placement, stop, on_report)?;
    let shown = outcome.map(|outcome| {
        let verdict = match settings.polling.calls_poll().then(|| socket.cannot_busy_poll()) {
            Some(Some(why)) => Enforcement::not_in_force(why),
            Some(None) => Enforcement::InForce,
            None => Enforcement::not_in_force(format!(
                "the interface's settings are whoever's that set them: lull stat {interface} says who polls"
            )),
        };
        Shown { outcome, verdict, realtime_refused: None }
    });
    Ok((shown, words))
}

/// Puts the interface's half of a mode in force on every NAPI, with its threads on `core`; the threads.
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
