//! A path that loses segments still carries a fair share of what it could, and not just a segment for each round trip
//! or timeout. The time is virtual.

mod shard_harness;

use lull_net::shard::{BufferGrowth, ListenOptions, SocketId};
use shard_harness::stream::exchange;
use shard_harness::*;

const RTT: u64 = 40 * MS;
const SEGMENT: usize = 1448;
const GROWTH: BufferGrowth = BufferGrowth { rx_bytes_max: 2 << 20, tx_bytes_max: 2 << 20, total_bytes_max: 64 << 20 };

fn long_path(timestamps: bool) -> (Net, (SocketId, SocketId)) {
    let [client, server] = [client_config(), server_config()].map(|mut config| {
        (config.growth, config.timestamps) = (GROWTH, timestamps);
        Host::new(config)
    });
    let mut net = Net::of(client, server);
    net.delay_ns = RTT / 2;
    let listener = net.server.listen(80);
    let client = net.client.connect(at(SERVER, 80));
    net.run_for(3 * RTT);
    let server = net.server.accept(listener);
    (net, (client, server))
}

/// How often the server sent anything again.
fn retransmits(net: &Net) -> u64 {
    net.server.stack.list().iter().map(|socket| u64::from(socket.retransmits)).sum()
}

/// As on Linux, this holds for either end, and before any data were sent. (A first SYN also waits for the peer's link
/// address.)
#[test]
fn a_handshake_tells_the_first_round_trip() {
    let (mut net, _) = long_path(true);
    let listener = net.server.listen(81);
    let client = net.client.connect(at(SERVER, 81));
    net.run_for(3 * RTT);
    let server = net.server.accept(listener);
    for (host, id) in [(&net.client, client), (&net.server, server)] {
        assert_eq!(host.stack.tcp_info(id, net.now_ns).unwrap().rtt_us, (RTT / 1000) as u32);
    }
}

/// CUBIC's window is about 1.1 / sqrt(loss) segments where Reno's would be larger (RFC 9438 section 5.1): eleven if one
/// segment in a hundred is lost.
#[test]
fn a_lossy_path_carries_a_congestion_window_in_each_round_trip() {
    const LENGTH: usize = 2 << 20;
    for timestamps in [true, false] {
        let mut rounds = 0;
        for seed in 0..4 {
            let (mut net, ids) = long_path(timestamps);
            (net.random, net.loss) = (Random(seed), 10);
            rounds += exchange(&mut net, ids, 0, LENGTH) / RTT;
            let (segments, lost) = ((LENGTH / SEGMENT) as u64, (LENGTH / SEGMENT) as u64 / 100);
            let least = segments + retransmits(&net) - lost;
            assert!(net.to_client < least + segments / 10, "{} frames, not {least}: segments are full", net.to_client);
            assert!(retransmits(&net) < lost * 3, "{} times for about {lost}", retransmits(&net));
        }
        let window = 4 * LENGTH / SEGMENT / rounds as usize;
        assert!((8..20).contains(&window), "{window} segments in a round trip");
    }
}

/// The path has 50 Mbit/s and a queue of 100 packets, which is a bit more than half of what is on its way then.
#[test]
fn a_full_queue_is_no_more_than_a_smaller_window() {
    const LENGTH: usize = 8 << 20;
    const FRAME_NS: u64 = 240_000;
    let (mut net, ids) = long_path(true);
    net.bottleneck = Some((FRAME_NS, 100));
    let took_ns = exchange(&mut net, ids, 0, LENGTH);
    let least_ns = (LENGTH / SEGMENT) as u64 * FRAME_NS;
    println!(
        "{took_ns} {least_ns} {:?} {:?}",
        net.server.stack.buffer_sizes(ids.1),
        net.client.stack.buffer_sizes(ids.0)
    );
    assert!(retransmits(&net) > 20, "{}", retransmits(&net));
    assert!(took_ns < least_ns * 2, "{} ms, and {} at the least", took_ns / MS, least_ns / MS);
}

/// The path's segments come one by one, so that each acknowledgement moves the edge of the window before the peer
/// reaches it.
#[test]
fn a_path_that_spreads_segments_out_is_filled_in_either_direction() {
    const LENGTH: usize = 4 << 20;
    const FRAME_NS: u64 = 120_000;
    for (up, down) in [(LENGTH, 0), (0, LENGTH)] {
        for timestamps in [true, false] {
            let (mut net, ids) = long_path(timestamps);
            net.bottleneck = Some((FRAME_NS, 1 << 20));
            let took_ns = exchange(&mut net, ids, up, down);
            let least_ns = (LENGTH / SEGMENT) as u64 * FRAME_NS;
            assert!(took_ns < least_ns * 2 + 12 * RTT, "{} ms, and {} at the least", took_ns / MS, least_ns / MS);
        }
    }
}

/// Whatever is lost of a flight is sent again within one round trip, or two.
#[test]
fn a_burst_of_losses_takes_few_round_trips() {
    const LENGTH: usize = 200_000;
    for seed in 0..8 {
        let (mut net, ids) = long_path(true);
        exchange(&mut net, ids, 0, LENGTH);
        net.random = Random(seed);
        net.loss = 300;
        let mut burst_ns = 0;
        // A third of what leaves now is lost, and nothing later.
        net.server.send(ids.1, &[7; 60_000]).unwrap();
        let start = net.now_ns;
        net.step(start + 1);
        net.loss = 0;
        while net.server.stack.tcp_unacknowledged(ids.1).unwrap() > 0 {
            net.step(start + 60 * SECOND);
            net.client.recv(ids.0).ok();
            burst_ns = net.now_ns - start;
        }
        assert!(burst_ns <= 10 * RTT, "{} ms with seed {seed}", burst_ns / MS);
    }
}

/// For a while nothing gets through. Then the timer says so, and the window begins with one segment.
#[test]
fn a_stream_goes_on_behind_a_gap() {
    const LENGTH: usize = 300_000;
    for cut_ns in [100 * MS, 400 * MS, 3 * SECOND] {
        let (mut net, ids) = long_path(true);
        exchange(&mut net, ids, 0, LENGTH);
        net.server.send(ids.1, &[7; 100_000]).unwrap();
        net.cut = true;
        net.run_for(cut_ns);
        net.cut = false;
        let start = net.now_ns;
        while net.server.stack.tcp_unacknowledged(ids.1).unwrap() > 0 {
            assert!(net.step(start + 60 * SECOND), "something is to happen");
            net.client.recv(ids.0).ok();
        }
        let took_ns = net.now_ns - start;
        assert!(took_ns <= 2 * cut_ns + 12 * RTT + SECOND / 2, "{} ms behind {} ms", took_ns / MS, cut_ns / MS);
    }
}

/// The program keeps the buffer that it asked for, whatever is lost.
#[test]
fn a_transmit_buffer_that_was_asked_for_outlives_a_loss() {
    let [client, server] = [client_config(), server_config()].map(|mut config| {
        config.growth = GROWTH;
        Host::new(config)
    });
    let mut net = Net::of(client, server);
    net.delay_ns = RTT / 2;
    let options = ListenOptions { tx_buffer_bytes: 256 << 10, ..ListenOptions::default() };
    let listener = net.server.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    let client = net.client.connect(at(SERVER, 80));
    net.run_for(3 * RTT);
    let server = net.server.accept(listener);
    net.loss = 30;
    exchange(&mut net, (client, server), 0, 1 << 20);
    assert!(retransmits(&net) > 0);
    net.run_for(5 * SECOND);
    assert_eq!(net.server.stack.buffer_sizes(server).unwrap().1, 256 << 10);
}
