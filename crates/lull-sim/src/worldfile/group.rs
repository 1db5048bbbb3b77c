//! `[group]`: the busy-polling CPU group of the modes group, group-rx and groupX.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use lull_core::group::budget::BUDGET_PERCENT_MAX;
use lull_core::group::watch::GROUP_POLLERS_MAX;
use lull_core::group::{Budget, GROUP_MEMBERS_MAX, Thresholds};
use lull_core::mode::GroupPolling;
use lull_core::{GroupConfig, Mode};
use toml::Spanned;

use super::check::Check;
use super::error::WorldFileError;
use super::raw::{self, Raw};
use super::transmit::TransmitQueues;
use crate::units::Share;
use crate::world::GroupSpec;

/// A threshold, in thousandths.
const THRESHOLD: RangeInclusive<u64> = 0..=1_000;
/// A budget, in thousandths of one CPU.
const CYCLES: RangeInclusive<u64> = 10..=BUDGET_PERCENT_MAX as u64 * 10;

/// The CPU group of the modes that a group polls. The mode says when its last CPU rests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollingGroup {
    /// Its cores (`group.cpus`).
    pub cpus: Vec<u16>,
    /// The queues that are its members (`group.queues`; default: all).
    pub queues: Vec<u32>,
    /// What its pollers may spend (`group.cycles`, `group.cycles_total`; default: no limit).
    pub budget: Budget,
    /// When one more is woken and when one parks (`group.wake_above`, `group.park_below`).
    pub thresholds: Thresholds,
    /// Whether pollers without packets walk the receive path (`group.dry_run`; default: they do not).
    pub dry_run: bool,
}

impl PollingGroup {
    /// Describes it. The text says who sends, because in the modes group and groupX the group sends as well.
    pub(super) fn describe(&self, transmits: bool) -> String {
        let cpus: Vec<usize> = self.cpus.iter().map(|cpu| usize::from(*cpu)).collect();
        let cpus = lull_units::numbers_text(&cpus);
        match transmits {
            true => format!("in modes of a group cores {cpus} receive for it, and send but for group-rx"),
            false => format!("in modes of a group cores {cpus} receive for it (applications send themselves)"),
        }
    }

    /// Returns the group in a mode. If there are transmit queues, they are as many as `queues` and come after these.
    pub(super) fn spec(&self, mode: GroupPolling, transmit: Option<&TransmitQueues>, queues: u16) -> GroupSpec {
        let (budget, thresholds, dry_run) = (self.budget, self.thresholds, self.dry_run);
        let config = GroupConfig { rest_ns: mode.rest_ns, budget, thresholds, dry_run };
        let sends = transmit.is_some() && mode.transmit;
        let beside = self.queues.iter().filter(|_| sends).map(|queue| queue + u32::from(queues));
        GroupSpec::new(self.cpus.clone(), self.queues.iter().copied().chain(beside), config)
    }
}

/// Says why a world without a group cannot run this mode.
pub(super) fn missing(mode: &Mode) -> String {
    format!(
        "{mode} polls by a group of CPUs, and the world file has none: add [group] with cpus, such as cpus = \"2-3\""
    )
}

/// Reads the group, if there is one.
pub(super) fn resolve(
    check: &Check<'_>,
    raw: &Raw,
    (cores, queues): (u16, u16),
) -> Result<Option<PollingGroup>, WorldFileError> {
    let Some(group) = &raw.group else { return Ok(None) };
    if raw.is_af_xdp() {
        let problem = "an AF_XDP responder has its queues polled by its own threads' calls: remove [group]";
        return Err(check.error("group.cpus", &group.cpus, problem));
    }
    let cpus = list(check, "group.cpus", &group.cpus, ("core", cores))?;
    if cpus.len() == usize::from(cores) {
        let problem = format!("all {cores} cores are the group's: leave one to the workers");
        return Err(check.error("group.cpus", &group.cpus, problem));
    }
    if cpus.len() > GROUP_POLLERS_MAX {
        let problem = format!("{} cores: a group has {GROUP_POLLERS_MAX} at the most", cpus.len());
        return Err(check.error("group.cpus", &group.cpus, problem));
    }
    let members = match &group.queues {
        None => (0..queues).collect(),
        Some(list_of) => list(check, "group.queues", list_of, ("queue", queues))?,
    };
    fits(check, raw, members.len())?;
    Ok(Some(PollingGroup {
        cpus,
        queues: members.into_iter().map(u32::from).collect(),
        budget: Budget {
            empty_percent: percent(check, "group.cycles", &group.cycles, &CYCLES)?,
            total_percent: percent(check, "group.cycles_total", &group.cycles_total, &CYCLES)?,
        },
        thresholds: thresholds(check, group)?,
        dry_run: group.dry_run.unwrap_or(false),
    }))
}

/// With the transmit queues beside them, the members may be more than a group can have.
fn fits(check: &Check<'_>, raw: &Raw, queues: usize) -> Result<(), WorldFileError> {
    let (Some(group), Some(_)) = (&raw.group, &raw.transmit) else { return Ok(()) };
    if 2 * queues <= GROUP_MEMBERS_MAX {
        return Ok(());
    }
    let problem = format!(
        "{queues} queues and the transmit queues beside them are {} members of the group, which has {GROUP_MEMBERS_MAX} at \
         the most: allowed are {} queues in group.queues",
        2 * queues,
        GROUP_MEMBERS_MAX / 2
    );
    Err(match (&group.queues, &raw.nic.queues) {
        (Some(value), _) => check.error("group.queues", value, problem),
        (None, Some(value)) => check.error("nic.queues", value, problem),
        (None, None) => check.error("group.cpus", &group.cpus, problem),
    })
}

/// Reads a list of cores or queues, each named once, of which there are `count`.
fn list(
    check: &Check<'_>,
    key: &str,
    value: &Spanned<String>,
    (what, count): (&str, u16),
) -> Result<Vec<u16>, WorldFileError> {
    let numbers = lull_units::numbers(value.get_ref()).map_err(|problem| check.error(key, value, problem))?;
    let mut seen = BTreeSet::new();
    for number in &numbers {
        if *number >= usize::from(count) {
            let problem = format!("there is no {what} {number}: allowed are 0 to {}", count - 1);
            return Err(check.error(key, value, problem));
        }
        if !seen.insert(*number) {
            return Err(check.error(key, value, format!("{what} {number} is named twice: name it once")));
        }
    }
    Ok(numbers.into_iter().map(|number| number as u16).collect())
}

/// Reads whole percent, as the core counts them.
fn percent(
    check: &Check<'_>,
    key: &str,
    value: &Option<Spanned<Share>>,
    range: &RangeInclusive<u64>,
) -> Result<Option<u32>, WorldFileError> {
    let Some(value) = value else { return Ok(None) };
    let text = |permille: u64| format!("{}%", permille as f64 / 10.0);
    let permille = check.within(key, value, value.get_ref().0, range, text)?;
    if permille % 10 != 0 {
        return Err(check.error(key, value, "whole percent are allowed: 30%, 31% ..."));
    }
    Ok(Some((permille / 10) as u32))
}

fn thresholds(check: &Check<'_>, group: &raw::Group) -> Result<Thresholds, WorldFileError> {
    let default = Thresholds::default();
    let thresholds = Thresholds {
        wake_above: percent(check, "group.wake_above", &group.wake_above, &THRESHOLD)?.unwrap_or(default.wake_above),
        park_below: percent(check, "group.park_below", &group.park_below, &THRESHOLD)?.unwrap_or(default.park_below),
    };
    let config = GroupConfig { thresholds, ..GroupConfig::default() };
    config.check().map(|()| thresholds).map_err(|error| match (&group.park_below, &group.wake_above) {
        (Some(value), _) => check.error("group.park_below", value, error.to_string()),
        (None, Some(value)) => check.error("group.wake_above", value, error.to_string()),
        (None, None) => check.error("group.cpus", &group.cpus, error.to_string()),
    })
}
