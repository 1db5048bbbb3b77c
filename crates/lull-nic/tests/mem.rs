//! The in-memory pair against the contract.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::rss::{SYMMETRIC_KEY, Toeplitz};
use lull_nic::{
    Checksum, Device, DeviceError, DeviceEvent, EventFdSink, Frame, FramePool, IrqSink, Link, Moderation, Offloads,
    Queue, Segmentation,
};

#[derive(Default)]
struct CountingSink(AtomicUsize);

impl IrqSink for CountingSink {
    fn raise(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl CountingSink {
    fn raises(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn numbered(number: u64) -> Frame {
    let mut frame = Frame::copy_from(&[0; 60]);
    frame.data_mut()[20..28].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &Frame) -> u64 {
    u64::from_be_bytes(frame.data()[20..28].try_into().unwrap())
}

fn udp(source_port: u16) -> Frame {
    let mut bytes = [0; 42];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[23] = 17;
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..36].copy_from_slice(&source_port.to_be_bytes());
    Frame::copy_from(&bytes)
}

fn send(queue: &mut Queue, frames: impl IntoIterator<Item = Frame>) {
    for frame in frames {
        queue.tx.transmit(frame).expect("a free slot");
    }
    queue.tx.doorbell();
}

fn receive(queue: &mut Queue, budget: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    queue.rx.poll(budget, &mut FramePool::new(0), &mut |frame, _| frames.push(frame));
    frames
}

fn single() -> (MemPort, MemPort, Queue, Queue) {
    let (a, b) = mem::pair(MemConfig::default());
    let (qa, qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    (a, b, qa, qb)
}

fn connect(queue: &Queue) -> Arc<CountingSink> {
    let sink = Arc::new(CountingSink::default());
    queue.irq.connect(sink.clone());
    sink
}

/// One thread sends in batches, one sleeps on the interrupt and polls with a small budget: everything arrives, in
/// order. A lost edge would hang it.
#[test]
fn interrupt_driven_receiver_loses_nothing_and_keeps_order() {
    const FRAMES: u64 = 200_000;
    let config = MemConfig { ring_slots: 64, ..MemConfig::default() };
    let (a, b) = mem::pair(config);
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < FRAMES {
            let batch = (1 + next % 23).min(FRAMES - next) as usize;
            for _ in 0..batch.min(qb.tx.free_slots()) {
                qb.tx.transmit(numbered(next)).expect("free slots were counted");
                next += 1;
            }
            qb.tx.doorbell();
            std::thread::yield_now();
        }
        qb
    });
    let sink = Arc::new(EventFdSink::new().unwrap());
    qa.irq.connect(sink.clone());
    let (mut expected, mut pool) = (0, FramePool::new(64));
    while expected < FRAMES {
        let took = qa.rx.poll(7, &mut pool, &mut |frame, pool| {
            assert_eq!(number(&frame), expected);
            expected += 1;
            pool.recycle(frame);
        });
        if took < 7 && expected < FRAMES {
            qa.irq.unmask();
            assert!(sink.wait(Some(Duration::from_secs(60))).unwrap(), "an edge was lost at frame {expected}");
        }
    }
    sender.join().unwrap();
    assert_eq!((a.counters(0).rx_frames, b.counters(0).tx_frames), (FRAMES, FRAMES));
    assert_eq!(a.counters(0).rx_bytes, FRAMES * 60);
}

#[test]
fn line_starts_masked_and_unmask_with_work_pending_raises_at_once() {
    let (a, b, mut qa, mut qb) = single();
    let sink = connect(&qa);
    send(&mut qb, [numbered(1)]);
    assert_eq!(sink.raises(), 0);
    qa.irq.unmask();
    assert_eq!(sink.raises(), 1);
    send(&mut qb, [numbered(2)]);
    assert_eq!(sink.raises(), 1, "raised once between two unmasks");
    assert_eq!(receive(&mut qa, 64).len(), 2);
    qa.irq.unmask();
    assert_eq!(sink.raises(), 1);
    send(&mut qb, [numbered(3), numbered(4)]);
    assert_eq!((sink.raises(), a.counters(0).interrupts), (2, 2));
    assert_eq!(b.raises(0), 1, "the other raise was the unmasking side's own");
    assert!(b.raise_ns(0) > 0);
    qa.irq.unmask();
    qa.irq.mask();
    receive(&mut qa, 64);
    send(&mut qb, [numbered(5)]);
    assert_eq!(sink.raises(), 3, "masked again after the unmask that raised");
}

#[test]
fn a_raise_before_connect_is_made_up_for() {
    let (_a, _b, qa, mut qb) = single();
    qa.irq.unmask();
    send(&mut qb, [numbered(1)]);
    assert_eq!(connect(&qa).raises(), 1);
}

#[test]
fn nothing_is_seen_before_the_doorbell() {
    let (_a, _b, mut qa, mut qb) = single();
    qb.tx.transmit(numbered(1)).unwrap();
    assert!(receive(&mut qa, 64).is_empty());
    qb.tx.doorbell();
    assert!(receive(&mut qa, 0).is_empty(), "budget 0 takes nothing");
    assert_eq!(receive(&mut qa, 64).len(), 1);
}

#[test]
fn full_ring_gives_the_frame_back() {
    let (a, b) = mem::pair(MemConfig { ring_slots: 4, ..MemConfig::default() });
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    for at in 0..4 {
        assert_eq!(qb.tx.free_slots(), 4 - at as usize);
        qb.tx.transmit(numbered(at)).unwrap();
    }
    assert_eq!(number(&qb.tx.transmit(numbered(99)).unwrap_err()), 99);
    qb.tx.doorbell();
    assert_eq!(qb.tx.free_slots(), 0);
    assert!(qb.tx.transmit(numbered(99)).is_err());
    assert_eq!(receive(&mut qa, 3).len(), 3);
    assert_eq!(qb.tx.free_slots(), 3);
    assert!(qb.tx.transmit(numbered(4)).is_ok());
}

#[test]
fn full_ring_may_lose_frames_like_a_wire() {
    let (a, b) = mem::pair(MemConfig { ring_slots: 4, drop_when_full: true, ..MemConfig::default() });
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    send(&mut qb, (0..10).map(numbered));
    assert_eq!(a.counters(0).rx_dropped, 6);
    assert_eq!(receive(&mut qa, 64).len(), 4);
}

#[test]
fn moderation_by_frames_and_by_time() {
    let (a, _b, mut qa, mut qb) = single();
    let sink = connect(&qa);
    // An hour: only the number of frames can end it.
    a.set_moderation(Moderation { rx_usecs: 3_600_000_000, rx_frames: 3 }).unwrap();
    qa.irq.unmask();
    send(&mut qb, [numbered(0), numbered(1)]);
    assert_eq!(sink.raises(), 0);
    send(&mut qb, [numbered(2)]);
    assert_eq!(sink.raises(), 1);
    receive(&mut qa, 64);
    qa.irq.unmask();
    send(&mut qb, [numbered(3)]);
    assert_eq!(sink.raises(), 1);
    qa.irq.unmask();
    assert_eq!(sink.raises(), 2, "unmask with work pending raises at once, moderated or not");
    receive(&mut qa, 64);
    qa.irq.unmask();
    send(&mut qb, [numbered(4)]);
    a.set_moderation(Moderation::default()).unwrap();
    assert_eq!(sink.raises(), 3, "the end of moderation lets go what it held");
    assert_eq!(a.moderation(), Moderation::default());
    assert!(matches!(
        a.set_moderation(Moderation { rx_usecs: 0, rx_frames: 8 }),
        Err(DeviceError::Invalid { what: "moderation", .. })
    ));
}

#[test]
fn moderated_interrupt_comes_without_any_further_call() {
    let (a, _b, qa, mut qb) = single();
    let sink = Arc::new(EventFdSink::new().unwrap());
    qa.irq.connect(sink.clone());
    a.set_moderation(Moderation { rx_usecs: 2_000, rx_frames: 0 }).unwrap();
    qa.irq.unmask();
    send(&mut qb, [numbered(1)]);
    assert!(sink.wait(Some(Duration::from_secs(60))).unwrap());
}

#[test]
fn moderated_flood_loses_no_edge() {
    const FRAMES: u64 = 20_000;
    let (a, _b, mut qa, mut qb) = single();
    a.set_moderation(Moderation { rx_usecs: 30, rx_frames: 8 }).unwrap();
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < FRAMES {
            if qb.tx.transmit(numbered(next)).is_ok() {
                next += 1;
            }
            qb.tx.doorbell();
        }
    });
    let sink = Arc::new(EventFdSink::new().unwrap());
    qa.irq.connect(sink.clone());
    let mut seen = 0;
    while seen < FRAMES {
        qa.irq.unmask();
        assert!(sink.wait(Some(Duration::from_secs(60))).unwrap(), "an edge was lost at frame {seen}");
        while qa.rx.poll(16, &mut FramePool::new(0), &mut |_, _| seen += 1) == 16 {}
    }
    sender.join().unwrap();
}

#[test]
fn link_down_drops_and_counts_on_both_sides() {
    let (a, b, mut qa, mut qb) = single();
    let events = Arc::new(Mutex::new(Vec::new()));
    for (port, device) in [&a, &b].into_iter().enumerate() {
        let events = events.clone();
        device.watch(Box::new(move |event| events.lock().unwrap().push((port, event))));
    }
    a.set_link(Link::Down).unwrap();
    assert_eq!(b.link(), Link::Down);
    send(&mut qb, [numbered(1), numbered(2)]);
    send(&mut qa, [numbered(3)]);
    b.set_link(Link::Up).unwrap();
    assert_eq!(a.link(), Link::Down, "one side still holds it down");
    a.set_link(Link::Up).unwrap();
    send(&mut qb, [numbered(4)]);
    assert_eq!(receive(&mut qa, 64).iter().map(number).collect::<Vec<_>>(), [4]);
    assert_eq!((b.counters(0).tx_dropped, a.counters(0).tx_dropped), (2, 1));
    let (down, up) = (DeviceEvent::Link(Link::Down), DeviceEvent::Link(Link::Up));
    assert_eq!(*events.lock().unwrap(), [(0, down), (1, down), (0, up), (1, up)]);
}

#[test]
fn reset_drops_counts_masks_and_tells() {
    let (a, _b, mut qa, mut qb) = single();
    let sink = connect(&qa);
    let told = Arc::new(AtomicUsize::new(0));
    let seen = told.clone();
    a.watch(Box::new(move |event| {
        seen.fetch_add(usize::from(event == DeviceEvent::Reset), Ordering::SeqCst);
    }));
    a.set_moderation(Moderation { rx_usecs: 3_600_000_000, rx_frames: 0 }).unwrap();
    a.set_rss_table(&[0, 0]).unwrap();
    qa.irq.unmask();
    qa.tx.transmit(numbered(0)).unwrap();
    send(&mut qb, [numbered(1), numbered(2)]);
    a.reset().unwrap();
    assert_eq!((told.load(Ordering::SeqCst), a.counters(0).rx_errors), (1, 2));
    send(&mut qb, [numbered(3)]);
    assert_eq!(sink.raises(), 0, "masked by the reset");
    assert_eq!(receive(&mut qa, 64).iter().map(number).collect::<Vec<_>>(), [3]);
    qa.tx.doorbell();
    assert!(receive(&mut qb, 64).is_empty());
    let counters = a.counters(0);
    assert_eq!((counters.rx_errors, counters.rx_frames, counters.tx_dropped), (2, 1, 1));
    assert_eq!((a.moderation().rx_usecs, a.rss_table()), (3_600_000_000, vec![0, 0]), "settings are kept");
}

#[test]
fn dropping_one_port_tells_the_other_and_ends_its_queues() {
    let (a, b, mut qa, mut qb) = single();
    let sink = connect(&qa);
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = told.clone();
    a.watch(Box::new(move |event| seen.lock().unwrap().push(event)));
    qa.irq.unmask();
    drop(b);
    assert_eq!((told.lock().unwrap().as_slice(), sink.raises()), ([DeviceEvent::Gone].as_slice(), 1));
    for queue in [&mut qa, &mut qb] {
        send(queue, [numbered(1)]);
    }
    assert_eq!((a.counters(0).tx_frames, a.counters(0).tx_dropped, a.link()), (0, 1, Link::Down));
    assert!(receive(&mut qa, 64).is_empty());
    qa.irq.unmask();
    assert_eq!(sink.raises(), 1, "no storm from a device that is gone");
}

#[test]
fn rss_spreads_by_the_receivers_table_and_polls_fairly() {
    let config = MemConfig { queues: 4, peer_queues: Some(2), rss_key: SYMMETRIC_KEY, ..MemConfig::default() };
    let (a, b) = mem::pair(config);
    let mut qa: Vec<_> = (0..4).map(|at| a.take_queue(at).unwrap()).collect();
    let mut qb: Vec<_> = (0..2).map(|at| b.take_queue(at).unwrap()).collect();
    let toeplitz = Toeplitz::new(&SYMMETRIC_KEY);
    let table = a.rss_table();
    for queue in &mut qb {
        send(queue, (0..200).map(udp));
    }
    for (at, queue) in qa.iter_mut().enumerate() {
        let frames = receive(queue, 64);
        assert_eq!(frames.len(), 64);
        for frame in &frames {
            let hash = toeplitz.hash_frame(frame.data());
            assert_eq!((frame.rss_hash(), table[hash as usize % table.len()]), (hash, at));
        }
        let port = |frame: &Frame| u16::from_be_bytes([frame.data()[34], frame.data()[35]]);
        assert_eq!(port(&frames[0]), port(&frames[16]), "the second ring has its turn after 16 frames");
    }
    a.set_rss_table(&[3]).unwrap();
    for queue in &mut qa {
        while !receive(queue, 64).is_empty() {}
    }
    send(&mut qb[1], (0..20).map(udp));
    assert_eq!(receive(&mut qa[3], 64).len(), 20);
    assert!(matches!(a.set_rss_table(&[4]), Err(DeviceError::Invalid { .. })));
    assert!(matches!(a.set_rss_table(&[]), Err(DeviceError::Invalid { .. })));
    assert!(matches!(a.take_queue(0), Err(DeviceError::Queue { index: 0, queues: 4, .. })));
}

#[test]
fn offload_flags_decide_what_passes() {
    let config = MemConfig { offloads: Offloads::default(), ..MemConfig::default() };
    let (a, b) = mem::pair(config);
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let mut big = Frame::copy_from(&[0; 4000]);
    qb.tx.transmit(big.clone()).unwrap();
    big.set_segmentation(Segmentation::Tcp { mss_bytes: 1460 });
    qb.tx.transmit(big.clone()).unwrap();
    assert_eq!(b.counters(0).tx_dropped, 2);
    let mut partial = udp(7);
    partial.data_mut()[17] = 28;
    partial.data_mut()[39] = 8;
    partial.set_checksum(Checksum::Partial);
    send(&mut qb, [partial.clone()]);
    let got = receive(&mut qa, 64).remove(0);
    assert_eq!(got.checksum(), Checksum::None);
    assert_ne!(got.data()[40..42], [0, 0], "filled in on the way");

    let (a, b) = mem::pair(MemConfig {
        offloads: Offloads { tso: true, rx_checksum: true, tx_checksum: true },
        ..MemConfig::default()
    });
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    send(&mut qb, [big, partial]);
    let got = receive(&mut qa, 64);
    assert_eq!((got[0].len(), got[1].checksum()), (4000, Checksum::Partial));
}
