//! What smoltcp does not do for a server with many connections: one test per trap, named for it.

mod shard_harness;

use std::net::SocketAddr;
use std::sync::Arc;

use lull_net::shard::{ConnectOptions, ListenOptions, Neighbours, NetError, Ready, Shutdown};
use lull_nic::Checksum;
use shard_harness::*;

/// A neighbour cache of 8 entries, scanned linearly; the ninth would push out the first.
#[test]
fn more_neighbours_than_eight() {
    let mut host = Host::new(server_config());
    let listener = host.listen(80);
    for last in 10..60u8 {
        // A hand-made ARP request tells where each client is.
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

/// An ARP reply arrives on one queue and the other shards never learn.
#[test]
fn an_arp_reply_on_one_shard_serves_the_other() {
    let shared = Arc::new(Neighbours::default());
    let mut asking = Host::with_neighbours(server_config(), shared.clone());
    let mut other = Host::with_neighbours(server_config(), shared);
    asking.connect(at(CLIENT, 9));
    let request = asking.sent();
    assert_eq!(request.len(), 1);
    assert_eq!(request[0].data()[12..14], [8, 6], "an ARP request goes out first");
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

/// One miss silences discovery of every neighbour for a second.
#[test]
fn one_unresolved_neighbour_does_not_delay_another() {
    let mut host = Host::new(server_config());
    host.connect(at("10.0.0.77", 9));
    host.connect(at("10.0.0.78", 9));
    let targets: Vec<u8> = host.sent().iter().map(|frame| frame.data()[41]).collect();
    assert_eq!(targets, [77, 78], "both are asked for at once");
}

/// An unresolved next hop is asked for three times and then is an error; meanwhile nothing spins.
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

/// IP options and extension headers reach a set of sockets that resets the live connection.
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
        // To an endpoint that does not exist: a reset for that one, and nothing for the connection.
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

/// Reassembly belongs to the whole interface: fragments of one connection could end in another's set.
#[test]
fn fragments_are_dropped_and_touch_nobody() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    for (flags, offset) in [(0x20, 0), (0x20, 8), (0x00, 16)] {
        let mut frame = peer.segment(ACK | PSH, &[7; 64]).frame();
        let ip = &mut frame.data_mut()[14..34];
        (ip[6], ip[7], ip[10], ip[11]) = (flags, offset / 8, 0, 0);
        let sum = checksum(&[ip]).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
        host.receive(frame);
    }
    assert_eq!(host.stack.counters().drop_fragment, 3);
    let six = Peer::v6(4000).segment(ACK, &[7; 64]);
    host.receive(with_between(&six, 44, &[6, 0, 0, 1, 0, 0, 0, 9]));
    assert_eq!(host.stack.counters().drop_fragment, 4);
    assert!(host.segments().is_empty());
    peer.send(&mut host, ACK | PSH, b"alive");
    assert_eq!(host.recv(id).unwrap(), b"alive");
}

/// A RST in SYN-RECEIVED returns the socket to LISTEN with no deadline.
#[test]
fn a_reset_in_syn_received_frees_the_entry() {
    let mut host = Host::server();
    host.listen(80);
    let mut peer = Peer::new(4000);
    host.receive(peer.syn().frame());
    peer.ack = host.segments()[0].seq + 1;
    peer.seq += 1;
    assert_eq!(host.stack.connections(), 1);
    let memory = host.stack.memory_bytes();
    peer.send(&mut host, RST, &[]);
    assert_eq!(host.stack.connections(), 0);
    assert!(host.stack.memory_bytes() < memory + 64, "no more than a free slot");
    assert!(host.segments().is_empty());
    host.run_for(100 * SECOND);
    assert_eq!(host.stack.next_deadline_ns(), None);
}

/// A SYN with a bad checksum stays in the table for ever.
#[test]
fn a_bad_syn_creates_nothing() {
    let mut host = Host::server();
    host.listen(80);
    let peer = Peer::new(4000);
    let mut frame = peer.syn().frame();
    frame.data_mut()[51] ^= 1;
    host.receive(frame);
    assert_eq!((host.stack.connections(), host.stack.counters().drop_checksum), (0, 1));
    // And an option that smoltcp cannot read: an MSS of length 3.
    let mut syn = peer.syn();
    syn.options = vec![2, 3, 5, 1];
    host.receive(syn.frame());
    assert_eq!((host.stack.connections(), host.stack.counters().drop_malformed), (0, 1));
    // A device that vouches for the checksum is believed.
    let mut frame = peer.syn().frame();
    frame.data_mut()[51] ^= 1;
    frame.set_checksum(Checksum::Unnecessary);
    host.receive(frame);
    assert_eq!(host.stack.connections(), 1);
}

/// SYN-ACK retries never end.
#[test]
fn an_unanswered_syn_ack_ends() {
    let mut host = Host::server();
    host.listen(80);
    host.receive(Peer::new(4000).syn().frame());
    host.run_for(200 * SECOND);
    let sent = host.segments();
    assert!((4..=8).contains(&sent.len()), "{} SYN-ACKs", sent.len());
    assert!(sent.iter().all(|segment| segment.flags == SYN | ACK && segment.seq == sent[0].seq));
    assert_eq!((host.stack.connections(), host.stack.counters().timeout_syn_received), (0, 1));
    assert_eq!(host.stack.next_deadline_ns(), None);
}

/// `set_timeout` also kills idle connections.
#[test]
fn an_idle_connection_outlives_the_user_timeout() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    host.call(|stack, io| stack.set_user_timeout(id, Some(5 * SECOND), io)).unwrap();
    host.run_for(100_000 * SECOND);
    assert!(host.segments().is_empty(), "silence");
    host.send(id, b"still here").unwrap();
    assert_eq!(peer.hear(&mut host), b"still here");
    peer.send(&mut host, ACK, &[]);
    host.run_for(100_000 * SECOND);
    assert_eq!(host.stack.tcp_state(id), Ok("ESTABLISHED"));
}

/// Without a timeout a vanished client is retransmitted to for ever.
#[test]
fn a_vanished_client_is_given_up() {
    let mut config = server_config();
    config.timeouts.user_timeout_ns = 60 * SECOND;
    let mut host = Host::server_with(config);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    host.send(id, b"anybody there?").unwrap();
    host.run_for(200 * SECOND);
    // The doubts about the next hop are ARP requests, at most one a retransmission.
    let (segments, others): (Vec<_>, Vec<_>) = host.sent().into_iter().partition(|f| Tcp::parse(f).is_some());
    assert!((5..=9).contains(&segments.len()), "{} transmissions", segments.len());
    assert!(others.len() <= segments.len());
    assert_eq!(host.recv(id), Err(NetError::TimedOut));
    assert_eq!(host.recv(id).unwrap(), b"");
    assert_eq!(host.stack.next_deadline_ns(), None);
    host.close(id);
    assert_eq!(host.stack.connections(), 0);
}

/// The same after the application has closed: bounded by the shorter orphan timeout.
#[test]
fn a_vanished_client_of_an_orphan_is_given_up() {
    let (mut host, _, _, id) = Host::with_a_peer();
    host.send(id, b"bye").unwrap();
    host.close(id);
    assert_eq!(host.stack.connections(), 1);
    assert_eq!(host.recv(id), Err(NetError::InvalidSocket), "the id is void at once");
    host.run_for(150 * SECOND);
    assert_eq!(host.stack.connections(), 0);
    assert!(host.sent().len() < 24);
}

/// FIN-WAIT-2 has no timeout.
#[test]
fn fin_wait_2_ends_for_an_orphan_only() {
    let mut host = Host::server();
    let listener = host.listen(80);
    for orphan in [true, false] {
        let mut peer = Peer::new(4000 + u16::from(orphan));
        let id = host.establish(listener, &mut peer);
        match orphan {
            true => host.close(id),
            false => host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap(),
        }
        assert_eq!(peer.hear(&mut host), b"");
        peer.send(&mut host, ACK, &[]);
        host.run_for(59 * SECOND);
        assert_eq!(host.stack.connections(), 1);
        host.run_for(100 * SECOND);
        assert_eq!(host.stack.connections(), usize::from(!orphan));
        assert!(host.sent().is_empty());
    }
    assert_eq!(host.stack.counters().timeout_fin_wait_2, 1);
}

/// TIME_WAIT holds its buffers, for 10 s.
#[test]
fn time_wait_holds_a_small_record_for_a_minute() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let empty = host.stack.memory_bytes();
    let id = host.establish(listener, &mut peer);
    host.close(id);
    assert_eq!(peer.hear(&mut host), b"");
    peer.send(&mut host, FIN | ACK, &[]);
    let last = host.segments();
    assert_eq!((last.len(), last[0].flags, last[0].ack), (1, ACK, peer.seq));
    assert_eq!((host.stack.connections(), host.stack.time_waits()), (0, 1));
    assert!(host.stack.memory_bytes() - empty < 2048, "{} bytes", host.stack.memory_bytes() - empty);
    // The last acknowledgement was lost: the FIN comes again and is answered again.
    host.run_for(SECOND);
    peer.seq -= 1;
    peer.send(&mut host, FIN | ACK, &[]);
    let again = host.segments();
    assert_eq!((again.len(), again[0].ack, again[0].seq), (1, peer.seq, last[0].seq));
    // A reset does not end it (RFC 1337).
    peer.send(&mut host, RST, &[]);
    assert_eq!(host.stack.time_waits(), 1);
    host.run_for(61 * SECOND);
    assert_eq!((host.stack.time_waits(), host.stack.next_deadline_ns()), (0, None));
}

/// TIME_WAIT silently drops a new SYN for the same 4-tuple.
#[test]
fn time_wait_gives_way_to_a_new_syn() {
    let (mut host, listener, mut peer, id) = Host::with_a_peer();
    host.close(id);
    peer.hear(&mut host);
    peer.send(&mut host, FIN | ACK, &[]);
    let ended = host.segments()[0].seq;
    // An old duplicate of the first SYN does not open anything.
    host.run_for(SECOND);
    let mut old = peer.clone();
    old.seq -= 100;
    host.receive(old.syn().frame());
    assert_eq!((host.stack.time_waits(), host.stack.connections()), (1, 0));
    assert_eq!(host.segments()[0].flags, ACK);
    // A new one does, and our sequence numbers are beyond the old ones (RFC 9293 section 3.6.1).
    peer.seq += 1;
    let mut again = Peer { ack: 0, ..peer };
    host.receive(again.syn().frame());
    let reply = host.segments();
    assert_eq!((reply.len(), reply[0].flags), (1, SYN | ACK));
    assert!((reply[0].seq.wrapping_sub(ended) as i32) > 0);
    again.seq += 1;
    again.ack = reply[0].seq + 1;
    again.send(&mut host, ACK, &[]);
    again.send(&mut host, ACK | PSH, b"second life");
    let id = host.accept(listener);
    assert_eq!(host.recv(id).unwrap(), b"second life");
    assert_eq!((host.stack.time_waits(), host.stack.counters().time_wait_reused), (0, 1));
}

/// Table exhaustion: the oldest TIME-WAIT record goes first.
#[test]
fn time_wait_is_recycled_oldest_first() {
    let mut config = server_config();
    config.time_wait_max = 3;
    let mut host = Host::server_with(config);
    let listener = host.listen(80);
    for port in 0..5 {
        let mut peer = Peer::new(4000 + port);
        let id = host.establish(listener, &mut peer);
        host.close(id);
        peer.hear(&mut host);
        peer.send(&mut host, FIN | ACK, &[]);
        host.sent();
    }
    assert_eq!((host.stack.time_waits(), host.stack.counters().time_wait_recycled), (3, 2));
    // 4000 and 4001 are strangers now, 4002 is remembered.
    host.receive(Peer::new(4001).segment(ACK, &[]).frame());
    assert_eq!(host.segments()[0].flags & RST, RST);
    host.receive(Peer::new(4002).segment(ACK, &[]).frame());
    assert_eq!(host.segments()[0].flags, ACK);
}

/// Dropping a socket sends nothing, and later data gets a RST.
#[test]
fn close_sends_a_fin_and_lives_on() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    host.send(id, b"last words").unwrap();
    host.close(id);
    let segments = host.segments();
    let data: Vec<u8> = segments.iter().flat_map(|segment| segment.payload.clone()).collect();
    assert_eq!((data.as_slice(), segments.last().unwrap().flags & FIN), (&b"last words"[..], FIN));
    peer.ack = segments.last().unwrap().seq + segments.last().unwrap().payload.len() as u32 + 1;
    peer.send(&mut host, ACK, &[]);
    // Data for an application that has gone is reset, as Linux does.
    peer.send(&mut host, ACK | PSH, b"too late");
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].flags & RST), (1, RST));
    assert_eq!(host.stack.connections(), 0);
}

/// Close with unread data sends a FIN where Linux sends a RST.
#[test]
fn close_with_unread_data_resets() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.send(&mut host, ACK | PSH, b"unread");
    host.close(id);
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].flags), (1, RST | ACK));
    assert_eq!((segments[0].seq, segments[0].to), (peer.ack, peer.from));
    assert_eq!((host.stack.connections(), host.stack.time_waits()), (0, 0));
}

/// A re-listened socket keeps its old options and congestion window.
#[test]
fn sockets_are_never_pooled() {
    let mut host = Host::server();
    let listener = host.listen(80);
    // The first connection offers everything: window scaling by 7 and SACK.
    let mut peer = Peer::new(4000);
    let mut syn = peer.syn();
    syn.options.extend([3, 3, 7, 4, 2, 1, 1, 1]);
    host.receive(syn.frame());
    assert!(host.segments()[0].options.windows(2).any(|option| option == [4, 2]), "SACK is agreed");
    peer.seq += 1;
    peer.send(&mut host, RST, &[]);
    // The second, in the same slot, offers neither.
    let mut peer = Peer::new(4000);
    peer.seq = 77_000;
    host.receive(peer.syn().frame());
    let reply = host.segments().remove(0);
    assert!(!reply.options.windows(2).any(|option| option == [4, 2] || option == [3, 3]), "{:?}", reply.options);
    peer.seq += 1;
    peer.ack = reply.seq + 1;
    peer.window = 1000;
    peer.send(&mut host, ACK, &[]);
    let id = host.accept(listener);
    host.send(id, &[1; 8000]).unwrap();
    let sent: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(sent, 1000, "the window is not scaled");
}

/// A full TX ring makes `poll_at` return 0: it must neither spin nor stop RX.
#[test]
fn a_full_ring_blocks_without_spinning_and_rx_goes_on() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    host.ring.slots = 0;
    assert_eq!(host.send(id, b"waits"), Ok(5));
    assert!(host.stack.has_blocked());
    assert!(host.stack.next_deadline_ns().is_none_or(|deadline| deadline > host.now_ns));
    host.call(|stack, io| stack.flush_blocked(io));
    assert!(host.stack.has_blocked());
    // Reception goes on, even in the same connection.
    peer.send(&mut host, ACK | PSH, b"in");
    assert_eq!(host.recv(id).unwrap(), b"in");
    host.run_for(5 * SECOND);
    assert!(host.sent().is_empty());
    host.ring.slots = 1;
    host.call(|stack, io| stack.flush_blocked(io));
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].payload.as_slice()), (1, &b"waits"[..]));
    assert_eq!(segments[0].ack, peer.seq, "with the acknowledgement");
    assert!(!host.stack.has_blocked());
}

/// One blocked connection per free slot, in order, and none starves.
#[test]
fn blocked_connections_share_the_ring_fairly() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peers: Vec<Peer> = (0..10).map(|n| Peer::new(4000 + n)).collect();
    let ids: Vec<_> = peers.iter_mut().map(|peer| host.establish(listener, peer)).collect();
    host.ring.slots = 0;
    ids.iter().for_each(|&id| assert_eq!(host.send(id, b"x"), Ok(1)));
    host.ring.slots = 3;
    let mut order = Vec::new();
    while host.stack.has_blocked() {
        host.call(|stack, io| stack.flush_blocked(io));
        order.extend(host.segments().iter().map(|segment| segment.to.port()));
    }
    assert_eq!(order, (4000..4010).collect::<Vec<u16>>());
}

/// A segment that carries an older ACK loses its payload.
#[test]
fn an_overtaken_segment_keeps_its_data() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    host.send(id, b"one").unwrap();
    // The peer sends data before it hears ours, then acknowledges; the two arrive in the other order.
    let data = peer.segment(ACK | PSH, b"overtaken");
    assert_eq!(peer.hear(&mut host), b"one");
    let acknowledgement = Tcp { seq: peer.seq + 9, ..peer.segment(ACK, &[]) };
    host.receive(acknowledgement.frame());
    host.receive(data.frame());
    assert_eq!(host.recv(id).unwrap(), b"overtaken", "at once, not a retransmission timeout later");
    assert_eq!(host.stack.counters().tcp_stale_acks, 1);
}

/// No congestion control without a feature.
#[test]
fn congestion_control_is_on() {
    let mut host = Host::server();
    let listener = host
        .stack
        .tcp_listen(at("0.0.0.0", 80), ListenOptions { tx_buffer_bytes: 256 * 1024, ..Default::default() })
        .unwrap();
    let mut peer = Peer::new(4000);
    peer.window = u16::MAX;
    let id = host.establish(listener, &mut peer);
    host.send(id, &vec![0; 200_000]).unwrap();
    let flight: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
    assert!(flight <= 10 * 1460, "an initial window of {flight} bytes");
}

/// Two addresses by default.
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

/// Initial sequence numbers are predictable unless each shard is seeded.
#[test]
fn initial_sequence_numbers_depend_on_the_secret_and_grow_with_time() {
    let isn = |seed: u64, port: u16, now_ns: u64| {
        let mut config = server_config();
        config.seed = seed;
        let mut host = Host::server_with(config);
        host.now_ns = now_ns;
        host.listen(80);
        host.receive(Peer::new(port).syn().frame());
        host.segments()[0].seq
    };
    assert_ne!(isn(1, 4000, SECOND), isn(2, 4000, SECOND));
    assert_ne!(isn(1, 4000, SECOND), isn(1, 4001, SECOND));
    assert_eq!(isn(1, 4000, SECOND), isn(1, 4000, SECOND), "a run replays");
    // RFC 6528: the clock ticks every 4 us.
    assert_eq!(isn(1, 4000, 2 * SECOND).wrapping_sub(isn(1, 4000, SECOND)), 250_000);
}

/// Buffers become resident and cannot be resized: what a connection costs is stated and given back.
#[test]
fn an_idle_connection_costs_at_most_40_kib_and_gives_it_back() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peers: Vec<Peer> = (0..1000).map(|n| Peer::new(4000 + n)).collect();
    let empty = host.stack.memory_bytes();
    let ids: Vec<_> = peers.iter_mut().map(|peer| host.establish(listener, peer)).collect();
    let each = (host.stack.memory_bytes() - empty) / 1000;
    assert!((32 * 1024..40 * 1024).contains(&each), "{each} bytes a connection");
    for id in ids {
        host.stack.set_reset_on_close(id, true).unwrap();
        host.close(id);
    }
    assert_eq!(host.stack.connections(), 0);
    let tables = host.stack.memory_bytes() - empty;
    assert!(tables < 200 * 1024, "{tables} bytes of tables stay");
}

/// `poll` does not say which socket changed.
#[test]
fn every_arrival_is_an_edge_of_its_socket() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peers: Vec<Peer> = (0..3).map(|n| Peer::new(4000 + n)).collect();
    let ids: Vec<_> = peers.iter_mut().map(|peer| host.establish(listener, peer)).collect();
    host.changes.clear();
    for round in 0..2 {
        peers[1].send(&mut host, ACK | PSH, b"data");
        let change = host.changes.pop().unwrap();
        assert_eq!((change.socket, change.edges), (ids[1], Ready::READABLE), "round {round}, unread data or not");
        assert!(host.changes.is_empty());
    }
}

/// A request gives exactly one frame: the response carries the acknowledgement.
#[test]
fn one_request_is_one_frame_out() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    for _ in 0..100 {
        peer.send(&mut host, ACK | PSH, &[b'q'; 100]);
        assert!(host.ring.frames.is_empty(), "no acknowledgement of its own");
        assert_eq!(host.recv(id).unwrap().len(), 100);
        assert!(host.ring.frames.is_empty(), "no window update");
        host.send(id, &[b'r'; 300]).unwrap();
        let segments = host.segments();
        assert_eq!(segments.len(), 1);
        assert_eq!((segments[0].ack, segments[0].payload.len()), (peer.seq, 300));
        peer.ack += 300;
        host.run_for(MS);
    }
    // Without an answer, the acknowledgement follows after 40 ms (`TCP_DELACK_MIN`).
    peer.send(&mut host, ACK | PSH, b"no answer");
    host.run_for(39 * MS);
    assert!(host.ring.frames.is_empty());
    host.run_for(3 * MS);
    assert_eq!(host.segments().len(), 1);
}

/// smoltcp is silent to the SYN of a client that has restarted and took the same port.
#[test]
fn a_restarted_client_gets_a_challenge_and_can_come_back() {
    let (mut host, _, peer, id) = Host::with_a_peer();
    let mut restarted = Peer::new(4000);
    restarted.seq = 900_000;
    host.receive(restarted.syn().frame());
    let challenge = host.segments();
    assert_eq!((challenge.len(), challenge[0].flags), (1, ACK));
    assert_eq!((challenge[0].seq, challenge[0].ack), (peer.ack, peer.seq), "RFC 5961 section 4.2");
    // The client answers by the reset that this proves genuine.
    host.receive(Tcp { seq: challenge[0].ack, ..peer.segment(RST, &[]) }.frame());
    assert_eq!(host.recv(id), Err(NetError::ConnectionReset));
    host.receive(restarted.syn().frame());
    assert_eq!(host.segments()[0].flags, SYN | ACK);
}

/// smoltcp believes the acknowledgement of data that only lies in its buffer.
#[test]
fn an_acknowledgement_of_unsent_data_is_challenged() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    peer.window = 10;
    let id = host.establish(listener, &mut peer);
    host.send(id, &[5; 1000]).unwrap();
    let first = host.segments();
    assert_eq!(first[0].payload.len(), 10);
    let mut liar = peer.clone();
    liar.ack += 500;
    liar.send(&mut host, ACK, &[]);
    host.sent();
    peer.ack += 10;
    peer.window = 2000;
    peer.send(&mut host, ACK, &[]);
    let rest = host.segments();
    assert_eq!(rest[0].seq, peer.ack, "nothing was skipped");
}

/// While the receive window is closed smoltcp drops acknowledgements too, if they lie beyond it, as those of a peer that
/// probes do (RFC 9293 section 3.10.7.4 lets them pass). Two full peers would wait for each other for ever.
#[test]
fn acknowledgements_pass_a_closed_window() {
    for (beyond, payload) in [(1, &b""[..]), (0, &b"p"[..]), (-1i32 as u32, &b""[..])] {
        let mut host = Host::server();
        let listener = host.listen(80);
        let mut peer = Peer::new(4000);
        let id = host.establish(listener, &mut peer);
        // Nobody reads: the window closes.
        let closed = (0..200).any(|_| {
            peer.send(&mut host, ACK, &[7; 1_000]);
            host.segments().last().is_some_and(|segment| segment.window == 0)
        });
        assert!(closed, "the window closes");
        let sent = host.send(id, b"answer").unwrap();
        assert_eq!(sent, 6);
        let out = host.segments();
        let last = out.last().expect("the answer is sent");
        let acked = last.seq.wrapping_add(6);
        let ack = Tcp { seq: last.ack.wrapping_add(beyond), ack: acked, ..peer.segment(ACK, payload) };
        host.receive(ack.frame());
        host.sent();
        // Acknowledged: nothing is sent again, however long it takes.
        host.run_for(5_000_000_000);
        let again = host.segments();
        assert!(again.iter().all(|segment| segment.payload.is_empty()), "{beyond}: retransmitted");
        // What carries nothing new is a probe, and is answered.
        let probe = Tcp { seq: last.ack, ack: acked, ..peer.segment(ACK, b"p") };
        host.receive(probe.frame());
        assert_eq!(host.segments().len(), 1, "a probe is answered");
    }
}

/// What probes a closed window counts as sent. A bare acknowledgement that is numbered so lies beyond the window, where Linux
/// discards it with the news that ours has opened; two full peers would wait for each other for ever.
#[test]
fn acknowledgements_are_not_beyond_a_closed_window_that_was_probed() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    // Nobody reads on either side.
    let closed = (0..200).find_map(|_| {
        peer.send(&mut host, ACK, &[7; 1_000]);
        host.segments().into_iter().rfind(|segment| segment.window == 0)
    });
    peer.seq = closed.expect("our window closes").ack;
    peer.window = 0;
    peer.send(&mut host, ACK, &[]);
    host.sent();
    host.send(id, &[5; 1000]).unwrap();
    let mut probes = Vec::new();
    for _ in 0..60 {
        host.run_for(1_000_000_000);
        probes.extend(host.segments().into_iter().filter(|segment| !segment.payload.is_empty()));
        if !probes.is_empty() {
            break;
        }
    }
    let probe = probes.first().expect("the window is probed");
    assert_eq!((probe.seq, probe.payload.len()), (peer.ack, 1));
    // Linux probes without sending anything new, so SIOCOUTQNSD still has all of it.
    assert_eq!((host.stack.tcp_unsent(id), host.stack.tcp_unacknowledged(id)), (Ok(1000), Ok(1000)));
    // The application reads: the window opens, and the peer is told where it can hear it.
    while host.recv(id).is_ok_and(|read| !read.is_empty()) {}
    let told = host.segments();
    let update = told.iter().find(|segment| segment.payload.is_empty()).expect("the window's opening is told");
    assert!(update.window > 0);
    assert_eq!(update.seq, peer.ack, "it is within the peer's window");
    // And once more to its own probe, which lies before our window (`tcp_xmit_probe_skb`).
    let probe = Tcp { seq: update.ack.wrapping_sub(1), ..peer.segment(ACK, b"") };
    host.receive(probe.frame());
    let answer = host.segments();
    assert_eq!(answer.iter().map(|segment| segment.seq).collect::<Vec<_>>(), [peer.ack], "the answer, too");
    // The peer's window opens: what waited is sent.
    peer.window = 2_000;
    peer.seq = update.ack;
    peer.send(&mut host, ACK, &[]);
    let rest = host.segments();
    assert_eq!(rest[0].seq, peer.ack);
    assert_eq!(rest.iter().map(|segment| segment.payload.len()).sum::<usize>(), 1000, "{rest:?}");
}

/// The stale id of a closed socket is never another socket.
#[test]
fn a_stale_id_is_an_error() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let old = host.establish(listener, &mut peer);
    host.stack.set_reset_on_close(old, true).unwrap();
    host.close(old);
    host.sent();
    let mut peer = Peer::new(4001);
    let new = host.establish(listener, &mut peer);
    assert_ne!(old, new);
    assert_eq!(host.send(old, b"x"), Err(NetError::InvalidSocket));
    assert_eq!(host.stack.ready(old), Err(NetError::InvalidSocket));
    assert_eq!(host.call(|stack, io| stack.close(old, io)), Err(NetError::InvalidSocket));
    assert_eq!(host.send(new, b"x"), Ok(1));
    let connect = host.call(|stack, io| stack.tcp_connect(None, at(CLIENT, 9), ConnectOptions::default(), io));
    assert_eq!(host.stack.tcp_accept(connect.unwrap()), Err(NetError::Invalid));
}

/// smoltcp believes a reset anywhere in the window (RFC 5961 section 3.2 wants the exact number, else a challenge).
#[test]
fn a_guessed_reset_is_challenged() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.send(&mut host, ACK | PSH, b"not acknowledged yet");
    for (off, replies) in [(100, 1), (16_000, 0), (1 << 20, 0), (-1i32 as u32, 0)] {
        host.receive(Tcp { seq: peer.seq.wrapping_add(off), ..peer.segment(RST, &[]) }.frame());
        let segments = host.segments();
        assert_eq!(segments.len(), replies, "one challenge a second");
        assert!(segments.iter().all(|segment| segment.flags == ACK && segment.ack == peer.seq));
    }
    assert_eq!(host.recv(id).unwrap(), b"not acknowledged yet");
    peer.send(&mut host, RST, &[]);
    assert_eq!(host.recv(id), Err(NetError::ConnectionReset));
}

/// After a timeout smoltcp sends bare acknowledgements with an old sequence number. The peer discards them, and two such
/// stacks retransmit to each other for ever what the other has.
#[test]
fn a_bare_acknowledgement_has_the_newest_sequence_number() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    host.send(id, &[1; 4000]).unwrap();
    let newest = peer.ack + 4000;
    assert_eq!(host.segments().iter().map(|segment| segment.payload.len()).sum::<usize>(), 4000);
    host.run_for(1500 * MS);
    let resent: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
    assert!((1..4000).contains(&resent), "the congestion window is small after the timeout");
    for _ in 0..2 {
        // The first may be answered by the rest of the congestion window.
        peer.send(&mut host, ACK | PSH, b"data");
        host.run_for(60 * MS);
    }
    let last = host.segments().pop().unwrap();
    assert_eq!((last.seq, last.ack, last.payload.len()), (newest, peer.seq, 0));
}
