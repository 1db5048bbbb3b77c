//! `getsockname`, `getpeername`.

use libc::c_int;

use super::Stream;
use crate::files::{self, File};
use crate::{Errno, Result, address::Bytes};

/// `getsockname` of a number that is lull's; nothing if its placeholder knows it, as for a listener, which is bound.
pub fn getsockname(fd: c_int) -> Option<Result<Bytes>> {
    match &*files::get(fd)? {
        File::Stream(stream) => Some(named(stream, stream.stream.local_addr())),
        File::Listener(_) | File::Epoll(_) => None,
    }
}

/// `getpeername` of a number that is lull's; nothing if the kernel has the answer for its placeholder.
pub fn getpeername(fd: c_int) -> Option<Result<Bytes>> {
    match &*files::get(fd)? {
        File::Stream(stream) => Some(named(stream, stream.stream.peer_addr())),
        File::Listener(_) => Some(Err(Errno::new(libc::ENOTCONN))),
        File::Epoll(_) => None,
    }
}

fn named(stream: &Stream, address: std::io::Result<std::net::SocketAddr>) -> Result<Bytes> {
    Ok(Bytes::new(address?, stream.domain))
}
