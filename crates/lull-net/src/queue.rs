//! One queue's protocol shard behind its lock: what NAPI polls and what sockets call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use lull_core::{GroFlush, Owner};
use lull_host::{Delivery, HandoffGuard, HandoffLock, Host, Receiver, Shard, TryPoll};
use lull_nic::{Doorbell, Frame, FramePool, IrqLine, RxQueue, TxQueue};
use lull_slo::Latencies;

use crate::busy_read::ModeBusyPoll;
use crate::ready::WaitList;
use crate::shard::{Change, Gro, Io, Ready, SocketId, SocketKind, Stack};
use crate::transmit::TxSide;

/// Wait lists for which room is always kept.
const LISTS_KEPT: usize = 256;
/// Frames that a shard keeps for its next transmissions.
const POOL_FRAMES_MAX: usize = 4096;
/// Frames that a cork holds back at most before the doorbell rings nevertheless: it bounds what batching adds to latency.
const CORKED_FRAMES_MAX: u64 = 8;

/// Everything that the shard's lock protects.
pub(crate) struct Inside {
    pub(crate) stack: Stack,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    /// The room interrupt of `tx`. It schedules the NAPI, whose poll serves those who wait.
    room: Arc<dyn IrqLine>,
    /// Where a queueing discipline has the ring, and `tx` is its intake.
    transmit: Option<Arc<TxSide>>,
    /// Frames were pushed into the intake since the lock was taken.
    kick: bool,
    pool: FramePool,
    changes: Vec<Change>,
    /// The frames of the present poll.
    batch: Vec<Frame>,
    /// Segments that are held for those that continue them; `None`: none ever are.
    gro: Option<Gro>,
    tcp: Vec<Option<WaitList>>,
    others: HashMap<u64, WaitList>,
    /// What the host was told last about this shard's timers.
    told_deadline_ns: u64,
    transmitted: u64,
    /// The last doorbell left frames on the ring: it rings again once there is room behind it.
    unsent: bool,
}

impl Inside {
    /// Whether somebody waits for the device: sockets for room in its ring, or its ring for another doorbell.
    #[inline]
    fn waits_for_room(&self) -> bool {
        self.unsent || self.stack.has_blocked()
    }

    #[inline]
    fn ring(&mut self) {
        self.transmitted = self.stack.tx_frames();
        self.unsent = self.tx.doorbell() == Doorbell::Again;
        self.kick = self.transmit.is_some();
        self.tx.reap_sent(&mut self.pool);
    }

    /// The transmit queue that is to be told of frames, once the lock is given back.
    #[inline]
    fn take_kick(&mut self) -> Option<Arc<TxSide>> {
        if !std::mem::take(&mut self.kick) {
            return None;
        }
        self.transmit.clone()
    }

    /// The shard sends elsewhere from now on. Returns the former ring, whose doorbell has rung.
    pub(crate) fn swap_ring(
        &mut self,
        tx: Box<dyn TxQueue>,
        room: Arc<dyn IrqLine>,
        transmit: Option<Arc<TxSide>>,
    ) -> Box<dyn TxQueue> {
        self.ring();
        (self.room, self.transmit, self.unsent) = (room, transmit, false);
        std::mem::replace(&mut self.tx, tx)
    }

    /// There may be room: completions first, then the ring's own frames, then the sockets that wait, in their order.
    pub(crate) fn use_room(&mut self, now_ns: u64) {
        self.tx.reap_sent(&mut self.pool);
        if self.unsent {
            self.ring();
        }
        self.call(now_ns, |stack, io| stack.flush_blocked(io));
    }

    #[inline]
    pub(crate) fn wait_list(&mut self, id: SocketId) -> Option<&mut WaitList> {
        match id.kind() {
            SocketKind::Tcp => self.tcp.get_mut(id.slot())?.as_mut(),
            _ => self.others.get_mut(&id.to_bits()),
        }
    }

    /// Makes the wait list of a socket that the application holds from now on.
    pub(crate) fn watch(&mut self, id: SocketId) -> Arc<crate::ready::Level> {
        let list = WaitList::new(self.stack.ready(id).unwrap_or(Ready::empty()));
        let level = list.level.clone();
        match id.kind() {
            SocketKind::Tcp => {
                let slot = id.slot();
                if self.tcp.len() <= slot {
                    self.tcp.resize_with(slot + 1, || None);
                }
                self.tcp[slot] = Some(list);
            }
            _ => {
                self.others.insert(id.to_bits(), list);
            }
        }
        level
    }

    pub(crate) fn unwatch(&mut self, id: SocketId) -> Option<WaitList> {
        match id.kind() {
            SocketKind::Tcp => {
                let list = self.tcp.get_mut(id.slot())?.take();
                while self.tcp.pop_if(|list| list.is_none()).is_some() {}
                if self.tcp.capacity() > LISTS_KEPT && self.tcp.len() * 4 < self.tcp.capacity() {
                    self.tcp.shrink_to(self.tcp.len() * 2);
                }
                list
            }
            _ => self.others.remove(&id.to_bits()),
        }
    }

    /// Calls into the stack with everything it needs.
    #[inline]
    pub(crate) fn call<R>(&mut self, now_ns: u64, f: impl FnOnce(&mut Stack, &mut Io<'_>) -> R) -> R {
        let mut io = Io { now_ns, tx: &mut *self.tx, pool: &mut self.pool, changes: &mut self.changes, batch: 0 };
        f(&mut self.stack, &mut io)
    }
}

impl Shard for Inside {
    /// The sockets are gone, their calls fail with ENETDOWN, and whoever waits for one is told so.
    fn take_down(&mut self) {
        self.stack.take_down();
        // The device may be what panicked: no doorbell rings for what was staged.
        (self.transmitted, self.unsent) = (self.stack.tx_frames(), false);
        self.batch.clear();
        self.gro = self.gro.take().map(|_| Gro::default());
        self.changes.clear();
        let lists = self.tcp.iter_mut().flatten().chain(self.others.values_mut());
        // Everything is ready: every call returns at once, with the error.
        let ready = Ready::READABLE | Ready::WRITABLE | Ready::RDHUP | Ready::HUP | Ready::ERR;
        lists.for_each(|list| list.tell(ready, ready, 0));
    }
}

/// Takes the queue down if a socket call panics; the shard is taken down by its guard.
struct TakesDown<'a>(&'a Queue, &'a Delivery);

impl Drop for TakesDown<'_> {
    fn drop(&mut self) {
        self.1.take_down_queue(self.0.napi(), "a socket call");
    }
}

/// A queue: its shard, its NAPI, its counters.
pub(crate) struct Queue {
    lock: HandoffLock<Inside>,
    /// Its place in the host's table.
    napi: AtomicU32,
    napi_id: AtomicU32,
    /// Corks in force.
    corks: AtomicU32,
    irq: Arc<dyn IrqLine>,
    /// Somebody waits for room in the transmit ring: a poll without frames has work, too.
    blocked: AtomicBool,
    /// Segments are held since the last poll by softirq. Written under the lock.
    gro_held: AtomicBool,
    /// SO_BUSY_POLL of its sockets by the mode in force.
    pub(crate) mode_busy: ModeBusyPoll,
    /// Requests are timed ([`Stack::time_answers`]): then it is kept when the ring was last seen empty, and when its interrupt
    /// was last raised. A clock is read for that in every round of a busy poller.
    timed: AtomicBool,
    empty_ns: AtomicU64,
    raised_ns: AtomicU64,
}

/// No instance yet.
const NO_NAPI: u32 = u32::MAX;

impl Queue {
    pub(crate) fn new(stack: Stack, queue: lull_nic::Queue, busy_read_usecs: u32, gro: bool) -> Queue {
        Queue {
            lock: HandoffLock::new(Inside {
                stack,
                rx: queue.rx,
                tx: queue.tx,
                room: queue.tx_irq,
                transmit: None,
                kick: false,
                pool: FramePool::new(POOL_FRAMES_MAX),
                changes: Vec::with_capacity(256),
                batch: Vec::with_capacity(256),
                gro: gro.then(Gro::default),
                tcp: Vec::new(),
                others: HashMap::new(),
                told_deadline_ns: u64::MAX,
                transmitted: 0,
                unsent: false,
            }),
            napi: AtomicU32::new(NO_NAPI),
            napi_id: AtomicU32::new(0),
            corks: AtomicU32::new(0),
            irq: queue.irq,
            blocked: AtomicBool::new(false),
            gro_held: AtomicBool::new(false),
            mode_busy: ModeBusyPoll::new(busy_read_usecs),
            timed: AtomicBool::new(false),
            empty_ns: AtomicU64::new(0),
            raised_ns: AtomicU64::new(0),
        }
    }

    /// The time before a look at the ring, if that matters: what is not there then comes later.
    #[inline]
    fn looks_at_ns(&self, host: &Delivery) -> Option<u64> {
        self.timed.load(Ordering::Relaxed).then(|| host.now_ns())
    }

    /// The ring was seen empty in a look that began then.
    #[inline]
    fn seen_empty(&self, looked_ns: Option<u64>) {
        if let Some(looked_ns) = looked_ns {
            self.empty_ns.store(looked_ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn cork(&self) {
        self.corks.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a cork; the doorbell rings for what it held back.
    pub(crate) fn uncork(&self, host: &Delivery) {
        self.corks.fetch_sub(1, Ordering::Relaxed);
        self.with(host, |_, _| ());
    }

    /// Sends what connections hold back.
    pub(crate) fn let_go(&self, host: &Delivery) {
        self.with(host, |inside, now_ns| inside.call(now_ns, |stack, io| stack.let_go_of_all(io)));
    }

    pub(crate) fn bind(&self, host: &Host, napi: u32) {
        self.napi.store(napi, Ordering::Release);
        let guard = self.lock.lock();
        guard.room.connect(host.room_sink(napi));
        if guard.unlock().is_err() {
            unreachable!("a NAPI that was never enabled has no owner");
        }
    }

    /// The NAPI was enabled. A room interrupt that came while it was not is lost, and a reset has masked the line.
    pub(crate) fn look_for_room(&self, host: &Delivery) {
        self.with(host, |inside, now_ns| inside.use_room(now_ns));
    }

    /// The device is gone for good.
    pub(crate) fn device_gone(&self, host: &Delivery) {
        self.with(host, |inside, now_ns| {
            inside.stack.set_unreachable();
            inside.use_room(now_ns);
        });
    }

    /// The room interrupt of what the shard sends to.
    pub(crate) fn room(&self, host: &Delivery) -> Arc<dyn IrqLine> {
        self.with(host, |inside, _| inside.room.clone())
    }

    /// Who sends for the shard, if it has a queueing discipline.
    pub(crate) fn transmit(&self, host: &Delivery) -> Option<Arc<TxSide>> {
        self.with(host, |inside, _| inside.transmit.clone())
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

    /// The network is dropped: its sockets fail with ENETDOWN from now on, and whoever waits for one is told so.
    pub(crate) fn close(&self, host: &Delivery) {
        let mut guard = self.lock.lock();
        guard.take_down();
        self.finish(host, guard, false);
    }

    /// A socket call: takes the lock (sleeping while another thread holds it), and sees to everything that is owed
    /// before it is given back.
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

    /// Sees to what is owed (if anything happened), polls what was parked, unlocks.
    #[inline]
    fn finish(&self, host: &Delivery, mut guard: HandoffGuard<'_, Inside>, owed: bool) {
        if owed {
            self.tell_and_ring(host, &mut guard);
        }
        self.wait_for_room(&guard);
        let mut kick = guard.take_kick();
        host.unlock(guard, |inside, budget| {
            let work = self.poll_inside(host, inside, budget);
            self.tell_and_ring(host, inside);
            self.wait_for_room(inside);
            kick = inside.take_kick().or(kick.take());
            work
        });
        // Whoever runs the discipline does so without the shard's lock: others may push meanwhile.
        if let Some(transmit) = kick {
            transmit.kick(host);
        }
    }

    /// Sees to it that whoever waits for room is told. Behind the doorbell, as the contract has it; if there is room
    /// already, the interrupt is raised now, and the NAPI scheduled.
    #[inline]
    fn wait_for_room(&self, inside: &Inside) {
        let waits = inside.waits_for_room();
        if waits != self.blocked.load(Ordering::Relaxed) {
            self.blocked.store(waits, Ordering::Relaxed);
        }
        if waits {
            inside.room.unmask();
        }
    }

    /// Tells the watchers, rings the doorbell, reports the timers.
    #[inline]
    fn tell_and_ring(&self, host: &Delivery, inside: &mut Inside) {
        if inside.stack.has_looped() {
            self.deliver_looped(host, inside);
        }
        if !inside.changes.is_empty() {
            self.tell(inside);
        }
        let held = inside.stack.tx_frames() - inside.transmitted;
        // A full ring ends `xmit_more`, too: room comes only behind a doorbell.
        let corked = || {
            self.corks.load(Ordering::Relaxed) != 0
                && !inside.stack.has_blocked()
                // A group holds doorbells back itself.
                && !inside.transmit.as_ref().is_some_and(|transmit| transmit.is_grouped())
        };
        if held > 0 && (held >= CORKED_FRAMES_MAX || !corked()) {
            inside.ring();
        }
        let held_back_until_ns = inside.stack.held_back_until_ns();
        if held_back_until_ns < inside.told_deadline_ns {
            inside.told_deadline_ns = held_back_until_ns;
            host.set_exact_receiver_deadline(self.napi(), held_back_until_ns);
        }
        if let Some(deadline_ns) = inside.stack.next_deadline_ns()
            && deadline_ns < inside.told_deadline_ns
        {
            inside.told_deadline_ns = deadline_ns;
            host.set_receiver_deadline(self.napi(), deadline_ns);
        }
        if inside.stack.take_crowd_gone() {
            lull_host::give_back_memory();
        }
    }

    /// What was sent to own addresses comes in again before the lock is given back; what is left of very much, by a timer
    /// that is due.
    #[cold]
    fn deliver_looped(&self, host: &Delivery, inside: &mut Inside) {
        let now_ns = host.now_ns();
        inside.call(now_ns, |stack, io| stack.deliver_looped(io));
        if inside.stack.has_looped() {
            host.set_receiver_deadline(self.napi(), now_ns);
        }
    }

    fn tell(&self, inside: &mut Inside) {
        let napi_id = self.napi_id();
        let mut changes = std::mem::take(&mut inside.changes);
        if changes.len() > 1 {
            for change in &changes {
                if let Some(list) = inside.wait_list(change.socket) {
                    list.warm();
                }
            }
        }
        for change in changes.drain(..) {
            // A connection that nobody accepted yet has no list.
            if let Some(list) = inside.wait_list(change.socket) {
                list.tell(change.ready, change.edges, napi_id);
            }
        }
        inside.changes = changes;
    }

    /// Polls the receive half and passes the frames up, with whatever GRO holds.
    #[inline]
    fn poll_inside(&self, host: &Delivery, inside: &mut Inside, budget: u32) -> u32 {
        let work = self.poll_holding(host, inside, budget);
        if inside.gro.as_ref().is_some_and(|gro| !gro.is_empty()) {
            self.flush_inside(host, inside, GroFlush::All);
        }
        work
    }

    /// Passes up what GRO holds.
    #[cold]
    fn flush_inside(&self, host: &Delivery, inside: &mut Inside, flush: GroFlush) {
        let now_ns = host.now_ns();
        let Inside { stack, tx, pool, changes, gro, .. } = inside;
        let Some(gro) = gro else { return };
        let mut io = Io { now_ns, tx: &mut **tx, pool, changes, batch: 0 };
        let mut pass = |frame| stack.receive(frame, &mut io);
        match flush {
            GroFlush::All => gro.flush(&mut pass),
            GroFlush::Old => gro.flush_old(now_ns, &mut pass),
        }
        self.gro_held.store(!gro.is_empty(), Ordering::Relaxed);
    }

    /// Polls the receive half and passes up what GRO does not hold.
    #[inline]
    fn poll_holding(&self, host: &Delivery, inside: &mut Inside, budget: u32) -> u32 {
        let looked_ns = self.looks_at_ns(host);
        let Inside { rx, pool, batch, .. } = inside;
        let work = rx.poll(budget as usize, pool, &mut |frame, _| batch.push(frame));
        if work == 0 && !inside.waits_for_room() {
            self.seen_empty(looked_ns);
            return 0;
        }
        let now_ns = host.now_ns();
        if looked_ns.is_some() {
            let since_ns = self.empty_ns.load(Ordering::Relaxed).max(self.raised_ns.load(Ordering::Relaxed));
            inside.stack.came_since(since_ns.min(now_ns));
            // A full poll has left frames behind.
            self.seen_empty(looked_ns.filter(|_| work < budget as usize));
        }
        let Inside { stack, tx, pool, changes, batch, gro, .. } = inside;
        stack.warm(batch);
        let mut io = Io { now_ns, tx: &mut **tx, pool, changes, batch: 0 };
        match gro {
            None => batch.drain(..).for_each(|frame| stack.receive(frame, &mut io)),
            Some(gro) => {
                let mut pass = |frame| stack.receive(frame, &mut io);
                batch.drain(..).for_each(|frame| gro.receive(frame, now_ns, &mut pass));
            }
        }
        if inside.waits_for_room() {
            inside.use_room(now_ns);
        }
        work as u32
    }
}

impl Receiver for Queue {
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll {
        let Some((mut guard, owner)) = self.lock.lock_or_park(owner, cpu) else { return TryPoll::Handed };
        // The core says at the completion what becomes of what is held.
        let work = self.poll_holding(host, &mut guard, budget);
        if let Some(gro) = &guard.gro {
            self.gro_held.store(!gro.is_empty(), Ordering::Relaxed);
        }
        self.finish(host, guard, true);
        TryPoll::Polled(owner, work)
    }

    #[inline]
    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32> {
        // What is missed here is found in the next round, and after the last one by `busy_poll_stop`'s own poll.
        let looked_ns = self.looks_at_ns(host);
        if self.is_idle() {
            self.seen_empty(looked_ns);
            return Some(0);
        }
        let mut guard = self.lock.try_lock()?;
        let work = self.poll_inside(host, &mut guard, budget);
        // An empty round, of which a busy poller makes millions, leaves nothing to see to; room in the ring may have made a
        // socket writable that then sent nothing itself.
        let sent = guard.stack.tx_frames() != guard.transmitted || guard.stack.has_looped();
        let owed = work != 0 || sent || !guard.changes.is_empty();
        self.finish(host, guard, owed);
        Some(work)
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.irq.pending() == Some(false)
            && !self.blocked.load(Ordering::Relaxed)
            && !self.gro_held.load(Ordering::Relaxed)
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

    /// May sleep for the lock. Only streams are held, and who has the lock meanwhile is a socket call that never waits for
    /// delivery.
    fn gro_flush(&self, host: &Delivery, flush: GroFlush) {
        let mut guard = self.lock.lock();
        self.flush_inside(host, &mut guard, flush);
        self.finish(host, guard, true);
    }

    fn timers(&self, host: &Delivery, now_ns: u64) -> bool {
        let Some(mut guard) = self.lock.try_lock() else { return false };
        guard.told_deadline_ns = u64::MAX;
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
        if self.timed.load(Ordering::Relaxed) {
            self.raised_ns.store(host.now_ns(), Ordering::Relaxed);
        }
    }

    fn time_answers(&self, host: &Delivery, on: bool) {
        self.with(host, |inside, now_ns| {
            inside.stack.time_answers(on);
            // What lies in the ring from before is not known to be older.
            if on && !self.timed.load(Ordering::Relaxed) {
                self.empty_ns.store(now_ns, Ordering::Relaxed);
            }
            self.timed.store(on, Ordering::Relaxed);
        });
    }

    fn answer_times(&self, host: &Delivery) -> Option<Latencies> {
        self.with(host, |inside, _| inside.stack.answer_times())
    }
}
