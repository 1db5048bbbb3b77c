//! What a run counts, within its window.

use hdrhistogram::Histogram;
use lull_core::Stats;

/// Use of one CPU, in nanoseconds. The sum of all is the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// User space.
    pub user_ns: u64,
    /// System calls and kernel threads.
    pub sys_ns: u64,
    /// Softirq, with the interrupts that raised it.
    pub softirq_ns: u64,
    /// Time that was busy, but charged to nobody: interrupts that found the CPU idle, and what they did before a thread
    /// was switched to.
    pub uncharged_ns: u64,
    /// Idle.
    pub idle_ns: u64,
}

impl CpuUse {
    /// Returns all time that was not idle, charged or not, as a cycle counter shows it.
    pub fn busy_ns(&self) -> u64 {
        self.user_ns + self.sys_ns + self.softirq_ns + self.uncharged_ns
    }

    /// Returns CPU as accounting shows it: charged time divided by charged and idle time, in percent.
    pub fn percent(&self) -> f64 {
        let charged = self.user_ns + self.sys_ns + self.softirq_ns;
        100.0 * charged as f64 / (charged + self.idle_ns).max(1) as f64
    }

    pub(crate) fn add(&mut self, other: &CpuUse) {
        self.user_ns += other.user_ns;
        self.sys_ns += other.sys_ns;
        self.softirq_ns += other.softirq_ns;
        self.uncharged_ns += other.uncharged_ns;
        self.idle_ns += other.idle_ns;
    }
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that clients issued.
    pub issued: u64,
    /// Answers that clients received.
    pub answered: u64,
    /// Requests that a worker served.
    pub served: u64,
    /// Packets that reached a ring.
    pub rx_packets: u64,
    /// Packets that found a ring full.
    pub dropped: u64,
    /// Datagrams that found their socket's receive buffer full.
    pub socket_dropped: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Doorbells of transmit queues with a queueing discipline.
    pub doorbells: u64,
    /// Frames for which these rang.
    pub rung_frames: u64,
    /// Frames that such a queue dropped, because a limit of its discipline was reached or it went down.
    pub tx_dropped: u64,
    /// Device interrupts.
    pub irqs: u64,
    /// Steps of adaptive moderation, each a command to the device.
    pub moderation_changes: u64,
    /// Timer interrupts of NAPIs.
    pub timer_irqs: u64,
    /// How often the kernel timer of an interrupt thread woke it, on lull's own host.
    pub backstops: u64,
    /// Calls of `epoll_wait` that returned events.
    pub epoll_calls: u64,
    /// Events that they returned.
    pub epoll_events: u64,
    /// Calls that timed out.
    pub epoll_timeouts: u64,
    /// How often ksoftirqd was woken.
    pub ksoftirqd: u64,
    /// Switches to another thread.
    pub switches: u64,
}

/// Latencies of answers, within the window.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Each of them, in nanoseconds.
    pub ns: Histogram<u64>,
    /// Their sum.
    pub sum_ns: u128,
}

/// Longer latencies are recorded as this one: 100 s.
const LATENCY_MAX_NS: u64 = 100_000_000_000;

impl Default for Latencies {
    fn default() -> Latencies {
        match Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3) {
            Ok(ns) => Latencies { ns, sum_ns: 0 },
            Err(_) => unreachable!("constant bounds in order"),
        }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, latency_ns: u64) {
        self.sum_ns += u128::from(latency_ns);
        self.ns.saturating_record(latency_ns);
    }

    pub(crate) fn reset(&mut self) {
        self.ns.reset();
        self.sum_ns = 0;
    }

    /// Mean, in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / self.ns.len().max(1) as f64 / 1_000.0
    }

    /// A percentile, in microseconds.
    pub fn us(&self, percentile: f64) -> f64 {
        self.ns.value_at_percentile(percentile) as f64 / 1_000.0
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The window, in nanoseconds.
    pub window_ns: u64,
    /// Latencies of the answers in the window, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// The sum of these latencies.
    pub latency_sum_ns: u128,
    /// Latencies of the second application's answers, if there is one. All other answers and latencies are the first
    /// application's.
    pub second: Option<Latencies>,
    /// Counters in the window.
    pub counts: Counts,
    /// Use of the service's CPUs, summed.
    pub cpu: CpuUse,
    /// Busy time of the busiest of them, in nanoseconds. It shows whether the service is at its limit although it has
    /// idle cores.
    pub busiest_ns: u64,
    /// Counters of all NAPIs, summed, in the window.
    pub napi: Stats,
    /// Events of the agenda, over the whole run.
    pub events: u64,
    /// Transitions of the core's state word, over the whole run.
    pub transitions: u64,
    /// How often delivery interrupted a thread.
    pub broken_into: u64,
    /// A digest of every event and its time: equal for equal runs.
    pub digest: u64,
    /// Requests inside the server when the run ended: in rings, in sockets, or being served.
    pub inside: u64,
    /// Requests on the wire to the server when the run ended.
    pub on_wire: u64,
    /// Time spent on each step of receive moderation by all adaptive queues, in nanoseconds.
    pub rung_ns: [u64; 5],
}

impl Outcome {
    /// Answers per second.
    pub fn qps(&self) -> f64 {
        self.counts.answered as f64 * 1e9 / self.window_ns as f64
    }

    /// Mean latency, in microseconds.
    pub fn latency_mean_us(&self) -> f64 {
        self.latency_sum_ns as f64 / self.latency_ns.len().max(1) as f64 / 1_000.0
    }

    /// A latency percentile, in microseconds.
    pub fn latency_us(&self, percentile: f64) -> f64 {
        self.latency_ns.value_at_percentile(percentile) as f64 / 1_000.0
    }
}
