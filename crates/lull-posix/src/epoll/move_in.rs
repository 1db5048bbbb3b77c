//! A socket of the kernel's that becomes lull's moves from the kernel's contexts to lull's, and back if it becomes the kernel's again.

use libc::{c_int, epoll_event};
use lull_net::TcpStream;

use super::{Added, contexts, ctl, lock};
use crate::files::{self, File, Open};
use crate::socket::Listener;
use crate::{Result, kernel};

/// `put` makes the socket `fd` lull's; afterwards the contexts that it was on have it as that.
pub(crate) fn becomes_lulls(fd: c_int, put: impl FnOnce() -> Result<()>) -> Result<()> {
    put()?;
    for epfd in contexts().clone() {
        if let Some(context) = files::get(epfd) {
            moves(epfd, &context, fd)?;
        }
    }
    Ok(())
}

/// Moves the socket `fd`, which is lull's by now, if the context still has it as the kernel's: the thread that makes it lull's does, or
/// one whose call is about it and comes before. To the program it was a member all the while.
pub(super) fn moves(epfd: c_int, context: &Open, fd: c_int) -> Result<()> {
    let File::Epoll(file) = &**context else { return Ok(()) };
    let _one_at_a_time = lock(&file.moving);
    let added = {
        let mut kernels = lock(&file.kernels);
        // A socket that was closed unseen, and whose number came back, is not on the context any more; a context that
        // was closed unseen has no members. To look for a member adds it for a moment, so another thread's ADD has to
        // come before or after that.
        kernels.remove(&fd).filter(|_| kernel::is_member(epfd, fd))
    };
    match (added, files::get(fd)) {
        (Some(added), Some(member)) => moved(epfd, context, fd, &member, added),
        _ => Ok(()),
    }
}

/// The datagram socket `fd`, which had a half of lull's, is the kernel's alone again: its contexts wait for all of it there.
pub(crate) fn becomes_kernels(fd: c_int) -> Result<()> {
    for epfd in contexts().clone() {
        let Some(context) = files::get(epfd) else { continue };
        let File::Epoll(file) = &*context else { continue };
        let added = lock(&file.kernels).get(&fd).copied();
        if let Some(Added { events, data, .. }) = added {
            let event = epoll_event { events, u64: data };
            // As in `moved`, it may not be on the context any more.
            let _ = waits_for(epfd, fd, event);
        }
    }
    Ok(())
}

/// What stood for a connection under these numbers is the kernel's from now on: the contexts that it is on keep it as that, by the
/// number that they have it by, or by the first of these if that is closed. One that was never established they report the end of,
/// as Linux's do, until it is connected anew. A one-shot is told of once more.
pub(crate) fn is_the_kernels(numbers: &[c_int], stream: &TcpStream) {
    for epfd in contexts().clone() {
        let Some(context) = files::get(epfd) else { continue };
        let File::Epoll(file) = &*context else { continue };
        let mut members = file.mixed.get().map(|mixed| mixed.epoll.take_out(stream)).unwrap_or_default();
        let by_name = |name: u32| numbers.iter().find(|number| **number as u32 == name);
        members.sort_by_key(|(name, ..)| by_name(*name).is_none());
        for (name, data, interest) in members {
            let Some(fd) = by_name(name).or(numbers.first()) else { continue };
            let event = epoll_event { events: ctl::events(interest), u64: data };
            let mut kernels = lock(&file.kernels);
            // The context may be closed by now, which has no members then, or have this number's already.
            if kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, *fd, Some(event)).is_ok() {
                kernels.insert(*fd, event.into());
            }
        }
    }
}

/// Connections of a listener may come by its pool from now on: the contexts that it is on wait for that as well.
pub(crate) fn has_a_pool(listener: &Listener) {
    if listener.pool_context().is_none() {
        return;
    }
    for epfd in contexts().clone() {
        let Some(context) = files::get(epfd) else { continue };
        let File::Epoll(file) = &*context else { continue };
        let listeners = lock(&file.listeners);
        let of_it = listeners.iter().filter(|((id, _), _)| *id == listener.id);
        let added: Vec<_> = of_it.map(|((_, fd), listening)| (*fd, listening.added)).collect();
        drop(listeners);
        for (fd, Added { events, data, .. }) in added {
            let Some(pool) = listener.pool_member(fd) else { continue };
            let event = ctl::not_alone(epoll_event { events, u64: data });
            // Another thread may have closed the context meanwhile, or added the listener anew.
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, pool, Some(event));
        }
    }
}

/// Changes what a member of the kernel's is waited for. One that is exclusive cannot be changed (`do_epoll_ctl`), only added anew.
fn waits_for(epfd: c_int, fd: c_int, event: epoll_event) -> Result<()> {
    if event.events & libc::EPOLLEXCLUSIVE as u32 == 0 {
        return kernel::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(event));
    }
    kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None)?;
    kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event))
}

fn moved(epfd: c_int, context: &Open, fd: c_int, member: &Open, added: Added) -> Result<()> {
    let File::Epoll(context) = &**context else { return Ok(()) };
    let event = Some(epoll_event { events: added.events, u64: added.data });
    let listens = |listener: &Listener| {
        let ctl = || context.listener_ctl(epfd, libc::EPOLL_CTL_ADD, fd, listener, event);
        context.noting_listener(libc::EPOLL_CTL_ADD, fd, listener, event, ctl)
    };
    match &**member {
        File::Listener(listener) if listener.both_worlds => listens(listener),
        File::Datagram(datagram) if datagram.in_halves => {
            lock(&context.kernels).insert(fd, added);
            context.is_in_parts(event);
            waits_for(epfd, fd, ctl::but_for_writing(epoll_event { events: added.events, u64: added.data }))?;
            ctl::unless_there(context.datagrams_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &datagram.sockets, event))
        }
        _ if kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None).is_err() => Ok(()),
        File::Listener(listener) => listens(listener),
        File::Stream(stream) => context.ctl(epfd, libc::EPOLL_CTL_ADD, fd, stream.stream(), event),
        File::Datagram(datagram) => context.datagrams_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &datagram.sockets, event),
        File::Epoll(_) => Ok(()),
    }
}
