//! The disciplines beside models that look everything up in plain lists.

use std::collections::BTreeMap;

use lull_qdisc::fq::{FLOW_FRAMES_MAX, FORGET_NS, FRAMES_MAX, Fq, REFILL_NS};
use lull_qdisc::pfifo_fast::BAND_FRAMES_MAX;
use lull_qdisc::{Dequeued, Kind, Limits, PRIORITY_CONTROL, Packet, Qdisc};
use proptest::prelude::*;

/// The longest frame of the modelled device.
const FRAME_BYTES: u32 = 1500;
const QUANTUM: i64 = 2 * FRAME_BYTES as i64;

#[derive(Clone, Debug)]
enum Op {
    Enqueue { flow: u64, bytes: u32, priority: u8, rate: Option<u64> },
    Dequeue,
    Time(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let rate =
        prop_oneof![Just(None), Just(Some(0)), Just(Some(60_000)), Just(Some(125_000_000)), Just(Some(10_000_000))];
    let enqueue = (0..6u64, 60..=FRAME_BYTES, 0..10u8, rate).prop_map(|(flow, bytes, priority, rate)| Op::Enqueue {
        flow,
        bytes,
        priority,
        rate,
    });
    let time = prop_oneof![0..50_000u64, 0..2_000_000u64, Just(REFILL_NS + 1)].prop_map(Op::Time);
    // All these times together are shorter than the time after which a flow is forgotten.
    proptest::collection::vec(prop_oneof![4 => enqueue, 4 => Just(Op::Dequeue), 1 => time], 0..300)
        .prop_filter("time", |ops| {
            ops.iter().map(|op| if let Op::Time(ns) = op { *ns } else { 0 }).sum::<u64>() < FORGET_NS
        })
}

/// What the model keeps of a flow.
#[derive(Default)]
struct Flow {
    queue: Vec<Packet<u32>>,
    credit: i64,
    next_ns: u64,
    /// Whether it stands in one of the lists.
    listed: bool,
    since_ns: u64,
    number: usize,
}

#[derive(Default)]
struct Model {
    flows: BTreeMap<u64, Flow>,
    new: Vec<u64>,
    old: Vec<u64>,
    throttled: Vec<(u64, usize, u64)>,
    control: Vec<Packet<u32>>,
}

impl Model {
    fn frames(&self) -> usize {
        self.control.len() + self.flows.values().map(|flow| flow.queue.len()).sum::<usize>()
    }

    fn enqueue(&mut self, packet: Packet<u32>, now_ns: u64) -> bool {
        if self.frames() == FRAMES_MAX {
            return false;
        }
        if packet.priority == PRIORITY_CONTROL {
            self.control.push(packet);
            return true;
        }
        let number = self.flows.len();
        let fresh = || Flow { credit: 10 * i64::from(FRAME_BYTES), since_ns: now_ns, number, ..Flow::default() };
        let flow = self.flows.entry(packet.flow).or_insert_with(fresh);
        if flow.queue.len() == FLOW_FRAMES_MAX {
            return false;
        }
        flow.queue.push(packet);
        if !flow.listed {
            if now_ns - flow.since_ns > REFILL_NS {
                flow.credit = flow.credit.max(QUANTUM);
            }
            flow.listed = true;
            self.new.push(packet.flow);
        }
        true
    }

    fn dequeue(&mut self, now_ns: u64) -> Dequeued<u32> {
        if !self.control.is_empty() {
            return Dequeued::Packet(self.control.remove(0));
        }
        self.throttled.sort();
        while self.throttled.first().is_some_and(|(until_ns, _, _)| *until_ns <= now_ns) {
            self.old.push(self.throttled.remove(0).2);
        }
        loop {
            let of_new = !self.new.is_empty();
            let Some(&key) = self.new.first().or(self.old.first()) else {
                let first = self.throttled.first();
                return first.map_or(Dequeued::Empty, |(until_ns, _, _)| Dequeued::Throttled { until_ns: *until_ns });
            };
            let list = if of_new { &mut self.new } else { &mut self.old };
            let flow = self.flows.get_mut(&key).unwrap();
            if flow.credit <= 0 {
                flow.credit += QUANTUM;
                list.remove(0);
                self.old.push(key);
            } else if flow.queue.is_empty() {
                list.remove(0);
                if of_new && !self.old.is_empty() {
                    self.old.push(key);
                } else {
                    (flow.listed, flow.since_ns) = (false, now_ns);
                }
            } else if now_ns < flow.next_ns {
                list.remove(0);
                self.throttled.push((flow.next_ns, flow.number, key));
                self.throttled.sort();
            } else {
                let packet = flow.queue.remove(0);
                flow.credit -= i64::from(packet.bytes);
                let Some(rate) = packet.rate_bytes_per_s else { return Dequeued::Packet(packet) };
                let slow = rate <= 68_750;
                if slow {
                    flow.credit = 0;
                }
                if flow.credit <= 0 {
                    let bytes = if slow { packet.bytes.into() } else { u64::from(packet.bytes).max(QUANTUM as u64) };
                    let mut ns = bytes * 1_000_000_000 / rate.max(1);
                    ns = ns.min(1_000_000_000);
                    if flow.next_ns != 0 {
                        ns -= (now_ns - flow.next_ns).min(ns / 2);
                    }
                    flow.next_ns = now_ns + ns;
                }
                return Dequeued::Packet(packet);
            }
        }
    }
}

proptest! {
    #[test]
    fn fq_does_what_a_model_of_plain_lists_does(ops in ops()) {
        let (mut fq, mut model, mut now_ns) = (Fq::new(FRAME_BYTES, Limits::of(Kind::Fq)), Model::default(), 1);
        for (frame, op) in ops.into_iter().enumerate() {
            match op {
                Op::Enqueue { flow, bytes, priority, rate } => {
                    let frame = frame as u32;
                    let packet = Packet { frame, bytes, flow, priority, rate_bytes_per_s: rate };
                    prop_assert_eq!(fq.enqueue(packet, now_ns).is_ok(), model.enqueue(packet, now_ns));
                }
                Op::Dequeue => prop_assert_eq!(fq.dequeue(now_ns), model.dequeue(now_ns)),
                Op::Time(ns) => now_ns += ns,
            }
            prop_assert_eq!(fq.len(), model.frames());
        }
        // Whatever the rates are, every frame that was taken comes out, at the time that was announced.
        while !fq.is_empty() {
            let next = fq.dequeue(now_ns);
            prop_assert_eq!(next, model.dequeue(now_ns));
            if let Dequeued::Throttled { until_ns } = next {
                prop_assert!(until_ns > now_ns);
                now_ns = until_ns;
            }
        }
    }

    #[test]
    fn pfifo_fast_serves_the_first_band_that_has_a_frame_in_order(
        ops in proptest::collection::vec(prop_oneof![(0..20u8).prop_map(Some), Just(None)], 0..200)
    ) {
        // These are the bands of `sch_default_prio2band`; a priority above the largest counts as the largest.
        let band = |priority: u8| match priority { 6 | 7 => 0, 1..=3 | 5 => 2, _ => 1 };
        let (mut qdisc, mut bands) = (Qdisc::new(Kind::PfifoFast, FRAME_BYTES), [const { Vec::new() }; 3]);
        for (frame, op) in ops.into_iter().enumerate() {
            match op {
                Some(priority) => {
                    let taken = qdisc.enqueue(Packet { priority, ..Packet::new(frame) }, 0);
                    prop_assert!(taken.is_ok());
                    bands[band(priority)].push(frame);
                }
                None => {
                    let expected = bands.iter_mut().find(|band| !band.is_empty()).map(|band| band.remove(0));
                    let next = qdisc.dequeue(0);
                    let frame = if let Dequeued::Packet(packet) = next { Some(packet.frame) } else { None };
                    prop_assert_eq!(frame, expected);
                }
            }
        }
    }
}

fn of(flow: u64, frame: u32) -> Packet<u32> {
    Packet { bytes: FRAME_BYTES, flow, ..Packet::new(frame) }
}

#[test]
fn each_limit_drops_the_frames_of_whoever_is_above_it_and_counts_them() {
    let mut fifo = Qdisc::new(Kind::PfifoFast, FRAME_BYTES);
    let taken = (0..BAND_FRAMES_MAX as u32 + 5).filter(|frame| fifo.enqueue(of(1, *frame), 0).is_ok()).count();
    assert_eq!((taken, fifo.stats().dropped), (BAND_FRAMES_MAX, 5));
    assert!(fifo.enqueue(Packet { priority: 7, ..of(2, 0) }, 0).is_ok(), "another band has room");

    let mut fq = Qdisc::new(Kind::Fq, FRAME_BYTES);
    let taken = (0..FLOW_FRAMES_MAX as u32 + 5).filter(|frame| fq.enqueue(of(1, *frame), 0).is_ok()).count();
    assert_eq!((taken, fq.stats().dropped), (FLOW_FRAMES_MAX, 5));
    for flow in 2..=FRAMES_MAX as u64 / FLOW_FRAMES_MAX as u64 {
        (0..FLOW_FRAMES_MAX as u32).for_each(|frame| assert!(fq.enqueue(of(flow, frame), 0).is_ok()));
    }
    assert!(fq.enqueue(of(1000, 0), 0).is_err(), "the limit of all flows");
    assert_eq!(fq.len(), FRAMES_MAX);
}

#[test]
fn a_paced_flow_gets_its_rate_and_no_more() {
    const RATE: u64 = 10_000_000;
    let mut fq = Qdisc::new(Kind::Fq, FRAME_BYTES);
    let (mut now_ns, mut sent, mut frame) = (0, 0u64, 0);
    while now_ns < 1_000_000_000 {
        while fq.len() < 50 {
            assert!(fq.enqueue(Packet { rate_bytes_per_s: Some(RATE), ..of(1, frame) }, now_ns).is_ok());
            frame += 1;
        }
        match fq.dequeue(now_ns) {
            Dequeued::Packet(packet) => sent += u64::from(packet.bytes),
            Dequeued::Throttled { until_ns } => now_ns = until_ns,
            Dequeued::Empty => panic!("it has frames"),
        }
    }
    let (least, most) = (RATE, RATE + 10 * u64::from(FRAME_BYTES) + QUANTUM as u64);
    assert!((least..=most).contains(&sent), "{sent} bytes in a second at {RATE}, with a first turn of ten frames");
    assert!(fq.stats().throttled > 3_000, "put off once a turn");
}

#[test]
fn a_flow_that_sends_one_frame_now_and_then_passes_those_that_flood() {
    let mut fq = Qdisc::new(Kind::Fq, FRAME_BYTES);
    for frame in 0..100 {
        (1..=3).for_each(|flood| assert!(fq.enqueue(of(flood, frame), 0).is_ok()));
    }
    // By then they have used up their first turns.
    for _ in 0..40 {
        assert!(matches!(fq.dequeue(0), Dequeued::Packet(_)));
    }
    assert!(fq.enqueue(of(9, 999), 0).is_ok());
    let Dequeued::Packet(next) = fq.dequeue(0) else { panic!("nothing is paced") };
    assert_eq!((next.flow, next.frame), (9, 999));
}

#[test]
fn flows_without_frames_are_forgotten_some_time() {
    let mut fq = Fq::new(FRAME_BYTES, Limits::of(Kind::Fq));
    for flow in 0..10_000u64 {
        let now_ns = flow * 10_000_000;
        assert!(fq.enqueue(of(flow, 0), now_ns).is_ok());
        while let Dequeued::Packet(_) = fq.dequeue(now_ns) {}
    }
    // 300 flows come in three seconds, and none is forgotten before that.
    assert!((300..400).contains(&fq.flows()), "{}", fq.flows());
}
