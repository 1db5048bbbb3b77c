//! The NAPI delivery state machine, sans-I/O.
//!
//! This crate holds every rule by which packets reach an application: who may poll a queue, when its interrupt is
//! masked, when a timer stands in for it, how long an application may keep it suspended. It knows no thread, no clock,
//! no device and no socket: time comes in as `now_ns`, and what has to happen in the world goes out as values that
//! must be used. Two executors run it: real CPUs (`lull-host`) and a simulator under virtual time.
//!
//! A section sign in these pages, as in §7, names a section of `docs/napi_semantics.md` in this project's repository, the semantics
//! that are implemented ([the file, where these pages are built in a checkout](../../../docs/napi_semantics.md)).
//!
//! Three types to know:
//!
//! - [`Napi`]: one instance, that is one queue: state word, the one timer, deferral credits, settings;
//! - [`Owner`]: the right to poll it, a value that exists at most once per instance;
//! - [`Completion`]: what the context that completes a poll owes.
//!
//! The modules in the order that a packet meets them:
//!
//! | module | rule | Linux |
//! | --- | --- | --- |
//! | [`state`] | the packed state word and its transitions | `enum napi_state` |
//! | [`owner`] | the right to poll, and what is owed when it ends | `NAPI_STATE_SCHED` |
//! | [`napi`] | schedule, poll, complete, watchdog, suspend, resume | `net/core/dev.c` |
//! | [`timer`] | the one timer of an instance | `napi->timer` |
//! | [`softirq`] | `net_rx_action`, restarts, ksoftirqd | `net/core/dev.c`, `kernel/softirq.c` |
//! | [`thread`] | NAPI threads, busy-polling or not | `napi_threaded_poll` |
//! | [`group`] | busy-polling groups of CPUs: any free CPU of a group serves its members | none: asked for in 2017 |
//! | [`tx`] | transmit queues: who takes frames to the ring, and when the doorbell rings | `__qdisc_run`; the rest none |
//! | [`resched`] | when a context that polls for ever lets others run | `cond_resched` |
//! | [`busy`] | the busy loop and its stop | `__napi_busy_loop`, `busy_poll_stop` |
//! | [`epoll`] | an epoll context: its busy-poll parameters, options and instances | `fs/eventpoll.c` |
//! | [`epoll_wait`] | the epoll policy: when a wait polls, suspends and resumes | `fs/eventpoll.c` |
//! | [`zero_timeout`] | when a loop of calls with timeout 0 is polled for | none: such calls never poll there |
//! | [`socket`] | busy polling by a receiving socket | `sk_busy_loop` |
//! | [`settings`] | settings, defaults, limits, refusals | `netdev-genl.c`, `net-sysfs.c` |
//! | `control` | threading on and off, disable, enable | `net/core/dev.c` |
//! | [`config`] | device defaults and the per-queue settings that outlive a reset | `napi_config` |
//! | [`mode`] | delivery modes: named sets of settings | the IRQ suspension series |
//! | [`event`] | what is told to whoever traces | tracepoints |
//!
//! # Example: an interrupt, a poll, a deferral, and the interrupt again
//!
//! ```
//! use lull_core::{Completion, Cx, GroFlush, Napi, NapiSettings, Polled, Schedule};
//!
//! let napi = Napi::new(0);
//! napi.set(&NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() });
//! napi.enable(500, None);
//! let mut cx = Cx::new(0, 16_000);
//!
//! // The device raised its interrupt: the handler masks it and schedules.
//! let Schedule::Owned(owner) = napi.schedule(&cx) else { panic!("nobody else owns it") };
//! // Softirq polls three packets, fewer than the weight: the instance completes.
//! let Polled::Completed(Completion::Released(release)) = napi.softirq_polled(owner, 3, false, &cx, |_: GroFlush| ()) else {
//!     panic!("a short poll completes")
//! };
//! let settled = release.settle(&napi, &cx);
//! assert_eq!((settled.unmask, settled.timer_ns), (false, Some(36_000))); // deferred: the timer polls next
//!
//! cx.now_ns = 36_000;
//! let owner = napi.timer_expired(&cx).expect("due, and nobody owns the instance");
//! let Polled::Completed(Completion::Released(release)) = napi.softirq_polled(owner, 0, false, &cx, |_| ()) else {
//!     panic!("a short poll completes")
//! };
//! assert!(release.settle(&napi, &cx).unmask); // no credit left: back to interrupts
//! ```
#![forbid(unsafe_code)]

pub mod busy;
pub mod config;
mod control;
pub mod epoll;
mod epoll_napis;
pub mod epoll_wait;
pub mod event;
pub mod group;
#[cfg(all(test, loom))]
mod loom_models;
pub mod mode;
pub mod napi;
pub mod owner;
pub mod poll;
pub mod resched;
pub mod settings;
pub mod socket;
pub mod softirq;
pub mod state;
pub mod stats;
mod sync;
pub mod thread;
pub mod timer;
pub mod tx;
pub mod zero_timeout;

pub use busy::{BusyEnd, BusyLoop, BusyPlan, BusyRound, BusyStop, BusyStopped, CATCH_UP_PACKETS};
pub use config::{DeviceConfig, NAPI_ID_MIN};
pub use epoll::{BEHIND_CALLS, EpollBusy, EpollOptions, EpollParams, TimeoutZero};
pub use epoll_wait::{BusyDone, EpollWait, WaitStep};
pub use event::{Cx, Event, EventKind, EventSink};
pub use group::{Group, GroupConfig, GroupPoller, GroupStep};
pub use mode::{AppPolicy, Mode, ModeError, POLLED_AFTER_EVENT_NS};
pub use napi::{AfterResume, Napi};
pub use owner::{Completion, GroFlush, Owner, Polled, Release, Route, Schedule, Settled};
pub use poll::PollBusy;
pub use resched::CondResched;
pub use settings::{NapiSettings, SettingError, Sysctl, Threaded, Unpolled};
pub use socket::SocketBusy;
pub use softirq::{NetRx, RxEnd, RxStep, SoftirqNext, SoftirqRun, Softnet};
pub use state::{DisableClaim, Snapshot, ThreadedOff};
pub use stats::Stats;
pub use thread::{NapiThread, ThreadStep};
pub use timer::Timer;
pub use zero_timeout::ZeroTimeout;
