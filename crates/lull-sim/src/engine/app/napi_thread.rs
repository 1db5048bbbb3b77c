//! A NAPI thread, plain or busy-polling, which executes the core's step machine.

use lull_core::{NapiThread, ThreadStep};

use crate::engine::id::{CpuId, QueueId, ThreadId};
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::{Next, Segment};

/// The thread of one queue's NAPI.
#[derive(Debug)]
pub(crate) struct NapiThreadProgram {
    queue: QueueId,
    cpu: CpuId,
    napi_thread: NapiThread,
    polling: bool,
    /// How many packets it took since it last let others run.
    packets: u32,
}

impl NapiThreadProgram {
    pub(crate) fn new(queue: QueueId, cpu: CpuId) -> NapiThreadProgram {
        NapiThreadProgram { queue, cpu, napi_thread: NapiThread::new(), polling: false, packets: 0 }
    }
}

impl Program for NapiThreadProgram {
    fn step(&mut self, sim: &mut Sim, _me: ThreadId) -> Next {
        let (queue, cpu) = (self.queue, self.cpu);
        if self.polling {
            if let Some(cost_ns) = sim.poll_goes_on(queue, cpu) {
                return Next::Run(Segment::bottom_halves_off(cost_ns));
            }
            self.polling = false;
            let q = &sim.nic.queues[queue];
            let work = q.poll.work;
            let gro_held = q.spec.gro_holds && work > 0;
            sim.env.tally.transitions += 1;
            let cx = sim.env.cx(cpu);
            if let Some(completion) = self.napi_thread.polled(&q.napi, work, gro_held, &cx, |_| ()) {
                sim.nic.completion(&mut sim.env, &mut sim.cpus, queue, completion, cpu);
            }
            // Between rounds bottom halves are enabled and others may run.
            self.packets += work;
            let preemptible = self.packets >= sim.nic.queues[queue].spec.thread_packets;
            if preemptible {
                self.packets = 0;
            }
            let between = Segment { preemptible, ..Segment::sys(u64::from(sim.env.world.costs.busy_round_ns)) };
            return Next::Run(between);
        }
        let napi = &sim.nic.queues[queue].napi;
        match self.napi_thread.next(napi, &sim.env.cx(cpu)) {
            ThreadStep::Sleep => Next::Sleep(None),
            ThreadStep::Poll { budget } => {
                sim.env.tally.transitions += 1;
                self.polling = true;
                Next::Run(Segment::bottom_halves_off(sim.poll_begins(queue, budget, cpu, false)))
            }
        }
    }

    fn abandon(self: Box<Self>) {
        self.napi_thread.abandon();
    }
}
