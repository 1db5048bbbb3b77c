//! The information on a connection (TCP_INFO).

mod shard_harness;

use lull_net::shard::{Keepalive, SocketId, TcpInfo};
use shard_harness::*;

fn info(host: &Host, id: SocketId) -> TcpInfo {
    host.stack.tcp_info(id, host.now_ns).unwrap()
}

/// Sends a byte, which is acknowledged after this time.
fn round_trip(host: &mut Host, peer: &mut Peer, id: SocketId, ns: u64) {
    host.send(id, b"x").unwrap();
    assert_eq!(peer.hear(host), b"x");
    host.run_for(ns);
    peer.send(host, ACK, b"");
}

/// The rules are those of RFC 6298 section 2, in steps of 8 us for the variation.
#[test]
fn round_trips_are_smoothed_and_so_is_how_far_they_lie_apart() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    assert_eq!((info(&host, id).rtt_us, info(&host, id).rtt_var_us), (0, 0), "nothing is known yet");
    round_trip(&mut host, &mut peer, id, 40 * MS);
    assert_eq!((info(&host, id).rtt_us, info(&host, id).rtt_var_us), (40_000, 20_000));
    round_trip(&mut host, &mut peer, id, 80 * MS);
    assert_eq!((info(&host, id).rtt_us, info(&host, id).rtt_var_us), (45_000, 25_000));
    for _ in 0..100 {
        round_trip(&mut host, &mut peer, id, MS);
    }
    let told = info(&host, id);
    assert!((1_000..1_020).contains(&told.rtt_us) && (1..40).contains(&told.rtt_var_us), "{told:?}");
}

#[test]
fn segments_windows_and_what_is_under_way_are_told() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.window = 5_000;
    peer.send(&mut host, ACK, b"");
    host.send(id, &[7; 16_000]).unwrap();
    let told = info(&host, id);
    assert_eq!((told.snd_mss, told.advertised_mss, told.path_mtu), (1460, 1460, 1500));
    assert_eq!((told.in_flight, told.unsent, told.snd_window), (5_000, 11_000, 5_000));
    assert_eq!((told.congestion_window, told.receive_buffer, told.rcv_window), (Some(16_384), 16_384, 16_384));
    assert_eq!((told.sack, told.timestamps, told.rcv_scale, told.snd_scale), (false, false, 0, 0));
    assert_eq!(told.retransmits, 0);
    host.run_for(3 * SECOND);
    let told = info(&host, id);
    assert!(told.retransmits > 0 && told.congestion_window == Some(1460), "{told:?}");
    assert_eq!(told.heard_ns, 3 * SECOND);
}

/// As on Linux, a probe asks whether the peer is there, or has room, and repairs no loss.
#[test]
fn probes_are_no_retransmissions() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let keepalive = Keepalive { idle_ns: SECOND, interval_ns: SECOND, probes: 9 };
    host.call(|stack, io| stack.set_keepalive(id, Some(keepalive), io)).unwrap();
    for _ in 0..3 {
        host.run_for(SECOND + 500 * MS);
        let probes = host.segments();
        assert!(!probes.is_empty() && probes.iter().all(|probe| probe.seq == peer.ack - 1), "{probes:?}");
        peer.send(&mut host, ACK, b"");
    }
    assert_eq!(info(&host, id).retransmits, 0, "of a connection that is idle");

    let window = std::mem::take(&mut peer.window);
    peer.send(&mut host, ACK, b"");
    host.send(id, b"lost").unwrap();
    host.run_for(5 * SECOND);
    let probes = host.segments();
    assert!(probes.len() > 2 && probes.iter().all(|probe| probe.payload == b"l"), "{probes:?}");
    assert_eq!(info(&host, id).retransmits, 0, "of a closed window");

    peer.window = window;
    peer.send(&mut host, ACK, b"");
    host.run_for(SECOND);
    assert!(info(&host, id).retransmits > 0, "what is not acknowledged behind it is lost");
}
