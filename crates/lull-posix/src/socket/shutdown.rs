//! `shutdown`.

use std::sync::atomic::Ordering;

use libc::c_int;
use lull_net::Shutdown;

use crate::files::{self, File};
use crate::{Errno, Result, kernel};

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Result<()> {
    let Some(file) = files::get(fd) else { return kernel::shutdown(fd, how) };
    let how_in_words = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(Errno::new(libc::EINVAL)),
    };
    match &*file {
        File::Stream(stream) => Ok(stream.stream.shutdown(how_in_words)?),
        File::Datagram(datagram) => {
            let shut = datagram.sockets.shutdown(how_in_words);
            // Its kernel's half has no peer either while lull's has none, and says so.
            if datagram.is_kernels_too() { kernel::shutdown(fd, how) } else { shut }
        }
        File::Listener(listener) => {
            if listener.both_worlds {
                kernel::shutdown(fd, how)?;
            }
            // Only the end of reading ends a listener (`inet_shutdown`).
            if how == libc::SHUT_WR {
                return Ok(());
            }
            listener.stopped.store(true, Ordering::Relaxed);
            Ok(listener.if_real().map_or(Ok(()), |real| real.shutdown(how_in_words))?)
        }
        File::Epoll(_) => Err(Errno::new(libc::ENOTSOCK)),
    }
}
