//! The queues of a NIC that several processes of a program share.
//!
//! A process claims a queue when it first asks for connections. Frames must not come to a queue without a process,
//! because their flows would find no answer. Processes of a TAP attach the queues that they claim, so that the kernel
//! sends frames to them, and the launcher detaches those that nobody has claimed yet, and those of processes that have
//! ended. By AF_XDP the launcher gives queues out, and reads the others itself ([`Depot`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lull_control::Program;
use lull_nic::Device;
use lull_nic::tap::{self, Tap};
use lull_posix::Flows;

use super::depot::Depot;
use crate::failure::Failure;

/// The queues that are shared.
pub(super) enum Queues {
    /// The queues of a TAP that are not shared: one process has all of them, or none has any.
    Unshared(Vec<OwnedFd>),
    /// The queues of a TAP that processes share.
    Tap(Attached),
    /// The queues of an interface, by AF_XDP.
    Xdp(Depot),
}

impl Queues {
    /// Takes care of the queues of processes that have ended. Returns which process has each queue.
    pub(super) fn look(&mut self, flows: &Flows) -> Vec<Option<i32>> {
        match self {
            Queues::Unshared(queues) => (0..queues.len() as u32).map(|queue| flows.holder(queue)).collect(),
            Queues::Tap(attached) => attached.look(flows),
            Queues::Xdp(depot) => depot.look(flows),
        }
    }

    pub(super) fn awaited(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Queues::Unshared(_) | Queues::Tap(_) => Vec::new(),
            Queues::Xdp(depot) => depot.awaited().collect(),
        }
    }

    pub(super) fn attend(&mut self) {
        if let Queues::Xdp(depot) = self {
            depot.attend();
        }
    }

    /// Returns the device, which takes that no process has a queue. When it is dropped, call [`Queues::taken_back`].
    pub(super) fn whole(&mut self) -> Result<Arc<dyn Device>, Failure> {
        let fds = match self {
            Queues::Unshared(queues) => &*queues,
            Queues::Tap(attached) => {
                attached.attach_all(true)?;
                &attached.queues
            }
            Queues::Xdp(depot) => return Ok(Arc::new(depot.whole()?)),
        };
        let own = fds.iter().map(|queue| queue.try_clone()).collect::<Result<_, _>>()?;
        Ok(Arc::new(Tap::adopt(own)?))
    }

    /// To be called when nobody reads the queues any more.
    pub(super) fn taken_back(&mut self) {
        if let Queues::Tap(attached) = self {
            // A TAP that is gone has no queues to detach.
            let _ = attached.attach_all(false);
        }
    }
}

/// Returns the processes of the program, on a NIC with this many queues.
pub(super) fn processes(flows: &Flows, queues: usize) -> std::io::Result<Program> {
    let flows = Flows::open(flows.as_fd().try_clone_to_owned()?)?;
    let holder = move |queue| flows.holder(queue).and_then(|pid| u32::try_from(pid).ok());
    Ok(Program::new(move || (0..queues as u32).filter_map(&holder).collect()))
}

/// The queues of a TAP. The kernel sends frames to those that are attached.
pub(super) struct Attached {
    queues: Vec<OwnedFd>,
    in_use: Vec<bool>,
    /// How many times processes had taken a queue by the last look.
    begun: u32,
}

impl Attached {
    /// Detaches all queues, because nobody reads them yet.
    pub(super) fn none(queues: Vec<OwnedFd>) -> Result<Attached, Failure> {
        let in_use = vec![false; queues.len()];
        let attached = Attached { queues, in_use, begun: 0 };
        attached.attach_all(false)?;
        Ok(attached)
    }

    fn attach_all(&self, attached: bool) -> Result<(), Failure> {
        for queue in &self.queues {
            tap::set_attached(queue.as_fd(), attached)?;
        }
        Ok(())
    }

    /// Detaches the queues that were in use and that no process has any more. Returns which process has each.
    fn look(&mut self, flows: &Flows) -> Vec<Option<i32>> {
        let mut holders = Vec::new();
        let begun = flows.begun_so_far();
        if begun != self.begun {
            // A process that came and went between two looks was never seen to hold its queue.
            (self.begun, self.in_use) = (begun, vec![true; self.queues.len()]);
        }
        for (nth, queue) in self.queues.iter().enumerate() {
            let number = nth as u32;
            let holder = flows.holder(number);
            holders.push(holder);
            match holder {
                Some(_) => self.in_use[nth] = true,
                None if self.in_use[nth] => {
                    // The next process may just be claiming the queue.
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
