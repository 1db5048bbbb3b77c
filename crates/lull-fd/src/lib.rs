//! What is known of an unmodified program's descriptors, and what is done with a wait on one of its epoll contexts.
//!
//! This crate has no hooks: `lull-preload` takes a program's calls over and asks here what to do. It knows no transport
//! either: [`Kernel`] is the world that a wait happens in, so everything can be tested without preloading.
//!
//! Three types to know:
//!
//! - [`Table`]: which internet sockets are on which epoll context, by their numbers;
//! - [`Config`]: what the environment asks for;
//! - [`Kernel`]: the calls that a wait is made of; [`linux`] has those of Linux.
//!
//! The modules in the order that a wait passes them:
//!
//! | module | what is in there |
//! | --- | --- |
//! | [`config`] | what the environment asks for, read once at load; the limit of events a call |
//! | [`table`] | descriptors and contexts |
//! | [`wait`] | a wait of a given length: what the kernel polls for, what is polled for here, when it sleeps |
//! | [`time`] | timeouts of the three calls, as nanoseconds |
//! | [`files`] | open files by their numbers: lock-free, refcounted, with generations |
//! | [`birth`] | new contexts and sockets get their parameters |
//! | [`calls`] | a call of the program's, waited for so |
//! | [`next`] | the C library's function of a name that is taken over |
//! | `naked` | functions that are taken over and that Rust cannot define |
//! | `decimal` | numbers as the environment has them |
//! | `steer` | listeners that share an address get a program that chooses among them |
//! | [`say`] | one line on stderr, at most once a process |
//! | [`linux`] | one poll of a queue, NAPI ids, signals blocked: plain system calls |
//!
//! # Promises
//!
//! No lock, no thread, no thread-local, and no allocation but where a [`Files`] grows: what is here is safe in signal handlers
//! and after `fork`. All
//! state is words in a [`Table`] that the caller keeps, usually a `static`; it is zeroes at first, so memory is only
//! used for the numbers that the program uses.
//!
//! # Example
//!
//! ```
//! static TABLE: lull_fd::Table = lull_fd::Table::new();
//!
//! TABLE.born(5); // epoll_create1() returned 5
//! TABLE.added(5, 9); // epoll_ctl(5, EPOLL_CTL_ADD, 9, ..) succeeded, and 9 is an internet socket
//! let context = TABLE.context(5).expect("it has a socket");
//! let socket = context.candidate(|_fd| 8193).expect("its packets come from NAPI 8193");
//! assert_eq!((socket.fd, socket.napi_id), (9, 8193));
//! ```

pub mod birth;
pub mod calls;
pub mod config;
mod decimal;
pub mod files;
pub mod linux;
#[cfg(all(test, loom))]
mod loom_models;
mod naked;
pub mod next;
pub mod say;
mod steer;
mod sync;
pub mod table;
pub mod time;
pub mod wait;

pub use config::Config;
pub use files::{Files, Open};
pub use table::Table;
pub use wait::{Kernel, Round, Waited};
