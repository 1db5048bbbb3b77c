//! ksoftirqd runs what softirq has left, as a fair-scheduled thread.

use crate::engine::id::{CpuId, ThreadId};
use crate::engine::sim::{Program, Sim};
use crate::engine::thread::Next;

#[derive(Debug)]
pub(crate) struct Ksoftirqd {
    pub(crate) cpu: CpuId,
}

impl Program for Ksoftirqd {
    fn step(&mut self, sim: &mut Sim, _me: ThreadId) -> Next {
        if sim.cpus[self.cpu].softnet.is_raised() { Next::Softirqs } else { Next::Sleep(None) }
    }
}
