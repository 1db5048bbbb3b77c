//! Path MTU discovery (RFC 1191, RFC 8201): segments that a router cannot pass become as small as it demands.

mod shard_harness;

use lull_net::shard::SocketId;
use lull_nic::Frame;
use shard_harness::*;

const MINUTE: u64 = 60 * SECOND;

/// A router's report about a frame that it could not pass.
fn too_big(about: &Frame, mtu: u16) -> Frame {
    let quoted = &about.data()[14..];
    if quoted[0] >> 4 == 4 {
        let mut icmp = [&[3, 4, 0, 0, 0, 0], &mtu.to_be_bytes()[..], &quoted[..28]].concat();
        let sum = checksum(&[&icmp]).to_be_bytes();
        icmp[2..4].copy_from_slice(&sum);
        return ip_packet(ip("10.0.0.254"), ip(SERVER), 1, 0, &[], &icmp);
    }
    let router = ip("2001:db8::fe");
    let mut icmp = [&[2, 0, 0, 0, 0, 0], &mtu.to_be_bytes()[..], &quoted[..60]].concat();
    let sum = checksum(&[&pseudo(router, ip(SERVER6), 58, icmp.len()), &icmp]).to_be_bytes();
    icmp[2..4].copy_from_slice(&sum);
    ip_packet(router, ip(SERVER6), 58, 0, &[], &icmp)
}

fn server(peer: &mut Peer) -> (Host, SocketId, SocketId) {
    let mut host = Host::server();
    let listener = host.stack.tcp_listen(at("::", 80), Default::default()).unwrap();
    let id = host.establish(listener, peer);
    (host, listener, id)
}

/// Hears and acknowledges until `bytes` have come. Returns the length of the largest segment.
fn hear_all(peer: &mut Peer, host: &mut Host, bytes: usize) -> usize {
    let (mut heard, mut largest) = (0, 0);
    while heard < bytes {
        let segments = host.segments();
        assert!(!segments.is_empty(), "{heard} of {bytes} bytes, and nothing more without a timeout");
        for segment in segments {
            assert!(segment.payload.iter().all(|&byte| byte == 9));
            largest = largest.max(segment.payload.len());
            if segment.seq == peer.ack {
                peer.ack += segment.payload.len() as u32;
                heard += segment.payload.len();
            }
        }
        peer.send(host, ACK, &[]);
    }
    largest
}

#[test]
fn segments_shrink_to_the_path_and_are_sent_again_at_once() {
    for (mut peer, mtu, segment) in [
        (Peer::new(4000), 600, 560),
        // Linux's `min_pmtu` is for a router that reports less, or nothing, as old ones do.
        (Peer::new(4000), 68, 512),
        (Peer::new(4000), 0, 512),
        (Peer::v6(4000), 1280, 1220),
        (Peer::v6(4000), 1400, 1340),
    ] {
        let (mut host, _, id) = server(&mut peer);
        host.send(id, &[9; 6000]).unwrap();
        let lost = host.sent();
        assert!(lost.iter().any(|frame| frame.len() > usize::from(mtu) + 14));
        host.receive(too_big(&lost[0], mtu));
        assert_eq!(hear_all(&mut peer, &mut host, 6000), segment, "MTU {mtu}");
        let counters = host.stack.counters();
        assert_eq!((counters.path_mtu_reduced, counters.icmp_errors_taken), (1, 1));
    }
}

#[test]
fn a_report_that_cannot_be_genuine_changes_nothing() {
    let mut peer = Peer::new(4000);
    let (mut host, _, id) = server(&mut peer);
    host.send(id, &[9; 1460]).unwrap();
    let old = host.sent().remove(0);
    peer.ack += 1460;
    peer.send(&mut host, ACK, &[]);
    host.send(id, &[9; 6000]).unwrap();
    let sent = host.sent();
    // These reports are about something that was acknowledged, about another port, and about more than the MTU.
    host.receive(too_big(&old, 600));
    let mut other = sent[0].clone();
    other.data_mut()[36] ^= 1;
    host.receive(too_big(&other, 600));
    host.receive(too_big(&sent[0], 1500));
    host.receive(too_big(&sent[0], 9000));
    assert!(host.segments().is_empty());
    let counters = host.stack.counters();
    assert_eq!((counters.path_mtu_reduced, counters.out_of_window_icmps), (0, 1));
    // No path of IPv6 is narrower than 1280 bytes.
    let mut peer = Peer::v6(4000);
    let (mut host, _, id) = server(&mut peer);
    host.send(id, &[9; 6000]).unwrap();
    let sent = host.sent();
    host.receive(too_big(&sent[0], 1279));
    assert!(host.segments().is_empty());
    assert_eq!(host.stack.counters().path_mtu_reduced, 0);
}

#[test]
fn the_path_is_remembered_for_the_destination_and_for_ten_minutes() {
    let mut peer = Peer::new(4000);
    let (mut host, listener, id) = server(&mut peer);
    host.send(id, &[9; 1460]).unwrap();
    let lost = host.sent();
    host.receive(too_big(&lost[0], 1000));
    assert_eq!(hear_all(&mut peer, &mut host, 1460), 960);
    let mut second = Peer::new(4001);
    let id2 = host.establish(listener, &mut second);
    let mut six = Peer::v6(4000);
    let id6 = host.establish(listener, &mut six);
    host.send(id2, &[9; 5000]).unwrap();
    assert_eq!(hear_all(&mut second, &mut host, 5000), 960, "not learned again");
    host.send(id6, &[9; 5000]).unwrap();
    assert_eq!(hear_all(&mut six, &mut host, 5000), 1440, "another destination");
    host.run_for(10 * MINUTE);
    for (id, peer) in [(id, &mut peer), (id2, &mut second)] {
        host.send(id, &[9; 5000]).unwrap();
        assert_eq!(hear_all(peer, &mut host, 5000), 1460, "larger segments are tried again");
    }
}

#[test]
fn segments_follow_the_mtu_of_the_device_and_those_that_it_drops_are_sent_again_at_once() {
    for (mut peer, segment) in [(Peer::new(4000), 1360), (Peer::v6(4000), 1340)] {
        let (mut host, listener, id) = server(&mut peer);
        host.send(id, &[9; 6000]).unwrap();
        assert!(host.sent().iter().any(|frame| frame.len() > 1400 + 14), "the device drops it");
        host.call(|stack, io| stack.set_mtu(1400, io));
        assert_eq!(hear_all(&mut peer, &mut host, 6000), segment);
        // Nothing is on its way now.
        host.send(id, &[9; 6000]).unwrap();
        assert_eq!(hear_all(&mut peer, &mut host, 6000), segment);
        let mut second = Peer::new(4001);
        let second_id = host.establish(listener, &mut second);
        host.send(second_id, &[9; 6000]).unwrap();
        assert_eq!(hear_all(&mut second, &mut host, 6000), 1360, "a new connection");
        host.call(|stack, io| stack.set_mtu(1500, io));
        let mut third = Peer::new(4002);
        let third_id = host.establish(listener, &mut third);
        for (id, peer, segment) in [(id, &mut peer, segment + 100), (third_id, &mut third, 1460)] {
            host.send(id, &[9; 6000]).unwrap();
            assert_eq!(hear_all(peer, &mut host, 6000), segment, "it was raised again");
        }
        assert_eq!(host.stack.counters().path_mtu_reduced, 0, "no router said anything");
    }
}

#[test]
fn a_path_that_is_narrower_than_a_device_that_shrinks_stays_so_and_one_that_was_wider_does_not_count() {
    for (path, lowered, segment) in [(1300, 1400, 1260), (1450, 1400, 1360), (1400, 1400, 1360)] {
        let mut peer = Peer::new(4000);
        let (mut host, listener, id) = server(&mut peer);
        host.send(id, &[9; 1460]).unwrap();
        let lost = host.sent();
        host.receive(too_big(&lost[0], path));
        hear_all(&mut peer, &mut host, 1460);
        host.call(|stack, io| stack.set_mtu(lowered, io));
        let mut second = Peer::new(4001);
        let second_id = host.establish(listener, &mut second);
        for (id, peer) in [(id, &mut peer), (second_id, &mut second)] {
            host.send(id, &[9; 6000]).unwrap();
            assert_eq!(hear_all(peer, &mut host, 6000), segment, "path {path}");
        }
    }
}

#[test]
fn a_single_segment_that_a_device_drops_for_its_timestamp_alone_leaves_again_at_once() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (_, id) = net.establish(listener, at(SERVER, 80));
    // With a timestamp this is a packet of 1,408 bytes, and without it the packet would have 1,396.
    net.server.send(id, &[9; 1356]).unwrap();
    let sent = net.server.segments();
    assert_eq!(
        sent.iter().map(|segment| (segment.options.len(), segment.payload.len())).collect::<Vec<_>>(),
        [(12, 1356)]
    );
    net.server.call(|stack, io| stack.set_mtu(1400, io));
    let again: usize = net.server.segments().iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(again, 1356);
}
