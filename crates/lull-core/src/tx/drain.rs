//! One run of a transmit queue outside groups (`__qdisc_run`), as steps: how much it sends, when it looks again, and
//! who goes on after it.

use crate::tx::word::{TxRun, TxWord};

/// Frames that one run sends (`net_hotdata.dev_tx_weight`): it bounds for how long a sender works for others.
pub const TX_QUOTA: u32 = 64;

/// What a drain left in intake and discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxLeft {
    /// Nothing.
    Nothing,
    /// More frames that could be sent now; the budget is used up.
    More,
    /// Frames for which the ring has no room: the room interrupt is waited for.
    Room,
    /// Frames that may not be sent before then.
    Until {
        /// In the executor's nanoseconds.
        until_ns: u64,
    },
}

/// What is owed when a run has ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxEnd {
    /// Nothing: the next sender runs.
    Idle,
    /// The quota is used up, and there is more: the queue's NAPI is scheduled, and runs (`__netif_schedule`).
    Schedule,
    /// The room interrupt is unmasked; raised, it schedules the queue's NAPI.
    Room,
    /// The queue's NAPI runs at that time (`qdisc_watchdog`).
    Until {
        /// In the executor's nanoseconds.
        until_ns: u64,
    },
}

/// What comes after a batch.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum TxSent {
    /// A sender came meanwhile: another batch.
    Again(TxDrain),
    /// The run has ended.
    Ended(TxEnd),
}

/// One run. In turn: [`TxDrain::look`], then reap what was sent, move the intake into the discipline, send up to the budget and
/// ring the doorbell, then [`TxDrain::sent`].
#[must_use = "a run that does not end leaves the queue RUNNING for ever"]
#[derive(Debug, PartialEq, Eq)]
pub struct TxDrain {
    run: TxRun,
    quota: u32,
}

impl TxDrain {
    /// Begins a run.
    pub fn new(run: TxRun) -> TxDrain {
        TxDrain { run, quota: TX_QUOTA }
    }

    /// The intake is looked at next. Returns how many frames may be sent.
    #[inline]
    pub fn look(&self, word: &TxWord) -> u32 {
        word.look();
        self.quota
    }

    /// So many frames were sent, the doorbell has rung for them, and this was left.
    #[inline]
    pub fn sent(mut self, word: &TxWord, frames: u32, left: TxLeft) -> TxSent {
        assert!(frames <= self.quota, "{frames} frames were sent with a quota of {}", self.quota);
        self.quota -= frames;
        let end = match left {
            TxLeft::More => TxEnd::Schedule,
            // The next run, which that interrupt begins, looks at the intake.
            TxLeft::Room => TxEnd::Room,
            TxLeft::Nothing | TxLeft::Until { .. } => {
                // The look again: a sender that came after the last one counts on this run.
                let Some(run) = word.end(self.run) else {
                    return TxSent::Ended(match left {
                        TxLeft::Until { until_ns } => TxEnd::Until { until_ns },
                        _ => TxEnd::Idle,
                    });
                };
                // A look that sends nothing costs a frame of the quota; otherwise senders of frames that have to wait
                // could keep a run going for ever.
                self.quota = self.quota.saturating_sub(u32::from(frames == 0));
                if self.quota > 0 {
                    return TxSent::Again(TxDrain { run, ..self });
                }
                word.stop(run);
                return TxSent::Ended(TxEnd::Schedule);
            }
        };
        word.stop(self.run);
        TxSent::Ended(end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tx::Enqueued;

    fn runs(word: &TxWord) -> TxDrain {
        let Enqueued::Run(run) = word.enqueued() else { panic!("nobody runs") };
        TxDrain::new(run)
    }

    #[test]
    fn a_sender_that_comes_while_another_runs_is_sent_for_and_runs_itself_afterwards() {
        let word = TxWord::new();
        let drain = runs(&word);
        assert_eq!(drain.look(&word), TX_QUOTA);
        assert_eq!(word.enqueued(), Enqueued::Noted);
        let TxSent::Again(drain) = drain.sent(&word, 1, TxLeft::Nothing) else { panic!("one came after the look") };
        assert_eq!(drain.look(&word), TX_QUOTA - 1);
        assert_eq!(drain.sent(&word, 1, TxLeft::Nothing), TxSent::Ended(TxEnd::Idle));
        assert!(word.is_idle());
    }

    #[test]
    fn a_run_that_has_used_its_quota_leaves_the_rest_to_the_queues_napi() {
        let word = TxWord::new();
        let drain = runs(&word);
        let _ = drain.look(&word);
        assert_eq!(drain.sent(&word, TX_QUOTA, TxLeft::More), TxSent::Ended(TxEnd::Schedule));
        // This holds also if it was the last frame and somebody came since.
        let drain = runs(&word);
        let _ = drain.look(&word);
        assert_eq!(word.enqueued(), Enqueued::Noted);
        assert_eq!(drain.sent(&word, TX_QUOTA, TxLeft::Nothing), TxSent::Ended(TxEnd::Schedule));
        assert!(word.is_idle());
    }

    #[test]
    fn what_waits_for_room_or_for_its_time_says_who_comes_back() {
        let word = TxWord::new();
        let drain = runs(&word);
        let _ = drain.look(&word);
        assert_eq!(word.enqueued(), Enqueued::Noted);
        assert_eq!(drain.sent(&word, 3, TxLeft::Room), TxSent::Ended(TxEnd::Room), "the intake waits with the ring");
        let drain = runs(&word);
        let _ = drain.look(&word);
        let until = TxLeft::Until { until_ns: 7 };
        assert_eq!(drain.sent(&word, 0, until), TxSent::Ended(TxEnd::Until { until_ns: 7 }));
        let drain = runs(&word);
        let _ = drain.look(&word);
        assert_eq!(word.enqueued(), Enqueued::Noted);
        let TxSent::Again(drain) = drain.sent(&word, 0, until) else { panic!("who came may be of another flow") };
        let _ = drain.sent(&word, 0, TxLeft::More);
    }

    #[test]
    fn a_run_ends_though_senders_come_all_the_while_with_frames_that_have_to_wait() {
        let word = TxWord::new();
        let mut drain = runs(&word);
        for _ in 0..=TX_QUOTA {
            let _ = drain.look(&word);
            assert_eq!(word.enqueued(), Enqueued::Noted);
            match drain.sent(&word, 0, TxLeft::Until { until_ns: 7 }) {
                TxSent::Again(again) => drain = again,
                TxSent::Ended(end) => {
                    assert_eq!(end, TxEnd::Schedule, "the queue's NAPI goes on");
                    assert!(word.is_idle());
                    return;
                }
            }
        }
        panic!("whoever runs is trapped");
    }

    #[test]
    fn beside_a_group_no_sender_runs_and_only_the_first_since_a_visit_tells_it() {
        let word = TxWord::new();
        let drain = runs(&word);
        assert!(word.group_enter().is_err(), "a sender runs");
        let _ = drain.look(&word);
        let _ = drain.sent(&word, 0, TxLeft::Nothing);
        word.group_enter().unwrap();
        assert_eq!((word.enqueued(), word.enqueued()), (Enqueued::Group, Enqueued::Noted));
        word.look();
        assert!(!word.is_missed());
        assert_eq!(word.enqueued(), Enqueued::Group);
        // It leaves: one more run, which is told of those who came.
        let drain = TxDrain::new(word.group_leave());
        let TxSent::Again(drain) = drain.sent(&word, 0, TxLeft::Nothing) else { panic!("MISSED was set") };
        let _ = drain.look(&word);
        assert_eq!(drain.sent(&word, 1, TxLeft::Nothing), TxSent::Ended(TxEnd::Idle));
    }
}
