//! AF_XDP sockets of a responder, bound to a queue: an XDP program hands them every request and message of it.
//!
//! Zero-copy, as `socket`: what the program puts into the transmit ring leaves with the next poll of the NAPI, whoever makes it.
//! In epoll the socket is one event, however many frames it has; level-triggered, so it is ready as long as it has any.

use std::collections::VecDeque;

use lull_core::SocketBusy;

use crate::engine::agenda::{Event, PacketKind};
use crate::engine::id::{ConnId, ContextId, CpuId, QueueId, SocketId, XskId};
use crate::engine::nic::Packet;
use crate::engine::sim::Sim;
use crate::world::XskSpec;

/// Frames that a receive ring of a socket holds (`XSK_RING_CONS__DEFAULT_NUM_DESCS` of libxdp); more are dropped.
const RING_FRAMES: usize = 2_048;

/// A frame on its way through a responder, or in a transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message of a request/response pair: its socket, and when its transaction began.
    Message { socket: SocketId, begun_ns: u64 },
    /// A client's request, or the answer to it.
    Request { conn: ConnId },
}

/// One socket.
#[derive(Debug)]
pub(crate) struct Xsk {
    pub(crate) spec: XskSpec,
    /// SO_BUSY_POLL and its kin.
    pub(crate) busy: SocketBusy,
    /// The receive ring.
    pub(crate) ready: VecDeque<Frame>,
    /// It is in the ready list of its epoll context.
    queued: bool,
}

impl Xsk {
    pub(crate) fn new(spec: &XskSpec, sysctl: &lull_core::Sysctl) -> Xsk {
        let busy = SocketBusy::new(sysctl);
        // A world's options are its author's own, with every privilege; those beyond the limits stay at their defaults.
        let _ = busy.set_usecs(spec.busy_poll_usecs);
        let _ = busy.set_prefer(spec.prefer_busy_poll, true);
        let _ = busy.set_budget(spec.busy_poll_budget, true);
        Xsk { spec: spec.clone(), busy, ready: VecDeque::with_capacity(RING_FRAMES), queued: false }
    }
}

impl Sim {
    /// A packet has passed the driver, on `cpu`, and goes to this socket.
    pub(crate) fn xsk_delivered(&mut self, xsk: XskId, packet: Packet, cpu: CpuId) {
        let frame = match packet.kind {
            PacketKind::Message => {
                let socket = self.ends.socket_of(packet.conn);
                let Some(begun_ns) = self.ends.take_message(socket) else { return };
                Frame::Message { socket, begun_ns }
            }
            PacketKind::Request | PacketKind::Ack => Frame::Request { conn: packet.conn },
            PacketKind::Frame => unreachable!("a flood's frames go to its own sinks"),
        };
        if self.ends.xsks[xsk].ready.len() >= RING_FRAMES {
            self.tally.counts.socket_dropped += 1;
            if let Frame::Request { conn } = frame {
                // The client sends it again, as after a drop in the NIC.
                (self.clients.inside, self.clients.on_wire) = (self.clients.inside - 1, self.clients.on_wire + 1);
                let at_ns = self.now_ns + self.world.net.retransmit_ns;
                self.agenda.push(at_ns, Event::Arrive { conn, kind: packet.kind });
            }
            return;
        }
        self.ends.xsks[xsk].ready.push_back(frame);
        self.xsk_polled_ready(xsk, cpu);
    }

    /// Puts the socket into its context's ready list if it has frames and is not there.
    fn xsk_polled_ready(&mut self, xsk: XskId, cpu: CpuId) {
        let socket = &mut self.ends.xsks[xsk];
        if let (Some(context), false, false) = (socket.spec.context, socket.queued, socket.ready.is_empty()) {
            socket.queued = true;
            self.make_ready(ContextId::new(context), self.ends.item_of(xsk), cpu);
        }
    }

    /// `epoll_wait` returned the socket: its program takes frames now.
    pub(crate) fn xsk_returned(&mut self, xsk: XskId) {
        self.ends.xsks[xsk].queued = false;
    }

    /// The program has taken what it takes at a time. Level-triggered: with frames left the socket stays ready, and an event
    /// whose frames were taken meanwhile is not returned.
    pub(crate) fn xsk_taken(&mut self, xsk: XskId, cpu: CpuId) {
        let socket = &mut self.ends.xsks[xsk];
        if let (Some(context), true, true) = (socket.spec.context, socket.queued, socket.ready.is_empty()) {
            socket.queued = false;
            let item = self.ends.item_of(xsk);
            self.contexts[ContextId::new(context)].ready.retain(|&ready| ready != item);
        }
        self.xsk_polled_ready(xsk, cpu);
    }

    /// A poll sends a frame of the transmit ring of this queue.
    pub(crate) fn frame_leaves(&mut self, frame: Frame, queue: QueueId) {
        match frame {
            Frame::Message { socket, begun_ns } => self.put_on_wire(socket, begun_ns),
            Frame::Request { conn } => self.frame_answers(conn, queue),
        }
    }
}
