//! The open files of connections that have begun elsewhere.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8};

use libc::c_int;
use lull_net::TcpStream;

use super::options::Options;
use super::{Connecting, Flow, Stream};
use crate::Result;
use crate::files::{self, File, Open};

/// The open file of a connection that was accepted.
pub(super) fn accepted(
    domain: c_int,
    options: Options,
    stream: TcpStream,
    peer: SocketAddr,
    flags: c_int,
) -> Result<Stream> {
    stream.set_nonblocking(true)?;
    options.apply(&stream);
    let names = (stream.local_addr()?, peer);
    let flow = Flow::of(names.0, names.1);
    let nonblocking = AtomicBool::new(flags & libc::SOCK_NONBLOCK != 0);
    let connecting = AtomicU8::new(Connecting::Over as u8);
    Ok(Stream { stream, domain, nonblocking, options, connecting, names, _flow: flow })
}

/// The open file of a connection that another process has asked for.
pub(crate) fn connected(stream: TcpStream) -> Result<Open> {
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    let domain = if local.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let file = Stream {
        names: (local, peer),
        _flow: Flow::of(local, peer),
        connecting: AtomicU8::new(Connecting::Over as u8),
        nonblocking: AtomicBool::new(true),
        stream,
        domain,
        options: Options::default(),
    };
    files::open(File::Stream(file))
}
