//! What a device and its queues share.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::ring::{holds_any, room};
use super::socket::{Rings, Umem};
use super::{HEADER_BYTES_MAX, XdpBusyPoll, XdpMode};
use crate::device::{DeviceEvent, IrqSink, Link};
use crate::eventfd::EventFdSink;
use crate::interface;
use crate::line::Line;
use crate::tally::Tally;
use crate::watchers::Watchers;

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
    /// The last doorbell left frames on the ring, which had let go of this many by then. Above `u32`: it left none.
    pub(super) stuck_at: AtomicU64,
    /// The kernel's NAPI, once a frame has named it.
    pub(super) napi_id: AtomicU32,
}

pub(super) const NOT_STUCK: u64 = u64::MAX;

impl Socket {
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck_at.load(Ordering::Acquire) != NOT_STUCK
    }

    pub(super) fn set_stuck(&self, is_stuck: bool) {
        let at = if is_stuck { u64::from(self.rings.tx.consumer().load(Ordering::Acquire)) } else { NOT_STUCK };
        self.stuck_at.store(at, Ordering::Release);
    }

    /// Whether calls on the socket poll the driver: the kernel names an instance only where that can be polled.
    pub(super) fn is_busy_polled(&self) -> bool {
        self.napi_id.load(Ordering::Relaxed) != 0
    }
}

/// What the device and its queues share.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) ifindex: u32,
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
    pub(super) control: OwnedFd,
    pub(super) events: OwnedFd,
    pub(super) wake: EventFdSink,
    pub(super) watch_stopped: AtomicBool,
    /// The longest packet that the rings' memory is cut for.
    pub(super) mtu_bytes_max: usize,
    pub(super) mtu_bytes: AtomicUsize,
    pub(super) up: AtomicBool,
    pub(super) gone: AtomicBool,
    pub(super) watchers: Watchers,
    /// The link and what else is only kept open.
    pub(super) _kept: Vec<OwnedFd>,
}

impl Shared {
    pub(super) fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether frames cannot be sent at all.
    pub(super) fn is_dead(&self) -> bool {
        self.gone() || !self.up.load(Ordering::Relaxed)
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.sockets[0].umem.chunk_bytes()
    }

    pub(super) fn frame_bytes_max(&self) -> usize {
        self.mtu_bytes.load(Ordering::Relaxed).min(self.mtu_bytes_max) + HEADER_BYTES_MAX
    }

    /// Chunks that the longest frame takes.
    pub(super) fn segments_max(&self) -> usize {
        (self.mtu_bytes_max + HEADER_BYTES_MAX).div_ceil(self.chunk_bytes())
    }

    /// Whether a transmitter that found no room, or whose doorbell left frames, would now get on.
    pub(super) fn has_room(&self, socket: &Socket) -> bool {
        if self.is_dead() {
            return true;
        }
        let stuck_at = socket.stuck_at.load(Ordering::Acquire);
        if stuck_at != NOT_STUCK {
            return stuck_at != u64::from(socket.rings.tx.consumer().load(Ordering::Acquire));
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
        self.wake.raise();
    }

    pub(super) fn stop_watch(&self) {
        self.watch_stopped.store(true, Ordering::Release);
        self.wake_watch();
    }

    pub(super) fn is_watch_stopped(&self) -> bool {
        self.watch_stopped.load(Ordering::Acquire)
    }

    /// Asks the kernel how the interface is, and tells the watchers what is new.
    pub(super) fn look_again(&self) {
        match interface::state(&self.control, self.ifindex) {
            Ok(state) => {
                self.mtu_bytes.store(state.mtu_bytes, Ordering::Relaxed);
                if self.up.swap(state.running, Ordering::Relaxed) != state.running && !self.gone() {
                    self.watchers.tell(DeviceEvent::Link(if state.running { Link::Up } else { Link::Down }));
                }
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                if !self.gone.swap(true, Ordering::Relaxed) {
                    self.watchers.tell(DeviceEvent::Gone);
                }
            }
            // Nothing is known then; the next change asks again.
            Err(_) => {}
        }
        // Nobody waits for a device that takes and drops everything.
        if self.is_dead() {
            for socket in self.sockets.iter().filter(|socket| socket.room.vector.is_armed()) {
                if socket.room.vector.take() {
                    socket.room.fire();
                }
            }
        }
    }
}
