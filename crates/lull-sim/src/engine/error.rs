//! Why a run does not come to its end.

/// How a run ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunError {
    /// It took more events than the world allows.
    TooManyEvents {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
    /// More events lay ahead at the same time than the world allows.
    TooManyPending {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
    /// More open-loop arrivals waited for their connections than the world allows.
    Backlog {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunError::TooManyEvents { bound, at_ns } => write!(
                f,
                "the world took its bound of {bound} events by {} ms of virtual time: raise events_max or shorten the window",
                at_ns / 1_000_000
            ),
            RunError::TooManyPending { bound, at_ns } => write!(
                f,
                "the world had its bound of {bound} events ahead at {} ms of virtual time: raise memory_max (pending_max), or \
                 shorten what its latencies keep under way",
                at_ns / 1_000_000
            ),
            RunError::Backlog { bound, at_ns } => write!(
                f,
                "the world had its bound of {bound} requests waiting for a connection at {} ms of virtual time: it cannot carry \
                 the load; lower the load, add connections, or raise backlog_max",
                at_ns / 1_000_000
            ),
        }
    }
}

impl std::error::Error for RunError {}
