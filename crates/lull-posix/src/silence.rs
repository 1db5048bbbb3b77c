//! The kernel's files of a process that exits, and stays for its peers. On Linux its other threads have ended when its files are closed.
//! Here they go on meanwhile, and a number that is closed would tell them of an error. So a number stands for a socket by which nothing
//! ever comes once its file is closed to others.

use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::c_int;
use lull_net::lull_nic::own;
use rustix::fs::{FileType, OFlags, Stat, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::kernel;

/// Puts such a socket in the place of each file that somebody else may wait for, among the numbers that `is_the_programs`. The files
/// are as they were if this fails.
pub(crate) fn silence(is_the_programs: impl Fn(c_int) -> bool) -> Result<()> {
    let (blocks, does_not) = (silent(SocketFlags::empty())?, silent(SocketFlags::NONBLOCK)?);
    let _none_is_made = own::none_is_made();
    let files: Vec<Open> =
        numbers()?.into_iter().filter(|number| is_the_programs(*number)).filter_map(Open::of).collect();
    // What a process without children has both ends of, nobody else has: a thread that waits at one must not see the other close.
    let has_children = !matches!(
        waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT),
        Err(Errno::CHILD)
    );
    for file in files.iter().filter(|file| has_children || !file.is_a_pair_of_this_process(&files)) {
        let silent = if kernel::is_nonblocking(file.number) { &does_not } else { &blocks };
        // It is as it was, if not.
        let _ = kernel::dup3(silent.as_raw_fd(), file.number, libc::O_CLOEXEC);
    }
    Ok(())
}

/// A socket by which nothing comes.
fn silent(flags: SocketFlags) -> Result<OwnedFd> {
    let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None);
    let (silent, other) = own::made(pair)?;
    // It stays open until the process ends: a socket whose peer has gone is at its end.
    std::mem::forget(other);
    Ok(silent)
}

/// The numbers that are open.
fn numbers() -> Result<Vec<c_int>> {
    let listed = std::fs::read_dir("/proc/self/fd")?;
    Ok(listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// A file of the program's that others may wait for.
struct Open {
    number: c_int,
    status: Stat,
    kind: FileType,
}

impl Open {
    /// Nothing if there is no file, or one that nobody waits for the end of: contexts of epoll, eventfds, timers and their kin, which
    /// have no type.
    fn of(number: c_int) -> Option<Open> {
        let status = fstat(kernel::borrow(number)).ok()?;
        let kind = FileType::from_raw_mode(status.st_mode);
        (kind != FileType::Unknown).then_some(Open { number, status, kind })
    }

    fn is_a_pair_of_this_process(&self, files: &[Open]) -> bool {
        match self.kind {
            FileType::Fifo => {
                let is_there =
                    |end| files.iter().any(|other| other.is_an_end_of(self) && other.accesses() == Some(end));
                is_there(OFlags::RDONLY) && is_there(OFlags::WRONLY)
            }
            FileType::Socket => kernel::is_of_own_pair(self.number),
            _ => false,
        }
    }

    fn is_an_end_of(&self, pipe: &Open) -> bool {
        (self.status.st_dev, self.status.st_ino) == (pipe.status.st_dev, pipe.status.st_ino)
    }

    fn accesses(&self) -> Option<OFlags> {
        fcntl_getfl(kernel::borrow(self.number)).ok().map(|flags| flags & OFlags::ACCMODE)
    }
}
