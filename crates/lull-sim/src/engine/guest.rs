//! A guest and its hypervisor, where a world has them: the way of frames to it, and its CPU.

use crate::engine::id::CpuId;
use crate::engine::relay::Relay;
use crate::engine::vcpu::Vcpu;

/// See the [module](self). A world without a guest has neither.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    pub(crate) relay: Option<Relay>,
    pub(crate) vcpu: Option<Vcpu>,
}

impl Guest {
    /// What leaving the guest and coming back costs; 0 without one.
    pub(crate) fn vm_exit_ns(&self) -> u64 {
        self.vcpu.as_ref().map_or(0, |vcpu| u64::from(vcpu.spec.exit_ns))
    }

    /// Whether this is the guest's CPU, and does not execute.
    #[inline]
    pub(crate) fn is_frozen(&self, cpu: CpuId) -> bool {
        self.vcpu.as_ref().is_some_and(|vcpu| vcpu.guest() == cpu && vcpu.is_frozen())
    }

    /// Whether this is the guest's CPU.
    #[inline]
    pub(crate) fn is_cpu(&self, cpu: CpuId) -> bool {
        self.vcpu.as_ref().is_some_and(|vcpu| vcpu.guest() == cpu)
    }
}
