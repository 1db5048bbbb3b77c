//! The check of a process on lull's user plane, which shows the mode that is in force there; its epoll contexts in the
//! kernel do not show it.

use lull_linux::doctor::{Check, Verdict};

use crate::process::Process;

/// Returns the modes that process `pid` has in force on lull's own stack, or `None` if it does not run it.
pub(super) fn check(pid: i32) -> Option<Check> {
    let process = Process::of(u32::try_from(pid).ok()?).ok()?;
    let (service, queues) = (process.service(), process.modes_by_queue());
    let modes = queues.iter().map(|(queue, mode)| format!("{queue} is in {mode}")).collect::<Vec<_>>().join(", ");
    let reason = format!("it runs lull's user plane: {modes}; `lull show {pid}` has the settings");
    Some(Check { what: format!("{service} (pid {pid})"), verdict: Verdict::Ok, reason, remedy: None })
}
