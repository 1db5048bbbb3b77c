//! The application's half, seen from outside: which epoll contexts a running program has, their busy-poll parameters,
//! the sockets on them and the NAPIs that these hear from.
//!
//! A context is looked at through a duplicate of its descriptor (`pidfd_getfd(2)`), because its parameters live on the
//! open file. A duplicate is closed before the function that made it returns: one that is kept would keep the context
//! alive after the program has closed it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use lull_core::EpollParams;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::os;
use crate::roots::Roots;

/// What `/proc/P/fd/N` of an epoll descriptor links to.
const EPOLL_LINK: &str = "anon_inode:[eventpoll]";

/// A process whose descriptors can be duplicated.
pub struct Process {
    pid: i32,
    pidfd: OwnedFd,
    roots: Roots,
}

/// One epoll context of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpollContext {
    /// The process.
    pub pid: i32,
    /// Its descriptor (the lowest, if several stand for the same context).
    pub fd: i32,
    /// Its busy-poll parameters.
    pub params: EpollParams,
    /// The sockets on it.
    pub sockets: Vec<EpollSocket>,
}

/// A socket on an epoll context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EpollSocket {
    /// The process's descriptor.
    pub fd: i32,
    /// The NAPI that delivered its last packet; 0 if none is known (`SO_INCOMING_NAPI_ID`).
    pub napi_id: u32,
}

impl EpollContext {
    /// Whether it busy polls or prefers to, by its own parameters.
    pub fn is_on(&self) -> bool {
        self.params.prefer_busy_poll || self.params.busy_poll_usecs != 0
    }

    /// How many of its sockets hear from which NAPI; sockets that have heard from none are under 0.
    pub fn napis(&self) -> BTreeMap<u32, usize> {
        let mut napis = BTreeMap::new();
        for socket in &self.sockets {
            *napis.entry(socket.napi_id).or_default() += 1;
        }
        napis
    }
}

/// The epoll contexts of a process, in the order of their descriptors.
///
/// # Errors
/// [`Error::NoProcess`], or the refusal of `pidfd_getfd(2)`, which takes the rights of `ptrace(2)`.
pub fn epolls_of(pid: i32) -> Result<Vec<EpollContext>> {
    let process = Process::open(pid, &Roots::default())?;
    process.epolls()
}

impl Process {
    /// Opens a process.
    ///
    /// # Errors
    /// [`Error::NoProcess`] if it does not exist.
    pub fn open(pid: i32, roots: &Roots) -> Result<Process> {
        let unknown = || Error::NoProcess { pid };
        let number = if pid > 0 { Pid::from_raw(pid) } else { None };
        match pidfd_open(number.ok_or_else(unknown)?, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Process { pid, pidfd, roots: roots.clone() }),
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => Err(unknown()),
            Err(error) => Err(Error::os(format!("open process {pid}"), "it takes Linux 5.6 or newer", error.into())),
        }
    }

    /// The number of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The descriptors that are epoll contexts.
    ///
    /// # Errors
    /// [`Error::NoProcess`] if it has ended, or no right to look.
    pub fn epoll_descriptors(&self) -> Result<Vec<i32>> {
        let contexts = self.links()?.into_iter().filter(|(_, target)| target.as_os_str() == EPOLL_LINK);
        Ok(contexts.map(|(fd, _)| fd).collect())
    }

    /// Its descriptors in their order, and what each is a link to.
    ///
    /// # Errors
    /// As [`Process::epoll_descriptors`].
    pub(crate) fn links(&self) -> Result<Vec<(i32, PathBuf)>> {
        const WHAT: &str = "list the descriptors of";
        let directory = self.roots.proc(&format!("{}/fd", self.pid));
        let entries = std::fs::read_dir(&directory).map_err(|error| self.failed(WHAT, error))?;
        let mut links = Vec::new();
        for entry in entries {
            // A process that ends meanwhile has no descriptors.
            let Ok(entry) = entry else { break };
            let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            match std::fs::read_link(entry.path()) {
                Ok(target) => links.push((fd, target)),
                // Closed since it was listed.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
                // A file whose path is longer than a path may be: neither a socket nor an epoll context.
                Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => {}
                Err(error) => return Err(self.failed(WHAT, error)),
            }
        }
        links.sort_unstable_by_key(|(fd, _)| *fd);
        Ok(links)
    }

    /// A duplicate of one of its descriptors. Close it soon: it keeps the file open.
    ///
    /// # Errors
    /// [`Error::NoProcess`], EBADF for a descriptor that is closed, EPERM without the right to trace the process.
    pub fn duplicate(&self, fd: i32) -> Result<OwnedFd> {
        pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty())
            .map_err(|error| self.failed(&format!("duplicate descriptor {fd} of"), error.into()))
    }

    /// Its epoll contexts with their parameters and sockets. A context that is closed meanwhile is left out.
    ///
    /// # Errors
    /// [`Error::NoProcess`], or no right to look.
    pub fn epolls(&self) -> Result<Vec<EpollContext>> {
        let mut contexts: Vec<EpollContext> = Vec::new();
        for fd in self.epoll_descriptors()? {
            let known = |known: &EpollContext| os::same_file((self.pid, known.fd), (self.pid, fd)).unwrap_or(false);
            if contexts.iter().any(known) {
                continue;
            }
            if let Some(context) = closed(self.epoll(fd))? {
                contexts.push(context);
            }
        }
        Ok(contexts)
    }

    /// Those of its epoll contexts that busy poll or prefer to; the sockets of the others are left in peace.
    fn polling_epolls(&self) -> Result<Vec<EpollContext>> {
        let mut contexts = Vec::new();
        for fd in self.epoll_descriptors()? {
            let Some(params) = closed(self.epoll_params(fd))? else { continue };
            let mut context = EpollContext { pid: self.pid, fd, params, sockets: Vec::new() };
            if context.is_on() {
                context.sockets = self.sockets_on(fd)?;
                contexts.push(context);
            }
        }
        Ok(contexts)
    }

    /// One epoll context.
    ///
    /// # Errors
    /// As [`Process::duplicate`], and kernels before 6.9, whose contexts have no parameters.
    pub fn epoll(&self, fd: i32) -> Result<EpollContext> {
        let params = self.epoll_params(fd)?;
        Ok(EpollContext { pid: self.pid, fd, params, sockets: self.sockets_on(fd)? })
    }

    /// The parameters of one epoll context.
    ///
    /// # Errors
    /// As [`Process::epoll`].
    pub fn epoll_params(&self, fd: i32) -> Result<EpollParams> {
        let epoll = self.duplicate(fd)?;
        os::epoll_params(epoll.as_fd()).map_err(|error| {
            let what = format!("read the busy-poll parameters of descriptor {fd} of process {}", self.pid);
            Error::os(what, "they take an epoll descriptor and Linux 6.9 or newer", error)
        })
    }

    /// The sockets on an epoll context, by the numbers that they had when they were added. A number that stands for
    /// another file by now, or for none, is left out: only the context itself still knows that socket.
    fn sockets_on(&self, epoll: i32) -> Result<Vec<EpollSocket>> {
        let path = self.roots.proc(&format!("{}/fdinfo/{epoll}", self.pid));
        let Some(listed) =
            closed(std::fs::read_to_string(path).map_err(|error| self.failed("read an epoll of", error)))?
        else {
            return Ok(Vec::new());
        };
        let mut sockets = Vec::new();
        for (fd, inode) in listed.lines().filter_map(target) {
            let Some(file) = closed(self.duplicate(fd))? else { continue };
            if !rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_ino == inode) {
                continue;
            }
            // What is no socket (an eventfd, a timer) refuses.
            if let Ok(napi_id) = os::incoming_napi_id(file.as_fd()) {
                sockets.push(EpollSocket { fd, napi_id });
            }
        }
        Ok(sockets)
    }

    fn failed(&self, what: &str, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ESRCH) => Error::NoProcess { pid: self.pid },
            Some(libc::ENOENT) if !self.is_alive() => Error::NoProcess { pid: self.pid },
            Some(libc::EPERM | libc::EACCES) => Error::Os {
                what: format!("{what} process {}", self.pid),
                remedy: may_not_trace(&self.roots),
                source: error,
                said: None,
            },
            _ => Error::os(format!("{what} process {}", self.pid), "the process may have changed: try again", error),
        }
    }

    fn is_alive(&self) -> bool {
        self.roots.proc(&format!("{}/stat", self.pid)).exists()
    }
}

/// What to do without the right to trace a process: Yama asks for more than the same user (`yama_ptrace_access_check`).
pub fn may_not_trace(roots: &Roots) -> String {
    let scope = roots.read_proc("sys/kernel/yama/ptrace_scope").ok().and_then(|text| text.parse::<u32>().ok());
    let what = "kernel.yama.ptrace_scope";
    match scope {
        None | Some(0) => {
            "run it as root with CAP_SYS_PTRACE (in Docker: --cap-add SYS_PTRACE), or as the process's user".to_owned()
        }
        Some(scope @ 1..=2) => format!(
            "{what} is {scope}, so it takes CAP_SYS_PTRACE even as the process's user: run it as root, or \
             `sysctl -w {what}=0`"
        ),
        Some(scope) => format!(
            "{what} is {scope}, so nobody may, root neither, until the machine boots with a lower one: start the \
             program with `lull run`, which does without"
        ),
    }
}

/// Takes a descriptor that was closed meanwhile for nothing.
fn closed<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(error) if matches!(error.errno(), Some(libc::EBADF | libc::ENOENT)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Descriptor and inode of a line such as `tfd: 8 events: 19 data: 8 pos:0 ino:a53 sdev:8`.
fn target(line: &str) -> Option<(i32, u64)> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let inode = words.find_map(|word| word.strip_prefix("ino:"))?;
    Some((fd, u64::from_str_radix(inode, 16).ok()?))
}

/// The epoll contexts of the machine that busy poll, or prefer to.
#[derive(Clone, Debug, Default)]
pub struct Polling {
    /// The contexts, each once, however many processes share it.
    pub contexts: Vec<EpollContext>,
    /// Processes that could not be looked into.
    pub hidden: usize,
}

/// Looks through all processes for epoll contexts that busy poll by their own parameters.
pub fn polling(roots: &Roots) -> Polling {
    let mut found = Polling::default();
    for pid in processes(roots) {
        match Process::open(pid, roots).and_then(|process| process.polling_epolls()) {
            Ok(contexts) => {
                for context in contexts {
                    let same = |known: &EpollContext| {
                        os::same_file((known.pid, known.fd), (context.pid, context.fd)).unwrap_or(false)
                    };
                    if !found.contexts.iter().any(same) {
                        found.contexts.push(context);
                    }
                }
            }
            // A kernel without the parameters has nobody who uses them.
            Err(error) if error.errno() == Some(libc::ENOTTY) => {}
            Err(Error::NoProcess { .. }) => {}
            Err(_) => found.hidden += 1,
        }
    }
    found
}

/// All processes that there are.
pub fn processes(roots: &Roots) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(&roots.proc) else { return Vec::new() };
    let mut pids: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect();
    pids.sort_unstable();
    pids
}

/// A program as it is named in listings.
pub fn name_of(pid: i32, roots: &Roots) -> String {
    roots.read_proc(&format!("{pid}/comm")).unwrap_or_else(|_| "?".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_fdinfo() {
        let line = "tfd:       12 events:       19 data:                c  pos:0 ino:1f4a sdev:8";
        assert_eq!(target(line), Some((12, 0x1f4a)));
        assert_eq!(target("flags:\t02000002"), None);
        assert_eq!(target("tfd: x"), None);
    }

    #[test]
    fn a_refusal_names_yama_where_it_restricts() {
        let root = std::env::temp_dir().join(format!("lull-yama-{}", std::process::id()));
        let roots = Roots { sys: root.join("sys"), proc: root.join("proc") };
        let yama = roots.proc("sys/kernel/yama");
        std::fs::create_dir_all(&yama).unwrap();
        let process = Process::open(std::process::id() as i32, &roots).unwrap();
        let mut said = Vec::new();
        for scope in ["", "0", "1", "2", "3"] {
            std::fs::write(yama.join("ptrace_scope"), scope).unwrap();
            let refusal = io::Error::from_raw_os_error(libc::EPERM);
            said.push(process.failed("duplicate descriptor 5 of", refusal).to_string());
        }
        std::fs::remove_dir_all(&root).unwrap();
        assert!(said[..2].iter().all(|it| it.contains("CAP_SYS_PTRACE") && !it.contains("yama")), "{said:?}");
        for (scope, said) in said[2..4].iter().enumerate() {
            assert!(said.contains(&format!("kernel.yama.ptrace_scope is {}", scope + 1)), "{said}");
            assert!(said.contains("sysctl -w kernel.yama.ptrace_scope=0") && said.contains("root"), "{said}");
        }
        assert!(said[4].contains("ptrace_scope is 3") && said[4].contains("lull run"), "{said:?}");
    }

    #[test]
    fn unknown_processes_are_named() {
        for pid in [0, -1, i32::MAX] {
            let said = epolls_of(pid).unwrap_err().to_string();
            assert!(said.contains(&pid.to_string()), "{said}");
        }
    }
}
