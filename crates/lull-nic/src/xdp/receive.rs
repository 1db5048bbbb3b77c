//! The receive half of a queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::home::{Home, frame_at};

use super::XdpBusyPoll;
use super::ring::{Consumer, wants_wakeup};
use super::shared::{Shared, Socket};
use super::socket::{kick_rx, napi_id};
use crate::device::RxQueue;
use crate::frame::{Checksum, Chunk, Frame, FramePool, Origin};
use crate::tally::add;
use crate::wire::{ETHERNET, VLAN_TAG};

/// A chunk that came off the receive ring: where in it the frame is, and whether the next chunk continues the frame.
struct Taken {
    chunk: Chunk,
    offset: usize,
    length: usize,
    continues: bool,
}

pub(super) struct XdpRx {
    shared: Arc<Shared>,
    index: usize,
    ring: Consumer,
    home: Arc<Home>,
    origin: Arc<Origin>,
    /// Off the ring, and not handed on: at most a poll's frames.
    taken: VecDeque<Taken>,
    /// The last poll found nothing.
    was_empty: bool,
    /// The kernel was asked which NAPI instance of its own frames come from.
    asked_for_napi: bool,
}

impl XdpRx {
    pub(super) fn new(shared: &Arc<Shared>, index: usize, home: Arc<Home>, origin: Arc<Origin>) -> XdpRx {
        XdpRx {
            shared: shared.clone(),
            index,
            ring: Consumer::new(shared.rx_ring),
            home,
            origin,
            taken: VecDeque::new(),
            was_empty: false,
            asked_for_napi: false,
        }
    }

    fn socket(&self) -> &Socket {
        &self.shared.sockets[self.index]
    }

    /// Takes up to `budget` frames off the ring, after the kernel got chunks for the next ones. How many those are, and
    /// how many descriptors were none of ours.
    fn take(&mut self, budget: usize) -> (usize, u64) {
        let socket = &self.shared.sockets[self.index];
        let (mut frames, mut errors) = (0, 0);
        let mut home = self.home.lock();
        home.refill();
        while frames < budget
            && let Some(slot) = self.ring.take(socket.rings.rx.producer())
        {
            let descriptor = socket.rings.rx.read(slot);
            let (index, offset) = self.home.locate(descriptor.addr);
            let Some(chunk) = home.received(index) else {
                errors += 1;
                continue;
            };
            let continues = descriptor.options & libc::XDP_PKT_CONTD != 0;
            self.taken.push_back(Taken { chunk, offset, length: descriptor.len as usize, continues });
            frames += usize::from(!continues);
        }
        self.ring.release(socket.rings.rx.consumer());
        (frames, errors)
    }

    /// The next frame of those that were taken.
    fn next(&mut self) -> Option<Frame> {
        let mut taken = self.taken.pop_front()?;
        let mut segments = Vec::new();
        while taken.continues {
            segments.push(frame_at(taken.chunk, taken.offset, taken.length, &self.origin));
            taken = self.taken.pop_front()?;
        }
        let mut frame = frame_at(taken.chunk, taken.offset, taken.length, &self.origin);
        while let Some(mut before) = segments.pop() {
            before.set_next(Some(frame));
            frame = before;
        }
        if self.shared.vlan.is_some() && frame.len() >= ETHERNET + VLAN_TAG {
            // The program takes frames with the tag alone: the addresses move up to what it tagged.
            frame.data_mut().copy_within(..12, VLAN_TAG);
            frame.pull_front(VLAN_TAG);
        }
        if self.shared.peer_is_in_the_machine {
            // The peer's kernel leaves the checksum to the device and a veth leaves it out, unless the peer turned that
            // off: a sum that is wrong says nothing here.
            frame.set_checksum(Checksum::Unnecessary);
        }
        Some(frame)
    }

    /// Asks, behind the first frames, whether calls on the socket can poll the driver.
    #[cold]
    fn ask_for_napi(&mut self) {
        self.asked_for_napi = true;
        let socket = self.socket();
        if self.shared.busy_poll_refused.is_none() && self.shared.busy_poll == XdpBusyPoll::ByPolls {
            socket.napi_id.store(napi_id(&socket.fd), Ordering::Relaxed);
        }
    }

    /// Lets the kernel poll the driver, if somebody busy polls here and the driver can be polled; or wakes the driver, if
    /// it waits for chunks. How many system calls that took.
    fn wake(&self, found_nothing: bool) -> u64 {
        let socket = self.socket();
        let busy_polls = found_nothing && self.was_empty && socket.is_busy_polled();
        if busy_polls || socket.zero_copy && wants_wakeup(socket.rings.fill.flags(), libc::XDP_RING_NEED_WAKEUP) {
            // What it brings or not is on the ring; a device that is gone says so elsewhere.
            let _ = kick_rx(&socket.fd);
            return 1;
        }
        0
    }
}

impl RxQueue for XdpRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        if budget == 0 || self.shared.interface.gone() {
            return 0;
        }
        let (mut count, mut errors) = self.take(budget);
        let syscalls = self.wake(count == 0);
        if syscalls > 0 && count < budget {
            let more = self.take(budget - count);
            (count, errors) = (count + more.0, errors + more.1);
        }
        self.was_empty = count == 0;
        if count > 0 && !self.asked_for_napi {
            self.ask_for_napi();
        }
        let mut bytes = 0;
        for _ in 0..count {
            let Some(frame) = self.next() else { break };
            bytes += frame.chain_len() as u64;
            deliver(frame, pool);
        }
        let counters = &self.socket().counters;
        add(&counters.rx_frames, count as u64);
        add(&counters.rx_bytes, bytes);
        add(&counters.rx_errors, errors);
        add(&counters.rx_syscalls, syscalls);
        count
    }
}
