//! `bind`, `listen`: where a listener becomes lull's.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use libc::c_int;
use lull_net::{ListenOptions, SOMAXCONN, TcpListener};

use super::Listener;
use super::options::Options;
use crate::engine::{self, Engine};
use crate::files::{self, File};
use crate::{Errno, Result, address, flags, kernel};

/// `bind`. The kernel's socket is bound in any case: so ports that are taken are refused, port 0 becomes one, and the address can
/// be asked for. lull's addresses are not the machine's, which takes IP_FREEBIND.
pub fn bind(fd: c_int, bytes: &[u8]) -> Result<()> {
    let lulls =
        address::parse(bytes).is_some_and(|address| engine::is_own(address.ip()) && engine::takes(address.port()));
    if !lulls {
        return kernel::bind(fd, bytes);
    }
    let freebind = Freebind::begin(fd);
    let bound = kernel::bind(fd, bytes);
    freebind.end();
    bound
}

/// IP_FREEBIND for the length of a call; afterwards it is as the program left it.
struct Freebind {
    fd: c_int,
    level: c_int,
    name: c_int,
    before: c_int,
}

impl Freebind {
    fn begin(fd: c_int) -> Freebind {
        let v6 = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6);
        let (level, name) = if v6 { (libc::SOL_IPV6, libc::IPV6_FREEBIND) } else { (libc::SOL_IP, libc::IP_FREEBIND) };
        let before = kernel::int_option(fd, level, name).unwrap_or(0);
        let freebind = Freebind { fd, level, name, before };
        freebind.set(1);
        freebind
    }

    fn set(&self, value: c_int) {
        // Refused, the bind says what is wrong.
        let _ = kernel::setsockopt(self.fd, self.level, self.name, &value.to_ne_bytes());
    }

    fn end(self) {
        self.set(self.before);
    }
}

/// `listen`. A socket that is bound to an address of lull's becomes lull's; one that is bound to a wildcard is in both worlds.
pub fn listen(fd: c_int, backlog: c_int) -> Result<()> {
    if files::is_lull(fd) {
        return listen_again(fd, backlog);
    }
    let Some(bound) = bound_stream(fd) else { return kernel::listen(fd, backlog) };
    let own = engine::is_own(bound.ip());
    let v6_only = bound.is_ipv6() && kernel::int_option(fd, libc::SOL_IPV6, libc::IPV6_V6ONLY) == Ok(1);
    let wildcard = bound.ip().is_unspecified() && engine::has_family(bound.ip(), v6_only);
    if !own && !wildcard || !engine::takes(bound.port()) {
        return kernel::listen(fd, backlog);
    }
    let engine = engine::engine()?;
    if wildcard {
        kernel::listen(fd, backlog)?;
    }
    // Port 0 has become one when the kernel listens.
    let bound = bound_stream(fd).unwrap_or(bound);
    let listener = open(engine, fd, bound, backlog, v6_only)?;
    let domain = if bound.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let file = Listener {
        listener,
        both_worlds: wildcard,
        domain,
        nonblocking: AtomicBool::new(flags::is_nonblocking(fd)),
        options: Options::of_placeholder(fd),
    };
    crate::epoll::becomes_lulls(fd, || files::put(fd, File::Listener(file)))
}

/// The address of a bound TCP socket of the kernel's; nothing if it is anything else.
fn bound_stream(fd: c_int) -> Option<SocketAddr> {
    if !engine::is_engaged() || kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
        return None;
    }
    address::parse(kernel::getsockname(fd).ok()?.as_bytes())
}

fn open(engine: &Engine, fd: c_int, bound: SocketAddr, backlog: c_int, v6_only: bool) -> Result<TcpListener> {
    let flag = |level, name| kernel::int_option(fd, level, name).is_ok_and(|value| value != 0);
    let options = ListenOptions {
        // A negative backlog is a very large one, as it is unsigned inside the kernel (`__sys_listen`).
        backlog: usize::try_from(backlog).unwrap_or(SOMAXCONN).min(SOMAXCONN),
        reuse_port: flag(libc::SOL_SOCKET, libc::SO_REUSEPORT),
        v6_only,
        nodelay: flag(libc::IPPROTO_TCP, libc::TCP_NODELAY),
        ..ListenOptions::default()
    };
    let listener = TcpListener::bind_with(&engine.network, None, bound, options)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn listen_again(fd: c_int, backlog: c_int) -> Result<()> {
    match files::get(fd).as_deref() {
        Some(File::Listener(listener)) if listener.both_worlds => kernel::listen(fd, backlog),
        Some(File::Listener(_)) => Ok(()),
        Some(File::Stream(_)) => Err(Errno::new(libc::EINVAL)),
        _ => kernel::listen(fd, backlog),
    }
}
