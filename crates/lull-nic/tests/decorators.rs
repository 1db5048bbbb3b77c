//! Record, trace and fault injection over the in-memory pair.
#![cfg(not(loom))]

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lull_nic::fault::{Disturbance, Fault, FaultConfig, FaultStats, Rates};
use lull_nic::frame::Sender;
use lull_nic::mem::{self, MemConfig};
use lull_nic::pcap::Pcap;
use lull_nic::program::{Action, Programmed};
use lull_nic::trace::{Direction, Trace};
use lull_nic::{Checksum, Device, DeviceError, DeviceEvent, EventFdSink, Frame, FramePool, IrqSink, Link, Queue};

/// A writer that others can read, and that breaks after so many bytes.
#[derive(Clone)]
struct Shared(Arc<Mutex<Vec<u8>>>, usize);

impl Write for Shared {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut bytes = self.0.lock().unwrap();
        if bytes.len() + data.len() > self.1 {
            return Err(io::Error::other("disk full"));
        }
        bytes.extend(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct CountingSink(AtomicUsize);

impl IrqSink for CountingSink {
    fn raise(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
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

fn numbered(number: u16) -> Frame {
    let mut data = [0; 60];
    data[20..22].copy_from_slice(&number.to_be_bytes());
    Frame::copy_from(&data)
}

fn numbers(frames: &[Frame]) -> Vec<u16> {
    frames.iter().map(|frame| u16::from_be_bytes([frame.data()[20], frame.data()[21]])).collect()
}

/// A pair whose first port has faults on receive, and the queues of both.
fn faulty(rx: Rates, schedule: Vec<(u64, Disturbance)>) -> (Fault, mem::MemPort, Queue, Queue) {
    let (a, b) = mem::pair(MemConfig::default());
    let fault = Fault::new(Arc::new(a), FaultConfig { seed: 42, rx, schedule, ..FaultConfig::default() }).unwrap();
    let (qa, qb) = (fault.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    (fault, b, qa, qb)
}

#[test]
fn pcap_reads_back_byte_for_byte() {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let (a, b) = mem::pair(MemConfig::default());
    let a = Pcap::new(Arc::new(a), Shared(bytes.clone(), usize::MAX));
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let mut chain = Frame::copy_from(&[1; 14]);
    chain.set_next(Some(Frame::copy_from(&[2; 50])));
    send(&mut qa, [chain]);
    send(&mut qb, [numbered(7)]);
    assert_eq!(receive(&mut qa, 64).len(), 1);
    assert_eq!((a.written(), a.lost()), (2, 0));
    drop(a);

    let file = bytes.lock().unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4), word(16), word(20)), (0xa1b2_3c4d, 4 << 16 | 2, 262_144, 1));
    let mut expected = vec![1; 14];
    expected.extend([2; 50]);
    let mut at = 24;
    for frame in [expected, numbered(7).data().to_vec()] {
        assert!(word(at) > 1_600_000_000 && word(at + 4) < 1_000_000_000);
        assert_eq!((word(at + 8) as usize, word(at + 12) as usize), (frame.len(), frame.len()));
        assert_eq!(file[at + 16..at + 16 + frame.len()], frame);
        at += 16 + frame.len();
    }
    assert_eq!(at, file.len());
}

#[test]
fn a_full_disk_does_not_stop_traffic() {
    let (a, b) = mem::pair(MemConfig::default());
    let a = Pcap::new(Arc::new(a), Shared(Arc::default(), 100));
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    for number in 0..1000 {
        send(&mut qa, [numbered(number)]);
        assert_eq!(numbers(&receive(&mut qb, 64)), [number]);
    }
    assert!(!a.flush());
    assert!(a.lost() > 0 && a.written() + a.lost() == 1000);
    assert_eq!(a.error().unwrap().to_string(), "disk full");
}

#[test]
fn refused_frames_are_recorded_once() {
    let (a, _b) = mem::pair(MemConfig { ring_slots: 1, ..MemConfig::default() });
    let a = Pcap::new(Arc::new(a), io::sink());
    let mut queue = a.take_queue(0).unwrap();
    queue.tx.transmit(numbered(0)).unwrap();
    queue.tx.transmit(numbered(1)).unwrap_err();
    assert_eq!(a.written(), 1);
}

#[test]
fn trace_shows_both_directions() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (a, b) = mem::pair(MemConfig::default());
    let events = seen.clone();
    let a = Trace::new(Arc::new(a), move |event| {
        events.lock().unwrap().push((event.direction, event.queue, event.frame.len()));
    });
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    send(&mut qa, [numbered(1)]);
    send(&mut qb, [numbered(2)]);
    receive(&mut qa, 64);
    assert_eq!(*seen.lock().unwrap(), [(Direction::Tx, 0, 60), (Direction::Rx, 0, 60)]);

    assert!(matches!(a.take_queue(0), Err(DeviceError::Queue { .. })), "taken before");

    let bytes = Arc::new(Mutex::new(Vec::new()));
    let (c, _d) = mem::pair(MemConfig::default());
    let c = Trace::to_writer(Arc::new(c), Shared(bytes.clone(), usize::MAX));
    send(&mut c.take_queue(0).unwrap(), [numbered(1)]);
    let text = String::from_utf8(bytes.lock().unwrap().clone()).unwrap();
    assert!(text.ends_with(" tx q0 00:00:00:00:00:00 > 00:00:00:00:00:00 type 0x0000 len 60\n"), "{text}");
}

fn mixed_run(seed: u64) -> (Vec<Vec<u8>>, FaultStats) {
    let rates = Rates {
        drop: 0.1,
        duplicate: 0.1,
        corrupt: 0.1,
        reorder: 0.1,
        // Only counts decide: the clock must not.
        reorder_hold_ns: u64::MAX,
        ..Rates::default()
    };
    let (a, b) = mem::pair(MemConfig::default());
    let config = FaultConfig { seed, rx: rates, tx: rates, ..FaultConfig::default() };
    let fault = Fault::new(Arc::new(a), config).unwrap();
    let (mut qa, mut qb) = (fault.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let mut out = Vec::new();
    for number in 0..500 {
        send(&mut qb, [numbered(number)]);
        out.extend(receive(&mut qa, 7).iter().map(|frame| frame.data().to_vec()));
        send(&mut qa, [numbered(number)]);
        out.extend(receive(&mut qb, 7).iter().map(|frame| frame.data().to_vec()));
    }
    (out, fault.stats())
}

#[test]
fn a_seed_is_a_run() {
    let first = mixed_run(1);
    assert_eq!(first, mixed_run(1));
    assert_ne!(first, mixed_run(2));
    let stats = first.1;
    for count in [stats.dropped, stats.duplicated, stats.corrupted, stats.reordered] {
        assert!((50..200).contains(&count), "{stats:?}");
    }
}

#[test]
fn corruption_is_visible_to_who_verifies() {
    let (_fault, _b, mut qa, mut qb) = faulty(Rates { corrupt: 1.0, ..Rates::default() }, Vec::new());
    let mut frame = numbered(0);
    frame.set_checksum(Checksum::Unnecessary);
    send(&mut qb, [frame]);
    let got = receive(&mut qa, 64).remove(0);
    assert_eq!(got.checksum(), Checksum::None);
    assert_eq!(got.data().iter().zip(numbered(0).data()).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>(), 1);
}

#[test]
fn budget_bounds_duplicates_and_drops() {
    let (_fault, _b, mut qa, mut qb) = faulty(Rates { duplicate: 1.0, ..Rates::default() }, Vec::new());
    send(&mut qb, (0..10).map(numbered));
    let mut all = Vec::new();
    loop {
        let frames = receive(&mut qa, 3);
        assert!(frames.len() <= 3);
        all.extend(numbers(&frames));
        if frames.len() < 3 {
            break;
        }
    }
    assert_eq!(all, (0..10).flat_map(|number| [number, number]).collect::<Vec<_>>());

    let (fault, _b, mut qa, mut qb) = faulty(Rates { drop: 1.0, ..Rates::default() }, Vec::new());
    send(&mut qb, (0..10).map(numbered));
    let took = qa.rx.poll(4, &mut FramePool::new(0), &mut |_, _| panic!("all are dropped"));
    assert_eq!((took, fault.stats().dropped), (4, 4), "dropped frames use up the budget");
}

/// The last frame of a burst is held back, and nothing else comes: the interrupt must.
#[test]
fn a_held_frame_raises_when_due() {
    let rates = [
        Rates { reorder: 1.0, reorder_depth: 1000, reorder_hold_ns: 5_000_000, ..Rates::default() },
        Rates { delay: 1.0, delay_ns: 5_000_000, ..Rates::default() },
    ];
    for rates in rates {
        let (_fault, _b, mut qa, mut qb) = faulty(rates, Vec::new());
        let sink = Arc::new(EventFdSink::new().unwrap());
        qa.irq.connect(sink.clone());
        qa.irq.unmask();
        send(&mut qb, [numbered(1), numbered(2)]);
        let mut got = Vec::new();
        while got.len() < 2 {
            assert!(sink.wait(Some(Duration::from_secs(60))).unwrap(), "an edge was lost");
            got.extend(numbers(&receive(&mut qa, 64)));
            qa.irq.unmask();
        }
        assert_eq!(got, [1, 2]);
    }
}

/// Due while masked: nobody is told, so the unmask has to raise.
#[test]
fn unmask_raises_for_a_frame_that_became_due_while_masked() {
    const DELAY: Duration = Duration::from_millis(30);
    let delay_ns = DELAY.as_nanos() as u64;
    let (_fault, _b, mut qa, mut qb) = faulty(Rates { delay: 1.0, delay_ns, ..Rates::default() }, Vec::new());
    let sink = Arc::new(CountingSink::default());
    qa.irq.connect(sink.clone());
    // On a machine that stalls the frame may be due before it is looked for; then another is sent.
    let held = (1..1_000).find(|number| {
        send(&mut qb, [numbered(*number)]);
        receive(&mut qa, 64).is_empty()
    });
    let held = held.expect("a frame that is held back when it is looked for");
    // Nobody but the clock makes it due.
    std::thread::sleep(DELAY);
    assert_eq!(sink.0.load(Ordering::SeqCst), 0);
    qa.irq.unmask();
    assert_eq!(sink.0.load(Ordering::SeqCst), 1);
    assert_eq!(numbers(&receive(&mut qa, 64)), [held]);
    qa.irq.unmask();
    assert_eq!(sink.0.load(Ordering::SeqCst), 1);
}

#[test]
fn nothing_is_lost_or_stuck_under_reordering_and_delay() {
    const FRAMES: u16 = 5_000;
    let rates = Rates { reorder: 0.2, delay: 0.2, delay_ns: 50_000, reorder_hold_ns: 200_000, ..Rates::default() };
    let (a, b) = mem::pair(MemConfig { ring_slots: 32, ..MemConfig::default() });
    let config = FaultConfig { seed: 3, rx: rates, tx: rates, ..FaultConfig::default() };
    let a = Fault::new(Arc::new(a), config.clone()).unwrap();
    let b = Fault::new(Arc::new(b), config).unwrap();
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let sender = std::thread::spawn(move || {
        let mut number = 0;
        while number < FRAMES {
            match qb.tx.transmit(numbered(number)) {
                Ok(()) => number += 1,
                Err(_) => std::thread::yield_now(),
            }
            qb.tx.doorbell();
        }
        qb
    });
    let sink = Arc::new(EventFdSink::new().unwrap());
    qa.irq.connect(sink.clone());
    let mut got = Vec::new();
    while got.len() < usize::from(FRAMES) {
        qa.irq.unmask();
        assert!(sink.wait(Some(Duration::from_secs(60))).unwrap(), "an edge was lost after {}", got.len());
        loop {
            let before = got.len();
            let took = qa.rx.poll(16, &mut FramePool::new(0), &mut |frame, _| got.push(frame));
            assert!(got.len() - before <= 16);
            if took < 16 {
                break;
            }
        }
    }
    drop(sender.join().unwrap());
    let mut numbers = numbers(&got);
    assert!(!numbers.is_sorted(), "some were overtaken");
    numbers.sort();
    assert_eq!(numbers, (0..FRAMES).collect::<Vec<_>>());
}

#[test]
fn held_frames_on_transmit_go_out_by_themselves() {
    let (a, b) = mem::pair(MemConfig::default());
    let tx = Rates { reorder: 1.0, reorder_depth: 1000, ..Rates::default() };
    let fault = Fault::new(Arc::new(a), FaultConfig { tx, ..FaultConfig::default() }).unwrap();
    let (mut qa, mut qb) = (fault.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let sink = Arc::new(EventFdSink::new().unwrap());
    qb.irq.connect(sink.clone());
    qb.irq.unmask();
    send(&mut qa, [numbered(1)]);
    assert!(sink.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(numbers(&receive(&mut qb, 64)), [1]);
}

#[test]
fn disturbances_by_schedule_and_by_command() {
    let schedule = vec![(0, Disturbance::Flap { down_ns: 1 }), (1, Disturbance::Reset)];
    let (a, _b) = mem::pair(MemConfig::default());
    let a = Arc::new(a);
    let (tell, told) = std::sync::mpsc::channel();
    a.watch(Box::new(move |event| tell.send(event).unwrap_or(())));
    let fault = Fault::new(a, FaultConfig { schedule, ..FaultConfig::default() }).unwrap();
    let next = || told.recv_timeout(Duration::from_secs(60)).unwrap();
    let mut first: Vec<_> = (0..3).map(|_| next()).collect();
    first.retain(|event| *event != DeviceEvent::Reset);
    let flap = [DeviceEvent::Link(Link::Down), DeviceEvent::Link(Link::Up)];
    assert_eq!(first, flap);
    fault.flap(Duration::from_millis(1)).unwrap();
    assert_eq!([next(), next()], flap);
    fault.plan(Duration::from_millis(1), Disturbance::Reset);
    assert_eq!(next(), DeviceEvent::Reset);
    let bad = Rates { drop: 1.5, ..Rates::default() };
    let (c, _d) = mem::pair(MemConfig::default());
    assert!(matches!(
        Fault::new(Arc::new(c), FaultConfig { tx: bad, ..FaultConfig::default() }),
        Err(DeviceError::Invalid { .. })
    ));
}

#[test]
fn a_reset_loses_held_frames_and_counts_them() {
    let delay = Rates { delay: 1.0, delay_ns: 3_600_000_000_000, ..Rates::default() };
    let (fault, _b, mut qa, mut qb) = faulty(delay, Vec::new());
    send(&mut qb, [numbered(1), numbered(2)]);
    assert!(receive(&mut qa, 64).is_empty());
    fault.reset().unwrap();
    assert!(receive(&mut qa, 64).is_empty());
    assert_eq!((fault.stats().delayed, fault.stats().reset_lost), (2, 2));
}

/// Whoever bounds what stands on a ring (`dql_avail`) sees through all of them.
#[test]
fn what_stands_on_the_ring_is_told_through_decorators() {
    let (a, b) = mem::pair(MemConfig::default());
    let a = Trace::new(Arc::new(a), |_| ());
    let a = Fault::new(Arc::new(a), FaultConfig::default()).unwrap();
    let a = Programmed::new(Arc::new(a), |_| Box::new(|_: &mut Frame| Action::Pass));
    let a = Pcap::new(Arc::new(a), io::sink());
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    assert_eq!(qa.tx.outstanding(), Some(0));
    send(&mut qa, [numbered(1), numbered(2)]);
    assert_eq!(qa.tx.outstanding(), Some(2));
    assert_eq!(qa.tx.room_for(Sender::default()), qa.tx.free_slots());
    assert_eq!(receive(&mut qb, 64).len(), 2);
    assert_eq!(qa.tx.outstanding(), Some(0));
}

#[test]
fn decorators_stack() {
    let (a, b) = mem::pair(MemConfig::default());
    let lines = Arc::new(AtomicUsize::new(0));
    let count = lines.clone();
    let a = Trace::new(Arc::new(a), move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let tx = Rates { duplicate: 1.0, ..Rates::default() };
    let a = Fault::new(Arc::new(a), FaultConfig { tx, ..FaultConfig::default() }).unwrap();
    let a = Pcap::new(Arc::new(a), io::sink());
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    send(&mut qa, [numbered(1)]);
    assert_eq!(receive(&mut qb, 64).len(), 2);
    assert_eq!((lines.load(Ordering::SeqCst), a.written()), (2, 1));
    assert_eq!(a.info().name, "mem0");
}
