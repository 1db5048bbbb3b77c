//! How many connections this process passes on to others, and how it ends doing so: for good, or for a program that it executes.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lull_net::lull_nic::Afresh;

use super::locked;
use super::owner::leave_untaken;
use crate::kernel::NoSignals;
use crate::{engine, flows, husk, inherit, kernel};

/// The connections that are passed on to other processes.
#[derive(Default)]
struct Counts {
    /// How many threads may have taken a connection from the stack that is not yet among those that are given.
    giving: usize,
    /// How many connections are given and have not been taken yet.
    offered: usize,
    /// How many connections another process uses.
    used: usize,
    /// How many threads have a listener of this process's in order to give what comes to it.
    serving: usize,
    /// No other process that asks for connections is alive.
    nobody_asks: bool,
    /// This process passes on no more connections.
    ends: bool,
    /// Another program is about to be executed in its place: it passes on nothing meanwhile.
    executes: bool,
    /// How many times a program was to be executed, and was not after all.
    failed_to_execute: u64,
}

static COUNTS: Afresh<Mutex<Counts>> = Afresh::new();

fn counted() -> MutexGuard<'static, Counts> {
    locked(COUNTS.get_or_init(Mutex::default))
}

/// What a child of `fork` has of this is its parent's.
pub(super) fn forget() {
    COUNTS.forget();
    ENDS.forget();
}

static CHANGED: Condvar = Condvar::new();

/// How far this process has come with a connection that it passes on.
#[derive(Clone, Copy)]
enum Stage {
    Giving,
    Offered,
    Used,
}

/// A connection that this process passes on or offers, counted for as long as it does.
pub(super) struct PassedOn {
    stage: Stage,
}

impl PassedOn {
    /// Counts another connection; `None` if the process is about to end.
    pub(super) fn begin() -> Option<PassedOn> {
        let mut counts = counted();
        if counts.is_over() {
            return None;
        }
        let stage = Stage::Giving;
        *counts.at(stage) += 1;
        Some(PassedOn { stage })
    }

    /// This connection is among those that are given.
    pub(super) fn is_offered(&mut self) {
        self.comes_to(Stage::Offered, &mut counted());
    }

    /// Another process uses it from now on; false where this one is about to end.
    pub(super) fn is_taken(&mut self) -> bool {
        let mut counts = counted();
        let may_be = !counts.is_over();
        if may_be {
            self.comes_to(Stage::Used, &mut counts);
        }
        may_be
    }

    fn comes_to(&mut self, stage: Stage, counts: &mut Counts) {
        *counts.at(self.stage) -= 1;
        *counts.at(stage) += 1;
        self.stage = stage;
        CHANGED.notify_all();
    }
}

impl Counts {
    /// Whether nothing more is passed on, for good or while a program is about to be executed.
    fn is_over(&self) -> bool {
        self.ends || self.executes
    }

    fn at(&mut self, stage: Stage) -> &mut usize {
        match stage {
            Stage::Giving => &mut self.giving,
            Stage::Offered => &mut self.offered,
            Stage::Used => &mut self.used,
        }
    }
}

impl Drop for PassedOn {
    fn drop(&mut self) {
        *counted().at(self.stage) -= 1;
        CHANGED.notify_all();
    }
}

/// Counts a connection that another process uses from now on, until what is returned is dropped; none where the process is about to
/// end.
pub(crate) fn used_by_another() -> Option<impl Send + Sync + 'static> {
    let mut passed_on = PassedOn::begin()?;
    passed_on.is_taken().then_some(passed_on)
}

/// The program's process exits. It stays for as long as other processes use connections that it passes on to them, or live to take
/// more, and goes on to pass on new ones: a server that restarts gracefully ends the process that has the queue while others serve.
/// `stays` is called before it waits.
pub(crate) fn outstay(stays: fn()) {
    // In a child this state is a copy of its parent's, and means nothing.
    if engine::running().is_none() || !husk::is_engines_process() {
        return;
    }
    let mut looks = false;
    let mut counts = counted();
    if counts.used + counts.giving + counts.offered > 0 {
        drop(counts);
        stays();
        counts = counted();
    }
    while counts.used > 0 || counts.giving + counts.offered > 0 && !counts.nobody_asks {
        if counts.offered > 0 && !looks {
            looks = true;
            drop(counts);
            look_for_who_asks();
            counts = counted();
        } else {
            counts = changed(counts);
        }
    }
}

fn changed(counts: MutexGuard<'static, Counts>) -> MutexGuard<'static, Counts> {
    CHANGED.wait(counts).unwrap_or_else(PoisonError::into_inner)
}

/// Sees to it that this process is told when no other process that asks is alive.
fn look_for_who_asks() {
    let look = || {
        if let Some(flows) = flows::of_the_program() {
            flows.until_nobody_asks();
        }
        nobody_asks();
    };
    let _no_signals = NoSignals::begin();
    if inherit::thread("lull-askers").spawn(look).is_err() {
        nobody_asks();
    }
}

fn nobody_asks() {
    counted().nobody_asks = true;
    CHANGED.notify_all();
}

/// Ends passing on, if no other process uses a connection of this process's. Returns false if one does. What comes to a
/// listener afterwards stays there, and what has come before is among those that are given.
pub(crate) fn ends_unless_used() -> bool {
    let mut counts = counted();
    if counts.used > 0 {
        return false;
    }
    counts.ends = true;
    while counts.giving > 0 {
        counts = changed(counts);
    }
    true
}

/// A descriptor that is readable once this process passes on no more.
static ENDS: Afresh<crate::Result<OwnedFd>> = Afresh::new();

pub(super) fn ends() -> Option<&'static OwnedFd> {
    // Without a free number, a thread that waits for connections, or for room, hears of it by the next one.
    ENDS.get_or_init(|| kernel::eventfd(0)).as_ref().ok()
}

/// Called when another program is about to be executed in this process's place. From here on the process passes nothing
/// on: what is offered, and what waits at its listeners once they are closed, is left to whoever listens next. The
/// threads that give have no listener then, and wait whether it comes to that ([`goes_on`]). A thread that does not
/// hear of it is not waited for any longer than that.
pub(crate) fn ends_for_exec(at_most: Duration) {
    // It is made here if there is none, so that a thread that is about to wait for the first time finds it readable.
    let ends = ends();
    let mut counts = counted();
    counts.executes = true;
    if let Some(ends) = ends {
        kernel::add_to_eventfd(ends.as_raw_fd());
    }
    let (began, mut left) = (Instant::now(), at_most);
    while counts.giving + counts.serving > 0 && left > Duration::ZERO {
        counts = CHANGED.wait_timeout(counts, left).unwrap_or_else(PoisonError::into_inner).0;
        left = at_most.saturating_sub(began.elapsed());
    }
    drop(counts);
    leave_untaken();
}

/// Called when no program was executed after all. Connections of listeners that listen again are passed on again.
pub(crate) fn goes_on_after_exec() {
    let mut counts = counted();
    counts.executes = false;
    counts.failed_to_execute += 1;
    ENDS.get().into_iter().flatten().for_each(|ends| kernel::empty_eventfd(ends.as_raw_fd()));
    CHANGED.notify_all();
}

pub(super) fn failed_to_execute() -> u64 {
    counted().failed_to_execute
}

/// Called by a thread that has stopped giving connections; `failed` is how often executing a program had failed when it
/// began. Waits until no program is about to be executed. Returns whether the thread goes on, because executing one has
/// failed since.
pub(super) fn goes_on(failed: u64) -> bool {
    let mut counts = counted();
    while counts.executes {
        counts = changed(counts);
    }
    counts.failed_to_execute != failed && !counts.ends
}

/// A thread that has a listener of this process's, for as long as this lives.
pub(super) struct Serving;

impl Serving {
    pub(super) fn begin() -> Serving {
        counted().serving += 1;
        Serving
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        counted().serving -= 1;
        CHANGED.notify_all();
    }
}

/// Whether this process passes on no more, for good or while a program is about to be executed.
pub(super) fn is_over() -> bool {
    counted().is_over()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{scope, yield_now};

    /// A connection that a thread has taken from the stack is nobody's to leave until it is given.
    #[test]
    fn a_process_that_ends_waits_for_what_is_being_given_and_ends_nothing_that_is_used() {
        let mut used = used_by_another();
        assert!(used.is_some() && !ends_unless_used());
        used = None;
        drop(used);
        let mut passed_on = PassedOn::begin().unwrap();
        let offered = AtomicBool::new(false);
        scope(|scope| {
            let ends = scope.spawn(|| (ends_unless_used(), offered.load(Ordering::Acquire)));
            while !counted().ends {
                yield_now();
            }
            // One that does not wait is done by now.
            (0..1000).for_each(|_| yield_now());
            assert!(PassedOn::begin().is_none(), "no more is taken");
            offered.store(true, Ordering::Release);
            passed_on.is_offered();
            assert_eq!(ends.join().unwrap(), (true, true));
        });
        assert!(!passed_on.is_taken(), "it is left to who listens");
        drop(passed_on);
        assert_eq!({ counted().offered }, 0);
        forget();
    }
}
