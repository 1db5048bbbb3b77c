//! Data that are written while a batch of events is answered: which writes wait for one another, and what ends their
//! wait.

mod shard_harness;

use lull_net::Shutdown;
use lull_net::shard::{Batch, SocketId, StackConfig};
use shard_harness::*;

const BOUND_NS: u64 = 500_000;

/// A server whose connection has TCP_NODELAY, so that only the batch holds something back.
fn with_a_peer() -> (Host, SocketId, Peer, SocketId) {
    let (mut host, listener, peer, id) = Host::with_a_peer();
    host.call(|stack, io| stack.set_nodelay(id, true, io)).unwrap();
    (host, listener, peer, id)
}

/// Writes as a thread does that answers the only event of batch `batch`.
fn answer(host: &mut Host, batch: u8, id: SocketId, data: &[u8]) {
    answer_in(&mut Batch::new(batch, 1), host, id, data);
}

/// Writes as a thread does that answers an event of this batch.
fn answer_in(batch: &mut Batch, host: &mut Host, id: SocketId, data: &[u8]) {
    let written = host.call(|stack, io| {
        io.batch = *batch;
        let written = stack.tcp_send(id, data, io);
        *batch = io.batch;
        written
    });
    assert_eq!(written, Ok(data.len()));
}

/// The thread comes back to wait for more.
fn waits(host: &mut Host) {
    host.call(|stack, io| stack.let_go_of_all(io));
}

/// The payloads of the segments that left.
fn left(host: &mut Host, peer: &mut Peer) -> Vec<Vec<u8>> {
    let segments = host.segments();
    for segment in &segments {
        assert_eq!(segment.seq, peer.ack, "in order");
        peer.ack += segment.payload.len() as u32;
    }
    segments.into_iter().map(|segment| segment.payload).collect()
}

fn letters(segments: &[Vec<u8>]) -> Vec<&str> {
    segments.iter().map(|segment| std::str::from_utf8(segment).unwrap()).collect()
}

#[test]
fn answers_of_a_batch_leave_in_one_segment_once_there_were_several() {
    let (mut host, _, mut peer, id) = with_a_peer();
    answer(&mut host, 1, id, b"a");
    assert_eq!(letters(&left(&mut host, &mut peer)), ["a"], "nobody knows yet that there will be more");
    answer(&mut host, 1, id, b"b");
    answer(&mut host, 1, id, b"c");
    assert!(host.segments().is_empty() && host.stack.holds_back());
    waits(&mut host);
    assert_eq!(letters(&left(&mut host, &mut peer)), ["bc"]);
    for batch in 2..5 {
        peer.send(&mut host, ACK, b"more");
        for answers in [b"d", b"e", b"f"] {
            answer(&mut host, batch, id, answers);
        }
        assert!(host.segments().is_empty());
        waits(&mut host);
        assert_eq!(letters(&left(&mut host, &mut peer)), ["def"]);
    }
    assert_eq!(host.stack.counters().tcp_held_back, 2 + 3 * 3);
}

#[test]
fn one_answer_per_batch_never_waits_and_several_are_forgotten_after_a_batch_with_one() {
    let (mut host, _, mut peer, id) = with_a_peer();
    for batch in 1..300u16 {
        // The number of the batch wraps around.
        answer(&mut host, ((batch - 1) % 255 + 1) as u8, id, b"x");
        assert_eq!(letters(&left(&mut host, &mut peer)), ["x"]);
        peer.send(&mut host, ACK, b"");
    }
    assert_eq!(host.stack.counters().tcp_held_back, 0);
    answer(&mut host, 50, id, b"a");
    answer(&mut host, 50, id, b"b");
    waits(&mut host);
    answer(&mut host, 51, id, b"c");
    waits(&mut host);
    assert_eq!(letters(&left(&mut host, &mut peer)), ["a", "b", "c"]);
    answer(&mut host, 52, id, b"d");
    assert_eq!(letters(&left(&mut host, &mut peer)), ["d"], "one answer in the batch before");
}

/// A server with this many connections, whose doorbell is expensive or not.
fn with_peers(share_doorbells: bool, peers: u16) -> (Host, Vec<SocketId>) {
    let mut host = Host::server_with(StackConfig { share_doorbells, ..server_config() });
    host.run_for(SECOND);
    let listener = host.listen(80);
    let establish = |nth| {
        let id = host.establish(listener, &mut Peer::new(4000 + nth));
        host.call(|stack, io| stack.set_nodelay(id, true, io)).unwrap();
        id
    };
    let ids = (0..peers).map(establish).collect();
    (host, ids)
}

/// A thread answers an event of this batch, so long after the answer before it. Returns whether the doorbell may wait.
fn waits_for_the_next(host: &mut Host, batch: &mut Batch, id: SocketId, since_ns: u64) -> bool {
    host.now_ns += since_ns;
    answer_in(batch, host, id, b"a");
    assert_eq!(host.segments().len(), 1, "the frame is on the ring");
    assert_eq!(host.stack.holds_back(), host.stack.holds_doorbell_back());
    host.stack.holds_doorbell_back()
}

/// A thread gives one answer to each of `ids` in a batch of so many events, and takes so long for each.
fn wait_for_the_next(host: &mut Host, ids: &[SocketId], events: usize, each_ns: u64) -> Vec<bool> {
    let mut batch = Batch::new(1, events);
    ids.iter().map(|&id| waits_for_the_next(host, &mut batch, id, each_ns)).collect()
}

#[test]
fn the_doorbell_of_a_quick_answer_waits_for_the_next_where_it_is_dear() {
    let (mut host, ids) = with_peers(true, 4);
    // At the first answer nobody knows yet that the program is quick.
    assert_eq!(wait_for_the_next(&mut host, &ids, 8, 3_000), [false, true, true, true]);
    assert_eq!(host.stack.held_back_until_ns(), host.now_ns - 2 * 3_000 + BOUND_NS);
    waits(&mut host);
    assert!(!host.stack.holds_back());
    host.now_ns += 3_000;
    host.send(ids[0], b"b").unwrap();
    assert!(!host.stack.holds_back(), "outside of any batch");
}

#[test]
fn the_doorbell_waits_no_longer_than_its_time_and_not_once_it_has_rung() {
    let (mut host, ids) = with_peers(true, 4);
    assert_eq!(wait_for_the_next(&mut host, &ids, 8, 3_000), [false, true, true, true]);
    host.run_for(BOUND_NS - 2 * 3_000 - 1);
    assert!(host.stack.holds_doorbell_back());
    host.run_for(1);
    assert!(!host.stack.holds_back());
    let (mut host, ids) = with_peers(true, 4);
    assert_eq!(wait_for_the_next(&mut host, &ids, 8, 3_000), [false, true, true, true]);
    host.stack.doorbell_rang();
    assert!(!host.stack.holds_back() && host.stack.held_back_until_ns() == u64::MAX);
}

#[test]
fn answers_of_a_slow_program_do_not_wait_for_one_another() {
    let (mut host, ids) = with_peers(true, 4);
    assert_eq!(wait_for_the_next(&mut host, &ids, 8, 20_000), [false, true, true, true]);
    let (mut host, ids) = with_peers(true, 4);
    assert_eq!(wait_for_the_next(&mut host, &ids, 8, 20_001), [false; 4]);
}

#[test]
fn a_slow_answer_ends_the_wait_of_the_quick_ones_before_it() {
    let (mut host, ids) = with_peers(true, 5);
    let mut batch = Batch::new(1, 8);
    let gaps = ids.iter().zip([3_000, 3_000, 300_000, 100_000, 3_000]);
    let waits: Vec<bool> =
        gaps.map(|(&id, since_ns)| waits_for_the_next(&mut host, &mut batch, id, since_ns)).collect();
    assert_eq!(waits, [false, true, false, false, true]);
}

#[test]
fn a_large_answer_ends_the_wait_of_the_small_ones_before_it() {
    let (mut host, ids) = with_peers(true, 3);
    let mut batch = Batch::new(1, 8);
    let waits: Vec<bool> = ids[..2].iter().map(|&id| waits_for_the_next(&mut host, &mut batch, id, 3_000)).collect();
    assert_eq!(waits, [false, true]);
    answer_in(&mut batch, &mut host, ids[2], &[b'l'; 4000]);
    assert!(!host.stack.holds_doorbell_back());
}

/// Each of two threads takes 30 us for an answer.
#[test]
fn two_slow_threads_are_not_taken_for_a_quick_one() {
    let (mut host, ids) = with_peers(true, 6);
    let mut batches = [Batch::new(1, 8), Batch::new(2, 8)];
    for (nth, &id) in ids.iter().enumerate() {
        assert!(!waits_for_the_next(&mut host, &mut batches[nth % 2], id, 15_000), "answer {nth}");
    }
}

#[test]
fn answers_in_a_batch_of_few_events_do_not_wait_for_one_another() {
    let (mut host, ids) = with_peers(true, 4);
    assert_eq!(wait_for_the_next(&mut host, &ids, 7, 3_000), [false; 4]);
}

#[test]
fn answers_to_several_peers_do_not_wait_for_one_another_where_a_doorbell_is_cheap() {
    let (mut host, ids) = with_peers(false, 4);
    assert_eq!(wait_for_the_next(&mut host, &ids, 8, 3_000), [false; 4]);
}

#[test]
fn a_write_outside_of_any_batch_and_a_stack_that_is_told_not_to_hold_nothing_back() {
    let (mut host, _, mut peer, id) = with_a_peer();
    for letter in ["a", "b", "c"] {
        host.send(id, letter.as_bytes()).unwrap();
        assert_eq!(letters(&left(&mut host, &mut peer)), [letter]);
    }
    let mut host = Host::server_with(StackConfig { coalesce_ns: 0, ..server_config() });
    let (mut peer, listener) = (Peer::new(4000), host.listen(80));
    let id = host.establish(listener, &mut peer);
    host.call(|stack, io| stack.set_nodelay(id, true, io)).unwrap();
    for letter in ["a", "b", "c"] {
        answer(&mut host, 1, id, letter.as_bytes());
        assert_eq!(letters(&left(&mut host, &mut peer)), [letter]);
    }
}

#[test]
fn full_segments_leave_at_once_and_their_rest_waits() {
    let (mut host, _, mut peer, id) = with_a_peer();
    answer(&mut host, 1, id, b"first");
    assert_eq!(left(&mut host, &mut peer).len(), 1);
    for _ in 0..3 {
        answer(&mut host, 1, id, &[b'l'; 1000]);
    }
    let full: Vec<usize> = left(&mut host, &mut peer).iter().map(Vec::len).collect();
    assert_eq!(full, [1460, 1460]);
    waits(&mut host);
    assert_eq!(left(&mut host, &mut peer), [[b'l'; 80]]);
}

/// Writes two answers, of which the second waits.
fn with_one_that_waits() -> (Host, Peer, SocketId) {
    let (mut host, _, mut peer, id) = with_a_peer();
    answer(&mut host, 1, id, b"a");
    answer(&mut host, 1, id, b"b");
    assert_eq!(letters(&left(&mut host, &mut peer)), ["a"]);
    (host, peer, id)
}

#[test]
fn what_waits_leaves_when_its_time_is_up() {
    let (mut host, mut peer, _) = with_one_that_waits();
    let until_ns = host.stack.held_back_until_ns();
    assert_eq!((until_ns - host.now_ns, host.stack.next_deadline_ns()), (BOUND_NS, Some(until_ns)));
    host.run_for(BOUND_NS - 1);
    assert!(host.segments().is_empty());
    host.run_for(1);
    assert_eq!(letters(&left(&mut host, &mut peer)), ["b"]);
    assert!(!host.stack.holds_back() && host.stack.held_back_until_ns() == u64::MAX);
}

#[test]
fn what_waits_leaves_before_a_fin_and_before_a_reset() {
    type End = fn(&mut Host, &mut Peer, SocketId);
    let ends: [(u8, End); 4] = [
        (FIN, |host, _, id| host.close(id)),
        (FIN, |host, _, id| host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap()),
        // There are unread data, so `tcp_close` resets.
        (RST, |host, peer, id| {
            peer.send(host, ACK | PSH, b"unread");
            host.close(id);
        }),
        (RST, |host, _, id| {
            host.call(|stack, _| stack.set_reset_on_close(id, true)).unwrap();
            host.close(id);
        }),
    ];
    for (flag, end) in ends {
        let (mut host, mut peer, id) = with_one_that_waits();
        end(&mut host, &mut peer, id);
        let segments = host.segments();
        assert_eq!(segments[0].payload, b"b", "{segments:?}");
        assert_ne!(segments[segments.len() - 1].flags & flag, 0, "{segments:?}");
        assert_eq!(segments.len(), if flag == FIN { 1 } else { 2 }, "a FIN goes with it: {segments:?}");
    }
}

/// Answers the only request of a connection in a batch of its own, and closes the connection if the program does so.
fn answers_once(host: &mut Host, batch: u8, id: SocketId, closes: bool) {
    answer(host, batch, id, b"only");
    if closes {
        host.call(|stack, io| {
            io.batch = Batch::new(batch, 1);
            stack.close(id, io)
        })
        .unwrap();
    }
}

/// Returns how many segments leave before the thread waits, and how many leave then.
fn segments_of_an_only_answer(host: &mut Host, listener: SocketId, port: u16, closes: bool) -> (usize, usize) {
    let mut peer = Peer::new(port);
    let id = host.establish(listener, &mut peer);
    answers_once(host, (port % 200) as u8 + 1, id, closes);
    let meanwhile = host.segments().len();
    waits(host);
    (meanwhile, host.segments().len())
}

/// A server that closes after each answer (`Connection: close`) sends one segment per connection for both.
#[test]
fn an_only_answer_waits_for_the_fin_where_the_program_has_lately_closed_behind_it() {
    let mut host = Host::server();
    let listener = host.listen(80);
    for port in [4000, 4001] {
        assert_eq!(segments_of_an_only_answer(&mut host, listener, port, true), (2, 0), "nobody knows yet");
    }
    for port in [4002, 4003] {
        assert_eq!(segments_of_an_only_answer(&mut host, listener, port, true), (1, 0), "the answer with the FIN");
    }
    assert_eq!(segments_of_an_only_answer(&mut host, listener, 4004, false), (0, 1), "it leaves when the thread waits");
    assert_eq!(segments_of_an_only_answer(&mut host, listener, 4005, false), (1, 0), "and the next at once");
}

/// A connection that is written to in a second batch is not one that closes with its only answer.
#[test]
fn an_only_answer_leaves_at_once_where_connections_are_kept() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut kept = Peer::new(3000);
    let id = host.establish(listener, &mut kept);
    answer(&mut host, 250, id, b"one");
    host.segments();
    for port in [4000, 4001] {
        segments_of_an_only_answer(&mut host, listener, port, true);
    }
    answer(&mut host, 251, id, b"another");
    host.segments();
    assert_eq!(segments_of_an_only_answer(&mut host, listener, 4002, true), (2, 0));
}

/// Reads as a thread does that answers batch `batch`.
fn reads(host: &mut Host, batch: u8, id: SocketId) {
    let count = host.call(|stack, io| {
        io.batch = Batch::new(batch, 1);
        stack.tcp_recv(id, &mut [0; 100], io)
    });
    assert_eq!(count, Ok(7));
}

/// A connection whose first request has come, since which nothing has left.
fn with_a_first_request() -> (Host, Peer, SocketId) {
    let (mut host, _, mut peer, id) = with_a_peer();
    peer.send(&mut host, ACK | PSH, b"request");
    assert!(host.segments().is_empty());
    (host, peer, id)
}

#[test]
fn a_first_request_is_acknowledged_with_its_answer() {
    let (mut host, peer, id) = with_a_first_request();
    reads(&mut host, 1, id);
    assert!(host.segments().is_empty());
    answer(&mut host, 1, id, b"answer");
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].ack, &segments[0].payload[..]), (1, peer.seq, &b"answer"[..]));
    waits(&mut host);
    host.run_for(10 * MS);
    assert!(host.segments().is_empty());
}

/// A header is sent with MSG_MORE, and the rest follows, as from a file by `sendfile`.
#[test]
fn a_first_answer_in_parts_leaves_at_once_with_the_acknowledgement() {
    let (mut host, peer, id) = with_a_first_request();
    reads(&mut host, 1, id);
    let written = host.call(|stack, io| {
        io.batch = Batch::new(1, 1);
        stack.tcp_send_more(id, &[std::io::IoSlice::new(b"head")], io)
    });
    assert_eq!(written, Ok(4));
    assert!(host.segments().is_empty());
    answer(&mut host, 1, id, b"tail");
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].ack, &segments[0].payload[..]), (1, peer.seq, &b"headtail"[..]));
}

#[test]
fn a_first_request_without_an_answer_is_acknowledged_before_the_thread_waits() {
    let (mut host, peer, id) = with_a_first_request();
    reads(&mut host, 1, id);
    assert!(host.segments().is_empty() && host.stack.holds_back());
    waits(&mut host);
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].ack, segments[0].payload.len()), (1, peer.seq, 0));
    assert!(!host.stack.holds_back());
    host.run_for(SECOND);
    assert!(host.segments().is_empty(), "once is enough");
}

#[test]
fn a_first_request_that_nobody_reads_is_acknowledged_when_its_time_is_up() {
    let (mut host, peer, _) = with_a_first_request();
    host.run_for(4 * MS);
    assert!(host.segments().is_empty(), "a batch of many takes milliseconds");
    host.run_for(3 * MS);
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].ack, segments[0].payload.len()), (1, peer.seq, 0));
}

#[test]
fn a_first_request_that_is_not_answered_for_long_is_acknowledged_though_the_thread_does_not_wait() {
    let (mut host, peer, id) = with_a_first_request();
    reads(&mut host, 1, id);
    host.run_for(BOUND_NS);
    let segments = host.segments();
    assert_eq!((segments.len(), segments[0].ack, segments[0].payload.len()), (1, peer.seq, 0));
}

#[test]
fn a_first_request_is_acknowledged_as_it_comes_where_nothing_is_held_back() {
    let mut host = Host::server_with(StackConfig { coalesce_ns: 0, ..server_config() });
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    host.establish(listener, &mut peer);
    peer.send(&mut host, ACK | PSH, b"request");
    assert_eq!(host.segments().len(), 1);
}

/// Every segment of a connection with timestamps has one (RFC 7323 section 3.2), also those that lull has smoltcp send.
#[test]
fn an_acknowledgement_before_the_thread_waits_has_a_timestamp() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let stamp = |value: u8, echo: &[u8]| [&[1, 1, 8, 10, 0, 0, 0, value][..], echo].concat();
    host.receive(Tcp { options: stamp(77, &[0; 4]), ..peer.syn() }.frame());
    let reply = host.segments().remove(0);
    let echo = reply.options[reply.options.len() - 8..][..4].to_vec();
    (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
    host.receive(Tcp { options: stamp(78, &echo), ..peer.segment(ACK, &[]) }.frame());
    let id = host.accept(listener);
    host.receive(Tcp { options: stamp(79, &echo), ..peer.segment(ACK | PSH, b"request") }.frame());
    reads(&mut host, 1, id);
    waits(&mut host);
    let segments = host.segments();
    assert!(segments[0].options.windows(4).any(|word| word == [0, 0, 0, 79]), "{segments:?}");
}

#[test]
fn what_waits_leaves_when_nodelay_is_set_and_with_a_write_from_outside_of_the_batch() {
    let (mut host, mut peer, id) = with_one_that_waits();
    host.call(|stack, io| stack.set_nodelay(id, true, io)).unwrap();
    assert_eq!(letters(&left(&mut host, &mut peer)), ["b"]);
    let (mut host, mut peer, id) = with_one_that_waits();
    host.send(id, b"c").unwrap();
    assert_eq!(letters(&left(&mut host, &mut peer)), ["bc"]);
}

#[test]
fn the_oldest_leave_when_many_connections_wait() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peers: Vec<Peer> = (0..20).map(|nth| Peer::new(4000 + nth)).collect();
    let ids: Vec<SocketId> = peers.iter_mut().map(|peer| host.establish(listener, peer)).collect();
    for &id in &ids {
        host.call(|stack, io| stack.set_nodelay(id, true, io)).unwrap();
        answer(&mut host, 1, id, b"a");
    }
    assert_eq!(host.segments().len(), 20);
    let mut gone = Vec::new();
    for &id in &ids {
        answer(&mut host, 1, id, b"b");
        gone.push(host.segments().len());
    }
    assert_eq!(gone, [0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
    waits(&mut host);
    assert_eq!(host.segments().len(), 4);
}

#[test]
fn a_connection_that_is_gone_and_one_in_its_place_are_left_alone() {
    let (mut host, listener, mut peer, id) = with_a_peer();
    answer(&mut host, 1, id, b"a");
    answer(&mut host, 1, id, b"b");
    peer.hear(&mut host);
    peer.send(&mut host, RST | ACK, b"");
    host.close(id);
    let mut next = Peer::new(5000);
    let other = host.establish(listener, &mut next);
    host.call(|stack, io| stack.set_nodelay(other, true, io)).unwrap();
    answer(&mut host, 2, other, b"c");
    assert_eq!(letters(&left(&mut host, &mut next)), ["c"]);
    waits(&mut host);
    assert!(host.segments().is_empty());
}
