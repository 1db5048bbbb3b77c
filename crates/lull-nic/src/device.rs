//! The contract between a NIC and those who deliver for it.
//!
//! # Writing a device
//!
//! A device implements four traits: [`Device`], [`RxQueue`], [`TxQueue`] and [`IrqLine`]. For what a device need not
//! have (moderation, RSS, a link to switch, a reset, events) there is a default that says so. Six rules matter that the
//! types do not check; [`crate::conformance::check`] does.
//!
//! Receiving:
//!
//! 1. *No lost edge.* The interrupt starts masked, a raise masks it, and [`IrqLine::unmask`] with work pending raises
//!    at once. Whoever publishes frames does so before it looks whether the line is armed, and whoever unmasks arms the
//!    line before it looks for frames; a lock (below) or a sequentially consistent fence stands in between.
//! 2. *Short polls mean empty rings.* [`RxQueue::poll`] returns less than its budget only if it found the ring empty.
//!
//! Sending:
//!
//! 3. *Nothing before the doorbell.* Frames that were transmitted leave at [`TxQueue::doorbell`]. If frames stay on the
//!    ring, the doorbell says so ([`Doorbell::Again`]), and they leave with a later one, after the room interrupt.
//! 4. *A full ring says when it has room.* It gives frames back, and [`TxQueue::free_slots`] is 0. Whoever finds it so
//!    rings the doorbell and then unmasks [`Queue::tx_irq`], the *room interrupt*, a line of the same kind as the
//!    receive interrupt: it starts masked, a raise masks it, unmasking with room raises at once. Room that nobody
//!    waits for raises nothing. When it is raised (after [`TxQueue::reap_sent`]) there are free slots, or another
//!    doorbell would now send more. A device may wait with it until a good part of the ring is free, if that part
//!    becomes free without anybody's doing.
//! 5. *Frames go home.* A frame belongs to the device from [`TxQueue::transmit`] until it is sent;
//!    [`TxQueue::reap_sent`] then gives it to the pool, which sends the memory of a device back to its origin
//!    ([`crate::frame::Origin`]). So does dropping it, anywhere and on any thread.
//! 6. *No link, no waiting.* Frames that cannot be sent at all are taken, dropped and counted, also by a full ring: all
//!    frames while the link is down and when the device is gone, and those that are too long or ask for an offload
//!    that it does not have. The room interrupt is raised, if armed, when the link goes down or the device ends.
//!
//! A *chain* ([`crate::Frame::next`]) is one frame: it is sent whole or given back whole, and takes one of the slots
//! that `free_slots` counts. A device whose ring takes a descriptor for each segment counts accordingly, or gathers
//! the chain.
//!
#![doc = include_str!("device/loopback.md")]
#![doc = include_str!("device/datagrams.md")]

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::frame::{Frame, FramePool, Sender};

/// The receive half of a queue. Only the owner of the queue's NAPI touches it.
pub trait RxQueue: Send {
    /// Takes up to `budget` frames off the ring, in order, and hands each to `deliver`. Returns how many it took.
    ///
    /// Fewer than `budget` means that the ring was empty at the end (driver rule, `napi_semantics` §4); the caller then
    /// completes the NAPI and unmasks the interrupt, and [`IrqLine::unmask`] closes the race with a frame that came
    /// in between. `budget` 0 takes nothing. Buffers that the device has to fill may be drawn from `pool`.
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize;
}

/// What a doorbell left on the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Everything is sent, or will be without anybody's doing.
    Done,
    /// Some frames stay on the ring until another doorbell: unmask the room interrupt, and ring again when it is
    /// raised. (AF_XDP in copy mode: the kernel took as many as it could.)
    Again,
}

/// The transmit half of a queue. Only the shard that the queue belongs to touches it.
pub trait TxQueue: Send {
    /// Puts a frame on the ring without telling the device, or gives it back if the ring is full.
    ///
    /// # Errors
    /// The frame, if there is no room: rule 4 says how to wait for it.
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame>;

    /// Tells the device about all frames that were transmitted since the last doorbell. One call may cover a batch.
    fn doorbell(&mut self) -> Doorbell;

    /// How many frames [`TxQueue::transmit`] would take now, at least; 0 only if there is no room.
    fn free_slots(&self) -> usize;

    /// As [`TxQueue::free_slots`], for frames of this sender: a queue above a ring bounds what each sender has in it. 0
    /// means a full ring for this sender alone, which waits for the room interrupt as well.
    fn room_for(&self, _sender: Sender) -> usize {
        self.free_slots()
    }

    /// Exactly how many frames were transmitted and not sent yet, for a device that can tell; whoever bounds how much
    /// stands on the ring asks for it. `None` means that nobody knows, and only the ring's size bounds it.
    fn outstanding(&self) -> Option<usize> {
        None
    }

    /// Takes the frames that were sent (their completions) off the device and gives them to `pool`; returns how many.
    /// This frees slots on a device that counts a slot as used until then. A device whose transmit hands the buffer on,
    /// or copies it, has nothing to reap; that is the default.
    fn reap_sent(&mut self, _pool: &mut FramePool) -> usize {
        0
    }
}

/// Where an interrupt goes: the CPU that the queue's vector is bound to.
pub trait IrqSink: Send + Sync {
    /// Called by any thread, at most once between two unmasks. Must not block.
    fn raise(&self);
}

/// A queue's interrupt: for frames that wait ([`Queue::irq`]), or for room in the transmit ring ([`Queue::tx_irq`],
/// whose work is room). It starts masked.
///
/// The line is a one-shot: raising it masks it, [`IrqLine::unmask`] arms it again, and unmasking with work pending
/// raises at once, so no edge is lost. [`IrqLine::mask`] only prevents further raises; one that is in flight may arrive.
pub trait IrqLine: Send + Sync {
    /// Sends the interrupt to `sink` from now on.
    fn connect(&self, sink: Arc<dyn IrqSink>);

    /// Masks the interrupt.
    fn mask(&self);

    /// Unmasks the interrupt; with work pending it is raised at once, to the sink, before this returns.
    fn unmask(&self);

    /// Whether frames wait, for a device that can tell this to any thread without its queue; then a busy poller's empty
    /// round takes no lock. It is a hint that may be late: whoever ends a busy poll polls the queue itself.
    fn pending(&self) -> Option<bool> {
        None
    }

    /// For a device whose interrupt the kernel raises (TAP, AF_XDP): the descriptor whose readability is the
    /// interrupt. The caller then watches it one-shot, and arming that watch is the unmasking: `connect`, `mask` and
    /// `unmask` do nothing. `None` for a device that calls the sink. A room interrupt always calls its sink; where only
    /// the kernel knows when there is room (POLLOUT), [`crate::WritableFd`] watches the descriptor while it is armed.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// One queue pair of an opened device.
pub struct Queue {
    /// Index on the device, from 0.
    pub index: usize,
    /// The receive half, polled by the queue's NAPI.
    pub rx: Box<dyn RxQueue>,
    /// The transmit half.
    pub tx: Box<dyn TxQueue>,
    /// The interrupt of the receive half.
    pub irq: Arc<dyn IrqLine>,
    /// The room interrupt of the transmit half. [`crate::AlwaysRoom`] for a device whose doorbell empties the ring, or
    /// whose full ring loses frames.
    pub tx_irq: Arc<dyn IrqLine>,
}

/// Link state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Frames pass.
    Up,
    /// Frames sent are dropped and counted; none arrive.
    Down,
}

/// What happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The link changed.
    Link(Link),
    /// The length of the longest packet has changed: [`DeviceInfo::mtu_bytes`] has the new one. Longer frames are
    /// dropped from now on.
    Mtu,
    /// The device was reset: frames in its rings are gone (and counted), interrupts are masked, settings of its own
    /// (moderation, RSS) are kept. Whoever runs its NAPIs disables and enables them.
    Reset,
    /// The device is gone for good; queues yield nothing and take nothing any more.
    Gone,
}

/// Interrupt moderation, as `ethtool -C` has it. 0 and 0 (or 1) mean an interrupt for every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Microseconds that an interrupt may wait after the first frame (`rx-usecs`).
    pub rx_usecs: u32,
    /// Frames after which it is raised nevertheless (`rx-frames`); 0: no such limit.
    pub rx_frames: u32,
}

/// What the device does for checksums and segmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Received frames come with [`crate::Checksum::Unnecessary`] when their checksum was verified.
    pub rx_checksum: bool,
    /// Frames may be sent with [`crate::Checksum::Partial`].
    pub tx_checksum: bool,
    /// Frames may be sent with [`crate::Segmentation::Tcp`].
    pub tso: bool,
}

/// Counters of one queue or of a device, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed to the poller.
    pub rx_frames: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// Frames lost because the receive ring was full.
    pub rx_dropped: u64,
    /// Frames lost to errors (too long, link down, reset).
    pub rx_errors: u64,
    /// Frames taken for transmission.
    pub tx_frames: u64,
    /// Bytes in them.
    pub tx_bytes: u64,
    /// Frames refused or lost on transmission.
    pub tx_dropped: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// System calls made for I/O (a device over the kernel pays its own read and write).
    pub syscalls: u64,
}

/// What a device is.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Interface name.
    pub name: String,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu_bytes: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Receive ring slots per queue.
    pub rx_ring: usize,
    /// Transmit ring slots per queue.
    pub tx_ring: usize,
    /// What it offloads.
    pub offloads: Offloads,
    /// A doorbell costs much, or less for each frame if there are several: frames that leave at about the same time
    /// should share one. So it is on a TAP, and with AF_XDP in copy mode, where the kernel takes the frames to their
    /// receivers in that call, and wakes these.
    pub dear_doorbell: bool,
}

/// A NIC. The defaults are those of a device without moderation, RSS, reset or events, whose link is always up.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// Hands out a queue pair. Each can be taken once.
    ///
    /// # Errors
    /// [`DeviceError::Queue`]: there is no such queue, or it was taken.
    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError>;

    /// Link state.
    fn link(&self) -> Link {
        Link::Up
    }

    /// Brings the link up or down; watchers are told.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default.
    fn set_link(&self, _link: Link) -> Result<(), DeviceError> {
        Err(self.unsupported("switching the link"))
    }

    /// Resets the device (see [`DeviceEvent::Reset`]); watchers are told.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default.
    fn reset(&self) -> Result<(), DeviceError> {
        Err(self.unsupported("a reset"))
    }

    /// Interrupt moderation in force.
    fn moderation(&self) -> Moderation {
        Moderation::default()
    }

    /// Changes the moderation.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default.
    fn set_moderation(&self, _moderation: Moderation) -> Result<(), DeviceError> {
        Err(self.unsupported("interrupt moderation"))
    }

    /// The RSS indirection table: a queue index per hash bucket. One entry means no RSS.
    fn rss_table(&self) -> Vec<usize> {
        vec![0]
    }

    /// Changes the RSS indirection table.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default.
    fn set_rss_table(&self, _table: &[usize]) -> Result<(), DeviceError> {
        Err(self.unsupported("setting the RSS table"))
    }

    /// The queue that receives the frames of a TCP or UDP flow from `source` to `destination` (addresses of one
    /// family), if the device can tell beforehand. A stack that opens a connection chooses its own port by this.
    fn rss_queue(&self, _source: SocketAddr, _destination: SocketAddr) -> Option<usize> {
        None
    }

    /// Counters of one queue; all zero for a device that counts nothing.
    fn counters(&self, _queue: usize) -> Counters {
        Counters::default()
    }

    /// Calls `watcher` on every later event, from the thread that causes it. By default there are none.
    fn watch(&self, _watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {}

    /// The error of a device that cannot do `what` at all.
    fn unsupported(&self, what: &'static str) -> DeviceError {
        DeviceError::Unsupported { device: self.info().name, what }
    }
}

/// Why a device could not do as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device cannot do this at all.
    #[error("{device}: {what} is not supported by this device")]
    Unsupported {
        /// Device name.
        device: String,
        /// What was asked.
        what: &'static str,
    },
    /// A value is outside what the device takes.
    #[error("{device}: cannot set {what}: {why}")]
    Invalid {
        /// Device name.
        device: String,
        /// The setting.
        what: &'static str,
        /// The value and the limit.
        why: String,
    },
    /// The queue does not exist or was taken before.
    #[error("{device}: queue {index} does not exist or is taken (the device has {queues})")]
    Queue {
        /// Device name.
        device: String,
        /// Queue index.
        index: usize,
        /// Queues that the device has.
        queues: usize,
    },
    /// The operating system refused.
    #[error("{device}: cannot {what}: {source}; {remedy}")]
    Os {
        /// Device name.
        device: String,
        /// What was tried.
        what: String,
        /// What would help.
        remedy: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

/// So that `?` works where sockets and files are used, too. The kind is the cause's.
impl From<DeviceError> for std::io::Error {
    fn from(error: DeviceError) -> std::io::Error {
        use std::io::ErrorKind;
        let kind = match &error {
            DeviceError::Unsupported { .. } => ErrorKind::Unsupported,
            DeviceError::Invalid { .. } => ErrorKind::InvalidInput,
            DeviceError::Queue { index, queues, .. } if index < queues => ErrorKind::ResourceBusy,
            DeviceError::Queue { .. } => ErrorKind::NotFound,
            DeviceError::Os { source, .. } => source.kind(),
        };
        std::io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn errors_of_devices_are_errors_of_io_of_the_same_kind_and_words() {
        let device = || "lull0".to_owned();
        let queue = |index| DeviceError::Queue { device: device(), index, queues: 2 };
        let refused = ErrorKind::PermissionDenied.into();
        let errors = [
            (DeviceError::Unsupported { device: device(), what: "RSS" }, ErrorKind::Unsupported),
            (queue(1), ErrorKind::ResourceBusy),
            (queue(2), ErrorKind::NotFound),
            (
                DeviceError::Os { device: device(), what: "open".to_owned(), remedy: "ask", source: refused },
                ErrorKind::PermissionDenied,
            ),
        ];
        for (error, kind) in errors {
            let words = error.to_string();
            let error = Error::from(error);
            assert_eq!((error.kind(), error.to_string()), (kind, words));
        }
    }
}
