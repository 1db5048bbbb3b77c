//! A context inside another context, `poll` or `select`.
//!
//! A thread that watches a context from outside watches the kernel's half, which knows nothing of lull's members. So
//! once somebody watches, that half gets a bell, an eventfd among its members:
//!
//! ```text
//! an edge of a member of lull's    rings the bell, for each, so that an outer edge-triggered member has an edge as well
//! before the outer call looks      the bell is set to what is ready in truth (`ep_eventpoll_poll` looks then, too)
//! at the end of a wait inside      likewise: who waits outside at the same time hears of what was left
//! ```
//!
//! After a bell is silenced its members are looked at once more, and what comes after that look rings it again.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::c_int;
use lull_net::Epoll;

use super::{EpollFile, Mixed, lock};
use crate::files::{self, File};
use crate::{Result, kernel};

/// How deep contexts stand inside the one that a call is about (`EP_MAX_NESTS`): the kernel refuses more. Numbers that were used
/// again may look like more.
pub(super) const INSIDE_A_CALL: usize = 5;

pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    fn ring(&self) {
        kernel::add_to_eventfd(self.0.as_raw_fd());
    }

    /// Sets the bell: it rings if something is ready, and is silent otherwise.
    fn set(&self, epoll: &Epoll) {
        if !epoll.has_ready() {
            kernel::empty_eventfd(self.0.as_raw_fd());
        }
        if epoll.has_ready() && !kernel::is_readable(self.0.as_raw_fd()) {
            self.ring();
        }
    }
}

impl Mixed {
    fn hang_bell(&self) -> Result<()> {
        if self.bell.get().is_some() {
            return Ok(());
        }
        let eventfd = Arc::new(kernel::eventfd(0)?);
        if self.bell.set(Bell(eventfd.clone())).is_err() {
            return Ok(());
        }
        kernel::add_member(self.kernel.as_fd(), eventfd.as_fd(), libc::EPOLLIN as u32, kernel::IGNORED_DATA)?;
        self.epoll.on_edge(Box::new(move || kernel::add_to_eventfd(eventfd.as_raw_fd())));
        self.set_bell();
        Ok(())
    }

    /// Sets the bell, if there is one, to what is ready in truth.
    #[inline]
    pub(super) fn set_bell(&self) {
        if let Some(bell) = self.bell.get() {
            bell.set(&self.epoll);
        }
    }
}

impl EpollFile {
    /// Somebody watches the context from outside, or is about to look at it.
    pub(crate) fn is_watched(&self) -> Result<()> {
        self.watched.store(true, Ordering::SeqCst);
        if let Some(mixed) = self.mixed.get() {
            mixed.hang_bell()?;
            mixed.set_bell();
        }
        self.look_inside(INSIDE_A_CALL);
        Ok(())
    }

    /// The other half was made. Whoever begins to watch after this sees it.
    pub(super) fn becomes_mixed(&self, mixed: &Mixed) -> Result<()> {
        if self.watched.load(Ordering::SeqCst) { mixed.hang_bell() } else { Ok(()) }
    }

    /// The context `fd` is inside this one from now on.
    pub(super) fn has_inside(&self, fd: c_int, context: &EpollFile) -> Result<()> {
        let mut inside = lock(&self.inside);
        if !inside.contains(&fd) {
            inside.push(fd);
        }
        // What is inside that one may be this one, by a number that was used again.
        drop(inside);
        self.has_inside.store(true, Ordering::Relaxed);
        context.is_watched()
    }

    /// The context that was added as `fd` is inside no more.
    pub(super) fn has_no_more_inside(&self, fd: c_int) {
        lock(&self.inside).retain(|&other| other != fd);
    }

    /// Sets the bells of the contexts inside, which the kernel looks at next.
    #[inline]
    pub(super) fn look_inside(&self, nests: usize) {
        if self.has_inside.load(Ordering::Relaxed) && nests > 0 {
            self.look_at_each(nests);
        }
    }

    #[cold]
    fn look_at_each(&self, nests: usize) {
        let inside = lock(&self.inside).clone();
        for fd in inside {
            match files::get(fd).as_deref() {
                Some(File::Epoll(context)) => {
                    context.mixed.get().inspect(|mixed| mixed.set_bell());
                    context.look_inside(nests - 1);
                }
                // It was closed, and with that it has left.
                _ => lock(&self.inside).retain(|&other| other != fd),
            }
        }
    }
}
