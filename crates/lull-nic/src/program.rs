//! Programs on the receive path, as XDP has them: before anything else sees a frame, a program passes it, drops it,
//! sends it back, or sends it out of another device.
//!
//! [`Programmed`] is a decorator over any device. A program runs inside the poll of the queue that a frame came in by, whoever
//! polls: softirq, a NAPI thread, a busy poller, a group. What it sends back or redirects leaves with one doorbell at the end of
//! the poll, as `xdp_do_flush` has it. A frame that finds the transmit ring full is dropped and counted, as in Linux, where an
//! XDP program's frames do not wait.
//!
//! ```
//! use std::sync::Arc;
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::program::{Action, Programmed};
//! use lull_nic::{Device, Frame, FramePool};
//!
//! let (service, client) = mem::pair(MemConfig::default());
//! // Frames of at least 64 bytes go back to where they came from; the stack above never sees them.
//! let service = Programmed::new(Arc::new(service), |_queue| {
//!     Box::new(|frame: &mut Frame| if frame.len() < 64 { Action::Pass } else { Action::Transmit })
//! });
//! let (mut ours, mut theirs) = (service.take_queue(0)?, client.take_queue(0)?);
//! theirs.tx.transmit(Frame::copy_from(&[0; 64])).expect("an empty ring");
//! theirs.tx.transmit(Frame::copy_from(&[0; 20])).expect("an empty ring");
//! theirs.tx.doorbell();
//!
//! let (mut pool, mut passed) = (FramePool::new(64), 0);
//! let polled = ours.rx.poll(64, &mut pool, &mut |frame, pool| {
//!     passed += 1;
//!     pool.recycle(frame);
//! });
//! assert_eq!((polled, passed), (2, 1));
//! assert_eq!(theirs.rx.poll(64, &mut pool, &mut |frame, pool| pool.recycle(frame)), 1);
//! # Ok::<(), lull_nic::DeviceError>(())
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use crate::device::{Device, DeviceError, Doorbell, IrqLine, IrqSink, Queue, RxQueue, TxQueue};
use crate::frame::{Frame, FramePool, Sender};
use crate::observe;

/// What becomes of a frame.
#[derive(Clone, Debug)]
pub enum Action {
    /// It goes on to whoever polls (`XDP_PASS`).
    Pass,
    /// It is forgotten (`XDP_DROP`).
    Drop,
    /// It leaves by the queue that it came in by (`XDP_TX`).
    Transmit,
    /// It leaves by another queue (`XDP_REDIRECT`).
    Redirect(Outlet),
    /// The program has failed: the frame is dropped and counted as such (`XDP_ABORTED`).
    Aborted,
}

/// A program: it looks at a frame, may change it, and says what becomes of it. A closure will do.
pub trait FrameProgram: Send {
    /// Runs on one frame.
    fn run(&mut self, frame: &mut Frame) -> Action;
}

impl<F: FnMut(&mut Frame) -> Action + Send> FrameProgram for F {
    fn run(&mut self, frame: &mut Frame) -> Action {
        self(frame)
    }
}

/// A transmit half that several send by: its owner, and programs.
type SharedTx = Arc<Mutex<Box<dyn TxQueue>>>;

fn lock(tx: &SharedTx) -> MutexGuard<'_, Box<dyn TxQueue>> {
    // A frame is put on a ring whole.
    tx.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where redirected frames leave: the transmit half of a queue of another device.
#[derive(Clone)]
pub struct Outlet {
    tx: SharedTx,
    room: Arc<dyn IrqLine>,
}

impl Outlet {
    /// The transmit half of a queue and its room interrupt ([`Queue::tx`], [`Queue::tx_irq`]). The receive half stays the caller's.
    pub fn new(tx: Box<dyn TxQueue>, room: Arc<dyn IrqLine>) -> Outlet {
        let tx: SharedTx = Arc::new(Mutex::new(tx));
        room.connect(Arc::new(RingsAgain { tx: Arc::downgrade(&tx), room: Arc::downgrade(&room) }));
        Outlet { tx, room }
    }
}

/// The room interrupt of an outlet: what a doorbell left on the ring leaves with the next one. Whoever has the ring at this moment
/// rings the doorbell before its poll ends, and looks for room afterwards if that leaves frames; and it may be that doorbell which
/// raises.
struct RingsAgain {
    tx: Weak<Mutex<Box<dyn TxQueue>>>,
    room: Weak<dyn IrqLine>,
}

impl IrqSink for RingsAgain {
    fn raise(&self) {
        let (Some(tx), Some(room)) = (self.tx.upgrade(), self.room.upgrade()) else { return };
        let left = match tx.try_lock() {
            Ok(mut ring) => ring.doorbell(),
            Err(TryLockError::Poisoned(ring)) => ring.into_inner().doorbell(),
            Err(TryLockError::WouldBlock) => return,
        };
        if left == Doorbell::Again {
            room.unmask();
        }
    }
}

impl std::fmt::Debug for Outlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
    }
}

/// What the programs of a device did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounts {
    /// Frames passed on.
    pub passed: u64,
    /// Frames dropped because the program said so.
    pub dropped: u64,
    /// Frames sent back.
    pub transmitted: u64,
    /// Frames sent out of another queue.
    pub redirected: u64,
    /// Frames that a program failed on.
    pub aborted: u64,
    /// Frames that were to be sent and found no room.
    pub no_room: u64,
}

#[derive(Default)]
struct Counted {
    passed: AtomicU64,
    dropped: AtomicU64,
    transmitted: AtomicU64,
    redirected: AtomicU64,
    aborted: AtomicU64,
    no_room: AtomicU64,
}

/// Makes the program of a queue.
type Make = Box<dyn FnMut(usize) -> Box<dyn FrameProgram> + Send>;

/// A device with a program on each queue.
pub struct Programmed {
    inner: Arc<dyn Device>,
    make: Mutex<Make>,
    counted: Arc<Counted>,
}

impl Programmed {
    /// `device`, with what `make` makes for each queue that is taken: a queue's program has state of its own.
    pub fn new(
        device: Arc<dyn Device>,
        make: impl FnMut(usize) -> Box<dyn FrameProgram> + Send + 'static,
    ) -> Programmed {
        Programmed { inner: device, make: Mutex::new(Box::new(make)), counted: Arc::default() }
    }

    /// What the programs of all queues did.
    pub fn counts(&self) -> ProgramCounts {
        let counted = &self.counted;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProgramCounts {
            passed: read(&counted.passed),
            dropped: read(&counted.dropped),
            transmitted: read(&counted.transmitted),
            redirected: read(&counted.redirected),
            aborted: read(&counted.aborted),
            no_room: read(&counted.no_room),
        }
    }
}

struct Rx {
    rx: Box<dyn RxQueue>,
    /// The queue's own transmit half. Its room interrupt is its owner's, and schedules the queue's NAPI.
    own: Outlet,
    program: Box<dyn FrameProgram>,
    counted: Arc<Counted>,
    /// Where a doorbell is owed.
    owed: Vec<Outlet>,
    /// The last doorbell left frames on the own ring.
    unsent: bool,
}

/// Puts a frame on a transmit ring, and remembers that a doorbell is owed. A full ring loses it.
fn send(
    outlet: &Outlet,
    frame: Frame,
    pool: &mut FramePool,
    (sent, no_room): (&AtomicU64, &AtomicU64),
    owed: &mut Vec<Outlet>,
) {
    // Whoever finds the ring full rings the doorbell, too.
    if !owed.iter().any(|other| Arc::ptr_eq(&other.tx, &outlet.tx)) {
        owed.push(outlet.clone());
    }
    let mut ring = lock(&outlet.tx);
    ring.reap_sent(pool);
    match ring.transmit(frame) {
        Ok(()) => {
            sent.fetch_add(1, Ordering::Relaxed);
        }
        Err(frame) => {
            no_room.fetch_add(1, Ordering::Relaxed);
            pool.recycle(frame);
        }
    }
}

impl RxQueue for Rx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let Rx { rx, own, program, counted, owed, unsent } = self;
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let polled = rx.poll(budget, pool, &mut |mut frame, pool| match program.run(&mut frame) {
            Action::Pass => {
                count(&counted.passed);
                deliver(frame, pool);
            }
            Action::Drop => {
                count(&counted.dropped);
                pool.recycle(frame);
            }
            Action::Aborted => {
                count(&counted.aborted);
                pool.recycle(frame);
            }
            Action::Transmit => send(own, frame, pool, (&counted.transmitted, &counted.no_room), owed),
            Action::Redirect(outlet) => {
                send(&outlet, frame, pool, (&counted.redirected, &counted.no_room), owed);
            }
        });
        if std::mem::take(unsent) && !owed.iter().any(|outlet| Arc::ptr_eq(&outlet.tx, &own.tx)) {
            owed.push(own.clone());
        }
        // One doorbell for all of a poll. What it leaves on the ring waits for the room interrupt: the own one brings the next
        // poll, an outlet's rings.
        for outlet in owed.drain(..) {
            let left = lock(&outlet.tx).doorbell() == Doorbell::Again;
            if left {
                *unsent |= Arc::ptr_eq(&outlet.tx, &own.tx);
                outlet.room.unmask();
            }
        }
        polled
    }
}

/// The queue owner's handle of the transmit half, which the queue's program sends by as well.
struct Tx(SharedTx);

impl TxQueue for Tx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        lock(&self.0).transmit(frame)
    }

    fn doorbell(&mut self) -> Doorbell {
        lock(&self.0).doorbell()
    }

    fn free_slots(&self) -> usize {
        lock(&self.0).free_slots()
    }

    fn room_for(&self, sender: Sender) -> usize {
        lock(&self.0).room_for(sender)
    }

    /// The program's frames are on the ring as well.
    fn outstanding(&self) -> Option<usize> {
        lock(&self.0).outstanding()
    }

    fn reap_sent(&mut self, pool: &mut FramePool) -> usize {
        lock(&self.0).reap_sent(pool)
    }
}

impl Device for Programmed {
    observe::pass_on!();

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        let Queue { index, rx, tx, irq, tx_irq } = self.inner.take_queue(index)?;
        let own = Outlet { tx: Arc::new(Mutex::new(tx)), room: tx_irq.clone() };
        let program = {
            let mut make = self.make.lock().unwrap_or_else(PoisonError::into_inner);
            make(index)
        };
        let tx = Box::new(Tx(own.tx.clone()));
        let rx = Box::new(Rx { rx, own, program, counted: self.counted.clone(), owed: Vec::new(), unsent: false });
        Ok(Queue { index, rx, tx, irq, tx_irq })
    }
}
