//! What processes, or the launcher, have put into the inbox of a process that has ended is given to other processes.
//!
//! Whoever passes a frame on first looks whether the queue has a process, which may end before it reads the frame. The
//! senders repeat most of what is lost so. But a connection that was passed on and that nobody had accepted exists
//! nowhere else, and its peer has been told that its data has arrived.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lull_nic::{Frame, passing};

use crate::failure::Failure;

/// The two ends of an inbox; the first is the one that is read.
pub(super) type Inbox = (OwnedFd, OwnedFd);

/// The inbox of each queue; there is none if a single process has all queues.
#[derive(Clone)]
pub(super) struct Inboxes(Arc<Vec<Inbox>>);

impl Inboxes {
    /// Makes the inboxes of this many queues, if processes can have one each.
    pub(super) fn of(queues: usize) -> Result<Inboxes, Failure> {
        let shared = if (2..=passing::QUEUES_MAX).contains(&queues) { queues } else { 0 };
        let inbox = |_| passing::inbox().map_err(|error| format!("cannot make a queue's inbox: {error}").into());
        (0..shared).map(inbox).collect::<Result<_, Failure>>().map(|inboxes| Inboxes(Arc::new(inboxes)))
    }

    pub(super) fn all(&self) -> &[Inbox] {
        &self.0
    }

    /// Gives a frame to a queue's process. If its inbox is full the frame is lost, as on a full ring.
    pub(super) fn pass_on(&self, queue: usize, frame: &Frame, seen_by: u32) {
        passing::pass_on(self.0[queue].1.as_fd(), frame, seen_by);
    }

    /// Gives what waits for queues without a process to queues that have one. `holders` says which process has each
    /// queue. If no queue has one, everything waits until a process takes a queue, or the program ends.
    pub(super) fn pass_on_what_is_nobodys(&self, holders: &[Option<i32>]) {
        let held = |seen_by: u32| {
            let mut queues = (0..).zip(holders).filter(|(_, holder)| holder.is_some()).map(|(queue, _)| queue);
            let first = queues.clone().next();
            // If all processes have seen the frame, the first one decides what happens to it.
            queues.find(|queue: &u32| seen_by & 1 << queue == 0).or(first)
        };
        for (queue, (inbox, _)) in (0..).zip(self.all()) {
            if holders.get(queue as usize).is_some_and(Option::is_some) {
                continue;
            }
            while let Some(frame) = held(0).and_then(|_| passing::taken(inbox.as_fd())) {
                let is_marked = frame.seen_by() & passing::CLAIMED != 0;
                let seen_by = if is_marked { frame.seen_by() } else { frame.seen_by() | 1 << queue };
                if let Some(to) = held(seen_by) {
                    self.pass_on(to as usize, &frame, seen_by);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_nic::passing::{CLAIMED, EVERYBODY};

    fn waiting(inboxes: &Inboxes, queue: usize) -> Vec<(u8, u32)> {
        let next = || passing::taken(inboxes.0[queue].0.as_fd());
        std::iter::from_fn(next).map(|frame| (frame.data()[0], frame.seen_by())).collect()
    }

    #[test]
    fn what_waits_for_a_process_that_has_ended_goes_to_one_that_lives() {
        let inboxes = Inboxes::of(3).unwrap();
        let put = |queue, frame: u8, seen_by| inboxes.pass_on(queue, &Frame::copy_from(&[frame]), seen_by);
        for (frame, seen_by) in [(1, 0), (2, 0b001), (3, 0b101), (4, EVERYBODY), (5, CLAIMED)] {
            put(1, frame, seen_by);
        }
        put(2, 6, 0);
        inboxes.pass_on_what_is_nobodys(&[None, None, None]);
        inboxes.pass_on_what_is_nobodys(&[Some(10), None, Some(12)]);
        assert_eq!(waiting(&inboxes, 0), [(1, 0b010), (3, 0b111), (4, EVERYBODY), (5, CLAIMED)]);
        assert_eq!(waiting(&inboxes, 1), []);
        assert_eq!(waiting(&inboxes, 2), [(6, 0), (2, 0b011)], "whoever lives reads its own");
    }
}
