//! The transmit half of a queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ring::{Consumer, Producer, wants_wakeup};
use super::shared::{Shared, Socket};
use super::socket::kick_tx;
use crate::checksum;
use crate::device::{Doorbell, TxQueue};
use crate::frame::{Frame, FramePool, Segmentation};
use crate::tally::{Tally, add};
use crate::wire::{ETHERNET, ETHERTYPE_VLAN, VLAN_TAG, put16};

pub(super) struct XdpTx {
    shared: Arc<Shared>,
    index: usize,
    ring: Producer,
    completions: Consumer,
    /// Chunks that hold nothing.
    free: Vec<u32>,
    /// Chunks on the ring that no doorbell has rung for.
    staged: Vec<u32>,
    /// Frames that were copied, to give back on `reap_sent`.
    sent: Vec<Frame>,
    /// In copy mode the kernel tells at the end of each call what it has taken off the ring (Linux 6.17), and not only when it has
    /// taken all that it saw there.
    tells_each_call: bool,
}

impl XdpTx {
    pub(super) fn new(shared: &Arc<Shared>, index: usize) -> XdpTx {
        XdpTx {
            shared: shared.clone(),
            index,
            ring: Producer::new(shared.tx_ring),
            completions: Consumer::new(shared.tx_ring),
            free: shared.sockets[index].tx_chunks.clone().collect(),
            staged: Vec::new(),
            sent: Vec::new(),
            tells_each_call: false,
        }
    }

    fn socket(&self) -> &Socket {
        &self.shared.sockets[self.index]
    }

    fn counters(&self) -> &Tally {
        &self.socket().counters
    }

    /// Takes the chunks of sent frames off the completion ring, and returns whether there were any.
    fn complete(&mut self) -> bool {
        let Shared { sockets, .. } = &*self.shared;
        let socket = &sockets[self.index];
        let before = self.free.len();
        while let Some(slot) = self.completions.take(socket.rings.completion.producer()) {
            self.free.push(socket.umem.locate(socket.rings.completion.read(slot)).0);
        }
        self.completions.release(socket.rings.completion.consumer());
        self.tell_free();
        self.free.len() > before
    }

    /// What the room interrupt goes by.
    fn tell_free(&self) {
        let socket = self.socket();
        socket.tx_free.store(self.free.len() as u32, Ordering::Relaxed);
        socket.tx_next.store(self.ring.next(), Ordering::Relaxed);
    }

    /// Copies `frame` into chunks and puts those on the ring. There are enough: `free_slots` was asked.
    fn stage(&mut self, frame: &Frame) {
        let (vlan, chunk_bytes) = (self.shared.vlan, self.socket().umem.chunk_bytes());
        if frame.next().is_none() && vlan.is_none() && frame.len() <= chunk_bytes {
            self.put(frame.len(), false, |memory| memory.copy_from_slice(frame.data()));
            return;
        }
        let mut bytes = frame.chain_len() + vlan.map_or(0, |_| VLAN_TAG);
        let mut source = Gather::new(frame, vlan);
        while bytes > 0 {
            let length = bytes.min(chunk_bytes);
            bytes -= length;
            self.put(length, bytes > 0, |memory| source.copy_to(memory));
        }
    }

    /// Puts a chunk with `length` bytes on the ring, which `write` writes.
    fn put(&mut self, length: usize, continues: bool, write: impl FnOnce(&mut [u8])) {
        let Shared { sockets, .. } = &*self.shared;
        let Socket { umem, rings, .. } = &sockets[self.index];
        // The slot is taken first, because a chunk without a slot would be lost.
        let slot = if self.free.is_empty() { None } else { self.ring.claim(rings.tx.consumer()) };
        let Some((slot, chunk)) = slot.and_then(|slot| Some((slot, self.free.pop()?))) else {
            debug_assert!(false, "`free_slots` counts chunks and slots");
            return;
        };
        // SAFETY: a transmit chunk that is on no ring is this half's alone, and the mapping is initialised.
        let memory = unsafe { umem.chunk(chunk).as_mut() };
        write(&mut memory[..length]);
        let options = if continues { libc::XDP_PKT_CONTD } else { 0 };
        rings.tx.write(slot, libc::xdp_desc { addr: umem.address(chunk), len: length as u32, options });
        self.staged.push(chunk);
    }

    /// Drops what was staged since the last doorbell.
    fn discard(&mut self) {
        self.ring.take_back();
        self.free.append(&mut self.staged);
        self.tell_free();
    }

    fn is_too_long(&self, frame: &Frame) -> bool {
        let length = frame.chain_len();
        length < ETHERNET || length > self.shared.frame_bytes_max() || frame.segmentation() != Segmentation::None
    }

    /// Frames' chunks that the kernel has not taken off the ring.
    fn left(&mut self) -> u32 {
        self.ring.left(self.shared.sockets[self.index].rings.tx.consumer())
    }

    /// Makes the kernel send until the ring is empty or it takes no more for now, and returns how many slots that left when it
    /// last looked. In copy mode no thread of the kernel sends, a call takes at most 32 frames, and what it returns says nothing
    /// about how many those were.
    fn kick(&mut self) -> u32 {
        /// `TX_BATCH_SIZE` in `net/xdp/xsk.c`.
        const FRAMES_A_CALL: u32 = 32;
        let mut left = self.left();
        // Before Linux 6.17 nothing tells how far a call came that has not emptied the ring.
        let mut untold = left.div_ceil(FRAMES_A_CALL);
        while left > 0 {
            let result = kick_tx(&self.socket().fd);
            add(&self.counters().tx_syscalls, 1);
            // A full completion ring stops the sending, too.
            let is_completed = self.complete();
            let before = std::mem::replace(&mut left, self.left());
            self.tells_each_call |= left > 0 && left < before;
            let is_stuck = match result {
                Err(error) if self.is_refused(&error) => true,
                Err(_) if left == before && !self.tells_each_call => {
                    untold -= u32::from(!is_completed && untold > 0);
                    untold == 0
                }
                // A driver sends what is left by itself.
                Ok(()) if self.socket().zero_copy => return 0,
                _ => left == before && !is_completed,
            };
            if is_stuck {
                break;
            }
        }
        left
    }

    /// Whether the device takes nothing for now. EAGAIN is no refusal: that many frames were enough for one call.
    fn is_refused(&self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => false,
            // The device was full, and has dropped the frame.
            Some(libc::EBUSY) => {
                add(&self.counters().tx_dropped, 1);
                true
            }
            Some(libc::ENXIO | libc::ENETDOWN | libc::ENODEV) => {
                // The device's thread tells those who wait for room: whoever would be told from here may hold the lock
                // of this transmitter.
                self.shared.interface.look_again();
                self.shared.wake_watch();
                true
            }
            _ => true,
        }
    }
}

impl TxQueue for XdpTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.shared.is_dead() || self.is_too_long(&frame) {
            add(&self.counters().tx_dropped, 1);
            return Ok(());
        }
        if self.free_slots() == 0 {
            return Err(frame);
        }
        let frame = checksum::complete(frame);
        self.stage(&frame);
        self.tell_free();
        let counters = self.counters();
        add(&counters.tx_frames, 1);
        add(&counters.tx_bytes, frame.chain_len() as u64);
        self.sent.push(frame);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        if self.shared.is_dead() {
            add(&self.counters().tx_dropped, self.staged.len() as u64);
            self.discard();
            return Doorbell::Done;
        }
        self.complete();
        let socket = &self.shared.sockets[self.index];
        let is_new = self.ring.publish(socket.rings.tx.producer()) > 0;
        self.staged.clear();
        if !is_new && !socket.stuck.is_set() {
            return Doorbell::Done;
        }
        let mut left = if wants_wakeup(socket.rings.tx.flags(), libc::XDP_RING_NEED_WAKEUP) { self.kick() } else { 0 };
        if left == 0 && self.shared.is_dead() {
            // Frames that stay on the ring while the link is down are kicked again once it is up.
            left = self.left();
        }
        self.socket().stuck.set((left > 0).then(|| self.ring.consumed()));
        if left == 0 || self.shared.is_dead() { Doorbell::Done } else { Doorbell::Again }
    }

    fn free_slots(&self) -> usize {
        // A device that is dead takes everything, and drops it.
        if self.shared.is_dead() {
            return self.shared.tx_ring as usize;
        }
        let slots = self.ring.room(self.socket().rings.tx.consumer()) as usize;
        self.free.len().min(slots) / self.shared.segments_max()
    }

    fn reap_sent(&mut self, pool: &mut FramePool) -> usize {
        self.complete();
        let count = self.sent.len();
        for frame in self.sent.drain(..) {
            pool.recycle(frame);
        }
        count
    }
}

/// The bytes of a chain in order, with a VLAN tag behind the addresses if the device is on a VLAN.
struct Gather<'a> {
    parts: VecDeque<&'a [u8]>,
    tag: [u8; VLAN_TAG],
    /// The tag's bytes that are still to come, once the addresses are through.
    tag_at: usize,
    tagged_after: usize,
}

impl<'a> Gather<'a> {
    fn new(frame: &'a Frame, vlan: Option<u16>) -> Gather<'a> {
        let mut tag = [0; VLAN_TAG];
        put16(&mut tag, 0, ETHERTYPE_VLAN);
        put16(&mut tag, 2, vlan.unwrap_or(0));
        let parts = frame.segments().map(Frame::data).collect();
        // Without a tag none of it is left.
        let tag_at = if vlan.is_some() { 0 } else { VLAN_TAG };
        Gather { parts, tag, tag_at, tagged_after: 12 }
    }

    fn copy_to(&mut self, mut to: &mut [u8]) {
        while !to.is_empty() {
            let tag_is_due = self.tagged_after == 0 && self.tag_at < VLAN_TAG;
            let before_tag = if self.tag_at < VLAN_TAG { self.tagged_after } else { usize::MAX };
            let part = if tag_is_due {
                &self.tag[self.tag_at..]
            } else {
                match self.parts.front() {
                    Some(part) => &part[..part.len().min(before_tag)],
                    None => return,
                }
            };
            let length = part.len().min(to.len());
            let (now, rest) = std::mem::take(&mut to).split_at_mut(length);
            now.copy_from_slice(&part[..length]);
            to = rest;
            if tag_is_due {
                self.tag_at += length;
                continue;
            }
            self.tagged_after = self.tagged_after.saturating_sub(length);
            if let Some(part) = self.parts.front_mut() {
                *part = &part[length..];
                if part.is_empty() {
                    self.parts.pop_front();
                }
            }
        }
    }
}
