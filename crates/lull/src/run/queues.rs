//! The queues of a NIC that several processes of a program share out among themselves.
//!
//! A process claims a queue when it first asks for connections. A queue that nobody has must not be left with frames: the flows
//! that it gets would find no answer. Of a TAP, processes put what they claim among the queues that the kernel sends frames to,
//! and the launcher takes out what nobody has claimed yet, and what a process had that ended. Of AF_XDP, the launcher gives out
//! and reads them itself ([`Depot`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use lull_control::Program;
use lull_nic::{EventFdSink, IrqSink, tap};
use lull_posix::Flows;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::depot::Depot;
use crate::failure::Failure;

/// How often a look is taken at which process has which queue; the end of one that is known is seen at once.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The queues that are shared.
pub(super) enum Queues {
    /// A process has all of them, or none.
    Unshared,
    /// Those of a TAP.
    Tap(Attached),
    /// Those of an interface, by AF_XDP.
    Xdp(Depot),
}

impl Queues {
    /// Sees to what processes have that ended. Returns those that have queues.
    fn look(&mut self, flows: &Flows) -> Vec<i32> {
        match self {
            Queues::Unshared => Vec::new(),
            Queues::Tap(attached) => attached.look(flows),
            Queues::Xdp(depot) => depot.look(flows),
        }
    }

    fn awaited(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Queues::Unshared | Queues::Tap(_) => Vec::new(),
            Queues::Xdp(depot) => depot.awaited().collect(),
        }
    }

    fn attend(&mut self) {
        if let Queues::Xdp(depot) = self {
            depot.attend();
        }
    }
}

/// The processes that have one of so many queues.
pub(super) fn processes(flows: &Flows, queues: usize) -> std::io::Result<Program> {
    let flows = Flows::open(flows.as_fd().try_clone_to_owned()?)?;
    let holder = move |queue| flows.holder(queue).and_then(|pid| u32::try_from(pid).ok());
    Ok(Program::new(move || (0..queues as u32).filter_map(&holder).collect()))
}

/// Sees to the queues until it is dropped.
pub(super) struct Watch {
    end: Arc<EventFdSink>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks after the queues from now on; nobody has one yet. The thread takes the signals that its maker lets it: start it
    /// where none of the launcher's own is left to it.
    pub(super) fn start(mut queues: Queues, flows: &Flows) -> std::io::Result<Watch> {
        let end = Arc::new(EventFdSink::new()?);
        if matches!(queues, Queues::Unshared) {
            return Ok(Watch { end, thread: None });
        }
        let flows = Flows::open(flows.as_fd().try_clone_to_owned()?)?;
        let watched = end.clone();
        let look_after = move || {
            loop {
                let holders = queues.look(&flows);
                let ends =
                    holders.into_iter().filter_map(|pid| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok());
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

/// The queues of a TAP: those that the kernel sends frames to are attached.
pub(super) struct Attached {
    queues: Vec<OwnedFd>,
    in_use: Vec<bool>,
}

impl Attached {
    /// Takes all queues out: nobody reads them yet.
    pub(super) fn none(queues: Vec<OwnedFd>) -> Result<Attached, Failure> {
        for queue in &queues {
            tap::set_attached(queue.as_fd(), false)?;
        }
        let in_use = vec![false; queues.len()];
        Ok(Attached { queues, in_use })
    }

    /// Takes out the queues that were in use and that nobody has any more. Returns who has the others.
    fn look(&mut self, flows: &Flows) -> Vec<i32> {
        let mut holders = Vec::new();
        for (nth, queue) in self.queues.iter().enumerate() {
            let number = nth as u32;
            match flows.holder(number) {
                Some(pid) => {
                    self.in_use[nth] = true;
                    holders.push(pid);
                }
                None if self.in_use[nth] => {
                    // The next process may claim it just now.
                    let out = flows
                        .alone(|| flows.holder(number).is_none() && tap::set_attached(queue.as_fd(), false).is_ok());
                    self.in_use[nth] = !out.unwrap_or(false);
                }
                None => {}
            }
        }
        holders
    }
}
