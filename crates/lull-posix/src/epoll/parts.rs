//! Members in parts. Each part reports by itself, but the program has added one member (`ep_insert`), and is told of it
//! once.
//!
//! | member | parts |
//! | --- | --- |
//! | a datagram socket in both worlds | lull's half in lull's context, the kernel's in the kernel's |
//! | a listener | lull's in lull's context; in the kernel's the placeholder, if it listens in both worlds, and the pool, if it has one |

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::wait::Events;
use super::{Added, EpollFile, Listening, ctl, lock};
use crate::files::{self, File};
use crate::socket::Listener;
use crate::{Result, kernel};

const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

impl EpollFile {
    /// A call about the kernel's half of a datagram socket. It does not tell before it is known what the call makes of it.
    pub(super) fn datagrams_half_ctl(
        &self,
        epfd: c_int,
        what: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> Result<()> {
        self.is_in_parts(event);
        let mut kernels = lock(&self.kernels);
        kernel::epoll_ctl(epfd, what, fd, event.map(ctl::but_for_writing))?;
        ctl::note(&mut kernels, what, fd, event);
        Ok(())
    }

    /// A member in parts was added, or changed.
    pub(super) fn is_in_parts(&self, event: Option<epoll_event>) {
        self.has_parts.store(true, Ordering::Release);
        if event.is_some_and(|event| event.events & ONESHOT != 0) {
            self.has_one_shot_parts.store(true, Ordering::Release);
        }
    }

    /// A call about a listener, whose parts `ctl` goes through. What it is told of with is known before a part tells.
    pub(super) fn noting_listener(
        &self,
        what: c_int,
        fd: c_int,
        listener: &Listener,
        event: Option<epoll_event>,
        ctl: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let at = (listener.id, fd);
        let mut is_new = false;
        if let Some(event) = event.filter(|_| what == libc::EPOLL_CTL_ADD || what == libc::EPOLL_CTL_MOD) {
            let mut listeners = lock(&self.listeners);
            // What was closed has left.
            listeners.retain(|_, listening| listening.open.strong_count() > 0);
            match listeners.entry(at) {
                Entry::Occupied(mut known) if what == libc::EPOLL_CTL_MOD => known.get_mut().added = event.into(),
                Entry::Vacant(free) if what == libc::EPOLL_CTL_ADD => {
                    is_new = true;
                    free.insert(Listening { open: Arc::downgrade(&listener.open), added: event.into() });
                }
                // The call is going to be refused.
                _ => {}
            }
            drop(listeners);
            self.is_in_parts(Some(event));
        }
        let done = ctl();
        if done.is_err() && is_new || done.is_ok() && what == libc::EPOLL_CTL_DEL {
            lock(&self.listeners).remove(&at);
        }
        done
    }

    /// Takes out of the first `count` events those that would tell again of a member in parts. Returns how many are
    /// left.
    #[inline]
    pub(super) fn each_once(&self, events: Events<'_>, count: usize) -> usize {
        let is_one_shot = || self.has_one_shot_parts.load(Ordering::Acquire);
        if count == 0 || !self.has_parts.load(Ordering::Acquire) || count == 1 && !is_one_shot() {
            return count;
        }
        let count = self.join_parts(events, count);
        if is_one_shot() { self.take_one_shots(events, count) } else { count }
    }

    /// Makes one event of those that parts of a member tell.
    #[cold]
    fn join_parts(&self, events: Events<'_>, count: usize) -> usize {
        let mut first = HashMap::<u64, usize>::with_capacity(count);
        let mut kept = 0;
        for nth in 0..count {
            let (data, ready) = (kernel::event_data(&events[nth]), kernel::event_ready(&events[nth]));
            match first.get(&data).copied() {
                Some(other) if self.with_member_in_parts(data, |_| ()).is_some() => {
                    let all = ready | kernel::event_ready(&events[other]);
                    events[other].write(epoll_event { events: all, u64: data });
                }
                _ => {
                    first.entry(data).or_insert(kept);
                    events.swap(kept, nth);
                    kept += 1;
                }
            }
        }
        kept
    }

    /// The part of a one-shot that comes first reports it, and no part does again until it is changed.
    #[cold]
    fn take_one_shots(&self, events: Events<'_>, count: usize) -> usize {
        let mut kept = 0;
        for nth in 0..count {
            let was_disarmed = self.with_member_in_parts(kernel::event_data(&events[nth]), |added| {
                std::mem::replace(&mut added.disarmed, added.events & ONESHOT != 0)
            });
            if was_disarmed != Some(true) {
                events.swap(kept, nth);
                kept += 1;
            }
        }
        kept
    }

    /// Does this to the member with this data if it is in parts, and no other that is known here has the same data.
    fn with_member_in_parts<T>(&self, data: u64, f: impl FnOnce(&mut Added) -> T) -> Option<T> {
        let (mut kernels, mut listeners) = (lock(&self.kernels), lock(&self.listeners));
        let mut of_kernels = kernels.iter_mut().filter(|(_, added)| added.data == data);
        let mut of_listeners = listeners.values_mut().filter(|listening| listening.added.data == data);
        match (of_kernels.next(), of_listeners.next()) {
            (Some((fd, added)), None) if of_kernels.next().is_none() && is_in_halves(*fd) => Some(f(added)),
            (None, Some(listening)) if of_listeners.next().is_none() => Some(f(&mut listening.added)),
            _ => None,
        }
    }
}

fn is_in_halves(fd: c_int) -> bool {
    files::get(fd).is_some_and(|file| matches!(&*file, File::Datagram(datagram) if datagram.in_halves))
}
