//! The place where a shard's frames wait for a thread that runs the transmit queue, and how much each sender has below
//! it (TCP small queues).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool as PlainBool, AtomicU32 as PlainU32};

use lull_nic::frame::Sender;
use lull_nic::{Doorbell, Frame, TxQueue};
use lull_qdisc::{Kind, Limits};

use crate::intake_room::IntakeRoom;
use crate::sync::ring::{Consumer, Producer, PushError, RingBuffer};
use crate::sync::{AtomicU64, Ordering};

/// How many frames an intake holds. To its senders, a full intake is a full ring.
pub(super) const INTAKE_FRAMES: usize = if cfg!(loom) { 2 } else { 1024 };
/// The most bytes that a sender may have between itself and the ring (`tcp_limit_output_bytes`, 1 MiB up to Linux
/// 6.12).
const SENDER_BYTES_MAX: u32 = 1 << 20;
/// A paced sender may have what it sends in 2^-10 s (`sk_pacing_shift`), and two frames at least.
const PACING_SHIFT: u32 = 10;
/// How many places there are for the counts of senders, for each of [`GENERATIONS`]. Two senders of one place are
/// bounded together.
const PLACES: usize = if cfg!(loom) { 1 } else { 4096 };
/// How many senders that have the same number one after the other have places of their own. The frames that one leaves
/// behind, which may leave slowly because of its rate, then do not hold up the next ones.
const GENERATIONS: usize = 4;
/// One frame in a place, whose lower half counts bytes. A place counts fewer than 2^32 bytes, because an intake and a
/// discipline together have 11,024 frames at most, of 64 KiB.
const FRAME: u64 = 1 << 32;

/// The most frames that a sender may have between itself and the ring: three quarters of what the discipline takes from
/// one. The last quarter is for frames that are sent without looking for room, such as acknowledgements, since the
/// discipline drops what is above its limit.
fn sender_frames_max(kind: Kind) -> u32 {
    let Limits { frames, flow_frames, .. } = Limits::of(kind);
    match kind {
        // It drops nothing.
        Kind::NoQueue => u32::MAX,
        Kind::PfifoFast => (frames - frames / 4) as u32,
        Kind::Fq => (flow_frames - flow_frames / 4) as u32,
    }
}

/// How much the senders of a queue have between themselves and the ring.
pub(super) struct Senders {
    /// The numbers of frames, and in the lower half those of their bytes.
    places: Box<[AtomicU64]>,
    frames_max: u32,
    two_frames: u32,
    /// The sender that pushed last.
    last: PlainU32,
    is_down: PlainBool,
}

impl Senders {
    pub(super) fn new(kind: Kind, mtu_bytes: usize) -> Senders {
        let places = (0..GENERATIONS * PLACES).map(|_| AtomicU64::new(0)).collect();
        let (last, is_down) = (PlainU32::new(0), PlainBool::new(false));
        let (frames_max, two_frames) = (sender_frames_max(kind), 2 * (mtu_bytes as u32 + 14));
        Senders { places, frames_max, two_frames, last, is_down }
    }

    /// The place of a sender; `None` if the frames are nobody's, which are not bounded.
    fn place(&self, sender: Sender) -> Option<&AtomicU64> {
        let generation = usize::from(sender.generation) % GENERATIONS;
        (sender.id != 0).then(|| &self.places[generation * PLACES + sender.id as usize % PLACES])
    }

    /// Whether a sender may push another frame (`tcp_small_queue_check`). It may if it is below its limits, so that it
    /// is at most one frame above them. No exception is needed for an empty queue, because what a sender has always
    /// becomes less.
    fn may_push(&self, sender: Sender) -> bool {
        let limit = match sender.pacing_bytes_per_s {
            0 => SENDER_BYTES_MAX,
            rate => (rate >> PACING_SHIFT).clamp(u64::from(self.two_frames), u64::from(SENDER_BYTES_MAX)) as u32,
        };
        let Some(place) = self.place(sender) else { return true };
        let has = place.load(Ordering::Acquire);
        (has % FRAME) < u64::from(limit) && (has / FRAME) < u64::from(self.frames_max)
    }

    fn pushed(&self, sender: Sender, bytes: u32) {
        self.last.store(sender.id, Ordering::Relaxed);
        if let Some(place) = self.place(sender) {
            place.fetch_add(FRAME + u64::from(bytes), Ordering::Relaxed);
        }
    }

    /// Called when a frame has reached the ring, or was dropped.
    pub(super) fn completed(&self, sender: Sender, bytes: u32) {
        if let Some(place) = self.place(sender) {
            place.fetch_sub(FRAME + u64::from(bytes), Ordering::Release);
        }
    }

    pub(super) fn last(&self) -> u32 {
        self.last.load(Ordering::Relaxed)
    }

    pub(super) fn go_down(&self) {
        self.is_down.store(true, Ordering::Release);
    }

    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }
}

/// What the shard has in place of the ring. Its producer is the thread that holds the shard's lock.
pub(crate) struct Intake {
    frames: Producer<Frame>,
    senders: Arc<Senders>,
    room: Arc<IntakeRoom>,
}

impl Intake {
    pub(super) fn new(senders: Arc<Senders>, room: Arc<IntakeRoom>) -> (Intake, Consumer<Frame>) {
        let (producer, consumer) = RingBuffer::new(INTAKE_FRAMES);
        (Intake { frames: producer, senders, room }, consumer)
    }

    fn slots(&self) -> usize {
        // A queue that is down takes and drops everything, so that nobody waits for it (rule 6 of the contract).
        if self.senders.is_down() { 1 } else { self.frames.slots() }
    }
}

impl TxQueue for Intake {
    #[inline]
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.senders.is_down() {
            return Ok(());
        }
        let (sender, bytes) = (frame.sender(), frame.chain_len() as u32);
        // This comes before the push, as a thread that takes the frame subtracts at once.
        self.senders.pushed(sender, bytes);
        self.frames.push(frame).map_err(|PushError::Full(frame)| {
            self.senders.completed(sender, bytes);
            frame
        })
    }

    /// Does nothing, as the shard runs the queue once it has given its lock back.
    fn doorbell(&mut self) -> Doorbell {
        Doorbell::Done
    }

    #[inline]
    fn free_slots(&self) -> usize {
        self.room.look(|| self.slots())
    }

    #[inline]
    fn room_for(&self, sender: Sender) -> usize {
        let room = || if self.senders.is_down() || self.senders.may_push(sender) { self.slots() } else { 0 };
        self.room.look(room)
    }
}
