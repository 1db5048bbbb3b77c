//! Lines on stderr, each at most once a process, and only where they can do no harm.
//!
//! A daemon may have closed descriptor 2 and got it back as a client's socket: a line there would break its protocol.
//! So the file behind descriptor 2 is remembered at load, and nothing is written to another one. A full or broken pipe
//! is left alone as well: no blocking, no SIGPIPE.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Longest line; the rest is cut off. Below PIPE_BUF, so that lines of several processes do not mix.
const LINE_BYTES_MAX: usize = 256;

static SAID: AtomicBool = AtomicBool::new(false);
static QUIET: AtomicBool = AtomicBool::new(false);
/// Device and inode of stderr at load; 0 and 0 if there was none.
static STDERR_DEV: AtomicU64 = AtomicU64::new(0);
static STDERR_INO: AtomicU64 = AtomicU64::new(0);

/// Says nothing from now on.
pub fn quiet() {
    QUIET.store(true, Relaxed);
}

/// Remembers which file stderr is.
pub fn remember_stderr() {
    if let Some((dev, ino)) = stderr_file() {
        STDERR_DEV.store(dev, Relaxed);
        STDERR_INO.store(ino, Relaxed);
    }
}

/// Writes why something is not set, unless this process said why before.
#[cold]
pub fn once(message: fmt::Arguments<'_>) {
    if !SAID.swap(true, Relaxed) {
        line(message);
    }
}

/// Writes `lull: MESSAGE`.
#[cold]
pub fn line(message: fmt::Arguments<'_>) {
    if QUIET.load(Relaxed) {
        return;
    }
    let remembered = (STDERR_DEV.load(Relaxed), STDERR_INO.load(Relaxed));
    if stderr_file() != Some(remembered) || !writable() {
        return;
    }
    let mut line = Line { bytes: [0; LINE_BYTES_MAX], length: 0 };
    let _ = line.write_fmt(format_args!("lull: {message}"));
    let length = line.length.min(LINE_BYTES_MAX - 1);
    if let Some(end) = line.bytes.get_mut(length) {
        *end = b'\n';
    }
    // A short write loses the end of a message, nothing else.
    let _ = rustix::io::write(stderr(), line.bytes.get(..=length).unwrap_or_default());
}

/// The calls here go to the kernel itself: the C library's functions are taken over, and `poll` would send what this thread holds back
/// on its connections, by a lock that it may have at this moment.
fn stderr() -> BorrowedFd<'static> {
    // SAFETY: the number is borrowed for one call each time, and what it names is looked at first.
    unsafe { BorrowedFd::borrow_raw(2) }
}

fn stderr_file() -> Option<(u64, u64)> {
    rustix::fs::fstat(stderr()).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a line can be written at once: not to a full pipe, nor to one that nobody reads.
fn writable() -> bool {
    let stderr = stderr();
    let mut entries = [PollFd::new(&stderr, PollFlags::OUT)];
    let ready = rustix::event::poll(&mut entries, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready == Ok(1) && entries[0].revents() == PollFlags::OUT
}

struct Line {
    bytes: [u8; LINE_BYTES_MAX],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let free = self.bytes.get_mut(self.length).ok_or(fmt::Error)?;
            *free = byte;
            self.length += 1;
        }
        Ok(())
    }
}
