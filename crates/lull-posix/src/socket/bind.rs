//! `bind`. The kernel's socket holds the port, for an address of lull's as well.

use std::net::SocketAddr;
use std::sync::Once;

use libc::c_int;
use lull_fd::say;
use lull_net::TcpListener;

use super::listen::asked;
use super::{bound, datagram};
use crate::files::{self, File};
use crate::{Errno, Result, address, engine, inherit, kernel};

/// `uapi/linux/in.h`: the ports that the kernel chooses from.
const IP_LOCAL_PORT_RANGE: c_int = 51;

/// `bind`. The kernel's socket is bound in any case. Thus a port that is taken is refused, port 0 becomes a port, and
/// the address can be asked for. As lull's addresses are not the machine's, this takes IP_FREEBIND.
pub fn bind(fd: c_int, bytes: &[u8]) -> Result<()> {
    if inherit::made::has_parent() && !inherit::goes_on() {
        return inherit::made::bind(fd, bytes);
    }
    files::hand_back_ended(fd);
    if let Some(File::Stream(stream)) = files::get(fd).as_deref() {
        return bind_again(stream.domain, bytes);
    }
    let address = address::parse(bytes);
    let keeps_port = address.is_some_and(|address| address.port() != 0);
    let lulls = address.is_some_and(|address| engine::is_own(address.ip()) && engine::takes(address.port()));
    if lulls || address.is_some_and(|address| address.ip().is_unspecified()) {
        refuse_if_taken(fd, address)?;
    }
    let own = lulls && is_of_a_protocol_of_lulls(fd);
    // A datagram socket cannot be lull's without an engine, and a bind cannot be taken back, so the engine comes first.
    // A stream socket needs none yet.
    if own && datagram::is_udp(fd) {
        engine::engine()?;
    }
    let bind = |bytes: &[u8]| if own { bind_own(fd, bytes) } else { kernel::bind(fd, bytes) };
    let asks_for_one = address.filter(|address| !keeps_port && (own || address.ip().is_unspecified()));
    let free = asks_for_one.and_then(|address| port_that_no_connection_has(fd, address));
    match free.map(|port| choosing(fd, port, || bind(bytes))) {
        // Another process has taken the port since, or this kernel does not let a port be chosen so.
        None | Some(Err(_)) => bind(bytes)?,
        Some(Ok(())) => {}
    }
    if keeps_port {
        bound::note(fd);
    }
    datagram::bound(fd, keeps_port)
}

/// lull's address would take a socket of another protocol (UDP-Lite, SCTP, MPTCP) to where nothing ever comes: the kernel says that it
/// does not have that address.
fn is_of_a_protocol_of_lulls(fd: c_int) -> bool {
    // The call itself says so if the number is no socket, or one of another family.
    let Ok(protocol) = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) else { return true };
    let is_one = [libc::IPPROTO_TCP, libc::IPPROTO_UDP].contains(&protocol);
    if !is_one {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            say::line(format_args!(
                "the program binds a socket of protocol {protocol} to an address of lull's, which has TCP and UDP only: refused"
            ))
        });
    }
    is_one
}

/// A port for a TCP socket that leaves it to the kernel, where lull has connections. The kernel knows nothing of those,
/// and from the port of one of them, in TIME-WAIT too, a `connect` to the same peer would fail. Returns nothing where
/// any port will do.
fn port_that_no_connection_has(fd: c_int, address: SocketAddr) -> Option<u16> {
    /// Another process may take a port in between, and lull may have connections from nearly all of them.
    const TRIES: usize = 64;
    let engine = engine::running()?;
    let is_tcp = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    // With it the port is chosen by `connect`, which is lull's.
    let comes_later = kernel::int_option(fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT) == Ok(1);
    if !is_tcp || comes_later {
        return None;
    }
    let domain = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    let ports = kernel::int_option(fd, libc::SOL_IP, IP_LOCAL_PORT_RANGE).unwrap_or(0);
    let mut asked = Vec::new();
    let found = (0..TRIES).find_map(|_| {
        let other = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).ok()?;
        // They stay bound until one is found, so that each has another port.
        asked.push(other);
        choose_from(other, ports);
        bind_own(other, &address::Bytes::new(address, domain)).ok()?;
        let port = address::parse(kernel::getsockname(other).ok()?.as_bytes())?.port();
        (!engine.network.has_connections_from(port)).then_some(port)
    });
    asked.into_iter().for_each(kernel::discard);
    found
}

/// Binds a socket so that the kernel chooses this port. One that it was told would stay with a socket that is shut down, and one that
/// was chosen does not (SOCK_BINDPORT_LOCK). Before 6.3 the kernel chooses from all.
fn choosing(fd: c_int, port: u16, bind: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = kernel::int_option(fd, libc::SOL_IP, IP_LOCAL_PORT_RANGE)?;
    choose_from(fd, c_int::from_ne_bytes((u32::from(port) << 16 | u32::from(port)).to_ne_bytes()));
    let bound = bind();
    choose_from(fd, before);
    bound
}

/// Bounds the ports that the kernel chooses from. The upper half of the value is the last of them, the lower half the
/// first; 0 stands for the kernel's own range.
fn choose_from(fd: c_int, ports: c_int) {
    // An older kernel refuses this option.
    let _ = kernel::setsockopt(fd, libc::SOL_IP, IP_LOCAL_PORT_RANGE, &ports.to_ne_bytes());
}

/// Binds the kernel's socket to an address of lull's. Another process may have the socket as well (workers that listen on one which
/// they have inherited), do the same at the same time, and take the option back in between.
pub(crate) fn bind_own(fd: c_int, bytes: &[u8]) -> Result<()> {
    /// Each attempt was overtaken by a call of another process.
    const TRIES: usize = 1000;
    let bind = || {
        let freebind = Freebind::begin(fd);
        let bound = kernel::bind(fd, bytes);
        freebind.end();
        bound
    };
    let is_overtaken = |bound: &Result<()>| *bound == Err(Errno::new(libc::EADDRNOTAVAIL));
    std::iter::repeat_with(bind).take(TRIES).find(|bound| !is_overtaken(bound)).unwrap_or_else(bind)
}

/// A connection has its address. Its placeholder, which may stand for others as well, must not get one (`__inet_bind`: what
/// is wrong with the new address is told first).
fn bind_again(domain: c_int, bytes: &[u8]) -> Result<()> {
    let asked = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    let mut any_port = bytes.to_vec();
    any_port.iter_mut().skip(2).take(2).for_each(|byte| *byte = 0);
    let bound = bind(asked, &any_port);
    kernel::discard(asked);
    let has_an_address = Err(Errno::new(libc::EINVAL));
    match bound {
        // Over IPv6 this is told before whose address it is (`__inet6_bind`).
        Err(error) if domain == libc::AF_INET6 && error.number() == libc::EADDRNOTAVAIL => has_an_address,
        bound => bound.and(has_an_address),
    }
}

/// SO_REUSEADDR lets a socket have a port that others have, unless one of them listens (`inet_csk_bind_conflict`). The
/// placeholder of a listener that is lull's does not, so lull's own table is asked.
fn refuse_if_taken(fd: c_int, address: Option<SocketAddr>) -> Result<()> {
    match address.filter(|address| may_be_another_listeners(fd, *address)) {
        Some(address) => refuse_a_listeners(fd, address),
        None => Ok(()),
    }
}

/// Whether the kernel would bind a socket to an address at which lull has a listener.
pub(crate) fn may_be_another_listeners(fd: c_int, address: SocketAddr) -> bool {
    let has_a_port = |name: &[u8]| address::parse(name).is_some_and(|at| at.port() != 0);
    address.port() != 0
        && kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR) == Ok(1)
        && kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
        // One that is bound already is refused for that first (`__inet_bind`).
        && !kernel::getsockname(fd).is_ok_and(|name| has_a_port(name.as_bytes()))
}

/// Refuses such an address where a listener of lull's has it that does not share it.
pub(crate) fn refuse_a_listeners(fd: c_int, address: SocketAddr) -> Result<()> {
    let Some(engine) = engine::running() else { return Ok(()) };
    match TcpListener::bind_with(&engine.network, None, address, asked(fd, 0, false)).map_err(Errno::from) {
        Err(error) if error.number() == libc::EADDRINUSE => Err(error),
        _ => Ok(()),
    }
}

/// Sets IP_FREEBIND for the length of a call. Afterwards it is as the program left it.
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
        // If the option is refused, the bind that follows says what is wrong.
        let _ = kernel::setsockopt(self.fd, self.level, self.name, &value.to_ne_bytes());
    }

    fn end(self) {
        self.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_several_bind_at_once_has_the_address_for_each() {
        let fd = kernel::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap();
        let any_port = address::Bytes::new("192.0.2.1:0".parse().unwrap(), libc::AF_INET);
        bind_own(fd, &any_port).unwrap();
        std::thread::scope(|scope| {
            let binds =
                || (0..100_000).for_each(|_| assert_eq!(bind_own(fd, &any_port), Err(Errno::new(libc::EINVAL))));
            for _ in 0..2 {
                scope.spawn(binds);
            }
        });
        kernel::discard(fd);
    }
}
