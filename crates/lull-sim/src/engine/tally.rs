//! What a run counts, and what it had counted when its window began.

use hdrhistogram::Histogram;
use lull_core::Stats;

use crate::engine::metrics::{Counts, CpuUse, Latencies};
use crate::engine::transition::Coverage;

/// Longer latencies are recorded as this one: 100 s.
const LATENCY_MAX_NS: u64 = 100_000_000_000;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) latency_ns: Histogram<u64>,
    pub(crate) latency_sum_ns: u128,
    /// The second application's latencies, if there is one.
    pub(crate) second: Option<Latencies>,
    /// How many entries of the agenda were taken since the world began.
    pub(crate) events: u64,
    /// Steps of the core since the world began.
    pub(crate) transitions: u64,
    /// How often each transition was taken.
    pub(crate) covered: Coverage,
    /// How often delivery interrupted a running thread.
    pub(crate) broken_into: u64,
    /// Time that receive moderation spent on each of its steps.
    pub(crate) rung_ns: [u64; 5],
    /// When the window began, and what had been counted until then.
    pub(crate) counting_since_ns: u64,
    pub(crate) napi_before: Stats,
    pub(crate) cpu_before: CpuUse,
    /// Busy time of each CPU of the service when the window began.
    pub(crate) busy_before_ns: Vec<u64>,
}

impl Tally {
    pub(crate) fn new(cpus: usize, has_second: bool) -> Tally {
        let latency_ns = match Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3) {
            Ok(histogram) => histogram,
            Err(_) => unreachable!("constant bounds in order"),
        };
        Tally {
            counts: Counts::default(),
            latency_ns,
            latency_sum_ns: 0,
            second: has_second.then(Latencies::default),
            events: 0,
            transitions: 0,
            covered: Coverage::default(),
            broken_into: 0,
            rung_ns: [0; 5],
            counting_since_ns: 0,
            napi_before: Stats::default(),
            cpu_before: CpuUse::default(),
            busy_before_ns: vec![0; cpus],
        }
    }

    /// A request or a transaction was answered after this time.
    pub(crate) fn answered(&mut self, latency_ns: u64) {
        self.counts.answered += 1;
        self.latency_sum_ns += u128::from(latency_ns);
        self.latency_ns.saturating_record(latency_ns);
    }

    /// Begins to count: what was counted so far does not belong to the window.
    pub(crate) fn begin_window(&mut self, now_ns: u64, napi: Stats, cpu: CpuUse, busy_ns: Vec<u64>) {
        self.counts = Counts::default();
        self.latency_ns.reset();
        self.latency_sum_ns = 0;
        self.second.iter_mut().for_each(Latencies::reset);
        self.rung_ns = [0; 5];
        self.broken_into = 0;
        self.counting_since_ns = now_ns;
        self.napi_before = napi;
        self.cpu_before = cpu;
        self.busy_before_ns = busy_ns;
    }
}
