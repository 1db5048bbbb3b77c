//! A socket that another process is to be given over a Unix socket (`rights.rs`).

mod listener;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::c_int;
use lull_fd::say;
use lull_net::lull_nic::own;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{NAMES_BYTES, child, datagrams, named, names_of, parent};
use crate::files::{self, File, Open};
use crate::kernel::{self, NoSignals};
use crate::socket::{Connecting, Stream, bound, pool};
use crate::{Errno, Result};

pub(super) use listener::becomes as becomes_listener;

/// What the other process is to be given. Dropped, it has changed nothing of the socket.
pub(crate) struct Passing {
    begins: Begins,
    theirs: OwnedFd,
}

/// What is done when it has been sent.
enum Begins {
    /// The connection is passed on by the other end of the relay.
    Connection(Open, OwnedFd),
    /// Nothing: what comes to a UDP socket waits until it is asked for, and a socket that does not listen has nothing.
    Nothing,
    /// Another process has the listener from then on.
    Listener(Open),
}

impl Passing {
    /// For the socket behind a number.
    pub(crate) fn new(fd: c_int, file: Open) -> Result<Passing> {
        Passing::made(fd, &file).map_err(|error| refused(fd, &file, error))
    }

    /// For one that is bound where lull listens, and does not listen yet; none if it is no such socket.
    pub(crate) fn bound(fd: c_int) -> Option<Result<Passing>> {
        let theirs = bound::pass_on(fd, |its| listener::end(fd, its))?;
        Some(theirs.map(|theirs| Passing { begins: Begins::Nothing, theirs }))
    }

    fn made(fd: c_int, file: &Open) -> Result<Passing> {
        match &**file {
            File::Stream(stream) => {
                let (mine, theirs) = relay(fd, stream)?;
                Ok(Passing { begins: Begins::Connection(file.clone(), mine), theirs })
            }
            File::Datagram(datagram) => {
                let (domain, nonblocking) = (datagram.domain, datagram.is_nonblocking());
                let (mine, theirs) = pair(SocketType::SEQPACKET)?;
                let _no_signals = NoSignals::begin();
                // A process that exits stays for as long as the other one uses it.
                datagrams::relay::start(file.clone(), mine, kernel::kept_duplicate(fd)?, pool::used_by_another())?;
                let mut names = [0; NAMES_BYTES];
                child::read_whole(theirs.as_raw_fd(), &mut names)?;
                let names = names_of(&names).ok_or(Errno::new(libc::ENOTCONN))?;
                called(fd, &theirs, names, domain, nonblocking)?;
                Ok(Passing { begins: Begins::Nothing, theirs })
            }
            File::Listener(its) => {
                let its = its.for_another().ok_or(Errno::new(libc::EOPNOTSUPP))?;
                Ok(Passing { begins: Begins::Listener(file.clone()), theirs: listener::end(fd, &its)? })
            }
            File::Epoll(_) => Err(Errno::new(libc::EOPNOTSUPP)),
        }
    }

    /// What the other process is given.
    pub(crate) fn end(&self) -> &OwnedFd {
        &self.theirs
    }

    /// It has been sent.
    pub(crate) fn begin(self) {
        let _no_signals = NoSignals::begin();
        match self.begins {
            Begins::Connection(file, mine) => {
                // A process that exits stays for as long as the other one uses it.
                if let Err(error) = parent::pass_on_named(file, mine, pool::used_by_another()) {
                    say::line(format_args!("a connection cannot be passed on to another process: {error}"));
                }
            }
            Begins::Listener(file) => {
                if let File::Listener(listener) = &*file {
                    listener.is_passed_on();
                }
            }
            Begins::Nothing => {}
        }
    }
}

/// What a child of a process with an engine has from that, and could not become a relay.
pub(crate) fn refuse_inherited(fd: c_int) -> Errno {
    let error = Errno::new(libc::EOPNOTSUPP);
    let Some(file) = files::inherited(fd) else { return error };
    let error = refused(fd, &file, error);
    // The count of who has it is the parent's.
    std::mem::forget(file);
    error
}

fn refused(fd: c_int, file: &File, error: Errno) -> Errno {
    let what = match file {
        File::Stream(_) => "connection",
        File::Datagram(_) => "UDP socket",
        File::Listener(_) => "listener",
        File::Epoll(_) => "epoll context",
    };
    say::line(format_args!(
        "process {} cannot pass {what} {fd} to another process ({error}): on lull only established connections, UDP sockets and \
         listeners are passed on; let the other process make its own",
        std::process::id()
    ));
    error
}

/// The ends of a relay for a connection: its owner's, and one that is called after the connection and waits as that does.
pub(super) fn relay(fd: c_int, stream: &Stream) -> Result<(OwnedFd, OwnedFd)> {
    // One that was reset has no names any more, but is a connection still.
    let names = match stream.is_connecting(Connecting::Over) {
        true => stream.names,
        false => (stream.stream().local_addr()?, stream.stream().peer_addr()?),
    };
    let (mine, theirs) = pair(SocketType::STREAM)?;
    called(fd, &theirs, names, stream.domain, stream.is_nonblocking())?;
    Ok((mine, theirs))
}

fn pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd)> {
    // A child that is forked meanwhile would keep open what the other process closes.
    let ends = own::made_for_no_child(|| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None));
    ends.map_err(super::made::errno)
}

/// The end is called after the socket, and waits as that does.
fn called(
    fd: c_int,
    theirs: &OwnedFd,
    (local, peer): (SocketAddr, SocketAddr),
    domain: c_int,
    nonblocking: bool,
) -> Result<()> {
    let theirs = theirs.as_raw_fd();
    child::copy_timeouts(fd, theirs);
    kernel::put_nonblocking(theirs, nonblocking);
    named::call(theirs, local, peer, domain)
}
