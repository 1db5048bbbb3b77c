//! A process on lull's user plane: the mode that is in force there, of which its epoll contexts in the kernel say nothing.

use lull_linux::doctor::{Check, Verdict};

use crate::process::Process;

/// What process `pid` has in force on lull's own stack; none, if it does not run it.
pub(super) fn check(pid: i32) -> Option<Check> {
    let process = Process::of(u32::try_from(pid).ok()?).ok()?;
    let (service, queues) = (process.service(), process.modes_by_queue());
    let modes = queues.iter().map(|(queue, mode)| format!("{queue} is in {mode}")).collect::<Vec<_>>().join(", ");
    let reason = format!("it runs lull's user plane: {modes}; `lull show {pid}` has the settings");
    Some(Check { what: format!("{service} (pid {pid})"), verdict: Verdict::Ok, reason, remedy: None })
}
