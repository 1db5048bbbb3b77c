//! UDP sockets: where one becomes lull's, and what both worlds have of it.
//!
//! The kernel's socket stays under the number and keeps its port. One that is bound to an own address is lull's alone. One
//! that is bound to a wildcard, or to nothing, is in both worlds: it hears both, and sends by lull what is for lull's
//! networks. With a peer it is in the peer's world alone.

pub(super) mod control;
mod cork;
mod errors;
mod message;
mod numbers;
mod options;
mod path_mtu;
mod receive;
mod send;
mod sockets;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::Relaxed};

use libc::c_int;
use lull_net::UdpOptions;

use self::control::Wanted;
pub(crate) use self::message::kernels;
pub use self::message::{Message, Room};
pub(crate) use self::numbers::{forget, leave};
pub(crate) use self::send::MSG_PROBE;
pub(crate) use self::sockets::Sockets;
use super::bind::bind_own;
use super::options::egress::Egress;
use super::options::{Options, buffers, steer};
use crate::files::{self, File, Open};
use crate::{Errno, Result, address, engine, epoll, kernel};

/// A UDP socket.
pub(crate) struct Datagram {
    pub(crate) sockets: Sockets,
    pub(crate) domain: c_int,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) options: Options,
    /// The ancillary data that the program has asked for.
    wanted: Wanted,
    /// Its port; [`ANY_PORT`] once it has lost the one that the kernel chose.
    port: AtomicU16,
    /// The socket is bound to a wildcard, and sends to both worlds.
    wildcard: AtomicBool,
    /// The kernel has a half of it, which is a member of epoll contexts beside lull's half. That is so if the socket is
    /// bound to a wildcard, or was when datagrams came that the kernel still has.
    pub(crate) in_halves: bool,
    /// The program chose its port. One that the kernel chose is lost with the peer (SOCK_BINDPORT_LOCK).
    keeps_port: AtomicBool,
    /// A part of a datagram that waits for the rest (MSG_MORE, UDP_CORK).
    cork: cork::Cork,
    /// The length of each datagram where one call sends several (UDP_SEGMENT). With 0 a call sends one.
    each_bytes: AtomicU16,
    /// The socket's peer is lull's.
    connected: AtomicBool,
    /// Which processes read it.
    readers: Readers,
}

/// Which processes read a UDP socket: the one that has it, and others that it is passed on to.
#[derive(Default)]
struct Readers {
    process: AtomicBool,
    others: AtomicU32,
}

/// Another process that reads a UDP socket, for as long as this is kept.
pub(crate) struct Reader(Open);

impl Reader {
    pub(crate) fn new(file: Open) -> Reader {
        let reader = Reader(file);
        reader.all().map(|readers| readers.others.fetch_add(1, Relaxed));
        reader
    }

    fn all(&self) -> Option<&Readers> {
        match &*self.0 {
            File::Datagram(datagram) => Some(&datagram.readers),
            _ => None,
        }
    }

    /// Whether no other process has read what comes.
    pub(crate) fn is_alone(&self) -> bool {
        self.all().is_some_and(|readers| !readers.process.load(Relaxed) && readers.others.load(Relaxed) == 1)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.all().map(|readers| readers.others.fetch_sub(1, Relaxed));
    }
}

impl Datagram {
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    /// Whether the kernel's half receives, too.
    pub(crate) fn is_kernels_too(&self) -> bool {
        self.in_halves && !self.connected.load(Relaxed)
    }

    /// Its name, if the placeholder does not know it, because the kernel does not know of a peer of lull's.
    pub(crate) fn own_name(&self) -> Option<std::io::Result<SocketAddr>> {
        self.connected.load(Relaxed).then(|| self.sockets.first().local_addr())
    }

    /// Its peer, if that is lull's.
    pub(crate) fn peer(&self) -> Option<std::io::Result<SocketAddr>> {
        self.connected.load(Relaxed).then(|| self.sockets.first().peer_addr())
    }

    /// `connect` on a number that is lull's. `file` is the open file of this socket.
    pub(crate) fn connect(&self, fd: c_int, file: &Open, bytes: &[u8]) -> Result<()> {
        match self.set_peer(fd, bytes)? {
            World::Lulls => Ok(()),
            World::Kernels => leave(fd, file, self.is_nonblocking()),
        }
    }

    /// Gives the socket a peer, or takes it away, with the kernel's half behind `fd`. Says whose it is from now on.
    pub(crate) fn set_peer(&self, fd: c_int, bytes: &[u8]) -> Result<World> {
        if address::family(bytes) == Some(libc::AF_UNSPEC) {
            return self.disconnect(fd);
        }
        // A port is found whatever is wrong with the address (`inet_dgram_connect`).
        self.find_port(fd)?;
        let to = self.parse_peer(fd, bytes)?;
        if engine::reaches(to.ip()) || !self.wildcard.load(Relaxed) {
            self.sockets.connect(to)?;
            self.connected.store(true, Relaxed);
            return kernel::hear_nothing(fd).map(|()| World::Lulls);
        }
        if self.connected.load(Relaxed) {
            kernel::hear_again(fd);
        }
        // It receives from its peer only, and the peer is the kernel's.
        kernel::connect(fd, bytes).map(|()| World::Kernels)
    }

    /// A peer's address: one of IPv4 will do for a socket of IPv6 that hears IPv4 (`__ip6_datagram_connect`).
    fn parse_peer(&self, fd: c_int, bytes: &[u8]) -> Result<SocketAddr> {
        match (address::family(bytes), self.domain) {
            (Some(libc::AF_INET), libc::AF_INET6) if !is_v6_only(fd) => address::parse_or_refuse(bytes, libc::AF_INET),
            _ => address::parse_or_refuse(bytes, self.domain),
        }
    }

    /// `__udp_disconnect`.
    fn disconnect(&self, fd: c_int) -> Result<World> {
        if self.connected.swap(false, Relaxed) {
            kernel::hear_again(fd);
        }
        if self.keeps_port.load(Relaxed) {
            return self.sockets.disconnect().map(|()| World::Lulls);
        }
        kernel::disconnect(fd)?;
        // What came before can still be read.
        self.port.store(ANY_PORT, Relaxed);
        self.sockets.lose_port().map(|()| World::Lulls)
    }

    /// Whether it has a peer of lull's.
    pub(crate) fn has_peer(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Whether the program chose its port.
    pub(crate) fn keeps_port(&self) -> bool {
        self.keeps_port.load(Relaxed)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.load(Relaxed)
    }

    /// A socket that has lost its port gets another one by the next call that needs one.
    #[inline]
    pub(super) fn find_port(&self, fd: c_int) -> Result<()> {
        if self.port() == ANY_PORT { self.autobind(fd) } else { Ok(()) }
    }

    /// `inet_autobind`.
    #[cold]
    fn autobind(&self, fd: c_int) -> Result<()> {
        let local = local_of(fd).ok_or(Errno::new(libc::EBADF))?;
        bind_own(fd, &address::Bytes::new(local, self.domain))?;
        self.found_port(fd, local_of(fd).ok_or(Errno::new(libc::EBADF))?)
    }

    /// The placeholder had lost its port and has one again.
    fn found_port(&self, fd: c_int, local: SocketAddr) -> Result<()> {
        self.sockets.bind_again(local, udp_options(fd))?;
        self.port.store(local.port(), Relaxed);
        Ok(())
    }
}

/// Whose a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// The socket is lull's, or in both worlds.
    Lulls,
    /// The socket is the kernel's alone.
    Kernels,
}

const ANY_PORT: u16 = 0;

/// The family of a UDP socket of the kernel's; nothing if it is anything else.
fn domain_of(fd: c_int) -> Option<c_int> {
    let option = |name| kernel::int_option(fd, libc::SOL_SOCKET, name).ok();
    (option(libc::SO_PROTOCOL)? == libc::IPPROTO_UDP && option(libc::SO_TYPE)? == libc::SOCK_DGRAM)
        .then(|| option(libc::SO_DOMAIN))
        .flatten()
}

/// Whether it is a UDP socket of the kernel's.
pub(crate) fn is_udp(fd: c_int) -> bool {
    domain_of(fd).is_some()
}

/// Called when a UDP socket was bound. It becomes lull's, or gets a half of lull's, if its address is of that kind.
/// `keeps_port` says whether the program chose the port.
pub(super) fn bound(fd: c_int, keeps_port: bool) -> Result<()> {
    let Some(domain) = domain_of(fd) else { return Ok(()) };
    let Some(local) = local_of(fd).filter(|local| local.port() != ANY_PORT && engine::takes(local.port())) else {
        return Ok(());
    };
    if let Some(file) = files::get(fd) {
        return bound_again(fd, &file, local, keeps_port);
    }
    if engine::is_own(local.ip()) {
        return adopt(fd, domain, local, keeps_port);
    }
    if local.ip().is_unspecified() && engine::has_family(local.ip(), is_v6_only(fd)) {
        return match adopt(fd, domain, local, keeps_port) {
            Err(error) if error.number() == libc::EADDRINUSE => Err(error),
            // If there is no half of lull's, the program serves the kernel's world as it would without lull. The reason
            // is reported once.
            _ => Ok(()),
        };
    }
    Ok(())
}

/// A UDP socket that another process had is this one's by `fd`, and by other numbers that are in the table already.
pub(crate) fn is_again(fd: c_int, keeps_port: bool) -> Result<()> {
    let inode = kernel::inode(fd)?;
    let is_it = |number: &c_int| *number != fd && kernel::inode(*number) == Ok(inode);
    match files::numbers().find(is_it).and_then(files::get) {
        // A socket is one member of a context of lull's, whatever numbers it was added by.
        Some(open) => match epoll::becomes_lulls(fd, || files::put_open(fd, open)) {
            Err(error) if error.number() == libc::EEXIST => Ok(()),
            joined => joined,
        },
        None => bound(fd, keeps_port),
    }
}

/// One that had lost its port was bound. What came to it stays to be read if it is lull's still, and if it has the kernel's half that
/// it needs: what came to it by lull is lost if it was bound to an own address before, and is bound to a wildcard or to the kernel's.
fn bound_again(fd: c_int, file: &Open, local: SocketAddr, keeps_port: bool) -> Result<()> {
    let File::Datagram(datagram) = &**file else { return Ok(()) };
    if engine::is_own(local.ip()) || datagram.in_halves && local.ip().is_unspecified() {
        datagram.keeps_port.store(keeps_port, Relaxed);
        datagram.wildcard.store(local.ip().is_unspecified(), Relaxed);
        return datagram.found_port(fd, local);
    }
    leave(fd, file, datagram.is_nonblocking())?;
    bound(fd, keeps_port)?;
    // A pending error belongs to the socket, wherever it is bound.
    match files::get(fd).as_deref() {
        Some(File::Datagram(now)) => datagram.sockets.move_errors(&now.sockets),
        _ => Ok(()),
    }
}

fn local_of(fd: c_int) -> Option<SocketAddr> {
    address::parse(kernel::getsockname(fd).ok()?.as_bytes())
}

/// Whether a socket of the kernel's is one of IPv6 that neither hears nor reaches IPv4.
pub(super) fn is_v6_only(fd: c_int) -> bool {
    kernel::int_option(fd, libc::SOL_IPV6, libc::IPV6_V6ONLY) == Ok(1)
}

/// A UDP socket of the kernel's is to send to `to`, which is lull's: it gets a half of lull's, unless it is bound or connected
/// to what is the kernel's.
pub(super) fn reach(fd: c_int, to: &[u8]) -> Result<bool> {
    let Some(domain) = domain_of(fd) else { return Ok(false) };
    // The kernel judges an address of another family than the socket's, and one of IPv4 that the socket does not reach.
    let is_v4 = address::parse(to).is_some_and(|to| to.is_ipv4());
    let fits = address::family(to) == Some(domain) || is_v4 && domain == libc::AF_INET6;
    if !fits || is_v4 && is_v6_only(fd) || kernel::getpeername(fd).is_ok() {
        return Ok(false);
    }
    let Some(mut local) = local_of(fd) else { return Ok(false) };
    let is_own = engine::is_own(local.ip());
    if !local.ip().is_unspecified() && !is_own || !engine::takes(local.port()) || !is_own && engine::has_no_queue() {
        return Ok(false);
    }
    if local.port() == ANY_PORT {
        // The kernel finds a port, which then nobody else has.
        bind_own(fd, &address::Bytes::new(local, domain))?;
        local = local_of(fd).ok_or(Errno::new(libc::EBADF))?;
    }
    adopt(fd, domain, local, false).map(|()| true)
}

/// Gives lull's half the settings of the placeholder.
fn udp_options(fd: c_int) -> UdpOptions {
    let flag = |name| kernel::int_option(fd, libc::SOL_SOCKET, name).is_ok_and(|value| value != 0);
    UdpOptions {
        reuse_port: flag(libc::SO_REUSEPORT),
        reuse_address: flag(libc::SO_REUSEADDR),
        v6_only: is_v6_only(fd),
        rx_bytes: buffers::receive_buffer(fd),
    }
}

fn adopt(fd: c_int, domain: c_int, local: SocketAddr, keeps_port: bool) -> Result<()> {
    numbers::join(fd, opened(fd, domain, local, keeps_port)?)
}

/// lull's half of a socket that a child of `fork` has bound.
pub(crate) fn of_a_child(fd: c_int, keeps_port: bool) -> Result<Open> {
    let (Some(domain), Some(local)) = (domain_of(fd), local_of(fd)) else { return Err(Errno::new(libc::EINVAL)) };
    opened(fd, domain, local, keeps_port)
}

fn opened(fd: c_int, domain: c_int, local: SocketAddr, keeps_port: bool) -> Result<Open> {
    let engine = engine::engine()?;
    let wanted = Wanted::default();
    wanted.renew(fd);
    let datagram = Datagram {
        sockets: Sockets::open(&engine.network, local, udp_options(fd))?,
        domain,
        nonblocking: AtomicBool::new(kernel::is_nonblocking(fd)),
        options: Options::of_placeholder(fd),
        wanted,
        port: AtomicU16::new(local.port()),
        wildcard: AtomicBool::new(local.ip().is_unspecified()),
        in_halves: local.ip().is_unspecified() || kernel::is_readable(fd),
        keeps_port: AtomicBool::new(keeps_port),
        cork: cork::Cork::new(kernel::int_option(fd, libc::SOL_UDP, libc::UDP_CORK) == Ok(1)),
        each_bytes: AtomicU16::new(kernel::int_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT).unwrap_or(0) as u16),
        connected: AtomicBool::new(false),
        readers: Readers::default(),
    };
    let program = steer::take_remembered(kernel::inode(fd)?, local);
    program.map_or(Ok(()), |program| datagram.sockets.steer(Some(&program)))?;
    if kernel::int_option(fd, libc::SOL_UDP, libc::UDP_GRO) == Ok(1) {
        datagram.sockets.set_gro(true)?;
    }
    datagram.options.busy().for_each(|(name, value)| datagram.sockets.set_busy(name, value));
    let egress = Egress::of_placeholder(fd);
    if egress != Egress::default() {
        datagram.sockets.put_egress(egress);
    }
    path_mtu::put(fd, &datagram.sockets);
    errors::put(fd, &datagram.sockets);
    files::open(File::Datagram(datagram))
}
