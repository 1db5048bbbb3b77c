//! Message sockets: the ends of a request/response pair, TCP or AF_XDP.
//!
//! A socket sends to one other socket, over a wire that keeps the order. Receiving goes through the queue's ring and NAPI as
//! everything does. Sending has two ways: a TCP segment goes to the device from within the system call; an AF_XDP frame lies in
//! the transmit ring until *somebody polls the NAPI*, as zero-copy drivers transmit (`ndo_xsk_wakeup`).

use std::collections::VecDeque;

use lull_core::{Schedule, SocketBusy};

use crate::engine::agenda::{Event, PacketKind};
use crate::engine::id::{ConnId, CpuId, QueueId, SocketId, ThreadId};
use crate::engine::nic::Packet;
use crate::engine::sim::{Sim, cx};
use crate::engine::xsk::Frame;
use crate::world::{SocketSpec, Transmit};

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) spec: SocketSpec,
    /// SO_BUSY_POLL and its kin.
    pub(crate) busy: SocketBusy,
    /// Messages on the wire to it, by the time at which their transaction began. The wire keeps the order, as the ring does.
    wire: VecDeque<u64>,
    pub(super) ring: VecDeque<u64>,
    /// Messages that a receive call would return.
    pub(crate) ready: VecDeque<u64>,
    /// The thread asleep in a receive call.
    pub(crate) waiter: Option<ThreadId>,
}

impl Socket {
    pub(crate) fn new(spec: &SocketSpec, sysctl: &lull_core::Sysctl) -> Socket {
        let busy = SocketBusy::new(sysctl);
        // A world's options are its author's own, with every privilege; those beyond the limits stay at their defaults.
        let _ = busy.set_usecs(spec.busy_poll_usecs);
        let _ = busy.set_prefer(spec.prefer_busy_poll, true);
        let _ = busy.set_budget(spec.busy_poll_budget, true);
        let empty = VecDeque::new;
        Socket { spec: spec.clone(), busy, wire: empty(), ring: empty(), ready: empty(), waiter: None }
    }
}

impl Sim {
    /// A send call of `socket` on `cpu`, whose cost was borne. `begun_ns` is when the transaction began.
    pub(crate) fn send(&mut self, socket: SocketId, begun_ns: u64, cpu: CpuId) {
        let spec = &self.ends.sockets[socket].spec;
        let (queue, transmit) = (QueueId::new(spec.tx_queue), spec.transmit);
        if transmit == Transmit::Doorbell {
            self.put_on_wire(socket, begun_ns);
            return;
        }
        self.nic.queues[queue].tx_ring.push(Frame::Message { socket, begun_ns });
        if transmit == Transmit::Wakeup {
            self.xsk_wakeup(queue, cpu);
        }
    }

    /// `ndo_xsk_wakeup` of a driver that schedules the NAPI on the caller's CPU.
    pub(crate) fn xsk_wakeup(&mut self, queue: QueueId, cpu: CpuId) {
        self.tally.transitions += 1;
        let cx = cx(self.now_ns, cpu, &self.sink);
        if let Schedule::Owned(owner) = self.nic.queues[queue].napi.schedule(&cx) {
            self.route(owner, cpu);
        }
    }

    /// A message leaves.
    pub(crate) fn put_on_wire(&mut self, socket: SocketId, begun_ns: u64) {
        let spec = &self.ends.sockets[socket].spec;
        let (peer, wire_ns, queue) = (SocketId::new(spec.peer), u64::from(spec.wire_ns), QueueId::new(spec.tx_queue));
        self.tally.counts.tx_packets += 1;
        self.ends.sockets[peer].wire.push_back(begun_ns);
        let conn = self.ends.first_socket.plus(peer.raw());
        self.agenda.push(self.now_ns + wire_ns, Event::Arrive { conn, kind: PacketKind::Message });
        let sent_ns = self.now_ns + u64::from(self.world.net.tx_done_ns);
        self.agenda.push(sent_ns, Event::TxDone { queue });
    }

    /// A message reaches its NIC. One that finds the ring full is lost.
    pub(crate) fn message_arrives(&mut self, conn: ConnId) {
        let socket = self.ends.socket_of(conn);
        let Some(begun_ns) = self.ends.sockets[socket].wire.pop_front() else { return };
        let queue = QueueId::new(self.ends.sockets[socket].spec.queue);
        if self.packet_arrives(queue, Packet::new(conn, PacketKind::Message)) {
            self.ends.sockets[socket].ring.push_back(begun_ns);
        }
    }

    /// A message has passed the stack, on `cpu`.
    pub(crate) fn message_delivered(&mut self, conn: ConnId, cpu: CpuId) {
        let socket = self.ends.socket_of(conn);
        let socket = &mut self.ends.sockets[socket];
        if let Some(begun_ns) = socket.ring.pop_front() {
            socket.ready.push_back(begun_ns);
        }
        if let Some(thread) = socket.waiter.take() {
            self.wake(thread, cpu);
        }
    }

    /// A transaction that began then is over.
    pub(crate) fn transaction_over(&mut self, begun_ns: u64) {
        let latency_ns = self.now_ns - begun_ns;
        self.tally.answered(latency_ns);
    }
}
