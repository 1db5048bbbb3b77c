//! `socket`, `accept`, `accept4`: busy-poll options of IPv4 and IPv6 sockets, for programs that block in `recv`.

use core::ffi::c_void;
use core::mem::size_of;

use libc::{c_int, sockaddr, socklen_t};

use lull_fd::config::Socket;

use crate::{CONFIG, Errno, last_error, real, say};

/// As the C library's; a new IPv4 or IPv6 socket gets its options.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if let Some(wanted) = CONFIG.socket()
        && fd >= 0
        && internet(domain)
    {
        let _errno = Errno::keep();
        set(fd, &wanted);
    }
    fd
}

/// As the C library's; the accepted socket gets its options.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    accepted(unsafe { real::accept(fd, address, length) })
}

/// As the C library's; the accepted socket gets its options.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    accepted(unsafe { real::accept4(fd, address, length, flags) })
}

/// A connection inherits its listener's options (`sk_clone_lock`), so only one without any is from a listener that was
/// made elsewhere, such as a service manager's.
fn accepted(fd: c_int) -> c_int {
    let Some(wanted) = CONFIG.socket() else { return fd };
    if fd < 0 {
        return fd;
    }
    let _errno = Errno::keep();
    if get(fd, libc::SO_BUSY_POLL) == Some(0) && get(fd, libc::SO_DOMAIN).is_some_and(internet) {
        set(fd, &wanted);
    }
    fd
}

fn internet(domain: c_int) -> bool {
    domain == libc::AF_INET || domain == libc::AF_INET6
}

fn set(fd: c_int, wanted: &Socket) {
    let options = [
        (libc::SO_BUSY_POLL, c"SO_BUSY_POLL", wanted.usecs, true),
        (libc::SO_PREFER_BUSY_POLL, c"SO_PREFER_BUSY_POLL", 1, wanted.prefer),
        (libc::SO_BUSY_POLL_BUDGET, c"SO_BUSY_POLL_BUDGET", wanted.budget, wanted.budget != 0),
    ];
    for (option, name, value, asked) in options {
        let size = size_of::<c_int>() as socklen_t;
        let value_at = (&raw const value).cast::<c_void>();
        // SAFETY: an option of the size of an int, on a descriptor that this call has just made.
        if asked && unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value_at, size) } != 0 {
            let remedy = if last_error() == libc::EPERM { "it needs CAP_NET_ADMIN" } else { "the kernel refuses it" };
            let name = name.to_str().unwrap_or_default();
            CONFIG.socket_off();
            say::once(format_args!("cannot set {name} to {value} ({remedy}): sockets are left alone from here on"));
            return;
        }
    }
}

fn get(fd: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut size = size_of::<c_int>() as socklen_t;
    // SAFETY: room for an int, and its size.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &mut size) };
    (result == 0).then_some(value)
}
