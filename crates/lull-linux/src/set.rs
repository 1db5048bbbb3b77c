//! Single settings of single NAPIs, in place of a mode on all of them. The rules are those of `apply`: everything that
//! can be refused is refused first, the former values are on disk before the first change, and `undo` gives them back.

use std::fmt;
use std::str::FromStr;

use lull_core::{NapiSettings, Threaded};

use crate::apply::{Applied, Session, check_threads, put_in_force};
use crate::device::{NapiState, Snapshot};
use crate::error::{Error, Result};
use crate::machine;
use crate::netdev::Policy;
use crate::plan::{Change, Step, check_policy, check_timeout, cpu_list, no_napi, threaded_name};
use crate::sched::{self, ThreadPolicy, duration_ns, shown_ns};

/// What is asked of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The NAPIs.
    pub which: Which,
    /// The settings, in the order in which they were given.
    pub settings: Vec<Setting>,
}

/// Which NAPIs of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Which {
    /// The NAPIs of these receive queues.
    pub queues: Vec<u32>,
    /// The NAPIs with these ids. If neither queues nor ids are named, these are all of the device.
    pub napi_ids: Vec<u32>,
}

/// One setting of a NAPI, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The empty polls for which the interrupt stays masked.
    DeferHardIrqs(u32),
    /// The nanoseconds between them.
    GroFlushTimeoutNs(u64),
    /// The nanoseconds for which an application may keep the interrupt masked.
    IrqSuspendTimeoutNs(u64),
    /// Who polls: softirq, a thread, or a thread that polls all the time.
    Threaded(Threaded),
    /// The CPUs on which the NAPI's thread may run.
    ThreadCpus(Vec<usize>),
    /// The policy and priority of the NAPI's thread.
    ThreadPolicy(ThreadPolicy),
}

/// The settings there are, with an example of each.
const EXAMPLES: [&str; 6] = [
    "defer-hard-irqs=100",
    "gro-flush-timeout=20us",
    "irq-suspend-timeout=20ms",
    "threaded=off|on|busy-poll",
    "thread-cpus=0,2-3",
    "thread-policy=fifo:50",
];

impl Setting {
    /// Its name, which is that in `napi-set` where it is one of those settings.
    pub fn key(&self) -> &'static str {
        match self {
            Setting::DeferHardIrqs(_) => "defer-hard-irqs",
            Setting::GroFlushTimeoutNs(_) => "gro-flush-timeout",
            Setting::IrqSuspendTimeoutNs(_) => "irq-suspend-timeout",
            Setting::Threaded(_) => "threaded",
            Setting::ThreadCpus(_) => "thread-cpus",
            Setting::ThreadPolicy(_) => "thread-policy",
        }
    }

    fn is_of_the_thread(&self) -> bool {
        matches!(self, Setting::ThreadCpus(_) | Setting::ThreadPolicy(_))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.key())?;
        match self {
            Setting::DeferHardIrqs(count) => count.fmt(f),
            Setting::GroFlushTimeoutNs(ns) | Setting::IrqSuspendTimeoutNs(ns) => f.write_str(&shown_ns(*ns)),
            Setting::Threaded(threaded) => f.write_str(threaded_name(*threaded)),
            Setting::ThreadCpus(cpus) => f.write_str(&cpu_list(cpus)),
            Setting::ThreadPolicy(policy) => policy.fmt(f),
        }
    }
}

impl FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Setting> {
        let unknown = || Error::Input {
            what: format!("'{text}' is no setting of a NAPI"),
            remedy: format!("write KEY=VALUE, as in {}", EXAMPLES.join(", ")),
        };
        let (key, value) = text.split_once('=').ok_or_else(unknown)?;
        let bad = || {
            let example = EXAMPLES.iter().find(|example| example.starts_with(key)).unwrap_or(&"");
            Error::Input { what: format!("'{value}' is no value of {key}"), remedy: format!("write it as {example}") }
        };
        match key {
            "defer-hard-irqs" => Ok(Setting::DeferHardIrqs(value.parse().map_err(|_| bad())?)),
            "gro-flush-timeout" => Ok(Setting::GroFlushTimeoutNs(duration_ns(value)?)),
            "irq-suspend-timeout" => Ok(Setting::IrqSuspendTimeoutNs(duration_ns(value)?)),
            "threaded" => {
                let known = [Threaded::Off, Threaded::On, Threaded::BusyPoll];
                known.into_iter().find(|it| threaded_name(*it) == value).map(Setting::Threaded).ok_or_else(bad)
            }
            "thread-cpus" => match machine::parse_cpu_list(value) {
                Some(cpus) if !cpus.is_empty() => Ok(Setting::ThreadCpus(cpus)),
                _ => Err(bad()),
            },
            "thread-policy" => Ok(Setting::ThreadPolicy(value.parse()?)),
            _ => Err(unknown()),
        }
    }
}

impl Set {
    /// Refuses what makes no sense on any device.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub fn check(&self) -> Result<()> {
        let twice = (1..self.settings.len())
            .find(|&nth| self.settings[..nth].iter().any(|earlier| earlier.key() == self.settings[nth].key()));
        if let Some(nth) = twice {
            return Err(Error::Input {
                what: format!("{} was given twice", self.settings[nth].key()),
                remedy: "give it once".to_owned(),
            });
        }
        if self.settings.is_empty() {
            return Err(Error::Input {
                what: "nothing to set".to_owned(),
                remedy: format!("give KEY=VALUE, as in {}", EXAMPLES.join(", ")),
            });
        }
        for setting in &self.settings {
            if let Setting::GroFlushTimeoutNs(ns) | Setting::IrqSuspendTimeoutNs(ns) = setting {
                check_timeout(setting.key(), *ns)?;
            }
        }
        Ok(())
    }

    /// The step for one NAPI.
    fn step(&self, napi: &NapiState) -> Step {
        let from: NapiSettings = napi.settings.into();
        let mut step = Step {
            key: napi.key,
            napi_id: napi.id,
            from,
            to: from,
            thread: napi.thread.clone(),
            thread_cpus: None,
            thread_policy: None,
        };
        for setting in &self.settings {
            match setting {
                Setting::DeferHardIrqs(count) => step.to.defer_hard_irqs = *count,
                Setting::GroFlushTimeoutNs(ns) => step.to.gro_flush_timeout_ns = *ns,
                Setting::IrqSuspendTimeoutNs(ns) => step.to.irq_suspend_timeout_ns = *ns,
                Setting::Threaded(threaded) => step.to.threaded = *threaded,
                Setting::ThreadCpus(cpus) => step.thread_cpus = Some(cpus.clone()),
                Setting::ThreadPolicy(policy) => step.thread_policy = Some(*policy),
            }
        }
        step
    }

    /// What the state file calls it, after what was applied to the NAPI before, as in `suspend20 with threaded=on`.
    fn name(&self, applied: Option<&str>) -> String {
        let settings = self.settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(" ");
        let mode = applied.and_then(|name| name.split(" with ").next()).filter(|mode| !mode.contains('='));
        mode.map_or(settings.clone(), |mode| format!("{mode} with {settings}"))
    }
}

/// The NAPIs that are named.
fn chosen<'a>(snapshot: &'a Snapshot, which: &Which) -> Result<Vec<&'a NapiState>> {
    let device = &snapshot.device;
    if let Some(&queue) = which.queues.iter().find(|queue| snapshot.napis.iter().all(|it| !it.rx.contains(queue))) {
        let there_are = snapshot.napis.iter().flat_map(|napi| napi.rx.iter().copied()).collect();
        return Err(Error::UnknownQueue { device: device.clone(), queue, there_are });
    }
    if let Some(id) = which.napi_ids.iter().find(|id| snapshot.napis.iter().all(|it| it.id != **id)) {
        let ids = snapshot.napis.iter().map(|it| it.id.to_string()).collect::<Vec<_>>().join(", ");
        return Err(Error::Input { what: format!("{device} has no NAPI {id}"), remedy: format!("it has {ids}") });
    }
    let all = which.queues.is_empty() && which.napi_ids.is_empty();
    let is_named = |napi: &&NapiState| {
        all || which.napi_ids.contains(&napi.id) || napi.rx.iter().any(|queue| which.queues.contains(queue))
    };
    Ok(snapshot.napis.iter().filter(is_named).collect())
}

/// What has to change. It refuses everything that can be refused beforehand.
fn plan(snapshot: &Snapshot, set: &Set, policy: &Policy, online: &[usize]) -> Result<Vec<Step>> {
    if snapshot.napis.is_empty() {
        return Err(no_napi(snapshot));
    }
    let kernel = machine::kernel_release();
    let mut steps = Vec::new();
    for napi in chosen(snapshot, &set.which)? {
        let step = set.step(napi);
        step.to.check()?;
        check_policy("these settings", &step.to, policy, &kernel)?;
        if let Some(setting) = set.settings.iter().find(|it| it.is_of_the_thread())
            && step.to.threaded == Threaded::Off
        {
            return Err(Error::Input {
                what: format!("{setting} was given, and the NAPI of queue {} has no thread", napi.key),
                remedy: "give threaded=on as well".to_owned(),
            });
        }
        sched::check(step.thread_cpus.as_deref(), step.thread_policy, online)?;
        steps.push(step);
    }
    Ok(steps.into_iter().filter(|step| !step.is_empty()).collect())
}

fn steps(session: &mut Session, set: &Set) -> Result<(Vec<Step>, Snapshot)> {
    set.check()?;
    let (policy, snapshot) = (session.policy()?, session.snapshot()?);
    let online = machine::online_cpus(session.roots());
    Ok((plan(&snapshot, set, &policy, &online)?, snapshot))
}

/// What [`set`] would change. It changes nothing itself.
///
/// # Errors
/// Those of [`set`] that it finds before the first change.
pub fn set_diff(session: &mut Session, set: &Set) -> Result<Vec<Change>> {
    let before = session.state()?;
    let (steps, snapshot) = steps(session, set)?;
    check_threads(before.as_ref(), &steps, &snapshot)?;
    Ok(steps.iter().flat_map(Step::changes).collect())
}

/// Puts settings in force on all NAPIs that are named, or on none. [`undo`](crate::undo) gives the former ones back.
///
/// # Errors
/// Something is refused. The device is then as it was before the call, or [`Error::NotRestored`] says that it is not.
pub fn set(session: &mut Session, set: &Set) -> Result<Applied> {
    let _lock = session.locked()?;
    let before = session.state()?;
    let (steps, snapshot) = steps(session, set)?;
    put_in_force(session, before, &steps, &snapshot, &|applied| set.name(applied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_printed_alike() {
        for good in [
            "defer-hard-irqs=100",
            "gro-flush-timeout=20us",
            "irq-suspend-timeout=0",
            "threaded=busy-poll",
            "thread-cpus=0,2-3",
            "thread-policy=other:-5",
        ] {
            assert_eq!(good.parse::<Setting>().unwrap().to_string(), good);
        }
        for (bad, word) in [
            ("threaded", "KEY=VALUE"),
            ("threded=on", "KEY=VALUE"),
            ("threaded=yes", "off|on|busy-poll"),
            ("defer-hard-irqs=-1", "defer-hard-irqs=100"),
            ("gro-flush-timeout=20", "no duration"),
            ("thread-cpus=", "thread-cpus=0,2-3"),
            ("thread-policy=fifo:0", "fifo:99"),
        ] {
            let said = bad.parse::<Setting>().unwrap_err().to_string();
            assert!(said.contains(word), "{bad}: {said}");
        }
    }

    #[test]
    fn a_name_says_what_was_applied_and_what_was_set_on_top() {
        let set = |text: &str| Set { which: Which::default(), settings: vec![text.parse().unwrap()] };
        let first = set("threaded=on").name(Some("suspend20"));
        assert_eq!(first, "suspend20 with threaded=on");
        assert_eq!(set("defer-hard-irqs=1").name(Some(&first)), "suspend20 with defer-hard-irqs=1");
        assert_eq!(set("threaded=on").name(None), "threaded=on");
        assert_eq!(set("threaded=off").name(Some("threaded=on")), "threaded=off");
    }
}
