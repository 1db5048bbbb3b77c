//! The launcher's look at the queues that several processes of a program share: which process has which queue, and
//! which processes have ended.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use lull_nic::{EventFdSink, IrqSink};
use lull_posix::Flows;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ended::Ended;
use super::inboxes::Inboxes;
use super::queues::Queues;

/// How often the launcher looks which process has which queue; it notices the end of a known process at once.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Takes care of the queues until it is dropped.
pub(super) struct Watch {
    end: Arc<EventFdSink>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to take care of the queues, none of which has a process yet. The thread takes the signals that are not
    /// blocked in the caller: start it where all signals that the launcher needs are blocked.
    pub(super) fn start(
        mut queues: Queues,
        inboxes: Inboxes,
        mut ended: Ended,
        flows: &Flows,
    ) -> std::io::Result<Watch> {
        let end = Arc::new(EventFdSink::new()?);
        let flows = Flows::open(flows.as_fd().try_clone_to_owned()?)?;
        let watched = end.clone();
        let look_after = move || {
            loop {
                let holders = queues.look(&flows);
                inboxes.pass_on_what_is_nobodys(&holders);
                ended.look(&flows, &mut queues);
                let pids = holders.into_iter().flatten().filter_map(Pid::from_raw);
                let ends = pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                let ends: Vec<OwnedFd> = ends.collect();
                let mut awaited = vec![PollFd::from_borrowed_fd(watched.as_fd(), PollFlags::IN)];
                awaited.extend(ends.iter().map(|end| PollFd::new(end, PollFlags::IN)));
                awaited.extend(queues.awaited().into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
                // If a signal interrupts the wait, it looks sooner.
                let _ = poll(&mut awaited, Some(&LOOK_EVERY));
                drop(awaited);
                if watched.clear() {
                    return;
                }
                queues.attend();
            }
        };
        let thread = std::thread::Builder::new().name("lull-queues".to_owned()).spawn(look_after)?;
        Ok(Watch { end, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end.raise();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, so there is nothing to report.
            let _ = thread.join();
        }
    }
}
