//! Which instances may have a deadline on a CPU, and when the earliest of those deadlines is.
//!
//! On a CPU's list are the instances whose interrupt comes there, from their making to their removal, and those of other
//! CPUs that were polled there, from the first timer that this started. Who starts a timer lists the instance before it
//! notes the deadline, and who looks deadlines up forgets the noted ones before it reads the list. So the latter sees the
//! instance on the list, or leaves the note alone.

use std::sync::Arc;

use crate::cpu::Cpu;
use crate::deadlines::NEVER;
use crate::delivery::{Delivery, Instance, Instances};
use crate::sync::relock;

impl Delivery {
    /// Puts an instance on the list of a CPU.
    pub(crate) fn list(&self, cpu: &Cpu, instance: &Arc<Instance>) {
        let mut listed = relock(&self.timed[usize::from(cpu.index)]);
        // Looked at under the lock, which `unlist` takes after a removal was announced.
        if !instance.is_removed() && !listed.iter().any(|other| Arc::ptr_eq(other, instance)) {
            *listed = listed.iter().chain([instance]).cloned().collect();
        }
    }

    /// Takes an instance off every list. Its removal was announced.
    pub(crate) fn unlist(&self, instance: &Arc<Instance>) {
        for timed in &self.timed {
            let mut listed = relock(timed);
            if listed.iter().any(|other| Arc::ptr_eq(other, instance)) {
                *listed = listed.iter().filter(|other| !Arc::ptr_eq(other, instance)).cloned().collect();
            }
        }
    }

    /// The list of a CPU, as it is now.
    pub(crate) fn listed(&self, cpu: &Cpu) -> Instances {
        relock(&self.timed[usize::from(cpu.index)]).clone()
    }

    /// The earliest deadline of a CPU, looked up.
    pub(crate) fn exact_deadline_ns(&self, cpu: &Cpu) -> u64 {
        cpu.deadlines.look_up(|| {
            let listed = relock(&self.timed[usize::from(cpu.index)]);
            listed.iter().map(|instance| instance.deadline_on(cpu.index)).min().unwrap_or(NEVER)
        })
    }

    /// A timer of `instance` that falls due on `cpu` was started.
    #[inline]
    pub(crate) fn note_timer(&self, cpu: &Cpu, instance: &Instance, deadline_ns: u64) {
        if instance.cpu() != cpu.index
            && let Some(instance) = instance.me.upgrade()
        {
            self.list(cpu, &instance);
        }
        cpu.note_deadline(deadline_ns);
    }
}
