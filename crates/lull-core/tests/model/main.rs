//! The core against a plain model of `napi_semantics` §3 to §11: naive sequential code over plain fields. Random steps of
//! everybody who may touch an instance are interleaved (a poll and its completion, a release and its settling, are steps
//! of their own); after every step the two must agree, and the invariants of §14 must hold. In the end time runs on, and
//! every packet must have been polled.
#![cfg(not(loom))]

mod plain;
mod real;

use lull_core::{
    BusyEnd, BusyLoop, BusyPlan, BusyRound, BusyStop, BusyStopped, Completion, Cx, DisableClaim, NAPI_ID_MIN, Napi,
    NapiSettings, NapiThread, Owner, Polled, Release, Route, Schedule, ThreadStep, Threaded, ThreadedOff, state,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use plain::Model;
use real::Real;

const WEIGHT: u32 = 64;
const THREAD_CPU: u16 = 1;
/// Steps that bringing everything to an end may take.
const DRAIN_MAX: u32 = 5_000;
/// Sequences tried; PROPTEST_CASES multiplies it (256 is its default).
const SEQUENCES_PER_CASE: u32 = 1;

#[derive(Clone, Debug)]
enum Op {
    Packets(u32),
    Irq,
    /// A schedule from elsewhere, as of an interrupt whose mask came too late.
    Kick(u16),
    /// Softirq of this CPU takes the instance from its list and polls the device; the completion is a step of its own.
    RxPoll(u16),
    RxDone {
        gro: bool,
    },
    Settle(usize),
    Timer(u16),
    Advance(u64),
    /// A round of poller 0 or 1, which begins its call with these if it has none.
    BusyRound {
        who: usize,
        prefer: bool,
        budget: u32,
    },
    StopBegin(usize),
    StopPoll(usize),
    StopDone {
        who: usize,
        gro: bool,
    },
    Suspend(u16),
    Resume(u16),
    Set {
        defer: u32,
        gro_flush_ns: u64,
        suspend_ns: u64,
    },
    DisableBegin,
    DisableClaim,
    Enable,
    ThreadedOn(bool),
    ThreadedOff,
    ThreadPoll,
    ThreadDone {
        gro: bool,
    },
}

/// The queue as the device has it. An edge device (message-signalled) does not look at its ring when it is unmasked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    ring: u32,
    masked: bool,
    latched: bool,
    pending: bool,
    edge: bool,
}

impl Device {
    fn packets(&mut self, packets: u32) {
        self.ring += packets;
        self.latched |= !self.masked;
        self.pending |= self.masked;
    }

    fn unmask(&mut self) {
        self.masked = false;
        self.latched |= if self.edge { self.pending } else { self.ring > 0 };
        self.pending = false;
    }

    fn take(&mut self, budget: u32) -> u32 {
        let work = self.ring.min(budget);
        self.ring -= work;
        work
    }
}

/// Takes one step on both sides and compares them.
fn step(model: &mut Model, real: &mut Real, op: &Op) -> Result<(), TestCaseError> {
    let before = model.clone();
    let (expected, told) = (model.apply(op), real.apply(op));
    let rounded = real.napi.timer().pending();
    prop_assert_eq!(&told, &expected, "{:?} in {:?}", op, before);
    prop_assert_eq!(
        (real.napi.snapshot().bits(), rounded, &real.device),
        (model.bits(), model.timer, &model.device),
        "{:?} in {:?}: it is {:?}",
        op,
        before,
        real.napi.snapshot()
    );
    if let Err(broken) = model.invariants() {
        return Err(TestCaseError::fail(format!("{broken}: after {op:?} in {before:?}")));
    }
    Ok(())
}

fn run(edge: bool, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut model, mut real) = (Model::new(edge), Real::new(edge));
    let mut arrived = 0;
    for op in ops.iter() {
        if model.applies(op) {
            if let Op::Packets(packets) = op {
                arrived += packets;
            }
            step(&mut model, &mut real, op)?;
        }
    }
    for _ in 0..DRAIN_MAX {
        let Some(op) = model.drain() else {
            let idle = !model.sched && !model.device.masked && model.releases.is_empty();
            prop_assert!(idle, "the end is not idle: {:?}", model);
            prop_assert_eq!(real.device.ring, 0, "of {} packets some were lost", arrived);
            prop_assert_eq!(real.napi.stats().work, u64::from(arrived));
            return Ok(());
        };
        step(&mut model, &mut real, &op)?;
    }
    Err(TestCaseError::fail(format!("no end: {model:?}")))
}

fn op() -> impl Strategy<Value = Op> {
    let cpu = || 0..2u16;
    let who = || 0..2usize;
    let budget = prop_oneof![Just(1), Just(8), Just(64), Just(100)];
    let timeout = || prop_oneof![Just(0), Just(16), Just(20_000), Just(5_000_000)];
    prop_oneof![
        6 => prop_oneof![Just(1), Just(5), Just(64), Just(200)].prop_map(Op::Packets),
        6 => Just(Op::Irq),
        2 => cpu().prop_map(Op::Kick),
        8 => cpu().prop_map(Op::RxPoll),
        8 => any::<bool>().prop_map(|gro| Op::RxDone { gro }),
        8 => (0..3usize).prop_map(Op::Settle),
        4 => cpu().prop_map(Op::Timer),
        3 => prop_oneof![Just(7), Just(20_016), Just(5_000_016)].prop_map(Op::Advance),
        6 => (who(), any::<bool>(), budget).prop_map(|(who, prefer, budget)| Op::BusyRound { who, prefer, budget }),
        4 => who().prop_map(Op::StopBegin),
        4 => who().prop_map(Op::StopPoll),
        4 => (who(), any::<bool>()).prop_map(|(who, gro)| Op::StopDone { who, gro }),
        3 => cpu().prop_map(Op::Suspend),
        3 => cpu().prop_map(Op::Resume),
        2 => (0..4u32, timeout(), timeout())
            .prop_map(|(defer, gro_flush_ns, suspend_ns)| Op::Set { defer, gro_flush_ns, suspend_ns }),
        1 => Just(Op::DisableBegin),
        2 => Just(Op::DisableClaim),
        2 => Just(Op::Enable),
        1 => any::<bool>().prop_map(Op::ThreadedOn),
        1 => Just(Op::ThreadedOff),
        5 => Just(Op::ThreadPoll),
        5 => any::<bool>().prop_map(|gro| Op::ThreadDone { gro }),
    ]
}

/// The same sequences in every run; more of them with PROPTEST_CASES.
fn runner(sequences_per_case: u32) -> TestRunner {
    let config = Config { failure_persistence: None, ..Config::default() };
    let config = Config { cases: config.cases * sequences_per_case, ..config };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn the_core_agrees_with_the_plain_model_and_loses_nothing() {
    let sequences = (any::<bool>(), prop::collection::vec(op(), 1..160));
    runner(SEQUENCES_PER_CASE)
        .run(&sequences, |(edge, ops)| run(edge, &ops))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn short_sequences_from_every_corner() {
    let settings = (0..3u32, prop_oneof![Just(0), Just(20_000)], prop_oneof![Just(0), Just(5_000_000)]);
    let sequences = (any::<bool>(), settings, prop::collection::vec(op(), 1..25));
    runner(8 * SEQUENCES_PER_CASE)
        .run(&sequences, |(edge, (defer, gro_flush_ns, suspend_ns), mut ops)| {
            ops.insert(0, Op::Set { defer, gro_flush_ns, suspend_ns });
            run(edge, &ops)
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
