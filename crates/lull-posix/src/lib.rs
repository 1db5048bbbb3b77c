//! The socket calls as POSIX and Linux have them, over lull's sockets and the kernel's at once.
//!
//! Every call is a Rust function that takes numbers, slices and checked structs and returns `Result<_, Errno>`. The crate
//! takes no call over: `lull-preload` decodes what an unmodified program calls and asks here, and a test asks directly. It
//! holds no delivery rule.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `errno` | error numbers as results |
//! | [`handover`] | what the launcher hands on to the program: the NIC's descriptors, addresses, routes, the mode |
//! | [`flows`] | which connections are open, in memory that the launcher shares: a killed program's peers are told |
//! | [`start`] | the engine from what was handed on |
//! | [`engine`] | the engine of this process, and the threads' places in it |
//! | `claimed` | the queues of this process |
//! | `elsewhere` | other processes with queues of the same NIC: what is passed on to them |
//! | [`routing`] | which world an address is of |
//! | [`files`] | the open files that are lull's, by number; `close`, `dup` |
//! | [`socket`] | `bind`, `listen`, `accept`, `connect`, reading, writing, `shutdown`, options |
//! | [`epoll`] | epoll over both worlds |
//! | [`flags`] | `fcntl`, `ioctl` |
//! | [`poll`] | `poll` over both worlds |
//! | [`cancel`] | threads that are cancelled in a call of lull's |
//! | [`signals`] | the program's handlers: when they run, and which waits they end |
//! | [`listing`] | sockets, as `lull ss` shows them |
//! | [`interfaces`] | lull's addresses, to a program that lists its interfaces |
//! | [`netlink`] | the family `netdev` for lull's device, to a program that asks the kernel |
//! | [`depot`] | queues of AF_XDP that the launcher gives out |
//! | [`fork`], `husk` | what a child has of lull; whether this process is one |
//! | `inherit` | connections that a child uses |
//! | [`exec`] | what is left of lull when the program executes another |
//! | [`leave`], `leaving` | what is done when the program exits; whether it does |
//! | [`last_thread`] | the end of a process whose main thread has ended before the others |
//! | `silence` | what the other threads of a program that exits have in place of its files |
//! | [`memory`] | what a program's pointers stand for |
//! | `block` | how a thread waits in a call that blocks |
//! | `kernel`, `raw` | system calls past the C library |
#![deny(unsafe_code)]

pub mod address;
mod block;
pub mod bpf;
pub mod cancel;
mod claimed;
pub mod depot;
mod elsewhere;
pub mod engine;
pub mod epoll;
mod errno;
pub mod exec;
pub mod files;
pub mod flags;
#[allow(unsafe_code)]
pub mod flows;
pub mod fork;
#[allow(unsafe_code)]
pub mod handover;
mod husk;
mod inherit;
pub mod interfaces;
mod kernel;
pub mod last_thread;
pub mod leave;
mod leaving;
pub mod left_open;
pub mod listing;
pub mod memory;
pub mod netlink;
pub mod poll;
#[doc(hidden)]
pub mod raw;
mod record;
pub mod rights;
pub mod routing;
pub mod signals;
mod silence;
pub mod socket;
pub mod start;

pub use engine::{Engine, Share, StartError, engage, engage_each, is_engaged, is_involved};
pub use errno::Errno;
pub use files::{is_lull, is_lull_to_wait, takes_data};
pub use flows::Flows;
pub use handover::HandOver;
pub use routing::Routing;

/// The program is about to wait for something that is not lull's: what its writes hold back is sent first.
#[inline]
pub fn about_to_wait() {
    if lull_net::holds_back() {
        signals::section(lull_net::about_to_wait);
    }
}

/// What a call returns.
pub type Result<T> = std::result::Result<T, Errno>;
