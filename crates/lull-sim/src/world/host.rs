//! What executes delivery: a kernel, or lull's own host in a process.

use lull_core::AfterResume;

/// lull's own host (`lull-host`), whose threads do what a kernel's interrupts and softirq do.
///
/// - An interrupt wakes a thread. That is the worker itself if it sleeps in `epoll_wait`: it polls its queue and goes on
///   with what it found, without a wake-up and a switch of its own. While the worker computes it is the CPU's
///   interrupt thread, which takes the core from it ([`Costs::irq_ns`](crate::Costs::irq_ns)). While the worker is in
///   `epoll_wait` and awake, it looks itself, at no cost.
/// - Timers are kept in the loop: one that falls due while the worker computes waits for its next call of lull's, or for
///   the interrupt thread's kernel timer, [`timer_slack_ns`](UserHost::timer_slack_ns) later. That timer is set when the
///   worker leaves, moved to earlier times only, and never cancelled: it wakes the thread also where the worker has looked
///   by itself. A NAPI's timer that falls due while the worker sleeps wakes it as late as kernel timers do
///   ([`Costs::timer_late_ns`](crate::Costs::timer_late_ns)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserHost {
    /// What follows the poll of a resume that finds nothing.
    pub after_resume: AfterResume,
    /// How late a timer is taken at the most while the worker computes (the host's `timer_slack_ns`).
    pub timer_slack_ns: u32,
}

impl Default for UserHost {
    /// The defaults are those of `lull compare` and `lull serve`.
    fn default() -> UserHost {
        UserHost { after_resume: AfterResume::Interrupt, timer_slack_ns: 50_000 }
    }
}

/// A load generator with one thread for each worker. It works in turns, like the lab's: it takes the answers that are
/// there, then sends what is due, and then tells the device of everything that it has sent. While it does one of these,
/// or wakes the server, it does nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneratorSpec {
    /// How long it takes to send a request, in nanoseconds.
    pub send_ns: u32,
    /// How long it takes to take an answer, in nanoseconds.
    pub answer_ns: u32,
    /// How long it takes to interrupt the server, in nanoseconds: with an in-memory NIC the sender wakes the receiver.
    pub raise_ns: u32,
}
