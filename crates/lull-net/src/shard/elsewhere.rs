//! Stacks with the same addresses on other queues of the interface: other shards of the network, or other processes'.
//!
//! Which queue a packet comes to is the device's choice: a segment may reach a stack that does not know its connection, and an
//! answer of a neighbour one that did not ask. Such a frame is another stack's before it is nobody's.

use std::net::SocketAddr;

use lull_nic::Frame;
use lull_nic::passing::LAST_ROUND;

use super::demux::Packet;
use super::half_open::Handshake;
use super::paws;
use super::stack::Stack;
use super::wire;
use crate::siblings::Siblings;

/// The other stacks with this stack's addresses. It is asked with the shard's lock held: nothing in it may wait.
pub trait Elsewhere: std::fmt::Debug + Send + Sync {
    /// A secret that all these stacks have: by it one can go on with a handshake that another began.
    fn secret(&self) -> u64;

    /// The numbers of the asking network's own queues, in the device's order. All these stacks number the interface's queues alike,
    /// below [`QUEUES_MAX`](lull_nic::passing::QUEUES_MAX): a frame has a bit for each that it has been to ([`Frame::seen_by`]), and
    /// what comes to one queue of a network goes to its others before `Elsewhere` is asked.
    fn queues(&self) -> &[u32];

    /// A SYN for `local`, where this stack listens: whether another stack listens in its stead, and was given the frame.
    fn takes_syn(&self, local: SocketAddr, frame: &Frame) -> bool;

    /// A packet that belongs to nobody here: whether another stack was given it, which may know whose it is. `syn`: where it
    /// begins a connection. If somebody will listen there shortly, it may be taken and dropped: its sender asks again.
    fn takes_stranger(&self, syn: Option<SocketAddr>, frame: &Frame) -> bool;

    /// As [`Elsewhere::takes_stranger`], of a segment that no stack knows, and that may end a handshake which another began:
    /// all are asked once more, this one being done.
    fn takes_last_acknowledgement(&self, frame: &Frame) -> bool;

    /// A connection to `local` whose listener is closed here before anybody has accepted it, as one segment of its peer's: whether
    /// another stack that listens there was given the frame, marked with [`EVERYBODY`](lull_nic::passing::EVERYBODY).
    fn takes_over(&self, local: SocketAddr, frame: &Frame) -> HandedOn;

    /// As [`Elsewhere::takes_over`], where nobody listens now and the asking stack is about to end; or the end of a handshake that it
    /// began: whether the frame is kept, as it is marked, for whoever listens there next, which is given it by
    /// [`Network::take_over`](crate::Network::take_over).
    fn keeps(&self, _local: SocketAddr, _frame: &Frame) -> bool {
        false
    }

    /// A neighbour's answer, which any stack may have asked for: the others are given a copy, unless it is one.
    fn copy_to_all(&self, frame: &Frame);
}

/// What became of a connection that nobody has accepted ([`Elsewhere::takes_over`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOn {
    /// Another stack has it.
    Given,
    /// Nobody can take it now; somebody will listen there, or has no room just now.
    Later,
    /// Nobody listens there.
    Nobody,
}

impl Stack {
    /// The other shards of its network, which a packet may belong to that this one cannot place.
    pub(crate) fn set_siblings(&mut self, siblings: Option<Siblings>) {
        self.siblings = siblings;
    }

    /// What looped is for this stack: another would take it for a martian.
    fn is_looped(&self, frame: &Frame) -> bool {
        const SOURCE: std::ops::Range<usize> = 6..12;
        frame.data().get(SOURCE) == Some(&self.port.mac)
    }

    /// The stacks of other processes, for what came by the device.
    pub(super) fn others(&self, frame: &Frame) -> Option<&dyn Elsewhere> {
        self.config.elsewhere.as_deref().filter(|_| !self.is_looped(frame))
    }

    /// The other shards of this network, for what came by the device.
    fn siblings(&self, frame: &Frame) -> Option<&Siblings> {
        self.siblings.as_ref().filter(|_| !self.is_looped(frame))
    }

    /// Whether a packet that belongs to nobody here is another stack's from now on.
    #[cold]
    pub(super) fn is_elsewhere(&mut self, syn: Option<SocketAddr>, frame: &Frame) -> bool {
        // Its own shards first: that costs no system call, and other processes are told that all of them have seen it.
        if self.is_a_siblings(frame) {
            return true;
        }
        let taken = self.others(frame).is_some_and(|elsewhere| elsewhere.takes_stranger(syn, frame));
        self.counters.passed_on += u64::from(taken);
        taken
    }

    /// Whether a packet that belongs to nobody here is another shard's from now on.
    #[cold]
    pub(super) fn is_a_siblings(&mut self, frame: &Frame) -> bool {
        let taken = self.siblings(frame).is_some_and(|siblings| siblings.take_stranger(frame));
        self.counters.passed_on += u64::from(taken);
        taken
    }

    /// Whether all stacks know already that a segment is of no connection of theirs.
    pub(super) fn is_in_last_round(frame: &Frame) -> bool {
        frame.seen_by() & LAST_ROUND != 0
    }

    /// As [`Stack::is_elsewhere`], of an acknowledgement that nobody has a connection for.
    #[cold]
    pub(super) fn ends_elsewhere(&mut self, frame: &Frame) -> bool {
        let taken = self.siblings(frame).is_some_and(|siblings| siblings.take_last_acknowledgement(frame))
            || self.others(frame).is_some_and(|elsewhere| elsewhere.takes_last_acknowledgement(frame));
        self.counters.passed_on += u64::from(taken);
        taken
    }

    /// As [`Stack::is_elsewhere`], of a SYN that a listener here could take.
    pub(super) fn begins_elsewhere(&mut self, local: SocketAddr, frame: &Frame) -> bool {
        let taken = self.others(frame).is_some_and(|elsewhere| elsewhere.takes_syn(local, frame));
        self.counters.passed_on += u64::from(taken);
        taken
    }

    /// As [`Stack::is_elsewhere`], of an ICMP message that was of no use: an error is about somebody's packet.
    #[cold]
    pub(super) fn icmp_is_elsewhere(&mut self, frame: &Frame, packet: &Packet) -> bool {
        const V4_UNREACHABLE: u8 = 3;
        const V6_ERRORS: std::ops::RangeInclusive<u8> = 1..=4;
        let is_error = frame.data().get(packet.l4).is_some_and(|kind| match packet.protocol {
            wire::PROTOCOL_ICMP => *kind == V4_UNREACHABLE,
            _ => V6_ERRORS.contains(kind),
        });
        is_error && self.is_elsewhere(None, frame)
    }

    /// The clock's value for a SYN-ACK, before the offset. Another stack must be able to read from it what was agreed on.
    pub(super) fn syn_ack_clock(&self, handshake: &Handshake, now_ns: u64) -> u32 {
        match self.config.elsewhere {
            Some(_) => paws::cookie_value(handshake.offer.window_scale, handshake.offer.sack, now_ns),
            None => paws::clock(now_ns),
        }
    }

    /// Gives the others what a neighbour answered.
    pub(super) fn tell_elsewhere(&self, frame: &Frame) {
        if let Some(elsewhere) = &self.config.elsewhere {
            elsewhere.copy_to_all(frame);
        }
    }
}
