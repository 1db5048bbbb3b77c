//! New contexts and sockets of a program on the kernel plane get their parameters here. Whatever goes wrong, the
//! program has the descriptor that it asked for, and its `errno` is not changed.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::c_int;
use lull_core::zero_timeout::ZERO_TIMEOUT_SHARE;

use crate::linux::{self, KeptError, Refused, Socket};
use crate::{Config, Table, say};

/// Gives a context that the kernel has just made its parameters. `fd` is what the call returned, which may be an error.
pub fn context(table: &Table, config: &Config, fd: c_int) -> c_int {
    let Some(params) = config.epoll() else { return fd };
    if fd < 0 {
        return fd;
    }
    table.born(fd);
    let _errno = KeptError::keep();
    let Err(error) = linux::set_epoll_params(fd, &params) else { return fd };
    config.epoll_off();
    match error {
        libc::ENOTTY => say::once(format_args!(
            "this kernel cannot set busy-poll parameters of an epoll context (it needs Linux 6.9): none is set"
        )),
        libc::EPERM => say::once(format_args!(
            "no right to an epoll busy-poll budget of {}: above 64 it needs CAP_NET_ADMIN; no parameters are set",
            params.busy_poll_budget
        )),
        error => say::once(format_args!("the kernel refuses the epoll parameters (error {error}): none is set")),
    }
    fd
}

/// Gives a socket that the kernel has just made its options. `fd` is what the call returned, which may be an error.
pub fn socket(config: &Config, fd: c_int, domain: c_int) -> c_int {
    if let Some(wanted) = config.socket()
        && fd >= 0
        && linux::is_internet_domain(domain)
    {
        let _errno = KeptError::keep();
        set(config, fd, &wanted);
    }
    fd
}

/// Gives a connection that the kernel has just handed out its options. `fd` is what the call returned, which may be an
/// error. A connection inherits its listener's options (`sk_clone_lock`). So one that has none comes from a listener
/// that was made elsewhere, for instance by a service manager.
pub fn accepted(config: &Config, fd: c_int) -> c_int {
    let Some(wanted) = config.socket() else { return fd };
    if fd < 0 {
        return fd;
    }
    let _errno = KeptError::keep();
    if linux::busy_poll_usecs(fd) == Some(0) && linux::is_internet(fd) {
        set(config, fd, &wanted);
    }
    fd
}

/// Gives the group of a socket a program, if the socket listens now and shares its address. `result` is what `listen`
/// returned.
pub fn listening(config: &Config, fd: c_int, result: c_int) -> c_int {
    if !config.steering().is_on() || result != 0 {
        return result;
    }
    let _errno = KeptError::keep();
    if linux::shares_port(fd)
        && linux::is_internet(fd)
        && let Err((what, error)) = config.steering().attach(fd)
    {
        config.steering().off();
        say::once(format_args!(
            "cannot steer a group of listeners: cannot {what} (error {error}); no group is steered from here on"
        ));
    }
    result
}

/// Called when the program attaches a program of its own, or tries to. From then on its groups are its own affair.
#[cold]
pub fn steers_itself(config: &Config) {
    if config.steering().is_on() {
        config.steering().off();
        let _errno = KeptError::keep();
        say::once(format_args!(
            "the program steers its listeners itself: its own programs stay, and --steer sets none"
        ));
    }
}

fn set(config: &Config, fd: c_int, wanted: &Socket) {
    if let Err(Refused { name, value, error }) = linux::set_busy_poll(fd, wanted) {
        let remedy = if error == libc::EPERM { "it needs CAP_NET_ADMIN" } else { "the kernel refuses it" };
        config.socket_off();
        say::once(format_args!("cannot set {name} to {value} ({remedy}): sockets are left alone from here on"));
    }
}

/// Reports, once per process, that the queue was polled for calls with a timeout of zero.
#[cold]
pub fn say_lifted() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let _errno = KeptError::keep();
    if !SAID.swap(true, Relaxed) {
        say::line(format_args!(
            "calls of epoll_wait with timeout 0 find nothing again and again, so the queue is polled for them, for at \
             most 1/{ZERO_TIMEOUT_SHARE} of the time (`lull run --no-lift` leaves them alone)"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table = Table::new();

    fn config(variables: &'static [(&'static core::ffi::CStr, &'static [u8])]) -> Config {
        let config = Config::new();
        let value = |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        config.read(value).unwrap_or_else(|wrong| panic!("{wrong:?}"));
        config
    }

    #[test]
    fn errors_of_the_kernels_and_errno_pass() {
        let config = config(&[(c"LULL_EPOLL_PREFER", b"1"), (c"LULL_SOCKET_BUSY_POLL", b"50")]);
        linux::set_error(libc::EMFILE);
        assert_eq!(
            (context(&TABLE, &config, -1), accepted(&config, -1), socket(&config, -1, libc::AF_INET)),
            (-1, -1, -1)
        );
        assert_eq!(linux::last_error(), libc::EMFILE);
    }

    #[test]
    fn what_cannot_have_parameters_turns_them_off_and_leaves_errno() {
        let config = config(&[(c"LULL_EPOLL_PREFER", b"1"), (c"LULL_SOCKET_BUSY_POLL", b"50")]);
        linux::set_error(libc::EINTR);
        // Standard input is neither a context nor a socket.
        assert_eq!((context(&TABLE, &config, 0), socket(&config, 0, libc::AF_INET)), (0, 0));
        assert_eq!(linux::last_error(), libc::EINTR);
        assert!(config.epoll().is_none() && config.socket().is_none());
    }
}
