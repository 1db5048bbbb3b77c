//! The steps that there are, and which of them a profile asks for.

use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::machine::parse_cpu_list;

/// The profile that is used unless another is named, with a comment for each step.
pub const DEFAULT_PROFILE: &str = include_str!("../profile.toml");

/// What `prepare` does. A step without a value is not done.
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
    /// The CPUs that RPS hands packets to. An empty list turns it off.
    pub rps_cpus: Option<String>,
    /// The flows of each queue in RFS. 0 turns it off.
    pub rfs_flows: Option<u32>,
    /// The CPUs for the queues' interrupts, one for each, and from the first again when they run out.
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
    /// `kernel.sched_rt_runtime_us`. -1 is no limit.
    pub rt_runtime_us: Option<i64>,
    /// `on`, `off` or `forceoff`.
    pub smt: Option<String>,
    /// `net.core.busy_read`, in microseconds.
    pub busy_read_us: Option<u32>,
    /// `net.core.rps_sock_flow_entries`.
    pub rfs_entries: Option<u32>,
    /// The microseconds that any CPU may take to wake, which are held by whoever watches a device.
    pub cpu_dma_latency_us: Option<u32>,
    /// The same for every CPU that is online, in a file that keeps it.
    pub cpu_resume_latency_us: Option<u32>,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// The file called `name` has a line that is wrong.
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
    /// The errors of [`Profile::parse`], and those of reading.
    pub fn load(path: Option<&Path>) -> Result<Profile> {
        let Some(path) = path else { return Profile::parse(DEFAULT_PROFILE, "default") };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::os(format!("read the profile {}", path.display()), "name a file that can be read", error)
        })?;
        Profile::parse(&text, &path.display().to_string())
    }
}

pub(super) fn cpus(list: &str, name: &str) -> Result<Vec<usize>> {
    parse_cpu_list(list).ok_or_else(|| Error::Input {
        what: format!("the profile {name} has '{list}' for a list of CPUs"),
        remedy: "write it as 0,2-3".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
