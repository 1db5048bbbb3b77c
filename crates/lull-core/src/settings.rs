//! Settings with the kernel's defaults and limits. Each refusal names the setting, the value and the limit.

use std::fmt;
// Settings are read and written relaxed by anybody; nothing synchronises on them, so loom need not explore them.
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Highest `defer_hard_irqs` (`netdev-genl.c`: range check to S32_MAX).
pub const DEFER_HARD_IRQS_MAX: u64 = i32::MAX as u64;
/// Highest epoll `busy_poll_usecs` (`eventpoll.c`: S32_MAX).
pub const BUSY_POLL_USECS_MAX: u64 = i32::MAX as u64;
/// Epoll `busy_poll_budget` above this needs CAP_NET_ADMIN (`NAPI_POLL_WEIGHT`).
pub const BUSY_POLL_BUDGET_UNPRIVILEGED_MAX: u64 = 64;
/// Highest SO_BUSY_POLL_BUDGET and epoll budget (16 bits).
pub const BUSY_POLL_BUDGET_MAX: u64 = u16::MAX as u64;
/// Packets a busy poll takes where no budget was set (`BUSY_POLL_BUDGET`).
pub const BUSY_POLL_BUDGET_DEFAULT: u32 = 8;
/// Packets one instance may take per turn (`NAPI_POLL_WEIGHT`).
pub const WEIGHT_DEFAULT: u32 = 64;
/// Packets one softirq run may take (`net.core.netdev_budget`).
pub const NETDEV_BUDGET_DEFAULT: u32 = 300;
/// Time one softirq run may take, in microseconds: two jiffies at HZ=1000 (`net.core.netdev_budget_usecs`).
pub const NETDEV_BUDGET_USECS_DEFAULT: u32 = 2_000;
/// Passes of `handle_softirqs` before ksoftirqd takes over (`MAX_SOFTIRQ_RESTART`).
pub const SOFTIRQ_RESTARTS_MAX: u32 = 10;
/// Time after which `handle_softirqs` hands over to ksoftirqd (`MAX_SOFTIRQ_TIME`), in nanoseconds.
pub const SOFTIRQ_TIME_MAX_NS: u64 = 2_000_000;

/// Who polls when the instance is scheduled (netlink `threaded`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Threaded {
    /// Softirq.
    #[default]
    Off,
    /// Its own thread.
    On,
    /// Its own thread, for ever, with the interrupt masked (Linux 6.19).
    BusyPoll,
}

/// What follows a deferral that ran out before a busy poller came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Unpolled {
    /// As Linux (§4): the next deferral, in which each packet may wait for `gro_flush_timeout`.
    #[default]
    Deferral,
    /// The interrupt, and no deferral, until somebody busy polls the instance again. This is for modes with a long
    /// `gro_flush_timeout` that rely on an application that polls all the time: where nobody polls (the application
    /// sleeps, it waits in `recv`, or another process answers), each packet would wait for the timer.
    Interrupt,
}

/// Settings of one instance (netlink `napi-set`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct NapiSettings {
    /// Empty polls for which the interrupt stays masked.
    pub defer_hard_irqs: u32,
    /// Nanoseconds between those polls. There is no upper bound.
    pub gro_flush_timeout_ns: u64,
    /// Nanoseconds for which an application that prefers busy polling may keep the interrupt masked. No upper bound.
    pub irq_suspend_timeout_ns: u64,
    /// Who polls.
    pub threaded: Threaded,
    /// What follows a deferral in which nobody busy polled. Linux has no such setting.
    pub unpolled: Unpolled,
}

impl NapiSettings {
    /// Checks the limits.
    ///
    /// # Errors
    /// The setting that exceeds its limit (the kernel's ERANGE).
    pub fn check(&self) -> Result<(), SettingError> {
        limit("defer_hard_irqs", u64::from(self.defer_hard_irqs), DEFER_HARD_IRQS_MAX, Errno::Range)
    }
}

/// The settings of an instance as they are in force: each is read by itself, at the decision that it bears on.
#[derive(Debug, Default)]
pub(crate) struct LiveSettings {
    defer_hard_irqs: AtomicU32,
    gro_flush_timeout_ns: AtomicU64,
    irq_suspend_timeout_ns: AtomicU64,
    threaded: AtomicU8,
    unpolled: AtomicU8,
}

impl LiveSettings {
    #[inline]
    pub(crate) fn defer_hard_irqs(&self) -> u32 {
        self.defer_hard_irqs.load(Relaxed)
    }

    #[inline]
    pub(crate) fn gro_flush_timeout_ns(&self) -> u64 {
        self.gro_flush_timeout_ns.load(Relaxed)
    }

    #[inline]
    pub(crate) fn irq_suspend_timeout_ns(&self) -> u64 {
        self.irq_suspend_timeout_ns.load(Relaxed)
    }

    pub(crate) fn unpolled(&self) -> Unpolled {
        match self.unpolled.load(Relaxed) {
            0 => Unpolled::Deferral,
            _ => Unpolled::Interrupt,
        }
    }

    pub(crate) fn get(&self) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs(),
            gro_flush_timeout_ns: self.gro_flush_timeout_ns(),
            irq_suspend_timeout_ns: self.irq_suspend_timeout_ns(),
            threaded: match self.threaded.load(Relaxed) {
                0 => Threaded::Off,
                1 => Threaded::On,
                _ => Threaded::BusyPoll,
            },
            unpolled: self.unpolled(),
        }
    }

    pub(crate) fn set(&self, settings: &NapiSettings) {
        self.defer_hard_irqs.store(settings.defer_hard_irqs, Relaxed);
        self.gro_flush_timeout_ns.store(settings.gro_flush_timeout_ns, Relaxed);
        self.irq_suspend_timeout_ns.store(settings.irq_suspend_timeout_ns, Relaxed);
        let threaded = match settings.threaded {
            Threaded::Off => 0,
            Threaded::On => 1,
            Threaded::BusyPoll => 2,
        };
        self.threaded.store(threaded, Relaxed);
        self.unpolled.store(u8::from(settings.unpolled == Unpolled::Interrupt), Relaxed);
    }
}

/// System-wide settings (sysctl `net.core`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// `busy_poll`: microseconds that epoll, poll and select busy poll; 0 is off.
    pub busy_poll_usecs: u32,
    /// `busy_read`: default of SO_BUSY_POLL for new sockets, in microseconds; 0 is off.
    pub busy_read_usecs: u32,
    /// `netdev_budget`: packets per softirq run.
    pub netdev_budget: u32,
    /// `netdev_budget_usecs`: microseconds per softirq run.
    pub netdev_budget_usecs: u32,
}

impl Default for Sysctl {
    fn default() -> Sysctl {
        Sysctl {
            busy_poll_usecs: 0,
            busy_read_usecs: 0,
            netdev_budget: NETDEV_BUDGET_DEFAULT,
            netdev_budget_usecs: NETDEV_BUDGET_USECS_DEFAULT,
        }
    }
}

impl Sysctl {
    /// Checks the limits (`dev_weight` and budgets are positive; times fit a signed int).
    ///
    /// # Errors
    /// The setting outside its limits.
    pub fn check(&self) -> Result<(), SettingError> {
        limit("net.core.busy_poll", u64::from(self.busy_poll_usecs), BUSY_POLL_USECS_MAX, Errno::Invalid)?;
        limit("net.core.busy_read", u64::from(self.busy_read_usecs), BUSY_POLL_USECS_MAX, Errno::Invalid)?;
        limit("net.core.netdev_budget", u64::from(self.netdev_budget), i32::MAX as u64, Errno::Invalid)?;
        if u64::from(self.netdev_budget_usecs) < 2_000 {
            return Err(SettingError {
                setting: "net.core.netdev_budget_usecs",
                value: u64::from(self.netdev_budget_usecs),
                limit: Limit::AtLeast(2_000),
                errno: Errno::Invalid,
            });
        }
        limit("net.core.netdev_budget_usecs", u64::from(self.netdev_budget_usecs), i32::MAX as u64, Errno::Invalid)
    }
}

/// The kernel's errno for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// EINVAL.
    Invalid,
    /// ERANGE.
    Range,
    /// EPERM.
    Permission,
}

/// The limit that a value broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The highest value.
    AtMost(u64),
    /// The lowest value.
    AtLeast(u64),
    /// The highest value without CAP_NET_ADMIN.
    AtMostUnprivileged(u64),
}

/// A refused setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// Its name.
    pub setting: &'static str,
    /// The value that was asked for.
    pub value: u64,
    /// The limit.
    pub limit: Limit,
    /// What the kernel answers.
    pub errno: Errno,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (setting, value) = (self.setting, self.value);
        match self.limit {
            Limit::AtMost(max) => write!(f, "cannot set {setting} to {value}: it is at most {max}"),
            Limit::AtLeast(min) => write!(f, "cannot set {setting} to {value}: it is at least {min}"),
            Limit::AtMostUnprivileged(max) => {
                write!(f, "cannot set {setting} to {value}: above {max} it needs CAP_NET_ADMIN")
            }
        }
    }
}

impl std::error::Error for SettingError {}

/// So that `?` works where calls of sockets and settings stand together.
impl From<SettingError> for std::io::Error {
    fn from(error: SettingError) -> std::io::Error {
        let kind = match error.errno {
            Errno::Permission => std::io::ErrorKind::PermissionDenied,
            Errno::Invalid | Errno::Range => std::io::ErrorKind::InvalidInput,
        };
        std::io::Error::new(kind, error)
    }
}

pub(crate) fn limit(setting: &'static str, value: u64, max: u64, errno: Errno) -> Result<(), SettingError> {
    if value > max {
        return Err(SettingError { setting, value, limit: Limit::AtMost(max), errno });
    }
    Ok(())
}

/// The rule that epoll and sockets share: a budget above the weight takes a privilege (§1).
pub(crate) fn limit_budget(
    setting: &'static str,
    value: u32,
    above: u64,
    privileged: bool,
) -> Result<(), SettingError> {
    let value = u64::from(value);
    // The privilege is checked first, as in the kernel: without it the answer is EPERM whatever the value.
    if value > above && !privileged {
        let limit = Limit::AtMostUnprivileged(above);
        return Err(SettingError { setting, value, limit, errno: Errno::Permission });
    }
    limit(setting, value, BUSY_POLL_BUDGET_MAX, Errno::Invalid)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_setting_value_and_limit() {
        let settings = NapiSettings { defer_hard_irqs: 1 << 31, ..NapiSettings::default() };
        let error = settings.check().unwrap_err();
        assert_eq!(error.errno, Errno::Range);
        assert_eq!(error.to_string(), "cannot set defer_hard_irqs to 2147483648: it is at most 2147483647");
        let settings = NapiSettings { gro_flush_timeout_ns: u64::MAX, irq_suspend_timeout_ns: u64::MAX, ..settings };
        let settings = NapiSettings { defer_hard_irqs: i32::MAX as u32, ..settings };
        assert_eq!(settings.check(), Ok(()));
        let sysctl = Sysctl { netdev_budget_usecs: 1_999, ..Sysctl::default() };
        assert!(sysctl.check().unwrap_err().to_string().contains("at least 2000"));
    }

    #[test]
    fn budget_above_the_weight_takes_a_privilege() {
        assert!(limit_budget("busy_poll_budget", 64, 64, false).is_ok());
        assert_eq!(limit_budget("busy_poll_budget", 65, 64, false).unwrap_err().errno, Errno::Permission);
        assert!(limit_budget("busy_poll_budget", 65, 64, true).is_ok());
        assert_eq!(limit_budget("busy_poll_budget", 65_536, 64, true).unwrap_err().errno, Errno::Invalid);
    }
}
