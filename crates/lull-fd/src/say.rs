//! Lines on stderr, which are written only where they can do no harm.
//!
//! A daemon may have closed descriptor 2, and that number may be a client's socket by now: a line there would break its
//! protocol. So the file behind descriptor 2 is remembered at load, and nothing is written to another one. Nor is
//! anything written to a full or broken pipe, as that would block or raise SIGPIPE.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};

/// The longest line; the rest is cut off. It is shorter than PIPE_BUF, so that lines of several processes do not mix.
const LINE_BYTES_MAX: usize = 256;

static SAID: AtomicBool = AtomicBool::new(false);
static QUIET: AtomicBool = AtomicBool::new(false);
/// The device and inode of stderr at load; 0 and 0 if there was none.
static STDERR_DEV: AtomicU64 = AtomicU64::new(0);
static STDERR_INO: AtomicU64 = AtomicU64::new(0);

/// From now on nothing is written.
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

/// Writes the reason why something is not set, unless this process has written one before.
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
    // A short write only loses the end of a message.
    let _ = rustix::io::write(stderr(), line.bytes.get(..=length).unwrap_or_default());
}

/// The standard error. The calls with it go to the kernel itself, because the C library's functions are taken over:
/// `poll` would send what this thread holds back on its connections, under a lock that the thread may hold at this
/// moment.
fn stderr() -> BorrowedFd<'static> {
    // SAFETY: the number is borrowed for one call at a time, and what it names is checked first.
    unsafe { BorrowedFd::borrow_raw(2) }
}

fn stderr_file() -> Option<(u64, u64)> {
    rustix::fs::fstat(stderr()).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a line can be written at once. It cannot to a full pipe, nor to one that nobody reads.
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
