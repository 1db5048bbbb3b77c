//! An AF_XDP responder: it takes frames from its socket's ring, several at a time, and answers each inline.
//!
//! [`XskBatch`] is what it does with frames, whichever way it has learned of them: by `epoll_wait` (in the epoll
//! worker) or by its own look at the ring ([`XskResponder`], which is also the thread that only polls for another). The
//! core's `SocketBusy` decides whether a call polls the device.

use crate::engine::busy::Busier;
use crate::engine::id::{CpuId, QueueId, ThreadId, XskId};
use crate::engine::nic::Frame;
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};
use crate::world::{Transmit, XskThreadSpec, XskWait};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// This many frames were taken and handled.
    Handled(usize),
    /// The answers are in the transmit ring, and the send call is made.
    Sent,
    /// The send call busy polls.
    Kicked,
}

/// Frames that are being answered.
#[derive(Debug)]
pub(crate) struct XskBatch {
    xsk: XskId,
    cpu: CpuId,
    stage: Stage,
    answers: Vec<Frame>,
    busier: Option<Busier>,
}

impl XskBatch {
    /// Begins with the frames that the socket has, up to its batch; returns `None` if it has none.
    pub(crate) fn begin(sim: &mut Sim, xsk: XskId, cpu: CpuId) -> Option<(XskBatch, Next)> {
        let socket = &sim.ends.xsks[xsk];
        let count = socket.ready.len().min(socket.spec.batch as usize);
        if count == 0 {
            return None;
        }
        let handle_ns = count as u64 * u64::from(sim.env.world.costs.recv_take_ns) + sim.env.faults.stall_ns();
        let batch = XskBatch { xsk, cpu, stage: Stage::Handled(count), answers: Vec::new(), busier: None };
        Some((batch, Next::Run(Segment::mixed(0, handle_ns))))
    }

    /// The former segment has ended. Returns `None` when all frames are answered.
    pub(crate) fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Option<Next> {
        if let Some(mut busier) = self.busier.take()
            && let Some(next) = busier.step(sim, me, !sim.ends.xsks[self.xsk].ready.is_empty())
        {
            self.busier = Some(busier);
            return Some(next);
        }
        match self.stage {
            Stage::Handled(count) => {
                self.answers.extend(sim.ends.xsks[self.xsk].ready.drain(..count));
                sim.env.tally.counts.served += count as u64;
                self.stage = Stage::Sent;
                Some(Next::Run(Segment::sys(u64::from(sim.env.world.costs.send_ns))))
            }
            Stage::Sent => {
                let socket = &sim.ends.xsks[self.xsk].spec;
                let (queue, transmit) = (QueueId::new(socket.queue), socket.transmit);
                sim.nic.queues[queue].tx_ring.append(&mut self.answers);
                self.stage = Stage::Kicked;
                match transmit {
                    Transmit::Wakeup => sim.nic.xsk_wakeup(&mut sim.env, &mut sim.cpus, queue, self.cpu),
                    Transmit::BusyPoll => {
                        if let Some((busier, next)) = busy(sim, self.xsk, self.cpu) {
                            self.busier = Some(busier);
                            return Some(next);
                        }
                    }
                    Transmit::Poll | Transmit::Doorbell | Transmit::Copy => {}
                }
                self.over(sim)
            }
            Stage::Kicked => self.over(sim),
        }
    }

    fn over(&self, sim: &mut Sim) -> Option<Next> {
        sim.xsk_taken(self.xsk, self.cpu);
        None
    }

    /// Releases what it owns at the end of a run.
    pub(crate) fn abandon(self) {
        if let Some(busier) = self.busier {
            busier.abandon();
        }
    }
}

/// A non-blocking call on the socket polls as its options say; returns `None` if they do not ask for it.
fn busy(sim: &mut Sim, xsk: XskId, cpu: CpuId) -> Option<(Busier, Next)> {
    let socket = &sim.ends.xsks[xsk];
    let id = sim.nic.queues[QueueId::new(socket.spec.queue)].napi.id();
    let plan = socket.busy.plan(id, true)?;
    Busier::begin(sim, plan, cpu)
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct XskResponder {
    spec: XskThreadSpec,
    /// Whether it is at the beginning of a receive call.
    called: bool,
    batch: Option<XskBatch>,
    busier: Option<Busier>,
}

impl XskResponder {
    pub(crate) fn new(spec: XskThreadSpec) -> XskResponder {
        XskResponder { spec, called: false, batch: None, busier: None }
    }

    fn xsk(&self) -> XskId {
        XskId::new(self.spec.xsk)
    }

    fn is_ready(&self, sim: &Sim) -> bool {
        self.spec.wait != XskWait::PollOnly && !sim.ends.xsks[self.xsk()].ready.is_empty()
    }

    /// The beginning of its loop. The ring is user memory, so no call is made if there is something in it.
    fn look(&mut self, sim: &mut Sim) -> Next {
        if self.is_ready(sim)
            && let Some((batch, next)) = XskBatch::begin(sim, self.xsk(), CpuId::new(self.spec.cpu))
        {
            self.batch = Some(batch);
            return next;
        }
        if self.spec.wait == XskWait::Spin {
            return spin(sim);
        }
        self.called = true;
        Next::Run(Segment::mixed(u64::from(sim.env.world.costs.recv_call_ns), 0))
    }

    /// After a receive call.
    fn returned(&mut self, sim: &mut Sim) -> Next {
        if self.is_ready(sim) { self.look(sim) } else { spin(sim) }
    }
}

fn spin(sim: &Sim) -> Next {
    Next::Run(Segment::mixed(0, u64::from(sim.env.world.costs.spin_ns).max(1)))
}

impl Program for XskResponder {
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        if let Some(mut batch) = self.batch.take() {
            if let Some(next) = batch.step(sim, me) {
                self.batch = Some(batch);
                return next;
            }
            return self.look(sim);
        }
        if let Some(mut busier) = self.busier.take() {
            let ready = self.is_ready(sim);
            if let Some(next) = busier.step(sim, me, ready) {
                self.busier = Some(busier);
                return next;
            }
            return self.returned(sim);
        }
        if std::mem::take(&mut self.called) {
            if let Some((busier, next)) = busy(sim, self.xsk(), CpuId::new(self.spec.cpu)) {
                self.busier = Some(busier);
                return next;
            }
            return self.returned(sim);
        }
        self.look(sim)
    }

    fn abandon(self: Box<Self>) {
        if let Some(busier) = self.busier {
            busier.abandon();
        }
        if let Some(batch) = self.batch {
            batch.abandon();
        }
    }
}
