//! One run's measurements.

use serde::{Deserialize, Serialize};

use super::{Enforcement, Load};

/// What one run of one test case at one load measured.
///
/// Counts are totals over the measured window, [`window_s`](RunResult::window_s); everything optional is `None` where
/// it was not or could not be measured, never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Name of the test case, such as `suspend20`.
    pub testcase: String,
    /// The load asked for.
    pub load: Load,
    /// Which repetition, from 0. Runs with the same number are neighbours in time and are compared as pairs.
    pub run: u32,
    /// Length of the measured window without warm-up, in seconds.
    pub window_s: f64,
    /// Queries per second that the generator meant to send; `None` in a closed loop.
    pub offered_qps: Option<f64>,
    /// Queries answered per second.
    pub qps: f64,
    /// Mean latency, in microseconds, from the intended send time. `None` if nothing was answered.
    pub avg_latency_us: Option<f64>,
    /// Median latency, in microseconds.
    pub p50_latency_us: Option<f64>,
    /// 95th percentile of latency, in microseconds.
    pub p95_latency_us: Option<f64>,
    /// 99th percentile of latency, in microseconds.
    pub p99_latency_us: Option<f64>,
    /// CPU of every thread that serves or delivers, as a percentage of the server's cores (100 is all of them busy).
    pub cpu_percent: Option<f64>,
    /// How busy the server's cores were with more than polling in vain, in percent: what decides whether a MAX run counts.
    /// Where pollers of a CPU group have cores of their own, those of the busier half: theirs, or the workers'. `None` where the
    /// time that was polled in vain is not known.
    pub server_cpu_percent: Option<f64>,
    /// How busy the generator's cores were, in percent.
    pub generator_busy_percent: Option<f64>,
    /// Whether the open-loop generator sent on time. True in a closed loop.
    pub kept_up: bool,
    /// Cycles of the server per query: as [`CyclesBy`](super::report::CyclesBy) of the report says.
    pub cycles_per_query: Option<f64>,
    /// Instructions per query, only where the hardware counts them.
    pub instructions_per_query: Option<f64>,
    /// Interrupts that reached the server.
    pub interrupts: Option<u64>,
    /// Polls of NAPI instances.
    pub polls: Option<u64>,
    /// Frames per poll, mean over all polls.
    pub mean_work: Option<f64>,
    /// Polls that found nothing.
    pub empty_polls: Option<u64>,
    /// Time spent delivering in softirq context, in milliseconds over all cores.
    pub softirq_ms: Option<f64>,
    /// Calls of `epoll_wait`.
    pub epoll_calls: Option<u64>,
    /// Events per `epoll_wait` that returned any.
    pub mean_events: Option<f64>,
    /// Sleeping threads that were woken.
    pub wakeups: Option<u64>,
    /// Kernel timers armed, moved or cancelled.
    pub timer_ops: Option<u64>,
    /// System calls made on the server's side for delivery.
    pub syscalls: Option<u64>,
    /// How late the generator sent, in microseconds after it could have (99th percentile): the `lag` column.
    pub generator_lag_us: Option<f64>,
    /// Median lateness of the delivery timers that fired, in microseconds after their deadline.
    pub timer_lag_us: Option<f64>,
    /// Time the generator spent raising interrupts, in microseconds over the window.
    pub raise_us: Option<f64>,
    /// Times the interrupts were suspended.
    pub suspensions: Option<u64>,
    /// Times a suspension ended because the application found no events.
    pub resumes: Option<u64>,
    /// Who polled the packets, on the kernel plane; in lull's own stack the other counts say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_by: Option<PolledBy>,
    /// What became of the requests, where the generator tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Answers>,
    /// How long a fixed piece of work took just before the run, in microseconds: how fast the machine was then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_us: Option<f64>,
    /// Whether the mode asked for was the one in force.
    pub verdict: Enforcement,
}

/// What became of a run's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answers {
    /// Answers of any kind.
    pub received: u64,
    /// Reads that found no record.
    pub misses: u64,
    /// Answers that were errors, or had the wrong size.
    pub errors: u64,
    /// Requests that went down with their connection. The latencies leave them out.
    pub lost: u64,
    /// Requests that were waited for in vain. The latencies leave them out, too.
    pub unanswered: u64,
    /// About how many requests were due and were never sent.
    pub backlog: u64,
    /// Connections that were opened again.
    pub reconnects: u64,
}

impl Answers {
    /// Requests that were sent and that the service did not do what it was asked for.
    pub fn failed(&self) -> u64 {
        self.misses + self.errors + self.lost + self.unanswered
    }

    /// Requests that were sent.
    pub fn asked(&self) -> u64 {
        self.received + self.lost + self.unanswered
    }

    /// Adds another run's.
    pub(super) fn add(&mut self, other: &Answers) {
        self.received += other.received;
        self.misses += other.misses;
        self.errors += other.errors;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        self.backlog += other.backlog;
        self.reconnects += other.reconnects;
    }

    /// What failed, for the reader: `of 1000 requests 20 found no record and 3 were lost with their connection`; `None` if nothing
    /// did.
    pub fn failures(&self) -> Option<String> {
        let parts: Vec<String> = [
            (self.misses, "found no record"),
            (self.errors, "were answered by an error or a value of the wrong size"),
            (self.lost, "were lost with their connection"),
            (self.unanswered, "had no answer"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        (!parts.is_empty()).then(|| format!("of {} requests {}", self.asked(), parts.join(", ")))
    }
}

/// Shares of the packets, in percent, by who polled them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolledBy {
    /// Softirq in the client's threads: on a veth the sender's core does the receiver's work.
    pub client_softirq: f64,
    /// Softirq in the server's threads.
    pub server_softirq: f64,
    /// Softirq that the NAPI's timer raised.
    pub timer: f64,
    /// Softirq in other threads, the idle ones among them.
    pub other_softirq: f64,
    /// ksoftirqd.
    pub ksoftirqd: f64,
    /// The NAPI's thread.
    pub napi_thread: f64,
    /// Busy polls of the server's threads.
    pub busy_poll: f64,
    /// Anything else.
    pub other: f64,
}

impl RunResult {
    /// A run with its rate and nothing else measured; fill in the rest by field.
    ///
    /// ```
    /// use lull_lab::cell::{Load, RunResult};
    ///
    /// let run = RunResult { p99_latency_us: Some(141.0), ..RunResult::new("suspend10", Load::Max, 0, 1.0, 5000.0) };
    /// assert!(run.kept_up);
    /// ```
    pub fn new(testcase: &str, load: Load, run: u32, window_s: f64, qps: f64) -> Self {
        RunResult {
            testcase: testcase.to_string(),
            load,
            run,
            window_s,
            offered_qps: None,
            qps,
            avg_latency_us: None,
            p50_latency_us: None,
            p95_latency_us: None,
            p99_latency_us: None,
            cpu_percent: None,
            server_cpu_percent: None,
            generator_busy_percent: None,
            kept_up: true,
            cycles_per_query: None,
            instructions_per_query: None,
            interrupts: None,
            polls: None,
            mean_work: None,
            empty_polls: None,
            softirq_ms: None,
            epoll_calls: None,
            mean_events: None,
            wakeups: None,
            timer_ops: None,
            syscalls: None,
            generator_lag_us: None,
            timer_lag_us: None,
            raise_us: None,
            suspensions: None,
            resumes: None,
            polled_by: None,
            answers: None,
            work_us: None,
            verdict: Enforcement::InForce,
        }
    }
}
