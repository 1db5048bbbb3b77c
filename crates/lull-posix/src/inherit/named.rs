//! What a relay's socket is called: the names of its connection or UDP socket are in its own. That of a listener has where it
//! listens.
//!
//! A child may execute another program, whose library knows nothing of what this one noted, and the socket stays open. The name is an
//! abstract one of the kernel's (`unix(7)`), which goes wherever the socket goes, and which nobody can connect to, for it does not
//! listen.

use std::net::SocketAddr;

use libc::c_int;

use crate::address::{self, Bytes};
use crate::{Result, kernel};

const RELAY: &[u8] = b"\0lull relay ";
const DATAGRAMS: &[u8] = b"\0lull datagrams ";
const LISTENER: &[u8] = b"\0lull listener ";
const PASSED: &[u8] = b"\0lull passes ";
const FAMILY_BYTES: usize = 2;
/// The socket's inode: no two relays have the same name.
const INODE_BYTES: usize = size_of::<u32>();

/// Names a relay's socket after its connection or UDP socket, a socket of `domain`. That of datagrams keeps messages apart.
pub(super) fn call(socket: c_int, local: SocketAddr, peer: SocketAddr, domain: c_int) -> Result<()> {
    let keeps_apart = kernel::int_option(socket, libc::SOL_SOCKET, libc::SO_TYPE)? == libc::SOCK_SEQPACKET;
    call_as(if keeps_apart { DATAGRAMS } else { RELAY }, socket, local, peer, domain)
}

/// Names the end of a listener after where that listens.
pub(super) fn call_listener(socket: c_int, bound: SocketAddr, domain: c_int) -> Result<()> {
    call_as(LISTENER, socket, bound, super::NOBODY, domain)
}

/// Names the end of a pair at which a listener waits for the process that is given the end (`passing/listener.rs`).
pub(super) fn call_passed(socket: c_int, bound: SocketAddr, domain: c_int) -> Result<()> {
    call_as(PASSED, socket, bound, super::NOBODY, domain)
}

/// Where a listener listens that waits at the end of a pair, and its domain.
pub(super) fn of_passed(socket: c_int) -> Option<(SocketAddr, c_int)> {
    names_as(&[PASSED], socket).map(|(bound, _, domain)| (bound, domain))
}

fn call_as(kind: &[u8], socket: c_int, local: SocketAddr, peer: SocketAddr, domain: c_int) -> Result<()> {
    let inode = kernel::inode(socket)?.to_ne_bytes();
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    let (local, peer) = (Bytes::new(local, domain), Bytes::new(peer, domain));
    kernel::bind(socket, &[&family, kind, &inode, &local, &peer].concat())
}

/// The names of what a socket is called after, and its domain, if it is called after anything.
pub(super) fn names(socket: c_int) -> Option<(SocketAddr, SocketAddr, c_int)> {
    names_as(&[DATAGRAMS, RELAY, LISTENER], socket)
}

/// As [`names`], of the relay of a UDP socket.
pub(super) fn of_datagrams(socket: c_int) -> Option<(SocketAddr, SocketAddr, c_int)> {
    names_as(&[DATAGRAMS], socket)
}

/// Whether a socket is the other end of a relay, which has no name itself.
pub(super) fn is_owners_end(socket: c_int) -> bool {
    kernel::getpeername(socket).is_ok_and(|peer| {
        let name = peer.as_bytes().get(FAMILY_BYTES..).unwrap_or_default();
        [DATAGRAMS, RELAY].iter().any(|kind| name.starts_with(kind))
    })
}

/// Whether a socket is the end of a listener.
pub(super) fn is_listener(socket: c_int) -> bool {
    names_as(&[LISTENER], socket).is_some()
}

fn names_as(kinds: &[&[u8]], socket: c_int) -> Option<(SocketAddr, SocketAddr, c_int)> {
    let name = kernel::getsockname(socket).ok()?;
    let (family, rest) = name.as_bytes().split_first_chunk::<FAMILY_BYTES>()?;
    let names = kinds.iter().find_map(|kind| rest.strip_prefix(*kind));
    let names = names.filter(|_| u16::from_ne_bytes(*family) == libc::AF_UNIX as u16)?;
    let names = names.get(INODE_BYTES..)?;
    let (local, peer) = names.split_at(names.len() / 2);
    Some((address::parse(local)?, address::parse(peer)?, address::family(local)?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn a_socket_tells_the_names_that_it_was_called_after() {
        let (first, second) = UnixStream::pair().unwrap();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let v4 = (at("10.0.0.2:80"), at("10.0.0.1:65535"), libc::AF_INET);
        call(first.as_raw_fd(), v4.0, v4.1, v4.2).unwrap();
        assert_eq!(names(first.as_raw_fd()), Some(v4));
        assert_eq!(names(second.as_raw_fd()), None, "it is not called anything");
        let v6 = (at("[fd00::1234:5678:9abc:def0]:443"), at("10.0.0.1:4096"), libc::AF_INET6);
        call(second.as_raw_fd(), v6.0, v6.1, v6.2).unwrap();
        assert_eq!(names(second.as_raw_fd()), Some(v6), "an IPv4 peer of an IPv6 socket");
        let (third, _fourth) = UnixStream::pair().unwrap();
        call(third.as_raw_fd(), v4.0, v4.1, v4.2).expect("a second socket is called after the same connection");
        assert_eq!(of_datagrams(third.as_raw_fd()), None);
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None);
        let (fifth, _sixth) = pair.unwrap();
        call(fifth.as_raw_fd(), v4.0, v4.1, v4.2).unwrap();
        assert_eq!((of_datagrams(fifth.as_raw_fd()), names(fifth.as_raw_fd())), (Some(v4), Some(v4)));
    }
}
