//! The parent's end of a relay of datagrams: a thread that sends what the child sends, and gives it what it asks for.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use lull_net::Interest;
use lull_net::lull_nic::own;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg};

use super::{CONTROL_BYTES, HEADER_BYTES, Header, Kind, peer};
use crate::block::{self, Wait};
use crate::errno::WOULD_BLOCK;
use crate::files::{File, Open};
use crate::inherit::{NOBODY, names_bytes, parent};
use crate::socket::{Datagram, Message, Room, World, datagram};
use crate::{Errno, Result, address, kernel};

/// What a datagram may hold.
const DATA_BYTES: usize = 0x1_0000;

struct Relay {
    /// None from when the child has connected it to a peer of the kernel's: it is the kernel's alone then.
    file: Option<Open>,
    /// The end whose other one the child has.
    socket: OwnedFd,
    /// The kernel's socket that stands behind the program's: its half of one in both worlds.
    kernels: OwnedFd,
}

/// Begins a relay with the names of the socket. What comes along is dropped when that is over.
pub(in crate::inherit) fn start<G: Send + 'static>(
    file: Open,
    socket: OwnedFd,
    kernels: OwnedFd,
    guard: G,
) -> io::Result<()> {
    let mut relay = Relay { file: Some(file), socket, kernels };
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
        match &**self.file.as_ref()? {
            File::Datagram(datagram) => Some(datagram),
            _ => unreachable!("a child sends a second descriptor for a UDP socket alone"),
        }
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
                    self.file = None;
                }
            }
            None => kernel::connect(self.kernels.as_raw_fd(), to)?,
        }
        self.names()
    }

    /// Until every process has closed the other end.
    fn run(&mut self) {
        let (mut data, mut is_wanted) = (vec![0; DATA_BYTES], false);
        loop {
            match self.of_the_child(&mut data) {
                Ok(Some(Kind::Wants)) => is_wanted = true,
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(WOULD_BLOCK) if is_wanted && self.give(&mut data) => is_wanted = false,
                Err(WOULD_BLOCK) => {
                    if self.wait(is_wanted).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
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
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.socket, &mut parts, &mut control, flags);
        let got = got.map_err(|error| Errno::new(error.raw_os_error()))?.bytes;
        let answers = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next().map(own::kept_apart),
            _ => None,
        });
        Ok(got.checked_sub(HEADER_BYTES).map(|length| (length, answers)))
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
            Some(datagram) => datagram.receive(kernels, room, libc::MSG_DONTWAIT),
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

    /// Waits for the child, and for a datagram if it wants one.
    fn wait(&self, is_wanted: bool) -> Result<()> {
        let (datagram, child, kernels) = (self.datagram(), self.socket.as_raw_fd(), self.kernels.as_raw_fd());
        let readable = || Interest::READABLE;
        let wait = Wait::new()?;
        wait.add_kernels(child, readable(), readable)?;
        let lulls = datagram.filter(|_| is_wanted);
        let theirs = is_wanted && datagram.is_none_or(Datagram::is_kernels_too);
        let added = lulls
            .map_or(Ok(()), |datagram| wait.add(&datagram.sockets, readable(), readable))
            .and_then(|()| if theirs { wait.add_kernels(kernels, readable(), readable) } else { Ok(()) });
        let waited = added.and_then(|()| wait.wait(None));
        if let Some(datagram) = lulls {
            wait.remove(&datagram.sockets);
        }
        if theirs {
            wait.remove_kernels(kernels);
        }
        wait.remove_kernels(child);
        waited.map(drop)
    }
}
