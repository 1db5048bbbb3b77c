//! Listeners that a program which is executed may find open under their numbers.
//!
//! The kernel keeps the socket, with its name and its options. It does not know that the socket listens in lull, with
//! which backlog, which process has called `listen`, and where processes without a queue have their connections from.
//! That is noted here by the socket's number and inode, which stay the same as long as it is open, whatever is executed
//! and by whom.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::Flows;

/// The most numbers that are noted; with more, the first ones are forgotten.
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

/// The words of one, with its inode.
const WORDS: usize = 9;
type Words = [u32; WORDS];

impl Kept {
    fn words(&self) -> Words {
        // No socket has inode 0.
        let [takes, gives] = self.pool.unwrap_or([End { number: 0, inode: 0 }; 2]);
        let (takes, gives) = ([takes.number as u32, takes.inode], [gives.number as u32, gives.inode]);
        let [number, called_in, noted_in, backlog] = [self.number as u32, self.called_in, self.noted_in, self.backlog];
        [self.inode, number, called_in, noted_in, backlog, takes[0], takes[1], gives[0], gives[1]]
    }

    /// Whether it is the same number of the same socket, or the same process has another one there since: a child that has the former
    /// still notes it again before it executes a program. What children of one process have under a number are sockets of their own.
    fn is_replaced_by(&self, later: &Kept) -> bool {
        self.number == later.number && (self.inode == later.inode || self.noted_in == later.noted_in)
    }

    fn of(words: Words) -> Kept {
        let [inode, number, called_in, noted_in, backlog, takes, takes_inode, gives, gives_inode] = words;
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

/// A place in the table. What was written last can be read while the next is written beside it, because a writer may be
/// stopped or killed, and nobody waits for it.
#[repr(C)]
struct Noted {
    /// Twice the number of times that it was written, and one more while somebody does so. Nothing was in a place before the first.
    version: AtomicU32,
    /// What was written last, and before that.
    copies: [[AtomicU32; WORDS]; 2],
}

/// A version of a place, with what it says.
type Read = (u32, Kept);

impl Noted {
    /// Nothing if nothing was ever written.
    fn read(&self) -> Option<Read> {
        loop {
            // Acquire: the words of this version, or of a later one, are there.
            let version = self.version.load(Ordering::Acquire);
            let written = version / 2;
            if written == 0 {
                return None;
            }
            let words = self.copies[written as usize % 2].each_ref().map(|word| word.load(Ordering::Relaxed));
            if self.has_kept(version) {
                return Some((version, Kept::of(words)));
            }
        }
    }

    /// Whether what was read since is the words of this version.
    fn has_kept(&self, version: u32) -> bool {
        // Acquire: who began to write over one of them had said so.
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) / 2 == version / 2
    }

    /// Takes the place to write it, if nobody has done so, or does, since it was at `version`.
    fn take(&self, version: u32) -> bool {
        let taken =
            |version| self.version.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        version.is_multiple_of(2) && taken(version)
    }

    /// Writes what it says from now on. The place is the caller's, by [`Noted::take`].
    fn write(&self, kept: &Kept) {
        let version = self.version.load(Ordering::Relaxed) + 1;
        // Release: who reads one of the words finds the place taken.
        fence(Ordering::Release);
        let copy = &self.copies[(version / 2) as usize % 2];
        copy.iter().zip(kept.words()).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.version.store(version, Ordering::Release);
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
        // A place over which a writer was killed stays as it is, and the number gets another one.
        const LOOKS: usize = 1000;
        for _ in 0..LOOKS {
            let known = self.noted().iter().find_map(|noted| {
                let (version, known) = noted.read()?;
                known.is_replaced_by(kept).then_some((noted, version, known))
            });
            match known {
                Some((.., known)) if known == *kept || known.is_better_than(kept) => return,
                Some((noted, version, _)) if noted.take(version) => return noted.write(kept),
                Some(_) => std::thread::yield_now(),
                None => break,
            }
        }
        let table = &self.shared().kept;
        let later = || table.replaced.fetch_add(1, Ordering::Relaxed) as usize % KEPT_MAX;
        let others = || {
            std::iter::repeat_with(later).take(KEPT_MAX).find(|place| {
                let noted = &table.noted[*place];
                noted.take(noted.version.load(Ordering::Relaxed))
            })
        };
        if let Some(place) = table.noted.iter().position(|noted| noted.take(0)).or_else(others) {
            table.noted[place].write(kept);
            table.reached.fetch_max(place as u32 + 1, Ordering::Release);
        }
    }

    /// All that is noted.
    pub(crate) fn kept(&self) -> impl Iterator<Item = Kept> + '_ {
        self.noted().iter().filter_map(|noted| noted.read().map(|(_, kept)| kept))
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
    fn what_is_being_written_over_is_read_whole_meanwhile() {
        let flows = Flows::create().unwrap();
        let at = [kept(7, 3), Kept { called_in: 41, noted_in: 41, backlog: 5, ..kept(7, 3) }];
        flows.keep(&at[0]);
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| (0..100_000).for_each(|nth| flows.keep(&at[nth % 2])));
            while !writes.is_finished() {
                let all = all(&flows);
                assert!(all.len() == 1 && at.contains(&all[0]), "{all:?}");
            }
        });
    }

    /// The next of it is written beside it, and the one after that over it.
    #[test]
    fn what_is_read_while_two_write_one_after_the_other_is_read_again() {
        let flows = Flows::create().unwrap();
        flows.keep(&kept(7, 3));
        let noted = &flows.noted()[0];
        let (version, _) = noted.read().unwrap();
        assert!(noted.take(version) && noted.has_kept(version));
        noted.write(&kept(7, 4));
        assert!(noted.take(noted.read().unwrap().0) && !noted.has_kept(version));
    }

    /// Who writes is killed over it. What the place said is read still, and what is noted of the same number later as well.
    #[test]
    fn a_place_that_is_written_for_ever_keeps_what_it_said_and_its_number_has_another_one() {
        let flows = Flows::create().unwrap();
        let first = kept(7, 3);
        flows.keep(&first);
        let noted = &flows.noted()[0];
        assert!(noted.take(noted.read().unwrap().0));
        assert_eq!(all(&flows), [first]);
        let later = Kept { backlog: 5, ..first };
        flows.keep(&later);
        assert_eq!(all(&flows), [first, later]);
    }

    /// A process that saw a listener without its pool, and writes after another one that noted the pool, looks again.
    #[test]
    fn of_processes_that_note_a_number_at_once_none_writes_over_what_it_has_not_seen() {
        let flows = Flows::create().unwrap();
        flows.keep(&kept(7, 3));
        let noted = &flows.noted()[0];
        let (seen, _) = noted.read().unwrap();
        flows.keep(&Kept { backlog: 5, ..kept(7, 3) });
        assert!(!noted.take(seen));
        let (now, _) = noted.read().unwrap();
        assert!(noted.take(now) && !noted.take(now) && !noted.take(now + 1), "one writes at a time");
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
