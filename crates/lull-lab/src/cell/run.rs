//! One run's measurements.

use serde::{Deserialize, Serialize};

use super::{Enforcement, Load};

/// The measurements of one run of one test case at one load.
///
/// Counts are totals over the measured window, [`window_s`](RunResult::window_s). An optional value that was not or
/// could not be measured is `None`, and never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Name of the test case, such as `suspend20`.
    pub testcase: String,
    /// The load asked for.
    pub load: Load,
    /// The number of the repetition, from 0. Runs with the same number are neighbours in time and are compared as
    /// pairs.
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
    /// How busy the server's cores were apart from empty polls, in percent. It decides whether a MAX run counts. If
    /// pollers of a CPU group have cores of their own, it is the value of the busier half: the pollers' cores, or the
    /// workers'. `None` if the time spent in empty polls is not known.
    pub server_cpu_percent: Option<f64>,
    /// How busy the generator's cores were, in percent.
    pub generator_busy_percent: Option<f64>,
    /// Whether the open-loop generator sent on time. It is true in a closed loop.
    pub kept_up: bool,
    /// The server's cycles per query, counted as the report's [`CyclesBy`](super::report::CyclesBy) says.
    pub cycles_per_query: Option<f64>,
    /// Instructions per query, if the hardware counts them.
    pub instructions_per_query: Option<f64>,
    /// Interrupts that reached the server.
    pub interrupts: Option<u64>,
    /// Polls of NAPI instances.
    pub polls: Option<u64>,
    /// Frames per poll, as the mean over all polls.
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
    /// How much later than possible the generator sent, in microseconds (99th percentile). This is the `lag` column.
    pub generator_lag_us: Option<f64>,
    /// Median lateness of the delivery timers that fired, in microseconds after their deadline.
    pub timer_lag_us: Option<f64>,
    /// Time the generator spent raising interrupts, in microseconds over the window.
    pub raise_us: Option<f64>,
    /// The number of times that the interrupts were suspended.
    pub suspensions: Option<u64>,
    /// The number of suspensions that ended because the application found no events.
    pub resumes: Option<u64>,
    /// Which contexts polled the packets, on the kernel plane. In lull's own stack the other counts show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_by: Option<PolledBy>,
    /// The outcomes of the requests, if the generator reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Answers>,
    /// How long a fixed piece of work took just before the run, in microseconds, as a measure of the machine's speed
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_us: Option<f64>,
    /// Whether the mode that was asked for was in force.
    pub verdict: Enforcement,
}

/// The outcomes of a run's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answers {
    /// Answers of any kind.
    pub received: u64,
    /// Reads that found no record.
    pub misses: u64,
    /// Answers that were errors, or had the wrong size.
    pub errors: u64,
    /// Requests that were lost with their connection. The latencies leave them out.
    pub lost: u64,
    /// Requests that were never answered. The latencies leave them out, too.
    pub unanswered: u64,
    /// The approximate number of requests that were due and never sent.
    pub backlog: u64,
    /// The number of times that a connection was opened again.
    pub reconnects: u64,
}

impl Answers {
    /// Returns the number of requests that were sent and that the service did not serve as asked.
    pub fn failed(&self) -> u64 {
        self.misses + self.errors + self.lost + self.unanswered
    }

    /// Returns the number of requests that were sent.
    pub fn asked(&self) -> u64 {
        self.received + self.lost + self.unanswered
    }

    /// Adds the outcomes of another run.
    pub(super) fn add(&mut self, other: &Answers) {
        self.received += other.received;
        self.misses += other.misses;
        self.errors += other.errors;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        self.backlog += other.backlog;
        self.reconnects += other.reconnects;
    }

    /// Returns the failures for the reader, such as `of 1000 requests 20 found no record and 3 were lost with their
    /// connection`, or `None` if there are none.
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

/// Shares of the packets, in percent, by the context that polled them.
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
    /// The ksoftirqd threads.
    pub ksoftirqd: f64,
    /// The NAPI's thread.
    pub napi_thread: f64,
    /// Busy polls of the server's threads.
    pub busy_poll: f64,
    /// Any other context.
    pub other: f64,
}

impl RunResult {
    /// Makes a run with its rate and nothing else measured; the other fields can be filled in.
    ///
    /// ```
    /// use lull_lab::cell::{Load, RunResult};
    ///
    /// let run = RunResult { p99_latency_us: Some(141.0), ..RunResult::new("suspend10", Load::Max, 0, 1.0, 5000.0) }; assert!(run.kept_up);
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
