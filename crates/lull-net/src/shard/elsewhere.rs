//! Stacks with the same addresses on other queues of the interface: other shards of the network, or other processes'.
//!
//! Which queue a packet comes to is the device's choice: a segment may reach a stack that does not know its connection, and an
//! answer of a neighbour one that did not ask. Such a frame is another stack's before it is nobody's.

use std::net::SocketAddr;

use lull_nic::Frame;
use lull_nic::passing::{CLAIMED, LAST_ROUND};

/// The other stacks with this stack's addresses. It is asked with the shard's lock held: nothing in it may wait.
pub trait Elsewhere: std::fmt::Debug + Send + Sync {
    /// A secret that all these stacks share, so that one can go on with a handshake that another began.
    fn secret(&self) -> u64;

    /// Whether there are no other stacks, and will be none while the asking network has its queues. Then this is only
    /// asked to keep what comes before somebody listens ([`Elsewhere::takes_stranger`]); in all else the stack behaves
    /// as one without others.
    fn is_nobody(&self) -> bool {
        false
    }

    /// The numbers of the asking network's own queues, in the device's order. All these stacks number the interface's queues alike,
    /// below [`QUEUES_MAX`](lull_nic::passing::QUEUES_MAX): a frame has a bit for each that it has been to ([`Frame::seen_by`]), and
    /// what comes to one queue of a network goes to its others before `Elsewhere` is asked.
    fn queues(&self) -> &[u32];

    /// Gives a packet that belongs to nobody here to another stack, which may know whose it is; returns whether one
    /// took it. `syn` is the address at which it begins a connection, if it does. If somebody will listen there
    /// shortly, the packet may be taken and dropped, since its sender asks again.
    fn takes_stranger(&self, syn: Option<SocketAddr>, frame: &Frame) -> bool;

    /// As [`Elsewhere::takes_stranger`], for a segment that no stack knows and that may end a handshake which another
    /// began: all are asked once more, except the asking one.
    fn takes_last_acknowledgement(&self, frame: &Frame) -> bool;

    /// Gives a connection to `local`, whose listener here was closed before anybody accepted it, to another stack that
    /// listens there. `frame` is the connection as one segment of its peer's, and is marked with
    /// [`EVERYBODY`](lull_nic::passing::EVERYBODY).
    fn takes_over(&self, local: SocketAddr, frame: &Frame) -> HandedOn;

    /// Keeps the frame of such a connection, as it is marked, when nobody listens now and the asking stack is about to
    /// end; or the frame that ends a handshake which one of these stacks began. Whoever listens there next is given it
    /// by [`Network::take_over`](crate::Network::take_over). [`HandedOn::Later`] means that the asking stack is to hold
    /// it. `asked` is how many stacks have been given it and have no listener for it.
    fn keeps(&self, _local: SocketAddr, _frame: &Frame, _asked: u8) -> HandedOn {
        HandedOn::Nobody
    }

    /// Gives the others a copy of a neighbour's answer, which any stack may have asked for, or of what a neighbour says
    /// unasked, unless the frame is such a copy itself.
    fn copy_to_all(&self, frame: &Frame);

    /// Tells the others that this stack has made a connection of a segment with data, or was handed one over with some:
    /// they get a copy, marked with [`CLAIMED`](lull_nic::passing::CLAIMED), because they may have made a connection of
    /// what came before it.
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

/// Whether a frame only says whose a connection is, or repeats what another stack has been told, and is no segment that
/// arrives.
#[inline]
pub(super) fn is_claim(frame: &Frame) -> bool {
    frame.seen_by() & (CLAIMED | LAST_ROUND) == CLAIMED
}
