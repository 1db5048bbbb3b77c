//! Holds a device to the rules of [`crate::device`].
//!
//! [`check`] drives the first queue of a device and, through a [`Wire`], what is at its other end, and says which rule
//! broke first. A device's author runs it in a test; the devices here pass it in theirs.
//!
//! ```
//! use lull_nic::conformance::{self, Ports};
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::Device;
//!
//! let (port, peer) = mem::pair(MemConfig { ring_slots: 8, ..MemConfig::default() });
//! conformance::check(&port, &mut Ports(peer.take_queue(0)?)).unwrap();
//! # Ok::<(), lull_nic::DeviceError>(())
//! ```
//!
//! What one thread cannot see stays with the author: the fences of rules 1 and 4 (`loom` finds those that are missing).

mod receive;
mod send;

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::device::{Device, IrqLine, IrqSink, Queue};
use crate::eventfd::{EventFdSink, readable};
use crate::frame::{Frame, FramePool};

/// How long [`check`] waits for an interrupt that is due: it may be in a kernel's or another thread's hands.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Slots that the rings of a device under [`check`] have at least.
pub const SLOTS_MIN: usize = 5;

/// Frames that a poll takes at most where it is to empty the ring.
const POLL_BUDGET: usize = 64;

/// More polls than the longest ring takes to be empty.
const POLLS_MAX: usize = 20_000;

/// The rules, as [`crate::device`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Rule 1: no lost edge.
    NoLostEdge,
    /// Rule 2: short polls mean empty rings.
    ShortPolls,
    /// Rule 3: nothing before the doorbell.
    Doorbell,
    /// Rule 4: a full ring says when it has room.
    Room,
    /// Rule 5: frames go home.
    Home,
    /// Rule 6: no link, no waiting.
    NoLink,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::NoLostEdge => "rule 1 (no lost edge)",
            Rule::ShortPolls => "rule 2 (short polls mean empty rings)",
            Rule::Doorbell => "rule 3 (nothing before the doorbell)",
            Rule::Room => "rule 4 (a full ring says when it has room)",
            Rule::Home => "rule 5 (frames go home)",
            Rule::NoLink => "rule 6 (no link, no waiting)",
        })
    }
}

/// A rule that a device broke.
#[derive(Debug, thiserror::Error)]
#[error("{device}: breaks {rule} of the device contract: {what}")]
pub struct Broken {
    /// The device.
    pub device: String,
    /// The rule.
    pub rule: Rule,
    /// What it did.
    pub what: String,
}

/// What is at the other end of a device's first queue.
pub trait Wire {
    /// Makes `frame` arrive at `queue`: it is in the receive ring when this returns. `queue` is the device's own, for a
    /// device that receives what it sends.
    fn send(&mut self, queue: &mut Queue, frame: &[u8]);

    /// Takes what the device has sent and is not taken yet, in order, and lets go of the frames. Frames that the check
    /// did not send may be among them.
    fn receive(&mut self, queue: &mut Queue) -> Vec<Vec<u8>>;
}

/// The wire of a device whose peer is a device, too: the first queue of that.
pub struct Ports(pub Queue);

impl Wire for Ports {
    fn send(&mut self, _: &mut Queue, frame: &[u8]) {
        // A ring that others filled is theirs to empty: the frame is then missing, and the check says so.
        let _ = self.0.tx.transmit(Frame::copy_from(frame));
        self.0.tx.doorbell();
    }

    fn receive(&mut self, _: &mut Queue) -> Vec<Vec<u8>> {
        poll(&mut self.0, usize::MAX).1
    }
}

/// Holds the first queue of `device`, which nobody has taken, to the contract. The device is left as it was, with its
/// rings empty and its link up.
///
/// # Errors
/// The first rule that it broke, and how.
///
/// # Panics
/// If the queue cannot be taken, or the process is out of descriptors.
pub fn check(device: &dyn Device, wire: &mut dyn Wire) -> Result<(), Broken> {
    check_within(device, wire, PATIENCE)
}

/// [`check`], with another patience for interrupts that are due.
///
/// # Errors
/// As [`check`].
///
/// # Panics
/// As [`check`].
pub fn check_within(device: &dyn Device, wire: &mut dyn Wire, patience: Duration) -> Result<(), Broken> {
    let name = device.info().name;
    let queue =
        device.take_queue(0).unwrap_or_else(|error| panic!("the check needs the device's first queue: {error}"));
    let mut bench = Bench::new(device, queue, wire, patience);
    let result = receive::check(&mut bench).and_then(|()| send::check(&mut bench));
    bench.work.line.mask();
    bench.room.line.mask();
    result.map_err(|(rule, what)| Broken { device: name, rule, what })
}

/// Whether a rule was kept; the rule that was not, and what happened.
type Kept = Result<(), (Rule, String)>;

/// The device under test between the check and the wire.
struct Bench<'a> {
    device: &'a dyn Device,
    queue: Queue,
    wire: &'a mut dyn Wire,
    work: Interrupt,
    room: Interrupt,
    number: u32,
}

impl<'a> Bench<'a> {
    fn new(device: &'a dyn Device, queue: Queue, wire: &'a mut dyn Wire, patience: Duration) -> Bench<'a> {
        let (work, room) = (Interrupt::of(&queue.irq, patience), Interrupt::of(&queue.tx_irq, patience));
        Bench { device, queue, wire, work, room, number: 0 }
    }

    /// A frame unlike any before: to everybody, of the protocol for experiments (IEEE 802, 0x88b5).
    fn next_frame(&mut self) -> Vec<u8> {
        self.number += 1;
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0xc0, 0xde, 0x88, 0xb5]);
        frame.extend(self.number.to_be_bytes());
        frame.resize(64, 0x5a);
        frame
    }

    fn arrive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let frames: Vec<_> = (0..count).map(|_| self.next_frame()).collect();
        frames.iter().for_each(|frame| self.wire.send(&mut self.queue, frame));
        frames
    }

    fn poll(&mut self, budget: usize) -> (usize, Vec<Vec<u8>>) {
        poll(&mut self.queue, budget)
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        self.wire.receive(&mut self.queue)
    }

    /// Empties both rings.
    fn clear(&mut self) -> Kept {
        self.queue.tx.doorbell();
        while !self.received().is_empty() {
            self.queue.tx.doorbell();
        }
        self.queue.tx.reap_sent(&mut FramePool::new(0));
        for _ in 0..POLLS_MAX {
            match self.poll(POLL_BUDGET).0 {
                0 => return Ok(()),
                1..=POLL_BUDGET => {}
                count => return Err((Rule::ShortPolls, format!("a poll of {POLL_BUDGET} returned {count}"))),
            }
        }
        let what = format!("{POLLS_MAX} polls of {POLL_BUDGET} did not empty the ring: none returned 0");
        Err((Rule::ShortPolls, what))
    }
}

/// What one poll returned, and the frames that it brought.
fn poll(queue: &mut Queue, budget: usize) -> (usize, Vec<Vec<u8>>) {
    let mut frames = Vec::new();
    let count = queue.rx.poll(budget, &mut FramePool::new(0), &mut |frame, _| {
        frames.push(frame.segments().flat_map(Frame::data).copied().collect());
    });
    (count, frames)
}

/// A line, and what it did.
struct Interrupt {
    line: Arc<dyn IrqLine>,
    sink: Arc<Counter>,
    seen: usize,
    patience: Duration,
}

struct Counter {
    raises: AtomicUsize,
    event: EventFdSink,
}

impl IrqSink for Counter {
    fn raise(&self) {
        self.raises.fetch_add(1, Ordering::SeqCst);
        self.event.raise();
    }
}

impl Interrupt {
    fn of(line: &Arc<dyn IrqLine>, patience: Duration) -> Interrupt {
        let event = EventFdSink::new().unwrap_or_else(|error| panic!("the check needs a descriptor: {error}"));
        let sink = Arc::new(Counter { raises: AtomicUsize::new(0), event });
        line.connect(sink.clone());
        Interrupt { line: line.clone(), sink, seen: 0, patience }
    }

    /// Whether it is a descriptor: whoever watches it decides when it is masked.
    fn is_fd(&self) -> bool {
        self.line.fd().is_some()
    }

    /// Raises since the last look.
    fn raises(&mut self) -> usize {
        let raises = self.sink.raises.load(Ordering::SeqCst);
        let new = raises - std::mem::replace(&mut self.seen, raises);
        if new > 0 {
            self.sink.event.clear();
        }
        new
    }

    /// Whether it is raised now, or soon.
    fn is_raised(&mut self) -> bool {
        match self.line.fd() {
            Some(fd) => readable(fd, Some(self.patience)).unwrap_or(false),
            None => {
                self.raises() > 0
                    || readable(self.sink.event.as_fd(), Some(self.patience)).unwrap_or(false) && self.raises() > 0
            }
        }
    }
}
