//! How long requests take inside the machine: from when a frame may have come into the ring until the application sends
//! the answer.
//!
//! Nobody stamps frames of a TAP or of memory. So a frame that a poll finds counts as come when the ring was last seen
//! empty, or when the interrupt was raised that brought the poll, whichever was later. That is too early by less than
//! one timeout under a deferral, and right for the frame that came first.

use lull_slo::Latencies;

use super::stack::Stack;

impl Stack {
    /// Begins to time requests, or ends it.
    pub fn time_answers(&mut self, on: bool) {
        if !on {
            self.answers = None;
        } else if self.answers.is_none() {
            self.answers = Some(Box::default());
        }
    }

    /// What requests took so far, if they are timed.
    pub fn answer_times(&self) -> Option<Latencies> {
        self.answers.as_ref().map(|answers| answers.took.clone())
    }

    /// The frames that are received next may have been in the ring since then.
    #[inline]
    pub fn came_since(&mut self, ns: u64) {
        if let Some(answers) = &mut self.answers {
            answers.came_ns = ns;
        }
    }

    /// Data came on a connection. One that this end opened asks itself, and what comes is the answer.
    #[inline]
    pub(super) fn request_came(&mut self, index: u32) {
        let Some(answers) = &mut self.answers else { return };
        let local = self.connections.get(index).map(|connection| connection.flow.local_port());
        if local.is_some_and(|port| self.listener_ports.is_bound(port)) {
            answers.asked(index);
        }
    }

    /// The application sends on a connection.
    #[inline]
    pub(super) fn answer_goes(&mut self, index: u32, now_ns: u64) {
        if let Some(answers) = &mut self.answers
            && let Some(asked_ns) = answers.take(index)
        {
            answers.took.record(now_ns.saturating_sub(asked_ns));
        }
    }

    /// The connection is over; another one gets its index.
    #[inline]
    pub(super) fn nobody_asks(&mut self, index: u32) {
        if let Some(answers) = &mut self.answers {
            answers.take(index);
        }
    }
}
