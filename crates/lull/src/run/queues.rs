//! The queues of a TAP that several processes of a program share out among themselves.
//!
//! A process claims a queue when it first asks for connections, and puts it among those that the kernel sends frames to. A queue
//! that nobody reads must not be among them: the flows that the kernel gives it would find no answer. So the launcher takes out
//! what nobody has claimed yet, and what a process had that ended.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use lull_nic::{EventFdSink, IrqSink, tap};
use lull_posix::Flows;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::failure::Failure;

/// How often a look is taken at which process has which queue; the end of one that is known is seen at once.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Sees to the queues until it is dropped.
pub(super) struct Watch {
    end: Arc<EventFdSink>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks after the queues from now on; nobody has one yet. Without several there is nothing to do. The thread takes the
    /// signals that its maker lets it: start it where none of the launcher's own is left to it.
    pub(super) fn start(queues: Vec<OwnedFd>, flows: &Flows) -> std::io::Result<Watch> {
        let end = Arc::new(EventFdSink::new()?);
        if queues.is_empty() {
            return Ok(Watch { end, thread: None });
        }
        let flows = Flows::open(flows.as_fd().try_clone_to_owned()?)?;
        let watched = end.clone();
        let look_after = move || {
            let mut in_use = vec![false; queues.len()];
            loop {
                let holders = look(&queues, &flows, &mut in_use);
                let ends =
                    holders.into_iter().filter_map(|pid| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok());
                let ends: Vec<OwnedFd> = ends.collect();
                let mut awaited = vec![PollFd::from_borrowed_fd(watched.as_fd(), PollFlags::IN)];
                awaited.extend(ends.iter().map(|end| PollFd::new(end, PollFlags::IN)));
                // Cut short by a signal, it looks sooner.
                let _ = poll(&mut awaited, Some(&LOOK_EVERY));
                if watched.clear() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("lull-queues".to_owned()).spawn(look_after)?;
        Ok(Watch { end, thread: Some(thread) })
    }
}

/// Takes all queues out: nobody reads them yet.
pub(super) fn take_out(queues: &[OwnedFd]) -> Result<(), Failure> {
    for queue in queues {
        tap::set_attached(queue.as_fd(), false)?;
    }
    Ok(())
}

/// Takes out the queues that were in use and that nobody has any more. Returns who has the others.
fn look(queues: &[OwnedFd], flows: &Flows, in_use: &mut [bool]) -> Vec<i32> {
    let mut holders = Vec::new();
    for (nth, queue) in queues.iter().enumerate() {
        let number = nth as u32;
        match flows.holder(number) {
            Some(pid) => {
                in_use[nth] = true;
                holders.push(pid);
            }
            None if in_use[nth] => {
                // The next process may claim it just now.
                let out =
                    flows.alone(|| flows.holder(number).is_none() && tap::set_attached(queue.as_fd(), false).is_ok());
                in_use[nth] = !out.unwrap_or(false);
            }
            None => {}
        }
    }
    holders
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
