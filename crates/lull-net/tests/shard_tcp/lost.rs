//! When lost segments are sent again.

use super::*;

/// Returns what leaves within this many seconds, and after how many milliseconds. None of it arrives.
fn lost(host: &mut Host, seconds: u64) -> Vec<(u64, Tcp)> {
    let begin_ns = host.now_ns;
    let mut lost = Vec::new();
    for _ in 0..seconds * 100 {
        host.run_for(10 * MS);
        let after_ms = (host.now_ns - begin_ns) / MS;
        lost.extend(host.segments_beside_arp().into_iter().map(|segment| (after_ms, segment)));
    }
    lost
}

/// Checks that these are the times, to within two ticks of the timers.
#[track_caller]
fn are_after_ms(lost: &[(u64, Tcp)], expected: &[u64]) {
    let after_ms: Vec<u64> = lost.iter().map(|(after_ms, _)| *after_ms).collect();
    let near = after_ms.iter().zip(expected).all(|(after, expected)| (*expected..=expected + 20).contains(after));
    assert!(near && after_ms.len() == expected.len(), "{after_ms:?}, not {expected:?}");
}

/// `TCP_RTO_MIN` is 200 ms, which are added to the round trip.
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
    // An acknowledgement ends it. One of data that were sent only once makes the wait short again.
    peer.ack += 4;
    peer.send(&mut host, ACK, &[]);
    peer.is_answered(&mut host, id);
    host.send(id, b"lost").unwrap();
    host.segments();
    are_after_ms(&lost(&mut host, 1), &[250, 750]);
}

/// RFC 6298 section 2.2: the timeout is three times the first round trip.
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

/// This is RFC 6298 section 2.1, for a cookie or a repeated SYN-ACK, which leave the round trip unknown.
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

/// This is RFC 6298 section 2.1. The answer to a SYN that was sent once tells the actual round trip.
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

/// How much may be on its way before anything is lost.
const FIRST_BUFFER_BYTES: usize = 16 << 10;

/// A peer that acknowledges selectively, and a connection on which segments of 1000 bytes are on their way.
struct Receiver {
    host: Host,
    peer: Peer,
    id: SocketId,
    /// The sequence number of the first of those segments.
    first: u32,
}

impl Receiver {
    fn of(segments: usize) -> Receiver {
        Receiver::that(true, segments)
    }

    /// `selectively` says whether it acknowledges selectively.
    fn that(selectively: bool, segments: usize) -> Receiver {
        Receiver::of_listener(ListenOptions::default(), selectively, segments)
    }

    /// The round trip takes 40 ms.
    fn of_listener(options: ListenOptions, selectively: bool, segments: usize) -> Receiver {
        let mut config = server_config();
        config.growth = BufferGrowth::default();
        let (mut host, mut peer) = (Host::server_with(config), Peer::new(4000));
        let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
        let permitted = if selectively { [1, 1, 4, 2] } else { [1; 4] };
        host.receive(Tcp { options: [[2, 4, 3, 232], permitted].concat(), ..peer.syn() }.frame());
        let answer = host.segments().remove(0);
        host.run_for(40 * MS);
        (peer.seq, peer.ack) = (peer.seq + 1, answer.seq + 1);
        peer.send(&mut host, ACK, &[]);
        let id = host.accept(listener);
        for _ in 0..3 {
            host.send(id, b"one").unwrap();
            assert_eq!(host.segments().len(), 1);
            host.run_for(40 * MS);
            peer.ack += 3;
            peer.send(&mut host, ACK, &[]);
        }
        host.send(id, &vec![1; segments * 1000]).unwrap();
        let first = peer.ack;
        assert_eq!(host.segments().len(), segments);
        Receiver { host, peer, id, first }
    }

    fn at(&self, segment: u32) -> u32 {
        self.first + segment * 1000
    }

    /// The peer has everything before segment `up_to`, and the segments from `from` up to `to`. Returns what is sent
    /// for that.
    fn has(&mut self, up_to: u32, (from, to): (u32, u32)) -> Vec<u32> {
        let mut options = vec![1, 1, 5, 10];
        options.extend(self.at(from).to_be_bytes());
        options.extend(self.at(to).to_be_bytes());
        self.peer.ack = self.at(up_to);
        self.host.receive(Tcp { options, ..self.peer.segment(ACK, &[]) }.frame());
        self.sent()
    }

    /// The segments that were sent.
    fn sent(&mut self) -> Vec<u32> {
        let first = self.first;
        let occupied = |segment: &&Tcp| !segment.payload.is_empty() || segment.flags & FIN != 0;
        // The host also asks for the next hop of a silent peer.
        let sent: Vec<Tcp> = self.host.sent().iter().filter_map(Tcp::parse).collect();
        sent.iter().filter(occupied).map(|segment| (segment.seq - first) / 1000).collect()
    }

    /// The peer has everything before segment `up_to`. Returns what is sent for that.
    fn has_all(&mut self, up_to: u32) -> Vec<u32> {
        self.peer.ack = self.at(up_to);
        self.peer.send(&mut self.host, ACK, &[]);
        self.sent()
    }

    /// The segments that are sent within this many milliseconds.
    fn waits_ms(&mut self, ms: u64) -> Vec<u32> {
        self.host.run_for(ms * MS);
        self.sent()
    }
}

/// RFC 6675: all holes are filled in one round trip, and not one in each.
#[test]
fn all_holes_are_filled_within_a_round_trip_as_segments_behind_them_come() {
    let mut receiver = Receiver::of(12);
    // The segments 1, 4, 5 and 9 are lost.
    assert_eq!(receiver.has_all(1), [0; 0]);
    assert_eq!(receiver.has(1, (2, 3)), [0; 0]);
    assert_eq!(receiver.has(1, (2, 4)), [0; 0]);
    assert_eq!(receiver.has(1, (6, 7)), [1], "three segments behind it");
    assert_eq!(receiver.has(1, (6, 8)), [0; 0]);
    assert_eq!(receiver.has(1, (6, 9)), [4, 5]);
    for to in [11, 12] {
        assert_eq!(receiver.has(1, (10, to)), [0; 0]);
    }
    assert_eq!(receiver.has(4, (10, 12)), [0; 0], "nothing is sent twice");
    assert_eq!(receiver.has(5, (10, 12)), [0; 0]);
    assert_eq!(receiver.has(9, (10, 12)), [0; 0], "there are but two behind it");
    assert_eq!(receiver.waits_ms(7), [0; 0], "it may have been overtaken");
    assert_eq!(receiver.waits_ms(30), [9]);
    assert_eq!(receiver.has_all(12), [0; 0]);
    assert_eq!(receiver.waits_ms(5000), [0; 0], "nothing is on its way");
    // What is sent now is not part of that.
    receiver.host.send(receiver.id, &[2; 1000]).unwrap();
    assert_eq!(receiver.sent(), [12]);
    assert_eq!(receiver.has_all(13), [0; 0]);
}

/// There are too few segments after it for a third duplicate (`tcp_rack_detect_loss`, `tcp_rack_reo_wnd`: a quarter of
/// the round trip).
#[test]
fn a_peer_that_has_the_last_segment_says_that_the_first_is_lost() {
    let mut receiver = Receiver::of(2);
    assert_eq!(receiver.has(0, (1, 2)), [0; 0]);
    assert_eq!(receiver.waits_ms(9), [0; 0], "it may have been overtaken");
    assert_eq!(receiver.waits_ms(20), [0]);
    assert_eq!(receiver.has_all(2), [0; 0]);
    assert_eq!(receiver.waits_ms(5000), [0; 0]);
}

#[test]
fn a_segment_that_was_overtaken_is_not_sent_again() {
    let mut receiver = Receiver::of(2);
    assert_eq!(receiver.has(0, (1, 2)), [0; 0]);
    receiver.host.run_for(5 * MS);
    assert_eq!(receiver.has_all(2), [0; 0]);
    assert_eq!(receiver.waits_ms(5000), [0; 0]);
}

/// A path that overtakes does so for long, so what is on its way is not copied anew each time.
#[test]
fn what_is_on_its_way_is_copied_once_however_often_it_is_overtaken() {
    for selectively in [true, false] {
        let options = ListenOptions { nodelay: true, ..ListenOptions::default() };
        let mut receiver = Receiver::of_listener(options, selectively, 16);
        for pair in (0..2000).step_by(2) {
            receiver.has(pair, (pair + 1, pair + 2));
            receiver.has_all(pair + 2);
            receiver.host.send(receiver.id, &[2; 2000]).unwrap();
            receiver.sent();
        }
        assert_eq!(receiver.host.stack.counters().tcp_copied_bytes, 16_000);
        assert_eq!(receiver.host.stack.tcp_info(receiver.id, receiver.host.now_ns).unwrap().retransmits, 0);
        // The copy ends with what was on its way.
        assert_eq!(receiver.has_all(2016), [0; 0]);
        receiver.host.send(receiver.id, &[2; 3000]).unwrap();
        receiver.sent();
        assert_eq!(receiver.has(2016, (2017, 2018)), [0; 0]);
        assert_eq!(receiver.host.stack.counters().tcp_copied_bytes, 19_000);
    }
}

/// A part of what follows the lost segment is missing as well, and nothing is known of it. It waits for the timer.
#[test]
fn a_segment_behind_which_not_everything_came_is_sent_again_and_the_rest_by_the_timer() {
    let mut receiver = Receiver::of(3);
    assert_eq!(receiver.has(0, (1, 2)), [0; 0]);
    assert_eq!(receiver.waits_ms(30), [0]);
    assert_eq!(receiver.has_all(2), [0; 0]);
    assert_eq!(receiver.waits_ms(200), [0; 0]);
    assert_eq!(receiver.waits_ms(70), [2]);
}

/// A segment that was sent again is lost as well: three that left after it have come, whether sent for the first time
/// or again.
#[test]
fn what_is_lost_again_is_sent_again_without_the_timer() {
    let mut receiver = Receiver::of(16);
    // The segment 0 is lost twice, and 8, 9 and 10 once.
    assert_eq!(receiver.has(0, (1, 4)), [0]);
    assert_eq!(receiver.has(0, (1, 8)), [0; 0]);
    assert_eq!(receiver.has(0, (11, 14)), [8, 9, 10]);
    assert_eq!(receiver.has(0, (11, 16)), [0; 0]);
    assert_eq!(receiver.has(0, (1, 10)), [0; 0]);
    assert_eq!(receiver.has(0, (1, 16)), [0]);
    assert_eq!(receiver.has_all(16), [0; 0]);
    assert_eq!(receiver.waits_ms(5000), [0; 0]);
}

/// The timer makes everything be sent again, in order. What is acknowledged of it meanwhile is not sent twice.
#[test]
fn what_the_timer_sends_again_is_sent_once() {
    let mut receiver = Receiver::of(6);
    assert_eq!(receiver.waits_ms(90), [5], "a probe");
    let mut again = receiver.waits_ms(180);
    let mut had = 0;
    while had < 6 {
        assert!(!again.is_empty(), "something is sent for each acknowledgement");
        assert!(again.iter().enumerate().all(|(nth, segment)| had + nth as u32 == *segment), "{again:?} behind {had}");
        had += 1;
        let more = receiver.has_all(had);
        again.remove(0);
        again.extend(more);
    }
    assert!(again.is_empty());
}

/// After the missing data there is only the FIN. Duplicates would end its timer.
#[test]
fn a_lost_end_is_sent_again() {
    for selectively in [true, false] {
        let mut receiver = Receiver::that(selectively, 6);
        let id = receiver.id;
        receiver.host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
        assert_eq!(receiver.sent(), [6], "the end");
        for to in [2, 3] {
            assert_eq!(receiver.has(0, (1, to)), [0; 0]);
        }
        assert_eq!(receiver.has(0, (1, 4)), [0], "the third duplicate");
        // Everything has come but the end, and more acknowledgements of the same number may come. A peer without
        // selective acknowledgements thereby says that the next segment is missing (RFC 6582 section 3.2).
        assert_eq!(receiver.has_all(6), if selectively { vec![] } else { vec![6] });
        for _ in 0..4 {
            assert_eq!(receiver.has_all(6), [0; 0]);
        }
        assert_eq!(receiver.waits_ms(300), [6]);
        receiver.peer.ack += 1;
        receiver.peer.send(&mut receiver.host, ACK, &[]);
        assert_eq!(receiver.waits_ms(5000), [0; 0]);
    }
}

/// The copy of what is on its way then has only what the peer still has room for.
#[test]
fn what_a_peer_has_taken_back_the_room_for_is_sent_again_when_it_has_some() {
    let mut receiver = Receiver::of(9);
    receiver.peer.window = 2000;
    assert_eq!(receiver.has_all(0), [0; 0]);
    // The segments 0, 4 and 5 are lost.
    assert_eq!(receiver.has(0, (1, 4)), [0]);
    assert_eq!(receiver.has(0, (6, 9)), [0; 0]);
    receiver.peer.window = 60_000;
    let mut sent = receiver.has_all(4);
    sent.extend(receiver.waits_ms(100));
    assert_eq!(sent, [4, 5]);
    assert_eq!(receiver.has_all(9), [0; 0]);
    assert_eq!(receiver.waits_ms(5000), [0; 0]);
    assert_eq!(receiver.host.stack.tcp_state(receiver.id), Ok("ESTABLISHED"), "no end was sent");
}

/// An end that alone is lost is sent again as well.
#[test]
fn a_lost_end_is_sent_again_behind_data_that_all_came() {
    for selectively in [true, false] {
        let mut receiver = Receiver::that(selectively, 6);
        let id = receiver.id;
        receiver.host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
        assert_eq!(receiver.sent(), [6], "the end");
        for _ in 0..5 {
            assert_eq!(receiver.has_all(6), [0; 0]);
        }
        assert_eq!(receiver.waits_ms(300), [6]);
        receiver.peer.ack += 1;
        receiver.peer.send(&mut receiver.host, ACK, &[]);
        assert_eq!(receiver.waits_ms(5000), [0; 0]);
    }
}

/// While the sender waits for what it has sent again, smoltcp is told the same window with each duplicate
/// acknowledgement.
#[test]
fn nothing_is_sent_twice_for_all_the_duplicates_that_come() {
    let mut receiver = Receiver::of(12);
    for to in 2..12 {
        let sent = receiver.has(0, (1, to));
        assert_eq!(sent, if to == 4 { vec![0] } else { vec![] }, "up to {to}");
    }
    for _ in 0..10 {
        assert_eq!(receiver.has(0, (1, 12)), [0; 0]);
    }
    assert_eq!(receiver.has_all(12), [0; 0]);
    assert_eq!(receiver.waits_ms(5000), [0; 0]);
}

/// The sender waits for its timer, while smoltcp's own timer runs as well.
#[test]
fn what_nobody_acknowledges_is_sent_again_by_one_timer() {
    let mut receiver = Receiver::of(6);
    assert_eq!(receiver.has(0, (3, 4)), [0; 0]);
    assert_eq!(receiver.waits_ms(30), [0]);
    for _ in 0..5 {
        let sent = receiver.waits_ms(1);
        assert_eq!(sent, [0; 0]);
    }
    let mut times = 0;
    for _ in 0..4000 {
        let sent = receiver.waits_ms(1);
        assert!(sent.is_empty() || sent == [0], "{sent:?}");
        times += sent.len();
    }
    assert!((3..=5).contains(&times), "{times}: after 240 ms, and each time after twice as long");
}

/// RFC 9438 section 4.6. The window that a loss leaves is a share of what might have been on its way, and not of the
/// little that was. Otherwise answers of a few segments would lose their ends to the timer.
#[test]
fn a_loss_of_little_leaves_a_window_for_more() {
    for by_the_timer in [true, false] {
        let mut receiver = Receiver::of(4);
        if by_the_timer {
            assert_eq!(receiver.waits_ms(270), [3, 0]);
        } else {
            assert_eq!(receiver.has(0, (1, 4)), [0]);
        }
        assert_eq!(receiver.has_all(4), [0; 0]);
        let (id, mut up_to, mut flights) = (receiver.id, 4, Vec::new());
        receiver.host.send(id, &[2; 10_000]).unwrap();
        let mut sent = receiver.sent();
        while !sent.is_empty() {
            flights.push(sent.len());
            up_to += sent.len() as u32;
            receiver.host.run_for(40 * MS);
            sent = receiver.has_all(up_to);
        }
        assert!(up_to == 14 && flights.len() <= 2, "{flights:?}");
    }
}

/// RFC 8985 section 7, a tail loss probe: two round trips are shorter than the retransmission timer. The answer to the
/// probe says what is missing.
#[test]
fn the_last_segment_is_sent_again_where_nothing_is_heard() {
    let mut receiver = Receiver::of(4);
    assert_eq!(receiver.waits_ms(78), [0; 0]);
    assert_eq!(receiver.waits_ms(12), [3]);
    receiver.host.run_for(40 * MS);
    assert_eq!(receiver.has(0, (3, 4)), [0]);
    receiver.host.run_for(40 * MS);
    assert_eq!(receiver.has(1, (3, 4)), [1, 2]);
    assert_eq!(receiver.has_all(4), [0; 0]);
    let answer = receiver.host.stack.tcp_info(receiver.id, receiver.host.now_ns).unwrap();
    let window = answer.congestion_window.unwrap();
    assert!(window < FIRST_BUFFER_BYTES * 3 / 4, "a loss is a loss: {window}");
}

/// It is a loss even if the probe itself repairs it, but not if both segments came, which a peer reports by D-SACK or
/// by a duplicate.
#[test]
fn a_probe_that_was_needed_is_a_loss() {
    for heard in ["nothing else", "D-SACK", "a duplicate", "a duplicate of the last"] {
        let mut receiver = Receiver::of(4);
        assert_eq!(receiver.has_all(2), [0; 0]);
        assert_eq!(receiver.waits_ms(90), [3]);
        assert_eq!(receiver.has_all(4), [0; 0]);
        if heard == "a duplicate of the last" {
            assert_eq!(receiver.has_all(4), [0; 0]);
        }
        receiver.host.send(receiver.id, &[1; 1000]).unwrap();
        assert_eq!(receiver.sent(), [4]);
        let again = match heard {
            "D-SACK" => receiver.has(4, (3, 4)),
            "a duplicate" => receiver.has_all(4),
            _ => vec![],
        };
        assert_eq!(again, [0; 0]);
        assert_eq!(receiver.has_all(5), [0; 0]);
        let answer = receiver.host.stack.tcp_info(receiver.id, receiver.host.now_ns).unwrap();
        let is_less = answer.congestion_window.is_some_and(|bytes| bytes < FIRST_BUFFER_BYTES);
        assert_eq!(is_less, heard == "nothing else", "{heard}");
    }
}

/// Its acknowledgement may be delayed for 200 ms, which the retransmission timer takes into account.
#[test]
fn a_segment_alone_is_not_sent_again_before_the_timer() {
    let mut receiver = Receiver::of(4);
    assert_eq!(receiver.has_all(3), [0; 0]);
    assert_eq!(receiver.waits_ms(230), [0; 0]);
    assert_eq!(receiver.waits_ms(40), [3]);
}

/// A transmit buffer that is larger than what may be on its way at first is never all on its way at once. After nothing
/// turns out to be lost a congestion window holds as well, and after a second without anything to send it begins anew.
#[test]
fn a_large_transmit_buffer_has_a_congestion_window_whatever_is_overtaken() {
    let options = ListenOptions { tx_buffer_bytes: 200_000, nodelay: true, ..ListenOptions::default() };
    let mut receiver = Receiver::of_listener(options, true, 2);
    let id = receiver.id;
    let sent = |receiver: &mut Receiver, bytes| {
        receiver.host.send(id, &vec![1; bytes]).unwrap();
        receiver.sent().len()
    };
    assert_eq!(receiver.has(0, (1, 2)), [0; 0], "overtaken");
    assert_eq!(receiver.has_all(2), [0; 0]);
    let first = sent(&mut receiver, 60_000);
    assert!((10..=20).contains(&first), "{first}");
    let mut up_to = 2 + first as u32;
    while up_to < 62 {
        up_to += receiver.has_all(up_to).len() as u32;
    }
    assert_eq!(receiver.has_all(62), [0; 0]);
    receiver.host.run_for(3 * SECOND);
    let again = sent(&mut receiver, 60_000);
    assert!(again < first, "{again}, not {first}");
}

/// A probe of a closed window is sent more than once, and is no loss. The window that opens is not filled at once.
#[test]
fn a_large_transmit_buffer_has_a_congestion_window_behind_a_closed_window() {
    let options = ListenOptions { tx_buffer_bytes: 200_000, nodelay: true, ..ListenOptions::default() };
    let mut receiver = Receiver::of_listener(options, true, 2);
    let window = std::mem::take(&mut receiver.peer.window);
    assert_eq!(receiver.has_all(2), [0; 0]);
    receiver.host.send(receiver.id, &[1; 60_000]).unwrap();
    assert_eq!(receiver.waits_ms(3000), [2; 3], "probes");
    receiver.peer.window = window;
    receiver.peer.send(&mut receiver.host, ACK, &[]);
    let mut flights = Vec::new();
    while receiver.peer.ack != receiver.at(62) {
        let bytes = receiver.peer.hear(&mut receiver.host).len();
        assert!(bytes > 0, "behind {flights:?}");
        flights.push(bytes);
        receiver.host.run_for(40 * MS);
        receiver.peer.send(&mut receiver.host, ACK, &[]);
    }
    assert!(flights[0] <= 20_000 && flights.len() > 3, "{flights:?}");
}

/// The window may have been closed for long. That does not count as time without an answer, even if the program has
/// closed the connection.
#[test]
fn what_leaves_into_a_window_that_opens_is_waited_for() {
    for closes in [false, true] {
        let mut receiver = Receiver::of(2);
        let window = std::mem::take(&mut receiver.peer.window);
        assert_eq!(receiver.has_all(2), [0; 0]);
        receiver.host.send(receiver.id, &[1; 4000]).unwrap();
        if closes {
            receiver.host.close(receiver.id);
        }
        assert_eq!(receiver.waits_ms(3000), [2; 3], "probes");
        receiver.peer.window = window;
        assert_eq!(receiver.has_all(2), [2, 3, 4, 5]);
        assert_eq!(receiver.waits_ms(60), [0; 0], "it is on its way");
        receiver.peer.ack = receiver.at(6) + u32::from(closes);
        receiver.peer.send(&mut receiver.host, ACK, &[]);
        assert_eq!(receiver.waits_ms(5000), [0; 0]);
    }
}

/// RFC 8985: a path that has overtaken segments does so again. From then on the time says what is lost, and not how
/// many segments have come after it.
#[test]
fn a_path_that_overtakes_is_given_time() {
    for was_sent_again in [true, false] {
        let mut receiver = Receiver::of(12);
        let window = |receiver: &Receiver| {
            receiver.host.stack.tcp_info(receiver.id, receiver.host.now_ns).unwrap().congestion_window
        };
        let before = window(&receiver);
        if was_sent_again {
            assert_eq!(receiver.has(0, (1, 4)), [0], "three are behind it");
            assert_ne!(window(&receiver), before);
            assert_eq!(receiver.has_all(4), [0; 0], "it was overtaken");
            assert_eq!(receiver.has(4, (0, 1)), [0; 0], "and came twice (RFC 2883)");
        } else {
            assert_eq!(receiver.has(0, (1, 2)), [0; 0]);
            assert_eq!(receiver.has_all(4), [0; 0], "it was overtaken");
        }
        assert_eq!(window(&receiver), before, "nothing was lost");
        for up_to in 6..10 {
            assert_eq!(receiver.has(4, (5, up_to)), [0; 0], "it has time");
            assert_eq!(receiver.waits_ms(2), [0; 0]);
        }
        assert_eq!(receiver.waits_ms(4), [4], "a quarter of a round trip, whatever comes meanwhile");
    }
}

/// An acknowledgement that was itself overtaken reports ranges that were acknowledged long ago. They did not come
/// twice.
#[test]
fn an_acknowledgement_that_was_overtaken_undoes_nothing() {
    let mut receiver = Receiver::of(8);
    let window = |receiver: &Receiver| {
        receiver.host.stack.tcp_info(receiver.id, receiver.host.now_ns).unwrap().congestion_window
    };
    let before = window(&receiver);
    assert_eq!(receiver.has(0, (1, 4)), [0]);
    assert_eq!(receiver.has_all(4), [0; 0]);
    assert_eq!(receiver.has(0, (1, 3)), [0; 0], "overtaken by the two before");
    assert_eq!(receiver.has_all(8), [0; 0]);
    assert!(window(&receiver) < before, "a loss is a loss");
}

/// The longer something was overtaken, the more time there is, up to a round trip.
#[test]
fn what_came_twice_again_and_again_is_given_more_time() {
    let mut receiver = Receiver::of(12);
    assert_eq!(receiver.has(0, (1, 4)), [0]);
    assert_eq!(receiver.has_all(4), [0; 0]);
    assert_eq!(receiver.has(4, (0, 1)), [0; 0]);
    assert_eq!(receiver.has(4, (5, 6)), [0; 0]);
    assert_eq!(receiver.waits_ms(12), [4]);
    assert_eq!(receiver.has_all(12), [0; 0]);
    assert_eq!(receiver.has(12, (4, 5)), [0; 0], "again");
    receiver.host.send(receiver.id, &[1; 4000]).unwrap();
    assert_eq!(receiver.sent(), [12, 13, 14, 15]);
    assert_eq!(receiver.has(12, (13, 14)), [0; 0]);
    assert_eq!(receiver.waits_ms(15), [0; 0]);
    assert_eq!(receiver.waits_ms(10), [12], "two quarters");
}

/// Linux does so after a few retransmissions (`dst_negative_advice`), as the next hop may have moved.
#[test]
fn the_next_hop_of_a_silent_peer_is_asked_for_again() {
    for has_lost_before in [false, true] {
        let mut receiver = Receiver::of(4);
        if has_lost_before {
            assert_eq!(receiver.has(0, (1, 4)), [0]);
        }
        receiver.host.run_for(10 * SECOND);
        let asks = receiver.host.sent().iter().filter(|frame| Tcp::parse(frame).is_none()).count();
        assert!(asks > 0, "has lost before: {has_lost_before}");
    }
}

/// A segment that finds no room in the ring does not count as sent.
#[test]
fn a_segment_that_the_ring_has_no_room_for_is_sent_again_later() {
    // One acknowledgement may report everything that has come.
    for tell in [vec![2, 3, 4], vec![2, 3, 4, 5, 6], vec![4]] {
        let mut receiver = Receiver::of(12);
        receiver.host.ring.slots = 0;
        for to in &tell {
            assert_eq!(receiver.has(0, (1, *to)), [0; 0]);
        }
        receiver.host.ring.slots = 4096;
        receiver.host.call(|stack, io| stack.flush_blocked(io));
        assert_eq!(receiver.sent().first(), Some(&0), "{tell:?}");
    }
}

#[test]
fn a_segment_that_the_ring_had_no_room_for_is_not_lost_with_a_larger_receive_buffer() {
    let mut receiver = Receiver::of(6);
    receiver.host.ring.slots = 0;
    for to in 2..5 {
        assert_eq!(receiver.has(0, (1, to)), [0; 0]);
    }
    // The whole window is used, and read.
    for _ in 0..16 {
        receiver.peer.send(&mut receiver.host, ACK | PSH, &[7; 1000]);
    }
    let id = receiver.id;
    assert!(receiver.host.recv(id).unwrap().len() > 10_000);
    receiver.host.ring.slots = 4096;
    receiver.host.call(|stack, io| stack.flush_blocked(io));
    let begin_ns = receiver.host.now_ns;
    let mut again = Vec::new();
    while receiver.host.now_ns < begin_ns + SECOND {
        receiver.host.run_for(10 * MS);
        again.extend(receiver.host.segments().into_iter().filter(|segment| !segment.payload.is_empty()));
    }
    assert_eq!(again.first().map(|segment| segment.seq), Some(receiver.first));
}

/// A window that finds no room in the ring is announced later. While it waits for that, the connection keeps its
/// buffers.
#[test]
fn a_window_that_the_ring_had_no_room_for_is_told_with_a_larger_receive_buffer() {
    let mut receiver = Receiver::of(6);
    assert_eq!(receiver.has_all(6), [0; 0]);
    let id = receiver.id;
    receiver.host.ring.slots = 0;
    for bytes in [[1000; 16].as_slice(), &[384]].concat() {
        receiver.peer.send(&mut receiver.host, ACK | PSH, &vec![7; bytes]);
    }
    assert_eq!(receiver.host.recv(id).unwrap().len(), 16 << 10, "all of the window is used, and read");
    receiver.host.ring.slots = 4096;
    receiver.host.call(|stack, io| stack.flush_blocked(io));
    let told = receiver.host.segments().pop().expect("an acknowledgement");
    assert_eq!(told.ack, receiver.peer.seq);
    assert!(told.window >= 16 << 10, "{}", told.window);
}

/// What seemed lost was only overtaken, so that nothing after it is missing.
#[test]
fn an_acknowledgement_without_a_hole_behind_it_sends_nothing_again() {
    let mut receiver = Receiver::of(12);
    for to in [2, 3] {
        assert_eq!(receiver.has(0, (1, to)), [0; 0]);
    }
    assert_eq!(receiver.has(0, (1, 4)), [0], "the third duplicate");
    for up_to in 4..=12 {
        assert_eq!(receiver.has_all(up_to), [0; 0]);
    }
    assert_eq!(receiver.waits_ms(5000), [0; 0]);
}

/// A peer may delay an acknowledgement for 200 ms in addition to the round trip.
#[test]
fn an_acknowledgement_may_be_put_off_on_a_long_path_as_well() {
    let mut receiver = Receiver::of(1);
    assert_eq!(receiver.waits_ms(150), [0; 0]);
    assert_eq!(receiver.has_all(1), [0; 0]);
    for _ in 0..20 {
        receiver.host.send(receiver.id, b"one").unwrap();
        receiver.host.segments();
        receiver.host.run_for(150 * MS);
        receiver.peer.ack += 3;
        receiver.peer.send(&mut receiver.host, ACK, &[]);
    }
    receiver.host.send(receiver.id, b"one").unwrap();
    receiver.host.segments();
    let again = lost(&mut receiver.host, 1);
    assert!((340..400).contains(&again[0].0), "after {} ms", again[0].0);
}

/// smoltcp would go on probing the window without a pause, although there is nothing left to send.
#[test]
fn an_end_that_is_acknowledged_with_a_closed_window_is_the_end() {
    for selectively in [true, false] {
        let mut receiver = Receiver::that(selectively, 2);
        let id = receiver.id;
        receiver.host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
        receiver.host.segments();
        receiver.peer.window = 0;
        receiver.peer.ack = receiver.at(2) - 8;
        receiver.peer.send(&mut receiver.host, ACK, &[]);
        receiver.peer.ack = receiver.at(2) + 1;
        receiver.peer.send(&mut receiver.host, ACK, &[]);
        assert_eq!(receiver.host.stack.tcp_state(id), Ok("FIN-WAIT-2"));
        receiver.host.segments();
        receiver.host.run_for(5 * SECOND);
        assert_eq!(receiver.host.sent().len(), 0);
    }
}

/// smoltcp's timer ends when a window opens that it had begun to probe, whatever is on its way.
#[test]
fn what_was_lost_before_a_window_closed_and_opened_is_sent_again() {
    let mut receiver = Receiver::of(2);
    receiver.host.run_for(40 * MS);
    receiver.peer.window = 0;
    assert_eq!(receiver.has_all(1), [0; 0]);
    receiver.host.run_for(20 * MS);
    receiver.peer.window = 60_000;
    assert_eq!(receiver.has_all(1), [0; 0]);
    assert_eq!(receiver.waits_ms(300), [1]);
    assert_eq!(receiver.has_all(2), [0; 0]);
    assert_eq!(receiver.waits_ms(5000), [0; 0]);
}

/// The segments of which the copy was made carried the acknowledgement as well.
#[test]
fn what_came_is_acknowledged_though_somebody_takes_charge() {
    let mut receiver = Receiver::of(6);
    receiver.peer.send(&mut receiver.host, ACK | PSH, b"request");
    receiver.host.segments();
    receiver.host.run_for(MS);
    let next = receiver.peer.seq;
    assert_eq!(receiver.has(0, (1, 2)), [0; 0]);
    receiver.host.run_for(5 * MS);
    receiver.peer.send(&mut receiver.host, ACK | PSH, b"more");
    assert_eq!(receiver.has(0, (1, 4)), [0]);
    receiver.host.run_for(60 * MS);
    assert!(next < receiver.peer.seq);
    receiver.peer.send(&mut receiver.host, ACK | PSH, &[1; 1000]);
    receiver.host.run_for(60 * MS);
    let told = receiver.host.segments().iter().map(|segment| segment.ack).max();
    assert_eq!(told, Some(receiver.peer.seq));
}

/// smoltcp answers a segment without data outside of its window once in a quarter of a second.
#[test]
fn what_came_is_acknowledged_though_somebody_takes_charge_again_soon() {
    let mut receiver = Receiver::of(6);
    let told = |receiver: &mut Receiver| receiver.host.segments().iter().map(|segment| segment.ack).max();
    for (up_to, segments) in [(0, 6), (6, 8), (8, 10)] {
        receiver.peer.send(&mut receiver.host, ACK, &[1; 100]);
        receiver.host.run_for(MS);
        receiver.has(up_to, (segments - 1, segments));
        receiver.host.run_for(5 * MS);
        assert_eq!(receiver.has_all(segments), [0; 0], "it was overtaken");
        receiver.host.send(receiver.id, &[1; 2000]).unwrap();
        receiver.host.segments();
    }
    receiver.peer.send(&mut receiver.host, ACK, &[1; 100]);
    assert_eq!(told(&mut receiver), None, "it is put off");
    let mut options = vec![1, 1, 5, 10];
    options.extend(receiver.at(11).to_be_bytes());
    options.extend(receiver.at(12).to_be_bytes());
    receiver.host.receive(Tcp { options, ..receiver.peer.segment(ACK, &[]) }.frame());
    receiver.host.run_for(60 * MS);
    assert_eq!(told(&mut receiver), Some(receiver.peer.seq));
}

/// This holds even if the ring has no room for the acknowledgement at that time.
#[test]
fn what_came_is_acknowledged_though_somebody_takes_charge_while_the_ring_is_full() {
    for goes_before in [false, true] {
        let mut receiver = Receiver::of(6);
        receiver.peer.send(&mut receiver.host, ACK, &[1; 100]);
        assert_eq!(receiver.host.segments(), [], "it is put off");
        receiver.host.ring.slots = 0;
        receiver.has(0, (1, 2));
        if goes_before {
            // Nothing is on its way, so that no sender is in charge any longer.
            receiver.has_all(6);
        }
        receiver.host.ring.slots = 4096;
        receiver.host.call(|stack, io| stack.flush_blocked(io));
        receiver.host.run_for(60 * MS);
        let told = receiver.host.segments().iter().map(|segment| segment.ack).max();
        assert_eq!(told, Some(receiver.peer.seq), "{goes_before}");
    }
}

/// This is a stranger who knows how much was sent, but not what has come.
#[test]
fn an_acknowledgement_with_a_number_out_of_nowhere_changes_nothing() {
    let mut receiver = Receiver::of(6);
    assert_eq!(receiver.has(0, (1, 2)), [0; 0]);
    let (seq, ack) = (receiver.peer.seq, receiver.peer.ack);
    (receiver.peer.seq, receiver.peer.ack) = (seq.wrapping_add(1 << 30), ack + 3000);
    receiver.peer.send(&mut receiver.host, ACK, &[]);
    receiver.host.segments();
    (receiver.peer.seq, receiver.peer.ack) = (seq, ack);
    assert_eq!(receiver.waits_ms(300).first(), Some(&0));
}

/// A round trip of 40 ms becomes one of 600 ms. Segments that were not lost are sent again at first, but not for ever
/// (`tcp_ack_update_rtt`).
#[test]
fn a_round_trip_that_becomes_longer_than_the_timeout_is_learned() {
    let mut r = Receiver::of(1);
    let mut again = 0;
    for _ in 0..10 {
        again += r.waits_ms(600).len();
        r.peer.ack += 1000;
        r.peer.send(&mut r.host, ACK, &[]);
        r.host.send(r.id, &[1; 1000]).unwrap();
        r.host.segments();
    }
    assert!((1..4).contains(&again), "{again} retransmissions of what was not lost");
}

/// Linux takes its window back when it has no memory (`ICSK_ACK_NOMEM`). What was on its way is sent again until the
/// window is open (`tcp_retransmit_timer`), even if the peer has taken a part of it.
#[test]
fn a_window_that_is_taken_back_is_asked_for_again() {
    for taken in [0, 1] {
        let mut r = Receiver::of(2);
        let window = std::mem::take(&mut r.peer.window);
        assert_eq!(r.has_all(taken), []);
        for seconds in [5, 10, 20] {
            let again = r.waits_ms(seconds * 1000);
            assert!(!again.is_empty() && again.iter().all(|segment| *segment == taken), "{taken} {again:?}");
            // The peer repeats its acknowledgement.
            r.peer.send(&mut r.host, ACK, &[]);
        }
        r.peer.window = window;
        r.has_all(taken);
        r.waits_ms(40_000);
        r.has_all(2);
        r.host.send(r.id, &[1; 1000]).unwrap();
        assert_eq!(r.sent(), [2], "it goes on");
    }
}

/// As above, but neither end has more to say. smoltcp is told of no window then, and would probe the closed one for
/// ever.
#[test]
fn a_window_that_is_taken_back_from_the_end_of_a_response_is_asked_for_again() {
    for (selectively, opens) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut r = Receiver::that(selectively, 2);
        r.peer.send(&mut r.host, ACK | FIN, &[]);
        r.host.close(r.id);
        assert_eq!(r.sent(), [2]);
        r.peer.window = 0;
        assert_eq!(r.has_all(1), []);
        if opens {
            r.peer.window = 5000;
            r.has_all(1);
        }
        for seconds in [1, 10, 20] {
            let again = r.waits_ms(seconds * 1000);
            assert!(again.contains(&1) && again.len() <= 3, "{selectively} {opens} {again:?}");
        }
        r.peer.ack = r.at(2) + 1;
        r.peer.send(&mut r.host, ACK, &[]);
        assert_eq!(r.host.stack.connections(), 0);
    }
}

/// As above, for an end alone that is lost while the peer takes what stands before it and has no room for more.
#[test]
fn an_end_that_is_lost_in_front_of_a_closed_window_is_sent_again() {
    for (selectively, opens) in [(true, true), (true, false), (false, true), (false, false)] {
        for peer_ends_behind in [None, Some(0), Some(1), Some(2)] {
            let mut r = Receiver::that(selectively, 2);
            let id = r.id;
            r.host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
            assert_eq!(r.sent(), [2]);
            r.peer.window = 0;
            for up_to in 0..3 {
                assert_eq!(r.has_all(up_to), []);
                if peer_ends_behind == Some(up_to) {
                    r.peer.send(&mut r.host, ACK | FIN, &[]);
                    assert_eq!(r.sent(), []);
                }
            }
            if opens {
                r.peer.window = 5000;
                r.has_all(2);
            }
            for seconds in [1, 10, 20] {
                let again = r.waits_ms(seconds * 1000);
                let once_in_a_while = again.contains(&2) && again.len() <= 3;
                assert!(once_in_a_while, "{selectively} {opens} {peer_ends_behind:?} {again:?}");
            }
            r.peer.ack = r.at(2) + 1;
            r.peer.send(&mut r.host, ACK, &[]);
            let state = if peer_ends_behind.is_none() { "FIN-WAIT-2" } else { "CLOSED" };
            assert_eq!(r.host.stack.tcp_state(id), Ok(state));
            assert_eq!(r.waits_ms(20_000), []);
        }
    }
}

/// A segment that comes again says only that an acknowledgement was lost. smoltcp does not believe the acknowledgement
/// in it either, so nobody would send again what is on its way.
#[test]
fn an_acknowledgement_in_what_has_come_before_ends_no_timer() {
    let mut r = Receiver::of(4);
    r.peer.send(&mut r.host, ACK | PSH, b"data");
    assert_eq!(r.has(0, (1, 4)), [0]);
    assert_eq!(r.has_all(4), []);
    r.host.send(r.id, &[1; 1100]).unwrap();
    assert_eq!(r.sent(), [4, 5]);
    let window = std::mem::take(&mut r.peer.window);
    assert_eq!(r.has_all(5), []);
    r.peer.window = window;
    assert_eq!(r.has_all(5), []);
    r.host.segments();
    r.peer.seq -= 4;
    r.peer.ack += 100;
    r.peer.send(&mut r.host, ACK | PSH, b"data");
    assert_eq!(r.waits_ms(1000).first(), Some(&5));
    // The data have come, which is believed when it is reported with the right number.
    r.peer.send(&mut r.host, ACK, &[]);
    assert_eq!(r.waits_ms(20_000), []);
    r.host.send(r.id, &[1; 1000]).unwrap();
    assert_eq!(r.sent(), [5], "it goes on");
}

/// One byte on its way looks like a probe of a closed window.
#[test]
fn a_byte_whose_window_is_taken_back_is_sent_again() {
    let mut r = Receiver::of(1);
    assert_eq!(r.has_all(1), []);
    r.host.send(r.id, &[1]).unwrap();
    assert_eq!(r.sent(), [1]);
    let window = std::mem::take(&mut r.peer.window);
    for seconds in [5, 10, 20] {
        assert_eq!(r.has_all(1), []);
        let again = r.waits_ms(seconds * 1000);
        assert!(!again.is_empty() && again.iter().all(|segment| *segment == 1), "{again:?}");
    }
    r.peer.window = window;
    r.has_all(1);
    r.waits_ms(40_000);
    r.peer.ack += 1;
    r.peer.send(&mut r.host, ACK, &[]);
    r.host.send(r.id, &[1; 1000]).unwrap();
    assert_eq!(r.sent(), [1], "it goes on");
}

/// The probe of a closed window has the last byte, and the end follows it. Neither is lost or waits for a timer when
/// there is room.
#[test]
fn the_last_byte_and_the_end_leave_as_soon_as_a_window_opens() {
    for selectively in [true, false] {
        for peer_ends in [false, true] {
            let mut r = Receiver::that(selectively, 2);
            let window = std::mem::take(&mut r.peer.window);
            assert_eq!(r.has_all(2), []);
            let id = r.id;
            r.host.send(id, &[1]).unwrap();
            assert_eq!(r.waits_ms(300), [2], "a probe");
            r.host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
            if peer_ends {
                r.peer.send(&mut r.host, ACK | FIN, &[]);
            }
            r.sent();
            let mut probes = 0;
            for _ in 0..325 {
                if r.waits_ms(100).contains(&2) {
                    probes += 1;
                    assert_eq!(r.has_all(2), [], "the window is closed");
                }
            }
            assert!((3..12).contains(&probes), "{probes} probes");
            assert_eq!(r.host.stack.tcp_info(id, r.host.now_ns).unwrap().retransmits, 0);
            r.peer.window = window;
            r.peer.send(&mut r.host, ACK, &[]);
            let sent = r.host.segments();
            assert_eq!(sent.len(), 1, "{selectively} {peer_ends}");
            assert_eq!((sent[0].payload.as_slice(), sent[0].flags & FIN), ([1].as_slice(), FIN));
            assert_eq!(r.waits_ms(100), [], "it is on its way");
            r.peer.ack = r.at(2) + 2;
            r.peer.send(&mut r.host, ACK, &[]);
            let state = if peer_ends { "CLOSED" } else { "FIN-WAIT-2" };
            assert_eq!(r.host.stack.tcp_state(id), Ok(state));
            assert_eq!(r.waits_ms(20_000), []);
        }
    }
}

/// If they left before the window closed, they look like such a probe.
#[test]
fn the_last_byte_and_the_end_are_sent_again_when_their_window_is_taken_back() {
    for selectively in [true, false] {
        let mut r = Receiver::that(selectively, 1);
        assert_eq!(r.has_all(1), []);
        let id = r.id;
        r.host.send(id, &[1]).unwrap();
        r.host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
        assert_eq!(r.sent(), [1, 1]);
        let window = std::mem::take(&mut r.peer.window);
        for seconds in [5, 10, 20] {
            assert_eq!(r.has_all(1), []);
            let again = r.waits_ms(seconds * 1000);
            assert!(again.contains(&1) && again.len() < 30, "{selectively} {again:?}");
        }
        r.peer.window = window;
        r.has_all(1);
        let again = r.waits_ms(40_000);
        assert!(again.contains(&1), "{selectively} {again:?}");
        r.peer.ack = r.at(1) + 2;
        r.peer.send(&mut r.host, ACK, &[]);
        assert_eq!(r.host.stack.tcp_state(id), Ok("FIN-WAIT-2"));
        assert_eq!(r.waits_ms(20_000), []);
    }
}

/// Nothing is lost, and what was overtaken is kept for a while. The end does not wait longer because of that.
#[test]
fn a_closed_connection_sends_its_last_data_and_its_end_at_once_though_something_was_overtaken() {
    for is_lost in [false, true] {
        let mut r = Receiver::of(if is_lost { 12 } else { 3 });
        r.peer.send(&mut r.host, ACK | FIN, &[]);
        let small_at = if is_lost {
            assert_eq!(r.has(0, (1, 6)), [0]);
            assert_eq!(r.has_all(11), []);
            12
        } else {
            assert_eq!(r.has(0, (1, 2)), [0; 0]);
            assert_eq!(r.has_all(2), [0; 0], "it was overtaken");
            3
        };
        r.host.send(r.id, &[2; 500]).unwrap();
        assert_eq!(r.sent(), [], "it waits for the one before");
        r.host.close(r.id);
        let sent = r.host.segments();
        assert_eq!(sent.len(), 1, "{is_lost}");
        assert_eq!((sent[0].seq, sent[0].payload.len(), sent[0].flags & FIN), (r.at(small_at), 500, FIN));
        r.peer.ack = r.at(small_at) + 501;
        r.peer.send(&mut r.host, ACK, &[]);
        assert_eq!(r.host.stack.connections(), 0);
    }
}

/// As above, for data that had no room in the buffer when they were written.
#[test]
fn the_end_leaves_with_what_had_no_room_though_something_was_overtaken() {
    let mut r = Receiver::of(8);
    r.peer.send(&mut r.host, ACK | FIN, &[]);
    assert_eq!(r.has(0, (1, 2)), [0; 0]);
    assert_eq!(r.host.send(r.id, &[2; 16_000]), Ok(16_000));
    r.host.close(r.id);
    r.host.segments();
    let mut ended_with = None;
    for up_to in [8, 16] {
        r.peer.ack = r.at(up_to);
        r.peer.send(&mut r.host, ACK, &[]);
        ended_with = ended_with.or(r.host.segments().into_iter().find(|segment| segment.flags & FIN != 0));
    }
    let end = ended_with.expect("an end");
    assert_eq!(end.seq + end.payload.len() as u32, r.at(24));
}
