//! What an epoll context is made of: registrations, the ready list, those who wait.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use lull_core::EpollBusy;
use lull_host::{Delivery, Host, Sleep, Turn, Waker, Woke, Worker};

use super::kernel::KernelSet;
use super::{Event, Interest};
use crate::shard::Ready;
use crate::socket::Part;

const READY_MASK: u32 = 0xff;
/// Set while a one-shot item is off.
const OFF: u32 = 1 << 31;

/// One registration of a socket in a context.
pub(crate) struct Item {
    pub(super) context: Arc<Context>,
    pub(super) key: AtomicU64,
    pub(super) interest: AtomicU32,
    /// None for a notifier.
    pub(super) parts: Vec<Part>,
    /// A notifier's level.
    pub(super) notified: AtomicBool,
    queued: AtomicBool,
    gone: AtomicBool,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("key", &self.key).field("interest", &self.interest).finish_non_exhaustive()
    }
}

impl Item {
    /// A registration of what `parts` make up; a notifier has none.
    pub(super) fn new(context: &Arc<Context>, key: u64, interest: Interest, parts: Vec<Part>) -> Arc<Item> {
        Arc::new(Item {
            context: context.clone(),
            key: AtomicU64::new(key),
            interest: AtomicU32::new(interest.bits()),
            parts,
            notified: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Ends the registration, from the context's side.
    pub(super) fn leave(self: &Arc<Self>) {
        self.gone.store(true, Ordering::Release);
        self.parts.iter().for_each(|part| part.unwatch(self));
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.interest.load(Ordering::Relaxed) & Interest::EXCLUSIVE.bits() != 0
    }

    /// `ep_poll_callback`: an edge. The NAPI id is noted before the mask is looked at. Returns whether the item was
    /// put on the ready list or is there.
    #[inline]
    pub(crate) fn fire(self: &Arc<Item>, edges: Ready, napi_id: u32) -> bool {
        if let Some(left_behind) = self.context.busy.note_napi(napi_id) {
            self.context.left_behind(left_behind);
        }
        if self.wanted() & u32::from(edges.bits()) == 0 {
            return false;
        }
        self.context.push(self);
        true
    }

    /// The mask of readiness bits that are reported; 0 while a one-shot is off.
    #[inline]
    fn wanted(&self) -> u32 {
        let interest = self.interest.load(Ordering::Acquire);
        if interest & OFF != 0 { 0 } else { (interest & READY_MASK) | u32::from((Ready::ERR | Ready::HUP).bits()) }
    }

    #[inline]
    pub(super) fn ready(&self) -> Ready {
        let all = match &self.parts[..] {
            [part] => part.level(),
            [] if self.notified.swap(false, Ordering::AcqRel) => Ready::READABLE,
            parts => parts.iter().fold(Ready::empty(), |all, part| all | part.level()),
        };
        Ready::from_bits_truncate(all.bits() & self.wanted() as u8)
    }
}

#[derive(Default)]
struct List {
    ready: VecDeque<Arc<Item>>,
    waiters: Vec<Waker>,
}

pub(crate) struct Context {
    pub(super) busy: EpollBusy,
    list: Mutex<List>,
    ready_count: AtomicUsize,
    items: Mutex<HashMap<usize, Arc<Item>>>,
    pub(super) kernel: OnceLock<KernelSet>,
    kernel_turn: AtomicBool,
    host: Arc<Delivery>,
    pub(super) calls: AtomicU64,
    pub(super) events: AtomicU64,
}

impl lull_host::EpollContext for Context {
    fn sockets(&self) -> BTreeMap<u32, usize> {
        let mut sockets = BTreeMap::new();
        for item in self.items().values() {
            // A listener on several queues hears from each of them.
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
    pub(super) fn new(host: &Host) -> Context {
        Context {
            busy: EpollBusy::new(host.sysctl(), host.epoll_options()),
            list: Mutex::new(List::default()),
            ready_count: AtomicUsize::new(0),
            items: Mutex::new(HashMap::new()),
            kernel: OnceLock::new(),
            kernel_turn: AtomicBool::new(false),
            host: host.delivery(),
            calls: AtomicU64::new(0),
            events: AtomicU64::new(0),
        }
    }

    /// `ep_free`: every registration ends, and what was suspended is resumed (§13 edge 11).
    pub(super) fn free(&self) {
        let items = std::mem::take(&mut *self.items());
        items.values().for_each(Item::leave);
        self.list().ready.clear();
        if let Some(napi_id) = self.busy.free() {
            self.host.resume(napi_id);
        }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // Items are moved in and out whole: a panic elsewhere cannot leave the list half-written.
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn items(&self) -> MutexGuard<'_, HashMap<usize, Arc<Item>>> {
        self.items.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[inline]
    pub(super) fn push(&self, item: &Arc<Item>) {
        if item.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let waiter = {
            let mut list = self.list();
            list.ready.push_back(item.clone());
            self.ready_count.store(list.ready.len(), Ordering::Release);
            list.waiters.pop()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    #[cold]
    pub(super) fn left_behind(&self, napi_id: u32) {
        self.host.resume(napi_id);
    }

    #[inline]
    pub(super) fn is_available(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) != 0 || self.kernel.get().is_some_and(KernelSet::is_readable)
    }

    /// While not asleep, kernel descriptors are looked at now and then.
    #[inline]
    pub(super) fn check_kernel(&self, now_ns: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.check(now_ns);
        }
    }

    /// Copies up to `room` events out: `ep_send_events`. Neither sockets nor kernel descriptors starve the other.
    pub(super) fn copy(&self, events: &mut Vec<Event>, room: usize) -> usize {
        let before = events.len();
        let readable = self.kernel.get().filter(|kernel| kernel.is_readable());
        if let Some(kernel) = readable {
            let sockets_wait = self.ready_count.load(Ordering::Acquire) != 0;
            // With room for one event, they take turns.
            let share = match (sockets_wait, room) {
                (false, room) => room,
                (true, 1) => usize::from(!self.kernel_turn.fetch_xor(true, Ordering::Relaxed)),
                (true, room) => room / 2,
            };
            kernel.copy(events, share);
        }
        self.copy_sockets(events, room - (events.len() - before));
        events.len() - before
    }

    fn copy_sockets(&self, events: &mut Vec<Event>, room: usize) {
        if room == 0 || self.ready_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut list = self.list();
        // Level-triggered items go back to the tail: each is looked at once per call.
        let mut looks = list.ready.len();
        let mut left = room;
        // Touched together first, the cache misses of different sockets overlap; the loop's atomics would serialise them.
        for item in list.ready.iter().take(room) {
            std::hint::black_box(item.parts.first().map(Part::level));
        }
        while looks > 0 && left > 0 {
            looks -= 1;
            let Some(item) = list.ready.pop_front() else { break };
            // Before the level is read: an edge that comes after it queues the item again.
            item.queued.store(false, Ordering::SeqCst);
            let ready = item.ready();
            if ready.is_empty() || item.gone.load(Ordering::Acquire) {
                continue;
            }
            events.push(Event { key: item.key.load(Ordering::Relaxed), ready });
            left -= 1;
            let interest = item.interest.load(Ordering::Relaxed);
            if interest & Interest::ONESHOT.bits() != 0 {
                item.interest.fetch_or(OFF, Ordering::AcqRel);
            } else if interest & Interest::EDGE.bits() == 0 && !item.queued.swap(true, Ordering::AcqRel) {
                list.ready.push_back(item);
            }
        }
        self.ready_count.store(list.ready.len(), Ordering::Release);
    }

    pub(super) fn sleep(&self, worker: &Worker, turn: &mut Turn<'_>, until_ns: Option<u64>) -> Woke {
        let waker = worker.waker();
        self.list().waiters.push(waker.clone());
        let fd = self.kernel.get().map(KernelSet::fd);
        let woke = turn.sleep(&Sleep { until_ns, fd }, &mut || {
            // A waker that was used is off the list; while we look on, it has to be there.
            if self.ready_count.load(Ordering::Acquire) != 0 {
                return true;
            }
            let mut list = self.list();
            if !list.waiters.iter().any(|other| other.is_same(&waker)) {
                list.waiters.push(waker.clone());
            }
            !list.ready.is_empty()
        });
        let mut list = self.list();
        let was_there = list.waiters.iter().any(|other| other.is_same(&waker));
        list.waiters.retain(|other| !other.is_same(&waker));
        // We were woken for an event but leave for another reason: the next waiter takes it.
        let pass_on =
            if !was_there && woke != Woke::Ready && !list.ready.is_empty() { list.waiters.pop() } else { None };
        drop(list);
        if let Some(next) = pass_on {
            next.wake();
        }
        if woke == Woke::Fd
            && let Some(kernel) = self.kernel.get()
        {
            kernel.fired();
        }
        woke
    }
}

/// A closed socket leaves every set that it is in.
pub(crate) fn forget(items: Vec<Arc<Item>>, identity: usize) {
    for item in items {
        item.gone.store(true, Ordering::Release);
        item.context.items().remove(&identity);
    }
}
