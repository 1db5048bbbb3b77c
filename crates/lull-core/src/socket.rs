//! Busy polling by a receiving socket (`sk_busy_loop`, §9): SO_BUSY_POLL, SO_PREFER_BUSY_POLL, SO_BUSY_POLL_BUDGET.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::busy::{BusyEnd, BusyPlan};
use crate::config::NAPI_ID_MIN;
use crate::settings::{BUSY_POLL_USECS_MAX, Errno, Limit, SettingError, Sysctl, limit, limit_budget};

/// The busy-poll options of one socket.
#[derive(Debug)]
pub struct SocketBusy {
    usecs: AtomicU32,
    budget: AtomicU32,
    prefer: AtomicBool,
}

impl SocketBusy {
    /// Options of a new socket: SO_BUSY_POLL starts as the sysctl `busy_read`.
    pub fn new(sysctl: &Sysctl) -> SocketBusy {
        SocketBusy {
            usecs: AtomicU32::new(sysctl.busy_read_usecs),
            budget: AtomicU32::new(0),
            prefer: AtomicBool::new(false),
        }
    }

    /// SO_BUSY_POLL, in microseconds; 0 is off.
    ///
    /// # Errors
    /// More than 2^31-1 (negative in the kernel's int: EINVAL).
    pub fn set_usecs(&self, usecs: u32) -> Result<(), SettingError> {
        limit("SO_BUSY_POLL", u64::from(usecs), BUSY_POLL_USECS_MAX, Errno::Invalid)?;
        self.usecs.store(usecs, Relaxed);
        Ok(())
    }

    /// Reads SO_BUSY_POLL, in microseconds.
    pub fn usecs(&self) -> u32 {
        self.usecs.load(Relaxed)
    }

    /// Sets SO_PREFER_BUSY_POLL.
    ///
    /// # Errors
    /// Setting it without CAP_NET_ADMIN (EPERM).
    pub fn set_prefer(&self, prefer: bool, privileged: bool) -> Result<(), SettingError> {
        if prefer && !privileged {
            return Err(SettingError {
                setting: "SO_PREFER_BUSY_POLL",
                value: 1,
                limit: Limit::AtMostUnprivileged(0),
                errno: Errno::Permission,
            });
        }
        self.prefer.store(prefer, Relaxed);
        Ok(())
    }

    /// Reads SO_PREFER_BUSY_POLL.
    pub fn prefer(&self) -> bool {
        self.prefer.load(Relaxed)
    }

    /// Sets SO_BUSY_POLL_BUDGET, in packets; 0 means 8.
    ///
    /// # Errors
    /// Raising it without CAP_NET_ADMIN (EPERM); more than 65535 (EINVAL).
    pub fn set_budget(&self, budget: u32, privileged: bool) -> Result<(), SettingError> {
        limit_budget("SO_BUSY_POLL_BUDGET", budget, u64::from(self.budget.load(Relaxed)), privileged)?;
        self.budget.store(budget, Relaxed);
        Ok(())
    }

    /// Reads SO_BUSY_POLL_BUDGET, in packets; 0 means 8.
    pub fn budget(&self) -> u32 {
        self.budget.load(Relaxed)
    }

    /// How a receive call that found nothing polls: not at all, one round (non-blocking callers), or until time is up.
    pub fn plan(&self, napi_id: u32, nonblocking: bool) -> Option<BusyPlan> {
        let usecs = self.usecs.load(Relaxed);
        if usecs == 0 || napi_id < NAPI_ID_MIN {
            return None;
        }
        Some(BusyPlan {
            napi_id,
            prefer: self.prefer(),
            budget: BusyPlan::budget_or_default(self.budget()),
            end: if nonblocking { BusyEnd::OneRound } else { BusyEnd::AfterUsecs(usecs) },
            catch_up: false,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn options_have_the_kernels_limits() {
        let socket = SocketBusy::new(&Sysctl { busy_read_usecs: 50, ..Sysctl::default() });
        assert_eq!(socket.usecs(), 50);
        assert_eq!(socket.set_usecs(1 << 31).unwrap_err().errno, Errno::Invalid);
        assert_eq!(socket.set_prefer(true, false).unwrap_err().errno, Errno::Permission);
        assert!(socket.set_prefer(false, false).is_ok());
        assert_eq!(socket.set_budget(9, false).unwrap_err().errno, Errno::Permission);
        socket.set_budget(9, true).unwrap();
        assert!(socket.set_budget(5, false).is_ok(), "lowering takes no privilege");
    }

    #[test]
    fn nonblocking_callers_get_exactly_one_round() {
        let socket = SocketBusy::new(&Sysctl::default());
        assert_eq!(socket.plan(NAPI_ID_MIN, false), None, "off by default");
        socket.set_usecs(40).unwrap();
        assert_eq!(socket.plan(0, false), None, "no valid id");
        assert_eq!(socket.plan(NAPI_ID_MIN, true).unwrap().end, BusyEnd::OneRound);
        let plan = socket.plan(NAPI_ID_MIN, false).unwrap();
        assert_eq!((plan.end, plan.budget, plan.prefer), (BusyEnd::AfterUsecs(40), 8, false));
    }
}
