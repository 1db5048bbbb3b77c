//! The steps that a profile amounts to on a device and on the machine.

use super::profile::{DeviceProfile, MachineProfile, cpus};
use super::step::Step;
use crate::device::{QueueKey, Snapshot};
use crate::error::Result;
use crate::ethtool::Knob;
use crate::machine::online_cpus;
use crate::overwritten::{Interrupt, Target};
use crate::plan::cpu_list;
use crate::roots::Roots;

fn knobs(values: &[(Knob, Option<u32>)]) -> Vec<Step> {
    let step = |&(knob, value): &(Knob, Option<u32>)| {
        let to = value?.to_string();
        Some(Step::new(knob.name().to_owned(), Ok(Target::Ethtool(knob)), to))
    };
    values.iter().filter_map(step).collect()
}

pub(super) fn queue_steps(profile: &DeviceProfile) -> Vec<Step> {
    knobs(&[
        (Knob::CombinedQueues, profile.combined_queues),
        (Knob::RxQueues, profile.rx_queues),
        (Knob::TxQueues, profile.tx_queues),
    ])
}

pub(super) fn device_steps(
    profile: &DeviceProfile,
    snapshot: &Snapshot,
    in_sysfs: bool,
    roots: &Roots,
) -> Result<Vec<Step>> {
    let device = &snapshot.device;
    let mut steps = knobs(&[
        (Knob::RxRing, profile.rx_ring),
        (Knob::TxRing, profile.tx_ring),
        // These come before the delays, as a driver that adapts them takes none.
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
            steps.push(Step::new(format!("RPS of {queue}"), target, mask.clone()));
        }
        if let Some(flows) = profile.rfs_flows {
            let target = sysfs(format!("class/net/{device}/queues/{queue}/rps_flow_cnt"));
            steps.push(Step::new(format!("RFS of {queue}"), target, flows.to_string()));
        }
    }
    let irq_cpus = profile.irq_cpus.as_deref().map(|list| cpus(list, "given")).transpose()?.unwrap_or_default();
    if irq_cpus.is_empty() {
        return Ok(steps);
    }
    for (nth, napi) in snapshot.napis.iter().enumerate() {
        let to = cpu_list(&[irq_cpus[nth % irq_cpus.len()]]);
        steps.push(match &napi.irq {
            Some(irq) => {
                let interrupt = Some(Interrupt::of(irq.number, napi.key, roots));
                let (what, target) = (of_interrupt(irq.number, napi.key), Ok(Target::of_interrupt(irq.number)));
                Step { interrupt, ..Step::new(what, target, to) }
            }
            None => {
                let what = format!("CPU of the interrupt of queue {}", napi.key);
                Step::new(what, Err("the driver tells no interrupt".to_owned()), to)
            }
        });
    }
    Ok(steps)
}

/// The name of an interrupt's step.
pub(super) fn of_interrupt(number: u32, queue: QueueKey) -> String {
    format!("CPU of interrupt {number} (queue {queue})")
}

/// `rx-0` and so on, as they are called in `/sys`.
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

pub(super) fn machine_steps(profile: &MachineProfile, roots: &Roots) -> Result<Vec<Step>> {
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
        ("wake-up latency of CPUs", Target::CpuDmaLatency, number(profile.cpu_dma_latency_us)),
    ];
    let step = |(what, target, to): (&str, Target, Option<String>)| Some(Step::new(what.to_owned(), Ok(target), to?));
    let mut steps: Vec<Step> = steps.into_iter().filter_map(step).collect();
    // 0 in the file is no bound at all, and "n/a" is a bound of 0 (`sysfs-devices-power`).
    let bound = profile.cpu_resume_latency_us.map(|us| if us == 0 { "n/a".to_owned() } else { us.to_string() });
    for (cpu, to) in online_cpus(roots).into_iter().flat_map(|cpu| bound.clone().map(|to| (cpu, to))) {
        let target = Ok(sys(&format!("devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")));
        steps.push(Step::new(format!("wake-up latency of CPU {cpu}"), target, to));
    }
    Ok(steps)
}

/// A mask in the form that the kernel takes: groups of 32 bits in hexadecimal, the highest first.
fn cpu_mask(cpus: &[usize]) -> String {
    let groups = cpus.iter().max().map_or(1, |max| max / 32 + 1);
    let group = |nth: usize| {
        let bits = cpus.iter().filter(|&&cpu| cpu / 32 == nth).fold(0u32, |bits, cpu| bits | 1 << (cpu % 32));
        if groups == 1 { format!("{bits:x}") } else { format!("{bits:08x}") }
    };
    (0..groups).rev().map(group).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::{DEFAULT_PROFILE, Profile};
    use super::*;

    #[test]
    fn the_default_profile_names_every_step_and_no_machine_wide_one() {
        let profile = Profile::parse(DEFAULT_PROFILE, "default").unwrap();
        assert_eq!(profile.machine, MachineProfile::default());
        assert_eq!((profile.device.adaptive_rx, profile.device.rx_usecs), (Some(false), Some(0)));
        // With every step switched on it is still a profile, as the comments name steps that exist.
        let all: String = DEFAULT_PROFILE
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|line| line.contains(" = ")).unwrap_or(line).to_owned() + "\n")
            .collect();
        let all = Profile::parse(&all, "all").unwrap();
        let nowhere = Roots { sys: "/nowhere".into(), proc: "/nowhere".into() };
        assert_eq!(machine_steps(&all.machine, &nowhere).unwrap().len(), 8, "of CPU 0 alone where none is known");
        assert_eq!(queue_steps(&all.device).len(), 3);
        assert!(all.device.irq_cpus.is_some() && all.device.tx_ring.is_some());
    }

    #[test]
    fn masks_have_groups_of_32_cpus() {
        assert_eq!(cpu_mask(&[]), "0");
        assert_eq!(cpu_mask(&[0, 1, 5]), "23");
        assert_eq!(cpu_mask(&[33]), "00000002,00000000");
    }
}
