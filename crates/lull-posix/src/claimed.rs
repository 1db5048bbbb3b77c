//! The queues that this process has; it gives them back before it executes another program.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lull_fd::say;
use lull_net::lull_nic::{Afresh, tap};

use crate::handover::{HandOver, Nic};
use crate::{Flows, flows, kernel, record};

struct Claimed {
    process: u32,
    /// Their numbers, and the descriptors of a TAP's.
    queues: Vec<(u32, Option<RawFd>)>,
}

static CLAIMED: Afresh<Claimed> = Afresh::new();

/// The process that found, when it last asked, that others have all queues.
static WITHOUT: AtomicU32 = AtomicU32::new(0);

/// Whether this process has asked for a queue, and others have them all.
pub(crate) fn note_others_have_all(have_all: bool) {
    WITHOUT.store(if have_all { std::process::id() } else { 0 }, Ordering::Relaxed);
}

/// Whether others had all queues when this process last asked.
pub(crate) fn others_have_all() -> bool {
    WITHOUT.load(Ordering::Relaxed) == std::process::id()
}

/// The process has these queues. The engine starts once in a process that it starts in; a parent's queues are its own.
pub(crate) fn note(hand_over: &HandOver, claimed: &[u32]) {
    let descriptor = |queue: u32| match &hand_over.nic {
        Nic::Tap { queues, .. } => queues.get(queue as usize).copied(),
        Nic::Xdp { .. } => None,
    };
    let queues = claimed.iter().map(|queue| (*queue, descriptor(*queue))).collect();
    CLAIMED.forget();
    CLAIMED.get_or_init(|| Claimed { process: std::process::id(), queues });
}

fn claimed() -> Option<(&'static Arc<Flows>, &'static Claimed)> {
    flows::of_the_program().zip(CLAIMED.get().filter(|claimed| claimed.process == std::process::id()))
}

/// The first queue of the engine's process.
pub(crate) fn first() -> Option<u32> {
    CLAIMED.get().and_then(|claimed| claimed.queues.first()).map(|(queue, _)| *queue)
}

/// The process that goes on by itself although its parent lives, because that has executed another program, which may
/// have the same queues.
static REPLACED_FOR: AtomicU32 = AtomicU32::new(0);

/// The process that has an engine, from which this one was forked, has executed another program, or serves this one no more.
pub(crate) fn note_replaced() {
    REPLACED_FOR.store(std::process::id(), Ordering::Relaxed);
}

/// Whether the process that has an engine, from which this one was forked, has ended. The kernel takes its queues from it then.
pub(crate) fn has_ended() -> bool {
    if REPLACED_FOR.load(Ordering::Relaxed) == std::process::id() {
        return true;
    }
    let Some((flows, claimed)) = flows::of_the_program().zip(CLAIMED.get()) else { return false };
    // One in another PID namespace has no number here.
    let has_it =
        |(queue, _): &(u32, _)| matches!(flows.holder(*queue), Some(pid) if pid == 0 || pid as u32 == claimed.process);
    claimed.process != std::process::id() && !claimed.queues.iter().any(has_it)
}

/// Gives the queues back: the executed program may take them. What was recorded is written.
pub(crate) fn give_back() {
    record::write();
    if let Some((flows, claimed)) = claimed() {
        claimed.queues.iter().for_each(|(queue, _)| flows.release(*queue));
    }
}

/// The process is about to end, and has dealt with what came. If others have queues, the kernel sends to those alone
/// from here on, since what still came to a queue of this process would wait for whoever takes that next. The queues
/// stay claimed until the process has ended. If several processes end together, the last one leaves its queues in
/// place: the kernel would have nobody to send to until another process comes.
pub(crate) fn leave_to_others() {
    let Some((flows, claimed)) = claimed() else { return };
    let is_own = |queue: u32| claimed.queues.iter().any(|(own, _)| *own == queue);
    // Without the lock all could leave at once.
    let _ = flows.alone(|| {
        if flows.others_stay(is_own) {
            for (queue, fd) in claimed.queues.iter().filter_map(|(queue, descriptor)| Some((queue, (*descriptor)?))) {
                // The launcher does so later, if not.
                if tap::set_attached(kernel::borrow(fd), false).is_ok() {
                    flows.has_taken_out(*queue);
                }
            }
        }
    });
}

/// Takes again what [`give_back`] gave: this process goes on.
pub(crate) fn take_again() {
    let Some((flows, claimed)) = claimed() else { return };
    for (queue, descriptor) in &claimed.queues {
        let taken = flows.alone(|| match (flows.claim(*queue), descriptor) {
            (Ok(()), Some(fd)) => tap::set_attached(kernel::borrow(*fd), true).is_ok(),
            (claimed, _) => claimed.is_ok(),
        });
        if !taken.unwrap_or(false) {
            say::line(format_args!(
                "queue {queue} of the NIC cannot be taken again: its connections hear nothing more"
            ));
        }
    }
}
