//! `accept`: connections of lull, and of the kernel where the listener is in both worlds.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Instant;

use libc::c_int;
use lull_net::{Interest, Ready, TcpListener, TcpStream};

use super::options::Options;
use super::pool::{self, Taken};
use super::stream::accepted;
use super::{Listener, turn};
use crate::address::Name;
use crate::errno::WOULD_BLOCK;
use crate::files::{self, File};
use crate::{Errno, Result, address, block, inherit, kernel, leaving, signals};

/// What was accepted: its number, and its peer's address in the kernel's form.
pub struct Accepted {
    /// The number.
    pub fd: c_int,
    peer: Name,
}

impl Accepted {
    /// The peer's address.
    pub fn peer(&self) -> &[u8] {
        self.peer.as_bytes()
    }
}

/// `accept4`.
pub fn accept(fd: c_int, flags: c_int) -> Result<Accepted> {
    let file = if files::is_lull_to_wait(fd) { files::get(fd) } else { None };
    let Some(file) = file else {
        return if inherit::made::is_listener(fd) { by_the_parent(fd, flags) } else { kernels(fd, flags) };
    };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Errno::new(libc::EINVAL));
    }
    let listener = match &*file {
        File::Listener(listener) => listener,
        File::Stream(_) => return Err(Errno::new(libc::EINVAL)),
        File::Datagram(_) => return Err(Errno::new(libc::EOPNOTSUPP)),
        File::Epoll(_) => return Err(Errno::new(libc::ENOTSOCK)),
    };
    let real = match listener.real() {
        Ok(real) => real,
        Err(_) if listener.shared().is_some() => return without_queue(fd, listener, flags),
        // Another process has the NIC.
        Err(_) if listener.both_worlds => return kernels_alone(fd, listener, flags),
        Err(error) => return Err(error),
    };
    match once(fd, listener, real, flags) {
        Err(error) if error == WOULD_BLOCK && !listener.nonblocking.load(Ordering::Relaxed) => {
            wait(fd, listener, real, flags).inspect_err(|_| leaving::rests_while_leaving())
        }
        other => other,
    }
}

/// `accept` of a listener that another process has for this one.
fn by_the_parent(fd: c_int, flags: c_int) -> Result<Accepted> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Errno::new(libc::EINVAL));
    }
    let until = Options::of_placeholder(fd).receive_timeout().map(|timeout| Instant::now() + timeout);
    let (number, peer) = loop {
        match inherit::made::accept(fd, flags) {
            // Another process that waits may get the connection that comes.
            Err(WOULD_BLOCK) if !kernel::is_nonblocking(fd) => {
                pool::wait_in_kernel(fd, until.map(|until| until.saturating_duration_since(Instant::now())))?;
            }
            // The process that had it has ended, and the listener is this process's own now.
            Err(_) if inherit::goes_on_soon() && !inherit::made::is_listener(fd) => return accept(fd, flags),
            other => break other?,
        }
    };
    files::forget(number);
    Ok(Accepted { fd: number, peer: Name::Lulls(inherit::made::peers_name(fd, peer)) })
}

/// `accept` in a process that has no queue of the NIC.
fn without_queue(fd: c_int, listener: &Listener, flags: c_int) -> Result<Accepted> {
    let until = listener.options.receive_timeout().map(|timeout| Instant::now() + timeout);
    loop {
        match others_now(fd, listener, flags) {
            Err(error) if error == WOULD_BLOCK => {}
            other => return other,
        }
        if listener.takes_over() {
            return accept(fd, flags);
        }
        if listener.nonblocking.load(Ordering::Relaxed) {
            // Connections come into the pool only once it has been asked for one.
            listener.pool_context();
            return Err(WOULD_BLOCK);
        }
        let kernels = listener.both_worlds.then_some(fd);
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        if !listener.wait_without_queue(kernels, timeout)? {
            return Err(WOULD_BLOCK);
        }
    }
}

/// A connection out of the listener's pool, or one of the kernel's half.
fn others_now(fd: c_int, listener: &Listener, flags: c_int) -> Result<Accepted> {
    let domain = listener.domain;
    let taken = listener.shared().map_or(Ok(None), |pool| pool.take(domain, flags))?;
    match taken {
        Some(Taken::Passed(fd, peer)) => {
            files::forget(fd);
            Ok(Accepted { fd, peer: Name::Lulls(address::Bytes::new(peer, domain)) })
        }
        Some(Taken::Own(file, peer)) => {
            let number = Number(placeholder(domain, flags & libc::SOCK_CLOEXEC != 0)?);
            let File::Stream(stream) = &*file else { return Err(WOULD_BLOCK) };
            stream.nonblocking.store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
            files::put_open(number.0, file)?;
            Ok(Accepted { fd: number.used(), peer: Name::Lulls(address::Bytes::new(peer, domain)) })
        }
        Some(Taken::Kernels(fd)) => {
            files::forget(fd);
            Ok(Accepted { fd, peer: Name::Kernels(kernel::getpeername(fd)?) })
        }
        None if listener.both_worlds => kernels_now(fd, flags),
        None => Err(WOULD_BLOCK),
    }
}

/// Waits for a connection. If another thread closes the number meanwhile, or gives it to another file, this still waits
/// for the kernel's half.
fn wait(fd: c_int, listener: &Listener, real: &TcpListener, flags: c_int) -> Result<Accepted> {
    let kept = if listener.both_worlds { kernel::kept_duplicate(fd).ok() } else { None };
    // If there is no free number for such a descriptor, the program's own has to do.
    let fd = kept.as_ref().map_or(fd, AsRawFd::as_raw_fd);
    // The timeout is read once for the whole of a call (`sock_rcvtimeo` in `inet_csk_accept`).
    let until = listener.options.receive_timeout().map(|timeout| Instant::now() + timeout);
    loop {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let kernels = [listener.both_worlds.then_some(fd), listener.pool_context()];
        if !block::until_any_ready(real, Interest::READABLE, kernels.into_iter().flatten(), timeout)? {
            return Err(WOULD_BLOCK);
        }
        // A handler that ends the process would end the connection with it, so handlers run before one is taken.
        if signals::is_interrupted() {
            return signals::or_restarts(Err(signals::INTERRUPTED), timeout);
        }
        match once(fd, listener, real, flags) {
            Err(error) if error == WOULD_BLOCK && !listener.nonblocking.load(Ordering::Relaxed) => {}
            other => return other,
        }
    }
}

/// The number comes before the connection (`__sys_accept4_file`): without a free one, the connection waits for a later call.
fn once(fd: c_int, listener: &Listener, real: &TcpListener, flags: c_int) -> Result<Accepted> {
    if real.ready().intersects(Ready::READABLE | Ready::ERR | Ready::HUP) {
        let number = Number(placeholder(listener.domain, flags & libc::SOCK_CLOEXEC != 0)?);
        match real.accept().map_err(Errno::from) {
            Ok((stream, peer)) => return lulls(listener, stream, peer, number, flags),
            // Another thread has it.
            Err(WOULD_BLOCK) => {}
            Err(error) => return Err(error),
        }
    }
    others_now(fd, listener, flags)
}

/// A number behind which there is nothing yet. It is given back if that stays so.
struct Number(c_int);

impl Number {
    fn used(self) -> c_int {
        let number = self.0;
        std::mem::forget(self);
        number
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        kernel::discard(self.0);
    }
}

/// `accept` of a listener of which only the kernel's half has connections for this process.
fn kernels_alone(fd: c_int, listener: &Listener, flags: c_int) -> Result<Accepted> {
    let until = listener.options.receive_timeout().map(|timeout| Instant::now() + timeout);
    loop {
        match kernels_now(fd, flags) {
            Err(WOULD_BLOCK) if !listener.nonblocking.load(Ordering::Relaxed) => {
                pool::wait_in_kernel(fd, until.map(|until| until.saturating_duration_since(Instant::now())))?;
            }
            other => return other,
        }
    }
}

/// A connection of the kernel's, if one waits.
fn kernels_now(fd: c_int, flags: c_int) -> Result<Accepted> {
    turn::accept(fd, flags).map(of_the_kernels)
}

fn kernels(fd: c_int, flags: c_int) -> Result<Accepted> {
    kernel::accept4(fd, flags).map(of_the_kernels)
}

fn of_the_kernels((number, peer): (c_int, kernel::RawAddress)) -> Accepted {
    files::forget(number);
    Accepted { fd: number, peer: Name::Kernels(peer) }
}

fn lulls(listener: &Listener, stream: TcpStream, peer: SocketAddr, number: Number, flags: c_int) -> Result<Accepted> {
    let file = accepted(listener.domain, listener.options.inherited(), stream, peer, flags)?;
    let peer = address::Bytes::new(peer, listener.domain);
    files::put(number.0, File::Stream(file))?;
    Ok(Accepted { fd: number.used(), peer: Name::Lulls(peer) })
}

/// A number for a connection: a duplicate of a socket that is kept for this and never used, at a tenth of the price of a new
/// one. Whoever asks the kernel about it sees a TCP socket without a peer.
fn placeholder(domain: c_int, cloexec: bool) -> Result<c_int> {
    static V4: OnceLock<c_int> = OnceLock::new();
    static V6: OnceLock<c_int> = OnceLock::new();
    let cell = if domain == libc::AF_INET6 { &V6 } else { &V4 };
    let sentinel = match cell.get() {
        Some(sentinel) => *sentinel,
        None => {
            let made = kernel::own_socket(domain, libc::SOCK_STREAM)?.into_raw_fd();
            *cell.get_or_init(|| made)
        }
    };
    kernel::duplicate(sentinel, 0, cloexec)
}
