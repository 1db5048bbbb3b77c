//! A TAP interface against the kernel, each test in a process and a network namespace of its own.
#![cfg(not(loom))]

mod echo;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lull_nic::conformance::{self, Wire};
use lull_nic::fault::{Fault, FaultConfig, Rates};
use lull_nic::tap::{Tap, TapConfig};
use lull_nic::{
    Checksum, Device, DeviceError, DeviceEvent, Frame, FramePool, Link, Moderation, Queue, namespace, wire,
};

use echo::{readable, serve};

const CHILD: &str = "LULL_NIC_TEST_CHILD";
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

/// Runs `body` in a child process inside a fresh namespace, or says why it is skipped.
fn isolated(test: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|child| child == test) {
        if let Err(error) = namespace::enter_private() {
            println!("SKIP: {test}: {error}");
        } else if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
            println!("SKIP: {test}: /dev/net/tun: {error}");
        } else {
            body();
        }
        return;
    }
    // A test runs beside others in threads, and only a single-threaded process can enter a user namespace: `unshare`
    // does that for who is not root. (namespace.rs tests our own way in.)
    let exe = std::env::current_exe().unwrap();
    let mut command = if is_root() { Command::new(&exe) } else { Command::new("unshare") };
    if !is_root() {
        command.arg("-Urn").arg(&exe);
    }
    let command = command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    let Ok(output) = command.output() else {
        println!("SKIP: {test}: not root, and there is no unshare");
        return;
    };
    if String::from_utf8_lossy(&output.stderr).starts_with("unshare: ") {
        println!("SKIP: {test}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
        return;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // The harness puts the test's name in front of what it prints.
    for reason in text.lines().filter_map(|line| line.find("SKIP:").map(|at| &line[at..])) {
        println!("{reason}");
    }
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn is_root() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn open(queues: usize) -> (Tap, Vec<Queue>) {
    open_as(TapConfig { queues, ..TapConfig::default() })
}

fn open_as(config: TapConfig) -> (Tap, Vec<Queue>) {
    let queues = config.queues;
    let tap = Tap::open(config).unwrap();
    let queues = (0..queues).map(|at| tap.take_queue(at).unwrap()).collect();
    tap.kernel_side(IpAddr::V4(KERNEL), 24).unwrap();
    (tap, queues)
}

fn client() -> UdpSocket {
    let socket = UdpSocket::bind((KERNEL, 0)).unwrap();
    socket.connect((OURS, 7)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    socket
}

/// Sends and serves until the answer is there.
fn exchange(device: &dyn Device, queues: &mut [Queue], socket: &UdpSocket, payload: &[u8]) {
    let mac = device.info().mac;
    socket.send(payload).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut answer = [0; 2048];
    loop {
        assert!(Instant::now() < deadline, "no answer");
        for queue in queues.iter_mut() {
            serve(mac, OURS, queue);
        }
        // Answers to earlier datagrams may come first.
        if socket.recv(&mut answer).is_ok_and(|len| &answer[..len] == payload) {
            return;
        }
    }
}

#[test]
fn kernel_socket_talks_to_us() {
    isolated("kernel_socket_talks_to_us", || {
        let (tap, mut queues) = open(1);
        assert_ne!(tap.info().mac, tap.kernel_mac().unwrap());
        assert_eq!(tap.info().mac[0] & 3, 2, "locally administered, unicast");
        let socket = client();
        socket.send(b"wakes us").unwrap();
        assert!(readable(queues[0].irq.fd().unwrap(), Duration::from_secs(60)));
        exchange(&tap, &mut queues, &socket, b"ping");
        exchange(&tap, &mut queues, &socket, &[7; 1400]);
        let counters = tap.counters(0);
        assert!(counters.rx_frames >= 3 && counters.tx_frames >= 3 && counters.tx_dropped == 0, "{counters:?}");
        assert!(counters.syscalls > counters.rx_frames + counters.tx_frames, "{counters:?}");
    });
}

#[test]
fn every_queue_delivers_and_chains_are_one_frame() {
    isolated("every_queue_delivers_and_chains_are_one_frame", || {
        let (tap, mut queues) = open(2);
        exchange(&tap, &mut queues, &client(), b"resolve");
        let sockets: Vec<_> = (0..64).map(|_| client()).collect();
        let mut seen = [0, 0];
        for socket in &sockets {
            socket.send(b"x").unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while seen[0] + seen[1] < 64 && Instant::now() < deadline {
            for (count, queue) in seen.iter_mut().zip(&mut queues) {
                *count += serve(tap.info().mac, OURS, queue);
            }
        }
        assert_eq!(seen[0] + seen[1], 64);
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");

        let before = tap.counters(1).tx_bytes;
        let mut chain = Frame::copy_from(&[0xff; 14]);
        chain.set_next(Some(Frame::copy_from(&[0; 50])));
        queues[1].tx.transmit(chain).unwrap();
        queues[1].tx.doorbell();
        assert_eq!(tap.counters(1).tx_bytes - before, 64);
    });
}

#[test]
fn mtu_of_jumbo_frames() {
    isolated("mtu_of_jumbo_frames", || {
        let (tap, mut queues) = open(1);
        tap.set_mtu(9000).unwrap();
        assert_eq!(tap.info().mtu_bytes, 9000);
        exchange(&tap, &mut queues, &client(), &[1; 2000]);
        tap.set_kernel_mac([2, 9, 9, 9, 9, 9]).unwrap();
        assert_eq!(tap.kernel_mac().unwrap(), [2, 9, 9, 9, 9, 9]);
    });
}

#[test]
fn existing_interface_is_attached_to_and_errors_name_the_remedy() {
    isolated("existing_interface_is_attached_to_and_errors_name_the_remedy", || {
        let config = |name: &str, queues| TapConfig { name: name.into(), queues, create: false, ..Default::default() };
        let error = Tap::open(config("absent0", 1)).unwrap_err();
        assert!(error.to_string().starts_with("absent0: cannot find the interface"), "{error}");
        let ip = |arguments: &[&str]| Command::new("ip").args(arguments).status().is_ok_and(|status| status.success());
        if !ip(&["tuntap", "add", "kept0", "mode", "tap", "multi_queue"]) {
            println!("SKIP: existing_interface: ip tuntap does not work here");
            return;
        }
        for queues in [1, 2] {
            let info = Tap::open(config("kept0", queues)).unwrap().info();
            assert_eq!((info.name.as_str(), info.rx_ring), ("kept0", 1000), "what somebody else made stays as it is");
        }
        let error = Tap::open(config("lo", 1)).unwrap_err();
        assert!(error.to_string().contains("is not a TAP"), "{error}");
        let single = Tap::open(TapConfig::default()).unwrap();
        let name = single.info().name;
        assert_eq!(single.info().rx_ring, 8192, "enough for ten thousand connections");
        let error = Tap::open(config(&name, 1)).unwrap_err();
        assert!(error.to_string().contains(&name) && matches!(error, DeviceError::Os { .. }), "{error}");
        drop(single);
        assert!(Tap::open(config(&name, 1)).is_err(), "a created interface vanishes with its device");
    });
}

#[test]
fn an_interface_that_was_there_before_keeps_its_addresses_and_its_state() {
    isolated("an_interface_that_was_there_before_keeps_its_addresses_and_its_state", || {
        let ip = |arguments: &str| {
            let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        if ip("tuntap add kept0 mode tap").is_none() {
            println!("SKIP: an_interface_that_was_there_before: ip tuntap does not work here");
            return;
        }
        ip("addr add 192.0.2.5/24 dev kept0").unwrap();
        let before = ip("-j addr show dev kept0");
        let config = || TapConfig { name: "kept0".into(), ..TapConfig::default() };
        let refused = |tap: &Tap| tap.kernel_side(IpAddr::V4(KERNEL), 24).unwrap_err().to_string();
        {
            let tap = Tap::open(config()).unwrap();
            let error = refused(&tap);
            assert!(error.contains("was there before") && error.contains("ip addr add"), "{error}");
        }
        assert_eq!(ip("-j addr show dev kept0"), before);
        // What is as it is wanted needs no change.
        ip(&format!("addr add {KERNEL}/24 dev kept0")).unwrap();
        let tap = Tap::open(config()).unwrap();
        assert!(refused(&tap).contains("ip link set kept0 up"));
        ip("link set kept0 up").unwrap();
        tap.kernel_side(IpAddr::V4(KERNEL), 24).unwrap();
        assert!(tap.kernel_side(IpAddr::V4(KERNEL), 25).is_err(), "another network");
        assert!(ip("-j addr show dev kept0").unwrap().contains("192.0.2.5"));
        // An address may have a label, and is the interface's all the same.
        ip("addr add 198.51.100.5/24 dev kept0 label kept0:1").unwrap();
        tap.kernel_side("198.51.100.5".parse().unwrap(), 24).unwrap();
    });
}

#[test]
fn queues_that_were_handed_on_serve_and_outlive_who_opened_them() {
    isolated("queues_that_were_handed_on_serve_and_outlive_who_opened_them", || {
        let opened = Tap::open(TapConfig { queues: 2, ..TapConfig::default() }).unwrap();
        opened.kernel_side(IpAddr::V4(KERNEL), 24).unwrap();
        let handed_on = opened.queue_fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let name = opened.info().name;
        let tap = Tap::adopt(handed_on).unwrap();
        assert_eq!((tap.info().name, tap.info().queues, tap.info().mac), (name, 2, opened.info().mac));
        drop(opened);
        let mut queues: Vec<Queue> = (0..2).map(|at| tap.take_queue(at).unwrap()).collect();
        exchange(&tap, &mut queues, &client(), b"still here");
    });
}

#[test]
fn what_is_no_queue_of_one_tap_is_not_taken_over() {
    isolated("what_is_no_queue_of_one_tap_is_not_taken_over", || {
        assert!(matches!(Tap::adopt(Vec::new()), Err(DeviceError::Invalid { .. })));
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = Tap::adopt(vec![file.into()]).unwrap_err();
        assert!(matches!(error, DeviceError::Os { .. }) && error.to_string().contains("queue 0"), "{error}");
        let (one, other) = (Tap::open(TapConfig::default()).unwrap(), Tap::open(TapConfig::default()).unwrap());
        let queues = one.queue_fds().chain(other.queue_fds()).map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let error = Tap::adopt(queues).unwrap_err().to_string();
        assert!(error.contains(&one.info().name) && error.contains(&other.info().name), "{error}");
    });
}

#[test]
fn bad_settings_are_refused() {
    for (name, queues) in [("", 1), ("sixteen-bytes-ab", 1), ("a/b", 1), ("ok", 0), ("ok", 257)] {
        let config = TapConfig { name: name.into(), queues, ..TapConfig::default() };
        assert!(matches!(Tap::open(config), Err(DeviceError::Invalid { .. })), "{name} {queues}");
    }
}

#[test]
fn deleted_interface_is_gone_and_quiet() {
    isolated("deleted_interface_is_gone_and_quiet", || {
        let (tap, mut queues) = open(2);
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        tap.watch(Box::new(move |event| seen.lock().unwrap().push(event)));
        if !Command::new("ip").args(["link", "del", &tap.info().name]).status().is_ok_and(|status| status.success()) {
            println!("SKIP: deleted_interface: ip link does not work here");
            return;
        }
        assert!(readable(queues[0].irq.fd().unwrap(), Duration::from_secs(60)), "the kernel tells");
        let mut pool = FramePool::new(4);
        assert_eq!(queues[0].rx.poll(64, &mut pool, &mut |_, _| ()), 0);
        assert_eq!(*events.lock().unwrap(), [DeviceEvent::Gone]);
        for queue in &mut queues {
            assert!(!readable(queue.irq.fd().unwrap(), Duration::ZERO), "nothing to spin on");
            assert_eq!(queue.rx.poll(64, &mut pool, &mut |_, _| ()), 0);
            queue.tx.transmit(Frame::copy_from(&[0; 60])).unwrap();
            queue.tx.doorbell();
        }
        assert_eq!((tap.counters(0).tx_frames, tap.counters(1).tx_dropped), (0, 1), "dropped, not kept");
        assert_eq!(tap.link(), Link::Down);
        assert!(tap.reset().is_err());
    });
}

#[test]
fn link_down_reset_and_kernel_down() {
    isolated("link_down_reset_and_kernel_down", || {
        let down = Tap::open(TapConfig::default()).unwrap();
        let mut queue = down.take_queue(0).unwrap();
        queue.tx.transmit(Frame::copy_from(&[0xff; 60])).unwrap();
        queue.tx.doorbell();
        assert_eq!(down.counters(0).tx_dropped, 1, "the kernel's side is not up yet");

        let (tap, mut queues) = open(1);
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        tap.watch(Box::new(move |event| seen.lock().unwrap().push(event)));
        exchange(&tap, &mut queues, &client(), b"up");
        tap.set_link(Link::Down).unwrap();
        queues[0].tx.transmit(Frame::copy_from(&[0xff; 60])).unwrap();
        queues[0].tx.doorbell();
        assert_eq!(tap.counters(0).tx_dropped, 1);
        tap.set_link(Link::Up).unwrap();
        exchange(&tap, &mut queues, &client(), b"up again");

        client().send(b"to be lost").unwrap();
        assert!(readable(queues[0].irq.fd().unwrap(), Duration::from_secs(60)));
        queues[0].tx.transmit(Frame::copy_from(&[0xff; 60])).unwrap();
        tap.reset().unwrap();
        assert!(tap.counters(0).rx_errors >= 1);
        queues[0].tx.doorbell();
        assert_eq!(tap.counters(0).tx_dropped, 2);
        let up = DeviceEvent::Link(Link::Up);
        assert_eq!(*events.lock().unwrap(), [DeviceEvent::Link(Link::Down), up, DeviceEvent::Reset]);
        assert!(matches!(tap.set_moderation(Moderation::default()), Err(DeviceError::Unsupported { .. })));
    });
}

#[test]
fn ipv6_address_on_the_kernel_side() {
    isolated("ipv6_address_on_the_kernel_side", || {
        let (tap, _queues) = open(1);
        if std::fs::metadata("/proc/thread-self/net/if_inet6").is_err() {
            println!("SKIP: ipv6_address: this kernel has no IPv6");
            return;
        }
        tap.kernel_side("fd00:99::1".parse().unwrap(), 64).unwrap();
        let addresses = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        let ours = addresses.lines().find(|line| line.starts_with("fd000099000000000000000000000001"));
        // Behind interface, prefix and scope. Who connected from an address that is tentative yet would have another one.
        let flags = ours.and_then(|line| line.split_whitespace().nth(4)).expect("the address");
        const IFA_F_TENTATIVE: u32 = 0x40;
        assert_eq!(u32::from_str_radix(flags, 16).unwrap() & IFA_F_TENTATIVE, 0, "{addresses}");
        tap.kernel_side("fd00:99::1".parse().unwrap(), 64).expect("it is there");
        assert!(tap.kernel_side(IpAddr::V4(KERNEL), 33).is_err());
    });
}

/// The injector's own wake-ups over a device whose interrupt is a descriptor.
#[test]
fn delayed_frames_make_the_descriptor_readable_when_due() {
    isolated("delayed_frames_make_the_descriptor_readable_when_due", || {
        let tap = Arc::new(Tap::open(TapConfig::default()).unwrap());
        let rx = Rates { delay: 1.0, delay_ns: 20_000_000, ..Rates::default() };
        let fault = Fault::new(tap.clone(), FaultConfig { rx, ..FaultConfig::default() }).unwrap();
        let mut queue = fault.take_queue(0).unwrap();
        tap.kernel_side(IpAddr::V4(KERNEL), 24).unwrap();
        client().send(b"resolve").unwrap();
        let (mut got, deadline) = (0, Instant::now() + Duration::from_secs(60));
        while got == 0 && Instant::now() < deadline {
            assert!(readable(queue.irq.fd().unwrap(), Duration::from_secs(60)), "an edge was lost");
            queue.rx.poll(64, &mut FramePool::new(0), &mut |_, _| got += 1);
        }
        assert!(got > 0);
    });
}

/// The kernel's side of the interface as raw frames (AF_PACKET).
struct KernelSide(std::fs::File);

impl KernelSide {
    fn new(name: &str) -> KernelSide {
        const ALL_PROTOCOLS: u16 = libc::ETH_P_ALL as u16;
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, ALL_PROTOCOLS.to_be().into()) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: open, because the call succeeded, and nobody else has it.
        let file = unsafe { std::fs::File::from_raw_fd(fd) };
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
        KernelSide(file)
    }
}

impl Wire for KernelSide {
    fn send(&mut self, _: &mut Queue, frame: &[u8]) {
        // Without a carrier the kernel refuses.
        let _ = self.0.write(frame);
    }

    fn receive(&mut self, _: &mut Queue) -> Vec<Vec<u8>> {
        let mut buffer = [0; 2048];
        std::iter::from_fn(|| self.0.read(&mut buffer).ok().map(|length| buffer[..length].to_vec())).collect()
    }
}

#[test]
fn a_tap_keeps_the_contract() {
    isolated("a_tap_keeps_the_contract", || {
        for offloads in [false, true] {
            let tap = Tap::open(TapConfig { offloads, ..TapConfig::default() }).unwrap();
            tap.kernel_up().unwrap();
            let mut kernel = KernelSide::new(&tap.info().name);
            conformance::check(&tap, &mut kernel).unwrap();
        }
    });
}

/// What the kernel's socket sends arrives as this: its checksum's state, and whether it adds up.
fn arrives(tap: &Tap, queue: &mut Queue, socket: &UdpSocket) -> (Checksum, bool) {
    socket.send(b"an odd number of bytes.").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut pool = FramePool::new(64);
    let mut arrived = None;
    while arrived.is_none() {
        assert!(Instant::now() < deadline, "no datagram: {:?}", tap.counters(0));
        queue.rx.poll(64, &mut pool, &mut |frame, _| {
            let data = frame.data();
            if data[12..14] == [8, 0] && data[23] == 17 && data[30..34] == OURS.octets() {
                let pseudo = wire::pseudo_sum(KERNEL.into(), OURS.into(), 17, data.len() - 34);
                arrived = Some((frame.checksum(), wire::adds_up(pseudo, &data[34..])));
            }
        });
    }
    arrived.unwrap()
}

#[test]
fn checksums_are_left_out_and_the_next_user_of_the_interface_gets_them_again() {
    isolated("checksums_are_left_out_and_the_next_user_of_the_interface_gets_them_again", || {
        let ip = |arguments: &[&str]| Command::new("ip").args(arguments).status().is_ok_and(|status| status.success());
        if !ip(&["tuntap", "add", "kept0", "mode", "tap"]) {
            println!("SKIP: checksums_are_left_out: ip tuntap does not work here");
            return;
        }
        assert!(ip(&["addr", "add", &format!("{KERNEL}/24"), "dev", "kept0"]) && ip(&["link", "set", "kept0", "up"]));
        let config = |offloads| TapConfig { name: "kept0".into(), create: false, offloads, ..TapConfig::default() };
        for offloads in [true, false, true] {
            let (tap, mut queues) = open_as(config(offloads));
            let socket = client();
            exchange(&tap, &mut queues, &socket, b"who are you");
            let expected = if offloads { (Checksum::Partial, false) } else { (Checksum::None, true) };
            assert_eq!(arrives(&tap, &mut queues[0], &socket), expected, "offloads {offloads}");
            assert_eq!(tap.info().offloads.tso, offloads);
        }
        // Somebody else opens it as he always did.
        let flags = libc::O_NONBLOCK;
        let file = std::fs::File::options().read(true).write(true).custom_flags(flags).open("/dev/net/tun").unwrap();
        // SAFETY: a C structure of integers and arrays, for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        "kept0".bytes().zip(&mut request.ifr_name).for_each(|(byte, place)| *place = byte as libc::c_char);
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes an ifreq, which outlives the call.
        let attached = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(attached, 0, "{}", std::io::Error::last_os_error());
        let ours = OURS.to_string();
        assert!(ip(&["neigh", "replace", &ours, "lladdr", "02:00:00:00:00:09", "dev", "kept0", "nud", "permanent"]));
        let socket = client();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut frame = [0; 2048];
        loop {
            assert!(Instant::now() < deadline, "no datagram");
            // Refused until the carrier is back.
            let _ = socket.send(b"an odd number of bytes.");
            let Ok(length) = (&file).read(&mut frame) else { continue };
            if frame[12..14] == [8, 0] && frame[23] == 17 && frame[30..34] == OURS.octets() {
                let pseudo = wire::pseudo_sum(KERNEL.into(), OURS.into(), 17, length - 34);
                assert!(wire::adds_up(pseudo, &frame[34..length]));
                break;
            }
        }
    });
}
