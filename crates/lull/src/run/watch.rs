//! The launcher's look at the queues that several processes of a program share: who has which, and whose process has ended.

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

/// How often a look is taken at which process has which queue; the end of one that is known is seen at once.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Sees to the queues until it is dropped.
pub(super) struct Watch {
    end: Arc<EventFdSink>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks after the queues from now on; nobody has one yet. The thread takes the signals that its maker lets it: start it
    /// where none of the launcher's own is left to it.
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
                // Cut short by a signal, it looks sooner.
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
            // It has no panic of its own to tell of.
            let _ = thread.join();
        }
    }
}
