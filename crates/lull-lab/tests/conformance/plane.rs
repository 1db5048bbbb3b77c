//! The two planes that a script runs on.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use lull_core::{EpollParams, NapiSettings, Stats};
use lull_host::{Host, HostConfig, Worker};
use lull_lab::bench::kernel::pair::{Pair, ServerStack};
use lull_linux::device::Device;
use lull_linux::netdev::{NapiChange, Netdev};
use lull_linux::polls::{Accounts, Options, Polls, Who};
use lull_linux::{Roots, os};
use lull_net::{Epoll, Interest, Network, NetworkConfig, Ready};
use lull_nic::mem::{self, MemConfig};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The port that the datagrams go to.
const PORT: u16 = 7;
/// Any wait of this length means that something was lost.
const LOST: Duration = Duration::from_secs(120);
/// A timer counts as a suspension's if it is longer than this multiple of the deferral's timeout in force.
const SUSPENSION_FACTOR: u64 = 3;

/// The counts since they were last read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Polls by the application.
    pub busy_polls: u64,
    /// Polls by softirq, however it was raised.
    pub softirq_polls: u64,
    /// Polls by the NAPI's thread.
    pub thread_polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Packets that were polled.
    pub packets: u64,
    /// Suspensions that began.
    pub suspensions: u64,
}

/// One socket in one epoll context behind one NAPI, and a sender.
pub trait Plane {
    /// Returns its name, for failures.
    fn name(&self) -> &'static str;
    /// Sets the NAPI and the context. Nothing is pending from before, and the counts start anew.
    fn set(&mut self, napi: NapiSettings, epoll: EpollParams);
    /// Sends datagrams.
    fn send(&mut self, count: usize);
    /// Sends datagrams and waits, without epoll, until the socket is ready.
    fn deliver(&mut self, count: usize);
    /// Calls `epoll_wait`. Returns the number of events.
    fn wait(&mut self, timeout: Duration) -> usize;
    /// Takes datagrams, waiting for them without epoll.
    fn take(&mut self, count: usize);
    /// Lets time pass outside of all calls.
    fn rest(&mut self, time: Duration);
    /// Returns the counts since the last call.
    fn seen(&mut self) -> Seen;
}

/// Linux: a veth NAPI.
pub struct Linux {
    polls: Polls,
    accounts: Accounts,
    netdev: Netdev,
    ifindex: u32,
    server: UdpSocket,
    client: UdpSocket,
    epoll: OwnedFd,
    _pair: Pair,
}

impl Linux {
    /// Makes a pair of namespaces, if this process may make them and trace.
    pub fn new() -> Result<Linux, String> {
        let pair = Pair::make(1, ServerStack::Kernel).map_err(|error| error.to_string())?;
        let polls = Polls::open(pair.server.device(), Options { timers: true, ..Options::default() });
        let polls = polls.map_err(|error| error.to_string())?;
        let (server_at, client_at) =
            (SocketAddr::new(pair.server.address(), PORT), SocketAddr::new(pair.client.address(), PORT));
        let bound = |at: SocketAddr, to: SocketAddr| {
            let socket = UdpSocket::bind(at).expect("the address is this end's");
            socket.connect(to).expect("the other end is a neighbour");
            socket.set_nonblocking(true).expect("a socket");
            socket
        };
        let open = || {
            let mut netdev = Netdev::new();
            let device = Device::open(pair.server.device(), &mut netdev, &Roots::default())?;
            let napis = netdev.napis(device.ifindex)?.len();
            Ok::<_, lull_linux::Error>((netdev, device.ifindex, napis, bound(server_at, client_at)))
        };
        let opened = pair.server.within(open).map_err(|error| error.to_string())?;
        let (netdev, ifindex, napis, server) = opened.map_err(|error| error.to_string())?;
        if napis != 1 {
            return Err(format!("the kernel shows {napis} NAPIs for a veth with GRO: it takes Linux 6.13 or newer"));
        }
        let client = pair.client.within(|| bound(client_at, server_at)).map_err(|error| error.to_string())?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll context");
        epoll::add(&epoll, &server, EventData::new_u64(1), EventFlags::IN).expect("a socket");
        Ok(Linux { polls, accounts: Accounts::new(u64::MAX), netdev, ifindex, server, client, epoll, _pair: pair })
    }

    fn ready(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&self.server, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(timeout))).is_ok_and(|count| count > 0)
    }

    /// Makes a new context, which knows no NAPI yet.
    fn renew_epoll(&mut self) {
        self.epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll context");
        epoll::add(&self.epoll, &self.server, EventData::new_u64(1), EventFlags::IN).expect("a socket");
    }
}

impl Plane for Linux {
    fn name(&self) -> &'static str {
        "Linux"
    }

    fn set(&mut self, napi: NapiSettings, params: EpollParams) {
        let present = self.netdev.napis(self.ifindex).expect("the NAPI").remove(0);
        let longest_ns = present.settings.irq_suspend_timeout_ns.max(present.settings.gro_flush_timeout_ns);
        let mut set = |from: &NapiSettings, to: &NapiSettings| {
            let change = NapiChange::between(from, to);
            if !change.is_empty() {
                self.netdev.set(present.id, &change).expect("settings within the limits");
            }
        };
        // A timer that is still pending fires, and leads back to the interrupt.
        set(&present.settings, &NapiSettings::default());
        std::thread::sleep(Duration::from_nanos(longest_ns) + Duration::from_millis(5));
        set(&NapiSettings::default(), &napi);
        while self.server.recv(&mut [0; 64]).is_ok() {}
        self.renew_epoll();
        os::set_epoll_params(self.epoll.as_fd(), &params).expect("parameters within the limits");
        self.accounts = Accounts::new(napi.gro_flush_timeout_ns.max(1_000_000) * SUSPENSION_FACTOR);
        // The first poll makes the NAPI's address known, so that its timers are counted from then on.
        self.deliver(1);
        self.take(1);
        let quiet = Duration::from_nanos(napi.gro_flush_timeout_ns) * (napi.defer_hard_irqs + 1);
        std::thread::sleep(quiet + Duration::from_millis(5));
        self.seen();
    }

    fn send(&mut self, count: usize) {
        (0..count).for_each(|_| assert_eq!(self.client.send(b"x").expect("room in the ring"), 1));
    }

    fn deliver(&mut self, count: usize) {
        self.send(count);
        assert!(self.ready(LOST), "a datagram is lost");
    }

    fn wait(&mut self, timeout: Duration) -> usize {
        let mut events = Vec::with_capacity(8);
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timespec(timeout)))
            .expect("no signal");
        events.len()
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            assert!(self.ready(LOST), "a datagram is lost");
            self.server.recv(&mut [0; 64]).expect("it is ready");
        }
    }

    fn rest(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn seen(&mut self) -> Seen {
        self.polls.drain(|record| self.accounts.add(record)).expect("a ring buffer");
        assert_eq!(self.polls.lost().expect("statistics"), 0, "the ring buffers are large enough");
        let taken = self.accounts.take();
        assert!(taken.len() <= 1, "the device has one NAPI");
        let account = taken.into_values().next().unwrap_or_default();
        let total = account.total();
        Seen {
            busy_polls: account.sum(|who| matches!(who, Who::BusyPoll { .. })).polls,
            softirq_polls: account
                .sum(|who| matches!(who, Who::Softirq { .. } | Who::Timer { .. } | Who::Ksoftirqd { .. }))
                .polls,
            thread_polls: account.sum(|who| matches!(who, Who::Thread { .. })).polls,
            empty_polls: total.empty,
            packets: total.packets,
            suspensions: account.timers.1,
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// lull's engine over `mem`.
pub struct Lull {
    worker: Worker,
    epoll: Epoll,
    server: lull_net::UdpSocket,
    client: lull_net::UdpSocket,
    network: Network,
    _peer: Network,
    host: Host,
    settings: NapiSettings,
    before: Stats,
}

impl Lull {
    pub fn new() -> Lull {
        let (server_end, client_end) = mem::pair(MemConfig::default());
        let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).expect("a host");
        let config = |address: &str, cpu: u16| NetworkConfig {
            addresses: vec![(address.parse().expect("an address"), 24)],
            cpus: vec![cpu],
            ..NetworkConfig::default()
        };
        let device = |end| std::sync::Arc::new(end) as std::sync::Arc<dyn lull_nic::Device>;
        let network = Network::new(&host, device(server_end), config("10.0.0.2", 0)).expect("a network");
        let peer = Network::new(&host, device(client_end), config("10.0.0.1", 1)).expect("a network");
        let at = |address: &str| SocketAddr::new(address.parse().expect("an address"), PORT);
        let server = lull_net::UdpSocket::bind(&network, at("10.0.0.2")).expect("a socket");
        let client = lull_net::UdpSocket::bind(&peer, at("10.0.0.1")).expect("a socket");
        client.connect(at("10.0.0.2")).expect("a neighbour");
        server.set_nonblocking(true).unwrap();
        let epoll = Epoll::new(&host);
        epoll.add(&server, 1, Interest::READABLE).expect("a socket");
        let worker = Worker::new(&host, 0).expect("a worker");
        Lull {
            worker,
            epoll,
            server,
            client,
            network,
            _peer: peer,
            host,
            settings: NapiSettings::default(),
            before: Stats::default(),
        }
    }

    fn napi(&self) -> u32 {
        self.network.napis()[0]
    }

    fn until_ready(&self) {
        let start = Instant::now();
        while !self.server.ready().contains(Ready::READABLE) {
            assert!(start.elapsed() < LOST, "a datagram is lost");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Plane for Lull {
    fn name(&self) -> &'static str {
        "lull"
    }

    fn set(&mut self, napi: NapiSettings, params: EpollParams) {
        let present = std::mem::replace(&mut self.settings, napi);
        let longest_ns = present.irq_suspend_timeout_ns.max(present.gro_flush_timeout_ns);
        // A timer that is still pending fires, and leads back to the interrupt.
        self.network.set_napi_all(&NapiSettings::default()).expect("settings within the limits");
        std::thread::sleep(Duration::from_nanos(longest_ns) + Duration::from_millis(5));
        while self.server.recv_from(&mut [0; 64]).is_ok() {}
        self.network.set_napi_all(&napi).expect("settings within the limits");
        self.epoll = Epoll::new(&self.host);
        self.epoll.add(&self.server, 1, Interest::READABLE).expect("a socket");
        self.epoll.set_busy_poll(&params, true).expect("parameters within the limits");
        // The first datagram asks for the neighbour, too.
        self.deliver(1);
        self.take(1);
        let quiet = Duration::from_nanos(napi.gro_flush_timeout_ns) * (napi.defer_hard_irqs + 1);
        std::thread::sleep(quiet + Duration::from_millis(5));
        self.seen();
    }

    fn send(&mut self, count: usize) {
        (0..count).for_each(|_| assert_eq!(self.client.send(b"x").expect("room in the ring"), 1));
    }

    fn deliver(&mut self, count: usize) {
        self.send(count);
        self.until_ready();
    }

    fn wait(&mut self, timeout: Duration) -> usize {
        let mut events = Vec::new();
        self.epoll.wait(&self.worker, &mut events, 8, Some(timeout)).expect("room for events")
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            self.until_ready();
            self.server.recv_from(&mut [0; 64]).expect("it is ready");
        }
    }

    fn rest(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn seen(&mut self) -> Seen {
        let now = self.host.napi_stats(self.napi());
        let since = now - std::mem::replace(&mut self.before, now);
        Seen {
            busy_polls: since.busy_polls,
            softirq_polls: since.softirq_polls,
            thread_polls: since.thread_polls,
            empty_polls: since.empty_polls,
            packets: since.work,
            suspensions: since.suspends,
        }
    }
}
