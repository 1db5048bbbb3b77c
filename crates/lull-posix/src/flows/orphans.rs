//! Connections of a process that has ended without closing them, while the program goes on with others.
//!
//! Whoever sees the end says so ([`Flows::ended`]): the launcher, and a process that takes the queue. Their peers are told by a
//! process that has a queue and takes them over ([`Flows::take_over`]), and by the launcher if there is none. One that ends before
//! they are told leaves them again.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use rustix::thread::futex;

use super::{Flows, Slot, Taken};

/// The owner of a connection whose process has ended.
pub(super) const NOBODYS: u32 = 0;

/// In place of a queue's number: the launcher.
pub const LAUNCHER: u32 = u32::MAX - 1;

pub(super) fn owner(queue: u32) -> u32 {
    queue + 1
}

/// A connection that was taken over.
pub type Orphan = ((SocketAddr, SocketAddr), Taken);

impl Flows {
    /// The processes that had these queues have ended: what they left open is nobody's. No other may take one meanwhile.
    pub fn ended(&self, queues: &[u32]) {
        let left = |(_, slot): &(u32, &Slot)| {
            let its = slot.owner.load(Ordering::Acquire);
            let is_left = queues.iter().any(|queue| owner(*queue) == its);
            is_left && slot.owner.compare_exchange(its, NOBODYS, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if self.open_slots().filter(left).count() > 0 {
            self.shared().orphaned.fetch_add(1, Ordering::Release);
            // It fails for no word that is mapped.
            let _ = futex::wake(&self.shared().orphaned, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Takes over the connections that are nobody's. Give them back by [`Flows::closed`] when their peers have been told.
    pub fn take_over(&self, queue: u32) -> Vec<Orphan> {
        let owner = owner(queue);
        let taken = |(index, slot): (u32, &Slot)| {
            slot.owner.compare_exchange(NOBODYS, owner, Ordering::AcqRel, Ordering::Relaxed).ok()?;
            Some((slot.addresses(), Taken { index, owner }))
        };
        self.open_slots().filter_map(taken).collect()
    }

    /// Whether there are connections that are nobody's.
    pub fn has_orphans(&self) -> bool {
        self.open_slots().any(|(_, slot)| slot.owner.load(Ordering::Acquire) == NOBODYS)
    }

    /// How many times connections have become nobody's.
    pub fn times_orphaned(&self) -> u32 {
        self.shared().orphaned.load(Ordering::Acquire)
    }

    /// Sleeps until connections have become nobody's more often than `times`.
    pub fn wait_for_orphans(&self, times: u32) {
        while self.times_orphaned() == times {
            // Woken for nothing, it looks again.
            let _ = futex::wait(&self.shared().orphaned, futex::Flags::empty(), times, None);
        }
    }

    /// How many connections were opened so far, modulo 2^32.
    pub fn opened_so_far(&self) -> u32 {
        self.shared().cursor.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> (SocketAddr, SocketAddr) {
        (SocketAddr::new("10.0.0.2".parse().unwrap(), 80), SocketAddr::new("10.0.0.1".parse().unwrap(), port))
    }

    fn opened(flows: &Flows, port: u16, queue: u32) -> Taken {
        let (local, remote) = flow(port);
        flows.opened(local, remote, queue).unwrap()
    }

    fn addresses(orphans: &[Orphan]) -> Vec<(SocketAddr, SocketAddr)> {
        orphans.iter().map(|(addresses, _)| *addresses).collect()
    }

    #[test]
    fn what_an_ended_process_left_open_is_taken_over_once_and_nothing_else_is() {
        let flows = Flows::create().unwrap();
        let (first, second) = (opened(&flows, 1, 0), opened(&flows, 2, 0));
        let others = opened(&flows, 3, 1);
        assert!(flows.take_over(1).is_empty() && !flows.has_orphans(), "everybody lives");
        flows.closed(first);
        flows.ended(&[0]);
        assert!(flows.has_orphans());
        let orphans = flows.take_over(1);
        assert_eq!(addresses(&orphans), [flow(2)]);
        assert!(flows.take_over(2).is_empty() && !flows.has_orphans(), "it is taken over");
        // The process lives after all: the connection is not its own any more.
        flows.closed(second);
        assert_eq!(flows.all(), [flow(2), flow(3)], "until its peer is told it stands for the launcher");
        orphans.into_iter().for_each(|(_, taken)| flows.closed(taken));
        flows.closed(others);
        assert_eq!(flows.all(), []);
    }

    #[test]
    fn who_ends_before_the_peers_are_told_leaves_them_to_the_next() {
        let flows = Flows::create().unwrap();
        let _left = opened(&flows, 1, 0);
        flows.ended(&[0]);
        assert_eq!(flows.take_over(1).len(), 1);
        flows.ended(&[2, 1]);
        assert_eq!(addresses(&flows.take_over(LAUNCHER)), [flow(1)]);
    }

    #[test]
    fn who_takes_the_queue_of_a_process_that_ended_says_so_and_who_sleeps_hears_it() {
        let flows = Flows::create().unwrap();
        let _left = opened(&flows, 1, 0);
        let seen = flows.times_orphaned();
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| {
                flows.wait_for_orphans(seen);
                flows.take_over(1)
            });
            flows.begins_with(0, |_| false);
            // Who would sleep for ever is woken.
            let said = flows.times_orphaned() != seen;
            flows.ended(&[0]);
            assert!(said, "nobody said so");
            assert_eq!(addresses(&heard.join().unwrap()), [flow(1)]);
        });
        let seen = flows.times_orphaned();
        flows.begins_with(0, |_| false);
        assert_eq!(flows.times_orphaned(), seen, "nothing was left");
    }
}
