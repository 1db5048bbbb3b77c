//! The NIC's busy-polling CPU groups, each with the threads of its pollers.

use std::sync::Arc;

use lull_core::group::GroupWake;
use lull_core::{BusyStop, Group, GroupPoller};

use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{CpuId, GroupId, QueueId, Table, ThreadId};
use crate::engine::thread::ThreadState;

/// The thread of one CPU's poller.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) cpu: CpuId,
    pub(crate) thread: ThreadId,
    /// A poller that was attached and that its thread has not taken yet.
    pub(crate) arriving: Option<GroupPoller>,
    /// Whether the poller is attached, or drains.
    pub(crate) taken: bool,
    /// Whether a wake-up came while the thread did not sleep; it ends the next sleep.
    pub(crate) kept: bool,
    /// Whether the poller has begun to rest and unmasks its members.
    pub(crate) settles: bool,
    /// Time spent on empty passes in a period, with the period's number.
    pub(crate) empty: (u64, u64),
}

/// One group with its threads.
#[derive(Debug)]
pub(crate) struct SimGroup {
    pub(crate) group: Arc<Group>,
    pub(crate) seats: Vec<Seat>,
}

impl SimGroup {
    /// Returns the seat of this CPU, which exists since the CPU was first attached.
    pub(crate) fn seat(&mut self, cpu: CpuId) -> &mut Seat {
        match self.seats.iter_mut().find(|seat| seat.cpu == cpu) {
            Some(seat) => seat,
            None => unreachable!("CPU {cpu} was never attached to group {}", self.group.index()),
        }
    }

    /// Whether a detached poller still holds something.
    pub(crate) fn drains(&self) -> bool {
        let attached = self.group.census().attached as usize;
        self.seats.iter().filter(|seat| seat.taken).count() > attached
    }
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) table: Table<GroupId, SimGroup>,
    /// Members that an operator took out, whose last poll the operator's thread still has to make.
    pub(crate) leaving: Vec<(QueueId, BusyStop)>,
    pub(crate) leaver: Option<ThreadId>,
}

impl Groups {
    pub(crate) fn new() -> Groups {
        Groups { table: Table::new(), leaving: Vec::new(), leaver: None }
    }

    /// Wakes a poller whose bit is set.
    pub(crate) fn wake(&mut self, env: &mut Env, cpus: &mut Cpus, group: GroupId, wake: &GroupWake, by: CpuId) {
        let seat = self.table[group].seat(CpuId::new(wake.cpu));
        if cpus.threads[seat.thread].state == ThreadState::Sleeping {
            cpus.wake(env, seat.thread, by);
        } else {
            seat.kept = true;
        }
    }

    /// Whether a wake-up was kept for the poller of this CPU, which was about to sleep.
    pub(crate) fn take_kept(&mut self, group: GroupId, cpu: CpuId) -> bool {
        std::mem::take(&mut self.table[group].seat(cpu).kept)
    }
}
