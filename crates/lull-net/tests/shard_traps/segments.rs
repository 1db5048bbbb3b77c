//! Segments of an open connection: rings, order, acknowledgements, edges.

use super::*;

/// The trap is that a full TX ring makes `poll_at` return 0. This must neither spin nor stop reception.
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

/// One blocked connection is served per free slot, in order, and none starves.
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

/// The trap is that a segment with an older ACK loses its payload.
#[test]
fn an_overtaken_segment_keeps_its_data() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    host.send(id, b"one").unwrap();
    // The peer sends data before it hears ours, and then acknowledges. The two segments arrive in the other order.
    let data = peer.segment(ACK | PSH, b"overtaken");
    assert_eq!(peer.hear(&mut host), b"one");
    let acknowledgement = Tcp { seq: peer.seq + 9, ..peer.segment(ACK, &[]) };
    host.receive(acknowledgement.frame());
    host.receive(data.frame());
    assert_eq!(host.recv(id).unwrap(), b"overtaken", "at once, not a retransmission timeout later");
    assert_eq!(host.stack.counters().tcp_stale_acks, 1);
}

/// The trap is that there is no congestion control without a feature of the crate.
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

/// The trap is that initial sequence numbers are predictable unless each shard is seeded.
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

/// The trap is that `poll` does not say which socket changed.
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
    peer.is_answered(&mut host, id);
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

/// A peer with Nagle's algorithm on sends nothing small before what it has sent is acknowledged. If there are no
/// answers, that is done at once (`__tcp_ack_snd_check`, `tcp_delack_timer_handler`).
#[test]
fn small_segments_that_nobody_answers_are_acknowledged_as_they_come() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let is_acknowledged = |peer: &mut Peer, host: &mut Host, data: &[u8]| {
        peer.send(host, ACK | PSH, data);
        assert_eq!(host.recv(id).unwrap().len(), data.len());
        let segments = host.segments();
        assert!(segments.iter().all(|segment| segment.flags == ACK && segment.ack == peer.seq), "{segments:?}");
        segments.len() == 1
    };
    // This holds from the first segment on, as the rest of a request may wait for that.
    for _ in 0..3 {
        assert!(is_acknowledged(&mut peer, &mut host, b"message"));
    }
    assert!(!is_acknowledged(&mut peer, &mut host, &[b'f'; 1460]), "a full one is the first of several");
    host.run_for(45 * MS);
    assert_eq!(host.segments().len(), 1);
    // Once something was sent, more is to be expected, until an acknowledgement has waited for it in vain.
    peer.is_answered(&mut host, id);
    assert!(!is_acknowledged(&mut peer, &mut host, b"message"));
    host.run_for(45 * MS);
    assert_eq!(host.segments().len(), 1);
    for _ in 0..3 {
        assert!(is_acknowledged(&mut peer, &mut host, b"message"));
    }
}

/// The trap is that smoltcp does not answer the SYN of a client that was restarted and took the same port.
#[test]
fn a_restarted_client_gets_a_challenge_and_can_come_back() {
    let (mut host, _, peer, id) = Host::with_a_peer();
    let mut restarted = Peer::new(4000);
    restarted.seq = 900_000;
    host.receive(restarted.syn().frame());
    let challenge = host.segments();
    assert_eq!((challenge.len(), challenge[0].flags), (1, ACK));
    assert_eq!((challenge[0].seq, challenge[0].ack), (peer.ack, peer.seq), "RFC 5961 section 4.2");
    // The client answers with the reset that this challenge proves genuine.
    host.receive(Tcp { seq: challenge[0].ack, ..peer.segment(RST, &[]) }.frame());
    assert_eq!(host.recv(id), Err(NetError::ConnectionReset));
    host.receive(restarted.syn().frame());
    assert_eq!(host.segments()[0].flags, SYN | ACK);
}

/// The trap is that smoltcp believes the acknowledgement of data that are only in its buffer.
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

/// The trap is that while the receive window is closed, smoltcp drops acknowledgements beyond it, such as those of a
/// peer that probes (RFC 9293 section 3.10.7.4 lets them pass). Two full peers would wait for each other for ever.
#[test]
fn acknowledgements_pass_a_closed_window() {
    for (beyond, payload) in [(1, &b""[..]), (0, &b"p"[..]), (-1i32 as u32, &b""[..])] {
        let mut host = Host::server();
        let listener = host.listen(80);
        let mut peer = Peer::new(4000);
        let id = host.establish(listener, &mut peer);
        // Nobody reads, so the window closes.
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
        // The data are acknowledged, so nothing is sent again, however long it takes.
        host.run_for(5_000_000_000);
        let again = host.segments();
        assert!(again.iter().all(|segment| segment.payload.is_empty()), "{beyond}: retransmitted");
        // A segment that carries nothing new is a probe, and is answered.
        let probe = Tcp { seq: last.ack, ack: acked, ..peer.segment(ACK, b"p") };
        host.receive(probe.frame());
        assert_eq!(host.segments().len(), 1, "a probe is answered");
    }
}

/// The trap is that a probe of a closed window counts as sent. A bare acknowledgement with the number after it lies
/// beyond the window, where Linux discards it together with the news that our window has opened. Two full peers would
/// wait for each other for ever.
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
    // The application reads, so the window opens, and the peer is told within its window.
    while host.recv(id).is_ok_and(|read| !read.is_empty()) {}
    let told = host.segments();
    let update = told.iter().find(|segment| segment.payload.is_empty()).expect("the window's opening is told");
    assert!(update.window > 0);
    assert_eq!(update.seq, peer.ack, "it is within the peer's window");
    // The peer is told once more in answer to its own probe, which lies before our window (`tcp_xmit_probe_skb`).
    let probe = Tcp { seq: update.ack.wrapping_sub(1), ..peer.segment(ACK, b"") };
    host.receive(probe.frame());
    let answer = host.segments();
    assert_eq!(answer.iter().map(|segment| segment.seq).collect::<Vec<_>>(), [peer.ack], "the answer, too");
    // The peer's window opens, and what waited is sent.
    peer.window = 2_000;
    peer.seq = update.ack;
    peer.send(&mut host, ACK, &[]);
    let rest = host.segments();
    assert_eq!(rest[0].seq, peer.ack);
    assert_eq!(rest.iter().map(|segment| segment.payload.len()).sum::<usize>(), 1000, "{rest:?}");
}

/// The trap is that smoltcp believes a reset anywhere in the window (RFC 5961 section 3.2 demands the exact number, or
/// else a challenge).
#[test]
fn a_guessed_reset_is_challenged() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.is_answered(&mut host, id);
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

/// The trap is that after a timeout smoltcp sends bare acknowledgements with an old sequence number. The peer discards
/// them, and two such stacks send each other for ever what the other has.
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
        // The first segment may be answered by the rest of the congestion window.
        peer.send(&mut host, ACK | PSH, b"data");
        host.run_for(60 * MS);
    }
    let last = host.segments().pop().unwrap();
    assert_eq!((last.seq, last.ack, last.payload.len()), (newest, peer.seq, 0));
}

/// This is what a connection that its peer has finished sends as soon as there is room, without a probe of the closed
/// window.
#[test]
fn a_window_that_opens_after_both_have_closed_lets_out_what_is_left() {
    for window in [60_000, 1000] {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        peer.window = 0;
        peer.send(&mut host, ACK, b"");
        let data: Vec<u8> = (0..3000_u32).map(|nth| nth as u8).collect();
        host.send(id, &data).unwrap();
        peer.send(&mut host, ACK | FIN, b"");
        assert_eq!(host.stack.tcp_state(id), Ok("CLOSE-WAIT"));
        host.call(|stack, io| stack.shutdown(id, lull_net::Shutdown::Write, io)).unwrap();
        assert_eq!(host.stack.tcp_state(id), Ok("LAST-ACK"));
        assert_eq!(host.stack.tcp_unacknowledged(id), Ok(3001), "the FIN as well");
        host.close(id);
        // A byte probes the window at once, and the peer has no room for it.
        let probes: Vec<usize> = host.segments().iter().map(|segment| segment.payload.len()).collect();
        assert!(probes.contains(&1) && probes.iter().all(|len| *len <= 1), "{probes:?}");
        let (mut got, mut ended) = (Vec::new(), false);
        for _ in 0..8 {
            // What fits is sent, and acknowledged with a window that is closed again. Then the window opens.
            peer.window = window;
            peer.send(&mut host, ACK, b"");
            for segment in host.segments() {
                assert_eq!(segment.seq, peer.ack);
                let is_last = segment.flags & FIN != 0;
                peer.ack += segment.payload.len() as u32 + u32::from(is_last);
                ended |= is_last;
                got.extend(segment.payload);
            }
            peer.window = 0;
            peer.send(&mut host, ACK, b"");
        }
        assert!(ended, "the FIN is out");
        assert_eq!(got, data);
    }
}
