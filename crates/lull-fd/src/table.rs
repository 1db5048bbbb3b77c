//! Which internet sockets are on which epoll context, by their numbers.
//!
//! # How reliable a word is
//!
//! Descriptors are closed without being seen (by `fclose` or `closefrom` inside the C library, or by another process of
//! a `fork`), and `dup2` and `close` race with everything. So a word here is only a hint, and the table is built so
//! that an outdated one does no harm:
//!
//! - A socket's word names the context by number *and generation*. A new context under the same number has a new
//!   generation, which makes every word of its predecessor void.
//! - The number of a word may have been closed and stand for another file by now. This is found out when the word is
//!   used: a file that is no internet socket has no NAPI id. If it is another socket of the program, its queue is
//!   polled once, which delivers its packets a little sooner. No event can get lost or go to the wrong place by that,
//!   because nothing here is ever added to a context of the program.
//! - All words are changed by single atomic stores without order: no reader depends on two of them agreeing.
//!
//! Numbers above [`DESCRIPTORS_MAX`] are not known. Of several contexts whose numbers are the same modulo
//! [`CONTEXTS_MAX`], only the one that was used last is known. Waits that involve the others are as without lull.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use libc::c_int;
use lull_core::ZeroTimeout;

/// How many descriptors are known: the kernel's own default limit (`fs.nr_open`).
pub const DESCRIPTORS_MAX: usize = 1 << 20;
/// How many epoll contexts are known at a time.
pub const CONTEXTS_MAX: usize = 1 << 10;
/// How many numbers one search for a socket goes through at most; [`ASKED_MAX`] says how many sockets it asks for their
/// NAPI.
const SEARCHED_MAX: u32 = 1024;
const ASKED_MAX: u32 = 8;
/// One in this many candidates is searched for anew, so that a context on several NAPIs is polled on each of them.
const SEARCH_EVERY: u32 = 8;

/// The table. It is large and mostly zeroes, so keep it in a `static`.
pub struct Table {
    /// By descriptor: the [`Context::name`] of the context that it was added to last; 0 if there is none.
    sockets: [AtomicU64; DESCRIPTORS_MAX],
    /// The contexts, by descriptor modulo [`CONTEXTS_MAX`].
    contexts: [Context; CONTEXTS_MAX],
    /// The highest descriptor in `sockets`.
    highest: AtomicU32,
}

/// One epoll context.
#[repr(align(64))]
pub struct Context {
    /// Its number, and from bit 32 on its generation; 0 if there was no context yet. Generations begin at 1.
    name: AtomicU64,
    /// Whether an internet socket was ever added to it.
    has_sockets: AtomicU32,
    /// The socket that was added last, or that was the last candidate.
    hint: AtomicU32,
    /// Where the next search begins.
    cursor: AtomicU32,
    candidates: AtomicU32,
    /// The NAPI that was polled last.
    last_napi: AtomicU32,
    /// When a wait found nothing for the first time since the last event; 0 if the last wait found something.
    idle_since_ns: AtomicU64,
    /// The rule for its calls with timeout 0.
    pub zero: ZeroTimeout,
}

/// A context together with the table, in which its sockets are looked up.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    table: &'a Table,
    context: &'a Context,
    name: u64,
}

/// A socket whose queue can be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its descriptor.
    pub fd: c_int,
    /// The NAPI that its last packet came from.
    pub napi_id: u32,
}

impl Context {
    const fn new() -> Context {
        Context {
            name: AtomicU64::new(0),
            has_sockets: AtomicU32::new(0),
            hint: AtomicU32::new(0),
            cursor: AtomicU32::new(0),
            candidates: AtomicU32::new(0),
            last_napi: AtomicU32::new(0),
            idle_since_ns: AtomicU64::new(0),
            zero: ZeroTimeout::new(),
        }
    }

    /// Begins a new context under this number.
    fn begin(&self, epfd: u32) -> u64 {
        let generation = (self.name.load(Relaxed) >> 32) as u32;
        // Generation 0 stands for no context at all.
        let name = u64::from(generation.wrapping_add(1).max(1)) << 32 | u64::from(epfd);
        self.has_sockets.store(0, Relaxed);
        self.idle_since_ns.store(0, Relaxed);
        self.zero.forget();
        self.name.store(name, Relaxed);
        name
    }
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

impl Table {
    /// An empty table.
    pub const fn new() -> Table {
        Table {
            sockets: [const { AtomicU64::new(0) }; DESCRIPTORS_MAX],
            contexts: [const { Context::new() }; CONTEXTS_MAX],
            highest: AtomicU32::new(0),
        }
    }

    fn slot(&self, epfd: c_int) -> Option<(&Context, u32)> {
        let number = u32::try_from(epfd).ok()?;
        Some((self.contexts.get(number as usize % CONTEXTS_MAX)?, number))
    }

    /// Called when an epoll context was made under this number. Nothing is on it.
    pub fn born(&self, epfd: c_int) {
        if let Some((context, number)) = self.slot(epfd) {
            context.begin(number);
        }
    }

    /// Called when the internet socket `fd` was added to the context. A context that was not seen being made (because
    /// it was inherited, or is a duplicate) is known from here on.
    pub fn added(&self, epfd: c_int, fd: c_int) {
        let (Some((context, number)), Some(word)) = (self.slot(epfd), self.socket(fd)) else { return };
        let name = match context.name.load(Relaxed) {
            name if name != 0 && name as u32 == number => name,
            _ => context.begin(number),
        };
        word.store(name, Relaxed);
        self.highest.fetch_max(fd as u32, Relaxed);
        context.hint.store(fd as u32, Relaxed);
        context.has_sockets.store(1, Relaxed);
    }

    /// Called when `fd` was taken off the context.
    pub fn removed(&self, epfd: c_int, fd: c_int) {
        let (Some((context, _)), Some(word)) = (self.slot(epfd), self.socket(fd)) else { return };
        // The word changes only if the socket has not been added to another context since.
        let _ = word.compare_exchange(context.name.load(Relaxed), 0, Relaxed, Relaxed);
    }

    /// The context, if internet sockets were added to it.
    #[inline]
    pub fn context(&self, epfd: c_int) -> Option<Known<'_>> {
        let (context, number) = self.slot(epfd)?;
        let name = context.name.load(Relaxed);
        let is_it = name != 0 && name as u32 == number && context.has_sockets.load(Relaxed) != 0;
        is_it.then_some(Known { table: self, context, name })
    }

    fn socket(&self, fd: c_int) -> Option<&AtomicU64> {
        self.sockets.get(usize::try_from(fd).ok()?)
    }
}

impl Known<'_> {
    /// The rule for its calls with timeout 0.
    pub fn zero(&self) -> &ZeroTimeout {
        &self.context.zero
    }

    /// When a wait found nothing for the first time since the last event.
    pub fn idle_since_ns(&self) -> Option<u64> {
        Some(self.context.idle_since_ns.load(Relaxed)).filter(|&since_ns| since_ns != 0)
    }

    /// Called when a wait has found nothing, at this time. Returns since when waits have found nothing.
    pub fn found_nothing(&self, now_ns: u64) -> u64 {
        self.idle_since_ns().unwrap_or_else(|| {
            self.context.idle_since_ns.store(now_ns.max(1), Relaxed);
            now_ns
        })
    }

    /// Called when a wait has found events.
    #[inline]
    pub fn found_events(&self) {
        if self.context.idle_since_ns.load(Relaxed) != 0 {
            self.context.idle_since_ns.store(0, Relaxed);
        }
    }

    /// A socket on the context that has a NAPI id according to `napi_id`. Mostly it is the one of the last time; now
    /// and then it is another, on another NAPI if there is one.
    pub fn candidate(&self, napi_id: impl Fn(c_int) -> u32) -> Option<Candidate> {
        let count = self.context.candidates.load(Relaxed);
        self.context.candidates.store(count.wrapping_add(1), Relaxed);
        let fit = |fd: u32| {
            let fd = fd as c_int;
            let is_here = self.table.socket(fd).is_some_and(|word| word.load(Relaxed) == self.name);
            let napi_id = if is_here { napi_id(fd) } else { 0 };
            (napi_id != 0).then_some(Candidate { fd, napi_id })
        };
        let last_napi = self.context.last_napi.load(Relaxed);
        let found = if count.is_multiple_of(SEARCH_EVERY) {
            self.search(last_napi, fit).or_else(|| fit(self.context.hint.load(Relaxed)))
        } else {
            fit(self.context.hint.load(Relaxed)).or_else(|| self.search(0, fit))
        }?;
        self.context.hint.store(found.fd as u32, Relaxed);
        self.context.last_napi.store(found.napi_id, Relaxed);
        Some(found)
    }

    /// Called when this socket could not be polled. The next candidate is another one, if there is one.
    pub fn was_unfit(&self, socket: Candidate) {
        self.context.hint.store((socket.fd as u32).wrapping_add(1), Relaxed);
        self.context.cursor.store((socket.fd as u32).wrapping_add(1), Relaxed);
    }

    /// The next socket of the context, in the order of numbers, whose NAPI is not `other_than`; if there is none, one
    /// whose NAPI is.
    fn search(&self, other_than: u32, fit: impl Fn(u32) -> Option<Candidate>) -> Option<Candidate> {
        let numbers = self.table.highest.load(Relaxed) + 1;
        let from = self.context.cursor.load(Relaxed);
        let (mut asked, mut same) = (0, None);
        for nth in 0..SEARCHED_MAX.min(numbers) {
            let fd = from.wrapping_add(nth) % numbers;
            if self.table.socket(fd as c_int).is_none_or(|word| word.load(Relaxed) != self.name) {
                continue;
            }
            let found = fit(fd);
            asked += 1;
            let other = found.filter(|socket| socket.napi_id != other_than);
            if other.is_some() || asked == ASKED_MAX {
                self.context.cursor.store(fd + 1, Relaxed);
                return other.or(found).or(same);
            }
            same = found.or(same);
        }
        self.context.cursor.store(from.wrapping_add(SEARCHED_MAX) % numbers, Relaxed);
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const NAPI: u32 = 376;

    /// Each use of this macro has a table of its own, as it is too large for a stack.
    macro_rules! table {
        () => {{
            static TABLE: Table = Table::new();
            &TABLE
        }};
    }

    #[test]
    fn a_context_without_sockets_is_not_known() {
        let table = table!();
        table.born(5);
        assert!(table.context(5).is_none() && table.context(6).is_none() && table.context(-1).is_none());
        table.added(5, 9);
        assert!(table.context(5).is_some());
        assert!(table.context(5 + CONTEXTS_MAX as c_int).is_none(), "another number of the same slot");
    }

    #[test]
    fn what_was_on_a_context_of_the_same_number_is_not_on_the_new_one() {
        let table = table!();
        table.born(5);
        table.added(5, 9);
        table.born(5);
        table.added(5, 10);
        let asked = |fd| if fd == 9 { panic!("9 was on its predecessor") } else { 0 };
        for _ in 0..20 {
            assert_eq!(table.context(5).unwrap().candidate(asked), None);
        }
    }

    #[test]
    fn a_socket_that_moved_on_or_was_taken_off_is_no_candidate() {
        let table = table!();
        for (epfd, fd) in [(5, 9), (5, 10), (6, 10), (5, 11)] {
            table.added(epfd, fd);
        }
        table.removed(5, 11);
        table.removed(5, 10);
        for _ in 0..20 {
            assert_eq!(table.context(5).unwrap().candidate(|_| NAPI), Some(Candidate { fd: 9, napi_id: NAPI }));
            assert_eq!(table.context(6).unwrap().candidate(|_| NAPI).unwrap().fd, 10, "taken off 5, not off 6");
        }
    }

    #[test]
    fn every_napi_of_a_context_has_its_turn() {
        let table = table!();
        for fd in 10..110 {
            table.added(5, fd);
        }
        // Most of them have no NAPI: listeners, and connections that have received nothing.
        let napi = |fd| if fd % 10 == 3 { NAPI + (fd as u32 / 10) % 4 } else { 0 };
        let context = table.context(5).unwrap();
        let mut turns = HashMap::new();
        for _ in 0..SEARCH_EVERY * 64 {
            if let Some(socket) = context.candidate(napi) {
                assert_eq!(socket.napi_id, napi(socket.fd));
                *turns.entry(socket.napi_id).or_insert(0) += 1;
            }
        }
        assert_eq!(turns.len(), 4, "{turns:?}");
        assert!(turns.values().all(|&count| count > 64), "{turns:?}");
    }

    #[test]
    fn an_unfit_socket_is_passed_over() {
        let table = table!();
        table.added(5, 9);
        table.added(5, 10);
        let context = table.context(5).unwrap();
        let first = context.candidate(|_| NAPI).unwrap();
        context.was_unfit(first);
        assert_ne!(context.candidate(|_| NAPI).unwrap().fd, first.fd);
    }

    #[test]
    fn numbers_that_are_too_high_are_left_alone() {
        let table = table!();
        table.added(5, DESCRIPTORS_MAX as c_int);
        table.added(5, -1);
        assert!(table.context(5).is_none());
        table.added(5, DESCRIPTORS_MAX as c_int - 1);
        assert!(table.context(5).unwrap().candidate(|_| NAPI).is_some());
    }

    proptest! {
        /// This compares the table with a plain map: a candidate is always a socket that is on the context, and if
        /// there is one it is found.
        #[test]
        fn candidates_are_on_the_context(steps in prop::collection::vec((0_u8..3, 3_i32..6, 6_i32..40), 1..80)) {
            let table = table!();
            (3..6).for_each(|epfd| table.born(epfd));
            let mut on: HashMap<c_int, c_int> = HashMap::new();
            for (what, epfd, fd) in steps {
                match what {
                    0 => {
                        table.added(epfd, fd);
                        on.insert(fd, epfd);
                    }
                    1 => {
                        table.removed(epfd, fd);
                        if on.get(&fd) == Some(&epfd) {
                            on.remove(&fd);
                        }
                    }
                    _ => {
                        table.born(epfd);
                        on.retain(|_, its| *its != epfd);
                    }
                }
                for epfd in 3..6 {
                    let found = table.context(epfd).and_then(|context| context.candidate(|_| NAPI));
                    match found {
                        Some(socket) => prop_assert_eq!(on.get(&socket.fd), Some(&epfd)),
                        None => prop_assert!(!on.values().any(|its| *its == epfd)),
                    }
                }
            }
        }
    }
}
