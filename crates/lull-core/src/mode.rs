//! Delivery modes: named sets of settings, with the names of the published test cases.

use std::fmt;
use std::str::FromStr;

use crate::epoll::EpollParams;
use crate::settings::{NapiSettings, Threaded};

/// What a mode asks of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppPolicy {
    /// Waits in `epoll_wait` without a timeout.
    Blocking,
    /// Waits at most this many milliseconds at a time, so that `epoll_wait` is never left (fullbusy).
    TimeoutMs(u32),
}

/// A named set of delivery settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    name: String,
    /// Settings of every NAPI.
    pub napi: NapiSettings,
    /// Parameters of every epoll context.
    pub epoll: EpollParams,
    /// SO_BUSY_POLL of every socket, in microseconds.
    pub socket_busy_poll_usecs: u32,
    /// Interrupt coalescing that the mode asks of the NIC, in microseconds (`ethtool -C rx-usecs`); `None` leaves it as it is.
    /// It is the device's and not the NAPI's: whoever puts a mode in force applies it, or refuses the mode.
    pub rx_usecs: Option<u32>,
    /// What the application does.
    pub app: AppPolicy,
}

/// The twelve cases of the IRQ suspension series (net-next v6), in its order.
pub const PUBLISHED: [&str; 12] = [
    "base",
    "defer10",
    "defer20",
    "defer50",
    "defer200",
    "fullbusy",
    "napibusy",
    "suspend0",
    "suspend10",
    "suspend20",
    "suspend50",
    "suspend200",
];

/// `defer_hard_irqs` of the published cases.
const DEFER_HARD_IRQS: u32 = 100;
/// `irq_suspend_timeout` of the published cases: 20 ms.
const IRQ_SUSPEND_TIMEOUT_NS: u64 = 20_000_000;
/// The longest X of `deferX` and `suspendX`, in microseconds: an hour.
const TIMEOUT_US_MAX: u64 = 3_600_000_000;

impl Mode {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the mode suspends interrupts while the application works.
    pub fn suspends(&self) -> bool {
        self.napi.irq_suspend_timeout_ns != 0 && self.epoll.prefer_busy_poll
    }

    /// Whether the mode leans on a short timer, and which, in nanoseconds.
    pub fn deferral_ns(&self) -> Option<u64> {
        (self.napi.defer_hard_irqs != 0 && self.napi.gro_flush_timeout_ns != 0)
            .then_some(self.napi.gro_flush_timeout_ns)
    }

    fn plain(name: &str) -> Mode {
        Mode {
            name: name.to_owned(),
            napi: NapiSettings::default(),
            epoll: EpollParams::default(),
            socket_busy_poll_usecs: 0,
            rx_usecs: None,
            app: AppPolicy::Blocking,
        }
    }

    fn deferred(name: &str, timeout_us: u64) -> Mode {
        let mut mode = Mode::plain(name);
        mode.napi.defer_hard_irqs = DEFER_HARD_IRQS;
        mode.napi.gro_flush_timeout_ns = timeout_us * 1_000;
        mode
    }

    fn preferring(mut self, usecs: u32) -> Mode {
        self.epoll = EpollParams { busy_poll_usecs: usecs, busy_poll_budget: 64, prefer_busy_poll: true };
        self
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(name: &str) -> Result<Mode, ModeError> {
        let timeout_us = |digits: &str| match digits.parse::<u64>() {
            Ok(us) if us <= TIMEOUT_US_MAX && (us == 0 || !digits.starts_with('0')) => Ok(us),
            _ => Err(ModeError { name: name.to_owned() }),
        };
        let mode = match name {
            "base" => Mode::plain(name),
            "napibusy" => Mode::deferred(name, 200).preferring(64),
            "fullbusy" => {
                let mut mode = Mode::deferred(name, 5_000).preferring(1_000);
                mode.app = AppPolicy::TimeoutMs(1);
                mode
            }
            "threaded" | "threaded-busy" => {
                let mut mode = Mode::plain(name);
                mode.napi.threaded = if name == "threaded" { Threaded::On } else { Threaded::BusyPoll };
                mode
            }
            "busyread" => {
                let mut mode = Mode::deferred(name, 15);
                mode.socket_busy_poll_usecs = 400;
                mode
            }
            "longgro" => Mode::deferred(name, 20_000).preferring(0),
            "suspend0" => {
                let mut mode = Mode::plain(name).preferring(0);
                mode.napi.irq_suspend_timeout_ns = IRQ_SUSPEND_TIMEOUT_NS;
                mode
            }
            _ => {
                if let Some(digits) = name.strip_prefix("coalesce-") {
                    // The counter-design of the series' FAQ: the NIC's coalescing as the short timeout. Without deferral the
                    // interrupt is unmasked after every poll, so suspension cannot engage.
                    let us = timeout_us(digits)?;
                    let mut mode = Mode::plain(name).preferring(0);
                    mode.napi.irq_suspend_timeout_ns = IRQ_SUSPEND_TIMEOUT_NS;
                    mode.rx_usecs = Some(us.try_into().map_err(|_| ModeError { name: name.to_owned() })?);
                    mode
                } else if let Some(digits) = name.strip_prefix("defer") {
                    match timeout_us(digits)? {
                        0 => return Err(ModeError { name: name.to_owned() }),
                        us => Mode::deferred(name, us),
                    }
                } else if let Some(digits) = name.strip_prefix("suspend") {
                    let mut mode = Mode::deferred(name, timeout_us(digits)?).preferring(0);
                    mode.napi.irq_suspend_timeout_ns = IRQ_SUSPEND_TIMEOUT_NS;
                    mode
                } else {
                    return Err(ModeError { name: name.to_owned() });
                }
            }
        };
        Ok(mode)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A name that is no mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeError {
    name: String,
}

impl fmt::Display for ModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no delivery mode is named '{}': use base, deferX, napibusy, fullbusy, suspend0, suspendX, threaded, \
             threaded-busy, busyread, coalesce-X or longgro (X in microseconds, as in defer20)",
            self.name
        )
    }
}

impl std::error::Error for ModeError {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_published_cases_have_the_published_settings() {
        let row = |name: &str| {
            let mode: Mode = name.parse().unwrap();
            let (napi, epoll) = (mode.napi, mode.epoll);
            (
                napi.defer_hard_irqs,
                napi.gro_flush_timeout_ns / 1_000,
                napi.irq_suspend_timeout_ns / 1_000_000,
                epoll.busy_poll_usecs,
                epoll.busy_poll_budget,
                epoll.prefer_busy_poll,
            )
        };
        assert_eq!(row("base"), (0, 0, 0, 0, 0, false));
        assert_eq!(row("defer10"), (100, 10, 0, 0, 0, false));
        assert_eq!(row("napibusy"), (100, 200, 0, 64, 64, true));
        assert_eq!(row("fullbusy"), (100, 5_000, 0, 1_000, 64, true));
        assert_eq!(row("suspend0"), (0, 0, 20, 0, 64, true));
        assert_eq!(row("suspend20"), (100, 20, 20, 0, 64, true));
        for name in PUBLISHED {
            let mode: Mode = name.parse().unwrap();
            assert_eq!(mode.name(), name);
            assert_eq!(mode.suspends(), name.starts_with("suspend"));
        }
    }

    #[test]
    fn the_counter_designs_have_the_settings_of_the_faq() {
        let coalesce: Mode = "coalesce-20".parse().unwrap();
        assert_eq!((coalesce.rx_usecs, coalesce.deferral_ns()), (Some(20), None));
        assert!(coalesce.suspends() && coalesce.epoll.prefer_busy_poll);
        let longgro: Mode = "longgro".parse().unwrap();
        assert_eq!((longgro.deferral_ns(), longgro.suspends()), (Some(20_000_000), false));
        assert!("coalesce-".parse::<Mode>().is_err() && "coalesce-4294967296".parse::<Mode>().is_err());
    }

    #[test]
    fn unknown_names_are_refused_with_the_names_that_exist() {
        for bad in ["", "defer", "defer0", "defer-1", "defer05", "suspendx", "deferr20", "defer99999999999", "group"] {
            let error = bad.parse::<Mode>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("suspendX"), "{error}");
        }
    }
}
