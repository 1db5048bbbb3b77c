//! The value that a step of `prepare` has overwritten: where it lives, and how it is read and written there.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::device::QueueKey;
use crate::error::{Error, Result};
use crate::ethtool::{Ethtool, Knob};
use crate::machine::parse_cpu_list;
use crate::roots::Roots;

/// A value that a step has overwritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overwritten {
    /// Where the value lives.
    pub target: Target,
    /// The step, in words.
    pub what: String,
    /// The former value.
    pub former: String,
    /// The value that was set. A watcher sets it again if a driver changes it.
    #[serde(default)]
    pub set: Option<String>,
    /// The value as it was read after it was written, if the kernel or the driver had changed it (they round numbers).
    #[serde(default)]
    pub settled: Option<String>,
    /// The interrupt, if the value is in one of an interrupt's files.
    #[serde(default)]
    pub interrupt: Option<Interrupt>,
}

/// An interrupt, identified by more than its number, which the kernel gives to another device when a driver requests
/// its own anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// The queue whose NAPI it schedules.
    pub queue: QueueKey,
    /// The names that drivers give it: `/proc/irq/N` has a directory of each name. There are none while nobody has
    /// requested it.
    pub names: BTreeSet<String>,
}

impl Interrupt {
    /// The interrupt of this number, which belongs to `queue` now.
    pub(crate) fn of(number: u32, queue: QueueKey, roots: &Roots) -> Interrupt {
        Interrupt { queue, names: names_of(number, roots) }
    }

    /// Whether `now`, which has the same number, is another interrupt. Several devices may share one.
    pub(crate) fn is_another(&self, now: &Interrupt) -> bool {
        !self.names.is_empty() && !now.names.is_empty() && self.names.is_disjoint(&now.names)
    }

    /// Whether the interrupt of this number is this one for certain.
    pub(crate) fn is_still(&self, number: u32, roots: &Roots) -> bool {
        !self.names.is_disjoint(&names_of(number, roots))
    }

    /// The names of the interrupt of this number, if it is another one now.
    pub(crate) fn another(&self, number: u32, roots: &Roots) -> Option<String> {
        let now = Interrupt::of(number, self.queue, roots);
        self.is_another(&now).then(|| now.names.into_iter().collect::<Vec<_>>().join(", "))
    }
}

fn names_of(number: u32, roots: &Roots) -> BTreeSet<String> {
    let entries = std::fs::read_dir(roots.proc(&format!("irq/{number}"))).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Where a value lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// One of the driver's numbers.
    Ethtool(Knob),
    /// A file below `/sys`.
    Sys(String),
    /// A file below `/proc`.
    Proc(String),
    /// `/dev/cpu_dma_latency`, whose value lasts while the file is open (`keep.rs`).
    #[serde(rename = "cpu-dma-latency")]
    CpuDmaLatency,
}

impl Target {
    fn path(&self, roots: &Roots) -> Option<PathBuf> {
        match self {
            Target::Ethtool(_) | Target::CpuDmaLatency => None,
            Target::Sys(path) => Some(roots.sys(path)),
            Target::Proc(path) => Some(roots.proc(path)),
        }
    }

    /// Whether it is a file of a network device, whose name is in the path.
    pub(crate) fn is_of_a_device(&self) -> bool {
        matches!(self, Target::Sys(path) if path.starts_with("class/net/"))
    }

    /// The file that says on which CPUs an interrupt may be raised.
    pub(crate) fn of_interrupt(number: u32) -> Target {
        Target::Proc(format!("irq/{number}/smp_affinity_list"))
    }

    /// The interrupt whose file it is.
    pub(crate) fn interrupt(&self) -> Option<u32> {
        let Target::Proc(path) = self else { return None };
        path.strip_prefix("irq/")?.split('/').next()?.parse().ok()
    }

    /// Whether a file that does not exist here may exist for others: those of `net.core` are in the initial network
    /// namespace only, and containers cover files. A queue, an interrupt or a CPU that is gone has no files any more.
    pub(crate) fn may_be_hidden(&self, roots: &Roots) -> bool {
        // This file always exists beside it.
        let beside = match self {
            Target::Ethtool(_) | Target::CpuDmaLatency => return false,
            Target::Sys(_) if self.is_of_a_device() => return false,
            Target::Sys(path) if path.starts_with("devices/system/cpu/cpu") => roots.sys("devices/system/cpu/online"),
            Target::Proc(_) if self.interrupt().is_some() => roots.proc("irq/default_smp_affinity"),
            Target::Sys(_) | Target::Proc(_) => return true,
        };
        !beside.exists()
    }

    /// Whether two of its values mean the same: masks (`0000,00000000`) and lists of CPUs (`0-1`, `0,1`) can be written
    /// in several ways.
    pub(crate) fn same(&self, one: &str, other: &str) -> bool {
        let (Target::Sys(path) | Target::Proc(path)) = self else { return one == other };
        let as_masks = path.ends_with("rps_cpus") || path.ends_with("cpumask");
        let as_lists = path.ends_with("_list");
        one == other
            || (as_masks && mask(one).is_some_and(|it| mask(other) == Some(it)))
            || (as_lists && parse_cpu_list(one).is_some_and(|it| parse_cpu_list(other) == Some(it)))
    }

    pub(crate) fn lacking(&self) -> String {
        match self {
            Target::Ethtool(knob) => format!("the driver has no {knob}"),
            Target::Sys(path) => format!("there is no /sys/{path}"),
            Target::Proc(path) => format!("there is no /proc/{path} in this network namespace"),
            Target::CpuDmaLatency => "there is no /dev/cpu_dma_latency".to_owned(),
        }
    }

    pub(crate) fn read(&self, ethtool: &mut Ethtool, roots: &Roots) -> Result<Option<String>> {
        if let Target::Ethtool(knob) = self {
            return Ok(ethtool.get(*knob)?.map(|reading| reading.value.to_string()));
        }
        let Some(path) = self.path(roots) else { return Ok(None) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim_end().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::os(format!("read {}", path.display()), "the kernel may not have it", error)),
        }
    }

    pub(crate) fn write(&self, value: &str, ethtool: &mut Ethtool, roots: &Roots) -> Result<()> {
        if let Target::Ethtool(knob) = self {
            let number = value.parse().map_err(|_| Error::Input {
                what: format!("the state file has '{value}' for {knob}"),
                remedy: "remove it".to_owned(),
            })?;
            return ethtool.set(*knob, number);
        }
        // A value that is held open is never written here.
        let Some(path) = self.path(roots) else { return Ok(()) };
        // Only an existing file is written: nothing is created if the kernel has no such thing.
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

/// A mask in its shortest form: `0000,00000003` is `3`.
fn mask(text: &str) -> Option<String> {
    let is_mask = !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit() || c == ',');
    is_mask.then(|| text.replace(',', "").trim_start_matches('0').to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_lists_are_alike_by_what_they_mean() {
        let of_mask = Target::Sys("class/net/lo/queues/rx-0/rps_cpus".to_owned());
        for (one, other) in [("00000000,00000003", "3"), ("0", "00000000"), ("000A", "a")] {
            assert!(of_mask.same(one, other), "{one} and {other}");
        }
        assert!(!of_mask.same("1", "2") && !of_mask.same("", "0") && !of_mask.same("x", "y"));
        let of_list = Target::Proc("irq/9/smp_affinity_list".to_owned());
        assert!(of_list.same("0-1", "0,1") && of_list.same("3", "3"));
        for (one, other) in [("0,32", "32"), ("0,2", "2"), ("0-1,5", "15"), ("10", "1,0")] {
            assert!(!of_list.same(one, other), "{one} and {other}");
        }
        let of_number = Target::Proc("sys/kernel/sched_rt_runtime_us".to_owned());
        assert!(of_number.same("-1", "-1") && !of_number.same("-1", "1"));
        let of_word = Target::Sys("devices/system/cpu/smt/control".to_owned());
        assert!(of_word.same("off", "off") && !of_word.same("off", "on"));
    }
}
