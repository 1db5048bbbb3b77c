//! Frames that belong to nobody here are passed on to the other stacks with this stack's addresses. Those stacks are
//! told what is this stack's, and what this one has made of such a frame gives way to theirs.

use std::net::SocketAddr;

use lull_nic::Frame;
use lull_nic::passing::LAST_ROUND;

use super::connection::{Connection, Phase};
use super::demux::Packet;
use super::elsewhere::{Elsewhere, is_claim};
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::half_open::Handshake;
use super::listener::Waiting;
use super::paws;
use super::segment::{Arrived, Segment};
use super::socket::Ready;
use super::stack::{Io, Stack};
use super::wire;
use crate::siblings::Siblings;

impl Stack {
    /// Sets the other shards of its network, to which a packet may belong that this one cannot place.
    pub(crate) fn set_siblings(&mut self, siblings: Option<Siblings>) {
        self.siblings = siblings;
    }

    /// A looped frame is for this stack alone, since another would take it for a martian.
    fn is_looped(&self, frame: &Frame) -> bool {
        const SOURCE: std::ops::Range<usize> = 6..12;
        frame.data().get(SOURCE) == Some(&self.port.mac)
    }

    /// The stacks of other processes, for what came by the device.
    pub(super) fn others(&self, frame: &Frame) -> Option<&dyn Elsewhere> {
        self.config.others().filter(|_| !self.is_looped(frame)).map(|others| &**others)
    }

    /// As [`Stack::others`]; for a frame that begins a connection, also where it is only kept for whoever will listen.
    fn whoever_keeps(&self, frame: &Frame, syn: Option<SocketAddr>) -> Option<&dyn Elsewhere> {
        match syn {
            Some(_) => self.config.elsewhere.as_deref().filter(|_| !self.is_looped(frame)),
            None => self.others(frame),
        }
    }

    /// The other shards of this network, for what came by the device.
    fn siblings(&self, frame: &Frame) -> Option<&Siblings> {
        self.siblings.as_ref().filter(|_| !self.is_looped(frame))
    }

    /// Whether a packet that belongs to nobody here is another stack's from now on.
    #[cold]
    pub(super) fn is_elsewhere(&mut self, syn: Option<SocketAddr>, frame: &Frame) -> bool {
        // Its own shards come first: that costs no system call, and other processes are told that all of them have seen
        // it.
        let taken = self.siblings(frame).is_some_and(|siblings| siblings.take_stranger(frame))
            || self.whoever_keeps(frame, syn).is_some_and(|elsewhere| elsewhere.takes_stranger(syn, frame));
        self.counters.passed_on += u64::from(taken);
        taken
    }

    /// Whether all stacks know already that a segment is of no connection of theirs.
    pub(super) fn is_in_last_round(frame: &Frame) -> bool {
        frame.seen_by() & LAST_ROUND != 0
    }

    /// As [`Stack::is_elsewhere`], for an acknowledgement of a connection that nobody has.
    #[cold]
    pub(super) fn ends_elsewhere(&mut self, frame: &Frame) -> bool {
        let taken = self.siblings(frame).is_some_and(|siblings| siblings.take_last_acknowledgement(frame))
            || self.others(frame).is_some_and(|elsewhere| elsewhere.takes_last_acknowledgement(frame));
        self.counters.passed_on += u64::from(taken);
        taken
    }

    /// As [`Stack::is_elsewhere`], for an ICMP message that was of no use here: an error is about somebody's packet.
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
        match self.config.others() {
            Some(_) => self.secret.cookie_value(handshake.offer.window_scale, handshake.offer.sack, now_ns),
            None => paws::clock(now_ns),
        }
    }

    /// Tells the others that a connection was made here of a segment with data, since one of them may have made another
    /// connection, or may still make one, of the acknowledgement that the peer sent before it.
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

    /// Another stack has made a connection of a segment with data. A connection that was made here of the
    /// acknowledgement before it, which came by another queue, gives way, and the peer never hears of it.
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

    /// Gives the others what a neighbour answered, or said unasked. Each copy costs a system call, and any station may
    /// say such things in any name, so there is an allowance. What is said unasked has one of its own, and takes
    /// nothing of that of the answers.
    pub(super) fn tell_elsewhere(&mut self, frame: &Frame, is_answer: bool, now_ns: u64) {
        let Some(elsewhere) = self.config.others() else { return };
        let budget = if is_answer { &mut self.answers_budget } else { &mut self.unasked_budget };
        // Another process has passed it on: it goes no further, and costs nothing.
        if frame.seen_by() == 0 && budget.take(now_ns) {
            elsewhere.copy_to_all(frame);
        }
    }

    /// Whether a segment without a connection is the end of the handshake of a connection that has ended since. A later
    /// connection with the same ports has another number.
    #[cold]
    pub(super) fn is_of_an_ended_connection(&self, flow: &FlowKey, segment: &Segment, now_ns: u64) -> bool {
        let (isn, peer_isn) = (segment.ack.wrapping_sub(1), segment.seq.wrapping_sub(1));
        // One that another stack has claimed goes on there, by what it was claimed by.
        let is_known = match self.claimed.contains(flow, peer_isn) {
            true => segment.length == 0,
            false => self.ended.contains(flow, peer_isn),
        };
        is_known && self.secret.cookie_mss(flow, peer_isn, isn, now_ns).is_some()
    }
}
