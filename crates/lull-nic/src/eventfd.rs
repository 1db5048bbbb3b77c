//! Descriptors that stand for interrupts: an eventfd as a sink, and a set of two descriptors as one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::device::IrqSink;
use crate::own;

/// An interrupt that a thread can wait for: an eventfd that becomes readable when the line is raised.
///
/// ```
/// use lull_nic::{EventFdSink, IrqSink};
/// use std::time::Duration;
///
/// let sink = EventFdSink::new()?;
/// assert!(!sink.clear());
/// sink.raise();
/// assert!(sink.wait(Some(Duration::from_secs(1)))?);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EventFdSink {
    file: File,
}

impl EventFdSink {
    /// A new eventfd, non-blocking and closed on exec.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<EventFdSink> {
        // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
        let fd = own::made(|| unsafe { owned(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)) })?;
        Ok(EventFdSink { file: File::from(fd) })
    }

    /// Takes a raised interrupt back, and returns whether there was one. Never blocks.
    pub fn clear(&self) -> bool {
        let mut count = [0; 8];
        (&self.file).read(&mut count).is_ok()
    }

    /// Waits for an interrupt and takes it; `false`: `timeout` passed first. `None` waits without end.
    ///
    /// # Errors
    /// What `poll(2)` reports, except an interrupted call, which goes on.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.clear() {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            readable(self.file.as_fd(), left)?;
        }
    }
}

impl AsFd for EventFdSink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl IrqSink for EventFdSink {
    fn raise(&self) {
        // The only failure is EAGAIN with the counter at its end: the descriptor is readable then, which is the point.
        let _ = (&self.file).write(&1u64.to_ne_bytes());
    }
}

/// Whether `fd` becomes readable (or hung up) within `timeout`; `None` waits without end, zero only looks.
pub(crate) fn readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let spec = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `entry` and `spec` outlive the call; one entry is announced.
    let ready = unsafe { libc::ppoll(&raw mut entry, 1, spec, std::ptr::null()) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

/// Whether `fd` takes data now.
pub(crate) fn writable(fd: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: `entry` outlives the call; one entry is announced.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

/// A descriptor that is readable while any of two others is (an epoll instance over them, level-triggered).
#[derive(Debug)]
pub(crate) struct EitherFd {
    epoll: OwnedFd,
}

impl EitherFd {
    pub(crate) fn new(first: BorrowedFd<'_>, second: BorrowedFd<'_>) -> io::Result<EitherFd> {
        // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
        let epoll = own::made(|| unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) })?;
        for fd in [first, second] {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: both descriptors are open for the length of the call, `event` outlives it.
            let done =
                unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(EitherFd { epoll })
    }
}

impl EitherFd {
    /// Makes the descriptor one that is never readable again; its number stays valid.
    pub(crate) fn silence(&self) -> io::Result<()> {
        let quiet = never_readable()?;
        // By number: where a program's calls are taken over, `dup3` over a descriptor of lull's own is refused.
        // SAFETY: both are open and stay owned by whom they are; dup3 replaces atomically.
        let done = unsafe { libc::syscall(libc::SYS_dup3, quiet.as_raw_fd(), self.epoll.as_raw_fd(), libc::O_CLOEXEC) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A descriptor that never becomes readable: a timer that nobody sets.
pub(crate) fn never_readable() -> io::Result<OwnedFd> {
    let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
    // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
    own::made(|| unsafe { owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags)) })
}

impl AsFd for EitherFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Owns a descriptor that a system call returned, or reports its error.
///
/// # Safety
/// `fd` is negative, or a descriptor that nobody else owns.
pub(crate) unsafe fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open, because the call that made it succeeded, and the caller vouches that it is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn raise_is_seen_once() {
        let sink = EventFdSink::new().unwrap();
        assert!(!sink.wait(Some(Duration::ZERO)).unwrap());
        sink.raise();
        sink.raise();
        assert!(sink.wait(None).unwrap());
        assert!(!sink.clear());
    }

    #[test]
    fn either_of_two_is_readable() {
        let (a, b) = (EventFdSink::new().unwrap(), EventFdSink::new().unwrap());
        let either = EitherFd::new(a.as_fd(), b.as_fd()).unwrap();
        assert!(!readable(either.as_fd(), Some(Duration::ZERO)).unwrap());
        b.raise();
        assert!(readable(either.as_fd(), Some(Duration::ZERO)).unwrap());
        b.clear();
        assert!(!readable(either.as_fd(), Some(Duration::ZERO)).unwrap());
    }
}
