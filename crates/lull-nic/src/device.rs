//! The contract between a NIC and those who deliver for it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::frame::{Frame, FramePool};

/// The receive half of a queue. Only the owner of the queue's NAPI touches it.
pub trait RxQueue: Send {
    /// Takes up to `budget` frames off the ring, in order, and hands each to `deliver`. Returns how many it took.
    ///
    /// Fewer than `budget` means that the ring was empty at the end (driver rule, `napi_semantics` §4); the caller then
    /// completes the NAPI and unmasks the interrupt, and [`IrqLine::unmask`] closes the race with a frame that came
    /// in between. `budget` 0 takes nothing. Buffers that the device has to fill may be drawn from `pool`.
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize;

    /// Whether a frame is waiting. A hint: it may be stale when it returns.
    fn has_work(&self) -> bool;
}

/// The transmit half of a queue. Only the shard that the queue belongs to touches it.
pub trait TxQueue: Send {
    /// Puts a frame on the ring without telling the device, or gives it back if the ring is full.
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame>;

    /// Tells the device about everything transmitted since the last doorbell. One call may cover a batch.
    fn doorbell(&mut self);

    /// Frames that [`TxQueue::transmit`] would take now.
    fn free_slots(&self) -> usize;

    /// Takes the buffers of sent frames back into `pool`; returns how many. A device whose transmit hands the buffer
    /// on, or copies it, has nothing to take back.
    fn reclaim(&mut self, pool: &mut FramePool) -> usize;
}

/// Where an interrupt goes: the CPU that the queue's vector is bound to.
pub trait IrqSink: Send + Sync {
    /// Called by any thread, at most once between two unmasks. Must not block.
    fn raise(&self);
}

/// A queue's interrupt. It starts masked.
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

    /// For a device whose interrupt the kernel raises (TAP, AF_XDP): the descriptor whose readability is the
    /// interrupt. The caller then watches it one-shot, and arming that watch is the unmasking: `connect`, `mask` and
    /// `unmask` do nothing. `None` for a device that calls the sink.
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
    /// The interrupt.
    pub irq: Arc<dyn IrqLine>,
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
}

/// A NIC.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// Hands out a queue pair. Each can be taken once.
    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError>;

    /// Link state.
    fn link(&self) -> Link;

    /// Brings the link up or down; watchers are told.
    fn set_link(&self, link: Link) -> Result<(), DeviceError>;

    /// Resets the device (see [`DeviceEvent::Reset`]); watchers are told.
    fn reset(&self) -> Result<(), DeviceError>;

    /// Interrupt moderation in force.
    fn moderation(&self) -> Moderation;

    /// Changes the moderation, or says that the device has none.
    fn set_moderation(&self, moderation: Moderation) -> Result<(), DeviceError>;

    /// The RSS indirection table: a queue index per hash bucket. One entry means no RSS.
    fn rss_table(&self) -> Vec<usize>;

    /// Changes the RSS indirection table.
    fn set_rss_table(&self, table: &[usize]) -> Result<(), DeviceError>;

    /// Counters of one queue.
    fn counters(&self, queue: usize) -> Counters;

    /// Calls `watcher` on every later event, from the thread that causes it.
    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>);
}

/// Why a device could not do as asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device cannot do this at all.
    Unsupported {
        /// Device name.
        device: String,
        /// What was asked.
        what: &'static str,
    },
    /// A value is outside what the device takes.
    Invalid {
        /// Device name.
        device: String,
        /// The setting.
        what: &'static str,
        /// The value and the limit.
        why: String,
    },
    /// The queue does not exist or was taken before.
    Queue {
        /// Device name.
        device: String,
        /// Queue index.
        index: usize,
        /// Queues that the device has.
        queues: usize,
    },
    /// The operating system refused.
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

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Unsupported { device, what } => write!(f, "{device}: {what} is not supported by this device"),
            DeviceError::Invalid { device, what, why } => write!(f, "{device}: cannot set {what}: {why}"),
            DeviceError::Queue { device, index, queues } => {
                write!(f, "{device}: queue {index} does not exist or is taken (the device has {queues})")
            }
            DeviceError::Os { device, what, remedy, source } => {
                write!(f, "{device}: cannot {what}: {source}; {remedy}")
            }
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DeviceError::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}
