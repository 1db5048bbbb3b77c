//! The clients: which they are, how often they ask, and how long messages take.

use std::sync::Arc;

use super::GeneratorSpec;

/// A group of connections of one queue, watched by one context.
#[derive(Clone, Debug)]
pub struct ConnectionsSpec {
    /// How many connections the group has.
    pub count: u32,
    /// The queue on which their packets arrive.
    pub queue: u32,
    /// The context that watches them.
    pub context: u32,
    /// What their clients send.
    pub traffic: Traffic,
}

/// What the clients of a group of connections send. A connection has at most one request outstanding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// Open loop: arrivals of a Poisson process, spread evenly over the group. An arrival for a connection that still
    /// waits is issued when its answer has come; [`World::counts_from_due`](super::World::counts_from_due) says from
    /// when its latency counts.
    Open {
        /// Requests per second, over the whole group.
        per_s: f64,
    },
    /// Open loop: every connection has gaps of its own, which are independent of one another and follow a generalised
    /// Pareto distribution (mutilate's `fb_ia`). An arrival for a connection that still waits is treated as under
    /// `Open`.
    Renewal {
        /// Requests per second, over the whole group.
        per_s: f64,
        /// Shape of the distribution, above 0 and below 1.
        shape: f64,
    },
    /// Open loop: the arrivals of [`World::trace`](super::World::trace), each at a connection drawn from all that have
    /// this traffic. The trace is stretched to the rate and begins anew at its end.
    Trace {
        /// Requests per second, over all groups with this traffic.
        per_s: f64,
    },
    /// Closed loop: a connection issues its next request as soon as it has its answer.
    Closed,
    /// Datagrams that are served and not answered, as a Poisson process.
    Datagrams {
        /// Datagrams per second, over the whole group.
        per_s: f64,
    },
    /// Packets that nobody serves, as a Poisson process: other traffic of the machine.
    Noise {
        /// Packets per second.
        per_s: f64,
    },
}

/// Times at which requests once arrived, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSpec {
    /// The times since the trace began, in nanoseconds.
    at_ns: Arc<[u64]>,
}

impl TraceSpec {
    /// Makes a trace from its times, which count from the first. Returns `None` unless there are at least two, in order
    /// and not all the same.
    pub fn new(mut at_ns: Vec<u64>) -> Option<TraceSpec> {
        let first_ns = *at_ns.first()?;
        at_ns.iter_mut().try_for_each(|at| at.checked_sub(first_ns).map(|since| *at = since))?;
        let increases = at_ns.windows(2).all(|pair| pair[0] <= pair[1]) && at_ns.last() > at_ns.first();
        increases.then(|| TraceSpec { at_ns: at_ns.into() })
    }

    /// Returns the arrivals per second of the recording.
    pub fn per_s(&self) -> f64 {
        self.at_ns.len() as f64 * 1e9 / self.span_ns()
    }

    /// Returns how long it takes until it begins anew: the gap behind the last arrival is as long as the mean one.
    fn span_ns(&self) -> f64 {
        let last_ns = self.at_ns.last().copied().unwrap_or(1) as f64;
        let arrivals = self.at_ns.len() as f64;
        last_ns * arrivals / (arrivals - 1.0).max(1.0)
    }

    /// Returns when the arrival of this number comes at a rate of `per_s`, in nanoseconds from the beginning.
    pub(crate) fn at_ns(&self, number: u64, per_s: f64) -> u64 {
        let (turn, place) = (number / self.at_ns.len() as u64, number % self.at_ns.len() as u64);
        let as_it_was_ns = turn as f64 * self.span_ns() + self.at_ns[place as usize] as f64;
        (as_it_was_ns * self.per_s() / per_s) as u64
    }
}

/// Network and clients.
#[derive(Clone, Debug, PartialEq)]
pub struct NetSpec {
    /// From the client's call until the request is in the server's NIC.
    pub request_ns: u32,
    /// From the server's NIC until the answer is in the client's NIC and handled there, without what follows.
    pub answer_ns: u32,
    /// The mean of a random (exponential) time that then passes until the client's program has the answer.
    pub client_random_ns: u32,
    /// The share of answers for which the client takes longer (its interrupt moderation, its other connections), in
    /// 1/1024.
    pub slow_share: u32,
    /// How much longer it takes for them at the least.
    pub slow_min_ns: u32,
    /// How much longer it takes for them at the most.
    pub slow_max_ns: u32,
    /// How many answers per second begin the longer time of a waiting answer anew, because they reach the same queue of
    /// the client's NIC, whose moderation counts from the last completion; with 0 there are none.
    pub slow_renewed_per_s: u32,
    /// Whether the client acknowledges an answer with a packet of its own; otherwise its next request does.
    pub acks: bool,
    /// From the answer's arrival in the client until its acknowledgement is in the server's NIC.
    pub ack_ns: u32,
    /// From the server's doorbell until the transmit completion is written.
    pub tx_done_ns: u32,
    /// How long a client waits before it sends a lost request again.
    pub retransmit_ns: u64,
    /// The times that the clients' machine takes, if the clients are the threads of one generator, one for each worker.
    pub generator: Option<GeneratorSpec>,
}

impl Default for NetSpec {
    fn default() -> NetSpec {
        NetSpec {
            request_ns: 10_000,
            answer_ns: 10_000,
            client_random_ns: 2_000,
            slow_share: 0,
            slow_min_ns: 0,
            slow_max_ns: 0,
            slow_renewed_per_s: 0,
            acks: true,
            ack_ns: 8_000,
            tx_done_ns: 2_000,
            retransmit_ns: 200_000_000,
            generator: None,
        }
    }
}

/// The server behind a proxy. A request is served twice: it is passed on, and the answer that comes back is passed to
/// the client. The server's answer reaches the same queue as the client's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamSpec {
    /// From the proxy's NIC to the server behind it and back.
    pub answer_ns: u32,
    /// The mean of a random (exponential) time in addition.
    pub random_ns: u32,
}

/// A second application on the queues of the first: a service with an epoll context, worker and connections of its own.
///
/// Its packets are taken off the ring by whoever polls the queue. While the first application suspends interrupts, only
/// the first application does so, between two of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondSpec {
    /// The first of its groups of connections; all later ones are its as well.
    pub first_group: u32,
    /// What a request costs it, in nanoseconds; for the first application that is
    /// [`Costs::request_sys_ns`](crate::Costs::request_sys_ns) and
    /// [`Costs::request_user_ns`](crate::Costs::request_user_ns).
    pub request_ns: u32,
}
