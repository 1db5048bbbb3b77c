//! UDP, ICMP, ARP and neighbour discovery.

mod shard_harness;

use std::sync::{Arc, mpsc};

use lull_net::shard::{Gro, Neighbours, NetError, Ready, ReceivedError, SendOptions, Shutdown, SocketId, UdpOptions};
use lull_nic::Frame;
use lull_nic::frame::{Chunk, Origin};
use shard_harness::udp::{bind, recv, send_to, udp};
use shard_harness::*;

fn udp_frame(from: std::net::SocketAddr, to: std::net::SocketAddr, payload: &[u8]) -> Frame {
    ip_packet(from.ip(), to.ip(), 17, 0, &[], &udp(from, to, payload))
}

fn from_own(address: std::net::IpAddr) -> SendOptions {
    SendOptions { from: Some(address), ..SendOptions::default() }
}

fn each(each_bytes: u16) -> SendOptions {
    SendOptions { each_bytes, ..SendOptions::default() }
}

#[test]
fn udp_both_ways_over_both_families() {
    for (server_ip, any) in [(SERVER, "0.0.0.0"), (SERVER6, "::"), (SERVER, "::")] {
        let mut net = Net::new();
        let server = bind(&mut net.server, any, 53);
        let client = bind(&mut net.client, any, 0);
        assert_eq!(send_to(&mut net.client, client, b"question", at(server_ip, 53)), Ok(8));
        // The question waits for the neighbour's address and leaves then.
        net.run_for(5 * MS);
        assert_eq!(net.server.changes.last().map(|c| (c.socket, c.edges)), Some((server, Ready::READABLE)));
        let (question, from) = recv(&mut net.server, server).unwrap();
        assert_eq!(question, b"question");
        assert_eq!(from.port(), net.client.stack.local_addr(client).unwrap().port());
        assert_eq!(send_to(&mut net.server, server, b"answer", from), Ok(6));
        net.run_for(MS);
        assert_eq!(recv(&mut net.client, client).unwrap(), (b"answer".to_vec(), at(server_ip, 53)));
        assert_eq!(recv(&mut net.client, client), Err(NetError::WouldBlock));
        assert!(!net.client.ready(client).contains(Ready::READABLE));
        // There is one request for the address and one answer. The server has learned the client's from the packet or
        // the request.
        assert_eq!(net.server.stack.counters().neighbour_requests, 0);
    }
}

#[test]
fn a_program_that_steers_sees_no_more_than_the_datagram() {
    let mut host = Host::server();
    let options = UdpOptions { reuse_port: true, ..UdpOptions::default() };
    let group: Vec<SocketId> = (0..4).map(|_| host.stack.udp_bind(at(SERVER, 53), options).unwrap()).collect();
    // This is "ld len; ret a", which chooses the socket whose number is the payload's length.
    let length = lull_net::lull_bpf::Program::parse("2,128 0 0 0,22 0 0 0").unwrap();
    host.stack.set_reuseport_program(group[0], Some(Arc::new(length.into()))).unwrap();
    let mut padded = udp(at(CLIENT, 9), at(SERVER, 53), b"x");
    padded.extend([7, 7]);
    host.receive(ip_packet(ip(CLIENT), ip(SERVER), 17, 0, &[], &padded));
    assert_eq!(recv(&mut host, group[1]).unwrap().0, b"x", "two bytes of the packet are behind the datagram");
}

#[test]
fn truncated_datagrams_lose_their_rest() {
    let mut host = Host::server();
    let id = bind(&mut host, "0.0.0.0", 53);
    host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 53), b"0123456789"));
    host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 53), b""));
    let mut buffer = [0; 4];
    assert_eq!(host.stack.udp_unread(id), Ok(10));
    let received = host.call(|stack, io| stack.udp_recv_from(id, &mut buffer, io)).unwrap();
    assert_eq!((received.bytes, received.datagram_bytes, &buffer), (4, 10, b"0123"));
    assert_eq!((received.from, received.to), (at(CLIENT, 9), ip(SERVER)));
    // An empty datagram counts as one.
    assert!(host.ready(id).contains(Ready::READABLE));
    assert_eq!(recv(&mut host, id).unwrap().0, b"");
    assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
}

/// A device with a fixed number of chunks would receive nothing if all of them waited in sockets that nobody reads.
#[test]
fn what_waits_to_be_read_holds_no_chunk_that_a_device_cannot_do_without() {
    for (bounded, is_back) in [(true, true), (false, false)] {
        let mut host = Host::server();
        let id = bind(&mut host, "0.0.0.0", 53);
        let (home, free) = mpsc::channel();
        let take_back = move |chunk| home.send(chunk).unwrap_or_default();
        let origin = if bounded { Origin::bounded(take_back) } else { Origin::new(take_back) };
        let sent = udp_frame(at(CLIENT, 9), at(SERVER, 53), b"datagram");
        let mut frame = Chunk::allocate(2048).into_frame(&origin);
        frame.set_len(sent.len());
        frame.data_mut().copy_from_slice(sent.data());
        host.receive(frame);
        assert_eq!(free.try_recv().is_ok(), is_back);
        assert_eq!(recv(&mut host, id).unwrap(), (b"datagram".to_vec(), at(CLIENT, 9)));
        assert!(is_back || free.try_recv().is_ok());
    }
}

#[test]
fn a_socket_holds_a_bounded_number_of_datagrams() {
    let mut host = Host::server();
    let id = host.stack.udp_bind(at("0.0.0.0", 53), UdpOptions { rx_bytes: 20_000, ..Default::default() }).unwrap();
    for _ in 0..100 {
        host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 53), b"x"));
    }
    let held = host.stack.counters().udp_datagrams;
    assert_eq!((held, host.stack.counters().drop_socket_full), (10, 90), "2 KiB buffers");
    for _ in 0..held {
        assert_eq!(recv(&mut host, id).unwrap().0, b"x");
    }
    host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 53), b"y"));
    assert_eq!(recv(&mut host, id).unwrap().0, b"y");
}

#[test]
fn a_connected_socket_hears_its_peer_only_and_learns_of_errors() {
    let mut net = Net::new();
    let client = bind(&mut net.client, "0.0.0.0", 5000);
    net.client.stack.udp_connect(client, Some(at(SERVER, 53))).unwrap();
    assert_eq!(net.client.stack.local_addr(client), Ok(at(CLIENT, 5000)));
    assert_eq!(net.client.stack.peer_addr(client), Ok(at(SERVER, 53)));
    // Nobody is there, so a port unreachable comes, once.
    net.client.call(|stack, io| stack.udp_send(client, b"x", io)).unwrap();
    net.run_for(5 * MS);
    assert!(net.client.changes.iter().any(|c| c.socket == client && c.edges.contains(Ready::ERR)));
    assert_eq!(recv(&mut net.client, client), Err(NetError::ConnectionRefused));
    assert_eq!(recv(&mut net.client, client), Err(NetError::WouldBlock));
    let right = bind(&mut net.server, "0.0.0.0", 53);
    let wrong = bind(&mut net.server, "0.0.0.0", 54);
    send_to(&mut net.server, wrong, b"wrong", at(CLIENT, 5000)).unwrap();
    send_to(&mut net.server, right, b"right", at(CLIENT, 5000)).unwrap();
    net.run_for(5 * MS);
    assert_eq!(recv(&mut net.client, client).unwrap().0, b"right");
    assert_eq!(recv(&mut net.client, client), Err(NetError::WouldBlock));
    // Without a peer it hears everybody again.
    net.client.stack.udp_connect(client, None).unwrap();
    assert_eq!(net.client.stack.local_addr(client), Ok(at("0.0.0.0", 5000)), "as it was bound");
    assert_eq!(net.client.call(|stack, io| stack.udp_send(client, b"", io)), Err(NetError::DestinationRequired));
    send_to(&mut net.server, wrong, b"now", at(CLIENT, 5000)).unwrap();
    net.run_for(5 * MS);
    assert_eq!(recv(&mut net.client, client).unwrap().0, b"now");
}

#[test]
fn a_datagram_comes_from_the_own_address_that_the_sender_chooses() {
    let mut host = Host::server();
    let id = bind(&mut host, "::", 53);
    let mut send = |from: &str| {
        let data = [std::io::IoSlice::new(b"x")];
        host.call(|stack, io| stack.udp_send_with(id, &data, Some(at(CLIENT, 9)), from_own(ip(from)), io))
    };
    assert_eq!(send(SERVER), Ok(1));
    assert_eq!(send(CLIENT), Err(NetError::AddressNotAvailable));
    assert_eq!(send(SERVER6), Err(NetError::Invalid));
}

#[test]
fn what_cannot_be_sent_is_an_error() {
    let mut host = Host::server();
    let id = bind(&mut host, "0.0.0.0", 53);
    assert_eq!(send_to(&mut host, id, &[0; 65_508], at(CLIENT, 9)), Err(NetError::MessageTooLong));
    assert_eq!(send_to(&mut host, id, &[0; 65_507], at(CLIENT, 9)), Ok(65_507));
    assert_eq!(send_to(&mut host, id, b"x", at(CLIENT, 0)), Err(NetError::Invalid));
    assert_eq!(send_to(&mut host, id, b"x", at(CLIENT6, 9)), Err(NetError::Invalid));
    assert_eq!(send_to(&mut host, id, b"x", at("192.0.2.1", 9)), Err(NetError::NetworkUnreachable));
    assert_eq!(host.stack.udp_bind(at("0.0.0.0", 53), UdpOptions::default()), Err(NetError::AddressInUse));
    let elsewhere = host.stack.udp_bind(at("10.0.0.9", 53), UdpOptions::default());
    assert_eq!(elsewhere, Err(NetError::AddressNotAvailable));
    host.sent();
    // The ring is full, so the socket has to wait until it is told of room.
    host.ring.slots = 0;
    assert_eq!(send_to(&mut host, id, b"x", at(CLIENT, 9)), Err(NetError::WouldBlock));
    assert!(!host.ready(id).contains(Ready::WRITABLE));
    host.ring.slots = 1;
    host.changes.clear();
    host.call(|stack, io| stack.flush_blocked(io));
    assert_eq!(host.changes.pop().map(|c| (c.socket, c.edges)), Some((id, Ready::WRITABLE)));
    // Without a peer this is an error, and takes effect nevertheless (`inet_shutdown`).
    assert_eq!(host.call(|stack, io| stack.shutdown(id, Shutdown::Both, io)), Err(NetError::NotConnected));
    assert!(host.ready(id).contains(Ready::HUP));
    assert_eq!(send_to(&mut host, id, b"x", at(CLIENT, 9)), Err(NetError::BrokenPipe));
    assert_eq!(host.call(|stack, io| stack.udp_send(id, b"x", io)), Err(NetError::DestinationRequired));
    // Datagrams that come are taken all the same.
    let mut buffer = [0; 8];
    let received = host.call(|stack, io| stack.udp_recv_from(id, &mut buffer, io)).unwrap();
    assert!(received.is_end && received.bytes == 0);
    host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 53), b"late"));
    assert_eq!(recv(&mut host, id).unwrap().0, b"late");
    host.close(id);
    assert_eq!(send_to(&mut host, id, b"x", at(CLIENT, 9)), Err(NetError::InvalidSocket));
}

/// A discipline bounds what each sender has below it. A sender at its bound has no room, although the ring has some.
#[test]
fn a_socket_at_its_own_limit_is_told_of_room_once_it_has_some() {
    let mut host = Host::server();
    let (first, second) = (bind(&mut host, "0.0.0.0", 53), bind(&mut host, "0.0.0.0", 54));
    host.ring.is_at_limits = true;
    for id in [first, second] {
        assert_eq!(send_to(&mut host, id, b"x", at(CLIENT, 9)), Err(NetError::WouldBlock));
    }
    host.changes.clear();
    for _ in 0..3 {
        host.call(|stack, io| stack.flush_blocked(io));
        assert_eq!((host.changes.len(), host.stack.has_blocked()), (0, true));
        assert!(!host.ready(first).contains(Ready::WRITABLE));
    }
    host.ring.is_at_limits = false;
    host.call(|stack, io| stack.flush_blocked(io));
    let told: Vec<_> = host.changes.iter().map(|change| (change.socket, change.edges)).collect();
    assert_eq!(told, [(first, Ready::WRITABLE), (second, Ready::WRITABLE)], "in their order");
    assert!(!host.stack.has_blocked());
}

#[test]
fn udp_broadcast_is_received_and_sent_and_never_answered_by_an_error() {
    let mut host = Host::server();
    let id = bind(&mut host, "0.0.0.0", 67);
    for to in ["255.255.255.255", "10.0.0.255"] {
        let mut frame = udp_frame(at(CLIENT, 68), at(to, 67), b"discover");
        frame.data_mut()[..6].fill(0xff);
        host.receive(frame);
        assert_eq!(recv(&mut host, id).unwrap().0, b"discover");
        let mut frame = udp_frame(at(CLIENT, 68), at(to, 68), b"nobody");
        frame.data_mut()[..6].fill(0xff);
        host.receive(frame);
        assert!(host.sent().is_empty());
    }
    send_to(&mut host, id, b"offer", at("255.255.255.255", 68)).unwrap();
    assert_eq!(host.sent()[0].data()[..6], [0xff; 6]);
    // A unicast packet in a broadcast frame is for nobody.
    let mut frame = udp_frame(at(CLIENT, 68), at(SERVER, 67), b"odd");
    frame.data_mut()[..6].fill(0xff);
    host.receive(frame);
    assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
}

#[test]
fn udp_without_a_checksum_is_fine_in_ipv4_only() {
    let mut host = Host::server();
    let id = host.stack.udp_bind(at("::", 53), UdpOptions::default()).unwrap();
    for (from, to, good) in [(CLIENT, SERVER, true), (CLIENT6, SERVER6, false)] {
        let mut datagram = udp(at(from, 9), at(to, 53), b"x");
        datagram[6..8].fill(0);
        host.receive(ip_packet(ip(from), ip(to), 17, 0, &[], &datagram));
        assert_eq!(recv(&mut host, id).is_ok(), good);
    }
    assert_eq!(host.stack.counters().drop_checksum, 1);
}

#[test]
fn port_unreachable_is_rate_limited() {
    let mut host = Host::server();
    for _ in 0..10_000 {
        host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 1), b"x"));
    }
    assert_eq!(host.sent().len(), 50);
    assert_eq!(host.stack.counters().drop_no_socket, 10_000);
}

/// It has the precedence of internetwork control, beside the type of service of the packet that it is about
/// (`icmp_send`).
#[test]
fn an_error_has_a_class_of_its_own_over_ipv4() {
    let mut host = Host::server();
    let mut about = udp_frame(at(CLIENT, 9), at(SERVER, 1), b"x");
    let packet = about.data_mut();
    packet[15] = 0x2e;
    packet[24..26].fill(0);
    let sum = checksum(&[&packet[14..34]]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
    host.receive(about);
    assert_eq!(host.sent().pop().unwrap().data()[15], 0xce);
}

/// Routers may fragment Linux's errors, by their socket's IP_PMTUDISC_DONT (`icmp_sk_init`); a router on a narrow path
/// would drop them otherwise.
#[test]
fn errors_may_be_cut_on_their_way_and_have_an_identification_each() {
    let mut host = Host::server();
    (0..2).for_each(|_| host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 1), b"x")));
    let headers = host.sent().iter().map(|frame| frame.data()[14..34].to_vec()).collect::<Vec<_>>();
    let flags_and_ids = headers.iter().map(|header| ([header[6], header[7]], [header[4], header[5]]));
    let (flags, ids): (Vec<_>, Vec<_>) = flags_and_ids.unzip();
    assert_eq!(flags, [[0, 0]; 2]);
    assert_ne!(ids[0], ids[1]);
    assert!(headers.iter().all(|header| checksum(&[header]) == 0));
}

fn echo_request(from: &str, to: &str, payload: &[u8]) -> Frame {
    let (protocol, kind) = if ip(from).is_ipv4() { (1, 8) } else { (58, 128) };
    let mut icmp = vec![kind, 0, 0, 0, 0, 1, 0, 2];
    icmp.extend(payload);
    let pseudo = if protocol == 1 { Vec::new() } else { pseudo(ip(from), ip(to), 58, icmp.len()) };
    let sum = checksum(&[&pseudo, &icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ip_packet(ip(from), ip(to), protocol, 0, &[], &icmp)
}

#[test]
fn echo_requests_are_answered() {
    let mut host = Host::server();
    for (from, to, l4, reply) in [(CLIENT, SERVER, 34, 0), (CLIENT6, SERVER6, 54, 129)] {
        host.receive(echo_request(from, to, b"ping"));
        let sent = host.sent();
        let data = sent[0].data();
        assert_eq!((sent.len(), data[l4], &data[l4 + 4..]), (1, reply, &b"\0\x01\0\x02ping"[..]));
        let pseudo = if l4 == 34 { Vec::new() } else { pseudo(ip(to), ip(from), 58, data.len() - l4) };
        assert_eq!(checksum(&[&pseudo, &data[l4..]]), 0);
        assert_eq!(data[..6], CLIENT_MAC);
    }
    let mut broken = echo_request(CLIENT, SERVER, b"ping");
    broken.data_mut()[40] ^= 1;
    host.receive(broken);
    let mut broadcast = echo_request(CLIENT, "10.0.0.255", b"ping");
    broadcast.data_mut()[..6].fill(0xff);
    host.receive(broadcast);
    assert!(host.sent().is_empty());
    assert_eq!(host.stack.counters().icmp_echo_replies, 2);
}

/// `icmp_reply` and `icmpv6_echo_reply`: a reply that does not fit the path in one piece arrives in several.
#[test]
fn replies_to_large_echo_requests_arrive_over_narrow_paths() {
    let mut host = Host::server();
    let reply = |host: &mut Host, from, to| {
        let mut request = echo_request(from, to, &[7; 1400]);
        let header = &mut request.data_mut()[14..];
        match from {
            CLIENT => {
                header[1] = 0xb8;
                header[10..12].fill(0);
                let sum = checksum(&[&header[..20]]);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            _ => (header[0], header[1]) = (0x6b, 0x80),
        }
        host.receive(request);
        host.sent()
    };
    let v4: Vec<Frame> = (0..2).flat_map(|_| reply(&mut host, CLIENT, SERVER)).collect();
    assert_eq!(v4.iter().map(|frame| (frame.data()[15], frame.data()[20])).collect::<Vec<_>>(), [(0xb8, 0); 2]);
    assert_ne!(v4[0].data()[18..20], v4[1].data()[18..20], "the fragments of one are not those of the other");
    assert!(v4.iter().all(|frame| checksum(&[&frame.data()[14..34]]) == 0));

    let v6 = reply(&mut host, CLIENT6, SERVER6);
    assert_eq!((v6.len(), &v6[0].data()[14..16]), (1, &[0x6b, 0x80][..]));
    // These are a router's messages about something that this station cannot have sent, and about something that fits.
    let mut of_another = v6[0].clone();
    of_another.data_mut()[14 + 23] ^= 4;
    let mut a_request = v6[0].clone();
    a_request.data_mut()[14 + 40] = 128;
    for (about, mtu) in [(&of_another, 1300), (&a_request, 1300), (&v6[0], 1448), (&v6[0], 1279)] {
        host.receive(icmp_about(about, "2001:db8::fe", 2, 0, mtu));
        assert_eq!(reply(&mut host, CLIENT6, SERVER6).len(), 1, "{mtu}");
    }
    host.receive(icmp_about(&v6[0], "2001:db8::fe", 2, 0, 1300));
    let parts = reply(&mut host, CLIENT6, SERVER6);
    assert_eq!(parts.len(), 2);
    assert!(parts.iter().all(|part| part.len() <= 1300 + 14 && part.data()[14..16] == [0x6b, 0x80]));
}

#[test]
fn icmp_errors_only_slow_a_connection() {
    let unreachable = |about: &Frame, code: u8| {
        let mut icmp = vec![3, code, 0, 0, 0, 0, 0, 0];
        icmp.extend(&about.data()[14..14 + 28]);
        let sum = checksum(&[&icmp]);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        ip_packet(ip(CLIENT), ip(SERVER), 1, 0, &[], &icmp)
    };
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    host.send(id, b"data").unwrap();
    let data = host.sent().remove(0);
    host.receive(unreachable(&data, 3));
    assert!(!host.ready(id).contains(Ready::HUP));
    assert_eq!(host.stack.take_error(id), Ok(Some(NetError::ConnectionRefused)));
    // A sequence number that is not in flight was forged.
    let mut forged = peer.segment(ACK, b"");
    (forged.from, forged.to, forged.seq) = (peer.to, peer.from, 12345);
    host.receive(unreachable(&forged.frame(), 3));
    assert_eq!(host.stack.take_error(id), Ok(None));
}

/// An ICMP message from `offender` about the packet that the host has just sent, with as much of it as comes back.
fn icmp_about(packet: &Frame, offender: &str, kind: u8, code: u8, info: u32) -> Frame {
    let is_v6 = ip(offender).is_ipv6();
    let mut icmp = [[kind, code, 0, 0], info.to_be_bytes()].concat();
    icmp.extend(&packet.data()[14..]);
    let own = if is_v6 { SERVER6 } else { SERVER };
    let pseudo = if is_v6 { pseudo(ip(offender), ip(own), 58, icmp.len()) } else { Vec::new() };
    let sum = checksum(&[&pseudo, &icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ip_packet(ip(offender), ip(own), if is_v6 { 58 } else { 1 }, 0, &[], &icmp)
}

/// `icmp_err_convert` and `tab_unreach`: the type, the code, the error, and whether a socket with a peer is told
/// without asking.
const V4_ERRORS: [(u8, u8, i32, bool); 18] = [
    (3, 0, ENETUNREACH, false),
    (3, 1, EHOSTUNREACH, false),
    (3, 2, ENOPROTOOPT, true),
    (3, 3, ECONNREFUSED, true),
    (3, 5, EOPNOTSUPP, false),
    (3, 6, ENETUNREACH, true),
    (3, 7, EHOSTDOWN, true),
    (3, 8, ENONET, true),
    (3, 9, ENETUNREACH, true),
    (3, 10, EHOSTUNREACH, true),
    (3, 11, ENETUNREACH, false),
    (3, 12, EHOSTUNREACH, false),
    (3, 13, EHOSTUNREACH, true),
    (3, 14, EHOSTUNREACH, true),
    (3, 15, EHOSTUNREACH, true),
    (11, 0, EHOSTUNREACH, false),
    (11, 1, EHOSTUNREACH, false),
    (12, 0, EPROTO, true),
];
const V6_ERRORS: [(u8, u8, i32, bool); 10] = [
    (1, 0, ENETUNREACH, false),
    (1, 1, EACCES, true),
    (1, 2, EHOSTUNREACH, false),
    (1, 3, EHOSTUNREACH, false),
    (1, 4, ECONNREFUSED, true),
    (1, 5, EACCES, true),
    (1, 6, EACCES, true),
    (1, 7, EPROTO, true),
    (3, 0, EHOSTUNREACH, false),
    (4, 1, EPROTO, true),
];
const EACCES: i32 = 13;
const ENONET: i32 = 64;
const EPROTO: i32 = 71;
const ENOPROTOOPT: i32 = 92;
const EOPNOTSUPP: i32 = 95;
const ENETUNREACH: i32 = 101;
const ECONNREFUSED: i32 = 111;
const EHOSTDOWN: i32 = 112;
const EHOSTUNREACH: i32 = 113;

fn all_errors() -> impl Iterator<Item = (&'static str, (u8, u8, i32, bool))> {
    V4_ERRORS.map(|error| (CLIENT, error)).into_iter().chain(V6_ERRORS.map(|error| (CLIENT6, error)))
}

fn told(host: &mut Host, id: SocketId) -> Option<i32> {
    host.stack.take_error(id).unwrap().map(NetError::errno)
}

#[test]
fn a_socket_with_a_peer_is_told_hard_errors_alone() {
    for (client, (kind, code, errno, is_hard)) in all_errors() {
        let mut host = Host::server();
        let id = bind(&mut host, "::", 5000);
        host.stack.udp_connect(id, Some(at(client, 9))).unwrap();
        host.call(|stack, io| stack.udp_send(id, b"data", io)).unwrap();
        let packet = host.sent().pop().unwrap();
        host.receive(icmp_about(&packet, client, kind, code, 0));
        assert_eq!(told(&mut host, id), is_hard.then_some(errno), "type {kind}, code {code} of {client}");
        host.stack.udp_set_receive_errors(id, [true; 2]).unwrap();
        host.receive(icmp_about(&packet, client, kind, code, 0));
        assert_eq!(recv_error(&mut host, id, 8).unwrap().1.error.errno(), errno);
    }
}

/// `tcp_v4_err` and `tcp_v6_err`: in SYN-SENT every error ends the attempt.
#[test]
fn every_icmp_error_about_its_syn_ends_an_attempt_to_connect() {
    for (client, (kind, code, errno, _)) in all_errors() {
        let mut host = Host::server();
        let id = host.connect(at(client, 80));
        let syn = host.sent().pop().unwrap();
        host.receive(icmp_about(&syn, client, kind, code, 0));
        assert!(host.ready(id).contains(Ready::ERR | Ready::HUP), "type {kind}, code {code} of {client}");
        assert_eq!((told(&mut host, id), host.stack.tcp_state(id)), (Some(errno), Ok("CLOSED")));
    }
    // A code that does not exist means nothing.
    let mut host = Host::server();
    let id = host.connect(at(CLIENT, 80));
    let syn = host.sent().pop().unwrap();
    host.receive(icmp_about(&syn, CLIENT, 3, 16, 0));
    assert!(host.ready(id).is_empty());
}

/// The kernel's function is `tcp_req_err`.
#[test]
fn a_half_open_connection_is_forgotten_by_the_errors_that_linux_takes_for_it() {
    for (client, (kind, code, _, is_hard)) in all_errors() {
        let mut host = Host::server();
        host.stack.tcp_listen(at("::", 80), Default::default()).unwrap();
        let mut peer = if client == CLIENT { Peer::new(4000) } else { Peer::v6(4000) };
        host.receive(peer.syn().frame());
        let syn_ack = host.sent().pop().unwrap();
        host.receive(icmp_about(&syn_ack, client, kind, code, 0));
        let ends = if client == CLIENT { kind != 3 || code < 2 } else { is_hard };
        (peer.seq, peer.ack) = (peer.seq + 1, Tcp::parse(&syn_ack).unwrap().seq + 1);
        peer.send(&mut host, ACK, b"");
        let reset = host.segments().iter().any(|segment| segment.flags & RST != 0);
        assert_eq!(reset, ends, "type {kind}, code {code} of {client}");
    }
}

fn recv_error(host: &mut Host, id: SocketId, room: usize) -> Result<(Vec<u8>, ReceivedError), NetError> {
    let mut buffer = vec![0; room];
    let mut parts = [std::io::IoSliceMut::new(&mut buffer)];
    let received = host.call(|stack, io| stack.udp_recv_error(id, &mut parts, io))?;
    buffer.truncate(received.bytes);
    Ok((buffer, received))
}

/// IP_RECVERR: errors are kept with a peer or without one, from every station on the way, hard errors and others, the
/// oldest first.
#[test]
fn a_socket_that_asks_for_them_keeps_what_icmp_says_of_its_datagrams() {
    for (client, router) in [(CLIENT, "10.0.0.77"), (CLIENT6, "fd00::77")] {
        let is_v6 = ip(client).is_ipv6();
        // The errors are port unreachable, too long for the path, and host unreachable, of which a socket is not told
        // without asking.
        let messages: [(u8, u8, NetError); 3] = match is_v6 {
            false => [
                (3, 3, NetError::ConnectionRefused),
                (11, 0, NetError::HostUnreachable),
                (3, 1, NetError::HostUnreachable),
            ],
            true => [
                (1, 4, NetError::ConnectionRefused),
                (3, 0, NetError::HostUnreachable),
                (1, 3, NetError::HostUnreachable),
            ],
        };
        for connected in [false, true] {
            let mut host = Host::server();
            let id = bind(&mut host, if is_v6 { "::" } else { "0.0.0.0" }, 5000);
            if connected {
                host.stack.udp_connect(id, Some(at(client, 9))).unwrap();
            }
            // This makes the neighbour known.
            host.receive(udp_frame(at(client, 9), at(if is_v6 { SERVER6 } else { SERVER }, 5000), b"hello"));
            recv(&mut host, id).unwrap();
            host.sent();
            send_to(&mut host, id, b"data", at(client, 9)).unwrap();
            let packet = host.sent().pop().unwrap();
            // Nobody has asked for errors.
            for (kind, code, error) in messages {
                host.receive(icmp_about(&packet, router, kind, code, 0));
                let told = (connected && error == NetError::ConnectionRefused).then_some(error);
                assert_eq!(host.stack.take_error(id), Ok(told), "type {kind}, connected: {connected}");
            }
            assert_eq!(recv_error(&mut host, id, 8), Err(NetError::WouldBlock));
            // The socket asks only for errors over the other family.
            host.stack.udp_set_receive_errors(id, [is_v6, !is_v6]).unwrap();
            let (kind, code, _) = messages[1];
            host.receive(icmp_about(&packet, router, kind, code, 0));
            assert_eq!(recv_error(&mut host, id, 8), Err(NetError::WouldBlock));

            host.stack.udp_set_receive_errors(id, [!is_v6, is_v6]).unwrap();
            for (kind, code, _) in messages {
                host.receive(icmp_about(&packet, router, kind, code, 0));
            }
            assert!(host.ready(id).contains(Ready::ERR));
            assert_eq!(recv(&mut host, id), Err(NetError::HostUnreachable), "the last one, by the next call");
            for (nth, (kind, code, error)) in messages.into_iter().enumerate() {
                assert!(host.ready(id).contains(Ready::ERR), "there is one more");
                let (data, received) = recv_error(&mut host, id, if nth == 0 { 8 } else { 3 }).unwrap();
                assert_eq!(data, if nth == 0 { &b"data"[..] } else { b"dat" });
                assert_eq!((received.error, received.kind, received.code, received.info), (error, kind, code, 0));
                assert_eq!((received.offender, received.to, received.datagram_bytes), (ip(router), at(client, 9), 4));
                let next = messages.get(nth + 1).map(|(.., error)| *error);
                assert_eq!(host.stack.take_error(id), Ok(next), "the next call is told the next one");
            }
            assert!(!host.ready(id).contains(Ready::ERR));
            assert_eq!(recv_error(&mut host, id, 8), Err(NetError::WouldBlock));
            // When the last of them was read, the error that nobody was told of is gone.
            host.receive(icmp_about(&packet, router, kind, code, 0));
            recv_error(&mut host, id, 8).unwrap();
            assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
            // When the option is turned off, the errors that were kept are gone.
            host.receive(icmp_about(&packet, router, kind, code, 0));
            host.stack.take_error(id).unwrap();
            host.stack.udp_set_receive_errors(id, [false; 2]).unwrap();
            assert!(!host.ready(id).contains(Ready::ERR));
        }
    }
}

/// A router that cannot pass a datagram says how long one may be.
#[test]
fn a_socket_that_asks_for_errors_is_told_what_the_path_takes() {
    let mut host = Host::server();
    let id = bind(&mut host, "0.0.0.0", 5000);
    host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 5000), b"hello"));
    recv(&mut host, id).unwrap();
    host.stack.udp_set_receive_errors(id, [true, false]).unwrap();
    send_to(&mut host, id, &[7; 1200], at(CLIENT, 9)).unwrap();
    let packet = host.sent().pop().unwrap();
    host.receive(icmp_about(&packet, "10.0.0.77", 3, 4, 1000));
    let (_, received) = recv_error(&mut host, id, 8).unwrap();
    assert_eq!((received.error, received.kind, received.code), (NetError::MessageTooLong, 3, 4));
    assert_eq!((received.info, received.to), (1000, at(CLIENT, 9)));
    assert_eq!((received.own, received.traffic_class, received.hop_limit), (ip(SERVER), 0, 64));
}

/// What nobody reads is bounded.
#[test]
fn a_socket_keeps_so_many_errors_and_no_more() {
    let mut host = Host::server();
    let id = bind(&mut host, "0.0.0.0", 5000);
    host.receive(udp_frame(at(CLIENT, 9), at(SERVER, 5000), b"hello"));
    recv(&mut host, id).unwrap();
    host.stack.udp_set_receive_errors(id, [true, false]).unwrap();
    send_to(&mut host, id, b"data", at(CLIENT, 9)).unwrap();
    let packet = host.sent().pop().unwrap();
    for _ in 0..1000 {
        host.receive(icmp_about(&packet, CLIENT, 3, 3, 0));
    }
    let kept = std::iter::from_fn(|| recv_error(&mut host, id, 8).ok()).count();
    assert!((1..=64).contains(&kept), "{kept}");
}

#[test]
fn arp_is_learned_across_two_stacks_that_share_the_table() {
    let shared = Arc::new(Neighbours::default());
    let client = Host::with_neighbours(client_config(), shared.clone());
    let server = Host::with_neighbours(server_config(), shared.clone());
    let mut net = Net::of(client, server);
    let listener = net.server.listen(80);
    net.establish(listener, at(SERVER, 80));
    assert_eq!(shared.lookup(ip(SERVER)), Some(SERVER_MAC));
    assert_eq!(shared.lookup(ip(CLIENT)), Some(CLIENT_MAC));
    assert_eq!(net.client.stack.counters().neighbour_requests, 1);
    assert_eq!(net.server.stack.counters().neighbour_requests, 0);
}

#[test]
fn a_moved_neighbour_is_followed_in_the_middle_of_a_connection() {
    let mut host = Host::new(server_config());
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 2];
    arp.extend([2, 0, 0, 0, 0, 99]);
    arp.extend([10, 0, 0, 2]);
    arp.extend(SERVER_MAC);
    arp.extend([10, 0, 0, 1]);
    host.receive(ethernet(0x0806, &arp));
    host.send(id, b"x").unwrap();
    assert_eq!(host.sent()[0].data()[..6], [2, 0, 0, 0, 0, 99]);
}

#[test]
fn a_gateway_is_on_an_own_network() {
    let refused = |change: fn(&mut lull_net::shard::StackConfig)| {
        let mut config = server_config();
        change(&mut config);
        config.validate().is_err()
    };
    assert!(refused(|config| config.gateway4 = Some([192, 0, 2, 1].into())));
    assert!(!refused(|config| config.gateway4 = Some([10, 0, 0, 254].into())));
    assert!(refused(|config| config.gateway6 = Some("2001:db8:1::1".parse().unwrap())));
    assert!(!refused(|config| config.gateway6 = Some("fe80::1".parse().unwrap())));
}

#[test]
fn arp_for_others_and_martians_change_nothing() {
    let mut host = Host::new(server_config());
    let arp = |operation: u8, sender: [u8; 4], target: [u8; 4]| {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, operation];
        arp.extend(CLIENT_MAC);
        arp.extend(sender);
        arp.extend([0; 6]);
        arp.extend(target);
        ethernet(0x0806, &arp)
    };
    host.receive(arp(1, [10, 0, 0, 2], [10, 0, 0, 3]));
    host.receive(arp(1, [10, 0, 0, 1], [10, 0, 0, 1]));
    host.receive(arp(2, [10, 0, 0, 255], [10, 0, 0, 1]));
    assert!(host.sent().is_empty());
    host.receive(arp(1, [192, 0, 2, 1], [10, 0, 0, 1]));
    // It is answered, as by any station on the same wire, but not learned: its address is in none of the own networks.
    assert_eq!(host.sent().len(), 1);
    let connect = host.connect(at(CLIENT, 9));
    assert_eq!(host.sent()[0].data()[12..14], [8, 6], "still unknown");
    host.close(connect);
}

#[test]
fn datagrams_that_wait_for_a_neighbour_are_bounded() {
    let mut host = Host::new(server_config());
    let id = bind(&mut host, "0.0.0.0", 53);
    for _ in 0..150 {
        send_to(&mut host, id, b"x", at(CLIENT, 9)).unwrap();
    }
    assert_eq!(host.stack.counters().drop_unreachable, 150 - 101);
    // A scan of many addresses is bounded as well.
    for last in 0..1000u32 {
        let to = std::net::SocketAddr::from(([10, 0, 0, (last % 250) as u8 + 3], 9));
        send_to(&mut host, id, b"x", to).unwrap();
    }
    host.run_for(10 * SECOND);
    assert_eq!(host.stack.next_deadline_ns(), None);
    assert!(host.sent().len() <= 251 * 3);
}

#[test]
fn a_gateway_is_the_next_hop_for_what_is_elsewhere() {
    let mut config = server_config();
    config.gateway4 = Some([10, 0, 0, 254].into());
    config.gateway6 = Some("fe80::fe".parse().unwrap());
    let mut host = Host::new(config);
    host.connect(at("192.0.2.1", 9));
    assert_eq!(host.sent()[0].data()[38..42], [10, 0, 0, 254]);
    host.connect(at("2001:db8:ffff::1", 9));
    let solicitation = host.sent();
    assert_eq!(solicitation[0].data()[..6], [0x33, 0x33, 0xff, 0, 0, 0xfe]);
    assert_eq!(solicitation[0].data()[62..78], "fe80::fe".parse::<std::net::Ipv6Addr>().unwrap().octets());
}

/// The rules are those of `inet_select_addr` and of RFC 6724, rules 6 and 8.
#[test]
fn what_goes_elsewhere_comes_from_the_address_that_is_near_it() {
    let mut config = server_config();
    config.addresses = vec![
        (ip("10.0.0.2"), 24),
        (ip("192.168.5.2"), 24),
        (ip("192.168.5.3"), 24),
        (ip("fd00::2"), 64),
        (ip("2001:db8:1::2"), 64),
        (ip("2001:db8:2::2"), 64),
    ];
    config.gateway4 = Some([192, 168, 5, 1].into());
    config.gateway6 = Some("fe80::1".parse().unwrap());
    for (to, from) in [
        ("10.9.0.1", "192.168.5.2"),
        ("10.0.0.9", "10.0.0.2"),
        ("192.168.5.9", "192.168.5.2"),
        ("2001:db8:ffff::1", "2001:db8:1::2"),
        ("2001:db8:2:1::1", "2001:db8:2::2"),
        ("fd00:ffff::1", "fd00::2"),
        ("2001:db8:2::9", "2001:db8:2::2"),
    ] {
        let mut host = Host::new(config.clone());
        let id = host.connect(at(to, 9));
        assert_eq!(host.stack.local_addr(id).unwrap().ip(), ip(from), "to {to}");
        let request = host.sent().remove(0);
        let asks_for_gateway = to == "10.9.0.1";
        if asks_for_gateway {
            assert_eq!(request.data()[28..32], [192, 168, 5, 2], "the sender of the ARP request");
        }
    }
    // An address of the link alone is better than none.
    config.addresses = vec![(ip("fe80::2"), 64)];
    config.gateway4 = None;
    let mut host = Host::new(config);
    let id = host.connect(at("2001:db8::1", 9));
    assert_eq!(host.stack.local_addr(id).unwrap().ip(), ip("fe80::2"));
}

/// The kernel's functions are `ipv4_link_failure` and `ip6_link_failure`.
#[test]
fn a_socket_that_asks_for_errors_hears_that_the_next_hop_does_not_answer() {
    for (to, own, kind, code) in [("10.0.0.9", SERVER, 3, 1), ("2001:db8::9", SERVER6, 1, 3)] {
        let mut host = Host::server();
        let (asks, does_not) = (bind(&mut host, "::", 53), bind(&mut host, "::", 54));
        host.stack.udp_set_receive_errors(asks, [true; 2]).unwrap();
        host.stack.udp_connect(does_not, Some(at(to, 9))).unwrap();
        for (id, length) in [(asks, 5), (does_not, 5), (asks, 3000)] {
            assert_eq!(send_to(&mut host, id, &vec![7; length], at(to, 9)), Ok(length));
        }
        host.run_for(4 * SECOND);
        assert!(host.ready(asks).contains(Ready::ERR));
        assert_eq!(recv(&mut host, asks), Err(NetError::HostUnreachable));
        for room in [5, 4000] {
            let (data, received) = recv_error(&mut host, asks, room).unwrap();
            assert_eq!((received.error, received.kind, received.code), (NetError::HostUnreachable, kind, code));
            assert_eq!((received.offender, received.to), (ip(own), at(to, 9)));
            let class = if received.own.is_ipv4() { 0xc0 } else { 0 };
            assert_eq!((received.own, received.traffic_class, received.hop_limit), (ip(own), class, 64));
            assert!(data.iter().all(|byte| *byte == 7) && (5..1280).contains(&data.len()), "{} bytes", data.len());
            host.stack.take_error(asks).unwrap();
        }
        assert_eq!(recv_error(&mut host, asks, 8), Err(NetError::WouldBlock), "of several fragments the first tells");
        assert_eq!(host.stack.take_error(does_not), Ok(None), "it is no hard error");
    }
}

#[test]
fn duplicate_address_detection_is_answered_to_all() {
    let mut host = Host::server();
    let target: std::net::Ipv6Addr = SERVER6.parse().unwrap();
    let group = ip("ff02::1:ff00:1");
    let mut icmp = vec![135, 0, 0, 0, 0, 0, 0, 0];
    icmp.extend(target.octets());
    let sum = checksum(&[&pseudo(ip("::"), group, 58, icmp.len()), &icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ip_packet(ip("::"), group, 58, 0, &[], &icmp);
    frame.data_mut()[..6].copy_from_slice(&[0x33, 0x33, 0xff, 0, 0, 1]);
    frame.data_mut()[21] = 255;
    host.receive(frame);
    let sent = host.sent();
    assert_eq!((sent.len(), &sent[0].data()[..6]), (1, &[0x33, 0x33, 0, 0, 0, 1][..]));
    assert_eq!((sent[0].data()[54], sent[0].data()[58]), (136, 0x20), "override, not solicited");
}

#[test]
fn martians_that_come_from_outside_with_an_own_source_are_dropped() {
    for ip in [SERVER, SERVER6] {
        let mut host = Host::server();
        let id = bind(&mut host, ip, 53);
        host.receive(udp_frame(at(ip, 9), at(ip, 53), b"forged"));
        assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
        assert_eq!(host.stack.counters().drop_martian, 1);
    }
}

fn received(host: &mut Host, id: SocketId) -> Option<(usize, Option<u16>)> {
    let mut buffer = vec![0; 65_536];
    let take = |stack: &mut lull_net::shard::Stack, io: &mut lull_net::shard::Io<'_>| {
        stack.udp_recv_vectored(id, &mut [std::io::IoSliceMut::new(&mut buffer)], false, io)
    };
    host.call(take).ok().map(|received| (received.bytes, received.each_bytes))
}

/// Passes frames through as a NAPI's queue does, and then ends the poll.
fn polled(host: &mut Host, frames: impl IntoIterator<Item = Frame>) {
    let mut gro = Gro::default();
    let mut out = Vec::new();
    for frame in frames {
        match host.stack.joins_datagrams(&frame) {
            true => gro.receive_datagram(frame, 0, &mut |frame| out.push(frame)),
            false => gro.receive(frame, 0, &mut |frame| out.push(frame)),
        }
    }
    gro.flush(&mut |frame| out.push(frame));
    out.into_iter().for_each(|frame| host.receive(frame));
}

#[test]
fn only_a_socket_that_asks_for_it_takes_several_datagrams_as_one() {
    let mut host = Host::server();
    let id = bind(&mut host, SERVER, 53);
    let frames = || [4, 4, 4, 3].map(|size| udp_frame(at(CLIENT, 9), at(SERVER, 53), &b"abcd"[..size]));
    polled(&mut host, frames());
    assert_eq!(
        [(); 5].map(|()| received(&mut host, id)),
        [4, 4, 4, 3].map(|size| Some((size, None))).into_iter().chain([None]).collect::<Vec<_>>()[..]
    );
    host.stack.udp_set_gro(id, true).unwrap();
    polled(&mut host, frames());
    assert_eq!(host.stack.udp_unread(id), Ok(15));
    assert_eq!([(); 2].map(|()| received(&mut host, id)), [Some((15, Some(4))), None]);
    // A socket with a peer is found by its flow.
    host.stack.udp_connect(id, Some(at(CLIENT, 9))).unwrap();
    polled(&mut host, frames());
    assert_eq!(received(&mut host, id), Some((15, Some(4))));
    // The datagrams were joined for a socket that is closed by then, and come to one that does not ask for that.
    let mut gro = Gro::default();
    let mut joined = Vec::new();
    frames().into_iter().for_each(|frame| gro.receive_datagram(frame, 0, &mut |frame| joined.push(frame)));
    host.call(|stack, io| stack.close(id, io)).unwrap();
    let other = bind(&mut host, SERVER, 53);
    assert!(!host.stack.joins_datagrams(&frames()[0]), "nobody asks for it any more");
    joined.into_iter().for_each(|frame| host.receive(frame));
    assert_eq!([(); 4].map(|()| received(&mut host, other)), [4, 4, 4, 3].map(|size| Some((size, None))));
}

/// Whether a datagram may be joined is asked before anything has looked at its length.
#[test]
fn a_program_that_steers_sees_no_further_than_the_packet_whatever_length_the_datagram_says() {
    let mut host = Host::server();
    let options = UdpOptions { reuse_port: true, ..UdpOptions::default() };
    let group: Vec<SocketId> = (0..5).map(|_| host.stack.udp_bind(at(SERVER, 53), options).unwrap()).collect();
    // This is "ld len; ret a", which chooses the socket whose number is the payload's length.
    let length = lull_net::lull_bpf::Program::parse("2,128 0 0 0,22 0 0 0").unwrap();
    host.stack.set_reuseport_program(group[0], Some(Arc::new(length.into()))).unwrap();
    host.stack.udp_set_gro(group[4], true).unwrap();
    for (says, joins) in [(12, true), (2000, true), (u16::MAX, true), (11, false), (8, false), (7, false), (0, false)] {
        let mut datagram = udp(at(CLIENT, 9), at(SERVER, 53), b"abcd");
        datagram[4..6].copy_from_slice(&says.to_be_bytes());
        // A datagram without a whole header is nobody's.
        for (bytes, joins) in [(12, joins), (7, false), (0, false)] {
            let frame = ip_packet(ip(CLIENT), ip(SERVER), 17, 0, &[], &datagram[..bytes]);
            assert_eq!(host.stack.joins_datagrams(&frame), joins, "{says} in {bytes} bytes");
            polled(&mut host, [frame]);
        }
    }
    assert_eq!(
        host.stack.counters().drop_malformed,
        7 * 3 - 3,
        "four are too short or too long, and two have no header"
    );
}

#[test]
fn several_datagrams_of_one_call_leave_as_the_ring_has_room() {
    let mut net = Net::new();
    let (server, client) = (bind(&mut net.server, SERVER, 53), bind(&mut net.client, CLIENT, 9));
    send_to(&mut net.client, client, b"hello", at(SERVER, 53)).unwrap();
    net.run_for(5 * MS);
    recv(&mut net.server, server).unwrap();
    let data: Vec<u8> = (0..95).collect();
    let send = |host: &mut Host, each_bytes| {
        let data = [std::io::IoSlice::new(&data[..33]), std::io::IoSlice::new(&data[33..])];
        host.call(|stack, io| stack.udp_send_with(client, &data, Some(at(SERVER, 53)), each(each_bytes), io))
    };
    net.client.ring.slots = 4;
    assert_eq!(send(&mut net.client, 10), Ok(95));
    assert_eq!(net.client.ring.frames.len(), 4);
    assert_eq!(send(&mut net.client, 10), Err(NetError::WouldBlock), "six wait already");
    assert!(net.client.stack.has_blocked() && !net.client.ready(client).contains(Ready::WRITABLE));
    for _ in 0..3 {
        net.run_for(MS);
        net.client.call(|stack, io| stack.flush_blocked(io));
    }
    net.run_for(MS);
    assert!(!net.client.stack.has_blocked() && net.client.ready(client).contains(Ready::WRITABLE));
    let mut whole = Vec::new();
    for _ in 0..10 {
        whole.extend(recv(&mut net.server, server).unwrap().0);
    }
    assert_eq!((whole, recv(&mut net.server, server)), (data.clone(), Err(NetError::WouldBlock)));
    net.client.ring.slots = 1024;
    assert_eq!(send(&mut net.client, 0), Ok(95));
    net.run_for(MS);
    assert_eq!(recv(&mut net.server, server).unwrap().0.len(), 95);
    let long = vec![0; 1300];
    let mut each = |bytes: u16, to| {
        let data = [std::io::IoSlice::new(&long)];
        net.client.call(|stack, io| stack.udp_send_with(client, &data, Some(to), each(bytes), io))
    };
    assert_eq!(each(10, at(SERVER, 53)), Err(NetError::Invalid), "more than 128");
    assert_eq!(each(u16::MAX, at(SERVER, 53)), Ok(1300), "it is one");
}

#[test]
fn datagrams_to_an_own_address_are_cut_for_who_does_not_take_several_as_one() {
    let mut host = Host::server();
    let (from, to) = (bind(&mut host, SERVER, 9), bind(&mut host, SERVER, 53));
    for (joins, heard) in [(false, vec![Some((4, None)), Some((3, None))]), (true, vec![Some((7, Some(4)))])] {
        host.stack.udp_set_gro(to, joins).unwrap();
        let data = [std::io::IoSlice::new(b"abcdefg")];
        let sent = host.call(|stack, io| stack.udp_send_with(from, &data, Some(at(SERVER, 53)), each(4), io));
        assert_eq!(sent, Ok(7));
        host.call(|stack, io| stack.deliver_looped(io));
        assert_eq!(heard.iter().map(|_| received(&mut host, to)).collect::<Vec<_>>(), heard);
        assert_eq!(received(&mut host, to), None);
    }
}
