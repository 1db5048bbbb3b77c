//! Owned frames and the pools that they are drawn from.
//!
//! A frame is a handle of one machine word, so that a ring moves it without copying it. The buffer has headroom,
//! so that a lower layer prepends its header in place, and may continue in a chain of further segments. It is memory of
//! the heap, or a [`Chunk`] of a device's, which goes back to its [`Origin`].

mod large;
mod memory;

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use large::LargeFrames;
use memory::Memory;
pub use memory::{Chunk, Origin};

use crate::afresh::Afresh;

/// Bytes kept free in front of a freshly allocated frame's data.
pub const HEADROOM_BYTES: usize = 64;
/// Data bytes that a pool's ordinary frame holds behind its headroom: an Ethernet frame of the usual MTU, rounded up.
pub const FRAME_BYTES: usize = 2048 - HEADROOM_BYTES;
/// Data bytes that a pool's large frame holds: the longest IP packet, with an Ethernet header and VLAN tags.
pub const LARGE_FRAME_BYTES: usize = 65_536 + 64;

/// What is known, or asked for, about a frame's transport checksum (`skb->ip_summed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing is known (receive) or nothing is asked for (transmit): the bytes are final.
    #[default]
    None,
    /// Receive: the device, or a trusted in-machine peer, vouches for it.
    Unnecessary,
    /// Transmit: the device fills it in, and finds the folded sum of the pseudo header in its place (`CHECKSUM_PARTIAL`).
    /// Receive: the peer left it to the device and the data never left the machine.
    Partial,
}

/// Segmentation offload asked for (transmit) or undone by the device (receive).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// The frame is one wire frame.
    #[default]
    None,
    /// TCP payload to be cut into segments of this many bytes (TSO, or LRO on receive). The checksum is
    /// [`Checksum::Partial`], and IP's length and the pseudo header's are those of the whole.
    Tcp {
        /// Payload bytes of each wire segment.
        mss_bytes: u16,
    },
    /// Receive only: UDP datagrams of one flow that were joined (`SKB_GSO_UDP_L4`). The lengths in the headers are those of the
    /// whole. No device is given one.
    Udp {
        /// Payload bytes of each datagram but the last, which may be shorter.
        datagram_bytes: u16,
    },
}

/// Who sends a frame, and how (`skb->sk`, `skb->priority`): for queueing disciplines between a stack and its ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Its rate, in bytes a second (SO_MAX_PACING_RATE); 0: as fast as it goes.
    pub pacing_bytes_per_s: u64,
    /// A number that tells it from the other senders of the queue; 0: nobody in particular.
    pub id: u32,
    /// Tells it from those that had the same number before it.
    pub generation: u16,
    /// SO_PRIORITY.
    pub priority: u8,
}

#[derive(Debug)]
struct Buffer {
    head: u32,
    len: u32,
    checksum: Checksum,
    segmentation: Segmentation,
    rss_hash: u32,
    seen_by: u32,
    sender: Sender,
    /// Of the size that pools keep, and of the heap.
    ordinary: bool,
    next: Option<Frame>,
    origin: Option<Arc<Origin>>,
    memory: Memory,
}

impl Buffer {
    fn new(memory: Memory, ordinary: bool) -> Buffer {
        Buffer {
            head: HEADROOM_BYTES as u32,
            len: 0,
            checksum: Checksum::None,
            segmentation: Segmentation::None,
            rss_hash: 0,
            seen_by: 0,
            sender: Sender::default(),
            ordinary,
            next: None,
            origin: None,
            memory,
        }
    }

    fn reset(&mut self) {
        self.head = HEADROOM_BYTES as u32;
        self.len = 0;
        self.checksum = Checksum::None;
        self.segmentation = Segmentation::None;
        self.rss_hash = 0;
        self.seen_by = 0;
        self.sender = Sender::default();
    }
}

/// An owned frame. Dropping it frees its buffer, or sends it to its [`Origin`]; [`FramePool::recycle`] keeps a buffer of
/// the heap for the next frame.
#[derive(Debug)]
pub struct Frame(ManuallyDrop<Box<Buffer>>);

impl Frame {
    /// A frame with `capacity_bytes` of room for data behind the standard headroom, empty.
    pub fn with_capacity(capacity_bytes: usize) -> Frame {
        let memory = Memory::allocate(HEADROOM_BYTES + capacity_bytes);
        Frame(ManuallyDrop::new(Box::new(Buffer::new(memory, capacity_bytes == FRAME_BYTES))))
    }

    /// A frame that holds a copy of `data`.
    pub fn copy_from(data: &[u8]) -> Frame {
        let mut frame = Frame::with_capacity(data.len().max(FRAME_BYTES));
        frame.set_len(data.len());
        frame.data_mut().copy_from_slice(data);
        frame
    }

    /// The data of this segment, first byte of the Ethernet header first.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let head = self.0.head as usize;
        &self.0.memory[head..head + self.0.len as usize]
    }

    /// The data of this segment, to be changed.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let head = self.0.head as usize;
        let len = self.0.len as usize;
        &mut self.0.memory[head..head + len]
    }

    /// Bytes of data in this segment.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Whether this segment holds no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Bytes of data in the whole chain.
    pub fn chain_len(&self) -> usize {
        let mut total = 0;
        let mut at = Some(self);
        while let Some(frame) = at {
            total += frame.len();
            at = frame.next();
        }
        total
    }

    /// The segments of the chain, this one first.
    pub fn segments(&self) -> impl Iterator<Item = &Frame> {
        std::iter::successors(Some(self), |frame| frame.next())
    }

    /// Room for data from the current first byte on.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.memory.len() - self.0.head as usize
    }

    /// Sets the length of the data. Bytes beyond the former length are whatever the buffer held.
    ///
    /// # Panics
    /// If `len` exceeds [`Frame::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "frame of capacity {} cannot hold {len} bytes", self.capacity());
        self.0.len = len as u32;
    }

    /// Free bytes in front of the data.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.0.head as usize
    }

    /// Extends the data to the front by `count` bytes and returns them (`skb_push`).
    ///
    /// # Panics
    /// If `count` exceeds [`Frame::headroom`].
    #[inline]
    pub fn push_front(&mut self, count: usize) -> &mut [u8] {
        assert!(count <= self.headroom(), "headroom of {} bytes cannot take {count}", self.headroom());
        self.0.head -= count as u32;
        self.0.len += count as u32;
        &mut self.data_mut()[..count]
    }

    /// Cuts `count` bytes off the front (`skb_pull`).
    ///
    /// # Panics
    /// If `count` exceeds [`Frame::len`].
    #[inline]
    pub fn pull_front(&mut self, count: usize) {
        assert!(count <= self.len(), "frame of {} bytes cannot lose {count}", self.len());
        self.0.head += count as u32;
        self.0.len -= count as u32;
    }

    fn clone_segment(&self) -> Frame {
        let mut copy = Frame::with_capacity(self.capacity().max(FRAME_BYTES));
        copy.set_len(self.len());
        copy.data_mut().copy_from_slice(self.data());
        copy.0.checksum = self.0.checksum;
        copy.0.segmentation = self.0.segmentation;
        copy.0.rss_hash = self.0.rss_hash;
        copy.0.sender = self.0.sender;
        copy.0.seen_by = self.0.seen_by;
        copy
    }

    /// The next segment of the chain.
    #[inline]
    pub fn next(&self) -> Option<&Frame> {
        self.0.next.as_ref()
    }

    /// Puts `next` behind this segment and returns what was there.
    pub fn set_next(&mut self, next: Option<Frame>) -> Option<Frame> {
        std::mem::replace(&mut self.0.next, next)
    }

    /// The transport checksum's state.
    #[inline]
    pub fn checksum(&self) -> Checksum {
        self.0.checksum
    }

    /// Sets the transport checksum's state.
    #[inline]
    pub fn set_checksum(&mut self, checksum: Checksum) {
        self.0.checksum = checksum;
    }

    /// The segmentation asked for or undone.
    #[inline]
    pub fn segmentation(&self) -> Segmentation {
        self.0.segmentation
    }

    /// Sets the segmentation asked for or undone.
    #[inline]
    pub fn set_segmentation(&mut self, segmentation: Segmentation) {
        self.0.segmentation = segmentation;
    }

    /// The RSS hash that the receiving device computed, 0 if it computed none.
    #[inline]
    pub fn rss_hash(&self) -> u32 {
        self.0.rss_hash
    }

    /// Sets the RSS hash.
    #[inline]
    pub fn set_rss_hash(&mut self, hash: u32) {
        self.0.rss_hash = hash;
    }

    /// Transmit: who sends it.
    #[inline]
    pub fn sender(&self) -> Sender {
        self.0.sender
    }

    /// Notes who sends it.
    #[inline]
    pub fn set_sender(&mut self, sender: Sender) {
        self.0.sender = sender;
    }

    /// The queues whose processes could not place this frame and passed it on, a bit each ([`crate::passing`]); 0 for one that
    /// the device has just received.
    #[inline]
    pub fn seen_by(&self) -> u32 {
        self.0.seen_by
    }

    /// Sets the queues whose processes could not place the frame.
    #[inline]
    pub fn set_seen_by(&mut self, queues: u32) {
        self.0.seen_by = queues;
    }
}

impl Clone for Frame {
    /// A deep copy of the whole chain (a fault injector's duplicate).
    fn clone(&self) -> Frame {
        let copies: Vec<Frame> = self.segments().map(Frame::clone_segment).collect();
        let behind = |rest, mut copy: Frame| {
            copy.0.next = Some(rest);
            copy
        };
        copies.into_iter().rev().reduce(behind).expect("a chain has a first segment")
    }
}

/// Frames that pools exchange at a time.
const MAGAZINE_FRAMES: usize = 64;
/// Magazines that the depot holds at most: 35 MB of frames.
const DEPOT_MAGAZINES: usize = 256;

/// Where full pools leave frames for empty ones, a magazine at a time. One end of a connection often sends more frames
/// than it receives; without a depot it would allocate what the other end frees, across cores, for ever.
static DEPOT: Afresh<Mutex<Vec<Vec<Frame>>>> = Afresh::new();

/// Another process's threads had it.
pub(crate) fn forget_depot() {
    DEPOT.forget();
}

fn depot() -> MutexGuard<'static, Vec<Vec<Frame>>> {
    // Magazines are moved in and out whole: a panic elsewhere cannot leave one half-moved.
    DEPOT.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A free list of ordinary frames with one owner: a shard, a generator. Frames that come in from a device and are
/// recycled feed the frames that go out; what one pool has too many of, others get through a depot, by the magazine.
#[derive(Debug)]
pub struct FramePool {
    free: Vec<Frame>,
    free_max: usize,
    /// Made when the first large frame is wanted.
    large: Option<LargeFrames>,
}

impl FramePool {
    /// A pool that keeps at most `free_max` frames.
    pub fn new(free_max: usize) -> FramePool {
        FramePool { free: Vec::with_capacity(free_max.min(1024)), free_max, large: None }
    }

    /// An empty frame with room for [`FRAME_BYTES`].
    #[inline]
    pub fn alloc(&mut self) -> Frame {
        match self.free.pop() {
            Some(frame) => frame,
            None => self.refill(),
        }
    }

    /// An empty frame with room for `bytes`: an ordinary one, a large one, or one made to measure.
    #[inline]
    pub fn alloc_for(&mut self, bytes: usize) -> Frame {
        if bytes <= FRAME_BYTES { self.alloc() } else { self.alloc_large(bytes) }
    }

    #[cold]
    fn alloc_large(&mut self, bytes: usize) -> Frame {
        if bytes > LARGE_FRAME_BYTES {
            return Frame::with_capacity(bytes);
        }
        self.large.get_or_insert_with(|| LargeFrames::new(LARGE_FRAME_BYTES)).take()
    }

    #[cold]
    fn refill(&mut self) -> Frame {
        if self.free_max >= MAGAZINE_FRAMES
            && let Some(mut magazine) = depot().pop()
        {
            self.free.append(&mut magazine);
        }
        self.free.pop().unwrap_or_else(|| Frame::with_capacity(FRAME_BYTES))
    }

    /// Takes a frame back. A chain is taken apart; a device's memory goes home; odd sizes, and what neither the pool nor
    /// the depot holds, are freed.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        let mut rest = Some(frame);
        while let Some(mut frame) = rest {
            rest = frame.set_next(None);
            if frame.0.ordinary {
                if self.free.len() >= self.free_max {
                    self.make_room();
                }
                if self.free.len() < self.free_max {
                    frame.0.reset();
                    self.free.push(frame);
                }
            }
        }
    }

    /// Leaves a magazine in the depot if that has room for one.
    #[cold]
    fn make_room(&mut self) {
        if self.free.len() < MAGAZINE_FRAMES {
            return;
        }
        let mut depot = depot();
        if depot.len() < DEPOT_MAGAZINES {
            depot.push(self.free.split_off(self.free.len() - MAGAZINE_FRAMES));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_takes_a_header_and_gives_it_back() {
        let mut frame = Frame::copy_from(b"payload");
        frame.push_front(3).copy_from_slice(b"hdr");
        assert_eq!(frame.data(), b"hdrpayload");
        frame.pull_front(3);
        assert_eq!(frame.data(), b"payload");
    }

    #[test]
    fn a_full_pool_feeds_an_empty_one() {
        let (mut full, mut empty) = (FramePool::new(MAGAZINE_FRAMES), FramePool::new(MAGAZINE_FRAMES));
        let frames: Vec<Frame> = (0..2 * MAGAZINE_FRAMES).map(|_| full.alloc()).collect();
        frames.into_iter().for_each(|frame| full.recycle(frame));
        // Tests share the depot: the frames need not be the same ones, but the pool takes a whole magazine.
        let frame = empty.alloc();
        assert_eq!((frame.len(), frame.headroom()), (0, HEADROOM_BYTES));
        assert_eq!(empty.free.len(), MAGAZINE_FRAMES - 1);
    }

    /// A device may cut a packet into a segment for each byte.
    #[test]
    fn a_chain_may_be_longer_than_a_stack_is_deep() {
        const SEGMENTS: usize = 20_000;
        let whole = || {
            let behind = |rest, _| {
                let mut frame = Frame::with_capacity(0);
                frame.set_next(Some(rest));
                frame
            };
            (1..SEGMENTS).fold(Frame::with_capacity(0), behind)
        };
        let handled = move || {
            assert_eq!(whole().clone().segments().count(), SEGMENTS);
            let mut pool = FramePool::new(1);
            pool.recycle(whole());
            pool.recycle(whole().clone());
            assert_eq!(pool.free.len(), 1);
        };
        std::thread::Builder::new().stack_size(128 << 10).spawn(handled).unwrap().join().unwrap();
    }

    #[test]
    fn pool_reuses_and_resets() {
        let mut pool = FramePool::new(1);
        let mut frame = pool.alloc();
        frame.set_len(9);
        frame.set_checksum(Checksum::Partial);
        frame.set_next(Some(Frame::copy_from(b"tail")));
        pool.recycle(frame);
        let frame = pool.alloc();
        assert_eq!((frame.len(), frame.checksum(), frame.next().is_none()), (0, Checksum::None, true));
        assert_eq!(frame.headroom(), HEADROOM_BYTES);
    }
}
