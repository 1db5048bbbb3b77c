//! Pipes of the program's, for `splice`.

use libc::c_int;

use super::fcntl;
use crate::raw::raw;
use crate::{Errno, Result};

/// Whether calls wait that write to this end of a pipe, or else read from it. What is no pipe is no end of a splice beside a socket.
pub fn is_blocking(pipe: c_int, to_write: bool) -> Result<bool> {
    // SAFETY: plain data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: room for what the kernel writes.
    unsafe { raw!(SYS_fstat, pipe, &raw mut stat) }?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Err(Errno::new(libc::EINVAL));
    }
    let flags = fcntl(pipe, libc::F_GETFL, 0)?;
    let other_end = if to_write { libc::O_RDONLY } else { libc::O_WRONLY };
    if flags & libc::O_ACCMODE == other_end {
        return Err(Errno::new(libc::EBADF));
    }
    Ok(flags & libc::O_NONBLOCK == 0)
}

/// Whether a pipe has room for PIPE_BUF bytes, or else something to read; or there is nobody at its other end.
pub fn is_ready(pipe: c_int, to_write: bool) -> Result<bool> {
    let events = if to_write { libc::POLLOUT } else { libc::POLLIN };
    super::poll(&mut [libc::pollfd { fd: pipe, events, revents: 0 }], 0, None).map(|count| count > 0)
}

/// Whether nobody reads from the pipe that this is the end of which is written to.
pub fn has_no_reader(pipe: c_int) -> bool {
    super::is_broken(pipe)
}

/// `read`.
pub fn read(pipe: c_int, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: room for as many bytes as the slice has.
    unsafe { raw!(SYS_read, pipe, buffer.as_mut_ptr(), buffer.len()) }
}

/// `write`.
pub fn write(pipe: c_int, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    unsafe { raw!(SYS_write, pipe, bytes.as_ptr(), bytes.len()) }
}
