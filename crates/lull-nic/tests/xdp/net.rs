//! A namespace for each test, with a veth pair into another one.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use lull_nic::conformance::Wire;
use lull_nic::xdp::{XdpAddress, XdpConfig};
use lull_nic::{Queue, namespace};

use crate::echo::serve;

const CHILD: &str = "LULL_NIC_TEST_CHILD";
/// Bounds a failure alone.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The end of the pair that the device is on, in the test's namespace, and the other one.
pub const DEV: &str = "x0";
pub const PEER_DEV: &str = "x1";
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 9);
/// The port that is taken of the host's address.
pub const PORT: u16 = 7777;

/// Runs `body` in a child process inside a fresh namespace, or says why it is skipped.
pub fn isolated(test: &str, body: impl FnOnce()) {
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: {test}: not root");
        return;
    }
    if std::env::var(CHILD).is_ok_and(|child| child == test) {
        namespace::enter_private().expect("root makes a namespace");
        body();
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // The harness puts the test's name in front of what it prints.
    for reason in text.lines().filter_map(|line| line.find("SKIP:").map(|at| &line[at..])) {
        println!("{reason}");
    }
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Ends every privilege of this process. Its user is nobody else's: memory that is pinned counts against a user's limit, and that
/// of `nobody` would be used up by the same test beside this one.
pub fn become_a_user() {
    const USERS_FIRST: libc::uid_t = 1 << 28;
    let user = USERS_FIRST + std::process::id();
    // SAFETY: no pointers; the result is checked.
    assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0, "root becomes any user");
}

/// Runs a program in the calling thread's namespace.
pub fn run(command: &str) -> Output {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    Command::new(program).args(words).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// The same, and it succeeds.
#[track_caller]
pub fn done(command: &str) {
    let output = run(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The namespace of the pair's other end.
pub struct Peer(OwnedFd);

impl Peer {
    /// Makes the pair, with `queues` queues each way, and brings it up. IPv6 is off, so that nothing is on the line that
    /// the test did not send.
    pub fn new(queues: usize) -> Peer {
        let quiet =
            || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("root's own namespace");
        quiet();
        let namespace = std::thread::spawn(move || {
            namespace::enter_private().expect("root makes a namespace");
            quiet();
            OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap())
        });
        let peer = Peer(namespace.join().unwrap());
        done(&format!(
            "ip link add {DEV} numrxqueues {queues} numtxqueues {queues} type veth peer name {PEER_DEV} numrxqueues \
             {queues} numtxqueues {queues} netns /proc/{}/fd/{}",
            std::process::id(),
            peer.0.as_raw_fd()
        ));
        done(&format!("ip addr add {HOST}/24 dev {DEV}"));
        done(&format!("ip link set {DEV} up"));
        peer.done(&format!("ip addr add {PEER}/24 dev {PEER_DEV}"));
        peer.done(&format!("ip link set {PEER_DEV} up"));
        // The carrier comes a little later.
        let is_up = |dev| String::from_utf8_lossy(&run(&format!("ip -o link show {dev}")).stdout).contains("state UP");
        until("the pair has no carrier", || is_up(DEV) && peer.within(|| is_up(PEER_DEV)));
        peer
    }

    /// Does `work` in the other namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                // SAFETY: no pointers; it moves this thread alone.
                assert_eq!(unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    #[track_caller]
    pub fn done(&self, command: &str) {
        self.within(|| done(command));
    }

    /// A UDP socket of the peer's kernel towards `to`.
    pub fn client(&self, to: (Ipv4Addr, u16)) -> UdpSocket {
        let socket = self.within(|| UdpSocket::bind((PEER, 0)).unwrap());
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        socket
    }

    /// The peer's end of the wire.
    pub fn wire(&self) -> Raw {
        self.within(|| Raw::new(PEER_DEV))
    }
}

/// The device's settings for what each test is about: [`OURS`], alone.
pub fn config() -> XdpConfig {
    let addresses = vec![XdpAddress { ip: IpAddr::V4(OURS), is_hosts: false }];
    XdpConfig { name: DEV.to_owned(), addresses, ..XdpConfig::default() }
}

/// Polls until `wanted` says that it has enough.
#[track_caller]
pub fn until(what: &str, mut enough: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !enough() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Sends `payload` from the peer's kernel and serves until the answer is there.
#[track_caller]
pub fn exchange(mac: [u8; 6], own: Ipv4Addr, queues: &mut [Queue], socket: &UdpSocket, payload: &[u8]) {
    socket.send(payload).unwrap();
    let mut answer = vec![0; 1 << 16];
    until("no answer", || {
        queues.iter_mut().for_each(|queue| {
            serve(mac, own, queue);
        });
        socket.recv(&mut answer).is_ok_and(|len| &answer[..len] == payload)
    });
}

/// An interface as raw frames (AF_PACKET).
pub struct Raw(File);

impl Raw {
    pub fn new(name: &str) -> Raw {
        const ALL_PROTOCOLS: u16 = libc::ETH_P_ALL as u16;
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, ALL_PROTOCOLS.to_be().into()) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: open, because the call succeeded, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        let name = std::ffi::CString::new(name).unwrap();
        // SAFETY: a C structure of integers and arrays, for which zero is a value; the name is a C string.
        let address = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = ALL_PROTOCOLS.to_be();
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            address
        };
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` outlives the call, and `length` is its length.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), length) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        let room: libc::c_int = 16 << 20;
        // SAFETY: `room` outlives the call, and its size is told.
        let set = unsafe {
            let length = size_of_val(&room) as libc::socklen_t;
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const room).cast(), length)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        Raw(file)
    }

    pub fn put(&mut self, frame: &[u8]) {
        // Without a carrier the kernel refuses.
        let _ = self.0.write(frame);
    }

    pub fn take(&mut self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 1 << 14];
        std::iter::from_fn(|| self.0.read(&mut buffer).ok().map(|length| buffer[..length].to_vec())).collect()
    }
}

impl Wire for Raw {
    fn send(&mut self, _: &mut Queue, frame: &[u8]) {
        self.put(frame);
    }

    fn receive(&mut self, _: &mut Queue) -> Vec<Vec<u8>> {
        self.take()
    }
}

/// Makes a thread of the kernel's poll the peer's end, on the first of this process's CPUs. The error says what is missing.
pub fn threaded_napi() -> Result<(), String> {
    // The sysfs of the calling thread's namespace, in a mount namespace of its own.
    // SAFETY: no pointers; it moves this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } < 0 {
        return Err("no mount namespace".to_owned());
    }
    done("mount --make-rprivate /");
    done("mount -t sysfs sysfs /sys");
    done(&format!("ethtool -K {PEER_DEV} gro on"));
    std::fs::write(format!("/sys/class/net/{PEER_DEV}/threaded"), "1").map_err(|error| format!("threaded: {error}"))?;
    let prefix = format!("napi/{PEER_DEV}-");
    let threads = std::fs::read_dir("/proc").map_err(|error| error.to_string())?;
    let is_it =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(&prefix));
    let found: Vec<i32> =
        threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_it).collect();
    let [pid] = found[..] else { return Err(format!("{} threads are called {prefix}*", found.len())) };
    let cpus = one_cpu();
    // SAFETY: `cpus` outlives the call, and its size is told.
    if unsafe { libc::sched_setaffinity(pid, size_of_val(&cpus), &raw const cpus) } < 0 {
        return Err(format!("its affinity: {}", std::io::Error::last_os_error()));
    }
    Ok(())
}

fn one_cpu() -> libc::cpu_set_t {
    // SAFETY: sets of bits, for which zero is a value; the call fills one in, and the macros stay inside it.
    unsafe {
        let (mut mine, mut one): (libc::cpu_set_t, libc::cpu_set_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sched_getaffinity(0, size_of_val(&mine), &raw mut mine);
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &mine)).expect("a CPU");
        libc::CPU_SET(first, &mut one);
        one
    }
}

/// Frames that the kernel was to send on an interface of this thread's namespace, and dropped (proc_net(5)).
pub fn sent_and_dropped(name: &str) -> usize {
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':')).unwrap();
    // Eight columns of receiving; then bytes, packets, errs, drop.
    line.split_ascii_whitespace().nth(11).unwrap().parse().unwrap()
}

/// From now on no ordinary thread runs on the CPU of [`threaded_napi`] while this one does.
pub fn take_the_cpu() {
    let cpus = one_cpu();
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: both outlive the calls, which change this thread alone.
    unsafe {
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus), 0);
        assert_eq!(libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority), 0);
    }
}
