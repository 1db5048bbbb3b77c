//! The beginning of connections: half-open records, repeated and forged segments, SYN cookies (RFC 9293 section 3.10.7,
//! RFC 4987).

mod shard_harness;

use lull_net::shard::{ListenOptions, NetError, SocketId, SynCookies};
use shard_harness::*;

fn listen(host: &mut Host, backlog: usize, syn_backlog: usize) -> SocketId {
    let options = ListenOptions { backlog, syn_backlog, ..Default::default() };
    host.stack.tcp_listen(at("::", 80), options).unwrap()
}

/// Fills the queue of half-open connections.
fn flood(host: &mut Host, count: u16) {
    for port in 0..count {
        host.receive(Peer::new(10_000 + port).syn().frame());
    }
}

fn cookies(mode: SynCookies) -> Host {
    let mut config = server_config();
    config.syncookies = mode;
    Host::server_with(config)
}

#[test]
fn a_client_connects_while_the_queue_of_half_open_connections_is_full() {
    for mut client in [Peer::new(4000), Peer::v6(4000)] {
        let mut host = Host::server();
        let listener = listen(&mut host, 4096, 64);
        flood(&mut host, 5000);
        let counters = host.stack.counters();
        assert_eq!((host.stack.connections(), counters.syncookies_sent), (64, 5000 - 64));
        assert_eq!(counters.tcp_req_q_full_do_cookies, 5000 - 64);
        host.sent();
        let id = host.establish(listener, &mut client);
        client.send(&mut host, ACK | PSH, b"question");
        assert_eq!(host.recv(id).unwrap(), b"question");
        host.send(id, b"answer").unwrap();
        assert_eq!(client.hear(&mut host), b"answer");
        assert_eq!(host.stack.counters().syncookies_recv, 1);
    }
}

#[test]
fn a_half_open_connection_costs_a_small_record() {
    let mut host = Host::server();
    listen(&mut host, 4096, 1024);
    let empty = host.stack.memory_bytes();
    flood(&mut host, 5000);
    assert_eq!(host.stack.connections(), 1024);
    let each = (host.stack.memory_bytes() - empty) / 1024;
    assert!(each < 512, "{each} bytes");
    // The flood ends, and nothing of it is left.
    host.sent();
    host.run_for(100 * SECOND);
    assert_eq!((host.stack.connections(), host.stack.next_deadline_ns()), (0, None));
}

#[test]
fn a_cookie_keeps_the_segment_size() {
    for (mss, segment) in [(1300u16, 1300), (1399, 1300), (400, 536), (1460, 1460)] {
        let mut host = cookies(SynCookies::Always);
        let listener = listen(&mut host, 16, 16);
        let mut client = Peer::new(4000);
        let mut syn = client.syn();
        syn.options[2..4].copy_from_slice(&mss.to_be_bytes());
        host.receive(syn.frame());
        assert_eq!(host.stack.connections(), 0, "nothing is kept");
        let reply = host.segments().remove(0);
        (client.seq, client.ack) = (client.seq + 1, reply.seq + 1);
        client.send(&mut host, ACK, &[]);
        let id = host.accept(listener);
        host.send(id, &[1; 3000]).unwrap();
        assert_eq!(host.segments()[0].payload.len(), segment);
    }
}

#[test]
fn data_may_come_with_the_cookie() {
    let mut host = cookies(SynCookies::Always);
    let listener = listen(&mut host, 16, 16);
    let mut client = Peer::new(4000);
    host.receive(client.syn().frame());
    let reply = host.segments().remove(0);
    (client.seq, client.ack) = (client.seq + 1, reply.seq + 1);
    client.send(&mut host, ACK | PSH, b"at once");
    let id = host.accept(listener);
    assert_eq!(host.recv(id).unwrap(), b"at once");
}

#[test]
fn a_forged_cookie_is_reset() {
    let mut host = cookies(SynCookies::Always);
    let listener = listen(&mut host, 16, 16);
    // Before any cookie was sent, an acknowledgement is just a stranger's.
    let mut client = Peer { seq: 5000, ack: 9999, ..Peer::new(4000) };
    client.send(&mut host, ACK, &[]);
    assert_eq!(host.segments()[0].flags, RST);
    assert_eq!(host.stack.counters().syncookies_failed, 0);
    let mut client = Peer::new(4000);
    host.receive(client.syn().frame());
    let reply = host.segments().remove(0);
    (client.seq, client.ack) = (client.seq + 1, reply.seq + 1);
    for (from, to) in [(1, 0), (0, 1)] {
        let mut forged = client.segment(ACK, &[]);
        (forged.ack, forged.from) = (forged.ack + from, at(CLIENT, 4000 + to));
        host.receive(forged.frame());
        assert_eq!(host.segments()[0].flags, RST);
    }
    assert_eq!((host.stack.counters().syncookies_failed, host.stack.connections()), (2, 0));
    assert_eq!(host.stack.tcp_accept(listener), Err(NetError::WouldBlock));
    // Two minutes later the genuine cookie is too old, and nobody looks for cookies any more.
    host.run_for(121 * SECOND);
    client.send(&mut host, ACK, &[]);
    assert_eq!((host.segments()[0].flags, host.stack.connections()), (RST, 0));
}

#[test]
fn a_cookie_waits_for_room_in_the_accept_queue() {
    let mut host = cookies(SynCookies::Always);
    let listener = listen(&mut host, 1, 16);
    let mut clients = [Peer::new(4000), Peer::new(4001), Peer::new(4002)];
    for client in &mut clients {
        host.receive(client.syn().frame());
        let reply = host.segments().remove(0);
        (client.seq, client.ack) = (client.seq + 1, reply.seq + 1);
    }
    clients.iter_mut().for_each(|client| client.send(&mut host, ACK, &[]));
    assert!(host.segments().is_empty(), "no reset");
    assert_eq!(host.stack.counters().listen_overflows, 1);
    // Nor is a cookie sent while the queue is full.
    host.receive(Peer::new(4003).syn().frame());
    assert!(host.segments().is_empty());
    assert_eq!(host.stack.counters().listen_overflows, 2);
    host.accept(listener);
    // The client believes that it is connected. Its data, which it sends again, bring the cookie again.
    let data = clients[2].segment(ACK | PSH, b"again");
    host.receive(data.frame());
    host.accept(listener);
    let id = host.accept(listener);
    assert_eq!(host.recv(id).unwrap(), b"again");
}

#[test]
fn without_cookies_a_full_queue_drops() {
    let mut host = cookies(SynCookies::Off);
    let listener = listen(&mut host, 4096, 64);
    let mut established = Peer::new(4000);
    let id = host.establish(listener, &mut established);
    flood(&mut host, 5000);
    let counters = host.stack.counters();
    assert_eq!((host.stack.connections(), counters.drop_syn_backlog_full), (65, 5000 - 64));
    assert_eq!((counters.tcp_req_q_full_drop, counters.syncookies_sent), (5000 - 64, 0));
    established.send(&mut host, ACK | PSH, b"unharmed");
    assert_eq!(host.recv(id).unwrap(), b"unharmed");
    host.sent();
    host.run_for(100 * SECOND);
    host.sent();
    assert_eq!(host.stack.connections(), 1);
    host.establish(listener, &mut Peer::new(4001));
}

/// Linux bounds them by the backlog of `listen` as well.
#[test]
fn the_backlog_bounds_half_open_connections() {
    let mut host = Host::server();
    listen(&mut host, 100, 1024);
    flood(&mut host, 1000);
    assert_eq!((host.stack.connections(), host.stack.counters().syncookies_sent), (100, 900));
}

/// The clients wait for the server's first words, and send nothing again that would bring a cookie back.
#[test]
fn clients_that_come_together_are_all_accepted_whatever_the_backlog() {
    let mut host = Host::server();
    let listener = listen(&mut host, 5, 1024);
    let mut clients: Vec<Peer> = (0..10).map(|nth| Peer::new(4000 + nth)).collect();
    clients.iter().for_each(|client| host.receive(client.syn().frame()));
    for (client, reply) in clients.iter_mut().zip(host.segments()) {
        assert_eq!((reply.to.port(), reply.flags), (client.from.port(), SYN | ACK));
        (client.seq, client.ack) = (client.seq + 1, reply.seq + 1);
    }
    clients.iter_mut().for_each(|client| client.send(&mut host, ACK, &[]));
    assert_eq!(host.stack.counters().listen_overflows, 4, "one more than the backlog has room");
    for _ in 0..6 {
        host.accept(listener);
    }
    assert_eq!(host.stack.tcp_accept(listener), Err(NetError::WouldBlock));
    host.run_for(2 * SECOND);
    for reply in host.segments().iter().filter(|segment| segment.flags == SYN | ACK) {
        let client = clients.iter_mut().find(|client| client.from == reply.to).unwrap();
        client.send(&mut host, ACK, &[]);
    }
    for _ in 0..4 {
        host.accept(listener);
    }
}

/// `tcp_check_req`: a pure retransmission of the SYN means that our SYN-ACK was lost.
#[test]
fn a_repeated_syn_is_answered_again() {
    let mut host = Host::server();
    let listener = listen(&mut host, 16, 16);
    let mut client = Peer::new(4000);
    host.receive(client.syn().frame());
    let first = host.segments().remove(0);
    host.receive(client.syn().frame());
    let again = host.segments();
    assert_eq!((again.len(), again[0].seq, again[0].flags), (1, first.seq, SYN | ACK));
    assert_eq!(again[0].options, first.options);
    // But it is not answered as often as somebody likes (`tcp_invalid_ratelimit`).
    (0..100).for_each(|_| host.receive(client.syn().frame()));
    assert!(host.segments().is_empty());
    assert_eq!(host.stack.connections(), 1);
    (client.seq, client.ack) = (client.seq + 1, first.seq + 1);
    client.send(&mut host, ACK, &[]);
    host.accept(listener);
}

/// RFC 9293 section 3.10.7.4, SYN-RECEIVED: an unacceptable acknowledgement is reset, and changes nothing.
#[test]
fn a_wrong_acknowledgement_is_reset_and_the_handshake_goes_on() {
    let mut host = Host::server();
    let listener = listen(&mut host, 16, 16);
    let mut client = Peer::new(4000);
    host.receive(client.syn().frame());
    let reply = host.segments().remove(0);
    (client.seq, client.ack) = (client.seq + 1, reply.seq + 77);
    host.receive(client.segment(ACK, &[]).frame());
    let reset = host.segments();
    assert_eq!((reset.len(), reset[0].flags, reset[0].seq), (1, RST, reply.seq + 77));
    client.ack = reply.seq + 1;
    client.send(&mut host, ACK, &[]);
    host.accept(listener);
}

/// A segment out of the window is told where the handshake stands. Inside the window, a reset or a SYN ends the
/// handshake.
#[test]
fn segments_beside_the_handshake() {
    let mut host = Host::server();
    listen(&mut host, 16, 16);
    let client = Peer::new(4000);
    host.receive(client.syn().frame());
    let reply = host.segments().remove(0);
    let beside = |seq: u32, flags| Tcp { seq, ack: reply.seq + 1, ..client.segment(flags, &[]) };
    host.receive(beside(client.seq.wrapping_sub(9000), ACK).frame());
    let told = host.segments();
    assert_eq!((told.len(), told[0].flags, told[0].seq, told[0].ack), (1, ACK, reply.seq + 1, client.seq + 1));
    host.receive(beside(client.seq.wrapping_sub(9000), RST).frame());
    assert_eq!((host.segments().len(), host.stack.connections()), (0, 1), "a reset that was guessed");
    host.receive(beside(client.seq + 100, SYN).frame());
    assert_eq!(host.segments()[0].flags & RST, RST);
    assert_eq!((host.stack.connections(), host.stack.counters().embryonic_rsts), (0, 1));
}

/// Forged source addresses in an own network must not push real neighbours out of the table.
#[test]
fn a_flood_leaves_the_neighbour_table_alone() {
    let mut config = server_config();
    config.addresses = vec![(ip(SERVER), 8)];
    let mut host = Host::server_with(config);
    listen(&mut host, 4096, 16);
    for n in 0..5000u32 {
        let mut peer = Peer::new(4000);
        peer.from = std::net::SocketAddr::from(((0x0a01_0000 + n).to_be_bytes(), 4000));
        host.receive(peer.syn().frame());
    }
    let sent = host.sent();
    assert!(sent.len() > 4000);
    assert!(sent.iter().all(|frame| frame.data()[..6] == CLIENT_MAC && Tcp::parse(frame).is_some()), "no ARP");
    assert_eq!(host.neighbours.len(), 2, "the two of the harness");
}

/// What was agreed on in the handshake holds for the connection.
#[test]
fn options_of_the_syn_reach_the_connection() {
    let mut config = server_config();
    config.rx_buffer_bytes = 256 * 1024;
    let mut host = Host::server_with(config);
    let listener = listen(&mut host, 16, 16);
    let mut client = Peer::new(4000);
    client.window = 100;
    let mut syn = client.syn();
    syn.options.extend([1, 3, 3, 7, 1, 1, 4, 2]);
    host.receive(syn.frame());
    let reply = host.segments().remove(0);
    assert_eq!(reply.options, [2, 4, 5, 180, 1, 3, 3, 3, 1, 1, 4, 2]);
    assert_eq!(reply.window, 65_535);
    (client.seq, client.ack) = (client.seq + 1, reply.seq + 1);
    client.send(&mut host, ACK, &[]);
    let id = host.accept(listener);
    // The peer's window is 100 << 7.
    assert_eq!(host.send(id, &[1; 16 * 1024]).unwrap(), 16 * 1024);
    assert_eq!(host.segments().iter().map(|segment| segment.payload.len()).sum::<usize>(), 12_800);
    // Ours is scaled by 3, less the unit by which it may seem to shrink. A hole is reported by a selective
    // acknowledgement.
    client.seq += 1000;
    client.send(&mut host, ACK | PSH, b"behind a hole");
    let told = host.segments().remove(0);
    assert_eq!(told.window, 32 * 1024 - 1);
    assert_eq!(told.options[..2], [5, 10]);
}
