//! Who asks, how often, and how long the way takes.

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
    /// waits is issued when its answer has come; its latency counts from then on, as mutilate counts.
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

/// Network and clients.
#[derive(Clone, Debug, PartialEq)]
pub struct NetSpec {
    /// From the client's call until the request is in the server's NIC.
    pub request_ns: u32,
    /// From the server's NIC until the answer is in the client's NIC and handled there, without what follows.
    pub answer_ns: u32,
    /// The mean of a random (exponential) time that passes then until the client's program has the answer.
    pub client_random_ns: u32,
    /// The share of answers for which the client takes longer (its interrupt moderation, its other connections), in
    /// 1/1024.
    pub slow_share: u32,
    /// How much longer it takes for them at the least.
    pub slow_min_ns: u32,
    /// How much longer it takes for them at the most.
    pub slow_max_ns: u32,
    /// From the answer's arrival in the client until its acknowledgement is in the server's NIC.
    pub ack_ns: u32,
    /// From the server's doorbell until the transmit completion is written.
    pub tx_done_ns: u32,
    /// How long a client waits before it sends a lost request again.
    pub retransmit_ns: u64,
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
            ack_ns: 8_000,
            tx_done_ns: 2_000,
            retransmit_ns: 200_000_000,
        }
    }
}

/// The server behind a proxy. A request is served twice: it is passed on, and what comes back is passed to the client.
/// Its answer reaches the same queue as the client's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamSpec {
    /// From the proxy's NIC to the server behind it and back.
    pub answer_ns: u32,
    /// The mean of a random (exponential) time that comes on top.
    pub random_ns: u32,
}

/// A second application on the queues of the first: a service with an epoll context, worker and connections of its own.
///
/// Its packets are taken off the ring by whoever polls the queue. While the first application suspends interrupts, that
/// is the first application alone, between two of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondSpec {
    /// The first of its groups of connections: those behind it are its, too.
    pub first_group: u32,
    /// What a request costs it, in nanoseconds; the first application's is
    /// [`Costs::request_sys_ns`](crate::Costs::request_sys_ns) and
    /// [`Costs::request_user_ns`](crate::Costs::request_user_ns).
    pub request_ns: u32,
}
