//! The simulated world in time: CPUs, the NIC, threads and their programs, load, and the loop that takes one appointment
//! after the other.
//!
//! What there is comes from a [`crate::World`]; every delivery rule is `lull-core`'s. Nothing here knows of world files,
//! published tables or random worlds: those stand above.

pub mod agenda;
pub(crate) mod app;
pub(crate) mod build;
pub(crate) mod busy;
pub mod cache;
pub(crate) mod client;
pub(crate) mod cpu;
pub mod dim;
pub(crate) mod ends;
pub(crate) mod epoll;
pub mod error;
pub mod faults;
pub(crate) mod flood;
pub(crate) mod guest;
pub mod id;
pub(crate) mod idle;
pub mod metrics;
pub(crate) mod nic;
pub(crate) mod poll;
pub(crate) mod recorder;
pub(crate) mod relay;
pub mod rng;
pub mod sim;
pub(crate) mod slots;
pub(crate) mod socket;
pub(crate) mod softirq;
pub(crate) mod tally;
pub(crate) mod thread;
pub mod traffic;
pub mod transition;
pub(crate) mod vcpu;
pub(crate) mod xsk;
