//! Settings of a NAPI as they are kept in the state file and printed: with their units, and readable in any version.

use lull_core::{NapiSettings, Threaded};
use serde::{Deserialize, Serialize};

/// [`Threaded`] by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadedName {
    /// Softirq polls.
    Off,
    /// A thread polls.
    On,
    /// A thread polls all the time.
    BusyPoll,
}

/// The four settings of a NAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    /// The empty polls for which the interrupt stays masked.
    pub defer_hard_irqs: u32,
    /// The nanoseconds between them.
    pub gro_flush_timeout_ns: u64,
    /// The nanoseconds for which an application may keep the interrupt masked.
    pub irq_suspend_timeout_ns: u64,
    /// Who polls.
    pub threaded: ThreadedName,
}

impl Values {
    /// Whether interrupts are deferred, in which both settings take part (`napi_complete_done`).
    pub fn defers(&self) -> bool {
        self.defer_hard_irqs != 0 && self.gro_flush_timeout_ns != 0
    }
}

impl From<NapiSettings> for Values {
    fn from(settings: NapiSettings) -> Values {
        Values {
            defer_hard_irqs: settings.defer_hard_irqs,
            gro_flush_timeout_ns: settings.gro_flush_timeout_ns,
            irq_suspend_timeout_ns: settings.irq_suspend_timeout_ns,
            threaded: match settings.threaded {
                Threaded::Off => ThreadedName::Off,
                Threaded::On => ThreadedName::On,
                Threaded::BusyPoll => ThreadedName::BusyPoll,
            },
        }
    }
}

impl From<Values> for NapiSettings {
    fn from(values: Values) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: values.defer_hard_irqs,
            gro_flush_timeout_ns: values.gro_flush_timeout_ns,
            irq_suspend_timeout_ns: values.irq_suspend_timeout_ns,
            threaded: match values.threaded {
                ThreadedName::Off => Threaded::Off,
                ThreadedName::On => Threaded::On,
                ThreadedName::BusyPoll => Threaded::BusyPoll,
            },
            ..NapiSettings::default()
        }
    }
}
