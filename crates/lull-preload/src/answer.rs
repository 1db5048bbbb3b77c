//! The results of `lull-posix`'s calls, in the form that C expects.

use libc::{c_int, sigset_t, ssize_t};
use lull_posix::cancel::at_point;
use lull_posix::signals::{self, section, section_with_mask};
use lull_posix::{Errno, Result};

use crate::set_error;

fn fail(error: Errno) -> c_int {
    set_error(error.number());
    -1
}

/// A call of lull's that returns a number, or -1 and `errno`. The handlers of signals that come meanwhile run before it
/// returns.
#[inline]
pub(crate) fn number(call: impl FnOnce() -> Result<c_int>) -> c_int {
    section(call).unwrap_or_else(fail)
}

/// As [`number`], for a call that returns 0.
#[inline]
pub(crate) fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    section(call).map_or_else(fail, |()| 0)
}

/// As [`number`], for a call that may wait: it is a cancellation point, and may be restarted.
pub(crate) fn number_at_point(call: impl FnMut() -> Result<c_int>) -> c_int {
    at_point(|| signals::call(call)).unwrap_or_else(fail)
}

/// As [`number_at_point`], for a call that returns 0. If it turns out to be the kernel's alone, there is no answer.
pub(crate) fn done_at_point_if_lulls(call: impl FnMut() -> Result<bool>) -> Option<c_int> {
    match at_point(|| signals::call(call)) {
        Ok(is_lulls) => is_lulls.then_some(0),
        Err(error) => Some(fail(error)),
    }
}

/// As [`number_at_point`], for a call that returns a count.
#[inline]
pub(crate) fn count(call: impl FnMut() -> Result<usize>) -> ssize_t {
    told(at_point(|| signals::call(call)))
}

/// The result of a call that returns a count.
#[inline]
pub(crate) fn told(result: Result<usize>) -> ssize_t {
    result.map_or_else(|error| fail(error) as ssize_t, |count| count as ssize_t)
}

/// As [`count`], while the signals of `mask` are blocked.
pub(crate) fn count_with_mask(mask: Option<&sigset_t>, call: impl FnOnce() -> Result<usize>) -> c_int {
    at_point(|| section_with_mask(mask, call)).map_or_else(fail, |count| count as c_int)
}

/// The error that C's callers get for arguments that no Rust function can be given.
pub(crate) fn refused(error: c_int) -> c_int {
    fail(Errno::new(error))
}
