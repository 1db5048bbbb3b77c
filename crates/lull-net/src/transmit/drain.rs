//! The ring and its discipline, which belong to the thread that runs the queue.

use std::sync::Arc;

use lull_core::group::Transmitted;
use lull_core::tx::TxLeft;
use lull_nic::{Doorbell, Frame, FramePool, TxQueue};
use lull_qdisc::{Dequeued, Kind, Packet, Qdisc, QdiscStats};

use super::Ring;
use super::byte_limit::ByteLimit;
use super::intake::{INTAKE_FRAMES, Senders};
use crate::sync::ring::Consumer;

/// How many of the frames that were sent are kept for later use.
const POOL_FRAMES_MAX: usize = 64;

/// The ring and its discipline; the [module](self) says more.
pub(crate) struct Drain {
    /// `None` before the ring is given, and after it was taken back.
    tx: Option<Box<dyn TxQueue>>,
    pool: FramePool,
    frames: Consumer<Frame>,
    qdisc: Qdisc<Frame>,
    senders: Arc<Senders>,
    /// Whether frames were put on the ring since the last doorbell.
    unrung: bool,
    /// Whether the last doorbell left frames on the ring.
    unsent: bool,
    limit: ByteLimit,
    /// Whether a group polls it, so that somebody looks again when the byte limit has ended a batch.
    polled: bool,
    /// The senders of the frames that the last batch sent.
    last_batch: Vec<u32>,
    /// Whether frames have left the intake or the discipline since this was last asked.
    has_made_room: bool,
}

impl Drain {
    pub(super) fn new(kind: Kind, mtu_bytes: usize, frames: Consumer<Frame>, senders: Arc<Senders>) -> Drain {
        Drain {
            tx: None,
            pool: FramePool::new(POOL_FRAMES_MAX),
            frames,
            qdisc: Qdisc::new(kind, mtu_bytes as u32 + 14),
            senders,
            unrung: false,
            unsent: false,
            limit: ByteLimit::default(),
            polled: false,
            last_batch: Vec::with_capacity(64),
            has_made_room: false,
        }
    }

    pub(super) fn put_ring(&mut self, ring: Ring) {
        self.limit = ByteLimit::default();
        (self.tx, self.unsent) = (Some(ring.tx), ring.unsent);
    }

    /// Takes the ring back, after its doorbell has rung.
    pub(super) fn take_ring(&mut self) -> Option<Ring> {
        self.ring();
        let tx = self.tx.take()?;
        Some(Ring { tx, unsent: std::mem::take(&mut self.unsent) })
    }

    pub(super) fn polled_by_group(&mut self, polled: bool) {
        if self.polled != polled {
            (self.polled, self.limit) = (polled, ByteLimit::default());
        }
    }

    pub(super) fn end_pacing(&mut self) {
        self.qdisc.end_pacing();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.qdisc.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.slots() + self.qdisc.len()
    }

    /// Whether frames are on the ring for which no doorbell has rung.
    pub(super) fn has_unrung(&self) -> bool {
        self.unrung
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// Whether a sender may have room that it did not have when this was last asked.
    pub(super) fn take_has_made_room(&mut self) -> bool {
        std::mem::take(&mut self.has_made_room)
    }

    pub(super) fn stats(&self) -> QdiscStats {
        self.qdisc.stats()
    }

    /// Drops the frames that wait. Returns how many there were.
    pub(super) fn clear(&mut self) -> u64 {
        let mut dropped = 0;
        while let Ok(frame) = self.frames.pop() {
            self.senders.completed(frame.sender(), frame.chain_len() as u32);
            dropped += 1;
        }
        for packet in self.qdisc.drain() {
            self.senders.completed(packet.frame.sender(), packet.bytes);
            dropped += 1;
        }
        self.has_made_room |= dropped != 0;
        dropped
    }

    /// How many frames of the last batch were of another sender.
    pub(super) fn sent_for_others(&self, own: Option<u32>) -> u32 {
        own.map_or(0, |own| self.last_batch.iter().filter(|sender| **sender != own).count() as u32)
    }

    pub(super) fn ring(&mut self) {
        if let Some(tx) = &mut self.tx {
            (self.unrung, self.unsent) = (false, tx.doorbell() == Doorbell::Again);
        }
    }

    /// Moves a frame from the intake into the discipline. Returns false if there is none, or no place for it.
    fn take_in(&mut self, now_ns: u64) -> bool {
        if !self.qdisc.takes() {
            return false;
        }
        let Ok(frame) = self.frames.pop() else { return false };
        self.has_made_room = true;
        let (sender, bytes) = (frame.sender(), frame.chain_len() as u32);
        let packet = Packet {
            bytes,
            flow: u64::from(sender.generation) << 32 | u64::from(sender.id),
            priority: sender.priority,
            rate_bytes_per_s: (sender.pacing_bytes_per_s != 0).then_some(sender.pacing_bytes_per_s),
            frame,
        };
        if let Err(packet) = self.qdisc.enqueue(packet, now_ns) {
            // The discipline has counted it.
            self.senders.completed(sender, bytes);
            self.pool.recycle(packet.frame);
        }
        true
    }

    /// Reaps what was sent, moves the intake into the discipline, and moves at most `budget` frames from there to the
    /// ring.
    pub(super) fn send(&mut self, budget: u32, now_ns: u64) -> Transmitted {
        self.last_batch.clear();
        let Some(mut tx) = self.tx.take() else {
            return Transmitted { frames: 0, bytes: 0, left: TxLeft::Nothing };
        };
        tx.reap_sent(&mut self.pool);
        if self.unsent {
            (self.unrung, self.unsent) = (false, tx.doorbell() == Doorbell::Again);
        }
        // The number is bounded, because a sender may push as fast as this takes frames in.
        let _ = (0..INTAKE_FRAMES).take_while(|_| self.take_in(now_ns)).count();
        let sent = self.fill_ring(&mut *tx, budget, now_ns);
        self.unrung |= sent.frames != 0;
        self.has_made_room |= sent.frames != 0;
        self.tx = Some(tx);
        sent
    }

    fn fill_ring(&mut self, tx: &mut dyn TxQueue, budget: u32, now_ns: u64) -> Transmitted {
        let (mut frames, mut bytes) = (0, 0u32);
        if self.polled {
            self.limit.look(tx.outstanding(), now_ns);
        }
        let left = loop {
            if self.qdisc.is_empty() && !self.take_in(now_ns) {
                break TxLeft::Nothing;
            }
            if frames == budget {
                break TxLeft::More;
            }
            if tx.free_slots() == 0 || self.polled && self.limit.is_reached() {
                break TxLeft::Room;
            }
            match self.qdisc.dequeue(now_ns) {
                Dequeued::Packet(Packet { frame, bytes: length, flow, priority, rate_bytes_per_s }) => {
                    let sender = frame.sender();
                    if let Err(frame) = tx.transmit(frame) {
                        self.qdisc.put_back(Packet { frame, bytes: length, flow, priority, rate_bytes_per_s });
                        break TxLeft::Room;
                    }
                    self.senders.completed(sender, length);
                    if self.polled {
                        self.limit.sent(length);
                    }
                    self.last_batch.push(sender.id);
                    (frames, bytes) = (frames + 1, bytes.saturating_add(length));
                }
                Dequeued::Throttled { until_ns } => break TxLeft::Until { until_ns },
                Dequeued::Empty => break TxLeft::Nothing,
            }
        };
        Transmitted { frames, bytes, left }
    }
}
