//! The groups of a host in the form of the schema, and changes of them.

use lull_core::settings::WEIGHT_DEFAULT;
use lull_host::{GroupId, GroupInfo, GroupPollerInfo, Host, HostError, NapiInfo};

use crate::schema::{Group, GroupChange, GroupMember, GroupPoller};

/// Lists the groups of a host.
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

/// Carries a change out. CPUs are attached before NAPIs are added, and NAPIs are removed before CPUs are detached. If a
/// part is refused, what was done before it is taken back.
///
/// # Errors
/// The first refusal; the text says what was refused.
pub(crate) fn change(host: &Host, change: &GroupChange) -> Result<Group, String> {
    let id = chosen(host, change.group)?;
    let before = info(host, id)?;
    let steps = steps(host, change)?;
    if let Err(error) = steps.into_iter().try_for_each(|step| step.carry_out(host, id)) {
        return Err(match take_back(host, &before) {
            Ok(()) => error.to_string(),
            Err(kept) => format!("{error}; and what was changed before that stays so: {kept}"),
        });
    }
    Ok(group(&info(host, id)?, &host.napis()))
}

/// One part of a change.
enum Step {
    Attach(u16),
    Add { napi: u32, weight: u32 },
    Remove(u32),
    Detach(u16),
}

impl Step {
    fn carry_out(self, host: &Host, id: GroupId) -> Result<(), HostError> {
        match self {
            Step::Attach(cpu) => host.group_attach(id, cpu),
            Step::Add { napi, weight } => host.group_add(id, napi, weight),
            Step::Remove(napi) => host.group_remove(id, napi),
            Step::Detach(cpu) => host.group_detach(id, cpu),
        }
    }
}

/// The parts of a change, in their order. It is an error to name a core or a NAPI that does not exist.
fn steps(host: &Host, change: &GroupChange) -> Result<Vec<Step>, String> {
    let weight = change.weight.unwrap_or(WEIGHT_DEFAULT);
    let attach = change.attach.iter().map(|core| cpu_of(host, *core).map(Step::Attach));
    let add = change.add.iter().map(|id| napi_of(host, *id).map(|napi| Step::Add { napi, weight }));
    let remove = change.remove.iter().map(|id| napi_of(host, *id).map(Step::Remove));
    let detach = change.detach.iter().map(|core| cpu_of(host, *core).map(Step::Detach));
    attach.chain(add).chain(remove).chain(detach).collect()
}

/// Makes a group what it was before. Its last CPU may have been detached, and all members with it.
fn take_back(host: &Host, before: &GroupInfo) -> Result<(), String> {
    let now = info(host, before.id)?;
    let cpus = |info: &GroupInfo| info.pollers.iter().map(|it| it.info.cpu).collect::<Vec<u16>>();
    let (cpus_then, cpus_now) = (cpus(before), cpus(&now));
    let is_in = |info: &GroupInfo, napi: u32| info.members.iter().any(|(member, _)| *member == napi);
    let attach = cpus_then.iter().filter(|cpu| !cpus_now.contains(cpu)).map(|cpu| Step::Attach(*cpu));
    let remove = now.members.iter().filter(|(napi, _)| !is_in(before, *napi)).map(|(napi, _)| Step::Remove(*napi));
    let add = before.members.iter().filter(|(napi, _)| !is_in(&now, *napi));
    let add = add.map(|(napi, weight)| Step::Add { napi: *napi, weight: *weight });
    let detach = cpus_now.iter().filter(|cpu| !cpus_then.contains(cpu)).map(|cpu| Step::Detach(*cpu));
    let mut steps = attach.chain(remove).chain(add).chain(detach);
    steps.try_for_each(|step| step.carry_out(host, before.id)).map_err(|error| error.to_string())
}

fn info(host: &Host, id: GroupId) -> Result<GroupInfo, String> {
    host.groups().into_iter().find(|group| group.id == id).ok_or_else(|| format!("{id:?} was just removed"))
}

/// The group that the request names, or else the only one.
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
