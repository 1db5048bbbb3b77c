//! UDP sockets in a child: each message of the relay is a [`Header`] with a datagram's data behind it.
//!
//! The relay's socket keeps messages apart and tells of its end (SOCK_SEQPACKET). The child's number is an end of it, so that `poll`
//! and its kin are the kernel's. A child that only sends leaves what comes to its parent; one that reads or waits asks for a
//! datagram, and for more whenever it has read all that there was. So one datagram at most waits for the child alone where others read the
//! socket as well; a child that is the only one to read it is given what fits ([`relay`]). What goes wrong with a datagram that the
//! child has sent, it is told by the next call that reads, like an error of the network.

pub(super) mod peer;
pub(super) mod relay;

use std::io::{IoSlice, IoSliceMut};

use libc::c_int;

use super::child;
use crate::address::Name;
use crate::address::{self, Bytes};
use crate::errno::WOULD_BLOCK;
use crate::socket::datagram::MSG_PROBE;
use crate::socket::options::Options;
use crate::socket::{Message, Room, pool};
use crate::{Errno, Result, block, kernel};

/// Room for an address, and for the ancillary data of a datagram: lull knows of two kinds for each family.
const NAME_BYTES: usize = 28;
const CONTROL_BYTES: usize = 128;
const NAME: usize = 8;
const CONTROL: usize = NAME + NAME_BYTES;
const HEADER_BYTES: usize = CONTROL + CONTROL_BYTES;
/// The longest payload that UDP's length field has room for, behind its own header.
const PAYLOAD_BYTES_MAX: usize = 0xffff - 8;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// A datagram, to be sent or received, and its flags.
    Datagram,
    /// The child wants one.
    Wants,
    /// What the socket had instead of a datagram; the number is an error's.
    Failed,
    /// What became of a datagram that was to be sent.
    NotSent,
    /// The socket is to have a peer, or none any more (`peer`).
    Connects,
    /// The child asks for the socket's names.
    Names,
}

/// What a message begins with: kind, lengths of the address and of the ancillary data, a number, and both.
struct Header([u8; HEADER_BYTES]);

impl Header {
    /// Nothing if an address or ancillary data are longer than any that lull knows.
    fn new(kind: Kind, number: c_int, name: &[u8], control: &[u8]) -> Option<Header> {
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1], bytes[2]) = (kind as u8, name.len() as u8, control.len() as u8);
        bytes[4..NAME].copy_from_slice(&number.to_ne_bytes());
        bytes[NAME..CONTROL].get_mut(..name.len())?.copy_from_slice(name);
        bytes[CONTROL..].get_mut(..control.len())?.copy_from_slice(control);
        Some(Header(bytes))
    }

    /// One with a number alone.
    fn bare(kind: Kind, number: c_int) -> Header {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = kind as u8;
        bytes[4..NAME].copy_from_slice(&number.to_ne_bytes());
        Header(bytes)
    }

    fn kind(&self) -> Option<Kind> {
        let kinds = [Kind::Datagram, Kind::Wants, Kind::Failed, Kind::NotSent, Kind::Connects, Kind::Names];
        kinds.into_iter().find(|kind| *kind as u8 == self.0[0])
    }

    fn number(&self) -> c_int {
        c_int::from_ne_bytes([self.0[4], self.0[5], self.0[6], self.0[7]])
    }

    fn name(&self) -> &[u8] {
        &self.0[NAME..CONTROL][..usize::from(self.0[1]).min(NAME_BYTES)]
    }

    fn control(&self) -> &[u8] {
        &self.0[CONTROL..][..usize::from(self.0[2]).min(CONTROL_BYTES)]
    }
}

/// An address without what is behind it: programs give the length of a `sockaddr_storage`, which has room for any.
fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(NAME_BYTES)]
}

const BAD_NUMBER: Errno = Errno::new(libc::EBADF);
/// The parent has ended, and its network with it.
pub(crate) const GONE: Errno = Errno::new(libc::ENETDOWN);

/// The child asks for a datagram.
pub(super) fn ask(fd: c_int) {
    let wants = Header::bare(Kind::Wants, 0);
    // There is room for it, unless the child has sent very much: then the relay looks anyway, when it has sent that.
    let _ = kernel::sendmsg(fd, &[IoSlice::new(&wants.0)], &[], &[], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
}

/// `recvmsg` of a child.
pub(crate) fn receive(fd: c_int, room: Room<'_, '_>, flags: c_int) -> Result<Message> {
    let (_, domain) = child::datagrams(fd).ok_or(BAD_NUMBER)?;
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(WOULD_BLOCK);
    }
    let mut header = Header::bare(Kind::Datagram, 0);
    let capacity: usize = room.buffers.iter().map(|buffer| buffer.len()).sum();
    let mut buffers = vec![IoSliceMut::new(&mut header.0)];
    buffers.extend(room.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)));
    let kernels = flags & libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let dont_wait = flags & libc::MSG_DONTWAIT != 0 || kernel::is_nonblocking(fd);
    let got = loop {
        match kernel::recvmsg(fd, &mut buffers, &mut [], kernels) {
            Err(WOULD_BLOCK) if !dont_wait => pool::wait_in_kernel(fd, Options::of_placeholder(fd).receive_timeout())?,
            // It had not read everything that it was sent.
            Err(error) if error.number() == libc::ECONNRESET => return Err(GONE),
            got => break got?.bytes,
        }
    };
    let there = got.checked_sub(HEADER_BYTES).ok_or(GONE)?;
    // Whoever has read the last one asks.
    if flags & libc::MSG_PEEK == 0 && !kernel::unread(fd).is_ok_and(|left| left > 0) {
        ask(fd);
    }
    if header.kind() != Some(Kind::Datagram) {
        return Err(Errno::new(header.number()));
    }
    let said = header.control();
    let control_bytes = said.len().min(room.control.len());
    room.control[..control_bytes].copy_from_slice(&said[..control_bytes]);
    let cut = |is_cut: bool, flag: c_int| if is_cut { flag } else { 0 };
    let from = address::parse(header.name()).map(|from| Name::Lulls(Bytes::new(from, domain)));
    Ok(Message {
        bytes: if flags & libc::MSG_TRUNC != 0 { there } else { there.min(capacity) },
        from: from.unwrap_or_default(),
        control_bytes,
        flags: header.number()
            | cut(there > capacity, libc::MSG_TRUNC)
            | cut(said.len() > control_bytes, libc::MSG_CTRUNC),
    })
}

/// `sendmsg` of a child.
pub(crate) fn send(fd: c_int, data: &[IoSlice<'_>], to: &[u8], control: &[u8], flags: c_int) -> Result<usize> {
    let (peer, _) = child::datagrams(fd).ok_or(BAD_NUMBER)?;
    let length: usize = data.iter().map(|part| part.len()).sum();
    if length > PAYLOAD_BYTES_MAX {
        return Err(Errno::new(libc::EMSGSIZE));
    }
    // Port 0 of an address is a peer (`udp_sendmsg`), though none that `getpeername` tells.
    if to.is_empty() && peer.port() == 0 && peer.ip().to_canonical() == super::NOBODY.ip() {
        return Err(Errno::new(libc::EDESTADDRREQ));
    }
    let asked = flags & (libc::MSG_MORE | libc::MSG_OOB | MSG_PROBE);
    let header = Header::new(Kind::Datagram, asked, cut(to), control).ok_or(Errno::new(libc::EINVAL))?;
    let mut parts = vec![IoSlice::new(&header.0)];
    parts.extend(data.iter().map(|part| IoSlice::new(part)));
    let call = || kernel::sendmsg(fd, &parts, &[], &[], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let sent = match call() {
        // A parent that does not run takes nothing.
        Err(WOULD_BLOCK) if flags & libc::MSG_DONTWAIT == 0 && !kernel::is_nonblocking(fd) => {
            block::until_taken(fd, Options::of_placeholder(fd).send_timeout(), call)
        }
        sent => sent,
    };
    match sent {
        Ok(_) => Ok(length),
        Err(error) if matches!(error.number(), libc::EPIPE | libc::ECONNRESET) => Err(GONE),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_was_told_and_has_no_room_for_more() {
        let header = Header::new(Kind::Datagram, libc::MSG_MORE, &[1; NAME_BYTES], &[2; CONTROL_BYTES]).unwrap();
        assert_eq!((header.kind(), header.number()), (Some(Kind::Datagram), libc::MSG_MORE));
        assert_eq!((header.name(), header.control()), (&[1; NAME_BYTES][..], &[2; CONTROL_BYTES][..]));
        assert!(Header::new(Kind::Datagram, 0, &[1; NAME_BYTES + 1], &[]).is_none());
        assert!(Header::new(Kind::Datagram, 0, &[], &[1; CONTROL_BYTES + 1]).is_none());
        let failed = Header::bare(Kind::NotSent, libc::EMSGSIZE);
        assert_eq!((failed.kind(), failed.number(), failed.name()), (Some(Kind::NotSent), libc::EMSGSIZE, &[][..]));
    }
}
