//! `fcntl` and `ioctl`: the status flags of sockets of lull, which share their placeholders with others.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_ulong};
use lull_fd::say;

use crate::files::{self, File, Open};
use crate::{Errno, Result, husk, kernel, memory, signals};

fn nonblocking(file: &Open) -> Option<&AtomicBool> {
    match &**file {
        File::Stream(stream) => Some(&stream.nonblocking),
        File::Listener(listener) => Some(&listener.nonblocking),
        File::Datagram(datagram) => Some(&datagram.nonblocking),
        File::Epoll(_) => None,
    }
}

fn set_nonblocking(fd: c_int, file: &Open, on: bool) {
    nonblocking(file).inspect(|flag| flag.store(on, Ordering::Relaxed));
    if let File::Listener(_) | File::Datagram(_) = **file {
        // The placeholder is its own: a program that is executed may find it, and what is the kernel's is sent by it.
        kernel::put_nonblocking(fd, on);
    }
}

/// `fcntl` on a number that is lull's; nothing where it is the placeholder's, whose number has the flags that belong to the
/// number. The flags of a descriptor of lull's own the program does not set.
pub fn fcntl(fd: c_int, command: c_int, argument: usize) -> Option<Result<c_int>> {
    if !files::is_known(fd) {
        // Outside of any section, in which the call would be lull's own.
        return (command == libc::F_SETFD && !files::may_set_flags(fd)).then_some(Err(Errno::new(libc::EBADF)));
    }
    signals::section(|| lulls_fcntl(fd, command, argument))
}

fn lulls_fcntl(fd: c_int, command: c_int, argument: usize) -> Option<Result<c_int>> {
    // These are the number's own, which a child may change of what it does not use.
    if matches!(command, libc::F_GETFD | libc::F_SETFD) {
        if command == libc::F_SETFD && stays_open_from_now(fd, argument as c_int) {
            // It is for a program that the child executes, which has it from this one.
            files::is_lull(fd);
        }
        return None;
    }
    let file = files::get(fd)?;
    match command {
        libc::F_DUPFD => Some(files::duplicate(fd, argument as c_int, false)),
        libc::F_DUPFD_CLOEXEC => Some(files::duplicate(fd, argument as c_int, true)),
        libc::F_GETFL => {
            let flag = if nonblocking(&file)?.load(Ordering::Relaxed) { libc::O_NONBLOCK } else { 0 };
            Some(Ok(libc::O_RDWR | flag))
        }
        libc::F_SETFL => {
            let flag = nonblocking(&file)?;
            if argument as c_int & libc::O_ASYNC != 0 {
                return Some(no_signals());
            }
            if let File::Datagram(_) = *file {
                // The placeholder is its own: it sends what is the kernel's.
                return Some(kernel::fcntl(fd, command, argument).inspect(|_| {
                    flag.store(argument as c_int & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                }));
            }
            set_nonblocking(fd, &file, argument as c_int & libc::O_NONBLOCK != 0);
            Some(Ok(0))
        }
        // 0 asks for none. Who is to be told by F_SETOWN_EX is named elsewhere.
        libc::F_SETOWN | F_SETSIG if argument as c_int == 0 => None,
        libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => {
            nonblocking(&file)?;
            Some(no_signals())
        }
        _ => None,
    }
}

/// `include/uapi/asm-generic/fcntl.h`.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;

/// SIGIO and SIGURG, or what is asked for in their place, are raised by nobody here.
fn no_signals<T>() -> Result<T> {
    says_no_signals();
    Err(Errno::new(libc::EINVAL))
}

fn says_no_signals() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        say::line(format_args!(
            "no signal (SIGIO, SIGURG) tells of sockets on lull: O_ASYNC, F_SETOWN and F_SETSIG are refused (EINVAL)"
        ));
    });
}

/// A socket of the kernel's becomes lull's. One that was to signal somebody does not any more.
pub(crate) fn signals_no_more(fd: c_int) {
    // Below 0 stand groups of processes, some of which are errors, too.
    if kernel::fcntl(fd, libc::F_GETOWN, 0) != Ok(0) {
        says_no_signals();
    }
}

/// Whether a child of a process with an engine takes FD_CLOEXEC from a number.
fn stays_open_from_now(fd: c_int, flags: c_int) -> bool {
    let is_set = |flags: c_int| flags & libc::FD_CLOEXEC != 0;
    husk::is_husk() && !is_set(flags) && kernel::fcntl(fd, libc::F_GETFD, 0).is_ok_and(is_set)
}

/// Bytes that were not sent yet (`include/uapi/linux/sockios.h`).
const SIOCOUTQNSD: c_ulong = 0x894b;
/// Whether the next byte is the one after urgent data.
const SIOCATMARK: c_ulong = 0x8905;

/// Who is told by SIGIO (`include/uapi/asm-generic/sockios.h`).
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;

/// `ioctl` on a number that is lull's; nothing where it is the placeholder's.
///
/// # Safety
/// The program vouches for what `argument` points to, as the request has it.
#[allow(unsafe_code)]
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> Option<Result<()>> {
    const FAULT: Errno = Errno::new(libc::EFAULT);
    let file = files::get(fd)?;
    // SAFETY: as above; these requests have an `int` there.
    let int = || unsafe { memory::int_at(argument) }.ok_or(FAULT);
    Some(match (request, &*file) {
        (libc::FIONBIO, _) => {
            nonblocking(&file)?;
            int().map(|value| set_nonblocking(fd, &file, *value != 0))
        }
        (libc::FIOASYNC | FIOSETOWN | SIOCSPGRP, _) => {
            nonblocking(&file)?;
            int().and_then(|value| if *value == 0 { Ok(()) } else { no_signals() })
        }
        (libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK, File::Stream(stream)) => {
            let count = match request {
                libc::FIONREAD => stream.stream.unread(),
                libc::TIOCOUTQ => stream.stream.unacknowledged(),
                SIOCOUTQNSD => stream.stream.unsent(),
                // No urgent data is ever kept.
                _ => Ok(0),
            };
            count.map_err(Errno::from).and_then(|count| int().map(|value| *value = count as c_int))
        }
        (libc::FIONREAD, File::Datagram(datagram)) => match datagram.sockets.unread() {
            // The kernel's half may have one.
            Ok(0) if datagram.is_kernels_too() => return None,
            unread => unread.and_then(|bytes| int().map(|value| *value = bytes as c_int)),
        },
        // A listener has no data (`tcp_ioctl`).
        (libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD, File::Listener(listener)) => {
            // One that was shut down listens no more, and neither does its placeholder.
            if listener.stopped.load(Ordering::Relaxed) {
                return None;
            }
            Err(Errno::new(libc::EINVAL))
        }
        (libc::EPIOCSPARAMS, File::Epoll(context)) => {
            // SAFETY: as above; this request has the struct there.
            let params = unsafe { memory::object_at::<libc::epoll_params>(argument) };
            params.ok_or(FAULT).and_then(|params| context.set_params(fd, params))
        }
        (libc::EPIOCGPARAMS, File::Epoll(context)) => {
            // SAFETY: as above.
            let params = unsafe { memory::object_at::<libc::epoll_params>(argument) };
            params.ok_or(FAULT).and_then(|params| context.params(fd).map(|read| *params = read))
        }
        _ => return None,
    })
}
