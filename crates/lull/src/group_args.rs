//! The options of commands that start a busy-polling CPU group.

use clap::Args;
use lull_core::Mode;
use lull_core::group::{Budget, GroupConfig, Thresholds};
use lull_host::GroupOptions;
use lull_lab::bench::{GroupSetup, check_cores};

use crate::failure::Failure;
use crate::units;

/// Options of the modes group and groupX.
#[derive(Args, Clone, Debug)]
pub struct GroupArgs {
    /// For the modes group and groupX: the cores that poll, such as 2-3. At least one core is left to the application.
    #[arg(long, value_name = "LIST", value_parser = units::cores)]
    group_cpus: Option<std::vec::Vec<usize>>,
    /// How much of one CPU the group's passes that find nothing may take in each 10 ms, such as 30%. Once that is
    /// spent, one poller is left, which rests between packets.
    #[arg(long, value_name = "PERCENT", value_parser = units::percent)]
    cycles: Option<u32>,
    /// How much of one CPU all of the group's passes may take in each 10 ms. Once that is spent, packets wait for the
    /// end of the 10 ms.
    #[arg(long, value_name = "PERCENT", value_parser = units::percent)]
    cycles_total: Option<u32>,
    /// Wake one more poller if packets wait and those awake are busy for more than this [default: 80%].
    #[arg(long, value_name = "PERCENT", value_parser = units::percent)]
    wake_above: Option<u32>,
    /// Park a poller if the others would be busy for less than this without it [default: 50%].
    #[arg(long, value_name = "PERCENT", value_parser = units::percent)]
    park_below: Option<u32>,
    /// Let the group have cores and queues of several NUMA nodes.
    #[arg(long)]
    any_node: bool,
    /// Let pollers have every core, so that they and the application take turns.
    #[arg(long)]
    oversubscribe: bool,
    /// Let pollers without packets walk the receive path now and then, so that the first packet after a pause finds it in the
    /// caches.
    #[arg(long)]
    group_dry_run: bool,
}

impl GroupArgs {
    /// Returns the group for `modes`, or `None` if no mode is a group's and no option of a group was given.
    ///
    /// # Errors
    ///
    /// This fails for a mode of a group without CPUs, for options without such a mode, and for limits that are
    /// impossible.
    pub fn setup(&self, modes: &[Mode]) -> Result<Option<GroupSetup>, Failure> {
        let Some(mode) = modes.iter().find(|mode| mode.group.is_some()) else {
            return match self.given().first() {
                Some(option) => {
                    Err(format!("cannot use {option} without a mode of a group: use it with group or groupX").into())
                }
                None => Ok(None),
            };
        };
        let Some(cores) = &self.group_cpus else {
            return Err(
                format!("cannot poll in mode {mode} without CPUs: name the group's cores with --group-cpus").into()
            );
        };
        let thresholds = Thresholds::default();
        let config = GroupConfig {
            rest_ns: None,
            budget: Budget { empty_percent: self.cycles, total_percent: self.cycles_total },
            thresholds: Thresholds {
                wake_above: self.wake_above.unwrap_or(thresholds.wake_above),
                park_below: self.park_below.unwrap_or(thresholds.park_below),
            },
            dry_run: self.group_dry_run,
        };
        config.check()?;
        check_cores(cores)?;
        let options = GroupOptions { config, any_node: self.any_node, oversubscribe: self.oversubscribe };
        Ok(Some(GroupSetup { cores: cores.clone(), options }))
    }

    /// Returns the options that were given.
    pub fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--group-cpus", self.group_cpus.is_some()),
            ("--cycles", self.cycles.is_some()),
            ("--cycles-total", self.cycles_total.is_some()),
            ("--wake-above", self.wake_above.is_some()),
            ("--park-below", self.park_below.is_some()),
            ("--any-node", self.any_node),
            ("--oversubscribe", self.oversubscribe),
            ("--group-dry-run", self.group_dry_run),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(option, _)| option).collect()
    }
}
