//! What a device and its queues share.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::ring::{Stuck, holds_any, room};
use super::socket::{Rings, Umem};
use super::{HEADER_BYTES_MAX, XdpBusyPoll, XdpMode};
use crate::known::Known;
use crate::line::Line;
use crate::tally::Tally;
use crate::watch::Wake;
use crate::wire::VLAN_TAG;

/// The socket of a queue.
pub(super) struct Socket {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) rings: Arc<Rings>,
    pub(super) umem: Arc<Umem>,
    /// The chunks that are sent from; those before them are received into.
    pub(super) tx_chunks: Range<u32>,
    pub(super) zero_copy: bool,
    pub(super) counters: Tally,
    /// Calls that moved no frame, by any thread.
    pub(super) calls: AtomicU64,
    pub(super) room: Line,
    /// Transmit chunks that hold nothing: what the room interrupt goes by.
    pub(super) tx_free: AtomicU32,
    /// The index that the next slot of the transmit ring has.
    pub(super) tx_next: AtomicU32,
    /// Whether the last doorbell left frames on the ring.
    pub(super) stuck: Stuck,
    /// The kernel's NAPI, once a frame has named it.
    pub(super) napi_id: AtomicU32,
}

impl Socket {
    /// Whether calls on the socket poll the driver: the kernel names an instance only where that can be polled.
    pub(super) fn is_busy_polled(&self) -> bool {
        self.napi_id.load(Ordering::Relaxed) != 0
    }
}

/// What the device and its queues share.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) mac: [u8; 6],
    pub(super) mode: XdpMode,
    pub(super) queues: Vec<u32>,
    pub(super) vlan: Option<u16>,
    pub(super) rx_ring: u32,
    pub(super) tx_ring: u32,
    pub(super) native_refused: Option<String>,
    pub(super) busy_poll: XdpBusyPoll,
    pub(super) busy_poll_refused: Option<String>,
    pub(super) sockets: Vec<Socket>,
    pub(super) several_chunks: bool,
    /// The interface is a veth.
    pub(super) peer_is_in_the_machine: bool,
    pub(super) interface: Known,
    pub(super) events: OwnedFd,
    pub(super) wake: Arc<Wake>,
    /// The longest packet that the rings' memory is cut for.
    pub(super) mtu_bytes_max: usize,
    /// The link and what else is only kept open.
    pub(super) _kept: Vec<OwnedFd>,
}

impl Shared {
    /// Whether frames cannot be sent at all.
    pub(super) fn is_dead(&self) -> bool {
        self.interface.is_dead()
    }

    /// The longest packet now.
    pub(super) fn mtu_bytes(&self) -> usize {
        self.interface.mtu_bytes().min(self.mtu_bytes_max)
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.sockets[0].umem.chunk_bytes()
    }

    pub(super) fn frame_bytes_max(&self) -> usize {
        self.mtu_bytes() + HEADER_BYTES_MAX
    }

    /// Chunks that the longest frame takes.
    pub(super) fn segments_max(&self) -> usize {
        segments_max(self.mtu_bytes_max, self.vlan, self.chunk_bytes())
    }

    /// Whether a transmitter that found no room, or whose doorbell left frames, would now get on.
    pub(super) fn has_room(&self, socket: &Socket) -> bool {
        if self.is_dead() {
            return true;
        }
        if let Some(gets_on) = socket.stuck.gets_on(socket.rings.tx.consumer()) {
            return gets_on;
        }
        let completion = &socket.rings.completion;
        let free = socket.tx_free.load(Ordering::Relaxed) as usize;
        let completed = if holds_any(completion.producer(), completion.consumer()) {
            let produced = completion.producer().load(Ordering::Acquire);
            produced.wrapping_sub(completion.consumer().load(Ordering::Relaxed)) as usize
        } else {
            0
        };
        let slots = room(self.tx_ring, socket.tx_next.load(Ordering::Relaxed), socket.rings.tx.consumer()) as usize;
        (free + completed).min(slots) >= self.segments_max()
    }

    pub(super) fn wake_watch(&self) {
        self.wake.wake();
    }
}

/// Chunks that the longest frame takes which `transmit` lets through. It may have a tag of its sender's, and gets that of the device's
/// VLAN besides.
fn segments_max(mtu_bytes_max: usize, vlan: Option<u16>, chunk_bytes: usize) -> usize {
    (mtu_bytes_max + HEADER_BYTES_MAX + vlan.map_or(0, |_| VLAN_TAG)).div_ceil(chunk_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_with_a_tag_of_its_own_has_room_for_that_of_the_vlan() {
        // 4,096 bytes with the sender's tag, and four more with the device's.
        assert_eq!(segments_max(4078, None, 4096), 1);
        assert_eq!(segments_max(4078, Some(5), 4096), 2);
        assert_eq!(segments_max(1500, Some(5), 2048), 1);
    }
}
