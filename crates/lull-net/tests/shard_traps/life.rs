//! How connections begin and end, and what they cost.

use super::*;

/// The trap is that a RST in SYN-RECEIVED returns the socket to LISTEN with no deadline.
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

/// The trap is that a SYN with a bad checksum stays in the table for ever.
#[test]
fn a_bad_syn_creates_nothing() {
    let mut host = Host::server();
    host.listen(80);
    let peer = Peer::new(4000);
    let mut frame = peer.syn().frame();
    frame.data_mut()[51] ^= 1;
    host.receive(frame);
    assert_eq!((host.stack.connections(), host.stack.counters().drop_checksum), (0, 1));
    // An option that smoltcp cannot read, such as an MSS of length 3, is kept from it.
    let mut syn = Peer::new(4001).syn();
    syn.options = vec![2, 3, 5, 1];
    host.receive(syn.frame());
    host.run_for(200 * SECOND);
    assert_eq!((host.stack.connections(), host.stack.counters().timeout_syn_received), (0, 1));
    // A device that vouches for the checksum is believed.
    let mut frame = peer.syn().frame();
    frame.data_mut()[51] ^= 1;
    frame.set_checksum(Checksum::Unnecessary);
    host.receive(frame);
    assert_eq!(host.stack.connections(), 1);
}

/// The trap is that SYN-ACK retries never end.
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

/// The trap is that `set_timeout` also ends idle connections.
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

/// The trap is that without a timeout, data are sent to a vanished client for ever.
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
    // The host doubts that the next hop is there, and sends at most one ARP request for each retransmission.
    let (segments, others): (Vec<_>, Vec<_>) = host.sent().into_iter().partition(|f| Tcp::parse(f).is_some());
    assert!((5..=9).contains(&segments.len()), "{} transmissions", segments.len());
    assert!(others.len() <= segments.len());
    assert_eq!(host.recv(id), Err(NetError::TimedOut));
    assert_eq!(host.recv(id).unwrap(), b"");
    assert_eq!(host.stack.next_deadline_ns(), None);
    host.close(id);
    assert_eq!(host.stack.connections(), 0);
}

/// A host that was replaced has another address on the link, and may not announce it.
#[test]
fn a_connection_that_is_not_answered_asks_for_the_next_hop_again() {
    let (mut host, _, _, _) = Host::with_a_peer();
    host.connect(at(CLIENT, 80));
    assert_eq!((host.segments().len(), host.sent().len()), (1, 0));
    host.run_for(10 * SECOND);
    let (segments, others): (Vec<_>, Vec<_>) = host.sent().into_iter().partition(|f| Tcp::parse(f).is_some());
    assert!(segments.len() >= 2 && (1..=segments.len()).contains(&others.len()), "{segments:?} {others:?}");
}

/// As above, after the application has closed: the time is that of orphans, which is shorter.
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

/// A peer that answers probes of its closed window is waited for while the program has the connection, and afterwards
/// for as long as any orphan (`tcp_probe_timer`).
#[test]
fn a_peer_that_answers_probes_for_ever_keeps_no_orphan() {
    let mut host = Host::server();
    let listener = host.listen(80);
    for orphan in [true, false] {
        let mut peer = Peer::new(4000 + u16::from(orphan));
        let id = host.establish(listener, &mut peer);
        peer.window = 0;
        peer.send(&mut host, ACK, &[]);
        host.send(id, &[1; 5000]).unwrap();
        if orphan {
            host.close(id);
        }
        let mut probes = 0;
        for _ in 0..400 {
            host.run_for(SECOND);
            for _ in host.segments() {
                probes += 1;
                peer.send(&mut host, ACK, &[]);
            }
        }
        assert!(probes > 3, "{probes} probes");
        assert_eq!(host.stack.connections(), usize::from(!orphan));
    }
}

/// The trap is that FIN-WAIT-2 has no timeout.
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

/// The trap is that TIME_WAIT holds its buffers, for 10 s.
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
    // The last acknowledgement was lost, so the FIN comes again and is answered again.
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

/// The trap is that TIME_WAIT silently drops a new SYN for the same 4-tuple.
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
    // A new SYN does, and our sequence numbers are beyond the old ones (RFC 9293 section 3.6.1).
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

/// When the table is full, the oldest TIME-WAIT record goes first.
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
    // 4000 and 4001 are unknown by now, and 4002 is remembered.
    host.receive(Peer::new(4001).segment(ACK, &[]).frame());
    assert_eq!(host.segments()[0].flags & RST, RST);
    host.receive(Peer::new(4002).segment(ACK, &[]).frame());
    assert_eq!(host.segments()[0].flags, ACK);
}

/// The trap is that dropping a socket sends nothing, and later data get a RST.
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
    // Data for an application that has gone are reset, as on Linux.
    peer.send(&mut host, ACK | PSH, b"too late");
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].flags & RST), (1, RST));
    assert_eq!(host.stack.connections(), 0);
}

/// The trap is that closing with unread data sends a FIN where Linux sends a RST.
#[test]
fn close_with_unread_data_resets() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.send(&mut host, ACK | PSH, b"unread");
    host.run_for(10 * MS);
    assert_eq!(host.segments().len(), 1, "the acknowledgement");
    host.close(id);
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].flags), (1, RST | ACK));
    assert_eq!((segments[0].seq, segments[0].to), (peer.ack, peer.from));
    assert_eq!((host.stack.connections(), host.stack.time_waits()), (0, 0));
}

/// The trap is that a socket that listens again keeps its old options and congestion window.
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
    // The second connection, in the same slot, offers neither.
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

/// The trap is that buffers become resident and cannot be resized. What a connection costs is stated and given back.
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

/// The stale id of a closed socket is never another socket's.
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
