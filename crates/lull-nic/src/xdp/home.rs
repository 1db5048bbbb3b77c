//! Where the receive chunks of a queue are at home, and how they come back to the kernel.
//!
//! A chunk is in the kernel's hands (on the fill or receive ring), in a frame somewhere in the process, or on the free
//! list here. The kernel stops receiving without a word when the fill ring runs dry, and nothing tells it of chunks
//! that come home later. So the queue refills before it hands frames on. If that leaves the kernel short, because the
//! stack holds many chunks, whoever brings a chunk home refills at once, and wakes a driver that sleeps for want of
//! one.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::ring::{Producer, wants_wakeup};
use super::socket::{Rings, Umem, kick_rx};
use crate::frame::{Chunk, Frame, HEADROOM_BYTES, Origin};

/// Bytes that the kernel leaves in front of a received frame (XDP_PACKET_HEADROOM).
pub(super) const KERNEL_HEADROOM_BYTES: usize = 256;

/// The chunks of one queue.
pub(super) struct Home {
    inside: Mutex<Inside>,
    rings: Arc<Rings>,
    umem: Arc<Umem>,
    /// The socket whose driver sleeps while it has no chunk, and has to be woken: in zero-copy mode.
    sleeps: OnceLock<Weak<OwnedFd>>,
}

struct Inside {
    free: Vec<Chunk>,
    fill: Producer,
    /// By chunk: the handle of one that the kernel has.
    lent: Vec<Option<Chunk>>,
    lent_count: usize,
    /// The kernel is short of chunks below this.
    low: usize,
}

impl Home {
    /// The first `chunks` chunks of `umem` at home, for a fill ring of `slots`; and the origin of their frames.
    pub(super) fn new(umem: &Arc<Umem>, rings: &Arc<Rings>, chunks: u32, slots: u32) -> (Arc<Home>, Arc<Origin>) {
        // SAFETY: every chunk of the anonymous mapping is zeros, made once, and its mapping lives as long as `Home`,
        // which the origin of each of its frames holds. The kernel has it only while its handle is in `lent`.
        let free = (0..chunks).map(|index| unsafe { Chunk::new(umem.chunk(index)) }).collect();
        let inside = Inside {
            free,
            fill: Producer::new(slots),
            lent: std::iter::repeat_with(|| None).take(chunks as usize).collect(),
            lent_count: 0,
            low: slots as usize / 2,
        };
        let home = Arc::new(Home {
            inside: Mutex::new(inside),
            rings: rings.clone(),
            umem: umem.clone(),
            sleeps: OnceLock::new(),
        });
        let taking = home.clone();
        (home, Origin::bounded(move |chunk| taking.take_back(chunk)))
    }

    pub(super) fn lock(&self) -> HomeGuard<'_> {
        // Chunks are moved whole, and the indices change behind them.
        HomeGuard { inside: self.inside.lock().unwrap_or_else(PoisonError::into_inner), home: self }
    }

    /// The driver of this socket sleeps while it has no chunk (need_wakeup).
    pub(super) fn wakes(&self, socket: &Arc<OwnedFd>) {
        let _ = self.sleeps.set(Arc::downgrade(socket));
    }

    fn take_back(&self, chunk: Chunk) {
        let mut home = self.lock();
        home.inside.free.push(chunk);
        if home.inside.lent_count >= home.inside.low {
            return;
        }
        home.refill();
        drop(home);
        if let Some(socket) = self.sleeps.get().and_then(Weak::upgrade)
            && wants_wakeup(self.rings.fill.flags(), libc::XDP_RING_NEED_WAKEUP)
        {
            // A device that is gone says so elsewhere.
            let _ = kick_rx(&socket);
        }
    }

    /// The chunk that a descriptor's address is in, and where.
    pub(super) fn locate(&self, address: u64) -> (u32, usize) {
        self.umem.locate(address)
    }
}

/// The home, locked. Frames are not dropped meanwhile: they come back through the same lock.
pub(super) struct HomeGuard<'a> {
    inside: MutexGuard<'a, Inside>,
    home: &'a Home,
}

impl HomeGuard<'_> {
    /// Gives the kernel what is free, as far as the fill ring has room.
    pub(super) fn refill(&mut self) {
        let Inside { free, fill, lent, lent_count, .. } = &mut *self.inside;
        let Home { rings, umem, .. } = self.home;
        while !free.is_empty()
            && let Some(slot) = fill.claim(rings.fill.consumer())
            && let Some(chunk) = free.pop()
        {
            let index = umem.index_of(chunk.memory());
            rings.fill.write(slot, umem.address(index));
            lent[index as usize] = Some(chunk);
            *lent_count += 1;
        }
        fill.publish(rings.fill.producer());
    }

    /// Takes the chunk back that the kernel has put a frame in; `None`: it did not have it.
    pub(super) fn received(&mut self, index: u32) -> Option<Chunk> {
        let chunk = self.inside.lent.get_mut(index as usize)?.take()?;
        self.inside.lent_count -= 1;
        Some(chunk)
    }
}

/// The frame of `length` bytes that begins `offset` bytes into `chunk`.
pub(super) fn frame_at(chunk: Chunk, offset: usize, length: usize, origin: &Arc<Origin>) -> Frame {
    let mut frame = chunk.into_frame(origin);
    let skipped = offset.saturating_sub(HEADROOM_BYTES);
    frame.set_len(skipped + length);
    frame.pull_front(skipped);
    frame
}
