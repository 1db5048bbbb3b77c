//! The open-file object of a socket, and its place on a shard.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lull_core::{SettingError, SocketBusy};
use lull_host::Delivery;

use crate::batch;
use crate::busy_read::Following;
use crate::epoll::context::{Item, forget};
use crate::queue::{Inside, Queue};
use crate::ready::Level;
use crate::shard::{Io, NetError, Ready, SocketId, Stack};

/// A socket on one shard, as wait lists and epoll items know it.
#[derive(Clone)]
pub struct Part {
    pub(super) queue: Arc<Queue>,
    pub(super) host: Arc<Delivery>,
    pub(super) id: SocketId,
    pub(super) level: Arc<Level>,
}

impl Part {
    /// Makes the part of a socket that was just made for the application. The shard's lock is held.
    pub(super) fn new(queue: &Arc<Queue>, host: &Arc<Delivery>, id: SocketId, inside: &mut Inside) -> Part {
        Part { queue: queue.clone(), host: host.clone(), id, level: inside.watch(id) }
    }

    #[inline]
    pub(crate) fn level(&self) -> Ready {
        self.level.get()
    }

    /// Called when the part's queue is down, which was reported, while other parts of the same socket go on. Nothing is
    /// ready here any more.
    #[cold]
    pub(super) fn waits_for_others(&self) {
        self.level.set(Ready::empty());
    }

    pub(crate) fn napi_id(&self) -> u32 {
        self.queue.napi_id()
    }

    /// Whether `host` delivers for this part.
    pub(crate) fn is_of(&self, host: &Arc<Delivery>) -> bool {
        Arc::ptr_eq(&self.host, host)
    }

    pub(crate) fn watch(&self, item: &Arc<Item>) {
        self.queue.with(&self.host, |inside, _| {
            if let Some(list) = inside.wait_list(self.id) {
                list.add_item(item.clone());
            }
        });
    }

    pub(crate) fn unwatch(&self, item: &Arc<Item>) {
        self.queue.with(&self.host, |inside, _| {
            if let Some(list) = inside.wait_list(self.id) {
                list.remove_item(item);
            }
        });
    }

    /// Makes a call into the stack. The level is brought up to date before the lock is given back.
    #[inline]
    pub(super) fn call<R>(&self, f: impl FnOnce(&mut Stack, SocketId, &mut Io<'_>) -> R) -> R {
        let (result, stays) = self.queue.with(&self.host, |inside, now_ns| {
            let mut batch = batch::present();
            let result = inside.call_in(&mut batch, now_ns, |stack, io| f(stack, self.id, io));
            batch::is_now(batch);
            if let Ok(ready) = inside.stack.ready(self.id) {
                self.level.set(ready);
            }
            let stays = !inside.stack.holds_back() || batch::holds(&self.queue, &self.host);
            (result, stays)
        });
        if !stays {
            self.queue.let_go(&self.host);
        }
        result
    }

    /// Sleeps until one of `wants` is there, or an error that a call reports, or a hang-up. Returns false if `until`
    /// came first.
    pub(super) fn block(&self, wants: Ready, until: Option<Instant>) -> bool {
        batch::about_to_wait();
        let edges = wants | Ready::ERR | Ready::HUP;
        self.queue.with(&self.host, |inside, _| inside.wait_list(self.id).map(|list| list.block(edges)));
        let mut ready = false;
        loop {
            // A thread that delivers meanwhile unparks this one after it has set the level.
            if self.level().ends_wait_for(wants) {
                ready = true;
                break;
            }
            match until {
                None => std::thread::park(),
                Some(until) => match until.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                    _ => break,
                },
            }
        }
        self.queue.with(&self.host, |inside, _| inside.wait_list(self.id).map(|list| list.unblock()));
        ready
    }
}

/// An object that an epoll context can watch.
pub trait Source {
    /// Its parts, one per shard on which it lives.
    fn parts(&self) -> Vec<Part>;

    /// A number that tells it from other sources. Clones have the same.
    fn identity(&self) -> usize;

    /// Which of its names this is ([`Named`]).
    fn name(&self) -> u32 {
        0
    }
}

/// A source under one of the names that the application has for it, such as the descriptors that stand for one open
/// file. Under each name it is a separate member of a context (`ep_find`), until the source is closed.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a, S>(pub &'a S, pub u32);

impl<S: Source> Source for Named<'_, S> {
    fn parts(&self) -> Vec<Part> {
        self.0.parts()
    }

    fn identity(&self) -> usize {
        self.0.identity()
    }

    fn name(&self) -> u32 {
        self.1
    }
}

/// The open-file object of a socket on one shard.
pub(super) struct Open {
    pub(super) part: Part,
    pub(super) nonblocking: AtomicBool,
    pub(super) busy: Following,
    pub(super) read_timeout_ns: AtomicU64,
    pub(super) write_timeout_ns: AtomicU64,
}

/// This value stands for no timeout.
const FOR_EVER: u64 = 0;

impl Open {
    pub(super) fn new(part: Part, busy: SocketBusy) -> Open {
        Open::following(part, Following::new(busy))
    }

    /// The open-file object of a connection that this listener's part has accepted.
    pub(super) fn child(&self, part: Part) -> Open {
        Open::following(part, self.busy.child(&self.part.queue.mode_busy))
    }

    fn following(part: Part, busy: Following) -> Open {
        Open {
            part,
            nonblocking: AtomicBool::new(false),
            busy,
            read_timeout_ns: AtomicU64::new(FOR_EVER),
            write_timeout_ns: AtomicU64::new(FOR_EVER),
        }
    }

    /// The busy-poll options.
    pub(super) fn busy(&self) -> &SocketBusy {
        self.busy.now(&self.part.queue.mode_busy)
    }

    /// SO_BUSY_POLL.
    pub(super) fn set_busy_poll(&self, usecs: u32) -> Result<(), SettingError> {
        self.busy.set_usecs(&self.part.queue.mode_busy, usecs)
    }

    pub(super) fn identity(self: &Arc<Open>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// Tries `attempt`. If it would block, this busy polls as the socket's options say, and then either returns
    /// `WouldBlock` or sleeps.
    #[inline]
    pub(super) fn retry<R>(
        &self,
        wants: Ready,
        timeout_ns: &AtomicU64,
        mut attempt: impl FnMut(&mut Stack, SocketId, &mut Io<'_>) -> Result<R, NetError>,
    ) -> io::Result<R> {
        let mut until = None;
        loop {
            match self.part.call(&mut attempt) {
                Err(NetError::WouldBlock) => {}
                other => return other.map_err(io::Error::from),
            }
            let nonblocking = self.nonblocking.load(Ordering::Relaxed);
            if nonblocking && wants == Ready::READABLE {
                batch::in_vain();
            } else {
                batch::about_to_wait();
            }
            if wants == Ready::READABLE && self.busy_poll(nonblocking) {
                continue;
            }
            if nonblocking {
                return Err(NetError::WouldBlock.into());
            }
            if until.is_none() {
                let limit_ns = timeout_ns.load(Ordering::Relaxed);
                until = (limit_ns != FOR_EVER).then(|| Instant::now() + Duration::from_nanos(limit_ns));
            }
            if !self.part.block(wants, until) {
                // SO_RCVTIMEO and SO_SNDTIMEO end with EAGAIN.
                return Err(NetError::WouldBlock.into());
            }
        }
    }

    /// Busy polls (`sk_busy_loop`, §9). Returns true if there is something to read now.
    pub(super) fn busy_poll(&self, nonblocking: bool) -> bool {
        let Some(plan) = self.busy().plan(self.part.napi_id(), nonblocking) else { return false };
        let is_ready = || self.part.level().ends_wait_for(Ready::READABLE);
        self.part.host.busy_loop(&plan, &mut |_| is_ready());
        is_ready()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let part = &self.part;
        let list = part.queue.with(&part.host, |inside, now_ns| {
            let list = inside.unwatch(part.id);
            // If the stack has forgotten the socket meanwhile, it is closed already. The doorbell rings, as this thread
            // may not come back for it.
            let _ = inside.call(now_ns, |stack, io| {
                io.batch = batch::present();
                stack.close(part.id, io)
            });
            list
        });
        if let Some(mut list) = list {
            forget(list.take_items());
        }
    }
}

pub(super) fn timeout_to_ns(timeout: Option<Duration>) -> io::Result<u64> {
    match timeout {
        None => Ok(FOR_EVER),
        Some(timeout) if timeout.is_zero() => Err(NetError::Invalid.into()),
        Some(timeout) => Ok(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1)),
    }
}

pub(super) fn ns_to_timeout(ns: u64) -> Option<Duration> {
    (ns != FOR_EVER).then(|| Duration::from_nanos(ns))
}
