//! The shards of one network among each other: a packet that one cannot place may be another's.
//!
//! Which queue a packet comes to is the device's choice, and it changes: an RSS table that is written anew, a TAP that forgets a
//! flow after some idle seconds (`tun_flow_cleanup`), a veth whose peer's socket takes a new hash after a timeout
//! (`sk_rethink_txhash`). The connection stays where it is. So what a shard has no socket for goes to the next one's [`Inbox`], from
//! shard to shard, and the last of them says that it is nobody's. Frames know where they have been ([`Frame::seen_by`]).
//!
//! Shards of other processes are [`Elsewhere`](crate::Elsewhere)'s: the last shard here asks it, and frames are marked with its
//! numbers of the queues, so that every shard of every process sees a frame once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lull_nic::passing::{CLAIMED, LAST_ROUND, QUEUES_MAX};
use lull_nic::{Frame, IrqSink};

/// Frames that wait for a shard; beyond, they are lost as on a full ring.
const WAITING_MAX: usize = 1024;

/// What other shards have given a shard, beside its ring. A frame in it schedules the shard's NAPI, whose poll takes it.
#[derive(Default)]
pub(crate) struct Inbox {
    frames: Mutex<VecDeque<Frame>>,
    /// Whether there are any. Written under the lock.
    has_frames: AtomicBool,
    /// Its shard takes nothing any more. Written under the lock.
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
        // A frame is put in or taken out whole.
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What schedules the shard's NAPI.
    pub(crate) fn connect(&self, sink: Arc<dyn IrqSink>) {
        let _ = self.sink.set(sink);
    }

    /// Whether a poll would find a frame. One that is put in at this moment schedules the NAPI once more.
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

    /// Takes up to `most` frames; how many it took.
    #[cold]
    pub(crate) fn take(&self, most: usize, into: &mut Vec<Frame>) -> usize {
        let mut frames = self.frames();
        let count = most.min(frames.len());
        into.extend(frames.drain(..count));
        self.has_frames.store(!frames.is_empty(), Ordering::Release);
        count
    }

    /// Schedules the NAPI if a frame waits: it was not enabled when the frame came.
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

    /// Its shard takes nothing any more: what is there is dropped, and what comes goes to the others.
    pub(crate) fn close(&self) {
        let mut frames = self.frames();
        self.is_closed.store(true, Ordering::Relaxed);
        frames.clear();
        self.has_frames.store(false, Ordering::Release);
    }
}

/// The numbers by which frames know the shards of a network that has the device alone. None: it has more of them than frames can
/// tell that they were with.
pub(crate) fn numbers(shards: usize) -> Option<Arc<[u32]>> {
    (shards <= QUEUES_MAX).then(|| (0..shards as u32).collect())
}

/// A shard's way to the others.
#[derive(Debug)]
pub(crate) struct Siblings {
    own: usize,
    inboxes: Arc<[Inbox]>,
    /// By which frames know the shards, each below [`QUEUES_MAX`].
    numbers: Arc<[u32]>,
}

impl Siblings {
    /// Of shard `own`. None, if it has no others.
    pub(crate) fn of(own: usize, inboxes: &Arc<[Inbox]>, numbers: &Arc<[u32]>) -> Option<Siblings> {
        (inboxes.len() > 1).then(|| Siblings { own, inboxes: inboxes.clone(), numbers: numbers.clone() })
    }

    /// Gives a frame to the next shard that has not seen it. False: all have that are up.
    pub(crate) fn take_stranger(&self, frame: &Frame) -> bool {
        self.pass_on(frame, frame.seen_by())
    }

    /// As [`Siblings::take_stranger`], of a segment of no connection that may end a handshake which another shard remembers by a
    /// cookie alone: all are asked once more, this one being done.
    pub(crate) fn take_last_acknowledgement(&self, frame: &Frame) -> bool {
        self.pass_on(frame, LAST_ROUND)
    }

    /// Tells the others that this shard has made a connection of a frame.
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
        // The frame's own memory is the device's, and goes back to it now.
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
        // The last round begins with whoever is the first besides the one that asks for it.
        assert!(siblings[2].take_last_acknowledgement(&frame));
        assert!(inboxes[0].has_frames());
    }

    #[test]
    fn frames_are_marked_with_the_numbers_that_all_processes_know() {
        let (inboxes, _) = inboxes(2);
        let siblings = Siblings::of(0, &inboxes, &[3, 5].into()).unwrap();
        let mut frame = Frame::copy_from(b"stranger");
        // Queues 0 and 1 are other processes'.
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
