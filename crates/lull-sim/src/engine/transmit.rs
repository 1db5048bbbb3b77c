//! Transmit queues with a queueing discipline (§16): an intake, a discipline, a ring and a wire, and those who move
//! frames from one to the next.
//!
//! The rules are the core's ([`lull_core::tx`]): who runs, when a run looks again, when a doorbell rings. A run takes
//! the time of its frames and is over only then, so that others meet it. A sender's run is an event of its own, for
//! which its CPU pays; one of the queue's NAPI is its poll; a visit of a group is a segment of the poller. Frames of a
//! run are on no ring before it ends.

mod calls;
mod run;

use std::collections::VecDeque;

use lull_core::group::Transmitted;
use lull_core::tx::{TxLeft, TxRun, TxWord};
use lull_qdisc::{Dequeued, Packet, Qdisc};

pub(crate) use self::calls::SendCalls;
use self::run::{PolledRun, SenderRun};
use crate::engine::id::ConnId;
use crate::world::TransmitSpec;

/// How many frames an intake holds. A frame that finds it full is dropped, like a datagram without room.
const INTAKE_FRAMES: usize = 1_024;
/// The longest frame.
const FRAME_BYTES: u32 = 1_514;

/// What a frame answers: a connection's request, or nothing.
pub(crate) type TxFrame = Option<ConnId>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct TransmitQueue {
    spec: TransmitSpec,
    pub(crate) word: TxWord,
    intake: VecDeque<Packet<TxFrame>>,
    qdisc: Qdisc<TxFrame>,
    /// The frames that the current runner takes to the ring.
    sending: Vec<Packet<TxFrame>>,
    ring: VecDeque<TxFrame>,
    /// How many of the frames on the ring the device was told of.
    rung: u32,
    on_wire: bool,
    pub(crate) unrung_since_ns: Option<u64>,
    /// Whether frames wait for room on the ring.
    pub(crate) blocked: bool,
    /// When the NAPI is to run for frames that the discipline holds back.
    pub(crate) due_ns: Option<u64>,
    /// A sender's run that is under way.
    run: Option<SenderRun>,
    /// The run of the NAPI's poll that is under way.
    polling: Option<PolledRun>,
    /// The run that is owed because the queue has left its group.
    leaves: Option<TxRun>,
    /// Whether it is disabled, so that what comes is dropped.
    pub(crate) down: bool,
    /// How many frames were pushed, have left, and were dropped.
    enqueued: u64,
    sent: u64,
    dropped: u64,
    /// The recorded send calls, if they are asked for.
    pub(crate) calls: Option<SendCalls>,
}

impl TransmitQueue {
    pub(crate) fn new(spec: &TransmitSpec) -> TransmitQueue {
        TransmitQueue {
            spec: *spec,
            word: TxWord::new(),
            intake: VecDeque::new(),
            qdisc: Qdisc::with_limits(spec.qdisc, FRAME_BYTES, spec.limits),
            sending: Vec::new(),
            ring: VecDeque::new(),
            rung: 0,
            on_wire: false,
            unrung_since_ns: None,
            blocked: false,
            due_ns: None,
            run: None,
            polling: None,
            leaves: None,
            down: false,
            enqueued: 0,
            sent: 0,
            dropped: 0,
            calls: None,
        }
    }

    /// Returns how many frames are in the intake and the discipline.
    pub(crate) fn waiting(&self) -> usize {
        self.intake.len() + self.qdisc.len()
    }

    /// Returns how many frames are on the ring, or on their way to it.
    pub(crate) fn on_ring(&self) -> usize {
        self.ring.len() + self.sending.len()
    }

    /// Returns how many frames on the ring the device was not told of.
    pub(crate) fn unrung(&self) -> u32 {
        self.ring.len() as u32 - self.rung
    }

    pub(crate) fn has_room(&self) -> bool {
        self.ring.len() < self.spec.ring_frames as usize
    }

    /// Whether a visit would find something.
    pub(crate) fn hint(&self) -> bool {
        self.word.is_missed() || self.blocked && self.has_room()
    }

    /// Whether a runner outside groups runs it, or owes a run.
    pub(crate) fn is_run(&self) -> bool {
        self.run.is_some() || self.polling.is_some() || self.leaves.is_some()
    }

    /// I15: returns how many frames were pushed, and how many are accounted for.
    pub(crate) fn account(&self) -> (u64, u64) {
        (self.enqueued, (self.waiting() + self.on_ring()) as u64 + self.sent + self.dropped)
    }

    /// The runner moves the intake into the discipline, and takes at most `budget` frames from there. `lost` gets what
    /// the discipline drops.
    fn batch(&mut self, budget: u32, now_ns: u64, lost: &mut Vec<TxFrame>) -> Transmitted {
        assert!(self.sending.is_empty(), "I15: two run one transmit queue");
        self.due_ns = None;
        self.take_in(now_ns, lost);
        let (mut frames, mut bytes) = (0, 0_u32);
        let left = loop {
            if self.qdisc.is_empty() {
                self.take_in(now_ns, lost);
            }
            if self.qdisc.is_empty() {
                break TxLeft::Nothing;
            }
            if frames == budget {
                break TxLeft::More;
            }
            if self.on_ring() == self.spec.ring_frames as usize {
                break TxLeft::Room;
            }
            match self.qdisc.dequeue(now_ns) {
                Dequeued::Packet(packet) => {
                    (frames, bytes) = (frames + 1, bytes + packet.bytes);
                    self.sending.push(packet);
                }
                Dequeued::Throttled { until_ns } => break TxLeft::Until { until_ns },
                Dequeued::Empty => break TxLeft::Nothing,
            }
        };
        Transmitted { frames, bytes, left }
    }

    fn take_in(&mut self, now_ns: u64, lost: &mut Vec<TxFrame>) {
        while self.qdisc.takes() {
            let Some(packet) = self.intake.pop_front() else { return };
            if let Err(packet) = self.qdisc.enqueue(packet, now_ns) {
                self.dropped += 1;
                lost.push(packet.frame);
            }
        }
    }

    /// The frames of a batch are on the ring now.
    fn commit(&mut self, left: TxLeft, now_ns: u64) {
        if !self.sending.is_empty() {
            self.unrung_since_ns.get_or_insert(now_ns);
        }
        self.ring.extend(self.sending.drain(..).map(|packet| packet.frame));
        self.blocked = left == TxLeft::Room;
    }

    /// The queue goes down, and loses the frames that wait; with a reset also those on its ring.
    fn flush(&mut self, reset: bool) -> Vec<TxFrame> {
        let mut lost: Vec<TxFrame> = self.intake.drain(..).map(|packet| packet.frame).collect();
        lost.extend(self.qdisc.drain().into_iter().map(|packet| packet.frame));
        if reset {
            lost.extend(self.ring.drain(..));
            (self.rung, self.unrung_since_ns) = (0, None);
        }
        self.dropped += lost.len() as u64;
        (self.blocked, self.due_ns) = (false, None);
        lost
    }
}
