//! What happens next: the queue of the simulator's events.
//!
//! Two kinds of appointment. *One-shot events* (a packet on the wire, an answer on its way) lie in a binary heap, keyed
//! by (time, sequence number). *Slots* are alarms that exist for ever and are moved all the time (the end of what a CPU
//! executes, the one timer of a NAPI, a moderation timer): an array, looked through linearly, so that moving one costs
//! a store and never leaves a stale entry behind. At equal times one-shot events come first, in the order in which they
//! were made, then slots by index: the order of a run follows from the world and the seed alone.

use crate::engine::id::{ConnId, ContextId, QueueId, SourceId, StepId, ThreadId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The word of a slot that is not armed, later than every time.
const NEVER: u64 = u64::MAX;
/// Bits of a slot's word that hold its number: as many as the largest world that a file can describe has. The rest
/// reaches 2^51 ns, 26 days of virtual time.
const SLOT_BITS: u32 = 13;

/// A packet's meaning to the receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketKind {
    /// A request: makes its socket readable.
    Request,
    /// A pure acknowledgement: costs softirq time, wakes nobody.
    Ack,
    /// A message to a socket of a request/response pair: makes it readable.
    Message,
    /// A frame of a flood's datagram.
    Frame,
}

/// What a one-shot event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A packet of this connection reaches the NIC.
    Arrive {
        /// The connection.
        conn: ConnId,
        /// What it is.
        kind: PacketKind,
    },
    /// The NIC has sent a frame of this queue: a transmit completion is written.
    TxDone {
        /// The queue.
        queue: QueueId,
    },
    /// A batch of a sender's run is on the ring of this transmit queue.
    TxRun {
        /// The queue.
        queue: QueueId,
    },
    /// What the discipline of this transmit queue held back is due.
    TxDue {
        /// The queue.
        queue: QueueId,
    },
    /// An answer reaches the client's application.
    Answer {
        /// The connection.
        conn: ConnId,
    },
    /// The next arrival of load source `source`.
    Issue {
        /// The source.
        source: SourceId,
    },
    /// The next request of a connection that has gaps of its own.
    Request {
        /// The connection.
        conn: ConnId,
    },
    /// Whoever runs the world wants to be asked here.
    End,
    /// A step of whoever acts on the world from outside.
    Operator {
        /// Which.
        step: StepId,
    },
    /// The end of a completion that was held up between release and settling.
    Settle {
        /// The queue.
        queue: QueueId,
    },
    /// The generator's thread of this context begins a turn.
    Generator {
        /// The context.
        context: ContextId,
    },
    /// The next frame of the flood reaches the NIC.
    Flood,
    /// A program's own event.
    Program {
        /// The thread whose program asked for it.
        thread: ThreadId,
        /// Its own number.
        token: u32,
    },
}

/// An appointment that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A one-shot event.
    Event(Event),
    /// A slot; it is disarmed.
    Slot(u32),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Each slot's time and number in one word, so that the least word is the next slot; not armed: [`NEVER`].
    slots: Vec<u64>,
    made: u64,
}

impl Agenda {
    /// An agenda with `slots` slots, none armed.
    pub fn new(slots: usize) -> Agenda {
        let mut agenda = Agenda { heap: BinaryHeap::with_capacity(1024), slots: Vec::new(), made: 0 };
        agenda.grow(slots);
        agenda
    }

    /// Adds a one-shot event.
    #[inline]
    pub fn push(&mut self, at_ns: u64, event: Event) {
        self.made += 1;
        self.heap.push(Reverse((at_ns, self.made, event)));
    }

    /// Makes room for `slots` slots.
    ///
    /// # Panics
    /// If there are to be more than 8192.
    pub fn grow(&mut self, slots: usize) {
        assert!(slots <= 1 << SLOT_BITS, "a world of {slots} slots: at most {} are possible", 1 << SLOT_BITS);
        if slots > self.slots.len() {
            self.slots.resize(slots, NEVER);
        }
    }

    /// Arms or moves a slot.
    #[inline]
    pub fn set(&mut self, slot: u32, at_ns: u64) {
        // Later times are brought down to the latest: no run gets there.
        let at = at_ns.min((NEVER >> SLOT_BITS) - 1);
        self.slots[slot as usize] = (at << SLOT_BITS) | u64::from(slot);
    }

    /// Disarms a slot.
    #[inline]
    pub fn clear(&mut self, slot: u32) {
        self.slots[slot as usize] = NEVER;
    }

    /// When a slot is due, if it is armed.
    #[inline]
    pub fn slot_ns(&self, slot: u32) -> Option<u64> {
        let word = self.slots[slot as usize];
        (word != NEVER).then_some(word >> SLOT_BITS)
    }

    /// One-shot events that lie ahead.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no one-shot event lies ahead.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The next appointment and its time; `None` if there is none. Slots are disarmed as they are handed out.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Due)> {
        let word = least(&self.slots);
        let slot_ns = if word == NEVER { NEVER } else { word >> SLOT_BITS };
        let event_ns = self.heap.peek().map_or(NEVER, |Reverse((at_ns, ..))| *at_ns);
        if event_ns <= slot_ns {
            let Reverse((at_ns, _, event)) = self.heap.pop()?;
            return Some((at_ns, Due::Event(event)));
        }
        let slot = (word & ((1 << SLOT_BITS) - 1)) as u32;
        self.slots[slot as usize] = NEVER;
        Some((slot_ns, Due::Slot(slot)))
    }
}

/// The least of these words: four at a time, so that they need not wait for one another.
#[inline]
fn least(words: &[u64]) -> u64 {
    let mut least = [NEVER; 4];
    let mut fours = words.chunks_exact(4);
    for four in &mut fours {
        for (least, &word) in least.iter_mut().zip(four) {
            *least = (*least).min(word);
        }
    }
    let rest = fours.remainder().iter().copied().min().unwrap_or(NEVER);
    least[0].min(least[1]).min(least[2].min(least[3])).min(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_the_order_in_which_they_were_made_and_before_slots() {
        let mut agenda = Agenda::new(2);
        let event = |source| Event::Issue { source: SourceId::new(source) };
        agenda.push(20, event(1));
        agenda.push(10, event(9));
        agenda.push(10, event(2));
        agenda.set(1, 10);
        agenda.set(0, 10);
        let order: Vec<_> = std::iter::from_fn(|| agenda.pop()).collect();
        assert_eq!(
            order,
            [
                (10, Due::Event(event(9))),
                (10, Due::Event(event(2))),
                (10, Due::Slot(0)),
                (10, Due::Slot(1)),
                (20, Due::Event(event(1))),
            ]
        );
    }

    #[test]
    fn a_moved_slot_is_due_once_and_a_disarmed_one_never() {
        let mut agenda = Agenda::new(2);
        agenda.set(0, 50);
        agenda.set(0, 70);
        agenda.set(1, 60);
        agenda.clear(1);
        assert_eq!(agenda.pop(), Some((70, Due::Slot(0))));
        assert_eq!(agenda.pop(), None);
    }
}
