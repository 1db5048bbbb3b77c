//! What a poller tells its executor to do, and what it hears back.

use crate::group::GroupWake;
use crate::group::poller::dry_run::Walk;
use crate::tx::TxLeft;
use crate::tx::doorbell::Why;

/// What a poller does next.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// Poll this member, then call [`super::GroupPoller::polled`], or [`super::GroupPoller::locked`] if its shard's lock is held.
    Poll(Visit),
    /// Send from this member, which is a transmit queue, without ringing its doorbell: reap what was sent, clear MISSED
    /// ([`crate::tx::TxWord::look`]), move the intake into the discipline, and from there at most the budget to the ring. Then
    /// call [`super::GroupPoller::transmitted`].
    Transmit(Visit),
    /// Ring the doorbell of this member, then call [`super::GroupPoller::rung`].
    Doorbell(Ring),
    /// Walk the receive path of this member without a packet, changing nothing, then call [`super::GroupPoller::dry_ran`].
    DryRun(Walk),
    /// No member at home has anything: pause, and ask again with a new time.
    Spin,
    /// Run the CPU's pending softirqs and timers, and ask again.
    Softirqs,
    /// Let other threads of the core run, and ask again.
    Yield,
    /// Wake that poller, and ask again.
    Wake(GroupWake),
    /// Sleep until woken, then ask again.
    Park,
    /// Unmask every member ([`crate::Group::unmask_for_rest`]; of a transmit queue the room interrupt, and only if its ring was full),
    /// sleep until woken, then ask again. A wake-up that came before the sleep ends it.
    Rest {
        /// The sleep ends at this time at the latest, when a frame that a discipline holds back may be sent.
        until_ns: Option<u64>,
    },
    /// The budget is spent: sleep until then, and ask again.
    Sleep {
        /// When the period ends.
        until_ns: u64,
    },
    /// This CPU was detached, and holds nothing any more. The poller ends.
    Detached,
}

/// One member to be polled; the poller holds its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The member's place in the group.
    pub member: u16,
    /// The index of its instance.
    pub napi: u32,
    /// Packets that it may take.
    pub budget: u32,
    /// Whether its interrupt is to be masked first: a rest had unmasked it.
    pub mask: bool,
}

/// A doorbell that is due; the poller holds the claim of its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The member's place in the group.
    pub member: u16,
    /// The index of its instance.
    pub napi: u32,
    /// Frames that it rings for.
    pub frames: u32,
    /// Why now.
    pub why: Why,
}

/// What a visit of a transmit queue did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmitted {
    /// Frames that are on the ring now, and were not before.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u32,
    /// What was left in intake and discipline, and why.
    pub left: TxLeft,
}
