//! Threads and the programs that they run.

use crate::engine::id::{CpuId, ThreadId};
use crate::engine::sim::{Program, Sim};

impl Sim {
    /// Adds a thread for a program, which sleeps.
    pub(crate) fn spawn(&mut self, cpu: CpuId, program: Box<dyn Program>) -> ThreadId {
        self.programs.push(Some(program));
        self.cpus.spawn(&mut self.env, cpu)
    }

    /// Adds a thread that runs from now on; its CPU notices it when it is dispatched next.
    pub(crate) fn start(&mut self, cpu: CpuId, program: Box<dyn Program>) -> ThreadId {
        let thread = self.spawn(cpu, program);
        self.cpus.start(thread);
        thread
    }

    /// Asks the program what comes next.
    pub(super) fn thread_step(&mut self, thread: ThreadId) {
        let cpu = self.cpus.threads[thread].cpu;
        // Bottom halves are enabled again at the end of a segment, so what was left to ksoftirqd may run here.
        self.cpus[cpu].softirq_handed_over = false;
        let Some(mut program) = self.programs[thread].take() else { return };
        let next = program.step(self, thread);
        self.programs[thread] = Some(program);
        self.cpus.goes_on(&mut self.env, thread, next);
    }
}
