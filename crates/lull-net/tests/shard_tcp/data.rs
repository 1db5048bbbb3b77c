//! What is written is read, as a whole, in order, and as the options demand.

use super::*;

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
        // Three ARP requests in a row may be lost, which another test is for.
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
    // The window stays shut for a day. The connection lives, at the price of four probes a minute.
    let (before, refused) = (net.to_server, net.server.refused());
    net.run_for(86_400 * SECOND);
    assert!((4000..8000).contains(&(net.to_server - before)), "{} probes", net.to_server - before);
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

/// A batch of frames is looked up ahead, and with many connections also in their sockets.
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
                // Some peers send unread data, some a FIN, and some a segment twice.
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
