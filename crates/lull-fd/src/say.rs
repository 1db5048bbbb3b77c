//! Lines on stderr, each at most once a process, and only where they can do no harm.
//!
//! A daemon may have closed descriptor 2 and got it back as a client's socket: a line there would break its protocol.
//! So the file behind descriptor 2 is remembered at load, and nothing is written to another one. A full or broken pipe
//! is left alone as well: no blocking, no SIGPIPE.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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
    // SAFETY: `length + 1` bytes of the buffer are initialised. A short write loses the end of a message, nothing else.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), length + 1) };
}

fn stderr_file() -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: `stat` is plain data, for which zeroes are a value, and `fstat` writes no more than it.
    let (result, stat) = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(2, &mut stat), stat)
    };
    (result == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Whether a line can be written at once: not to a full pipe, nor to one that nobody reads.
fn writable() -> bool {
    let mut stderr = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&mut stderr, 1, 0) };
    ready == 1 && stderr.revents == libc::POLLOUT
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
