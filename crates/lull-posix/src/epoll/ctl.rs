//! `epoll_ctl`.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use lull_net::{Interest, Named, Source};
use std::os::fd::AsFd;

use super::{Added, Adopted, EpollFile, Mixed, adopt, lock, move_in};
use crate::files::{self, File};
use crate::socket::Listener;
use crate::socket::datagram::Sockets;
use crate::{Errno, Result, husk, kernel};

/// `epoll_ctl`. `event` is what the call points to, if it points anywhere.
pub fn epoll_ctl(epfd: c_int, what: c_int, fd: c_int, event: Option<epoll_event>) -> Result<()> {
    let Some(open) = files::get(epfd) else {
        // A context that came about unseen is the program's all the same; the number may also be no context.
        if what != libc::EPOLL_CTL_ADD || !files::is_known(fd) || !adopts(epfd) {
            return kernel::epoll_ctl(epfd, what, fd, event);
        }
        return epoll_ctl(epfd, what, fd, event);
    };
    // A socket is no context: the kernel says so of its placeholder.
    let File::Epoll(context) = &*open else { return kernel::epoll_ctl(epfd, what, fd, event) };
    let member = files::get(fd);
    // Another thread may have just made it lull's, and not have moved it here yet.
    let moves = || move_in::moves(epfd, &open, fd);
    match member.as_deref() {
        Some(File::Stream(stream)) => where_it_is(what, moves, || context.ctl(epfd, what, fd, stream.stream(), event)),
        Some(File::Listener(listener)) => where_it_is(what, moves, || {
            context.noting_listener(what, fd, listener, event, || {
                if listener.both_worlds {
                    kernel::epoll_ctl(epfd, what, fd, event)?;
                }
                context.listener_ctl(epfd, what, fd, listener, event)
            })
        }),
        Some(File::Datagram(datagram)) if datagram.in_halves => {
            let _it_does_not_move = lock(&context.moving);
            context.datagrams_half_ctl(epfd, what, fd, event)?;
            unless_it_moves(what, context.datagrams_ctl(epfd, what, fd, &datagram.sockets, event))
        }
        Some(File::Datagram(datagram)) => {
            where_it_is(what, moves, || context.datagrams_ctl(epfd, what, fd, &datagram.sockets, event))
        }
        Some(File::Epoll(inside)) => {
            // The kernel knows how deep contexts may stand, and that none may be inside itself.
            kernel::epoll_ctl(epfd, what, fd, event)?;
            if what == libc::EPOLL_CTL_DEL {
                context.has_no_more_inside(fd);
                return Ok(());
            }
            context.has_inside(fd, inside)
        }
        None => {
            let mut kernels = lock(&context.kernels);
            // Another thread may have made it lull's since it was looked up, and looked here for what moves before this was noted.
            if files::is_known(fd) && !husk::is_husk() {
                drop(kernels);
                return epoll_ctl(epfd, what, fd, event);
            }
            kernel::epoll_ctl(epfd, what, fd, event)?;
            note(&mut kernels, what, fd, event);
            Ok(())
        }
    }
}

/// Makes a call about a socket of lull's that the context may still have as the kernel's: one that is added or taken
/// off is moved first, and one that is changed only if it is not found.
fn where_it_is(what: c_int, moves: impl Fn() -> Result<()>, call: impl Fn() -> Result<()>) -> Result<()> {
    if what != libc::EPOLL_CTL_MOD {
        moves()?;
    }
    match call() {
        Err(error) if what == libc::EPOLL_CTL_MOD && error.number() == libc::ENOENT => {
            moves()?;
            call()
        }
        done => done,
    }
}

/// The outcome of adding a socket in halves of which the kernel had no half. The thread that makes it lull's adds what
/// it finds added, and one of the two is first.
pub(super) fn unless_there(added: Result<()>) -> Result<()> {
    added.or_else(|error| if error.number() == libc::EEXIST { Ok(()) } else { Err(error) })
}

/// The outcome of any call about such a socket, after it was made about the kernel's half: if lull's half is not there
/// yet, it moves with what the kernel's has then.
fn unless_it_moves(what: c_int, done: Result<()>) -> Result<()> {
    match done {
        Err(error) if what != libc::EPOLL_CTL_ADD && error.number() == libc::ENOENT => Ok(()),
        done if what == libc::EPOLL_CTL_ADD => unless_there(done),
        done => done,
    }
}

/// Whether a context of the kernel's has become one for both worlds.
fn adopts(epfd: c_int) -> bool {
    let nobodys = kernel::eventfd(0);
    nobodys.is_ok_and(|nobodys| kernel::is_context(epfd, nobodys.as_fd()))
        && adopt(epfd, &Adopted::members(epfd)).is_ok()
}

/// A context, as a pool's is, cannot be waited for alone (`ep_insert`).
pub(super) fn not_alone(event: epoll_event) -> epoll_event {
    epoll_event { events: event.events & !EXCLUSIVE, ..event }
}

/// Remembers what a member of the kernel's was added with.
pub(super) fn note(kernels: &mut HashMap<c_int, Added>, what: c_int, fd: c_int, event: Option<epoll_event>) {
    match event {
        Some(event) if what != libc::EPOLL_CTL_DEL => kernels.insert(fd, event.into()),
        _ => kernels.remove(&fd),
    };
}

/// The events for the kernel's half of a datagram socket: only lull's half tells whether one can write.
pub(super) fn but_for_writing(event: epoll_event) -> epoll_event {
    epoll_event { events: event.events & !(WRITE | WRITE_BAND), ..event }
}

impl EpollFile {
    /// A call about a listener. One that is added becomes real here; if another process has the NIC, it is a member that no
    /// connection of lull's comes to.
    pub(super) fn listener_ctl(
        &self,
        epfd: c_int,
        what: c_int,
        fd: c_int,
        listener: &Listener,
        event: Option<epoll_event>,
    ) -> Result<()> {
        let real = if what == libc::EPOLL_CTL_ADD { listener.real().ok() } else { listener.if_real() };
        let pool = if what == libc::EPOLL_CTL_ADD { listener.pool_member(fd) } else { listener.pool_member_if_any(fd) };
        if let Some(pool) = pool {
            // One that was added before the fork may not be there.
            match kernel::epoll_ctl(epfd, what, pool, event.map(not_alone)) {
                Err(error) if what == libc::EPOLL_CTL_ADD && error.number() != libc::EEXIST => return Err(error),
                _ => {}
            }
        }
        let mut idle = lock(&self.idle);
        let at = (listener.id, fd);
        // One that was added without a queue stays such a member when the process has got one: what comes to it is in the pool.
        if idle.contains(&at) {
            return match what {
                libc::EPOLL_CTL_ADD => Err(Errno::new(libc::EEXIST)),
                libc::EPOLL_CTL_MOD => Ok(()),
                libc::EPOLL_CTL_DEL => {
                    idle.remove(&at);
                    Ok(())
                }
                _ => Err(Errno::new(libc::EINVAL)),
            };
        }
        if let Some(real) = real {
            drop(idle);
            if what == libc::EPOLL_CTL_ADD {
                listener.asked_for();
            }
            return self.ctl(epfd, what, fd, real, event);
        }
        match what {
            libc::EPOLL_CTL_ADD => {
                idle.insert(at);
                Ok(())
            }
            libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD => Err(Errno::new(libc::ENOENT)),
            _ => Err(Errno::new(libc::EINVAL)),
        }
    }

    /// A call about a datagram socket of lull's, which is writable by one name more than a connection (`datagram_poll`).
    pub(super) fn datagrams_ctl(
        &self,
        epfd: c_int,
        what: c_int,
        fd: c_int,
        sockets: &Sockets,
        event: Option<epoll_event>,
    ) -> Result<()> {
        let named = |event: epoll_event| match event.events & WRITE_BAND {
            0 => event,
            _ => epoll_event { events: event.events | libc::EPOLLWRNORM as u32, ..event },
        };
        self.ctl(epfd, what, fd, sockets, event.map(named))
    }

    /// A call about a socket of lull's, by one of its numbers.
    pub(super) fn ctl(
        &self,
        epfd: c_int,
        what: c_int,
        fd: c_int,
        source: &impl Source,
        event: Option<epoll_event>,
    ) -> Result<()> {
        let source = &Named(source, fd as u32);
        if what == libc::EPOLL_CTL_DEL {
            let mixed = self.mixed.get().ok_or(Errno::new(libc::ENOENT))?;
            return Ok(mixed.epoll.delete(source)?);
        }
        let event = event.ok_or(Errno::new(libc::EFAULT))?;
        let interest = interest(event.events);
        // `do_epoll_ctl` refuses these before it looks whether there is a member.
        let exclusive = interest.contains(Interest::EXCLUSIVE);
        if exclusive && (what == libc::EPOLL_CTL_MOD || event.events & !EXCLUSIVE_OK != 0) {
            return Err(Errno::new(libc::EINVAL));
        }
        match what {
            libc::EPOLL_CTL_ADD => {
                let mixed = self.mixed(epfd)?;
                mixed.keep_apart(event.u64)?;
                Ok(mixed.epoll.add(source, event.u64, interest)?)
            }
            libc::EPOLL_CTL_MOD => {
                let mixed = self.mixed.get().ok_or(Errno::new(libc::ENOENT))?;
                mixed.keep_apart(event.u64)?;
                Ok(mixed.epoll.modify(source, event.u64, interest)?)
            }
            _ => Err(Errno::new(libc::EINVAL)),
        }
    }
}

impl Mixed {
    /// Calls the kernel's context something else if a member's data is what it is called.
    fn keep_apart(&self, data: u64) -> Result<()> {
        let key = self.kernel_key.load(Ordering::Acquire);
        if data != key {
            return Ok(());
        }
        let other = key.rotate_left(17) ^ 0x5555;
        self.kernel_key.store(other, Ordering::Release);
        Ok(self.epoll.modify_fd(self.kernel.as_fd(), other, Interest::READABLE)?)
    }
}

const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// `EPOLLEXCLUSIVE_OK_BITS`.
const EXCLUSIVE_OK: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET
    | libc::EPOLLEXCLUSIVE) as u32;
const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

const WRITE_BAND: u32 = libc::EPOLLWRBAND as u32;

/// What lull's context is asked for. Urgent data never comes, but is named where data arrives (`sock_def_readable`); nobody
/// sleeps so deeply that EPOLLWAKEUP mattered.
fn interest(events: u32) -> Interest {
    INTERESTS.iter().filter(|(bits, _)| events & bits != 0).fold(Interest::empty(), |all, (_, one)| all | *one)
}

/// What the kernel's context is asked for in the place of lull's: by the names that programs use.
pub(super) fn events(interest: Interest) -> u32 {
    const OTHER_NAMES: c_int = libc::EPOLLRDNORM | libc::EPOLLRDBAND | libc::EPOLLWRNORM;
    let named = INTERESTS.iter().filter(|(_, one)| interest.contains(*one));
    named.fold(0, |all, (bits, _)| all | bits) & !OTHER_NAMES as u32
}

const INTERESTS: [(u32, Interest); 7] = [
    (READ, Interest::READABLE),
    (WRITE, Interest::WRITABLE),
    ((libc::EPOLLPRI | libc::EPOLLRDBAND) as u32, Interest::PRI),
    (libc::EPOLLRDHUP as u32, Interest::RDHUP),
    (libc::EPOLLET as u32, Interest::EDGE),
    (libc::EPOLLONESHOT as u32, Interest::ONESHOT),
    (libc::EPOLLEXCLUSIVE as u32, Interest::EXCLUSIVE),
];
