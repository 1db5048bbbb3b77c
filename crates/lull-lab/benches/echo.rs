//! Measures an echo over TAP: lull's stack against a responder that does no work, on one core each, interleaved. Run it
//! with `cargo bench -p lull-lab --bench echo`; it prints figures and judges none. The arguments in `-- MODE...` name
//! the modes.
//!
//! Lull's stack is measured twice: over a plain TAP, and over one with offloads (checksums left out, large segments).
//!
//! The clients are 64 connections of the kernel, on another core. The responder turns each frame around with no
//! connection behind it, so its rate is what TAP and the clients allow, and the ratio to it is what lull's stack costs.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lull_core::Mode;
use lull_host::{Host, HostConfig, Worker, pin_thread, thread_cpu_ns};
use lull_lab::stats;
use lull_net::{Epoll, Interest, ListenOptions, Network, NetworkConfig, TcpListener};
use lull_nic::Device;
use lull_nic::tap::Tap;
use rustix::event::epoll;

#[path = "over_tap/no_work.rs"]
mod no_work;
mod over_tap;

use no_work::{Answer, NoWork};
use over_tap::{Result, tap};

const CONNECTIONS: usize = 64;
const MESSAGE: [u8; 64] = [b'e'; 64];
const PORT: u16 = 7;
const EVENTS_MAX: usize = 64;
/// The windows are short and the pairs are many because the speed of a shared machine changes from second to second.
const WINDOW: Duration = Duration::from_millis(300);
const PAIRS: usize = 21;
const MODES: [&str; 3] = ["base", "suspend20", "fullbusy"];
/// The environment variable that sets the number of pairs, for a profiler or a counter of system calls.
const PAIRS_VARIABLE: &str = "LULL_ECHO_PAIRS";

fn main() -> Result<()> {
    let Some([served, asks]) = over_tap::prepare("echo") else { return Ok(()) };
    let responder = Responder::start(served)?;
    let echoes = [Echo::start(served, &PLAIN)?, Echo::start(served, &OFFLOADS)?];
    pin_thread(&[asks])?;
    // Each server is up while its clients connect, and does nothing while the other's load runs.
    let to_responder = responder.during(|| Clients::connect(RESPONDER_IP))?;
    let to_echoes = [Clients::connect(PLAIN.ip)?, Clients::connect(OFFLOADS.ip)?];
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let modes = if named.is_empty() { MODES.map(str::to_owned).to_vec() } else { named };
    let pairs = std::env::var(PAIRS_VARIABLE).map_or(Ok(PAIRS), |pairs| pairs.parse())?;
    for name in modes {
        let mode: Mode = name.parse()?;
        let (mut ours, mut theirs, mut done) = ([const { Vec::new() }; 2], Vec::new(), [Done::default(); 2]);
        for _ in 0..pairs {
            for (at, (echo, clients)) in echoes.iter().zip(&to_echoes).enumerate() {
                echo.set_mode(&mode)?;
                let before = echo.done();
                ours[at].push(clients.run(|| echo.cpu_ns())?);
                done[at].add(&before, &echo.done());
                echo.set_mode(&"base".parse()?)?;
            }
            theirs.push(responder.during(|| to_responder.run(|| responder.cpu_ns()))?);
        }
        println!("{name:<10} no work   {}", summary(&theirs));
        for (at, what) in ["lull", "offloads"].into_iter().enumerate() {
            let ratios: Vec<f64> =
                ours[at].iter().zip(&theirs).map(|(ours, theirs)| ours.echoes_per_s / theirs.echoes_per_s).collect();
            let ratio = stats::median(&ratios).map_or(f64::NAN, |estimate| estimate.value);
            println!("{:<10} {what:<9} {}; ratio, median of {pairs} pairs: {ratio:.3}", "", summary(&ours[at]));
            println!("{:<20} {}", "", done[at]);
        }
    }
    Ok(())
}

/// What lull did for the echoes, in counts that do not depend on the machine's speed.
#[derive(Clone, Copy, Default)]
struct Done {
    frames_in: u64,
    frames_out: u64,
    /// Reads and writes of the TAP.
    io_calls: u64,
    /// Sleeps, wake-ups, timers, watches.
    delivery_calls: u64,
    waits: u64,
    events: u64,
    interrupts: u64,
    timer_ops: u64,
}

impl Done {
    fn add(&mut self, before: &Done, after: &Done) {
        self.frames_in += after.frames_in - before.frames_in;
        self.frames_out += after.frames_out - before.frames_out;
        self.io_calls += after.io_calls - before.io_calls;
        self.delivery_calls += after.delivery_calls - before.delivery_calls;
        self.waits += after.waits - before.waits;
        self.events += after.events - before.events;
        self.interrupts += after.interrupts - before.interrupts;
        self.timer_ops += after.timer_ops - before.timer_ops;
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = |count: u64| count as f64 / self.events.max(1) as f64;
        write!(
            f,
            "each echo: frames {:.2} in {:.2} out; system calls {:.2} of the TAP {:.2} of delivery; waits {:.2}; \
             interrupts {:.3}; timers set {:.3}",
            each(self.frames_in),
            each(self.frames_out),
            each(self.io_calls),
            each(self.delivery_calls),
            each(self.waits),
            each(self.interrupts),
            each(self.timer_ops)
        )
    }
}

/// A server on lull's stack.
struct Served {
    name: &'static str,
    ip: Ipv4Addr,
    offloads: bool,
}

const PLAIN: Served = Served { name: "echo0", ip: Ipv4Addr::new(10, 1, 0, 2), offloads: false };
const OFFLOADS: Served = Served { name: "echo1", ip: Ipv4Addr::new(10, 3, 0, 2), offloads: true };
const RESPONDER_IP: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);

/// What the clients measured in one window. The CPUs are in percent of the window.
#[derive(Clone, Copy)]
struct Window {
    echoes_per_s: f64,
    server_percent: f64,
    clients_percent: f64,
}

/// Formats the medians of several windows as one line.
fn summary(windows: &[Window]) -> String {
    let middle = |value: fn(&Window) -> f64| {
        let values: Vec<f64> = windows.iter().map(value).collect();
        stats::median(&values).map_or(f64::NAN, |estimate| estimate.value)
    };
    format!(
        "{:>8.0} echoes/s at {:>5.1} % CPU (the clients' core {:>5.1} %)",
        middle(|window| window.echoes_per_s),
        middle(|window| window.server_percent),
        middle(|window| window.clients_percent)
    )
}

/// The kernel's connections to one of the two servers.
struct Clients {
    streams: Vec<TcpStream>,
    epoll: std::os::fd::OwnedFd,
}

impl Clients {
    fn connect(ip: Ipv4Addr) -> Result<Clients> {
        let (streams, epoll) = over_tap::connect(SocketAddr::new(IpAddr::V4(ip), PORT), CONNECTIONS)?;
        streams.iter().try_for_each(|stream| stream.set_nonblocking(true))?;
        Ok(Clients { streams, epoll })
    }

    /// Sends a request on every connection as soon as the last one is answered.
    fn run(&self, cpu_ns: impl Fn() -> u64) -> Result<Window> {
        let own_tid = lull_host::thread_id();
        let own_cpu_ns = || thread_cpu_ns(own_tid).unwrap_or(0);
        for mut stream in &self.streams {
            stream.write_all(&MESSAGE)?;
        }
        let (start, cpu_before, own_before) = (Instant::now(), cpu_ns(), own_cpu_ns());
        let (mut echoes, mut waiting) = (0_u64, self.streams.len());
        let mut buffer = [0; MESSAGE.len()];
        let mut measured = None;
        while waiting > 0 {
            let mut events = Vec::with_capacity(EVENTS_MAX);
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in events {
                let mut stream = &self.streams[event.data.u64() as usize];
                // A frame carries one whole message: neither side splits one.
                stream.read_exact(&mut buffer)?;
                if measured.is_some() {
                    waiting -= 1;
                    continue;
                }
                echoes += 1;
                stream.write_all(&MESSAGE)?;
            }
            if measured.is_none() && start.elapsed() >= WINDOW {
                let ns = start.elapsed().as_nanos() as f64;
                measured = Some(Window {
                    echoes_per_s: echoes as f64 * 1e9 / ns,
                    server_percent: 100.0 * (cpu_ns() - cpu_before) as f64 / ns,
                    clients_percent: 100.0 * (own_cpu_ns() - own_before) as f64 / ns,
                });
            }
        }
        measured.ok_or_else(|| "there are no connections".into())
    }
}

/// lull's stack with a worker that echoes.
struct Echo {
    network: Network,
    epoll: Epoll,
    tid: i32,
}

impl Echo {
    fn start(core: usize, served: &Served) -> Result<Echo> {
        let host = Host::new(HostConfig { cpus: vec![Some(core)], ..HostConfig::default() })?;
        let addresses = vec![(IpAddr::V4(served.ip), 24)];
        let config = NetworkConfig { addresses, cpus: vec![0], ..NetworkConfig::default() };
        let network = Network::new(&host, Arc::new(tap(served.name, served.ip, served.offloads)?), config)?;
        let options = ListenOptions { nodelay: true, ..ListenOptions::default() };
        let listener = TcpListener::bind_with(&network, Some(0), (served.ip, PORT).into(), options)?;
        listener.set_nonblocking(true).unwrap();
        let epoll = Epoll::new(&host);
        epoll.add(&listener, u64::MAX, Interest::READABLE)?;
        let worker = Worker::new(&host, 0)?;
        let (tell, told) = std::sync::mpsc::channel();
        let (own_network, own_epoll) = (network.clone(), epoll.clone());
        // The thread ends with the process.
        std::thread::spawn(move || {
            let _ = tell.send(lull_host::thread_id());
            if let Err(error) = serve(&own_network, &own_epoll, &worker, &listener) {
                eprintln!("the echo server ended: {error}");
            }
        });
        Ok(Echo { network, epoll, tid: told.recv()? })
    }

    fn set_mode(&self, mode: &Mode) -> Result<()> {
        // The worker never waits with a timeout, and its modes need none.
        let _ = self.network.set_mode(mode)?.on(&self.epoll)?;
        Ok(())
    }

    fn done(&self) -> Done {
        let (device, cpu) = (self.network.device().counters(0), self.network.host().cpu_stats(0));
        let epoll = self.epoll.stats();
        Done {
            frames_in: device.rx_frames,
            frames_out: device.tx_frames,
            io_calls: device.syscalls,
            delivery_calls: cpu.syscalls,
            waits: epoll.calls,
            events: epoll.events,
            interrupts: cpu.interrupts,
            timer_ops: cpu.timer_ops,
        }
    }

    /// Returns the CPU time of the worker and of the threads that deliver for it.
    fn cpu_ns(&self) -> u64 {
        let delivering = self.network.host().threads().into_iter().map(|thread| thread.tid);
        delivering.chain([self.tid]).map(|tid| thread_cpu_ns(tid).unwrap_or(0)).sum()
    }
}

fn serve(network: &Network, epoll: &Epoll, worker: &Worker, listener: &TcpListener) -> Result<()> {
    worker.pin_thread()?;
    let mut streams: Vec<lull_net::TcpStream> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = [0; 16 * 1024];
    loop {
        events.clear();
        epoll.wait(worker, &mut events, EVENTS_MAX, None)?;
        let _cork = network.cork(0);
        for event in &events {
            let Some(stream) = streams.get(event.key as usize) else {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    epoll.add(&stream, streams.len() as u64, Interest::READABLE)?;
                    streams.push(stream);
                }
                continue;
            };
            match stream.recv(&mut buffer) {
                Ok(0) => epoll.delete(stream)?,
                Ok(count) => {
                    stream.send(&buffer[..count])?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A responder that turns frames around. It polls while it is active and sleeps otherwise.
struct Responder {
    active: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    tid: i32,
    _tap: Arc<Tap>,
}

impl Responder {
    fn start(core: usize) -> Result<Responder> {
        let tap = Arc::new(tap("bare0", RESPONDER_IP, false)?);
        let (mut queue, mac) = (tap.take_queue(0)?, tap.info().mac);
        let active = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let asked = active.clone();
        // The thread ends with the process.
        let thread = std::thread::spawn(move || {
            let pinned = pin_thread(&[core]).map(|()| lull_host::thread_id());
            let _ = tell.send(pinned);
            let mut no_work = NoWork::new(mac, RESPONDER_IP, Answer::Echo);
            loop {
                match asked.load(Ordering::Acquire) {
                    true => drop(no_work.turn_around(&mut queue)),
                    false => std::thread::park(),
                }
            }
        });
        Ok(Responder { active, thread, tid: told.recv()??, _tap: tap })
    }

    /// Keeps the responder active while `work` runs.
    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.active.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let done = work();
        self.active.store(false, Ordering::Release);
        done
    }

    fn cpu_ns(&self) -> u64 {
        thread_cpu_ns(self.tid).unwrap_or(0)
    }
}
