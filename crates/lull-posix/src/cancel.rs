//! Threads that are cancelled (`pthread_cancel`) while they are in a call of lull's.
//!
//! The C library ends such a thread by unwinding its stack, from wherever it is if it asked for that
//! (PTHREAD_CANCEL_ASYNCHRONOUS), otherwise from the next cancellation point. Inside a
//! [`section`](crate::signals::section) that would leave locks held, so cancelling is turned off there. A call that is
//! a cancellation point looks before and after the section ([`at_point`]), where nothing is held, and a thread that
//! waits in such a call is woken as by a signal.
//!
//! To turn it off costs two atomic operations, so this is not done before the program has cancelled a thread for the
//! first time. A thread that is in a section at that moment has not turned it off; the C library is told of its
//! cancellation only when the section ends, by the thread itself.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use libc::{c_int, c_void, pthread_t};
use lull_net::lull_host::Waker;

use crate::raw::raw;
use crate::signals::INTERRUPTED;
use crate::{Result, kernel, signals};

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const ENABLED: c_int = 0;
const DISABLED: c_int = 1;
/// `membarrier(2)`.
const MEMBARRIER_CMD_GLOBAL: c_int = 1;
const NOWHERE: c_int = -1;

/// The C library's `pthread_cancel`.
pub type Real = unsafe extern "C-unwind" fn(pthread_t) -> c_int;

/// The program has cancelled a thread.
static USED: AtomicBool = AtomicBool::new(false);
static REAL: AtomicUsize = AtomicUsize::new(0);

/// What others see of a thread. It alone writes the first four, but for `asked`.
struct Record {
    inside: AtomicBool,
    /// It has turned cancelling off, and the program had it on.
    shielded: AtomicBool,
    was_enabled: AtomicBool,
    /// The number of a context of the kernel's that it waits in.
    there: AtomicI32,
    asked: AtomicBool,
    /// What calls it out of there.
    call: Mutex<Option<OwnedFd>>,
    wakers: Mutex<Vec<Waker>>,
}

type Threads = Mutex<Vec<(pthread_t, Arc<Record>)>>;

static THREADS: AtomicPtr<Threads> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    static RECORD: Cell<*const Record> = const { Cell::new(ptr::null()) };
    static KEPT: Kept = const { Kept(Cell::new(None)) };
}

/// The record of this thread, for as long as it lives.
struct Kept(Cell<Option<Arc<Record>>>);

impl Drop for Kept {
    fn drop(&mut self) {
        RECORD.set(ptr::null());
        // What is closed here is lull's, and lull's to close.
        signals::section(|| {
            if let Some(record) = self.0.take() {
                lock(threads()).retain(|(_, other)| !Arc::ptr_eq(other, &record));
            }
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is changed by whole operations.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of this process. A child of `fork` has a list of its own: somebody may have held the lock of its parent's.
fn threads() -> &'static Threads {
    extern "C" fn in_the_child() {
        THREADS.store(ptr::null_mut(), Ordering::Release);
        RECORD.set(ptr::null());
        let _ = KEPT.try_with(|kept| std::mem::forget(kept.0.take()));
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler stays for as long as the process.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
    let known = THREADS.load(Ordering::Acquire);
    // SAFETY: what is there stays for ever.
    if let Some(known) = unsafe { known.as_ref() } {
        return known;
    }
    let made = Box::into_raw(Box::<Threads>::default());
    match THREADS.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: as above.
            unsafe { &*other }
        }
    }
}

#[inline]
fn record() -> Option<&'static Record> {
    let record = RECORD.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: it is this thread's, which has it until it ends.
    unsafe { record.as_ref() }
}

#[cold]
fn register() -> Option<&'static Record> {
    // A handler may have interrupted the allocator, so the record is made in the thread's next call.
    if signals::is_in_handler() {
        return None;
    }
    KEPT.try_with(|kept| {
        let record = Arc::new(Record {
            inside: AtomicBool::new(false),
            shielded: AtomicBool::new(false),
            was_enabled: AtomicBool::new(false),
            there: AtomicI32::new(NOWHERE),
            asked: AtomicBool::new(false),
            call: Mutex::default(),
            wakers: Mutex::default(),
        });
        // SAFETY: always there.
        lock(threads()).push((unsafe { libc::pthread_self() }, record.clone()));
        RECORD.set(Arc::as_ptr(&record));
        kept.0.set(Some(record));
    })
    .ok()?;
    record()
}

/// The calling thread enters a call of lull's.
#[inline]
pub(crate) fn enters() {
    let Some(record) = record().or_else(register) else { return };
    record.inside.store(true, Ordering::Relaxed);
    // The other side of this is `membarrier` in `cancel`.
    compiler_fence(Ordering::SeqCst);
    if USED.load(Ordering::Relaxed) {
        shield(record);
    }
}

/// The calling thread's call of lull's is over: nothing is held.
#[inline]
pub(crate) fn leaves() {
    let Some(record) = record() else { return };
    record.inside.store(false, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if record.shielded.load(Ordering::Relaxed) {
        unshield(record);
    } else if record.asked.load(Ordering::Acquire) {
        tell_real();
    }
}

#[cold]
fn shield(record: &Record) {
    // A call that a handler makes, inside of another one or between two, has not turned it off.
    if record.shielded.load(Ordering::Relaxed) {
        return;
    }
    let mut before = ENABLED;
    // SAFETY: room for the state. Turning it off ends nothing.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
    record.was_enabled.store(before == ENABLED, Ordering::Relaxed);
    record.shielded.store(true, Ordering::Release);
}

/// Puts cancelling back to what it was, which may end the thread here, if it is cancelled asynchronously.
#[cold]
fn unshield(record: &Record) {
    record.shielded.store(false, Ordering::Relaxed);
    let is_asked = record.asked.load(Ordering::Acquire);
    if record.was_enabled.load(Ordering::Relaxed) {
        // SAFETY: nothing is held, and no frame up to the program's has anything to drop.
        unsafe { pthread_setcancelstate(ENABLED, ptr::null_mut()) };
    }
    if is_asked {
        tell_real();
    }
}

/// Tells the C library what it was not told while the calling thread was inside; to be told twice does no harm.
#[cold]
fn tell_real() {
    let real = REAL.load(Ordering::Acquire);
    if real != 0 {
        // SAFETY: it was stored as such a function; nothing is held.
        unsafe { std::mem::transmute::<usize, Real>(real)(libc::pthread_self()) };
    }
}

/// Makes a call that is a cancellation point.
#[inline]
pub fn at_point<R>(call: impl FnOnce() -> Result<R>) -> Result<R> {
    if USED.load(Ordering::Relaxed) {
        test();
    }
    let result = call();
    // A call that has done something is not cancelled: the next one is.
    if matches!(&result, Err(error) if *error == INTERRUPTED) && USED.load(Ordering::Relaxed) {
        test();
    }
    result
}

#[cold]
fn test() {
    // SAFETY: nothing is held, and no frame up to the program's has anything to drop.
    unsafe { pthread_testcancel() };
}

/// Whether the calling thread is to be cancelled: a wait of it is over.
#[inline]
pub(crate) fn is_asked() -> bool {
    USED.load(Ordering::Relaxed) && is_to_be_cancelled()
}

#[cold]
fn is_to_be_cancelled() -> bool {
    let Some(record) = record().filter(|record| record.asked.load(Ordering::Acquire)) else { return false };
    if !record.shielded.load(Ordering::Relaxed) {
        shield(record);
    }
    record.was_enabled.load(Ordering::Relaxed)
}

/// Whoever cancels the calling thread wakes it by this as well.
pub(crate) fn can_be_woken_by(waker: Waker) {
    if let Some(record) = record() {
        lock(&record.wakers).push(waker);
    }
}

/// The calling thread waits in a context of the kernel's alone.
pub(crate) fn waits_there<R>(epfd: c_int, wait: impl FnOnce() -> Result<R>) -> Result<R> {
    let Some(record) = record() else { return wait() };
    record.there.store(epfd, Ordering::Relaxed);
    // Whoever asks from here on sees that it is there.
    compiler_fence(Ordering::SeqCst);
    let result = if is_asked() { Err(INTERRUPTED) } else { wait() };
    record.there.store(NOWHERE, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if record.asked.load(Ordering::Acquire) {
        // Closed, it leaves the context.
        drop(lock(&record.call).take());
    }
    result
}

/// `pthread_cancel`.
///
/// # Safety
/// The program vouches for the thread.
pub unsafe fn cancel(thread: pthread_t, real: Real) -> c_int {
    REAL.store(real as *const c_void as usize, Ordering::Release);
    USED.store(true, Ordering::SeqCst);
    let known = signals::section(|| {
        let threads = lock(threads());
        let record = threads.iter().find(|(known, _)| *known == thread).map(|(_, record)| record.clone())?;
        record.asked.store(true, Ordering::SeqCst);
        // From here on the thread sees both, or what is read below is what it wrote before it looked.
        // SAFETY: numbers only.
        let _ = unsafe { raw!(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
        let told_by_itself = record.inside.load(Ordering::SeqCst) && !record.shielded.load(Ordering::SeqCst);
        lock(&record.wakers).iter().for_each(Waker::wake);
        let mut call = lock(&record.call);
        let there = record.there.load(Ordering::SeqCst);
        if there != NOWHERE {
            // If no number is free, it is cancelled when its wait ends.
            *call = kernel::call_out_of(kernel::borrow(there)).ok();
        }
        Some(told_by_itself)
    });
    if known == Some(true) {
        return 0;
    }
    // SAFETY: the program vouches for it.
    unsafe { real(thread) }
}
