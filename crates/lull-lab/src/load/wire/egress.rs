//! The sending side: frames from the pool onto the ring, and the doorbell.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use lull_nic::{Frame, FramePool, TxQueue};

use super::packet::{self, Fields, HEADER_BYTES, SYN, Template};

/// The number of frames that the pool keeps. Frames that were on the rings of a busy client come back to it.
const POOL_FRAMES: usize = 16 * 1024;

pub(super) struct Egress {
    tx: Box<dyn TxQueue>,
    pub pool: FramePool,
    template: Template,
    /// Frames that found the ring full, in order. Nothing new is sent while there are any, so there are at most those
    /// of one batch and its answers.
    waiting: VecDeque<Frame>,
    /// The number of frames on the ring that the device has not been told of.
    unrung: usize,
}

impl Egress {
    pub fn new(tx: Box<dyn TxQueue>, template: Template) -> Egress {
        Egress { tx, pool: FramePool::new(POOL_FRAMES), template, waiting: VecDeque::new(), unrung: 0 }
    }

    pub fn template(&self) -> &Template {
        &self.template
    }

    pub fn set_template(&mut self, template: Template) {
        self.template = template;
    }

    /// Sends a segment whose payload `fill` writes.
    #[inline]
    pub fn segment(&mut self, fields: Fields, payload_bytes: usize, fill: impl FnOnce(&mut [u8])) {
        let mut frame = self.pool.alloc();
        frame.set_len(HEADER_BYTES + payload_bytes);
        fill(&mut frame.data_mut()[HEADER_BYTES..]);
        self.template.write(&mut frame, fields, 0);
        self.transmit(frame);
    }

    /// Sends a SYN that offers `mss`.
    pub fn syn(&mut self, fields: Fields, mss: u16) {
        let mut frame = self.pool.alloc();
        frame.set_len(HEADER_BYTES + 4);
        let [high, low] = mss.to_be_bytes();
        frame.data_mut()[HEADER_BYTES..].copy_from_slice(&[2, 4, high, low]);
        self.template.write(&mut frame, Fields { flags: SYN, ..fields }, 4);
        self.transmit(frame);
    }

    pub fn arp(&mut self, request: bool, from: ([u8; 6], Ipv4Addr), to: ([u8; 6], Ipv4Addr)) {
        let mut frame = self.pool.alloc();
        packet::write_arp(&mut frame, request, from, to);
        self.transmit(frame);
    }

    #[inline]
    fn transmit(&mut self, frame: Frame) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(frame);
            return;
        }
        match self.tx.transmit(frame) {
            Ok(()) => self.unrung += 1,
            Err(frame) => self.waiting.push_back(frame),
        }
    }

    /// Whether the ring was full. It first tries to send the waiting frames again.
    #[inline]
    pub fn congested(&mut self) -> bool {
        while let Some(frame) = self.waiting.pop_front() {
            match self.tx.transmit(frame) {
                Ok(()) => self.unrung += 1,
                Err(frame) => {
                    self.waiting.push_front(frame);
                    return true;
                }
            }
        }
        false
    }

    /// Whether the device has to be told of frames.
    #[inline]
    pub fn wants_doorbell(&self) -> bool {
        self.unrung > 0
    }

    /// Tells the device, and takes sent buffers back.
    #[inline]
    pub fn doorbell(&mut self) {
        self.unrung = 0;
        self.tx.doorbell();
        self.tx.reap_sent(&mut self.pool);
    }
}
