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
//! under loom. The rest is built under loom as well, over a clock and a sleep of its own (`model_clock`, `sync`): so the models of
//! transmit queues in `lull-net` have the pollers, threads and interrupts that are here.
#![deny(unsafe_code)]
// A model starts the contexts that it is about, and calls nothing of the others.
#![cfg_attr(loom, allow(dead_code))]

mod affinity;
mod busy;
#[cfg_attr(loom, path = "model_clock.rs")]
mod clock;
mod contain;
mod contexts;
mod control;
mod cpu;
mod deadlines;
mod delivery;
mod devices;
mod error;
mod from_above;
mod group;
mod holder;
mod host;
mod lateness;
mod lock;
#[cfg(all(test, loom))]
mod loom_models;
mod memory;
mod monitor;
mod on_cpu;
mod or_end;
mod parker;
mod raised;
mod registry;
mod seat;
mod sinks;
mod softirq;
mod sync;
mod table;
mod threads;
mod timed;
mod turn;
mod unlock;
mod vector;
mod worker;

pub use affinity::{ThreadUse, pin_thread, thread_cpu_ns, thread_id, usable_cores};
pub use clock::Clock;
pub use contexts::EpollContext;
pub use cpu::CpuStats;
pub use delivery::{Delivery, NapiBinding, Receiver, Transmitter, TryPoll};
pub use devices::DeviceId;
pub use error::HostError;
pub use group::error::GroupError;
pub use group::{GroupId, GroupInfo, GroupOptions, GroupPollerInfo};
pub use host::{Host, HostConfig, WeakHost};
pub use lateness::{Lateness, LatenessSnapshot};
pub use lock::{HandoffGuard, HandoffLock, Parked, Shard};
pub use memory::{forget_giving_back, give_back_memory, uncleared};
pub use registry::{NapiChange, NapiInfo};
pub use turn::{Sleep, Turn, Woke};
pub use worker::{Waker, Worker};
