//! What the environment asks for, read once at load. The variables are described at the top of the library.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use lull_core::settings::{BUSY_POLL_BUDGET_MAX, BUSY_POLL_USECS_MAX};

use crate::say;

/// Longest time that no time may be lifted to, in milliseconds: beyond it a program's other work starves.
const TIMEOUT_MS_MAX: u64 = 1_000;
/// In [`EPOLL`]: parameters are to be set.
const EPOLL_ON: u64 = 1 << 63;

/// Parameters of epoll contexts in one word: usecs, budget above 32 bits, prefer above 48, [`EPOLL_ON`]; 0: leave
/// alone.
static EPOLL: AtomicU64 = AtomicU64::new(0);
/// How long is waited at a time, in milliseconds; 0: as long as the program asks for.
static TIMEOUT_MS: AtomicI32 = AtomicI32::new(0);
/// SO_BUSY_POLL in microseconds; 0: sockets are left alone.
static SOCKET_USECS: AtomicI32 = AtomicI32::new(0);
static SOCKET_BUDGET: AtomicI32 = AtomicI32::new(0);
static SOCKET_PREFER: AtomicBool = AtomicBool::new(false);

/// What sockets get.
pub(crate) struct Socket {
    /// SO_BUSY_POLL, microseconds.
    pub(crate) usecs: i32,
    /// SO_BUSY_POLL_BUDGET, packets; 0: not set.
    pub(crate) budget: i32,
    /// SO_PREFER_BUSY_POLL.
    pub(crate) prefer: bool,
}

/// What epoll contexts get, if anything.
pub(crate) fn epoll() -> Option<libc::epoll_params> {
    let word = EPOLL.load(Relaxed);
    (word & EPOLL_ON != 0).then_some(libc::epoll_params {
        busy_poll_usecs: word as u32,
        busy_poll_budget: (word >> 32) as u16,
        prefer_busy_poll: (word >> 48) as u8 & 1,
        __pad: 0,
    })
}

/// Epoll contexts are left alone from now on.
pub(crate) fn epoll_off() {
    EPOLL.store(0, Relaxed);
}

/// How long is waited at a time, in milliseconds; 0: as long as the program asks for.
pub(crate) fn timeout_ms() -> i32 {
    TIMEOUT_MS.load(Relaxed)
}

/// What sockets get, if anything.
pub(crate) fn socket() -> Option<Socket> {
    let usecs = SOCKET_USECS.load(Relaxed);
    (usecs != 0).then(|| Socket { usecs, budget: SOCKET_BUDGET.load(Relaxed), prefer: SOCKET_PREFER.load(Relaxed) })
}

/// Sockets are left alone from now on.
pub(crate) fn socket_off() {
    SOCKET_USECS.store(0, Relaxed);
}

/// Reads the environment.
pub(crate) fn read() {
    if variable(c"LULL_QUIET").is_some() {
        say::quiet();
    }
    match parse(variable) {
        Ok(wanted) => {
            if let Some(word) = wanted.epoll {
                EPOLL.store(word | EPOLL_ON, Relaxed);
            }
            TIMEOUT_MS.store(wanted.timeout_ms, Relaxed);
            SOCKET_BUDGET.store(wanted.socket_budget, Relaxed);
            SOCKET_PREFER.store(wanted.socket_prefer, Relaxed);
            SOCKET_USECS.store(wanted.socket_usecs, Relaxed);
        }
        Err(Wrong { name, min, max }) => say::once(format_args!(
            "{} is not a number from {min} to {max}: nothing is set, the program runs as without lull",
            name.to_str().unwrap_or_default()
        )),
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    epoll: Option<u64>,
    timeout_ms: i32,
    socket_usecs: i32,
    socket_budget: i32,
    socket_prefer: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    name: &'static CStr,
    min: u64,
    max: u64,
}

fn parse<'a>(variable: impl Fn(&'static CStr) -> Option<&'a [u8]>) -> Result<Wanted, Wrong> {
    let number = |name, min, max| match variable(name) {
        None => Ok(None),
        Some(digits) => decimal(digits).filter(|n| (min..=max).contains(n)).map(Some).ok_or(Wrong { name, min, max }),
    };
    // The limits make every cast below exact.
    let usecs = number(c"LULL_EPOLL_USECS", 0, BUSY_POLL_USECS_MAX)?;
    let budget = number(c"LULL_EPOLL_BUDGET", 0, BUSY_POLL_BUDGET_MAX)?;
    let prefer = number(c"LULL_EPOLL_PREFER", 0, 1)?;
    let asked = usecs.is_some() || budget.is_some() || prefer.is_some();
    Ok(Wanted {
        epoll: asked.then(|| usecs.unwrap_or(0) | budget.unwrap_or(0) << 32 | prefer.unwrap_or(0) << 48),
        timeout_ms: number(c"LULL_EPOLL_TIMEOUT_MS", 1, TIMEOUT_MS_MAX)?.unwrap_or(0) as i32,
        socket_usecs: number(c"LULL_SOCKET_BUSY_POLL", 1, BUSY_POLL_USECS_MAX)?.unwrap_or(0) as i32,
        socket_budget: number(c"LULL_SOCKET_BUDGET", 1, BUSY_POLL_BUDGET_MAX)?.unwrap_or(0) as i32,
        socket_prefer: number(c"LULL_SOCKET_PREFER", 0, 1)? == Some(1),
    })
}

/// A decimal number of at most ten digits and nothing else.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 10 {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        digit.is_ascii_digit().then(|| number.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0'))))
    })
}

fn variable(name: &'static CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with a zero. At load no other thread changes the environment, and what `getenv` returned is
    // read before this library's initialiser returns.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static CStr, &'static str)]) -> Result<Wanted, Wrong> {
        parse(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_bytes()))
    }

    #[test]
    fn nothing_set_leaves_everything_alone() {
        assert_eq!(with(&[]), Ok(Wanted::default()));
    }

    #[test]
    fn one_epoll_variable_is_enough_and_the_others_are_zero() {
        assert_eq!(with(&[(c"LULL_EPOLL_PREFER", "1")]).unwrap().epoll, Some(1 << 48));
        assert_eq!(with(&[(c"LULL_EPOLL_USECS", "0")]).unwrap().epoll, Some(0));
        let all =
            with(&[(c"LULL_EPOLL_USECS", "2147483647"), (c"LULL_EPOLL_BUDGET", "65535"), (c"LULL_EPOLL_PREFER", "0")]);
        assert_eq!(all.unwrap().epoll, Some(0xffff_7fff_ffff));
    }

    #[test]
    fn values_outside_the_limits_are_refused_by_name() {
        let epoll = |value| with(Box::leak(Box::new([(c"LULL_EPOLL_USECS", value)])));
        for value in ["", " 1", "-1", "1x", "2147483648", "99999999999", "0x10"] {
            assert_eq!(epoll(value).unwrap_err().name, c"LULL_EPOLL_USECS", "{value}");
        }
        assert_eq!(with(&[(c"LULL_EPOLL_BUDGET", "65536")]).unwrap_err().max, 65_535);
        assert_eq!(with(&[(c"LULL_EPOLL_PREFER", "2")]).unwrap_err().max, 1);
        assert_eq!(with(&[(c"LULL_EPOLL_TIMEOUT_MS", "0")]).unwrap_err().min, 1);
        assert_eq!(with(&[(c"LULL_SOCKET_BUSY_POLL", "0")]).unwrap_err().min, 1);
    }
}
