//! The last that a network says, for a process that ends.
//!
//! Nobody is there to go on afterwards: what the stacks say is collected first, however much it is, and put on the rings by the
//! thread that ends, which waits for room. A discipline in between puts nothing off any more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lull_host::Delivery;
use lull_nic::frame::Sender;
use lull_nic::{Doorbell, Frame, TxQueue};

use super::transmit::{DRAIN_MAX, contained};
use super::{Network, lock};
use crate::queue::{Inside, Queue};
use crate::shard::{Io, Stack};

/// Frames that are put on a queue at once: fewer than a discipline holds of one flow, which those of no socket's are.
const PORTION_FRAMES: usize = 64;

/// Stands in for a ring, and takes whatever it is given.
#[derive(Default)]
struct LastFrames(VecDeque<Frame>);

impl TxQueue for LastFrames {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.0.push_back(frame);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        usize::MAX
    }

    fn room_for(&self, _sender: Sender) -> usize {
        usize::MAX
    }
}

impl Network {
    /// Tells all peers that this is the end, for a process that ends at once: connections that a socket still has are closed, and
    /// what nobody has accepted is reset, as are those that [`Network::undelivered`] counts. No listener takes any more, and what the
    /// device has received and no stack has taken stays there, for whoever has its queues next.
    ///
    /// On return it is on the devices' rings, and so is what waited in a queueing discipline, whatever its rate; a wire that takes
    /// nothing is waited for 200 ms.
    pub fn end_all(&self) {
        let mut last: Vec<_> = self.0.queues.iter().map(|_| LastFrames::default()).collect();
        self.collect(&mut last, |stack, io| stack.end_all(io));
        for napi in self.napis() {
            // One that is removed, or disabled already, takes nothing either.
            let _ = self.0.host.disable(napi);
        }
        // What came between.
        self.collect(&mut last, |stack, io| stack.end_handing_on(io));
        // Held to the end, so that no group gets the discipline that was taken from the last.
        let transmit = lock(&self.0.transmit);
        if let Some(transmit) = &*transmit {
            transmit.end_pacing();
        }
        let began = Instant::now();
        let mut queues: Vec<_> = self.0.queues.iter().zip(last).collect();
        loop {
            // Each in turn, so that one whose wire takes nothing keeps no other waiting.
            queues.retain_mut(|(queue, last)| queue.has_more_to_say(&self.0.delivery, last));
            if queues.is_empty() || began.elapsed() > DRAIN_MAX {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn collect(&self, last: &mut [LastFrames], say: impl Fn(&mut Stack, &mut Io<'_>)) {
        for (queue, last) in self.0.queues.iter().zip(last) {
            contained(|| queue.with(&self.0.delivery, |inside, now_ns| inside.call_with(now_ns, last, &say)));
        }
    }
}

impl Queue {
    /// Puts on the ring what it takes now. True if there is more, here or in the discipline.
    fn has_more_to_say(&self, delivery: &Delivery, last: &mut LastFrames) -> bool {
        let mut has_more = false;
        contained(|| {
            loop {
                if let Some(side) = self.transmit(delivery) {
                    side.kick(delivery);
                    has_more = !side.has_sent_all();
                    if has_more {
                        return;
                    }
                }
                let push = |inside: &mut Inside, now_ns| {
                    (inside.push(&mut last.0, PORTION_FRAMES, now_ns), inside.is_unsent())
                };
                let (put, is_unsent) = self.with(delivery, push);
                has_more = !last.0.is_empty() || is_unsent;
                if put == 0 {
                    return;
                }
            }
        });
        has_more
    }
}
