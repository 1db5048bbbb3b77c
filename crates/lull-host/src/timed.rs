//! Which instances may have a deadline on a CPU, and when the earliest of those deadlines is.
//!
//! A CPU's list has the instances whose interrupt comes there, from their making to their removal, and those of other
//! CPUs that were polled there, from the first timer that such a poll started. Whoever starts a timer lists the
//! instance before he notes the deadline, and whoever looks deadlines up forgets the noted ones before he reads the
//! list. So the latter sees the instance on the list, or leaves the note alone.

use std::sync::Arc;

use crate::deadlines::{Deadlines, NEVER};
use crate::sync::{Mutex, relock};
use crate::table::Removable;

/// What has deadlines on CPUs.
pub(crate) trait Timed: Removable {
    /// Keeps it for longer than the call that looked it up; `None` if nobody else has it any more.
    fn to_keep(&self) -> Option<Arc<Self>>;

    /// The CPU of its interrupt.
    fn cpu(&self) -> u16;

    /// Its earliest deadline on `cpu`.
    fn deadline_on(&self, cpu: u16) -> u64;
}

/// A list that changes as a whole.
pub(crate) type Instances<T> = Arc<[Arc<T>]>;

/// The list of one CPU.
pub(crate) struct Listed<T> {
    cpu: u16,
    instances: Mutex<Instances<T>>,
}

impl<T: Timed> Listed<T> {
    pub(crate) fn new(cpu: u16) -> Listed<T> {
        Listed { cpu, instances: Mutex::new(Arc::from([])) }
    }

    /// Puts an instance on the list, unless it is there or is being removed.
    pub(crate) fn put(&self, instance: &Arc<T>) {
        let mut listed = relock(&self.instances);
        // This is looked at under the lock, which `take` takes after a removal was announced.
        if !instance.is_removed() && !listed.iter().any(|other| Arc::ptr_eq(other, instance)) {
            *listed = listed.iter().chain([instance]).cloned().collect();
        }
    }

    /// Takes an instance off the list. Its removal was announced.
    pub(crate) fn take(&self, instance: &Arc<T>) {
        let mut listed = relock(&self.instances);
        if listed.iter().any(|other| Arc::ptr_eq(other, instance)) {
            *listed = listed.iter().filter(|other| !Arc::ptr_eq(other, instance)).cloned().collect();
        }
    }

    /// The list as it is now.
    pub(crate) fn all(&self) -> Instances<T> {
        relock(&self.instances).clone()
    }

    /// The earliest deadline of the CPU, looked up.
    pub(crate) fn earliest_ns(&self, deadlines: &Deadlines) -> u64 {
        deadlines.look_up(|| {
            let listed = relock(&self.instances);
            listed.iter().map(|instance| instance.deadline_on(self.cpu)).min().unwrap_or(NEVER)
        })
    }

    /// A timer of `instance` that falls due on this CPU was started.
    #[inline]
    pub(crate) fn timer_started(&self, instance: &T, deadline_ns: u64, deadlines: &Deadlines) {
        // Those whose interrupt comes here are listed from their making on.
        if instance.cpu() != self.cpu
            && let Some(instance) = instance.to_keep()
        {
            self.put(&instance);
        }
        deadlines.note(deadline_ns);
    }
}
