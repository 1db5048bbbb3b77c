//! TCP_CORK, MSG_MORE and SO_RCVLOWAT: what is kept back, what ends that, and from when on a connection is readable.

mod shard_harness;

use std::io::IoSlice;

use lull_net::Shutdown;
use lull_net::shard::{Ready, SocketId};
use shard_harness::*;

/// The ceiling of `tcp_check_probe_timer`, and a tick of the timers.
const OVER_NS: u64 = 220_000_000;

fn corked() -> (Host, SocketId, Peer) {
    let (mut host, _, peer, id) = Host::with_a_peer();
    host.call(|stack, io| stack.set_cork(id, true, io)).unwrap();
    (host, id, peer)
}

fn more(host: &mut Host, id: SocketId, data: &[u8]) {
    assert_eq!(host.call(|stack, io| stack.tcp_send_more(id, &[IoSlice::new(data)], io)), Ok(data.len()));
}

/// The payloads of the segments that left. All of them are acknowledged.
fn left(host: &mut Host, peer: &mut Peer) -> Vec<Vec<u8>> {
    let segments = host.segments();
    for segment in &segments {
        assert_eq!(segment.seq, peer.ack, "in order");
        peer.ack += segment.payload.len() as u32;
    }
    if !segments.is_empty() {
        peer.send(host, ACK, b"");
    }
    segments.into_iter().map(|segment| segment.payload).collect()
}

#[test]
fn what_fills_no_segment_waits_for_the_cork_to_be_taken_off() {
    let (mut host, id, mut peer) = corked();
    host.send(id, b"head").unwrap();
    assert!(host.segments().is_empty());
    assert_eq!(host.stack.tcp_unacknowledged(id), Ok(4));
    // Nothing that comes from the peer sends it.
    peer.send(&mut host, ACK, b"more");
    peer.send(&mut host, ACK, b"");
    assert!(host.segments().iter().all(|segment| segment.payload.is_empty()));
    host.send(id, b"body").unwrap();
    host.call(|stack, io| stack.set_cork(id, false, io)).unwrap();
    assert_eq!(left(&mut host, &mut peer), [b"headbody"]);
    host.send(id, b"free").unwrap();
    assert_eq!(left(&mut host, &mut peer), [b"free"]);
}

/// An acknowledgement that leaves with it has not waited in vain, so that the next one waits as well.
#[test]
fn what_a_cork_lets_go_of_is_an_answer() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.is_answered(&mut host, id);
    host.call(|stack, io| stack.set_cork(id, true, io)).unwrap();
    host.send(id, b"head").unwrap();
    host.run_for(180 * MS);
    peer.send(&mut host, ACK | PSH, b"question");
    assert!(host.segments().is_empty(), "the acknowledgement waits");
    host.run_for(OVER_NS - 180 * MS);
    assert_eq!(left(&mut host, &mut peer), [b"head"]);
    peer.send(&mut host, ACK | PSH, b"question");
    host.run_for(20 * MS);
    assert!(host.segments().is_empty(), "it waits again");
}

#[test]
fn full_segments_leave_and_their_rest_waits() {
    let (mut host, id, mut peer) = corked();
    let data: Vec<u8> = (0..4000_u32).map(|nth| nth as u8).collect();
    host.send(id, &data).unwrap();
    let mut sent = left(&mut host, &mut peer);
    assert!(sent.len() == 2 && sent[0].len() == sent[1].len() && sent[0].len() > 1400, "{:?}", sent.len());
    assert!(host.segments().is_empty());
    host.send(id, &data[..10]).unwrap();
    assert!(host.segments().is_empty());
    host.call(|stack, io| stack.set_cork(id, false, io)).unwrap();
    sent.extend(left(&mut host, &mut peer));
    assert_eq!(sent.concat(), [&data[..], &data[..10]].concat());
}

#[test]
fn a_write_without_msg_more_takes_along_what_waits() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    more(&mut host, id, b"a");
    more(&mut host, id, b"b");
    assert!(host.segments().is_empty());
    host.send(id, b"c").unwrap();
    assert_eq!(left(&mut host, &mut peer), [b"abc"]);
    more(&mut host, id, b"");
    host.send(id, b"d").unwrap();
    assert_eq!(left(&mut host, &mut peer), [b"d"]);
}

#[test]
fn nothing_waits_for_longer_than_the_ceiling_of_a_cork() {
    let (mut host, id, mut peer) = corked();
    for word in [b"one", b"two"] {
        host.send(id, word).unwrap();
        assert!(host.segments().is_empty());
        host.run_for(OVER_NS);
        assert_eq!(left(&mut host, &mut peer), [word], "and the cork is still on");
    }
}

#[test]
fn nodelay_shutdown_and_close_push() {
    let (mut host, id, mut peer) = corked();
    host.send(id, b"push").unwrap();
    host.call(|stack, io| stack.set_nodelay(id, true, io)).unwrap();
    assert_eq!(left(&mut host, &mut peer), [b"push"]);
    host.send(id, b"kept").unwrap();
    assert!(host.segments().is_empty(), "TCP_NODELAY is weaker than TCP_CORK");
    host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
    let last = host.segments();
    assert_eq!(last[0].payload, b"kept");
    assert_ne!(last.last().unwrap().flags & FIN, 0);
    let (mut host, id, _peer) = corked();
    host.send(id, b"bye").unwrap();
    host.close(id);
    let last = host.segments();
    assert_eq!(last[0].payload, b"bye");
    assert_ne!(last.last().unwrap().flags & FIN, 0);
}

#[test]
fn a_full_buffer_is_not_kept() {
    let (mut host, id, mut peer) = corked();
    let data = vec![7; 1 << 20];
    let taken = host.send(id, &data).unwrap();
    let mut sent = 0;
    while sent < taken {
        let segments = left(&mut host, &mut peer);
        assert!(!segments.is_empty(), "{sent} of {taken} bytes have left");
        sent += segments.iter().map(Vec::len).sum::<usize>();
    }
}

#[test]
fn a_connection_is_readable_from_its_low_water_mark_on() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let is_readable = |host: &Host| host.ready(id).contains(Ready::READABLE);
    host.call(|stack, io| stack.set_low_water(id, 8, io)).unwrap();
    peer.send(&mut host, ACK, b"1234");
    assert!(!is_readable(&host));
    peer.send(&mut host, ACK, b"5678");
    assert!(is_readable(&host));
    assert_eq!(host.recv(id).unwrap(), b"12345678");
    peer.send(&mut host, ACK, b"12345");
    assert!(!is_readable(&host));
    assert_eq!(host.recv(id).unwrap(), b"12345", "who asks gets what is there");
    peer.send(&mut host, ACK, b"123");
    host.call(|stack, io| stack.set_low_water(id, 2, io)).unwrap();
    assert!(is_readable(&host), "what is there has become enough");
    host.call(|stack, io| stack.set_low_water(id, 100, io)).unwrap();
    assert!(!is_readable(&host));
    peer.send(&mut host, ACK | FIN, b"");
    assert!(is_readable(&host), "no more will come");
}
