//! A delivery mode on a network and on epoll contexts. What a mode sets is [`lull_core::Mode`]'s; here is who gets what.
//!
//! Two halves make a mode. The network's is its device and NAPIs, and SO_BUSY_POLL of its sockets. The application's is the
//! parameters of its epoll contexts and how long it waits in them.

use lull_core::{AppPolicy, Mode, SettingError};

use crate::epoll::Epoll;

/// The application's half of a mode: it is done by giving the mode to each epoll context, or by being without one.
///
/// ```
/// use lull_net::{AppHalf, Mode};
///
/// let fullbusy: Mode = "fullbusy".parse()?;
/// let refused = AppHalf::of(&fullbusy).without_epoll().unwrap_err();
/// assert!(refused.to_string().contains("up to 5 ms"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a mode is in force only when the application has done its half: `on` each epoll context, or `without_epoll`"]
#[derive(Clone, Debug)]
pub struct AppHalf(Mode);

impl AppHalf {
    /// What `mode` asks of an application whose network has it already ([`crate::NetworkConfig::with_mode`]).
    pub fn of(mode: &Mode) -> AppHalf {
        AppHalf(mode.clone())
    }

    /// Gives the mode to a context ([`Epoll::set_mode`]); once for each that the application has.
    ///
    /// # Errors
    /// A parameter above its limit.
    pub fn on(&self, epoll: &Epoll) -> Result<AppPolicy, SettingError> {
        epoll.set_mode(&self.0)
    }

    /// For an application that only blocks in its sockets' calls.
    ///
    /// # Errors
    /// The mode acts through epoll only; what the network has of it makes packets wait instead.
    pub fn without_epoll(self) -> Result<(), NeedsEpoll> {
        match self.0.needs_epoll() {
            true => Err(NeedsEpoll { mode: self.0 }),
            false => Ok(()),
        }
    }
}

/// A mode that cannot act for an application without an epoll context.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "mode {mode} cannot act without an epoll context, because only Epoll::wait busy polls or suspends{}; wait in an \
     Epoll that has the mode (Epoll::set_mode), or use a mode that needs none: base, deferX, threaded, threaded-busy or \
     busyread",
    lateness(mode)
)]
pub struct NeedsEpoll {
    mode: Mode,
}

/// What the mode's deferral costs a thread that blocks in a socket's call; empty for a mode without one.
fn lateness(mode: &Mode) -> String {
    let Some(ns) = mode.deferral_ns() else { return String::new() };
    let us = ns / 1_000;
    let (time, unit) = if us >= 1_000 { (us / 1_000, "ms") } else { (us, "us") };
    format!(", and a thread that blocks in a socket's call hears of a packet up to {time} {unit} late")
}

impl From<NeedsEpoll> for std::io::Error {
    fn from(error: NeedsEpoll) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidInput, error)
    }
}
