//! Two stacks on a wire with virtual time, and segments that tests make by hand.
#![allow(dead_code)]

pub mod stream;
pub mod udp;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use lull_net::shard::{
    Batch, Change, ConnectOptions, Io, ListenOptions, Neighbours, NetError, Ready, SocketId, Stack, StackConfig,
};
use lull_nic::frame::Sender;
use lull_nic::{Doorbell, Frame, FramePool, TxQueue};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const SERVER: &str = "10.0.0.1";
pub const CLIENT: &str = "10.0.0.2";
pub const SERVER6: &str = "2001:db8::1";
pub const CLIENT6: &str = "2001:db8::2";

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn at(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(text), port)
}

/// A transmit ring that is a vector.
#[derive(Default)]
pub struct Ring {
    pub frames: Vec<Frame>,
    pub slots: usize,
    /// Whether every sender has as much below it as it may, as above a discipline.
    pub is_at_limits: bool,
}

impl TxQueue for Ring {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.free_slots() == 0 {
            return Err(frame);
        }
        self.frames.push(frame);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        self.slots.saturating_sub(self.frames.len())
    }

    fn room_for(&self, _sender: Sender) -> usize {
        if self.is_at_limits { 0 } else { self.free_slots() }
    }
}

/// A stack with its ring.
pub struct Host {
    pub stack: Stack,
    pub ring: Ring,
    pub pool: FramePool,
    pub changes: Vec<Change>,
    pub now_ns: u64,
    pub neighbours: Arc<Neighbours>,
}

pub fn config(mac: [u8; 6], v4: &str, v6: &str, seed: u64) -> StackConfig {
    let mut config = StackConfig::new(mac);
    config.addresses = vec![(ip(v4), 24), (ip(v6), 64)];
    config.seed = seed;
    config
}

pub fn server_config() -> StackConfig {
    config(SERVER_MAC, SERVER, SERVER6, 1)
}

pub fn client_config() -> StackConfig {
    config(CLIENT_MAC, CLIENT, CLIENT6, 2)
}

impl Host {
    pub fn new(config: StackConfig) -> Host {
        Host::with_neighbours(config, Arc::new(Neighbours::default()))
    }

    pub fn with_neighbours(config: StackConfig, neighbours: Arc<Neighbours>) -> Host {
        Host {
            stack: Stack::new(config, neighbours.clone()).unwrap(),
            ring: Ring { slots: 4096, ..Ring::default() },
            pool: FramePool::new(64),
            changes: Vec::new(),
            now_ns: SECOND,
            neighbours,
        }
    }

    /// A server that knows where the client is.
    pub fn server() -> Host {
        Host::server_with(server_config())
    }

    pub fn server_with(config: StackConfig) -> Host {
        let neighbours = Neighbours::default();
        neighbours.add_permanent(ip(CLIENT), CLIENT_MAC);
        neighbours.add_permanent(ip(CLIENT6), CLIENT_MAC);
        Host::with_neighbours(config, Arc::new(neighbours))
    }

    pub fn call<R>(&mut self, f: impl FnOnce(&mut Stack, &mut Io<'_>) -> R) -> R {
        let mut io = Io {
            now_ns: self.now_ns,
            tx: &mut self.ring,
            pool: &mut self.pool,
            changes: &mut self.changes,
            batch: Batch::NONE,
        };
        f(&mut self.stack, &mut io)
    }

    pub fn receive(&mut self, frame: Frame) {
        self.call(|stack, io| stack.receive(frame, io));
    }

    pub fn sent(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.ring.frames)
    }

    /// The segments that were sent. Every frame has to be one.
    pub fn segments(&mut self) -> Vec<Tcp> {
        self.sent().iter().map(|frame| Tcp::parse(frame).expect("a TCP segment")).collect()
    }

    /// As [`Host::segments`], but the host may also have asked for the next hop again.
    pub fn segments_beside_arp(&mut self) -> Vec<Tcp> {
        self.sent().iter().filter(|frame| frame.data()[12..14] != [8, 6]).map(|f| Tcp::parse(f).expect("TCP")).collect()
    }

    /// Jumps to `now_ns`, by way of every deadline before it.
    pub fn run_until(&mut self, now_ns: u64) {
        let mut steps = 0;
        while let Some(deadline) = self.stack.next_deadline_ns().filter(|&deadline| deadline <= now_ns) {
            self.now_ns = self.now_ns.max(deadline);
            self.call(|stack, io| stack.run_timers(io));
            steps += 1;
            assert!(steps < 100_000, "timers do not come to rest");
        }
        self.now_ns = now_ns;
    }

    pub fn run_for(&mut self, ns: u64) {
        self.run_until(self.now_ns + ns);
    }

    pub fn listen(&mut self, port: u16) -> SocketId {
        self.stack.tcp_listen(at("0.0.0.0", port), ListenOptions::default()).unwrap()
    }

    pub fn accept(&mut self, listener: SocketId) -> SocketId {
        self.stack.tcp_accept(listener).unwrap().0
    }

    pub fn connect(&mut self, to: SocketAddr) -> SocketId {
        self.call(|stack, io| stack.tcp_connect(None, to, ConnectOptions::default(), io)).unwrap()
    }

    pub fn send(&mut self, id: SocketId, data: &[u8]) -> Result<usize, NetError> {
        self.call(|stack, io| stack.tcp_send(id, data, io))
    }

    pub fn recv(&mut self, id: SocketId) -> Result<Vec<u8>, NetError> {
        let mut buffer = vec![0; 64 * 1024];
        let count = self.call(|stack, io| stack.tcp_recv(id, &mut buffer, io))?;
        buffer.truncate(count);
        Ok(buffer)
    }

    pub fn close(&mut self, id: SocketId) {
        self.call(|stack, io| stack.close(id, io)).unwrap();
    }

    pub fn ready(&self, id: SocketId) -> Ready {
        self.stack.ready(id).unwrap()
    }

    /// Establishes and accepts a connection of the hand-made client.
    pub fn establish(&mut self, listener: SocketId, client: &mut Peer) -> SocketId {
        client.open(self);
        self.accept(listener)
    }

    /// A server with a listener on port 80, and an accepted connection to it from port 4000. Returns the host, the
    /// listener, the peer and the connection.
    pub fn with_a_peer() -> (Host, SocketId, Peer, SocketId) {
        let (mut host, mut peer) = (Host::server(), Peer::new(4000));
        let listener = host.listen(80);
        let id = host.establish(listener, &mut peer);
        (host, listener, peer, id)
    }

    /// The sum of all reasons for which frames were refused.
    pub fn refused(&self) -> u64 {
        self.stack.counters().iter().filter(|(name, _)| name.starts_with("drop_")).map(|(_, count)| count).sum()
    }
}

/// A small generator of random numbers. Its seed makes tests repeatable.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Two hosts and the wire between them.
pub struct Net {
    pub client: Host,
    pub server: Host,
    pub now_ns: u64,
    pub delay_ns: u64,
    /// How many of a thousand frames are lost.
    pub loss: u64,
    /// How many of a thousand frames overtake others or are overtaken.
    pub reorder: u64,
    pub cut: bool,
    /// How long each frame takes in either direction, and how many may wait; those beyond are lost.
    pub bottleneck: Option<(u64, u64)>,
    pub random: Random,
    pub to_server: u64,
    pub to_client: u64,
    flight: BTreeMap<(u64, u64), (bool, Frame)>,
    sequence: u64,
    /// The time until which the bottleneck is busy, in each direction.
    busy_ns: [u64; 2],
}

impl Net {
    pub fn new() -> Net {
        Net::of(Host::new(client_config()), Host::new(server_config()))
    }

    pub fn of(client: Host, server: Host) -> Net {
        Net {
            client,
            server,
            now_ns: SECOND,
            delay_ns: 50_000,
            loss: 0,
            reorder: 0,
            cut: false,
            bottleneck: None,
            random: Random(7),
            to_server: 0,
            to_client: 0,
            flight: BTreeMap::new(),
            sequence: 0,
            busy_ns: [0; 2],
        }
    }

    fn launch(&mut self) {
        for to_server in [true, false] {
            let host = if to_server { &mut self.client } else { &mut self.server };
            for frame in host.sent() {
                if self.cut || self.random.below(1000) < self.loss {
                    continue;
                }
                let mut delay = self.delay_ns;
                if let Some((frame_ns, frames)) = self.bottleneck {
                    let busy_ns = &mut self.busy_ns[usize::from(to_server)];
                    let waits_ns = busy_ns.saturating_sub(self.now_ns);
                    if waits_ns >= frame_ns * frames {
                        continue;
                    }
                    *busy_ns = self.now_ns + waits_ns + frame_ns;
                    delay += waits_ns + frame_ns;
                }
                if self.random.below(1000) < self.reorder {
                    delay += self.random.below(4) * self.delay_ns;
                }
                self.sequence += 1;
                self.flight.insert((self.now_ns + delay, self.sequence), (to_server, frame));
            }
            let host = if to_server { &mut self.client } else { &mut self.server };
            host.call(|stack, io| stack.flush_blocked(io));
        }
        if !self.client.ring.frames.is_empty() || !self.server.ring.frames.is_empty() {
            self.launch();
        }
    }

    /// Jumps to the next event, but not beyond `limit_ns`. Returns false if nothing was to happen until then.
    pub fn step(&mut self, limit_ns: u64) -> bool {
        self.launch();
        let arrival = self.flight.keys().next().map(|&(at, _)| at);
        let deadlines = [self.client.stack.next_deadline_ns(), self.server.stack.next_deadline_ns()];
        let next = deadlines.into_iter().chain([arrival]).flatten().min();
        let Some(next) = next.filter(|&next| next <= limit_ns) else {
            self.set_now(limit_ns);
            return false;
        };
        self.set_now(next.max(self.now_ns));
        while let Some(entry) = self.flight.first_entry().filter(|entry| entry.key().0 <= self.now_ns) {
            let (to_server, frame) = entry.remove();
            if to_server {
                self.to_server += 1;
                self.server.receive(frame);
            } else {
                self.to_client += 1;
                self.client.receive(frame);
            }
        }
        self.client.call(|stack, io| stack.run_timers(io));
        self.server.call(|stack, io| stack.run_timers(io));
        self.launch();
        true
    }

    fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.client.now_ns = now_ns;
        self.server.now_ns = now_ns;
    }

    pub fn run_for(&mut self, ns: u64) {
        let limit = self.now_ns + ns;
        let mut steps = 0;
        while self.step(limit) {
            steps += 1;
            assert!(steps < 1_000_000, "the network does not come to rest");
        }
    }

    /// Establishes and accepts a connection. Returns the client's end and the server's.
    pub fn establish(&mut self, listener: SocketId, to: SocketAddr) -> (SocketId, SocketId) {
        let client = self.client.connect(to);
        self.run_for(5 * MS);
        assert!(self.client.ready(client).contains(Ready::WRITABLE), "{:?}", self.client.stack.take_error(client));
        (client, self.server.accept(listener))
    }
}

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

/// A TCP segment, with its fields readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

/// The checksum of RFC 1071, computed in the plain and slow way.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// An Ethernet frame from the client's station to the server's.
pub fn ethernet(ethertype: u16, payload: &[u8]) -> Frame {
    let mut bytes = [SERVER_MAC, CLIENT_MAC].concat();
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(payload);
    Frame::copy_from(&bytes)
}

/// An IP packet with `between` between its header and the transport header: IPv4 options, or IPv6 extension headers of
/// which the first has the number `first`.
pub fn ip_packet(from: IpAddr, to: IpAddr, protocol: u8, first: u8, between: &[u8], transport: &[u8]) -> Frame {
    let mut packet;
    let ethertype;
    if from.is_ipv4() {
        assert_eq!(between.len() % 4, 0);
        let total = (20 + between.len() + transport.len()) as u16;
        packet = vec![0x45 + (between.len() / 4) as u8, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        packet.extend(octets(from));
        packet.extend(octets(to));
        packet.extend(between);
        let sum = checksum(&[&packet]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        ethertype = 0x0800;
    } else {
        packet = vec![0x60, 0, 0, 0];
        packet.extend(((between.len() + transport.len()) as u16).to_be_bytes());
        packet.extend([if between.is_empty() { protocol } else { first }, 64]);
        packet.extend(octets(from));
        packet.extend(octets(to));
        packet.extend(between);
        ethertype = 0x86dd;
    }
    packet.extend(transport);
    ethernet(ethertype, &packet)
}

pub fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let mut bytes = octets(from);
    bytes.extend(octets(to));
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend([0, protocol]);
    bytes
}

impl Tcp {
    pub fn transport(&self) -> Vec<u8> {
        assert_eq!(self.options.len() % 4, 0);
        let mut tcp = self.from.port().to_be_bytes().to_vec();
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([((20 + self.options.len()) as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let sum = checksum(&[&pseudo(self.from.ip(), self.to.ip(), 6, tcp.len()), &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }

    pub fn frame(&self) -> Frame {
        ip_packet(self.from.ip(), self.to.ip(), 6, 0, &[], &self.transport())
    }

    /// Reads a frame, whose checksums must be right.
    pub fn parse(frame: &Frame) -> Option<Tcp> {
        let data = frame.data();
        let (from, to, l4, end) = match u16::from_be_bytes([data[12], data[13]]) {
            0x0800 if data[23] == 6 => {
                assert_eq!(checksum(&[&data[14..34]]), 0, "IPv4 header checksum");
                let ip = |at: usize| IpAddr::from([data[at], data[at + 1], data[at + 2], data[at + 3]]);
                (ip(26), ip(30), 34, 14 + usize::from(u16::from_be_bytes([data[16], data[17]])))
            }
            0x86dd if data[20] == 6 => {
                let ip = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&data[at..at + 16]).unwrap());
                (ip(22), ip(38), 54, 54 + usize::from(u16::from_be_bytes([data[18], data[19]])))
            }
            _ => return None,
        };
        let tcp = &data[l4..end];
        assert_eq!(checksum(&[&pseudo(from, to, 6, tcp.len()), tcp]), 0, "TCP checksum");
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let header = usize::from(tcp[12] >> 4) * 4;
        Some(Tcp {
            from: SocketAddr::new(from, half(0)),
            to: SocketAddr::new(to, half(2)),
            seq: word(4),
            ack: word(8),
            flags: tcp[13],
            window: half(14),
            options: tcp[20..header].to_vec(),
            payload: tcp[header..].to_vec(),
        })
    }
}

/// A client that the test drives by hand.
#[derive(Clone, Debug)]
pub struct Peer {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
}

impl Peer {
    pub fn new(port: u16) -> Peer {
        Peer { from: at(CLIENT, port), to: at(SERVER, 80), seq: 1000, ack: 0, window: 60_000 }
    }

    pub fn v6(port: u16) -> Peer {
        Peer { from: at(CLIENT6, port), to: at(SERVER6, 80), seq: 1000, ack: 0, window: 60_000 }
    }

    pub fn segment(&self, flags: u8, payload: &[u8]) -> Tcp {
        Tcp {
            from: self.from,
            to: self.to,
            seq: self.seq,
            ack: self.ack,
            flags,
            window: self.window,
            options: Vec::new(),
            payload: payload.to_vec(),
        }
    }

    pub fn syn(&self) -> Tcp {
        // The option is an MSS of 1460.
        Tcp { ack: 0, options: vec![2, 4, 5, 180], ..self.segment(SYN, &[]) }
    }

    /// Sends a segment, and counts it as sent.
    pub fn send(&mut self, host: &mut Host, flags: u8, payload: &[u8]) {
        host.receive(self.segment(flags, payload).frame());
        self.seq += payload.len() as u32 + u32::from(flags & FIN != 0);
    }

    /// Sends a question, is answered, and acknowledges that. From then on the host's acknowledgements wait for answers.
    pub fn is_answered(&mut self, host: &mut Host, id: SocketId) {
        self.send(host, ACK | PSH, b"question");
        assert_eq!(host.recv(id).unwrap(), b"question");
        host.send(id, b"answer").unwrap();
        host.segments();
        self.ack += 6;
        self.send(host, ACK, &[]);
    }

    /// Makes the whole handshake.
    pub fn open(&mut self, host: &mut Host) {
        host.receive(self.syn().frame());
        let reply = host.segments();
        assert_eq!(reply.len(), 1, "one SYN-ACK, not {reply:?}");
        assert_eq!(reply[0].flags, SYN | ACK);
        assert_eq!(reply[0].ack, self.seq + 1);
        self.seq += 1;
        self.ack = reply[0].seq + 1;
        self.send(host, ACK, &[]);
    }

    /// Takes what the host has sent as received. Returns the payload.
    pub fn hear(&mut self, host: &mut Host) -> Vec<u8> {
        let mut data = Vec::new();
        for segment in host.segments() {
            assert_eq!(segment.seq, self.ack, "in order: {segment:?}");
            self.ack += segment.payload.len() as u32 + u32::from(segment.flags & FIN != 0);
            data.extend(segment.payload);
        }
        data
    }
}
