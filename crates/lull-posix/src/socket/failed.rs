//! What becomes of the number of a connection that has failed, or never came about.

use libc::c_int;

use super::Stream;
use crate::files::{self, Open};
use crate::{address, epoll, kernel};

/// The connection of a socket has failed: a port that the kernel had chosen for it is free again (`tcp_done`, `inet_put_port`). Its
/// placeholder, which is bound only, comes to that by listening for a moment.
fn lose_port(fd: c_int) {
    let bound = kernel::getsockname(fd).ok().and_then(|name| address::parse(name.as_bytes()));
    if bound.is_some_and(|bound| bound.port() != 0) && kernel::listen(fd, 0).is_ok() {
        // The placeholder listens, so this cannot fail.
        let _ = kernel::shutdown(fd, libc::SHUT_RD);
    }
}

/// There never was a connection: the socket is what it was before, the placeholder, which can be connected anew (`tcp_disconnect`).
pub(super) fn is_as_before(fd: c_int, file: &Open, stream: &Stream) {
    lose_port(fd);
    let numbers = files::hand_back(fd, file, stream.is_nonblocking());
    epoll::is_the_kernels(&numbers, &stream.stream);
}
