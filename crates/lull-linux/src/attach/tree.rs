//! The processes of a program: the one that was named, its children, and theirs.
//!
//! A process is held by its pidfd and identified by its number and start time, so that a number which the kernel gives
//! to another process later is never taken for it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use crate::error::{Error, Result};
use crate::proc_stat::{stat, try_stat};
use crate::programs::{self, Process};
use crate::roots::Roots;

/// One process.
pub(crate) struct Member {
    /// Its number.
    pub(crate) pid: i32,
    /// When it started, in clock ticks since the boot (`/proc/P/stat`, field 22).
    pub(crate) start: u64,
    /// Its descriptors.
    pub(crate) process: Process,
    pidfd: OwnedFd,
}

impl Member {
    /// Opens a process.
    ///
    /// # Errors
    /// [`Error::NoProcess`]; [`Error::Input`] for a thread that is not the first of its process; an error if no
    /// descriptor is left.
    pub(crate) fn open(pid: i32, roots: &Roots) -> Result<Member> {
        let unknown = || Error::NoProcess { pid };
        let failed = |error| Error::os(format!("open process {pid}"), "allow more open files (ulimit -n)", error);
        let number = if pid > 0 { Pid::from_raw(pid) } else { None };
        let before = try_stat(pid, roots).map_err(failed)?.ok_or_else(unknown)?;
        let pidfd = match pidfd_open(number.ok_or_else(unknown)?, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
                let process = thread_group(pid, roots).ok_or_else(unknown)?;
                return Err(is_thread_of(pid, process));
            }
            Err(rustix::io::Errno::SRCH) => return Err(unknown()),
            Err(error) => return Err(failed(error.into())),
        };
        let process = Process::open(pid, roots)?;
        // Both descriptors refer to the process that was there before, unless the number has changed hands meanwhile.
        let after = try_stat(pid, roots).map_err(failed)?.ok_or_else(unknown)?;
        if before.start != after.start {
            return Err(unknown());
        }
        Ok(Member { pid, start: after.start, process, pidfd })
    }

    /// Opens the process that started at this time; `None` if the number is nobody's by now, or another process's or
    /// thread's.
    ///
    /// # Errors
    /// It cannot be told which process it is, for example because no descriptor is left.
    pub(crate) fn started(pid: i32, start: u64, roots: &Roots) -> Result<Option<Member>> {
        match Member::open(pid, roots) {
            Ok(member) => Ok(Some(member).filter(|member| member.start == start)),
            Err(Error::NoProcess { .. } | Error::Input { .. }) => Ok(None),
            Err(error) if is_of_another_user(pid, &error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it has ended. A zombie has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ready = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // A pidfd is readable from the end of the process on.
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }
}

/// Whether a process whose files may not be read (with a `/proc` mounted with hidepid=1) is one that this user may not
/// even signal. Then it is none of those that were attached to. A process of the user's own that may no longer be
/// traced can be signalled.
fn is_of_another_user(pid: i32, error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EPERM | libc::EACCES))
        && Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::PERM))
}

/// A program's processes, kept up to date.
pub(crate) struct Tree {
    roots: Roots,
    members: Vec<Member>,
    with_children: bool,
}

/// What has changed in a tree.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) started: Vec<i32>,
    pub(crate) ended: Vec<i32>,
}

impl Tree {
    pub(crate) fn of(root: Member, roots: &Roots) -> Tree {
        Tree { roots: roots.clone(), members: vec![root], with_children: true }
    }

    /// Leaves children out from now on.
    pub(crate) fn leave_children_out(&mut self) {
        self.with_children = false;
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Drops processes that have ended and finds those that were started. Children are looked for first, because a
    /// parent that has ended since the last look still exists as long as nobody has waited for it.
    pub(crate) fn refresh(&mut self) -> Changes {
        let mut changes = Changes::default();
        let mut next = 0;
        while let Some(parent) = self.members.get(next).filter(|_| self.with_children) {
            next += 1;
            let (parent, start) = (parent.pid, parent.start);
            let found = children(parent, &self.roots);
            // A process that was waited for since the last look has given up its number, perhaps to a stranger with
            // children.
            if stat(parent, &self.roots).is_none_or(|now| now.start != start) {
                continue;
            }
            for child in found {
                // A shell that is attached to may be the one from which lull was started.
                if child == std::process::id() as i32 {
                    continue;
                }
                if self.members.iter().any(|member| member.pid == child && !member.has_ended()) {
                    continue;
                }
                let Ok(member) = Member::open(child, &self.roots) else { continue };
                if stat(child, &self.roots).is_some_and(|now| now.parent == parent && now.start == member.start) {
                    changes.started.push(child);
                    self.members.push(member);
                }
            }
        }
        self.members.retain(|member| {
            let ended = member.has_ended();
            if ended {
                changes.ended.push(member.pid);
            }
            !ended
        });
        changes
    }
}

/// Refuses a thread that is not its process's first.
///
/// # Errors
/// [`Error::Input`] with its process.
pub(super) fn refuse_thread(pid: i32, roots: &Roots) -> Result<()> {
    match thread_group(pid, roots) {
        Some(process) if process != pid => Err(is_thread_of(pid, process)),
        _ => Ok(()),
    }
}

fn is_thread_of(thread: i32, process: i32) -> Error {
    Error::Input {
        what: format!("{thread} is a thread, not a process"),
        remedy: format!("name its process, {process}"),
    }
}

fn thread_group(thread: i32, roots: &Roots) -> Option<i32> {
    let status = roots.read_proc(&format!("{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The children of a process. They are read from `children` of each of its threads, or, in a kernel without that file
/// (CONFIG_PROC_CHILDREN), found by looking at everybody's parent.
pub(crate) fn children(pid: i32, roots: &Roots) -> BTreeSet<i32> {
    if !roots.proc(&format!("{pid}/task/{pid}/children")).exists() {
        let child = |it: &i32| stat(*it, roots).is_some_and(|stat| stat.parent == pid);
        return programs::processes(roots).into_iter().filter(child).collect();
    }
    let Ok(threads) = std::fs::read_dir(roots.proc(&format!("{pid}/task"))) else { return BTreeSet::new() };
    let lists = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|it| it.parse().ok()).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::detach_diff;
    use crate::options::Options;
    use crate::proc_stat::start_of;

    fn sleeps() -> std::process::Child {
        let _starting = crate::starting::a_program();
        std::process::Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn a_child_is_found_and_its_end_is_noticed() {
        let roots = Roots::default();
        let me = Member::open(std::process::id() as i32, &roots).unwrap();
        let mut tree = Tree::of(me, &roots);
        let mut child = sleeps();
        let pid = child.id() as i32;
        assert!(tree.refresh().started.contains(&pid));
        assert!(!tree.refresh().started.contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tree.refresh().ended.contains(&pid));
        assert_eq!(start_of(pid, &roots), None);
    }

    #[test]
    fn children_of_a_stranger_with_a_members_number_are_not_the_programs() {
        let roots = Roots::default();
        let mut me = Member::open(std::process::id() as i32, &roots).unwrap();
        // This is as if a member had started before this process, which has got the member's number since.
        me.start -= 1;
        let mut tree = Tree::of(me, &roots);
        let mut child = sleeps();
        let adopted = tree.refresh().started;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(adopted.is_empty(), "{adopted:?}");
    }

    #[test]
    fn threads_are_told_from_processes() {
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = stopped.recv();
        });
        let tid = told.recv().unwrap();
        let said = Member::open(tid, &Roots::default()).err().unwrap().to_string();
        assert!(said.contains("is a thread") && said.contains(&std::process::id().to_string()), "{said}");
        // Nothing of it was set, which is no answer to who takes it for a process.
        let options = Options::in_dir(&std::env::temp_dir().join(format!("lull-thread-{tid}")));
        assert_eq!(detach_diff(tid, &options).unwrap_err().to_string(), said);
        drop(stop);
        thread.join().unwrap();
    }
}
