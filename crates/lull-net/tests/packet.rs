//! Packet sockets get whole frames of one queue, whoever polls it.

use std::io::ErrorKind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lull_core::settings::WEIGHT_DEFAULT;
use lull_core::{Mode, NapiSettings, Stats, Threaded};
use lull_host::{GroupOptions, Host, HostConfig, HostError};
use lull_net::{NetworkError, PacketDevice, PacketOptions, PacketSocket};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Link};

/// A wait in this file that takes this long has lost something.
const LOST: Duration = Duration::from_secs(120);

/// Two packet sockets at the two ends of an in-memory NIC, each with a CPU.
struct Pair {
    near: PacketSocket,
    far: PacketSocket,
    far_device: PacketDevice,
    host: Host,
}

impl Pair {
    fn new(config: MemConfig, options: &PacketOptions) -> Pair {
        let (near, far) = mem::pair(config);
        let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
        let near = PacketDevice::new(&host, Arc::new(near)).unwrap();
        let far_device = PacketDevice::new(&host, Arc::new(far)).unwrap();
        let near = PacketSocket::bind(&near, 0, &PacketOptions { cpu: 1, ..PacketOptions::default() }).unwrap();
        let far = PacketSocket::bind(&far_device, 0, options).unwrap();
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(LOST));
        }
        Pair { near, far, far_device, host }
    }

    fn stats(&self) -> Stats {
        self.host.napi_stats(self.far.napi())
    }

    /// Sends frames, each of which has to come back before the next one leaves.
    fn echo(&self, frames: u32) {
        let far = self.far.clone();
        let echo = thread::spawn(move || {
            let mut buffer = [0; 256];
            for _ in 0..frames {
                let bytes = far.recv(&mut buffer).unwrap();
                far.send(&buffer[..bytes]).unwrap();
            }
        });
        let mut buffer = [0; 256];
        for number in 0..frames {
            self.near.send(&frame(number)).unwrap();
            let bytes = self.near.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..bytes], frame(number));
        }
        echo.join().unwrap();
    }
}

fn frame(number: u32) -> [u8; 64] {
    let mut frame = [0x5a; 64];
    frame[60..].copy_from_slice(&number.to_be_bytes());
    frame
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < LOST, "{what}");
        thread::yield_now();
    }
}

fn threaded(threaded: Threaded) -> PacketOptions {
    let napi = NapiSettings { threaded, ..NapiSettings::default() };
    PacketOptions { napi, ..PacketOptions::default() }
}

#[test]
fn frames_cross_by_interrupts_by_threads_and_by_a_group() {
    let softirq = Pair::new(MemConfig::default(), &PacketOptions::default());
    softirq.echo(300);
    let stats = softirq.stats();
    assert!(stats.softirq_polls > 0 && stats.polls == stats.softirq_polls, "{stats:?}");

    for how in [Threaded::On, Threaded::BusyPoll] {
        let by_thread = Pair::new(MemConfig::default(), &threaded(how));
        by_thread.echo(300);
        assert!(by_thread.stats().thread_polls > 0, "{how:?}");
    }

    let grouped = Pair::new(MemConfig::default(), &PacketOptions::default());
    let group = grouped.host.new_group(GroupOptions { oversubscribe: true, ..GroupOptions::default() }).unwrap();
    grouped.host.group_attach(group, 0).unwrap();
    grouped.host.group_add(group, grouped.far.napi(), WEIGHT_DEFAULT).unwrap();
    grouped.echo(300);
    assert!(grouped.stats().group_polls > 0);
}

#[test]
fn a_call_that_does_not_block_busy_polls_one_round_and_one_that_blocks_polls_until_it_has_a_frame() {
    let napi = "busyread".parse::<Mode>().unwrap().napi;
    // The timer would poll as well, so it is far off.
    let napi = NapiSettings { gro_flush_timeout_ns: 3_600_000_000_000, ..napi };
    let pair = Pair::new(MemConfig::default(), &PacketOptions { napi, ..PacketOptions::default() });
    let mut buffer = [0; 64];
    // Interrupts that were armed before the first poll come once; after that the deferral masks them.
    pair.near.send(&frame(0)).unwrap();
    pair.far.recv(&mut buffer).unwrap();
    // Arming the timer is the last step of the thread that polled. Before that the queue may not be free.
    until("the deferral", || pair.stats().timer_arms > 0);

    let before = pair.stats();
    pair.far.poll_once();
    assert_eq!(pair.stats().busy_calls, before.busy_calls, "SO_BUSY_POLL is off");
    pair.far.busy().set_usecs(400).unwrap();
    pair.far.busy().set_prefer(true, true).unwrap();
    pair.far.set_nonblocking(true);
    for number in 1..=20 {
        let before = pair.stats();
        assert_eq!(pair.far.try_recv(&mut buffer), None);
        assert_eq!(pair.stats(), before, "a look at the ring polls nothing");
        pair.near.send(&frame(number)).unwrap();
        assert_eq!(pair.far.try_recv(&mut buffer), None, "nobody polled");
        pair.far.poll_once();
        assert_eq!(pair.stats().busy_calls, before.busy_calls + 1);
        assert_eq!(pair.far.try_recv(&mut buffer), Some(64));
        assert_eq!(buffer, frame(number));
    }
    assert_eq!(pair.far.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);

    pair.far.set_nonblocking(false);
    pair.far.busy().set_usecs(1 << 30).unwrap();
    pair.echo(100);
    let stats = pair.stats();
    assert_eq!(stats.softirq_polls, before.softirq_polls, "no interrupt and no timer polled: {stats:?}");

    // A send call polls first, as xsk_sendmsg does.
    pair.near.send(&frame(7)).unwrap();
    let before = pair.stats();
    pair.far.send(&frame(8)).unwrap();
    assert_eq!(pair.stats().busy_calls, before.busy_calls + 1);
    assert_eq!(pair.far.try_recv(&mut buffer), Some(64));
}

#[test]
fn a_frame_that_finds_the_sockets_ring_full_is_lost_and_counted() {
    let pair = Pair::new(MemConfig::default(), &PacketOptions { ring_slots: 4, ..PacketOptions::default() });
    for number in 0..10 {
        pair.near.send(&frame(number)).unwrap();
    }
    until("ten frames", || pair.far.counters().received + pair.far.counters().dropped == 10);
    assert_eq!((pair.far.counters().received, pair.far.counters().dropped), (4, 6));
    let mut buffer = [0; 64];
    for number in 0..4 {
        pair.far.recv(&mut buffer).unwrap();
        assert_eq!(buffer, frame(number), "the first ones stay, in order");
    }
    pair.near.send(&frame(99)).unwrap();
    pair.far.recv(&mut buffer).unwrap();
    assert_eq!(buffer, frame(99));
    assert_eq!(pair.near.counters().sent, 11);
}

#[test]
fn what_does_not_fit_the_buffer_is_cut_off() {
    let pair = Pair::new(MemConfig::default(), &PacketOptions::default());
    pair.near.send(&frame(1)).unwrap();
    pair.near.send(&frame(2)).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(pair.far.recv(&mut buffer).unwrap(), 10);
    assert_eq!(buffer, frame(1)[..10]);
    let mut buffer = [0; 64];
    assert_eq!(pair.far.recv(&mut buffer).unwrap(), 64);
    assert_eq!(buffer, frame(2));
}

/// The far end of the wire belongs to the test, which alone takes frames off the ring.
#[test]
fn what_is_no_frame_is_refused_and_not_counted_as_sent() {
    let pair = Pair::new(MemConfig { mtu_bytes: 1_500, ..MemConfig::default() }, &PacketOptions::default());
    for bytes in [0, 13, 1_519, 100_000] {
        let refused = pair.near.send(&vec![0; bytes]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{bytes} bytes");
        assert!(refused.to_string().contains("14 to 1518"), "{refused}");
    }
    let mut buffer = [0; 1_518];
    for bytes in [14, 1_518] {
        pair.near.send(&vec![1; bytes]).unwrap();
        assert_eq!(pair.far.recv(&mut buffer).unwrap(), bytes);
    }
    assert_eq!(pair.near.counters().sent, 2);
}

#[test]
fn a_sender_that_finds_the_transmit_ring_full_goes_on_when_there_is_room() {
    const SLOTS: usize = 8;
    let (near, far) = mem::pair(MemConfig { ring_slots: SLOTS, ..MemConfig::default() });
    let host = Host::new(HostConfig::default()).unwrap();
    let near = PacketDevice::new(&host, Arc::new(near)).unwrap();
    let socket = PacketSocket::bind(&near, 0, &PacketOptions::default()).unwrap();
    let mut far = far.take_queue(0).unwrap();
    let mut pool = lull_nic::FramePool::new(64);
    socket.set_nonblocking(true);
    let full = (0..).take_while(|_| socket.send(&frame(0)).is_ok()).count();
    assert!((1..=SLOTS).contains(&full));
    assert_eq!(socket.send(&frame(0)).unwrap_err().kind(), ErrorKind::WouldBlock);

    socket.set_nonblocking(false);
    let sender = thread::spawn(move || (0..1000).try_for_each(|number| socket.send(&frame(number))));
    let mut taken = 0;
    until("all frames", || {
        taken += far.rx.poll(3, &mut pool, &mut |frame, pool| pool.recycle(frame));
        taken == full + 1000
    });
    sender.join().unwrap().unwrap();
}

#[test]
fn a_reset_keeps_the_id_and_a_device_that_is_gone_ends_every_call() {
    let (near, far) = mem::pair(MemConfig::default());
    let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
    let near = Arc::new(near);
    let near_device = PacketDevice::new(&host, near.clone()).unwrap();
    let far_device = PacketDevice::new(&host, Arc::new(far)).unwrap();
    let asks = PacketSocket::bind(&near_device, 0, &PacketOptions::default()).unwrap();
    let answers = PacketSocket::bind(&far_device, 0, &PacketOptions { cpu: 1, ..PacketOptions::default() }).unwrap();
    answers.set_read_timeout(Some(LOST));
    let id = answers.incoming_napi_id();
    assert_ne!(id, 0);

    let mut buffer = [0; 64];
    far_device.device().reset().unwrap();
    let mut number = 0;
    until("a frame after the reset", || {
        number += 1;
        asks.send(&frame(number)).unwrap();
        thread::yield_now();
        answers.try_recv(&mut buffer).is_some()
    });
    until("the id", || answers.incoming_napi_id() == id);
    while answers.try_recv(&mut buffer).is_some() {}

    near.set_link(Link::Down).unwrap();
    asks.send(&frame(0)).unwrap(); // A link that is down takes and drops frames, so that nobody waits for it.
    let waiting = {
        let answers = answers.clone();
        thread::spawn(move || {
            // Frames that were on their way come first.
            loop {
                if let Err(error) = answers.recv(&mut [0; 64]) {
                    break error.kind();
                }
            }
        })
    };
    drop((asks, near_device, near));
    assert_eq!(waiting.join().unwrap(), ErrorKind::NetworkDown);
    assert_eq!(answers.send(&frame(0)).unwrap_err().kind(), ErrorKind::NetworkDown);
    assert_eq!(answers.incoming_napi_id(), 0);
}

#[test]
fn what_cannot_be_bound_is_refused_and_a_closed_socket_leaves_nothing_behind() {
    let pair = Pair::new(MemConfig { queues: 2, ..MemConfig::default() }, &PacketOptions::default());
    let device = &pair.far_device;
    let refused = |queue, options: PacketOptions| PacketSocket::bind(device, queue, &options).unwrap_err();
    assert!(matches!(refused(0, PacketOptions::default()), NetworkError::Device(_)), "taken");
    assert!(matches!(refused(2, PacketOptions::default()), NetworkError::Device(_)), "not there");
    let no_slots = refused(1, PacketOptions { ring_slots: 0, ..PacketOptions::default() });
    assert!(no_slots.to_string().contains("at least one"), "{no_slots}");
    let no_cpu = refused(1, PacketOptions { cpu: 2, ..PacketOptions::default() });
    assert!(matches!(no_cpu, NetworkError::Host(HostError::NoCpu { cpu: 2, cpus: 2 })));
    let napi = NapiSettings { defer_hard_irqs: u32::MAX, ..NapiSettings::default() };
    assert!(matches!(refused(1, PacketOptions { napi, ..PacketOptions::default() }), NetworkError::Host(_)));

    let known = pair.host.napis().len();
    let second = PacketSocket::bind(device, 1, &PacketOptions::default()).expect("what was refused took nothing");
    assert_eq!(pair.host.napis().len(), known + 1);
    drop(second);
    assert_eq!(pair.host.napis().len(), known);
}
