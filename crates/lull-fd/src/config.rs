//! The settings that the environment asks for.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `LULL_EPOLL_USECS` | `busy_poll_usecs` of every epoll context, microseconds, 0 to 2^31-1 |
//! | `LULL_EPOLL_BUDGET` | `busy_poll_budget`, packets, 0 to 65535; above 64 takes CAP_NET_ADMIN |
//! | `LULL_EPOLL_PREFER` | `prefer_busy_poll`, 0 or 1 |
//! | `LULL_EPOLL_TIMEOUT_MS` | the mode keeps polling: the kernel polls this long at a time, milliseconds, 1 to 1000 |
//! | `LULL_NO_LIFT` | 1: calls with timeout 0 are left alone |
//! | `LULL_EVENTS_MAX` | the most events that a call of `epoll_wait` returns, 1 to 2^20 |
//! | `LULL_SOCKET_BUSY_POLL` | SO_BUSY_POLL of every IPv4 and IPv6 socket, microseconds, 1 to 2^31-1 |
//! | `LULL_SOCKET_BUDGET` | SO_BUSY_POLL_BUDGET, packets, 1 to 65535; takes CAP_NET_ADMIN |
//! | `LULL_SOCKET_PREFER` | SO_PREFER_BUSY_POLL, 0 or 1; 1 takes CAP_NET_ADMIN |
//! | `LULL_STEER` | `queue`, `cpu` or a classic BPF program, which chooses among listeners with SO_REUSEPORT |
//! | `LULL_QUIET` | if it is set, nothing is written to stderr |
//!
//! With `LULL_EPOLL_TIMEOUT_MS`, a context whose sockets have NAPI ids is polled for where the kernel does not do it. A
//! longer wait is polled for until 100 ms have passed without an event, and then it sleeps. Calls with timeout 0 that
//! find nothing again and again are polled for in at most a sixteenth of the time. No call takes longer than the
//! program asks for. Without NAPI ids (on loopback, or a veth whose peer has TSO on) there is nothing to poll, and
//! every call is the C library's.
//!
//! Epoll contexts are left alone unless one of the first three is set, and then the others of these are 0. Sockets are
//! left alone unless `LULL_SOCKET_BUSY_POLL` is set. Children inherit the environment, and with it the library. A value
//! outside its limits turns the whole library into a pass-through, and that is reported once.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use libc::c_int;
use lull_core::settings::{BUSY_POLL_BUDGET_MAX, BUSY_POLL_USECS_MAX};

use crate::decimal::decimal;
use crate::linux::Socket;
use crate::steer::Steering;

/// The longest time for which the kernel may poll at once, in milliseconds. It is bounded because signals wait for it.
const TIMEOUT_MS_MAX: u64 = 1_000;
/// The most events that a call may be limited to.
const EVENTS_MAX: u64 = 1 << 20;
/// This bit of `epoll` says that parameters are to be set.
const EPOLL_ON: u64 = 1 << 63;

/// The settings that the environment asks for; none at first.
#[derive(Debug, Default)]
pub struct Config {
    /// Parameters of epoll contexts in one word: the usecs, the budget from bit 32 on, prefer from bit 48 on, and
    /// [`EPOLL_ON`]. With 0, contexts are left alone.
    epoll: AtomicU64,
    /// How long the kernel polls at a time in a mode that keeps polling, in milliseconds; 0 if the mode does not keep
    /// polling.
    timeout_ms: AtomicI32,
    /// Whether calls with timeout 0 are left alone.
    zero_stays: AtomicBool,
    /// The most events that a call returns; 0 for as many as the program asks for.
    events_max: AtomicI32,
    /// SO_BUSY_POLL in microseconds; with 0, sockets are left alone.
    socket_usecs: AtomicI32,
    socket_budget: AtomicI32,
    socket_prefer: AtomicBool,
    /// The choice among listeners that share an address.
    steering: Steering,
}

/// A variable with a value that it may not have.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The variable.
    pub name: &'static CStr,
    /// The values that it may have.
    pub may_be: MayBe,
}

/// The values that a variable may have.
#[derive(Debug, PartialEq, Eq)]
pub enum MayBe {
    /// A number.
    Number {
        /// The least allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// `queue`, `cpu` or a program.
    Steer,
}

impl fmt::Display for MayBe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MayBe::Number { min, max } => write!(f, "a number from {min} to {max}"),
            MayBe::Steer => f.write_str("'queue', 'cpu' or a program as tcpdump -ddd prints it"),
        }
    }
}

impl Config {
    /// The settings of an environment that asks for nothing.
    pub const fn new() -> Config {
        Config {
            epoll: AtomicU64::new(0),
            timeout_ms: AtomicI32::new(0),
            zero_stays: AtomicBool::new(false),
            events_max: AtomicI32::new(0),
            socket_usecs: AtomicI32::new(0),
            socket_budget: AtomicI32::new(0),
            socket_prefer: AtomicBool::new(false),
            steering: Steering::new(),
        }
    }

    /// Reads the variables. If one of them is wrong, nothing is set.
    ///
    /// # Errors
    /// The first variable that is wrong.
    pub fn read<'a>(&self, variable: impl Fn(&'static CStr) -> Option<&'a [u8]>) -> Result<(), Wrong> {
        let number = |name, min, max| match variable(name) {
            None => Ok(None),
            Some(digits) => decimal(digits)
                .filter(|n| (min..=max).contains(n))
                .map(Some)
                .ok_or(Wrong { name, may_be: MayBe::Number { min, max } }),
        };
        // The limits make every cast below exact.
        let usecs = number(c"LULL_EPOLL_USECS", 0, BUSY_POLL_USECS_MAX)?;
        let budget = number(c"LULL_EPOLL_BUDGET", 0, BUSY_POLL_BUDGET_MAX)?;
        let prefer = number(c"LULL_EPOLL_PREFER", 0, 1)?;
        let timeout_ms = number(c"LULL_EPOLL_TIMEOUT_MS", 1, TIMEOUT_MS_MAX)?;
        let zero_stays = number(c"LULL_NO_LIFT", 0, 1)?;
        let events_max = number(c"LULL_EVENTS_MAX", 1, EVENTS_MAX)?;
        let socket_usecs = number(c"LULL_SOCKET_BUSY_POLL", 1, BUSY_POLL_USECS_MAX)?;
        let socket_budget = number(c"LULL_SOCKET_BUDGET", 1, BUSY_POLL_BUDGET_MAX)?;
        let socket_prefer = number(c"LULL_SOCKET_PREFER", 0, 1)?;
        if let Some(steer) = variable(c"LULL_STEER") {
            self.steering.read(steer).ok_or(Wrong { name: c"LULL_STEER", may_be: MayBe::Steer })?;
        }

        if usecs.is_some() || budget.is_some() || prefer.is_some() {
            let word = usecs.unwrap_or(0) | budget.unwrap_or(0) << 32 | prefer.unwrap_or(0) << 48;
            self.epoll.store(word | EPOLL_ON, Relaxed);
        }
        self.timeout_ms.store(timeout_ms.unwrap_or(0) as i32, Relaxed);
        self.zero_stays.store(zero_stays == Some(1), Relaxed);
        self.events_max.store(events_max.unwrap_or(0) as i32, Relaxed);
        self.socket_budget.store(socket_budget.unwrap_or(0) as i32, Relaxed);
        self.socket_prefer.store(socket_prefer == Some(1), Relaxed);
        self.socket_usecs.store(socket_usecs.unwrap_or(0) as i32, Relaxed);
        Ok(())
    }

    /// The parameters of epoll contexts, if they get any.
    pub fn epoll(&self) -> Option<libc::epoll_params> {
        let word = self.epoll.load(Relaxed);
        (word & EPOLL_ON != 0).then_some(libc::epoll_params {
            busy_poll_usecs: word as u32,
            busy_poll_budget: (word >> 32) as u16,
            prefer_busy_poll: (word >> 48) as u8 & 1,
            __pad: 0,
        })
    }

    /// From now on epoll contexts are left alone, and nothing is polled for.
    pub fn epoll_off(&self) {
        self.epoll.store(0, Relaxed);
        self.timeout_ms.store(0, Relaxed);
    }

    /// How long the kernel polls at a time, in milliseconds, if the mode keeps polling.
    #[inline]
    pub fn keeps_polling_ms(&self) -> Option<c_int> {
        Some(self.timeout_ms.load(Relaxed)).filter(|&ms| ms != 0)
    }

    /// Whether queues are polled for calls with timeout 0, in a mode that keeps polling.
    #[inline]
    pub fn lifts_zero(&self) -> bool {
        !self.zero_stays.load(Relaxed)
    }

    /// How many events a call may return that asks for `asked`. A number that no call may ask for is left to the kernel
    /// to refuse.
    #[inline]
    pub fn events(&self, asked: c_int) -> c_int {
        match self.events_max.load(Relaxed) {
            0 => asked,
            most => asked.min(most),
        }
    }

    /// The options of sockets, if they get any.
    pub fn socket(&self) -> Option<Socket> {
        let usecs = self.socket_usecs.load(Relaxed);
        let (budget, prefer) = (self.socket_budget.load(Relaxed), self.socket_prefer.load(Relaxed));
        (usecs != 0).then_some(Socket { usecs, budget, prefer })
    }

    /// The choice among listeners that share an address.
    #[inline]
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// From now on sockets are left alone.
    pub fn socket_off(&self) {
        self.socket_usecs.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&CStr, &'static str)]) -> Result<Config, Wrong> {
        let config = Config::new();
        config.read(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_bytes()))?;
        Ok(config)
    }

    fn epoll(config: &Config) -> Option<(u32, u16, u8)> {
        config.epoll().map(|it| (it.busy_poll_usecs, it.busy_poll_budget, it.prefer_busy_poll))
    }

    #[test]
    fn nothing_set_leaves_everything_alone() {
        let config = with(&[]).unwrap();
        assert_eq!((epoll(&config), config.keeps_polling_ms(), config.socket()), (None, None, None));
        assert_eq!(config.events(10_128), 10_128);
    }

    #[test]
    fn one_epoll_variable_is_enough_and_the_others_are_zero() {
        assert_eq!(epoll(&with(&[(c"LULL_EPOLL_PREFER", "1")]).unwrap()), Some((0, 0, 1)));
        assert_eq!(epoll(&with(&[(c"LULL_EPOLL_USECS", "0")]).unwrap()), Some((0, 0, 0)));
        let all =
            with(&[(c"LULL_EPOLL_USECS", "2147483647"), (c"LULL_EPOLL_BUDGET", "65535"), (c"LULL_EPOLL_PREFER", "0")]);
        assert_eq!(epoll(&all.unwrap()), Some((2_147_483_647, 65_535, 0)));
    }

    #[test]
    fn values_outside_the_limits_are_refused_by_name() {
        for value in ["", " 1", "-1", "1x", "2147483648", "99999999999", "0x10"] {
            assert_eq!(with(&[(c"LULL_EPOLL_USECS", value)]).unwrap_err().name, c"LULL_EPOLL_USECS", "{value}");
        }
        let limits = |name, value| match with(&[(name, value)]).unwrap_err().may_be {
            MayBe::Number { min, max } => (min, max),
            MayBe::Steer => unreachable!("it is a number"),
        };
        assert_eq!(limits(c"LULL_EPOLL_BUDGET", "65536").1, 65_535);
        assert_eq!(limits(c"LULL_EPOLL_PREFER", "2").1, 1);
        assert_eq!(limits(c"LULL_EPOLL_TIMEOUT_MS", "0").0, 1);
        assert_eq!(limits(c"LULL_EVENTS_MAX", "0").0, 1);
        assert_eq!(limits(c"LULL_NO_LIFT", "2").1, 1);
        assert_eq!(limits(c"LULL_SOCKET_BUSY_POLL", "0").0, 1);
        assert_eq!(with(&[(c"LULL_STEER", "rfs")]).unwrap_err().may_be, MayBe::Steer);
        assert!(with(&[(c"LULL_STEER", "queue")]).unwrap().steering().is_on());
    }

    #[test]
    fn one_wrong_value_leaves_everything_alone() {
        let config = Config::new();
        let wrong = |name: &CStr| Some(if name == c"LULL_SOCKET_PREFER" { &b"x"[..] } else { &b"1"[..] });
        assert!(config.read(wrong).is_err());
        assert_eq!((epoll(&config), config.keeps_polling_ms(), config.socket()), (None, None, None));
    }

    #[test]
    fn a_limit_of_events_makes_a_call_return_fewer_and_never_more() {
        let config = with(&[(c"LULL_EVENTS_MAX", "64")]).unwrap();
        assert_eq!([10_128, 64, 1, 0, -1].map(|asked| config.events(asked)), [64, 64, 1, 0, -1]);
    }

    #[test]
    fn what_the_kernel_refuses_is_not_polled_for_either() {
        let config = with(&[(c"LULL_EPOLL_PREFER", "1"), (c"LULL_EPOLL_TIMEOUT_MS", "1")]).unwrap();
        assert_eq!(config.keeps_polling_ms(), Some(1));
        config.epoll_off();
        assert_eq!((epoll(&config), config.keeps_polling_ms()), (None, None));
    }
}
