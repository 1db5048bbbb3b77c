//! Where a shard's frames wait for whoever runs the transmit queue, and what each sender has below it (TCP small queues).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lull_nic::frame::Sender;
use lull_nic::{Doorbell, Frame, TxQueue};

use super::line::IntakeRoom;

/// Frames that an intake holds; one that is full is a full ring to its senders.
pub(super) const INTAKE_FRAMES: usize = 1024;
/// The most that a sender has between itself and the ring, in bytes (`tcp_limit_output_bytes`, 1 MiB up to Linux 6.12).
const SENDER_BYTES_MAX: u32 = 1 << 20;
/// A paced sender has what it sends in 2^-10 s (`sk_pacing_shift`), two frames at least.
const PACING_SHIFT: u32 = 10;
/// Places for the bytes of senders. Two senders of one place are bounded together.
const PLACES: usize = 4096;

/// What the senders of a queue have between themselves and the ring.
pub(super) struct Senders {
    bytes: Box<[AtomicU32]>,
    two_frames: u32,
    /// Who pushed last.
    last: AtomicU32,
    is_down: AtomicBool,
}

impl Senders {
    pub(super) fn new(mtu_bytes: usize) -> Senders {
        let bytes = (0..PLACES).map(|_| AtomicU32::new(0)).collect();
        let (last, is_down) = (AtomicU32::new(0), AtomicBool::new(false));
        Senders { bytes, two_frames: 2 * (mtu_bytes as u32 + 14), last, is_down }
    }

    fn place(&self, id: u32) -> &AtomicU32 {
        &self.bytes[id as usize % PLACES]
    }

    /// Whether a sender may push another frame (`tcp_small_queue_check`): what it has is below its limit, and so at most a frame
    /// above it. It needs no exception for an empty queue, as what it has always becomes less.
    fn may_push(&self, sender: Sender) -> bool {
        let limit = match sender.pacing_bytes_per_s {
            0 => SENDER_BYTES_MAX,
            rate => (rate >> PACING_SHIFT).clamp(u64::from(self.two_frames), u64::from(SENDER_BYTES_MAX)) as u32,
        };
        sender.id == 0 || self.place(sender.id).load(Ordering::Acquire) < limit
    }

    fn pushed(&self, sender: Sender, bytes: u32) {
        self.last.store(sender.id, Ordering::Relaxed);
        self.place(sender.id).fetch_add(bytes, Ordering::Relaxed);
    }

    /// A frame reached the ring, or was dropped.
    pub(super) fn completed(&self, sender: u32, bytes: u32) {
        self.place(sender).fetch_sub(bytes, Ordering::Release);
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

/// What the shard has in the ring's place. Its producer is the holder of the shard's lock.
pub(crate) struct Intake {
    frames: rtrb::Producer<Frame>,
    senders: Arc<Senders>,
    room: Arc<IntakeRoom>,
}

impl Intake {
    pub(super) fn new(senders: Arc<Senders>, room: Arc<IntakeRoom>) -> (Intake, rtrb::Consumer<Frame>) {
        let (producer, consumer) = rtrb::RingBuffer::new(INTAKE_FRAMES);
        (Intake { frames: producer, senders, room }, consumer)
    }

    fn slots(&self) -> usize {
        // A queue that is down takes and drops everything: nobody waits for it (rule 6 of the contract).
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
        // Before it is pushed: whoever takes it subtracts at once.
        self.senders.pushed(sender, bytes);
        self.frames.push(frame).map_err(|rtrb::PushError::Full(frame)| {
            self.senders.completed(sender.id, bytes);
            frame
        })
    }

    /// The shard kicks the queue once it has let go of its lock.
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
