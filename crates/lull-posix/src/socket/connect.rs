//! `connect`: where a socket becomes lull's by its destination.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8};

use libc::c_int;
use lull_net::{ConnectOptions, Interest, Ready, TcpStream};

use super::failed::is_as_before;
use super::options::{Options, refused};
use super::{Connecting, Flow, Stream, datagram, shutdown};
use crate::files::{self, File, Open};
use crate::{Errno, Result, address, block, engine, epoll, inherit, kernel};

const fn error<T>(number: c_int) -> Result<T> {
    Err(Errno::new(number))
}

/// Whether an address in the kernel's form is lull's to connect to.
pub fn is_destination(bytes: &[u8]) -> bool {
    address::parse(bytes).is_some_and(|to| engine::reaches(to.ip()))
}

/// Whether `connect` with this number and address may be lull's: by the address, or because the socket is lull's. It is
/// also lull's in a child that has it from a parent.
pub fn connects(fd: c_int, to: &[u8]) -> bool {
    let is_a_childs = || inherit::is_relay(fd) || inherit::made::connects(fd);
    files::is_lull_to_send(fd) || is_destination(to) || is_disconnect(to) || is_a_childs()
}

/// Whether an address in the kernel's form stands for no address (AF_UNSPEC), by which a datagram socket loses its
/// peer.
fn is_disconnect(bytes: &[u8]) -> bool {
    address::family(bytes) == Some(libc::AF_UNSPEC)
}

/// Whether a socket of the kernel's sends to this address by lull. If so it is a UDP socket, and from now on it is
/// lull's as well.
///
/// # Errors
/// EOPNOTSUPP for a TCP socket that is to be connected by this, as of a kernel whose `tcp_fastopen` is 0: the program calls `connect`.
pub fn sends_by_lull(fd: c_int, to: &[u8], flags: c_int) -> Result<bool> {
    if !is_destination(to) {
        return Ok(false);
    }
    let is_tcp = || kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    if flags & libc::MSG_FASTOPEN != 0 && is_tcp() {
        return error(libc::EOPNOTSUPP);
    }
    datagram::reach(fd, to)
}

/// `connect`.
pub fn connect(fd: c_int, bytes: &[u8]) -> Result<()> {
    if connect_by_lull(fd, bytes)? { Ok(()) } else { kernel::connect(fd, bytes) }
}

/// `connect`, if it is lull's. Returns false if it is the kernel's, which has not been called yet: it may wait there,
/// and handlers, which run when a section is over, would have to wait as well.
pub fn connect_by_lull(fd: c_int, bytes: &[u8]) -> Result<bool> {
    if let Some(connected) = inherit::connect(fd, bytes) {
        return connected.map(|()| true);
    }
    if inherit::made::connects(fd) && !inherit::goes_on() {
        return inherit::made::connect(fd, bytes).map(|()| true);
    }
    files::hand_back_ended(fd);
    if let Some(file) = files::get(fd) {
        let connected = match &*file {
            File::Stream(stream) => again(fd, &file, stream),
            File::Datagram(datagram) => datagram.connect(fd, &file, bytes),
            // The socket no longer listens, and may be told to listen again (`tcp_disconnect`).
            File::Listener(_) if is_disconnect(bytes) => shutdown(fd, libc::SHUT_RD),
            File::Listener(_) => error(libc::EISCONN),
            File::Epoll(_) => error(libc::ENOTSOCK),
        };
        return connected.map(|()| true);
    }
    if is_disconnect(bytes) {
        // This call does not wait.
        kernel::connect(fd, bytes)?;
        // Without its peer of the kernel's, a datagram socket that kept its port hears both worlds. Whoever has got that
        // port in lull's since hears what comes there, and this one the kernel's world alone.
        let _ = datagram::bound(fd, true);
        return Ok(true);
    }
    let Some(to) = address::parse(bytes).filter(|to| engine::reaches(to.ip())) else { return Ok(false) };
    if datagram::reach(fd, bytes)? {
        let file = files::get(fd).ok_or(Errno::new(libc::EBADF))?;
        let File::Datagram(datagram) = &*file else { return error(libc::EBADF) };
        return datagram.connect(fd, &file, bytes).map(|()| true);
    }
    if kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
        return Ok(false);
    }
    // The socket is the kernel's by its peer, or listens there. The kernel says what becomes of the call.
    if kernel::is_in_use(fd) {
        return Ok(false);
    }
    let domain = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    // The kernel judges an address of another family than the socket's, and one of IPv4 that the socket does not reach.
    if address::family(bytes) != Some(domain) || to.is_ipv4() && datagram::is_v6_only(fd) {
        return Ok(false);
    }
    // A port that was bound stays bound by the placeholder.
    let local = address::parse(kernel::getsockname(fd)?.as_bytes());
    // The address that it is bound to says whose it is.
    let is_own = local.is_some_and(|local| engine::is_own(local.ip()));
    if !is_own && (local.is_some_and(|local| !local.ip().is_unspecified()) || engine::has_no_queue()) {
        return Ok(false);
    }
    // The answers to a port that is not lull's would reach the kernel.
    if !engine::takes(local.map_or(0, |local| local.port())) {
        return Ok(false);
    }
    start(fd, domain, local, to).map(|()| true)
}

fn start(fd: c_int, domain: c_int, local: Option<SocketAddr>, to: SocketAddr) -> Result<()> {
    refused::check(fd)?;
    let engine = engine::engine()?;
    let options = Options::of_placeholder(fd);
    let local = local.filter(|local| local.port() != 0 || !local.ip().is_unspecified());
    if engine::is_own(to.ip()) {
        listen_to_ourselves(to);
    }
    let asked = ConnectOptions { rx_buffer_bytes: options.buffers().receive, ..ConnectOptions::default() };
    let stream = TcpStream::start_connect(&engine.network, local, to, asked)
        .map_err(|error| not_available(Errno::from(error)))?;
    stream.set_nonblocking(true)?;
    options.apply(&stream);
    let local = stream.local_addr()?;
    let file = Stream {
        names: (local, to),
        _flow: Flow::of(local, to),
        connecting: AtomicU8::new(Connecting::UnderWay as u8),
        nonblocking: AtomicBool::new(kernel::is_nonblocking(fd)),
        stream,
        domain,
        options,
    };
    epoll::becomes_lulls(fd, || files::put(fd, File::Stream(file)))?;
    let file = files::get(fd).ok_or(Errno::new(libc::EBADF))?;
    let File::Stream(stream) = &*file else { return error(libc::EBADF) };
    if stream.is_nonblocking() {
        // An answer that has come already is told by the next call, as the kernel handles it only when this call is
        // over.
        return error(libc::EINPROGRESS);
    }
    finish(fd, &file, stream, libc::EINPROGRESS)
}

/// If there is a connection between these two addresses already, there cannot be another one (`__inet_hash_connect`).
fn not_available(error: Errno) -> Errno {
    if error.number() == libc::EADDRINUSE { Errno::new(libc::EADDRNOTAVAIL) } else { error }
}

/// A program that connects to itself finds its own listener, though nobody has asked for its connections yet.
fn listen_to_ourselves(to: SocketAddr) {
    for file in files::numbers().filter_map(files::get) {
        if let File::Listener(listener) = &*file
            && listener.is_ours_at(to)
        {
            // If it cannot listen, the connection is refused, as at every address where nobody listens.
            let _ = listener.real();
        }
    }
}

/// A second call tells how the first one went, and does so once (`__inet_stream_connect`).
fn again(fd: c_int, file: &Open, stream: &Stream) -> Result<()> {
    if stream.is_connecting(Connecting::Over) {
        return error(libc::EISCONN);
    }
    if stream.is_connecting(Connecting::Disconnecting) {
        return error(libc::EINVAL);
    }
    finish(fd, file, stream, libc::EALREADY)
}

/// Waits for the outcome, if the socket blocks. `under_way` is the error of a call that does not wait.
fn finish(fd: c_int, file: &Open, stream: &Stream, under_way: c_int) -> Result<()> {
    const OVER: Ready = Ready::WRITABLE.union(Ready::ERR).union(Ready::HUP);
    if !stream.stream.ready().intersects(OVER) {
        if stream.is_nonblocking() {
            return error(under_way);
        }
        if !block::until_ready(&stream.stream, Interest::WRITABLE, None, stream.options.send_timeout())? {
            return error(libc::EINPROGRESS);
        }
    }
    let failed = stream.stream.take_error()?;
    if failed.is_none() && !stream.stream.ready().contains(Ready::HUP) {
        stream.set_connecting(Connecting::Over);
        inherit::streams::is_connected(fd);
        return Ok(());
    }
    is_as_before(fd, file, stream);
    Err(failed.map_or(Errno::new(libc::ECONNABORTED), Errno::from))
}
