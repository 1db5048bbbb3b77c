//! The queues of an interface by AF_XDP, which the processes of a program share.
//!
//! The interface spreads its flows over all of its queues, and a frame can be taken only from the queue by which it
//! came. So while some queues have a process, those that have none must be read as well: the launcher reads them, and
//! puts their frames into the inboxes of the processes. When a process asks for a queue, it gets a new socket for it,
//! and the launcher closes its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lull_nic::frame::FramePool;
use lull_nic::rss::{SYMMETRIC_KEY, Toeplitz};
use lull_nic::xdp::{Xdp, XdpSetup};
use lull_nic::{Device, Queue};
use lull_posix::{Flows, depot};

use super::inboxes::Inboxes;
use crate::failure::Failure;

/// How many frames are passed on at a time, before other queues have their turn.
const BATCH: usize = 64;
/// How many buffers for frames are kept.
const POOL: usize = 256;

/// Gives queues out, and reads those that no process has.
pub(super) struct Depot {
    setup: Arc<XdpSetup>,
    asked: OwnedFd,
    inboxes: Inboxes,
    queues: Vec<State>,
    hash: Toeplitz,
    /// The queues that had a process at the last look.
    held: Vec<usize>,
}

enum State {
    /// Nobody reads the queue.
    Idle,
    /// The launcher reads the queue and passes its frames on.
    Read(Box<Read>),
    /// A process has the queue's socket.
    Given,
}

struct Read {
    queue: Queue,
    pool: FramePool,
    _device: Xdp,
}

impl Depot {
    /// `asked` is the launcher's end of the socket pair over which processes ask for queues.
    pub(super) fn new(setup: Arc<XdpSetup>, asked: OwnedFd, inboxes: Inboxes) -> Depot {
        let queues = std::iter::repeat_with(|| State::Idle).take(setup.queues()).collect();
        Depot { setup, asked, inboxes, queues, hash: Toeplitz::new(&SYMMETRIC_KEY), held: Vec::new() }
    }

    /// Returns the descriptors that become readable when there is something to do.
    pub(super) fn awaited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let read = self.queues.iter().filter_map(|state| match state {
            State::Read(read) => read.queue.irq.fd(),
            State::Idle | State::Given => None,
        });
        std::iter::once(self.asked.as_fd()).chain(read)
    }

    /// Begins to read the queues of processes that have ended. Returns which process has each queue.
    pub(super) fn look(&mut self, flows: &Flows) -> Vec<Option<i32>> {
        let holders: Vec<Option<i32>> = (0..self.queues.len()).map(|queue| flows.holder(queue as u32)).collect();
        self.held = (0..holders.len()).filter(|queue| holders[*queue].is_some()).collect();
        for (queue, holder) in holders.iter().enumerate() {
            let is_held = holder.is_some();
            // A process that has taken the queue since has asked for it, and gets another socket.
            if !is_held && matches!(self.queues[queue], State::Given) {
                self.queues[queue] = State::Idle;
            }
            match &self.queues[queue] {
                // If this fails it is tried again, because the kernel may not have closed the former socket yet.
                State::Idle if !is_held && !self.held.is_empty() && !self.inboxes.all().is_empty() => {
                    if let Some(read) = self.read(queue) {
                        self.queues[queue] = State::Read(Box::new(read));
                    }
                }
                State::Read(_) if self.held.is_empty() => self.queues[queue] = State::Idle,
                _ => {}
            }
        }
        holders
    }

    /// Opens the whole device, which takes that no process has a queue.
    pub(super) fn whole(&mut self) -> Result<Xdp, Failure> {
        // The kernel binds only one socket to a queue, so the launcher's own are closed first.
        self.queues.iter_mut().for_each(|state| *state = State::Idle);
        let all: Vec<usize> = (0..self.queues.len()).collect();
        Ok(Xdp::start(self.setup.again(&all)?)?)
    }

    fn read(&self, queue: usize) -> Option<Read> {
        let device = Xdp::start(self.setup.again(&[queue]).ok()?).ok()?;
        let queue = device.take_queue(0).ok()?;
        Some(Read { queue, pool: FramePool::new(POOL), _device: device })
    }

    /// Answers processes that ask for queues, and passes frames on.
    pub(super) fn attend(&mut self) {
        while let Some(request) = depot::next_request(self.asked.as_fd()) {
            // The new sockets are made first: a frame that comes to a queue without a socket goes to the host, which
            // would reset a connection that is lull's.
            let given = self.setup.again(&request.queues).map_err(|error| error.to_string());
            for queue in request.queues.iter().filter(|_| given.is_ok()) {
                // The kernel binds only one socket to a queue, so the launcher's own is closed.
                if let Some(state) = self.queues.get_mut(*queue) {
                    *state = State::Given;
                }
            }
            let given = given.as_ref().map_err(Clone::clone);
            // If this fails the process has ended, which the next look notices.
            let _ = depot::answer(self.asked.as_fd(), &request, given);
        }
        let Depot { queues, inboxes, hash, held, .. } = self;
        for state in queues {
            let State::Read(read) = state else { continue };
            let Read { queue, pool, .. } = &mut **read;
            queue.rx.poll(BATCH, pool, &mut |frame, _| {
                let flow = hash.hash_frame(frame.data()) as usize;
                if let Some(to) = held.get(flow % held.len().max(1)) {
                    inboxes.pass_on(*to, &frame, frame.seen_by());
                }
            });
        }
    }
}
