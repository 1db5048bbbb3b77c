//! The other processes of the program with queues of the same NIC: what this process's stack cannot place is passed on to them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lull_net::Elsewhere;
use lull_net::lull_nic::{Frame, passing};

use crate::Flows;

/// Who they are, and how they are reached.
pub(crate) struct Others {
    flows: Arc<Flows>,
    /// This process's queues.
    own: Vec<u32>,
    /// The end that is written of each queue's inbox.
    inboxes: Vec<OwnedFd>,
    secret: u64,
    /// The listeners of this process that others may have inherited, too.
    listeners: Mutex<Vec<(SocketAddr, u32)>>,
}

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

/// Seen by everybody: nobody passes it on.
const EVERYBODY: u32 = u32::MAX;

impl Others {
    /// Makes them known to this process.
    pub(crate) fn new(flows: Arc<Flows>, own: Vec<u32>, inboxes: Vec<OwnedFd>, secret: u64) -> &'static Arc<Others> {
        OTHERS.get_or_init(|| Arc::new(Others { flows, own, inboxes, secret, listeners: Mutex::default() }))
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
        self.listeners().retain(|known| *known != (at, listener));
        self.flows.listens_no_more(listener, self.own[0], inherited);
    }

    fn own_bits(&self) -> u32 {
        self.own.iter().fold(0, |bits, queue| bits | 1 << queue)
    }

    /// The queues of other processes that have not seen a frame.
    fn unseen(&self, seen_by: u32) -> impl Iterator<Item = u32> + '_ {
        let queues = 0..self.inboxes.len() as u32;
        queues.filter(move |queue| seen_by & 1 << queue == 0 && self.flows.holder(*queue).is_some())
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
            let is_here = at.port() == local.port() && (at.ip().is_unspecified() || at.ip() == local.ip());
            if !is_here {
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
        // Its sender asks again after a second (RFC 6298 section 2).
        passed || syn.is_some_and(|local| self.flows.somebody_will_listen(local.port()))
    }

    fn takes_last_acknowledgement(&self, frame: &Frame) -> bool {
        self.pass_on_to_next(frame, passing::LAST_ROUND | self.own_bits())
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
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn what_finds_the_inbox_of_another_process_full_is_lost_and_not_nobodys() {
        const SENT: usize = 2_000;
        let (here, there) = (passing::inbox().unwrap(), passing::inbox().unwrap());
        let flows = Arc::new(Flows::create().unwrap());
        // This process has queue 1, and does not look into its inbox.
        flows.claim(1).unwrap();
        let (own, inboxes, listeners) = (vec![0], vec![here.1, there.1], Mutex::default());
        let others = Others { flows, own, inboxes, secret: 7, listeners };
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
