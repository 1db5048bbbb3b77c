//! Epoll: readiness of many sockets and kernel descriptors, with its own busy-poll parameters.
//!
//! The policy (when to busy poll, suspend and resume) is that of [`lull_core::EpollWait`]. This module has the ready
//! list, the items and the waiters.

pub(crate) mod context;
mod event;
mod kernel;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lull_core::{AppPolicy, BusyDone, EpollParams, EpollWait, Mode, SettingError, Sysctl, WaitStep};
use lull_host::{Host, Worker};

use crate::batch;
use crate::socket::Source;
use context::{Context, Item, Member};
use event::EXCLUSIVE_OK;
pub use event::{EpollStats, Event, Interest};
use kernel::KernelSet;

/// An epoll context. Clones are the same context, and any thread that has a [`Worker`] may wait on it.
#[derive(Clone)]
pub struct Epoll(Arc<Handle>);

struct Handle {
    context: Arc<Context>,
}

impl Epoll {
    /// A context with busy polling off.
    pub fn new(host: &Host) -> Epoll {
        let context = Arc::new(Context::new(host, host.sysctl()));
        let listed: Weak<Context> = Arc::downgrade(&context);
        host.delivery().list_context(listed);
        Epoll(Arc::new(Handle { context }))
    }

    /// A context that never busy polls, whatever the sysctl `busy_poll` says. It is for calls that only sleep in it.
    pub fn for_sleep(host: &Host) -> Epoll {
        Epoll(Arc::new(Handle { context: Arc::new(Context::new(host, &Sysctl::default())) }))
    }

    fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Sets the busy-poll parameters (EPIOCSPARAMS).
    ///
    /// # Errors
    /// A parameter is above its limit, or the budget is above 64 without `privileged` (CAP_NET_ADMIN).
    pub fn set_busy_poll(&self, params: &EpollParams, privileged: bool) -> Result<(), SettingError> {
        self.context().busy.set_params(params, privileged)
    }

    /// Puts a mode's half of an epoll context in force, which is its busy-poll parameters. The returned policy says how
    /// long the application has to wait: `epoll.wait(&worker, &mut events, 64, policy.timeout())`. The other half is
    /// [`crate::Network::set_mode`]'s.
    ///
    /// # Errors
    /// A parameter is above its limit. A context of this stack belongs to its program, so a budget above 64 needs no
    /// privilege.
    pub fn set_mode(&self, mode: &Mode) -> Result<AppPolicy, SettingError> {
        self.set_busy_poll(&mode.epoll, true)?;
        Ok(mode.app)
    }

    /// Returns the busy-poll parameters (EPIOCGPARAMS).
    pub fn busy_poll(&self) -> EpollParams {
        self.context().busy.params()
    }

    /// The NAPI that this context polls now; 0 if there is none.
    pub fn napi_id(&self) -> u32 {
        self.context().busy.napi_id()
    }

    /// The counters of the context.
    pub fn stats(&self) -> EpollStats {
        let context = self.context();
        EpollStats {
            calls: context.calls.load(Ordering::Relaxed),
            with_events: context.with_events.load(Ordering::Relaxed),
            events: context.events.load(Ordering::Relaxed),
            syscalls: context.kernel.get().map_or(0, KernelSet::syscalls),
        }
    }

    /// How many threads sleep in it now; the next event wakes one of them (`waitqueue_active`).
    pub fn waiting(&self) -> usize {
        self.context().ready.waiting()
    }

    /// Whether a socket of the set is really ready, so that a wait would report it (`ep_eventpoll_poll`). Kernel
    /// descriptors are not looked at.
    pub fn has_ready(&self) -> bool {
        self.context().ready.any(|item| item.is_ready())
    }

    /// Makes each edge of a socket of the set at which a wait would report something call `tell`, after the socket's
    /// level was written. It is for a caller that watches the context itself (`ep_poll_safewake`). `tell` may run in
    /// any thread, under the lock of the socket's queue. Only the first one that is given counts.
    pub fn on_edge(&self, tell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.context().told.set(tell);
    }

    /// Adds a socket (EPOLL_CTL_ADD). If it is ready already, the next wait reports it. A socket may be in the set several
    /// times, once under each of its names ([`Named`](crate::Named)), with an interest and a key for each.
    ///
    /// # Errors
    /// `AlreadyExists` if it is in the set; `InvalidInput` for EXCLUSIVE together with ONESHOT or RDHUP, as on Linux,
    /// and for a socket of another host, for which no waiter of this context could deliver.
    pub fn add(&self, source: &impl Source, key: u64, interest: Interest) -> io::Result<()> {
        if interest.contains(Interest::EXCLUSIVE) && !EXCLUSIVE_OK.contains(interest) {
            return Err(io::Error::from_raw_os_error(libc_errno::EINVAL));
        }
        let context = self.context();
        let parts = source.parts();
        if parts.iter().any(|part| !part.is_of(&context.host)) {
            let what =
                "cannot watch a socket of another host: make the network and the epoll context with the same Host";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let item = Item::new(context, Member::of(source), key, interest, parts);
        {
            let mut items = context.items();
            if items.contains_key(&item.member) {
                return Err(io::Error::from_raw_os_error(libc_errno::EEXIST));
            }
            items.insert(item.member, item.clone());
        }
        item.watch();
        Ok(())
    }

    /// Changes a socket's key and interest, and turns a one-shot on again (EPOLL_CTL_MOD).
    ///
    /// # Errors
    /// `NotFound` if it is not in the set; `InvalidInput` if EXCLUSIVE is given or was given before, as on Linux.
    pub fn modify(&self, source: &impl Source, key: u64, interest: Interest) -> io::Result<()> {
        let item = self.context().items().get(&Member::of(source)).cloned();
        let Some(item) = item else { return Err(io::Error::from_raw_os_error(libc_errno::ENOENT)) };
        if interest.contains(Interest::EXCLUSIVE) || item.is_exclusive() {
            return Err(io::Error::from_raw_os_error(libc_errno::EINVAL));
        }
        // A wait that copies events out sees the item either as it was or as it will be, as under the kernel's
        // `ep->mtx`.
        self.context().ready.between_takes(|| {
            item.key.store(key, Ordering::Relaxed);
            item.wanted.change(interest.bits());
        });
        if !item.ready().is_empty() {
            item.push();
        }
        Ok(())
    }

    /// Takes a socket out of the set (EPOLL_CTL_DEL). Dropping a socket does so as well.
    ///
    /// # Errors
    /// `NotFound` if it is not in the set.
    pub fn delete(&self, source: &impl Source) -> io::Result<()> {
        let item = self.context().items().remove(&Member::of(source));
        item.ok_or_else(|| io::Error::from_raw_os_error(libc_errno::ENOENT))?.leave();
        Ok(())
    }

    /// Takes a socket out of the set under all its names. Returns each of these, with the key and the interest that it was in
    /// the set with.
    pub fn take_out(&self, source: &impl Source) -> Vec<(u32, u64, Interest)> {
        let identity = source.identity();
        let items: Vec<_> =
            self.context().items().extract_if(|member, _| member.identity == identity).map(|(_, item)| item).collect();
        items.iter().for_each(Item::leave);
        let was = |item: &Arc<Item>| {
            (item.member.name, item.key.load(Ordering::Relaxed), Interest::from_bits_truncate(item.wanted.interest()))
        };
        items.iter().map(was).collect()
    }

    /// An object that makes [`Epoll::wait`] report `key` as readable, once per [`Notifier::notify`], from any thread.
    /// By it other threads talk to one that waits. It takes no descriptor and, while the thread is awake, no system
    /// call.
    pub fn notifier(&self, key: u64) -> Notifier {
        Notifier(Item::new(self.context(), Member::NONE, key, Interest::READABLE | Interest::EDGE, Vec::new()))
    }

    fn kernel(&self) -> io::Result<&KernelSet> {
        let context = self.context();
        if let Some(kernel) = context.kernel.get() {
            return Ok(kernel);
        }
        let made = KernelSet::new()?;
        let kernel = context.kernel.get_or_init(|| made);
        // Threads that sleep do not watch the new set yet.
        context.ready.wake_all();
        Ok(kernel)
    }

    /// Adds a descriptor of the kernel (an eventfd, a timerfd, a pipe, a kernel socket). It has no NAPI and is never busy
    /// polled (§13 edge 23).
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub fn add_fd(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        self.kernel()?.add(fd, key, interest)
    }

    /// Changes a kernel descriptor's key and interest.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub fn modify_fd(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        self.kernel()?.modify(fd, key, interest)
    }

    /// Takes a kernel descriptor out of the set.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub fn delete_fd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.kernel()?.delete(fd)
    }

    /// Waits for events (`epoll_wait`). It appends up to `events_max` of them to `events` and returns how many there
    /// are. With the `timeout` `None` it waits for ever, and with zero it returns at once. While it waits, the calling
    /// thread delivers packets for `worker`'s CPU.
    ///
    /// # Errors
    /// `InvalidInput` if `events_max` is 0, or if `worker` is of another host and so could not deliver for this
    /// context.
    pub fn wait(
        &self,
        worker: &Worker,
        events: &mut Vec<Event>,
        events_max: usize,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        self.wait_unless(worker, events, events_max, timeout, &|| false)
    }

    /// As [`Epoll::wait`], but it ends early if `interrupted` returns true and there are no events. A thread that makes
    /// it return true wakes the worker's [`Waker`](lull_host::Waker) afterwards.
    ///
    /// # Errors
    /// As [`Epoll::wait`]; also `Interrupted`.
    pub fn wait_unless(
        &self,
        worker: &Worker,
        events: &mut Vec<Event>,
        events_max: usize,
        timeout: Option<Duration>,
        interrupted: &dyn Fn() -> bool,
    ) -> io::Result<usize> {
        if events_max == 0 {
            return Err(io::Error::from_raw_os_error(libc_errno::EINVAL));
        }
        let context = &**self.context();
        if !worker.host().is_of(&context.host) {
            let what = "cannot wait in an epoll context with a worker of another host: make both with the same Host";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        context.calls.fetch_add(1, Ordering::Relaxed);
        batch::ends();
        worker.poll_point();
        let mut turn = worker.turn();
        let now_ns = worker.host().now_ns();
        context.check_kernel(now_ns);
        let timeout_ns = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let mut wait = EpollWait::begin(&context.busy, timeout_ns, context.is_available(), now_ns);
        loop {
            match wait.next(&context.busy) {
                WaitStep::Done(0) if timeout_ns == Some(0) && context.look_at_kernel(now_ns) => {
                    let count = context.copy(events, events_max);
                    context.returns(count);
                    return Ok(count);
                }
                WaitStep::Done(count) => {
                    context.returns(count);
                    // A call whose time was over from the start returns 0, even if it is interrupted (`ep_poll`).
                    if count == 0 && timeout_ns != Some(0) && interrupted() {
                        return Err(io::Error::from_raw_os_error(libc_errno::EINTR));
                    }
                    if count > 0 {
                        batch::begins(count);
                    }
                    return Ok(count);
                }
                WaitStep::Copy => {
                    let count = context.copy(events, events_max);
                    if let Some(WaitStep::Suspend(napi_id)) = wait.copied(&context.busy, count) {
                        turn.suspend(napi_id);
                    }
                }
                WaitStep::Busy(plan) if wait.may_leave_out(&context.busy) && turn.is_idle(plan.napi_id) => {
                    let now_ns = worker.host().now_ns();
                    context.check_kernel(now_ns);
                    wait.left_out(&context.busy, context.is_available(), now_ns);
                }
                WaitStep::Busy(plan) => {
                    let most = turn.busy_loop(&plan, &mut |now_ns| {
                        context.check_kernel(now_ns);
                        context.is_available() || interrupted()
                    });
                    let now_ns = worker.host().now_ns();
                    let (available, gone) = (context.is_available(), most.is_none());
                    let done = BusyDone { available, gone, most: most.unwrap_or(0), now_ns };
                    if let Some(WaitStep::Resume(napi_id)) = wait.busy_done(&context.busy, done) {
                        turn.resume(napi_id);
                    }
                }
                WaitStep::Sleep(until_ns) => {
                    // The poll that follows a resume ran in this context and may have brought events.
                    let (available, timed_out) = match context.is_available() {
                        true => (true, false),
                        // The wait ends as if the time were over: `ep_poll` looks at signals where it would sleep.
                        false if interrupted() => (false, true),
                        false => context.sleep(worker, &mut turn, until_ns, interrupted),
                    };
                    wait.woke(available, timed_out);
                }
                WaitStep::Resume(napi_id) => turn.resume(napi_id),
                WaitStep::Suspend(napi_id) => turn.suspend(napi_id),
            }
        }
    }
}

/// A notifier of a context; [`Epoll::notifier`] makes one.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Item>);

impl Notifier {
    /// Reports the notifier's key to a thread that waits, or to the next one that does.
    pub fn notify(&self) {
        self.0.notified.store(true, Ordering::Release);
        self.0.push();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.free();
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
    pub(super) const EINTR: i32 = Errno::INTR.raw_os_error();
    pub(super) const EEXIST: i32 = Errno::EXIST.raw_os_error();
    pub(super) const ENOENT: i32 = Errno::NOENT.raw_os_error();
}

#[cfg(test)]
mod tests;
