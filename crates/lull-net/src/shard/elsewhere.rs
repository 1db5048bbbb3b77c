//! Stacks with the same addresses on other queues of the interface: other shards of the network, or other processes'.
//!
//! Which queue a packet comes to is the device's choice: a segment may reach a stack that does not know its connection, and an
//! answer of a neighbour one that did not ask. Such a frame is another stack's before it is nobody's.

use std::net::SocketAddr;

use lull_nic::Frame;
use lull_nic::passing::{CLAIMED, LAST_ROUND};

use super::connection::{Connection, Phase};
use super::demux::Packet;
use super::error::NetError;
use super::flow::Owner;
use super::half_open::Handshake;
use super::hand_on::Waiting;
use super::paws;
use super::segment::Arrived;
use super::socket::Ready;
use super::stack::{Io, Stack};
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

    /// A packet that belongs to nobody here: whether another stack was given it, which may know whose it is. `syn`: where it
    /// begins a connection. If somebody will listen there shortly, it may be taken and dropped: its sender asks again.
    fn takes_stranger(&self, syn: Option<SocketAddr>, frame: &Frame) -> bool;

    /// As [`Elsewhere::takes_stranger`], of a segment that no stack knows, and that may end a handshake which another began:
    /// all are asked once more, this one being done.
    fn takes_last_acknowledgement(&self, frame: &Frame) -> bool;

    /// A connection to `local` whose listener is closed here before anybody has accepted it, as one segment of its peer's: whether
    /// another stack that listens there was given the frame, marked with [`EVERYBODY`](lull_nic::passing::EVERYBODY).
    fn takes_over(&self, local: SocketAddr, frame: &Frame) -> HandedOn;

    /// As [`Elsewhere::takes_over`], where nobody listens now and the asking stack is about to end; or the end of a handshake that
    /// one of these stacks began: whether the frame is kept, as it is marked, for whoever listens there next, which is given it by
    /// [`Network::take_over`](crate::Network::take_over). [`HandedOn::Later`]: the asking stack is to hold it. `asked`: so many stacks
    /// have been given it and have no listener for it.
    fn keeps(&self, _local: SocketAddr, _frame: &Frame, _asked: u8) -> HandedOn {
        HandedOn::Nobody
    }

    /// A neighbour's answer, which any stack may have asked for: the others are given a copy, unless it is one.
    fn copy_to_all(&self, frame: &Frame);

    /// This stack has made a connection of a segment with data, or was handed it over with some: the others are given a copy, marked
    /// with [`CLAIMED`](lull_nic::passing::CLAIMED), for they may have made one of what came before it.
    fn claims(&self, _frame: &Frame) {}
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

/// Whether a frame says whose a connection is, and is no segment of it; or says again what another stack has been told.
#[inline]
pub(super) fn is_claim(frame: &Frame) -> bool {
    frame.seen_by() & (CLAIMED | LAST_ROUND) == CLAIMED
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
        let taken = self.siblings(frame).is_some_and(|siblings| siblings.take_stranger(frame))
            || self.others(frame).is_some_and(|elsewhere| elsewhere.takes_stranger(syn, frame));
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

    /// As [`Stack::is_elsewhere`], of an ICMP message that was of no use: an error is about somebody's packet.
    #[cold]
    pub(super) fn icmp_is_elsewhere(&mut self, frame: &Frame, packet: &Packet) -> bool {
        const V4_UNREACHABLE: u8 = 3;
        // Time exceeded, and a parameter problem.
        const V4_ERRORS: std::ops::RangeInclusive<u8> = 11..=12;
        const V6_ERRORS: std::ops::RangeInclusive<u8> = 1..=4;
        let is_error = frame.data().get(packet.l4).is_some_and(|kind| match packet.protocol {
            wire::PROTOCOL_ICMP => *kind == V4_UNREACHABLE || V4_ERRORS.contains(kind),
            _ => V6_ERRORS.contains(kind),
        });
        is_error && !is_claim(frame) && self.is_elsewhere(None, frame)
    }

    /// The clock's value for a SYN-ACK, before the offset. Another stack must be able to read from it what was agreed on.
    pub(super) fn syn_ack_clock(&self, handshake: &Handshake, now_ns: u64) -> u32 {
        match self.config.elsewhere {
            Some(_) => self.secret.cookie_value(handshake.offer.window_scale, handshake.offer.sack, now_ns),
            None => paws::clock(now_ns),
        }
    }

    /// Tells the others that a connection was made here of a segment with data: one of them may have made another, or make one yet, of
    /// the acknowledgement that its peer has sent in front of it.
    pub(super) fn claim_if_made(&self, arrived: &Arrived<'_>) {
        if arrived.segment.length > 0 && matches!(self.flows.get(&arrived.flow), Some(Owner::Connection(_))) {
            self.claim(arrived.frame);
        }
    }

    /// Tells the others that a connection was made here of a segment that passed them, or what a router has said of a path.
    #[cold]
    pub(super) fn claim(&self, frame: &Frame) {
        if let Some(siblings) = self.siblings(frame) {
            siblings.claims(frame);
        }
        if let Some(elsewhere) = self.others(frame) {
            elsewhere.claims(frame);
        }
    }

    /// Another stack has made a connection of a segment with data. What was made here of an acknowledgement in front of it, which came
    /// by another queue, gives way: its peer never hears of it.
    #[cold]
    pub(super) fn give_way(&mut self, arrived: &Arrived<'_>, io: &mut Io<'_>) {
        let Arrived { flow, segment, .. } = arrived;
        let peer_isn = segment.seq.wrapping_sub(1);
        match self.flows.get(flow) {
            Some(&Owner::Connection(index)) if self.has_received_nothing(index, peer_isn) => {
                if self.is_taken_back(index) {
                    let _ = self.free_what_goes_on(index);
                } else {
                    self.over(index, Some(NetError::ConnectionReset), io);
                }
            }
            Some(&Owner::HalfOpen(index)) if self.half_opens.is_of(index, peer_isn) => self.free_half_open(index),
            _ => {}
        }
        self.claimed.note(*flow, peer_isn);
    }

    /// Takes a connection out of the queue of those that nobody has accepted, if it is there.
    fn is_taken_back(&mut self, index: u32) -> bool {
        let waits = |waiting: &Waiting| waiting.index == index;
        let listeners: Vec<u32> = self.listeners.iter().map(|(listener, _)| listener).collect();
        listeners.into_iter().any(|listener| {
            let Some(listener) = self.listeners.get_mut(listener) else { return false };
            let place = listener.accepted.iter().position(waits);
            place.is_some_and(|place| {
                listener.accepted.remove(place);
                if listener.accepted.is_empty() && !listener.stopped {
                    listener.ready = Ready::empty();
                }
                true
            })
        })
    }

    fn has_received_nothing(&self, index: u32, peer_isn: u32) -> bool {
        let nothing = |connection: &Connection| {
            connection.phase == Phase::Open
                && connection.peer_isn == peer_isn
                && connection.rcv_nxt() == peer_isn.wrapping_add(1)
        };
        self.connections.get(index).is_some_and(nothing)
    }

    /// Gives the others what a neighbour answered.
    pub(super) fn tell_elsewhere(&self, frame: &Frame) {
        if let Some(elsewhere) = &self.config.elsewhere {
            elsewhere.copy_to_all(frame);
        }
    }
}
