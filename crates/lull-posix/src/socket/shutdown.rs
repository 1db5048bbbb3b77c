//! `shutdown`.

use std::sync::atomic::Ordering;

use libc::c_int;
use lull_net::Shutdown;

use super::Connecting;
use super::failed::is_as_before;
use crate::files::{self, File};
use crate::{Errno, Result, elsewhere, kernel};

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Result<()> {
    let Some(file) = files::get(fd) else { return kernel::shutdown(fd, how) };
    if let File::Epoll(_) = &*file {
        return Err(Errno::new(libc::ENOTSOCK));
    }
    let how_in_words = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(Errno::new(libc::EINVAL)),
    };
    match &*file {
        File::Stream(stream) => {
            let is = |state| stream.stream.info().is_ok_and(|info| info.state == state);
            let was_opening = is("SYN-SENT");
            let shut = stream.stream.shutdown(how_in_words);
            if was_opening && is("CLOSED") {
                // The peer had not answered yet.
                is_as_before(fd, &file, stream);
            } else if stream.is_connecting(Connecting::UnderWay) {
                // Where there is a connection, `connect` has nothing more to tell (`inet_shutdown`).
                stream.set_connecting(if shut.is_ok() { Connecting::Over } else { Connecting::Disconnecting });
            }
            Ok(shut?)
        }
        File::Datagram(datagram) => {
            let shut = datagram.sockets.shutdown(how_in_words);
            // While lull's half has no peer, the kernel's half has none either, and says so. While lull's half has one,
            // the kernel's is shut down as well, for the time when lull's has none any more.
            let kernels = kernel::shutdown(fd, how);
            if datagram.is_kernels_too() { kernels } else { shut }
        }
        File::Listener(listener) => {
            if listener.stopped.load(Ordering::Acquire) {
                return Err(Errno::new(libc::ENOTCONN));
            }
            // Only shutting down reading ends a listener (`inet_shutdown`), but every call wakes those who watch it.
            if how == libc::SHUT_WR {
                if listener.both_worlds {
                    kernel::shutdown(fd, how)?;
                }
                return Ok(listener.if_real().map_or(Ok(()), |real| real.shutdown(how_in_words))?);
            }
            if !listener.both_worlds {
                // The kernel decides what of the address such an end leaves (`tcp_disconnect`), so its socket listens for a moment.
                kernel::listen(fd, 0)?;
            }
            kernel::shutdown(fd, how)?;
            listener.stopped.store(true, Ordering::Release);
            let shut = listener.if_real().map_or(Ok(()), |real| real.shutdown(how_in_words));
            // From here on whoever connects is refused, because the socket is shut down in every process that has it.
            elsewhere::others().inspect(|others| others.listens_no_more(listener.inode, false));
            Ok(shut?)
        }
        File::Epoll(_) => Err(Errno::new(libc::ENOTSOCK)),
    }
}
