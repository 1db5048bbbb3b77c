//! In every mode each forwarded frame arrives or is dropped and counted, and a device that has room too late for its
//! doorbell is rung again.

mod shown;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lull_host::{GroupOptions, Host, HostConfig};
use lull_lab::case::Effort;
use lull_lab::forward::Forward;
use lull_lab::forward::link::Link;
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Frame, FramePool};

const LOST: Duration = Duration::from_secs(60);

/// An effort for cases that are refused.
fn effort(stop: &AtomicBool) -> Effort<'_> {
    shown::effort(stop, Duration::from_millis(10))
}

fn forward(kernel: bool, modes: &[&str]) -> Forward {
    let modes = modes.iter().map(|mode| mode.parse().unwrap()).collect();
    Forward { bytes: vec![64], modes, kernel, per_second: None, cores: Vec::new(), group: None }
}

/// Forwards until frames arrive in every row.
#[track_caller]
fn forwards(forward: &Forward) {
    let table = shown::table(&["forwarded_kpps"], |effort| forward.run(effort).unwrap());
    for row in &table.rows {
        assert!(shown::is_shown(row), "{row:?}");
        assert!(row.values[table.measure_at("forwarded_kpps")].ours.unwrap().value > 0.0, "{row:?}");
    }
    assert!(!table.interrupted, "{:?}", table.notes);
}

/// Each run fails if a frame neither arrives nor is counted as dropped.
#[test]
fn every_frame_arrives_or_is_counted_in_every_mode() {
    let stop = AtomicBool::new(false);
    forwards(&forward(false, &["softirq", "threaded", "threaded-busy", "group", "group50"]));
    let large = Forward { bytes: vec![1_473], ..forward(false, &["softirq"]) };
    assert!(large.run(&effort(&stop)).unwrap_err().to_string().contains("1 to 1472"));
}

#[test]
fn linux_forwards_between_veth_pairs_and_nothing_of_it_is_left() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: network namespaces take root");
        return;
    }
    let stop = AtomicBool::new(false);
    let setting = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    let before = setting();
    forwards(&forward(true, &["softirq", "threaded"]));
    assert_eq!(setting(), before, "the namespace has a setting of its own");
    let refused = forward(true, &["group"]).run(&effort(&stop)).unwrap();
    assert!(refused.rows[0].verdict.as_ref().unwrap().reason().unwrap().contains("threaded-busy"));
}

#[test]
fn frames_pass_both_ways_and_a_full_ring_drops_and_counts() {
    let host = Host::new(HostConfig::default()).unwrap();
    let pair = || mem::pair(MemConfig { ring_slots: 4, ..MemConfig::default() });
    let ((from, near), (to, far)) = (pair(), pair());
    let link = Link::new(&host, [Arc::new(from), Arc::new(to)]).unwrap();
    link.set_mode(&"base".parse().unwrap(), &[], GroupOptions::default()).unwrap();
    let refused = link.set_mode(&"suspend20".parse().unwrap(), &[], GroupOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("suspend20") && refused.contains("threaded-busy"), "{refused}");
    let (mut near, mut far) = (near.take_queue(0).unwrap(), far.take_queue(0).unwrap());
    let mut pool = FramePool::new(64);
    let frame = |byte: u8| Frame::copy_from(&[byte; 60]);
    let until = Instant::now() + LOST;
    for (there, back) in [(true, 1_u8), (false, 2)] {
        let (here, other) = if there { (&mut near, &mut far) } else { (&mut far, &mut near) };
        here.tx.transmit(frame(back)).unwrap();
        here.tx.doorbell();
        let mut came = Vec::new();
        while came.is_empty() {
            other.rx.poll(8, &mut pool, &mut |frame, _| came.push(frame.data()[0]));
            assert!(Instant::now() < until, "a frame was lost");
        }
        assert_eq!(came, [back]);
    }
    // No frames are taken at the other end: the ring of four is full, and the rest is dropped and counted.
    for sent in 1..=20 {
        let mut next = frame(3);
        while let Err(frame) = near.tx.transmit(next) {
            next = frame;
            near.tx.doorbell();
            assert!(Instant::now() < until, "no room after {sent} frames");
        }
        near.tx.doorbell();
    }
    while link.dropped(0) < 16 {
        assert!(Instant::now() < until, "{} dropped", link.dropped(0));
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut came = 0;
    while came < 4 {
        came += far.rx.poll(8, &mut pool, &mut |_, _| ());
        assert!(Instant::now() < until, "{came} of four came");
    }
    assert_eq!(link.dropped(0), 16);
}

#[test]
fn devices_with_different_numbers_of_queues_are_not_joined() {
    let host = Host::new(HostConfig::default()).unwrap();
    let ((one, _a), (two, _b)) =
        (mem::pair(MemConfig::default()), mem::pair(MemConfig { queues: 2, ..MemConfig::default() }));
    let devices: [Arc<dyn Device>; 2] = [Arc::new(one), Arc::new(two)];
    let refused = Link::new(&host, devices).err().unwrap().to_string();
    assert!(refused.contains("1 queues") && refused.contains("as many"), "{refused}");
}
