//! A child gives a UDP socket of its parent's a peer, as `socat UDP-LISTEN:...,fork` does.
//!
//! Both have the same open file, so that the socket itself is connected, by the parent's end of the relay. The child asks over the
//! relay, and has the answer, which is also the socket's names from then on, over a socket of its own that goes along: what comes
//! over the relay is the program's to read. The name of the relay's socket cannot be changed, so that a process keeps what it was
//! answered; a program that is executed asks anew. What another process connects meanwhile is not seen by `getpeername`.
#![allow(unsafe_code)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

use super::{GONE, Header, Kind};
use crate::inherit::{NAMES_BYTES, names_bytes, names_of};
use crate::{Errno, Result, kernel};

/// What an answer has before the names: an error's number, or 0.
const ERROR_BYTES: usize = size_of::<c_int>();
const ANSWER_BYTES: usize = ERROR_BYTES + NAMES_BYTES;

/// What the parent's end says.
pub(super) fn answer(to: &OwnedFd, names: Result<(SocketAddr, SocketAddr)>) {
    let mut bytes = [0; ANSWER_BYTES];
    let (error, rest) = bytes.split_at_mut(ERROR_BYTES);
    match names {
        Ok((local, peer)) => rest.copy_from_slice(&names_bytes(local, peer)),
        Err(failed) => error.copy_from_slice(&failed.number().to_ne_bytes()),
    }
    // A child that has ended hears nothing.
    let _ = rustix::net::send(to, &bytes, SendFlags::NOSIGNAL);
}

/// Asks the parent for a peer, or with an address of no bytes for the names as they are.
pub(in crate::inherit) fn ask(relay: c_int, to: &[u8]) -> Result<()> {
    let failed = |error: rustix::io::Errno| Errno::new(error.raw_os_error());
    let kind = if to.is_empty() { Kind::Names } else { Kind::Connects };
    let header = Header::new(kind, 0, super::cut(to), &[]).ok_or(Errno::new(libc::EINVAL))?;
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (mine, parents) = ends.map_err(failed)?;
    let descriptors = [parents.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There is room for one.
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(kernel::borrow(relay), &[IoSlice::new(&header.0)], &mut control, SendFlags::NOSIGNAL).map_err(failed)?;
    drop(parents);
    let mut bytes = [0; ANSWER_BYTES];
    if kernel::recv(mine.as_raw_fd(), &mut bytes, 0)? != ANSWER_BYTES {
        return Err(GONE);
    }
    let (error, names) = bytes.split_at(ERROR_BYTES);
    match error.try_into().map_or(0, c_int::from_ne_bytes) {
        0 => {}
        error => return Err(Errno::new(error)),
    }
    let names = names.try_into().ok().and_then(names_of);
    note(relay, names.ok_or(GONE)?)
}

/// What was answered. None is ever taken out: a list that only grows needs no lock, which a `fork` could find held.
static ANSWERS: AtomicPtr<Answer> = AtomicPtr::new(null_mut());

struct Answer {
    inode: u32,
    names: (SocketAddr, SocketAddr),
    before: *mut Answer,
}

fn note(relay: c_int, names: (SocketAddr, SocketAddr)) -> Result<()> {
    let inode = kernel::inode(relay)?;
    let answer = Box::into_raw(Box::new(Answer { inode, names, before: null_mut() }));
    let mut before = ANSWERS.load(Ordering::Relaxed);
    loop {
        // SAFETY: nobody else has it yet.
        unsafe { (*answer).before = before };
        match ANSWERS.compare_exchange_weak(before, answer, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(other) => before = other,
        }
    }
}

/// The names that a relay's socket has by an answer, the last one's.
pub(in crate::inherit) fn names(relay: c_int) -> Option<(SocketAddr, SocketAddr)> {
    // SAFETY: whoever is in the list was leaked into it, whole.
    let last = unsafe { ANSWERS.load(Ordering::Acquire).as_ref() }?;
    let inode = kernel::inode(relay).ok()?;
    // SAFETY: as above.
    let answers = std::iter::successors(Some(last), |answer| unsafe { answer.before.as_ref() });
    answers.into_iter().find(|answer| answer.inode == inode).map(|answer| answer.names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_of_a_socket_counts_and_another_has_none() {
        let end = || {
            let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            ends.0
        };
        let (first, second) = (end(), end());
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let [before, after] = ["10.0.0.1:1", "10.0.0.1:2"].map(|peer| (at("10.0.0.2:7"), at(peer)));
        note(first.as_raw_fd(), before).unwrap();
        assert_eq!((names(first.as_raw_fd()), names(second.as_raw_fd())), (Some(before), None));
        note(first.as_raw_fd(), after).unwrap();
        assert_eq!(names(first.as_raw_fd()), Some(after));
    }
}
