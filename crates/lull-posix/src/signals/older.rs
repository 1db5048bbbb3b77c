//! The older calls that install handlers, each by [`sigaction`] with flags of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, sighandler_t};

use super::{ASKED, Action, Install, SIGNALS, set_mask, sigaction};
use crate::Result;

/// The flags of System V's `signal`: the handler runs once, is not kept from itself, and ends calls.
pub const SYSTEM_V: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;
/// In the place of a handler: the signal is blocked (`<signal.h>`).
const SIG_HOLD: sighandler_t = 2;

/// Signals whose handlers end calls, as `siginterrupt` has it; a bit for each.
static ENDING: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    if (1..=SIGNALS as c_int).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// The flags of BSD's `signal`: calls are made again, unless `siginterrupt` has said otherwise.
pub fn bsds(signal: c_int) -> c_int {
    if ENDING.load(Ordering::Relaxed) & bit(signal) == 0 { libc::SA_RESTART } else { 0 }
}

/// `siginterrupt`, which the C library is told of as well.
pub fn interrupts(signal: c_int, ends_calls: bool) {
    let Some(asked) = ASKED.get(signal as usize).filter(|_| bit(signal) != 0) else { return };
    if ends_calls {
        ENDING.fetch_or(bit(signal), Ordering::Relaxed);
        asked.flags.fetch_and(!libc::SA_RESTART, Ordering::Relaxed);
    } else {
        ENDING.fetch_and(!bit(signal), Ordering::Relaxed);
        asked.flags.fetch_or(libc::SA_RESTART, Ordering::Relaxed);
    }
}

/// `signal` with these flags. Returns the handler before.
pub fn signal(signal: c_int, handler: sighandler_t, flags: c_int, real: Install) -> Result<sighandler_t> {
    // SAFETY: plain data, for which zeroes are a value: an empty set among them.
    let mut asked: Action = unsafe { std::mem::zeroed() };
    (asked.sa_sigaction, asked.sa_flags) = (handler, flags);
    if flags & libc::SA_NODEFER == 0 {
        // SAFETY: it is a set. What is no signal is refused by `real`.
        unsafe { libc::sigaddset(&raw mut asked.sa_mask, signal) };
    }
    sigaction(signal, Some(&asked), real).map(|before| before.sa_sigaction)
}

/// `sigset`: the signal is blocked, or has a handler and is not.
pub fn set(number: c_int, handler: sighandler_t, real: Install) -> Result<sighandler_t> {
    let (before, how) = match handler {
        SIG_HOLD => (sigaction(number, None, real)?.sa_sigaction, libc::SIG_BLOCK),
        handler => (signal(number, handler, 0, real)?, libc::SIG_UNBLOCK),
    };
    let was_blocked = set_mask(how, bit(number)) & bit(number) != 0;
    Ok(if was_blocked { SIG_HOLD } else { before })
}
