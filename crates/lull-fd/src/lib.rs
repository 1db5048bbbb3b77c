//! What is known of the descriptors of an unmodified program, and how a wait on one of its epoll contexts is made.
//!
//! This crate has no hooks: `lull-preload` takes a program's calls over and asks this crate what to do. It knows no
//! transport either: [`Kernel`] stands for the world in which a wait happens, so that everything can be tested without
//! preloading.
//!
//! There are three types to know:
//!
//! - [`Table`]: which internet sockets are on which epoll context, by their numbers;
//! - [`Config`]: the settings that the environment asks for;
//! - [`Kernel`]: the calls of which a wait consists; [`linux`] has those of Linux.
//!
//! The modules, in the order in which a wait passes them:
//!
//! | module | what is in there |
//! | --- | --- |
//! | [`config`] | the settings of the environment, which are read once at load; the limit of events per call |
//! | [`table`] | descriptors and contexts |
//! | [`wait`] | a wait of a given length: what the kernel polls for, what is polled for here, and when it sleeps |
//! | [`time`] | the timeouts of the three calls, in nanoseconds |
//! | [`files`] | open files by their numbers, with counted references, generations, and no lock |
//! | [`birth`] | parameters of new contexts and sockets |
//! | [`calls`] | a call of the program's that waits so |
//! | [`next`] | the C library's function of a name that is taken over |
//! | `naked` | functions that are taken over and that Rust cannot define |
//! | `decimal` | numbers in the environment |
//! | `steer` | programs that choose among listeners that share an address |
//! | [`say`] | lines on stderr |
//! | [`linux`] | plain system calls: one poll of a queue, NAPI ids, blocked signals |
//!
//! # Promises
//!
//! There is no lock, no thread and no thread-local, and memory is allocated only where a [`Files`] grows, so that
//! everything here is safe in signal handlers and after `fork`. All state is words in a [`Table`] that the caller
//! keeps, usually in a `static`. The words are 0 at first, so that memory is used only for the numbers that the program
//! uses.
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
