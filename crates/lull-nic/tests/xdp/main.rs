//! AF_XDP on a veth against the kernel, each test in a process and namespaces of its own. They take root.
#![cfg(not(loom))]

mod death;
#[path = "../echo/mod.rs"]
mod echo;
mod net;

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lull_nic::conformance;
use lull_nic::mem::{self, MemConfig};
use lull_nic::program::{Action, Outlet, Programmed};
use lull_nic::xdp::{BusyPoll, Xdp, XdpAddress, XdpConfig, XdpMode, XdpSetup};
use lull_nic::{Device, DeviceError, DeviceEvent, Doorbell, EventFdSink, Frame, FramePool, Link, Queue};

use echo::readable;
use net::{DEV, HOST, LIMIT, OURS, PEER_DEV, PORT, Peer, config, done, exchange, isolated, run, until};

fn open(config: &XdpConfig) -> (Xdp, Vec<Queue>) {
    let device = Xdp::open(config).unwrap();
    let queues = (0..device.info().queues).map(|at| device.take_queue(at).unwrap()).collect();
    (device, queues)
}

/// A frame of the protocol for experiments.
fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0xc0, 0xde, 0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.resize(length, number as u8);
    frame
}

/// A device that takes every frame.
fn everything() -> XdpConfig {
    XdpConfig { name: DEV.to_owned(), ..XdpConfig::default() }
}

/// A setup as another process would get it.
fn parts(setup: &XdpSetup) -> (String, Vec<OwnedFd>) {
    let (text, fds) = setup.parts();
    (text, fds.into_iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect())
}

fn bytes(frame: &Frame) -> Vec<u8> {
    frame.segments().flat_map(Frame::data).copied().collect()
}

#[test]
fn af_xdp_keeps_the_contract() {
    isolated("af_xdp_keeps_the_contract", || {
        let peer = Peer::new(1);
        let device = Xdp::open(&everything()).unwrap();
        conformance::check(&device, &mut peer.wire()).unwrap();
    });
}

#[test]
fn the_peers_kernel_talks_to_us_and_to_the_host_by_turns() {
    isolated("the_peers_kernel_talks_to_us_and_to_the_host_by_turns", || {
        let peer = Peer::new(1);
        let (device, mut queues) = open(&config());
        let mac = device.info().mac;
        let client = peer.client((OURS, 7));
        client.send(b"wakes us").unwrap();
        assert!(readable(queues[0].irq.fd().unwrap(), LIMIT));
        exchange(mac, OURS, &mut queues, &client, b"ping");
        exchange(mac, OURS, &mut queues, &client, &[7; 1472]);
        let counters = device.counters(0);
        assert!(counters.rx_frames >= 3 && counters.tx_frames >= 3 && counters.tx_dropped == 0, "{counters:?}");
        // The host's own sockets on the same interface.
        let host = UdpSocket::bind((HOST, 9)).unwrap();
        peer.client((HOST, 9)).send(b"to the host").unwrap();
        assert_eq!(host.recv(&mut [0; 64]).unwrap(), 11);
        let report = device.report();
        assert_eq!(
            (report.mode, &*report.zero_copy, &report.busy_poll),
            (XdpMode::Native, &[false][..], &BusyPoll::NoNapi)
        );
    });
}

#[test]
fn of_the_hosts_own_address_the_ports_are_taken() {
    isolated("of_the_hosts_own_address_the_ports_are_taken", || {
        let peer = Peer::new(1);
        let address = XdpAddress::look_up(HOST.into()).unwrap();
        assert!(address.is_hosts && !XdpAddress::look_up(OURS.into()).unwrap().is_hosts);
        let refused = Xdp::open(&XdpConfig { addresses: vec![address], ..config() }).unwrap_err().to_string();
        assert!(refused.contains("10.99.0.1 is the host's own") && refused.contains("--ports"), "{refused}");
        let (device, mut queues) = open(&XdpConfig { addresses: vec![address], ports: vec![PORT], ..config() });
        exchange(device.info().mac, HOST, &mut queues, &peer.client((HOST, PORT)), b"ours");
        let host = UdpSocket::bind((HOST, PORT + 1)).unwrap();
        peer.client((HOST, PORT + 1)).send(b"the host's").unwrap();
        assert_eq!(host.recv(&mut [0; 64]).unwrap(), 10);
        peer.done(&format!("ping -c 3 -i 0.01 -W 60 {HOST}"));
    });
}

#[test]
fn frames_of_9000_bytes_come_and_go_in_several_chunks() {
    isolated("frames_of_9000_bytes_come_and_go_in_several_chunks", || {
        let peer = Peer::new(1);
        done(&format!("ip link set {DEV} mtu 9000"));
        peer.done(&format!("ip link set {PEER_DEV} mtu 9000"));
        let (device, mut queues) = open(&config());
        assert!(device.report().several_chunks && device.info().mtu_bytes == 9000);
        let payload: Vec<u8> = (0..8972u32).map(|at| at as u8).collect();
        exchange(device.info().mac, OURS, &mut queues, &peer.client((OURS, 7)), &payload);
        let counters = device.counters(0);
        assert_eq!((counters.rx_dropped, counters.rx_errors, counters.tx_dropped), (0, 0, 0));
    });
}

#[test]
fn a_device_on_a_vlan_sends_and_receives_with_its_tag() {
    isolated("a_device_on_a_vlan_sends_and_receives_with_its_tag", || {
        // The peer's end is a device, too: it sees the tags, which the kernel's sockets do not.
        let peer = Peer::new(1);
        let (far_device, mut far) =
            peer.within(|| open(&XdpConfig { name: PEER_DEV.to_owned(), ..XdpConfig::default() }));
        let (device, mut near) = open(&XdpConfig { vlan: Some(5), ..config() });
        let (far, near) = (&mut far[0], &mut near[0]);
        for tag in [None, Some(6), Some(5), Some(0x6005)] {
            far.tx.transmit(Frame::copy_from(&arp_request(tag))).unwrap();
            far.tx.doorbell();
        }
        assert_eq!(far_device.counters(0).tx_dropped, 0);
        assert_eq!(received(near, 2), [arp_request(None), arp_request(None)]);
        // In two segments, whose border is inside the addresses, and longer than a chunk's first part.
        let data = frame(7, 1400);
        let mut chain = Frame::copy_from(&data[..9]);
        chain.set_next(Some(Frame::copy_from(&data[9..])));
        near.tx.transmit(chain).unwrap();
        near.tx.doorbell();
        let tagged = [&data[..12], &[0x81, 0, 0, 5], &data[12..]].concat();
        assert_eq!(received(far, 1), [tagged]);
        assert_eq!((device.counters(0).rx_frames, far_device.counters(0).rx_errors), (2, 0));
    });
}

/// Who has our address? Behind a tag, if there is one.
fn arp_request(tag: Option<u16>) -> Vec<u8> {
    let mut request = vec![0xff; 6];
    request.extend([2, 0, 0, 0, 0, 9]);
    if let Some(tag) = tag {
        request.extend([0x81, 0]);
        request.extend(tag.to_be_bytes());
    }
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 99, 0, 9, 0, 0, 0, 0, 0, 0]);
    request.extend(OURS.octets());
    request
}

/// The next `count` frames, and what comes with them.
#[track_caller]
fn received(queue: &mut Queue, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    until("frames are missing", || {
        queue.rx.poll(64, &mut FramePool::new(0), &mut |frame, _| frames.push(bytes(&frame)));
        frames.len() >= count
    });
    frames
}

/// Whoever holds all frames has none come in. Once they are let go of, on another thread and with nobody polling, the
/// next frame raises the interrupt.
#[test]
fn a_fill_ring_that_ran_dry_is_filled_by_who_lets_go() {
    isolated("a_fill_ring_that_ran_dry_is_filled_by_who_lets_go", || {
        let peer = Peer::new(1);
        let (device, mut queues) = open(&XdpConfig { rx_ring: 64, ..everything() });
        let mut wire = peer.wire();
        let (queue, mut held, mut pool) = (&mut queues[0], Vec::new(), FramePool::new(0));
        let mut number = 0;
        until("the memory did not run out", || {
            number += 1;
            wire.put(&frame(number, 200));
            queue.rx.poll(64, &mut pool, &mut |frame, _| held.push(frame));
            device.counters(0).rx_dropped > 0
        });
        assert!(device.report().rx_fill_ring_empty[0] > 0);
        assert!(held.len() >= 64, "{}", held.len());
        assert!(
            held.iter().enumerate().all(|(at, held)| bytes(held) == frame(at as u32 + 1, 200)),
            "they stay as they came"
        );
        wire.put(&frame(0, 200));
        assert!(!readable(queue.irq.fd().unwrap(), Duration::ZERO), "there is no memory for it");
        std::thread::spawn(move || drop(held)).join().unwrap();
        wire.put(&frame(1 << 20, 300));
        assert!(readable(queue.irq.fd().unwrap(), LIMIT), "nobody told the kernel of the memory");
        assert_eq!(received(queue, 1), [frame(1 << 20, 300)]);
    });
}

#[test]
fn a_full_ring_leaves_with_one_doorbell_and_has_room_again() {
    isolated("a_full_ring_leaves_with_one_doorbell_and_has_room_again", || {
        let peer = Peer::new(1);
        let (device, mut queues) = open(&everything());
        let (mut wire, queue) = (peer.wire(), &mut queues[0]);
        let slots = device.info().tx_ring;
        let room = Arc::new(EventFdSink::new().unwrap());
        queue.tx_irq.connect(room.clone());
        for number in 0..slots {
            queue.tx.transmit(Frame::copy_from(&frame(number as u32, 100))).expect("room");
        }
        assert_eq!(queue.tx.free_slots(), 0);
        assert!(queue.tx.transmit(Frame::copy_from(&frame(9999, 100))).is_err());
        queue.tx_irq.unmask();
        assert!(!room.clear(), "a full ring that no doorbell rang for has no room");
        assert_eq!(wire.take().len(), 0);
        // The kernel takes 32 frames a call.
        assert_eq!(queue.tx.doorbell(), Doorbell::Done);
        assert!(device.counters(0).syscalls >= slots as u64 / 32);
        assert!(room.wait(Some(LIMIT)).unwrap(), "the room interrupt");
        queue.tx.reap_sent(&mut FramePool::new(0));
        assert_eq!(queue.tx.free_slots(), slots);
        // Another thread of the kernel's may hand the last ones over.
        let mut taken = 0;
        until("frames are missing", || {
            taken += wire.take().len();
            taken >= slots
        });
        assert_eq!(taken, slots);
    });
}

#[test]
fn an_interface_that_is_deleted_ends_the_device() {
    isolated("an_interface_that_is_deleted_ends_the_device", || {
        let _peer = Peer::new(1);
        let (device, mut queues) = open(&everything());
        let (told, events) = mpsc::channel();
        device.watch(Box::new(move |event| told.send(event).unwrap_or_default()));
        done(&format!("ip link del {DEV}"));
        assert_eq!(events.iter().find(|event| *event == DeviceEvent::Gone), Some(DeviceEvent::Gone));
        assert_eq!(device.link(), Link::Down);
        let queue = &mut queues[0];
        let room = Arc::new(EventFdSink::new().unwrap());
        queue.tx_irq.connect(room.clone());
        for _ in 0..2 * device.info().tx_ring {
            queue.tx.transmit(Frame::copy_from(&frame(1, 100))).expect("a device that is gone takes everything");
            assert_eq!(queue.tx.doorbell(), Doorbell::Done);
        }
        queue.tx_irq.unmask();
        assert!(room.wait(Some(LIMIT)).unwrap());
        assert_eq!(queue.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ()), 0);
        assert!(!readable(queue.irq.fd().unwrap(), Duration::ZERO), "who watches it would spin");
        assert_eq!(device.counters(0).tx_dropped, 2 * device.info().tx_ring as u64);
    });
}

#[test]
fn the_link_is_the_interfaces() {
    isolated("the_link_is_the_interfaces", || {
        let peer = Peer::new(1);
        let (device, mut queues) = open(&everything());
        let (told, events) = mpsc::channel();
        device.watch(Box::new(move |event| told.send(event).unwrap_or_default()));
        assert_eq!(device.link(), Link::Up);
        let slots = device.info().tx_ring;
        (0..slots).for_each(|_| queues[0].tx.transmit(Frame::copy_from(&frame(1, 100))).expect("room"));
        assert_eq!(queues[0].tx.free_slots(), 0);
        peer.done(&format!("ip link set {PEER_DEV} down"));
        assert_eq!(events.recv_timeout(LIMIT).unwrap(), DeviceEvent::Link(Link::Down));
        assert_eq!(queues[0].tx.free_slots(), slots, "who waits for room would wait for the link");
        queues[0].tx.transmit(Frame::copy_from(&frame(1, 100))).expect("taken and dropped");
        assert_eq!((queues[0].tx.doorbell(), device.counters(0).tx_dropped), (Doorbell::Done, 1 + slots as u64));
        peer.done(&format!("ip link set {PEER_DEV} up"));
        assert_eq!(events.recv_timeout(LIMIT).unwrap(), DeviceEvent::Link(Link::Up));
    });
}

#[test]
fn the_mtu_is_the_interfaces_as_far_as_the_rings_go() {
    isolated("the_mtu_is_the_interfaces_as_far_as_the_rings_go", || {
        let _peer = Peer::new(1);
        let (device, mut queues) = open(&everything());
        let (told, events) = mpsc::channel();
        device.watch(Box::new(move |event| told.send(event).unwrap_or_default()));
        done(&format!("ip link set {DEV} mtu 1400"));
        assert_eq!((events.recv_timeout(LIMIT).unwrap(), device.info().mtu_bytes), (DeviceEvent::Mtu, 1400));
        queues[0].tx.transmit(Frame::copy_from(&frame(1, 1514))).expect("taken and dropped");
        assert_eq!((queues[0].tx.doorbell(), device.counters(0).tx_dropped), (Doorbell::Done, 1));
        done(&format!("ip link set {DEV} mtu 1500"));
        assert_eq!((events.recv_timeout(LIMIT).unwrap(), device.info().mtu_bytes), (DeviceEvent::Mtu, 1500));
    });
}

/// What a device's watcher is told, and a hold on the device's thread each time that it tells of another MTU.
struct Held {
    events: mpsc::Receiver<DeviceEvent>,
    let_go: mpsc::Sender<()>,
}

impl Held {
    fn by(device: &dyn Device) -> Held {
        let ((told, events), (let_go, goes_on)) = (mpsc::channel(), mpsc::channel());
        let goes_on = std::sync::Mutex::new(goes_on);
        device.watch(Box::new(move |event| {
            told.send(event).unwrap_or_default();
            if event == DeviceEvent::Mtu {
                // Err: the test has ended.
                let _ = goes_on.lock().unwrap().recv();
            }
        }));
        Held { events, let_go }
    }

    fn hears(&self, wanted: DeviceEvent) {
        while self.events.recv_timeout(LIMIT).unwrap() != wanted {}
    }

    /// The thread is in a watcher, and hears of nothing that comes now.
    fn holds(&self, mtu_bytes: usize) {
        done(&format!("ip link set {DEV} mtu {mtu_bytes}"));
        self.hears(DeviceEvent::Mtu);
    }
}

/// Whoever rings has the transmitter locked, which a sink of the room interrupt wants as well.
#[test]
fn a_doorbell_that_finds_the_link_down_raises_no_room_interrupt_in_place() {
    isolated("a_doorbell_that_finds_the_link_down_raises_no_room_interrupt_in_place", || {
        let _peer = Peer::new(1);
        let (device, mut queues) = open(&everything());
        let held = Held::by(&device);
        let Queue { mut tx, tx_irq, .. } = queues.remove(0);
        // A frame is left on the ring by a link that is down, and still there when that is up again.
        tx.transmit(Frame::copy_from(&frame(1, 100))).expect("room");
        held.holds(1400);
        done(&format!("ip link set {DEV} down"));
        assert_eq!((tx.doorbell(), device.link()), (Doorbell::Done, Link::Down));
        done(&format!("ip link set {DEV} up"));
        held.let_go.send(()).unwrap();
        held.hears(DeviceEvent::Link(Link::Up));
        // Room is waited for, and the device's thread does not look for it.
        held.holds(1500);
        let outlet = Outlet::new(tx, tx_irq.clone());
        tx_irq.unmask();
        done(&format!("ip link set {DEV} down"));
        let (service, client) = mem::pair(MemConfig::default());
        let redirected = outlet.clone();
        let programmed = Programmed::new(Arc::new(service), move |_| {
            let outlet = redirected.clone();
            Box::new(move |_: &mut Frame| Action::Redirect(outlet.clone()))
        });
        let (mut ours, mut theirs) = (programmed.take_queue(0).unwrap(), client.take_queue(0).unwrap());
        theirs.tx.transmit(Frame::copy_from(&frame(2, 100))).expect("room");
        theirs.tx.doorbell();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(ours.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ())));
        assert_eq!(told.recv_timeout(LIMIT), Ok(1), "the poll waits for itself");
        assert_eq!((device.link(), programmed.counts().redirected), (Link::Down, 1));
        held.let_go.send(()).unwrap();
    });
}

#[test]
fn a_device_that_was_renamed_before_it_starts_knows_its_driver() {
    isolated("a_device_that_was_renamed_before_it_starts_knows_its_driver", || {
        let _peer = Peer::new(1);
        let setup = XdpSetup::open(&everything()).unwrap();
        done(&format!("ip link set {DEV} down"));
        done(&format!("ip link set {DEV} name z0"));
        done("ip link set z0 up");
        let device = Xdp::start(setup).unwrap();
        assert!(device.report().is_veth && device.info().offloads.rx_checksum);
    });
}

#[test]
fn a_queue_that_receives_and_cannot_send_is_refused() {
    isolated("a_queue_that_receives_and_cannot_send_is_refused", || {
        done("ip link add y0 numrxqueues 4 numtxqueues 1 type veth peer name y1 numrxqueues 1 numtxqueues 4");
        done("ip link set y0 up");
        done("ip link set y1 up");
        let on = |queues: &[u32]| Xdp::open(&XdpConfig { name: "y0".to_owned(), queues: queues.to_vec(), ..config() });
        for queues in [&[][..], &[1]] {
            let refused = on(queues).unwrap_err().to_string();
            assert!(refused.contains("receives and cannot send") && refused.contains("ethtool -L y0"), "{refused}");
        }
        assert_eq!(on(&[0]).unwrap().info().queues, 1);
    });
}

#[test]
fn several_queues_have_a_socket_each_and_cannot_be_taken_away() {
    isolated("several_queues_have_a_socket_each_and_cannot_be_taken_away", || {
        let peer = Peer::new(2);
        let (device, mut queues) = open(&config());
        assert_eq!((device.info().queues, device.report().queues), (2, vec![0, 1]));
        // The peer's kernel spreads its flows.
        for _ in 0..32 {
            exchange(device.info().mac, OURS, &mut queues, &peer.client((OURS, 7)), b"spread");
        }
        assert!((0..2).all(|queue| device.counters(queue).rx_frames > 0), "{:?}", device.counters(1));
        assert!(!run(&format!("ethtool -L {DEV} rx 1 tx 1")).status.success(), "a queue with a socket was taken away");
        drop(queues);
        drop(device);
        let refused = Xdp::open(&XdpConfig { queues: vec![2], ..config() }).unwrap_err().to_string();
        assert!(refused.contains("2 is not there; the interface has 0 to 1"), "{refused}");
        let (device, _queues) = open(&XdpConfig { queues: vec![1], ..config() });
        assert_eq!((device.info().queues, device.report().queues), (1, vec![1]));
    });
}

#[test]
fn who_comes_second_is_told_what_is_taken() {
    isolated("who_comes_second_is_told_what_is_taken", || {
        let _peer = Peer::new(1);
        let setup = XdpSetup::open(&config()).unwrap();
        let error = XdpSetup::open(&config()).unwrap_err().to_string();
        assert!(error.contains(DEV) && error.contains("another XDP program is attached"), "{error}");
        let first = Xdp::start(setup).unwrap();
        drop(first);
        // The queue has a socket, though the program is another's.
        let setup = XdpSetup::open(&config()).unwrap();
        done("ip link add y0 type veth peer name y1");
        let (text, fds) = parts(&XdpSetup::open(&XdpConfig { name: "y0".to_owned(), ..config() }).unwrap());
        let _first = Xdp::start(setup).unwrap();
        let words: Vec<_> = text.split(' ').collect();
        let x0 = run(&format!("ip -o link show {DEV}"));
        let x0 = String::from_utf8_lossy(&x0.stdout).split(':').next().unwrap().to_owned();
        let same = text.replacen(words[2], &x0, 1).replacen("y0", DEV, 1);
        let error = Xdp::start(XdpSetup::from_parts(&same, fds).unwrap()).unwrap_err();
        let DeviceError::Os { device, what, remedy, source } = error else { panic!("{error}") };
        assert_eq!(
            (&*device, &*what, source.raw_os_error()),
            (DEV, "bind an AF_XDP socket to queue 0", Some(libc::EBUSY))
        );
        assert!(remedy.contains("another AF_XDP socket has this queue"));
    });
}

/// A launcher opens the device; the program that it starts has no privileges.
#[test]
fn a_process_without_privileges_starts_what_another_opened() {
    isolated("a_process_without_privileges_starts_what_another_opened", || {
        let peer = Peer::new(1);
        let (text, fds) = parts(&XdpSetup::open(&config()).unwrap());
        let client = peer.client((OURS, 7));
        net::become_a_user();
        assert!(Xdp::open(&config()).is_err(), "there are no privileges left");
        let device = Xdp::start(XdpSetup::from_parts(&text, fds).unwrap()).unwrap();
        let mut queues = [device.take_queue(0).unwrap()];
        exchange(device.info().mac, OURS, &mut queues, &client, b"no privileges");
    });
}

/// A launcher stays when the program has ended, and goes on with the device itself.
#[test]
fn who_handed_a_device_on_takes_it_back() {
    isolated("who_handed_a_device_on_takes_it_back", || {
        let peer = Peer::new(1);
        let setup = XdpSetup::open(&config()).unwrap();
        let client = peer.client((OURS, 7));
        for round in 0..3_u8 {
            let given = setup.again(&[0]).unwrap();
            let (text, fds) = parts(&given);
            let device = Xdp::start(XdpSetup::from_parts(&text, fds).unwrap()).unwrap();
            let mut queues = [device.take_queue(0).unwrap()];
            exchange(device.info().mac, OURS, &mut queues, &client, &[round; 9]);
            drop((device, queues));
            let (text, fds) = parts(&given);
            let error = Xdp::start(XdpSetup::from_parts(&text, fds).unwrap()).unwrap_err().to_string();
            assert!(error.contains("a process had this device before"), "{error}");
        }
        assert!(matches!(setup.again(&[1]), Err(DeviceError::Queue { index: 1, queues: 1, .. })));
        let setup = setup.again(&[0]).unwrap();
        let device = Xdp::start(setup).unwrap();
        exchange(device.info().mac, OURS, &mut [device.take_queue(0).unwrap()], &client, b"the launcher's");
    });
}

#[test]
fn memory_beyond_the_limit_names_the_limit_and_what_helps() {
    isolated("memory_beyond_the_limit_names_the_limit_and_what_helps", || {
        let _peer = Peer::new(1);
        let (text, fds) = parts(&XdpSetup::open(&XdpConfig { rx_ring: 1 << 14, ..config() }).unwrap());
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: `limit` outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        // The limit does not bind who has privileges.
        net::become_a_user();
        let error = Xdp::start(XdpSetup::from_parts(&text, fds).unwrap()).unwrap_err().to_string();
        for part in [DEV, "RLIMIT_MEMLOCK is 1024 KiB", "ulimit -l", "smaller rings"] {
            assert!(error.contains(part), "{error}");
        }
    });
}

/// The peer's end takes nothing because the thread that empties it does not run: this one has the CPU, and does not
/// sleep. The kernel sends no more then; the doorbell says so, and the room interrupt comes once the peer gets on.
#[test]
fn a_peer_that_is_full_keeps_frames_on_the_ring_until_it_has_room() {
    isolated("a_peer_that_is_full_keeps_frames_on_the_ring_until_it_has_room", || {
        let peer = Peer::new(1);
        if let Err(why) = peer.within(net::threaded_napi) {
            println!("SKIP: a_peer_that_is_full_keeps_frames_on_the_ring_until_it_has_room: {why}");
            return;
        }
        // Frames that may be merged go by the thread.
        done(&format!("ethtool -K {DEV} tso off"));
        let (device, mut queues) = open(&everything());
        let (mut wire, queue) = (peer.wire(), &mut queues[0]);
        let room = Arc::new(EventFdSink::new().unwrap());
        queue.tx_irq.connect(room.clone());
        net::take_the_cpu();
        let mut sent = 0;
        let rung = loop {
            assert!(sent < 10_000, "the peer is never full");
            queue.tx.reap_sent(&mut FramePool::new(0));
            queue.tx.transmit(Frame::copy_from(&frame(sent, 100))).expect("room: the peer's ring is the smaller one");
            sent += 1;
            if sent % 100 == 0 && queue.tx.doorbell() == Doorbell::Again {
                break Doorbell::Again;
            }
        };
        assert_eq!(rung, Doorbell::Again);
        queue.tx_irq.unmask();
        assert!(!room.clear(), "there is no room yet");
        // A frame that the full peer refuses leaves its chunk at once, and its slot of the ring later.
        for _ in 0..100 {
            queue.tx.doorbell();
            queue.tx.reap_sent(&mut FramePool::new(0));
            while queue.tx.free_slots() > 0 {
                queue
                    .tx
                    .transmit(Frame::copy_from(&frame(sent, 100)))
                    .expect("a slot for each that is said to be free");
                sent += 1;
            }
        }
        queue.tx_irq.unmask();
        until("the ring was not emptied", || {
            assert!(room.wait(Some(LIMIT)).unwrap(), "the room interrupt");
            let rung = queue.tx.doorbell();
            queue.tx_irq.unmask();
            rung == Doorbell::Done
        });
        // A veth that is full at the wrong moment drops what AF_XDP was told is sent.
        let lost = || device.counters(0).tx_dropped as usize + net::sent_and_dropped(DEV);
        let mut arrived = Vec::new();
        until("frames are missing", || {
            arrived.extend(wire.take());
            arrived.len() + lost() >= sent as usize
        });
        until("a chunk is lost", || {
            queue.tx.reap_sent(&mut FramePool::new(0));
            queue.tx.free_slots() == device.info().tx_ring
        });
        let all: Vec<_> = (0..sent).map(|number| frame(number, 100)).collect();
        let mut order = all.iter();
        assert!(arrived.iter().all(|frame| order.any(|sent| sent == frame)), "they are not in order");
    });
}

mod packet {
    //! The fall-back: copies by a packet socket.

    use super::*;
    use lull_nic::packet::{Packet, PacketConfig};

    fn open(addresses: &[std::net::IpAddr]) -> Packet {
        Packet::open(&PacketConfig { name: DEV.to_owned(), addresses: addresses.to_vec() }).unwrap()
    }

    #[test]
    fn a_packet_socket_keeps_the_contract() {
        isolated("packet::a_packet_socket_keeps_the_contract", || {
            let peer = Peer::new(1);
            conformance::check(&open(&[]), &mut peer.wire()).unwrap();
        });
    }

    #[test]
    fn the_peers_kernel_talks_to_an_address_that_is_lulls() {
        isolated("packet::the_peers_kernel_talks_to_an_address_that_is_lulls", || {
            let peer = Peer::new(1);
            let device = open(&[OURS.into(), "fd00:99::2".parse().unwrap()]);
            let mut queues = [device.take_queue(0).unwrap()];
            exchange(device.info().mac, OURS, &mut queues, &peer.client((OURS, 7)), &[7; 1472]);
            // What is for others is not copied.
            let before = device.counters(0).rx_frames;
            let host = UdpSocket::bind((HOST, 9)).unwrap();
            peer.client((HOST, 9)).send(b"to the host").unwrap();
            assert_eq!(host.recv(&mut [0; 64]).unwrap(), 11);
            while queues[0].rx.poll(64, &mut FramePool::new(0), &mut |_, _| ()) > 0 {}
            assert_eq!(device.counters(0).rx_frames, before);
            let error = Packet::open(&PacketConfig { name: DEV.to_owned(), addresses: vec![HOST.into()] }).unwrap_err();
            assert!(error.to_string().contains("10.99.0.1 is the host's own"), "{error}");
        });
    }

    #[test]
    fn an_interface_that_is_deleted_ends_it() {
        isolated("packet::an_interface_that_is_deleted_ends_it", || {
            let _peer = Peer::new(1);
            let device = open(&[]);
            let mut queue = device.take_queue(0).unwrap();
            let (told, events) = mpsc::channel();
            device.watch(Box::new(move |event| told.send(event).unwrap_or_default()));
            done(&format!("ip link del {DEV}"));
            assert!(readable(queue.irq.fd().unwrap(), LIMIT), "the error is an interrupt");
            while queue.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ()) > 0 {}
            while events.recv_timeout(LIMIT).unwrap() != DeviceEvent::Gone {}
            until("who watches it would spin", || {
                queue.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ());
                !readable(queue.irq.fd().unwrap(), Duration::ZERO)
            });
            assert!(queue.tx.transmit(Frame::copy_from(&frame(1, 100))).is_ok() && device.link() == Link::Down);
        });
    }

    /// The error that tells of the link's end is read before the interface is deleted, which makes no other one.
    fn down_and_read(queue: &mut Queue) {
        done(&format!("ip link set {DEV} down"));
        assert!(readable(queue.irq.fd().unwrap(), LIMIT), "the error is an interrupt");
        until("the error is not read", || {
            queue.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ());
            !readable(queue.irq.fd().unwrap(), Duration::ZERO)
        });
    }

    #[test]
    fn who_only_receives_hears_that_an_interface_was_deleted_whose_link_was_down() {
        isolated("packet::who_only_receives_hears_that_an_interface_was_deleted_whose_link_was_down", || {
            let _peer = Peer::new(1);
            let device = open(&[]);
            let mut queue = device.take_queue(0).unwrap();
            let held = Held::by(&device);
            down_and_read(&mut queue);
            held.hears(DeviceEvent::Link(Link::Down));
            done(&format!("ip link del {DEV}"));
            held.hears(DeviceEvent::Gone);
        });
    }

    #[test]
    fn who_sends_hears_that_an_interface_was_deleted_whose_link_was_down() {
        isolated("packet::who_sends_hears_that_an_interface_was_deleted_whose_link_was_down", || {
            let _peer = Peer::new(1);
            let device = open(&[]);
            let mut queue = device.take_queue(0).unwrap();
            let held = Held::by(&device);
            // The device's thread hears of nothing from now on.
            held.holds(1400);
            down_and_read(&mut queue);
            done(&format!("ip link del {DEV}"));
            queue.tx.transmit(Frame::copy_from(&frame(1, 100))).expect("taken and lost");
            queue.tx.doorbell();
            held.hears(DeviceEvent::Gone);
            held.let_go.send(()).unwrap();
        });
    }
}
