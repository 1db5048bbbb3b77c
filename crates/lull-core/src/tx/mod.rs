//! Transmit queues, §16: who takes frames from the senders to the device's ring, and when the doorbell rings.
//!
//! A sender pushes its frame into the queue's *intake* and says so to the queue's [`TxWord`]. Whoever is RUNNING has the
//! discipline and the ring to itself, and nobody else waits for it: a sender that finds the word RUNNING leaves MISSED and goes
//! its way. Outside groups the first sender runs (Linux's `qdisc_run`), for itself and for all who come meanwhile, up to a quota;
//! a member of a CPU group is RUNNING for as long as it is one, so that no sender ever runs.
//!
//! | type | rule | Linux |
//! | --- | --- | --- |
//! | [`TxWord`] | RUNNING, MISSED, GROUPED | `__QDISC_STATE_RUNNING` (`seqlock`), `__QDISC_STATE_MISSED` |
//! | [`TxDrain`] | one run: quota, and the look again before it ends | `__qdisc_run`, `qdisc_run_end` |
//! | [`TxLeft`] | what a drain left, and so who comes back for it | `netif_schedule`, `qdisc_watchdog` |
//! | [`doorbell`] | when a doorbell that was held back rings | `netdev_xmit_more`; the rest was asked for in 2017 |

pub mod doorbell;
mod drain;
mod word;

pub use drain::{TX_QUOTA, TxDrain, TxEnd, TxLeft, TxSent};
pub use word::{Enqueued, TxOwned, TxRun, TxWord};
