//! The sockets of a world that are not connections of clients: the ends of request/response pairs, and AF_XDP sockets.
//!
//! Each has a connection as well, by which its packets are recognised: those of message sockets come after the
//! clients', and those of AF_XDP sockets after these.

use crate::engine::agenda::{Event, PacketKind};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::epoll::Item;
use crate::engine::id::{ConnId, CpuId, QueueId, SocketId, Table, XskId};
use crate::engine::nic::{Frame, Nic, Packet};
use crate::engine::socket::Socket;
use crate::engine::xsk::Xsk;
use crate::world::Transmit;

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

    /// Returns the socket with this connection.
    pub(crate) fn socket_of(&self, conn: ConnId) -> SocketId {
        SocketId::new(conn.after(self.first_socket))
    }

    /// Returns the AF_XDP socket with this connection, if there is one.
    pub(crate) fn xsk_of(&self, conn: ConnId) -> Option<XskId> {
        (conn >= self.first_xsk).then(|| XskId::new(conn.after(self.first_xsk)))
    }

    /// Returns the item that an epoll context has for this AF_XDP socket.
    pub(crate) fn item_of(&self, xsk: XskId) -> Item {
        Item::Connection(self.first_xsk.plus(xsk.raw()))
    }

    /// Takes a message of this socket from the ring; returns when its transaction began.
    pub(crate) fn take_message(&mut self, socket: SocketId) -> Option<u64> {
        self.sockets[socket].ring.pop_front()
    }

    /// `epoll_wait` has returned the socket, and its program takes frames now.
    pub(crate) fn xsk_returned(&mut self, xsk: XskId) {
        self.xsks[xsk].queued = false;
    }

    /// Makes a send call of `socket` on `cpu`, whose cost was borne. `begun_ns` is when the transaction began.
    pub(crate) fn send(
        &mut self,
        env: &mut Env,
        cpus: &mut Cpus,
        nic: &mut Nic,
        socket: SocketId,
        begun_ns: u64,
        cpu: CpuId,
    ) {
        let spec = &self.sockets[socket].spec;
        let (queue, transmit) = (QueueId::new(spec.tx_queue), spec.transmit);
        if matches!(transmit, Transmit::Doorbell | Transmit::Copy) {
            self.put_on_wire(env, socket, begun_ns);
            return;
        }
        nic.queues[queue].tx_ring.push(Frame::Message { socket, begun_ns });
        if transmit == Transmit::Wakeup {
            nic.xsk_wakeup(env, cpus, queue, cpu);
        }
    }

    /// Puts a message onto the wire.
    pub(crate) fn put_on_wire(&mut self, env: &mut Env, socket: SocketId, begun_ns: u64) {
        let spec = &self.sockets[socket].spec;
        let (peer, wire_ns, queue) = (SocketId::new(spec.peer), u64::from(spec.wire_ns), QueueId::new(spec.tx_queue));
        env.tally.counts.tx_packets += 1;
        self.sockets[peer].wire.push_back(begun_ns);
        let conn = self.first_socket.plus(peer.raw());
        env.agenda.push(env.now_ns + wire_ns, Event::Arrive { conn, kind: PacketKind::Message });
        let sent_ns = env.now_ns + u64::from(env.world.net.tx_done_ns);
        env.agenda.push(sent_ns, Event::TxDone { queue });
    }

    /// A message reaches its NIC; if the ring is full it is lost.
    pub(crate) fn message_arrives(&mut self, env: &mut Env, cpus: &mut Cpus, nic: &mut Nic, conn: ConnId) {
        let socket = self.socket_of(conn);
        let Some(begun_ns) = self.sockets[socket].wire.pop_front() else { return };
        let queue = QueueId::new(self.sockets[socket].spec.queue);
        if nic.packet_arrives(env, cpus, queue, Packet::new(conn, PacketKind::Message)) {
            self.sockets[socket].ring.push_back(begun_ns);
        }
    }

    /// A message has passed the stack, on `cpu`.
    pub(crate) fn message_delivered(&mut self, env: &mut Env, cpus: &mut Cpus, conn: ConnId, cpu: CpuId) {
        let socket = self.socket_of(conn);
        let socket = &mut self.sockets[socket];
        if let Some(begun_ns) = socket.ring.pop_front() {
            socket.ready.push_back(begun_ns);
        }
        if let Some(thread) = socket.waiter.take() {
            cpus.wake(env, thread, cpu);
        }
    }
}
