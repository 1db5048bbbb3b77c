//! Which process listens last on a listener that several have inherited.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Flows;

/// A listener that is open in the process that made it, and whose connections nobody asks for just now.
pub(super) const NOBODY: u64 = u16::MAX as u64;

fn word(listener: u32, port: u16, who: u64) -> u64 {
    u64::from(listener) << 32 | u64::from(port) << 16 | who
}

impl Flows {
    /// The process that has `queue` asks for the connections of a listener from now on: new ones are its own, and not those of
    /// others that inherited it. Of more listeners than are remembered, each process takes what comes to its queue.
    pub fn listens(&self, listener: u32, port: u16, queue: u32) {
        let wanted = word(listener, port, u64::from(queue + 1));
        let of_it = |now: u64| (now >> 32 == u64::from(listener)).then_some(wanted);
        let listeners = &self.shared().listeners;
        let known = listeners.iter().any(|word| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, of_it).is_ok());
        let free = |word: &AtomicU64| word.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let _ = known || listeners.iter().any(free);
    }

    /// The process that has `queue` does not listen there any more. `inherited`: another one may, soon.
    pub fn listens_no_more(&self, listener: u32, queue: u32, inherited: bool) {
        let its_own = |now: u64| {
            let is_it = now >> 32 == u64::from(listener) && now & NOBODY == u64::from(queue + 1);
            // Another process may listen by now.
            is_it.then_some(if inherited { now | NOBODY } else { 0 })
        };
        self.change_listeners(its_own);
    }

    /// The process that made a listener has closed it without ever asking for its connections.
    pub fn closed_for_good(&self, listener: u32) {
        self.change_listeners(|now| (now >> 32 == u64::from(listener) && now & NOBODY == NOBODY).then_some(0));
    }

    /// A process has just taken `queue`: what is still noted of the one before is over.
    pub(crate) fn begins_with(&self, queue: u32) {
        self.shared().begun.fetch_add(1, Ordering::Relaxed);
        self.change_listeners(|now| (now & NOBODY == u64::from(queue + 1)).then_some(now | NOBODY));
        self.ended(&[queue]);
    }

    /// How many times a process has taken a queue so far, modulo 2^32.
    pub fn begun_so_far(&self) -> u32 {
        self.shared().begun.load(Ordering::Relaxed)
    }

    fn change_listeners(&self, change: impl Fn(u64) -> Option<u64>) {
        for word in &self.shared().listeners {
            // What is not to be changed stays.
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, &change);
        }
    }

    fn listeners(&self) -> impl Iterator<Item = u64> + '_ {
        self.shared().listeners.iter().map(|word| word.load(Ordering::Acquire)).filter(|word| *word != 0)
    }

    /// The queue of the process that began last to listen, if it has not ceased to.
    pub fn who_listens(&self, listener: u32) -> Option<u32> {
        let word = self.listeners().find(|word| word >> 32 == u64::from(listener))?;
        (word & NOBODY != NOBODY).then_some((word & NOBODY) as u32 - 1)
    }

    /// The listeners at a port, and the queues of the processes that ask for their connections; none where nobody asks just now. Each is
    /// looked at once: between two looks it may change hands.
    pub fn listeners_at(&self, port: u16) -> impl Iterator<Item = (u32, Option<u32>)> + '_ {
        let at_it = self.listeners().filter(move |word| (word >> 16) as u16 == port);
        at_it.map(|word| ((word >> 32) as u32, (word & NOBODY != NOBODY).then_some((word & NOBODY) as u32 - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_processes_the_last_that_listens_has_the_new_connections() {
        let flows = Flows::create().unwrap();
        let at = |port| flows.listeners_at(port).collect::<Vec<_>>();
        assert_eq!((flows.who_listens(7), at(80)), (None, vec![]));
        flows.listens(7, 80, 0);
        flows.listens(8, 81, 0);
        flows.listens(7, 80, 1);
        assert_eq!((flows.who_listens(7), flows.who_listens(8)), (Some(1), Some(0)));
        flows.listens_no_more(7, 0, true);
        assert_eq!(flows.who_listens(7), Some(1), "the former one ends, and not the last");
        flows.listens_no_more(7, 1, true);
        assert_eq!((flows.who_listens(7), at(80)), (None, vec![(7, None)]), "whoever made it has it");
        flows.closed_for_good(7);
        assert_eq!((at(80), at(81)), (vec![], vec![(8, Some(0))]));
        flows.begins_with(0);
        assert_eq!((flows.who_listens(8), at(81)), (None, vec![(8, None)]), "whoever had the queue has died");
        flows.listens(8, 81, 2);
        flows.listens_no_more(8, 2, false);
        assert_eq!(at(81), []);
    }
}
