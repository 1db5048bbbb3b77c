//! A guest's CPU that is a thread of a hypervisor's CPU.
//!
//! The guest's CPU is a CPU like any other, with its interrupts, softirq and scheduler, but it executes only while its
//! thread does on the hypervisor's CPU. Anything that interrupts that thread (an interrupt, softirq, ksoftirqd) stops
//! the guest where it is, and costs an exit; so does an interrupt for the guest. A guest that is idle gives its thread
//! up (HLT), and an interrupt for it wakes the thread.

use crate::engine::id::{CpuId, ThreadId};
use crate::world::VcpuSpec;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) spec: VcpuSpec,
    /// Its thread on the hypervisor's CPU.
    pub(crate) thread: ThreadId,
    pub(super) frozen: bool,
    /// What is left of the guest's segment while it is frozen.
    pub(super) rest_ns: u64,
}

impl Vcpu {
    pub(crate) fn new(spec: &VcpuSpec, thread: ThreadId) -> Vcpu {
        Vcpu { spec: spec.clone(), thread, frozen: true, rest_ns: 0 }
    }

    /// The guest's CPU.
    pub(super) fn guest(&self) -> CpuId {
        CpuId::new(self.spec.guest_cpu)
    }

    /// Whether it does not execute.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Returns the hypervisor's CPU on which it runs.
    pub(super) fn host(&self) -> CpuId {
        CpuId::new(self.spec.host_cpu)
    }
}
