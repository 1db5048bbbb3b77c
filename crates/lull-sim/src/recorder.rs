//! Who listens to a random world: the core's events and the executor's own remarks, in the order in which they happened.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use lull_core::event::{Event, EventKind, EventSink};

use crate::transition::Transition;

/// Whom a remark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Queue(u32),
    Context(u32),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The core says so, of this instance.
    Core(u32, EventKind),
    /// The executor took this step.
    Note(Whom, Transition),
    /// A packet reached this queue's ring.
    Packet(u32),
    /// A step of the script acts.
    Step(u32),
    /// A step of the script could not act.
    Skipped(u32),
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at_ns: u64,
    pub(crate) cpu: u16,
    pub(crate) what: What,
}

/// A list that the core writes to and the checker empties after every step of the world.
#[derive(Debug)]
pub(crate) struct Recorder {
    entries: Mutex<Vec<Entry>>,
    is_empty: AtomicBool,
    /// Whether somebody wants to read more than the core's events.
    pub(crate) is_telling: bool,
}

impl Recorder {
    pub(crate) fn new(is_telling: bool) -> Recorder {
        Recorder { entries: Mutex::new(Vec::with_capacity(64)), is_empty: AtomicBool::new(true), is_telling }
    }

    pub(crate) fn push(&self, entry: Entry) {
        // Nobody panics while holding it, and if: the list is as good as before.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        self.is_empty.store(false, Relaxed);
    }

    /// Exchanges the list against an empty one.
    pub(crate) fn swap(&self, empty: &mut Vec<Entry>) {
        // Most steps of a world say nothing; the lock costs more than the step.
        if self.is_empty.load(Relaxed) {
            return;
        }
        self.is_empty.store(true, Relaxed);
        std::mem::swap(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner), empty);
    }
}

/// The recorder as the core sees it.
#[derive(Debug)]
pub(crate) struct Listener(pub(crate) Arc<Recorder>);

impl EventSink for Listener {
    fn event(&self, event: Event) {
        let Event { at_ns, cpu, napi, kind } = event;
        self.0.push(Entry { at_ns, cpu, what: What::Core(napi, kind) });
    }
}
