//! The last packets that a network sends, for a process that ends.
//!
//! Nobody can go on with them afterwards. So the stacks' packets are collected first, however many there are, and the
//! thread that ends puts them on the rings and waits for room. A discipline in between puts nothing off any more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lull_host::Delivery;
use lull_nic::frame::Sender;
use lull_nic::{Doorbell, Frame, TxQueue};

use super::transmit::contained;
use super::{Network, lock};
use crate::queue::{Inside, Queue};
use crate::shard::{Io, Stack};
use crate::transmit::TxSide;

/// How many frames are put on a queue at once. A discipline holds more than that of one flow, and frames of no socket
/// are one flow.
const PORTION_FRAMES: usize = 64;
/// How long the wire may take no frame at all.
const NO_PROGRESS: Duration = Duration::from_millis(200);
/// How long this may take in all.
const AT_MOST: Duration = Duration::from_secs(5);

/// It stands in for a ring, and takes every frame.
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
    /// Tells all peers that this is the end, for a process that ends at once. Connections that a socket still has are
    /// closed. Those that nobody has accepted are reset, and so are those that [`Network::undelivered`] counts. No
    /// listener takes a connection any more. What the device has received and no stack has taken stays there, for the
    /// process that has its queues next.
    ///
    /// When it returns, these packets are on the devices' rings, and so is what waited in a queueing discipline,
    /// whatever its rate. It waits 200 ms for a wire that takes nothing, and 5 s for a slow one.
    pub fn end_all(&self) {
        let mut last: Vec<_> = self.0.queues.iter().map(|_| LastFrames::default()).collect();
        self.collect(&mut last, |stack, io| stack.end_all(io));
        for napi in self.napis() {
            // An instance that is removed, or disabled already, takes nothing either.
            let _ = self.0.host.disable(napi);
        }
        // This collects what came in between.
        self.collect(&mut last, |stack, io| stack.end_handing_on(io));
        // The lock is held to the end, so that no group gets the discipline that was taken from the last.
        let transmit = lock(&self.0.transmit);
        if let Some(transmit) = &*transmit {
            transmit.end_pacing();
        }
        let began = Instant::now();
        let mut queues: Vec<_> = self.0.queues.iter().zip(last).collect();
        let (mut last_progress, mut left) = (began, usize::MAX);
        loop {
            // The time is read before the queues are looked at, because this thread may lose its core in between.
            let looked = Instant::now();
            let mut now_left = 0;
            // Each queue has its turn, so that one whose wire takes nothing keeps no other waiting.
            queues.retain_mut(|(queue, last)| {
                let of_queue = queue.say(&self.0.delivery, last);
                now_left += of_queue;
                of_queue > 0
            });
            if now_left < left {
                (left, last_progress) = (now_left, Instant::now());
            }
            if now_left == 0 || looked > last_progress + NO_PROGRESS || looked > began + AT_MOST {
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
    /// Puts on the ring as many frames as it takes now. Returns how many are left, here and in the discipline.
    fn say(&self, delivery: &Delivery, last: &mut LastFrames) -> usize {
        // If a panic takes the queue down, nothing is left.
        let mut left = 0;
        contained(|| left = self.say_what_it_can(delivery, last));
        left
    }

    fn say_what_it_can(&self, delivery: &Delivery, last: &mut LastFrames) -> usize {
        loop {
            if let Some(side) = self.transmit(delivery) {
                let left = send_what_it_can(&side, delivery);
                if left > 0 {
                    return left + last.0.len();
                }
            }
            let push =
                |inside: &mut Inside, now_ns| (inside.push(&mut last.0, PORTION_FRAMES, now_ns), inside.is_unsent());
            let (put, is_unsent) = self.with(delivery, push);
            if put == 0 {
                return last.0.len() + usize::from(is_unsent);
            }
        }
    }
}

/// Runs the discipline, a quota at a time, until everything is on the ring or the ring takes no more. Returns how many
/// frames are left.
fn send_what_it_can(side: &TxSide, delivery: &Delivery) -> usize {
    let mut before = usize::MAX;
    loop {
        side.kick(delivery);
        let left = side.left();
        if left == 0 || left >= before {
            return left;
        }
        before = left;
    }
}
