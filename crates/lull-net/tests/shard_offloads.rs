//! Segments above the MTU, which the device cuts, between two stacks or with a client that the test drives by hand.

mod shard_harness;

use lull_net::shard::{NetError, Stack, StackConfig};
use lull_nic::{Checksum, Frame, Segmentation};
use shard_harness::*;

/// The size of the Ethernet, IPv4 and TCP headers without options.
const HEADERS: usize = 54;

fn offloading(mut config: StackConfig) -> StackConfig {
    config.tx_checksum_offload = true;
    config.tx_segmentation_offload = true;
    config
}

/// Moves `total` bytes from the server to the client, and checks them. Returns how many frames brought them.
fn download(net: &mut Net, to: &str, total: usize) -> u64 {
    let listener = net.server.stack.tcp_listen(at("::", 80), Default::default()).unwrap();
    let (client, server) = net.establish(listener, at(to, 80));
    let pattern = |at: usize| (at * 7 + at / 251) as u8;
    let (mut sent, mut got, before) = (0, 0, net.to_client);
    let limit = net.now_ns + 4000 * SECOND;
    while got < total {
        let chunk: Vec<u8> = (sent..total.min(sent + 60_000)).map(pattern).collect();
        sent += net.server.send(server, &chunk).unwrap_or(0);
        assert!(net.step(limit), "stuck at {sent} sent, {got} got");
        if let Ok(data) = net.client.recv(client) {
            assert!(data.iter().enumerate().all(|(i, &byte)| byte == pattern(got + i)));
            got += data.len();
        }
    }
    assert_eq!(net.server.refused() + net.client.refused(), 0);
    net.to_client - before
}

#[test]
fn large_segments_pass_whole() {
    const TOTAL: usize = 1 << 20;
    let plain = download(&mut Net::new(), SERVER, TOTAL);
    assert!(plain >= TOTAL as u64 / 1460, "{plain} frames");
    let (client, server) = (offloading(client_config()), offloading(server_config()));
    let mut net = Net::of(Host::new(client), Host::new(server));
    let offloaded = download(&mut net, SERVER, TOTAL);
    // The transmit buffer is 16 KiB, which are eleven segments. The end of a ring buffer cuts some of them.
    assert!(offloaded * 4 < plain, "{offloaded} frames, {plain} without offloads");
}

/// Over IPv6 nothing above the MTU is sent, and everything arrives.
#[test]
fn ipv6_passes_with_offloads() {
    let (client, server) = (offloading(client_config()), offloading(server_config()));
    let mut net = Net::of(Host::new(client), Host::new(server));
    assert!(download(&mut net, SERVER6, 1 << 20) >= (1 << 20) / 1440);
}

#[test]
fn large_segments_pass_through_loss_and_reordering() {
    for seed in 0..4 {
        let (client, server) = (offloading(client_config()), offloading(server_config()));
        let mut net = Net::of(Host::new(client), Host::new(server));
        net.run_for(5 * MS);
        net.random = Random(seed);
        (net.loss, net.reorder) = (10, 50);
        download(&mut net, SERVER, 1 << 20);
    }
}

/// The payload bytes of an IPv4 frame, and how it has to be cut.
fn shape(frame: &Frame) -> (usize, Segmentation) {
    assert_eq!(frame.checksum(), Checksum::Partial);
    (frame.len() - HEADERS, frame.segmentation())
}

#[test]
fn a_large_segment_says_how_it_is_to_be_cut() {
    let mut host = Host::server_with(offloading(server_config()));
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    host.send(id, &[9; 10_000]).unwrap();
    let sent = host.sent();
    assert_eq!(sent.iter().map(shape).collect::<Vec<_>>(), [(10_000, Segmentation::Tcp { mss_bytes: 1460 })]);
    // IP's length, and the sum of the pseudo header in place of the checksum, are those of the whole segment.
    let data = sent[0].data();
    assert_eq!(u16::from_be_bytes([data[16], data[17]]), 10_040);
    let pseudo = lull_nic::wire::pseudo_sum(ip(SERVER), ip(CLIENT), 6, 10_020);
    assert_eq!(data[50..52], lull_nic::wire::fold(pseudo).to_ne_bytes());
    peer.ack += 10_000;
    peer.send(&mut host, ACK, &[]);
    host.send(id, &[9; 1460]).unwrap();
    assert_eq!(host.sent().iter().map(shape).collect::<Vec<_>>(), [(1460, Segmentation::None)]);
}

/// RFC 5681 section 3.1: the window after a timeout is one segment, whatever was in flight.
#[test]
fn after_a_timeout_one_segment_goes_out() {
    let mut host = Host::server_with(offloading(server_config()));
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    host.send(id, &[9; 10_000]).unwrap();
    assert_eq!(host.sent().len(), 1);
    let again = (0..1000).find_map(|_| {
        host.run_for(10 * MS);
        Some(host.sent()).filter(|sent| !sent.is_empty())
    });
    let again = again.expect("a retransmission");
    assert_eq!(shape(&again[0]), (1460, Segmentation::None));
    // smoltcp's Reno begins with a window of two kilobytes.
    assert!(again.iter().map(|frame| shape(frame).0).sum::<usize>() <= 2 * 1460, "{}", again.len());
}

/// The device knows nothing of a narrower path, for which the parts that it cuts would be too large.
#[test]
fn a_narrow_path_gets_nothing_above_it() {
    let mut host = Host::server_with(offloading(server_config()));
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    host.send(id, &[9; 6000]).unwrap();
    let lost = host.sent();
    // This is "fragmentation needed", with the packet quoted (RFC 792, RFC 1191).
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(1000_u16.to_be_bytes());
    icmp.extend(&lost[0].data()[14..14 + 28]);
    let sum = checksum(&[&icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    host.receive(ip_packet(ip(CLIENT), ip(SERVER), 1, 0, &[], &icmp));
    assert_eq!(host.stack.counters().path_mtu_reduced, 1);
    let fits = |sent: Vec<Frame>| {
        assert!(!sent.is_empty());
        for frame in &sent {
            let (payload, segmentation) = shape(frame);
            assert!(payload <= 960 && segmentation == Segmentation::None, "{payload} {segmentation:?}");
        }
    };
    fits(host.sent());
    // Segments that are sent for the first time afterwards fit as well.
    peer.ack += 6000;
    peer.send(&mut host, ACK, &[]);
    host.sent();
    host.send(id, &[9; 6000]).unwrap();
    fits(host.sent());
}

#[test]
fn cutting_takes_checksums_of_the_parts() {
    let mut config = server_config();
    config.tx_segmentation_offload = true;
    assert_eq!(Stack::new(config, Default::default()).err().map(NetError::from), Some(NetError::Invalid));
}
