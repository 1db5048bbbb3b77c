//! A guest's CPU among the others: what stops it, what lets it run, and what wakes it.

use crate::engine::cpu::Level;
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::CpuId;
use crate::engine::vcpu::Vcpu;

impl Cpus {
    /// Returns what leaving the guest and coming back costs; 0 without a guest.
    pub(crate) fn vm_exit_ns(&self) -> u64 {
        self.vcpu.as_ref().map_or(0, |vcpu| u64::from(vcpu.spec.exit_ns))
    }

    /// Whether this is the guest's CPU, and it does not execute.
    #[inline]
    pub(super) fn is_guest_frozen(&self, cpu: CpuId) -> bool {
        self.vcpu.as_ref().is_some_and(|vcpu| vcpu.guest() == cpu && vcpu.is_frozen())
    }

    /// Whether this is the guest's CPU.
    #[inline]
    pub(super) fn is_guest(&self, cpu: CpuId) -> bool {
        self.vcpu.as_ref().is_some_and(|vcpu| vcpu.guest() == cpu)
    }

    /// Whether the thread that runs on the hypervisor's CPU is the guest's.
    fn runs_guest(&self, cpu: CpuId) -> bool {
        let current = self.cpus[cpu].current;
        self.vcpu.as_ref().is_some_and(|vcpu| vcpu.host() == cpu && current == Some(vcpu.thread))
    }

    /// The hypervisor's CPU stops executing its thread.
    #[inline]
    pub(crate) fn host_stops(&mut self, env: &mut Env, cpu: CpuId) {
        if self.vcpu.is_none() || !self.runs_guest(cpu) {
            return;
        }
        let Some(guest) = self.vcpu.as_ref().filter(|vcpu| !vcpu.frozen).map(Vcpu::guest) else {
            return;
        };
        self.account(env, guest);
        let slot = env.slots.cpu(guest);
        let rest_ns = env.agenda.slot_ns(slot).map_or(0, |at_ns| at_ns - env.now_ns);
        env.agenda.clear(slot);
        if let Some(vcpu) = &mut self.vcpu {
            vcpu.frozen = true;
            vcpu.rest_ns = rest_ns;
        }
        self.cpus[cpu].debt_ns += self.vm_exit_ns();
    }

    /// The hypervisor's CPU executes a thread from now on.
    #[inline]
    pub(crate) fn host_runs(&mut self, env: &mut Env, cpu: CpuId) {
        if self.vcpu.is_none() || !self.runs_guest(cpu) {
            return;
        }
        let Some(vcpu) = &mut self.vcpu else { return };
        vcpu.frozen = false;
        let (guest, rest_ns) = (vcpu.guest(), vcpu.rest_ns);
        self.restart_clock(env, guest);
        if self.cpus[guest].level == Level::Idle {
            self.dispatch(env, guest);
            return;
        }
        env.agenda.set(env.slots.cpu(guest), env.now_ns + rest_ns);
        if self.cpus[guest].level != Level::Hard && !self.cpus[guest].pending.is_empty() {
            self.pause(env, guest);
            self.dispatch(env, guest);
        }
    }

    /// The guest's CPU has nothing to do: its thread gives up the hypervisor's CPU as soon as it may.
    pub(crate) fn guest_halts(&mut self, env: &mut Env, cpu: CpuId) {
        if let Some(vcpu) = self.vcpu.as_ref().filter(|vcpu| vcpu.guest() == cpu) {
            let host = vcpu.host();
            env.agenda.set(env.slots.cpu(host), env.now_ns);
        }
    }

    /// Whether the guest's CPU could do nothing now.
    pub(crate) fn guest_is_idle(&self) -> bool {
        let Some(vcpu) = &self.vcpu else { return true };
        let cpu = &self.cpus[vcpu.guest()];
        cpu.level == Level::Idle && cpu.pending.is_empty() && cpu.runnable.is_empty()
    }

    /// An interrupt is pending for a guest that does not execute: its thread is woken if it sleeps.
    pub(crate) fn guest_interrupted(&mut self, env: &mut Env) {
        if let Some(vcpu) = &self.vcpu {
            let (thread, by) = (vcpu.thread, CpuId::new(vcpu.spec.interrupted_by));
            self.wake(env, thread, by);
        }
    }
}
