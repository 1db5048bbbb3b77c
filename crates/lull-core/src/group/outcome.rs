//! What an operator hears of a group, and what he owes.

use super::slots::PollerStats;
use crate::busy::BusyStop;

/// One member, as [`super::Group::members`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its place in the group.
    pub slot: u16,
    /// The index of its instance.
    pub napi: u32,
}

/// A poller that is to be woken. Its bit is set already, so whoever drops this leaves members unwatched.
#[must_use = "the poller's bit is set, and nobody else will wake it"]
#[derive(Debug, PartialEq, Eq)]
pub struct GroupWake {
    /// Its place in the group.
    pub slot: u8,
    /// Its CPU.
    pub cpu: u16,
}

/// Why an instance did not become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnterRefused {
    /// Its owner has not let go yet, and was asked to: try again in 20 to 200 us.
    Owned,
    /// It is in a group already.
    Grouped,
    /// It is disabled.
    Disabled,
    /// Its NAPI thread polls it: turn `threaded` off first.
    Threaded,
    /// The group has [`super::GROUP_MEMBERS_MAX`] members.
    Full,
    /// The group has no CPU.
    NoCpu,
}

/// A new member. The executor masks its interrupt, and wakes the poller, if there is one to wake.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its place in the group.
    pub slot: u16,
    /// A poller that is to be woken.
    pub wake: Option<GroupWake>,
}

/// What becomes of a member that an operator takes out.
#[must_use]
#[derive(Debug)]
pub enum Removal {
    /// The caller owes its last poll, as after a busy loop. The interrupt is masked first: a rest may have left it unmasked.
    Mine(BusyStop),
    /// A poller serves it just now, and lets it go afterwards.
    Holders,
    /// It is not a member.
    Absent,
}

/// Why a CPU was not attached or detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachRefused {
    /// The group has as many pollers as it can.
    Full,
    /// The group has that CPU already.
    Attached,
    /// The group does not have that CPU.
    Unknown,
    /// It is the last CPU, and there are members: they leave first.
    Last,
}

/// What a poller does, as [`super::Group::pollers`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerInfo {
    /// Its CPU.
    pub cpu: u16,
    /// Whether it is awake.
    pub awake: bool,
    /// Whether it is the one that rests.
    pub resting: bool,
    /// Its counters.
    pub stats: PollerStats,
    /// The member that it serves, and since when, if it does.
    pub serves: Option<(u32, u64)>,
}
