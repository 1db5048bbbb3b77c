//! TCP through the shard: two stacks, or a client played by hand.

mod shard_harness;

use lull_net::shard::{ConnectOptions, Keepalive, ListenOptions, NetError, Ready, Shutdown};
use shard_harness::*;

#[test]
fn handshake_and_echo() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let client = net.client.connect(at(SERVER, 80));
    net.run_for(5 * MS);
    assert!(net.client.changes.iter().any(|c| c.socket == client && c.edges.contains(Ready::WRITABLE)));
    assert!(net.server.changes.iter().any(|c| c.socket == listener && c.edges.contains(Ready::READABLE)));
    let (server, peer) = net.server.stack.tcp_accept(listener).unwrap();
    assert_eq!(peer, net.client.stack.local_addr(client).unwrap());
    assert_eq!(net.server.stack.tcp_accept(listener), Err(NetError::WouldBlock));
    assert_eq!(net.client.send(client, b"hello"), Ok(5));
    net.run_for(MS);
    assert!(net.server.changes.iter().any(|c| c.socket == server && c.edges.contains(Ready::READABLE)));
    assert_eq!(net.server.recv(server).unwrap(), b"hello");
    assert_eq!(net.server.recv(server), Err(NetError::WouldBlock));
    net.server.send(server, b"world").unwrap();
    net.run_for(MS);
    assert_eq!(net.client.recv(client).unwrap(), b"world");
}

#[test]
fn handshake_and_echo_over_ipv6() {
    let mut net = Net::new();
    let listener = net.server.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    let (client, server) = net.establish(listener, at(SERVER6, 80));
    net.client.send(client, b"hello").unwrap();
    net.run_for(MS);
    assert_eq!(net.server.recv(server).unwrap(), b"hello");
    // The same listener takes IPv4.
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.client.send(client, b"hello").unwrap();
    net.run_for(MS);
    assert_eq!(net.server.recv(server).unwrap(), b"hello");
    assert_eq!(net.server.stack.peer_addr(server).unwrap().ip(), ip(CLIENT));
}

/// Moves `total` bytes of a known pattern from the client to the server and back, until both have all of it.
fn echo(net: &mut Net, total: usize) {
    let listener = net.server.listen(80);
    let client = net.client.connect(at(SERVER, 80));
    let pattern = |at: usize| (at * 7 + at / 251) as u8;
    let (mut sent, mut echoed, mut back) = (0, Vec::new(), 0);
    let mut server = None;
    let limit = net.now_ns + 4000 * SECOND;
    while back < total {
        let moved = net.step(limit);
        assert!(moved, "stuck at {sent} sent, {back} back: {:?}", net.client.stack.tcp_state(client));
        server = server.or_else(|| net.server.stack.tcp_accept(listener).ok().map(|(id, _)| id));
        if sent < total {
            let chunk: Vec<u8> = (sent..total.min(sent + 5000)).map(pattern).collect();
            sent += net.client.send(client, &chunk).unwrap_or(0);
        }
        if let Some(server) = server {
            if let Ok(data) = net.server.recv(server) {
                echoed.extend(data);
            }
            if let Ok(count) = net.server.send(server, &echoed) {
                echoed.drain(..count);
            }
        }
        if let Ok(data) = net.client.recv(client) {
            assert!(!data.is_empty(), "the end of the stream");
            assert!(data.iter().enumerate().all(|(i, &byte)| byte == pattern(back + i)));
            back += data.len();
        }
    }
    for host in [&net.client, &net.server] {
        assert_eq!(host.stack.counters().tcp_stalls, 0);
    }
}

#[test]
fn a_megabyte_echoes() {
    let mut net = Net::new();
    let start = net.now_ns;
    echo(&mut net, 1 << 20);
    assert!(net.now_ns - start < SECOND, "{} ms of virtual time", (net.now_ns - start) / MS);
}

#[test]
fn a_megabyte_echoes_through_loss_and_reordering() {
    for seed in 0..4 {
        let mut net = Net::new();
        net.random = Random(seed);
        (net.loss, net.reorder) = (10, 50);
        echo(&mut net, 1 << 20);
    }
}

#[test]
fn a_little_echoes_through_heavy_loss() {
    for seed in 0..16 {
        // Three ARP requests in a row may be lost; that is another test.
        let mut client = Host::new(client_config());
        client.call(|stack, io| stack.tcp_connect(None, at(SERVER, 1), ConnectOptions::default(), io)).unwrap();
        let mut net = Net::of(client, Host::new(server_config()));
        net.run_for(5 * MS);
        net.random = Random(seed);
        (net.loss, net.reorder) = (200, 200);
        echo(&mut net, 20_000);
    }
}

#[test]
fn echoes_through_a_ring_of_one_slot() {
    let mut net = Net::new();
    net.client.ring.slots = 1;
    net.server.ring.slots = 1;
    echo(&mut net, 1 << 18);
}

#[test]
fn checksum_offload_end_to_end() {
    let (mut client, mut server) = (client_config(), server_config());
    client.tx_checksum_offload = true;
    server.tx_checksum_offload = true;
    let mut net = Net::of(Host::new(client), Host::new(server));
    echo(&mut net, 1 << 16);
    assert_eq!(net.server.refused() + net.client.refused(), 0);
}

#[test]
fn half_close_by_the_client() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.client.send(client, b"request").unwrap();
    net.client.call(|stack, io| stack.shutdown(client, Shutdown::Write, io)).unwrap();
    assert_eq!(net.client.send(client, b"more"), Err(NetError::BrokenPipe));
    net.run_for(MS);
    assert!(net.server.ready(server).contains(Ready::READABLE | Ready::RDHUP | Ready::WRITABLE));
    assert!(!net.server.ready(server).contains(Ready::HUP));
    assert_eq!(net.server.recv(server).unwrap(), b"request");
    assert_eq!(net.server.recv(server).unwrap(), b"");
    net.server.send(server, &[9; 10_000]).unwrap();
    net.run_for(20 * MS);
    assert_eq!(net.client.recv(client).unwrap(), [9; 10_000]);
    net.server.close(server);
    net.run_for(20 * MS);
    assert_eq!(net.client.recv(client).unwrap(), b"");
    // The client closed first, so TIME-WAIT is its own.
    assert_eq!((net.client.stack.time_waits(), net.server.stack.time_waits()), (1, 0));
    assert!(net.client.ready(client).contains(Ready::HUP));
    net.client.close(client);
    assert_eq!((net.client.stack.connections(), net.server.stack.connections()), (0, 0));
}

#[test]
fn half_close_by_the_server() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.server.send(server, b"banner").unwrap();
    net.server.call(|stack, io| stack.shutdown(server, Shutdown::Write, io)).unwrap();
    net.run_for(MS);
    assert_eq!(net.client.recv(client).unwrap(), b"banner");
    assert_eq!(net.client.recv(client).unwrap(), b"");
    net.client.send(client, b"still talking").unwrap();
    net.run_for(MS);
    assert_eq!(net.server.recv(server).unwrap(), b"still talking");
    net.client.close(client);
    net.run_for(MS);
    assert_eq!(net.server.recv(server).unwrap(), b"");
    assert_eq!((net.client.stack.connections(), net.server.stack.time_waits()), (0, 1));
}

#[test]
fn data_that_came_before_the_end_can_be_read_after_it() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.server.call(|stack, io| stack.shutdown(server, Shutdown::Write, io)).unwrap();
    net.run_for(MS);
    net.server.changes.clear();
    // Data and FIN together take the server straight to TIME-WAIT with the data unread.
    net.client.send(client, b"unread").unwrap();
    net.client.close(client);
    net.run_for(MS);
    assert_eq!(net.server.stack.time_waits(), 1);
    assert!(net.server.changes.iter().any(|c| c.socket == server && c.edges.contains(Ready::READABLE)));
    assert_eq!(net.server.recv(server).unwrap(), b"unread");
    assert_eq!(net.server.recv(server).unwrap(), b"");
    net.server.close(server);
    assert_eq!(net.server.stack.connections(), 0);
}

#[test]
fn shutting_down_reading_is_the_end_for_the_reader_only() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.server.call(|stack, io| stack.shutdown(server, Shutdown::Read, io)).unwrap();
    assert_eq!(net.server.recv(server).unwrap(), b"");
    assert!(net.server.changes.iter().any(|c| c.socket == server && c.edges.contains(Ready::RDHUP)));
    net.server.send(server, b"one way").unwrap();
    net.run_for(MS);
    assert_eq!(net.client.recv(client).unwrap(), b"one way");
}

#[test]
fn simultaneous_close() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.client.close(client);
    net.server.close(server);
    net.run_for(SECOND);
    assert_eq!((net.client.stack.connections(), net.server.stack.connections()), (0, 0));
    assert_eq!((net.client.stack.time_waits(), net.server.stack.time_waits()), (1, 1));
    net.run_for(100 * SECOND);
    assert_eq!((net.client.stack.time_waits(), net.server.stack.time_waits()), (0, 0));
    assert!(!net.step(net.now_ns + 1000 * SECOND), "nothing is left to happen");
}

#[test]
fn a_reset_is_an_error_once_and_then_the_end() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.server.stack.set_reset_on_close(server, true).unwrap();
    net.client.changes.clear();
    net.server.close(server);
    net.run_for(MS);
    let ready = Ready::READABLE | Ready::WRITABLE | Ready::RDHUP | Ready::HUP | Ready::ERR;
    assert_eq!(net.client.ready(client), ready);
    assert_eq!(net.client.changes.last().unwrap().ready, ready);
    assert_eq!(net.client.recv(client), Err(NetError::ConnectionReset));
    assert_eq!(net.client.recv(client).unwrap(), b"");
    assert_eq!(net.client.send(client, b"x"), Err(NetError::BrokenPipe));
    net.client.close(client);
    assert_eq!(net.client.stack.connections(), 0);
}

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
    assert_eq!(connect(at(SERVER, 0)), Err(NetError::Invalid));
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
    // To another destination they are free.
    host.connect(at(SERVER, 81));
}

#[test]
fn the_backlog_is_bounded_and_the_handshake_waits() {
    let mut host = Host::server();
    let options = ListenOptions { backlog: 2, ..Default::default() };
    let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    // Two handshakes are under way when the queue, of three as in Linux, fills up.
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
    // Nor is a new one begun.
    host.receive(Peer::new(4010).syn().frame());
    assert_eq!(host.stack.counters().drop_backlog_full, 2);
    assert!(host.segments().is_empty());
    let first = host.accept(listener);
    // The fourth's SYN-ACK comes again, it answers again, and is in.
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
fn a_slow_reader_bounds_the_writer_and_lets_it_go_on() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    let mut written = 0;
    for _ in 0..200 {
        written += net.client.send(client, &[3; 4000]).unwrap_or(0);
        net.run_for(10 * MS);
    }
    assert_eq!(written, 32 * 1024, "both buffers, and not more");
    assert!(!net.client.ready(client).contains(Ready::WRITABLE));
    // The window stays shut for a day; the connection lives, at the price of a probe a minute.
    let (before, refused) = (net.to_server, net.server.refused());
    net.run_for(86_400 * SECOND);
    assert!((1000..2000).contains(&(net.to_server - before)), "{} probes", net.to_server - before);
    assert_eq!(net.server.refused(), refused);
    net.client.changes.clear();
    let mut read = 0;
    for _ in 0..100 {
        read += net.server.recv(server).map_or(0, |data| data.len());
        net.run_for(10 * MS);
    }
    assert_eq!(read, written);
    assert!(net.client.changes.iter().any(|c| c.socket == client && c.edges.contains(Ready::WRITABLE)));
}

#[test]
fn a_slow_reader_is_given_up_only_if_asked_for() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, _server) = net.establish(listener, at(SERVER, 80));
    net.client.call(|stack, io| stack.set_user_timeout(client, Some(30 * SECOND), io)).unwrap();
    while net.client.send(client, &[3; 4000]).is_ok() {
        net.run_for(10 * MS);
    }
    net.run_for(100 * SECOND);
    assert_eq!(net.client.recv(client), Err(NetError::TimedOut));
}

#[test]
fn keepalive_probes_and_gives_up() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (_client, server) = net.establish(listener, at(SERVER, 80));
    let keepalive = Keepalive { idle_ns: 10 * SECOND, interval_ns: 2 * SECOND, probes: 3 };
    net.server.call(|stack, io| stack.set_keepalive(server, Some(keepalive), io)).unwrap();
    let before = net.to_client;
    net.run_for(100 * SECOND);
    assert!((8..=11).contains(&(net.to_client - before)), "{} probes", net.to_client - before);
    assert_eq!(net.server.stack.tcp_state(server), Ok("ESTABLISHED"));
    net.cut = true;
    net.run_for(20 * SECOND);
    assert_eq!(net.server.recv(server), Err(NetError::TimedOut));
    assert_eq!(net.server.stack.counters().timeout_keepalive, 1);
}

#[test]
fn nodelay_sends_at_once_and_nagle_does_not() {
    for nodelay in [false, true] {
        let mut host = Host::server();
        let options = ListenOptions { nodelay, ..Default::default() };
        let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
        let id = host.establish(listener, &mut Peer::new(4000));
        assert_eq!(host.stack.nodelay(id), Ok(nodelay));
        host.send(id, b"one").unwrap();
        host.send(id, b"two").unwrap();
        assert_eq!(host.segments().len(), if nodelay { 2 } else { 1 });
        host.call(|stack, io| stack.set_nodelay(id, true, io)).unwrap();
        assert_eq!(host.segments().len(), if nodelay { 0 } else { 1 }, "what was held back goes out");
    }
}

#[test]
fn vectored_calls_gather_and_scatter() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    let before = net.to_server;
    let parts = [b"head".as_slice(), b"", b"body"].map(std::io::IoSlice::new);
    assert_eq!(net.client.call(|stack, io| stack.tcp_send_vectored(client, &parts, io)), Ok(8));
    net.run_for(MS);
    assert_eq!(net.to_server - before, 1, "one segment");
    let mut peeked = [0; 3];
    assert_eq!(net.server.stack.tcp_peek(server, &mut peeked), Ok(3));
    assert_eq!((&peeked, net.server.stack.tcp_unread(server)), (b"hea", Ok(8)));
    let (mut a, mut b) = ([0; 5], [0; 50]);
    let mut buffers = [std::io::IoSliceMut::new(&mut a), std::io::IoSliceMut::new(&mut b)];
    assert_eq!(net.server.call(|stack, io| stack.tcp_recv_vectored(server, &mut buffers, io)), Ok(8));
    assert_eq!((&a, &b[..3]), (b"headb", &b"ody"[..]));
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
fn a_user_timeout_is_no_shorter_than_a_retransmission_timer() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    net.client.call(|stack, io| stack.set_user_timeout(client, Some(MS), io)).unwrap();
    // The peer's acknowledgement is delayed by more than that.
    net.client.send(client, b"x").unwrap();
    net.run_for(100 * MS);
    assert_eq!(net.client.recv(client), Err(NetError::WouldBlock), "it lives");
    assert_eq!(net.server.recv(server).unwrap(), b"x");
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

#[test]
fn simultaneous_open() {
    let mut net = Net::new();
    let options = ConnectOptions::default();
    let (a, b) = (at(CLIENT, 5000), at(SERVER, 6000));
    // Both know each other, so that the SYNs cross.
    net.client.stack.tcp_listen(at("0.0.0.0", 1), ListenOptions::default()).unwrap();
    let warm = net.client.connect(at(SERVER, 1));
    net.run_for(10 * MS);
    net.client.close(warm);
    let client = net.client.call(|stack, io| stack.tcp_connect(Some(a), b, options, io)).unwrap();
    let server = net.server.call(|stack, io| stack.tcp_connect(Some(b), a, options, io)).unwrap();
    net.run_for(5 * SECOND);
    net.client.send(client, b"crossed").unwrap();
    net.run_for(SECOND);
    assert_eq!(net.server.recv(server).unwrap(), b"crossed");
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
    // Never for a reset.
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

/// A batch of frames is looked up ahead; with many connections that reaches into their sockets.
#[test]
fn looking_ahead_changes_nothing() {
    let run = |ahead: bool| {
        let mut host = Host::server();
        let listener = host.listen(80);
        let mut peers: Vec<Peer> = (0..600).map(|n| Peer::new(4000 + n)).collect();
        let ids: Vec<_> = peers.iter_mut().map(|peer| host.establish(listener, peer)).collect();
        let mut seen = Vec::new();
        for round in 0..40u8 {
            let mut frames = Vec::new();
            for (number, peer) in peers.iter_mut().enumerate().take(64) {
                // Some unread data, some FINs, some segments twice.
                let flags = if number == usize::from(round) { FIN | ACK } else { ACK | PSH };
                let segment = peer.segment(flags, &vec![round; number * 7]);
                peer.seq += segment.payload.len() as u32 + u32::from(flags & FIN);
                frames.extend([segment.frame()].into_iter().chain((number % 9 == 0).then(|| segment.frame())));
            }
            if ahead {
                host.stack.warm(&frames);
            }
            frames.into_iter().for_each(|frame| host.receive(frame));
            for (number, &id) in ids.iter().enumerate().take(64) {
                if (number + usize::from(round)) % 3 != 0 {
                    seen.push(host.recv(id));
                    seen.push(host.send(id, &[round; 300]).map(|count| vec![count as u8]));
                }
            }
            for segment in host.segments() {
                let peer = peers.iter_mut().find(|peer| peer.from == segment.to).unwrap();
                peer.ack = segment.seq + segment.payload.len() as u32 + u32::from(segment.flags & FIN);
                seen.push(Ok(segment.payload));
            }
        }
        seen
    };
    assert!(run(true) == run(false));
}
