//! Sockets of lull behind numbers of the kernel.
//!
//! A socket is the kernel's until a call says whose it is: `listen` on an address that was bound, `connect`; for UDP `bind`,
//! too, and `sendto`. Until then its number is not in the table, its options are stored by the kernel, and nothing here costs
//! anything. When it becomes lull's, the kernel's socket stays under the number as a placeholder, and its options are read
//! from it.

mod accept;
mod bind;
pub(crate) mod bound;
mod connect;
mod data;
pub(crate) mod datagram;
mod failed;
mod kept;
mod linger;
mod listen;
mod messages;
mod name;
pub(crate) mod options;
pub(crate) mod pool;
mod sendfile;
mod shutdown;
pub(crate) mod splice;
mod stream;
mod turn;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use libc::c_int;
use lull_net::lull_bpf::Chooser;
use lull_net::{ListenOptions, TcpListener, TcpStream};

use options::Options;

use crate::flows::Taken;
use crate::{claimed, engine, files, inherit};

pub use accept::accept;
pub use bind::bind;
pub(crate) use bind::{bind_own, may_be_another_listeners, refuse_a_listeners};
pub use connect::{connect, connect_by_lull, connects, is_destination, sends_by_lull};
pub use data::{Receive, Send, read, recv, recv_message, send, send_message, write, writev};
pub(crate) use datagram::{Datagram, Reader, World};
pub use datagram::{Message, Room};
pub(crate) use kept::{Before, adopt, adopt_kept, adopt_with, hand_on, keep_here, listen_as_before, listeners_before};
pub use listen::listen;
pub(crate) use listen::{asked, await_unasked};
pub use messages::{
    goes_by_lull, may_be_sent_in_turn, message_goes_by_lull, recvfrom, recvmmsg, recvmsg, recvmsg_of_several,
    send_in_turn, sendmmsg, sendmsg, sendto,
};
pub use name::{getpeername, getsockname, has_names, is_named};
pub use options::call::{getsockopt, setsockopt};
pub use options::steer::{may_steer, steers};
pub(crate) use pool::{ends_unless_used, has_listener, is_anothers, leave_untaken, outstay};
pub use sendfile::sendfile;
pub use shutdown::shutdown;
pub use splice::splice;
pub(crate) use stream::connected;

/// Whether sockets that this process makes may be lull's, of its own engine or of its parent's on its behalf.
#[inline]
pub fn may_be_lulls() -> bool {
    engine::is_engaged() || inherit::made::has_parent()
}

/// Whether a number's connections are accepted here.
#[inline]
pub fn accepts(fd: c_int) -> bool {
    files::is_lull_to_wait(fd) || inherit::made::is_listener(fd)
}

/// A listening TCP socket, in lull's world and, if it is bound to a wildcard, in the kernel's as well.
///
/// lull's half is made in the process that first asks for connections: a server's workers inherit listeners that the process
/// which made them never accepts from.
pub(crate) struct Listener {
    /// No other listener of this process has the same.
    pub(crate) id: u64,
    /// By this a context knows whether it is closed.
    pub(crate) open: Arc<()>,
    /// The placeholder's inode: the same in every process that inherited it.
    inode: u32,
    pub(crate) bound: SocketAddr,
    asked: ListenOptions,
    /// The process that called `listen`.
    called_in: u32,
    real: OnceLock<Arc<TcpListener>>,
    /// Held by the thread that makes it.
    becoming: Mutex<()>,
    /// As `listen` said last.
    backlog: AtomicUsize,
    /// It was shut down. It is still bound, and can listen or connect anew.
    pub(crate) stopped: AtomicBool,
    /// The placeholder listens as well, and connections of both worlds are accepted.
    pub(crate) both_worlds: bool,
    pub(crate) domain: c_int,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) options: Options,
    /// Where processes without a queue get their connections from; `None` if the program is a single process.
    pool: Option<pool::Pool>,
    /// The program that chooses among the listeners of its address. It is kept here until lull's half has it.
    program: Mutex<Option<Arc<Chooser>>>,
    /// A program that is executed has it open, so that closing it here does not close it for good.
    handed_on: AtomicBool,
    /// This process has called `listen`, and children of it, or processes that it was passed on to, have it as well.
    has_heirs: AtomicBool,
    /// Another process has been given it over a Unix socket.
    passed_on: AtomicBool,
}

/// A TCP connection.
pub(crate) struct Stream {
    pub(crate) stream: TcpStream,
    pub(crate) domain: c_int,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) options: Options,
    /// A [`Connecting`].
    pub(crate) connecting: AtomicU8,
    /// Its own address and its peer's. They are here for a child of `fork`, in which the stack's locks may be held for
    /// ever.
    pub(crate) names: (SocketAddr, SocketAddr),
    /// Its place among the connections that somebody outlives.
    pub(crate) _flow: Flow,
}

/// How far `connect` is with a connection (`enum socket_state`).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connecting {
    /// Its outcome was told, or the connection was accepted and had none.
    Over,
    /// `connect` has begun, and no call has told its outcome yet.
    UnderWay,
    /// It was shut down after it had failed, and before that was told.
    Disconnecting,
}

impl Stream {
    pub(crate) fn is_connecting(&self, how_far: Connecting) -> bool {
        self.connecting.load(Ordering::Acquire) == how_far as u8
    }

    /// Whether its number may be the placeholder's alone again, because the connection fails.
    pub(crate) fn may_be_handed_back(&self) -> bool {
        !self.is_connecting(Connecting::Over)
    }

    pub(crate) fn set_connecting(&self, how_far: Connecting) {
        self.connecting.store(how_far as u8, Ordering::Release);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }
}

/// A connection's place in [`crate::Flows`], if there is such a table. It is given back when the connection is closed.
pub(crate) struct Flow(Option<Taken>);

impl Flow {
    fn of(local: SocketAddr, remote: SocketAddr) -> Flow {
        // Both ends of a connection to one of lull's own addresses are in this process, so that neither outlives the
        // other.
        let flows = engine::running().filter(|_| !engine::is_own(remote.ip())).and_then(|engine| engine.flows.as_ref());
        Flow(flows.zip(claimed::first()).and_then(|(flows, queue)| flows.opened(local, remote, queue)))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let flows = engine::running().and_then(|engine| engine.flows.as_ref());
        if let (Some(flow), Some(flows)) = (self.0.take(), flows) {
            flows.closed(flow);
        }
    }
}
