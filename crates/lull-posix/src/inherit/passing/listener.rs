//! A listener that another process is to be given.
//!
//! It is given the end of a pair, at which the listener waits, that is the kernel's socket behind it and the ends of
//! its pool. If the other process belongs to the same program, its library makes a listener of that, as of an inherited
//! one: connections come by a queue of its own, or out of the pool. In a process of another program, and in a child
//! whose parent has an engine, the number stands for the end of the pool alone.
//!
//! A socket that is bound, and does not listen yet, is passed on likewise (`socket/bound.rs`); in another program it is the kernel's.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libc::c_int;
use lull_net::lull_nic::own;
use rustix::net::{RecvAncillaryBuffer, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg};

use super::super::{child, made, named};
use crate::flows::{self, Kept, NOT_LISTENING};
use crate::socket;
use crate::socket::pool::{ForAnother, Pool};
use crate::{Result, husk, kernel, signals};

/// The kernel's socket, and the ends of the pool.
const DESCRIPTORS: usize = 3;

/// What is said of it: the program's table of connections, by its inode, the process that called `listen` or bound
/// it, and the backlog.
type Said = [u32; 3];
const SAID_BYTES: usize = size_of::<Said>();

/// The end that the other process is to be given, for the listener behind a number.
pub(super) fn end(fd: c_int, its: &ForAnother<'_>) -> Result<OwnedFd> {
    let (mine, theirs) = super::pair(SocketType::SEQPACKET)?;
    let said: Said = [table(), its.called_in, its.backlog];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [kernel::borrow(fd), its.ends[0], its.ends[1]];
    // There is room for as many.
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let bytes = said.map(u32::to_ne_bytes);
    let sent = sendmsg(&mine, &[IoSlice::new(bytes.as_flattened())], &mut control, SendFlags::NOSIGNAL);
    sent.map_err(made::errno)?;
    named::call_passed(theirs.as_raw_fd(), its.bound, its.domain)?;
    Ok(theirs)
}

/// Which program a process is one of; 0 for none.
fn table() -> u32 {
    flows::of_the_program().and_then(|flows| kernel::inode(flows.as_fd().as_raw_fd()).ok()).unwrap_or(0)
}

/// A number may be the end at which a listener waits: it stands for that from here on.
pub(in crate::inherit) fn becomes(number: c_int) {
    let Some((bound, domain)) = named::of_passed(number) else { return };
    signals::section(|| {
        // Where another process has taken it, that has the listener.
        let Some((said, [placeholder, takes, gives])) = taken(number) else { return };
        let [of, called_in, backlog] = said;
        if of == table() && of != 0 && !husk::is_husk() && child::stand_under(number, placeholder.as_raw_fd()).is_ok() {
            let inode = kernel::inode(number).unwrap_or(0);
            let noted_in = std::process::id();
            let kept = Kept { inode, number, called_in, noted_in, backlog, pool: None };
            // Without room in the table it is a socket that does not listen.
            let _ = socket::adopt_with(&kept, || Some(Pool::of(takes, gives)));
        } else if backlog == NOT_LISTENING {
            // To others it is what the kernel has.
            let _ = child::stand_under(number, placeholder.as_raw_fd());
        } else {
            drop(gives);
            // As above.
            let _ = asks(number, &takes, bound, domain);
        }
    });
}

/// The number stands for the end of a pool.
fn asks(number: c_int, takes: &OwnedFd, bound: SocketAddr, domain: c_int) -> Result<()> {
    let end = takes.as_raw_fd();
    if !named::is_listener(end) {
        named::call_listener(end, bound, domain)?;
    }
    crate::socket::pool::asks_at(end);
    made::stands_for(number, end)?;
    child::has_listeners();
    Ok(())
}

/// What waits at an end.
fn taken(end: c_int) -> Option<(Said, [OwnedFd; DESCRIPTORS])> {
    let mut bytes = [[0; size_of::<u32>()]; SAID_BYTES / size_of::<u32>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    own::begin();
    let parts = &mut [IoSliceMut::new(bytes.as_flattened_mut())];
    let received = kernel::receive_with_descriptors(kernel::borrow(end), parts, &mut control);
    let (length, _, descriptors) = received.ok()?;
    let descriptors = descriptors.try_into().ok()?;
    (length == SAID_BYTES).then_some((bytes.map(u32::from_ne_bytes), descriptors))
}
