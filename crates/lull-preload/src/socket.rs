//! Calls about sockets. On the kernel plane `socket`, `accept` and `accept4` set busy-poll options of IPv4 and IPv6 sockets, for
//! programs that block in `recv`.

use core::ffi::c_void;

use libc::{c_int, sockaddr, socklen_t};

use lull_fd::config::Socket;
use lull_fd::linux::{self, Refused};
use lull_posix::signals::section;
use lull_posix::{is_engaged, is_lull, memory, socket as lulls};

use crate::{CONFIG, Errno, answer, number, real, say};

/// As the C library's; a new IPv4 or IPv6 socket gets its options.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let fd = number::forgotten(unsafe { real::socket(domain, kind, protocol) });
    if let Some(wanted) = CONFIG.socket()
        && fd >= 0
        && linux::is_internet_domain(domain)
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
    if is_lull(fd) {
        // SAFETY: the program vouches for its pointers.
        return unsafe { lulls_accept(fd, address, length, 0) };
    }
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
    if is_lull(fd) {
        // SAFETY: the program vouches for its pointers.
        return unsafe { lulls_accept(fd, address, length, flags) };
    }
    // SAFETY: the caller's arguments, passed on.
    accepted(unsafe { real::accept4(fd, address, length, flags) })
}

/// # Safety
/// As `accept4`.
unsafe fn lulls_accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    answer::number(|| {
        let accepted = lulls::accept(fd, flags)?;
        // SAFETY: the program vouches for its pointers.
        let written = unsafe { memory::write_address(accepted.peer(), address, length) };
        if written.is_err() {
            // As the kernel, which gives the number back.
            let _ = lull_posix::files::close(accepted.fd);
        }
        written.map(|()| accepted.fd)
    })
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    if is_engaged() && !address.is_null() {
        // SAFETY: the program vouches for its address.
        let address = unsafe { memory::bytes(address.cast(), length as usize) };
        return answer::done(|| lulls::bind(fd, address));
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::bind(fd, address, length) }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if is_engaged() {
        return answer::done(|| lulls::listen(fd, backlog));
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::listen(fd, backlog) }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    match is_lull(fd).then(|| section(|| lulls::getsockname(fd))).flatten() {
        // SAFETY: the program vouches for its pointers.
        Some(name) => answer::done(|| unsafe { memory::write_name(&name?, address, length) }),
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { real::getsockname(fd, address, length) },
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    match is_lull(fd).then(|| section(|| lulls::getpeername(fd))).flatten() {
        // SAFETY: the program vouches for its pointers.
        Some(name) => answer::done(|| unsafe { memory::write_name(&name?, address, length) }),
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { real::getpeername(fd, address, length) },
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if is_lull(fd) {
        // SAFETY: the program vouches for its value.
        let value = unsafe { memory::bytes(value, length as usize) };
        return answer::done(|| lulls::setsockopt(fd, level, name, value));
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::setsockopt(fd, level, name, value, length) }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the program vouches for its pointers; the rest are the caller's arguments, passed on.
    unsafe {
        if is_lull(fd) && !value.is_null() && !length.is_null() && *length as c_int >= 0 {
            let room = memory::bytes_mut(value, *length as usize);
            if let Some(result) = section(|| lulls::getsockopt(fd, level, name, room)) {
                return answer::done(|| result.map(|written| *length = written as socklen_t));
            }
        }
        real::getsockopt(fd, level, name, value, length)
    }
}

/// A connection inherits its listener's options (`sk_clone_lock`), so only one without any is from a listener that was
/// made elsewhere, such as a service manager's.
fn accepted(fd: c_int) -> c_int {
    let Some(wanted) = CONFIG.socket() else { return fd };
    if fd < 0 {
        return fd;
    }
    let _errno = Errno::keep();
    if linux::busy_poll_usecs(fd) == Some(0) && linux::is_internet(fd) {
        set(fd, &wanted);
    }
    fd
}

fn set(fd: c_int, wanted: &Socket) {
    if let Err(Refused { name, value, error }) = linux::set_busy_poll(fd, wanted) {
        let remedy = if error == libc::EPERM { "it needs CAP_NET_ADMIN" } else { "the kernel refuses it" };
        CONFIG.socket_off();
        say::once(format_args!("cannot set {name} to {value} ({remedy}): sockets are left alone from here on"));
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    if is_engaged() && !address.is_null() {
        // SAFETY: the program vouches for its address.
        let address = unsafe { memory::bytes(address.cast(), length as usize) };
        if is_lull(fd) || lulls::is_destination(address) {
            return answer::done(|| lulls::connect(fd, address));
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::connect(fd, address, length) }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if is_lull(fd) {
        return answer::done(|| lulls::shutdown(fd, how));
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::shutdown(fd, how) }
}
