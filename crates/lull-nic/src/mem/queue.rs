//! The queue halves of a port, and the matrix of rings between two ports.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rtrb::{Consumer, Producer, RingBuffer};

use super::shared::{Ledger, Shared, add};
use crate::checksum;
use crate::device::{Doorbell, IrqLine, IrqSink, Queue, RxQueue, TxQueue};
use crate::frame::{Checksum, Frame, FramePool, Segmentation};
use crate::room::Consumption;

/// Frames taken from one ring before the next has its turn.
const BURST_FRAMES: usize = 16;
/// Ethernet header and one VLAN tag: what a frame may be longer than the MTU.
const HEADER_BYTES_MAX: usize = 18;

/// The ends of the rings that meet in one queue: those it transmits to, those it polls.
type Halves = (Vec<Lane>, Vec<RxRing>);

/// Makes the rings and the queues of both ports.
pub(super) fn wire(shared: &Arc<Shared>, queues: [usize; 2], slots: usize) -> [Vec<Queue>; 2] {
    let mut halves: [Vec<Halves>; 2] = queues.map(|queues| (0..queues).map(|_| (Vec::new(), Vec::new())).collect());
    for from in 0..2 {
        for tx in 0..queues[from] {
            for rx in 0..queues[1 - from] {
                let (producer, consumer) = RingBuffer::new(slots);
                halves[from][tx].0.push(Lane::new(producer));
                halves[1 - from][rx].1.push(RxRing { consumer, consumption: Consumption::new(slots) });
            }
        }
    }
    let mut sides = halves.into_iter().enumerate().map(|(side, halves)| {
        let queue = |(index, (lanes, rings))| Queue {
            index,
            rx: Box::new(MemRx { shared: shared.clone(), side, index, rings, next: 0 }),
            tx: Box::new(MemTx::new(shared.clone(), side, index, lanes)),
            irq: Arc::new(MemIrq { shared: shared.clone(), side, index }),
            tx_irq: Arc::new(RoomIrq { shared: shared.clone(), side, index }),
        };
        halves.into_iter().enumerate().map(queue).collect::<Vec<_>>()
    });
    std::array::from_fn(|_| sides.next().expect("a pair has two sides"))
}

/// The receiving end of one ring.
struct RxRing {
    consumer: Consumer<Frame>,
    consumption: Consumption,
}

struct MemRx {
    shared: Arc<Shared>,
    side: usize,
    index: usize,
    /// By transmit queue of the peer.
    rings: Vec<RxRing>,
    /// The ring whose turn it is.
    next: usize,
}

impl MemRx {
    /// Takes up to `want` frames off one ring: how many, and the frames and bytes of those that were delivered.
    fn take(
        &mut self,
        ring: usize,
        want: usize,
        pool: &mut FramePool,
        deliver: &mut dyn FnMut(Frame, &mut FramePool),
    ) -> (usize, u64, u64) {
        let side = &self.shared.ports[self.side].rx[self.index];
        let ledger = &side.ledgers[ring];
        let RxRing { consumer, consumption } = &mut self.rings[ring];
        let count = consumer.slots().min(want);
        if count == 0 {
            return (0, 0, 0);
        }
        let consumed = ledger.consumed.load(Ordering::Relaxed);
        let void = ledger.void.load(Ordering::Relaxed).saturating_sub(consumed).min(count as u64);
        let mut bytes = 0;
        let chunk = consumer.read_chunk(count).expect("the consumer has seen that many slots filled");
        for (at, frame) in chunk.into_iter().enumerate() {
            if (at as u64) < void {
                pool.recycle(frame);
            } else {
                bytes += frame.chain_len() as u64;
                deliver(frame, pool);
            }
        }
        if void > 0 {
            add(&ledger.voided, void);
        }
        ledger.consumed.store(consumed + count as u64, Ordering::Release);
        let (peer, shared) = (1 - self.side, &*self.shared);
        if consumption.consumed(count, &shared.ports[peer].tx[ring].line.vector) {
            shared.room_made(peer, ring);
        }
        (count, count as u64 - void, bytes)
    }
}

impl RxQueue for MemRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        if self.shared.gone() {
            return 0;
        }
        self.shared.look_at_clock();
        let rings = self.rings.len();
        let burst = if rings == 1 { budget } else { BURST_FRAMES };
        let (mut taken, mut empty, mut frames, mut bytes) = (0, 0, 0, 0);
        while taken < budget && empty < rings {
            let want = burst.min(budget - taken);
            let (count, delivered, delivered_bytes) = self.take(self.next, want, pool, deliver);
            self.next = if self.next + 1 == rings { 0 } else { self.next + 1 };
            empty = if count < want { empty + 1 } else { 0 };
            taken += count;
            frames += delivered;
            bytes += delivered_bytes;
        }
        if frames > 0 {
            let side = &self.shared.ports[self.side].rx[self.index];
            add(&side.frames, frames);
            add(&side.bytes, bytes);
        }
        taken
    }
}

/// The transmitting end of one ring.
struct Lane {
    producer: Producer<Frame>,
    staged: Vec<Frame>,
    staged_bytes: u64,
    /// Slots known to be free and not staged for; the receiver's progress is only looked at when they run out.
    room: usize,
    published: u64,
}

impl Lane {
    fn new(producer: Producer<Frame>) -> Lane {
        Lane { producer, staged: Vec::new(), staged_bytes: 0, room: 0, published: 0 }
    }

    /// At least this many; exact when it looks at the receiver's progress, which costs a cache line from another core.
    fn free_slots(&self) -> usize {
        if self.room > 0 { self.room } else { self.producer.slots() - self.staged.len() }
    }

    fn outstanding(&self) -> usize {
        self.producer.buffer().capacity() - self.producer.slots() + self.staged.len()
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        if self.room == 0 {
            self.room = self.free_slots();
        }
        self.room > 0
    }

    #[inline]
    fn stage(&mut self, frame: Frame, bytes: usize) {
        self.room -= 1;
        self.staged_bytes += bytes as u64;
        self.staged.push(frame);
    }

    /// Publishes the staged frames with one store of the ring's tail; how many, and their bytes.
    fn publish(&mut self, ledger: &Ledger) -> (u64, u64) {
        let count = self.staged.len();
        let chunk = self.producer.write_chunk_uninit(count).expect("slots were counted when the frames were staged");
        chunk.fill_from_iter(self.staged.drain(..));
        self.published += count as u64;
        // After the ring's tail: who sees the count finds the frames.
        ledger.published.store(self.published, Ordering::Release);
        (count as u64, std::mem::take(&mut self.staged_bytes))
    }

    fn discard(&mut self) -> u64 {
        let count = self.staged.len();
        self.room += count;
        self.staged_bytes = 0;
        self.staged.clear();
        count as u64
    }
}

struct MemTx {
    shared: Arc<Shared>,
    side: usize,
    index: usize,
    /// By receive queue of the peer.
    lanes: Vec<Lane>,
    resets: u64,
    frame_bytes_max: usize,
    tso: bool,
    complete_checksums: bool,
}

impl MemTx {
    fn new(shared: Arc<Shared>, side: usize, index: usize, lanes: Vec<Lane>) -> MemTx {
        let (ours, peer) = (&shared.ports[side].info, &shared.ports[1 - side].info);
        MemTx {
            frame_bytes_max: ours.mtu_bytes + HEADER_BYTES_MAX,
            tso: ours.offloads.tso,
            complete_checksums: !peer.offloads.rx_checksum,
            shared,
            side,
            index,
            lanes,
            resets: 0,
        }
    }

    fn count_dropped(&self, count: u64) {
        if count > 0 {
            add(&self.shared.ports[self.side].tx[self.index].dropped, count);
        }
    }

    /// Drops what was staged before a reset of this port.
    #[inline]
    fn heed_reset(&mut self) {
        let resets = self.shared.ports[self.side].resets.load(Ordering::Relaxed);
        if resets != self.resets {
            self.resets = resets;
            self.discard();
        }
    }

    fn discard(&mut self) {
        let count = self.lanes.iter_mut().map(Lane::discard).sum();
        self.count_dropped(count);
    }

    /// Whether the port can send the frame at all.
    #[inline]
    fn acceptable(&self, frame: &Frame, bytes: usize) -> bool {
        match frame.segmentation() {
            Segmentation::None => bytes <= self.frame_bytes_max,
            Segmentation::Tcp { .. } => self.tso,
            Segmentation::Udp { .. } => false,
        }
    }

    /// What a full ring does with a frame.
    #[cold]
    fn refuse(&mut self, frame: Frame, lane: usize) -> Result<(), Frame> {
        if self.shared.keeps_waiting() {
            return Err(frame);
        }
        if self.shared.drop_when_full {
            self.shared.ports[1 - self.side].rx[lane].dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            self.count_dropped(1);
        }
        Ok(())
    }

    /// The peer's receive queue for a frame, whose hash is set if there is a choice.
    #[inline]
    fn steer(&self, frame: &mut Frame) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        let hash = self.shared.toeplitz.hash_frame(frame.data());
        frame.set_rss_hash(hash);
        self.shared.ports[1 - self.side].rss.queue(hash)
    }
}

impl TxQueue for MemTx {
    fn transmit(&mut self, mut frame: Frame) -> Result<(), Frame> {
        self.heed_reset();
        let bytes = frame.chain_len();
        if !self.acceptable(&frame, bytes) {
            self.count_dropped(1);
            return Ok(());
        }
        let lane = self.steer(&mut frame);
        if !self.lanes[lane].has_room() {
            return self.refuse(frame, lane);
        }
        if self.complete_checksums && frame.checksum() == Checksum::Partial {
            frame = checksum::complete(frame);
        }
        self.lanes[lane].stage(frame, bytes);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        self.heed_reset();
        if self.shared.gone() || !self.shared.up() {
            self.discard();
            return Doorbell::Done;
        }
        let shared = &*self.shared;
        let (ours, peer) = (&shared.ports[self.side].tx[self.index], 1 - self.side);
        for (queue, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| !lane.staged.is_empty()) {
            let (frames, bytes) = lane.publish(&shared.ports[peer].rx[queue].ledgers[self.index]);
            add(&ours.frames, frames);
            add(&ours.bytes, bytes);
            if let Some((raised, raise_ns)) = shared.announce(peer, queue) {
                add(&ours.raises, raised.into());
                add(&ours.raise_ns, raise_ns);
            }
        }
        shared.look_at_clock();
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        match self.lanes.iter().map(Lane::free_slots).min().unwrap_or(0) {
            // What would not fit would be dropped.
            0 if !self.shared.keeps_waiting() => self.shared.ports[self.side].info.tx_ring,
            free => free,
        }
    }

    fn outstanding(&self) -> Option<usize> {
        Some(self.lanes.iter().map(Lane::outstanding).sum())
    }

    // Nothing to reap: the peer keeps the buffers, and frames received from it feed the pool.
}

struct MemIrq {
    shared: Arc<Shared>,
    side: usize,
    index: usize,
}

impl MemIrq {
    fn rx(&self) -> &super::shared::RxSide {
        &self.shared.ports[self.side].rx[self.index]
    }
}

impl IrqLine for MemIrq {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.rx().line.connect(sink);
    }

    fn mask(&self) {
        self.rx().line.vector.mask();
    }

    fn unmask(&self) {
        let rx = self.rx();
        if rx.line.vector.unmask(|| !self.shared.gone() && rx.has_pending()) {
            rx.line.fire();
        }
    }

    #[inline]
    fn pending(&self) -> Option<bool> {
        if self.shared.gone() {
            return None;
        }
        self.shared.look_at_clock();
        Some(self.rx().has_pending())
    }
}

/// The room interrupt of a transmit queue.
struct RoomIrq {
    shared: Arc<Shared>,
    side: usize,
    index: usize,
}

impl RoomIrq {
    fn line(&self) -> &crate::line::Line {
        &self.shared.ports[self.side].tx[self.index].line
    }
}

impl IrqLine for RoomIrq {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.line().connect(sink);
    }

    fn mask(&self) {
        self.line().vector.mask();
    }

    fn unmask(&self) {
        if self.line().vector.unmask(|| self.shared.has_room(self.side, self.index)) {
            self.line().fire();
        }
    }
}
