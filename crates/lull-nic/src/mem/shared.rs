//! What the two ports of a pair share: link, counters, interrupt lines, moderation.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::Thread;
use std::time::Instant;

use arc_swap::ArcSwapOption;

use super::{MemConfig, lock};
use crate::device::{Counters, DeviceEvent, DeviceInfo, Link, Moderation};
use crate::irq::Owed;
use crate::line::Line;
use crate::rss::{Indirection, Toeplitz};
use crate::watchers::Watchers;

/// A value on cache lines of its own (two, for processors that prefetch the neighbour).
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Alone<T>(pub(super) T);

impl<T> std::ops::Deref for Alone<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Adds to a counter that has one writer: a load and a store, no locked instruction.
#[inline]
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// How far a ring's two sides have come, for those who hold neither of its ends (unmask, moderation, reset).
#[derive(Default)]
pub(super) struct Ledger {
    /// Frames published, ever. Written by the transmitting side.
    pub(super) published: Alone<AtomicU64>,
    /// Frames taken off, ever. Written by the polling side.
    pub(super) consumed: Alone<AtomicU64>,
    /// Frames up to this count are void: a reset came after them.
    pub(super) void: AtomicU64,
    /// Void frames that the polling side threw away.
    pub(super) voided: AtomicU64,
}

impl Ledger {
    fn pending(&self) -> u64 {
        // Saturating: the ring's tail is ahead of `published` for a moment, and the poller may have taken those
        // frames already. What is not counted yet is announced after it is.
        let consumed = self.consumed.load(Ordering::Acquire);
        self.published.load(Ordering::Acquire).saturating_sub(consumed)
    }

    /// Whether a slot of the ring is free, once what was staged is published.
    fn has_room(&self, slots: usize) -> bool {
        self.pending() < slots as u64
    }

    fn lost(&self) -> u64 {
        let waiting = self.void.load(Ordering::Relaxed).saturating_sub(self.consumed.load(Ordering::Relaxed));
        self.voided.load(Ordering::Relaxed) + waiting
    }
}

/// One receive queue as both sides see it.
pub(super) struct RxSide {
    pub(super) line: Line,
    /// By transmit queue of the peer.
    pub(super) ledgers: Vec<Ledger>,
    pub(super) frames: Alone<AtomicU64>,
    pub(super) bytes: AtomicU64,
    /// Written by every transmitter of the peer, hence with a read-modify-write; only when the ring is full.
    pub(super) dropped: AtomicU64,
}

impl RxSide {
    fn new(peer_queues: usize) -> RxSide {
        RxSide {
            line: Line::new(),
            ledgers: (0..peer_queues).map(|_| Ledger::default()).collect(),
            frames: Alone::default(),
            bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    pub(super) fn pending_frames(&self) -> u64 {
        self.ledgers.iter().map(Ledger::pending).sum()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.ledgers.iter().any(|ledger| ledger.pending() != 0)
    }
}

/// One transmit queue: its room interrupt, and counters, written by its owner.
pub(super) struct TxSide {
    pub(super) line: Line,
    pub(super) frames: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) raises: AtomicU64,
    pub(super) raise_ns: AtomicU64,
}

impl TxSide {
    fn new() -> TxSide {
        TxSide {
            line: Line::new(),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            raises: AtomicU64::new(0),
            raise_ns: AtomicU64::new(0),
        }
    }
}

/// One port.
pub(super) struct Port {
    pub(super) info: DeviceInfo,
    pub(super) rx: Vec<RxSide>,
    pub(super) tx: Vec<Alone<TxSide>>,
    pub(super) rss: Indirection,
    pub(super) moderation: Mutex<Moderation>,
    /// The port's device thread, if there is one.
    pub(super) alarm: ArcSwapOption<Thread>,
    pub(super) resets: AtomicU64,
    pub(super) watchers: Watchers,
}

impl Port {
    fn new(config: &MemConfig, side: usize, queues: [usize; 2]) -> Port {
        Port {
            info: DeviceInfo {
                name: config.names[side].clone(),
                mac: config.macs[side],
                mtu_bytes: config.mtu_bytes,
                queues: queues[side],
                rx_ring: config.ring_slots,
                tx_ring: config.ring_slots,
                dear_doorbell: false,
                offloads: config.offloads,
            },
            rx: (0..queues[side]).map(|_| RxSide::new(queues[1 - side])).collect(),
            tx: (0..queues[side]).map(|_| Alone(TxSide::new())).collect(),
            rss: Indirection::even(queues[side]),
            moderation: Mutex::new(Moderation::default()),
            alarm: ArcSwapOption::empty(),
            resets: AtomicU64::new(0),
            watchers: Watchers::default(),
        }
    }

    pub(super) fn counters(&self, queue: usize) -> Counters {
        let (Some(rx), Some(tx)) = (self.rx.get(queue), self.tx.get(queue)) else { return Counters::default() };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            rx_frames: read(&rx.frames),
            rx_bytes: read(&rx.bytes),
            rx_dropped: read(&rx.dropped),
            rx_errors: rx.ledgers.iter().map(Ledger::lost).sum(),
            tx_frames: read(&tx.frames),
            tx_bytes: read(&tx.bytes),
            tx_dropped: read(&tx.dropped),
            interrupts: rx.line.interrupts() + tx.line.interrupts(),
            syscalls: 0,
        }
    }
}

/// The pair.
pub(super) struct Shared {
    pub(super) ports: [Port; 2],
    pub(super) toeplitz: Toeplitz,
    pub(super) drop_when_full: bool,
    gone: AtomicBool,
    up: AtomicBool,
    /// Which ports hold the link up.
    wanted_up: Mutex<[bool; 2]>,
    /// Whether either port has moderation on: what every call looks at before it looks at the clock.
    moderated: AtomicBool,
    epoch: Instant,
}

impl Shared {
    pub(super) fn new(config: &MemConfig, queues: [usize; 2]) -> Shared {
        Shared {
            ports: [Port::new(config, 0, queues), Port::new(config, 1, queues)],
            toeplitz: Toeplitz::new(&config.rss_key),
            drop_when_full: config.drop_when_full,
            gone: AtomicBool::new(false),
            up: AtomicBool::new(true),
            wanted_up: Mutex::new([true; 2]),
            moderated: AtomicBool::new(false),
            epoch: Instant::now(),
        }
    }

    #[inline]
    pub(super) fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    pub(super) fn link(&self) -> Link {
        if self.up() && !self.gone() { Link::Up } else { Link::Down }
    }

    /// The device's clock; starts behind 0, which means "no deadline".
    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    /// Tells receive queue `queue` of `side` that frames were published. If that needed a raise, or the waking of the
    /// thread that will: whether it was a raise, and the nanoseconds that it took.
    #[inline]
    pub(super) fn announce(&self, side: usize, queue: usize) -> Option<(bool, u64)> {
        let port = &self.ports[side];
        let rx = &port.rx[queue];
        match rx.line.vector.published(|| rx.pending_frames(), || self.now_ns()) {
            Owed::Quiet | Owed::Held { fresh: false } => None,
            Owed::Raise => Some((true, rx.line.fire())),
            Owed::Held { fresh: true } => {
                let start_ns = self.now_ns();
                if let Some(alarm) = &*port.alarm.load() {
                    alarm.unpark();
                }
                Some((false, self.now_ns() - start_ns))
            }
        }
    }

    /// Raises held interrupts that are due, on both ports. Called on every poll and doorbell.
    #[inline]
    pub(super) fn look_at_clock(&self) {
        if self.moderated.load(Ordering::Relaxed) {
            let now_ns = self.now_ns();
            self.expire(0, now_ns);
            self.expire(1, now_ns);
        }
    }

    /// Raises the held interrupts of one port that are due; the earliest deadline of the others.
    pub(super) fn expire(&self, side: usize, now_ns: u64) -> Option<u64> {
        let mut next = None;
        for rx in &self.ports[side].rx {
            if rx.line.vector.expire(now_ns, || rx.has_pending()) {
                rx.line.fire();
            }
            let due_ns = rx.line.vector.due_ns();
            if due_ns != 0 {
                next = Some(next.map_or(due_ns, |next: u64| next.min(due_ns)));
            }
        }
        next
    }

    pub(super) fn set_moderation(&self, side: usize, word: u64) {
        for rx in &self.ports[side].rx {
            if rx.line.vector.set_moderation(word, || rx.has_pending()) {
                rx.line.fire();
            }
        }
        let on = |port: &Port| lock(&port.moderation).rx_usecs != 0;
        self.moderated.store(self.ports.iter().any(on), Ordering::Relaxed);
    }

    pub(super) fn set_link(&self, side: usize, link: Link) {
        let mut wanted = lock(&self.wanted_up);
        wanted[side] = link == Link::Up;
        let up = wanted[0] && wanted[1];
        let changed = self.up.swap(up, Ordering::Relaxed) != up;
        drop(wanted);
        if changed {
            if !up {
                self.end_waiting();
            }
            let link = if up { Link::Up } else { Link::Down };
            for port in &self.ports {
                port.watchers.tell(DeviceEvent::Link(link));
            }
        }
    }

    /// Whether a full ring makes a transmitter wait, and for nothing else: without a link frames are dropped.
    #[inline]
    pub(super) fn keeps_waiting(&self) -> bool {
        !self.drop_when_full && self.up() && !self.gone()
    }

    /// Whether transmit queue `tx` of `side` has room in each of its rings, as seen by those who do not own it.
    pub(super) fn has_room(&self, side: usize, tx: usize) -> bool {
        !self.keeps_waiting() || {
            let slots = self.ports[side].info.tx_ring;
            self.ports[1 - side].rx.iter().all(|rx| rx.ledgers[tx].has_room(slots))
        }
    }

    /// Somebody waits for room in transmit queue `tx` of `side`, and one of its rings was read.
    #[cold]
    pub(super) fn room_made(&self, side: usize, tx: usize) {
        let line = &self.ports[side].tx[tx].line;
        if self.has_room(side, tx) && line.vector.take() {
            line.fire();
        }
    }

    /// Nobody waits for room any more: tells those who do.
    fn end_waiting(&self) {
        // Dekker, against the unmask that looks at link and end.
        fence(Ordering::SeqCst);
        for tx in self.ports.iter().flat_map(|port| &port.tx) {
            if tx.line.vector.take() {
                tx.line.fire();
            }
        }
    }

    pub(super) fn reset(&self, side: usize) {
        let port = &self.ports[side];
        for tx in &port.tx {
            tx.line.vector.mask();
        }
        for rx in &port.rx {
            rx.line.vector.mask();
            for ledger in &rx.ledgers {
                ledger.void.fetch_max(ledger.published.load(Ordering::Acquire), Ordering::Relaxed);
            }
        }
        port.resets.fetch_add(1, Ordering::Relaxed);
        port.watchers.tell(DeviceEvent::Reset);
    }

    /// The port of `side` was dropped.
    pub(super) fn leave(&self, side: usize) {
        if self.gone.swap(true, Ordering::Relaxed) {
            return;
        }
        self.end_waiting();
        let peer = &self.ports[1 - side];
        peer.watchers.tell(DeviceEvent::Gone);
        // Who waits for the interrupt alone, and does not watch, gets one last.
        for rx in &peer.rx {
            if rx.line.vector.take() {
                rx.line.fire();
            }
        }
    }
}
