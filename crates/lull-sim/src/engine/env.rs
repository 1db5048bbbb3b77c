//! What every step of a run needs, whatever part it belongs to: the world's description, the time, the agenda, faults,
//! counts, and listeners.

use std::sync::Arc;

use lull_core::Cx;
use lull_core::event::EventSink;

use crate::engine::agenda::Agenda;
use crate::engine::cache::Coldness;
use crate::engine::faults::Faults;
use crate::engine::id::CpuId;
use crate::engine::recorder::{Entry, Recorder, What, Whom};
use crate::engine::slots::Slots;
use crate::engine::tally::Tally;
use crate::engine::transition::Transition;
use crate::world::World;

/// The listener for events of the core, if there is one.
pub type Sink = Option<Box<dyn EventSink>>;

/// See the [module](self).
pub(crate) struct Env {
    pub(crate) world: World,
    pub(crate) now_ns: u64,
    pub(crate) agenda: Agenda,
    pub(crate) slots: Slots,
    pub(crate) coldness: Coldness,
    pub(crate) faults: Faults,
    pub(crate) tally: Tally,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) sink: Sink,
}

impl Env {
    /// The time and CPU of a call into the core.
    #[inline]
    pub(crate) fn cx(&self, cpu: CpuId) -> Cx<'_> {
        Cx { now_ns: self.now_ns, cpu: cpu.raw(), sink: self.sink.as_deref().map(|sink| sink as &dyn EventSink) }
    }

    /// Notes that the executor takes a named step of the core.
    #[inline]
    pub(crate) fn note(&mut self, cpu: CpuId, whom: Whom, transition: Transition) {
        self.tally.covered.add(transition);
        self.tell(cpu, What::Note(whom, transition));
    }

    /// Notes something that only a reader of the timeline wants to know.
    #[inline]
    pub(crate) fn tell(&self, cpu: CpuId, what: What) {
        if let Some(recorder) = &self.recorder {
            recorder.tell(Entry { at_ns: self.now_ns, cpu, what });
        }
    }
}
