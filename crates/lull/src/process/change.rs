//! `lull set` and `lull undo` of a process that runs lull's user plane. On Linux's plane these go over netlink; here
//! they go over the process's control socket.

use lull_control::Client;
use lull_control::place::Places;
use lull_control::schema::{Answer, Change as Settings, Napi, Request, Set as Asked};
use lull_core::{NapiSettings, Threaded};
use lull_linux::device::{QueueKey, Thread};
use lull_linux::plan::{Change, Step};
use lull_linux::sched::{self, ThreadPolicy};
use lull_linux::set::{Set, Setting};
use lull_linux::{Roots, machine};

use super::show;
use crate::failure::Failure;

/// Puts settings in force on the named NAPIs, on all of them or none. Returns what has changed, or what would in a dry
/// run.
pub fn set(pid: u32, asked: &Set, dry_run: bool) -> Result<Vec<Change>, Failure> {
    let settings = settings_of(asked);
    let mut client = Client::connect(pid, &Places::default())?;
    let chosen = chosen(show(&mut client)?.napis, pid, asked)?;
    let of_thread = settings.thread_cpus.is_some() || settings.thread_policy.is_some();
    let is_without = |napi: &&Napi| settings.of(napi.settings).threaded == Threaded::Off;
    if let Some(napi) = chosen.iter().find(|napi| of_thread && is_without(napi)) {
        let queue = napi.queue;
        return Err(format!(
            "thread-cpus or thread-policy was given, and the NAPI of queue {queue} has no thread: give threaded=on as well"
        )
        .into());
    }
    let online = machine::online_cpus(&Roots::default());
    sched::check(settings.thread_cpus.as_deref(), settings.thread_policy, &online)?;
    let after =
        |napi: &Napi| changes(napi, settings.of(napi.settings), settings.thread_cpus.clone(), settings.thread_policy);
    let changes = chosen.iter().flat_map(after).collect();
    if !dry_run {
        let napi_ids = chosen.iter().map(|napi| napi.id).collect();
        let now = ask(&mut client, &Request::Set(Asked { napi_ids, change: settings }))?;
        // An older service ignores settings that it does not know, so they are refused here.
        if of_thread && now.iter().any(|napi| napi.scheduling.is_none()) {
            return Err(format!(
                "process {pid} runs a version of lull that does not set CPUs and policies of its threads: use taskset \
                 and chrt on the thread that `lull show {pid}` names"
            )
            .into());
        }
    }
    Ok(changes)
}

/// Restores what every NAPI had before the first `set`.
pub fn undo(pid: u32, dry_run: bool) -> Result<Vec<Change>, Failure> {
    let mut client = Client::connect(pid, &Places::default())?;
    let napis = show(&mut client)?.napis;
    let back = |napi: &Napi| {
        let thread = napi.former_scheduling.clone();
        let (cpus, policy) = (thread.as_ref().map(|it| it.cpus.clone()), thread.map(|it| it.policy));
        Some(changes(napi, napi.former?, cpus, policy))
    };
    let changes = napis.iter().filter_map(back).flatten().collect();
    if !dry_run {
        ask(&mut client, &Request::Undo)?;
    }
    Ok(changes)
}

fn ask(client: &mut Client, request: &Request) -> Result<Vec<Napi>, Failure> {
    match client.ask(request)? {
        Answer::Changed(napis) => Ok(napis),
        other => Err(format!("process {} answered a change with {other:?}", client.pid()).into()),
    }
}

/// Returns the NAPIs that are named; if none is, all that are enabled.
fn chosen(napis: Vec<Napi>, pid: u32, asked: &Set) -> Result<Vec<Napi>, Failure> {
    let which = &asked.which;
    let is_queue = |napi: &Napi, queue: u32| napi.queue as u32 == queue;
    let enabled: Vec<Napi> = napis.into_iter().filter(|napi| napi.id != 0).collect();
    if let Some(queue) = which.queues.iter().find(|queue| !enabled.iter().any(|napi| is_queue(napi, **queue))) {
        return Err(format!("process {pid} has no queue {queue}: `lull show {pid}` lists those there are").into());
    }
    if let Some(id) = which.napi_ids.iter().find(|id| !enabled.iter().any(|napi| napi.id == **id)) {
        return Err(format!("process {pid} has no NAPI {id}: `lull show {pid}` lists those there are").into());
    }
    let all = which.queues.is_empty() && which.napi_ids.is_empty();
    let is_named = |napi: &Napi| {
        all || which.napi_ids.contains(&napi.id) || which.queues.iter().any(|queue| is_queue(napi, *queue))
    };
    Ok(enabled.into_iter().filter(is_named).collect())
}

fn settings_of(asked: &Set) -> Settings {
    let mut settings = Settings::default();
    for setting in &asked.settings {
        match setting {
            Setting::DeferHardIrqs(count) => settings.defer_hard_irqs = Some(*count),
            Setting::GroFlushTimeoutNs(ns) => settings.gro_flush_timeout_ns = Some(*ns),
            Setting::IrqSuspendTimeoutNs(ns) => settings.irq_suspend_timeout_ns = Some(*ns),
            Setting::Threaded(threaded) => settings.threaded = Some(*threaded),
            Setting::ThreadCpus(cpus) => settings.thread_cpus = Some(cpus.clone()),
            Setting::ThreadPolicy(policy) => settings.thread_policy = Some(*policy),
        }
    }
    settings
}

/// Returns the changes that new settings and thread parameters amount to, setting by setting.
fn changes(napi: &Napi, to: NapiSettings, cpus: Option<Vec<usize>>, policy: Option<ThreadPolicy>) -> Vec<Change> {
    let key = QueueKey::Rx(napi.queue as u32);
    let thread = napi.thread.map(|pid| Thread { pid, scheduling: napi.scheduling.clone() });
    let (from, thread_cpus, thread_policy) = (napi.settings, cpus, policy);
    Step { key, napi_id: napi.id, from, to, thread, thread_cpus, thread_policy }.changes()
}
