//! The thread in which an operator takes members out of groups: it makes the last poll of members that no poller was
//! serving.

use lull_core::{BusyStop, BusyStopped};

use crate::engine::id::{CpuId, QueueId, ThreadId};
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct GroupLeaver {
    cpu: CpuId,
    polling: Option<(QueueId, BusyStop)>,
}

impl GroupLeaver {
    pub(crate) fn new(cpu: CpuId) -> GroupLeaver {
        GroupLeaver { cpu, polling: None }
    }
}

impl Program for GroupLeaver {
    fn step(&mut self, sim: &mut Sim, _me: ThreadId) -> Next {
        if let Some((queue, stop)) = self.polling.take() {
            if let Some(cost_ns) = sim.poll_goes_on(queue, self.cpu) {
                self.polling = Some((queue, stop));
                return Next::Run(Segment::bottom_halves_off(cost_ns));
            }
            sim.last_poll_of_group(queue, stop, self.cpu);
        }
        let Some((queue, stop)) = sim.nic.groups.leaving.pop() else { return Next::Sleep(None) };
        let cost_ns = sim.poll_begins(queue, stop.budget(), self.cpu, false);
        self.polling = Some((queue, stop));
        Next::Run(Segment::bottom_halves_off(cost_ns))
    }

    fn abandon(self: Box<Self>) {
        // Dropping a stop would check that its owner polls again; but the run is over, and nobody does.
        std::mem::forget(self.polling);
    }
}

impl Sim {
    /// Does what a member's last poll decides, as after a busy loop.
    pub(crate) fn last_poll_of_group(&mut self, queue: QueueId, stop: BusyStop, cpu: CpuId) {
        let q = &self.nic.queues[queue];
        self.env.tally.transitions += 1;
        let work = q.reported(cpu);
        let gro_held = q.spec.gro_holds && work > 0;
        match stop.polled(&q.napi, work, gro_held, &self.env.cx(cpu), |_| ()) {
            BusyStopped::Completed(completion) => {
                self.nic.completion(&mut self.env, &mut self.cpus, queue, completion, cpu);
            }
            BusyStopped::ToSoftirq(owner) => self.nic.route(&mut self.env, &mut self.cpus, owner, cpu),
        }
    }
}
