//! The application's half from outside: epoll busy-poll parameters of a running program, set and given back.
//!
//! The parameters live on the open file (`fs/eventpoll.c`), so a duplicate of the program's descriptor sets them
//! (`pidfd_getfd(2)`, then EPIOCSPARAMS). The duplicate is closed at once: kept, it would keep the context alive after
//! the program has closed it. Programs of any language can be reached, statically linked ones too.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `request`, `params` | what is asked for; the parameters of a context, set through a duplicate of its descriptor |
//! | `tree` | which processes belong to the program: it, its children, theirs |
//! | `record` | what their contexts had before: a file for each program attached to, written before the first change |
//! | `others` | what the records of other programs have of the same contexts |
//! | `follow`, `event` | one look over the program after the other, setting what is new; what it tells |
//! | `detach` | giving back |
//! | `sockets` | what is on a context, and what keeps busy polling from working there |
//! | `steer`, `listeners` | who of its workers gets a connection: a program on the reuseport groups of its listeners |
//!
//! A `fork` is seen at the next look. A child whose parent has ended before that look is nobody's child any more, and
//! is not found: attach to a daemon after it has put itself into the background.

mod detach;
mod event;
mod follow;
mod listeners;
mod others;
mod params;
mod record;
mod request;
mod sockets;
mod steer;
mod tree;

pub(crate) use detach::detach_started;
pub use detach::{Context, Detached, Given, Restored, detach, detach_and_forget, detach_diff};
pub use event::Event;
pub use follow::{Follower, LOOK_EVERY, Which};
pub use listeners::Listens;
pub use params::Params;
pub use record::Role;
pub use request::{ProgramRequest, with_children};
pub use sockets::OnContext;
pub use steer::{Pinned, Steer, Steered};
pub(crate) use tree::children;

/// Removes the locks and records that killed commands have left in the state directory, and that stand for nothing any more.
pub fn sweep(directory: &std::path::Path) {
    record::sweep(directory, None, &crate::roots::Roots::default());
}

#[cfg(test)]
mod sweep_tests {
    use super::*;

    #[test]
    fn a_lock_that_a_killed_command_left_goes_and_one_that_is_held_stays() {
        let _nobody_starts = crate::starting::no_program();
        let directory = std::env::temp_dir().join(format!("lull-sweep-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        // Programs that live on: this process, and the first one.
        let lock = |pid: u32| directory.join(format!("process-{pid}.lock"));
        std::fs::write(lock(std::process::id()), "4194305 run").unwrap();
        let held = std::fs::File::create(lock(1)).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        std::fs::write(directory.join("process-notes.lock"), "").unwrap();
        sweep(&directory);
        let left = |pid| lock(pid).exists();
        assert!(!left(std::process::id()) && left(1) && directory.join("process-notes.lock").exists());
        drop(held);
        sweep(&directory);
        assert!(!left(1));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
