//! `lull set` and `lull undo` of a process that runs lull's user plane: what Linux's plane does over netlink, over the
//! process's control socket.

use lull_control::Client;
use lull_control::place::Places;
use lull_control::schema::{Answer, Change as Settings, Napi, Request, Set as Asked};
use lull_core::NapiSettings;
use lull_linux::device::QueueKey;
use lull_linux::plan::{Change, Step};
use lull_linux::set::{Set, Setting};

use super::show;
use crate::Failure;

/// Puts settings in force on the NAPIs that are named, all or none; what has changed, or would in a dry run.
pub fn set(pid: u32, asked: &Set, dry_run: bool) -> Result<Vec<Change>, Failure> {
    let settings = settings_of(pid, asked)?;
    let mut client = Client::connect(pid, &Places::default())?;
    let chosen = chosen(show(&mut client)?.napis, pid, asked)?;
    let changes = chosen.iter().flat_map(|napi| changes(napi, settings.of(napi.settings))).collect();
    if !dry_run {
        let napi_ids = chosen.iter().map(|napi| napi.id).collect();
        ask(&mut client, &Request::Set(Asked { napi_ids, change: settings }))?;
    }
    Ok(changes)
}

/// Gives every NAPI back what it had before the first `set`.
pub fn undo(pid: u32, dry_run: bool) -> Result<Vec<Change>, Failure> {
    let mut client = Client::connect(pid, &Places::default())?;
    let napis = show(&mut client)?.napis;
    let changes = napis.iter().filter_map(|napi| Some(changes(napi, napi.former?))).flatten().collect();
    if !dry_run {
        ask(&mut client, &Request::Undo)?;
    }
    Ok(changes)
}

fn ask(client: &mut Client, request: &Request) -> Result<(), Failure> {
    match client.ask(request)? {
        Answer::Changed(_) => Ok(()),
        other => Err(format!("process {} answered a change with {other:?}", client.pid()).into()),
    }
}

/// The NAPIs that are named; all that are enabled, if none is.
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

fn settings_of(pid: u32, asked: &Set) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    for setting in &asked.settings {
        match setting {
            Setting::DeferHardIrqs(count) => settings.defer_hard_irqs = Some(*count),
            Setting::GroFlushTimeoutNs(ns) => settings.gro_flush_timeout_ns = Some(*ns),
            Setting::IrqSuspendTimeoutNs(ns) => settings.irq_suspend_timeout_ns = Some(*ns),
            Setting::Threaded(threaded) => settings.threaded = Some(*threaded),
            Setting::ThreadCpus(_) | Setting::ThreadPolicy(_) => {
                return Err(format!(
                    "cannot set {} of process {pid} over its control socket: use taskset and chrt on the thread that \
                     `lull show {pid}` names",
                    setting.key()
                )
                .into());
            }
        }
    }
    Ok(settings)
}

fn changes(napi: &Napi, to: NapiSettings) -> Vec<Change> {
    let key = QueueKey::Rx(napi.queue as u32);
    let (from, thread_cpus, thread_policy) = (napi.settings, None, None);
    Step { key, napi_id: napi.id, from, to, thread: None, thread_cpus, thread_policy }.changes()
}
