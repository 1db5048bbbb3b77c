//! `epoll_create` and `epoll_create1` give new contexts their parameters. `epoll_ctl` notes which sockets are on a
//! context. `epoll_wait`, `epoll_pwait` and `epoll_pwait2` are polled for in a mode that keeps polling. `lull-fd` does
//! the work.

use core::mem::MaybeUninit;
use core::time::Duration;

use libc::{c_int, epoll_event, sigset_t, timespec};
use lull_fd::calls::{self, Call};
use lull_fd::{Table, birth, linux, time};

use lull_posix::poll::asked_ns;
use lull_posix::{epoll as lulls, is_engaged, is_lull, is_lull_to_wait};

use crate::taken_over::taken_over;
use crate::{CONFIG, Errno, answer, real};

static TABLE: Table = Table::new();

taken_over! {
    /// It gives the new context its parameters.
    fn epoll_create(size: c_int) -> c_int {
        if is_engaged() {
            // The size is a hint that has long been ignored, but it has to be positive.
            return if size > 0 { answer::number(|| lulls::epoll_create(0)) } else { answer::refused(libc::EINVAL) };
        }
        birth::context(&TABLE, &CONFIG, real::epoll_create(size))
    }

    /// It gives the new context its parameters.
    fn epoll_create1(flags: c_int) -> c_int {
        if is_engaged() {
            return answer::number(|| lulls::epoll_create(flags));
        }
        birth::context(&TABLE, &CONFIG, real::epoll_create1(flags))
    }

    /// It remembers what is on a context, in a mode that keeps polling.
    fn epoll_ctl(epfd: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if is_lull(epfd) || is_lull_to_wait(fd) {
            // The event may have any alignment. A call that takes a member off may have an invalid pointer.
            let event = (what != libc::EPOLL_CTL_DEL && !event.is_null()).then(|| event.read_unaligned());
            return answer::done(|| lulls::epoll_ctl(epfd, what, fd, event));
        }
        let result = real::epoll_ctl(epfd, what, fd, event);
        if CONFIG.keeps_polling_ms().is_some() && result == 0 {
            let _errno = Errno::keep();
            match what {
                libc::EPOLL_CTL_ADD if linux::is_internet(fd) => TABLE.added(epfd, fd),
                libc::EPOLL_CTL_DEL => TABLE.removed(epfd, fd),
                _ => {}
            }
        }
        result
    }

    /// It is polled for in a mode that keeps polling.
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        if is_lull(epfd) {
            return waited(epfd, events, max, time::of_ms(timeout), None);
        }
        let max = CONFIG.events(max);
        let real = |timeout_ns, mask: Option<&sigset_t>| match mask {
            None => real::epoll_wait(epfd, events, max, time::in_ms(timeout_ns)),
            Some(mask) => real::epoll_pwait(epfd, events, max, time::in_ms(timeout_ns), mask),
        };
        match CONFIG.keeps_polling_ms() {
            None => real::epoll_wait(epfd, events, max, timeout),
            Some(ms) => polled_for(&Call { epfd, events, max, own_mask: None, real }, time::of_ms(timeout), ms),
        }
    }

    /// It is polled for in a mode that keeps polling.
    fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        if is_lull(epfd) {
            return waited(epfd, events, max, time::of_ms(timeout), mask.as_ref());
        }
        let max = CONFIG.events(max);
        let real = |timeout_ns, mask: Option<&sigset_t>| {
            real::epoll_pwait(epfd, events, max, time::in_ms(timeout_ns), pointer(mask))
        };
        match CONFIG.keeps_polling_ms() {
            None => real::epoll_pwait(epfd, events, max, timeout, mask),
            Some(ms) => {
                let call = Call { epfd, events, max, own_mask: mask.as_ref(), real };
                polled_for(&call, time::of_ms(timeout), ms)
            }
        }
    }

    /// It is polled for in a mode that keeps polling.
    fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let asked_ns = asked_ns(timeout);
        if is_lull(epfd) {
            let Some(timeout_ns) = asked_ns else { return answer::refused(libc::EINVAL) };
            return waited(epfd, events, max, timeout_ns, mask.as_ref());
        }
        let max = CONFIG.events(max);
        let real = |timeout_ns: i64, mask: Option<&sigset_t>| {
            let no_end = timeout_ns == time::FOR_EVER_NS;
            let timeout = time::in_timespec(timeout_ns.max(0));
            let timeout = if no_end { core::ptr::null() } else { &raw const timeout };
            real::epoll_pwait2(epfd, events, max, timeout, pointer(mask))
        };
        match (CONFIG.keeps_polling_ms(), asked_ns) {
            (Some(ms), Some(asked_ns)) => {
                polled_for(&Call { epfd, events, max, own_mask: mask.as_ref(), real }, asked_ns, ms)
            }
            // An invalid time is the kernel's to refuse.
            _ => real::epoll_pwait2(epfd, events, max, timeout, mask),
        }
    }
}

/// A wait on a context of a program that has addresses of lull's.
///
/// # Safety
/// As `epoll_wait`.
unsafe fn waited(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ns: i64, mask: Option<&sigset_t>) -> c_int {
    let Ok(room) = usize::try_from(max) else { return answer::refused(libc::EINVAL) };
    if events.is_null() {
        return answer::refused(libc::EFAULT);
    }
    // SAFETY: as above. The memory may never have been written, and an event may have any alignment.
    let events = unsafe { core::slice::from_raw_parts_mut(events.cast::<MaybeUninit<epoll_event>>(), room) };
    let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
    // A call that does not wait lets no signal in: the former mask is back before a handler could run
    // (`restore_saved_sigmask_unless`).
    let mask = mask.filter(|_| timeout_ns != 0);
    answer::count_with_mask(mask, || lulls::epoll_wait(epfd, events, timeout))
}

pub(crate) fn pointer(mask: Option<&sigset_t>) -> *const sigset_t {
    mask.map_or(core::ptr::null(), |mask| mask)
}

/// Waits as `lull-fd` does.
#[inline]
fn polled_for<Real: Fn(i64, Option<&sigset_t>) -> c_int>(call: &Call<'_, Real>, asked_ns: i64, ms: c_int) -> c_int {
    // SAFETY: the program vouches for its events.
    let (found, lifted) = unsafe { calls::polled_for(&TABLE, &CONFIG, call, asked_ns, ms) };
    if lifted {
        birth::say_lifted();
    }
    found
}
