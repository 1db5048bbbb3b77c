//! A UDP sink (`netserver`, UDP_STREAM): it takes one datagram after the other out of its socket, and sleeps while
//! there is none.

use crate::engine::id::{FlowId, ThreadId};
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before a receive call.
    Look,
    /// A datagram was copied out.
    Taken,
    /// It is about to sleep in the call.
    Falling,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct UdpSink {
    flow: FlowId,
    stage: Stage,
}

impl UdpSink {
    pub(crate) fn new(flow: FlowId) -> UdpSink {
        UdpSink { flow, stage: Stage::Look }
    }

    fn is_ready(&self, sim: &Sim) -> bool {
        sim.flood.as_ref().is_some_and(|flood| flood.sockets[self.flow].ready.front().is_some())
    }
}

impl Program for UdpSink {
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        if self.stage == Stage::Taken
            && let Some(flood) = &mut sim.flood
        {
            flood.received(&mut sim.env, self.flow);
        }
        if self.is_ready(sim) {
            self.stage = Stage::Taken;
            let cost_ns = sim.flood.as_ref().map_or(0, |flood| flood.receive_cost_ns(&sim.env, self.flow));
            return Next::Run(Segment::mixed(u64::from(sim.env.world.costs.recv_call_ns) + cost_ns, 0));
        }
        if self.stage != Stage::Falling {
            self.stage = Stage::Falling;
            return Next::Run(Segment::sys(u64::from(sim.env.world.costs.recv_sleep_ns)));
        }
        if let Some(flood) = &mut sim.flood {
            flood.sockets[self.flow].waiter = Some(me);
        }
        self.stage = Stage::Look;
        Next::Sleep(None)
    }
}
