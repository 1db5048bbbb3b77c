//! What `/proc` counts: packets of the device, NET_RX softirqs of each CPU, and interrupts of the device.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::device::Device;
use crate::netdev::Napi;
use crate::roots::Roots;

/// A rate on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuRate {
    /// The CPU.
    pub cpu: u32,
    /// The rate per second.
    pub per_s: f64,
}

/// An interrupt of the device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IrqSample {
    /// Its number.
    pub irq: u32,
    /// What `/proc/interrupts` calls it.
    pub name: String,
    /// The rates per second, by CPU.
    pub per_s: Vec<CpuRate>,
}

/// Counts by CPU.
type ByCpu = Vec<(u32, u64)>;

/// All counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    packets: Option<u64>,
    net_rx: ByCpu,
    irqs: BTreeMap<u32, (String, ByCpu)>,
}

impl Counters {
    pub fn read(device: &Device, napis: &[Napi], roots: &Roots) -> Counters {
        let mut irqs: Vec<u32> = napis.iter().filter_map(|napi| napi.irq).collect();
        if device.in_sysfs {
            // A virtio device's interrupts are its parent's.
            for place in ["device/msi_irqs", "device/../msi_irqs"] {
                let entries = std::fs::read_dir(roots.sys(&format!("class/net/{}/{place}", device.name)));
                let number =
                    |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u32>().ok();
                irqs.extend(entries.into_iter().flatten().filter_map(number));
            }
        }
        let proc = |file: &str| std::fs::read_to_string(roots.proc(file)).unwrap_or_default();
        Counters {
            packets: packets(&proc("thread-self/net/dev"), &device.name),
            net_rx: rows(&proc("softirqs")).find(|row| row.0 == "NET_RX").map(|row| row.1).unwrap_or_default(),
            irqs: of_device(&proc("interrupts"), &irqs),
        }
    }

    pub fn packets_per_s(&self, before: &Counters, seconds: f64) -> Option<f64> {
        Some(self.packets?.checked_sub(before.packets?)? as f64 / seconds)
    }

    pub fn net_rx_per_s(&self, before: &Counters, seconds: f64) -> Vec<CpuRate> {
        per_s(&self.net_rx, &before.net_rx, seconds)
    }

    pub fn irqs_per_s(&self, before: &Counters, seconds: f64) -> Vec<IrqSample> {
        let sample = |(irq, (name, now)): (&u32, &(String, ByCpu))| {
            let then = before.irqs.get(irq).map_or(&[][..], |(_, then)| then);
            IrqSample { irq: *irq, name: name.clone(), per_s: per_s(now, then, seconds) }
        };
        self.irqs.iter().map(sample).collect()
    }
}

/// The rates of the CPUs that both have.
fn per_s(now: &[(u32, u64)], then: &[(u32, u64)], seconds: f64) -> Vec<CpuRate> {
    let rate = |(cpu, count): &(u32, u64)| {
        let before = then.iter().find(|(other, _)| other == cpu)?.1;
        Some(CpuRate { cpu: *cpu, per_s: count.saturating_sub(before) as f64 / seconds })
    };
    now.iter().filter_map(rate).collect()
}

/// The received packets of a device in `/proc/net/dev`.
fn packets(text: &str, device: &str) -> Option<u64> {
    let values = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    values.split_whitespace().nth(1)?.parse().ok()
}

/// The rows of `/proc/softirqs` and `/proc/interrupts`: name, counts by CPU, and what follows.
fn rows(text: &str) -> impl Iterator<Item = (&str, ByCpu, String)> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let cpus: Vec<u32> = head.split_whitespace().filter_map(|cpu| cpu.strip_prefix("CPU")?.parse().ok()).collect();
    lines.filter_map(move |line| {
        let (name, rest) = line.split_once(':')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let counts = cpus.iter().zip(&words).map_while(|(cpu, word)| Some((*cpu, word.parse().ok()?))).collect();
        Some((name.trim(), counts, words.get(cpus.len()..).unwrap_or_default().join(" ")))
    })
}

fn of_device(interrupts: &str, irqs: &[u32]) -> BTreeMap<u32, (String, ByCpu)> {
    let own = |(name, counts, what): (&str, _, String)| {
        let irq: u32 = name.parse().ok().filter(|irq| irqs.contains(irq))?;
        // The controller, hardware number and trigger come before the action's name.
        let action = what.rsplit(' ').next().unwrap_or_default().to_owned();
        Some((irq, (action, counts)))
    };
    rows(interrupts).filter_map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_by_the_cpus_of_the_head() {
        let softirqs = "          CPU0       CPU2\n    HI:     1          0\nNET_RX:   100        250\n";
        let net_rx = |counts: [u64; 2]| vec![(0, counts[0]), (2, counts[1])];
        assert_eq!(rows(softirqs).find(|row| row.0 == "NET_RX").unwrap().1, net_rx([100, 250]));
        let rates = per_s(&net_rx([300, 250]), &net_rx([100, 250]), 2.0);
        assert_eq!(rates, [CpuRate { cpu: 0, per_s: 100.0 }, CpuRate { cpu: 2, per_s: 0.0 }]);
        let interrupts = "      CPU0  CPU2\n 24:   7     1  PCI-MSIX-0000:00:02.0   1-edge   virtio0-input.0\n\
             NMI:   0     0  Non-maskable interrupts\n";
        let own = of_device(interrupts, &[24, 25]);
        assert_eq!(own, BTreeMap::from([(24, ("virtio0-input.0".to_owned(), net_rx([7, 1])))]));
    }

    #[test]
    fn packets_are_those_of_the_whole_name() {
        let dev = "Inter-|   Receive\n face |bytes    packets\n  eth01: 9 9\n  eth0:  900  12 0 0\n";
        assert_eq!(packets(dev, "eth0"), Some(12));
        assert_eq!(packets(dev, "eth"), None);
    }
}
