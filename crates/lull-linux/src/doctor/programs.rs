//! Checks of programs: who polls which NAPI, and whether programs disturb each other.

use std::collections::BTreeSet;

use super::check::Check;
use super::{sampling, timers};
use crate::attach::OnContext;
use crate::device::Snapshot;
use crate::error::Error;
use crate::programs::{EpollContext, Polling, Process, may_not_trace, name_of, polling};
use crate::roots::Roots;
use crate::spans::spans;

pub fn checks(snapshot: Option<&Snapshot>, process: Option<&Process>, roots: &Roots) -> Vec<Check> {
    let mut checks = Vec::new();
    let polling = polling(roots);
    if polling.hidden != 0 {
        checks.push(Check::unknown(
            "programs",
            format!("{} processes could not be looked into", polling.hidden),
            may_not_trace(roots),
        ));
    }
    if let Some(snapshot) = snapshot {
        checks.push(shared_napis(snapshot, &polling));
    }
    let Some(process) = process else { return checks };
    match process.epolls() {
        Ok(contexts) => checks.extend(of_process(process, &contexts, snapshot, roots)),
        Err(error) => {
            let (reason, remedy) = match error {
                Error::Os { what, remedy, source, said: None } => (format!("cannot {what}: {source}"), remedy),
                error => (error.to_string(), "name a process that runs".to_owned()),
            };
            checks.push(Check::unknown(format!("process {}", process.pid()), reason, remedy));
        }
    }
    checks
}

fn of_process(process: &Process, contexts: &[EpollContext], snapshot: Option<&Snapshot>, roots: &Roots) -> Vec<Check> {
    let named = format!("{} (pid {})", name_of(process.pid(), roots), process.pid());
    if contexts.is_empty() {
        let reason = "it has no epoll context: preferred busy polling and suspension go through epoll";
        return vec![Check::wrong(named, reason, "use busyread, or a mode that leaves the program out")];
    }
    let mut checks = vec![prefers(&named, contexts), napi_ids(&named, process, contexts), mixed(&named, contexts)];
    if let Some(snapshot) = snapshot {
        checks.push(workers(&named, contexts, snapshot));
        checks.extend(timers::batches(&named, process.pid(), contexts, snapshot, roots));
    }
    checks.push(sampling::zero_timeouts(&named, process.pid(), roots));
    checks
}

fn prefers(named: &str, contexts: &[EpollContext]) -> Check {
    let what = format!("epoll of {named}");
    let on = contexts.iter().filter(|context| context.params.prefer_busy_poll).count();
    let all = contexts.len();
    if on == 0 {
        return Check::advice(
            what,
            format!(
                "none of {all} contexts prefers busy polling: suspendX, napibusy and fullbusy are not in force for it"
            ),
            "`lull attach --pid PID --mode MODE`, which stays and follows it, or with --once sets and leaves",
        );
    }
    Check::ok(what, format!("{on} of {all} contexts prefer busy polling"))
}

fn heard(context: &EpollContext) -> BTreeSet<u32> {
    context.sockets.iter().map(|socket| socket.napi_id).filter(|&id| id != 0).collect()
}

fn napi_ids(named: &str, process: &Process, contexts: &[EpollContext]) -> Check {
    let what = format!("NAPI ids of {named}");
    let looked: Vec<OnContext> = contexts.iter().filter_map(|it| OnContext::look(process, it.fd).ok()).collect();
    let known: usize = looked.iter().flat_map(|it| it.by_napi.values()).map(Vec::len).sum();
    let without: usize = looked.iter().map(|it| it.without_napi.len()).sum();
    match (known, without) {
        (0, 0) => Check::unknown(
            what,
            "no connection over a device on its epolls now: sockets that listen, and those over loopback, have none",
            "look again under load",
        ),
        (0, _) => Check::wrong(
            what,
            format!("none of {without} connections has one: without it epoll never busy polls"),
            "send it traffic through a device with NAPIs; on a veth turn the peer's TSO off",
        ),
        _ => Check::ok(what, format!("{known} of {} connections have one", known + without)),
    }
}

/// The rule is edge 15 of napi_semantics §13.
fn mixed(named: &str, contexts: &[EpollContext]) -> Check {
    let what = format!("queues of {named}");
    match spans(contexts).first() {
        Some(span) => Check::wrong(what, span.to_string(), span.remedy()),
        None => Check::ok(what, "no epoll context mixes NAPIs"),
    }
}

fn workers(named: &str, contexts: &[EpollContext], snapshot: &Snapshot) -> Check {
    let what = format!("workers of {named}");
    let here =
        |context: &&EpollContext| heard(context).iter().any(|id| snapshot.napis.iter().any(|napi| napi.id == *id));
    let workers = contexts.iter().filter(here).count();
    let napis = snapshot.napis.len();
    if workers > napis {
        return Check::wrong(
            what,
            format!("{workers} epoll contexts hear from the {napis} NAPIs of {}: some share one", snapshot.device),
            format!("run {napis} workers, or give the device more queues (ethtool -L)"),
        );
    }
    Check::ok(what, format!("{workers} epoll contexts hear from the {napis} NAPIs of {}", snapshot.device))
}

/// The rule is edge 16 of napi_semantics §13.
fn shared_napis(snapshot: &Snapshot, polling: &Polling) -> Check {
    let what = format!("programs on {}", snapshot.device);
    let mut polled = 0;
    for napi in &snapshot.napis {
        let here = polling.contexts.iter().filter(|context| heard(context).contains(&napi.id)).collect::<Vec<_>>();
        polled += usize::from(!here.is_empty());
        if let [one, other, ..] = here[..] {
            return Check::wrong(
                what,
                format!(
                    "{} epoll contexts busy poll NAPI {} (pid {} epoll {}, pid {} epoll {}): the idle one \
                     ends the busy one's suspension",
                    here.len(),
                    napi.id,
                    one.pid,
                    one.fd,
                    other.pid,
                    other.fd
                ),
                "one worker for each NAPI, with its connections by SO_INCOMING_NAPI_ID",
            );
        }
    }
    Check::ok(what, format!("no NAPI is polled by two epoll contexts; {polled} of {} are by one", snapshot.napis.len()))
}
