//! The parent has ended, for example because a server has put itself into the background: the child goes on with an
//! engine of its own.
//!
//! Its connections ended with the parent, but its listeners and UDP sockets are bound still: the kernel's socket under
//! each is open here, and says where, and with which options. So at the first call in which it finds the parent gone,
//! the child becomes like one that was made before its parent's engine started, and makes lull's halves of them anew. A
//! socket that had become a relay or the end of a pool meanwhile is put back under its number; the child keeps the
//! kernel's socket for that when it becomes one.
//!
//! Lost are what the parent had received, sockets that this process has made through its parent, and lull's members in
//! epoll contexts of the parent's; servers make theirs after the fork (`event_reinit`).

use std::mem;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::c_int;
use lull_net::lull_nic::{Afresh, own};
use rustix::event::{PollFd, PollFlags, poll};

use super::child::{self, Alone};
use super::{made, thread};
use crate::epoll::{self, Adopted};
use crate::files::{self, File};
use crate::flows::Kept;
use crate::kernel::NoSignals;
use crate::socket::{self, datagram, pool};
use crate::{Result, address, claimed, engine, husk, kernel, signals};

/// Sockets of its parent's that a child uses, at most, of those that it can have again.
const KEPT_MAX: usize = 256;
/// Numbers of contexts that are looked for: what a program has made by the time that it is in the background stands far below.
const CONTEXTS_MAX: c_int = 1024;
/// How often a parent is looked at that is about to end, and how far apart.
const LOOKS: u32 = 100;
const LOOKS_APART: Duration = Duration::from_millis(1);
/// How far apart it is said that the parent has ended to a child that does not listen, at most.
const SAID_APART_MAX: Duration = Duration::from_millis(100);
/// How often it is said to a child's other threads, which may wait as well, once one has heard of it.
const SAID_TO_OTHERS: u32 = 20;

/// The kernel's socket that stood under a number before another process passed it on.
struct Placeholder {
    /// The program's, and the duplicate that is kept; both 0 in a free place.
    number: AtomicI32,
    kept: AtomicI32,
    /// A listener's backlog, or whether the program chose the port.
    told: AtomicU32,
    /// What a listener is called by the parent, and the ends of its pool; 0 for a UDP socket.
    id: AtomicUsize,
    ends: [AtomicI32; 2],
}

impl Placeholder {
    const fn free() -> Placeholder {
        let (number, kept, told, id) = (AtomicI32::new(0), AtomicI32::new(0), AtomicU32::new(0), AtomicUsize::new(0));
        Placeholder { number, kept, told, id, ends: [const { AtomicI32::new(0) }; 2] }
    }

    fn ends(&self) -> [c_int; 2] {
        self.ends.each_ref().map(|end| end.load(Ordering::Relaxed))
    }
}

/// Written by one thread at a time ([`Alone`]), as words: another thread may fork meanwhile.
static PLACEHOLDERS: [Placeholder; KEPT_MAX] = [const { Placeholder::free() }; KEPT_MAX];

/// What a number was in the parent, and is to be here.
enum Was {
    Listener(Kept),
    Datagram { keeps_port: bool, peer: Option<address::Bytes> },
}

/// Another process is about to pass on what `number` stands for. Without room it is lost with that process.
pub(super) fn keep(number: c_int, told: u32) {
    keep_listener(number, 0, told, [0; 2]);
}

/// As [`keep`], for a listener of the parent's with these ends of its pool.
pub(super) fn keep_listener(number: c_int, id: usize, told: u32, ends: [c_int; 2]) {
    closed(number);
    let free = PLACEHOLDERS.iter().find(|place| place.kept.load(Ordering::Relaxed) == 0);
    if let (Some(place), Ok(kept)) = (free, kernel::kept_duplicate(number)) {
        place.told.store(told, Ordering::Relaxed);
        place.number.store(number, Ordering::Relaxed);
        place.id.store(id, Ordering::Relaxed);
        place.ends.iter().zip(ends).for_each(|(place, end)| place.store(end, Ordering::Relaxed));
        // Release: the thread that waits for the parent's end finds the ends.
        place.kept.store(kept.into_raw_fd(), Ordering::Release);
    }
}

/// Whether a descriptor is kept so.
pub(super) fn is_kept(kept: c_int) -> bool {
    PLACEHOLDERS.iter().any(|place| place.kept.load(Ordering::Relaxed) == kept)
}

/// The child has closed a number.
pub(crate) fn closed(number: c_int) {
    for place in &PLACEHOLDERS {
        if place.number.load(Ordering::Relaxed) == number {
            let kept = place.kept.swap(0, Ordering::Relaxed);
            give_back(kept);
            let id = place.id.swap(0, Ordering::Relaxed);
            if kept != 0 && id != 0 && !has(id) && !child::has_unused(id) {
                place.ends().into_iter().for_each(pool::leave);
                child::releases(id);
            }
        }
    }
}

/// Whether the child uses a listener of its parent's under any number.
pub(super) fn has(id: usize) -> bool {
    PLACEHOLDERS.iter().any(|place| place.id.load(Ordering::Relaxed) == id && place.kept.load(Ordering::Relaxed) != 0)
}

/// The ends of a pool, kept for a while.
type Ends = (OwnedFd, OwnedFd);

/// The pools that the child has asked.
fn asked_at() -> Vec<Ends> {
    let kept = |end| kernel::kept_duplicate(end).ok();
    let ends = |place: &Placeholder| {
        let [takes, gives] = (place.kept.load(Ordering::Acquire) != 0).then(|| place.ends())?;
        (takes != 0).then_some((kept(takes)?, kept(gives)?))
    };
    PLACEHOLDERS.iter().filter_map(ends).collect()
}

/// Whoever else takes it from the pool knows nothing of this process: it is said until one of its threads has heard of it, and for a
/// while to others.
fn say_that_it_has_ended(asked: &[Ends]) {
    let (mut apart, mut left) = (LOOKS_APART, SAID_TO_OTHERS);
    while left > 0 && !asked.is_empty() {
        asked.iter().for_each(|(takes, gives)| pool::have_them_look(takes.as_raw_fd(), gives.as_raw_fd()));
        left -= u32::from(!husk::is_husk() || !claimed::has_ended());
        std::thread::sleep(apart);
        apart = (apart * 2).min(SAID_APART_MAX);
    }
}

/// The process that has had the parent's end watched.
static WATCHED_IN: AtomicU32 = AtomicU32::new(0);

/// Has whoever waits for connections of a listener told when the parent has ended. What the child waits in is the kernel's, and its
/// siblings may have the same end of the pool as the parent had: so that is no end.
pub(super) fn watch_the_parent() {
    let process = std::process::id();
    if WATCHED_IN.load(Ordering::Relaxed) == process {
        return;
    }
    let Some(Ok(channel)) = child::channel().map(|channel| kernel::kept_duplicate(channel.as_raw_fd())) else { return };
    let watch = move || {
        while poll(&mut [PollFd::new(&channel, PollFlags::empty())], None) != Ok(1) {}
        drop(channel);
        // Of what the parent had the kernel closes one after the other.
        (0..LOOKS).take_while(|_| !claimed::has_ended()).for_each(|_| std::thread::sleep(LOOKS_APART));
        say_that_it_has_ended(&asked_at());
    };
    let _no_signals = NoSignals::begin();
    // Where it cannot be, a child that waits hears of it by a connection that its sibling gives.
    if thread("lull-outlives").spawn(watch).is_ok() {
        WATCHED_IN.store(process, Ordering::Relaxed);
    }
}

fn give_back(kept: c_int) {
    if kept != 0 {
        own::unmark(kept);
        kernel::discard(kept);
    }
}

/// Whether this process goes on without the one whose sockets it has: what was that one's is its own from here on.
pub(crate) fn goes_on() -> bool {
    // Another thread that is at it has queues by now, and is waited for.
    if husk::is_husk() && (claimed::has_ended() || husk::is_going_on()) {
        signals::section(|| {
            let _alone = Alone::begin();
            if husk::is_husk() {
                go_on();
            }
        });
    }
    !husk::is_husk()
}

/// As [`goes_on`], where something that the parent had for this process may be gone: of what a process had when it ended the kernel
/// closes one after the other.
pub(crate) fn goes_on_soon() -> bool {
    let ends = child::is_hung_up();
    let goes_on = goes_on()
        || ends
            && signals::section(|| {
                (0..LOOKS).any(|_| {
                    std::thread::sleep(LOOKS_APART);
                    goes_on()
                })
            });
    if ends && !goes_on {
        // What it was may have its number, and the same queues, but has nothing for this process.
        child::say_lost();
        claimed::note_replaced();
        return self::goes_on();
    }
    goes_on
}

/// Numbers that were the parent's and are about to be the process's own, while neither holds.
static BETWEEN: Afresh<Mutex<Vec<c_int>>> = Afresh::new();
/// There are some. A number that is none of lull's is looked up without a lock at all other times: handlers of signals do so as well.
static ARE_BETWEEN: AtomicBool = AtomicBool::new(false);
/// There have been some.
static WENT_ON: AtomicBool = AtomicBool::new(false);

struct Between;

impl Between {
    fn begin(numbers: Vec<c_int>) -> Between {
        *between() = numbers;
        ARE_BETWEEN.store(true, Ordering::Relaxed);
        // Whoever finds one of them gone from the table looks here next ([`is_again`]).
        WENT_ON.store(true, Ordering::Release);
        Between
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        between().clear();
        // Release: who finds none finds what became of them.
        ARE_BETWEEN.store(false, Ordering::Release);
    }
}

fn between() -> MutexGuard<'static, Vec<c_int>> {
    BETWEEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// In any child of `fork`: who goes on is another process's thread.
pub(crate) fn forget_between() {
    BETWEEN.forget();
    ARE_BETWEEN.store(false, Ordering::Relaxed);
}

/// Whether a number that was not in the table is there now, because what was the parent's has become the process's own.
/// A thread that made a call on it meanwhile would wait in the kernel's socket for what comes to lull's.
#[inline]
pub(crate) fn is_again(number: c_int) -> bool {
    // The other side of whoever takes numbers out of the table.
    fence(Ordering::Acquire);
    WENT_ON.load(Ordering::Relaxed) && is_again_after(number)
}

#[cold]
fn is_again_after(number: c_int) -> bool {
    if husk::is_who_goes_on() {
        return false;
    }
    if ARE_BETWEEN.load(Ordering::Acquire) {
        // No handler that looks here comes while the list is locked.
        signals::section(|| {
            let is_between = between().contains(&number);
            if is_between {
                drop(Alone::begin());
            }
        });
    }
    files::is_known(number)
}

fn go_on() {
    let used = PLACEHOLDERS.iter().filter(|place| place.kept.load(Ordering::Relaxed) != 0);
    let of_the_parents = files::numbers().chain(used.map(|place| place.number.load(Ordering::Relaxed)));
    let _between = Between::begin(of_the_parents.collect());
    let (unused, contexts, asked) = (unused(), contexts(), asked_at());
    let used: Vec<Used> = PLACEHOLDERS.iter().filter_map(Used::of).collect();
    let _going_on = husk::GoingOn::begin();
    child::end();
    if !used.is_empty() || unused.iter().any(|(_, was)| matches!(was, Was::Datagram { .. })) {
        // Started first: another thread's call that finds a socket between the two worlds would wait in the kernel's. Where it cannot
        // be, it has said why.
        let _ = engine::engine();
    }
    for (number, members) in &contexts {
        // Without room in the table it stays the kernel's.
        let _ = epoll::adopt(*number, members);
    }
    for (number, was) in unused {
        // Where one cannot be, the number's next call says so.
        let _ = has_again(number, was);
    }
    for used in used {
        // As above.
        let _ = used.has_again(&contexts);
    }
    // Threads that wait at a number wait for what it was.
    let _no_signals = NoSignals::begin();
    if !asked.is_empty() {
        let _ = thread("lull-outlives").spawn(move || say_that_it_has_ended(&asked));
    }
}

/// What the child has inherited and not used. Nothing of the parent's is left in the table.
fn unused() -> Vec<(c_int, Was)> {
    let mut all = Vec::new();
    for number in files::numbers() {
        let Some(file) = files::inherited(number) else { continue };
        if child::is_placeholder(number, &file) {
            match &*file {
                File::Listener(listener) => all.extend(listener.kept(number).map(|kept| (number, Was::Listener(kept)))),
                // Its peer is the parent's engine's to know.
                File::Datagram(datagram) if !datagram.has_peer() => {
                    all.push((number, Was::Datagram { keeps_port: datagram.keeps_port(), peer: None }));
                }
                _ => {}
            }
        }
        files::forget_inherited(number);
        // The count of who has it is the parent's.
        mem::forget(file);
    }
    all
}

/// What the child has used.
struct Used {
    number: c_int,
    kept: c_int,
    told: u32,
    ends: [c_int; 2],
    peer: Option<address::Bytes>,
}

impl Used {
    /// Nothing where the child has closed it since, and the number stands for something else.
    fn of(place: &Placeholder) -> Option<Used> {
        let kept = place.kept.swap(0, Ordering::Relaxed);
        let (number, told) = (place.number.load(Ordering::Relaxed), place.told.load(Ordering::Relaxed));
        let is_passed_on =
            || if datagram::is_udp(kept) { child::has_datagrams(number) } else { made::is_listener(number) };
        if kept == 0 || !is_passed_on() {
            give_back(kept);
            return None;
        }
        Some(Used { number, kept, told, ends: place.ends(), peer: child::peer_of(number) })
    }

    /// The kernel's socket is under its number again, and on the contexts that this was on; and it is lull's.
    fn has_again(mut self, contexts: &[(c_int, Vec<Adopted>)]) -> Result<()> {
        let on = contexts.iter().flat_map(|(epfd, members)| {
            members.iter().filter(|member| member.number == self.number).map(|member| (*epfd, member.event()))
        });
        for (epfd, _) in on.clone() {
            // It leaves by itself otherwise, with its last number.
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, self.number, None);
        }
        kernel::put_nonblocking(self.kept, kernel::is_nonblocking(self.number));
        child::copy_timeouts(self.number, self.kept);
        child::stand_under(self.number, self.kept)?;
        for (epfd, event) in on {
            kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, self.number, Some(event))?;
        }
        match datagram::is_udp(self.number) {
            true => has_again(self.number, Was::Datagram { keeps_port: self.told != 0, peer: self.peer.take() }),
            false => has_again(self.number, Was::Listener(made::kept_anew(self.number, self.told, self.ends)?)),
        }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        give_back(self.kept);
    }
}

/// The contexts that the child has made, and what is on them.
fn contexts() -> Vec<(c_int, Vec<Adopted>)> {
    let Some(channel) = child::channel() else { return Vec::new() };
    let is_context = |number: &c_int| !own::is_own(*number) && kernel::is_context(*number, channel);
    (0..CONTEXTS_MAX).filter(is_context).map(|number| (number, Adopted::members(number))).collect()
}

fn has_again(number: c_int, was: Was) -> Result<()> {
    match was {
        Was::Listener(kept) => socket::adopt(&kept),
        Was::Datagram { keeps_port, peer } => {
            datagram::is_again(number, keeps_port)?;
            peer.map_or(Ok(()), |peer| socket::connect(number, &peer))
        }
    }
}
