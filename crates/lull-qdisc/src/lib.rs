//! Queueing disciplines (`net/sched`) as data structures: which frame a transmit queue sends next, and when.
//!
//! No clock, no device and no lock: time comes in with every call, a frame is anything that the caller moves ([`Packet::frame`]),
//! and whoever owns the transmit queue calls (`lull_core::tx` says who that is). So a queue of
//! threads and a simulated one have the same disciplines.
//!
//! | module | discipline | Linux |
//! | --- | --- | --- |
//! | `noqueue` | none: a frame that the ring does not take waits alone, and those behind it with their senders | `noqueue` |
//! | [`pfifo_fast`] | three bands by priority, 1000 frames each | `pfifo_fast` |
//! | [`fq`] | a flow per socket in turn, each paced | `sch_fq` |
//!
//! ```
//! use lull_qdisc::{Dequeued, Kind, Packet, Qdisc};
//!
//! let mut qdisc = Qdisc::new(Kind::Fq, 1514);
//! for (frame, flow) in [("a1", 1), ("a2", 1), ("b1", 2)] {
//!     // 12,500 bytes in 100 us for each flow.
//!     let packet = Packet { bytes: 1514, flow, rate_bytes_per_s: Some(125_000_000), ..Packet::new(frame) };
//!     assert!(qdisc.enqueue(packet, 0).is_ok());
//! }
//! let Dequeued::Packet(first) = qdisc.dequeue(0) else { panic!("nothing is throttled yet") };
//! assert_eq!(first.frame, "a1");
//! ```
#![forbid(unsafe_code)]

pub mod fq;
mod noqueue;
pub mod pfifo_fast;

use std::fmt;
use std::str::FromStr;

use fq::Fq;
use noqueue::NoQueue;
use pfifo_fast::PfifoFast;

/// The priority of a frame whose sender asked for none (`TC_PRIO_BESTEFFORT`).
pub const PRIORITY_BEST_EFFORT: u8 = 0;
/// The largest priority (`TC_PRIO_MAX`).
pub const PRIORITY_MAX: u8 = 15;
/// The priority of what keeps a network working, such as ARP (`TC_PRIO_CONTROL`).
pub const PRIORITY_CONTROL: u8 = 7;

/// A frame with what a discipline has to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<F> {
    /// The frame.
    pub frame: F,
    /// Its length on the wire.
    pub bytes: u32,
    /// Who sends it: any number that tells one socket from another.
    pub flow: u64,
    /// SO_PRIORITY, 0 to [`PRIORITY_MAX`]. What is more counts as that.
    pub priority: u8,
    /// SO_MAX_PACING_RATE, in bytes a second; `None`: as fast as it goes.
    pub rate_bytes_per_s: Option<u64>,
}

impl<F> Packet<F> {
    /// A frame of no length, of nobody, with the ordinary priority.
    pub fn new(frame: F) -> Packet<F> {
        Packet { frame, bytes: 0, flow: 0, priority: PRIORITY_BEST_EFFORT, rate_bytes_per_s: None }
    }
}

/// What a discipline has to send.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dequeued<F> {
    /// This, now.
    Packet(Packet<F>),
    /// Frames wait, the first of them until then.
    Throttled {
        /// In the caller's nanoseconds.
        until_ns: u64,
    },
    /// Nothing.
    Empty,
}

/// What a discipline counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QdiscStats {
    /// Frames taken.
    pub enqueued: u64,
    /// Frames refused because a limit was reached. Whoever gets one back drops it.
    pub dropped: u64,
    /// Times that a flow was put off by its rate (`fq`).
    pub throttled: u64,
}

/// Which discipline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// None.
    #[default]
    NoQueue,
    /// Three bands.
    PfifoFast,
    /// Flows in turn, paced.
    Fq,
}

impl Kind {
    /// All that there are.
    pub const ALL: [Kind; 3] = [Kind::NoQueue, Kind::PfifoFast, Kind::Fq];

    /// Its name in Linux.
    pub fn name(self) -> &'static str {
        match self {
            Kind::NoQueue => "noqueue",
            Kind::PfifoFast => "pfifo_fast",
            Kind::Fq => "fq",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindError(String);

impl fmt::Display for KindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no queueing discipline is named '{}': use noqueue, pfifo_fast or fq", self.0)
    }
}

impl std::error::Error for KindError {}

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(name: &str) -> Result<Kind, KindError> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| KindError(name.to_owned()))
    }
}

/// How many frames a discipline holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of each band of `pfifo_fast` (`txqueuelen`), of all flows of `fq` together (`limit`).
    pub frames: usize,
    /// Of one flow of `fq` (`flow_limit`).
    pub flow_frames: usize,
}

impl Limits {
    /// Those that Linux has by default.
    pub fn of(kind: Kind) -> Limits {
        let frames = match kind {
            Kind::NoQueue => 1,
            Kind::PfifoFast => pfifo_fast::BAND_FRAMES_MAX,
            Kind::Fq => fq::FRAMES_MAX,
        };
        Limits { frames, flow_frames: fq::FLOW_FRAMES_MAX }
    }
}

#[derive(Debug)]
enum Inside<F> {
    NoQueue(NoQueue<F>),
    PfifoFast(PfifoFast<F>),
    Fq(Box<Fq<F>>),
}

/// A discipline of any kind, with the place of a frame that the device gave back.
#[derive(Debug)]
pub struct Qdisc<F> {
    inside: Inside<F>,
    /// A frame that was dequeued and found no room on the ring (`gso_skb`): it is the next.
    back: Option<Packet<F>>,
    stats: QdiscStats,
}

impl<F> Qdisc<F> {
    /// An empty one with Linux's limits, for a device whose longest frame has `frame_bytes`.
    pub fn new(kind: Kind, frame_bytes: u32) -> Qdisc<F> {
        Qdisc::with_limits(kind, frame_bytes, Limits::of(kind))
    }

    /// An empty one that holds so much. `noqueue` holds one frame whatever they are.
    pub fn with_limits(kind: Kind, frame_bytes: u32, limits: Limits) -> Qdisc<F> {
        let inside = match kind {
            Kind::NoQueue => Inside::NoQueue(NoQueue::default()),
            Kind::PfifoFast => Inside::PfifoFast(PfifoFast::new(limits.frames)),
            Kind::Fq => Inside::Fq(Box::new(Fq::new(frame_bytes, limits))),
        };
        Qdisc { inside, back: None, stats: QdiscStats::default() }
    }

    /// Which it is.
    pub fn kind(&self) -> Kind {
        match self.inside {
            Inside::NoQueue(_) => Kind::NoQueue,
            Inside::PfifoFast(_) => Kind::PfifoFast,
            Inside::Fq(_) => Kind::Fq,
        }
    }

    /// Whether it takes a frame rather than leave it where it comes from. Only `noqueue`, which has nowhere to put it, does not;
    /// the others take everything, and drop what is above their limits.
    #[inline]
    pub fn takes(&self) -> bool {
        match &self.inside {
            Inside::NoQueue(queue) => queue.is_empty() && self.back.is_none(),
            _ => true,
        }
    }

    /// Takes a frame.
    ///
    /// # Errors
    /// The frame, which is to be dropped: a limit is reached. It is counted.
    #[inline]
    pub fn enqueue(&mut self, packet: Packet<F>, now_ns: u64) -> Result<(), Packet<F>> {
        let taken = match &mut self.inside {
            Inside::NoQueue(queue) => queue.enqueue(packet),
            Inside::PfifoFast(queue) => queue.enqueue(packet),
            Inside::Fq(queue) => queue.enqueue(packet, now_ns),
        };
        *(if taken.is_ok() { &mut self.stats.enqueued } else { &mut self.stats.dropped }) += 1;
        taken
    }

    /// The frame that is to be sent next.
    #[inline]
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeued<F> {
        if let Some(packet) = self.back.take() {
            return Dequeued::Packet(packet);
        }
        let packet = match &mut self.inside {
            Inside::NoQueue(queue) => queue.dequeue(),
            Inside::PfifoFast(queue) => queue.dequeue(),
            Inside::Fq(queue) => return queue.dequeue(now_ns),
        };
        packet.map_or(Dequeued::Empty, Dequeued::Packet)
    }

    /// The device had no room for what was dequeued last: it is dequeued again, before all others.
    ///
    /// # Panics
    /// If another was put back and not dequeued since.
    pub fn put_back(&mut self, packet: Packet<F>) {
        assert!(self.back.is_none(), "two frames were put back");
        self.back = Some(packet);
    }

    /// No frame is put off by its rate from now on, neither those that it has nor those to come: whoever sends is about to end, and
    /// has no later.
    pub fn end_pacing(&mut self) {
        if let Inside::Fq(queue) = &mut self.inside {
            queue.end_pacing();
        }
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        let inside = match &self.inside {
            Inside::NoQueue(queue) => usize::from(!queue.is_empty()),
            Inside::PfifoFast(queue) => queue.len(),
            Inside::Fq(queue) => queue.len(),
        };
        inside + usize::from(self.back.is_some())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it counted.
    pub fn stats(&self) -> QdiscStats {
        let throttled = if let Inside::Fq(queue) = &self.inside { queue.throttled() } else { 0 };
        QdiscStats { throttled, ..self.stats }
    }

    /// Takes everything out, in any order: the queue is taken down, or gets another discipline.
    pub fn drain(&mut self) -> Vec<Packet<F>> {
        let mut all: Vec<_> = self.back.take().into_iter().collect();
        match &mut self.inside {
            Inside::NoQueue(queue) => all.extend(queue.dequeue()),
            Inside::PfifoFast(queue) => all.extend(std::iter::from_fn(|| queue.dequeue())),
            Inside::Fq(queue) => all.extend(queue.drain()),
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_linuxs_and_a_wrong_one_is_told_which_there_are() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(Qdisc::<()>::new(kind, 1514).kind(), kind);
        }
        let error = "fq_codel".parse::<Kind>().unwrap_err().to_string();
        assert!(error.contains("'fq_codel'") && error.contains("pfifo_fast"), "{error}");
    }

    #[test]
    fn limits_are_the_bands_the_queues_and_the_flows() {
        let taken = |kind: Kind, limits: Limits| {
            let mut qdisc = Qdisc::with_limits(kind, 1514, limits);
            let flows = [1, 1, 1, 2, 2, 2];
            let fits = |flow: &&u64| qdisc.enqueue(Packet { bytes: 100, flow: **flow, ..Packet::new(()) }, 0).is_ok();
            flows.iter().filter(fits).copied().collect::<Vec<u64>>()
        };
        assert_eq!(taken(Kind::PfifoFast, Limits { frames: 4, flow_frames: 1 }), [1, 1, 1, 2]);
        assert_eq!(taken(Kind::Fq, Limits { frames: 4, flow_frames: 100 }), [1, 1, 1, 2]);
        assert_eq!(taken(Kind::Fq, Limits { frames: 100, flow_frames: 2 }), [1, 1, 2, 2]);
    }

    #[test]
    fn what_the_ring_gave_back_is_the_next_in_every_discipline() {
        for kind in Kind::ALL {
            let mut qdisc = Qdisc::new(kind, 1514);
            assert!(qdisc.takes());
            assert!(qdisc.enqueue(Packet { bytes: 100, flow: 1, ..Packet::new(1) }, 0).is_ok());
            assert_eq!(qdisc.takes(), kind != Kind::NoQueue, "{kind}: a frame waits for the ring");
            let Dequeued::Packet(first) = qdisc.dequeue(0) else { panic!("{kind}: nothing is throttled") };
            qdisc.put_back(first);
            assert_eq!((qdisc.takes(), qdisc.len()), (kind != Kind::NoQueue, 1));
            if kind != Kind::NoQueue {
                assert!(qdisc.enqueue(Packet { bytes: 100, flow: 2, priority: 7, ..Packet::new(2) }, 0).is_ok());
            }
            assert_eq!(qdisc.dequeue(0), Dequeued::Packet(first), "{kind}");
        }
    }
}
