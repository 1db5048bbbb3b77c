//! Real CPUs around the delivery state machine.
//!
//! [`lull_core`] says what has to happen; this crate makes it happen on threads of the operating system: interrupt
//! contexts, softirq, ksoftirqd, NAPI threads, busy pollers and timers. Three types to know:
//!
//! - [`Host`]: some lull CPUs, and the NAPI instances bound to them;
//! - [`Worker`]: an application thread's place on a CPU: how it busy polls, suspends, resumes and sleeps;
//! - [`Receiver`]: what stands above a queue and is polled, with the shard's [`HandoffLock`].
//!
//! A lull CPU is an object, not a core. The modules in the order that an interrupt meets them: `sinks` (the device raises
//! it) and `vector` (its line, or its descriptor), `seat` (who runs this CPU's delivery, and whom to wake), `cpu` (what
//! waits for the holder), `holder` and `on_cpu` (what the holder does), `softirq` (hard interrupts, timers, polls, and what
//! completions owe), `delivery` (the instances, what stands above them, and what all handles share), `table` (where an
//! instance is found), `unlock` (a shard's lock is given back), `threads` (the contexts that stand by), `worker` and `turn`
//! (the application's side), `group` (the pollers of busy-polling CPU groups), `parker` and `monitor` (how a thread sleeps), `busy` (the busy loop), `timed` (who may have a deadline on a CPU), `deadlines` (who wakes up for it), `contain` (what a panic
//! does), `registry` (who can be found by id), `host` and `control` (what operators ask), `from_above` (what sockets and
//! receivers ask).
//!
//! The seat and the lock are small protocols of their own, each in one file with its rules at the top and modelled
//! under loom.
#![deny(unsafe_code)]
// Under loom only the protocols are built, and only the models use them.
#![cfg_attr(all(loom, not(test)), allow(dead_code))]

#[cfg(not(loom))]
mod affinity;
#[cfg(not(loom))]
mod busy;
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod contain;
#[cfg(not(loom))]
mod contexts;
#[cfg(not(loom))]
mod control;
#[cfg(not(loom))]
mod cpu;
mod deadlines;
#[cfg(not(loom))]
mod delivery;
#[cfg(not(loom))]
mod devices;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod from_above;
#[cfg(not(loom))]
mod group;
mod holder;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod lateness;
mod lock;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod monitor;
#[cfg(not(loom))]
mod on_cpu;
mod or_end;
mod parker;
mod raised;
#[cfg(not(loom))]
mod registry;
mod seat;
#[cfg(not(loom))]
mod sinks;
#[cfg(not(loom))]
mod softirq;
mod sync;
mod table;
#[cfg(not(loom))]
mod threads;
mod timed;
#[cfg(not(loom))]
mod turn;
#[cfg(not(loom))]
mod unlock;
mod vector;
#[cfg(not(loom))]
mod worker;

#[cfg(not(loom))]
pub use affinity::{ThreadUse, pin_thread, thread_cpu_ns, thread_id, usable_cores};
#[cfg(not(loom))]
pub use clock::Clock;
#[cfg(not(loom))]
pub use contexts::EpollContext;
#[cfg(not(loom))]
pub use cpu::CpuStats;
#[cfg(not(loom))]
pub use delivery::{Delivery, NapiBinding, Receiver, Transmitter, TryPoll};
#[cfg(not(loom))]
pub use devices::DeviceId;
#[cfg(not(loom))]
pub use error::HostError;
#[cfg(not(loom))]
pub use group::error::GroupError;
#[cfg(not(loom))]
pub use group::{GroupId, GroupInfo, GroupOptions, GroupPollerInfo};
#[cfg(not(loom))]
pub use host::{Host, HostConfig, WeakHost};
#[cfg(not(loom))]
pub use lateness::{Lateness, LatenessSnapshot};
pub use lock::{HandoffGuard, HandoffLock, Parked, Shard};
#[cfg(not(loom))]
pub use memory::{forget_giving_back, give_back_memory, uncleared};
#[cfg(not(loom))]
pub use registry::{NapiChange, NapiInfo};
#[cfg(not(loom))]
pub use turn::{Sleep, Turn, Woke};
#[cfg(not(loom))]
pub use worker::{Waker, Worker};
