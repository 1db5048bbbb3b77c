//! TCP sockets that are bound where lull listens, and do not listen yet.
//!
//! One process may bind a socket and leave it to several others to call `listen` (the workers of uvicorn, and of node). On Linux they
//! share what comes, since the socket is one. So its pool is made here, before anybody else has the socket, and goes with it as a
//! listener's does: to a child with all that it inherits, to a program that is executed (`kept.rs`), and to another process over a
//! Unix socket (`inherit/passing/listener.rs`). To those that listen it is as if whoever bound the socket had done so first.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use super::listen::{bound_stream, worlds};
use super::pool::{ForAnother, Pool};
use crate::flows::{Kept, NOT_LISTENING};
use crate::{engine, flows, kernel};

pub(crate) struct Bound {
    inode: u32,
    at: SocketAddr,
    /// The process that bound the socket.
    bound_in: u32,
    /// The socket's pool, until this process listens.
    pool: Mutex<Option<Pool>>,
    /// Another process has been given it over a Unix socket.
    passed_on: AtomicBool,
}

/// What a process that listens on the socket needs of it.
pub(super) struct Shared {
    pub(super) bound_in: u32,
    pub(super) pool: Pool,
    pub(super) passed_on: bool,
}

static BOUND: lull_fd::Files<Bound> = lull_fd::Files::new();

/// A socket has been bound to a port that the program chose.
pub(super) fn note(fd: c_int) {
    // If there is no free number, or no room in the table, each process that listens there does so for itself.
    if engine::listens_lazily()
        && let Some(at) = bound_stream(fd).filter(|at| worlds(fd, *at).is_some())
        && let (Ok(inode), Ok(pool)) = (kernel::inode(fd), Pool::new())
    {
        put(fd, inode, at, std::process::id(), pool);
    }
}

fn put(fd: c_int, inode: u32, at: SocketAddr, bound_in: u32, pool: Pool) {
    let passed_on = AtomicBool::new(false);
    if let Some(bound) = BOUND.open(Bound { inode, at, bound_in, pool: Mutex::new(Some(pool)), passed_on }) {
        let _ = BOUND.install(fd, bound);
    }
}

/// Called when this process listens on the socket.
pub(super) fn listens(fd: c_int) -> Option<Shared> {
    let bound = get(fd)?;
    let pool = bound.pool.try_lock().ok()?.take()?;
    Some(Shared { bound_in: bound.bound_in, pool, passed_on: bound.passed_on.load(Ordering::Relaxed) })
}

/// The socket behind a number, which may have been closed unseen.
fn get(fd: c_int) -> Option<lull_fd::Open<Bound>> {
    BOUND.get(fd).filter(|bound| kernel::inode(fd) == Ok(bound.inode))
}

/// Whether a number is such a socket.
#[inline]
pub(crate) fn is_one(fd: c_int) -> bool {
    BOUND.contains(fd)
}

/// The numbers of such sockets.
pub(crate) fn numbers() -> impl Iterator<Item = c_int> {
    BOUND.numbers()
}

/// The number stands for something else from now on.
#[inline]
pub(crate) fn forget(fd: c_int) {
    if BOUND.contains(fd) {
        drop(BOUND.take(fd));
    }
}

/// `to` stands for what `fd` stands for from now on.
pub(crate) fn duplicated(fd: c_int, to: c_int) {
    if let Some(bound) = BOUND.get(fd) {
        let _ = BOUND.install(to, bound);
    }
}

/// Has `give` give the socket behind a number to another process.
pub(crate) fn pass_on<T>(fd: c_int, give: impl FnOnce(&ForAnother<'_>) -> T) -> Option<T> {
    let bound = get(fd)?;
    let pool = bound.pool.try_lock().ok()?;
    let domain = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    let ends = pool.as_ref()?.ends();
    let given = give(&ForAnother { called_in: bound.bound_in, ends, backlog: NOT_LISTENING, bound: bound.at, domain });
    bound.passed_on.store(true, Ordering::Relaxed);
    Some(given)
}

/// Called when a program is about to be executed, which finds the sockets that stay open. Returns whether there are
/// any.
pub(super) fn hand_on() -> bool {
    let Some(flows) = flows::of_the_program() else { return false };
    let mut any = false;
    for number in numbers() {
        let stays = kernel::fcntl(number, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
        let Some(bound) = get(number).filter(|_| stays) else { continue };
        let Ok(pool) = bound.pool.try_lock() else { continue };
        let Some(pool) = pool.as_ref().and_then(Pool::hand_on) else { continue };
        let (inode, called_in, noted_in) = (bound.inode, bound.bound_in, std::process::id());
        flows.keep(&Kept { inode, number, called_in, noted_in, backlog: NOT_LISTENING, pool: Some(pool) });
        any = true;
    }
    any
}

/// Called when no program was executed after all.
pub(super) fn keep_here() {
    for bound in numbers().filter_map(get) {
        if let Ok(Some(pool)) = bound.pool.try_lock().as_deref() {
            pool.keep_here();
        }
    }
}

/// Makes such a socket this process's own, from what was kept of it or came from another process.
pub(super) fn adopt(kept: &Kept, pool: Option<Pool>) {
    let at = bound_stream(kept.number).filter(|at| worlds(kept.number, *at).is_some());
    // As in `note`; where it is connected by now it is not asked again.
    if let (Some(at), Some(pool)) = (at, pool) {
        put(kept.number, kept.inode, at, kept.called_in, pool);
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let pool = self.pool.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        // Processes that listened may have left connections to whoever listens next, which is this one.
        if pool.is_some_and(|pool| !pool.leaves_another()) {
            flows::of_the_program().inspect(|flows| flows.closed_for_good(self.inode));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::{epoll, files};

    #[test]
    fn a_number_of_lulls_that_is_made_one_is_one() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, at) = (socket.as_raw_fd(), socket.local_addr().unwrap());
        put(fd, kernel::inode(fd).unwrap(), at, std::process::id(), Pool::new().unwrap());
        let to = kernel::epoll_create(libc::EPOLL_CLOEXEC).unwrap();
        epoll::adopt(to, &[]).unwrap();
        assert_eq!(files::duplicate_to(fd, to, libc::O_CLOEXEC), Ok(to));
        assert!(get(to).is_some() && !files::is_known(to));
        files::close(to).unwrap();
        forget(fd);
    }
}
