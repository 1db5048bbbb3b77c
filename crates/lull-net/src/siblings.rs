//! How the shards of one network share packets: a packet that one shard cannot place may be another's.
//!
//! The device chooses the queue to which a packet comes, and its choice changes: an RSS table is written anew, a TAP
//! forgets a flow after some idle seconds (`tun_flow_cleanup`), or the socket of a veth's peer takes a new hash after a
//! timeout (`sk_rethink_txhash`). The connection stays where it is. So a packet for which a shard has no socket goes to
//! the next shard's [`Inbox`], from shard to shard, and the last one answers that it is nobody's. Frames know which
//! shards they have been to ([`Frame::seen_by`]).
//!
//! Shards of other processes are reached through [`Elsewhere`](crate::Elsewhere): the last shard here asks it. Frames
//! are marked with its numbers of the queues, so that every shard of every process sees a frame once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lull_nic::passing::{CLAIMED, LAST_ROUND, QUEUES_MAX};
use lull_nic::{Frame, IrqSink};

/// How many frames may wait for a shard. Further ones are lost, as on a full ring.
const WAITING_MAX: usize = 1024;

/// Frames that other shards have given to a shard, beside its ring. A frame in it schedules the shard's NAPI, whose
/// poll takes it.
#[derive(Default)]
pub(crate) struct Inbox {
    frames: Mutex<VecDeque<Frame>>,
    /// Whether there are any frames. It is written under the lock.
    has_frames: AtomicBool,
    /// Whether the shard takes nothing any more. It is written under the lock.
    is_closed: AtomicBool,
    sink: OnceLock<Arc<dyn IrqSink>>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("has_frames", &self.has_frames).finish_non_exhaustive()
    }
}

impl Inbox {
    fn frames(&self) -> MutexGuard<'_, VecDeque<Frame>> {
        // A frame is put in or taken out as a whole.
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects the sink that schedules the shard's NAPI.
    pub(crate) fn connect(&self, sink: Arc<dyn IrqSink>) {
        let _ = self.sink.set(sink);
    }

    /// Whether a poll would find a frame. A frame that is put in at this moment schedules the NAPI once more.
    #[inline]
    pub(crate) fn has_frames(&self) -> bool {
        self.has_frames.load(Ordering::Acquire)
    }

    fn put(&self, frame: Frame) {
        let mut frames = self.frames();
        if frames.len() == WAITING_MAX || self.is_closed() {
            return;
        }
        frames.push_back(frame);
        self.has_frames.store(true, Ordering::Release);
        drop(frames);
        if let Some(sink) = self.sink.get() {
            sink.raise();
        }
    }

    /// Takes up to `most` frames. Returns how many it took.
    #[cold]
    pub(crate) fn take(&self, most: usize, into: &mut Vec<Frame>) -> usize {
        let mut frames = self.frames();
        let count = most.min(frames.len());
        into.extend(frames.drain(..count));
        self.has_frames.store(!frames.is_empty(), Ordering::Release);
        count
    }

    /// Schedules the NAPI if a frame waits, because the NAPI was disabled when the frame came.
    pub(crate) fn look_again(&self) {
        if self.has_frames()
            && let Some(sink) = self.sink.get()
        {
            sink.raise();
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes the inbox, as its shard takes nothing any more. Its frames are dropped, and further ones go to the other
    /// shards.
    pub(crate) fn close(&self) {
        let mut frames = self.frames();
        self.is_closed.store(true, Ordering::Relaxed);
        frames.clear();
        self.has_frames.store(false, Ordering::Release);
    }
}

/// The numbers by which frames know the shards of a network that has the device alone. `None` if it has more shards
/// than a frame can record.
pub(crate) fn numbers(shards: usize) -> Option<Arc<[u32]>> {
    (shards <= QUEUES_MAX).then(|| (0..shards as u32).collect())
}

/// A shard's connection to the others.
#[derive(Debug)]
pub(crate) struct Siblings {
    own: usize,
    inboxes: Arc<[Inbox]>,
    /// The numbers by which frames know the shards, each below [`QUEUES_MAX`].
    numbers: Arc<[u32]>,
}

impl Siblings {
    /// The siblings of shard `own`; `None` if it has none.
    pub(crate) fn of(own: usize, inboxes: &Arc<[Inbox]>, numbers: &Arc<[u32]>) -> Option<Siblings> {
        (inboxes.len() > 1).then(|| Siblings { own, inboxes: inboxes.clone(), numbers: numbers.clone() })
    }

    /// Gives a frame to the next shard that has not seen it. Returns false if all shards that are up have.
    pub(crate) fn take_stranger(&self, frame: &Frame) -> bool {
        self.pass_on(frame, frame.seen_by())
    }

    /// As [`Siblings::take_stranger`], for a segment of no connection that may end a handshake which another shard only
    /// remembers by a cookie. All shards but this one are asked once more.
    pub(crate) fn take_last_acknowledgement(&self, frame: &Frame) -> bool {
        self.pass_on(frame, LAST_ROUND)
    }

    /// Tells the other shards that this one has made a connection of a frame.
    pub(crate) fn claims(&self, frame: &Frame) {
        for (_, inbox) in self.inboxes.iter().enumerate().filter(|(index, _)| *index != self.own) {
            let mut copy = frame.clone();
            copy.set_seen_by(CLAIMED);
            inbox.put(copy);
        }
    }

    fn pass_on(&self, frame: &Frame, seen_by: u32) -> bool {
        let seen_by = seen_by | 1 << self.numbers[self.own];
        let mut numbers = self.numbers.iter().zip(&self.inboxes[..]);
        let takes = |(number, inbox): (&u32, &Inbox)| seen_by & 1 << number == 0 && !inbox.is_closed();
        let Some(next) = numbers.position(takes) else { return false };
        // The frame's own memory belongs to the device, and goes back to it now.
        let mut copy = frame.clone();
        copy.set_seen_by(seen_by);
        self.inboxes[next].put(copy);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Raised(AtomicUsize);

    impl IrqSink for Raised {
        fn raise(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn inboxes(count: usize) -> (Arc<[Inbox]>, Vec<Arc<Raised>>) {
        let inboxes: Arc<[Inbox]> = (0..count).map(|_| Inbox::default()).collect();
        let raised: Vec<Arc<Raised>> = (0..count).map(|_| Arc::default()).collect();
        inboxes.iter().zip(&raised).for_each(|(inbox, raised)| inbox.connect(raised.clone()));
        (inboxes, raised)
    }

    fn of(own: usize, inboxes: &Arc<[Inbox]>) -> Option<Siblings> {
        Siblings::of(own, inboxes, &numbers(inboxes.len()).unwrap())
    }

    #[test]
    fn a_frame_goes_once_to_each_and_the_last_keeps_it() {
        let (inboxes, raised) = inboxes(3);
        let siblings: Vec<Siblings> = (0..3).map(|own| of(own, &inboxes).unwrap()).collect();
        let mut at = 1;
        let mut frame = Frame::copy_from(b"stranger");
        let mut way = Vec::new();
        while siblings[at].take_stranger(&frame) {
            at = inboxes.iter().position(Inbox::has_frames).unwrap();
            way.push(at);
            let mut taken = Vec::new();
            assert_eq!(inboxes[at].take(64, &mut taken), 1);
            frame = taken.pop().unwrap();
            assert_eq!(frame.data(), b"stranger");
        }
        assert_eq!(way, [0, 2]);
        assert_eq!(raised.iter().map(|raised| raised.0.load(Ordering::Relaxed)).collect::<Vec<_>>(), [1, 0, 1]);
        // The last round begins with the first shard that is not the one which asks for it.
        assert!(siblings[2].take_last_acknowledgement(&frame));
        assert!(inboxes[0].has_frames());
    }

    #[test]
    fn frames_are_marked_with_the_numbers_that_all_processes_know() {
        let (inboxes, _) = inboxes(2);
        let siblings = Siblings::of(0, &inboxes, &[3, 5].into()).unwrap();
        let mut frame = Frame::copy_from(b"stranger");
        // Queues 0 and 1 belong to other processes.
        frame.set_seen_by(0b11);
        assert!(siblings.take_stranger(&frame));
        let mut taken = Vec::new();
        assert_eq!((inboxes[0].has_frames(), inboxes[1].take(64, &mut taken)), (false, 1));
        assert_eq!(taken[0].seen_by(), 0b1011);
        frame.set_seen_by(0b10_0011);
        assert!(!siblings.take_stranger(&frame), "the other one has seen it");
    }

    #[test]
    fn every_frame_schedules_and_an_inbox_that_was_not_emptied_says_so() {
        let (inboxes, raised) = inboxes(2);
        let siblings = of(0, &inboxes).unwrap();
        let frame = Frame::copy_from(b"stranger");
        let mut taken = Vec::new();
        for _ in 0..3 {
            assert!(siblings.take_stranger(&frame));
        }
        assert_eq!((inboxes[1].take(2, &mut taken), inboxes[1].has_frames()), (2, true));
        assert_eq!((inboxes[1].take(64, &mut taken), inboxes[1].has_frames()), (1, false));
        assert!(siblings.take_stranger(&frame));
        assert_eq!(raised[1].0.load(Ordering::Relaxed), 4);
        inboxes[1].close();
        assert!(!inboxes[1].has_frames());
    }

    #[test]
    fn a_frame_goes_past_a_shard_that_is_down() {
        let (inboxes, raised) = inboxes(3);
        inboxes[0].close();
        let frame = Frame::copy_from(b"stranger");
        assert!(of(1, &inboxes).unwrap().take_stranger(&frame));
        let mut taken = Vec::new();
        assert_eq!((inboxes[0].has_frames(), inboxes[2].take(64, &mut taken)), (false, 1));
        let last = of(2, &inboxes).unwrap();
        assert!(!last.take_stranger(&taken[0]), "it is nobody's");
        last.claims(&frame);
        assert_eq!(inboxes.iter().map(Inbox::has_frames).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(raised[0].0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_came_while_nobody_was_to_be_scheduled_is_announced_once_more() {
        let (inboxes, raised) = inboxes(2);
        inboxes[1].look_again();
        assert_eq!(raised[1].0.load(Ordering::Relaxed), 0, "there is nothing");
        assert!(of(0, &inboxes).unwrap().take_stranger(&Frame::copy_from(b"stranger")));
        inboxes[1].look_again();
        assert_eq!(raised[1].0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_full_inbox_loses_frames_as_a_full_ring_does() {
        let (inboxes, _) = inboxes(2);
        let siblings = of(0, &inboxes).unwrap();
        for _ in 0..WAITING_MAX + 9 {
            assert!(siblings.take_stranger(&Frame::copy_from(b"stranger")), "it is not said to be nobody's");
        }
        assert_eq!(inboxes[1].take(usize::MAX, &mut Vec::new()), WAITING_MAX);
    }

    #[test]
    fn who_is_alone_or_among_too_many_has_no_siblings() {
        let (alone, _) = inboxes(1);
        assert!(of(0, &alone).is_none());
        assert!(numbers(QUEUES_MAX).is_some() && numbers(QUEUES_MAX + 1).is_none());
    }
}
