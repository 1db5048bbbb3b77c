//! A receiver without epoll: it calls `recv`, and while there is nothing to read the socket busy polls
//! (`sk_busy_loop`).
//!
//! The core's `SocketBusy` decides whether it polls. What the socket receives is in the ready list of a context in
//! which nobody waits.

use lull_core::SocketBusy;

use crate::engine::busy::Busier;
use crate::engine::epoll::Item;
use crate::engine::id::{ContextId, CpuId, QueueId, ThreadId};
use crate::engine::recorder::Whom;
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};
use crate::engine::transition::Transition;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Call,
    Polled,
    Falling,
    Slept,
    Serve(Item),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct SocketReader {
    context: ContextId,
    queue: QueueId,
    cpu: CpuId,
    socket: SocketBusy,
    nonblocking: bool,
    stage: Stage,
    busier: Option<Busier>,
}

impl SocketReader {
    pub(crate) fn new(
        context: ContextId,
        queue: QueueId,
        cpu: CpuId,
        socket: SocketBusy,
        nonblocking: bool,
    ) -> SocketReader {
        SocketReader { context, queue, cpu, socket, nonblocking, stage: Stage::Call, busier: None }
    }

    fn take(&mut self, sim: &mut Sim) -> Option<Next> {
        let item = sim.contexts[self.context].ready.pop_front()?;
        self.stage = Stage::Serve(item);
        let stall_ns = sim.env.faults.stall_ns();
        let Item::Connection(conn) = item else { return Some(Next::Run(Segment::mixed(0, stall_ns))) };
        let mut segment = sim.clients.request_cost(&sim.env, &mut sim.cpus, conn, self.cpu);
        segment.cost_ns += stall_ns;
        Some(Next::Run(segment))
    }

    fn call(&mut self, sim: &mut Sim) -> Next {
        if let Some(next) = self.take(sim) {
            return next;
        }
        let napi_id = sim.nic.queues[self.queue].napi.id();
        if let Some(plan) = self.socket.plan(napi_id, self.nonblocking) {
            let spins = plan.end.spins();
            let transition = if spins { Transition::SocketSpin } else { Transition::SocketOneRound };
            sim.env.note(self.cpu, Whom::Context(self.context), transition);
            if let Some((busier, next)) = Busier::begin(sim, plan, self.cpu) {
                self.busier = Some(busier);
                return next;
            }
        }
        self.polled(sim)
    }

    fn polled(&mut self, sim: &mut Sim) -> Next {
        if let Some(next) = self.take(sim) {
            return next;
        }
        if self.nonblocking {
            self.stage = Stage::Call;
            return Next::Run(Segment::mixed(0, u64::from(sim.env.faults.spec.between_calls_ns)));
        }
        self.stage = Stage::Falling;
        Next::Run(Segment::sys(sim.env.world.falling_ns()))
    }
}

impl Program for SocketReader {
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        if let Some(mut busier) = self.busier.take() {
            let ready = !sim.contexts[self.context].ready.is_empty();
            if let Some(next) = busier.step(sim, me, ready) {
                self.busier = Some(busier);
                return next;
            }
            self.stage = Stage::Polled;
        }
        match self.stage {
            Stage::Call => self.call(sim),
            Stage::Polled => self.polled(sim),
            Stage::Falling => {
                if let Some(next) = self.take(sim) {
                    return next;
                }
                sim.contexts[self.context].waiters.push(me);
                self.stage = Stage::Slept;
                Next::Sleep(None)
            }
            Stage::Slept => self.call(sim),
            Stage::Serve(item) => {
                if let Item::Connection(conn) = item {
                    sim.answers(conn, self.cpu);
                }
                self.stage = Stage::Call;
                self.call(sim)
            }
        }
    }

    fn abandon(self: Box<Self>) {
        if let Some(busier) = self.busier {
            busier.abandon();
        }
    }
}
