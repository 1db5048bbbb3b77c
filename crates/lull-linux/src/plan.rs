//! Derives the list of changes from what is in force and from the request. Nothing is changed here, and everything that
//! can be refused is refused here, before anything is changed.

use std::fmt;

use lull_core::settings::{DEFER_HARD_IRQS_MAX, Errno, Limit};
use lull_core::{Mode, NapiSettings, SettingError, Threaded};
pub use lull_units::numbers_text as cpu_list;
use serde::Serialize;

use crate::device::{NapiState, QueueKey, Snapshot, Thread};
use crate::error::{Error, Result};
use crate::netdev::{NapiChange, Policy, threaded_number};
use crate::sched::{ThreadPolicy, shown_ns};
use crate::values::Values;

/// The longest timeout that is applied. Published ones end at 20 ms.
const TIMEOUT_NS_MAX: u64 = 10_000_000_000;

/// A request for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The mode, whose NAPI settings are put in force.
    pub mode: Mode,
    /// The receive queues, or all NAPIs of the device if `None`.
    pub queues: Option<Vec<u32>>,
    /// Values in place of the mode's.
    pub overrides: Overrides,
    /// The request for NAPI threads.
    pub threads: ThreadRequest,
}

/// Values in place of a mode's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `defer-hard-irqs`.
    pub defer_hard_irqs: Option<u64>,
    /// `gro-flush-timeout` in nanoseconds.
    pub gro_flush_timeout_ns: Option<u64>,
    /// `irq-suspend-timeout` in nanoseconds.
    pub irq_suspend_timeout_ns: Option<u64>,
}

/// Where and how NAPI threads run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadRequest {
    /// CPUs for the threads, one for each in the order of the queues, and from the first again when they run out. If
    /// there are none, the kernel decides.
    pub cpus: Vec<usize>,
    /// Their policy. `None` leaves it to the kernel.
    pub policy: Option<ThreadPolicy>,
}

impl ThreadRequest {
    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.policy.is_none()
    }
}

impl DeviceRequest {
    /// A mode on all NAPIs of a device.
    pub fn new(mode: Mode) -> DeviceRequest {
        DeviceRequest { mode, queues: None, overrides: Overrides::default(), threads: ThreadRequest::default() }
    }

    /// The settings that every NAPI is to have.
    ///
    /// # Errors
    /// A value is above its limit, or the mode consists of more than NAPI settings.
    pub fn settings(&self) -> Result<NapiSettings> {
        check_kernel_has(&self.mode)?;
        let mut settings = self.mode.napi;
        if let Some(value) = self.overrides.defer_hard_irqs {
            settings.defer_hard_irqs = u32::try_from(value).map_err(|_| SettingError {
                setting: "defer_hard_irqs",
                value,
                limit: Limit::AtMost(DEFER_HARD_IRQS_MAX),
                errno: Errno::Range,
            })?;
        }
        if let Some(value) = self.overrides.gro_flush_timeout_ns {
            settings.gro_flush_timeout_ns = value;
        }
        if let Some(value) = self.overrides.irq_suspend_timeout_ns {
            settings.irq_suspend_timeout_ns = value;
        }
        settings.check()?;
        check_timeout("gro-flush-timeout", settings.gro_flush_timeout_ns)?;
        check_timeout("irq-suspend-timeout", settings.irq_suspend_timeout_ns)?;
        Ok(settings)
    }

    fn check_threads(&self) -> Result<()> {
        if self.threads.is_empty() {
            return Ok(());
        }
        if self.mode.napi.threaded == Threaded::Off {
            return Err(Error::Input {
                what: format!("CPUs or a policy for NAPI threads were given, and mode {} has no threads", self.mode),
                remedy: "leave them out, or use the mode threaded or threaded-busy".to_owned(),
            });
        }
        if matches!(self.threads.policy, Some(ThreadPolicy::Deadline { .. })) && !self.threads.cpus.is_empty() {
            return Err(Error::Input {
                what: "a deadline policy and CPUs were given for NAPI threads".to_owned(),
                remedy: "give one of the two: the kernel binds no SCHED_DEADLINE thread to some CPUs".to_owned(),
            });
        }
        Ok(())
    }
}

/// Refuses a timeout that the kernel accepts but that could not be taken back. A timer that runs is not shortened by a
/// new setting, so the queue stays without interrupts for as long as it was set to, whatever is undone.
pub(crate) fn check_timeout(setting: &str, value_ns: u64) -> Result<()> {
    if value_ns <= TIMEOUT_NS_MAX {
        return Ok(());
    }
    Err(Error::Input {
        what: format!("{setting} of {}", shown_ns(value_ns)),
        remedy: format!(
            "use {} at most: a queue may stay without interrupts for that long, even after undo",
            shown_ns(TIMEOUT_NS_MAX)
        ),
    })
}

/// Refuses a mode for which the kernel has no settings, as it would only look as if it were in force. Such modes are
/// those with a group of CPUs, and those with the NIC's coalescing as the short timeout, which is neither in `napi-set`
/// nor in an epoll context.
///
/// # Errors
/// [`Error::Unsupported`] for such a mode.
pub fn check_kernel_has(mode: &Mode) -> Result<()> {
    if mode.group.is_some() {
        return Err(Error::Unsupported {
            what: format!("apply {mode}"),
            reason: "Linux has no groups of CPUs that poll".to_owned(),
            remedy:
                "the nearest is --mode threaded-busy --threads-cpus LIST: a thread for each NAPI, moved among those \
                     CPUs by the scheduler, and none of them parks"
                    .to_owned(),
        });
    }
    match mode.rx_usecs {
        None => Ok(()),
        Some(usecs) => Err(Error::Unsupported {
            what: format!("apply {mode}"),
            reason: format!("its short timeout is the NIC's coalescing of {usecs} us, which is no setting of a NAPI"),
            remedy: format!(
                "use suspend{usecs}, which can suspend, or set `ethtool -C DEV rx-usecs {usecs}` and apply suspend0"
            ),
        }),
    }
}

/// Refuses what this kernel's `napi-set` does not accept.
///
/// # Errors
/// [`Error::Unsupported`] with the kernel version that the setting needs.
pub fn check_policy(mode: &str, settings: &NapiSettings, policy: &Policy, kernel: &str) -> Result<()> {
    let refuse = |reason: String, remedy: &str| {
        Err(Error::Unsupported { what: format!("apply {mode}"), reason, remedy: remedy.to_owned() })
    };
    let Some(defer_max) = policy.defer_hard_irqs_max else {
        return refuse(format!("this kernel ({kernel}) has no settings per NAPI"), "it takes Linux 6.13 or newer");
    };
    let checks = [
        ("defer_hard_irqs", u64::from(settings.defer_hard_irqs), Some(defer_max)),
        ("gro_flush_timeout", settings.gro_flush_timeout_ns, policy.gro_flush_timeout_ns_max),
        ("irq_suspend_timeout", settings.irq_suspend_timeout_ns, policy.irq_suspend_timeout_ns_max),
    ];
    for (setting, value, max) in checks {
        match max {
            None if value != 0 => {
                return refuse(format!("this kernel ({kernel}) has no {setting}"), "it takes Linux 6.13 or newer");
            }
            Some(max) if value > max => {
                return Err(SettingError { setting, value, limit: Limit::AtMost(max), errno: Errno::Range }.into());
            }
            _ => {}
        }
    }
    match (settings.threaded, policy.threaded_max) {
        (Threaded::Off, _) => Ok(()),
        (_, None) => {
            refuse(format!("this kernel ({kernel}) has no NAPI threads per queue"), "they take Linux 6.17 or newer")
        }
        (threaded, Some(max)) if u64::from(threaded_number(threaded)) > max => refuse(
            format!("this kernel ({kernel}) takes `threaded` up to {max}, and threads that busy poll are 2"),
            "they take Linux 6.19 or newer; the mode threaded works here",
        ),
        _ => Ok(()),
    }
}

/// What has to be done on one NAPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its queue.
    pub key: QueueKey,
    /// Its id.
    pub napi_id: u32,
    /// The settings in force.
    pub from: NapiSettings,
    /// The settings afterwards.
    pub to: NapiSettings,
    /// The thread that it has now.
    pub thread: Option<Thread>,
    /// The CPUs for its thread, if any were asked for.
    pub thread_cpus: Option<Vec<usize>>,
    /// The policy for its thread, if one was asked for.
    pub thread_policy: Option<ThreadPolicy>,
}

impl Step {
    /// The change for netlink.
    pub fn napi_change(&self) -> NapiChange {
        NapiChange::between(&self.from, &self.to)
    }

    /// The CPUs that have to be set, because the thread is new or has other ones.
    pub fn cpus_to_set(&self) -> Option<&[usize]> {
        let now = self.thread.as_ref().and_then(|thread| thread.scheduling.as_ref()).map(|it| it.cpus.as_slice());
        self.thread_cpus.as_deref().filter(|&cpus| now != Some(cpus))
    }

    /// The policy that has to be set.
    pub fn policy_to_set(&self) -> Option<ThreadPolicy> {
        let now = self.thread.as_ref().and_then(|thread| thread.scheduling.as_ref()).map(|it| it.policy);
        self.thread_policy.filter(|&policy| now != Some(policy))
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.napi_change().is_empty() && self.cpus_to_set().is_none() && self.policy_to_set().is_none()
    }

    /// The changes one by one, as they are shown to people.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut add = |setting, from: Shown, to: Shown| {
            if from != to {
                changes.push(Change { queue: self.key, napi_id: self.napi_id, setting, from, to });
            }
        };
        let (from, to) = (&self.from, &self.to);
        let number = |value: u32| Shown::Number(u64::from(value));
        add("defer-hard-irqs", number(from.defer_hard_irqs), number(to.defer_hard_irqs));
        add("gro-flush-timeout", Shown::Ns(from.gro_flush_timeout_ns), Shown::Ns(to.gro_flush_timeout_ns));
        add("irq-suspend-timeout", Shown::Ns(from.irq_suspend_timeout_ns), Shown::Ns(to.irq_suspend_timeout_ns));
        add("threaded", threaded_shown(from.threaded), threaded_shown(to.threaded));
        let now = self.thread.as_ref().and_then(|thread| thread.scheduling.as_ref());
        let unknown = || Shown::Text("the kernel's".to_owned());
        if let Some(cpus) = self.cpus_to_set() {
            add("thread-cpus", now.map_or_else(unknown, |it| cpus_shown(&it.cpus)), cpus_shown(cpus));
        }
        if let Some(policy) = self.policy_to_set() {
            let from = now.map_or_else(unknown, |it| Shown::Text(it.policy.to_string()));
            add("thread-policy", from, Shown::Text(policy.to_string()));
        }
        changes
    }
}

/// One change, as it is shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The queue whose NAPI it is.
    pub queue: QueueKey,
    /// The NAPI.
    pub napi_id: u32,
    /// The setting, as netlink names it.
    pub setting: &'static str,
    /// The former value. Timeouts are in nanoseconds.
    pub from: Shown,
    /// The new value.
    pub to: Shown,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {} (NAPI {}): {} {} -> {}", self.queue, self.napi_id, self.setting, self.from, self.to)
    }
}

/// A value of a setting. JSON has the plain number, and people read a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Shown {
    /// A plain number.
    Number(u64),
    /// Nanoseconds.
    Ns(u64),
    /// Something with a name.
    Text(String),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Number(number) => number.fmt(f),
            Shown::Ns(nanoseconds) => f.write_str(&shown_ns(*nanoseconds)),
            Shown::Text(text) => f.write_str(text),
        }
    }
}

/// Who polls, as commands and reports call it.
pub fn threaded_name(threaded: Threaded) -> &'static str {
    match threaded {
        Threaded::Off => "off",
        Threaded::On => "on",
        Threaded::BusyPoll => "busy-poll",
    }
}

fn threaded_shown(threaded: Threaded) -> Shown {
    Shown::Text(threaded_name(threaded).to_owned())
}

fn cpus_shown(cpus: &[usize]) -> Shown {
    Shown::Text(cpu_list(cpus))
}

/// The NAPIs that a request is about.
fn chosen<'a>(snapshot: &'a Snapshot, request: &DeviceRequest) -> Result<Vec<&'a NapiState>> {
    let Some(queues) = &request.queues else { return Ok(snapshot.napis.iter().collect()) };
    for &queue in queues {
        if !snapshot.serves(queue) {
            let there_are = snapshot.napis.iter().flat_map(|napi| napi.rx.iter().copied()).collect();
            return Err(Error::UnknownQueue { device: snapshot.device.clone(), queue, there_are });
        }
    }
    Ok(snapshot.napis.iter().filter(|napi| napi.rx.iter().any(|queue| queues.contains(queue))).collect())
}

/// Why a device shows no NAPI, and what makes it show some.
pub fn no_napi(snapshot: &Snapshot) -> Error {
    let (device, driver) = (&snapshot.device, snapshot.driver.as_deref());
    let remedy = if !snapshot.up {
        format!("it is down; bring it up with `ip link set {device} up`")
    } else if driver == Some("veth") {
        format!("a veth has NAPIs only with GRO on or XDP attached; `ethtool -K {device} gro on`")
    } else if device == "lo" {
        "loopback has none; name a device that packets come in on".to_owned()
    } else {
        format!("its driver ({}) does not expose them; it takes a driver that does", driver.unwrap_or("unknown"))
    };
    Error::NoNapi { device: device.clone(), remedy }
}

/// Refuses more CPUs than there are NAPI threads to put on them, as nothing that was asked for is silently left out.
///
/// # Errors
/// [`Error::Input`], or an unknown queue.
pub fn check_surplus(snapshot: &Snapshot, request: &DeviceRequest) -> Result<()> {
    let (given, threads) = (request.threads.cpus.len(), chosen(snapshot, request)?.len());
    // A device without NAPIs has a better reason to be refused.
    if given <= threads || threads == 0 {
        return Ok(());
    }
    Err(Error::Input {
        what: format!("{given} CPUs were given for the {threads} NAPI threads of {}", snapshot.device),
        remedy: format!("give {threads} at most: each thread is put on one"),
    })
}

/// Refuses NAPIs whose threads a kernel turns on and off for the whole device only and does not report for each, as
/// they poll whatever is set.
fn check_unreported_threads(snapshot: &Snapshot, chosen: &[&NapiState], mode: &Mode, kernel: &str) -> Result<()> {
    let device_wide = snapshot.defaults.and_then(|defaults| defaults.threaded).unwrap_or(0);
    if device_wide == 0 || mode.napi.threaded != Threaded::Off || chosen.iter().all(|napi| !napi.unreported.threaded) {
        return Ok(());
    }
    let device = &snapshot.device;
    Err(Error::Unsupported {
        what: format!("apply {mode} to {device}"),
        reason: format!("its NAPIs are polled by threads, which this kernel ({kernel}) ends for the whole device only"),
        remedy: format!("`echo 0 > /sys/class/net/{device}/threaded` first"),
    })
}

/// What has to change so that `request` is in force. Steps with nothing to do are left out.
///
/// # Errors
/// Everything that can be refused beforehand: values above limits, a kernel without the setting, a device without
/// NAPIs, unknown queues, and CPUs that do not exist.
pub fn plan(
    snapshot: &Snapshot,
    request: &DeviceRequest,
    policy: &Policy,
    kernel: &str,
    cpus: &[usize],
) -> Result<Vec<Step>> {
    let to = request.settings()?;
    request.check_threads()?;
    if let Some(cpu) = request.threads.cpus.iter().find(|cpu| !cpus.contains(cpu)) {
        return Err(Error::Input {
            what: format!("CPU {cpu} is not online"),
            remedy: format!("the CPUs {} are", cpu_list(cpus)),
        });
    }
    check_policy(request.mode.name(), &to, policy, kernel)?;
    if snapshot.napis.is_empty() {
        return Err(no_napi(snapshot));
    }
    let chosen = chosen(snapshot, request)?;
    check_unreported_threads(snapshot, &chosen, &request.mode, kernel)?;
    let steps = chosen.into_iter().enumerate().map(|(nth, napi)| {
        let cpus = &request.threads.cpus;
        Step {
            key: napi.key,
            napi_id: napi.id,
            from: napi.settings.into(),
            to,
            thread: napi.thread.clone(),
            thread_cpus: (!cpus.is_empty()).then(|| vec![cpus[nth % cpus.len()]]),
            thread_policy: request.threads.policy,
        }
    });
    Ok(steps.filter(|step| !step.is_empty()).collect())
}

/// The step that gives a NAPI former values back.
pub fn back(napi: &NapiState, settings: Values, thread: Option<&crate::sched::Scheduling>) -> Step {
    Step {
        key: napi.key,
        napi_id: napi.id,
        from: napi.settings.into(),
        to: settings.into(),
        thread: napi.thread.clone(),
        thread_cpus: thread.map(|it| it.cpus.clone()),
        thread_policy: thread.map(|it| it.policy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Defaults;
    use crate::netdev::Unreported;

    #[test]
    fn threads_that_a_kernel_ends_for_the_whole_device_only_are_no_mode_without_threads() {
        let policy = Policy {
            defer_hard_irqs_max: Some(DEFER_HARD_IRQS_MAX),
            gro_flush_timeout_ns_max: Some(u64::MAX),
            irq_suspend_timeout_ns_max: Some(u64::MAX),
            threaded_max: None,
        };
        let settings = NapiSettings::default().into();
        let unreported = Unreported { deferral: false, threaded: true };
        let (key, id) = (QueueKey::Rx(0), 9);
        let napi = NapiState { key, rx: vec![0], tx: vec![], id, irq: None, thread: None, settings, unreported };
        let snapshot = |threaded| Snapshot {
            device: "va".to_owned(),
            ifindex: 7,
            driver: None,
            up: true,
            queues_linked: true,
            rx_queues: 1,
            defaults: Some(Defaults { defer_hard_irqs: Some(0), gro_flush_timeout_ns: Some(0), threaded }),
            napis: vec![napi.clone()],
        };
        let request = DeviceRequest::new("suspend20".parse().unwrap());
        let planned = |threaded| plan(&snapshot(threaded), &request, &policy, "6.14", &[0]);
        let said = planned(Some(1)).unwrap_err().to_string();
        assert!(said.contains("6.14") && said.contains("echo 0 > /sys/class/net/va/threaded"), "{said}");
        assert_eq!((planned(Some(0)).unwrap().len(), planned(None).unwrap().len()), (1, 1));
    }
}
