//! What a batch of frames will need, brought into the cache all at once.
//!
//! With thousands of connections every frame finds its connection cold: flow table, connection, smoltcp's socket, timer
//! node, each load waiting for the one before. Looking all of a batch's up first, level by level, lets the processor
//! overlap the misses of different connections. It changes nothing that can be seen.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use lull_nic::Frame;
use lull_nic::prefetch::prefetch_bytes;
use smoltcp::socket::tcp::Socket;

use super::flow::{FlowKey, Owner};
use super::stack::Stack;
use super::wire::{self, be16};

/// With fewer connections they are in the cache, and looking twice would only cost.
const CONNECTIONS_MIN: usize = 512;
/// A byte that is looked at anyway.
const WHERE_TCP_IS: usize = 34;
/// Frames that are looked ahead: what a poll takes by default.
const BATCH: usize = 64;
/// How much of a buffer is looked ahead, at most.
const BUFFER_BYTES_MAX: usize = 384;
/// Ethernet, IPv4 and TCP headers without options.
const HEADERS: usize = 54;
/// What a segment touches of smoltcp's socket: its beginning with timers and buffers, and its end with sequence numbers and
/// flags. The holes of reassembly lie between them, 512 bytes that a stream in order never looks at. The compiler chose that
/// order; another would cost time, and nothing else.
const SOCKET_HEAD_BYTES: usize = 352;
const SOCKET_TAIL_BYTES: usize = 88;
/// What smoltcp's set keeps behind the socket.
const META_BYTES: usize = 40;

impl Stack {
    /// Touches what [`Stack::receive`] will touch for these frames.
    #[inline]
    pub fn warm(&mut self, frames: &[Frame]) {
        if frames.len() < 2 {
            return;
        }
        // Whatever the number of connections, the frames were last in the sender's cache.
        for frame in frames {
            black_box(frame.data().get(WHERE_TCP_IS));
        }
        if self.connections.len() >= CONNECTIONS_MIN {
            self.warm_batch(&frames[..frames.len().min(BATCH)]);
        }
    }

    fn warm_batch(&mut self, frames: &[Frame]) {
        let mut indices = [0; BATCH];
        let mut found = 0;
        let mut payloads = [0; BATCH];
        for frame in frames {
            let Some(flow) = flow_of(frame) else { continue };
            if let Some(&Owner::Connection(index)) = self.flows.get(&flow) {
                (indices[found], payloads[found]) = (index, frame.len() - HEADERS);
                found += 1;
            }
        }
        let connections = || indices[..found].iter().filter_map(|&index| self.connections.get(index));
        for connection in connections() {
            black_box((connection.snd_una, connection.flags, connection.heard_ns));
        }
        for &index in &indices[..found] {
            self.timers.warm(index);
        }
        connections().for_each(|connection| {
            let socket = std::ptr::from_ref(connection.socket()).cast::<u8>();
            prefetch_bytes(socket, SOCKET_HEAD_BYTES);
            let tail = socket.wrapping_add(size_of::<Socket<'static>>() - SOCKET_TAIL_BYTES);
            prefetch_bytes(tail, SOCKET_TAIL_BYTES + META_BYTES);
        });
        for (&index, payload) in indices[..found].iter().zip(payloads) {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            // The response goes to the buffer's beginning: what is in it now is acknowledged by what comes in.
            let socket = connection.socket_mut();
            let queued = socket.send_queue();
            // It is about as long as the last.
            if let Ok(room) = socket.send(|room| (0, room.as_ptr())) {
                prefetch_bytes(room.wrapping_sub(queued), queued.clamp(1, BUFFER_BYTES_MAX));
            }
            // The request goes behind what is unread. The receive buffer never begins anew, so that place is always cold.
            let unread = socket.recv_queue();
            if let Ok(data) = socket.recv(|data| (0, data.as_ptr())) {
                prefetch_bytes(data.wrapping_add(unread), payload.min(BUFFER_BYTES_MAX));
            }
        }
    }
}

/// The 4-tuple of an ordinary TCP segment over IPv4; anything else is not looked ahead.
#[inline]
fn flow_of(frame: &Frame) -> Option<FlowKey> {
    let data = frame.data();
    if data.len() < 54 || data[12..15] != [8, 0, 0x45] || data[23] != wire::PROTOCOL_TCP {
        return None;
    }
    let ip = |at: usize| IpAddr::V4(Ipv4Addr::new(data[at], data[at + 1], data[at + 2], data[at + 3]));
    Some(FlowKey::new(wire::PROTOCOL_TCP, ip(30), be16(data, 36), ip(26), be16(data, 34)))
}
