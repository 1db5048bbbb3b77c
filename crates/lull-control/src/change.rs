//! Settings of NAPIs and of their threads, put in force all or none.

use lull_core::{NapiSettings, Threaded};
use lull_host::{Host, NapiInfo};
use lull_linux::sched::{self, Scheduling, ThreadPolicy};

use crate::schema::Change;

/// What one NAPI had before it was first changed.
#[derive(Clone, Debug)]
pub(crate) struct Former {
    pub(crate) settings: NapiSettings,
    /// Where and how its thread ran, if that was changed.
    pub(crate) thread: Option<Scheduling>,
}

/// What one NAPI becomes.
pub(crate) struct Planned {
    pub(crate) info: NapiInfo,
    settings: NapiSettings,
    cpus: Option<Vec<usize>>,
    policy: Option<ThreadPolicy>,
}

/// What was in force on one NAPI before a change.
pub(crate) struct Before {
    settings: NapiSettings,
    thread: Option<(i32, Scheduling)>,
}

impl Planned {
    /// The NAPI after a change.
    ///
    /// # Errors
    /// What makes no sense on it, in words.
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

    /// The NAPI as it was.
    pub(crate) fn back(info: &NapiInfo, former: &Former) -> Planned {
        let thread = former.thread.as_ref();
        let (cpus, policy) = (thread.map(|it| it.cpus.clone()), thread.map(|it| it.policy));
        Planned { info: info.clone(), settings: former.settings, cpus, policy }
    }

    /// What was there before it, if it changed anything.
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
        // Looked up now: turning `threaded` on may have just started it.
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

/// Puts it all in force, or nothing; what was there before, in the same order.
///
/// # Errors
/// The first refusal; what was changed until then is given back.
pub(crate) fn apply(host: &Host, plan: &[Planned]) -> Result<Vec<Before>, String> {
    let mut done = Vec::new();
    for planned in plan {
        match planned.carry_out(host) {
            Ok(before) => done.push(before),
            Err((half, why)) => {
                // The step that failed may have gone half its way.
                done.push(half);
                plan.iter().zip(&done).for_each(|(planned, before)| give_back(host, &planned.info, before));
                return Err(why);
            }
        }
    }
    Ok(done)
}

fn give_back(host: &Host, info: &NapiInfo, before: &Before) {
    // This was in force a moment ago, so it is within every limit; only a NAPI that is gone has nothing to give it to.
    if let Some((thread, scheduling)) = &before.thread {
        let _ = sched::set(*thread, Some(&scheduling.cpus), Some(scheduling.policy));
    }
    let _ = host.set_napi(info.index, &before.settings);
}
