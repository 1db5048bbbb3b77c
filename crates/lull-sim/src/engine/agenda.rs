//! What happens next: the simulator's queue of events.
//!
//! There are two kinds of entry. *One-shot events* (a packet on the wire, an answer on its way) are in a binary heap,
//! keyed by (time, sequence number). *Slots* are alarms that exist for the whole run and are moved often (the end of
//! what a CPU executes, the one timer of a NAPI, a moderation timer). They are an array that is searched linearly, so
//! that moving one costs a store and never leaves a stale entry. At equal times one-shot events come first, in the
//! order in which they were made, then slots by index: the order of a run depends only on the world and the seed.

use crate::engine::id::{ConnId, ContextId, QueueId, SourceId, StepId, ThreadId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The word of a slot that is not armed, which is later than every time.
const NEVER: u64 = u64::MAX;
/// The bits of a slot's word that hold its number, enough for the largest world that a file can describe. The rest
/// reaches 2^51 ns, or 26 days of virtual time.
const SLOT_BITS: u32 = 13;

/// What a packet means to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketKind {
    /// A request, which makes its socket readable.
    Request,
    /// A pure acknowledgement, which costs softirq time and wakes nobody.
    Ack,
    /// A message to a socket of a request/response pair, which makes the socket readable.
    Message,
    /// A frame of a flood's datagram.
    Frame,
}

/// A one-shot event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A packet of this connection reaches the NIC.
    Arrive {
        /// The connection.
        conn: ConnId,
        /// What it is.
        kind: PacketKind,
    },
    /// The NIC has sent a frame of this queue, and writes a transmit completion.
    TxDone {
        /// The queue.
        queue: QueueId,
    },
    /// A batch of a sender's run is on the ring of this transmit queue.
    TxRun {
        /// The queue.
        queue: QueueId,
    },
    /// Frames that the discipline of this transmit queue held back are due.
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
    /// The next request of a connection that draws gaps of its own.
    Request {
        /// The connection.
        conn: ConnId,
    },
    /// The caller of the run wants to get control back here.
    End,
    /// A step of the operator who acts on the world from outside.
    Operator {
        /// The step.
        step: StepId,
    },
    /// The end of a completion that was held up between its release and settling.
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
        /// The program's own number for it.
        token: u32,
    },
}

/// An entry that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A one-shot event.
    Event(Event),
    /// A slot, which is disarmed now.
    Slot(u32),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Each slot's time and number in one word, so that the smallest word is the next slot. A slot that is not armed
    /// has [`NEVER`].
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
    ///
    /// This panics if there are to be more than 8192.
    pub fn grow(&mut self, slots: usize) {
        assert!(slots <= 1 << SLOT_BITS, "a world of {slots} slots: at most {} are possible", 1 << SLOT_BITS);
        if slots > self.slots.len() {
            self.slots.resize(slots, NEVER);
        }
    }

    /// Arms or moves a slot.
    #[inline]
    pub fn set(&mut self, slot: u32, at_ns: u64) {
        // Later times are reduced to the latest possible one, which no run reaches.
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

    /// The number of one-shot events that are pending.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no one-shot event is pending.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns the next entry and its time, or `None` if there is none. A slot is disarmed when it is returned.
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

/// Returns the smallest of these words. It takes four at a time, so that comparisons need not wait for one another.
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
