//! The set-up of a machine and a device for low latency, step by step from a profile: queues, rings, coalescing, RPS
//! and RFS, interrupts, and the machine-wide steps that a profile has to name.
//!
//! What a step overwrites is in a state file before it is done: the device's own, and one for the machine. What device
//! or kernel lack is reported and is no failure.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::apply::Session;
use crate::device::Snapshot;
use crate::error::{Error, Result};
use crate::ethtool::{Ethtool, Knob};
use crate::machine::parse_cpu_list;
use crate::plan::cpu_list;
use crate::roots::Roots;
use crate::state::{Store, Term};

/// The profile that is used unless another is named, with a comment for each step.
pub const DEFAULT_PROFILE: &str = include_str!("profile.toml");

/// What `prepare` does; a step without a value is not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Steps on the device.
    #[serde(default)]
    pub device: DeviceProfile,
    /// Steps on the machine.
    #[serde(default)]
    pub machine: MachineProfile,
}

/// Steps on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceProfile {
    /// Queues for both ways.
    pub combined_queues: Option<u32>,
    /// Receive queues.
    pub rx_queues: Option<u32>,
    /// Transmit queues.
    pub tx_queues: Option<u32>,
    /// Receive descriptors.
    pub rx_ring: Option<u32>,
    /// Transmit descriptors.
    pub tx_ring: Option<u32>,
    /// Adaptive receive coalescing.
    pub adaptive_rx: Option<bool>,
    /// Adaptive transmit coalescing.
    pub adaptive_tx: Option<bool>,
    /// Microseconds that a receive interrupt waits.
    pub rx_usecs: Option<u32>,
    /// Microseconds that a transmit interrupt waits.
    pub tx_usecs: Option<u32>,
    /// CPUs that RPS hands packets to; an empty list is off.
    pub rps_cpus: Option<String>,
    /// Flows of each queue in RFS; 0 is off.
    pub rfs_flows: Option<u32>,
    /// CPUs for the queues' interrupts, one each, from the first again when they run out.
    pub irq_cpus: Option<String>,
}

/// Steps on the whole machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MachineProfile {
    /// CPUs for unbound work queues.
    pub workqueue_cpus: Option<String>,
    /// `kernel.timer_migration`.
    pub timer_migration: Option<u32>,
    /// `kernel.sched_rt_runtime_us`; -1 is no limit.
    pub rt_runtime_us: Option<i64>,
    /// `on`, `off` or `forceoff`.
    pub smt: Option<String>,
    /// `net.core.busy_read`, in microseconds.
    pub busy_read_us: Option<u32>,
    /// `net.core.rps_sock_flow_entries`.
    pub rfs_entries: Option<u32>,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// The line that is wrong, in the file named `name`.
    pub fn parse(text: &str, name: &str) -> Result<Profile> {
        let profile: Profile = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let told = error.message().replace('\n', " ");
            Error::Input {
                what: format!("the profile {name} is wrong in line {line}"),
                remedy: format!("{told}; `lull prepare --show-profile` prints one with every step"),
            }
        })?;
        let lists =
            [&profile.device.rps_cpus, &profile.device.irq_cpus, &profile.machine.workqueue_cpus].into_iter().flatten();
        for list in lists {
            cpus(list, name)?;
        }
        Ok(profile)
    }

    /// Reads a profile from a file, or the default one.
    ///
    /// # Errors
    /// As [`Profile::parse`], and those of reading.
    pub fn load(path: Option<&Path>) -> Result<Profile> {
        let Some(path) = path else { return Profile::parse(DEFAULT_PROFILE, "default") };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::os(format!("read the profile {}", path.display()), "name a file that can be read", error)
        })?;
        Profile::parse(&text, &path.display().to_string())
    }
}

fn cpus(list: &str, name: &str) -> Result<Vec<usize>> {
    parse_cpu_list(list).ok_or_else(|| Error::Input {
        what: format!("the profile {name} has '{list}' for a list of CPUs"),
        remedy: "write it as 0,2-3".to_owned(),
    })
}

/// Where a value lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A number of the driver's.
    Ethtool(Knob),
    /// A file below `/sys`.
    Sys(String),
    /// A file below `/proc`.
    Proc(String),
}

/// What a step has overwritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overwritten {
    /// Where.
    pub target: Target,
    /// The step, for people.
    pub what: String,
    /// What was there.
    pub former: String,
}

/// How a step came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Done; in a dry run, would be done.
    Changed,
    /// It was so already.
    Already,
    /// The device or kernel has no such thing.
    Lacking(String),
    /// It was refused.
    Refused(String),
}

/// One step, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepReport {
    /// The step.
    pub what: String,
    /// What was there, as far as it could be read.
    pub from: Option<String>,
    /// What was wanted.
    pub to: String,
    /// How it came out.
    pub outcome: Outcome,
}

/// Does the steps of a profile.
///
/// # Errors
/// A stale state file, another lull at work, a state file that cannot be written: nothing was changed. A step that is
/// refused is in the reports.
pub fn prepare(session: &mut Session, profile: &Profile, dry_run: bool) -> Result<Vec<StepReport>> {
    let (device, machine) = (session.store().clone(), session.store().of_machine());
    let mut reports = Vec::new();
    let mut ethtool = Ethtool::new(session.device());
    // The queues first: what follows is for the queues that there are then.
    reports.extend(carry_out(queue_steps(&profile.device), &device, &mut ethtool, session.roots(), dry_run)?);
    let snapshot = session.snapshot()?;
    let steps = device_steps(&profile.device, &snapshot, session.device().in_sysfs, session.roots())?;
    reports.extend(carry_out(steps, &device, &mut ethtool, session.roots(), dry_run)?);
    let steps = machine_steps(&profile.machine)?;
    reports.extend(carry_out(steps, &machine, &mut ethtool, session.roots(), dry_run)?);
    Ok(reports)
}

/// Gives back what the steps have overwritten, the last first. Harmless when nothing was prepared.
///
/// # Errors
/// As [`prepare`]; what is refused is in the reports, and stays in the state file.
pub fn unprepare(session: &mut Session, dry_run: bool) -> Result<Vec<StepReport>> {
    let mut ethtool = Ethtool::new(session.device());
    let mut reports = Vec::new();
    for store in [session.store().of_machine(), session.store().clone()] {
        let Some(mut state) = store.load()? else { continue };
        let _lock = if dry_run { None } else { Some(store.lock(Term::Moment)?) };
        let mut kept = Vec::new();
        for done in state.prepared.iter().rev() {
            let step = Step { what: done.what.clone(), target: Ok(done.target.clone()), to: done.former.clone() };
            let mut report = step.look(&mut ethtool, session.roots());
            if done.target.is_of_a_device() && !session.device().in_sysfs {
                report.outcome =
                    Outcome::Refused("/sys is that of another network namespace: mount its own".to_owned());
            }
            let report = if dry_run { report } else { step.carry_out(report, &mut ethtool, session.roots()) };
            // What is gone has taken its value along; what was refused is tried again next time.
            if matches!(report.outcome, Outcome::Refused(_)) {
                kept.push(done.clone());
            }
            reports.push(report);
        }
        if !dry_run {
            kept.reverse();
            state.prepared = kept;
            store.save(&state)?;
        }
    }
    Ok(reports)
}

/// One thing to set.
#[derive(Debug)]
struct Step {
    what: String,
    /// Where, or why there is no such place.
    target: std::result::Result<Target, String>,
    to: String,
}

impl Step {
    /// Reads what is there now.
    fn look(&self, ethtool: &mut Ethtool, roots: &Roots) -> StepReport {
        let report =
            |from: Option<String>, outcome| StepReport { what: self.what.clone(), from, to: self.to.clone(), outcome };
        let target = match &self.target {
            Ok(target) => target,
            Err(lacking) => return report(None, Outcome::Lacking(lacking.clone())),
        };
        match target.read(ethtool, roots) {
            Ok(Some(from)) if same(&from, &self.to) => report(Some(from), Outcome::Already),
            Ok(Some(from)) if from.starts_with("not") => {
                report(None, Outcome::Lacking(format!("the machine says '{from}'")))
            }
            Ok(Some(from)) => report(Some(from), Outcome::Changed),
            Ok(None) => report(None, Outcome::Lacking(target.lacking())),
            Err(error) => report(None, Outcome::Refused(error.to_string())),
        }
    }

    /// Does it, if there is something to do.
    fn carry_out(&self, mut report: StepReport, ethtool: &mut Ethtool, roots: &Roots) -> StepReport {
        if let (Outcome::Changed, Ok(target)) = (&report.outcome, &self.target)
            && let Err(error) = target.write(&self.to, ethtool, roots)
        {
            report.outcome = match error.errno() {
                Some(libc::EOPNOTSUPP) => Outcome::Lacking(target.lacking()),
                _ => Outcome::Refused(error.to_string()),
            };
        }
        report
    }
}

/// Carries steps out, with what they overwrite on disk before the first.
fn carry_out(
    steps: Vec<Step>,
    store: &Store,
    ethtool: &mut Ethtool,
    roots: &Roots,
    dry_run: bool,
) -> Result<Vec<StepReport>> {
    let looked: Vec<_> = steps.into_iter().map(|step| (step.look(ethtool, roots), step)).collect();
    let before = store.load()?;
    let changing = looked.iter().any(|(report, _)| report.outcome == Outcome::Changed);
    if dry_run || !changing {
        return Ok(looked.into_iter().map(|(report, _)| report).collect());
    }
    let _lock = store.lock(Term::Moment)?;
    let mut state = before.unwrap_or_else(|| store.empty());
    let known = state.prepared.len();
    for (report, step) in &looked {
        let (Outcome::Changed, Ok(target), Some(from)) = (&report.outcome, &step.target, &report.from) else {
            continue;
        };
        // What an earlier prepare has remembered is the original.
        if !state.prepared.iter().any(|done| done.target == *target) {
            let (target, former) = (target.clone(), from.clone());
            state.prepared.push(Overwritten { target, what: step.what.clone(), former });
        }
    }
    store.save(&state).map_err(|error| error.left("none of these steps was done"))?;
    let mut reports = Vec::new();
    for (report, step) in looked {
        let report = step.carry_out(report, ethtool, roots);
        // What was not done has nothing to be undone.
        if let (Outcome::Lacking(_) | Outcome::Refused(_), Ok(target)) = (&report.outcome, &step.target) {
            let new = state.prepared.split_off(known);
            state.prepared.extend(new.into_iter().filter(|done| done.target != *target));
        }
        reports.push(report);
    }
    store.save(&state)?;
    Ok(reports)
}

impl Target {
    fn path(&self, roots: &Roots) -> Option<PathBuf> {
        match self {
            Target::Ethtool(_) => None,
            Target::Sys(path) => Some(roots.sys(path)),
            Target::Proc(path) => Some(roots.proc(path)),
        }
    }

    /// Whether it is a file of a network device, which is named there.
    fn is_of_a_device(&self) -> bool {
        matches!(self, Target::Sys(path) if path.starts_with("class/net/"))
    }

    fn lacking(&self) -> String {
        match self {
            Target::Ethtool(knob) => format!("the driver has no {knob}"),
            Target::Sys(path) => format!("there is no /sys/{path}"),
            Target::Proc(path) => format!("there is no /proc/{path} in this network namespace"),
        }
    }

    fn read(&self, ethtool: &mut Ethtool, roots: &Roots) -> Result<Option<String>> {
        let path = match self {
            Target::Ethtool(knob) => return Ok(ethtool.get(*knob)?.map(|reading| reading.value.to_string())),
            Target::Sys(_) | Target::Proc(_) => self.path(roots).expect("the other two have a path"),
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim_end().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::os(format!("read {}", path.display()), "the kernel may not have it", error)),
        }
    }

    fn write(&self, value: &str, ethtool: &mut Ethtool, roots: &Roots) -> Result<()> {
        let path = match self {
            Target::Ethtool(knob) => {
                let number = value.parse().map_err(|_| Error::Input {
                    what: format!("the state file has '{value}' for {knob}"),
                    remedy: "remove it".to_owned(),
                })?;
                return ethtool.set(*knob, number);
            }
            Target::Sys(_) | Target::Proc(_) => self.path(roots).expect("the other two have a path"),
        };
        // An existing file only: nothing is created where the kernel has no such thing.
        let opened = std::fs::OpenOptions::new().write(true).truncate(true).open(&path);
        opened.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes())).map_err(|error| {
            Error::os(
                format!("write '{value}' to {}", path.display()),
                "the kernel does not take this value here",
                error,
            )
        })
    }
}

/// Values are alike as numbers, as masks (`0000,00000000`) and as lists of CPUs.
fn same(one: &str, other: &str) -> bool {
    let mask = |text: &str| {
        let hex = text.chars().all(|c| c.is_ascii_hexdigit() || c == ',') && !text.is_empty();
        hex.then(|| text.replace(',', "").trim_start_matches('0').to_ascii_lowercase())
    };
    one == other || (mask(one).is_some() && mask(one) == mask(other) && !one.contains('-'))
}

/// A mask as the kernel takes it: groups of 32 bits in hexadecimal, the highest first.
fn cpu_mask(cpus: &[usize]) -> String {
    let groups = cpus.iter().max().map_or(1, |max| max / 32 + 1);
    let group = |nth: usize| {
        let bits = cpus.iter().filter(|&&cpu| cpu / 32 == nth).fold(0u32, |bits, cpu| bits | 1 << (cpu % 32));
        if groups == 1 { format!("{bits:x}") } else { format!("{bits:08x}") }
    };
    (0..groups).rev().map(group).collect::<Vec<_>>().join(",")
}

fn knobs(values: &[(Knob, Option<u32>)]) -> Vec<Step> {
    let step = |&(knob, value): &(Knob, Option<u32>)| {
        let to = value?.to_string();
        Some(Step { what: knob.name().to_owned(), target: Ok(Target::Ethtool(knob)), to })
    };
    values.iter().filter_map(step).collect()
}

fn queue_steps(profile: &DeviceProfile) -> Vec<Step> {
    knobs(&[
        (Knob::CombinedQueues, profile.combined_queues),
        (Knob::RxQueues, profile.rx_queues),
        (Knob::TxQueues, profile.tx_queues),
    ])
}

fn device_steps(profile: &DeviceProfile, snapshot: &Snapshot, in_sysfs: bool, roots: &Roots) -> Result<Vec<Step>> {
    let device = &snapshot.device;
    let mut steps = knobs(&[
        (Knob::RxRing, profile.rx_ring),
        (Knob::TxRing, profile.tx_ring),
        // Before the delays: a driver that adapts them takes none.
        (Knob::AdaptiveRx, profile.adaptive_rx.map(u32::from)),
        (Knob::AdaptiveTx, profile.adaptive_tx.map(u32::from)),
        (Knob::RxUsecs, profile.rx_usecs),
        (Knob::TxUsecs, profile.tx_usecs),
    ]);
    let sysfs = |path: String| {
        if in_sysfs { Ok(Target::Sys(path)) } else { Err("/sys is that of another network namespace".to_owned()) }
    };
    let rps = profile.rps_cpus.as_deref().map(|list| cpus(list, "given")).transpose()?.map(|cpus| cpu_mask(&cpus));
    for queue in rx_queue_names(device, snapshot, roots) {
        if let Some(mask) = &rps {
            let target = sysfs(format!("class/net/{device}/queues/{queue}/rps_cpus"));
            steps.push(Step { what: format!("RPS of {queue}"), target, to: mask.clone() });
        }
        if let Some(flows) = profile.rfs_flows {
            let target = sysfs(format!("class/net/{device}/queues/{queue}/rps_flow_cnt"));
            steps.push(Step { what: format!("RFS of {queue}"), target, to: flows.to_string() });
        }
    }
    let irq_cpus = profile.irq_cpus.as_deref().map(|list| cpus(list, "given")).transpose()?.unwrap_or_default();
    if irq_cpus.is_empty() {
        return Ok(steps);
    }
    for (nth, napi) in snapshot.napis.iter().enumerate() {
        let to = cpu_list(&[irq_cpus[nth % irq_cpus.len()]]);
        let (what, target) = match &napi.irq {
            Some(irq) => (
                format!("CPU of interrupt {} (queue {})", irq.number, napi.key),
                Ok(Target::Proc(format!("irq/{}/smp_affinity_list", irq.number))),
            ),
            None => {
                (format!("CPU of the interrupt of queue {}", napi.key), Err("the driver tells no interrupt".to_owned()))
            }
        };
        steps.push(Step { what, target, to });
    }
    Ok(steps)
}

/// `rx-0` and so on, as `/sys` has them.
fn rx_queue_names(device: &str, snapshot: &Snapshot, roots: &Roots) -> Vec<String> {
    let listed = std::fs::read_dir(roots.sys(&format!("class/net/{device}/queues")));
    let numbered = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("rx-")?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = listed.map_or_else(|_| Vec::new(), |it| it.flatten().filter_map(numbered).collect());
    if numbers.is_empty() {
        numbers = (0..snapshot.rx_queues).collect();
    }
    numbers.sort_unstable();
    numbers.into_iter().map(|number| format!("rx-{number}")).collect()
}

fn machine_steps(profile: &MachineProfile) -> Result<Vec<Step>> {
    let workqueues = profile.workqueue_cpus.as_deref().map(|list| cpus(list, "given")).transpose()?;
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let sys = |path: &str| Target::Sys(path.to_owned());
    let proc = |path: &str| Target::Proc(path.to_owned());
    let steps = [
        ("CPUs of work queues", sys("devices/virtual/workqueue/cpumask"), workqueues.map(|cpus| cpu_mask(&cpus))),
        ("timer migration", proc("sys/kernel/timer_migration"), number(profile.timer_migration)),
        (
            "real-time throttling",
            proc("sys/kernel/sched_rt_runtime_us"),
            profile.rt_runtime_us.map(|us| us.to_string()),
        ),
        ("SMT", sys("devices/system/cpu/smt/control"), profile.smt.clone()),
        ("net.core.busy_read", proc("sys/net/core/busy_read"), number(profile.busy_read_us)),
        ("RFS table", proc("sys/net/core/rps_sock_flow_entries"), number(profile.rfs_entries)),
    ];
    let step = |(what, target, to): (&str, Target, Option<String>)| {
        Some(Step { what: what.to_owned(), target: Ok(target), to: to? })
    };
    Ok(steps.into_iter().filter_map(step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_names_every_step_and_no_machine_wide_one() {
        let profile = Profile::parse(DEFAULT_PROFILE, "default").unwrap();
        assert_eq!(profile.machine, MachineProfile::default());
        assert_eq!((profile.device.adaptive_rx, profile.device.rx_usecs), (Some(false), Some(0)));
        // With every step switched on it is still a profile: the comments name steps that there are.
        let all: String = DEFAULT_PROFILE
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|line| line.contains(" = ")).unwrap_or(line).to_owned() + "\n")
            .collect();
        let all = Profile::parse(&all, "all").unwrap();
        assert_eq!(machine_steps(&all.machine).unwrap().len(), 6);
        assert_eq!(queue_steps(&all.device).len(), 3);
        assert!(all.device.irq_cpus.is_some() && all.device.tx_ring.is_some());
    }

    #[test]
    fn a_wrong_profile_is_told_with_its_line() {
        let refused = |text: &str, words: &[&str]| {
            let said = Profile::parse(text, "p.toml").unwrap_err().to_string();
            assert!(words.iter().all(|word| said.contains(word)) && said.lines().count() == 1, "{said}");
        };
        refused("[device]\n\nrx-usec = 0\n", &["p.toml", "line 3", "rx-usec"]);
        refused("[device]\nrx-usecs = -1\n", &["line 2"]);
        refused("[device]\nirq-cpus = \"3-1\"\n", &["3-1", "0,2-3"]);
    }

    #[test]
    fn masks_and_lists() {
        assert_eq!(cpu_mask(&[]), "0");
        assert_eq!(cpu_mask(&[0, 1, 5]), "23");
        assert_eq!(cpu_mask(&[33]), "00000002,00000000");
        assert!(same("00000000,00000003", "3") && same("0", "00000000") && same("off", "off"));
        assert!(!same("1", "2") && !same("-1", "1") && !same("", "0"));
    }
}
