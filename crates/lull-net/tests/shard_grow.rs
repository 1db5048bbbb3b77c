//! Buffers that grow: a path is filled, nothing is sent twice, and no memory is spent without need.

mod shard_harness;

use lull_net::shard::{BufferGrowth, ConnectOptions, ListenOptions, Ready, SocketId, StackConfig};
use shard_harness::stream::{Stream, exchange, told};
use shard_harness::*;

const RTT: u64 = 40 * MS;
const GROWTH: BufferGrowth = BufferGrowth { rx_bytes_max: 512 << 10, tx_bytes_max: 1 << 20, total_bytes_max: 64 << 20 };

/// Two hosts whose buffers grow, on a path that takes 40 ms there and back.
fn long_path(change: impl Fn(&mut StackConfig)) -> Net {
    let grown = |mut config: StackConfig| {
        config.growth = GROWTH;
        change(&mut config);
        Host::new(config)
    };
    let mut net = Net::of(grown(client_config()), grown(server_config()));
    net.delay_ns = RTT / 2;
    net
}

fn connected(net: &mut Net) -> (SocketId, SocketId) {
    let listener = net.server.listen(80);
    connected_to(net, listener)
}

fn connected_to(net: &mut Net, listener: SocketId) -> (SocketId, SocketId) {
    let client = net.client.connect(at(SERVER, 80));
    net.run_for(3 * RTT);
    (client, net.server.accept(listener))
}

/// How often anything was sent again.
fn retransmits(host: &Host) -> u32 {
    host.stack.list().iter().map(|socket| socket.retransmits).sum()
}

#[test]
fn a_stream_fills_a_long_path_in_either_direction() {
    const LENGTH: usize = 4 << 20;
    for (up, down) in [(LENGTH, 0), (0, LENGTH)] {
        let mut small = long_path(|config| config.growth = BufferGrowth::NONE);
        let ids = connected(&mut small);
        let small_ns = exchange(&mut small, ids, up, down);
        assert!(small_ns / RTT >= (LENGTH / lull_net::shard::BUFFER_BYTES) as u64, "a buffer in each round trip");
        let mut net = long_path(|_| {});
        let ids = connected(&mut net);
        // There are five doublings from 16 to 512 KiB, and then eight round trips of that size. A receiver may be one
        // behind each time.
        let rounds = exchange(&mut net, ids, up, down) / RTT;
        assert!(rounds <= 24, "{rounds} round trips");
        let (client, server) = (net.client.stack.counters(), net.server.stack.counters());
        assert!(client.tcp_buffers_grown >= 5 && server.tcp_buffers_grown >= 5, "{client:?} {server:?}");
        assert_eq!((client.tcp_stalls, server.tcp_stalls), (0, 0));
    }
}

/// What is on its way when a connection moves is neither sent again nor forgotten.
#[test]
fn nothing_leaves_twice_when_a_connection_moves() {
    const LENGTH: usize = 2 << 20;
    let mut net = long_path(|_| {});
    let ids = connected(&mut net);
    let before = net.to_client;
    exchange(&mut net, ids, 0, LENGTH);
    let frames = net.to_client - before;
    // A full segment carries 1448 bytes with a timestamp. Each round may end with a short one.
    let least = LENGTH.div_ceil(1448) as u64;
    assert!((least..least + least / 20 + 20).contains(&frames), "{frames} frames for {least} segments");
    assert_eq!(retransmits(&net.server), 0);
    net.run_for(10 * SECOND);
    assert_eq!(retransmits(&net.server), 0, "the last of it was acknowledged, too");
}

/// As in slow start, what is on its way doubles in a round trip, and no faster.
#[test]
fn what_is_on_its_way_doubles_in_a_round_trip() {
    let mut net = long_path(|_| {});
    let listener = net.server.listen(80);
    // The client's window is large from the start, so that it holds nothing up.
    let options = ConnectOptions { rx_buffer_bytes: 1 << 20, ..ConnectOptions::default() };
    let client = net.client.call(|stack, io| stack.tcp_connect(None, at(SERVER, 80), options, io)).unwrap();
    net.run_for(3 * RTT);
    let server = net.server.accept(listener);
    let mut down = Stream::of(8 << 20, 2);
    let start = net.now_ns;
    let mut rounds = vec![0_usize; 7];
    while net.now_ns < start + 6 * RTT {
        down.write(&mut net.server, server);
        assert!(net.step(start + 6 * RTT + 1));
        down.can_write |= told(&mut net.server, server).contains(Ready::WRITABLE);
        let before = down.read;
        down.read(&mut net.client, client);
        rounds[((net.now_ns - start) / RTT) as usize] += down.read - before;
    }
    for (round, pair) in rounds[..6].windows(2).enumerate() {
        assert!(pair[0] > 0 && pair[1] <= pair[0] * 9 / 4 + 3000, "round {round}: {rounds:?}");
    }
    assert!(rounds[5] > rounds[0] * 8, "{rounds:?}");
}

#[test]
fn streams_are_whole_whatever_is_lost_or_overtaken_while_they_grow() {
    let mut grown = 0;
    for seed in 0..60 {
        let mut net = long_path(|_| {});
        let ids = connected(&mut net);
        net.random = Random(seed);
        net.loss = seed % 4;
        net.reorder = [0, 100, 500][(seed / 4 % 3) as usize];
        let (up, down) = [(300_000, 0), (0, 300_000), (200_000, 200_000)][(seed / 12 % 3) as usize];
        exchange(&mut net, ids, up, down);
        for host in [&net.client, &net.server] {
            grown += host.stack.counters().tcp_buffers_grown;
            assert_eq!(host.stack.counters().tcp_stalls, 0, "seed {seed}");
        }
    }
    assert!(grown > 100, "{grown} times");
}

/// A server whose buffers grow, a peer that the test drives and that scales its windows by 7, their connection, the
/// scale of the server's own windows, and the edge of the window that its SYN-ACK offers.
fn scaled_peer(asked_bytes: usize) -> (Host, Peer, SocketId, u8, u32) {
    let mut config = server_config();
    config.growth = GROWTH;
    let mut host = Host::server_with(config);
    let options = ListenOptions { rx_buffer_bytes: asked_bytes, ..ListenOptions::default() };
    let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    let mut peer = Peer::new(4000);
    let mut syn = peer.syn();
    syn.options.extend([1, 3, 3, 7]);
    host.receive(syn.frame());
    let reply = host.segments().remove(0);
    let scale = *reply.options.windows(3).find(|option| option[..2] == [3, 3]).expect("a window scale").last().unwrap();
    (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
    let edge = peer.seq + u32::from(reply.window);
    peer.send(&mut host, ACK, &[]);
    let id = host.accept(listener);
    (host, peer, id, scale, edge)
}

/// This holds for any number of acknowledgements in a round trip, and however soon the application writes.
#[test]
fn a_transmit_buffer_doubles_once_in_a_round_trip() {
    let (mut host, mut peer, id, _, _) = scaled_peer(0);
    let fill = |host: &mut Host| while host.send(id, &[7; 4000]).is_ok() {};
    let mut most = lull_net::shard::BUFFER_BYTES;
    fill(&mut host);
    for round in 0..6 {
        let in_flight = host.segments();
        for segment in in_flight {
            peer.ack += segment.payload.len() as u32;
            peer.send(&mut host, ACK, &[]);
            fill(&mut host);
        }
        most *= 2;
        assert_eq!(host.stack.buffer_sizes(id).unwrap().1, most.min(GROWTH.tx_bytes_max), "round {round}");
    }
}

/// The last acknowledgement of a flight may free so little that nobody is told, but then the buffer doubles.
#[test]
fn a_writer_hears_of_the_room_that_a_larger_buffer_has() {
    let (mut host, mut peer, id, _, _) = scaled_peer(0);
    let fill = |host: &mut Host| while host.send(id, &[7; 100]).is_ok() {};
    let acknowledge = |host: &mut Host, peer: &mut Peer, bytes: u32| {
        peer.ack += bytes;
        peer.send(host, ACK, &[]);
        told(host, id)
    };
    // At first a program may write more than the buffer holds; here the buffer holds more.
    let mut in_flight = 0;
    while in_flight < 8 * lull_net::shard::BUFFER_BYTES as u32 {
        fill(&mut host);
        let sent: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
        acknowledge(&mut host, &mut peer, sent as u32);
        in_flight = host.stack.buffer_sizes(id).unwrap().1 as u32;
    }
    while host.stack.tcp_unacknowledged(id) != Ok(0) {
        let sent: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
        acknowledge(&mut host, &mut peer, sent as u32);
    }
    in_flight = host.stack.buffer_sizes(id).unwrap().1 as u32;
    fill(&mut host);
    let last = in_flight / 4;
    assert!(acknowledge(&mut host, &mut peer, in_flight - last).contains(Ready::WRITABLE));
    fill(&mut host);
    assert!(acknowledge(&mut host, &mut peer, last).contains(Ready::WRITABLE), "the buffer has doubled");
    fill(&mut host);
    assert!(
        acknowledge(&mut host, &mut peer, last).is_empty(),
        "it is a quarter of a flight again, with nothing behind it"
    );
}

/// Data that came out of order are only in the old socket, so the connection stays there until the hole is filled, even
/// if the end of the data was beyond the window and was cut off.
#[test]
fn a_connection_with_a_hole_stays_where_it_is() {
    for (hole_bytes, behind_bytes, kept_bytes) in [(1000, 1000, 1000), (16_000, 1000, 384)] {
        let (mut host, mut peer, id, _, _) = scaled_peer(0);
        let sizes = |host: &Host| host.stack.buffer_sizes(id).unwrap();
        let first = sizes(&host);
        let hole = peer.seq;
        peer.seq += hole_bytes;
        peer.send(&mut host, ACK, &vec![2; behind_bytes]);
        let fill = |host: &mut Host| while host.send(id, &[7; 4000]).is_ok() {};
        fill(&mut host);
        peer.seq = hole;
        let flight = |host: &mut Host, peer: &mut Peer| {
            for segment in host.segments() {
                peer.ack += segment.payload.len() as u32;
                peer.send(host, ACK, &[]);
                fill(host);
            }
        };
        // All that was on its way at first is acknowledged, even what left late.
        for _ in 0..4 {
            flight(&mut host, &mut peer);
            assert_eq!(sizes(&host), first, "it does not move over a hole");
        }
        while peer.seq != hole + hole_bytes {
            peer.send(&mut host, ACK, &vec![1; (hole + hole_bytes - peer.seq).min(1000) as usize]);
        }
        let mut data = Vec::new();
        while let Ok(more) = host.recv(id) {
            data.extend(more);
        }
        let expected = [vec![1; hole_bytes as usize], vec![2; kept_bytes]].concat();
        assert!(data == expected, "{} bytes, and nothing behind the hole comes twice", data.len());
        peer.seq = hole + (data.len() as u32);
        flight(&mut host, &mut peer);
        assert!(sizes(&host).1 > first.1, "it moves once there is none");
    }
}

/// A window never promises more than there is room for, whatever its scale is.
#[test]
fn a_window_is_the_room_that_there_is() {
    let (mut host, mut peer, id, scale, mut edge) = scaled_peer(0);
    assert_eq!(scale, 4, "for 512 KiB");
    assert_eq!(edge - peer.seq, 16 * 1024, "the window of a SYN is not scaled");
    for round in 0..40 {
        while edge - peer.seq >= 1448 {
            peer.send(&mut host, ACK, &[7; 1448]);
            for segment in host.segments() {
                edge = edge.max(segment.ack + (u32::from(segment.window) << scale));
                let room = host.stack.buffer_sizes(id).unwrap().0 as u32;
                assert!(edge - peer.seq <= room, "{} bytes in {room}, round {round}", edge - peer.seq);
            }
        }
        while host.recv(id).is_ok() {}
        for segment in host.segments() {
            edge = edge.max(segment.ack + (u32::from(segment.window) << scale));
        }
        let room = host.stack.buffer_sizes(id).unwrap().0 as u32;
        assert!(edge - peer.seq <= room && edge - peer.seq > room / 2, "{} of {room}, round {round}", edge - peer.seq);
    }
    assert_eq!(host.stack.buffer_sizes(id).unwrap().0, 512 << 10);
}

/// A window field counts in units of its scale, so that its edge may lie a little before one that was offered earlier.
/// What was offered is taken nevertheless.
#[test]
fn what_a_window_has_offered_is_taken() {
    for asked in [0, 100_000, 300_000] {
        let (mut host, mut peer, id, scale, mut edge) = scaled_peer(asked);
        let mut random = Random(3);
        let (mut sent, mut read) = (0, 0);
        for _ in 0..3000 {
            while edge != peer.seq && random.below(4) != 0 {
                let length = (edge - peer.seq).min(1 + random.below(1448) as u32);
                peer.send(&mut host, ACK, &vec![7; length as usize]);
                sent += length as usize;
            }
            let mut buffer = vec![0; 1 + random.below(3000) as usize];
            if let Ok(count) = host.call(|stack, io| stack.tcp_recv(id, &mut buffer, io)) {
                read += count;
            }
            for segment in host.segments() {
                edge = edge.max(segment.ack + (u32::from(segment.window) << scale));
            }
        }
        while let Ok(data) = host.recv(id) {
            read += data.len();
        }
        assert!(sent > 1 << 18, "{sent} bytes with {asked}");
        assert_eq!(read, sent, "nothing had to be sent again, with {asked}");
    }
}

#[test]
fn without_a_window_scale_a_receive_buffer_grows_to_64_kib() {
    let mut config = server_config();
    config.growth = GROWTH;
    let mut host = Host::server_with(config);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    let mut window = 16 * 1024;
    for _ in 0..20 {
        let mut left = window;
        while left >= 1448 {
            peer.send(&mut host, ACK, &[7; 1448]);
            left -= 1448;
        }
        while host.recv(id).is_ok() {}
        let last = host.segments().pop().expect("an acknowledgement");
        window = usize::from(last.window) - (peer.seq - last.ack) as usize;
    }
    assert_eq!(host.stack.buffer_sizes(id).unwrap().0, usize::from(u16::MAX));
}

#[test]
fn a_size_that_was_asked_for_stays() {
    let mut net = long_path(|_| {});
    let options = ListenOptions { rx_buffer_bytes: 20_000, tx_buffer_bytes: 10_000, ..ListenOptions::default() };
    let listener = net.server.stack.tcp_listen(at(SERVER, 80), options).unwrap();
    // In one direction the receiver's buffer is smaller, and in the other the sender's.
    let options = ConnectOptions { rx_buffer_bytes: 30_000, tx_buffer_bytes: 50_000, ..ConnectOptions::default() };
    let client = net.client.call(|stack, io| stack.tcp_connect(None, at(SERVER, 80), options, io)).unwrap();
    net.run_for(3 * RTT);
    let ids = (client, net.server.accept(listener));
    exchange(&mut net, ids, 300_000, 300_000);
    assert_eq!(net.server.stack.buffer_sizes(ids.1).unwrap(), (20_000, 10_000));
    assert_eq!(net.client.stack.buffer_sizes(ids.0).unwrap(), (30_000, 50_000));
}

#[test]
fn all_buffers_together_stay_below_their_bound() {
    const BOUND: usize = 200_000;
    let mut net = long_path(|config| {
        if config.mac == SERVER_MAC {
            config.growth.total_bytes_max = BOUND;
        }
    });
    let listener = net.server.listen(80);
    let ids: Vec<_> = (0..2).map(|_| connected_to(&mut net, listener)).collect();
    let of = |net: &Net, id: SocketId| net.server.stack.buffer_sizes(id).map(|(rx, tx)| rx + tx).unwrap();
    // The second connection can have what the first has given back.
    for (client, server) in ids.clone() {
        exchange(&mut net, (client, server), 0, 1 << 20);
        let sizes = ids.iter().map(|ids| of(&net, ids.1));
        assert!(sizes.clone().sum::<usize>() <= BOUND, "{:?}", sizes.collect::<Vec<_>>());
        assert!(of(&net, server) > 128 * 1024);
        assert!(net.server.stack.counters().tcp_buffers_kept_small > 0);
        net.run_for(3 * SECOND);
    }
}

/// Requests and answers that fit into the buffers do not change them, however many there are.
#[test]
fn small_requests_take_no_larger_buffers() {
    let mut net = long_path(|_| {});
    let (client, server) = connected(&mut net);
    for _ in 0..2000 {
        net.client.send(client, &[1; 100]).unwrap();
        net.run_for(RTT);
        net.server.recv(server).unwrap();
        net.server.send(server, &[2; 4000]).unwrap();
        net.run_for(RTT);
        assert_eq!(net.client.recv(client).unwrap().len(), 4000);
    }
    let sizes = (lull_net::shard::BUFFER_BYTES, lull_net::shard::BUFFER_BYTES);
    assert_eq!(net.server.stack.buffer_sizes(server).unwrap(), sizes);
    assert_eq!(net.client.stack.buffer_sizes(client).unwrap(), sizes);
}

/// Memory that a connection does not use is given back, and the connection begins again with as much in flight as a new
/// one. Nobody is told of it.
#[test]
fn an_idle_connection_gives_back_what_it_grew_by() {
    let mut net = long_path(|_| {});
    let ids = connected(&mut net);
    for _ in 0..3 {
        exchange(&mut net, ids, 0, 2 << 20);
        assert!(net.server.stack.buffer_sizes(ids.1).unwrap().1 >= 256 * 1024);
        net.run_for(RTT);
        let frames = net.to_client;
        net.run_for(5 * SECOND);
        assert_eq!(net.server.stack.buffer_sizes(ids.1).unwrap().1, lull_net::shard::BUFFER_BYTES);
        assert_eq!(net.to_client, frames);
        assert_eq!(net.server.stack.next_deadline_ns(), None, "and it wakes nobody any more");
    }
}

/// Linux takes an acknowledgement at the very end of its window (`tcp_sequence`), which is where a peer stands whose
/// last data were lost; smoltcp drops it. What the window in it allows is sent by the new socket nevertheless.
#[test]
fn a_window_that_came_with_a_segment_at_the_end_of_ours_counts_when_a_connection_moves() {
    let (mut config, mut peer) = (server_config(), Peer::new(4000));
    config.growth = GROWTH;
    let mut host = Host::server_with(config);
    let listener = host.listen(80);
    peer.window = 2000;
    let id = host.establish(listener, &mut peer);
    assert_eq!(host.send(id, &[1; 6000]), Ok(6000));
    let sent: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(sent, 2000);
    for _ in 0..14 {
        peer.send(&mut host, ACK | PSH, &[7; 1100]);
    }
    host.segments();
    // The data that would fill the window are lost.
    peer.window = 60_000;
    let behind = Tcp { seq: peer.seq + (16_384 - 14 * 1100), ..peer.segment(ACK, &[]) };
    host.receive(behind.frame());
    host.segments();
    assert_eq!(host.recv(id).unwrap().len(), 14 * 1100);
    assert_eq!(host.stack.counters().tcp_buffers_grown, 1);
    let sent: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(sent, 4000, "what was on its way does not leave twice, and the rest leaves");
}
