//! Listeners that a program which is executed may find open under their numbers.
//!
//! The kernel keeps the socket, with its name and its options. What it does not know is that the socket listens in lull, by what
//! backlog, which process has called `listen`, and where processes without a queue have their connections from. That is noted here,
//! by the socket's number and inode: the same as long as it is open, whatever is executed and by whom.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::Flows;

/// Numbers that are noted, at most: with more, the first ones are forgotten.
const KEPT_MAX: usize = 1024;

/// One end of a pair, by its number and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) number: i32,
    pub(crate) inode: u32,
}

/// A listener's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The socket's own.
    pub(crate) inode: u32,
    pub(crate) number: i32,
    /// The process that called `listen`, or bound it.
    pub(crate) called_in: u32,
    /// The process that has it under this number.
    pub(crate) noted_in: u32,
    /// [`NOT_LISTENING`] where it is only bound.
    pub(crate) backlog: u32,
    /// What is read of its pool, and what is written.
    pub(crate) pool: Option<[End; 2]>,
}

/// The backlog of a socket that is bound, and for which no process has called `listen` yet.
pub(crate) const NOT_LISTENING: u32 = u32::MAX;

const WORDS: usize = 8;

/// In the place of an inode.
const FREE: u32 = 0;
const BEING_WRITTEN: u32 = u32::MAX;

impl Kept {
    fn words(&self) -> [u32; WORDS] {
        // No socket has inode 0.
        let [takes, gives] = self.pool.unwrap_or([End { number: 0, inode: 0 }; 2]);
        let (takes, gives) = ([takes.number as u32, takes.inode], [gives.number as u32, gives.inode]);
        let [number, called_in, noted_in, backlog] = [self.number as u32, self.called_in, self.noted_in, self.backlog];
        [number, called_in, noted_in, backlog, takes[0], takes[1], gives[0], gives[1]]
    }

    /// Whether it is the same number of the same socket, or the same process has another one there since: a child that has the former
    /// still notes it again before it executes a program. What children of one process have under a number are sockets of their own.
    fn is_replaced_by(&self, later: &Kept) -> bool {
        self.number == later.number && (self.inode == later.inode || self.noted_in == later.noted_in)
    }

    fn of(inode: u32, words: [u32; WORDS]) -> Kept {
        let [number, called_in, noted_in, backlog, takes, takes_inode, gives, gives_inode] = words;
        let end = |number: u32, inode| End { number: number as i32, inode };
        let pool = [end(takes, takes_inode), end(gives, gives_inode)];
        let pool = (takes_inode != 0).then_some(pool);
        Kept { inode, number: number as i32, called_in, noted_in, backlog, pool }
    }

    /// Whether it tells what a program needs that another process is about to execute, and what is noted later of the same socket does
    /// not: where its pool is.
    fn is_better_than(&self, later: &Kept) -> bool {
        self.inode == later.inode && self.noted_in != later.noted_in && self.pool.is_some() && later.pool.is_none()
    }
}

/// A number in the table: the inode, and the words that say the rest.
#[repr(C)]
struct Noted {
    inode: AtomicU32,
    words: [AtomicU32; WORDS],
}

impl Noted {
    /// As [`Noted::read`], once whoever writes it just now has done so. One that was killed meanwhile is passed over.
    fn read_whole(&self) -> Option<Kept> {
        const LOOKS: usize = 1000;
        (0..LOOKS).find_map(|_| {
            let read = self.read();
            if read.is_none() && self.inode.load(Ordering::Acquire) != FREE {
                std::thread::yield_now();
                return None;
            }
            Some(read)
        })?
    }

    /// Nothing if it is free, or being written.
    fn read(&self) -> Option<Kept> {
        let inode = self.inode.load(Ordering::Acquire);
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        // Acquire: what another process writes after it took the place is not among them, if it is the same still.
        fence(Ordering::Acquire);
        let is_whole = !matches!(inode, FREE | BEING_WRITTEN) && self.inode.load(Ordering::Relaxed) == inode;
        is_whole.then(|| Kept::of(inode, words))
    }

    fn write(&self, kept: &Kept) {
        self.inode.store(BEING_WRITTEN, Ordering::Relaxed);
        // Release: who reads one of the words finds the place taken.
        fence(Ordering::Release);
        self.words.iter().zip(kept.words()).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.inode.store(kept.inode, Ordering::Release);
    }
}

#[repr(C)]
pub(super) struct Table {
    /// Counts what was noted in the place of another.
    replaced: AtomicU32,
    /// No place from here on was ever taken.
    reached: AtomicU32,
    noted: [Noted; KEPT_MAX],
}

impl Flows {
    /// Notes a number, in the place of what was noted of it before. Nothing is taken out: who closes a listener does not know whether
    /// a program that is being executed has it.
    pub(crate) fn keep(&self, kept: &Kept) {
        let table = &self.shared().kept;
        let known = self.noted().iter().find_map(|noted| {
            let known = noted.read()?;
            known.is_replaced_by(kept).then_some((noted, known))
        });
        match known {
            Some((_, known)) if known == *kept || known.is_better_than(kept) => {}
            Some((noted, _)) => noted.write(kept),
            None => {
                let take = |noted: &Noted| {
                    noted.inode.compare_exchange(FREE, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
                };
                let place = table.noted.iter().position(take);
                let place = place.unwrap_or_else(|| table.replaced.fetch_add(1, Ordering::Relaxed) as usize % KEPT_MAX);
                table.noted[place].write(kept);
                table.reached.fetch_max(place as u32 + 1, Ordering::Release);
            }
        }
    }

    /// All that is noted.
    pub(crate) fn kept(&self) -> impl Iterator<Item = Kept> + '_ {
        self.noted().iter().filter_map(Noted::read_whole)
    }

    fn noted(&self) -> &[Noted] {
        let table = &self.shared().kept;
        &table.noted[..table.reached.load(Ordering::Acquire) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(inode: u32, number: i32) -> Kept {
        let pool = [End { number: 900, inode: inode + 1 }, End { number: 901, inode: inode + 2 }];
        Kept { inode, number, called_in: 40, noted_in: 40, backlog: 511, pool: Some(pool) }
    }

    fn all(flows: &Flows) -> Vec<Kept> {
        flows.kept().collect()
    }

    #[test]
    fn what_is_noted_of_a_number_is_read_again_until_its_process_listens_by_it_anew() {
        let flows = Flows::create().unwrap();
        assert!(all(&flows).is_empty());
        let (first, second) = (kept(7, 3), kept(7, 4));
        let others = Kept { pool: None, called_in: 41, noted_in: 41, ..kept(8, 3) };
        [first, second, others].iter().for_each(|kept| flows.keep(kept));
        let again = Kept { backlog: 5, ..first };
        flows.keep(&again);
        assert_eq!(all(&flows), [again, second, others]);
        let later = kept(9, 3);
        flows.keep(&later);
        assert_eq!(all(&flows), [later, second, others], "the former socket of that number is closed");
    }

    /// Each executes a program that finds its own.
    #[test]
    fn children_have_different_listeners_of_their_parents_under_one_number() {
        let flows = Flows::create().unwrap();
        let [first, second] = [(7, 50), (8, 51)].map(|(inode, noted_in)| Kept { noted_in, ..kept(inode, 30) });
        [first, second].iter().for_each(|kept| flows.keep(kept));
        assert_eq!(all(&flows), [first, second]);
        let later = Kept { noted_in: 52, ..first };
        flows.keep(&later);
        assert_eq!(all(&flows), [later, second], "children that come and go do not pile up");
    }

    /// One of them listens already, and another one is not loaded yet.
    #[test]
    fn what_one_child_notes_without_a_pool_leaves_the_others_theirs() {
        let flows = Flows::create().unwrap();
        let bound = Kept { backlog: NOT_LISTENING, noted_in: 50, ..kept(7, 3) };
        flows.keep(&bound);
        flows.keep(&Kept { backlog: 64, noted_in: 51, pool: None, ..bound });
        assert_eq!(all(&flows), [bound]);
        let own = Kept { backlog: 64, pool: None, ..bound };
        flows.keep(&own);
        assert_eq!(all(&flows), [own]);
    }

    #[test]
    fn what_is_being_written_is_waited_for() {
        let flows = Flows::create().unwrap();
        let at = [kept(7, 3), Kept { noted_in: 41, ..kept(7, 3) }];
        flows.keep(&at[0]);
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| (0..100_000).for_each(|nth| flows.keep(&at[nth % 2])));
            while !writes.is_finished() {
                assert_eq!(all(&flows).len(), 1);
            }
        });
    }

    #[test]
    fn of_more_than_there_are_places_the_last_are_noted() {
        let flows = Flows::create().unwrap();
        let number = |nth: usize| kept(1, nth as i32);
        (0..=KEPT_MAX).for_each(|nth| flows.keep(&number(nth)));
        let all = all(&flows);
        assert_eq!(all.len(), KEPT_MAX);
        assert!(!all.contains(&number(0)) && all.contains(&number(1)) && all.contains(&number(KEPT_MAX)));
    }
}
