//! Connections that a child of `fork` inherits from a process whose engine runs, as in servers that fork a child for
//! each connection.
//!
//! The connection stays the parent's. Before the fork both get the ends of a channel. At its first call on such a
//! number, other than closing it, the child asks for the connection over the channel. From then on it has a socket of
//! the kernel's under that number, and two threads of the parent pass on what comes between that and the connection.
//! Until the child has ended, or has closed the number, the connection is open whatever the parent closes, as on Linux,
//! where both have the same open file.
//!
//! If the parent goes on to read such a connection itself, it takes what the child would have had, and the other way
//! round, as on Linux, too.
//!
//! A listener that the child asks for connections is an end of that listener's pool (`socket/pool.rs`) from then on (`made`).
//!
//! A UDP socket is passed on likewise (`datagrams`): what the child sends leaves by its parent's socket, and the child
//! is given what comes one at a time, once it asks for any. If the child connects the socket, its parent's is
//! connected.
//!
//! | module | what is in there |
//! | --- | --- |
//! | this one | the channel, and what is done around a fork |
//! | `child` | a number becomes a relay; names and options of one |
//! | `named` | what a relay's socket is called, for a program that the child executes |
//! | `parent` | what children may ask for, and the relays' other ends |
//! | `left` | what a program has that a child executes with a connection which it has not used |
//! | `datagrams` | the child's calls on a UDP socket, and the other end of its relay |
//! | `passing` | what stands for a socket that another process is given over a Unix socket: a relay, or where a listener waits |
//! | `streams` | connections that their own process uses by streams of the C library |
//! | `made` | sockets that a child makes itself at lull's addresses, and listeners that it asks |
//! | `outlived` | the parent has ended, and the child goes on with an engine of its own |

mod child;
mod datagrams;
pub(crate) mod left;
pub(crate) mod made;
mod named;
mod outlived;
mod parent;
mod passing;
pub(crate) mod streams;

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lull_net::lull_nic::own;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

pub(crate) use parent::{offer, thread};

use crate::files::{self, File, Open};
use crate::{husk, kernel, signals};

pub(crate) use child::{
    adopt, asks, closed, connect, find, found, getpeername, getsockname, getsockopt, has_datagrams, is_relay,
    setsockopt, unused, uses, uses_to_send,
};
pub(crate) use datagrams::{GONE, receive, send};
pub(crate) use outlived::{closed as number_closed, forget_between, goes_on, goes_on_soon, is_again};
pub(crate) use passing::{Passing, refuse_inherited};

/// What a child says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    /// It uses it; the descriptor that comes along is the parent's end of the relay. For a UDP socket a second one is the kernel's
    /// socket that stands behind it. None comes along for what it has left to a program that could not be executed.
    Claims,
    /// It has closed it without a use.
    Releases,
    /// It listens: the parent's end of the pair and the kernel's socket come along, and its backlog is what is told of it.
    Listens,
    /// It connects: the parent's end of the relay, by which the child has said to whom, and the kernel's socket come along.
    Connects,
    /// It has bound a UDP socket: the parent's end of the relay and the kernel's socket come along, and whether the program chose the
    /// port is what is told of it.
    Binds,
    /// It asks a listener that it inherited: the kernel's socket comes along.
    Asks,
    /// It is about to bind a TCP socket: the parent's end of a pair, by which the child has said where, and the kernel's socket come
    /// along.
    Probes,
    /// It executes a program with a connection open that it has not used: the parent's end of the relay comes along.
    Leaves,
}

impl Verb {
    const ALL: [Verb; 8] = [
        Verb::Claims,
        Verb::Releases,
        Verb::Listens,
        Verb::Connects,
        Verb::Binds,
        Verb::Asks,
        Verb::Probes,
        Verb::Leaves,
    ];
}

/// A message of a child's: the verb, and what is told of a socket: its place in the memory that both had at the fork, where it is one
/// that was inherited.
struct Message {
    verb: Verb,
    id: usize,
}

/// Descriptors that come along with a message, at most.
const DESCRIPTORS_MAX: usize = 2;
const MESSAGE_BYTES: usize = 1 + size_of::<usize>();

impl Message {
    fn bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = self.verb as u8;
        bytes[1..].copy_from_slice(&self.id.to_ne_bytes());
        bytes
    }

    fn send(
        &self,
        channel: BorrowedFd<'_>,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            // There is room for as many as any message has.
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(channel, &[IoSlice::new(&self.bytes())], &mut control, flags | SendFlags::NOSIGNAL).map(drop)
    }

    /// The next one; none when every process that had the other end has ended or executed a program. What comes along is kept from
    /// other children: they would keep it open when this process has ended.
    fn next(channel: BorrowedFd<'_>) -> Option<(Message, Vec<OwnedFd>)> {
        loop {
            let mut bytes = [0; MESSAGE_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            // An error is what it is looked at for.
            let _ = poll(&mut [PollFd::new(&channel, PollFlags::IN)], None);
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let descriptors = match kernel::receive_for_no_child(channel, parts, &mut control) {
                Ok((MESSAGE_BYTES, _, descriptors)) => descriptors,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                // A message is whole, or it is the end of them.
                _ => return None,
            };
            let Some(verb) = Verb::ALL.into_iter().find(|verb| *verb as u8 == bytes[0]) else { continue };
            let id = usize::from_ne_bytes(bytes[1..].try_into().unwrap_or_default());
            return Some((Message { verb, id }, descriptors));
        }
    }
}

/// What the taker of an offered connection says first.
const TAKEN: u8 = 1;

/// What the parent answers where a child has made a socket itself: an error's number, or 0.
const ANSWER_BYTES: usize = size_of::<libc::c_int>();

/// The address that stands for the peer of a socket without one.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// What a claimed connection's relay begins with: its own address and its peer's, a line each, filled up with spaces.
const NAMES_BYTES: usize = 160;

fn names_bytes(local: SocketAddr, peer: SocketAddr) -> [u8; NAMES_BYTES] {
    let mut bytes = [b' '; NAMES_BYTES];
    let text = format!("{local}\n{peer}\n");
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn names_of(bytes: &[u8; NAMES_BYTES]) -> Option<(SocketAddr, SocketAddr)> {
    let mut lines = std::str::from_utf8(bytes).ok()?.lines().map(|line| line.parse().ok());
    Some((lines.next()??, lines.next()??))
}

/// The connection of an open file: where its memory is, the same before and after a fork.
pub(crate) fn id(file: &Open) -> usize {
    std::ptr::from_ref::<File>(file) as usize
}

/// What is made before a fork, for both that come out of it.
struct Prepared {
    parents: OwnedFd,
    childs: OwnedFd,
    held: Vec<Open>,
}

thread_local! {
    /// Of the thread that forks, which both have.
    static PREPARED: Cell<Option<Box<Prepared>>> = const { Cell::new(None) };
}

/// Whether it stays open for a child, which may use it. A listener that this process has inherited itself stays so by who made it.
fn is_passed_on(file: &Open) -> bool {
    match &**file {
        File::Stream(_) | File::Datagram(_) => true,
        File::Listener(listener) => !listener.is_inherited(),
        File::Epoll(_) => false,
    }
}

/// Before a fork beside a running engine: what a child will inherit stays open for it.
pub(crate) fn before_a_fork() {
    signals::section(|| {
        let mut held: Vec<Open> = files::numbers().filter_map(files::get).filter(is_passed_on).collect();
        // A file with several numbers need be kept only once.
        held.sort_unstable_by_key(id);
        held.dedup_by_key(|file| id(file));
        // A child that has inherited nothing may make sockets itself. Without a free number it has husks that it cannot use.
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        // A child that another thread forks meanwhile must not have either end, either.
        if let Ok((parents, childs)) = own::made_for_no_child(pair) {
            PREPARED.set(Some(Box::new(Prepared { parents, childs, held })));
        }
    });
}

/// After a fork, in the process that forked.
pub(crate) fn in_the_parent() {
    signals::section(|| {
        if let Some(prepared) = PREPARED.take() {
            let Prepared { parents, childs, held } = *prepared;
            drop(childs);
            held.iter().for_each(|file| {
                if let File::Listener(listener) = &**file {
                    listener.is_inherited_by_a_child();
                }
            });
            parent::keep(parents, held);
        }
    });
}

/// After a fork, in a process that has listeners. Those of a child's parent are not its own to tell of.
pub(crate) fn children_have_listeners() {
    if husk::is_husk() {
        return;
    }
    for file in files::numbers().filter_map(files::get) {
        if let File::Listener(listener) = &*file {
            listener.is_inherited_by_a_child();
        }
    }
}

/// After a fork, in the child.
pub(crate) fn in_the_child() {
    let Some(prepared) = PREPARED.take() else { return child::begin_further() };
    let Prepared { parents, childs, held } = *prepared;
    // The count of who has them is the parent's, whose end is closed with all that is kept from children.
    std::mem::forget((parents, held));
    own::mark(childs.as_raw_fd());
    child::begin(childs);
}

/// A child of a child has the same channel, so that neither can say for both that it is done with a connection.
pub(crate) fn shared_on() {
    child::share();
}

/// The channel, as both ends are borrowed.
fn end(channel: &OwnedFd) -> BorrowedFd<'_> {
    channel.as_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_their_bytes_and_a_cut_is_none() {
        let names = ("[fd00::1234:5678:9abc:def0%4000000000]:65535".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
        let bytes = names_bytes(names.0, names.1);
        assert_eq!(names_of(&bytes), Some(names));
        assert_eq!(names_of(&[b' '; NAMES_BYTES]), None);
    }

    #[test]
    fn a_message_brings_its_descriptor_and_the_end_of_the_last_process_ends_the_channel() {
        let (parents, childs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let claim = Message { verb: Verb::Claims, id: 4096 };
        claim.send(childs.as_fd(), &[childs.as_fd(), childs.as_fd()], SendFlags::empty()).unwrap();
        Message { verb: Verb::Releases, id: 1 }.send(childs.as_fd(), &[], SendFlags::empty()).unwrap();
        let (message, descriptors) = Message::next(parents.as_fd()).unwrap();
        assert_eq!((message.verb, message.id, descriptors.len()), (Verb::Claims, 4096, 2));
        let (message, none) = Message::next(parents.as_fd()).unwrap();
        assert_eq!((message.verb, message.id, none.len()), (Verb::Releases, 1, 0));
        drop((childs, descriptors));
        assert!(Message::next(parents.as_fd()).is_none());
    }
}
