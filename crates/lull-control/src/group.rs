//! Groups of a host, as the schema has them, and changes of them.

use lull_core::settings::WEIGHT_DEFAULT;
use lull_host::{GroupId, GroupInfo, GroupPollerInfo, Host, NapiInfo};

use crate::schema::{Group, GroupChange, GroupMember, GroupPoller};

/// The groups of a host.
pub(crate) fn groups(host: &Host) -> Vec<Group> {
    let napis = host.napis();
    host.groups().iter().map(|info| group(info, &napis)).collect()
}

fn group(info: &GroupInfo, napis: &[NapiInfo]) -> Group {
    let config = &info.options.config;
    let member = |(index, weight): &(u32, u32)| {
        let napi = napis.iter().find(|napi| napi.index == *index)?;
        Some(GroupMember {
            napi_id: napi.id,
            device: napi.device.clone(),
            queue: napi.queue,
            weight: *weight,
            polls: napi.stats.group_polls,
        })
    };
    Group {
        index: info.id.index(),
        rest_ns: config.rest_ns,
        empty_percent: config.budget.empty_percent,
        total_percent: config.budget.total_percent,
        wake_above: config.thresholds.wake_above,
        park_below: config.thresholds.park_below,
        node: info.node,
        members: info.members.iter().filter_map(member).collect(),
        pollers: info.pollers.iter().map(poller).collect(),
    }
}

fn poller(poller: &GroupPollerInfo) -> GroupPoller {
    let state = match (poller.info.awake, poller.info.resting) {
        (false, _) => "parked",
        (true, true) => "rests",
        (true, false) => "polls",
    };
    GroupPoller {
        cpu: poller.info.cpu,
        core: poller.core,
        thread: poller.tid,
        state: state.to_owned(),
        claim_age_ns: poller.claim_age_ns,
        stats: poller.info.stats,
    }
}

/// Carries a change out: CPUs come before NAPIs, and NAPIs go before CPUs. It stops at the first refusal, which says what it
/// was about.
///
/// # Errors
/// What was refused, in words.
pub(crate) fn change(host: &Host, change: &GroupChange) -> Result<Group, String> {
    let id = chosen(host, change.group)?;
    let words = |error: lull_host::HostError| error.to_string();
    for core in &change.attach {
        host.group_attach(id, cpu_of(host, *core)?).map_err(words)?;
    }
    for napi_id in &change.add {
        host.group_add(id, napi_of(host, *napi_id)?, change.weight.unwrap_or(WEIGHT_DEFAULT)).map_err(words)?;
    }
    for napi_id in &change.remove {
        host.group_remove(id, napi_of(host, *napi_id)?).map_err(words)?;
    }
    for core in &change.detach {
        host.group_detach(id, cpu_of(host, *core)?).map_err(words)?;
    }
    groups(host).into_iter().find(|group| group.index == id.index()).ok_or_else(|| format!("{id:?} was just removed"))
}

/// The group that is named, or the only one.
fn chosen(host: &Host, group: Option<u32>) -> Result<GroupId, String> {
    let all: Vec<GroupId> = host.groups().iter().map(|info| info.id).collect();
    let list = || all.iter().map(|id| id.index().to_string()).collect::<Vec<_>>().join(", ");
    match (group, &all[..]) {
        (_, []) => Err("it has no group of CPUs; start it in mode group or groupX, with --group-cpus".to_owned()),
        (None, [only]) => Ok(*only),
        (None, _) => Err(format!("it has groups {}; name one with --group", list())),
        (Some(index), _) => all
            .iter()
            .copied()
            .find(|id| id.index() == index)
            .ok_or_else(|| format!("it has no group {index}; it has {}", list())),
    }
}

fn cpu_of(host: &Host, core: usize) -> Result<u16, String> {
    let cpus = || (0..host.cpus() as u16).map(|cpu| (cpu, host.core(cpu)));
    let cores = || cpus().filter_map(|(_, core)| core).map(|core| core.to_string()).collect::<Vec<_>>().join(",");
    let found = cpus().find(|(_, of)| *of == Some(core)).map(|(cpu, _)| cpu);
    found.ok_or_else(|| format!("it may not use core {core}; it has {}", cores()))
}

fn napi_of(host: &Host, id: u32) -> Result<u32, String> {
    host.napi_by_id(id).ok_or_else(|| {
        let ids: Vec<_> = host.napis().iter().filter(|napi| napi.id != 0).map(|napi| napi.id.to_string()).collect();
        format!("it has no NAPI {id}; it has {}", ids.join(", "))
    })
}
