//! The machine's description, for people who read a report that was made elsewhere.
//!
//! It comes from `/proc` and `/sys` only, and leaves out what would identify the machine: there is no hostname, address
//! or serial number.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The properties of a machine that a result depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name, or `None` if it has none.
    pub cpu_model: Option<String>,
    /// Architecture that lull was built for, such as `x86_64`.
    pub architecture: String,
    /// Logical CPUs that are online.
    pub cores_online: Option<u32>,
    /// Threads of one core, if the kernel reports them: 2 means that neighbours share a core.
    pub threads_per_core: Option<u32>,
    /// Release of the kernel, such as `6.18.0`.
    pub kernel: Option<String>,
    /// Whether it runs under a hypervisor, or `None` if the processor does not report it.
    pub hypervisor: Option<bool>,
    /// Frequency of the time stamp counter, in Hz. It is usually not in `/proc` or `/sys`, and is set by the code that
    /// calibrates it.
    pub tsc_hz: Option<u64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Frequency governor of CPU 0, if there is one.
    pub governor: Option<String>,
}

impl Machine {
    /// Describes this machine. Properties that cannot be read are `None`.
    pub fn read() -> Machine {
        Machine::read_under(Path::new("/"))
    }

    /// Describes the machine whose `/proc` and `/sys` are under `root`.
    pub fn read_under(root: &Path) -> Machine {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_string());
        let cpu_info = text("proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| cpu_info.lines().find_map(|line| value(line, name));
        let cpu = "sys/devices/system/cpu";
        Machine {
            cpu_model: field("model name").or_else(|| field("Model")).or_else(|| field("cpu model")),
            architecture: std::env::consts::ARCH.to_string(),
            cores_online: text(&format!("{cpu}/online"))
                .and_then(|list| list_len(&list))
                .or_else(|| listed_processors(&cpu_info)),
            threads_per_core: text(&format!("{cpu}/cpu0/topology/thread_siblings_list")).and_then(|l| list_len(&l)),
            kernel: text("proc/sys/kernel/osrelease").filter(|release| !release.is_empty()),
            hypervisor: field("flags").map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            tsc_hz: text(&format!("{cpu}/cpu0/tsc_freq_khz")).and_then(|khz| khz.parse::<u64>().ok()).map(|k| k * 1000),
            memory_bytes: text("proc/meminfo").as_deref().and_then(memory_bytes),
            governor: text(&format!("{cpu}/cpu0/cpufreq/scaling_governor")).filter(|name| !name.is_empty()),
        }
    }
}

impl fmt::Display for Machine {
    /// Writes one line: `AMD EPYC 7B13, 2 CPUs (2 threads a core), 8 GiB, Linux 6.18.0, hypervisor, TSC 2.45 GHz`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![self.cpu_model.clone().unwrap_or_else(|| format!("{} processor", self.architecture))];
        let threads = match self.threads_per_core {
            Some(threads) if threads > 1 => format!(" ({threads} threads a core)"),
            _ => String::new(),
        };
        match self.cores_online {
            Some(1) => parts.push("1 CPU".to_string()),
            Some(cores) => parts.push(format!("{cores} CPUs{threads}")),
            None => {}
        }
        parts.extend(self.memory_bytes.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))));
        parts.extend(self.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
        parts.extend(self.hypervisor.map(|on| if on { "hypervisor" } else { "no hypervisor" }.to_string()));
        parts.extend(self.tsc_hz.map(|hz| format!("TSC {:.2} GHz", hz as f64 / 1e9)));
        parts.extend(self.governor.as_ref().map(|name| format!("governor {name}")));
        f.write_str(&parts.join(", "))
    }
}

/// Returns the value of a `name : value` line of that name.
fn value(line: &str, name: &str) -> Option<String> {
    let (key, value) = line.split_once(':')?;
    (key.trim() == name && !value.trim().is_empty()).then(|| value.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the number of CPUs in a list such as `0-3,8`.
fn list_len(list: &str) -> Option<u32> {
    let len = |range: &str| match range.split_once('-') {
        Some((first, last)) => Some(last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)? + 1),
        None => range.parse::<u32>().ok().map(|_| 1),
    };
    list.trim().split(',').map(len).sum()
}

fn listed_processors(cpu_info: &str) -> Option<u32> {
    let count = cpu_info.lines().filter(|line| value(line, "processor").is_some()).count();
    u32::try_from(count).ok().filter(|&count| count > 0)
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| value(line, "MemTotal"))?;
    total.strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_leaves_the_rest() {
        let root = std::env::temp_dir().join(format!("lull-machine-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD  EPYC 7B13\nflags\t\t: fpu tsc hypervisor\n");
        put("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n");
        put("proc/sys/kernel/osrelease", "6.18.0\n");
        put("proc/sys/kernel/hostname", "secret\n");
        put("sys/devices/system/cpu/online", "0-3,8\n");
        put("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n");
        let machine = Machine::read_under(&root);
        fs::remove_dir_all(&root).unwrap();
        let rest = format!("{machine:?} {machine}");
        assert!(!rest.contains("secret"));
        assert_eq!(machine.to_string(), "AMD EPYC 7B13, 5 CPUs (2 threads a core), 8.0 GiB, Linux 6.18.0, hypervisor");
        assert_eq!(machine.governor, None);
    }

    #[test]
    fn an_empty_machine_is_described_all_the_same() {
        let machine = Machine::read_under(Path::new("/nonexistent"));
        assert_eq!(machine.to_string(), format!("{} processor", std::env::consts::ARCH));
    }

    #[test]
    fn cpu_lists_are_counted() {
        for (list, len) in [("0", Some(1)), ("0-1", Some(2)), ("0-3,8,10-11", Some(7)), ("", None), ("3-1", None)] {
            assert_eq!(list_len(list), len, "{list}");
        }
    }
}
