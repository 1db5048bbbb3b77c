//! What a step of `prepare` has overwritten, where that value lives, and how it is read and written there.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ethtool::{Ethtool, Knob};
use crate::roots::Roots;

/// What a step has overwritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overwritten {
    /// Where.
    pub target: Target,
    /// The step, for people.
    pub what: String,
    /// What was there.
    pub former: String,
    /// What was set, which a watcher sets again where a driver takes it back.
    #[serde(default)]
    pub set: Option<String>,
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
    /// `/dev/cpu_dma_latency`, whose value lasts while it is open (`keep.rs`).
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

    /// Whether it is a file of a network device, which is named there.
    pub(crate) fn is_of_a_device(&self) -> bool {
        matches!(self, Target::Sys(path) if path.starts_with("class/net/"))
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
        // What is held is never written here.
        let Some(path) = self.path(roots) else { return Ok(()) };
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
pub(crate) fn same(one: &str, other: &str) -> bool {
    let mask = |text: &str| {
        let hex = text.chars().all(|c| c.is_ascii_hexdigit() || c == ',') && !text.is_empty();
        hex.then(|| text.replace(',', "").trim_start_matches('0').to_ascii_lowercase())
    };
    one == other || (mask(one).is_some() && mask(one) == mask(other) && !one.contains('-'))
}
