//! The kernel's socket behind a listener: connections that come to it are given to the pool, too.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use lull_fd::say;
use lull_net::lull_nic::{Afresh, own};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::owner::served;
use super::{KERNELS, Message, is_hung_up, locked, to_io};
use crate::files::{self, File, Open};
use crate::socket::turn;
use crate::{address, inherit, kernel};

/// How long this waits for a connection that is already there.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// How long passing on rests when it has failed.
const TRIES_APART: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The pools of the kernel's halves.
static KERNELS_SERVED: Afresh<Mutex<BTreeSet<u32>>> = Afresh::new();

fn kernels_served() -> MutexGuard<'static, BTreeSet<u32>> {
    locked(KERNELS_SERVED.get_or_init(Mutex::default))
}

/// A child of `fork` gives nothing to anybody.
pub(super) fn forget() {
    KERNELS_SERVED.forget();
}

/// A child asks for the connections of a listener of this process's, which may not have asked for any itself, and may have closed it:
/// it is among what is `held` for the child then. What comes to the kernel's half goes to the pool as well, until nobody takes
/// anything out of that.
pub(crate) fn begin_to_give<'a>(kernels: OwnedFd, mut held: impl Iterator<Item = &'a Open>) -> io::Result<()> {
    let inode = kernel::inode(kernels.as_raw_fd()).map_err(to_io)?;
    let is_it = |file: &Open| matches!(&**file, File::Listener(listener) if listener.inode == inode);
    let open = files::numbers().filter_map(files::get).find(is_it);
    let (mut gives, mut listens) = (None, Ok(()));
    let file = open.as_ref().or_else(|| held.find(|file| is_it(file)));
    if let Some(File::Listener(listener)) = file.map(|file| &**file) {
        listens = listener.real().map(drop).map_err(to_io);
        gives = listener.shared().map(|pool| Arc::clone(&pool.gives));
    }
    drop(open);
    let gives = gives.or_else(|| served().get(&inode).and_then(Weak::upgrade));
    if let Some(gives) = gives.filter(|_| is_listening(&kernels)) {
        give_what_comes_to(kernels, inode, gives)?;
    }
    listens
}

fn give_what_comes_to(kernels: OwnedFd, inode: u32, gives: Arc<OwnedFd>) -> io::Result<()> {
    let name = kernel::getsockname(kernels.as_raw_fd()).map_err(to_io)?;
    let bound = address::parse(name.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
    if !kernels_served().insert(inode) {
        return Ok(());
    }
    let run = move || {
        let (mut half, mut is_said) = (KernelsHalf::new(kernels), false);
        while half.may_have_any() {
            let mut polled = [PollFd::new(&half.listener, PollFlags::IN), PollFd::new(&gives, PollFlags::empty())];
            // One that is at hand is not waited for.
            let within = half.at_hand.is_some().then_some(&AT_ONCE);
            if poll(&mut polled, within).is_ok() && !polled[1].revents().is_empty() {
                break;
            }
            half.give_or_rest(&gives, bound, &mut is_said);
        }
        kernels_served().remove(&inode);
    };
    let started = inherit::thread("lull-pool").spawn(run);
    started.map(drop).inspect_err(|_| {
        kernels_served().remove(&inode);
    })
}

/// The kernel's socket behind a listener. Connections that come to it are given, too.
pub(super) struct KernelsHalf {
    pub(super) listener: OwnedFd,
    /// A connection that was accepted there and could not be given yet. If nobody takes any more, it is closed.
    pub(super) at_hand: Option<OwnedFd>,
}

impl KernelsHalf {
    pub(super) fn new(listener: OwnedFd) -> KernelsHalf {
        KernelsHalf { listener, at_hand: None }
    }

    pub(super) fn may_have_any(&self) -> bool {
        self.at_hand.is_some() || is_listening(&self.listener)
    }

    /// Gives a connection, if there is one. Returns whether there was. While every process is busy it waits here, as a
    /// descriptor of lull's own.
    fn give(&mut self, gives: &OwnedFd) -> io::Result<bool> {
        if self.at_hand.is_none() {
            self.at_hand = self.accepted()?;
        }
        let Some(connection) = &self.at_hand else { return Ok(false) };
        Message { process: std::process::id(), connection: KERNELS }.send(gives, connection)?;
        self.at_hand = None;
        Ok(true)
    }

    /// A connection that waits there. If no number is free, it goes on waiting.
    #[allow(unsafe_code)]
    fn accepted(&self) -> io::Result<Option<OwnedFd>> {
        let accept = || turn::accept(self.listener.as_raw_fd(), libc::SOCK_CLOEXEC);
        let gone = [libc::EWOULDBLOCK, libc::ECONNABORTED, libc::EINTR];
        // SAFETY: the kernel has just made it, and nobody else has it.
        match own::made_for_no_child(|| accept().map(|(number, _)| unsafe { OwnedFd::from_raw_fd(number) })) {
            Ok(connection) => Ok(Some(connection)),
            // Another process has taken the connection, or its peer has reset it.
            Err(error) if gone.contains(&error.number()) => Ok(None),
            Err(error) => Err(to_io(error)),
        }
    }

    /// As [`KernelsHalf::give`], which is tried again later where it fails.
    pub(super) fn give_or_rest(&mut self, gives: &OwnedFd, bound: SocketAddr, is_said: &mut bool) {
        match self.give(gives) {
            Ok(was_one) => *is_said &= !was_one,
            Err(error) => rest(gives, bound, &error, is_said),
        }
    }
}

/// The descriptors that passing on needs are not to be had. Connections wait where this process may accept them, and
/// passing on is tried again later.
pub(super) fn rest(gives: &OwnedFd, bound: SocketAddr, error: &io::Error, is_said: &mut bool) {
    if is_hung_up(gives) {
        return;
    }
    if !std::mem::replace(is_said, true) {
        let process = std::process::id();
        say::line(format_args!("connections of {bound} wait until process {process} can pass them on: {error}"));
    }
    // A hang-up ends this wait.
    let _ = poll(&mut [PollFd::new(gives, PollFlags::empty())], Some(&TRIES_APART));
}

fn is_listening(socket: &OwnedFd) -> bool {
    kernel::int_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fork::tests::in_a_child;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// A listener of the kernel's at which a connection waits, and a pool that it can be given to.
    pub(in super::super) fn one_that_waits() -> (KernelsHalf, std::net::TcpStream, (OwnedFd, OwnedFd)) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pool = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (KernelsHalf::new(listener.into()), client, pool)
    }

    /// The limit of open files is `soft` from now on.
    fn limited_to(soft: u64) -> bool {
        let limit = rustix::process::Resource::Nofile;
        let before = rustix::process::getrlimit(limit);
        rustix::process::setrlimit(limit, rustix::process::Rlimit { current: Some(soft), ..before }).is_ok()
    }

    fn is_its_peers((message, socket): &(Message, OwnedFd), client: &std::net::TcpStream) -> bool {
        let name = kernel::getpeername(socket.as_raw_fd()).ok().and_then(|name| address::parse(name.as_bytes()));
        message.connection == KERNELS && name.is_some_and(|name| client.local_addr().is_ok_and(|own| own == name))
    }

    #[test]
    fn a_connection_of_the_kernels_waits_until_there_is_a_number_for_it() {
        let (mut half, client, (takes, gives)) = one_that_waits();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(in_a_child(|| {
            // Standard input, output and error have these.
            let is_refused = limited_to(3) && half.give(&gives).is_err_and(|e| e.raw_os_error() == Some(libc::EMFILE));
            let is_given = limited_to(limit) && half.give(&gives).is_ok_and(|was_one| was_one);
            let next = Message::next(&takes).ok().flatten();
            is_refused && is_given && next.is_some_and(|next| is_its_peers(&next, &client))
        }));
    }

    /// Without a capability a user has as many descriptors on their way as one process may have open (`too_many_unix_fds`).
    #[test]
    #[allow(unsafe_code)]
    fn a_connection_of_the_kernels_that_cannot_be_sent_stays_at_hand_until_it_can() {
        let (mut half, client, (takes, gives)) = one_that_waits();
        /// Nobody else has this number.
        const NOBODY_ELSE: libc::uid_t = 61_357;
        assert!(in_a_child(|| {
            // SAFETY: numbers only.
            unsafe {
                if libc::geteuid() == 0 && libc::setresuid(NOBODY_ELSE, NOBODY_ELSE, NOBODY_ELSE) != 0 {
                    return false;
                }
            }
            let Ok(free) = kernel::duplicate(gives.as_raw_fd(), 0, true) else { return false };
            let most = free as u64 + 8;
            let filler = Message { process: 0, connection: 7 };
            let is_full = limited_to(most)
                && (0..2 * most).any(|_| filler.send(&gives, &takes) == Err(rustix::io::Errno::TOOMANYREFS));
            let is_refused = half.give(&gives).is_err() && half.at_hand.is_some();
            let took = (0..8).all(|_| Message::next(&takes).is_ok_and(|next| next.is_some()));
            let is_given = half.give(&gives).is_ok_and(|was_one| was_one) && half.at_hand.is_none();
            let next = std::iter::from_fn(|| Message::next(&takes).ok().flatten()).last();
            is_full && is_refused && took && is_given && next.is_some_and(|next| is_its_peers(&next, &client))
        }));
    }
}
