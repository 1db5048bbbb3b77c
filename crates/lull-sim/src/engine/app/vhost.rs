//! The threads of a hypervisor: vhost, which copies frames to the guest, and the thread that is the guest's CPU.

use crate::engine::id::ThreadId;
use crate::engine::relay::Waits;
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};

/// This is longer than any run: the guest's thread goes on until something stops it.
const WHOLE_NS: u64 = 1_000_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Look,
    Copied,
    Signalled,
    Falling,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Vhost {
    stage: Stage,
}

impl Vhost {
    pub(crate) fn new() -> Vhost {
        Vhost { stage: Stage::Look }
    }
}

impl Program for Vhost {
    fn step(&mut self, sim: &mut Sim, _me: ThreadId) -> Next {
        let signal_ns = sim.relay.as_ref().and_then(|relay| relay.signal_ns(&sim.nic));
        if let (Stage::Copied, Some(signal_ns)) = (self.stage, signal_ns) {
            self.stage = Stage::Signalled;
            return Next::Run(Segment::mixed(signal_ns, 0));
        }
        if matches!(self.stage, Stage::Copied | Stage::Signalled)
            && let Some(relay) = &mut sim.relay
        {
            relay.copied(&mut sim.env, &mut sim.cpus, &mut sim.nic);
        }
        let next = match &sim.relay {
            Some(relay) => relay.next_ns(&sim.env, &sim.nic, sim.flood.as_ref()),
            None => Err(Waits::Frames),
        };
        match (next, self.stage) {
            (Ok(cost_ns), _) => {
                self.stage = Stage::Copied;
                // The cost varies from frame to frame; otherwise vhost and guest would fall into step.
                let cost_ns = sim.clients.service.uniform_ns(0.5 * cost_ns as f64, 1.5 * cost_ns as f64);
                Next::Run(Segment::mixed(cost_ns, 0))
            }
            (Err(waits), Stage::Falling) => {
                if let Some(relay) = &mut sim.relay {
                    relay.waits = waits;
                }
                self.stage = Stage::Look;
                Next::Sleep(None)
            }
            (Err(Waits::No | Waits::Frames | Waits::Room), _) => {
                self.stage = Stage::Falling;
                Next::Run(Segment::sys(u64::from(sim.env.world.costs.recv_sleep_ns)))
            }
        }
    }
}

/// The thread that is the guest's CPU.
#[derive(Debug)]
pub(crate) struct VcpuThread;

impl Program for VcpuThread {
    fn step(&mut self, sim: &mut Sim, _me: ThreadId) -> Next {
        if sim.cpus.guest_is_idle() { Next::Sleep(None) } else { Next::Run(Segment::mixed(0, WHOLE_NS)) }
    }
}
