//! The sockets of a world that are no connection of a client: the ends of request/response pairs, and AF_XDP sockets.
//!
//! Each has a connection of its own all the same, by which its packets are known: those of message sockets come after the
//! clients', those of AF_XDP sockets after them.

use crate::engine::epoll::Item;
use crate::engine::id::{ConnId, SocketId, Table, XskId};
use crate::engine::socket::Socket;
use crate::engine::xsk::Xsk;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) sockets: Table<SocketId, Socket>,
    /// The connection of the first socket.
    pub(crate) first_socket: ConnId,
    pub(crate) xsks: Table<XskId, Xsk>,
    /// The connection of the first AF_XDP socket.
    pub(crate) first_xsk: ConnId,
}

impl Ends {
    pub(crate) fn new() -> Ends {
        let none = ConnId::new(0);
        Ends { sockets: Table::new(), first_socket: none, xsks: Table::new(), first_xsk: none }
    }

    /// The socket whose connection this is.
    pub(crate) fn socket_of(&self, conn: ConnId) -> SocketId {
        SocketId::new(conn.after(self.first_socket))
    }

    /// The AF_XDP socket whose connection this is, if it is one's.
    pub(crate) fn xsk_of(&self, conn: ConnId) -> Option<XskId> {
        (conn >= self.first_xsk).then(|| XskId::new(conn.after(self.first_xsk)))
    }

    /// An AF_XDP socket as its epoll context has it.
    pub(crate) fn item_of(&self, xsk: XskId) -> Item {
        Item::Connection(self.first_xsk.plus(xsk.raw()))
    }

    /// A message of this socket leaves the ring: when its transaction began.
    pub(crate) fn take_message(&mut self, socket: SocketId) -> Option<u64> {
        self.sockets[socket].ring.pop_front()
    }
}
