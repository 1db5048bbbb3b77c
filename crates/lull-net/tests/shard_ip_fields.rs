//! The fields of IP headers that a socket asks for: the traffic class and the hop limit, over both families.

mod shard_harness;

use std::io::{IoSlice, IoSliceMut};

use lull_net::shard::{IpFields, ListenOptions, Received, SendOptions, SocketId};
use lull_nic::Frame;
use shard_harness::udp::bind;
use shard_harness::*;

const ASKED: IpFields = IpFields { traffic_class: Some(0xb8), hop_limit: Some(255) };
/// The stack's own values.
const UNASKED: (u8, u8) = (0, 64);

/// The traffic class and the hop limit of the packet in a frame, whose header checksum is right.
fn said(frame: &Frame) -> (u8, u8) {
    let packet = &frame.data()[14..];
    if packet[0] >> 4 == 6 {
        return (packet[0] << 4 | packet[1] >> 4, packet[7]);
    }
    assert_eq!(checksum(&[&packet[..20]]), 0, "the header adds up");
    (packet[1], packet[8])
}

fn send(host: &mut Host, id: SocketId, length: usize, to: &str, options: SendOptions) {
    let data = vec![7; length];
    let sent = host.call(|stack, io| stack.udp_send_with(id, &[IoSlice::new(&data)], Some(at(to, 53)), options, io));
    assert_eq!(sent, Ok(length));
}

fn receive(host: &mut Host, id: SocketId) -> Received {
    let mut buffer = [0; 2048];
    host.call(|stack, io| stack.udp_recv_vectored(id, &mut [IoSliceMut::new(&mut buffer)], false, io)).unwrap()
}

#[test]
fn segments_say_what_their_connection_asks_for_and_others_do_not() {
    let (mut host, listener, mut peer, id) = Host::with_a_peer();
    let mut other = Peer::new(4001);
    let others = host.establish(listener, &mut other);
    host.sent();
    host.call(|stack, _| stack.set_ip_fields(id, false, ASKED)).unwrap();
    host.call(|stack, _| stack.set_ip_fields(id, true, IpFields::new(1, 2))).unwrap();
    host.send(id, b"asked").unwrap();
    host.send(others, b"unasked").unwrap();
    let frames = host.sent();
    assert_eq!(frames.iter().map(said).collect::<Vec<_>>(), [(0xb8, 255), UNASKED]);
    // Its acknowledgements and its end have them as well.
    peer.ack += 5;
    peer.send(&mut host, FIN | ACK, &[]);
    host.close(id);
    let frames = host.sent();
    assert!(!frames.is_empty() && frames.iter().all(|frame| said(frame) == (0xb8, 255)));
}

#[test]
fn segments_over_ipv6_go_by_what_is_asked_for_over_ipv6() {
    let mut host = Host::server();
    let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    let mut peer = Peer::v6(4000);
    let id = host.establish(listener, &mut peer);
    host.sent();
    host.call(|stack, _| stack.set_ip_fields(id, false, IpFields::new(1, 2))).unwrap();
    host.call(|stack, _| stack.set_ip_fields(id, true, ASKED)).unwrap();
    host.send(id, b"x").unwrap();
    assert_eq!(host.sent().iter().map(said).collect::<Vec<_>>(), [(0xb8, 255)]);
}

#[test]
fn datagrams_and_their_fragments_say_what_their_socket_asks_for_and_a_call_asks_anew() {
    let mut net = Net::new();
    for (own, to) in [(SERVER, CLIENT), (SERVER6, CLIENT6)] {
        let is_v6 = ip(to).is_ipv6();
        let (server, client) = (bind(&mut net.server, own, 9), bind(&mut net.client, to, 53));
        // After this the neighbours know each other.
        send(&mut net.server, server, 1, to, SendOptions::default());
        net.run_for(5 * MS);
        let received = receive(&mut net.client, client);
        assert_eq!((received.traffic_class, received.hop_limit), UNASKED);
        net.server.call(|stack, _| stack.set_ip_fields(server, is_v6, ASKED)).unwrap();
        send(&mut net.server, server, 1, to, SendOptions::default());
        let class = IpFields { traffic_class: Some(0), hop_limit: None };
        send(&mut net.server, server, 1, to, SendOptions { ip: [class, class], ..SendOptions::default() });
        send(&mut net.server, server, 1800, to, SendOptions::default());
        net.run_for(5 * MS);
        for expected in [(0xb8, 255), (0, 255), (0xb8, 255)] {
            let received = receive(&mut net.client, client);
            assert_eq!((received.traffic_class, received.hop_limit), expected);
        }
    }
}

#[test]
fn how_far_a_datagram_to_a_group_goes_is_not_what_the_socket_asks_of_others() {
    let mut host = Host::server();
    let id = bind(&mut host, "0.0.0.0", 9);
    host.call(|stack, _| stack.set_ip_fields(id, false, ASKED)).unwrap();
    send(&mut host, id, 1, "224.0.0.251", SendOptions::default());
    assert_eq!(host.sent().iter().map(said).collect::<Vec<_>>(), [(0xb8, 1)]);
}

#[test]
fn fields_that_are_the_stacks_own_are_none() {
    assert_eq!(IpFields::new(0, 64), IpFields::default());
    assert_eq!(IpFields::new(0xb8, 255), ASKED);
}
