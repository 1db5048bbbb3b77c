//! Queueing disciplines (`net/sched`) as data structures: which frame a transmit queue sends next, and when.
//!
//! There is no clock, no device and no lock: time comes in with every call, a frame is anything that the caller moves
//! ([`Packet::frame`]), and whoever owns the transmit queue calls (`lull_core::tx` says who that is). So a queue of
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
/// The priority of frames that keep a network working, such as ARP (`TC_PRIO_CONTROL`).
pub const PRIORITY_CONTROL: u8 = 7;

/// A frame and what a discipline has to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<F> {
    /// The frame.
    pub frame: F,
    /// Its length on the wire.
    pub bytes: u32,
    /// The socket that sends it: any number that tells one socket from another.
    pub flow: u64,
    /// SO_PRIORITY, 0 to [`PRIORITY_MAX`]. A greater value counts as [`PRIORITY_MAX`].
    pub priority: u8,
    /// SO_MAX_PACING_RATE, in bytes a second; with `None` the frame is not paced.
    pub rate_bytes_per_s: Option<u64>,
}

impl<F> Packet<F> {
    /// A frame with the ordinary priority. Its length and its flow are 0.
    pub fn new(frame: F) -> Packet<F> {
        Packet { frame, bytes: 0, flow: 0, priority: PRIORITY_BEST_EFFORT, rate_bytes_per_s: None }
    }
}

/// What a discipline has to send.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dequeued<F> {
    /// This frame, now.
    Packet(Packet<F>),
    /// Frames wait, and the first of them is due at `until_ns`.
    Throttled {
        /// The time, in the caller's nanoseconds.
        until_ns: u64,
    },
    /// Nothing waits.
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

/// The kind of a discipline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// No discipline.
    #[default]
    NoQueue,
    /// Three bands, by priority.
    PfifoFast,
    /// A flow per socket in turn, each paced.
    Fq,
}

impl Kind {
    /// All kinds.
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

/// The error for a name that no discipline has.
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
    /// Frames of each band of `pfifo_fast` (`txqueuelen`), or of all flows of `fq` together (`limit`).
    pub frames: usize,
    /// Frames of one flow of `fq` (`flow_limit`).
    pub flow_frames: usize,
}

impl Limits {
    /// The limits that Linux has by default.
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
    /// A frame that was dequeued and found no room on the ring (`gso_skb`). It is dequeued next.
    back: Option<Packet<F>>,
    stats: QdiscStats,
}

impl<F> Qdisc<F> {
    /// An empty discipline with Linux's limits, for a device whose longest frame has `frame_bytes`.
    pub fn new(kind: Kind, frame_bytes: u32) -> Qdisc<F> {
        Qdisc::with_limits(kind, frame_bytes, Limits::of(kind))
    }

    /// An empty discipline with these limits. `noqueue` holds one frame whatever they are.
    pub fn with_limits(kind: Kind, frame_bytes: u32, limits: Limits) -> Qdisc<F> {
        let inside = match kind {
            Kind::NoQueue => Inside::NoQueue(NoQueue::default()),
            Kind::PfifoFast => Inside::PfifoFast(PfifoFast::new(limits.frames)),
            Kind::Fq => Inside::Fq(Box::new(Fq::new(frame_bytes, limits))),
        };
        Qdisc { inside, back: None, stats: QdiscStats::default() }
    }

    /// Which kind it is.
    pub fn kind(&self) -> Kind {
        match self.inside {
            Inside::NoQueue(_) => Kind::NoQueue,
            Inside::PfifoFast(_) => Kind::PfifoFast,
            Inside::Fq(_) => Kind::Fq,
        }
    }

    /// Whether it takes a frame, which otherwise stays with its sender. Only `noqueue` may not take one, as it has
    /// nowhere to put it. The others take every frame, and drop those above their limits.
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
    /// The frame comes back because a limit is reached. It is counted as dropped, and the caller drops it.
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

    /// Puts back the frame that was dequeued last, because the device had no room for it. It is dequeued again before
    /// all others.
    ///
    /// # Panics
    /// If another frame was put back and has not been dequeued since.
    pub fn put_back(&mut self, packet: Packet<F>) {
        assert!(self.back.is_none(), "two frames were put back");
        self.back = Some(packet);
    }

    /// From now on no frame is put off by its rate, whether it is here already or is still to come: the sender is about
    /// to end, and cannot send later.
    pub fn end_pacing(&mut self) {
        if let Inside::Fq(queue) = &mut self.inside {
            queue.end_pacing();
        }
    }

    /// How many frames it holds.
    pub fn len(&self) -> usize {
        let inside = match &self.inside {
            Inside::NoQueue(queue) => usize::from(!queue.is_empty()),
            Inside::PfifoFast(queue) => queue.len(),
            Inside::Fq(queue) => queue.len(),
        };
        inside + usize::from(self.back.is_some())
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it counted.
    pub fn stats(&self) -> QdiscStats {
        let throttled = if let Inside::Fq(queue) = &self.inside { queue.throttled() } else { 0 };
        QdiscStats { throttled, ..self.stats }
    }

    /// Takes all frames out, in any order, because the queue is taken down or gets another discipline.
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
