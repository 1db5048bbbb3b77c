//! What a fuzzer's bytes mean: a script of frames, time and application calls for one stack, and what must hold.

use lull_net::shard::{BufferGrowth, ListenOptions, Shutdown, SocketId, UdpOptions};
use lull_nic::{Checksum, Frame};

use crate::shard_harness::udp::fragment;
use crate::shard_harness::*;

/// Takes from the front; zeros once the bytes are used up.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn half(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Bounds the half-open connections and the accept queue, so that scripts come to cookies soon.
const BACKLOG: usize = 4;

struct World {
    host: Host,
    /// A connection that no frame of the script may touch.
    bystander: Peer,
    bystander_id: SocketId,
    /// The connection that the script is about.
    victim: Peer,
    victim_id: Option<SocketId>,
    listener: SocketId,
}

impl World {
    fn new() -> World {
        let mut config = server_config();
        config.connections_max = 32;
        config.time_wait_max = 16;
        // Small enough for scripts to fill, and for connections to grow out of.
        (config.rx_buffer_bytes, config.tx_buffer_bytes) = (2048, 2048);
        config.growth = BufferGrowth { rx_bytes_max: 8192, tx_bytes_max: 8192, total_bytes_max: 1 << 20 };
        let mut host = Host::server_with(config);
        let options = ListenOptions { backlog: BACKLOG, syn_backlog: BACKLOG, ..ListenOptions::default() };
        let listener = host.stack.tcp_listen(at("::", 80), options).unwrap();
        host.stack.udp_bind(at("::", 53), UdpOptions { rx_bytes: 10_000, ..Default::default() }).unwrap();
        let mut bystander = Peer::v6(4000);
        let bystander_id = host.establish(listener, &mut bystander);
        let mut victim = Peer::new(4001);
        let victim_id = Some(host.establish(listener, &mut victim));
        World { host, bystander, bystander_id, victim, victim_id, listener }
    }

    /// Every frame is counted exactly once.
    fn receive(&mut self, frame: Frame) {
        self.host.receive(frame);
        let counters = self.host.stack.counters();
        let of_use = counters.tcp_syns
            + counters.syncookies_sent
            + counters.tcp_segments
            + counters.fragments_kept
            + counters.udp_datagrams
            + counters.icmp_echo_replies
            + counters.icmp_errors_taken
            + counters.neighbour_messages;
        assert_eq!(counters.rx_frames, of_use + self.host.refused() - counters.drop_unreachable, "{counters:?}");
        self.host.changes.clear();
    }

    /// One step of the script.
    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 8 {
            0 => {
                let trusted = script.byte() & 1 != 0;
                let length = usize::from(script.half()) % 2048;
                let mut frame = Frame::copy_from(script.take(length));
                if trusted {
                    frame.set_checksum(Checksum::Unnecessary);
                }
                if !is_bystanders(&frame) {
                    self.receive(frame);
                }
            }
            1 => {
                // A segment near the victim's windows, as a peer that plays foul would send it.
                let mut segment = self.victim.segment(script.byte() & 0x3f, &[]);
                segment.seq = segment.seq.wrapping_add(script.half() as i16 as u32);
                segment.ack = segment.ack.wrapping_add(script.half() as i16 as u32);
                segment.window = script.half();
                let options = usize::from(script.byte() % 11) * 4;
                segment.options = script.take(options).to_vec();
                segment.options.resize(segment.options.len().next_multiple_of(4), 1);
                let payload = usize::from(script.half()) % 1461;
                segment.payload = vec![0x5a; payload];
                self.receive(segment.frame());
            }
            2 => {
                let span = u64::from(script.half()) * MS * (1 + u64::from(script.byte() & 0x80));
                self.host.run_for(span);
            }
            3 => self.application(script),
            4 => {
                self.host.ring.slots = self.host.ring.frames.len() + usize::from(script.byte() % 8);
                self.host.call(|stack, io| stack.flush_blocked(io));
            }
            6 => self.router(script),
            7 => {
                // A flood in one step, so that scripts come to cookies, and what comes back of it.
                let first = script.half();
                for port in 0..u16::from(script.byte() % 16) {
                    let mut stranger = Peer::new(first.wrapping_add(port) | 1);
                    stranger.seq = u32::from(script.half());
                    let mut syn = stranger.syn();
                    if script.byte() & 1 != 0 {
                        syn.options.extend([1, 3, 3, script.byte(), 1, 1, 8, 10, 0, 0, 1, script.byte(), 0, 0, 0, 0]);
                    }
                    self.receive(tagged(syn.frame(), script.byte()));
                    if script.byte() & 1 != 0 {
                        self.answer(&stranger, script);
                    }
                }
            }
            _ => {
                // The victim hears what was sent, and another one opens.
                for frame in self.host.sent() {
                    if let Some(segment) = Tcp::parse(&frame).filter(|segment| segment.to == self.victim.from) {
                        let occupied = segment.payload.len() as u32 + u32::from(segment.flags & (SYN | FIN) != 0);
                        self.victim.ack = segment.seq.wrapping_add(occupied);
                        self.victim.seq = if segment.flags & ACK != 0 { segment.ack } else { self.victim.seq };
                    }
                }
                let choice = script.byte();
                if choice & 1 != 0 {
                    self.victim.from.set_port(4001 + u16::from(script.byte() % 8));
                    let syn = self.victim.syn();
                    self.receive(syn.frame());
                } else if choice & 2 != 0 {
                    self.fragments(choice >> 2, script);
                }
            }
        }
    }

    /// Fragments of few packets, which overlap, come twice, contradict each other, and now and then make one whole.
    fn fragments(&mut self, count: u8, script: &mut Script<'_>) {
        for _ in 0..count {
            let (what, place, length) = (script.byte(), script.byte(), script.byte());
            let from_to = if what & 1 != 0 { (ip(CLIENT6), ip(SERVER6)) } else { (ip(CLIENT), ip(SERVER)) };
            let protocol = [17, 6, 44, 58][usize::from(what >> 1 & 3)];
            let part = (u32::from(what >> 3 & 3), usize::from(place % 16) * 8, what & 0x20 != 0);
            let mut payload = script.take(usize::from(length % 64)).to_vec();
            payload.resize(payload.len().next_multiple_of(1 + usize::from(what >> 6 & 1) * 7), 0);
            self.receive(fragment(from_to, protocol, part, &payload));
        }
    }

    /// A router's report about the last frame that went to the victim, perhaps with a number near it.
    fn router(&mut self, script: &mut Script<'_>) {
        let mtu = script.half();
        let (seq, kind) = (script.half(), script.byte());
        let sent = self.host.ring.frames.iter().rev().find(|frame| {
            Tcp::parse(frame).is_some_and(|segment| segment.to == self.victim.from && segment.from.is_ipv4())
        });
        let Some(mut quoted) = sent.map(|frame| frame.data()[14..42].to_vec()) else { return };
        if kind & 1 != 0 {
            quoted[26..28].copy_from_slice(&seq.to_be_bytes());
        }
        let mut icmp = [&[3, 4, 0, 0, 0, 0], &mtu.to_be_bytes()[..], &quoted].concat();
        let sum = checksum(&[&icmp]).to_be_bytes();
        icmp[2..4].copy_from_slice(&sum);
        self.receive(tagged(ip_packet(ip("10.0.0.254"), ip(SERVER), 1, 0, &[], &icmp), kind >> 1));
    }

    /// What a stranger says to the SYN-ACK that it was sent last: an acknowledgement, or nearly.
    fn answer(&mut self, stranger: &Peer, script: &mut Script<'_>) {
        let frames = self.host.ring.frames.iter().rev();
        let Some(reply) = frames.filter_map(Tcp::parse).find(|segment| segment.to == stranger.from) else { return };
        let (timestamps, segments) = (reply.options.windows(2).position(|option| option == [8, 10]), script.byte() % 4);
        let mut segment = stranger.segment(ACK, &[]);
        segment.seq = segment.seq.wrapping_add(1 + u32::from(script.byte() & 3) / 3);
        segment.ack = reply.seq.wrapping_add(1 + u32::from(script.byte() & 3) / 3);
        // Then data, whose clock may run backwards.
        for _ in 0..=segments {
            if let Some(at) = timestamps {
                let value = [0, 0, 1, script.byte()];
                segment.options = [&[1, 1, 8, 10], &value, &reply.options[at + 2..at + 6]].concat();
            }
            self.receive(segment.frame());
            segment.seq = segment.seq.wrapping_add(segment.payload.len() as u32);
            segment.payload = vec![0x5a; usize::from(script.byte())];
            segment.flags = ACK | PSH | script.byte() & FIN;
        }
    }

    fn application(&mut self, script: &mut Script<'_>) {
        let host = &mut self.host;
        let kind = script.byte() % 6;
        if kind == 0 {
            if let Ok((id, _)) = host.stack.tcp_accept(self.listener)
                && let Some(old) = self.victim_id.replace(id)
            {
                host.close(old);
            }
            return;
        }
        let Some(id) = self.victim_id else { return };
        match kind {
            1 => drop(host.recv(id)),
            2 => drop(host.send(id, &[0xa5; 3000][..usize::from(script.half()) % 3000])),
            3 => drop(host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io))),
            4 => drop(host.call(|stack, io| stack.set_user_timeout(id, Some(5 * SECOND), io))),
            _ => {
                host.close(id);
                self.victim_id = None;
            }
        }
    }

    /// The bystander is as alive as before.
    fn check(&mut self) {
        let host = &mut self.host;
        host.ring.slots = 1 << 20;
        host.sent();
        host.call(|stack, io| stack.flush_blocked(io));
        host.sent();
        // Its challenge acknowledgements and such are none of ours.
        self.bystander.send(host, ACK | PSH, b"alive?");
        assert_eq!(host.recv(self.bystander_id).expect("the bystander lives"), b"alive?");
        host.send(self.bystander_id, b"alive!").expect("the bystander lives");
        let answer: Vec<Tcp> = host
            .sent()
            .iter()
            .filter_map(Tcp::parse)
            .filter(|segment| segment.to == self.bystander.from && !segment.payload.is_empty())
            .collect();
        assert_eq!(answer.len(), 1, "{answer:?}");
        assert_eq!((answer[0].seq, answer[0].payload.as_slice()), (self.bystander.ack, &b"alive!"[..]));
        assert_eq!(host.stack.counters().tcp_stalls, 0);
        assert!(host.stack.connections() <= 32 + BACKLOG && host.stack.time_waits() <= 16);
    }
}

/// Perhaps behind a tag of a VLAN, or of none.
fn tagged(frame: Frame, how: u8) -> Frame {
    let tag = match how % 8 {
        0 => [0x81, 0, 0xe0, 0],
        1 => [0x88, 0xa8, 0, 0],
        2 => [0x81, 0, 0, 7],
        _ => return frame,
    };
    let data = frame.data();
    Frame::copy_from(&[&data[..12], &tag, &data[12..]].concat())
}

/// A frame that can be the bystander's own: one from its address.
fn is_bystanders(frame: &Frame) -> bool {
    let address: std::net::Ipv6Addr = CLIENT6.parse().expect("an address");
    frame.data().windows(16).any(|window| window == address.octets())
}

/// Runs a script. Panics if something that must hold does not.
pub fn drive(data: &[u8]) {
    let mut world = World::new();
    let mut script = Script(data);
    let mut steps = 0;
    while !script.0.is_empty() && steps < 256 {
        world.step(&mut script);
        steps += 1;
    }
    world.check();
}
