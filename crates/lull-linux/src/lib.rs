//! The kernel plane.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod apply;
pub mod device;
pub mod doctor;
pub mod error;
pub mod ethtool;
pub mod machine;
pub mod netdev;
pub mod offload;
pub mod os;
pub mod plan;
pub mod polls;
pub mod prepare;
pub mod programs;
pub mod recognise;
pub mod roots;
pub mod sched;
pub mod show;
pub mod stat;
pub mod state;
pub mod values;
pub mod watch;

pub use apply::{Applied, Options, Session, Undone, apply, diff, undo};
pub use error::{Error, Result};
pub use plan::Request;
pub use roots::Roots;
