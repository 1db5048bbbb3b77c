//! The reasons why a run does not reach its end.

/// How a run ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The caller has stopped it.
    #[error("the simulation was stopped before it was done: start it again")]
    Stopped,
    /// It took more events than the world allows.
    #[error(
        "the world took its bound of {bound} events by {} ms of virtual time: raise events_max or shorten the window",
        at_ns / 1_000_000
    )]
    TooManyEvents {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
    /// More events were pending at the same time than the world allows.
    #[error(
        "the world had its bound of {bound} events ahead at {} ms of virtual time: raise memory_max (pending_max), or \
         shorten what its latencies keep under way",
        at_ns / 1_000_000
    )]
    TooManyPending {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
    /// More open-loop arrivals waited for their connections than the world allows.
    #[error(
        "the world had its bound of {bound} requests waiting for a connection at {} ms of virtual time: it cannot carry \
         the load; lower the load, add connections, or raise backlog_max (and memory_max, 16 bytes a request)",
        at_ns / 1_000_000
    )]
    Backlog {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
}
