//! Listens to a random world: it records the core's events and the executor's own remarks, in the order in which they
//! happened.
//!
//! The core reports its events to a shared listener, so the list consists of atomic words, although one thread writes
//! and reads it: an event costs two plain stores. If a step of a world causes more events than the list holds, this
//! panics rather than lose any.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use lull_core::event::{Event, EventKind, EventSink};
use lull_core::tx::doorbell::Why;

use crate::engine::id::{ContextId, CpuId, GroupId, QueueId, StepId};
use crate::engine::transition::Transition;

/// What a remark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Queue(QueueId),
    Context(ContextId),
    Group(GroupId),
}

/// Whether an event is about a group, whose number then stands in place of the instance's.
#[inline]
pub(crate) fn is_of_group(kind: EventKind) -> bool {
    matches!(kind, EventKind::GroupWake { .. } | EventKind::GroupPark | EventKind::GroupRest | EventKind::GroupRestEnd)
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The core has reported this of this instance.
    Core(u32, EventKind),
    /// The executor took this step.
    Note(Whom, Transition),
    /// A packet reached this queue's ring.
    Packet(QueueId),
    /// A step of the script acts.
    Step(StepId),
    /// A step of the script could not act.
    Skipped(StepId),
}

/// One entry of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at_ns: u64,
    pub(crate) cpu: CpuId,
    pub(crate) what: What,
}

/// The reasons of doorbells, in the order of their declaration.
const WHY: [Why; 6] = [Why::Frames, Why::Bytes, Why::Empty, Why::Age, Why::Room, Why::Stops];
/// How many events one step of a world may cause.
const EVENTS_MAX: usize = 1_024;
/// The packed number of no instance (for softirq's own events).
const NO_NAPI: u64 = 0xffff;

/// An event in two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed(pub(crate) u64, pub(crate) u64);

impl Packed {
    fn new(cpu: CpuId, napi: u32, kind: EventKind) -> Packed {
        let (code, value) = encode(kind);
        let napi = if napi == u32::MAX { NO_NAPI } else { u64::from(napi) };
        Packed((code << 32) | (napi << 16) | u64::from(cpu.raw()), value)
    }

    /// Returns the CPU, the instance ([`u32::MAX`] for none) and what happened.
    #[inline]
    pub(crate) fn open(self) -> (u16, u32, EventKind) {
        let napi = (self.0 >> 16) & 0xffff;
        let napi = if napi == NO_NAPI { u32::MAX } else { napi as u32 };
        (self.0 as u16, napi, decode((self.0 >> 32) as u32, self.1))
    }
}

macro_rules! word {
    (to $kind:ident, $field:ident) => {
        u64::from($field)
    };
    (from bool, $value:ident) => {
        $value != 0
    };
    (from u16, $value:ident) => {
        $value as u16
    };
    (from u32, $value:ident) => {
        $value as u32
    };
    (from u64, $value:ident) => {
        $value
    };
}

macro_rules! codes {
    ($($code:literal $name:ident $({ $field:ident: $kind:ident })?),* $(,)?) => {
        #[inline]
        fn encode(kind: EventKind) -> (u64, u64) {
            match kind {
                $(EventKind::$name $({ $field })? => ($code, 0 $(+ word!(to $kind, $field))?),)*
                EventKind::TimerFire { late_ns, swallowed } => (40, (late_ns << 1) | u64::from(swallowed)),
                EventKind::BusyAcquire { owned, prefer } => (41, (u64::from(owned) << 1) | u64::from(prefer)),
                EventKind::Doorbell { frames, why } => (42, (u64::from(frames) << 8) | why as u64),
                other => unreachable!("an event that the recorder does not know: {other:?}"),
            }
        }

        #[inline]
        fn decode(code: u32, value: u64) -> EventKind {
            match code {
                $($code => EventKind::$name $({ $field: word!(from $kind, value) })?,)*
                40 => EventKind::TimerFire { late_ns: value >> 1, swallowed: value & 1 != 0 },
                41 => EventKind::BusyAcquire { owned: value & 2 != 0, prefer: value & 1 != 0 },
                42 => EventKind::Doorbell { frames: (value >> 8) as u32, why: WHY[(value & 0xff) as usize] },
                other => unreachable!("no event has the code {other}"),
            }
        }
    };
}

codes! {
    1 Irq,
    2 Mask,
    3 Unmask,
    4 Schedule { missed: bool },
    5 Refused,
    6 PollBegin { budget: u32 },
    7 PollEnd { work: u32 },
    8 Repoll,
    9 Yield,
    10 YieldToDisable,
    11 Kept,
    12 Again,
    13 Complete { rearm: bool },
    14 TimerArm { deadline_ns: u64 },
    15 Suspend,
    16 Resume { scheduled: bool },
    17 BusyBegin,
    18 Park,
    19 HandOver,
    20 BusyEnd,
    21 ThreadWake,
    22 ThreadRound { busy: bool },
    23 TimeSqueeze,
    24 Ksoftirqd,
    25 Drop { frames: u32 },
    26 Disable,
    27 Enable,
    28 GroupEnter,
    29 GroupLeave,
    30 GroupClaim { stray: bool },
    31 GroupRelease,
    32 GroupStalled { age_ns: u64 },
    33 GroupWake { cpu: u16 },
    34 GroupPark,
    35 GroupRest,
    36 GroupRestEnd,
    37 DryRun,
}

/// What the core reported in one step of a world; the checker empties it after every step.
#[derive(Debug)]
pub(crate) struct Recorder {
    words: Vec<(AtomicU64, AtomicU64)>,
    len: AtomicUsize,
    /// For a timeline: everything, in order.
    told: Option<Mutex<Vec<Entry>>>,
}

impl Recorder {
    pub(crate) fn new(is_telling: bool) -> Recorder {
        Recorder {
            words: (0..EVENTS_MAX).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect(),
            len: AtomicUsize::new(0),
            told: is_telling.then(Mutex::default),
        }
    }

    /// Adds an entry to the timeline, if there is to be one.
    #[inline]
    pub(crate) fn tell(&self, entry: Entry) {
        if let Some(told) = &self.told {
            // Nobody panics while holding the lock, and if somebody did, the list would be intact.
            told.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        }
    }

    /// How many events the step caused.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Returns the event at this place.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Packed {
        let (first, second) = &self.words[index];
        Packed(first.load(Relaxed), second.load(Relaxed))
    }

    /// To be called when the step has been checked.
    #[inline]
    pub(crate) fn clear(&self) {
        self.len.store(0, Relaxed);
    }

    /// Returns the entries for a timeline since the last call.
    pub(crate) fn told(&self) -> Vec<Entry> {
        let Some(told) = &self.told else { return Vec::new() };
        std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The recorder as the core sees it.
#[derive(Debug)]
pub(crate) struct Listener(pub(crate) Arc<Recorder>);

impl EventSink for Listener {
    fn event(&self, event: Event) {
        let Event { at_ns, cpu, napi, kind } = event;
        let recorder = &*self.0;
        let Packed(first, second) = Packed::new(CpuId::new(cpu), napi, kind);
        let index = recorder.len.load(Relaxed);
        assert!(index < EVENTS_MAX, "one step of a world caused more than {EVENTS_MAX} events");
        recorder.words[index].0.store(first, Relaxed);
        recorder.words[index].1.store(second, Relaxed);
        recorder.len.store(index + 1, Relaxed);
        recorder.tell(Entry { at_ns, cpu: CpuId::new(cpu), what: What::Core(napi, kind) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_core_says_survives_packing() {
        let kinds = [
            EventKind::Irq,
            EventKind::Schedule { missed: true },
            EventKind::PollEnd { work: 64 },
            EventKind::TimerArm { deadline_ns: u64::MAX },
            EventKind::TimerFire { late_ns: 7, swallowed: true },
            EventKind::BusyAcquire { owned: false, prefer: true },
            EventKind::BusyAcquire { owned: true, prefer: false },
            EventKind::Doorbell { frames: 64, why: Why::Stops },
            EventKind::Doorbell { frames: 1, why: Why::Frames },
            EventKind::Enable,
        ];
        for kind in kinds {
            for napi in [0, 3, u32::MAX] {
                assert_eq!(Packed::new(CpuId::new(2), napi, kind).open(), (2, napi, kind));
            }
        }
    }
}
