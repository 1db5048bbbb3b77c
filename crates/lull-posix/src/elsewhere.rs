//! The other processes of the program with queues of the same NIC: what this process's stack cannot place is passed on to them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lull_net::lull_nic::Frame;
use lull_net::lull_nic::passing::{self, ALL_QUEUES, CLAIMED, EVERYBODY};
use lull_net::{Elsewhere, HandedOn};

use crate::Flows;

/// Who they are, and how they are reached.
pub(crate) struct Others {
    flows: Arc<Flows>,
    /// This process's queues.
    own: Vec<u32>,
    /// The end that is written of each queue's inbox.
    inboxes: Vec<OwnedFd>,
    lobby: Lobby,
    secret: u64,
    /// The listeners of this process that others may have inherited, too.
    listeners: Mutex<Vec<(SocketAddr, u32)>>,
}

/// What nobody has accepted when the last process that listened ended, until one listens again: all processes and the launcher have
/// both ends, the one that is read first.
pub(crate) type Lobby = (OwnedFd, OwnedFd);

impl std::fmt::Debug for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Others").field("own", &self.own).finish_non_exhaustive()
    }
}

static OTHERS: OnceLock<Arc<Others>> = OnceLock::new();

/// Those of this process, if its NIC has several queues and it has some.
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

/// Whether a listener at `at` hears who connects to `local`.
fn is_at(at: SocketAddr, local: SocketAddr) -> bool {
    at.port() == local.port() && (at.ip().is_unspecified() || at.ip() == local.ip())
}

impl Others {
    /// Makes them known to this process.
    pub(crate) fn new(
        flows: Arc<Flows>,
        own: Vec<u32>,
        inboxes: Vec<OwnedFd>,
        lobby: Lobby,
        secret: u64,
    ) -> &'static Arc<Others> {
        OTHERS.get_or_init(|| Arc::new(Others { flows, own, inboxes, lobby, secret, listeners: Mutex::default() }))
    }

    /// Whether another process has a queue.
    pub(crate) fn are_there(&self) -> bool {
        self.unseen(0).any(|queue| !self.own.contains(&queue))
    }

    /// What waits for somebody who listens. Whose listener is not of this process goes back there by [`Elsewhere::keeps`].
    pub(crate) fn kept(&self) -> Vec<Frame> {
        std::iter::from_fn(|| passing::taken(self.lobby.0.as_fd())).collect()
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<(SocketAddr, u32)>> {
        // An entry is added or removed whole.
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process asks for the connections of a listener from now on, whoever did before.
    pub(crate) fn listens(&self, at: SocketAddr, listener: u32) {
        let mut listeners = self.listeners();
        if !listeners.contains(&(at, listener)) {
            listeners.push((at, listener));
        }
        self.flows.listens(listener, at.port(), self.own[0]);
    }

    /// The listener is closed here. `inherited`: the process that made it has it, and another one may listen.
    pub(crate) fn listens_no_more(&self, at: SocketAddr, listener: u32, inherited: bool) {
        // Until others may know, a SYN for it is dropped here.
        self.flows.listens_no_more(listener, self.own[0], inherited);
        self.listeners().retain(|known| *known != (at, listener));
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
        // Looked at first: this process says to others that it closes a listener, and forgets it then.
        let own: Vec<u32> =
            self.listeners().iter().filter(|(at, _)| is_at(*at, local)).map(|(_, listener)| *listener).collect();
        let mut takers = Takers { now: None, soon: !own.is_empty() };
        for (listener, queue) in self.flows.listeners_at(local.port()) {
            match queue {
                Some(queue) if self.own.contains(&queue) => {}
                Some(queue) if self.flows.holder(queue).is_some() => {
                    if takers.now.is_none() || own.contains(&listener) {
                        takers.now = Some(queue);
                    }
                }
                // Whoever made it has it, or its process has just ended.
                _ => takers.soon = true,
            }
        }
        takers
    }

    /// Whether a SYN was given to the process that listens at its port by now, and did not when it saw the frame. That one may have
    /// closed its listener when it comes, and yet another may listen: so it is sent back twice, and no more, for who listens at the
    /// port may do so at another address.
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

    /// Passes a frame on to the next queue that has not seen it. False: there is none. If that queue's inbox is full the frame is
    /// lost, as on a full ring, and its sender repeats it: it is not nobody's, and must not be answered by a reset.
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

    fn queues(&self) -> &[u32] {
        &self.own
    }

    fn takes_syn(&self, local: SocketAddr, frame: &Frame) -> bool {
        let seen_by = frame.seen_by();
        let mut in_its_stead = None;
        for (at, listener) in self.listeners().iter() {
            if !is_at(*at, local) {
                continue;
            }
            match self.flows.who_listens(*listener) {
                // Whoever was to have it has sent it back.
                Some(queue) if !self.own.contains(&queue) && seen_by & 1 << queue == 0 => in_its_stead = Some(queue),
                _ => return false,
            }
        }
        match in_its_stead {
            // It is not marked as seen here: if it comes back, it is taken.
            Some(queue) if self.flows.holder(queue).is_some() => self.pass_on(queue, frame, seen_by),
            _ => false,
        }
    }

    fn takes_stranger(&self, syn: Option<SocketAddr>, frame: &Frame) -> bool {
        let seen_by = frame.seen_by() | self.own_bits();
        let passed = self.pass_on_to_next(frame, seen_by);
        passed
            || syn.is_some_and(|local| {
                let Takers { now, soon } = self.takers(local);
                // One that is dropped comes again after a second (RFC 6298 section 2).
                now.is_some_and(|queue| self.is_sent_back(queue, frame)) || soon
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

    fn keeps(&self, local: SocketAddr, frame: &Frame) -> HandedOn {
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
        let kept = passing::pass_on(self.lobby.1.as_fd(), frame, frame.seen_by());
        // One that began to listen just before has not seen it.
        if kept && let Some(queue) = self.takers(local).now {
            for frame in self.kept() {
                // On a full inbox it is lost like the last of a full backlog.
                self.pass_on(queue, &frame, frame.seen_by());
            }
        }
        given(kept)
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
mod tests {
    use std::os::fd::AsRawFd;

    use lull_net::lull_nic::passing::inbox;

    use super::*;

    const HERE: &str = "10.0.0.2:80";

    /// Others of a process that has queue 1 of two, and the end that is read of queue 0's inbox.
    fn others(flows: &Arc<Flows>) -> (Others, OwnedFd) {
        let (reads, writes) = inbox().unwrap();
        let (_, own) = inbox().unwrap();
        let (inboxes, lobby) = (vec![writes, own], inbox().unwrap());
        (Others { flows: flows.clone(), own: vec![1], inboxes, lobby, secret: 7, listeners: Mutex::default() }, reads)
    }

    /// By whom the frame was seen that came to an inbox.
    fn came(inbox: &OwnedFd) -> Option<u32> {
        let mut bytes = [0; 8 + 64];
        let count = crate::kernel::recv(inbox.as_raw_fd(), &mut bytes, libc::MSG_DONTWAIT).ok()?;
        assert_eq!(count, 8 + 60);
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Another process, which has queue 0, until it is dropped.
    struct Other(libc::pid_t);

    impl Other {
        #[allow(unsafe_code)]
        fn with_queue_0(flows: &Flows) -> Other {
            // SAFETY: the child makes system calls only, and is ended by its parent.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let _ = flows.claim(0);
                loop {
                    std::thread::sleep(std::time::Duration::from_secs(1));
                }
            }
            while flows.holder(0).is_none() {
                std::thread::yield_now();
            }
            Other(child)
        }
    }

    impl Drop for Other {
        #[allow(unsafe_code)]
        fn drop(&mut self) {
            // SAFETY: its number, which is waited for here alone.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    #[test]
    fn a_syn_goes_back_to_a_process_that_listens_only_since_it_saw_it() {
        let flows = Arc::new(Flows::create().unwrap());
        let _other = Other::with_queue_0(&flows);
        let (others, inbox) = others(&flows);
        let mut frame = Frame::copy_from(&[1; 60]);
        let local = Some(HERE.parse().unwrap());
        // It was at queue 0 first, where nobody listened yet, and nobody does: it is refused.
        frame.set_seen_by(1);
        assert!(!others.takes_stranger(local, &frame) && came(&inbox).is_none());
        flows.listens(7, 80, 0);
        // Queue 0's process may have closed it again before it comes, and listen again when it is back here.
        for mark in [ALL_QUEUES, EVERYBODY] {
            assert!(others.takes_stranger(local, &frame));
            assert_eq!(came(&inbox), Some(mark));
            frame.set_seen_by(mark);
        }
        assert!(!others.takes_stranger(local, &frame) && came(&inbox).is_none(), "it does not go round");
        let elsewhere = Some("10.0.0.2:81".parse().unwrap());
        frame.set_seen_by(1);
        assert!(!others.takes_stranger(elsewhere, &frame) && came(&inbox).is_none(), "nobody listens at that port");
    }

    #[test]
    fn a_syn_for_a_listener_that_is_being_closed_is_asked_for_again() {
        let flows = Arc::new(Flows::create().unwrap());
        let (others, _inbox) = others(&flows);
        let mut frame = Frame::copy_from(&[1; 60]);
        frame.set_seen_by(1);
        let at: SocketAddr = "0.0.0.0:80".parse().unwrap();
        others.listens(at, 7);
        assert!(
            others.takes_stranger(Some(HERE.parse().unwrap()), &frame),
            "the stack has it no more, and others not yet"
        );
        others.listens_no_more(at, 7, false);
        assert!(!others.takes_stranger(Some(HERE.parse().unwrap()), &frame));
    }

    /// Two processes have the listener. The other asks for its connections by now, and the SYN has been at both before it did.
    #[test]
    fn a_syn_for_a_listener_that_another_process_has_too_is_not_refused_until_this_one_has_closed_it() {
        let flows = Arc::new(Flows::create().unwrap());
        let _other = Other::with_queue_0(&flows);
        let (others, inbox) = others(&flows);
        let mut frame = Frame::copy_from(&[1; 60]);
        frame.set_seen_by(EVERYBODY);
        let (at, local) = ("0.0.0.0:80".parse().unwrap(), Some(HERE.parse().unwrap()));
        others.listens(at, 7);
        flows.listens(7, 80, 0);
        assert!(others.takes_stranger(local, &frame), "it is dropped, and asked for again");
        let elsewhere = Some("10.0.0.2:81".parse().unwrap());
        assert!(!others.takes_stranger(elsewhere, &frame), "nobody listens at that port");
        others.listens_no_more(at, 7, true);
        assert!(!others.takes_stranger(local, &frame), "it is nobody's here");
        assert!(came(&inbox).is_none(), "it does not go round again");
    }

    /// What nobody has accepted goes to who has the same listener, then to who listens at the port, and waits for who will.
    #[test]
    fn a_connection_goes_to_who_listens_and_waits_for_who_will() {
        let flows = Arc::new(Flows::create().unwrap());
        let _other = Other::with_queue_0(&flows);
        let (others, inbox) = others(&flows);
        let frame = Frame::copy_from(&[1; 60]);
        let (at, local) = ("0.0.0.0:80".parse().unwrap(), HERE.parse().unwrap());
        others.listens(at, 7);
        assert_eq!(others.takes_over(local, &frame), HandedOn::Later, "it is being closed");
        others.listens_no_more(at, 7, true);
        assert_eq!(others.takes_over(local, &frame), HandedOn::Later, "who made the listener has it");
        assert!(came(&inbox).is_none());
        flows.listens(7, 80, 0);
        assert_eq!((others.takes_over(local, &frame), came(&inbox)), (HandedOn::Given, Some(EVERYBODY)));
        assert_eq!(others.takes_over("10.0.0.2:81".parse().unwrap(), &frame), HandedOn::Nobody, "another port");
        flows.listens_no_more(7, 0, false);
        assert_eq!(others.takes_over(local, &frame), HandedOn::Nobody, "all have closed it");
        // Another listener of the port.
        others.listens(at, 7);
        flows.listens(8, 80, 0);
        assert_eq!((others.takes_over(local, &frame), came(&inbox)), (HandedOn::Given, Some(EVERYBODY)));
        // Its process takes nothing.
        while others.pass_on(0, &frame, EVERYBODY) {}
        assert_eq!(others.takes_over(local, &frame), HandedOn::Later);
    }

    #[test]
    fn where_no_other_process_has_a_queue_the_end_of_a_handshake_is_kept_too() {
        let flows = Arc::new(Flows::create().unwrap());
        let (others, _inbox) = others(&flows);
        let local: SocketAddr = HERE.parse().unwrap();
        others.listens(local, 7);
        others.listens_no_more(local, 7, true);
        let mut frame = Frame::copy_from(&[1; 60]);
        frame.set_seen_by(passing::LAST_ROUND);
        assert_eq!(others.keeps(local, &frame), HandedOn::Given);
        assert_eq!(others.kept().iter().map(|frame| frame.seen_by()).collect::<Vec<_>>(), [passing::LAST_ROUND]);
    }

    /// The last that listened has ended, and the next begins: at once, so that it has looked already, or later.
    #[test]
    fn what_is_kept_goes_to_who_begins_to_listen() {
        let flows = Arc::new(Flows::create().unwrap());
        let _other = Other::with_queue_0(&flows);
        let (others, inbox) = others(&flows);
        let local: SocketAddr = HERE.parse().unwrap();
        let mut frame = Frame::copy_from(&[1; 60]);
        for seen_by in [0, passing::LAST_ROUND, EVERYBODY] {
            frame.set_seen_by(seen_by);
            assert_eq!(others.keeps(local, &frame), HandedOn::Nobody, "nobody has a listener there");
        }
        others.listens(local, 7);
        others.listens_no_more(local, 7, true);
        frame.set_seen_by(EVERYBODY);
        assert_eq!(others.keeps(local, &frame), HandedOn::Given);
        let kept: Vec<_> = others.kept().iter().map(|frame| (frame.data().to_vec(), frame.seen_by())).collect();
        assert_eq!((kept, came(&inbox)), (vec![(vec![1; 60], EVERYBODY)], None), "what it says is not changed");
        frame.set_seen_by(passing::LAST_ROUND);
        assert_eq!(others.keeps(local, &frame), HandedOn::Later, "another process may hear what follows");
        assert!(others.kept().is_empty() && came(&inbox).is_none());
        flows.listens(7, 80, 0);
        assert_eq!(others.keeps(local, &frame), HandedOn::Later, "all are asked again");
        assert!(came(&inbox).is_none());
        frame.set_seen_by(EVERYBODY);
        assert!(others.keeps(local, &frame) == HandedOn::Given && others.kept().is_empty());
        assert_eq!(came(&inbox), Some(EVERYBODY), "somebody listens since it was asked last");
        // Of another listener at the port the process has ended, so that one is still waited for.
        flows.listens(8, 80, 5);
        assert!(others.keeps(local, &frame) == HandedOn::Given && others.kept().is_empty());
        assert_eq!(came(&inbox), Some(EVERYBODY));
    }

    #[test]
    #[allow(unsafe_code)]
    fn what_finds_the_inbox_of_another_process_full_is_lost_and_not_nobodys() {
        const SENT: usize = 2_000;
        let (here, there) = (passing::inbox().unwrap(), passing::inbox().unwrap());
        let flows = Arc::new(Flows::create().unwrap());
        // This process has queue 1, and does not look into its inbox.
        flows.claim(1).unwrap();
        let (own, inboxes, listeners) = (vec![0], vec![here.1, there.1], Mutex::default());
        let others = Others { flows, own, inboxes, lobby: passing::inbox().unwrap(), secret: 7, listeners };
        let frame = Frame::copy_from(&[0; 1400]);
        // SAFETY: the child passes frames on, and ends without running anything of the parent's.
        let status = match unsafe { libc::fork() } {
            0 => {
                let taken = (0..SENT).filter(|_| others.takes_stranger(None, &frame)).count();
                let last_round = others.takes_last_acknowledgement(&frame);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(taken != SENT || !last_round)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for the child that was made here.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                status
            }
        };
        assert_eq!(status, 0, "a frame was said to be nobody's");
        let mut buffer = [0; 2000];
        let waited = std::iter::from_fn(|| rustix::io::read(&there.0, &mut buffer[..]).ok()).count();
        assert!(0 < waited && waited < SENT, "the inbox was full after {waited} frames");
    }
}
