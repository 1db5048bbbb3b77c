//! Who takes frames from the intake of a transmit queue to its ring: one word.
//!
//! ```text
//!            enqueued, begin                 group_enter
//!   IDLE ────────────────────▶ RUNNING      IDLE ──────────▶ RUNNING|GROUPED ──group_leave──▶ RUNNING
//!    ▲                           │  ▲ │                          ▲  │ a visit clears MISSED
//!    └─────────end───────────────┘  └─┘ end, MISSED: again       └──┘
//! ```
//!
//! A sender pushes first and then changes the word; whoever runs clears MISSED first and then looks at the intake. Both are
//! read-modify-writes of one word, so one of them comes second: either the runner sees the frame, or it sees MISSED at its end
//! and looks again. The ownership of a run is a value, [`TxRun`]; that of a group's is in the claim of its member.

use crate::sync::{AtomicU32, Ordering};

/// Somebody has the discipline and the ring.
const RUNNING: u32 = 1;
/// A sender came meanwhile: whoever runs looks at the intake again.
const MISSED: u32 = 1 << 1;
/// A CPU group runs, for as long as the queue is a member.
const GROUPED: u32 = 1 << 2;

/// The right to run. [`TxDrain`](crate::tx::TxDrain) ends it.
#[must_use = "nobody else sends what is in the intake"]
#[derive(Debug, PartialEq, Eq)]
pub struct TxRun(());

/// What a sender owes after it has pushed a frame.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// Nobody runs: the caller does, now.
    Run(TxRun),
    /// Whoever runs looks again.
    Noted,
    /// A group runs, and this is the first frame since its last look: the caller tells it ([`crate::Group::enqueued`]).
    Group,
}

/// Somebody runs who is no group: try again in 20 to 200 us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxOwned;

/// Who runs: RUNNING, MISSED and GROUPED in one word.
#[derive(Debug, Default)]
pub struct TxWord(AtomicU32);

impl TxWord {
    /// Nobody runs.
    pub fn new() -> TxWord {
        TxWord(AtomicU32::new(0))
    }

    /// A frame was pushed into the intake.
    #[inline]
    pub fn enqueued(&self) -> Enqueued {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            // The swap is made even if it changes nothing: whoever clears MISSED later has to see what was pushed.
            let next = if now & RUNNING == 0 { now | RUNNING } else { now | MISSED };
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if now & RUNNING == 0 => return Enqueued::Run(TxRun(())),
                Ok(_) if now & (GROUPED | MISSED) == GROUPED => return Enqueued::Group,
                Ok(_) => return Enqueued::Noted,
                Err(seen) => now = seen,
            }
        }
    }

    /// Begins a run for frames that wait, without a new one: after an interrupt for room, at a deadline, or when a
    /// quota was used up.
    pub fn begin(&self) -> Enqueued {
        self.enqueued()
    }

    /// Whoever runs is about to look at the intake.
    #[inline]
    pub fn look(&self) {
        let before = self.0.fetch_and(!MISSED, Ordering::AcqRel);
        assert!(before & RUNNING != 0, "I15: the intake is looked at by somebody who does not run");
    }

    /// Ends a run, unless a sender came since the last look: then the run is given back, and looks again.
    #[inline]
    pub(crate) fn end(&self, run: TxRun) -> Option<TxRun> {
        let ended = self.0.compare_exchange(RUNNING, 0, Ordering::AcqRel, Ordering::Acquire);
        match ended {
            Ok(_) => None,
            Err(seen) => {
                assert!(seen & (RUNNING | GROUPED) == RUNNING, "I15: a run ends that nobody has");
                Some(run)
            }
        }
    }

    /// Ends a run, whatever came meanwhile, because somebody goes on with it: the queue's NAPI was or will be
    /// scheduled.
    #[inline]
    pub(crate) fn stop(&self, _run: TxRun) {
        let before = self.0.fetch_and(!(RUNNING | MISSED), Ordering::AcqRel);
        assert!(before & (RUNNING | GROUPED) == RUNNING, "I15: a run ends that nobody has");
    }

    /// A group runs from now on.
    ///
    /// # Errors
    /// Somebody runs.
    pub fn group_enter(&self) -> Result<(), TxOwned> {
        let entered = self.0.compare_exchange(0, RUNNING | GROUPED, Ordering::AcqRel, Ordering::Relaxed);
        entered.map(|_| ()).map_err(|_| TxOwned)
    }

    /// The group runs no more. Whoever lets the member go makes one more run, which finds the frames that senders left
    /// to the group.
    pub fn group_leave(&self) -> TxRun {
        let before = self.0.fetch_and(!GROUPED, Ordering::AcqRel);
        assert!(before & (RUNNING | GROUPED) == RUNNING | GROUPED, "I15: a queue leaves a group that does not have it");
        TxRun(())
    }

    /// A panic took the queue down and unwound the run of whoever was RUNNING, a group included: nobody runs any more.
    pub fn lost_in_a_panic(&self) {
        let before = self.0.fetch_and(!(RUNNING | MISSED | GROUPED), Ordering::AcqRel);
        assert!(before & RUNNING != 0, "I15: a run was lost that nobody had");
    }

    /// Whether a sender came since the last look. A hint.
    #[inline]
    pub fn is_missed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & MISSED != 0
    }

    /// Whether somebody runs who is no group, and sees to what waits for room when that run ends. A hint.
    #[inline]
    pub fn is_in_a_run(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (RUNNING | GROUPED) == RUNNING
    }

    /// Whether a group runs.
    #[inline]
    pub fn is_grouped(&self) -> bool {
        self.0.load(Ordering::Acquire) & GROUPED != 0
    }

    /// Whether nobody runs.
    pub fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}
