//! When what was lost is sent again.

use super::*;

/// What leaves within so many seconds, and after how many milliseconds. Nothing of it arrives.
fn lost(host: &mut Host, seconds: u64) -> Vec<(u64, Tcp)> {
    let begin_ns = host.now_ns;
    let mut lost = Vec::new();
    for _ in 0..seconds * 100 {
        host.run_for(10 * MS);
        let after_ms = (host.now_ns - begin_ns) / MS;
        lost.extend(host.segments().into_iter().map(|segment| (after_ms, segment)));
    }
    lost
}

/// Whether those are the times, to two ticks of the timers.
#[track_caller]
fn are_after_ms(lost: &[(u64, Tcp)], expected: &[u64]) {
    let after_ms: Vec<u64> = lost.iter().map(|(after_ms, _)| *after_ms).collect();
    let near = after_ms.iter().zip(expected).all(|(after, expected)| (*expected..=expected + 20).contains(after));
    assert!(near && after_ms.len() == expected.len(), "{after_ms:?}, not {expected:?}");
}

/// `TCP_RTO_MIN` is 200 ms beside the round trip.
#[test]
fn what_is_lost_is_sent_again_after_a_quarter_of_a_second_and_then_after_twice_as_long() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    for _ in 0..3 {
        peer.is_answered(&mut host, id);
    }
    host.send(id, b"lost").unwrap();
    assert_eq!(host.segments().len(), 1);
    let again = lost(&mut host, 3);
    assert!(again.iter().all(|(_, segment)| segment.payload == b"lost" && segment.seq == peer.ack));
    are_after_ms(&again, &[250, 750, 1750]);
    // An acknowledgement ends it, and one of something that was sent once makes the wait short again.
    peer.ack += 4;
    peer.send(&mut host, ACK, &[]);
    peer.is_answered(&mut host, id);
    host.send(id, b"lost").unwrap();
    host.segments();
    are_after_ms(&lost(&mut host, 1), &[250, 750]);
}

/// RFC 6298 section 2.2: three of the first round trips.
#[test]
fn a_long_round_trip_is_waited_for() {
    let (mut host, mut peer) = (Host::server(), Peer::new(4000));
    let listener = host.listen(80);
    host.receive(peer.syn().frame());
    let answer = host.segments().remove(0);
    host.run_for(200 * MS);
    (peer.seq, peer.ack) = (peer.seq + 1, answer.seq + 1);
    peer.send(&mut host, ACK, &[]);
    let id = host.accept(listener);
    host.send(id, b"lost").unwrap();
    host.segments();
    are_after_ms(&lost(&mut host, 2), &[600, 1800]);
}

/// RFC 6298 section 2.1, where a cookie or a repeated SYN-ACK leaves the round trip unknown.
#[test]
fn without_a_known_round_trip_the_first_data_waits_for_a_second() {
    for is_repeated in [false, true] {
        let mut config = server_config();
        config.syncookies = if is_repeated { SynCookies::Off } else { SynCookies::Always };
        let (mut host, mut peer) = (Host::server_with(config), Peer::new(4000));
        let listener = host.listen(80);
        host.receive(peer.syn().frame());
        let answer = host.segments().remove(0);
        if is_repeated {
            assert!(lost(&mut host, 2).iter().all(|(_, segment)| segment.flags == SYN | ACK));
        }
        (peer.seq, peer.ack) = (peer.seq + 1, answer.seq + 1);
        peer.send(&mut host, ACK, &[]);
        let id = host.accept(listener);
        host.send(id, b"lost").unwrap();
        host.segments();
        are_after_ms(&lost(&mut host, 2), &[1000]);
    }
}

/// RFC 6298 section 2.1; and the answer to it tells the round trip as it is.
#[test]
fn a_syn_is_sent_again_after_a_second() {
    let mut host = Host::server();
    let id = host.connect(at(CLIENT, 80));
    assert_eq!(host.segments().len(), 1);
    let again = lost(&mut host, 8);
    assert!(again.iter().all(|(_, segment)| segment.flags == SYN));
    are_after_ms(&again, &[1000, 3000, 7000]);
    host.close(id);

    let id = host.connect(at(CLIENT, 80));
    let syn = host.segments().remove(0);
    host.run_for(200 * MS);
    let answer = Tcp {
        from: syn.to,
        to: syn.from,
        seq: 5000,
        ack: syn.seq + 1,
        flags: SYN | ACK,
        window: 60_000,
        options: vec![2, 4, 5, 180],
        payload: Vec::new(),
    };
    host.receive(answer.frame());
    assert_eq!(host.segments().len(), 1);
    host.send(id, b"lost").unwrap();
    host.segments();
    are_after_ms(&lost(&mut host, 2), &[600, 1800]);
}
