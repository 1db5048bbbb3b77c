//! The program's signal handlers: they run at the end of a call that is lull's, as the kernel runs them at the end of a system
//! call.
//!
//! A handler may call whatever is safe in handlers: `write` to a socket among others. If it interrupted its thread inside the
//! engine, such a call would wait for a lock that its own thread holds. So a handler that the program installs is wrapped:
//! inside a [`section`] the wrapper only notes the signal and ends the wait, if there is one, and the handler runs when the
//! section is over. Signals of a thread's own faults are left alone.
#![allow(unsafe_code)]

pub mod older;

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

use libc::{c_int, c_void, sigaction as Action, siginfo_t};
use lull_net::lull_host::Waker;

use crate::raw::raw;
use crate::{Errno, Result, cancel};

const SIGNALS: usize = 64;
/// Signals that a thread causes by what it does, as by a fault. They cannot wait until a section is over.
const OWN_FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
/// Signals that may be blocked while no more can be noted. Those of a thread's own faults may not, and neither may the
/// two that the C library uses itself.
const HOLDABLE: u64 = {
    let mut all = !(bit(32) | bit(33));
    let mut nth = 0;
    while nth < OWN_FAULTS.len() {
        all &= !bit(OWN_FAULTS[nth]);
        nth += 1;
    }
    all
};
/// How many signals one thread can have noted. Further ones wait in the kernel until the thread has run the handlers of
/// these.
const NOTED_MAX: usize = 16;

/// What the program has asked for, by signal.
struct Asked {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

static ASKED: [Asked; SIGNALS + 1] =
    [const { Asked { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) } };
        SIGNALS + 1];

/// The calling thread's state, which its own handlers change.
struct Thread {
    depth: Cell<u32>,
    /// Signals whose handlers run outside of any section, one inside the other. Handlers that were left by a jump may
    /// still be among them.
    handlers: Cell<u64>,
    interrupted: Cell<bool>,
    /// One of the handlers was installed without SA_RESTART.
    for_good: Cell<bool>,
    waker: Cell<*const Waker>,
    count: Cell<usize>,
    /// What is blocked because no more can be noted.
    held: Cell<u64>,
    noted: UnsafeCell<[MaybeUninit<(c_int, siginfo_t)>; NOTED_MAX]>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            depth: Cell::new(0),
            handlers: Cell::new(0),
            interrupted: Cell::new(false),
            for_good: Cell::new(false),
            waker: Cell::new(std::ptr::null()),
            count: Cell::new(0),
            held: Cell::new(0),
            noted: UnsafeCell::new([const { MaybeUninit::uninit() }; NOTED_MAX]),
        }
    };
}

/// Runs a call of lull's: handlers of signals that come meanwhile run when it is over.
#[inline]
pub fn section<R>(call: impl FnOnce() -> R) -> R {
    THREAD.with(|thread| {
        let depth = thread.depth.get();
        if depth == 0 {
            thread.interrupted.set(false);
            thread.for_good.set(false);
            if thread.count.get() != 0 {
                // A handler that left the call by a jump has left the sections inside it, too.
                run_noted(thread, None);
            }
        }
        thread.depth.set(depth + 1);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 {
            cancel::enters();
        }
        let result = call();
        if depth == 0 && thread.count.get() != 0 {
            run_noted(thread, None);
        }
        compiler_fence(Ordering::SeqCst);
        thread.depth.set(depth);
        if depth == 0 && thread.count.get() != 0 {
            // A signal came between the two lines above, and no section is open any more.
            run_noted(thread, None);
        }
        if depth == 0 {
            cancel::leaves();
        }
        result
    })
}

/// A section in which the thread has another mask of signals, as in `epoll_pwait` and `ppoll`. The handlers of signals
/// that this mask lets in run before the thread has its own mask back.
pub fn section_with_mask<R>(mask: Option<&libc::sigset_t>, call: impl FnOnce() -> R) -> R {
    let Some(mask) = mask else { return section(call) };
    section(|| {
        THREAD.with(|thread| {
            let mask = first_word(mask);
            let before = set_mask(libc::SIG_SETMASK, u64::MAX) & !thread.held.replace(0);
            set_mask(libc::SIG_SETMASK, mask);
            if thread.count.get() != 0 && next_noted(thread, mask).is_some() {
                // It was blocked until now.
                thread.interrupted.set(true);
                thread.for_good.set(true);
            }
            let result = call();
            // From here on nothing is noted any more, and a signal that comes stays in the kernel.
            run_noted(thread, Some(before));
            result
        })
    })
}

/// Called in a child of `fork`, by its only thread. The signals that the parent has noted are the parent's to handle.
pub(crate) fn forget() {
    let _ = THREAD.try_with(|thread| {
        thread.count.set(0);
        set_mask(libc::SIG_UNBLOCK, thread.held.replace(0));
        thread.interrupted.set(false);
        thread.waker.set(std::ptr::null());
    });
}

/// Whether the calling thread is inside a call of lull's: what it closes there is lull's business.
#[inline]
pub fn is_inside() -> bool {
    THREAD.try_with(|thread| thread.depth.get() != 0).unwrap_or(false)
}

/// Whether the calling thread is in a handler that interrupted the program. While it runs its signal is blocked; once
/// `siglongjmp` has left it, it is blocked no more. Of a handler with SA_NODEFER this cannot be told.
pub(crate) fn is_in_handler() -> bool {
    let is_in = |thread: &Thread| {
        let all = thread.handlers.get();
        if all == 0 {
            return false;
        }
        let defers = |signal: &c_int| ASKED[*signal as usize].flags.load(Ordering::Relaxed) & libc::SA_NODEFER == 0;
        let deferred = (1..=SIGNALS as c_int).filter(defers).fold(0, |set, signal| set | bit(signal));
        let blocked = set_mask(libc::SIG_BLOCK, 0);
        thread.handlers.set(all & (blocked | !deferred));
        thread.handlers.get() != 0
    };
    THREAD.try_with(is_in).unwrap_or(false)
}

/// Whether a handler waits for the present section to end, or the thread is to be cancelled. Either ends a wait in the
/// section.
#[inline]
pub(crate) fn is_interrupted() -> bool {
    THREAD.try_with(|thread| thread.interrupted.get()).unwrap_or(false) || cancel::is_asked()
}

/// Makes a call as the kernel makes a system call: one that was interrupted while it waited is made again from the beginning, if
/// every handler was installed with SA_RESTART. A handler may have closed the call's number, or given it to another file.
#[inline]
pub fn call<R>(mut call: impl FnMut() -> Result<R>) -> Result<R> {
    section(|| {
        loop {
            match call() {
                Err(RESTARTS) if restarts() => {}
                Err(RESTARTS) => return Err(INTERRUPTED),
                other => return other,
            }
        }
    })
}

/// As [`call`], for calls that are never made again: whatever interrupts such a call ends it.
pub(crate) fn call_once<R>(call: impl FnOnce() -> Result<R>) -> Result<R> {
    section(|| call().map_err(|error| if error == RESTARTS { INTERRUPTED } else { error }))
}

/// Runs the handlers for a call that was interrupted and holds nothing. Returns true if all of them were installed with
/// SA_RESTART.
#[cold]
pub(crate) fn restarts() -> bool {
    THREAD.with(|thread| {
        // A signal that comes from here on ends the next wait.
        thread.interrupted.set(false);
        run_noted(thread, None);
        !thread.for_good.get() && !cancel::is_asked()
    })
}

/// For a call that was interrupted and holds something that it would lose: it waits on, and the handlers run when it is
/// over. Returns false if its thread is to be cancelled.
pub(crate) fn goes_on_waiting() -> bool {
    THREAD.with(|thread| thread.interrupted.set(false));
    !cancel::is_asked()
}

/// Says that `waker` ends the sleep of the calling thread while it waits. Returns what did so before.
pub(crate) fn set_waker(waker: *const Waker) -> *const Waker {
    THREAD.try_with(|thread| thread.waker.replace(waker)).unwrap_or(std::ptr::null())
}

/// Waits in the kernel for what is the kernel's alone. A signal that has come since the call began is only noted, and
/// could wait for ever together with its thread. So, as on Linux, it ends the wait, or is handled before that begins.
/// `wait` is given the thread's mask, which holds while the kernel waits.
pub(crate) fn wait_in_kernel<R>(wait: impl FnOnce(&u64) -> Result<R>) -> Result<R> {
    let mask = set_mask(libc::SIG_SETMASK, u64::MAX);
    let waited = if is_interrupted() { Err(INTERRUPTED) } else { wait(&mask) };
    set_mask(libc::SIG_SETMASK, mask);
    waited
}

fn first_word(mask: &libc::sigset_t) -> u64 {
    // SAFETY: the C library's set begins with the kernel's, which is a word of 64 bits.
    unsafe { (mask as *const libc::sigset_t).cast::<u64>().read_unaligned() }
}

/// The kernel's form of a set of signals that a system call was given; `None` if it was given none.
///
/// # Safety
/// The program vouches for its pointer.
pub unsafe fn kernels_set(at: *const u64) -> Option<libc::sigset_t> {
    // SAFETY: as above.
    let word = unsafe { at.as_ref() }?;
    // SAFETY: plain data, for which zeroes are a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    set_first_word(&mut set, *word);
    Some(set)
}

fn set_first_word(set: &mut libc::sigset_t, word: u64) {
    // SAFETY: as in `first_word`.
    unsafe { (&raw mut *set).cast::<u64>().write_unaligned(word) };
}

/// The signals that the last argument of `pselect6` points to: to the place of the set, and to its size.
///
/// # Safety
/// The program vouches for its pointers.
pub unsafe fn pselects_set(at: *const *const u64) -> Option<libc::sigset_t> {
    // SAFETY: as above.
    unsafe { kernels_set(*at.as_ref()?) }
}

fn set_mask(how: c_int, mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: sets of the kernel's size.
    let _ = unsafe { raw!(SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, 8) };
    before
}

/// The program's process exits: a signal that asks something of a program that runs (to load its configuration anew, to end when it
/// is done) asks nothing any more, nor does a timer. Linux has no process then that it could end. Those that end a process for good
/// (SIGTERM, SIGINT, SIGQUIT) still do.
pub(crate) fn ask_no_more() {
    const ASKING: [c_int; 6] =
        [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF];
    // The kernel's `struct sigaction`, which begins with the handler: no flags, no restorer, and an empty mask.
    let ignored: [usize; 4] = [libc::SIG_IGN, 0, 0, 0];
    for signal in ASKING {
        // SAFETY: an action that outlives the call, for a signal that has one.
        let _ = unsafe { raw!(SYS_rt_sigaction, signal, &raw const ignored, 0, 8) };
    }
}

/// Whether a signal that the calling thread sends to its own process ends that at once, as `exit` would.
pub(crate) fn ends_us(signal: c_int) -> bool {
    // Signals that are no sign of a fault. For those that are, the kernel writes a core.
    const ENDING: [c_int; 6] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];
    let may_be = ENDING.contains(&signal) && action_of(signal) == Some(libc::SIG_DFL);
    // What a handler has interrupted may hold anything.
    may_be && set_mask(libc::SIG_BLOCK, 0) & bit(signal) == 0 && !is_in_handler()
}

/// What the kernel has for a signal: a handler, SIG_DFL or SIG_IGN.
fn action_of(signal: c_int) -> Option<usize> {
    let mut action = [0_usize; 4];
    // SAFETY: room for what the kernel tells; nothing is changed.
    unsafe { raw!(SYS_rt_sigaction, signal, 0, &raw mut action, 8) }.is_ok().then_some(action[0])
}

/// Whether the calling thread may make a call of lull's now, if it is a thread of the program's: it is inside of none, and in no handler
/// of a fault, which may have interrupted anything. What other handlers have interrupted is the program's own, and they may write to
/// sockets; but only what they have to do themselves is to be done there ([`is_in_handler`]).
pub(crate) fn may_begin_call() -> bool {
    let is_handled =
        |signal: &c_int| action_of(*signal).is_some_and(|action| ![libc::SIG_DFL, libc::SIG_IGN].contains(&action));
    let blocked = set_mask(libc::SIG_BLOCK, 0);
    !is_inside() && !OWN_FAULTS.iter().any(|signal| blocked & bit(*signal) != 0 && is_handled(signal))
}

/// It ends the process again, though it may be one of those that [`ask_no_more`].
pub(crate) fn ends_us_again(signal: c_int) {
    let by_default: [usize; 4] = [libc::SIG_DFL, 0, 0, 0];
    // SAFETY: an action that outlives the call, for a signal that has one.
    let _ = unsafe { raw!(SYS_rt_sigaction, signal, &raw const by_default, 0, 8) };
}

/// What the kernel calls in place of a handler of the program's.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let inside = THREAD.try_with(|thread| {
        if thread.depth.get() == 0 {
            return false;
        }
        // SAFETY: the kernel gives information with every signal of a handler that was installed with SA_SIGINFO.
        note(thread, signal, unsafe { *info }, unsafe { &mut *context.cast() });
        true
    });
    if !inside.unwrap_or(false) {
        let before =
            THREAD.try_with(|thread| thread.handlers.replace(thread.handlers.get() | bit(signal))).unwrap_or(0);
        call_handler(signal, info, context);
        let _ = THREAD.try_with(|thread| thread.handlers.set(before));
    }
}

fn note(thread: &Thread, signal: c_int, info: siginfo_t, context: &mut libc::ucontext_t) {
    // Other handlers of this thread may interrupt this one.
    let before = set_mask(libc::SIG_SETMASK, u64::MAX);
    let count = thread.count.get();
    // SAFETY: only this thread uses it, with its signals blocked; the first `count` are written.
    let noted = unsafe { &mut *thread.noted.get() };
    // SAFETY: as above.
    let is_there = noted[..count].iter().any(|one| unsafe { one.assume_init_ref() }.0 == signal);
    let merges = is_there && signal < 32;
    if !merges && count < NOTED_MAX {
        noted[count].write((signal, info));
        thread.count.set(count + 1);
    } else if !merges {
        // The kernel had called this handler before those that have filled the room: it comes again.
        // SAFETY: what the kernel has told, and numbers.
        let _ = unsafe { raw!(SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, &raw const info) };
    }
    if thread.count.get() == NOTED_MAX {
        // This mask is in force when the handler returns, and until one of the handlers that are noted has run.
        let blocked = first_word(&context.uc_sigmask);
        thread.held.set(thread.held.get() | HOLDABLE & !blocked);
        set_first_word(&mut context.uc_sigmask, blocked | HOLDABLE);
    }
    thread.interrupted.set(true);
    if ASKED[signal as usize].flags.load(Ordering::Relaxed) & libc::SA_RESTART == 0 {
        thread.for_good.set(true);
    }
    // SAFETY: set only while it lives.
    if let Some(waker) = unsafe { thread.waker.get().as_ref() } {
        waker.wake();
    }
    set_mask(libc::SIG_SETMASK, before);
}

/// Runs the handlers of what was noted and is not blocked, in its order. The thread holds nothing of lull's, as it is
/// outside of any call while they run, and it may never come back (`siglongjmp`). Afterwards the thread's mask is
/// `then`, or what it was.
#[cold]
fn run_noted(thread: &Thread, then: Option<u64>) {
    loop {
        let before = set_mask(libc::SIG_SETMASK, u64::MAX) & !thread.held.replace(0);
        let Some(next) = next_noted(thread, before) else {
            set_mask(libc::SIG_SETMASK, then.unwrap_or(before));
            return;
        };
        let count = thread.count.get();
        // SAFETY: only this thread uses it, with its signals blocked; the first `count` are written.
        let noted = unsafe { &mut *thread.noted.get() };
        // SAFETY: as above.
        let (signal, mut info) = unsafe { noted[next].assume_init() };
        noted.copy_within(next + 1..count, next);
        thread.count.set(count - 1);
        let asked = &ASKED[signal as usize];
        let itself = if asked.flags.load(Ordering::Relaxed) & libc::SA_NODEFER == 0 { bit(signal) } else { 0 };
        let state = (thread.depth.replace(0), thread.interrupted.get(), thread.for_good.get());
        set_mask(libc::SIG_SETMASK, before | asked.mask.load(Ordering::Relaxed) | itself);
        // SAFETY: plain data, for which zeroes are a value. What the thread was doing is no handler's business.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        cancel::leaves();
        call_handler(signal, &raw mut info, (&raw mut context).cast());
        // A signal that comes from here on is handled after those that are noted.
        thread.depth.set(state.0);
        thread.interrupted.set(state.1);
        thread.for_good.set(state.2);
        cancel::enters();
        set_mask(libc::SIG_SETMASK, before);
    }
}

/// The first that is noted and not blocked by a mask.
fn next_noted(thread: &Thread, mask: u64) -> Option<usize> {
    // SAFETY: only this thread uses it, and its handlers add at the end alone; the first `count` are written.
    let noted = unsafe { &(&*thread.noted.get())[..thread.count.get()] };
    // SAFETY: as above.
    noted.iter().position(|one| mask & bit(unsafe { one.assume_init_ref() }.0) == 0)
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

fn call_handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let asked = &ASKED[signal as usize];
    let handler = asked.handler.load(Ordering::Acquire);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    // SAFETY: the program installed it with this shape, as its flags say.
    unsafe {
        if asked.flags.load(Ordering::Relaxed) & libc::SA_SIGINFO != 0 {
            std::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)(
                signal, info, context,
            );
        } else {
            std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
        }
    }
}

/// The C library's `sigaction`.
pub type Install = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// `sigaction`. `real` is the C library's, which is called with what the kernel is to be told, and tells what it was told before.
pub fn sigaction(signal: c_int, asked: Option<&Action>, real: Install) -> Result<Action> {
    let install = |asked: Option<&Action>| {
        // SAFETY: plain data, for which zeroes are a value, written by the call; it reads what is asked for, if anything.
        unsafe {
            let mut told: Action = std::mem::zeroed();
            let asked = asked.map_or(std::ptr::null(), |asked| asked as *const Action);
            match real(signal, asked, &raw mut told) {
                0 => Ok(told),
                _ => Err(Errno::from(std::io::Error::last_os_error())),
            }
        }
    };
    let wraps = (1..=SIGNALS as c_int).contains(&signal) && !OWN_FAULTS.contains(&signal);
    if !wraps {
        return install(asked);
    }
    let slot = &ASKED[signal as usize];
    let before = (slot.handler.load(Ordering::Acquire), slot.flags.load(Ordering::Relaxed));
    let is_handler = |action: &Action| action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
    let told = match asked {
        Some(action) if is_handler(action) => {
            // It is written before the kernel is told, so that a signal that comes at once finds it.
            slot.mask.store(first_word(&action.sa_mask), Ordering::Relaxed);
            slot.flags.store(action.sa_flags, Ordering::Relaxed);
            slot.handler.store(action.sa_sigaction, Ordering::Release);
            let wrapper = on_signal as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            install(Some(&Action { sa_sigaction: wrapper, sa_flags: action.sa_flags | libc::SA_SIGINFO, ..*action }))
        }
        other => install(other),
    };
    let wrapper = on_signal as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    told.map(|told| match told.sa_sigaction == wrapper {
        true => Action { sa_sigaction: before.0, sa_flags: before.1 | told.sa_flags & !libc::SA_SIGINFO, ..told },
        false => told,
    })
}

/// The error of a call that a signal ended.
pub(crate) const INTERRUPTED: Errno = Errno::new(libc::EINTR);
/// The error of a call that a signal ended, for [`call`], which makes it again or says that it was interrupted (ERESTARTSYS).
pub(crate) const RESTARTS: Errno = Errno::new(512);

/// What becomes of a wait that a signal ended: one without a time limit is made again, one with a limit never is
/// (`sock_intr_errno`).
pub(crate) fn or_restarts<R>(waited: Result<R>, timeout: Option<Duration>) -> Result<R> {
    match waited {
        Err(INTERRUPTED) if timeout.is_none() => Err(RESTARTS),
        waited => waited,
    }
}
