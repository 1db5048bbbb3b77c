//! `fcntl` and `ioctl`: the status flags of sockets of lull, which share their placeholders with others.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_ulong};

use crate::files::{self, File, Open};
use crate::{Errno, Result, kernel};

/// Whether the kernel's file behind a number does not block.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    kernel::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

fn nonblocking(file: &Open) -> Option<&AtomicBool> {
    match &**file {
        File::Stream(stream) => Some(&stream.nonblocking),
        File::Listener(listener) => Some(&listener.nonblocking),
        File::Datagram(datagram) => Some(&datagram.nonblocking),
        File::Epoll(_) => None,
    }
}

/// `fcntl` on a number that is lull's; nothing where it is the placeholder's, whose number has the flags that belong to the
/// number.
pub fn fcntl(fd: c_int, command: c_int, argument: usize) -> Option<Result<c_int>> {
    let file = files::get(fd)?;
    match command {
        libc::F_DUPFD => Some(files::duplicate(fd, argument as c_int, false)),
        libc::F_DUPFD_CLOEXEC => Some(files::duplicate(fd, argument as c_int, true)),
        libc::F_GETFL => {
            let flag = if nonblocking(&file)?.load(Ordering::Relaxed) { libc::O_NONBLOCK } else { 0 };
            Some(Ok(libc::O_RDWR | flag))
        }
        libc::F_SETFL => {
            let nonblocking = nonblocking(&file)?;
            if let File::Datagram(_) = *file {
                // The placeholder is its own: it sends what is the kernel's.
                return Some(kernel::fcntl(fd, command, argument).inspect(|_| {
                    nonblocking.store(argument as c_int & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                }));
            }
            // SIGIO is raised by nobody here.
            if argument as c_int & libc::O_ASYNC != 0 {
                return Some(Err(Errno::new(libc::EINVAL)));
            }
            nonblocking.store(argument as c_int & libc::O_NONBLOCK != 0, Ordering::Relaxed);
            Some(Ok(0))
        }
        _ => None,
    }
}

/// The requests that may be lull's. All of them read or write an `int`.
pub const IOCTLS: [c_ulong; 3] = [libc::FIONBIO, libc::FIOASYNC, libc::FIONREAD];

/// `ioctl` on a number that is lull's, with the `int` that it reads or writes; nothing where it is the placeholder's.
pub fn ioctl(fd: c_int, request: c_ulong, value: &mut c_int) -> Option<Result<()>> {
    let file = files::get(fd)?;
    match request {
        libc::FIONBIO => {
            nonblocking(&file)?.store(*value != 0, Ordering::Relaxed);
            Some(Ok(()))
        }
        libc::FIONREAD => {
            let File::Datagram(datagram) = &*file else { return None };
            match datagram.sockets.unread() {
                // The kernel's half may have one.
                Ok(0) if datagram.is_kernels_too() => None,
                unread => Some(unread.map(|bytes| *value = bytes as c_int)),
            }
        }
        libc::FIOASYNC => Some(if *value == 0 { Ok(()) } else { Err(Errno::new(libc::EINVAL)) }),
        _ => None,
    }
}
