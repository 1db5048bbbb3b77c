//! NAPI threads (`napi_threaded_poll`), plain and busy-polling, §10, as steps.

use crate::event::{Cx, EventKind};
use crate::napi::Napi;
use crate::owner::{Completion, GroFlush, Owner, Polled};
use crate::state;

/// What the thread of an instance does next.
#[must_use]
#[derive(Debug)]
pub enum ThreadStep {
    /// Sleep until woken by [`crate::Route::Thread`]; then ask again.
    Sleep,
    /// Poll the device with this budget, then call [`NapiThread::polled`].
    Poll {
        /// Packets allowed.
        budget: u32,
    },
}

/// The loop of one NAPI thread. It has no packet and no time budget: between rounds the executor lets others run.
#[derive(Debug, Default)]
pub struct NapiThread {
    owner: Option<Owner>,
    /// Within a round (after a repoll), the mode is not looked at again.
    in_round: bool,
    busy: bool,
}

impl NapiThread {
    /// A thread that owns nothing yet.
    pub fn new() -> NapiThread {
        NapiThread::default()
    }

    /// Whether the current round busy polls.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// The next step. SCHED alone is not enough: it may be a busy poller's or a disable's; the round is the thread's
    /// when SCHED_THREADED says so.
    pub fn next(&mut self, napi: &Napi, cx: &Cx<'_>) -> ThreadStep {
        let claims = self.owner.is_none();
        if claims {
            self.owner = napi.thread_claim();
        }
        let Some(owner) = &self.owner else {
            self.busy = false;
            return ThreadStep::Sleep;
        };
        if !self.in_round {
            let busy = napi.thread_follow_mode(owner);
            if claims || busy != self.busy {
                cx.emit(napi.index(), EventKind::ThreadRound { busy });
            }
            self.busy = busy;
            self.in_round = true;
        }
        napi.poll_begin(owner, napi.weight(), cx);
        ThreadStep::Poll { budget: napi.weight() }
    }

    /// The poll took `work` packets. A completion that was released or must be routed again is returned; while busy
    /// polling there is none, and the thread keeps the instance.
    pub fn polled(
        &mut self,
        napi: &Napi,
        work: u32,
        gro_held: bool,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> Option<Completion> {
        // `next` returned Poll, which it does only with an owner in hand.
        let owner = self.owner.take()?;
        let mut flush = Some(flush);
        let mut flush_once = |what| {
            if let Some(flush) = flush.take() {
                flush(what);
            }
        };
        match napi.thread_polled(owner, work, gro_held, cx, &mut flush_once) {
            Polled::Repoll(owner) => {
                self.owner = Some(owner);
                None
            }
            Polled::Completed(Completion::Kept(owner)) => {
                // Completion did nothing, so what GRO holds would wait for ever: the loop itself passes it up.
                flush_once(GroFlush::Old);
                self.owner = Some(owner);
                self.in_round = false;
                None
            }
            Polled::Completed(completion) => {
                self.in_round = false;
                Some(completion)
            }
        }
    }

    /// Gives up what it owns, at the teardown of an executor.
    pub fn abandon(self) {
        if let Some(owner) = self.owner {
            owner.abandon();
        }
    }
}

impl Napi {
    /// The round is the thread's when SCHED_THREADED says so.
    fn thread_claim(&self) -> Option<Owner> {
        self.state.load().has(state::SCHED_THREADED).then(|| Owner::new(self.index()))
    }

    /// Makes IN_BUSY_POLL what the mode asks for, and returns whether that is to busy poll.
    fn thread_follow_mode(&self, owner: &Owner) -> bool {
        self.assert_owner(owner);
        let state = self.state.load();
        let want = state.has(state::THREADED_BUSY_POLL) && !state.has(state::DISABLE);
        if want != state.has(state::IN_BUSY_POLL) {
            self.state.set_in_busy_poll(want);
        }
        want
    }
}
