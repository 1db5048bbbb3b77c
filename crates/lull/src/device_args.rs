//! Arguments that several commands of the kernel plane share: which settings a device gets, and where its former state
//! is stored.

use std::path::PathBuf;

use clap::Args;
use lull_core::mode;
use lull_linux::DeviceRequest;
use lull_linux::apply::Options;
use lull_linux::plan::{Overrides, ThreadRequest};
use lull_linux::sched::duration_ns;

use crate::failure::Failure;
use crate::modes;

/// The directory for the former settings.
#[derive(Args, Clone)]
pub struct StateArgs {
    /// The directory in which the former settings are stored.
    #[arg(long, env = "LULL_STATE_DIR", default_value = lull_linux::state::STATE_DIR, value_name = "DIR")]
    pub state_dir: PathBuf,
}

impl StateArgs {
    /// Returns the options of a session.
    pub fn options(&self) -> Options {
        Options::in_dir(&self.state_dir)
    }
}

/// What is asked of a device.
#[derive(Args, Clone)]
pub struct RequestArgs {
    #[arg(long, help = modes::short("The delivery mode", mode::Plane::Kernel),
        long_help = modes::long("The delivery mode", mode::Plane::Kernel))]
    pub mode: String,
    /// The receive queues, such as 0,2-3; all by default.
    #[arg(long, value_name = "LIST")]
    pub queues: Option<String>,
    /// gro_flush_timeout in place of the mode's, such as 50us.
    #[arg(long, value_name = "TIME")]
    pub gro_flush_timeout: Option<String>,
    /// irq_suspend_timeout in place of the mode's, such as 20ms.
    #[arg(long, value_name = "TIME")]
    pub irq_suspend_timeout: Option<String>,
    /// defer_hard_irqs in place of the mode's.
    #[arg(long, value_name = "N")]
    pub defer_hard_irqs: Option<String>,
    /// CPUs for NAPI threads, one each in the order of the queues.
    #[arg(long, value_name = "LIST")]
    pub threads_cpus: Option<String>,
    /// Policy of NAPI threads: fifo:50, rr:50, other:-10 or deadline:200us/1ms.
    #[arg(long, value_name = "POLICY")]
    pub thread_policy: Option<String>,
}

impl RequestArgs {
    /// Returns an option that was given and applies only to a device.
    pub fn of_a_device(&self) -> Option<&'static str> {
        let given = [
            ("--queues", self.queues.is_some()),
            ("--gro-flush-timeout", self.gro_flush_timeout.is_some()),
            ("--irq-suspend-timeout", self.irq_suspend_timeout.is_some()),
            ("--defer-hard-irqs", self.defer_hard_irqs.is_some()),
            ("--threads-cpus", self.threads_cpus.is_some()),
            ("--thread-policy", self.thread_policy.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Returns the request that these arguments describe.
    pub fn request(&self) -> Result<DeviceRequest, Failure> {
        let time = |text: &Option<String>| text.as_deref().map(duration_ns).transpose();
        let list = |text: &Option<String>| text.as_deref().map(lull_units::numbers).transpose();
        let defer_hard_irqs = match &self.defer_hard_irqs {
            Some(text) => {
                Some(text.parse().map_err(|_| format!("'{text}' is no number of polls for --defer-hard-irqs"))?)
            }
            None => None,
        };
        Ok(DeviceRequest {
            mode: self.mode.parse()?,
            queues: list(&self.queues)?.map(|queues| queues.into_iter().map(|queue| queue as u32).collect()),
            overrides: Overrides {
                defer_hard_irqs,
                gro_flush_timeout_ns: time(&self.gro_flush_timeout)?,
                irq_suspend_timeout_ns: time(&self.irq_suspend_timeout)?,
            },
            threads: ThreadRequest {
                cpus: list(&self.threads_cpus)?.unwrap_or_default(),
                policy: self.thread_policy.as_deref().map(str::parse).transpose()?,
            },
        })
    }
}
