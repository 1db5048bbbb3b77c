//! A delivery mode on a network and on epoll contexts. [`lull_core::Mode`] says what a mode sets; this module says
//! which object gets which setting.
//!
//! A mode has two halves. The network's half is the settings of its device and NAPIs, and SO_BUSY_POLL of its sockets.
//! The application's half is the parameters of its epoll contexts, and how long it waits in them.

use lull_core::{AppPolicy, Mode, SettingError};

use crate::epoll::Epoll;

/// The application's half of a mode. The application gives the mode to each of its epoll contexts, or says that it has
/// none.
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
    /// The half that `mode` asks of an application whose network has the mode already
    /// ([`crate::NetworkConfig::with_mode`]).
    pub fn of(mode: &Mode) -> AppHalf {
        AppHalf(mode.clone())
    }

    /// Gives the mode to a context ([`Epoll::set_mode`]). Call it once for each context that the application has.
    ///
    /// # Errors
    /// A parameter is above its limit.
    pub fn on(&self, epoll: &Epoll) -> Result<AppPolicy, SettingError> {
        epoll.set_mode(&self.0)
    }

    /// Says that the application has no epoll context and only blocks in its sockets' calls.
    ///
    /// # Errors
    /// The mode acts only through epoll, and the network's half of it makes packets wait.
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

/// What the mode's deferral costs a thread that blocks in a socket's call; the text is empty if the mode has none.
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
