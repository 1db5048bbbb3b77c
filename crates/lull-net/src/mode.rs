//! A delivery mode on a network and on epoll contexts. What a mode sets is [`lull_core::Mode`]'s; here is who gets what.
//!
//! Two halves make a mode. The network's is its device and NAPIs, and SO_BUSY_POLL of its sockets. The application's is the
//! parameters of its epoll contexts and how long it waits in them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lull_core::{AppPolicy, Mode, SettingError, SocketBusy};

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

/// SO_BUSY_POLL of all sockets of a queue, as the mode in force has it. A socket takes it over when it next looks, so a
/// change costs nothing per socket; what the application sets on a socket afterwards stands until the mode changes it again.
#[derive(Debug)]
pub(crate) struct ModeBusyPoll {
    /// The count of changes above 32 bits of microseconds.
    word: AtomicU64,
    /// Held while a socket takes a value over or is given its own, so that the later one stands.
    settling: Mutex<()>,
}

impl ModeBusyPoll {
    /// No mode yet: sockets start as the sysctl has it.
    pub(crate) fn new(usecs: u32) -> ModeBusyPoll {
        ModeBusyPoll { word: AtomicU64::new(u64::from(usecs)), settling: Mutex::new(()) }
    }

    fn settling(&self) -> MutexGuard<'_, ()> {
        // It guards no data of its own.
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes nothing if the value is the same.
    pub(crate) fn change(&self, usecs: u32) {
        let _settling = self.settling();
        let word = self.word.load(Ordering::Relaxed);
        if word as u32 != usecs {
            self.word.store((((word >> 32) + 1) << 32) | u64::from(usecs), Ordering::Release);
        }
    }
}

/// The busy-poll options of a socket that follows its queue's mode.
#[derive(Debug)]
pub(crate) struct Following {
    busy: SocketBusy,
    /// The change of the mode that the socket has taken over.
    seen: AtomicU32,
}

impl Following {
    pub(crate) fn new(busy: SocketBusy) -> Following {
        Following { busy, seen: AtomicU32::new(0) }
    }

    /// The options as they are now.
    #[inline]
    pub(crate) fn now(&self, mode: &ModeBusyPoll) -> &SocketBusy {
        let word = mode.word.load(Ordering::Acquire);
        if (word >> 32) as u32 != self.seen.load(Ordering::Acquire) {
            self.take_over(mode);
        }
        &self.busy
    }

    #[cold]
    fn take_over(&self, mode: &ModeBusyPoll) {
        let _settling = mode.settling();
        let word = mode.word.load(Ordering::Relaxed);
        let count = (word >> 32) as u32;
        if count != self.seen.load(Ordering::Relaxed) {
            // A mode's time was checked when the mode was set.
            let _ = self.busy.set_usecs(word as u32);
            self.seen.store(count, Ordering::Release);
        }
    }

    /// SO_BUSY_POLL by the application.
    pub(crate) fn set_usecs(&self, mode: &ModeBusyPoll, usecs: u32) -> Result<(), SettingError> {
        self.now(mode);
        let _settling = mode.settling();
        self.busy.set_usecs(usecs)
    }

    /// Options of a connection that a listener of the same queue accepted: it has the listener's busy-poll time.
    pub(crate) fn child(&self, mode: &ModeBusyPoll) -> Following {
        let listener = self.now(mode);
        // Read before the time: if the mode changes in between, the child takes it over once more.
        let seen = self.seen.load(Ordering::Acquire);
        let busy = SocketBusy::new(&lull_core::Sysctl::default());
        // Within the limits, since the listener has it.
        let _ = busy.set_usecs(listener.usecs());
        Following { busy, seen: AtomicU32::new(seen) }
    }
}
