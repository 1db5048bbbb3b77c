//! Stacks with the same addresses on other queues of the interface: other shards of the network, or other processes'.
//!
//! Which queue a packet comes to is the device's choice: a segment may reach a stack that does not know its connection, and an
//! answer of a neighbour one that did not ask. Such a frame is another stack's before it is nobody's.

use std::net::SocketAddr;

use lull_nic::Frame;
use lull_nic::passing::{CLAIMED, LAST_ROUND};

/// The other stacks with this stack's addresses. It is asked with the shard's lock held: nothing in it may wait.
pub trait Elsewhere: std::fmt::Debug + Send + Sync {
    /// A secret that all these stacks have: by it one can go on with a handshake that another began.
    fn secret(&self) -> u64;

    /// Whether there are none, and will be none while the asking network has its queues: it is only asked to keep what comes before
    /// somebody listens ([`Elsewhere::takes_stranger`]), and the stack is as one without others in all else.
    fn is_nobody(&self) -> bool {
        false
    }

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

    /// A neighbour's answer, which any stack may have asked for, or what it says of itself unasked: the others are given a copy, unless
    /// it is one.
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
