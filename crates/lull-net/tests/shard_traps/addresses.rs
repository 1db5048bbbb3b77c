//! Neighbours, addresses, and what stands before a transport header or comes in fragments.

use super::*;

/// The trap is a neighbour cache of 8 entries that is scanned linearly, so that the ninth would push out the first.
#[test]
fn more_neighbours_than_eight() {
    let mut host = Host::new(server_config());
    let listener = host.listen(80);
    for last in 10..60u8 {
        // A hand-made ARP request says where each client is.
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
        arp.extend([2, 0, 0, 0, 1, last]);
        arp.extend([10, 0, 0, last]);
        arp.extend([0; 6]);
        arp.extend([10, 0, 0, 1]);
        host.receive(ethernet(0x0806, &arp));
        assert_eq!(host.sent().len(), 1, "the ARP reply");
    }
    for last in 10..60u8 {
        let mut peer = Peer::new(5000);
        peer.from = SocketAddr::from(([10, 0, 0, last], 5000));
        host.receive(peer.syn().frame());
        let sent = host.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].data()[..6], [2, 0, 0, 0, 1, last], "to its own station");
        assert!(Tcp::parse(&sent[0]).is_some());
    }
    assert_eq!(host.stack.tcp_accept(listener), Err(NetError::WouldBlock));
}

/// The trap is that a neighbour's answer arrives on one queue, and the other shards never learn it.
#[test]
fn a_neighbours_answer_on_one_shard_serves_the_other() {
    for (peer, ethertype) in [(CLIENT, [8, 6]), (CLIENT6, [0x86, 0xdd])] {
        let shared = Arc::new(Neighbours::default());
        let mut asking = Host::with_neighbours(server_config(), shared.clone());
        let mut other = Host::with_neighbours(server_config(), shared);
        asking.connect(at(peer, 9));
        let request = asking.sent();
        assert_eq!(request.len(), 1);
        assert_eq!(request[0].data()[12..14], ethertype, "a request goes out first");
        assert!(Tcp::parse(&request[0]).is_none());
        let mut client = Host::new(client_config());
        client.receive(request.into_iter().next().unwrap());
        let reply = client.sent().remove(0);
        // RSS delivers the reply to the *other* shard.
        other.receive(reply);
        asking.run_for(2 * MS);
        let segments = asking.segments();
        assert_eq!(segments.len(), 1, "the SYN, milliseconds later and not a second");
        assert_eq!(segments[0].flags, SYN);
    }
}

/// Neighbour discovery takes answers that somebody has asked for (RFC 4861 section 7.2.5), and here nobody waits any
/// more.
#[test]
fn an_advertisement_that_no_shard_waits_for_any_more_is_not_taken() {
    let answer = || {
        let mut asking = Host::new(server_config());
        asking.connect(at(CLIENT6, 9));
        let mut client = Host::new(client_config());
        client.receive(asking.sent().remove(0));
        client.sent().remove(0)
    };
    let is_taken = |then: fn(Host)| {
        let shared = Arc::new(Neighbours::default());
        let mut asking = Host::with_neighbours(server_config(), shared.clone());
        let mut other = Host::with_neighbours(server_config(), shared.clone());
        asking.connect(at(CLIENT6, 9));
        asking.connect(at(CLIENT6, 10));
        then(asking);
        other.receive(answer());
        shared.lookup(ip(CLIENT6)).is_some()
    };
    assert!(is_taken(std::mem::forget));
    assert!(!is_taken(drop), "its shard has ended");
    assert!(!is_taken(|mut asking| asking.stack.take_down()), "its shard was taken down");
    assert!(!is_taken(|mut asking| asking.run_for(10 * SECOND)), "it was given up");
}

/// The trap is that one neighbour that does not answer stops the discovery of all neighbours for a second.
#[test]
fn one_unresolved_neighbour_does_not_delay_another() {
    let mut host = Host::new(server_config());
    host.connect(at("10.0.0.77", 9));
    host.connect(at("10.0.0.78", 9));
    let targets: Vec<u8> = host.sent().iter().map(|frame| frame.data()[41]).collect();
    assert_eq!(targets, [77, 78], "both are asked for at once");
}

/// A next hop that does not answer is asked for three times and then becomes an error. Nothing spins meanwhile.
#[test]
fn an_unreachable_neighbour_is_an_error_after_three_requests() {
    let mut host = Host::new(server_config());
    let id = host.connect(at("10.0.0.77", 9));
    host.run_for(10 * SECOND);
    assert_eq!(host.sent().len(), 3);
    assert_eq!(host.stack.take_error(id), Ok(Some(NetError::HostUnreachable)));
    assert!(host.ready(id).contains(Ready::HUP));
    assert_eq!(host.stack.next_deadline_ns(), None);
}

fn with_between(tcp: &Tcp, first: u8, between: &[u8]) -> lull_nic::Frame {
    ip_packet(tcp.from.ip(), tcp.to.ip(), 6, first, between, &tcp.transport())
}

/// The trap is that packets with IP options or extension headers reach a set of sockets that resets the live
/// connection.
#[test]
fn ip_options_and_extension_headers_find_their_connection() {
    let router_alert = [148, 4, 0, 0];
    let padded_hop_by_hop = [6, 0, 5, 2, 0, 0, 1, 0];
    for (mut peer, first, between) in
        [(Peer::new(4000), 0, &router_alert[..]), (Peer::v6(4000), 0, &padded_hop_by_hop[..])]
    {
        let mut host = Host::server();
        let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
        let id = host.establish(listener, &mut peer);
        host.receive(with_between(&peer.segment(ACK | PSH, b"with options"), first, between));
        assert_eq!(host.recv(id).unwrap(), b"with options");
        assert!(host.segments().iter().all(|segment| segment.flags & RST == 0));
        // A segment for a connection that does not exist is reset, and the live connection is not touched.
        let mut stray = peer.segment(ACK, b"stray");
        stray.from.set_port(4001);
        host.receive(with_between(&stray, first, between));
        let segments = host.segments();
        assert_eq!((segments.len(), segments[0].to.port()), (1, 4001));
        peer.seq += 12;
        peer.send(&mut host, ACK | PSH, b"alive");
        assert_eq!(host.recv(id).unwrap(), b"alive");
    }
}

/// The trap is that reassembly belongs to the whole interface, so that fragments of one connection could end in
/// another's set.
#[test]
fn fragments_of_a_segment_that_is_never_whole_touch_nobody() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    for offset in [0, 8, 16] {
        let mut frame = peer.segment(ACK | PSH, &[7; 60]).frame();
        let ip = &mut frame.data_mut()[14..34];
        // More fragments follow, and each overlaps the one before.
        (ip[6], ip[7], ip[10], ip[11]) = (0x20, offset / 8, 0, 0);
        let sum = checksum(&[ip]).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
        host.receive(frame);
    }
    let counters = host.stack.counters();
    assert_eq!((counters.fragments_kept, counters.drop_fragment, counters.reassembly_failures), (2, 1, 1));
    let six = Peer::v6(4000).segment(ACK, &[7; 60]);
    host.receive(with_between(&six, 44, &[6, 0, 0, 1, 0, 0, 0, 9]));
    assert_eq!(host.stack.counters().fragments_kept, 3);
    assert!(host.segments().is_empty());
    peer.send(&mut host, ACK | PSH, b"alive");
    assert_eq!(host.recv(id).unwrap(), b"alive");
}

/// The trap is that there are two addresses by default.
#[test]
fn more_than_two_addresses() {
    let mut config = server_config();
    config.addresses = (1..=20).map(|last| (ip(&format!("10.0.0.{}", last + 100)), 24)).collect();
    let mut host = Host::server_with(config);
    let listener = host.listen(80);
    for last in 101..=120 {
        let mut peer = Peer::new(4000);
        peer.to = at(&format!("10.0.0.{last}"), 80);
        let id = host.establish(listener, &mut peer);
        assert_eq!(host.stack.local_addr(id).unwrap(), peer.to);
    }
}
