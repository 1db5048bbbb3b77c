//! A queue whose frames all belong to one packet socket. NAPI polls it, and the socket's calls enter it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;

use lull_core::Owner;
use lull_host::{Delivery, HandoffGuard, HandoffLock, Receiver, Shard, TryPoll};
use lull_nic::{Doorbell, Frame, FramePool, IrqLine, RxQueue, TxQueue};
use rtrb::{Consumer, Producer};

use crate::shard::Ready;

/// How many frames a queue keeps for its next transmissions.
const POOL_FRAMES_MAX: usize = 4096;

/// All that the queue's lock protects.
pub(super) struct Inside {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    pool: FramePool,
    /// Received frames on their way to the socket.
    received: Producer<Frame>,
    /// Frames that the socket has read, on their way back.
    returned: Consumer<Frame>,
    /// Threads that sleep in a call, with what they wait for.
    blocked: Vec<(Thread, Ready)>,
    /// Whether the last doorbell left frames on the ring.
    unsent: bool,
    /// Whether somebody found the transmit ring full.
    wants_room: bool,
}

impl Inside {
    pub(super) fn block(&mut self, wants: Ready) {
        self.blocked.push((std::thread::current(), wants));
    }

    pub(super) fn unblock(&mut self) {
        let me = std::thread::current().id();
        self.blocked.retain(|(thread, _)| thread.id() != me);
    }

    /// Puts a copy of `data` on the transmit ring. Returns false if the ring is full.
    pub(super) fn transmit(&mut self, data: &[u8]) -> bool {
        self.tx.reap_sent(&mut self.pool);
        if self.tx.free_slots() == 0 {
            self.wants_room = true;
            return false;
        }
        let mut frame = self.pool.alloc_for(data.len());
        frame.set_len(data.len());
        frame.data_mut().copy_from_slice(data);
        match self.tx.transmit(frame) {
            Ok(()) => true,
            Err(frame) => {
                self.pool.recycle(frame);
                self.wants_room = true;
                false
            }
        }
    }

    pub(super) fn ring(&mut self) {
        self.unsent = self.tx.doorbell() == Doorbell::Again;
        self.tx.reap_sent(&mut self.pool);
    }

    /// Whether the ring would take a frame now. If not, the room interrupt is asked for.
    pub(super) fn has_room(&mut self) -> bool {
        self.tx.reap_sent(&mut self.pool);
        self.wants_room = self.tx.free_slots() == 0;
        !self.wants_room
    }

    fn waits_for_room(&self) -> bool {
        self.unsent || self.wants_room
    }

    fn wake(&self, what: Ready) {
        self.blocked.iter().filter(|(_, wants)| wants.intersects(what)).for_each(|(thread, _)| thread.unpark());
    }
}

impl Shard for Inside {
    fn take_down(&mut self) {
        // The device may be what panicked, so no doorbell rings any more.
        (self.unsent, self.wants_room) = (false, false);
    }
}

/// What a socket counts besides the device's and the NAPI's counters.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) received: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// A queue of one packet socket; the [module](self) says more.
pub(super) struct PacketQueue {
    lock: HandoffLock<Inside>,
    napi: AtomicU32,
    napi_id: AtomicU32,
    irq: Arc<dyn IrqLine>,
    room: Arc<dyn IrqLine>,
    /// Whether a poll without frames has work as well: the transmit ring waits for another doorbell, or somebody waits
    /// for room in it.
    waits: AtomicBool,
    /// Whether the device is gone, the socket is closed, or a panic took the queue down.
    down: AtomicBool,
    pub(super) counted: Counted,
}

/// This stands for no instance.
const NO_NAPI: u32 = u32::MAX;

impl PacketQueue {
    pub(super) fn new(queue: lull_nic::Queue, received: Producer<Frame>, returned: Consumer<Frame>) -> PacketQueue {
        let lull_nic::Queue { rx, tx, irq, tx_irq, .. } = queue;
        PacketQueue {
            lock: HandoffLock::new(Inside {
                rx,
                tx,
                pool: FramePool::new(POOL_FRAMES_MAX),
                received,
                returned,
                blocked: Vec::new(),
                unsent: false,
                wants_room: false,
            }),
            napi: AtomicU32::new(NO_NAPI),
            napi_id: AtomicU32::new(0),
            irq,
            room: tx_irq,
            waits: AtomicBool::new(false),
            down: AtomicBool::new(false),
            counted: Counted::default(),
        }
    }

    pub(super) fn bind(&self, host: &lull_host::Host, napi: u32) {
        self.napi.store(napi, Ordering::Release);
        self.room.connect(host.room_sink(napi));
    }

    pub(super) fn napi(&self) -> u32 {
        self.napi.load(Ordering::Acquire)
    }

    pub(super) fn set_napi_id(&self, id: u32) {
        self.napi_id.store(id, Ordering::Release);
    }

    pub(super) fn napi_id(&self) -> u32 {
        self.napi_id.load(Ordering::Acquire)
    }

    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// Closes the queue: nothing comes any more, and whoever waits is told.
    pub(super) fn close(&self, host: &Delivery) {
        let guard = self.lock.lock();
        self.down.store(true, Ordering::Release);
        guard.wake(Ready::READABLE | Ready::WRITABLE);
        self.finish(host, guard);
    }

    /// Called when the NAPI was enabled: a room interrupt that came while it was disabled is lost.
    pub(super) fn look_for_room(&self, host: &Delivery) {
        self.with(host, |inside| self.use_room(inside));
    }

    /// Makes a call of the socket's under the queue's lock.
    pub(super) fn with<R>(&self, host: &Delivery, f: impl FnOnce(&mut Inside) -> R) -> R {
        host.poll_point(self.napi());
        let mut guard = self.lock.lock();
        let result = f(&mut guard);
        self.finish(host, guard);
        result
    }

    fn finish(&self, host: &Delivery, guard: HandoffGuard<'_, Inside>) {
        self.wait_for_room(&guard);
        host.unlock(guard, |inside, budget| {
            let work = self.poll_inside(inside, budget);
            self.wait_for_room(inside);
            work
        });
    }

    /// Has the device tell of room if somebody waits for it. This comes after the doorbell, as the device contract
    /// demands.
    fn wait_for_room(&self, inside: &Inside) {
        let waits = inside.waits_for_room();
        if waits != self.waits.load(Ordering::Relaxed) {
            self.waits.store(waits, Ordering::Relaxed);
        }
        if waits {
            self.room.unmask();
        }
    }

    fn use_room(&self, inside: &mut Inside) {
        inside.tx.reap_sent(&mut inside.pool);
        if inside.unsent {
            inside.ring();
        }
        if inside.wants_room && inside.tx.free_slots() > 0 {
            inside.wants_room = false;
            inside.wake(Ready::WRITABLE);
        }
    }

    /// Takes frames off the device's ring and puts them on the socket's. A frame that finds the socket's ring full is
    /// lost, as with AF_XDP (`rx_ring_full`).
    fn poll_inside(&self, inside: &mut Inside, budget: u32) -> u32 {
        let Inside { rx, pool, received, returned, .. } = inside;
        while let Ok(frame) = returned.pop() {
            pool.recycle(frame);
        }
        let mut dropped = 0;
        let work = rx.poll(budget as usize, pool, &mut |frame, pool| {
            if let Err(rtrb::PushError::Full(frame)) = received.push(frame) {
                dropped += 1;
                pool.recycle(frame);
            }
        });
        if work > 0 {
            let counted = &self.counted;
            counted.received.fetch_add(work as u64 - dropped, Ordering::Relaxed);
            counted.dropped.fetch_add(dropped, Ordering::Relaxed);
            inside.wake(Ready::READABLE);
        }
        if inside.waits_for_room() {
            self.use_room(inside);
        }
        work as u32
    }
}

impl Receiver for PacketQueue {
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll {
        let Some((mut guard, owner)) = self.lock.lock_or_park(owner, cpu) else { return TryPoll::Handed };
        let work = self.poll_inside(&mut guard, budget);
        self.finish(host, guard);
        TryPoll::Polled(owner, work)
    }

    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32> {
        // What is missed here is found in the next round, and after the last round by the poll that `busy_poll_stop`
        // makes itself.
        if self.is_idle() {
            return Some(0);
        }
        let mut guard = self.lock.try_lock()?;
        let work = self.poll_inside(&mut guard, budget);
        self.finish(host, guard);
        Some(work)
    }

    fn is_idle(&self) -> bool {
        self.irq.pending() == Some(false) && !self.waits.load(Ordering::Relaxed)
    }

    fn poll(&self, host: &Delivery, budget: u32) -> u32 {
        let mut guard = self.lock.lock();
        let work = self.poll_inside(&mut guard, budget);
        self.finish(host, guard);
        work
    }

    /// A packet queue has no timers of its own.
    fn timers(&self, _host: &Delivery, _now_ns: u64) -> bool {
        true
    }

    fn failed(&self, host: &Delivery) {
        self.close(host);
    }
}
