//! Load on a memcached service, and its measurement, as mutilate does it.
//!
//! Requests follow a [`Workload`] (which keys, which sizes, how many updates) at times that a [`Schedule`] sets (open
//! loop: each connection has an arrival process of its own; closed loop: the next request follows the answer). Latency
//! counts from the time a request was *meant* to be sent, so a stalled server or generator cannot hide requests
//! (coordinated omission). What the generator itself is late by is measured, and a run in which it could not keep up
//! is marked ([`Summary::kept_up`]).
//!
//! Two transports carry the same load and return the same [`Summary`]:
//!
//! - [`wire::WireClient`]: thousands of TCP connections in one polling thread over a raw `lull_nic` queue;
//! - [`kernel::KernelClient`]: the kernel's sockets and epoll, against any memcached.
//!
//! The sources are sans-I/O: a request passes `dist` → `workload` → `schedule` → transport → `checker` → `recorder`.

pub mod checker;
pub mod clock;
pub mod dist;
pub mod kernel;
pub mod log;
pub mod recorder;
pub mod schedule;
pub mod wire;
pub mod workload;

pub use checker::{Checker, Outcome};
pub use clock::{Clock, MonotonicClock};
pub use dist::{Arrivals, Distribution, Rng};
pub use recorder::{BUSY_SHARE_MAX, Recorder, Summary, Window};
pub use schedule::{Due, Schedule};
pub use workload::{Query, Workload, WorkloadConfig};

/// How long a generator waits for an answer that does not come. A run fails after this time without any answer, and at
/// its end the outstanding answers are waited for as long. It only bounds failures, so it is longer than any stall of a
/// machine, and longer than several retransmission timeouts of the server (250 ms and its doublings).
pub const PATIENCE_NS: u64 = 60_000_000_000;

/// What `lull load --announce` says on standard error when its window begins.
pub const ANNOUNCEMENT: &str = "measuring from now on";

/// The most requests that a connection may have outstanding.
pub const DEPTH_MAX: u16 = 1024;

/// How requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// They follow an arrival process, whether or not the answers come.
    Open {
        /// Offered load in requests a second, over all connections of the client.
        qps: f64,
        /// The distribution of the time between two requests of a connection.
        arrivals: Arrivals,
        /// Requests that a connection may have outstanding. Further ones wait, and their latency includes the wait.
        depth: u16,
    },
    /// They follow as fast as the answers come.
    Closed {
        /// Requests that each connection keeps outstanding.
        depth: u16,
    },
    /// Every record is set once. Warm-up and duration do not apply.
    Preload {
        /// Requests that each connection keeps outstanding.
        depth: u16,
    },
}

impl Pace {
    /// Returns an open loop as mutilate offers it: exponential inter-arrival times, depth 1.
    pub fn open(qps: f64) -> Pace {
        Pace::Open { qps, arrivals: Arrivals::Exponential, depth: 1 }
    }

    /// Checks the rate.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::Invalid`], which names an impossible rate.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        match *self {
            Pace::Open { qps, .. } if !(qps.is_finite() && qps > 0.0) => {
                Err(LoadError::Invalid { what: "load", why: format!("{qps} requests a second") })
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of requests that a connection may have outstanding, between 1 and [`DEPTH_MAX`].
    pub fn depth(&self) -> u16 {
        let (Pace::Open { depth, .. } | Pace::Closed { depth } | Pace::Preload { depth }) = *self;
        depth.clamp(1, DEPTH_MAX)
    }
}

/// The reason why a load could not run, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A setting is outside its limits.
    #[error("cannot use {what}: {why}")]
    Invalid {
        /// The setting.
        what: &'static str,
        /// The value and the limit.
        why: String,
    },
    /// Not all connections came up before the deadline.
    #[error("only {connected} of {wanted} connections came up ({why}); check that the server listens and is reachable")]
    Connect {
        /// Connections that are up.
        connected: usize,
        /// Connections wanted.
        wanted: usize,
        /// The last failure, if the network reported one.
        why: String,
    },
    /// The server fell silent with requests outstanding.
    #[error(
        "the server has been silent for {silent_s:.1} s with {outstanding} requests outstanding; it has stalled or gone"
    )]
    NoProgress {
        /// Seconds since the last byte from it.
        silent_s: f64,
        /// Requests outstanding.
        outstanding: u64,
    },
    /// Not every record was stored before a load that asks for them.
    #[error(
        "cannot store the records: of {sent} sets {stored} were stored, {errors} were answered by an error, and {unanswered} got no \
         answer; check that a memcached listens there, and that its memory is enough"
    )]
    Preload {
        /// Sets sent.
        sent: u64,
        /// Records stored.
        stored: u64,
        /// Sets that were answered by anything else.
        errors: u64,
        /// Sets that were lost with their connection, or not answered.
        unanswered: u64,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Os {
        /// The operation that was tried.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
