//! Which processes listen on a listener that several have inherited, and which of them began last.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::process::{Pid, test_kill_process};

use super::{Flows, Kept};

/// A listener that is open in the process that made it, and whose connections nobody asks for just now.
pub(super) const NOBODY: u64 = u16::MAX as u64;

/// Whether there is a process of this number, in this process's PID namespace.
fn is_alive(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

fn word(listener: u32, port: u16, who: u64) -> u64 {
    u64::from(listener) << 32 | u64::from(port) << 16 | who
}

impl Flows {
    /// The process that has `queue` asks for the connections of a listener from now on. What comes to a queue whose process does not is
    /// given to who began last. Of more listeners than are remembered, nobody is.
    pub fn listens(&self, listener: u32, port: u16, queue: u32) {
        let wanted = word(listener, port, u64::from(queue + 1));
        let of_it = |now: u64| (now >> 32 == u64::from(listener)).then_some(wanted);
        let words = || self.shared().listeners.iter().zip(&self.shared().sharers);
        // It is one of those that share it before it can be the last, and so before another one ends and looks for who is left.
        let joins = |(word, sharers): (&AtomicU64, &AtomicU32)| {
            let is_it = word.load(Ordering::Acquire) >> 32 == u64::from(listener);
            is_it && {
                sharers.fetch_or(1 << queue, Ordering::AcqRel);
                word.fetch_update(Ordering::AcqRel, Ordering::Acquire, of_it).is_ok()
            }
        };
        let takes = |(word, sharers): (&AtomicU64, &AtomicU32)| {
            if word.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                sharers.fetch_or(1 << queue, Ordering::AcqRel);
                return true;
            }
            // Whoever took it meanwhile may have done so for the same listener.
            joins((word, sharers))
        };
        let _ = words().any(joins) || words().any(takes);
    }

    /// The queues of the processes that ask for the connections of a listener, each once, as bits.
    pub fn sharers(&self, listener: u32) -> u32 {
        let mut words = self.shared().listeners.iter().zip(&self.shared().sharers);
        let found = words.find(|(word, _)| word.load(Ordering::Acquire) >> 32 == u64::from(listener));
        found.map_or(0, |(_, sharers)| sharers.load(Ordering::Acquire))
    }

    /// The process that has `queue` does not listen there any more. One of those that still do is the last from then on. `inherited`: if
    /// there is none, another one may, soon.
    pub fn listens_no_more(&self, listener: u32, queue: u32, inherited: bool) {
        for (word, sharers) in self.shared().listeners.iter().zip(&self.shared().sharers) {
            if word.load(Ordering::Acquire) >> 32 == u64::from(listener) {
                self.leaves(word, sharers, queue, if inherited { NOBODY } else { 0 });
            }
        }
    }

    /// The last to listen is another one than `queue`'s process; `none` stands for it where none is left.
    fn leaves(&self, word: &AtomicU64, sharers: &AtomicU32, queue: u32, none: u64) {
        let mut who = u64::from(queue + 1);
        let mut left = sharers.fetch_and(!(1 << queue), Ordering::AcqRel) & !(1 << queue);
        loop {
            let next = (0..u32::BITS).find(|queue| left & 1 << queue != 0 && self.holder(*queue).is_some());
            let now = next.map_or(none, |queue| u64::from(queue + 1));
            let is_its = |word: u64| word & NOBODY == who;
            let changed = |word: u64| is_its(word).then_some(if now == 0 { 0 } else { word & !NOBODY | now });
            // Another process may have begun to listen by now.
            if word.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed).is_err() || next.is_none() {
                return;
            }
            // And that one may have ceased to, and not been the last when it looked.
            who = now;
            left = sharers.load(Ordering::Acquire);
            if next.is_some_and(|queue| left & 1 << queue != 0) {
                return;
            }
        }
    }

    /// The process that made a listener has closed it without ever asking for its connections.
    pub fn closed_for_good(&self, listener: u32) {
        self.change_listeners(|now| (now >> 32 == u64::from(listener) && now & NOBODY == NOBODY).then_some(0));
    }

    /// A process has just taken `queue`: what is still noted of the one before is over. `has`: whether it has a listener itself.
    pub(crate) fn begins_with(&self, queue: u32, has: impl Fn(u32) -> bool) {
        self.shared().begun.fetch_add(1, Ordering::Relaxed);
        for (word, sharers) in self.shared().listeners.iter().zip(&self.shared().sharers) {
            self.leaves(word, sharers, queue, NOBODY);
            self.forget_if_dead(word, sharers, &has);
        }
        self.ended(&[queue]);
    }

    /// Forgets a listener for which no process asks, and which no living process has noted: nobody would ever say that
    /// it is closed (all processes of a server were killed). Processes that have it as children of `fork` have not
    /// noted it, but the next of them that takes a queue will.
    fn forget_if_dead(&self, word: &AtomicU64, sharers: &AtomicU32, has: impl Fn(u32) -> bool) {
        let (now, asking) = (word.load(Ordering::Acquire), sharers.load(Ordering::Acquire));
        if now == 0
            || has((now >> 32) as u32)
            || (0..u32::BITS).any(|queue| asking & 1 << queue != 0 && self.holder(queue).is_some())
        {
            return;
        }
        let has_it = |kept: &Kept| u64::from(kept.inode) == now >> 32;
        if !self.kept().filter(has_it).any(|kept| is_alive(kept.called_in) || is_alive(kept.noted_in)) {
            sharers.fetch_and(!asking, Ordering::AcqRel);
            // Another process may have begun to listen by now.
            let _ = word.compare_exchange(now, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
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
    use super::super::NOT_LISTENING;
    use super::*;

    /// That process has noted the listener.
    fn noted(listener: u32, process: u32) -> Kept {
        let (called_in, noted_in) = (process, process);
        Kept { inode: listener, number: 3, called_in, noted_in, backlog: NOT_LISTENING, pool: None }
    }

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
        flows.keep(&noted(8, std::process::id()));
        flows.begins_with(0, |_| false);
        assert_eq!((flows.who_listens(8), at(81)), (None, vec![(8, None)]), "whoever had the queue has died");
        flows.listens(8, 81, 2);
        flows.listens_no_more(8, 2, false);
        assert_eq!(at(81), []);
    }

    #[test]
    fn a_listener_whose_processes_have_all_died_is_forgotten() {
        // Above any that the kernel gives out.
        const DEAD: u32 = i32::MAX as u32;
        let flows = Flows::create().unwrap();
        let at = |port| flows.listeners_at(port).collect::<Vec<_>>();
        flows.keep(&noted(7, DEAD));
        flows.listens(7, 80, 0);
        flows.listens(7, 80, 1);
        flows.begins_with(1, |listener| listener == 7);
        assert_eq!(at(80), [(7, None)], "who begins has it");
        flows.begins_with(1, |_| false);
        assert_eq!((at(80), flows.sharers(7)), (vec![], 0), "queue 0's process has died as well");
    }

    #[test]
    fn processes_that_begin_to_listen_at_the_same_moment_share_the_listener() {
        let flows = Flows::create().unwrap();
        let ready = std::sync::Barrier::new(2);
        for listener in 1..1000 {
            let begins = |queue| {
                ready.wait();
                flows.listens(listener, 80, queue);
            };
            std::thread::scope(|scope| {
                scope.spawn(|| begins(0));
                begins(1);
            });
            assert_eq!(flows.sharers(listener), 3, "listener {listener}");
        }
    }
}
