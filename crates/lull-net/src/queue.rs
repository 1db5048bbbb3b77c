//! A queue's protocol shard behind its lock. NAPI polls it, and sockets call it.
//!
//! This file says who takes the lock, and what has to be done before it is given back. The subjects have files of their
//! own: [`reception`] (a poll's frames, GRO), [`sending`] (doorbells, corks, room), [`watchers`] (wait lists), and
//! [`answer_times`].

mod answer_times;
mod reception;
mod sending;
mod watchers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lull_core::{GroFlush, Owner};
use lull_host::{Delivery, HandoffGuard, HandoffLock, Host, Receiver, Shard, TryPoll};
use lull_nic::{FramePool, IrqLine, TxQueue};
use lull_slo::Latencies;

use crate::busy_read::ModeBusyPoll;
use crate::ready::{Level, WaitList};
use crate::shard::{Batch, Change, Io, Ready, SocketId, Stack};
use crate::siblings::Inbox;

pub use sending::CORKED_FRAMES_MAX;

use answer_times::AnswerTimes;
use reception::Reception;
use sending::Sending;
use watchers::Watchers;

/// How many frames a shard keeps for its next transmissions.
const POOL_FRAMES_MAX: usize = 4096;

/// All that the shard's lock protects.
pub(crate) struct Inside {
    pub(crate) stack: Stack,
    reception: Reception,
    sending: Sending,
    watchers: Watchers,
    pool: FramePool,
    changes: Vec<Change>,
    /// The deadline of this shard's timers that the host was told last.
    told_deadline_ns: u64,
    /// The same, of timers that are not put off to a tick.
    told_exact_ns: u64,
    /// Whether the present call comes from a thread that answers a batch of many events and comes back, so that the
    /// doorbell may wait for it.
    comes_back: bool,
}

impl Inside {
    #[inline]
    pub(crate) fn wait_list(&mut self, id: SocketId) -> Option<&mut WaitList> {
        self.watchers.list(id)
    }

    /// Makes the wait list of a socket that the application has from now on.
    pub(crate) fn watch(&mut self, id: SocketId) -> Arc<Level> {
        self.watchers.add(id, self.stack.ready(id).unwrap_or(Ready::empty()))
    }

    pub(crate) fn unwatch(&mut self, id: SocketId) -> Option<WaitList> {
        self.watchers.remove(id)
    }

    /// The stack, all that a call into it needs, and what is on its way up to it.
    #[inline]
    fn parts(&mut self, now_ns: u64) -> (&mut Stack, Io<'_>, &mut Reception) {
        let io = Io {
            now_ns,
            tx: &mut *self.sending.tx,
            pool: &mut self.pool,
            changes: &mut self.changes,
            batch: Batch::NONE,
        };
        (&mut self.stack, io, &mut self.reception)
    }

    /// Calls into the stack with all that this needs.
    #[inline]
    pub(crate) fn call<R>(&mut self, now_ns: u64, f: impl FnOnce(&mut Stack, &mut Io<'_>) -> R) -> R {
        let (stack, mut io, _) = self.parts(now_ns);
        f(stack, &mut io)
    }

    /// As [`Inside::call`], for a thread that answers `batch` and will send what it holds back.
    #[inline]
    pub(crate) fn call_in<R>(
        &mut self,
        batch: &mut Batch,
        now_ns: u64,
        f: impl FnOnce(&mut Stack, &mut Io<'_>) -> R,
    ) -> R {
        let (stack, mut io, _) = self.parts(now_ns);
        io.batch = *batch;
        let result = f(stack, &mut io);
        *batch = io.batch;
        self.comes_back = batch.has_many();
        result
    }

    /// Calls into the stack, while `tx` takes what it sends.
    pub(crate) fn call_with<R>(
        &mut self,
        now_ns: u64,
        tx: &mut dyn TxQueue,
        f: impl FnOnce(&mut Stack, &mut Io<'_>) -> R,
    ) -> R {
        let (stack, io, _) = self.parts(now_ns);
        f(stack, &mut Io { tx, ..io })
    }
}

impl Shard for Inside {
    /// Takes the shard down: its sockets are gone, their calls fail with ENETDOWN, and whoever waits for one is told
    /// so.
    fn take_down(&mut self) {
        self.stack.take_down();
        self.sending.give_up(&self.stack);
        self.reception.clear();
        self.changes.clear();
        self.watchers.tell_of_the_end();
    }
}

/// Takes the queue down if a socket call panics. Its guard takes the shard down.
struct TakesDown<'a>(&'a Queue, &'a Delivery);

impl Drop for TakesDown<'_> {
    fn drop(&mut self) {
        self.1.take_down_queue(self.0.napi(), "a socket call");
    }
}

/// A queue: a shard with its NAPI and its counters.
pub(crate) struct Queue {
    lock: HandoffLock<Inside>,
    /// Its place in the host's table.
    napi: AtomicU32,
    napi_id: AtomicU32,
    /// How many corks are in force.
    corks: AtomicU32,
    irq: Arc<dyn IrqLine>,
    /// The frames that other shards have passed on: all inboxes of the network, and the index of this shard's.
    inbox: (Arc<[Inbox]>, usize),
    /// Whether somebody waits for room in the transmit ring, so that a poll without frames has work as well.
    blocked: AtomicBool,
    /// Whether segments are held since the last poll by softirq. It is written under the lock.
    gro_held: AtomicBool,
    /// SO_BUSY_POLL of its sockets, as the mode in force sets it.
    pub(crate) mode_busy: ModeBusyPoll,
    answers: AnswerTimes,
}

/// This stands for no instance.
const NO_NAPI: u32 = u32::MAX;

impl Queue {
    pub(crate) fn new(
        stack: Stack,
        queue: lull_nic::Queue,
        busy_read_usecs: u32,
        gro: bool,
        inbox: (Arc<[Inbox]>, usize),
    ) -> Queue {
        Queue {
            lock: HandoffLock::new(Inside {
                stack,
                reception: Reception::new(queue.rx, gro),
                sending: Sending::new(queue.tx, queue.tx_irq),
                watchers: Watchers::default(),
                pool: FramePool::new(POOL_FRAMES_MAX),
                changes: Vec::with_capacity(256),
                told_deadline_ns: u64::MAX,
                told_exact_ns: u64::MAX,
                comes_back: false,
            }),
            napi: AtomicU32::new(NO_NAPI),
            napi_id: AtomicU32::new(0),
            corks: AtomicU32::new(0),
            irq: queue.irq,
            inbox,
            blocked: AtomicBool::new(false),
            gro_held: AtomicBool::new(false),
            mode_busy: ModeBusyPoll::new(busy_read_usecs),
            answers: AnswerTimes::default(),
        }
    }

    pub(crate) fn bind(&self, host: &Host, napi: u32) {
        self.napi.store(napi, Ordering::Release);
        let guard = self.lock.lock();
        guard.sending.room.connect(host.room_sink(napi));
        self.inbox().connect(host.room_sink(napi));
        if guard.unlock().is_err() {
            unreachable!("a NAPI that was never enabled has no owner");
        }
    }

    #[inline]
    fn inbox(&self) -> &Inbox {
        &self.inbox.0[self.inbox.1]
    }

    /// Called when the device is gone for good.
    pub(crate) fn device_gone(&self, host: &Delivery) {
        self.with(host, |inside, now_ns| {
            inside.stack.set_unreachable();
            inside.use_room(now_ns);
        });
    }

    /// Says how long the device's longest packet is now.
    pub(crate) fn device_mtu(&self, host: &Delivery, mtu_bytes: usize) {
        self.with(host, |inside, now_ns| inside.call(now_ns, |stack, io| stack.set_mtu(mtu_bytes, io)));
    }

    pub(crate) fn set_napi_id(&self, id: u32) {
        self.napi_id.store(id, Ordering::Release);
    }

    /// The NAPI's index in the host's table.
    pub(crate) fn napi(&self) -> u32 {
        self.napi.load(Ordering::Acquire)
    }

    /// The NAPI's id (SO_INCOMING_NAPI_ID); 0 while it is disabled.
    #[inline]
    pub(crate) fn napi_id(&self) -> u32 {
        self.napi_id.load(Ordering::Acquire)
    }

    /// Called when the network is dropped. Its sockets fail with ENETDOWN from now on, and whoever waits for one is
    /// told so.
    pub(crate) fn close(&self, host: &Delivery) {
        let mut guard = self.lock.lock();
        guard.take_down();
        self.inbox().close();
        self.finish(host, guard, false);
    }

    /// Makes a socket call: it takes the lock (and sleeps while another thread has it), and does everything that is
    /// owed before the lock is given back.
    #[inline]
    pub(crate) fn with<R>(&self, host: &Delivery, f: impl FnOnce(&mut Inside, u64) -> R) -> R {
        let now_ns = host.poll_point(self.napi());
        let in_a_panic = TakesDown(self, host);
        let mut guard = self.lock.lock();
        let result = f(&mut guard, now_ns);
        self.finish(host, guard, true);
        std::mem::forget(in_a_panic);
        result
    }

    /// Does what is owed (if anything happened), polls what was parked, and unlocks.
    #[inline]
    fn finish(&self, host: &Delivery, mut guard: HandoffGuard<'_, Inside>, owed: bool) {
        if owed {
            self.tell_and_ring(host, &mut guard);
        }
        self.wait_for_room(&guard);
        let mut kick = guard.sending.take_kick();
        let mut wakes = guard.watchers.take_wakes();
        let mut crowd_gone = guard.stack.take_crowd_gone();
        host.unlock(guard, |inside, budget| {
            let work = self.poll_inside(host, inside, budget);
            self.tell_and_ring(host, inside);
            self.wait_for_room(inside);
            kick = inside.sending.take_kick().or(kick.take());
            if let Some(more) = inside.watchers.take_wakes() {
                wakes.get_or_insert_default().extend(more);
            }
            crowd_gone |= inside.stack.take_crowd_gone();
            work
        });
        // A thread runs the discipline without the shard's lock, so that others may push meanwhile.
        if let Some(transmit) = kick {
            transmit.kick(host);
        }
        if crowd_gone {
            lull_host::give_back_memory();
        }
        // This comes last, as a thread that is woken may take this core.
        drop(wakes);
    }

    /// Informs the watchers, rings the doorbell, and reports the timers.
    #[inline]
    fn tell_and_ring(&self, host: &Delivery, inside: &mut Inside) {
        if inside.stack.has_looped() {
            self.deliver_looped(host, inside);
        }
        if !inside.changes.is_empty() {
            inside.watchers.tell(&mut inside.changes, self.napi_id());
        }
        self.ring_for_staged(inside);
        let held_back_until_ns = inside.stack.held_back_until_ns();
        if held_back_until_ns < inside.told_exact_ns {
            inside.told_exact_ns = held_back_until_ns;
            host.set_exact_receiver_deadline(self.napi(), held_back_until_ns);
        }
        if let Some(deadline_ns) = inside.stack.next_deadline_ns()
            && deadline_ns < inside.told_deadline_ns
        {
            inside.told_deadline_ns = deadline_ns;
            host.set_receiver_deadline(self.napi(), deadline_ns);
        }
    }
}

impl Receiver for Queue {
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll {
        let Some((mut guard, owner)) = self.lock.lock_or_park(owner, cpu) else { return TryPoll::Handed };
        // When the poll completes, the core says what becomes of the segments that are held.
        let work = self.poll_holding(host, &mut guard, budget);
        if guard.reception.has_gro() {
            self.gro_held.store(guard.reception.holds(), Ordering::Relaxed);
        }
        self.finish(host, guard, true);
        TryPoll::Polled(owner, work)
    }

    #[inline]
    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32> {
        // What is missed here is found in the next round, and after the last round by the poll that `busy_poll_stop`
        // makes itself.
        let looked_ns = self.answers.looks_at_ns(host);
        if self.is_idle() {
            self.answers.seen_empty(looked_ns);
            return Some(0);
        }
        let mut guard = self.lock.try_lock()?;
        let work = self.poll_inside(host, &mut guard, budget);
        // An empty round, of which a busy poller makes millions, leaves nothing to do. But room in the ring may have
        // made a socket writable that then sent nothing itself.
        let sent = guard.sending.staged(&guard.stack) != 0 || guard.stack.has_looped();
        let owed = work != 0 || sent || !guard.changes.is_empty();
        self.finish(host, guard, owed);
        Some(work)
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.irq.pending() == Some(false)
            && !self.blocked.load(Ordering::Relaxed)
            && !self.inbox().has_frames()
            && !self.gro_held.load(Ordering::Relaxed)
    }

    fn dry_run(&self, host: &Delivery) {
        let Some(mut guard) = self.lock.try_lock() else { return };
        guard.walk();
        self.finish(host, guard, false);
    }

    fn poll(&self, host: &Delivery, budget: u32) -> u32 {
        let mut guard = self.lock.lock();
        let work = self.poll_inside(host, &mut guard, budget);
        self.finish(host, guard, true);
        work
    }

    #[inline]
    fn gro_held(&self) -> bool {
        self.gro_held.load(Ordering::Relaxed)
    }

    /// May sleep for the lock. A thread that has it meanwhile makes a socket call, which never waits for delivery.
    fn gro_flush(&self, host: &Delivery, flush: GroFlush) {
        let mut guard = self.lock.lock();
        self.flush_inside(host, &mut guard, flush);
        self.finish(host, guard, true);
    }

    fn timers(&self, host: &Delivery, now_ns: u64) -> bool {
        let Some(mut guard) = self.lock.try_lock() else { return false };
        (guard.told_deadline_ns, guard.told_exact_ns) = (u64::MAX, u64::MAX);
        guard.call(now_ns, |stack, io| stack.run_timers(io));
        if guard.waits_for_room() {
            guard.use_room(now_ns);
        }
        self.finish(host, guard, true);
        true
    }

    fn failed(&self, host: &Delivery) {
        self.close(host);
    }

    #[inline]
    fn raised(&self, host: &Delivery) {
        self.answers.raised(host);
    }

    fn time_answers(&self, host: &Delivery, on: bool) {
        self.with(host, |inside, now_ns| {
            inside.stack.time_answers(on);
            self.answers.set(on, now_ns);
        });
    }

    fn answer_times(&self, host: &Delivery) -> Option<Latencies> {
        self.with(host, |inside, _| inside.stack.answer_times())
    }
}
