//! The queues of an interface by AF_XDP, which the processes of a program share out among themselves.
//!
//! The interface spreads its flows over all of its queues, and a frame can be taken only from the queue that it came in by. So a
//! queue that no process has must be read as well while others have processes: the launcher does it, and puts what comes into
//! the inboxes of those. What a process asks for it gets a new socket of, and the launcher's own goes away.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lull_nic::frame::FramePool;
use lull_nic::rss::{SYMMETRIC_KEY, Toeplitz};
use lull_nic::xdp::{Xdp, XdpSetup};
use lull_nic::{Device, Queue};
use lull_posix::{Flows, depot};

use super::inboxes::Inboxes;
use crate::failure::Failure;

/// Frames that are passed on at a time: then others have their turn.
const BATCH: usize = 64;
/// Frames' buffers that are kept.
const POOL: usize = 256;

/// Gives queues out, and reads those that nobody has.
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
    /// Nobody reads it.
    Idle,
    /// Its frames are passed on.
    Read(Box<Read>),
    /// A process has its socket.
    Given,
}

struct Read {
    queue: Queue,
    pool: FramePool,
    _device: Xdp,
}

impl Depot {
    /// `asked` is the launcher's end of the depot.
    pub(super) fn new(setup: Arc<XdpSetup>, asked: OwnedFd, inboxes: Inboxes) -> Depot {
        let queues = std::iter::repeat_with(|| State::Idle).take(setup.queues()).collect();
        Depot { setup, asked, inboxes, queues, hash: Toeplitz::new(&SYMMETRIC_KEY), held: Vec::new() }
    }

    /// What becomes readable when there is something to do.
    pub(super) fn awaited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let read = self.queues.iter().filter_map(|state| match state {
            State::Read(read) => read.queue.irq.fd(),
            State::Idle | State::Given => None,
        });
        std::iter::once(self.asked.as_fd()).chain(read)
    }

    /// Begins to read what a process had that has ended. Returns who has each queue.
    pub(super) fn look(&mut self, flows: &Flows) -> Vec<Option<i32>> {
        let holders: Vec<Option<i32>> = (0..self.queues.len()).map(|queue| flows.holder(queue as u32)).collect();
        self.held = (0..holders.len()).filter(|queue| holders[*queue].is_some()).collect();
        for (queue, holder) in holders.iter().enumerate() {
            let is_held = holder.is_some();
            // Whoever has it since has asked for it, and gets another socket.
            if !is_held && matches!(self.queues[queue], State::Given) {
                self.queues[queue] = State::Idle;
            }
            match &self.queues[queue] {
                // What fails is tried again: the kernel may not have taken it back yet.
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

    /// The device, while no process has a queue.
    pub(super) fn whole(&mut self) -> Result<Xdp, Failure> {
        // The kernel binds one socket to a queue.
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
            // First: what comes to a queue without a socket is the host's, which would reset connections that are lull's.
            let given = self.setup.again(&request.queues).map_err(|error| error.to_string());
            for queue in request.queues.iter().filter(|_| given.is_ok()) {
                // The kernel binds one socket to a queue.
                if let Some(state) = self.queues.get_mut(*queue) {
                    *state = State::Given;
                }
            }
            let given = given.as_ref().map_err(Clone::clone);
            // Whoever asked has ended: the next look sees that.
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
