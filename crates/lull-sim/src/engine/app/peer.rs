//! A thread of a request/response pair: a requester, a responder, a paced sender, a receiver with an application delay,
//! or a thread that only polls for others.
//!
//! The thread decides how it receives (asleep in a call, by looking at its ring in user space, by one non-blocking call
//! after the other); the core's `SocketBusy` decides whether a call polls the device.

use crate::engine::busy::Busier;
use crate::engine::id::{CpuId, QueueId, SocketId, ThreadId};
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};
use crate::world::{PeerKind, PeerSpec, Receive, Transmit};

/// A thread that has polled an instance for this long, by one receive call after the other, counts as polling it all
/// the time, in nanoseconds. A program that is busy for 6 of 8 us does not.
const ALL_THE_TIME_NS: u64 = 4_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The thread sends the first message, and has not yet.
    Begin,
    /// It is at the beginning of its loop.
    Look,
    /// It has just entered a receive call.
    Called,
    /// It is about to sleep in the call.
    Falling,
    Slept,
    /// A message was copied out.
    Taken,
    /// The device has the frame, or the transmit ring has it.
    Sent,
    /// A send call is about to busy poll.
    Kick,
    /// A send call is over.
    Kicked,
    /// It spends the application's delay, until this time.
    Delay(u64),
    /// Waits until the next message is due.
    Paced,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Peer {
    spec: PeerSpec,
    stage: Stage,
    busier: Option<Busier>,
    begun_ns: u64,
    next_ns: u64,
    /// Whether it has slept since its last send call.
    slept: bool,
}

impl Peer {
    pub(crate) fn new(spec: &PeerSpec) -> Peer {
        let first = match spec.kind {
            PeerKind::Requester | PeerKind::Pacer { .. } => Stage::Begin,
            PeerKind::Responder | PeerKind::Taker { .. } | PeerKind::Poller => Stage::Look,
        };
        Peer { spec: spec.clone(), stage: first, busier: None, begun_ns: 0, next_ns: 0, slept: false }
    }

    fn socket(&self) -> SocketId {
        SocketId::new(self.spec.socket)
    }

    fn is_ready(&self, sim: &Sim) -> bool {
        self.spec.kind != PeerKind::Poller && !sim.ends.sockets[self.socket()].ready.is_empty()
    }

    fn look(&mut self, sim: &Sim) -> Next {
        if self.spec.receive == Receive::Spin {
            if self.is_ready(sim) {
                return self.take(sim);
            }
            self.stage = Stage::Look;
            return Next::Run(Segment::mixed(0, u64::from(sim.env.world.costs.spin_ns)));
        }
        // The ring of an AF_XDP socket is user memory, so no call is made if there is something in it.
        if self.spec.receive == Receive::Call && self.is_ready(sim) {
            return self.take(sim);
        }
        self.stage = Stage::Called;
        Next::Run(Segment::mixed(u64::from(sim.env.world.costs.recv_call_ns), 0))
    }

    fn take(&mut self, sim: &Sim) -> Next {
        self.stage = Stage::Taken;
        Next::Run(Segment::mixed(u64::from(sim.env.world.costs.recv_take_ns), 0))
    }

    fn send(&mut self, sim: &Sim) -> Next {
        match self.transmit(sim) {
            Transmit::Copy => self.kick(sim),
            _ => self.hand_over(sim),
        }
    }

    fn transmit(&self, sim: &Sim) -> Transmit {
        sim.ends.sockets[self.socket()].spec.transmit
    }

    /// Hands the frame to the device, or puts it into the transmit ring.
    fn hand_over(&mut self, sim: &Sim) -> Next {
        self.stage = Stage::Sent;
        let costs = &sim.env.world.costs;
        let frame_ns = if self.transmit(sim) == Transmit::Copy { costs.tx_frame_ns } else { 0 };
        Next::Run(Segment::mixed(u64::from(costs.send_ns + frame_ns), 0))
    }

    /// A send call is about to busy poll, which takes longer in a thread that has slept. In copy mode the call does not
    /// get as far if somebody polls the instance all the time.
    fn kick(&mut self, sim: &Sim) -> Next {
        self.stage = Stage::Kick;
        let socket = &sim.ends.sockets[self.socket()].spec;
        let queue = &sim.nic.queues[QueueId::new(socket.queue)];
        let polled = queue.poll.followed_ns(sim.env.now_ns) >= ALL_THE_TIME_NS;
        let spared = socket.transmit == Transmit::Copy && (socket.busy_poll_usecs == 0 || polled);
        let cold_ns = match std::mem::take(&mut self.slept) && !spared {
            true => sim.env.world.costs.cold_busy_ns,
            false => 0,
        };
        Next::Run(Segment::sys(u64::from(cold_ns)))
    }

    /// The busy polling of a send call has ended.
    fn kicked(&mut self, sim: &Sim) -> Next {
        match self.transmit(sim) {
            Transmit::Copy => self.hand_over(sim),
            _ => self.sent(sim),
        }
    }

    /// The thread is in a receive call that does not busy poll (any more).
    fn after_polling(&mut self, sim: &Sim) -> Next {
        if self.spec.receive == Receive::Call {
            return self.look_again(sim);
        }
        if self.is_ready(sim) {
            return self.take(sim);
        }
        self.stage = Stage::Falling;
        Next::Run(Segment::sys(u64::from(sim.env.world.costs.recv_sleep_ns)))
    }

    fn look_again(&mut self, sim: &Sim) -> Next {
        if self.is_ready(sim) {
            return self.take(sim);
        }
        self.stage = Stage::Look;
        Next::Run(Segment::mixed(0, u64::from(sim.env.world.costs.spin_ns)))
    }

    /// Busy polls as the socket's options say; returns `None` if they do not ask for it.
    fn busy(&mut self, sim: &mut Sim, nonblocking: bool) -> Option<Next> {
        let socket = &sim.ends.sockets[self.socket()];
        let id = sim.nic.queues[QueueId::new(socket.spec.queue)].napi.id();
        let plan = socket.busy.plan(id, nonblocking)?;
        let (busier, next) = Busier::begin(sim, plan, CpuId::new(self.spec.cpu))?;
        self.busier = Some(busier);
        Some(next)
    }

    /// The first step of a thread that sends the first message.
    fn begin(&mut self, sim: &Sim) -> Next {
        match self.spec.kind {
            PeerKind::Pacer { period_ns } => {
                self.next_ns = sim.env.now_ns + period_ns;
                self.pace(sim, period_ns)
            }
            _ => {
                self.begun_ns = sim.env.now_ns;
                self.send(sim)
            }
        }
    }

    /// After a send call.
    fn sent(&mut self, sim: &Sim) -> Next {
        match self.spec.kind {
            PeerKind::Pacer { period_ns } => self.pace(sim, period_ns),
            _ => self.look(sim),
        }
    }

    fn delay(&mut self, sim: &Sim, until_ns: u64) -> Next {
        // The application watches the clock, so being interrupted does not make the delay longer.
        let rest_ns = until_ns.saturating_sub(sim.env.now_ns);
        if rest_ns == 0 {
            return self.look(sim);
        }
        self.stage = Stage::Delay(until_ns);
        Next::Run(Segment::mixed(0, rest_ns.min(u64::from(sim.env.world.costs.spin_ns).max(1))))
    }

    fn pace(&mut self, sim: &Sim, period_ns: u64) -> Next {
        let now_ns = sim.env.now_ns;
        if now_ns < self.next_ns {
            self.stage = Stage::Paced;
            self.slept = true;
            return Next::Sleep(Some(self.next_ns));
        }
        self.next_ns += period_ns;
        self.begun_ns = now_ns;
        self.send(sim)
    }
}

impl Program for Peer {
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        if let Some(mut busier) = self.busier.take() {
            let ready = self.is_ready(sim);
            if let Some(next) = busier.step(sim, me, ready) {
                self.busier = Some(busier);
                return next;
            }
            if self.stage == Stage::Called {
                return self.after_polling(sim);
            }
        }
        match self.stage {
            Stage::Begin => self.begin(sim),
            Stage::Look => self.look(sim),
            Stage::Called => {
                if self.is_ready(sim) && self.spec.receive == Receive::Block {
                    return self.take(sim);
                }
                let nonblocking = self.spec.receive == Receive::Call;
                match self.busy(sim, nonblocking) {
                    Some(next) => next,
                    None => self.after_polling(sim),
                }
            }
            Stage::Falling => {
                if self.is_ready(sim) {
                    return self.take(sim);
                }
                sim.ends.sockets[self.socket()].waiter = Some(me);
                self.stage = Stage::Slept;
                Next::Sleep(None)
            }
            Stage::Slept => self.take(sim),
            Stage::Taken => {
                let Some(begun_ns) = sim.ends.sockets[self.socket()].ready.pop_front() else {
                    return self.look(sim);
                };
                self.begun_ns = begun_ns;
                match self.spec.kind {
                    PeerKind::Responder => {
                        sim.env.tally.counts.served += 1;
                        self.send(sim)
                    }
                    PeerKind::Requester => {
                        sim.env.tally.answered(sim.env.now_ns - begun_ns);
                        self.begun_ns = sim.env.now_ns;
                        self.send(sim)
                    }
                    PeerKind::Taker { delay_ns } => {
                        sim.env.tally.answered(sim.env.now_ns - begun_ns);
                        self.delay(sim, sim.env.now_ns + delay_ns)
                    }
                    PeerKind::Pacer { .. } | PeerKind::Poller => self.look(sim),
                }
            }
            Stage::Sent => {
                sim.env.tally.counts.issued += u64::from(self.spec.kind != PeerKind::Responder);
                let cpu = CpuId::new(self.spec.cpu);
                sim.ends.send(&mut sim.env, &mut sim.cpus, &mut sim.nic, self.socket(), self.begun_ns, cpu);
                // The frame is visible to any poller, and this thread is about to poll.
                if self.transmit(sim) == Transmit::BusyPoll { self.kick(sim) } else { self.sent(sim) }
            }
            Stage::Kick => {
                self.stage = Stage::Kicked;
                match self.busy(sim, true) {
                    Some(next) => next,
                    None => self.kicked(sim),
                }
            }
            Stage::Kicked => self.kicked(sim),
            Stage::Delay(until_ns) => self.delay(sim, until_ns),
            Stage::Paced => match self.spec.kind {
                PeerKind::Pacer { period_ns } => self.pace(sim, period_ns),
                _ => self.look(sim),
            },
        }
    }

    fn abandon(self: Box<Self>) {
        if let Some(busier) = self.busier {
            busier.abandon();
        }
    }
}
