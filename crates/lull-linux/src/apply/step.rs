//! Carries one step out, by telling the kernel what a NAPI and its thread become.

use crate::error::{Error, Result};
use crate::plan::Step;
use crate::sched;
use crate::session::Session;

impl Session {
    pub(super) fn carry_out(&mut self, step: &Step) -> Result<()> {
        let change = step.napi_change();
        if !change.is_empty() {
            self.netdev.set(step.napi_id, &change).map_err(|error| self.on_device(error, step))?;
        }
        // A thread that this step has ended needs nothing more.
        if step.to.threaded == lull_core::Threaded::Off {
            return Ok(());
        }
        let (cpus, policy) = (step.cpus_to_set(), step.policy_to_set());
        if cpus.is_none() && policy.is_none() {
            return Ok(());
        }
        let pid = self.thread_of(step)?;
        sched::set(pid, cpus, policy).map_err(|source| Error::Os {
            what: format!("schedule the thread {pid} of {} queue {}", self.device.name, step.key),
            remedy: sched::remedy(&source).to_owned(),
            source,
            said: None,
        })
    }

    fn thread_of(&mut self, step: &Step) -> Result<i32> {
        let missing = || Error::Unsupported {
            what: format!("schedule the thread of {} queue {}", self.device.name, step.key),
            reason: format!("NAPI {} shows no thread to this process", step.napi_id),
            remedy: "run lull in the initial pid namespace, or leave CPUs and policy out".to_owned(),
        };
        let snapshot = self.device.snapshot(&mut self.netdev, &self.roots)?;
        let napi = snapshot.napis.into_iter().find(|napi| napi.id == step.napi_id);
        let thread = napi.and_then(|napi| napi.thread).filter(|thread| thread.scheduling.is_some());
        thread.map(|thread| thread.pid).ok_or_else(missing)
    }

    fn on_device(&self, error: Error, step: &Step) -> Error {
        match error {
            Error::Os { what, remedy, source, said } => {
                Error::Os { what: format!("{what} ({} queue {})", self.device.name, step.key), remedy, source, said }
            }
            other => other,
        }
    }
}
