//! A process with lull's addresses, without preloading: its engine is on one end of an in-memory NIC, and a network of its peers
//! on the other.
#![allow(dead_code)] // Each test file uses a part of it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use libc::{c_int, epoll_event};
use lull_net::lull_core::{AfterResume, Sysctl};
use lull_net::lull_nic::mem::{self, MemConfig};
use lull_net::{Host, HostConfig, Mode, Network, NetworkConfig, Qdisc, TcpListener, TcpStream};
use lull_posix::socket::{Receive, Send};
use lull_posix::start::EPOLL;
use lull_posix::{Engine, Errno, Routing, address, engage, epoll, socket};

pub const OWN: &str = "10.0.0.2";
pub const PEER: &str = "10.0.0.1";
/// Nothing here waits for this long unless it is lost.
pub const LOST: Duration = Duration::from_secs(120);

/// How long what the program writes in a batch of events may wait for more; set before anything else here.
pub static COALESCE_NS: AtomicU64 = AtomicU64::new(lull_net::COALESCE_NS);
/// The mode of the program's engine, "base" if it is not set before the first call.
pub static MODE: OnceLock<&str> = OnceLock::new();
/// The queueing discipline of the program's engine; none if it is not set before the first call.
pub static QDISC: OnceLock<Qdisc> = OnceLock::new();
/// Queues of both sides' NICs.
pub static QUEUES: AtomicU32 = AtomicU32::new(1);
static OWN_NETWORK: OnceLock<Network> = OnceLock::new();
/// The sysctl `busy_poll`.
pub static BUSY_POLL_US: AtomicU32 = AtomicU32::new(0);

/// The network of the peers.
pub fn peers() -> &'static Network {
    static PEERS: OnceLock<Network> = OnceLock::new();
    PEERS.get_or_init(|| {
        let queues = QUEUES.load(Ordering::Relaxed) as usize;
        let (own, peer) = mem::pair(MemConfig { queues, ..MemConfig::default() });
        let host = Host::new(HostConfig {
            cpus: vec![None; 2],
            sysctl: Sysctl { busy_poll_usecs: BUSY_POLL_US.load(Ordering::Relaxed), ..Sysctl::default() },
            epoll: EPOLL,
            after_resume: AfterResume::Interrupt,
            ..HostConfig::default()
        })
        .unwrap();
        let config = move |ip: &str, cpu| NetworkConfig {
            addresses: vec![(ip.parse().unwrap(), 24)],
            cpus: vec![cpu; queues],
            connections_max: 1024,
            // What one side has sent the other has received, frame by frame: so a test sees that nothing is on its way.
            gro: false,
            coalesce_ns: COALESCE_NS.load(Ordering::Relaxed),
            ..NetworkConfig::default()
        };
        let peers = Network::new(&host, Arc::new(peer), config(PEER, 1)).unwrap();
        let routing = Routing { addresses: vec![(OWN.parse().unwrap(), 24)], ..Routing::default() };
        let port = Mutex::new(Some(own));
        let start = move || {
            let port = port.lock().unwrap().take().expect("it starts once");
            let mode: Mode = MODE.get().unwrap_or(&"base").parse().unwrap();
            let config = NetworkConfig { qdisc: QDISC.get().copied(), ..config(OWN, 0) };
            let network = Network::new(&host, Arc::new(port), config.with_mode(&mode)).unwrap();
            let _ = OWN_NETWORK.set(network.clone());
            Ok(Engine { host, network, mode, flows: None, control: None })
        };
        assert!(engage(routing, Box::new(start), |error| panic!("{error}")));
        peers
    })
}

/// The program's own network, once it has been used.
pub fn own() -> &'static Network {
    OWN_NETWORK.get().expect("a call has begun it")
}

/// From now on SIGUSR1 interrupts what a thread waits in, and does nothing else.
pub fn signals_that_interrupt() {
    extern "C" fn nothing(_signal: c_int) {}
    // SAFETY: plain data, for which zeroes are a value.
    let mut asked: libc::sigaction = unsafe { std::mem::zeroed() };
    asked.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
    lull_posix::signals::sigaction(libc::SIGUSR1, Some(&asked), libc::sigaction).unwrap();
}

/// A number of the kernel's for a TCP socket, as the program would get it.
pub fn tcp() -> c_int {
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    assert!(fd >= 0);
    fd
}

pub fn bytes(address: &str) -> Vec<u8> {
    address::Bytes::new(address.parse().unwrap(), libc::AF_INET).to_vec()
}

/// A number of the kernel's for a UDP socket.
pub fn udp() -> c_int {
    peers();
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
    assert!(fd >= 0);
    fd
}

/// The name of a socket, whoever knows it.
pub fn name(fd: c_int) -> SocketAddr {
    if let Some(name) = socket::getsockname(fd) {
        return address::parse(&name.unwrap()).unwrap();
    }
    let mut name = [0_u8; 16];
    let mut length = 16_u32;
    // SAFETY: room for the address, and its size.
    assert_eq!(unsafe { libc::getsockname(fd, name.as_mut_ptr().cast(), &raw mut length) }, 0);
    address::parse(&name).unwrap()
}

/// A listener on lull's address, and the port that it got.
pub fn listener() -> (c_int, SocketAddr) {
    listener_at(OWN)
}

/// A listener on this address.
pub fn listener_at(ip: &str) -> (c_int, SocketAddr) {
    peers();
    let fd = tcp();
    socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
    socket::listen(fd, 16).unwrap();
    (fd, name_of(fd))
}

/// What the kernel says that a number is bound to.
fn name_of(fd: c_int) -> SocketAddr {
    let mut name = [0_u8; 16];
    let mut length = 16_u32;
    // SAFETY: room for the address, and its size.
    assert_eq!(unsafe { libc::getsockname(fd, name.as_mut_ptr().cast(), &raw mut length) }, 0);
    address::parse(&name).unwrap()
}

/// Where peers reach a listener on lull's address or a wildcard.
pub fn at(fd: c_int) -> SocketAddr {
    SocketAddr::new(OWN.parse().unwrap(), name_of(fd).port())
}

/// An address of lull's network at which nobody is, though its station is known: who connects there is not told so within seconds, as
/// where no station answers.
pub fn nobody() -> &'static str {
    // Whoever has a connection has a network.
    close(connected().0);
    own().neighbours().add_permanent("10.0.0.77".parse().unwrap(), [2, 0, 0, 0, 0, 77]);
    "10.0.0.77:9"
}

/// A connection: the program's number, and the peer's end.
pub fn connected() -> (c_int, TcpStream) {
    let (listening, at) = listener();
    let peer = TcpStream::connect(peers(), at).unwrap();
    let accepted = socket::accept(listening, 0).unwrap().fd;
    close(listening);
    (accepted, peer)
}

pub fn close(fd: c_int) {
    lull_posix::files::close(fd).unwrap();
}

pub fn recv(fd: c_int, flags: c_int) -> Result<Vec<u8>, Errno> {
    let mut buffer = [0; 64];
    let count = socket::recv(fd, &mut [IoSliceMut::new(&mut buffer)], Receive { flags })?;
    Ok(buffer[..count].to_vec())
}

pub fn send(fd: c_int, data: &[u8], flags: c_int) -> Result<usize, Errno> {
    socket::send(fd, &[IoSlice::new(data)], Send { flags })
}

/// `epoll_ctl` with the number for data.
pub fn ctl(epfd: c_int, what: c_int, fd: c_int, events: c_int) -> Result<(), Errno> {
    epoll::epoll_ctl(epfd, what, fd, Some(epoll_event { events: events as u32, u64: fd as u64 }))
}

/// What one wait reports: numbers and what is ready.
pub fn wait(epfd: c_int, max: usize, timeout: Duration) -> Vec<(c_int, c_int)> {
    let mut events = vec![MaybeUninit::<epoll_event>::uninit(); max];
    let count = epoll::epoll_wait(epfd, &mut events, Some(timeout)).unwrap();
    let event = |event: &MaybeUninit<epoll_event>| {
        // SAFETY: `count` of them were written.
        let event = unsafe { event.assume_init() };
        (event.u64 as c_int, event.events as c_int)
    };
    events[..count].iter().map(event).collect()
}

pub const NOW: Duration = Duration::ZERO;
pub const WOULD_BLOCK: Errno = Errno::new(libc::EAGAIN);

/// `ioctl` with a number.
pub fn ioctl(fd: c_int, request: libc::c_ulong, value: &mut c_int) -> Option<Result<(), Errno>> {
    // SAFETY: the requests that tests make have an `int` there.
    unsafe { lull_posix::flags::ioctl(fd, request, std::ptr::from_mut(value) as usize) }
}

pub fn nonblocking(fd: c_int) {
    assert_eq!(lull_posix::flags::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize), Some(Ok(0)));
}

/// A connection that the program makes: its number, and the peer's end.
pub fn connecting() -> (c_int, TcpStream) {
    let listener = peer_listener();
    let fd = tcp();
    socket::connect(fd, &bytes(&listener.local_addr().unwrap().to_string())).unwrap();
    (fd, listener.accept().unwrap().0)
}

/// Runs `child` in a child of `fork`, which ends with what that says.
pub fn in_a_child(child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child makes calls that need no lock of its parent's, and ends without running anything of it.
    let process = unsafe { libc::fork() };
    if process == 0 {
        // A panic is not to unwind into what is the parent's: the child would end well.
        let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        let status = if said { 0 } else { 1 };
        // SAFETY: as above.
        unsafe { libc::_exit(status) };
    }
    process
}

/// Waits for such a child, which is to have said true.
pub fn ended_well(child: libc::pid_t) {
    let mut status = -1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

pub fn peer_listener() -> TcpListener {
    TcpListener::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap()
}

/// A thread that has a call to do in which it sleeps.
pub struct Asleep<R> {
    thread: JoinHandle<R>,
    id: libc::pid_t,
}

impl<R> Asleep<R> {
    /// What the call returned.
    pub fn join(self) -> std::thread::Result<R> {
        self.thread.join()
    }

    /// Sends the thread a signal, if it is there still.
    pub fn interrupt(&self) {
        // SAFETY: numbers only.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.id, libc::SIGUSR1) };
    }

    /// Whether the call has returned.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Whether it has nothing to do just now: what woke it before this call has been looked at.
    pub fn sleeps_or_is_over(&self) -> bool {
        self.thread.is_finished() || sleeps(self.id)
    }
}

/// Runs `call` in a thread, and returns once it sleeps there, or is over.
#[track_caller]
pub fn asleep<R: std::marker::Send + 'static>(call: impl FnOnce() -> R + std::marker::Send + 'static) -> Asleep<R> {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: always there.
        tell.send(unsafe { libc::gettid() }).unwrap();
        call()
    });
    let sleeper = Asleep { thread, id: told.recv().unwrap() };
    until("the thread sleeps", || sleeper.sleeps_or_is_over());
    sleeper
}

/// Whether a thread sleeps, and goes on sleeping.
pub fn sleeps(thread: libc::pid_t) -> bool {
    (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    })
}

/// Waits until `condition` holds.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < LOST, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}
