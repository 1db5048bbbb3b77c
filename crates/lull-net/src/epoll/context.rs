//! The parts of an epoll context: registrations, the ready list, and the waiters.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use lull_core::{EpollBusy, Sysctl};
use lull_host::{Delivery, Host, Sleep, Turn, Waker, Woke, Worker};

use super::event::{Event, Interest};
use super::kernel::KernelSet;
use crate::level::{Masks, Wanted};
use crate::ready_list::{Entry, ReadyList, Taken, Wake};
use crate::shard::Ready;
use crate::socket::{Part, Source};
use crate::wakes::Wakes;

/// Errors and hang-ups are reported even if nobody asked for them.
const MASKS: Masks = Masks { always: Ready::ERR.union(Ready::HUP).bits() as u32, levels: 0xff };

/// What distinguishes a registration from the others of a context (`struct epoll_filefd`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(super) identity: usize,
    pub(super) name: u32,
}

impl Member {
    /// The one of every notifier, which no context looks up.
    pub(super) const NONE: Member = Member { identity: 0, name: 0 };

    pub(super) fn of(source: &impl Source) -> Member {
        Member { identity: source.identity(), name: source.name() }
    }
}

/// One registration of a socket in a context.
pub(crate) struct Item {
    pub(super) context: Arc<Context>,
    pub(super) member: Member,
    pub(super) key: AtomicU64,
    pub(super) wanted: Wanted,
    /// The socket's parts; a notifier has none.
    pub(super) parts: Vec<Part>,
    /// Whether a notifier was used. It stays so until it is reported.
    pub(super) notified: AtomicBool,
    queued: AtomicBool,
    gone: AtomicBool,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("key", &self.key).field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Item {
    /// A registration of a socket that consists of `parts`; a notifier has none.
    pub(super) fn new(
        context: &Arc<Context>,
        member: Member,
        key: u64,
        interest: Interest,
        parts: Vec<Part>,
    ) -> Arc<Item> {
        Arc::new(Item {
            context: context.clone(),
            member,
            key: AtomicU64::new(key),
            wanted: Wanted::new(interest.bits(), MASKS),
            parts,
            notified: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Makes the item hear of its socket's edges from now on; if the socket is ready already, that counts as an edge.
    /// The context has the item already, so another thread may have ended the registration since.
    pub(super) fn watch(self: &Arc<Self>) {
        for part in &self.parts {
            if let Some(left_behind) = self.context.busy.note_napi(part.napi_id()) {
                self.context.left_behind(left_behind);
            }
            part.watch(self);
        }
        // A thread that ends the registration writes `gone` first, and then looks at the wait lists under their locks.
        if self.gone.load(Ordering::Acquire) {
            self.leave();
        } else if !self.ready().is_empty() {
            self.push();
        }
    }

    /// Ends the registration, from the context's side.
    pub(super) fn leave(self: &Arc<Self>) {
        self.gone.store(true, Ordering::Release);
        self.parts.iter().for_each(|part| part.unwatch(self));
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.wanted.interest() & Interest::EXCLUSIVE.bits() != 0
    }

    /// Handles an edge (`ep_poll_callback`). The NAPI id is noted before the mask is looked at. Returns what the
    /// kernel's function returns for an exclusive item (`ewake`): whether a waiter is woken (with `wakes`) for
    /// something that the item asked for.
    #[inline]
    pub(crate) fn fire(self: &Arc<Item>, edges: Ready, napi_id: u32, wakes: &mut Wakes) -> bool {
        // An item that is on a wait list only for a moment still must not use up an exclusive wake-up.
        if self.gone.load(Ordering::Acquire) {
            return false;
        }
        if let Some(left_behind) = self.context.busy.note_napi(napi_id) {
            self.context.left_behind(left_behind);
        }
        // The kernel announces data as EPOLLIN and EPOLLPRI together (`sock_def_readable`), so that an item which asked
        // only for the latter is looked at as well.
        let told = if edges.contains(Ready::READABLE) { edges | Ready::PRI } else { edges };
        if !self.wanted.wants(u32::from(told.bits())) {
            return false;
        }
        let waiter = self.put();
        let woke = waiter.is_some();
        if let Some(waiter) = waiter {
            wakes.worker(waiter);
        }
        let inout = edges & (Ready::READABLE | Ready::WRITABLE);
        let interest = Interest::from_bits_truncate(self.wanted.interest());
        woke && match (inout.contains(Ready::READABLE), inout.contains(Ready::WRITABLE)) {
            (false, false) => true,
            (true, false) => interest.contains(Interest::READABLE),
            (false, true) => interest.contains(Interest::WRITABLE),
            // One woken thread may not be enough for both.
            (true, true) => false,
        }
    }

    /// Puts the item on the ready list, and informs the watcher of the context itself. Returns a waiter that has to be
    /// woken.
    #[inline]
    #[must_use = "nobody else wakes the waiter"]
    fn put(self: &Arc<Item>) -> Option<Waker> {
        let waiter = self.context.ready.push(self);
        if let Some(tell) = self.context.told.get()
            && self.is_seen_from_outside()
        {
            tell();
        }
        waiter
    }

    /// Whether a watcher of the context finds it ready at this edge (`ep_item_poll`, which the outer context calls
    /// before it reports). Not every edge is of something that the item asked for.
    #[cold]
    fn is_seen_from_outside(&self) -> bool {
        self.is_ready() || self.context.ready.any(|item| item.is_ready())
    }

    /// Handles an edge that the application makes: a socket that was added or modified is ready already, or a notifier
    /// is used.
    pub(super) fn push(self: &Arc<Item>) {
        if let Some(waiter) = self.put() {
            waiter.wake();
        }
    }

    /// Whether there is something to report. A notifier is ready until that was reported.
    pub(super) fn is_ready(&self) -> bool {
        let gone = self.gone.load(Ordering::Acquire);
        let ready =
            if self.parts.is_empty() { self.notified.load(Ordering::Acquire) } else { !self.ready().is_empty() };
        ready && !gone
    }

    #[inline]
    pub(super) fn ready(&self) -> Ready {
        let all = match &self.parts[..] {
            [part] => part.level(),
            [] if self.notified.swap(false, Ordering::AcqRel) => Ready::READABLE,
            parts => parts.iter().fold(Ready::empty(), |all, part| all | part.level()),
        };
        Ready::from_bits_truncate(all.bits() & self.wanted.mask() as u8)
    }
}

impl Entry for Item {
    #[inline]
    fn queued(&self) -> &AtomicBool {
        &self.queued
    }
}

impl Wake for Waker {
    #[inline]
    fn wake(&self) {
        Waker::wake(self);
    }

    #[inline]
    fn is_same(&self, other: &Waker) -> bool {
        Waker::is_same(self, other)
    }
}

pub(crate) struct Context {
    pub(super) busy: EpollBusy,
    pub(super) ready: ReadyList<Item, Waker>,
    items: Mutex<HashMap<Member, Arc<Item>>>,
    pub(super) kernel: OnceLock<KernelSet>,
    kernel_turn: AtomicBool,
    /// The watcher of the context itself.
    pub(super) told: OnceLock<Box<dyn Fn() + Send + Sync>>,
    pub(super) host: Arc<Delivery>,
    pub(super) calls: AtomicU64,
    pub(super) with_events: AtomicU64,
    pub(super) events: AtomicU64,
}

impl lull_host::EpollContext for Context {
    fn sockets(&self) -> BTreeMap<u32, usize> {
        let mut sockets = BTreeMap::new();
        for item in self.items().values() {
            // A listener on several queues hears of connections from each of them.
            for id in item.parts.iter().map(Part::napi_id).filter(|id| *id != 0) {
                *sockets.entry(id).or_default() += 1;
            }
        }
        sockets
    }

    fn params(&self) -> lull_core::EpollParams {
        self.busy.params()
    }
}

impl Context {
    pub(super) fn new(host: &Host, sysctl: &Sysctl) -> Context {
        Context {
            busy: EpollBusy::new(sysctl, host.epoll_options()),
            ready: ReadyList::new(),
            items: Mutex::new(HashMap::new()),
            kernel: OnceLock::new(),
            kernel_turn: AtomicBool::new(false),
            told: OnceLock::new(),
            host: host.delivery(),
            calls: AtomicU64::new(0),
            with_events: AtomicU64::new(0),
            events: AtomicU64::new(0),
        }
    }

    /// Frees the context (`ep_free`): every registration ends, and what was suspended is resumed (§13 edge 11).
    pub(super) fn free(&self) {
        self.ready.close();
        let items = std::mem::take(&mut *self.items());
        items.values().for_each(Item::leave);
        self.busy.free().for_each(|napi_id| self.host.resume(napi_id));
    }

    pub(super) fn items(&self) -> MutexGuard<'_, HashMap<Member, Arc<Item>>> {
        // A map operation is done or not done, so a panic elsewhere cannot leave it half done.
        self.items.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[cold]
    pub(super) fn left_behind(&self, napi_id: u32) {
        self.host.resume(napi_id);
    }

    #[inline]
    pub(super) fn is_available(&self) -> bool {
        self.ready.is_available() || self.kernel.get().is_some_and(KernelSet::is_readable)
    }

    /// Looks at kernel descriptors now and then while the thread does not sleep.
    #[inline]
    pub(super) fn check_kernel(&self, now_ns: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.check(now_ns);
        }
    }

    /// Whether a kernel descriptor is ready now. It is for a caller that does not wait and has found nothing: it asks
    /// for what there is now, and not a while ago.
    #[cold]
    pub(super) fn look_at_kernel(&self, now_ns: u64) -> bool {
        self.kernel.get().is_some_and(|kernel| {
            kernel.look(now_ns);
            kernel.is_readable()
        })
    }

    /// Counts a call that returns this many events.
    pub(super) fn returns(&self, events: usize) {
        self.with_events.fetch_add(u64::from(events > 0), Ordering::Relaxed);
        self.events.fetch_add(events as u64, Ordering::Relaxed);
    }

    /// Copies up to `room` events out (`ep_send_events`). Neither sockets nor kernel descriptors starve the other.
    pub(super) fn copy(&self, events: &mut Vec<Event>, room: usize) -> usize {
        let before = events.len();
        let readable = self.kernel.get().filter(|kernel| kernel.is_readable());
        if let Some(kernel) = readable {
            let sockets_wait = self.ready.is_available();
            // If there is room for one event only, they take turns.
            let share = match (sockets_wait, room) {
                (false, room) => room,
                (true, 1) => usize::from(!self.kernel_turn.fetch_xor(true, Ordering::Relaxed)),
                (true, room) => room / 2,
            };
            kernel.copy(events, share);
        }
        self.copy_sockets(events, room - (events.len() - before));
        self.busy.in_turn(&mut events[before..], |event| event.napi_id);
        events.len() - before
    }

    fn copy_sockets(&self, events: &mut Vec<Event>, room: usize) {
        let warm = |item: &Item| {
            std::hint::black_box(item.parts.first().map(Part::level));
        };
        self.ready.take(room, warm, |item| {
            let ready = item.ready();
            if ready.is_empty() || item.gone.load(Ordering::Acquire) {
                return Taken::Stale;
            }
            let napi_id = if let [part] = &item.parts[..] { part.napi_id() } else { 0 };
            events.push(Event { key: item.key.load(Ordering::Relaxed), ready, napi_id });
            let interest = item.wanted.interest();
            if interest & Interest::ONESHOT.bits() != 0 {
                item.wanted.turn_off();
                Taken::Once
            } else if interest & Interest::EDGE.bits() != 0 {
                Taken::Once
            } else {
                Taken::Again
            }
        });
    }

    /// Sleeps until something is available or the time is up. Returns whether something is available, and whether the
    /// time is up.
    pub(super) fn sleep(
        &self,
        worker: &Worker,
        turn: &mut Turn<'_>,
        until_ns: Option<u64>,
        interrupted: &dyn Fn() -> bool,
    ) -> (bool, bool) {
        let waker = worker.waker();
        let fd = self.kernel.get().map(KernelSet::fd);
        let watches_fd = fd.is_some();
        let woke = turn.sleep(&Sleep { until_ns, fd }, &mut || {
            // A set of kernel descriptors that was made meanwhile has to be watched as well.
            self.ready.look(&waker) || self.kernel.get().is_some() != watches_fd || interrupted()
        });
        let available = self.ready.leave(&waker);
        let kernel = self.kernel.get();
        if woke == Woke::Fd {
            kernel.inspect(|kernel| kernel.fired());
        }
        (available || kernel.is_some_and(KernelSet::is_readable), woke == Woke::TimedOut || interrupted())
    }
}

/// Takes a closed socket out of every set that it is in.
pub(crate) fn forget(items: Vec<Arc<Item>>) {
    for item in items {
        item.gone.store(true, Ordering::Release);
        // It may have left already by another part of the socket, and another socket of the same identity may be there
        // by now.
        let mut items = item.context.items();
        if items.get(&item.member).is_some_and(|there| Arc::ptr_eq(there, &item)) {
            items.remove(&item.member);
        }
    }
}
