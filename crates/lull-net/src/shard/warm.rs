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

use super::demux::{self, Local};
use super::flow::{FlowKey, Owner};
use super::stack::Stack;
use super::wire::{self, be16};

/// Fewer connections than this are in the cache anyway, and to look twice would only cost time.
const CONNECTIONS_MIN: usize = 512;
/// A byte of the frame that is looked at anyway.
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

/// A segment of nobody's, for [`Stack::walk`]: from a documentation address (RFC 5737), and between ports that no flow has.
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NO_PORT: u16 = 0;

impl Stack {
    /// Touches what [`Stack::receive`] touches for a TCP segment, by means of a frame that holds one for a flow that is never
    /// there. It changes nothing but the frame's content.
    pub fn walk(&self, frame: &mut Frame) {
        let v4 = |local: &Local| if let IpAddr::V4(ip) = local.ip { Some(ip) } else { None };
        let Some(own) = self.locals.iter().find_map(v4) else { return };
        frame.set_len(HEADERS);
        segment_of_nobody(frame.data_mut(), self.port.mac, own);
        black_box(demux::classify(frame, self.port.mac, &self.locals, false).is_ok());
        let flow = FlowKey::new(wire::PROTOCOL_TCP, own.into(), NO_PORT, STRANGER.into(), NO_PORT);
        black_box((self.flows.get(&flow), self.counters.rx_frames));
        frame.set_len(0);
    }

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

/// Writes a bare TCP segment from [`STRANGER`].
fn segment_of_nobody(data: &mut [u8], mac: wire::Mac, own: Ipv4Addr) {
    data.fill(0);
    data[..6].copy_from_slice(&mac);
    wire::put16(data, 12, wire::ETHERTYPE_IPV4);
    let ip = &mut data[wire::ETHERNET..];
    ip[0] = 0x45;
    wire::put16(ip, 2, (HEADERS - wire::ETHERNET) as u16);
    ip[8] = wire::HOP_LIMIT;
    ip[9] = wire::PROTOCOL_TCP;
    ip[12..16].copy_from_slice(&STRANGER.octets());
    ip[16..20].copy_from_slice(&own.octets());
    wire::put_checksum(&mut ip[..wire::IPV4], 10, 0);
    ip[wire::IPV4 + 12] = 0x50;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::demux::Inbound;

    #[test]
    fn what_walks_the_path_is_a_segment_for_this_host_that_the_way_in_does_not_refuse() {
        let (mac, own) = ([2, 0, 0, 0, 0, 7], Ipv4Addr::new(10, 0, 0, 2));
        let locals = [Local { ip: own.into(), prefix: 24, broadcast: None }];
        let mut frame = Frame::with_capacity(HEADERS);
        frame.set_len(HEADERS);
        segment_of_nobody(frame.data_mut(), mac, own);
        let Ok(Inbound::Ip(packet)) = demux::classify(&frame, mac, &locals, false) else { panic!("refused") };
        assert_eq!((packet.protocol, packet.source), (wire::PROTOCOL_TCP, IpAddr::V4(STRANGER)));
    }
}
