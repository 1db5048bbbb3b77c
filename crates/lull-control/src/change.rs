//! Changes of settings of NAPIs and of their threads. A change is put in force as a whole, or not at all.

use lull_core::{NapiSettings, Threaded};
use lull_host::{Host, NapiInfo};
use lull_linux::sched::{self, Scheduling, ThreadPolicy};
use lull_units::numbers_text;

use crate::schema::Change;

/// The settings of a NAPI before its first change.
#[derive(Clone, Debug)]
pub(crate) struct Former {
    pub(crate) settings: NapiSettings,
    /// Where and how its thread ran, if a change has touched that.
    pub(crate) thread: Option<Scheduling>,
}

/// The settings that a NAPI is to have.
pub(crate) struct Planned {
    pub(crate) info: NapiInfo,
    settings: NapiSettings,
    cpus: Option<Vec<usize>>,
    policy: Option<ThreadPolicy>,
}

/// The settings that were in force on a NAPI before a change.
pub(crate) struct Before {
    settings: NapiSettings,
    thread: Option<(i32, Scheduling)>,
}

impl Planned {
    /// The plan to change a NAPI.
    ///
    /// # Errors
    /// The change makes no sense on this NAPI; the text says why.
    pub(crate) fn change(info: &NapiInfo, change: &Change, online: &[usize]) -> Result<Planned, String> {
        let settings = change.of(info.settings);
        let (cpus, policy) = (change.thread_cpus.clone(), change.thread_policy);
        if (cpus.is_some() || policy.is_some()) && settings.threaded == Threaded::Off {
            return Err(format!(
                "thread-cpus or thread-policy was given, and NAPI {} of {} has no thread; give threaded=on as well",
                info.id, info.device
            ));
        }
        sched::check(cpus.as_deref(), policy, online).map_err(|error| error.to_string())?;
        Ok(Planned { info: info.clone(), settings, cpus, policy })
    }

    /// The plan to give a NAPI back what it had.
    pub(crate) fn back(info: &NapiInfo, former: &Former) -> Planned {
        let thread = former.thread.as_ref();
        let (cpus, policy) = (thread.map(|it| it.cpus.clone()), thread.map(|it| it.policy));
        Planned { info: info.clone(), settings: former.settings, cpus, policy }
    }

    /// What the plan has overwritten; `None` if it changed nothing.
    pub(crate) fn overwrote(&self, before: &Before) -> Option<Former> {
        let is_other = |it: &Scheduling| {
            self.cpus.as_ref().is_some_and(|cpus| *cpus != it.cpus)
                || self.policy.is_some_and(|policy| policy != it.policy)
        };
        let thread = before.thread.as_ref().map(|(_, scheduling)| scheduling).filter(|it| is_other(it)).cloned();
        (thread.is_some() || before.settings != self.settings).then_some(Former { settings: before.settings, thread })
    }

    fn carry_out(&self, host: &Host) -> Result<Before, (Before, String)> {
        let NapiInfo { index, id, device, .. } = &self.info;
        let mut before = Before { settings: self.info.settings, thread: None };
        if let Err(refused) = host.set_napi(*index, &self.settings) {
            return Err((before, format!("NAPI {id} of {device}: {refused}")));
        }
        if self.cpus.is_none() && self.policy.is_none() {
            return Ok(before);
        }
        // The thread is looked up now, as turning `threaded` on may have just started it.
        let Some(thread) = host.napis().iter().find(|info| info.index == *index).and_then(|info| info.thread) else {
            return Err((before, format!("NAPI {id} of {device} has no thread any more; try again")));
        };
        let scheduled = sched::scheduling(thread).and_then(|now| {
            before.thread = Some((thread, now));
            sched::set(thread, self.cpus.as_deref(), self.policy)
        });
        scheduled.map(|()| Before { settings: before.settings, thread: before.thread.clone() }).map_err(|error| {
            let why = format!(
                "NAPI {id} of {device}: cannot schedule its thread {thread}: {error}; {}, in the process that serves",
                sched::remedy(&error)
            );
            (before, why)
        })
    }
}

/// Puts the whole plan in force, or nothing of it. Returns what was in force before, in the order of the plan.
///
/// # Errors
/// The first refusal. What was changed until then is given back; what cannot be given back is named, with the remedy.
pub(crate) fn apply(host: &Host, plan: &[Planned]) -> Result<Vec<Before>, String> {
    let mut done = Vec::new();
    for planned in plan {
        match planned.carry_out(host) {
            Ok(before) => done.push(before),
            Err((half, why)) => {
                // The step that failed may have been carried out in part.
                done.push(half);
                let kept =
                    plan.iter().zip(&done).filter_map(|(planned, before)| give_back(host, &planned.info, before));
                return Err(kept.fold(why, |why, kept| format!("{why}; {kept}")));
            }
        }
    }
    Ok(done)
}

/// Gives a NAPI back what was in force before. If that is refused, the returned text says what the NAPI keeps.
fn give_back(host: &Host, info: &NapiInfo, before: &Before) -> Option<String> {
    let NapiInfo { index, id, device, .. } = info;
    let thread = before.thread.as_ref().and_then(|(thread, former)| {
        let refused = sched::set(*thread, Some(&former.cpus), Some(former.policy)).err()?;
        let (cpus, policy, remedy) = (numbers_text(&former.cpus), former.policy, sched::remedy(&refused));
        let words = format!(
            "thread {thread} of NAPI {id} of {device} does not have {policy} on CPUs {cpus} again, as it had before ({refused}): \
             {remedy}, and set that"
        );
        // A thread that has ended needs nothing back.
        (refused.raw_os_error() != Some(libc::ESRCH)).then_some(words)
    });
    let settings = host.set_napi(*index, &before.settings).err().and_then(|refused| {
        let words = format!(
            "NAPI {id} of {device} does not have its settings again ({refused}): `lull show {}` tells what it has, and `lull set` \
             changes it",
            std::process::id()
        );
        // Neither does a NAPI that is gone.
        host.napis().iter().any(|info| info.index == *index).then_some(words)
    });
    match (thread, settings) {
        (Some(thread), Some(settings)) => Some(format!("{thread}; {settings}")),
        (thread, settings) => thread.or(settings),
    }
}

#[cfg(test)]
mod tests {
    use lull_host::HostConfig;
    use lull_net::{Network, NetworkConfig};
    use lull_nic::mem::{self, MemConfig};

    use super::*;

    /// A former policy may be one that the kernel refuses by now, like a real-time policy for a process that has given
    /// its rights up.
    #[test]
    fn what_cannot_be_given_back_is_named_beside_what_was_refused_first() {
        let host = Host::new(HostConfig::default()).unwrap();
        let (ours, _peer) = mem::pair(MemConfig::default());
        let addresses = vec![("10.0.0.2".parse().unwrap(), 24)];
        let config = NetworkConfig { addresses, cpus: vec![0], ..NetworkConfig::default() };
        let _network = Network::new(&host, std::sync::Arc::new(ours), config).unwrap();
        let info = host.napis().remove(0);
        // The calling thread stands for the NAPI's thread here.
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let before = |policy| {
            let now = sched::scheduling(thread).unwrap();
            Before { settings: info.settings, thread: Some((thread, Scheduling { policy, ..now })) }
        };
        let kept = give_back(&host, &info, &before(ThreadPolicy::Unknown(77)));
        assert!(kept.is_some_and(|kept| kept.contains(&format!("thread {thread} of NAPI {}", info.id))));
        assert_eq!(give_back(&host, &info, &before(sched::scheduling(thread).unwrap().policy)), None);
        let settings = NapiSettings { defer_hard_irqs: u32::MAX, ..info.settings };
        let kept = give_back(&host, &info, &Before { settings, thread: None });
        assert!(kept.is_some_and(|kept| kept.contains("lull show")));
    }
}
