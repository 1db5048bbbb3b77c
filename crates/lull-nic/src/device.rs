//! The contract between a NIC and those who deliver for it.
//!
//! # Writing a device
//!
//! A device implements four traits: [`Device`], [`RxQueue`], [`TxQueue`] and [`IrqLine`]. Three rules matter, and the
//! types do not check them:
//!
//! 1. *No lost edge.* The interrupt starts masked, a raise masks it, and [`IrqLine::unmask`] with work pending raises
//!    at once. Whoever publishes frames does so before it looks whether the line is armed; whoever unmasks arms the
//!    line before it looks for frames; with a lock (below) or a sequentially consistent fence between.
//! 2. *Short polls mean empty rings.* [`RxQueue::poll`] returns less than its budget only if it found the ring empty.
//! 3. *Nothing before the doorbell.* Frames that were transmitted leave at [`TxQueue::doorbell`].
//!
//! The whole of a loopback device, which receives what it sends:
//!
//! ```
//! use std::collections::VecDeque;
//! use std::sync::{Arc, Mutex};
//!
//! use lull_nic::{
//!     Counters, Device, DeviceError, DeviceEvent, DeviceInfo, EventFdSink, Frame, FramePool, IrqLine, IrqSink, Link,
//!     Moderation, Offloads, Queue, RxQueue, TxQueue,
//! };
//!
//! const SLOTS: usize = 256;
//!
//! /// What all parts share, behind one lock: simple, and enough for rule 1.
//! #[derive(Default)]
//! struct State {
//!     ring: VecDeque<Frame>,
//!     armed: bool,
//!     down: bool,
//!     sink: Option<Arc<dyn IrqSink>>,
//!     counters: Counters,
//!     taken: bool,
//! }
//!
//! impl State {
//!     /// Who is to be told that there is work, if the line is armed: the caller raises after it unlocks.
//!     fn take_raise(&mut self) -> Option<Arc<dyn IrqSink>> {
//!         if !self.armed || self.ring.is_empty() {
//!             return None;
//!         }
//!         self.armed = false;
//!         self.counters.interrupts += 1;
//!         self.sink.clone()
//!     }
//! }
//!
//! type Shared = Arc<Mutex<State>>;
//!
//! struct Rx(Shared);
//!
//! impl RxQueue for Rx {
//!     fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
//!         for taken in 0..budget {
//!             // The lock is not held while `deliver` runs: it may transmit.
//!             let Some(frame) = self.0.lock().unwrap().ring.pop_front() else { return taken };
//!             let mut state = self.0.lock().unwrap();
//!             state.counters.rx_frames += 1;
//!             state.counters.rx_bytes += frame.chain_len() as u64;
//!             drop(state);
//!             deliver(frame, pool);
//!         }
//!         budget
//!     }
//!
//!     fn has_work(&self) -> bool {
//!         !self.0.lock().unwrap().ring.is_empty()
//!     }
//! }
//!
//! struct Tx {
//!     shared: Shared,
//!     staged: Vec<Frame>,
//! }
//!
//! impl TxQueue for Tx {
//!     fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
//!         if self.free_slots() == 0 {
//!             return Err(frame);
//!         }
//!         self.staged.push(frame);
//!         Ok(())
//!     }
//!
//!     fn doorbell(&mut self) {
//!         let mut state = self.shared.lock().unwrap();
//!         if state.down {
//!             state.counters.tx_dropped += self.staged.drain(..).count() as u64;
//!             return;
//!         }
//!         for frame in self.staged.drain(..) {
//!             state.counters.tx_frames += 1;
//!             state.counters.tx_bytes += frame.chain_len() as u64;
//!             state.ring.push_back(frame);
//!         }
//!         let sink = state.take_raise();
//!         drop(state);
//!         sink.inspect(|sink| sink.raise());
//!     }
//!
//!     fn free_slots(&self) -> usize {
//!         SLOTS - self.staged.len() - self.shared.lock().unwrap().ring.len()
//!     }
//!
//!     fn reclaim(&mut self, _pool: &mut FramePool) -> usize {
//!         0 // The receiver has the buffers.
//!     }
//! }
//!
//! struct Irq(Shared);
//!
//! impl IrqLine for Irq {
//!     fn connect(&self, sink: Arc<dyn IrqSink>) {
//!         self.0.lock().unwrap().sink = Some(sink);
//!     }
//!
//!     fn mask(&self) {
//!         self.0.lock().unwrap().armed = false;
//!     }
//!
//!     fn unmask(&self) {
//!         let mut state = self.0.lock().unwrap();
//!         state.armed = true;
//!         let sink = state.take_raise();
//!         drop(state);
//!         sink.inspect(|sink| sink.raise());
//!     }
//! }
//!
//! #[derive(Default)]
//! struct Loopback {
//!     shared: Shared,
//!     watchers: Mutex<Vec<Box<dyn Fn(DeviceEvent) + Send + Sync>>>,
//! }
//!
//! impl Loopback {
//!     fn tell(&self, event: DeviceEvent) {
//!         self.watchers.lock().unwrap().iter().for_each(|watcher| watcher(event));
//!     }
//!
//!     fn unsupported(&self, what: &'static str) -> DeviceError {
//!         DeviceError::Unsupported { device: self.info().name, what }
//!     }
//! }
//!
//! impl Device for Loopback {
//!     fn info(&self) -> DeviceInfo {
//!         DeviceInfo {
//!             name: "loop".to_owned(),
//!             mac: [2, 0, 0, 0, 0, 9],
//!             mtu_bytes: 1500,
//!             queues: 1,
//!             rx_ring: SLOTS,
//!             tx_ring: SLOTS,
//!             offloads: Offloads::default(),
//!         }
//!     }
//!
//!     fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
//!         let mut state = self.shared.lock().unwrap();
//!         if index > 0 || std::mem::replace(&mut state.taken, true) {
//!             return Err(DeviceError::Queue { device: self.info().name, index, queues: 1 });
//!         }
//!         Ok(Queue {
//!             index,
//!             rx: Box::new(Rx(self.shared.clone())),
//!             tx: Box::new(Tx { shared: self.shared.clone(), staged: Vec::new() }),
//!             irq: Arc::new(Irq(self.shared.clone())),
//!         })
//!     }
//!
//!     fn link(&self) -> Link {
//!         if self.shared.lock().unwrap().down { Link::Down } else { Link::Up }
//!     }
//!
//!     fn set_link(&self, link: Link) -> Result<(), DeviceError> {
//!         self.shared.lock().unwrap().down = link == Link::Down;
//!         self.tell(DeviceEvent::Link(link));
//!         Ok(())
//!     }
//!
//!     fn reset(&self) -> Result<(), DeviceError> {
//!         let mut state = self.shared.lock().unwrap();
//!         let lost = state.ring.drain(..).count();
//!         state.counters.rx_errors += lost as u64;
//!         state.armed = false;
//!         drop(state);
//!         self.tell(DeviceEvent::Reset);
//!         Ok(())
//!     }
//!
//!     fn moderation(&self) -> Moderation {
//!         Moderation::default()
//!     }
//!
//!     fn set_moderation(&self, _: Moderation) -> Result<(), DeviceError> {
//!         Err(self.unsupported("interrupt moderation"))
//!     }
//!
//!     fn rss_table(&self) -> Vec<usize> {
//!         vec![0]
//!     }
//!
//!     fn set_rss_table(&self, _: &[usize]) -> Result<(), DeviceError> {
//!         Err(self.unsupported("RSS"))
//!     }
//!
//!     fn counters(&self, _queue: usize) -> Counters {
//!         self.shared.lock().unwrap().counters
//!     }
//!
//!     fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
//!         self.watchers.lock().unwrap().push(watcher);
//!     }
//! }
//!
//! let device = Loopback::default();
//! let Queue { mut rx, mut tx, irq, .. } = device.take_queue(0)?;
//! let sink = Arc::new(EventFdSink::new().expect("a descriptor"));
//! irq.connect(sink.clone());
//!
//! tx.transmit(Frame::copy_from(&[0; 60])).expect("an empty ring");
//! tx.doorbell();
//! assert!(!sink.clear(), "masked");
//! irq.unmask();
//! assert!(sink.clear(), "work was pending");
//! let mut pool = FramePool::new(SLOTS);
//! assert_eq!(rx.poll(64, &mut pool, &mut |frame, pool| pool.recycle(frame)), 1);
//! irq.unmask();
//! assert!(!sink.clear());
//! # Ok::<(), DeviceError>(())
//! ```

use std::fmt;
use std::net::SocketAddr;
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

    /// Frames that [`TxQueue::transmit`] would take now, at least; 0 only if there is no room.
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

    /// Whether frames wait, for a device that can tell from any thread without its queue: then a busy poller's empty
    /// round takes no lock. A hint that may be late, never the last word: who ends a busy poll polls the queue itself.
    fn pending(&self) -> Option<bool> {
        None
    }

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

    /// The queue that receives the frames of a TCP or UDP flow from `source` to `destination` (addresses of one family), if
    /// the device can tell beforehand. Whoever opens a connection chooses its own port by it.
    fn rss_queue(&self, _source: SocketAddr, _destination: SocketAddr) -> Option<usize> {
        None
    }

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
