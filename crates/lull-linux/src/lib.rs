//! The kernel plane: Linux's own delivery settings, read, compared, applied as one mode and taken back.
//!
//! Linux has the modes that `lull-core` names, in pieces: settings of a NAPI (netlink `napi-set`), parameters of an
//! epoll context, NAPI threads with their CPUs and policy, and a dozen files. This crate knows the pieces; it does not
//! know lull's own engine.
//!
//! Three types to know:
//!
//! - [`Session`]: work on one named device; everything goes by its index;
//! - [`DeviceRequest`]: what is asked: a [`Mode`](lull_core::Mode), queues, values in place of the mode's, threads;
//! - [`State`](state::State): what was in force before, on disk before the first change.
//!
//! The modules in the order that an apply meets them:
//!
//! | module | rule |
//! | --- | --- |
//! | [`netdev`] | the netlink family: NAPIs, queues, what the kernel's policy allows |
//! | [`device`], `identity` | a device, looked up once, what tells it from its successors, and what is in force on it |
//! | `namespaces` | the network namespaces of the machine, and what keeps each alive |
//! | [`plan`] | what has to change; everything that can be refused is refused here |
//! | [`state`] | what was in force before, and the lock |
//! | `session`, `options` | work on one device, and where it reads and keeps things |
//! | [`apply`](mod@apply) | apply, diff, undo: all or nothing |
//! | [`mod@set`] | single settings of single NAPIs, by the same rules |
//! | [`sched`] | NAPI threads: CPUs and policy |
//! | [`watch`] | stays, and applies settings again |
//! | [`programs`] | the application's half: epoll contexts of running programs |
//! | [`attach`] | the same from outside: parameters are set in a running program, kept, and given back |
//! | [`run`] | a program with both halves in force for as long as it runs |
//! | [`spans`] | contexts whose sockets receive from several NAPIs, and what helps |
//! | [`recognise`] | the mode's name for settings in force |
//! | [`show`] | all of that for one device |
//! | [`doctor`] | what can be had here, and what prevents it |
//! | [`prepare`], `overwritten` | the set-up of device and machine, by a profile; what its steps have overwritten |
//! | [`ethtool`] | queues, rings, coalescing, features |
//! | [`hardware`] | whether the processor counts cycles and instructions |
//! | [`machine`], [`ticks`], [`roots`] | CPUs and versions; how busy CPUs are; where `/sys` and `/proc` are |
//! | [`values`], [`os`] | how settings are kept; system calls |
//!
//! # Example: what settings amount to
//!
//! ```
//! use lull_core::Mode;
//! use lull_linux::recognise::{Programs, recognise};
//!
//! let suspend20: Mode = "suspend20".parse().unwrap();
//! let alone = recognise(&suspend20.napi, &Programs::default());
//! assert_eq!(alone.mode, "defer20"); // nobody suspends: no program prefers busy polling
//! let with = Programs { polling: vec![suspend20.epoll], ..Programs::default() };
//! assert_eq!(recognise(&suspend20.napi, &with).mode, "suspend20");
//! ```
//!
//! # Example: a mode on a device
//!
//! ```no_run
//! use lull_linux::{Options, DeviceRequest, Session, apply, undo};
//!
//! let mut session = Session::open("eth0", &Options::default())?;
//! let applied = apply(&mut session, &DeviceRequest::new("suspend20".parse()?))?;
//! applied.changes.iter().for_each(|change| println!("{change}"));
//! undo(&mut session)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_op_in_unsafe_fn)]

pub mod apply;
pub mod attach;
pub mod channels;
pub mod control;
pub mod device;
pub mod doctor;
mod durable;
pub mod error;
pub mod ethtool;
pub mod flows;
pub mod hardware;
mod identity;
pub mod machine;
mod namespaces;
pub mod netdev;
pub mod offload;
mod options;
pub mod os;
mod overwritten;
pub mod plan;
pub mod polls;
pub mod prepare;
mod proc_stat;
pub mod programs;
pub mod recognise;
mod report;
pub mod roots;
pub mod run;
pub mod sched;
mod session;
pub mod set;
pub mod show;
pub mod spans;
#[cfg(test)]
mod starting;
pub mod stat;
pub mod state;
pub mod ticks;
pub mod values;
pub mod watch;

pub use apply::{Applied, Options, Session, Undone, apply, diff, undo};
pub use error::{Error, Result};
pub use plan::DeviceRequest;
pub use report::Report;
pub use roots::Roots;
pub use set::{Set, set};
