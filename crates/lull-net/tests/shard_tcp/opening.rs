//! Connecting and listening, and what is refused.

use super::*;

#[test]
fn connect_refused() {
    let mut net = Net::new();
    for server in [SERVER, SERVER6] {
        let client = net.client.connect(at(server, 81));
        net.run_for(10 * MS);
        assert!(net.client.ready(client).contains(Ready::ERR | Ready::HUP));
        assert_eq!(net.client.stack.take_error(client), Ok(Some(NetError::ConnectionRefused)));
        assert_eq!(net.client.stack.take_error(client), Ok(None));
        net.client.close(client);
    }
    assert_eq!(net.server.stack.counters().drop_no_connection, 2);
}

/// The rules are in RFC 5961 section 4.2 and RFC 9293 section 3.10.7.3.
#[test]
fn an_attempt_that_is_only_to_reset_ends_with_the_answer_to_the_peers_challenge() {
    for only_to_reset in [true, false] {
        let mut host = Host::server();
        let options = ConnectOptions { only_to_reset, ..ConnectOptions::default() };
        let own = Some(at(SERVER, 80));
        let id = host.call(|stack, io| stack.tcp_connect(own, at(CLIENT, 4000), options, io)).unwrap();
        assert_eq!(host.segments().remove(0).flags, SYN);
        // The peer still has the connection, and expects something else.
        let mut peer = Peer { seq: 7000, ack: 9000, ..Peer::new(4000) };
        peer.send(&mut host, ACK, &[]);
        let reset = host.segments();
        assert_eq!((reset.len(), reset[0].flags & RST, reset[0].seq), (1, RST, 9000));
        assert_eq!(host.ready(id).contains(Ready::ERR | Ready::HUP), only_to_reset);
        let error = only_to_reset.then_some(NetError::ConnectionReset);
        assert_eq!(host.stack.take_error(id), Ok(error));
        host.run_for(5 * SECOND);
        assert_eq!(host.segments_beside_arp().is_empty(), only_to_reset, "whether another connection is asked for");
    }
}

#[test]
fn connect_times_out() {
    let mut net = Net::new();
    net.client.stack.tcp_listen(at("0.0.0.0", 1), ListenOptions::default()).unwrap();
    net.run_for(MS);
    let client = net.client.connect(at(SERVER, 80));
    net.run_for(MS);
    assert_eq!(net.client.stack.take_error(client), Ok(Some(NetError::ConnectionRefused)));
    let client = net.client.connect(at(SERVER, 80));
    net.cut = true;
    assert_eq!(net.client.send(client, b"x"), Err(NetError::WouldBlock));
    assert_eq!(net.client.recv(client), Err(NetError::WouldBlock));
    net.run_for(200 * SECOND);
    assert_eq!(net.client.recv(client), Err(NetError::TimedOut));
    assert_eq!(net.client.stack.counters().timeout_syn_sent, 1);
}

#[test]
fn connect_to_places_that_cannot_be() {
    let mut host = Host::new(client_config());
    let mut connect = |to| host.call(|stack, io| stack.tcp_connect(None, to, ConnectOptions::default(), io));
    assert_eq!(connect(at("192.0.2.1", 80)), Err(NetError::NetworkUnreachable), "no gateway");
    assert_eq!(connect(at("224.0.0.1", 80)), Err(NetError::NetworkUnreachable));
    assert_eq!(connect(at("10.0.0.255", 80)), Err(NetError::NetworkUnreachable));
    assert_eq!(connect(at("127.0.0.1", 80)), Err(NetError::NetworkUnreachable), "the kernel's");
    assert_eq!(connect(at(SERVER, 0)), Err(NetError::ConnectionRefused), "nobody can listen there");
    let options = ConnectOptions { rx_buffer_bytes: 1, ..Default::default() };
    let small = host.call(|stack, io| stack.tcp_connect(None, at(SERVER, 80), options, io));
    assert_eq!(small, Err(NetError::Invalid));
    let own = Some(at(CLIENT, 5000));
    let mut from = |own| host.call(|stack, io| stack.tcp_connect(own, at(SERVER, 80), ConnectOptions::default(), io));
    assert!(from(own).is_ok());
    assert_eq!(from(own), Err(NetError::AddressInUse));
    assert_eq!(from(Some(at("10.0.0.9", 0))), Err(NetError::AddressNotAvailable));
}

#[test]
fn ephemeral_ports_are_steered_and_run_out() {
    let mut config = client_config();
    config.ephemeral_ports = 40_000..=40_009;
    config.steering = Some(std::sync::Arc::new(|local, _| local.port() % 2 == 0));
    let mut host = Host::new(config);
    let mut ports = Vec::new();
    for _ in 0..5 {
        let id = host.connect(at(SERVER, 80));
        ports.push(host.stack.local_addr(id).unwrap().port());
    }
    ports.sort_unstable();
    assert_eq!(ports, [40_000, 40_002, 40_004, 40_006, 40_008]);
    let sixth = host.call(|stack, io| stack.tcp_connect(None, at(SERVER, 80), ConnectOptions::default(), io));
    assert_eq!(sixth, Err(NetError::AddressNotAvailable));
    // For another destination they are free.
    host.connect(at(SERVER, 81));
}

#[test]
fn the_backlog_is_bounded_and_the_handshake_waits() {
    let mut host = Host::server();
    let options = ListenOptions { backlog: 2, ..Default::default() };
    let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    // Two handshakes are under way when the queue, which has three places as in Linux, fills up.
    let mut peers: Vec<Peer> = (0..4).map(|n| Peer::new(4000 + n)).collect();
    for two in peers.chunks_mut(2) {
        for peer in two.iter_mut() {
            host.receive(peer.syn().frame());
            let reply = host.segments().remove(0);
            (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
        }
        two.iter_mut().for_each(|peer| peer.send(&mut host, ACK, &[]));
    }
    assert_eq!(host.stack.counters().drop_backlog_full, 1);
    // A new handshake is not begun either.
    host.receive(Peer::new(4010).syn().frame());
    assert_eq!(host.stack.counters().drop_backlog_full, 2);
    assert!(host.segments().is_empty());
    let first = host.accept(listener);
    // The fourth client's SYN-ACK comes again, the client answers again, and is in the queue.
    host.run_for(2 * SECOND);
    assert!(host.segments().iter().any(|segment| segment.to.port() == 4003 && segment.flags == SYN | ACK));
    peers[3].send(&mut host, ACK, &[]);
    let rest: Vec<_> = (0..3).map(|_| host.accept(listener)).collect();
    assert!(!rest.contains(&first));
    assert_eq!(host.stack.tcp_accept(listener), Err(NetError::WouldBlock));
    assert!(host.ready(listener).is_empty());
}

#[test]
fn the_table_is_bounded() {
    let mut config = server_config();
    config.connections_max = 10;
    let mut host = Host::server_with(config);
    let listener = host.listen(80);
    let ids: Vec<_> = (0..10).map(|n| host.establish(listener, &mut Peer::new(4000 + n))).collect();
    host.receive(Peer::new(5000).syn().frame());
    assert!(host.segments().is_empty());
    assert_eq!(host.stack.counters().drop_table_full, 1);
    let connect = host.call(|stack, io| stack.tcp_connect(None, at(CLIENT, 9), ConnectOptions::default(), io));
    assert_eq!(connect, Err(NetError::NoBuffers));
    host.stack.set_reset_on_close(ids[3], true).unwrap();
    host.close(ids[3]);
    host.sent();
    host.establish(listener, &mut Peer::new(5000));
}

#[test]
fn listeners_share_a_port_by_the_4_tuple() {
    let mut host = Host::server();
    let options = ListenOptions { reuse_port: true, ..Default::default() };
    let listeners = [(); 4].map(|()| host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap());
    assert_eq!(host.stack.tcp_listen(at("0.0.0.0", 80), ListenOptions::default()), Err(NetError::AddressInUse));
    for port in 0..200 {
        Peer::new(4000 + port).open(&mut host);
    }
    for listener in listeners {
        let mut count = 0;
        while host.stack.tcp_accept(listener).is_ok() {
            count += 1;
        }
        assert!((25..80).contains(&count), "{count} of 200");
    }
}

#[test]
fn closing_a_listener_resets_what_nobody_accepted() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let (mut queued, half_open, mut accepted) = (Peer::new(4000), Peer::new(4001), Peer::new(4002));
    let id = host.establish(listener, &mut accepted);
    queued.open(&mut host);
    host.receive(half_open.syn().frame());
    host.sent();
    host.close(listener);
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].to, segments[0].flags & RST), (1, queued.from, RST));
    assert_eq!(host.stack.connections(), 1);
    accepted.send(&mut host, ACK | PSH, b"lives");
    assert_eq!(host.recv(id).unwrap(), b"lives");
    assert_eq!(host.stack.tcp_accept(listener), Err(NetError::InvalidSocket));
    host.listen(80);
}

#[test]
fn shutting_down_a_listener_wakes_its_acceptors() {
    let mut host = Host::server();
    let listener = host.listen(80);
    host.call(|stack, io| stack.shutdown(listener, Shutdown::Both, io)).unwrap();
    assert_eq!(host.changes.last().unwrap().ready, Ready::WRITABLE | Ready::HUP, "as one that was never connected");
    assert_eq!(host.stack.tcp_accept(listener), Err(NetError::Invalid));
    host.receive(Peer::new(4000).syn().frame());
    assert_eq!(host.segments()[0].flags & RST, RST);
}

#[test]
fn a_connection_reset_before_accept_is_accepted_and_says_so() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    peer.open(&mut host);
    peer.send(&mut host, RST, &[]);
    let id = host.accept(listener);
    assert_eq!(host.recv(id), Err(NetError::ConnectionReset));
    host.close(id);
    assert_eq!(host.stack.connections(), 0);
}

/// Both ends connect at once. They know each other, so that the SYNs cross.
fn connect_to_each_other(net: &mut Net) -> (SocketId, SocketId) {
    let options = ConnectOptions::default();
    let (a, b) = (at(CLIENT, 5000), at(SERVER, 6000));
    net.client.stack.tcp_listen(at("0.0.0.0", 1), ListenOptions::default()).unwrap();
    let warm = net.client.connect(at(SERVER, 1));
    net.run_for(10 * MS);
    net.client.close(warm);
    let client = net.client.call(|stack, io| stack.tcp_connect(Some(a), b, options, io)).unwrap();
    let server = net.server.call(|stack, io| stack.tcp_connect(Some(b), a, options, io)).unwrap();
    (client, server)
}

#[test]
fn simultaneous_open() {
    let mut net = Net::new();
    let (client, server) = connect_to_each_other(&mut net);
    net.run_for(5 * SECOND);
    net.client.send(client, b"crossed").unwrap();
    net.run_for(SECOND);
    assert_eq!(net.server.recv(server).unwrap(), b"crossed");
}

/// By then each end has announced its window twice: with its SYN, and scaled with its answer to the other's.
#[test]
fn data_with_an_end_behind_it_fits_the_window_of_a_simultaneous_open() {
    let growing = |mut config: StackConfig| {
        config.growth = BufferGrowth::default();
        Host::new(config)
    };
    let mut net = Net::of(growing(client_config()), growing(server_config()));
    let (client, server) = connect_to_each_other(&mut net);
    net.run_for(10 * MS);
    // The data are held back until the shutdown, so that both leave in one segment.
    net.client.call(|stack, io| stack.set_cork(client, true, io)).unwrap();
    net.client.send(client, &[7; 200]).unwrap();
    net.client.call(|stack, io| stack.shutdown(client, Shutdown::Write, io)).unwrap();
    net.run_for(10 * MS);
    assert_eq!(net.server.recv(server).unwrap(), [7; 200]);
    assert_eq!(net.server.recv(server).unwrap(), b"", "the end");
    assert_eq!(net.client.stack.tcp_info(client, net.now_ns).unwrap().retransmits, 0);
}

#[test]
fn unknown_segments_are_reset_at_a_bounded_rate() {
    let mut host = Host::server();
    for port in 0..10_000u16 {
        host.receive(Peer::new(1000 + port).segment(ACK, b"x").frame());
    }
    let resets = host.segments().len();
    assert!((1..=200).contains(&resets), "{resets} resets in an instant");
    host.run_for(SECOND);
    host.receive(Peer::new(1000).segment(ACK, b"x").frame());
    assert_eq!(host.segments().len(), 1);
    // A reset is never answered.
    host.receive(Peer::new(1000).segment(RST, b"").frame());
    assert!(host.segments().is_empty());
}

#[test]
fn tcp_to_a_broadcast_address_is_nobodys() {
    let mut host = Host::server();
    host.listen(80);
    let mut peer = Peer::new(4000);
    peer.to = at("10.0.0.255", 80);
    host.receive(peer.syn().frame());
    assert!(host.sent().is_empty());
    assert_eq!(host.stack.connections(), 0);
}

/// TCP_USER_TIMEOUT holds for a SYN as for data, but not before the SYN was due to be sent again.
#[test]
fn a_user_timeout_ends_an_attempt_to_connect() {
    for (timeout_s, ends_s) in [(Some(5), 5), (Some(1), 1), (Some(1_000), 127), (None, 127)] {
        let mut host = Host::server();
        let id = host.connect(at(CLIENT, 80));
        let (begun_ns, timeout_ns) = (host.now_ns, timeout_s.map(|timeout_s| timeout_s * SECOND));
        host.run_for(SECOND / 2);
        // The later setting counts, and both count from the SYN on.
        for timeout_ns in [Some(3 * SECOND), timeout_ns] {
            host.call(|stack, io| stack.set_user_timeout(id, timeout_ns, io)).unwrap();
        }
        host.run_until(begun_ns + ends_s * SECOND - 1);
        assert!(host.ready(id).is_empty(), "{timeout_s:?}");
        host.run_until(begun_ns + ends_s * SECOND);
        assert_eq!(host.stack.take_error(id), Ok(Some(NetError::TimedOut)), "{timeout_s:?}");
    }
    let mut host = Host::server();
    let id = host.connect(at(CLIENT, 80));
    let begun_ns = host.now_ns;
    host.call(|stack, io| stack.set_user_timeout(id, Some(MS), io)).unwrap();
    host.run_until(begun_ns + SECOND - 1);
    assert!(host.ready(id).is_empty());
    host.run_until(begun_ns + SECOND);
    assert_eq!(host.stack.take_error(id), Ok(Some(NetError::TimedOut)));
}
