//! A program that sends datagrams through a transmit queue with a discipline: one after the other, or one whenever it
//! is due.
//!
//! A send call leaves its frame in the queue's intake. If nobody runs the queue, the call does, for its own frame and
//! for all that come meanwhile, and ends only then.

use lull_qdisc::Packet;

use crate::engine::id::{QueueId, ThreadId};
use crate::engine::rng::Stream;
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};

/// How far a send call, and a gap between two, differs from its mean at the most, as a share; so two senders do not
/// stay in step.
const VARIES: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Between two calls.
    Outside,
    /// In a call, on the way to the intake.
    Enters,
    /// In a call whose frame is in the intake.
    Entered,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct DatagramSender {
    queue: QueueId,
    flow: u64,
    bytes: u32,
    /// The mean time between two datagrams; `None` means as fast as possible.
    period_ns: Option<f64>,
    rng: Stream,
    stage: Stage,
    due_ns: u64,
    begun_ns: u64,
}

impl DatagramSender {
    pub(crate) fn new(
        queue: QueueId,
        (flow, bytes): (u64, u32),
        period_ns: Option<f64>,
        rng: Stream,
    ) -> DatagramSender {
        DatagramSender { queue, flow, bytes, period_ns, rng, stage: Stage::Outside, due_ns: 0, begun_ns: 0 }
    }

    fn varied_ns(&mut self, mean_ns: f64) -> u64 {
        self.rng.uniform_ns((1.0 - VARIES) * mean_ns, (1.0 + VARIES) * mean_ns)
    }

    /// A send call begins, unless none is due.
    fn call(&mut self, sim: &Sim) -> Next {
        let now_ns = sim.env.now_ns;
        self.stage = Stage::Outside;
        if let Some(period_ns) = self.period_ns {
            if self.due_ns > now_ns {
                return Next::Sleep(Some(self.due_ns));
            }
            // The time that a long call took is not made up for.
            self.due_ns = now_ns.max(self.due_ns + self.varied_ns(period_ns));
        }
        (self.stage, self.begun_ns) = (Stage::Enters, now_ns);
        let cost_ns = self.varied_ns(f64::from(sim.env.world.costs.enqueue_ns));
        Next::Run(Segment::sys(cost_ns))
    }
}

impl Program for DatagramSender {
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next {
        let cpu = sim.cpus.threads[me].cpu;
        match self.stage {
            Stage::Outside => return self.call(sim),
            Stage::Enters => {
                self.stage = Stage::Entered;
                let packet = Packet { bytes: self.bytes, flow: self.flow, ..Packet::new(None) };
                sim.frame_enters(self.queue, packet, cpu);
            }
            Stage::Entered => {}
        }
        // The next segment bears what the CPU owes for the batch, or for waking a poller.
        let owed_ns = sim.cpus[cpu].debt_ns;
        let runs_ns = sim.send_call_runs_ns(self.queue, self.flow, cpu);
        if runs_ns.is_some() || owed_ns > 0 {
            return Next::Run(Segment::sys(runs_ns.unwrap_or(0).saturating_sub(owed_ns)));
        }
        let took_ns = sim.env.now_ns - self.begun_ns;
        if let Some(transmit) = &mut sim.nic.queues[self.queue].transmit {
            transmit.note_call(self.flow, took_ns);
        }
        self.call(sim)
    }
}
