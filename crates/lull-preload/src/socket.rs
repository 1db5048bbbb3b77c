//! Calls on sockets. On the kernel plane `socket`, `accept` and `accept4` set the busy-poll options of IPv4 and IPv6
//! sockets, for programs that block in `recv`, and `listen` attaches the program that chooses among listeners that
//! share an address.

use core::ffi::c_void;

use libc::{c_int, sockaddr, socklen_t};

use lull_fd::birth;
use lull_posix::signals::section;
use lull_posix::{files, is_involved, is_lull, memory, netlink, socket as lulls};

use crate::taken_over::taken_over;
use crate::{CONFIG, answer, real};

taken_over! {
    /// It gives a new IPv4 or IPv6 socket its options.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = files::given_out(real::socket(domain, kind, protocol));
        netlink::made(fd, domain, protocol);
        birth::socket(&CONFIG, fd, domain)
    }

    /// It gives the accepted socket its options.
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        if lulls::accepts(fd) {
            return lulls_accept(fd, address, length, 0);
        }
        birth::accepted(&CONFIG, files::given_out(real::accept(fd, address, length)))
    }

    /// It gives the accepted socket its options.
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        if lulls::accepts(fd) {
            return lulls_accept(fd, address, length, flags);
        }
        birth::accepted(&CONFIG, files::given_out(real::accept4(fd, address, length, flags)))
    }

    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int,
        if lulls::may_be_lulls() && !address.is_null() =>
            answer::done(|| memory::address(address, length).and_then(|address| lulls::bind(fd, address)));

    /// It gives the group of a listener that shares its address a program.
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        if lulls::may_be_lulls() {
            return answer::done(|| lulls::listen(fd, backlog));
        }
        birth::listening(&CONFIG, fd, real::listen(fd, backlog))
    }

    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        // An invalid address is left to the kernel, which refuses it.
        if is_involved()
            && !address.is_null()
            && let Ok(address) = memory::address(address, length)
            && lulls::connects(fd, address)
            && let Some(result) = answer::done_at_point_if_lulls(|| lulls::connect_by_lull(fd, address))
        {
            return result;
        }
        real::connect(fd, address, length)
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int, if is_lull(fd) => answer::done(|| lulls::shutdown(fd, how));

    fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        match lulls::has_names(fd).then(|| section(|| lulls::getsockname(fd))).flatten() {
            Some(name) => answer::done(|| memory::write_name(&name?, address, length)),
            None => real::getsockname(fd, address, length),
        }
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        match lulls::has_names(fd).then(|| section(|| lulls::getpeername(fd))).flatten() {
            Some(name) => answer::done(|| memory::write_name(&name?, address, length)),
            None => real::getpeername(fd, address, length),
        }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        if lulls::is_named(fd) || lulls::may_steer(level, name) {
            if c_int::try_from(length).is_err() {
                return answer::refused(libc::EINVAL);
            }
            let value = memory::bytes(value, length as usize);
            return answer::done(|| lulls::setsockopt(fd, level, name, value));
        }
        if lulls::steers(level, name) {
            birth::steers_itself(&CONFIG);
        }
        real::setsockopt(fd, level, name, value, length)
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        if lulls::is_named(fd) && !value.is_null() && !length.is_null() && *length as c_int >= 0 {
            let room = memory::bytes_mut(value, *length as usize);
            if let Some(result) = section(|| lulls::getsockopt(fd, level, name, room)) {
                return answer::done(|| result.map(|written| *length = written as socklen_t));
            }
        }
        real::getsockopt(fd, level, name, value, length)
    }
}

/// # Safety
/// As `accept4`.
unsafe fn lulls_accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    answer::number_at_point(|| {
        let accepted = lulls::accept(fd, flags)?;
        // SAFETY: the program vouches for its pointers.
        let written = unsafe { memory::write_address(accepted.peer(), address, length) };
        if written.is_err() {
            // The kernel gives the number back as well.
            let _ = files::close(accepted.fd);
        }
        written.map(|()| accepted.fd)
    })
}
