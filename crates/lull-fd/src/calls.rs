//! A call of `epoll_wait` or of its kin, which waits as [`wait`] does, by Linux's calls.

use libc::{c_int, epoll_event, sigset_t};

use crate::linux::{self, Blocked, Poller};
use crate::wait::{self, Kernel, Round, Waited};
use crate::{Config, Table, time};

/// One of the three calls, as the program made it.
pub struct Call<'a, Real> {
    /// The context.
    pub epfd: c_int,
    /// Room for the events.
    pub events: *mut epoll_event,
    /// How many events there is room for.
    pub max: c_int,
    /// The signals that the program has blocked for this call.
    pub own_mask: Option<&'a sigset_t>,
    /// The C library's function, with a timeout in nanoseconds and a mask.
    pub real: Real,
}

/// Waits for `asked_ns`. If that takes more than one call, signals are blocked around all of them. Returns what the
/// program's call returns, with its `errno`, and whether the queue was polled for a timeout of zero.
///
/// # Safety
/// The program vouches for the call's events.
#[inline]
pub unsafe fn polled_for<Real: Fn(i64, Option<&sigset_t>) -> c_int>(
    table: &Table,
    config: &Config,
    call: &Call<'_, Real>,
    asked_ns: i64,
    ms: c_int,
) -> (c_int, bool) {
    let context = table.context(call.epfd);
    if asked_ns == 0 {
        let context = context.filter(|_| config.lifts_zero());
        return wait::zero(&Masked { call, config, mask: call.own_mask }, context);
    }
    let kernel_polls_ns = time::of_ms(ms);
    let Some(context) = context else { return ((call.real)(asked_ns, call.own_mask), false) };
    if !wait::takes_several_calls(context, asked_ns, kernel_polls_ns) {
        let kernel = Masked { call, config, mask: call.own_mask };
        return (returned(wait::long(&kernel, context, asked_ns, kernel_polls_ns)), false);
    }
    let blocked = Blocked::all();
    let mask = Some(call.own_mask.unwrap_or(blocked.before()));
    let waited = wait::long(&Masked { call, config, mask }, context, asked_ns, kernel_polls_ns);
    let error = linux::last_error();
    blocked.restore();
    // A handler may have run in the call above and changed it.
    linux::set_error(error);
    (returned(waited), false)
}

fn returned(waited: Waited) -> c_int {
    match waited {
        Waited::Returned(found) => found,
        Waited::Interrupted => {
            linux::set_error(libc::EINTR);
            -1
        }
    }
}

/// A call, and the mask of signals for its waits.
struct Masked<'a, 'b, Real> {
    call: &'a Call<'b, Real>,
    config: &'a Config,
    mask: Option<&'a sigset_t>,
}

impl<Real: Fn(i64, Option<&sigset_t>) -> c_int> Kernel for Masked<'_, '_, Real> {
    type Poller = Poller;

    fn wait(&self, timeout_ns: i64) -> c_int {
        (self.call.real)(timeout_ns, self.mask)
    }

    fn look(&self) -> c_int {
        // SAFETY: the program vouches for its events.
        unsafe { linux::look(self.call.epfd, self.call.events, self.call.max) }
    }

    fn now_ns(&self) -> u64 {
        // The clock is never negative.
        time::now_ns().unsigned_abs()
    }

    fn napi_id(&self, fd: c_int) -> u32 {
        linux::napi_id(fd)
    }

    fn open(&self) -> Option<Poller> {
        Poller::open(&self.config.epoll()?)
    }

    fn poll(&self, poller: &Poller, socket: c_int, interruptible: bool) -> Round {
        poller.poll(socket, self.mask.filter(|_| interruptible))
    }

    fn close(&self, poller: Poller) {
        poller.close();
    }
}
