//! The other processes of the program with queues of the same NIC: what this process's stack cannot place is passed on to them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lull_net::lull_nic::passing::{self, ALL_QUEUES, CLAIMED, EVERYBODY};
use lull_net::lull_nic::{Afresh, Frame};
use lull_net::{Elsewhere, HandedOn};

use crate::{Flows, kernel};

/// Who they are, and how they are reached.
pub(crate) struct Others {
    flows: Arc<Flows>,
    /// This process's queues.
    own: Vec<u32>,
    /// It has all queues: there is nobody else while it has them.
    is_alone: bool,
    /// The end that is written of each queue's inbox.
    inboxes: Vec<OwnedFd>,
    lobby: Lobby,
    secret: u64,
    /// The listeners of this process that others may have inherited, too.
    listeners: Mutex<Vec<(Heard, u32)>>,
    /// Those for which `listen` was called before this process had queues, until it asks for their connections or closes them.
    unasked: Mutex<Vec<(Heard, u32)>>,
}

/// A socket pair for what nobody had accepted when the last process that listened ended, until one listens again. All
/// processes and the launcher have both ends; the first is the one that is read.
pub(crate) type Lobby = (OwnedFd, OwnedFd);

impl std::fmt::Debug for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Others").field("own", &self.own).finish_non_exhaustive()
    }
}

static OTHERS: Afresh<Arc<Others>> = Afresh::new();
/// Listeners of which this process makes lull's half just now.
static EXPECTED: Afresh<Mutex<Vec<Heard>>> = Afresh::new();

/// A child of `fork` has no queue yet.
pub(crate) fn forget() {
    OTHERS.forget();
    EXPECTED.forget();
}

fn expected() -> MutexGuard<'static, Vec<Heard>> {
    // An entry is added or removed whole.
    EXPECTED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that this process is about to listen there, until what is returned is dropped: a client whose packets are in
/// the queue that it takes first, left by a process that has ended, is not refused meanwhile.
pub(crate) fn expects(heard: Heard) -> impl Drop {
    struct Expected(Heard);
    impl Drop for Expected {
        fn drop(&mut self) {
            let mut expected = expected();
            if let Some(nth) = expected.iter().position(|heard| *heard == self.0) {
                expected.swap_remove(nth);
            }
        }
    }
    expected().push(heard);
    Expected(heard)
}

/// The others of this process, if it has queues and the NIC has no more queues than frames can tell apart.
pub(crate) fn others() -> Option<&'static Arc<Others>> {
    OTHERS.get()
}

/// Who takes connections of an address that a process does not take.
struct Takers {
    /// The queue of another process that listens there: on the same listener as this one, if there is one.
    now: Option<u32>,
    /// Somebody has a listener there, and may ask for its connections, or this process has not yet said that it closes its own.
    soon: bool,
}

/// Where a listener hears who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) at: SocketAddr,
    pub(crate) v6_only: bool,
}

impl Heard {
    /// Whether it hears who connects to `local`. A wildcard of IPv6 stands for IPv4 as well, unless that was taken from it.
    fn is_at(&self, local: SocketAddr) -> bool {
        let at = self.at;
        let has_family = at.is_ipv6() == local.is_ipv6() || at.is_ipv6() && !self.v6_only;
        at.port() == local.port() && (at.ip() == local.ip() || at.ip().is_unspecified() && has_family)
    }
}

/// Whom the process with the queue `own` asks next whether it takes something, once `asked` processes have been asked,
/// this one included unless it had the connection. `others` are the queues of all other processes, in their order.
fn next_in_ring(own: u32, others: &[u32], asked: u8) -> Option<u32> {
    let behind = others.iter().find(|queue| **queue > own);
    behind.or(others.first()).copied().filter(|_| usize::from(asked) <= others.len())
}

impl Others {
    /// Makes them known to this process. `is_alone`: it has all queues.
    pub(crate) fn new(
        flows: Arc<Flows>,
        own: Vec<u32>,
        is_alone: bool,
        inboxes: Vec<OwnedFd>,
        lobby: Lobby,
        secret: u64,
    ) -> &'static Arc<Others> {
        OTHERS.get_or_init(|| {
            let (listeners, unasked) = (Mutex::default(), Mutex::default());
            Arc::new(Others { flows, own, is_alone, inboxes, lobby, secret, listeners, unasked })
        })
    }

    /// Whether another process may have a queue beside this one.
    pub(crate) fn may_have_queues(&self) -> bool {
        self.inboxes.len() > self.own.len()
    }

    /// Whether another process has a queue.
    pub(crate) fn are_there(&self) -> bool {
        self.unseen(0).any(|queue| !self.own.contains(&queue))
    }

    /// Takes what waits for somebody who listens. Frames whose listener is not this process's go back there by
    /// [`Elsewhere::keeps`].
    pub(crate) fn kept(&self) -> Vec<Frame> {
        std::iter::from_fn(|| passing::taken(self.lobby.0.as_fd())).collect()
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<(Heard, u32)>> {
        // An entry is added or removed whole.
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unasked(&self) -> MutexGuard<'_, Vec<(Heard, u32)>> {
        // An entry is added or removed whole.
        self.unasked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process asks for the connections of a listener from now on, whoever did before.
    pub(crate) fn listens(&self, heard: Heard, listener: u32) {
        let mut listeners = self.listeners();
        if !listeners.contains(&(heard, listener)) {
            listeners.push((heard, listener));
        }
        self.flows.listens(listener, heard.at.port(), self.own[0]);
        self.never_listens(listener);
    }

    /// This process has a listener, and may ask for its connections.
    pub(crate) fn may_listen(&self, heard: Heard, listener: u32) {
        let mut unasked = self.unasked();
        if !unasked.contains(&(heard, listener)) {
            unasked.push((heard, listener));
        }
    }

    /// A listener that this process has not asked for connections is closed here, or need not be waited for.
    pub(crate) fn never_listens(&self, listener: u32) {
        self.unasked().retain(|(_, known)| *known != listener);
    }

    /// The listener is closed here. `inherited`: the process that made it has it, and another one may listen.
    pub(crate) fn listens_no_more(&self, listener: u32, inherited: bool) {
        // Until others may know, a SYN for it is dropped here.
        self.flows.listens_no_more(listener, self.own[0], inherited);
        self.never_listens(listener);
        self.listeners().retain(|(_, known)| *known != listener);
    }

    /// Whether a process with other queues asks for the connections of a listener of this one's.
    pub(crate) fn listens_in_our_stead(&self, listener: u32) -> bool {
        self.flows.who_listens(listener).is_some_and(|queue| !self.own.contains(&queue))
    }

    /// Whether processes with other queues ask for the connections of a listener as well.
    pub(crate) fn share(&self, listener: u32) -> bool {
        self.sharer(listener).is_some()
    }

    /// The queue of one of these.
    fn sharer(&self, listener: u32) -> Option<u32> {
        let sharers = self.flows.sharers(listener) & !self.own_bits();
        (0..u32::BITS).find(|queue| sharers & 1 << queue != 0 && self.flows.holder(*queue).is_some())
    }

    /// This process is about to end. `is_anothers`: whether another one has a listener that is still open here, and may listen.
    pub(crate) fn ends(&self, is_anothers: impl Fn(u32) -> bool) {
        for (_, listener) in std::mem::take(&mut *self.listeners()) {
            self.flows.listens_no_more(listener, self.own[0], is_anothers(listener));
        }
    }

    fn own_bits(&self) -> u32 {
        self.own.iter().fold(0, |bits, queue| bits | 1 << queue)
    }

    /// The queues of other processes that have not seen a frame.
    fn unseen(&self, seen_by: u32) -> impl Iterator<Item = u32> + '_ {
        let queues = 0..self.inboxes.len() as u32;
        queues.filter(move |queue| seen_by & 1 << queue == 0 && self.flows.holder(*queue).is_some())
    }

    /// Who takes connections to `local` that this process does not.
    fn takers(&self, local: SocketAddr) -> Takers {
        // This is looked at first, because this process tells others that it closes a listener, and then forgets it.
        let own: Vec<u32> =
            self.listeners().iter().filter(|(heard, _)| heard.is_at(local)).map(|(_, listener)| *listener).collect();
        let soon = !own.is_empty()
            || expected().iter().any(|heard| heard.is_at(local))
            || self.unasked().iter().any(|(heard, _)| heard.is_at(local));
        let mut takers = Takers { now: None, soon };
        if self.is_alone {
            return takers;
        }
        for (listener, queue) in self.flows.listeners_at(local.port()) {
            if queue.is_some_and(|queue| self.own.contains(&queue)) {
                continue;
            }
            // Where the last that began has died, another may listen still.
            match queue.filter(|queue| self.flows.holder(*queue).is_some()).or_else(|| self.sharer(listener)) {
                Some(queue) => {
                    if takers.now.is_none() || own.contains(&listener) {
                        takers.now = Some(queue);
                    }
                }
                // Whoever made it has it, or its process has just ended.
                None => takers.soon = true,
            }
        }
        takers
    }

    /// Gives a SYN back to a process that listens at its port by now, but did not when it saw the frame. That process
    /// may have closed its listener when the SYN comes, and yet another may listen. So it is sent back twice, but no
    /// more, since a process that listens at the port may do so at another address.
    fn is_sent_back(&self, queue: u32, frame: &Frame) -> bool {
        let seen_by = match frame.seen_by() {
            EVERYBODY => return false,
            ALL_QUEUES => EVERYBODY,
            _ => ALL_QUEUES,
        };
        self.pass_on(queue, frame, seen_by);
        true
    }

    fn pass_on(&self, queue: u32, frame: &Frame, seen_by: u32) -> bool {
        passing::pass_on(self.inboxes[queue as usize].as_fd(), frame, seen_by)
    }

    /// Leaves a SYN, which somebody will hear soon, to whoever begins to listen. If it were dropped it would come
    /// again, but only after a second (RFC 6298 section 2). If many frames wait already it is dropped, since the room
    /// is for connections. It is given to nobody else.
    fn waits_for_who_listens(&self, local: SocketAddr, frame: &Frame) -> bool {
        const SYNS_MAX_BYTES: usize = 64 << 10;
        let waits = kernel::unread_by_peer(self.lobby.1.as_raw_fd()).is_ok_and(|bytes| bytes < SYNS_MAX_BYTES);
        let _ = waits && self.keep(local, frame);
        true
    }

    /// Keeps what comes to `local` for whoever listens there next. Returns false if there is no room.
    fn keep(&self, local: SocketAddr, frame: &Frame) -> bool {
        let kept = passing::pass_on(self.lobby.1.as_fd(), frame, frame.seen_by());
        // One that began to listen just before has not seen it.
        if kept && let Some(queue) = self.takers(local).now {
            for frame in self.kept() {
                // If the inbox is full, the frame is lost like what comes to a full backlog.
                self.pass_on(queue, &frame, frame.seen_by());
            }
        }
        kept
    }

    /// Passes a frame on to the next queue that has not seen it. Returns false if there is none. If that queue's inbox
    /// is full, the frame is lost, as on a full ring, and its sender repeats it. That still counts as passed on: the
    /// frame may be somebody's, and must not be answered by a reset.
    fn pass_on_to_next(&self, frame: &Frame, seen_by: u32) -> bool {
        self.unseen(seen_by).next().is_some_and(|queue| {
            self.pass_on(queue, frame, seen_by);
            true
        })
    }
}

impl Elsewhere for Others {
    fn secret(&self) -> u64 {
        self.secret
    }

    fn is_nobody(&self) -> bool {
        self.is_alone
    }

    fn queues(&self) -> &[u32] {
        &self.own
    }

    fn takes_stranger(&self, syn: Option<SocketAddr>, frame: &Frame) -> bool {
        let seen_by = frame.seen_by() | self.own_bits();
        let passed = self.pass_on_to_next(frame, seen_by);
        passed
            || syn.is_some_and(|local| {
                let Takers { now, soon } = self.takers(local);
                match now {
                    Some(queue) => self.is_sent_back(queue, frame) || soon,
                    None => soon && self.waits_for_who_listens(local, frame),
                }
            })
    }

    fn takes_last_acknowledgement(&self, frame: &Frame) -> bool {
        self.pass_on_to_next(frame, passing::LAST_ROUND | self.own_bits())
    }

    fn takes_over(&self, local: SocketAddr, frame: &Frame) -> HandedOn {
        match self.takers(local) {
            Takers { now: Some(queue), .. } if self.pass_on(queue, frame, EVERYBODY) => HandedOn::Given,
            // Its inbox is full, or nobody knows yet who will listen.
            Takers { now: Some(_), .. } | Takers { soon: true, .. } => HandedOn::Later,
            Takers { now: None, soon: false } => HandedOn::Nobody,
        }
    }

    fn keeps(&self, local: SocketAddr, frame: &Frame, asked: u8) -> HandedOn {
        let Takers { now, soon } = self.takers(local);
        if now.is_none() && !soon {
            return HandedOn::Nobody;
        }
        if frame.seen_by() != EVERYBODY && self.are_there() {
            // What follows the end of a handshake may come to another process that listens by then, and makes the connection of
            // that. So all are asked again.
            return HandedOn::Later;
        }
        let given = |is_given| if is_given { HandedOn::Given } else { HandedOn::Nobody };
        if !soon {
            // Somebody listens since it was asked last.
            return given(now.is_some_and(|queue| self.pass_on(queue, frame, frame.seen_by())));
        }
        // Of the processes that listen on one listener only the one that began last is known, and it may have ended.
        if frame.seen_by() == EVERYBODY
            && now.is_none()
            && let others = self.unseen(self.own_bits()).collect::<Vec<u32>>()
            && let Some(queue) = self.own.last().and_then(|own| next_in_ring(*own, &others, asked))
            && self.pass_on(queue, frame, EVERYBODY)
        {
            return HandedOn::Given;
        }
        given(self.keep(local, frame))
    }

    fn claims(&self, frame: &Frame) {
        self.unseen(self.own_bits()).for_each(|queue| {
            self.pass_on(queue, frame, CLAIMED);
        });
    }

    fn copy_to_all(&self, frame: &Frame) {
        if frame.seen_by() == 0 {
            self.unseen(self.own_bits()).for_each(|queue| {
                // A copy that is lost is asked for again.
                self.pass_on(queue, frame, EVERYBODY);
            });
        }
    }
}

#[cfg(test)]
mod tests;
