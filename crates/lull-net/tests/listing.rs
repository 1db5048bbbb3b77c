//! The list that `ss` shows: sockets with their states, queues, round trips and retransmissions. Also sources that may
//! not send.

mod shard_harness;

use lull_net::shard::Listed;
use shard_harness::*;

fn listed(host: &Host, is_it: impl Fn(&Listed) -> bool) -> Listed {
    let all = host.stack.list();
    all.iter().find(|it| is_it(it)).unwrap_or_else(|| panic!("not in {all:?}")).clone()
}

fn connection(host: &Host) -> Listed {
    listed(host, |it| it.peer.is_some())
}

#[test]
fn a_connection_is_timed_by_what_was_sent_once() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let listener = listed(&host, |it| it.state == "LISTEN");
    assert_eq!((listener.local, listener.peer, listener.receive_queue), (at("0.0.0.0", 80), None, 0));
    let fresh = connection(&host);
    assert_eq!((fresh.state, fresh.rtt_us, fresh.local), ("ESTAB", None, at(SERVER, 80)));
    for _ in 0..3 {
        host.send(id, b"answer").unwrap();
        assert_eq!(connection(&host).send_queue, 6);
        peer.hear(&mut host);
        host.run_for(3 * MS);
        peer.send(&mut host, ACK, b"question");
        assert_eq!((connection(&host).send_queue, connection(&host).receive_queue), (0, 8));
        host.recv(id).unwrap();
        host.sent();
    }
    assert_eq!((connection(&host).rtt_us, connection(&host).retransmits), (Some(3_000), 0));
    // The idle time in between is not part of the round trip.
    host.run_for(10 * SECOND);
    host.send(id, b"answer").unwrap();
    peer.hear(&mut host);
    host.run_for(11 * MS);
    peer.send(&mut host, ACK, &[]);
    assert_eq!(connection(&host).rtt_us, Some(4_000));
}

#[test]
fn what_was_sent_again_is_counted_and_tells_no_round_trip() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    host.send(id, b"answer").unwrap();
    peer.hear(&mut host);
    host.run_for(5 * SECOND);
    // The other frames ask whether the next hop is still there.
    let again = host.sent().iter().filter_map(Tcp::parse).count() as u32;
    assert!(again >= 1);
    peer.send(&mut host, ACK, &[]);
    assert_eq!((connection(&host).rtt_us, connection(&host).retransmits), (None, again));
}

#[test]
fn who_is_not_allowed_is_dropped_and_counted_but_for_neighbour_discovery() {
    let mut config = server_config();
    config.allowed_sources = vec![(ip(CLIENT), 32)];
    let mut host = Host::server_with(config);
    let listener = host.stack.tcp_listen(at("::", 80), Default::default()).unwrap();
    host.receive(Peer::v6(4000).syn().frame());
    assert!(host.sent().is_empty());
    assert_eq!((host.stack.counters().drop_not_allowed, host.refused()), (1, 1));
    // A solicitation for the server's address (RFC 4861 section 4.3) is answered, and an echo request is not.
    for (kind, answers, dropped) in [(135, 1, 1), (128, 0, 2)] {
        let body = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &ip6(SERVER6), &[1, 1], &CLIENT_MAC].concat();
        let sum = checksum(&[&pseudo(ip(CLIENT6), ip(SERVER6), 58, body.len()), &body]);
        let message = [&body[..2], &sum.to_be_bytes(), &body[4..]].concat();
        let mut frame = ip_packet(ip(CLIENT6), ip(SERVER6), 58, 0x60, &[], &message);
        // This is the hop limit of neighbour discovery.
        frame.data_mut()[14 + 7] = 255;
        host.receive(frame);
        assert_eq!((host.sent().len(), host.stack.counters().drop_not_allowed), (answers, dropped), "type {kind}");
    }
    let mut allowed = Peer::new(4000);
    host.establish(listener, &mut allowed);
    // A packet that is looped back has come from no other source.
    let own = host.connect(at(SERVER, 80));
    while host.stack.has_looped() {
        host.call(|stack, io| stack.deliver_looped(io));
    }
    assert!(host.ready(own).contains(lull_net::Ready::WRITABLE));
    assert_eq!(host.stack.counters().drop_not_allowed, 2);
}

fn ip6(text: &str) -> [u8; 16] {
    match ip(text) {
        std::net::IpAddr::V6(ip) => ip.octets(),
        std::net::IpAddr::V4(_) => panic!("{text} is of IPv6"),
    }
}
