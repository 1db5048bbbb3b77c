//! The process whose stack has what a child made.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use libc::c_int;
use lull_net::{ConnectOptions, Interest, Ready, TcpListener, TcpStream};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::super::{NAMES_BYTES, datagrams, names_of, parent};
use crate::socket::{asked, connected, datagram, pool, refuse_a_listeners};
use crate::{Errno, Result, address, block, engine, kernel};

/// Until a thread that serves a listener has heard that nobody has it any more.
const LOOKS_APART: Duration = Duration::from_millis(1);

/// Listens where the kernel's socket is bound, and answers the child by `gives`: what comes goes there until nobody has the other end.
pub(in crate::inherit) fn listen(gives: OwnedFd, kernels: OwnedFd, backlog: usize) -> io::Result<()> {
    let listening = begin_to_listen(kernels.as_raw_fd(), backlog);
    answer(&gives, listening.as_ref().err())?;
    match listening {
        Ok((real, bound)) => {
            let again = move |kernels| begin_to_listen(kernels, backlog).map(|(real, _)| real);
            pool::serve_a_child(gives, kernels, real, bound, again)
        }
        Err(_) => Ok(()),
    }
}

/// Says whether a listener has the address to which a child is about to bind a socket, as it says by `socket`.
pub(in crate::inherit) fn probe(socket: OwnedFd, kernels: OwnedFd) -> io::Result<()> {
    let probed = names_said(&socket).and_then(|(at, _)| {
        until_it_is_closed(at);
        refuse_a_listeners(kernels.as_raw_fd(), at)
    });
    answer(&socket, probed.as_ref().err())
}

/// Waits until a listener has left its port that a child has closed: this process is just being told of it.
fn until_it_is_closed(at: SocketAddr) {
    while pool::is_being_closed(at.port()) {
        std::thread::sleep(LOOKS_APART);
    }
}

fn begin_to_listen(kernels: c_int, backlog: usize) -> Result<(TcpListener, SocketAddr)> {
    let engine = engine::engine()?;
    let name = kernel::getsockname(kernels)?;
    let bound = address::parse(name.as_bytes()).ok_or(Errno::new(libc::EINVAL))?;
    let v6_only = bound.is_ipv6() && kernel::int_option(kernels, libc::SOL_IPV6, libc::IPV6_V6ONLY) == Ok(1);
    let asked = asked(kernels, c_int::try_from(backlog).unwrap_or(-1), v6_only);
    until_it_is_closed(bound);
    let real = TcpListener::bind_with(&engine.network, None, bound, asked)?;
    real.set_nonblocking(true)?;
    Ok((real, bound))
}

/// Connects as the child asks by `socket`, answers there, and passes on from then on.
pub(in crate::inherit) fn connect(socket: OwnedFd, kernels: OwnedFd) -> io::Result<()> {
    let run = move || {
        let connecting = begin_to_connect(&socket);
        // The port is the connection's now.
        drop(kernels);
        let answered = answer(&socket, connecting.as_ref().err());
        if let (Ok(stream), Ok(())) = (connecting, answered)
            && let Err(error) = connected(stream).and_then(|file| parent::pass_on(file, socket).map_err(Errno::from))
        {
            lull_fd::say::line(format_args!("a connection cannot be passed on to a child: {error}"));
        }
    };
    parent::thread("lull-connect").spawn(run).map(drop)
}

/// Has lull's half of the UDP socket that the child has bound, answers by `socket`, and passes on from then on.
pub(in crate::inherit) fn bind(socket: OwnedFd, kernels: OwnedFd, keeps_port: bool) -> io::Result<()> {
    let bound = datagram::of_a_child(kernels.as_raw_fd(), keeps_port);
    answer(&socket, bound.as_ref().err())?;
    bound.map_or(Ok(()), |file| datagrams::relay::start(file, socket, kernels, ()))
}

/// The two addresses that a child says first.
fn names_said(socket: &OwnedFd) -> Result<(SocketAddr, SocketAddr)> {
    let mut names = [0; NAMES_BYTES];
    let gone = |_| Errno::new(libc::ENOTCONN);
    recv(socket, &mut names[..], RecvFlags::WAITALL).map_err(gone)?;
    names_of(&names).ok_or(Errno::new(libc::EINVAL))
}

fn begin_to_connect(socket: &OwnedFd) -> Result<TcpStream> {
    let (from, to) = names_said(socket)?;
    let engine = engine::engine()?;
    let stream = TcpStream::start_connect(&engine.network, Some(from), to, ConnectOptions::default())?;
    stream.set_nonblocking(true)?;
    // The child says no more, but that it gives up.
    block::until_ready(&stream, Interest::WRITABLE, Some(socket.as_raw_fd()), None)?;
    match stream.take_error()? {
        Some(error) => Err(Errno::from(error)),
        None if !stream.ready().intersects(Ready::WRITABLE | Ready::HUP) => Err(Errno::new(libc::EINTR)),
        None => Ok(stream),
    }
}

/// What became of what the child asked for: an error's number, or 0.
fn answer(to: &OwnedFd, error: Option<&Errno>) -> io::Result<()> {
    let number = error.map_or(0, |error| error.number());
    send(to, &number.to_ne_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}
