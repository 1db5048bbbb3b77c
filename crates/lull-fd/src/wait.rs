//! A wait on an epoll context in a mode that keeps polling (fullbusy).
//!
//! Linux polls for a wait at its beginning, for `busy_poll_usecs`. If that finds nothing it forgets the context's NAPI
//! (`ep_busy_loop`) and sleeps, and until the next event nobody polls any more: the next packet waits for
//! `gro_flush_timeout`, which is 5 ms in fullbusy. Calling `epoll_wait` again does not help, because the NAPI is
//! forgotten. A call with timeout 0 never polls at all. So this module polls the queue itself where the kernel does
//! not:
//!
//! ```text
//! timeout 0    look ── nothing, and the rule of lull_core::zero_timeout says so ──▶ one poll, look again
//! longer       the kernel polls ── nothing ──▶ poll, look, poll, look .. ── no event for 100 ms ──▶ the kernel sleeps
//! ```
//!
//! A poll goes through an epoll context of this crate's own, which holds only one of the program's sockets at a time;
//! the program's own contexts are only looked at. A signal ends the wait with EINTR whenever it comes: the caller
//! blocks signals around the whole call, and each poll and each wait lets them in (`epoll_pwait`), as the kernel's own
//! wait does.

use libc::c_int;
use lull_core::{POLLED_AFTER_EVENT_NS, ZeroTimeout};

use crate::table::{Candidate, Known};
use crate::time::FOR_EVER_NS;

/// The calls of which a wait consists. None of them may allocate or take a lock.
pub trait Kernel {
    /// An epoll context of lull's own, to poll through.
    type Poller;

    /// Makes the program's own call with this timeout ([`FOR_EVER_NS`]: no timeout). It lets in the signals that the
    /// program lets in. Returns what the call returns, with its `errno`.
    fn wait(&self, timeout_ns: i64) -> c_int;
    /// Makes the program's own call with timeout 0, which lets in no signal and no cancellation.
    fn look(&self) -> c_int;
    /// The monotonic time, in nanoseconds.
    fn now_ns(&self) -> u64;
    /// The NAPI that a socket's last packet came from; 0 if there was none, or if this is no internet socket. The
    /// kernel itself returns 0 for what is no id (`sk_getsockopt`); where its ids begin depends on how it was built.
    fn napi_id(&self, fd: c_int) -> u32;
    /// Opens a poller, or returns `None` if that fails.
    fn open(&self) -> Option<Self::Poller>;
    /// Polls a socket's queue for one round. If `interruptible`, it lets in the signals that the program's call lets
    /// in.
    fn poll(&self, poller: &Self::Poller, socket: c_int, interruptible: bool) -> Round;
    /// Closes a poller. Between opening and closing, no function is called in which a thread can be cancelled.
    fn close(&self, poller: Self::Poller);
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The queue was polled.
    Polled,
    /// A signal came, or no poller could be opened.
    Interrupted,
    /// The queue was not polled: the socket is closed, or has an error to report.
    Unfit,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The last call has returned this, with its `errno`.
    Returned(c_int),
    /// A signal came: the call returns -1 with EINTR.
    Interrupted,
}

/// Makes a call with timeout 0. Returns what it found, and whether the queue was polled for it.
#[inline]
pub fn zero<K: Kernel>(kernel: &K, context: Option<Known<'_>>) -> (c_int, bool) {
    let found = kernel.wait(0);
    let Some(context) = context else { return (found, false) };
    if found != 0 {
        context.found_events();
        context.zero().begin_again();
        return (found, false);
    }
    if !context.zero().was_empty() {
        return (0, false);
    }
    zero_again(kernel, context, context.zero())
}

#[cold]
fn zero_again<K: Kernel>(kernel: &K, context: Known<'_>, rule: &ZeroTimeout) -> (c_int, bool) {
    let began_ns = kernel.now_ns();
    if !rule.is_due(began_ns) {
        return (0, false);
    }
    let Some(socket) = context.candidate(|fd| kernel.napi_id(fd)) else {
        rule.nothing_to_poll(began_ns);
        return (0, false);
    };
    let round = match kernel.open() {
        Some(poller) => {
            let round = kernel.poll(&poller, socket.fd, false);
            kernel.close(poller);
            round
        }
        None => Round::Interrupted,
    };
    if round == Round::Unfit {
        context.was_unfit(socket);
    }
    // A call with timeout 0 is never interrupted: if the queue was not polled for it, it has found nothing.
    let polled = round == Round::Polled;
    let found = if polled { kernel.wait(0) } else { 0 };
    rule.polled(began_ns, kernel.now_ns(), found != 0);
    if found != 0 {
        context.found_events();
    }
    (found, polled)
}

/// Whether a wait of this length takes more than one call, so that signals have to be blocked around them.
#[inline]
pub fn takes_several_calls(context: Known<'_>, asked_ns: i64, kernel_polls_ns: i64) -> bool {
    asked_ns == FOR_EVER_NS || asked_ns > kernel_polls_ns || context.idle_since_ns().is_some()
}

/// Makes a wait whose timeout is not 0. The kernel polls for `kernel_polls_ns` at most (`busy_poll_usecs`); after that
/// the queue is polled from here.
#[inline]
pub fn long<K: Kernel>(kernel: &K, context: Known<'_>, asked_ns: i64, kernel_polls_ns: i64) -> Waited {
    context.zero().begin_again();
    let began_ns = kernel.now_ns();
    if context.idle_since_ns().is_none() {
        let whole = (0..=kernel_polls_ns).contains(&asked_ns);
        let found = kernel.wait(if whole { asked_ns } else { kernel_polls_ns });
        if found != 0 {
            return Waited::Returned(found);
        }
        context.found_nothing(kernel.now_ns());
        if whole {
            return Waited::Returned(0);
        }
    }
    idle(kernel, context, asked_ns, began_ns)
}

/// Makes the rest of a wait for which the kernel does not poll any more.
#[cold]
fn idle<K: Kernel>(kernel: &K, context: Known<'_>, asked_ns: i64, began_ns: u64) -> Waited {
    let idle_since_ns = context.found_nothing(began_ns);
    let left_ns = || match asked_ns {
        FOR_EVER_NS => FOR_EVER_NS,
        _ => asked_ns.saturating_sub_unsigned(kernel.now_ns() - began_ns).max(0),
    };
    let is_over = || left_ns() == 0 || kernel.now_ns() - idle_since_ns >= POLLED_AFTER_EVENT_NS;
    let mut waited = None;
    if let Some(mut socket) = context.candidate(|fd| kernel.napi_id(fd)).filter(|_| !is_over())
        && let Some(poller) = kernel.open()
    {
        waited = poll_until(kernel, context, &poller, &mut socket, is_over);
        kernel.close(poller);
    }
    let waited = match waited {
        // The signal may be the one that cancels the thread, which happens in this call.
        Some(Waited::Interrupted) => match kernel.wait(0) {
            0 => Waited::Interrupted,
            found => Waited::Returned(found),
        },
        Some(returned) => returned,
        None => sleep(kernel, left_ns),
    };
    if !matches!(waited, Waited::Interrupted | Waited::Returned(0)) {
        context.found_events();
    }
    waited
}

/// Polls and looks until something is found, or until the time is over.
fn poll_until<K: Kernel>(
    kernel: &K,
    context: Known<'_>,
    poller: &K::Poller,
    socket: &mut Candidate,
    is_over: impl Fn() -> bool,
) -> Option<Waited> {
    while !is_over() {
        match kernel.poll(poller, socket.fd, true) {
            Round::Polled => {}
            Round::Interrupted => return Some(Waited::Interrupted),
            Round::Unfit => context.was_unfit(*socket),
        }
        match kernel.look() {
            0 => {}
            found => return Some(Waited::Returned(found)),
        }
        *socket = context.candidate(|fd| kernel.napi_id(fd))?;
    }
    None
}

/// Leaves the rest of the wait to the kernel. Its calls take at most 24 days at a time.
fn sleep<K: Kernel>(kernel: &K, left_ns: impl Fn() -> i64) -> Waited {
    loop {
        let left_ns = left_ns();
        let found = kernel.wait(left_ns);
        if found != 0 || left_ns == 0 || left_ns <= i64::from(c_int::MAX) {
            return Waited::Returned(found);
        }
    }
}
