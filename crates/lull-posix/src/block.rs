//! How a thread waits in a call that is not `epoll_wait`: in a context of its own.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use libc::c_int;
use lull_net::{Epoll, Event, Interest, Source};

use crate::errno::WOULD_BLOCK;
use crate::kernel::borrow;
use crate::socket::pool;
use crate::{Errno, Result, engine, signals};

thread_local! {
    static CONTEXTS: RefCell<Kept> = const { RefCell::new(Kept(Vec::new())) };
}

/// Contexts of a thread's own, kept for its next wait.
struct Kept(Vec<Epoll>);

impl Drop for Kept {
    fn drop(&mut self) {
        // The thread ends, and lull closes the descriptors in its contexts, which are lull's own.
        signals::section(|| self.0.clear());
    }
}

/// The calling thread is the only one of a child of `fork`: its contexts are on its parent's engine.
pub(crate) fn forget() {
    let _ =
        CONTEXTS.try_with(|kept| kept.try_borrow_mut().map(|mut kept| std::mem::forget(std::mem::take(&mut kept.0))));
}

const SOURCE: u64 = 0;
const KERNELS: u64 = 1;

/// A wait of the calling thread for several things at once. While it waits, the thread delivers.
pub(crate) struct Wait {
    context: Option<Epoll>,
    /// A member could not be taken out again.
    has_a_stranger: Cell<bool>,
}

impl Wait {
    /// A wait for nothing yet.
    pub(crate) fn new() -> Result<Wait> {
        let engine = engine::engine()?;
        let kept = CONTEXTS.try_with(|contexts| contexts.try_borrow_mut().ok()?.0.pop()).ok().flatten();
        let context = kept.unwrap_or_else(|| Epoll::for_sleep(&engine.host));
        Ok(Wait { context: Some(context), has_a_stranger: Cell::new(false) })
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
            // This is a file that is always ready, but was not asked for what it is ready for (`ep_insert`), so it will
            // never tell of anything.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
            Err(error) if is_there(&error) => Ok(self.context().modify_fd(borrow(fd), KERNELS, both())?),
            added => Ok(added?),
        }
    }

    /// Takes a descriptor out again. One whose number another thread has closed meanwhile stays a member for as long as anybody has
    /// that file: the context is given up.
    pub(crate) fn remove_kernels(&self, fd: c_int) {
        match self.context().delete_fd(borrow(fd)) {
            // It was not put in, either.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            removed => self.has_a_stranger.set(self.has_a_stranger.get() || removed.is_err()),
        }
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
        if !self.has_a_stranger.get() {
            let _ =
                CONTEXTS.try_with(|contexts| contexts.try_borrow_mut().map(|mut contexts| contexts.0.push(context)));
        }
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

/// Repeats a call that sends by a socket of the kernel's, and does not wait, until the socket has taken something, for
/// at most `timeout`. It is like a call that waits, except that it is over when a signal comes, whose handler would
/// otherwise have to wait for it.
pub(crate) fn until_taken<R>(fd: c_int, timeout: Option<Duration>, mut send: impl FnMut() -> Result<R>) -> Result<R> {
    /// The time between two calls if the socket says that there is room, but the one that it sends to has none (a
    /// datagram socket without a peer).
    const APART: Duration = Duration::from_millis(5);
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let mut says_room = false;
    loop {
        match send() {
            Err(WOULD_BLOCK) => {}
            done => return done,
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(WOULD_BLOCK);
        }
        says_room = match says_room {
            true => signals::or_restarts(
                pool::wait_in_kernel_for(None, Some(left.map_or(APART, |left| left.min(APART)))),
                timeout,
            )?,
            false => pool::wait_in_kernel_for(Some((fd, libc::EPOLLOUT)), left)?,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::fork::tests::in_a_child;
    use crate::kernel;

    /// As `sendmsg` and `connect`, which wait on Linux without a descriptor.
    #[test]
    fn a_wait_for_a_socket_of_the_kernels_takes_no_number() {
        let (socket, _peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let fd = socket.as_raw_fd();
        assert!(in_a_child(|| {
            let limit = rustix::process::Resource::Nofile;
            let most = rustix::process::getrlimit(limit);
            // Standard input, output and error have these.
            let none_left = rustix::process::Rlimit { current: Some(3), ..most };
            let is_out =
                rustix::process::setrlimit(limit, none_left).is_ok() && kernel::duplicate(fd, 0, true).is_err();
            let mut tries = 0;
            let sent = until_taken(fd, None, || {
                tries += 1;
                if tries < 4 { Err(WOULD_BLOCK) } else { Ok(tries) }
            });
            // It is over when the time is, too.
            let short = Some(Duration::from_millis(1));
            is_out && sent == Ok(4) && pool::wait_in_kernel_for([(fd, libc::EPOLLIN)], short) == Ok(false)
        }));
    }
}
