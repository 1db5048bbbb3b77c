//! A program that a child executes with the number of a connection that the child has not used.
//!
//! The executed program may serve the connection, or never look at it, like a helper that a server runs beside
//! connections which it has left open for no reason. Nobody can tell which. So the number becomes the end of a relay
//! that passes nothing on until the executed program has written something, or until nobody else has the connection. A
//! parent that goes on to serve the connection loses nothing.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::c_int;
use lull_fd::say;
use lull_net::lull_nic::Afresh;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, socketpair};

use super::child::{self, Alone};
use super::{Message, Verb, id, named, parent};
use crate::files::{self, File, Open};
use crate::socket::Connecting;
use crate::{Errno, Result, husk, kernel, signals};

/// If there are more connections than this, none is left to a program: a server that leaves so many open does not mean
/// to pass them on.
const LEFT_MAX: usize = 16;
/// Between two looks at who has a connection, at most.
const LOOKS_APART_MAX: Duration = Duration::from_millis(100);

/// Connections that are left to a program which a child is about to execute: what they are called by its parent.
#[derive(Debug, Default)]
pub(crate) struct Left(Vec<usize>);

impl Left {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// No program was executed: the child goes on, and has them as if it had used them.
    pub(crate) fn are_used(self) {
        let Some(channel) = child::channel() else { return };
        for id in self.0 {
            // Where the parent has ended, they are over.
            let _ = Message { verb: Verb::Claims, id }.send(channel, &[], SendFlags::empty());
        }
    }
}

/// A number of a connection that stays open over `execve`, and that this child has not used.
struct Unused {
    number: c_int,
    id: usize,
    names: (SocketAddr, SocketAddr),
    domain: c_int,
    nonblocking: bool,
}

impl Unused {
    fn find(number: c_int) -> Option<Unused> {
        let stays = kernel::fcntl(number, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
        let file = files::inherited(number)?;
        let found = match &*file {
            File::Stream(stream)
                if stays && stream.is_connecting(Connecting::Over) && child::is_placeholder(number, &file) =>
            {
                let (names, domain, nonblocking) = (stream.names, stream.domain, stream.is_nonblocking());
                Some(Unused { number, id: id(&file), names, domain, nonblocking })
            }
            _ => None,
        };
        // The count of who has it is the parent's.
        mem::forget(file);
        found
    }

    /// The end of a relay for it, of which the parent has the other.
    fn leave(&self, channel: BorrowedFd<'_>) -> Result<OwnedFd> {
        let failed = |error: rustix::io::Errno| Errno::new(error.raw_os_error());
        let ends = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (mine, parents) = ends.map_err(failed)?;
        if self.nonblocking {
            kernel::fcntl(mine.as_raw_fd(), libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
        }
        named::call(mine.as_raw_fd(), self.names.0, self.names.1, self.domain)?;
        let leaves = Message { verb: Verb::Leaves, id: self.id };
        leaves.send(channel, &[parents.as_fd()], SendFlags::empty()).map_err(failed)?;
        Ok(mine)
    }
}

/// This process is about to execute a program. If it is a child, the connections that stay open, and that it has not used, are left to
/// that.
pub(crate) fn leave_to_what_is_executed() -> Left {
    let Some(channel) = child::channel().filter(|_| husk::is_husk()) else { return Left::default() };
    signals::section(|| {
        let _alone = Alone::begin();
        let unused: Vec<Unused> = files::numbers().filter_map(Unused::find).collect();
        let mut ids: Vec<usize> = unused.iter().map(|unused| unused.id).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() > LEFT_MAX {
            return Left::default();
        }
        let left = ids.into_iter().filter(|id| {
            let mut numbers = unused.iter().filter(|unused| unused.id == *id).peekable();
            // Where it cannot be left, the number is a socket without a peer.
            let Some(Ok(relay)) = numbers.peek().map(|unused| unused.leave(channel)) else { return false };
            for Unused { number, .. } in numbers {
                if child::stand_under(*number, relay.as_raw_fd()).is_ok() {
                    files::forget_inherited(*number);
                }
            }
            child::has_relays();
            true
        });
        Left(left.collect())
    })
}

/// A connection of this process's that is left to programs.
#[derive(Default)]
struct Offered {
    /// To how many.
    programs: u32,
    /// None was executed after all.
    is_used: bool,
}

static OFFERED: Afresh<Mutex<HashMap<usize, Offered>>> = Afresh::new();

fn offered() -> MutexGuard<'static, HashMap<usize, Offered>> {
    // What is inside is changed by whole operations.
    OFFERED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child of `fork` has left nothing to anybody.
pub(crate) fn forget() {
    OFFERED.forget();
}

/// One of those programs, until it has the connection, or has ended.
struct Offer {
    file: Open,
}

impl Offer {
    fn new(file: Open) -> Offer {
        offered().entry(id(&file)).or_default().programs += 1;
        Offer { file }
    }

    /// Whether the program is to have it now: nobody else has it, but for other such programs.
    fn is_due(&self) -> bool {
        let offered = offered();
        let of_it = offered.get(&id(&self.file));
        of_it.is_some_and(|offered| offered.is_used || self.file.references() <= offered.programs)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let mut offered = offered();
        if let Some(of_it) = offered.get_mut(&id(&self.file)) {
            of_it.programs -= 1;
            if of_it.programs == 0 {
                offered.remove(&id(&self.file));
            }
        }
    }
}

/// In the parent: leaves a connection to the program that has the other end of `socket`.
pub(super) fn offer(file: Open, socket: OwnedFd) -> io::Result<()> {
    let offer = Offer::new(file);
    let run = move || {
        if !waits_until_due(&offer, &socket) {
            return;
        }
        let file = offer.file.clone();
        drop(offer);
        if let Err(error) = parent::pass_on_named(file, socket, ()) {
            say::line(format_args!("a connection cannot be passed on to a program that a child executes: {error}"));
        }
    };
    parent::thread("lull-offer").spawn(run).map(drop)
}

/// In the parent: the child that has left it executed no program, and uses it.
pub(super) fn is_used(id: usize) {
    if let Some(offered) = offered().get_mut(&id) {
        offered.is_used = true;
    }
}

/// False: the program has ended, or has closed it, without a use.
fn waits_until_due(offer: &Offer, socket: &OwnedFd) -> bool {
    let mut apart = Duration::from_millis(1);
    loop {
        let within = Timespec { tv_sec: 0, tv_nsec: apart.as_nanos() as i64 };
        apart = (apart * 2).min(LOOKS_APART_MAX);
        let mut polled = [PollFd::new(socket, PollFlags::IN)];
        match poll(&mut polled, Some(&within)) {
            Ok(0) if offer.is_due() => return true,
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => {
                let has_ended = polled[0].revents().contains(PollFlags::HUP);
                let mut byte = [0];
                let has_written = recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
                // One that shuts down what it sends says something, too.
                return !has_ended || has_written.is_ok_and(|(count, _)| count > 0);
            }
            Err(_) => return false,
        }
    }
}
