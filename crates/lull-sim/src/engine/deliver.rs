//! The way of a packet above the NIC, to its socket, the socket's context, and the thread that waits there; and the way
//! of a frame that a poll sends.
//!
//! These steps take the whole world, because a packet may be for any part of it.

use crate::engine::agenda::PacketKind;
use crate::engine::epoll::Item;
use crate::engine::id::{ContextId, CpuId, QueueId, XskId};
use crate::engine::nic::{Frame, Packet};
use crate::engine::recorder::Whom;
use crate::engine::sim::Sim;
use crate::engine::transition::Transition;
use crate::engine::xsk::RING_FRAMES;

/// How many datagrams wait in the sockets of a context before more are dropped (SO_RCVBUF).
const RECEIVE_BUFFER_DATAGRAMS: usize = 512;

impl Sim {
    /// A packet has passed the stack.
    pub(super) fn deliver(&mut self, queue: QueueId, packet: Packet, cpu: CpuId) {
        if packet.kind == PacketKind::Frame {
            self.flood_delivered(queue, packet, cpu);
            return;
        }
        if packet.kind == PacketKind::Ack {
            return;
        }
        if let Some(xsk) = self.nic.queues[self.clients.connections[packet.conn].queue].xsk {
            self.xsk_delivered(xsk, packet, cpu);
            return;
        }
        if packet.kind == PacketKind::Message {
            self.ends.message_delivered(&mut self.env, &mut self.cpus, packet.conn, cpu);
            return;
        }
        // Only the connection of a message socket is in no context, and its packets are messages.
        let Some(context) = self.clients.connections[packet.conn].context else { return };
        let waiting = self.contexts[context].ready.len();
        if waiting >= RECEIVE_BUFFER_DATAGRAMS && self.clients.is_datagram(packet.conn) {
            self.env.tally.counts.socket_dropped += 1;
            self.clients.inside -= 1;
            return;
        }
        self.make_ready(context, Item::Connection(packet.conn), cpu);
    }

    /// `ep_poll_callback`: notes an event for `context`, from a poll on `cpu`.
    pub(crate) fn make_ready(&mut self, context: ContextId, item: Item, cpu: CpuId) {
        self.contexts[context].ready.push_back(item);
        let Item::Connection(conn) = item else {
            self.env.note(cpu, Whom::Context(context), Transition::OtherEvent);
            return self.wake_waiter(context, cpu);
        };
        let queue = self.clients.connections[conn].queue;
        let id = self.nic.queues[queue].napi.id();
        let before = self.contexts[context].ep.napi_id();
        let left_behind = self.contexts[context].ep.note_napi(id);
        if before != self.contexts[context].ep.napi_id() {
            let changed = if before == 0 { Transition::EpollIdNoted } else { Transition::EpollIdChanged };
            self.env.note(cpu, Whom::Context(context), changed);
        }
        if let Some(left_behind) = left_behind {
            self.env.note(cpu, Whom::Context(context), Transition::EpollLeftBehind);
            self.nic.resume(&mut self.env, &mut self.cpus, left_behind, cpu);
        }
        self.wake_waiter(context, cpu);
    }

    fn wake_waiter(&mut self, context: ContextId, cpu: CpuId) {
        if let Some(thread) = self.contexts[context].waiters.pop() {
            self.cpus.wake(&mut self.env, thread, cpu);
        }
    }

    /// A packet has passed the driver on `cpu`, and goes to this AF_XDP socket.
    fn xsk_delivered(&mut self, xsk: XskId, packet: Packet, cpu: CpuId) {
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
            self.env.tally.counts.socket_dropped += 1;
            if let Frame::Request { conn } = frame {
                self.clients.send_again(&mut self.env, conn, packet.kind);
            }
            return;
        }
        self.ends.xsks[xsk].ready.push_back(frame);
        self.xsk_polled_ready(xsk, cpu);
    }

    /// Puts the socket into its context's ready list, if it has frames and is not in the list.
    fn xsk_polled_ready(&mut self, xsk: XskId, cpu: CpuId) {
        let socket = &mut self.ends.xsks[xsk];
        if let (Some(context), false, false) = (socket.spec.context, socket.queued, socket.ready.is_empty()) {
            socket.queued = true;
            self.make_ready(ContextId::new(context), self.ends.item_of(xsk), cpu);
        }
    }

    /// The program has taken as many frames as it takes at a time. The context is level-triggered: if frames are left
    /// the socket stays ready, and an event whose frames were taken meanwhile is not returned.
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
    pub(super) fn frame_leaves(&mut self, frame: Frame, queue: QueueId) {
        match frame {
            Frame::Message { socket, begun_ns } => self.ends.put_on_wire(&mut self.env, socket, begun_ns),
            Frame::Request { conn } => self.clients.frame_answers(&mut self.env, conn, queue),
        }
    }

    /// A frame of a flood has passed the stack: the hypervisor forwards it, or it is for a sink here.
    fn flood_delivered(&mut self, queue: QueueId, packet: Packet, cpu: CpuId) {
        let (env, cpus) = (&mut self.env, &mut self.cpus);
        if let Some(relay) = self.relay.as_mut().filter(|relay| relay.forwards(queue)) {
            relay.forward(env, cpus, packet, cpu);
        } else if let Some(flood) = &mut self.flood {
            flood.delivered(env, cpus, packet, cpu);
        }
    }
}
