//! A transmit queue with a discipline (§16), between a shard and its device's ring.
//!
//! Without a discipline (`noqueue`, the default) a shard puts its frames on the ring itself, and nothing of this
//! exists. With one, the shard has an [`intake::Intake`] in place of the ring, under the same contract
//! ([`lull_nic::device`]), and a [`TxSide`] has the ring. The thread that is RUNNING there (a sender, the queue's own
//! NAPI, or a group's poller) moves frames from one to the other through the discipline, without the shard's lock.

mod byte_limit;
mod drain;
mod intake;
mod line;

// Loom does not explore what only counts, what is known before anybody sends, and the end in a panic.
use std::sync::atomic::{AtomicBool as PlainBool, AtomicU32 as PlainU32, AtomicU64 as PlainU64};
use std::sync::{Arc, TryLockError};

use lull_core::Owner;
use lull_core::group::Transmitted;
use lull_core::tx::{Enqueued, TxDrain, TxEnd, TxLeft, TxOwned, TxRun, TxSent, TxWord};
use lull_host::{Delivery, Receiver, Transmitter, TryPoll};
use lull_nic::{IrqLine, TxQueue};
use lull_qdisc::Kind;

use crate::intake_room::IntakeRoom;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, yield_now};

pub(crate) use drain::Drain;
pub(crate) use intake::Intake;
use intake::Senders;
pub(crate) use line::RingRoom;

/// What a run of a queue that is down has sent.
const NOTHING: Transmitted = Transmitted { frames: 0, bytes: 0, left: TxLeft::Nothing };
/// This stands for no instance.
const NO_NAPI: u32 = u32::MAX;

/// A device's ring, on its way between a shard and its transmit queue.
pub(crate) struct Ring {
    pub(crate) tx: Box<dyn TxQueue>,
    /// Whether the last doorbell left frames on it. The doorbell rings again once there is room.
    pub(crate) unsent: bool,
}

/// What a transmit queue has done since it got its discipline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransmitStats {
    /// How many frames reached the ring.
    pub frames: u64,
    /// How many frames the discipline dropped.
    pub dropped: u64,
    /// How many doorbells rang.
    pub doorbells: u64,
    /// How many runs senders and the queue's own NAPI made.
    pub runs: u64,
    /// How many nanoseconds senders spent on frames of others in their runs: of a run's time, the share of such frames.
    pub trapped_ns: u64,
    /// How often the discipline put a flow off (`fq`).
    pub throttled: u64,
}

macro_rules! live {
    ($($name:ident),*) => {
        /// The same counters while they change. The thread that runs the queue writes them.
        #[derive(Default)]
        struct Live { $($name: PlainU64),* }

        impl Live {
            fn snapshot(&self) -> TransmitStats {
                TransmitStats { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}
live!(frames, dropped, doorbells, runs, trapped_ns, throttled);

#[inline]
fn add(counter: &PlainU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// The half of a transmit queue that has the ring.
pub(crate) struct TxSide {
    word: TxWord,
    /// It belongs to the thread that runs the queue: the word excludes all others, so nobody ever waits for the lock.
    inside: Mutex<Drain>,
    kind: Kind,
    /// Its place in the host's table.
    napi: PlainU32,
    /// The place of the shard's instance.
    shard_napi: u32,
    /// The ring's own room interrupt.
    ring_room: Arc<dyn IrqLine>,
    /// Whether frames wait for room in the ring.
    blocked: AtomicBool,
    /// Whether a panic took it down. Its frames are dropped then.
    is_down: PlainBool,
    room: Arc<IntakeRoom>,
    senders: Arc<Senders>,
    live: Live,
}

impl TxSide {
    /// A side that has no ring yet, and the intake that the shard gets in place of the ring.
    pub(crate) fn new(
        kind: Kind,
        mtu_bytes: usize,
        shard_napi: u32,
        ring_room: Arc<dyn IrqLine>,
    ) -> (Arc<TxSide>, Intake) {
        let senders = Arc::new(Senders::new(kind, mtu_bytes));
        let room = Arc::new(IntakeRoom::default());
        let (intake, frames) = Intake::new(senders.clone(), room.clone());
        let side = Arc::new(TxSide {
            word: TxWord::new(),
            inside: Mutex::new(Drain::new(kind, mtu_bytes, frames, senders.clone())),
            kind,
            napi: PlainU32::new(NO_NAPI),
            shard_napi,
            ring_room,
            blocked: AtomicBool::new(false),
            is_down: PlainBool::new(false),
            room,
            senders,
            live: Live::default(),
        });
        (side, intake)
    }

    /// Tells it the place of its instance.
    pub(crate) fn bind(&self, napi: u32) {
        self.napi.store(napi, Ordering::Release);
    }

    pub(crate) fn napi(&self) -> u32 {
        self.napi.load(Ordering::Acquire)
    }

    /// The room interrupt that the shard gets.
    pub(crate) fn room(&self) -> Arc<IntakeRoom> {
        self.room.clone()
    }

    /// The ring's own room interrupt.
    pub(crate) fn ring_room(&self) -> Arc<dyn IrqLine> {
        self.ring_room.clone()
    }

    pub(crate) fn is_grouped(&self) -> bool {
        self.word.is_grouped()
    }

    pub(crate) fn stats(&self) -> TransmitStats {
        self.live.snapshot()
    }

    /// Gives it the ring. The shard's lock is held, so that no sender interferes. When it is given back, the caller
    /// runs the queue.
    pub(crate) fn put_ring(&self, ring: Ring) {
        self.as_runner(|drain| drain.put_ring(ring));
    }

    /// Takes the ring back. What is left is put on it as far as there is room, and the rest is dropped. Returns `None`
    /// for a queue that is down, as the ring may be what panicked. The shard's lock is held.
    pub(crate) fn take_ring(&self, now_ns: u64) -> Option<Ring> {
        let is_down = self.is_down.load(Ordering::Acquire);
        self.as_runner(|drain| {
            if !is_down {
                let _ = drain.send(u32::MAX, now_ns);
            }
            let dropped = drain.clear();
            add(&self.live.dropped, dropped);
            if is_down { None } else { drain.take_ring() }
        })
    }

    /// Whether nothing waits in the intake and the discipline. It is for an operator, who may come after a thread that
    /// ran the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.as_runner(|drain| drain.is_empty())
    }

    /// How many frames wait in the intake and the discipline, plus one if the device has left frames on the ring.
    pub(crate) fn left(&self) -> usize {
        self.as_runner(|drain| drain.len() + usize::from(drain.is_unsent()))
    }

    /// Ends the pacing, because the process ends. The side's instance is disabled.
    pub(crate) fn end_pacing(&self) {
        self.as_runner(Drain::end_pacing);
    }

    /// Runs `f` as the only thread that runs the queue. It waits for one that runs it now, whose run is a quota at
    /// most. After a panic in `f` the queue is down and nobody runs it; the caller takes down its shard, whose lock may
    /// be held here.
    fn as_runner<R>(&self, f: impl FnOnce(&mut Drain) -> R) -> R {
        let run = loop {
            match self.word.begin() {
                Enqueued::Run(run) => break run,
                _ => yield_now(),
            }
        };
        let ends = EndsRun(self);
        let result = f(&mut self.inside());
        std::mem::forget(ends);
        let mut drain = TxDrain::new(run);
        // What came meanwhile is for the next run, which the caller makes.
        loop {
            let _ = drain.look(&self.word);
            match drain.sent(&self.word, 0, TxLeft::Nothing) {
                TxSent::Again(again) => drain = again,
                TxSent::Ended(_) => return result,
            }
        }
    }

    /// Called when a sender has pushed frames, and holds no lock any more.
    #[inline]
    pub(crate) fn kick(&self, host: &Delivery) {
        match self.word.enqueued() {
            Enqueued::Run(run) => {
                self.run(host, run, Some(self.senders.last()));
            }
            Enqueued::Noted => {}
            Enqueued::Group => host.enqueued(self.napi()),
        }
    }

    fn inside(&self) -> MutexGuard<'_, Drain> {
        match self.inside.try_lock() {
            Ok(inside) => inside,
            // A panic took the queue down, and what is in it is dropped.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => unreachable!("I15: two run one transmit queue"),
        }
    }

    /// Makes one run (`__qdisc_run`), by a sender or by the queue's NAPI. Returns how many frames it sent, and whether
    /// there are more.
    fn run(&self, host: &Delivery, run: TxRun, own: Option<u32>) -> (u32, bool) {
        let goes_down = GoesDown(self, host);
        let began_ns = host.now_ns();
        let (mut drain, mut frames, mut others) = (TxDrain::new(run), 0, 0);
        let mut has_made_room = false;
        let end = loop {
            let budget = drain.look(&self.word);
            let (sent, left) = if self.is_down.load(Ordering::Acquire) {
                add(&self.live.dropped, self.inside().clear());
                has_made_room = true;
                (NOTHING, TxLeft::Nothing)
            } else {
                let mut inside = self.inside();
                let sent = inside.send(budget, began_ns);
                others += inside.sent_for_others(own);
                let unsent = self.ring_inside(&mut inside);
                self.count(&mut inside, sent.frames);
                has_made_room |= inside.take_has_made_room();
                (sent, if unsent { TxLeft::Room } else { sent.left })
            };
            frames += sent.frames;
            self.blocked.store(left == TxLeft::Room, Ordering::Relaxed);
            match drain.sent(&self.word, sent.frames, left) {
                TxSent::Again(again) => drain = again,
                TxSent::Ended(end) => break end,
            }
        };
        std::mem::forget(goes_down);
        add(&self.live.runs, 1);
        if own.is_some() && others != 0 {
            let took_ns = host.now_ns().saturating_sub(began_ns);
            add(&self.live.trapped_ns, took_ns * u64::from(others) / u64::from(frames.max(1)));
        }
        // If there is no new room, a sender would look for it in vain.
        if has_made_room {
            self.room.made();
        }
        match end {
            TxEnd::Idle => {}
            TxEnd::Schedule if own.is_some() => host.schedule(self.napi()),
            TxEnd::Schedule => {}
            TxEnd::Room => self.ring_room.unmask(),
            TxEnd::Until { until_ns } => host.set_exact_receiver_deadline(self.napi(), until_ns),
        }
        (frames, end == TxEnd::Schedule)
    }

    /// Rings for what was sent, also by a group's visits. Returns whether the device has left frames for another
    /// doorbell.
    fn ring_inside(&self, inside: &mut Drain) -> bool {
        if inside.has_unrung() {
            add(&self.live.doorbells, 1);
            inside.ring();
        }
        inside.is_unsent()
    }

    fn count(&self, inside: &mut Drain, frames: u32) {
        add(&self.live.frames, u64::from(frames));
        let stats = inside.stats();
        self.live.dropped.store(stats.dropped, Ordering::Relaxed);
        self.live.throttled.store(stats.throttled, Ordering::Relaxed);
    }

    /// Called when the instance was enabled. What came while it was disabled is sent now.
    pub(crate) fn look(&self, host: &Delivery) {
        host.schedule(self.napi());
    }

    /// Whether a visit would find something to do. This is a hint.
    fn pending(&self) -> bool {
        self.word.is_missed() || self.blocked.load(Ordering::Relaxed) && self.ring_room.pending() != Some(false)
    }

    /// Handles a panic in the ring or the discipline. Senders are told that frames leave, and these are dropped.
    fn go_down(&self) {
        self.is_down.store(true, Ordering::Release);
        self.senders.go_down();
        self.room.made();
    }

    /// The same, by the thread that runs the queue. From then on nobody runs it.
    fn end_in_a_panic(&self) {
        self.go_down();
        self.word.lost_in_a_panic();
    }
}

/// Ends a run that panics.
struct EndsRun<'a>(&'a TxSide);

impl Drop for EndsRun<'_> {
    fn drop(&mut self) {
        self.0.end_in_a_panic();
    }
}

/// As [`EndsRun`], and it also takes down the queue and its shard, whose lock is not held.
struct GoesDown<'a>(&'a TxSide, &'a Delivery);

impl Drop for GoesDown<'_> {
    fn drop(&mut self) {
        self.0.end_in_a_panic();
        self.1.take_down_queue(self.0.napi(), "a run of its transmit queue");
    }
}

impl Receiver for TxSide {
    /// Handles a transmit interrupt: completions are reaped, and the discipline is run.
    fn try_poll(&self, host: &Delivery, owner: Owner, _cpu: u16, budget: u32) -> TryPoll {
        TryPoll::Polled(owner, self.poll(host, budget))
    }

    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32> {
        Some(self.poll(host, budget))
    }

    /// A run is not bounded by the budget, but by its own quota. If it returns the full budget, there is more to send.
    fn poll(&self, host: &Delivery, budget: u32) -> u32 {
        if self.is_down.load(Ordering::Acquire) {
            return 0;
        }
        match self.word.begin() {
            Enqueued::Run(run) => match self.run(host, run, None) {
                (_, true) => budget,
                (frames, false) => frames.min(budget.saturating_sub(1)),
            },
            Enqueued::Noted => 0,
            Enqueued::Group => {
                host.enqueued(self.napi());
                0
            }
        }
    }

    fn is_idle(&self) -> bool {
        !self.pending()
    }

    /// What the discipline had put off is due (`qdisc_watchdog`).
    fn timers(&self, host: &Delivery, _now_ns: u64) -> bool {
        host.schedule(self.napi());
        true
    }

    fn transmitter(&self) -> Option<&dyn Transmitter> {
        Some(self)
    }

    fn failed(&self, host: &Delivery) {
        self.go_down();
        // Its sockets could not send anything any more.
        host.take_down_queue(self.shard_napi, "its transmit queue");
    }
}

impl Transmitter for TxSide {
    fn group_enter(&self) -> Result<(), TxOwned> {
        self.word.group_enter()
    }

    fn group_leave(&self, host: &Delivery) {
        let run = self.word.group_leave();
        self.inside().polled_by_group(false);
        let (_, more) = self.run(host, run, None);
        if more {
            host.schedule(self.napi());
        }
    }

    fn group_lost(&self) {
        // This is not done if it was the last run, after the group was left, that panicked.
        if self.word.is_grouped() {
            self.word.lost_in_a_panic();
        }
    }

    fn visit(&self, host: &Delivery, budget: u32) -> Transmitted {
        self.word.look();
        let (sent, has_made_room) = {
            let mut inside = self.inside();
            inside.polled_by_group(true);
            let mut sent = inside.send(budget, host.now_ns());
            self.count(&mut inside, sent.frames);
            if inside.is_unsent() {
                // The device wants another doorbell once it has room; a visit rings it then.
                sent.left = TxLeft::Room;
            }
            (sent, inside.take_has_made_room())
        };
        self.blocked.store(sent.left == TxLeft::Room, Ordering::Relaxed);
        if has_made_room {
            self.room.made();
        }
        sent
    }

    fn qdisc(&self) -> &'static str {
        self.kind.name()
    }

    fn ring(&self, _host: &Delivery) {
        let mut inside = self.inside();
        add(&self.live.doorbells, 1);
        inside.ring();
        if inside.is_unsent() {
            // This is as after a visit.
            self.blocked.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
