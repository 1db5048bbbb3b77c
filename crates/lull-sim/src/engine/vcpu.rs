//! A guest's CPU that is a thread of a hypervisor's CPU.
//!
//! The guest's CPU is a CPU like any other, with its interrupts, softirq and scheduler; it executes only while its thread does on
//! the hypervisor's CPU. Whatever breaks into that thread (an interrupt, softirq, ksoftirqd) stops the guest where it is, and
//! costs an exit; an interrupt for the guest costs one too. A guest that is idle gives its thread up (HLT), and whoever interrupts
//! it wakes the thread.

use crate::engine::cpu::{Irq, Level};
use crate::engine::id::{CpuId, ThreadId};
use crate::engine::sim::Sim;
use crate::world::VcpuSpec;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) spec: VcpuSpec,
    /// Its thread on the hypervisor's CPU.
    pub(crate) thread: ThreadId,
    frozen: bool,
    /// What is left of the guest's segment while it is frozen.
    rest_ns: u64,
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

    /// The hypervisor's CPU that it runs on.
    fn host(&self) -> CpuId {
        CpuId::new(self.spec.host_cpu)
    }
}

impl Sim {
    /// The thread that runs on the hypervisor's CPU is the guest's.
    fn runs_guest(&self, cpu: CpuId) -> bool {
        let current = self.cpus[cpu].current;
        self.guest.vcpu.as_ref().is_some_and(|vcpu| vcpu.host() == cpu && current == Some(vcpu.thread))
    }

    /// The hypervisor's CPU stops executing its thread.
    #[inline]
    pub(crate) fn host_stops(&mut self, cpu: CpuId) {
        if self.guest.vcpu.is_none() || !self.runs_guest(cpu) {
            return;
        }
        let Some(guest) = self.guest.vcpu.as_ref().filter(|vcpu| !vcpu.frozen).map(Vcpu::guest) else {
            return;
        };
        self.account(guest);
        let slot = self.slots.cpu(guest);
        let rest_ns = self.agenda.slot_ns(slot).saturating_sub(self.now_ns);
        self.agenda.set(slot, crate::engine::agenda::NEVER);
        if let Some(vcpu) = &mut self.guest.vcpu {
            vcpu.frozen = true;
            vcpu.rest_ns = rest_ns;
        }
        self.cpus[cpu].debt_ns += self.guest.vm_exit_ns();
    }

    /// The hypervisor's CPU executes a thread from now on.
    #[inline]
    pub(crate) fn host_runs(&mut self, cpu: CpuId) {
        if self.guest.vcpu.is_none() || !self.runs_guest(cpu) {
            return;
        }
        let Some(vcpu) = &mut self.guest.vcpu else { return };
        vcpu.frozen = false;
        let (guest, rest_ns) = (vcpu.guest(), vcpu.rest_ns);
        self.restart_clock(guest);
        if self.cpus[guest].level == Level::Idle {
            self.dispatch(guest);
            return;
        }
        self.agenda.set(self.slots.cpu(guest), self.now_ns + rest_ns);
        if self.cpus[guest].level != Level::Hard && !self.cpus[guest].pending.is_empty() {
            self.pause(guest);
            self.dispatch(guest);
        }
    }

    /// The guest's CPU has nothing to do: its thread gives the hypervisor's CPU up as soon as it may.
    pub(crate) fn guest_halts(&mut self, cpu: CpuId) {
        if let Some(vcpu) = self.guest.vcpu.as_ref().filter(|vcpu| vcpu.guest() == cpu) {
            let host = vcpu.host();
            self.agenda.set(self.slots.cpu(host), self.now_ns);
        }
    }

    /// Whether the guest's CPU could do nothing now.
    pub(crate) fn guest_is_idle(&self) -> bool {
        let Some(vcpu) = &self.guest.vcpu else { return true };
        let cpu = &self.cpus[vcpu.guest()];
        cpu.level == Level::Idle && cpu.pending.is_empty() && cpu.runnable.is_empty()
    }

    /// An interrupt waits for a guest that does not execute: its thread is woken if it sleeps.
    pub(crate) fn guest_interrupted(&mut self, _irq: Irq) {
        if let Some(vcpu) = &self.guest.vcpu {
            let (thread, by) = (vcpu.thread, CpuId::new(vcpu.spec.interrupted_by));
            self.wake(thread, by);
        }
    }
}
