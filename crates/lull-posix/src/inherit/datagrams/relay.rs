//! The parent's end of a relay of datagrams: a thread that sends what the child sends, and gives it what it asks for.
//!
//! The socket tells how much of that the child has not read. If others read the program's socket as well, the next
//! datagram is given once the child has read all. A child that is the only reader is given more while it has less than
//! [`UNREAD_BYTES`] unread, so that neither has to wake the other for each datagram.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libc::c_int;
use lull_net::Interest;
use lull_net::lull_nic::own;
use rustix::net::{RecvAncillaryBuffer, SendFlags};

use super::{CONTROL_BYTES, HEADER_BYTES, Header, Kind, peer};
use crate::block::{self, Wait};
use crate::errno::WOULD_BLOCK;
use crate::files::{File, Open};
use crate::inherit::{NOBODY, names_bytes, parent};
use crate::socket::{Datagram, Message, Reader, Room, World, datagram};
use crate::{Errno, Result, address, kernel};

/// What a datagram may hold.
const DATA_BYTES: usize = 0x1_0000;
/// So many are given before the relay looks whether the child has sent something.
const GIVEN_AT_A_TIME: usize = 16;
/// A child that is the only reader is given more while it has less than this unread, in the kernel's bytes. A small
/// datagram counts for about 1 KiB. The socket takes a message while it has less than SO_SNDBUF
/// (`sock_alloc_send_pskb`), so that the relay never waits for a child that waits for it.
const UNREAD_BYTES: usize = 48 << 10;

struct Relay {
    /// None from when the child has connected it to a peer of the kernel's: it is the kernel's alone then.
    file: Option<Open>,
    /// The end whose other one the child has.
    socket: OwnedFd,
    /// The kernel's socket that stands behind the program's: its half of one in both worlds.
    kernels: OwnedFd,
    /// [`UNREAD_BYTES`], or less where the socket takes less.
    unread_max: usize,
    /// The child has asked for a datagram.
    hears: bool,
    /// It is counted among those who read lull's socket from then on.
    reader: Option<Reader>,
}

/// Begins a relay with the names of the socket. What comes along is dropped when that is over.
pub(in crate::inherit) fn start<G: Send + 'static>(
    file: Open,
    socket: OwnedFd,
    kernels: OwnedFd,
    guard: G,
) -> io::Result<()> {
    own::keep_from_children(&socket);
    own::keep_from_children(&kernels);
    let takes = kernel::int_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    let unread_max = UNREAD_BYTES.min(usize::try_from(takes / 2).unwrap_or(0)).max(1);
    let mut relay = Relay { file: Some(file), socket, kernels, unread_max, hears: false, reader: None };
    let (local, peer) = relay.names().map_err(|error| io::Error::from_raw_os_error(error.number()))?;
    rustix::net::send(&relay.socket, &names_bytes(local, peer), SendFlags::NOSIGNAL)?;
    let run = move || {
        relay.run();
        // Whoever waits for its end finds the socket closed.
        drop(relay);
        drop(guard);
    };
    parent::thread("lull-relay-udp").spawn(run).map(drop)
}

impl Relay {
    fn datagram(&self) -> Option<&Datagram> {
        datagram_of(self.file.as_ref()?)
    }

    /// Its own name and its peer's.
    fn names(&self) -> Result<(SocketAddr, SocketAddr)> {
        let kernels = self.kernels.as_raw_fd();
        let of_the_kernel =
            |name: Result<kernel::RawAddress>| name.ok().and_then(|name| address::parse(name.as_bytes()));
        let (local, peer) = match self.datagram() {
            Some(datagram) => (datagram.own_name().transpose()?, datagram.peer().transpose()?),
            None => (None, of_the_kernel(kernel::getpeername(kernels))),
        };
        let local = local.or_else(|| of_the_kernel(kernel::getsockname(kernels)));
        Ok((local.unwrap_or(NOBODY), peer.unwrap_or(NOBODY)))
    }

    /// The child gives the socket a peer, or takes it away; its names then.
    fn connect(&mut self, to: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
        match self.datagram() {
            Some(datagram) => {
                if datagram.set_peer(self.kernels.as_raw_fd(), to)? == World::Kernels {
                    (self.file, self.reader) = (None, None);
                }
            }
            None => kernel::connect(self.kernels.as_raw_fd(), to)?,
        }
        self.names()
    }

    /// Until every process has closed the other end.
    fn run(&mut self) {
        let mut data = vec![0; DATA_BYTES];
        let Ok(mut waiting) = Waiting::for_messages(self.socket.as_raw_fd()) else { return };
        loop {
            match self.of_the_child(&mut data) {
                Ok(Some(Kind::Wants)) => self.begins_to_hear(),
                Ok(Some(_)) => {}
                Err(WOULD_BLOCK) => {
                    let waited = match self.give_some(&mut data) {
                        Given::All => continue,
                        Given::WhatThereWas => waiting.also_for(self.file.as_ref(), self.kernels.as_raw_fd()),
                        Given::WhatFits => waiting.for_messages_alone(),
                    };
                    if waited.and_then(|()| waiting.wait.wait(None)).is_err() {
                        return;
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn begins_to_hear(&mut self) {
        if !self.hears {
            self.hears = true;
            self.reader = self.file.clone().map(Reader::new);
        }
    }

    /// Gives the child datagrams, as far as it may have them.
    fn give_some(&mut self, data: &mut [u8]) -> Given {
        for _ in 0..GIVEN_AT_A_TIME {
            if !self.may_give() {
                return Given::WhatFits;
            }
            if !self.give(data) {
                return Given::WhatThereWas;
            }
        }
        Given::All
    }

    /// Whether the child may be given one more datagram.
    fn may_give(&self) -> bool {
        // Where the kernel alone has the socket, the child may not be the only one.
        let bound = if self.reader.as_ref().is_some_and(Reader::is_alone) { self.unread_max } else { 1 };
        self.hears && kernel::unread_by_peer(self.socket.as_raw_fd()).is_ok_and(|unread| unread < bound)
    }

    /// Does what the child's next message asks for, and says what that was; nothing if there will be none any more.
    fn of_the_child(&mut self, data: &mut [u8]) -> Result<Option<Kind>> {
        let mut header = Header::bare(Kind::Wants, 0);
        let Some((length, answers)) = self.next_message(&mut header, data)? else { return Ok(None) };
        match (header.kind(), answers) {
            (Some(Kind::Datagram), _) => {
                if let Err(error) = self.send(&header, &data[..length]) {
                    self.tell(&Header::bare(Kind::NotSent, error.number()), &[]);
                }
            }
            (Some(Kind::Connects), Some(answers)) => peer::answer(&answers, self.connect(header.name())),
            (Some(Kind::Names), Some(answers)) => peer::answer(&answers, self.names()),
            _ => {}
        }
        Ok(header.kind())
    }

    /// The child's next message: how much is behind the header, and the socket that came along; nothing if there will be none any
    /// more.
    fn next_message(&self, header: &mut Header, data: &mut [u8]) -> Result<Option<(usize, Option<OwnedFd>)>> {
        let mut parts = [IoSliceMut::new(&mut header.0), IoSliceMut::new(data)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = kernel::receive_with_descriptors(self.socket.as_fd(), &mut parts, &mut control);
        let (got, _, mut descriptors) = received.map_err(|error| Errno::new(error.raw_os_error()))?;
        Ok(got.checked_sub(HEADER_BYTES).map(|length| (length, descriptors.pop())))
    }

    fn send(&self, header: &Header, data: &[u8]) -> Result<()> {
        let fd = self.kernels.as_raw_fd();
        let Some(datagram) = self.datagram() else {
            let parts = [IoSlice::new(data)];
            return kernel::sendmsg(fd, &parts, header.name(), header.control(), header.number()).map(drop);
        };
        loop {
            match datagram.send(fd, &[IoSlice::new(data)], header.name(), header.control(), header.number()) {
                // The program's socket may be one that does not block: the relay does.
                Err(WOULD_BLOCK) => block::until_ready(&datagram.sockets, Interest::WRITABLE, None, None).map(drop)?,
                sent => return sent.map(drop),
            }
        }
    }

    /// Gives the child a datagram, or the error that the socket has instead; false if there is none yet.
    fn give(&self, data: &mut [u8]) -> bool {
        let mut control = [0; CONTROL_BYTES];
        let mut room = Room { buffers: &mut [IoSliceMut::new(data)], control: &mut control };
        let kernels = self.kernels.as_raw_fd();
        let received = match self.datagram() {
            Some(datagram) => datagram.receive_for_another(kernels, room),
            None => datagram::kernels(kernels, &mut room, 0),
        };
        let reads_no_more = || match self.datagram() {
            Some(datagram) => datagram.reads_no_more(),
            None => kernel::reads_no_more(kernels),
        };
        let received = match received {
            // A child that waits is told so; whether this one does is not known here.
            Err(WOULD_BLOCK) if reads_no_more() => Ok(Message::default()),
            received => received,
        };
        match received {
            Err(WOULD_BLOCK) => return false,
            Err(error) => self.tell(&Header::bare(Kind::Failed, error.number()), &[]),
            Ok(message) => {
                let control = &control[..message.control_bytes];
                let header = Header::new(Kind::Datagram, message.flags, message.from.as_bytes(), control);
                // Both are as long as lull's own are at most.
                let header = header.unwrap_or(Header::bare(Kind::Failed, libc::EMSGSIZE));
                self.tell(&header, &data[..message.bytes]);
            }
        }
        true
    }

    /// A child that has gone hears nothing, and one that does not read is told of so many errors only.
    fn tell(&self, header: &Header, data: &[u8]) {
        let wait = if header.kind() == Some(Kind::NotSent) { libc::MSG_DONTWAIT } else { 0 };
        let parts = [IoSlice::new(&header.0), IoSlice::new(data)];
        let _ = kernel::sendmsg(self.socket.as_raw_fd(), &parts, &[], &[], wait | libc::MSG_NOSIGNAL);
    }
}

/// What a child has been given.
enum Given {
    /// As much as is given at a time; there may be more.
    All,
    /// There is no more.
    WhatThereWas,
    /// It may have no more now.
    WhatFits,
}

/// What the relay waits for: the child's messages, and at times datagrams.
struct Waiting {
    wait: Wait,
    child: c_int,
    lulls: Option<Open>,
    kernels: Option<c_int>,
}

impl Waiting {
    fn for_messages(child: c_int) -> Result<Waiting> {
        let wait = Wait::new()?;
        wait.add_kernels(child, Interest::READABLE, || Interest::READABLE)?;
        Ok(Waiting { wait, child, lulls: None, kernels: None })
    }

    fn for_messages_alone(&mut self) -> Result<()> {
        self.set(None, None)
    }

    /// Waits for datagrams, too: of lull's socket, of the kernel's, or of both halves of one.
    fn also_for(&mut self, file: Option<&Open>, kernels: c_int) -> Result<()> {
        let datagram = file.and_then(datagram_of);
        self.set(file, datagram.is_none_or(Datagram::is_kernels_too).then_some(kernels))
    }

    fn set(&mut self, lulls: Option<&Open>, kernels: Option<c_int>) -> Result<()> {
        let readable = || Interest::READABLE;
        if self.lulls.is_some() != lulls.is_some() {
            if let Some(datagram) = self.lulls.take().as_ref().and_then(datagram_of) {
                self.wait.remove(&datagram.sockets);
            }
            if let Some(file) = lulls
                && let Some(datagram) = datagram_of(file)
            {
                self.wait.add(&datagram.sockets, readable(), readable)?;
                self.lulls = Some(file.clone());
            }
        }
        if self.kernels != kernels {
            if let Some(kernels) = self.kernels.take() {
                self.wait.remove_kernels(kernels);
            }
            if let Some(kernels) = kernels {
                self.wait.add_kernels(kernels, readable(), readable)?;
                self.kernels = Some(kernels);
            }
        }
        Ok(())
    }
}

/// The context is kept for the thread's next wait.
impl Drop for Waiting {
    fn drop(&mut self) {
        // Removing fails for nothing.
        let _ = self.for_messages_alone();
        self.wait.remove_kernels(self.child);
    }
}

fn datagram_of(file: &Open) -> Option<&Datagram> {
    match &**file {
        File::Datagram(datagram) => Some(datagram),
        _ => None,
    }
}
