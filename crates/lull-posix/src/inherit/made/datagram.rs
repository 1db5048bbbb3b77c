//! UDP sockets that a child binds: its parent's stack has them, and they are passed on as one that the child inherited.

use std::os::fd::AsRawFd;

use libc::c_int;
use rustix::net::SocketType;

use super::{ask, is_in_both_worlds, is_lulls, pair, read_answer, replace};
use crate::inherit::{Message, Verb, child, datagrams};
use crate::socket::options::refused;
use crate::{Result, address, kernel};

/// `bind` of a UDP socket. One on a wildcard stays the kernel's where lull cannot have a half of it.
pub(super) fn bind(fd: c_int, bytes: &[u8]) -> Result<()> {
    let Some(at) = address::parse(bytes) else { return kernel::bind(fd, bytes) };
    let is_own = is_lulls(at);
    if is_own {
        refused::check(fd)?;
        crate::socket::bind_own(fd, bytes)?;
    } else {
        kernel::bind(fd, bytes)?;
        let bound = kernel::getsockname(fd).ok().and_then(|name| address::parse(name.as_bytes()));
        if !bound.is_some_and(|bound| is_in_both_worlds(fd, bound)) || refused::is_set(fd) {
            return Ok(());
        }
    }
    match become_relay(fd, at.port() != 0) {
        Err(_) if !is_own => Ok(()),
        made => made,
    }
}

/// The number stands for the end of a relay from here on. `keeps_port`: the program chose the port.
fn become_relay(fd: c_int, keeps_port: bool) -> Result<()> {
    let (mine, parents) = pair(SocketType::SEQPACKET)?;
    ask(&Message { verb: Verb::Binds, id: usize::from(keeps_port) }, &parents, fd)?;
    drop(parents);
    read_answer(&mine)?;
    let domain = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    child::take_names(mine.as_raw_fd(), domain)?;
    replace(fd, mine)?;
    child::begin_with_datagrams();
    // What the child waits for is not seen before it reads.
    datagrams::ask(fd);
    Ok(())
}
