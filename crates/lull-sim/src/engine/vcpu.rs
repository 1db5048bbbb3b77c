//! A guest's CPU that is a thread of a hypervisor's CPU.
//!
//! The guest's CPU is a CPU like any other, with its interrupts, softirq and scheduler; it executes only while its thread does on
//! the hypervisor's CPU. Whatever breaks into that thread (an interrupt, softirq, ksoftirqd) stops the guest where it is, and
//! costs an exit; an interrupt for the guest costs one too. A guest that is idle gives its thread up (HLT), and whoever interrupts
//! it wakes the thread.

use crate::engine::cpu::{Irq, Level};
use crate::engine::sim::Sim;
use crate::engine::thread::NO_THREAD;
use crate::world::VcpuSpec;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) spec: VcpuSpec,
    /// Its thread on the hypervisor's CPU.
    pub(crate) thread: u32,
    frozen: bool,
    /// What is left of the guest's segment while it is frozen.
    rest_ns: u64,
}

impl Vcpu {
    pub(crate) fn new(spec: &VcpuSpec, thread: u32) -> Vcpu {
        Vcpu { spec: spec.clone(), thread, frozen: true, rest_ns: 0 }
    }
}

impl Sim {
    /// What leaving the guest and coming back costs; 0 without one.
    pub(crate) fn vm_exit_ns(&self) -> u64 {
        self.vcpu.as_ref().map_or(0, |vcpu| u64::from(vcpu.spec.exit_ns))
    }

    /// Whether this is the guest's CPU, and does not execute.
    #[inline]
    pub(crate) fn is_frozen(&self, cpu: u16) -> bool {
        self.vcpu.as_ref().is_some_and(|vcpu| vcpu.spec.guest_cpu == cpu && vcpu.frozen)
    }

    /// Whether this is the guest's CPU.
    #[inline]
    pub(crate) fn is_guest(&self, cpu: u16) -> bool {
        self.vcpu.as_ref().is_some_and(|vcpu| vcpu.spec.guest_cpu == cpu)
    }

    /// The thread that runs on the hypervisor's CPU is the guest's.
    fn runs_guest(&self, cpu: u16) -> bool {
        let current = self.cpus[usize::from(cpu)].current;
        current != NO_THREAD
            && self.vcpu.as_ref().is_some_and(|vcpu| vcpu.spec.host_cpu == cpu && vcpu.thread == current)
    }

    /// The hypervisor's CPU stops executing its thread.
    #[inline]
    pub(crate) fn host_stops(&mut self, cpu: u16) {
        if self.vcpu.is_none() || !self.runs_guest(cpu) {
            return;
        }
        let Some(guest) = self.vcpu.as_ref().filter(|vcpu| !vcpu.frozen).map(|vcpu| vcpu.spec.guest_cpu) else {
            return;
        };
        self.account(guest);
        let slot = self.slots.cpu(guest);
        let rest_ns = self.agenda.slot_ns(slot).saturating_sub(self.now_ns);
        self.agenda.set(slot, crate::engine::agenda::NEVER);
        if let Some(vcpu) = &mut self.vcpu {
            vcpu.frozen = true;
            vcpu.rest_ns = rest_ns;
        }
        self.cpus[usize::from(cpu)].debt_ns += self.vm_exit_ns();
    }

    /// The hypervisor's CPU executes a thread from now on.
    #[inline]
    pub(crate) fn host_runs(&mut self, cpu: u16) {
        if self.vcpu.is_none() || !self.runs_guest(cpu) {
            return;
        }
        let Some(vcpu) = &mut self.vcpu else { return };
        vcpu.frozen = false;
        let (guest, rest_ns) = (vcpu.spec.guest_cpu, vcpu.rest_ns);
        let index = usize::from(guest);
        self.restart_clock(guest);
        if self.cpus[index].level == Level::Idle {
            self.dispatch(guest);
            return;
        }
        self.agenda.set(self.slots.cpu(guest), self.now_ns + rest_ns);
        if self.cpus[index].level != Level::Hard && !self.cpus[index].pending.is_empty() {
            self.pause(guest);
            self.dispatch(guest);
        }
    }

    /// The guest's CPU has nothing to do: its thread gives the hypervisor's CPU up as soon as it may.
    pub(crate) fn guest_halts(&mut self, cpu: u16) {
        if let Some(vcpu) = self.vcpu.as_ref().filter(|vcpu| vcpu.spec.guest_cpu == cpu) {
            let host = vcpu.spec.host_cpu;
            self.agenda.set(self.slots.cpu(host), self.now_ns);
        }
    }

    /// Whether the guest's CPU could do nothing now.
    pub(crate) fn guest_is_idle(&self) -> bool {
        let Some(vcpu) = &self.vcpu else { return true };
        let cpu = &self.cpus[usize::from(vcpu.spec.guest_cpu)];
        cpu.level == Level::Idle && cpu.pending.is_empty() && cpu.runnable.is_empty()
    }

    /// An interrupt waits for a guest that does not execute: its thread is woken if it sleeps.
    pub(crate) fn guest_interrupted(&mut self, _irq: Irq) {
        if let Some(vcpu) = &self.vcpu {
            let (thread, by) = (vcpu.thread, vcpu.spec.interrupted_by);
            self.wake(thread, by);
        }
    }
}
