//! `getsockname`, `getpeername`.

use libc::c_int;

use crate::files::{self, File};
use crate::{Errno, Result, address::Bytes, inherit};

/// Whether a socket's names are not the kernel's: it is lull's, or a child has it from a parent whose it is.
#[inline]
pub fn is_named(fd: c_int) -> bool {
    files::is_lull_to_send(fd) || inherit::is_relay(fd)
}

/// Whether a socket's names are not the kernel's. As [`is_named`], but that to ask for them is no use of a number in a child's child.
#[inline]
pub fn has_names(fd: c_int) -> bool {
    inherit::unused(fd).is_some() || is_named(fd)
}

/// `getsockname` of a number that is lull's. Returns nothing if the placeholder has the answer, as that of a listener,
/// which is bound.
pub fn getsockname(fd: c_int) -> Option<Result<Bytes>> {
    if let Some(name) = inherit::getsockname(fd) {
        return Some(Ok(name));
    }
    if let Some((own, _, domain)) = inherit::unused(fd) {
        return Some(Ok(Bytes::new(own, domain)));
    }
    match &*files::get_to_send(fd)? {
        File::Stream(stream) => Some(named(stream.domain, stream.stream.local_addr())),
        File::Datagram(datagram) => Some(named(datagram.domain, datagram.own_name()?)),
        File::Listener(_) | File::Epoll(_) => None,
    }
}

/// `getpeername` of a number that is lull's. Returns nothing if the kernel has the answer for the placeholder.
pub fn getpeername(fd: c_int) -> Option<Result<Bytes>> {
    if let Some(name) = inherit::getpeername(fd) {
        return Some(name);
    }
    if let Some((_, peer, domain)) = inherit::unused(fd) {
        return Some(Ok(Bytes::new(peer, domain)));
    }
    match &*files::get_to_send(fd)? {
        File::Stream(stream) => Some(named(stream.domain, stream.stream.peer_addr())),
        File::Datagram(datagram) => Some(match datagram.peer()? {
            // The answer is the same as for a socket without a peer (`inet_getname`).
            Ok(peer) if peer.port() == 0 => Err(Errno::new(libc::ENOTCONN)),
            peer => named(datagram.domain, peer),
        }),
        File::Listener(_) => Some(Err(Errno::new(libc::ENOTCONN))),
        File::Epoll(_) => None,
    }
}

fn named(domain: c_int, address: std::io::Result<std::net::SocketAddr>) -> Result<Bytes> {
    Ok(Bytes::new(address?, domain))
}
