//! What a child of `fork` has of lull.
//!
//! The engine's threads stay with the parent, and so do the NIC's queues and the connections. A child of a process whose engine
//! runs has husks: its numbers stand for the kernel's placeholders alone, so that closing them, or ending, says nothing to any
//! peer. A connection that it uses becomes one of the kernel's that its parent passes on (`inherit.rs`). A child that was made
//! before the engine started has everything before it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;

use libc::c_long;
use lull_net::lull_nic::own;

pub use crate::husk::is_husk;
use crate::husk::{self, Starting};
use crate::kernel::NoSignals;
use crate::socket::options::steer;
use crate::socket::{datagram, pool, splice};
use crate::{block, bpf, elsewhere, engine, epoll, files, inherit, kernel, leaving, record, signals};

/// Called when lull gets addresses in this process. What the C library calls of these is called last before a fork, behind the handlers of
/// all but the libraries that were loaded first, and first after it.
pub(crate) fn may_come() {
    // SAFETY: the handlers stay for as long as the process. Without memory to note them, nothing else would start either.
    let _ = unsafe { libc::pthread_atfork(Some(begins), Some(is_over), Some(of_this_process)) };
}

thread_local! {
    /// How many forks of a thread are under way, one in a handler that came within another, and its signals since the first.
    static NO_SIGNALS: Cell<(u32, Option<ManuallyDrop<NoSignals>>)> = const { Cell::new((0, None)) };
}

/// Just before the fork: descriptors of lull's own are made and closed before it or after it. Signals are blocked,
/// because a handler that came in between could wait for a thread which waits for the fork.
extern "C" fn begins() {
    let no_signals = ManuallyDrop::new(NoSignals::but_of_children());
    let (within, first) = NO_SIGNALS.take();
    NO_SIGNALS.set((within + 1, first.or(Some(no_signals))));
    own::a_fork_begins();
}

extern "C" fn is_over() {
    own::a_fork_is_over();
    come_again();
}

fn come_again() {
    match NO_SIGNALS.take() {
        (0 | 1, first) => drop(first.map(ManuallyDrop::into_inner)),
        (within, first) => NO_SIGNALS.set((within - 1, first)),
    }
}

/// Called when the engine starts: children are husks from now on.
pub(crate) fn engine_starts() -> Starting {
    let starting = husk::engine_starts();
    has_handlers();
    starting
}

fn has_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler stays for as long as the process. Without memory to note it, `fork` would share the engine: there is
        // none left at that moment for anything else either.
        unsafe { libc::pthread_atfork(Some(before), Some(in_the_parent), Some(in_the_child)) };
    });
}

/// Called when the process has a listener: its children have it as well, also where no engine runs.
pub(crate) fn has_a_listener() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A listener's engine starts under its lock, which the handler below takes while glibc up to 2.35 keeps others from noting theirs.
        has_handlers();
        // SAFETY: as above. Without memory to note it, children would wait for connections that are their parent's alone.
        unsafe { libc::pthread_atfork(None, Some(children_have_listeners), None) };
    });
}

extern "C" fn children_have_listeners() {
    signals::section(inherit::children_have_listeners);
}

thread_local! {
    /// What the child that the calling thread makes has open, and no other child of this process.
    static KEEPS: Cell<Option<RawFd>> = const { Cell::new(None) };
}

/// `vfork`, by `fork`: the parent waits until the child has executed a program or ended. The child has memory of its own, so that
/// what it closes and duplicates before is not its parent's.
pub fn that_waits() -> libc::pid_t {
    // A handler that came meanwhile could fork itself: it would wait for this thread, and its child have the written end open.
    let (reads, child) = signals::section(|| {
        // A child that another thread forks meanwhile, and that executes nothing, would be waited for as well.
        let ends = own::made_for_no_child(kernel::pipe);
        KEEPS.set(ends.as_ref().ok().map(|[_, writes]| writes.as_raw_fd()));
        // SAFETY: the handler above makes the child one that has nothing of lull's.
        let child = unsafe { libc::fork() };
        KEEPS.set(None);
        match ends {
            // The child keeps its end: descriptors of lull's own are closed to it. `execve` closes it, and so does its end.
            Ok(ends) if child == 0 => {
                mem::forget(ends);
                (None, child)
            }
            Ok([reads, writes]) => {
                drop(writes);
                (Some(reads), child)
            }
            // Without a free number, the parent goes on beside its child.
            Err(_) => (None, child),
        }
    });
    if let Some(reads) = reads {
        signals::section(|| {
            while child > 0 && kernel::read_byte(&reads) == Err(signals::INTERRUPTED) {}
            drop(reads);
        });
    }
    child
}

/// A process that is made by number (`clone`, `clone3`), past the C library's `fork`: `clone` makes it, and returns 0 in it. The C
/// library's own locks are in it as they were, as in any such child. One whose parent waits for it may ask this process for something
/// before it executes a program: then no other thread waits for that.
pub fn by_number(parent_waits: bool, clone: impl FnOnce() -> c_long) -> c_long {
    signals::section(before_any);
    if !parent_waits {
        begins();
    }
    let child = clone();
    match child {
        0 => without_the_c_library(),
        _ => {
            if !parent_waits {
                is_over();
            }
            in_the_parent();
            children_have_listeners();
        }
    }
    child
}

/// Whether `clone` with these flags makes a process of its own, and not a thread or one that shares its parent's memory.
pub fn makes_a_process(flags: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_THREAD) as u64 == 0
}

/// Whether a process that is made with these flags has a parent that waits until it has executed a program or ended.
pub fn is_waited_for(flags: u64) -> bool {
    flags & libc::CLONE_VFORK as u64 != 0
}

/// Whether children of this process are husks of what it has.
fn has_what_children_inherit() -> bool {
    husk::engine_runs() && !is_husk()
}

extern "C" fn before() {
    before_any();
}

fn before_any() {
    match has_what_children_inherit() {
        true => inherit::before_a_fork(),
        false if is_husk() => inherit::shared_on(),
        false => {}
    }
}

extern "C" fn in_the_parent() {
    inherit::in_the_parent();
}

/// Forgets what the parent's threads had, and the locks that they may have held, which are no concern of the child's.
fn forget_the_parents() {
    lull_net::lull_nic::forget_all();
    lull_net::forget_held_back();
    lull_net::lull_host::forget_giving_back();
    engine::forget();
    block::forget();
    record::forget();
    elsewhere::forget();
    datagram::forget();
    pool::forget();
    inherit::left::forget();
    inherit::streams::forget();
}

/// A child of a process that lull is in. The C library calls this in children of `fork`.
pub(crate) extern "C" fn of_this_process() {
    // This is done even where no engine runs: another thread of the parent's may have held them just then.
    own::forget_turns();
    if let Some(number) = KEEPS.take().filter(|number| own::is_own(*number)) {
        own::mark(number);
    }
    come_again();
    signals::forget();
    engine::forget_starting();
    leaving::forget();
    epoll::forget_contexts();
    steer::forget_if_held();
    bpf::forget_if_held();
    splice::forget();
    files::forget_changing();
    inherit::forget_between();
}

/// The child of a process whose engine runs has nothing of it. The C library calls this in children of `fork` as well.
extern "C" fn in_the_child() {
    if husk::engine_runs() {
        husk::becomes_one();
        inherit::in_the_child();
        forget_the_parents();
    }
}

/// In a child for which the C library calls nothing (`_Fork`, `clone` by number).
pub extern "C" fn without_the_c_library() {
    of_this_process();
    in_the_child();
}

#[cfg(test)]
pub(crate) mod tests {
    /// What a child of this process says, in which none of its threads goes on.
    pub(crate) fn in_a_child(says: impl FnOnce() -> bool) -> bool {
        /// In seconds: a child that waits for longer will wait for ever.
        const LOST: u32 = 120;
        // SAFETY: the child ends without running anything of its parent's.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: a number only.
                unsafe { libc::alarm(LOST) };
                super::of_this_process();
                let status = i32::from(!says());
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(status) }
            }
            child => {
                let mut status = -1;
                // SAFETY: the child's number, and room for its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                status == 0
            }
        }
    }
}
