//! The ends of connections: by either side, by both, by a reset, or by silence.

use super::*;

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
    // The client closed first, so it has the TIME-WAIT.
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
    // Data and FIN together take the server straight to TIME-WAIT, with the data unread.
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

/// Otherwise a waiter that looks in between would be told twice of one call (`inet_shutdown` calls sk_state_change
/// once).
#[test]
fn a_shutdown_says_once_what_is_ready() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (_client, server) = net.establish(listener, at(SERVER, 80));
    for how in [Shutdown::Read, Shutdown::Write] {
        net.server.changes.clear();
        net.server.call(|stack, io| stack.shutdown(server, how, io)).unwrap();
        let ready = net.server.ready(server);
        let said: Vec<_> = net.server.changes.iter().map(|c| (c.socket, c.ready, c.edges)).collect();
        assert_eq!(said, [(server, ready, ready)], "everything is an edge, as it is for {how:?}");
    }
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

/// `tcp_keepalive_timer`: with TCP_USER_TIMEOUT the time counts once a probe has left, and not the number of probes.
#[test]
fn a_user_timeout_says_when_keepalive_gives_up() {
    let whiles = [(3, None, 25), (3, Some(120), 120), (9, Some(20), 20), (9, Some(22), 25), (9, Some(3), 15)];
    for (probes, timeout_s, ends_s) in whiles {
        let mut net = Net::new();
        let listener = net.server.listen(80);
        let (_client, server) = net.establish(listener, at(SERVER, 80));
        let keepalive = Keepalive { idle_ns: 10 * SECOND, interval_ns: 5 * SECOND, probes };
        let timeout_ns = timeout_s.map(|timeout_s| timeout_s * SECOND);
        net.server.call(|stack, io| stack.set_keepalive(server, Some(keepalive), io)).unwrap();
        net.server.call(|stack, io| stack.set_user_timeout(server, timeout_ns, io)).unwrap();
        net.run_for(201 * SECOND);
        assert_eq!(net.server.stack.tcp_state(server), Ok("ESTABLISHED"), "a peer that answers");
        let heard_ns = net.now_ns;
        net.cut = true;
        // The last answer came within this time before.
        net.run_for((ends_s - 10) * SECOND - 10 * MS);
        assert_eq!(net.server.recv(server), Err(NetError::WouldBlock), "{timeout_s:?}");
        net.run_for(11 * SECOND);
        let after_s = (net.now_ns - heard_ns) / SECOND;
        assert_eq!(net.server.recv(server), Err(NetError::TimedOut), "{timeout_s:?} after {after_s} s");
    }
}

/// smoltcp would go on probing a window for which it has nothing more to send, with probes that nobody answers, and
/// would not probe the peer meanwhile.
#[test]
fn a_peer_that_has_everything_and_does_not_read_is_kept_alive() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let acknowledges_all = |host: &mut Host, peer: &mut Peer| {
        peer.window = 60_000;
        peer.send(host, ACK, &[]);
        host.send(id, &[1; 1484]).unwrap();
        assert_eq!(host.segments_beside_arp().len(), 2);
        peer.window = 0;
        for bytes in [1460, 24] {
            peer.ack += bytes;
            peer.send(host, ACK, &[]);
        }
        assert_eq!(host.segments(), []);
    };
    acknowledges_all(&mut host, &mut peer);
    host.run_for(100 * SECOND);
    assert_eq!(host.segments(), [], "nobody has asked for probes");
    let keepalive = Keepalive { idle_ns: 10 * SECOND, interval_ns: 2 * SECOND, probes: 3 };
    host.call(|stack, io| stack.set_keepalive(id, Some(keepalive), io)).unwrap();
    acknowledges_all(&mut host, &mut peer);
    for _ in 0..5 {
        host.run_for(10 * SECOND + 10 * MS);
        let probes: Vec<u32> = host.segments_beside_arp().iter().map(|segment| segment.seq).collect();
        assert_eq!(probes, [peer.ack - 1]);
        peer.send(&mut host, ACK, &[]);
    }
    assert_eq!(host.stack.tcp_state(id), Ok("ESTABLISHED"));
    // Data that are written meanwhile wait for the window, for which the peer is probed.
    host.send(id, b"more").unwrap();
    host.run_for(SECOND);
    let probes = host.segments_beside_arp();
    assert!(!probes.is_empty() && probes.iter().all(|probe| (probe.seq, &probe.payload[..]) == (peer.ack, b"m")));
    peer.window = 60_000;
    peer.send(&mut host, ACK, &[]);
    host.run_for(SECOND);
    assert_eq!(host.segments_beside_arp().pop().map(|segment| segment.payload), Some(b"more".to_vec()));
    peer.ack += 4;
    peer.send(&mut host, ACK, &[]);
    host.run_for(20 * SECOND);
    assert_eq!(host.recv(id), Err(NetError::TimedOut), "a silent peer is given up");
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

/// The process ends while something still holds its sockets. What was written arrives, and then the end.
#[test]
fn what_is_held_at_the_end_is_closed_behind_what_was_written() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peers = [Peer::new(4000), Peer::new(4001)];
    let ids = peers.each_mut().map(|peer| host.establish(listener, peer));
    peers[1].send(&mut host, ACK | PSH, b"nobody reads it");
    host.sent();
    for id in ids {
        host.send(id, b"answer").unwrap();
    }
    host.call(|stack, io| stack.shut_held(io));
    host.run_for(SECOND);
    let ended = |port| move |segment: &&Tcp| segment.to.port() == port && segment.flags & FIN != 0;
    let segments = host.segments();
    assert!(segments.iter().all(|segment| segment.flags & RST == 0));
    assert!(segments.iter().any(|segment| segment.payload == b"answer" && segment.to.port() == 4000));
    assert!(segments.iter().find(ended(4000)).is_some() && segments.iter().find(ended(4001)).is_none());
}

/// A peer that opens its window and closes it again, and acknowledges nothing.
struct Toggling {
    host: Host,
    peer: Peer,
    id: SocketId,
    windows: [u16; 2],
}

impl Toggling {
    fn new() -> Toggling {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        let windows = [1, 0];
        peer.window = 0;
        peer.send(&mut host, ACK, &[]);
        host.send(id, &[1; 4000]).unwrap();
        Toggling { host, peer, id, windows }
    }

    /// Does so for this many seconds. The window changes every `every` seconds.
    fn goes_on(&mut self, seconds: u64, every: usize) {
        for second in 0..seconds as usize {
            if second % every == every - 1 {
                self.windows.rotate_left(1);
                self.peer.window = self.windows[1];
            }
            self.peer.send(&mut self.host, ACK, &[]);
            self.host.run_for(SECOND);
            self.host.sent();
        }
    }
}

/// `tcp_probe_timer` and `tcp_retransmit_timer`: an answer that only moves the window is no acknowledgement, and does
/// not keep the socket.
#[test]
fn a_closed_connection_ends_though_its_peers_window_opens_again_and_again() {
    let mut toggling = Toggling::new();
    toggling.host.close(toggling.id);
    toggling.goes_on(95, 45);
    assert_eq!(toggling.host.stack.connections(), 1);
    toggling.goes_on(6, 45);
    assert_eq!(toggling.host.stack.connections(), 0);
}

#[test]
fn a_user_timeout_counts_from_the_last_acknowledgement_though_a_window_opens() {
    let mut toggling = Toggling::new();
    let id = toggling.id;
    toggling.host.call(|stack, io| stack.set_user_timeout(id, Some(10 * SECOND), io)).unwrap();
    toggling.goes_on(9, 4);
    assert!(!toggling.host.ready(id).contains(Ready::ERR));
    toggling.goes_on(2, 4);
    assert_eq!(toggling.host.stack.take_error(id), Ok(Some(NetError::TimedOut)));
}

/// Without a user timeout, and as long as the program has the connection, a peer that is there is waited for.
#[test]
fn an_open_connection_outlives_a_window_that_opens_again_and_again() {
    let mut toggling = Toggling::new();
    toggling.goes_on(2000, 45);
    assert!(!toggling.host.ready(toggling.id).contains(Ready::ERR));
}
