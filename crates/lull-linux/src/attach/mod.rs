//! The application's half of a mode, set from outside: epoll busy-poll parameters of a running program are set and
//! given back.
//!
//! The parameters belong to the open file (`fs/eventpoll.c`), so a duplicate of the program's descriptor can set them
//! (`pidfd_getfd(2)`, then EPIOCSPARAMS). The duplicate is closed at once; otherwise it would keep the context alive
//! after the program has closed it. Programs of any language can be reached, statically linked ones as well.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `request`, `params` | the request; a context's parameters, which are set through a duplicate of its descriptor |
//! | `tree` | the processes of the program: itself, its children, and theirs |
//! | `record` | what the contexts had before: a file for each program, which is written before the first change |
//! | `others` | what the records of other programs have on the same contexts |
//! | `follow`, `event` | looks over the program again and again, and sets what is new; what it reports |
//! | `detach` | gives everything back |
//! | `sockets` | the sockets on a context, and what keeps busy polling from working there |
//! | `steer`, `listeners` | a program on its listeners' reuseport groups, which chooses the worker of a connection |
//!
//! A `fork` is seen at the next look. A child whose parent ends before that look has no parent among the program's
//! processes any more, and is not found. So attach to a daemon after it has put itself into the background.

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
pub(crate) use follow::is_due;
pub use follow::{Follower, LOOK_EVERY, Which};
pub use listeners::Listens;
pub use params::Params;
pub use record::Role;
pub use request::{ProgramRequest, with_children};
pub use sockets::OnContext;
pub use steer::{Pinned, Steer, Steered};
pub(crate) use tree::children;

/// Removes the locks and records in the state directory that killed commands have left and that are of no use any more.
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
        // These numbers belong to programs that live on: this process, and the first one.
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
