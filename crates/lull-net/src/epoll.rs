//! Epoll: readiness of many sockets and kernel descriptors, with its own busy-poll parameters.
//!
//! The policy (when to busy poll, suspend, resume) is [`lull_core::EpollWait`]'s; here are the ready list, the items and
//! the waiters.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use lull_core::{EpollBusy, EpollParams, EpollWait, SettingError, WaitStep};
use lull_host::{Delivery, Host, Sleep, Turn, Waker, Woke, Worker};
use rustix::event::{Timespec, epoll as kernel};

use crate::shard::Ready;
use crate::socket::{Part, Source};

bitflags::bitflags! {
    /// What an item waits for, and how (`EPOLLIN` and so on). Errors and hang-ups are always reported.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Interest: u32 {
        /// Something to read (`EPOLLIN`).
        const READABLE = 1;
        /// Room to write (`EPOLLOUT`).
        const WRITABLE = 2;
        /// The peer shut down writing (`EPOLLRDHUP`).
        const RDHUP = 8;
        /// Edge-triggered (`EPOLLET`): reported once per arrival, not for as long as it lasts.
        const EDGE = 1 << 8;
        /// One-shot (`EPOLLONESHOT`): reported once, then off until modified.
        const ONESHOT = 1 << 9;
        /// Exclusive (`EPOLLEXCLUSIVE`): of several contexts that wait for the socket, one is woken.
        const EXCLUSIVE = 1 << 10;
    }
}

const READY_MASK: u32 = 0xff;
/// Set while a one-shot item is off.
const OFF: u32 = 1 << 31;

/// How often a context with kernel descriptors looks at them while it does not sleep, in nanoseconds.
const KERNEL_CHECK_NS: u64 = 50_000;

/// An event: what is ready, and the key that the item was added with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: u64,
    /// What is ready.
    pub ready: Ready,
}

/// One registration of a socket in a context.
pub(crate) struct Item {
    context: Arc<Context>,
    key: AtomicU64,
    interest: AtomicU32,
    /// None for a notifier.
    parts: Vec<Part>,
    /// A notifier's level.
    notified: AtomicBool,
    queued: AtomicBool,
    gone: AtomicBool,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("key", &self.key).field("interest", &self.interest).finish_non_exhaustive()
    }
}

impl Item {
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
    fn ready(&self) -> Ready {
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

/// Kernel descriptors in the same set: an epoll of the kernel's, watched as one descriptor.
struct KernelSet {
    epoll: OwnedFd,
    checked_ns: AtomicU64,
    /// Something was readable when it was last looked at.
    readable: AtomicBool,
}

pub(crate) struct Context {
    busy: EpollBusy,
    list: Mutex<List>,
    ready_count: AtomicUsize,
    items: Mutex<HashMap<usize, Arc<Item>>>,
    kernel: OnceLock<KernelSet>,
    kernel_turn: AtomicBool,
    host: Arc<Delivery>,
    calls: AtomicU64,
    events: AtomicU64,
    syscalls: AtomicU64,
}

/// Counters of a context since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollStats {
    /// Calls of [`Epoll::wait`].
    pub calls: u64,
    /// Events returned.
    pub events: u64,
    /// System calls made to look at kernel descriptors.
    pub syscalls: u64,
}

impl Context {
    fn list(&self) -> MutexGuard<'_, List> {
        // Items are moved in and out whole: a panic elsewhere cannot leave the list half-written.
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn items(&self) -> MutexGuard<'_, HashMap<usize, Arc<Item>>> {
        self.items.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[inline]
    fn push(&self, item: &Arc<Item>) {
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
    fn left_behind(&self, napi_id: u32) {
        self.host.resume(napi_id);
    }

    #[inline]
    fn is_available(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) != 0
            || self.kernel.get().is_some_and(|kernel| kernel.readable.load(Ordering::Relaxed))
    }

    /// While not asleep, kernel descriptors are looked at once per [`KERNEL_CHECK_NS`].
    #[inline]
    fn check_kernel(&self, now_ns: u64) {
        let Some(kernel) = self.kernel.get() else { return };
        if now_ns.saturating_sub(kernel.checked_ns.load(Ordering::Relaxed)) < KERNEL_CHECK_NS {
            return;
        }
        kernel.checked_ns.store(now_ns, Ordering::Relaxed);
        self.syscalls.fetch_add(1, Ordering::Relaxed);
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(kernel.epoll.as_fd(), rustix::event::PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interruption leaves the set as it is: the next look sees it.
        if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
            kernel.readable.store(true, Ordering::Relaxed);
        }
    }

    /// Copies up to `room` events out: `ep_send_events`. Neither sockets nor kernel descriptors starve the other.
    fn copy(&self, events: &mut Vec<Event>, room: usize) -> usize {
        let before = events.len();
        let readable = self.kernel.get().filter(|kernel| kernel.readable.load(Ordering::Relaxed));
        if let Some(kernel) = readable {
            let sockets_wait = self.ready_count.load(Ordering::Acquire) != 0;
            // With room for one event, they take turns.
            let share = match (sockets_wait, room) {
                (false, room) => room,
                (true, 1) => usize::from(!self.kernel_turn.fetch_xor(true, Ordering::Relaxed)),
                (true, room) => room / 2,
            };
            self.copy_kernel(kernel, events, share);
        }
        self.copy_sockets(events, room - (events.len() - before));
        events.len() - before
    }

    fn copy_kernel(&self, kernel: &KernelSet, events: &mut Vec<Event>, room: usize) {
        if room == 0 {
            return;
        }
        let mut fired: Vec<kernel::Event> = Vec::with_capacity(room.min(256));
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.syscalls.fetch_add(1, Ordering::Relaxed);
        let full = fired.capacity();
        // An interruption reports nothing; the set stays readable and the next call sees it.
        let got = kernel::wait(&kernel.epoll, rustix::buffer::spare_capacity(&mut fired), Some(&now)).unwrap_or(0);
        if got < full {
            kernel.readable.store(false, Ordering::Relaxed);
        }
        events.extend(fired.iter().map(|event| Event { key: event.data.u64(), ready: from_kernel(event.flags) }));
    }

    fn copy_sockets(&self, events: &mut Vec<Event>, room: usize) {
        if room == 0 || self.ready_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut list = self.list();
        // Level-triggered items go back to the tail: each is looked at once per call.
        let mut looks = list.ready.len();
        let mut left = room;
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

    fn sleep(&self, worker: &Worker, turn: &mut Turn<'_>, until_ns: Option<u64>) -> Woke {
        let waker = worker.waker();
        self.list().waiters.push(waker.clone());
        let fd = self.kernel.get().map(|kernel| kernel.epoll.as_fd());
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
            kernel.readable.store(true, Ordering::Relaxed);
        }
        woke
    }
}

fn from_kernel(flags: kernel::EventFlags) -> Ready {
    const MAP: [(kernel::EventFlags, Ready); 5] = [
        (kernel::EventFlags::IN, Ready::READABLE),
        (kernel::EventFlags::OUT, Ready::WRITABLE),
        (kernel::EventFlags::RDHUP, Ready::RDHUP),
        (kernel::EventFlags::HUP, Ready::HUP),
        (kernel::EventFlags::ERR, Ready::ERR),
    ];
    MAP.iter().filter(|(kernel, _)| flags.contains(*kernel)).fold(Ready::empty(), |all, (_, ready)| all | *ready)
}

fn to_kernel(interest: Interest) -> kernel::EventFlags {
    const MAP: [(Interest, kernel::EventFlags); 6] = [
        (Interest::READABLE, kernel::EventFlags::IN),
        (Interest::WRITABLE, kernel::EventFlags::OUT),
        (Interest::RDHUP, kernel::EventFlags::RDHUP),
        (Interest::EDGE, kernel::EventFlags::ET),
        (Interest::ONESHOT, kernel::EventFlags::ONESHOT),
        (Interest::EXCLUSIVE, kernel::EventFlags::EXCLUSIVE),
    ];
    MAP.iter()
        .filter(|(ours, _)| interest.contains(*ours))
        .fold(kernel::EventFlags::empty(), |all, (_, kernel)| all | *kernel)
}

/// An epoll context. Clones are the same context; any thread that has a [`Worker`] may wait on it.
#[derive(Clone)]
pub struct Epoll(Arc<Handle>);

struct Handle {
    context: Arc<Context>,
}

impl Epoll {
    /// A context with busy polling off.
    pub fn new(host: &Host) -> Epoll {
        Epoll(Arc::new(Handle {
            context: Arc::new(Context {
                busy: EpollBusy::new(host.sysctl(), host.epoll_options()),
                list: Mutex::new(List::default()),
                ready_count: AtomicUsize::new(0),
                items: Mutex::new(HashMap::new()),
                kernel: OnceLock::new(),
                kernel_turn: AtomicBool::new(false),
                host: host.delivery(),
                calls: AtomicU64::new(0),
                events: AtomicU64::new(0),
                syscalls: AtomicU64::new(0),
            }),
        }))
    }

    fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// EPIOCSPARAMS.
    ///
    /// # Errors
    /// A parameter above its limit, or a budget above 64 without `privileged` (CAP_NET_ADMIN).
    pub fn set_busy_poll(&self, params: &EpollParams, privileged: bool) -> Result<(), SettingError> {
        self.context().busy.set_params(params, privileged)
    }

    /// EPIOCGPARAMS.
    pub fn busy_poll(&self) -> EpollParams {
        self.context().busy.params()
    }

    /// The NAPI that this context polls now; 0 if none.
    pub fn napi_id(&self) -> u32 {
        self.context().busy.napi_id()
    }

    /// Counters.
    pub fn stats(&self) -> EpollStats {
        let context = self.context();
        EpollStats {
            calls: context.calls.load(Ordering::Relaxed),
            events: context.events.load(Ordering::Relaxed),
            syscalls: context.syscalls.load(Ordering::Relaxed),
        }
    }

    /// Adds a socket (EPOLL_CTL_ADD). What is ready already is reported by the next wait.
    ///
    /// # Errors
    /// `AlreadyExists` if it is in the set; `InvalidInput` for EXCLUSIVE together with ONESHOT, as Linux.
    pub fn add(&self, source: &impl Source, key: u64, interest: Interest) -> io::Result<()> {
        if interest.contains(Interest::EXCLUSIVE | Interest::ONESHOT) {
            return Err(io::Error::from_raw_os_error(libc_errno::EINVAL));
        }
        let context = self.context();
        let item = Arc::new(Item {
            context: context.clone(),
            key: AtomicU64::new(key),
            interest: AtomicU32::new(interest.bits()),
            parts: source.parts(),
            notified: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        {
            let mut items = context.items();
            if items.contains_key(&source.identity()) {
                return Err(io::Error::from_raw_os_error(libc_errno::EEXIST));
            }
            items.insert(source.identity(), item.clone());
        }
        for part in &item.parts {
            if let Some(left_behind) = context.busy.note_napi(part.napi_id()) {
                context.left_behind(left_behind);
            }
            part.watch(&item);
        }
        if !item.ready().is_empty() {
            context.push(&item);
        }
        Ok(())
    }

    /// Changes a socket's key and interest, and turns a one-shot on again (EPOLL_CTL_MOD).
    ///
    /// # Errors
    /// `NotFound` if it is not in the set; `InvalidInput` if EXCLUSIVE is or was set, as Linux.
    pub fn modify(&self, source: &impl Source, key: u64, interest: Interest) -> io::Result<()> {
        let item = self.context().items().get(&source.identity()).cloned();
        let Some(item) = item else { return Err(io::Error::from_raw_os_error(libc_errno::ENOENT)) };
        if interest.contains(Interest::EXCLUSIVE) || item.is_exclusive() {
            return Err(io::Error::from_raw_os_error(libc_errno::EINVAL));
        }
        item.key.store(key, Ordering::Relaxed);
        item.interest.store(interest.bits(), Ordering::SeqCst);
        if !item.ready().is_empty() {
            self.context().push(&item);
        }
        Ok(())
    }

    /// Takes a socket out of the set (EPOLL_CTL_DEL). Dropping a socket does so by itself.
    ///
    /// # Errors
    /// `NotFound` if it is not in the set.
    pub fn delete(&self, source: &impl Source) -> io::Result<()> {
        let item = self.context().items().remove(&source.identity());
        let Some(item) = item else { return Err(io::Error::from_raw_os_error(libc_errno::ENOENT)) };
        item.leave();
        Ok(())
    }

    /// Something that makes [`Epoll::wait`] report `key` as readable, once per [`Notifier::notify`], from any thread: how
    /// other threads talk to one that waits. Costs no descriptor and, while the thread is awake, no system call.
    pub fn notifier(&self, key: u64) -> Notifier {
        Notifier(Arc::new(Item {
            context: self.context().clone(),
            key: AtomicU64::new(key),
            interest: AtomicU32::new((Interest::READABLE | Interest::EDGE).bits()),
            parts: Vec::new(),
            notified: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }))
    }

    fn kernel(&self) -> io::Result<&KernelSet> {
        let context = self.context();
        if let Some(kernel) = context.kernel.get() {
            return Ok(kernel);
        }
        let made = KernelSet {
            epoll: kernel::create(kernel::CreateFlags::CLOEXEC)?,
            checked_ns: AtomicU64::new(0),
            readable: AtomicBool::new(false),
        };
        Ok(context.kernel.get_or_init(|| made))
    }

    /// Adds a descriptor of the kernel (an eventfd, a timerfd, a pipe, a kernel socket). It has no NAPI and is never busy
    /// polled (§13 edge 23). Add the first one before threads wait on the context.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub fn add_fd(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        let kernel = self.kernel()?;
        Ok(kernel::add(&kernel.epoll, fd, kernel::EventData::new_u64(key), to_kernel(interest))?)
    }

    /// Changes a kernel descriptor's key and interest.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub fn modify_fd(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        let kernel = self.kernel()?;
        Ok(kernel::modify(&kernel.epoll, fd, kernel::EventData::new_u64(key), to_kernel(interest))?)
    }

    /// Takes a kernel descriptor out of the set.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub fn delete_fd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let kernel = self.kernel()?;
        Ok(kernel::delete(&kernel.epoll, fd)?)
    }

    /// Waits for events (`epoll_wait`): appends up to `events_max` to `events` and returns how many. `timeout` `None`
    /// waits for ever, zero returns at once. While it waits, the calling thread delivers packets for `worker`'s CPU.
    ///
    /// # Errors
    /// `InvalidInput` if `events_max` is 0.
    pub fn wait(
        &self,
        worker: &Worker,
        events: &mut Vec<Event>,
        events_max: usize,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        if events_max == 0 {
            return Err(io::Error::from_raw_os_error(libc_errno::EINVAL));
        }
        let context = &**self.context();
        context.calls.fetch_add(1, Ordering::Relaxed);
        worker.poll_point();
        let mut turn = worker.turn();
        let now_ns = worker.host().now_ns();
        context.check_kernel(now_ns);
        let timeout_ns = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let mut wait = EpollWait::begin(&context.busy, timeout_ns, context.is_available(), now_ns);
        loop {
            match wait.next(&context.busy) {
                WaitStep::Done(count) => {
                    context.events.fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(count);
                }
                WaitStep::Copy => {
                    let count = context.copy(events, events_max);
                    if let Some(WaitStep::Suspend(napi_id)) = wait.copied(&context.busy, count) {
                        turn.suspend(napi_id);
                    }
                }
                WaitStep::Busy(plan) => {
                    turn.busy_loop(&plan, &mut |now_ns| {
                        context.check_kernel(now_ns);
                        context.is_available()
                    });
                    if let Some(WaitStep::Resume(napi_id)) = wait.busy_done(&context.busy, context.is_available()) {
                        turn.resume(napi_id);
                    }
                }
                WaitStep::Sleep(until_ns) => {
                    // The resume's poll ran in this context and may have brought events.
                    let woke =
                        if context.is_available() { Woke::Ready } else { context.sleep(worker, &mut turn, until_ns) };
                    wait.woke(context.is_available(), woke == Woke::TimedOut);
                }
                WaitStep::Resume(napi_id) => turn.resume(napi_id),
                WaitStep::Suspend(napi_id) => turn.suspend(napi_id),
            }
        }
    }
}

/// See [`Epoll::notifier`].
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Item>);

impl Notifier {
    /// Reports the notifier's key to a thread that waits, or to the next that does.
    pub fn notify(&self) {
        self.0.notified.store(true, Ordering::Release);
        self.0.context.push(&self.0);
    }
}

impl Drop for Handle {
    /// `ep_free`: takes the items out of their sockets' wait lists and resumes what was suspended (§13 edge 11).
    fn drop(&mut self) {
        let items = std::mem::take(&mut *self.context.items());
        items.values().for_each(Item::leave);
        self.context.list().ready.clear();
        if let Some(napi_id) = self.context.busy.free() {
            self.context.host.resume(napi_id);
        }
    }
}

/// A closed socket leaves every set that it is in.
pub(crate) fn forget(items: Vec<Arc<Item>>, identity: usize) {
    for item in items {
        item.gone.store(true, Ordering::Release);
        item.context.items().remove(&identity);
    }
}

impl Item {
    /// Ends the registration, from the context's side.
    fn leave(self: &Arc<Self>) {
        self.gone.store(true, Ordering::Release);
        self.parts.iter().for_each(|part| part.unwatch(self));
    }
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll").field("busy", &self.context().busy).finish_non_exhaustive()
    }
}

mod libc_errno {
    use rustix::io::Errno;
    pub(super) const EINVAL: i32 = Errno::INVAL.raw_os_error();
    pub(super) const EEXIST: i32 = Errno::EXIST.raw_os_error();
    pub(super) const ENOENT: i32 = Errno::NOENT.raw_os_error();
}
