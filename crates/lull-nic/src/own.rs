//! lull's own descriptors in a process whose program does not know of them.
//!
//! Where lull's stack serves an unmodified program, its descriptors stand beside the program's. Programs close numbers
//! that they did not open (a daemon closes all), and rely on getting the lowest number that is free. So lull's are made
//! above the numbers that the program uses, and are marked: the library that takes the program's calls over refuses to
//! close a marked one. A program with so many files that it reaches lull's numbers is given free ones among them.
//!
//! None of this happens before [`begin`]: in a program that uses lull as a library, lull's descriptors are like any
//! others.

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use crate::afresh::Afresh;

/// Numbers that can be marked: the kernel's own default limit (`fs.nr_open`) and a few above it.
const NUMBERS_MAX: usize = (1 << 20) + (1 << 12);
/// Numbers above the program's that are used before the limit has to be raised further.
const NUMBERS_ABOVE: u64 = 1 << 12;
/// Where lull's numbers begin, at the latest, whatever the program's limit: a process has a table of all numbers up to the highest
/// that is open, of which each child of `fork` is given a copy. With 4,096 numbers behind it the table has 2^16 places, which
/// are half a mebibyte; of a limit of 2^20 it would be eight.
pub const FROM_MAX: u64 = (1 << 16) - NUMBERS_ABOVE;

static BEGUN: AtomicBool = AtomicBool::new(false);
type Marks = [AtomicU64; NUMBERS_MAX / 64];
static MARKS: Marks = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];
/// Those of lull's numbers that children of `fork` close.
static NOT_CHILDRENS: Marks = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];

/// From now on lull's descriptors are kept apart from the program's.
pub fn begin() {
    BEGUN.store(true, Ordering::Release);
}

fn place(marks: &'static Marks, number: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(number).ok()?;
    Some((marks.get(number / 64)?, 1 << (number % 64)))
}

fn has(marks: &'static Marks, number: RawFd) -> bool {
    place(marks, number).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

fn add(marks: &'static Marks, number: RawFd) {
    if let Some((word, bit)) = place(marks, number) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether a number is lull's own, and not the program's to close.
#[inline]
pub fn is_own(number: RawFd) -> bool {
    has(&MARKS, number)
}

/// The number is lull's own from now on.
pub fn mark(number: RawFd) {
    // Whoever closed the former descriptor of this number may not have called [`unmark`].
    if let Some((word, bit)) = place(&NOT_CHILDRENS, number) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    add(&MARKS, number);
}

/// Makes a descriptor of lull's own this process's alone, because whoever has its other end has to hear when this
/// process ends, whatever children live. A child of `fork` closes it.
pub fn keep_from_children(fd: &impl AsRawFd) {
    if is_own(fd.as_raw_fd()) {
        add(&NOT_CHILDRENS, fd.as_raw_fd());
    }
}

/// Closes a number of lull's own by `close`. A child that is forked meanwhile does not have it, or closes it itself.
pub fn closed<R>(number: RawFd, close: impl FnOnce() -> R) -> R {
    let _closing = BEGUN.load(Ordering::Acquire).then(|| Turn::of(Turns::to_make));
    unmark(number);
    close()
}

/// The number is about to be closed by lull.
pub fn unmark(number: RawFd) {
    for marks in [&NOT_CHILDRENS, &MARKS] {
        if let Some((word, bit)) = place(marks, number) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// The first number of lull's own that is `from` or more.
pub fn next(from: u32) -> Option<u32> {
    let mut at = from as usize / 64;
    let mut word = MARKS.get(at)?.load(Ordering::Relaxed) & (u64::MAX << (from % 64));
    while word == 0 {
        at += 1;
        word = MARKS.get(at)?.load(Ordering::Relaxed);
    }
    Some((at * 64) as u32 + word.trailing_zeros())
}

/// To be called in a child of `fork`: closes what is its parent's alone ([`keep_from_children`]), the sockets among
/// them by which the parent has an interface's frames, since an open one keeps its queue.
pub(crate) fn close_parents() {
    let mut from = 0;
    while let Some(number) = next(from) {
        from = number + 1;
        let (number, mut domain) = (number as RawFd, 0);
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: room for a number, and its size.
        unsafe {
            libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut length);
        }
        if has(&NOT_CHILDRENS, number) || matches!(domain, libc::AF_XDP | libc::AF_PACKET) {
            unmark(number);
            // SAFETY: the thread that had it is the parent's.
            unsafe { libc::close(number) };
        }
    }
}

/// Descriptors that lull makes at once.
pub trait Descriptors {
    /// Moves all of them above the program's numbers, and marks them.
    fn kept_apart(self) -> Self;

    /// Does [`keep_from_children`] for each.
    fn keep_from_children(&self);
}

impl Descriptors for OwnedFd {
    /// If no such number is free, the descriptor stays where it is, and is marked.
    fn kept_apart(self) -> OwnedFd {
        let kept = above(&self).unwrap_or(self);
        mark(kept.as_raw_fd());
        kept
    }

    fn keep_from_children(&self) {
        keep_from_children(self);
    }
}

impl Descriptors for (OwnedFd, OwnedFd) {
    fn kept_apart(self) -> (OwnedFd, OwnedFd) {
        (self.0.kept_apart(), self.1.kept_apart())
    }

    fn keep_from_children(&self) {
        [&self.0, &self.1].into_iter().for_each(keep_from_children);
    }
}

impl<const COUNT: usize> Descriptors for [OwnedFd; COUNT] {
    fn kept_apart(self) -> [OwnedFd; COUNT] {
        self.map(Descriptors::kept_apart)
    }

    fn keep_from_children(&self) {
        self.iter().for_each(keep_from_children);
    }
}

impl Descriptors for Vec<OwnedFd> {
    fn kept_apart(self) -> Vec<OwnedFd> {
        self.into_iter().map(Descriptors::kept_apart).collect()
    }

    fn keep_from_children(&self) {
        self.iter().for_each(keep_from_children);
    }
}

/// Has `make` make descriptors of lull's own, which must not wait for anything, and moves them above the program's
/// numbers and marks them; before [`begin`] they stay as they are. Until it is moved, a new one has the lowest number
/// that is free, as if it were the program's, so meanwhile nobody may close all that the program has
/// ([`none_is_made`]).
///
/// # Errors
/// Those of `make`.
pub fn made<T: Descriptors, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    made_and(make, |_| ())
}

/// As [`made`], for descriptors that no child of `fork` is to have open ([`keep_from_children`]): a child that is
/// forked at the same time does not have them, or closes them.
///
/// # Errors
/// Those of `make`.
pub fn made_for_no_child<T: Descriptors, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    made_and(make, T::keep_from_children)
}

fn made_and<T: Descriptors, E>(make: impl FnOnce() -> Result<T, E>, then: impl FnOnce(&T)) -> Result<T, E> {
    if !BEGUN.load(Ordering::Acquire) {
        return make();
    }
    let _making = Turn::of(Turns::to_make);
    make().map(Descriptors::kept_apart).inspect(then)
}

/// Until what is returned is dropped no thread makes a descriptor of lull's own: what is not marked is the program's. The caller
/// makes none itself, nor does a signal handler of its thread.
pub fn none_is_made() -> impl Drop + use<> {
    Turn::of(Turns::to_close)
}

/// The calling thread is about to fork. Until it says that this is over, no other thread makes a descriptor of lull's own or closes one: a
/// child finds each with its marks. What this thread makes meanwhile it makes at once. A fork may begin within another one, in a handler of
/// a signal.
pub fn a_fork_begins() {
    if BEGUN.load(Ordering::Acquire) {
        let (within, turn) = FORK.take();
        let turn = turn.unwrap_or_else(|| ManuallyDrop::new(Turn::of(Turns::to_close)));
        FORK.set((within + 1, Some(turn)));
    }
}

/// To be called in the process that has forked, or failed to; a child calls [`forget_turns`].
pub fn a_fork_is_over() {
    match FORK.take() {
        (0 | 1, turn) => drop(turn.map(ManuallyDrop::into_inner)),
        (within, turn) => FORK.set((within - 1, turn)),
    }
}

type ForksTurn = ManuallyDrop<Turn<RwLockWriteGuard<'static, ()>>>;

thread_local! {
    /// How many turns the calling thread has. Within one it takes no other, because it would wait for itself.
    static HAS_TURNS: Cell<u32> = const { Cell::new(0) };
    /// How many forks of the calling thread are under way, and the turn of the first. The end of the thread drops
    /// nothing of this.
    static FORK: Cell<(u32, Option<ForksTurn>)> = const { Cell::new((0, None)) };
}

/// A turn of the calling thread's, or a part of one that it has.
struct Turn<G> {
    guard: Option<G>,
}

impl<G> Turn<G> {
    fn of(take: impl FnOnce(&'static Turns) -> G) -> Turn<G> {
        let is_first = HAS_TURNS.replace(HAS_TURNS.get() + 1) == 0;
        Turn { guard: is_first.then(|| take(TURNS.get_or_init(Turns::default))) }
    }
}

impl<G> Drop for Turn<G> {
    fn drop(&mut self) {
        // The guard goes first: as long as the count says that the thread has a turn, a handler of it takes none, for
        // which it would wait.
        drop(self.guard.take());
        // In a child it may have been forgotten.
        HAS_TURNS.set(HAS_TURNS.get().saturating_sub(1));
    }
}

/// Threads may make descriptors at the same time, but a thread that closes all that are not marked, or forks, does so
/// alone.
#[derive(Default)]
struct Turns {
    making: RwLock<()>,
    /// Threads that wait until they may make one: a program that does nothing but close comes behind them.
    waiting: AtomicUsize,
}

impl Turns {
    fn to_make(&self) -> RwLockReadGuard<'_, ()> {
        match self.making.try_read() {
            Ok(making) => making,
            Err(TryLockError::Poisoned(making)) => making.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let making = self.making.read().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                making
            }
        }
    }

    fn to_close(&self) -> RwLockWriteGuard<'_, ()> {
        while self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        self.making.write().unwrap_or_else(PoisonError::into_inner)
    }
}

static TURNS: Afresh<Turns> = Afresh::new();
static ONE_AT_A_TIME: Afresh<Mutex<()>> = Afresh::new();

/// To be called in any child of `fork`: the threads that had turns are another process's.
pub fn forget_turns() {
    TURNS.forget();
    HAS_TURNS.set(0);
    // The lock of this turn is the one that was just forgotten.
    FORK.set((0, None));
    ONE_AT_A_TIME.forget();
}

/// Returns the first number for lull's own under these limits on open files, and what the soft limit is raised to for
/// that, if it has to be.
fn first_number(soft: u64, hard: u64) -> (u64, Option<u64>) {
    let soft = soft.min(1 << 20);
    let raised = hard.min(soft + NUMBERS_ABOVE);
    let can_be_raised = raised > soft;
    // If the limit cannot be raised, lull's numbers are at its end.
    let from = if can_be_raised { soft } else { soft - soft / 4 };
    let has_room = soft >= FROM_MAX + NUMBERS_ABOVE;
    (from.min(FROM_MAX), (can_be_raised && !has_room).then_some(raised))
}

/// Makes a duplicate beyond the program's limit on open files, which is raised for that moment, or near its end where
/// it cannot be raised. If [`FROM_MAX`] is lower, and the program does not have all numbers from there to its limit,
/// the duplicate is above that.
fn above(fd: &OwnedFd) -> Option<OwnedFd> {
    // The limit is the process's, and each thread puts it back as it found it, so one at a time raises it.
    let _alone = ONE_AT_A_TIME.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let before = limit(None)?;
    let (from, raised) = first_number(before.rlim_cur, before.rlim_max);
    from_number(fd, from, raised, before)
}

/// Makes a duplicate whose number is `from` or more, in a process whose limits are `before`. The soft limit is raised
/// to `raised` for that moment; if that was not needed, but the program has all numbers from `from` on, it is raised
/// after all.
fn from_number(fd: &OwnedFd, from: u64, raised: Option<u64>, before: libc::rlimit) -> Option<OwnedFd> {
    let with = |soft: Option<u64>| duplicate(fd, from, soft.map(|soft| libc::rlimit { rlim_cur: soft, ..before }));
    let further = before.rlim_cur.saturating_add(NUMBERS_ABOVE).min(before.rlim_max);
    match with(raised) {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raised.is_none() && further > before.rlim_cur => {
            with(Some(further)).ok()
        }
        made => made.ok(),
    }
}

/// A duplicate with the first free number that is `from` or more, while the limit is `raised`.
fn duplicate(fd: &OwnedFd, from: u64, raised: Option<libc::rlimit>) -> io::Result<OwnedFd> {
    let found = raised.and_then(|raised| limit(Some(raised)));
    // SAFETY: numbers only.
    let made = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from as libc::c_int) };
    let failed = (made < 0).then(io::Error::last_os_error);
    if let (Some(found), Some(raised)) = (found, raised) {
        put_back(found, raised);
    }
    match failed {
        Some(error) => Err(error),
        // SAFETY: the kernel has just made it, and nobody else has it.
        None => Ok(unsafe { OwnedFd::from_raw_fd(made) }),
    }
}

/// Returns the limit on open files as it was, and sets it to `to_be` if that is given. One call does both, so that no
/// other thread's limit is lost in between.
fn limit(to_be: Option<libc::rlimit>) -> Option<libc::rlimit> {
    let mut was = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let to_be = to_be.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
    // SAFETY: a limit that outlives the call, if there is one, and room for what was.
    let told = unsafe { libc::prlimit(0, libc::RLIMIT_NOFILE, to_be, &raw mut was) };
    (told == 0).then_some(was)
}

/// Puts the limit back to what it was before it was raised, or to what the program has made it meanwhile.
fn put_back(mut before: libc::rlimit, raised: libc::rlimit) {
    let mut mine = (raised.rlim_cur, raised.rlim_max);
    while let Some(was) = limit(Some(before)).filter(|was| (was.rlim_cur, was.rlim_max) != mine) {
        mine = (before.rlim_cur, before.rlim_max);
        before = was;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn marks_are_found_in_their_order_and_go_away() {
        let numbers = [70_000, 70_063, 70_064, 80_000];
        numbers.into_iter().for_each(mark);
        assert!(is_own(70_063) && !is_own(70_001) && !is_own(-1));
        let after = |number| next(number).filter(|number| *number <= 80_000);
        assert_eq!(
            (after(70_000), after(70_001), after(70_064), after(70_065)),
            (Some(70_000), Some(70_063), Some(70_064), Some(80_000))
        );
        numbers.into_iter().for_each(unmark);
        assert_eq!(after(70_000), None);
        mark(RawFd::MAX);
        assert!(!is_own(RawFd::MAX), "beyond what any kernel gives");
    }

    #[test]
    fn a_number_that_is_given_back_is_a_childs_as_any_other() {
        let (number, other) = (90_000, 90_001);
        [number, other].into_iter().for_each(mark);
        keep_from_children(&number);
        assert_eq!([number, other].map(|number| has(&NOT_CHILDRENS, number)), [true, false]);
        unmark(number);
        keep_from_children(&number);
        mark(number);
        assert!(!has(&NOT_CHILDRENS, number), "it was the program's meanwhile");
        [number, other].into_iter().for_each(unmark);
    }

    #[test]
    fn nobody_closes_while_a_descriptor_is_made_nor_makes_one_while_somebody_closes() {
        let (turns, done) = (Turns::default(), AtomicBool::new(false));
        let others_turn = || (0..1000).for_each(|_| std::thread::yield_now());
        std::thread::scope(|scope| {
            let making = turns.to_make();
            drop(turns.to_make());
            scope.spawn(|| {
                let _closing = turns.to_close();
                done.store(true, Ordering::Relaxed);
            });
            others_turn();
            assert!(!done.swap(false, Ordering::Relaxed), "it is being made");
            drop(making);
        });
        assert!(done.swap(false, Ordering::Relaxed));
        std::thread::scope(|scope| {
            let closing = turns.to_close();
            scope.spawn(|| {
                let _making = turns.to_make();
                done.store(true, Ordering::Relaxed);
            });
            others_turn();
            assert!(!done.load(Ordering::Relaxed), "the rest is being closed");
            drop(closing);
        });
    }

    #[test]
    fn a_thread_has_a_turn_until_that_is_given_back() {
        struct GivenBack;
        impl Drop for GivenBack {
            fn drop(&mut self) {
                // As a handler of a signal that comes just then.
                let within = Turn::of(|_| unreachable!("it would wait for its own thread"));
                drop::<Turn<()>>(within);
            }
        }
        drop(Turn::of(|_| GivenBack));
        assert_eq!(HAS_TURNS.get(), 0);
    }

    #[test]
    fn who_closes_comes_behind_those_who_wait_to_make_a_descriptor() {
        let (turns, done) = (Turns::default(), AtomicBool::new(false));
        turns.waiting.store(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _closing = turns.to_close();
                done.store(true, Ordering::Relaxed);
            });
            (0..1000).for_each(|_| std::thread::yield_now());
            assert!(!done.load(Ordering::Relaxed));
            turns.waiting.store(0, Ordering::Relaxed);
        });
    }

    #[test]
    fn numbers_begin_above_the_limit_or_where_a_child_has_half_a_mebibyte_to_copy() {
        const MANY: u64 = 1 << 20;
        assert_eq!(first_number(1024, MANY), (1024, Some(1024 + NUMBERS_ABOVE)));
        assert_eq!(first_number(1024, 1024), (768, None));
        assert_eq!(first_number(1024, 2000), (1024, Some(2000)));
        assert_eq!(first_number(65_535, 65_535), (49_152, None));
        for (soft, hard) in [(MANY, MANY), (524_288, MANY), (1 << 16, MANY), (u64::MAX, u64::MAX), (1 << 30, 1 << 30)] {
            assert_eq!(first_number(soft, hard), (FROM_MAX, None), "{soft} {hard}");
        }
        assert_eq!(first_number(65_000, MANY), (FROM_MAX, Some(65_000 + NUMBERS_ABOVE)));
    }

    /// The limit is the process's, as are the tests.
    static LIMIT: Mutex<()> = Mutex::new(());

    fn limits() -> (u64, u64) {
        let limit = limit(None).unwrap();
        (limit.rlim_cur, limit.rlim_max)
    }

    #[test]
    fn a_descriptor_moves_above_a_limit_below_which_the_program_has_all_numbers_for_lull() {
        let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
        let before = limit(None).unwrap();
        // Far above what other tests have open, and one number below what can be had.
        let soft = before.rlim_cur.min(before.rlim_max - 1);
        let (from, low) = (soft - 4, libc::rlimit { rlim_cur: soft, ..before });
        limit(Some(low)).unwrap();
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        let programs: Vec<_> = (from..soft).map(|number| duplicate(&file, number, None).unwrap()).collect();
        assert!(programs.iter().zip(from..).all(|(fd, number)| fd.as_raw_fd() as u64 == number), "{programs:?}");
        let (made, after) = (from_number(&file, from, None, low), limits());
        // Where the limit is as high as it may be, there is no number.
        let full = libc::rlimit { rlim_max: soft, ..low };
        let (none, still) = (from_number(&file, from, None, full), limits());
        limit(Some(before)).unwrap();
        assert_eq!((made.map(|fd| fd.as_raw_fd() as u64), after), (Some(soft), (soft, before.rlim_max)));
        assert_eq!((none.map(|fd| fd.as_raw_fd()), still), (None, after));
    }

    #[test]
    fn a_descriptor_moves_above_the_limit_and_the_limit_stays() {
        let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limits;
        let before = limit();
        let made = above(&OwnedFd::from(File::open("/dev/null").unwrap())).unwrap();
        assert_eq!(limit(), before);
        let (least, _) = first_number(before.0, before.1);
        assert!(made.as_raw_fd() as u64 >= least, "{made:?} of {before:?}");

        // What the program sets while it is raised stays.
        let of = |soft| libc::rlimit { rlim_cur: soft, rlim_max: before.1 };
        let (raised, programs) = (before.0 - 1, before.0 - 2);
        super::limit(Some(of(programs))).unwrap();
        put_back(of(before.0), of(raised));
        assert_eq!(limit(), (programs, before.1));
        super::limit(Some(of(raised))).unwrap();
        put_back(of(before.0), of(raised));
        assert_eq!(limit(), before);
    }
}
