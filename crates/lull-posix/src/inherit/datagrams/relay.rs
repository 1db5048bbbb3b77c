//! The parent's end of a relay of datagrams: a thread that sends what the child sends, and gives it what it asks for.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use lull_net::Interest;
use rustix::net::SendFlags;

use super::{CONTROL_BYTES, HEADER_BYTES, Header, Kind};
use crate::block::{self, Wait};
use crate::files::{File, Open};
use crate::inherit::{names_bytes, parent};
use crate::socket::{Datagram, Room};
use crate::{Errno, Result, address, kernel};

const WOULD_BLOCK: Errno = Errno::new(libc::EAGAIN);
/// What a datagram may hold.
const DATA_BYTES: usize = 0x1_0000;
/// Stands for the peer of a socket that has none.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

struct Relay {
    file: Open,
    /// The end whose other one the child has.
    socket: OwnedFd,
    /// The kernel's socket that stands behind the program's: its half of one in both worlds.
    kernels: OwnedFd,
}

/// Begins a relay with the names of the socket.
pub(in crate::inherit) fn start(file: Open, socket: OwnedFd, kernels: OwnedFd) -> io::Result<()> {
    let relay = Relay { file, socket, kernels };
    let datagram = relay.datagram();
    let bound = kernel::getsockname(relay.kernels.as_raw_fd()).ok().and_then(|name| address::parse(name.as_bytes()));
    let local = datagram.own_name().transpose()?.or(bound).unwrap_or(NOBODY);
    let names = names_bytes(local, datagram.peer().transpose()?.unwrap_or(NOBODY));
    rustix::net::send(&relay.socket, &names, SendFlags::NOSIGNAL)?;
    parent::thread("lull-relay-udp").spawn(move || relay.run()).map(drop)
}

impl Relay {
    fn datagram(&self) -> &Datagram {
        match &*self.file {
            File::Datagram(datagram) => datagram,
            _ => unreachable!("a child sends a second descriptor for a UDP socket alone"),
        }
    }

    /// Until every process has closed the other end.
    fn run(&self) {
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
    fn of_the_child(&self, data: &mut [u8]) -> Result<Option<Kind>> {
        let mut header = Header::bare(Kind::Wants, 0);
        let mut parts = [IoSliceMut::new(&mut header.0), IoSliceMut::new(data)];
        let got = kernel::recvmsg(self.socket.as_raw_fd(), &mut parts, &mut [], libc::MSG_DONTWAIT)?.bytes;
        let Some(length) = got.checked_sub(HEADER_BYTES) else { return Ok(None) };
        if header.kind() == Some(Kind::Datagram)
            && let Err(error) = self.send(&header, &data[..length])
        {
            self.tell(&Header::bare(Kind::NotSent, error.number()), &[]);
        }
        Ok(header.kind())
    }

    fn send(&self, header: &Header, data: &[u8]) -> Result<()> {
        let (datagram, fd) = (self.datagram(), self.kernels.as_raw_fd());
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
        let room = Room { buffers: &mut [IoSliceMut::new(data)], control: &mut control };
        match self.datagram().receive(self.kernels.as_raw_fd(), room, libc::MSG_DONTWAIT) {
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
        let (lulls, theirs) = (is_wanted, is_wanted && datagram.is_kernels_too());
        let added = (if lulls { wait.add(&datagram.sockets, readable(), readable) } else { Ok(()) })
            .and_then(|()| if theirs { wait.add_kernels(kernels, readable(), readable) } else { Ok(()) });
        let waited = added.and_then(|()| wait.wait(None));
        if lulls {
            wait.remove(&datagram.sockets);
        }
        if theirs {
            wait.remove_kernels(kernels);
        }
        wait.remove_kernels(child);
        waited.map(drop)
    }
}
