//! How a thread waits in a call that is not `epoll_wait`: in a context of its own.

use std::cell::RefCell;
use std::time::Duration;

use libc::c_int;
use lull_net::{Epoll, Event, Interest, Source};

use crate::kernel::borrow;
use crate::{Errno, Result, engine, signals};

thread_local! {
    /// Contexts of the thread's own, kept for its next wait.
    static CONTEXTS: RefCell<Vec<Epoll>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread is the only one of a child of `fork`: its contexts are on its parent's engine.
pub(crate) fn forget() {
    let _ =
        CONTEXTS.try_with(|kept| kept.try_borrow_mut().map(|mut kept| std::mem::forget(std::mem::take(&mut *kept))));
}

const SOURCE: u64 = 0;
const KERNELS: u64 = 1;

/// A wait of the calling thread for several things at once. While it waits, the thread delivers.
pub(crate) struct Wait {
    context: Option<Epoll>,
}

impl Wait {
    /// A wait for nothing yet.
    pub(crate) fn new() -> Result<Wait> {
        let engine = engine::engine()?;
        let kept = CONTEXTS.try_with(|contexts| contexts.try_borrow_mut().ok()?.pop()).ok().flatten();
        Ok(Wait { context: Some(kept.unwrap_or_else(|| Epoll::for_sleep(&engine.host))) })
    }

    fn context(&self) -> &Epoll {
        match &self.context {
            Some(context) => context,
            None => unreachable!("it is taken when the wait is dropped"),
        }
    }

    /// Waits for a socket as well. One that is waited for already is waited for with `both`.
    pub(crate) fn add(&self, source: &impl Source, interest: Interest, both: impl FnOnce() -> Interest) -> Result<()> {
        match self.context().add(source, SOURCE, interest) {
            Err(error) if is_there(&error) => Ok(self.context().modify(source, SOURCE, both())?),
            added => Ok(added?),
        }
    }

    /// Takes a socket out again. One that another thread has closed meanwhile has left by itself.
    pub(crate) fn remove(&self, source: &impl Source) {
        let _ = self.context().delete(source);
    }

    /// Waits for a descriptor of the kernel's as well. One that is waited for already is waited for with `both`.
    pub(crate) fn add_kernels(&self, fd: c_int, interest: Interest, both: impl FnOnce() -> Interest) -> Result<()> {
        match self.context().add_fd(borrow(fd), KERNELS, interest) {
            // A file that is always ready, and was not asked for what it is ready for (`ep_insert`): nothing will ever come of it.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
            Err(error) if is_there(&error) => Ok(self.context().modify_fd(borrow(fd), KERNELS, both())?),
            added => Ok(added?),
        }
    }

    /// Takes a descriptor out again.
    pub(crate) fn remove_kernels(&self, fd: c_int) {
        let _ = self.context().delete_fd(borrow(fd));
    }

    /// Waits until something is ready; false if the time is over first.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let engine = engine::engine()?;
        let context = self.context();
        let mut events = Vec::<Event>::with_capacity(1);
        let cpu = engine.cpu_of(context.napi_id());
        let waited = engine
            .with_worker(cpu, |worker| context.wait_unless(worker, &mut events, 1, timeout, &signals::is_interrupted));
        Ok(waited?.map_err(Errno::from)? > 0)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return };
        let _ = CONTEXTS.try_with(|contexts| contexts.try_borrow_mut().map(|mut contexts| contexts.push(context)));
    }
}

/// `poll` may name a descriptor more than once.
fn is_there(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EEXIST)
}

/// Waits until a socket is ready, or a descriptor of the kernel's is readable, or `timeout` is over; false if that came
/// first.
pub(crate) fn until_ready(
    source: &impl Source,
    interest: Interest,
    kernels: Option<c_int>,
    timeout: Option<Duration>,
) -> Result<bool> {
    until_any_ready(source, interest, kernels.into_iter(), timeout)
}

/// As [`until_ready`], with any number of the kernel's descriptors.
pub(crate) fn until_any_ready(
    source: &impl Source,
    interest: Interest,
    kernels: impl Iterator<Item = c_int> + Clone,
    timeout: Option<Duration>,
) -> Result<bool> {
    let wait = Wait::new()?;
    wait.add(source, interest, || interest)?;
    let mut added = Ok(());
    for fd in kernels.clone() {
        added = added.and_then(|()| wait.add_kernels(fd, Interest::READABLE, || Interest::READABLE));
    }
    let waited = added.and_then(|()| wait.wait(timeout));
    wait.remove(source);
    kernels.for_each(|fd| wait.remove_kernels(fd));
    signals::or_restarts(waited, timeout)
}
