//! A child gives a UDP socket of its parent's a peer, as `socat UDP-LISTEN:...,fork` does.
//!
//! On Linux both have the same open file, so the parent's end of the relay connects the socket itself. The child asks
//! over the relay and sends along a socket of its own for the answer, which also tells the socket's names from then on;
//! the answer cannot come over the relay, because the program reads what comes there. The name of the relay's socket
//! cannot be changed, so that a process keeps what it was answered; a program that is executed asks anew. What another
//! process connects meanwhile is not seen by `getpeername`.
#![allow(unsafe_code)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use libc::c_int;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

use super::{GONE, Header, Kind};
use crate::errno::WOULD_BLOCK;
use crate::inherit::{NAMES_BYTES, child, names_bytes, names_of};
use crate::signals::{INTERRUPTED, RESTARTS};
use crate::socket::pool;
use crate::{Errno, Result, block, cancel, kernel, signals};

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
    // Who looks what it was given is in no section yet.
    signals::section(|| asked(relay, to))
}

fn asked(relay: c_int, to: &[u8]) -> Result<()> {
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
    let parts = [IoSlice::new(&header.0)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut send = || sendmsg(kernel::borrow(relay), &parts, &mut control, flags).map_err(failed);
    whatever_comes(|| block::until_taken(relay, None, &mut send))?;
    drop(parents);
    let mut bytes = [0; ANSWER_BYTES];
    if whatever_comes(|| answered(&mine, &mut bytes))? != ANSWER_BYTES {
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

/// What the parent has answered, which may be stopped.
fn answered(mine: &OwnedFd, bytes: &mut [u8]) -> Result<usize> {
    let at = mine.as_raw_fd();
    loop {
        match kernel::recv(at, bytes, libc::MSG_DONTWAIT) {
            Err(WOULD_BLOCK) => {}
            got => return got,
        }
        match pool::wait_in_kernel(at, None) {
            Ok(()) => {}
            Err(RESTARTS) => return Err(RESTARTS),
            // Without a free number for that wait, it is one that no signal ends.
            Err(_) => return child::read_whole(at, bytes).map(|()| bytes.len()).map_err(|_| GONE),
        }
    }
}

/// Makes a call again whenever a signal ends it. Handlers run while it waits, and it goes on whatever they were
/// installed with, since on Linux the call would not wait. Only a thread that is cancelled stops waiting.
fn whatever_comes<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(RESTARTS) if signals::restarts() || !cancel::is_asked() => {}
            Err(RESTARTS) => return Err(INTERRUPTED),
            done => return done,
        }
    }
}

/// The last answer for each socket. None is ever taken out, because a list that only grows needs no lock, which a
/// `fork` could find held.
static ANSWERS: AtomicPtr<Answer> = AtomicPtr::new(null_mut());

const WORDS: usize = NAMES_BYTES / size_of::<u64>();
/// The names of an answer as they come ([`names_bytes`]).
type Words = [AtomicU64; WORDS];

/// A socket's last answer. Whoever writes the next one leaves the last as it is until the next is whole: nobody who reads waits for who
/// writes, which a child's copy may do for ever.
struct Answer {
    inode: u32,
    /// How many there have been. The last one is in the place of that number, the one before in the other.
    count: AtomicU64,
    places: [Words; 2],
    /// The process of which a thread writes.
    written_by: AtomicU32,
    before: *mut Answer,
}

fn words(names: (SocketAddr, SocketAddr)) -> [u64; WORDS] {
    let bytes = names_bytes(names.0, names.1);
    std::array::from_fn(|nth| u64::from_ne_bytes(std::array::from_fn(|at| bytes[nth * size_of::<u64>() + at])))
}

impl Answer {
    fn new(inode: u32, names: (SocketAddr, SocketAddr)) -> Answer {
        let places = [words(names).map(AtomicU64::new), std::array::from_fn(|_| AtomicU64::new(0))];
        Answer { inode, count: AtomicU64::new(0), places, written_by: AtomicU32::new(0), before: null_mut() }
    }

    /// The caller is in a section: no handler of its thread comes meanwhile.
    fn becomes(&self, names: (SocketAddr, SocketAddr)) {
        let process = std::process::id();
        // What a thread of another process was at when this one was forked from it, nobody is at here.
        while self.written_by.swap(process, Ordering::Acquire) == process {
            std::thread::yield_now();
        }
        let count = self.count.load(Ordering::Relaxed) + 1;
        // Who has read a word of what follows finds that the one which it reads is not the last any more.
        fence(Ordering::Release);
        for (word, value) in self.places[count as usize % 2].iter().zip(words(names)) {
            word.store(value, Ordering::Relaxed);
        }
        self.count.store(count, Ordering::Release);
        self.written_by.store(0, Ordering::Release);
    }

    fn names(&self) -> Option<(SocketAddr, SocketAddr)> {
        loop {
            let count = self.count.load(Ordering::Acquire);
            let place = &self.places[count as usize % 2];
            let mut bytes = [0; NAMES_BYTES];
            for (part, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(place) {
                part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            fence(Ordering::Acquire);
            if self.count.load(Ordering::Relaxed) == count {
                return names_of(&bytes);
            }
        }
    }
}

fn note(relay: c_int, names: (SocketAddr, SocketAddr)) -> Result<()> {
    let inode = kernel::inode(relay)?;
    signals::section(|| match find(inode) {
        Some(answer) => answer.becomes(names),
        None => add(Answer::new(inode, names)),
    });
    Ok(())
}

/// Where two threads add the first one of a socket, the later one counts.
fn add(answer: Answer) {
    let answer = Box::into_raw(Box::new(answer));
    let mut before = ANSWERS.load(Ordering::Relaxed);
    loop {
        // SAFETY: nobody else has it yet.
        unsafe { (*answer).before = before };
        match ANSWERS.compare_exchange_weak(before, answer, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => before = other,
        }
    }
}

fn answers() -> impl Iterator<Item = &'static Answer> {
    // SAFETY: whoever is in the list was leaked into it, whole.
    let last = unsafe { ANSWERS.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(last, |answer| unsafe { answer.before.as_ref() })
}

fn find(inode: u32) -> Option<&'static Answer> {
    answers().find(|answer| answer.inode == inode)
}

/// The names that a relay's socket has by an answer, the last one's.
pub(in crate::inherit) fn names(relay: c_int) -> Option<(SocketAddr, SocketAddr)> {
    if ANSWERS.load(Ordering::Relaxed).is_null() {
        return None;
    }
    find(kernel::inode(relay).ok()?)?.names()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::in_a_child;

    fn end() -> OwnedFd {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap().0
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn the_last_answer_of_a_socket_counts_and_another_has_none() {
        let (first, second) = (end(), end());
        let [before, after] = [1, 2].map(|peer| (at(7), at(peer)));
        note(first.as_raw_fd(), before).unwrap();
        assert_eq!((names(first.as_raw_fd()), names(second.as_raw_fd())), (Some(before), None));
        note(first.as_raw_fd(), after).unwrap();
        assert_eq!(names(first.as_raw_fd()), Some(after));
    }

    /// Each names its port twice.
    #[test]
    fn answers_of_a_socket_take_the_room_of_one_and_are_read_whole() {
        let socket = end();
        let answered = |port: u16| note(socket.as_raw_fd(), (at(port), at(port))).unwrap();
        answered(1);
        std::thread::scope(|scope| {
            let writers = [2, 20_002].map(|first| scope.spawn(move || (first..first + 10_000).for_each(answered)));
            while writers.iter().any(|writer| !writer.is_finished()) {
                let (local, peer) = names(socket.as_raw_fd()).unwrap();
                assert_eq!(local, peer);
            }
        });
        let inode = kernel::inode(socket.as_raw_fd()).unwrap();
        assert_eq!(answers().filter(|answer| answer.inode == inode).count(), 1);
    }

    /// A thread of the parent's was at it when the child was forked.
    #[test]
    fn an_answer_that_was_being_written_at_a_fork_is_the_last_one_in_the_child_and_can_be_followed() {
        let socket = end();
        let [last, next] = [1, 2].map(|peer| (at(7), at(peer)));
        note(socket.as_raw_fd(), last).unwrap();
        let answer = find(kernel::inode(socket.as_raw_fd()).unwrap()).unwrap();
        answer.written_by.store(std::process::id(), Ordering::Relaxed);
        answer.places[1][0].store(u64::MAX, Ordering::Relaxed);
        let is_so = || {
            names(socket.as_raw_fd()) == Some(last)
                && note(socket.as_raw_fd(), next).is_ok()
                && names(socket.as_raw_fd()) == Some(next)
        };
        let was_so = in_a_child(is_so);
        answer.written_by.store(0, Ordering::Relaxed);
        assert!(was_so);
    }
}
