//! What a request costs the server side, in memory. Not a test of speed: run it by hand.
//!
//! `cargo test -p lull-net --release --test shard_cost -- --ignored --nocapture`

mod shard_harness;

use std::time::Instant;

use lull_net::shard::Io;
use lull_nic::{Checksum, Frame, FramePool};
use shard_harness::*;

fn nanoseconds_per_request(connections: usize, rounds: usize, offload: bool) -> f64 {
    let mut config = server_config();
    config.tx_checksum_offload = offload;
    let mut host = Host::server_with(config);
    host.ring.slots = 1 << 20;
    let listener = host.listen(80);
    let (mut peers, mut sockets) = (Vec::new(), Vec::new());
    for number in 0..connections {
        let mut peer = Peer::new(1024 + number as u16);
        host.receive(peer.syn().frame());
        let frame = host.sent().remove(0);
        // The checksum is partial with offload, so the parser of the harness would refuse it.
        let seq = u32::from_be_bytes(frame.data()[38..42].try_into().unwrap());
        (peer.seq, peer.ack) = (peer.seq + 1, seq.wrapping_add(1));
        peer.send(&mut host, ACK, &[]);
        peers.push(peer);
        sockets.push(host.accept(listener));
    }
    let request = [b'q'; 64];
    let response = [b'r'; 64];
    let templates: Vec<Vec<u8>> =
        peers.iter().map(|peer| peer.segment(ACK | PSH, &request).frame().data().to_vec()).collect();
    let mut free = FramePool::new(4096);
    let mut best = f64::MAX;
    for _ in 0..5 {
        let mut spent = 0;
        for _ in 0..rounds {
            let mut frames: Vec<Frame> = Vec::with_capacity(connections);
            for (peer, template) in peers.iter_mut().zip(&templates) {
                let mut frame = free.alloc();
                frame.set_len(template.len());
                frame.data_mut().copy_from_slice(template);
                frame.data_mut()[38..42].copy_from_slice(&peer.seq.to_be_bytes());
                frame.data_mut()[42..46].copy_from_slice(&peer.ack.to_be_bytes());
                if offload {
                    frame.set_checksum(Checksum::Partial);
                } else {
                    frame.data_mut()[50..52].fill(0);
                    let tcp = frame.data()[34..].to_vec();
                    let sum = checksum(&[&pseudo(peer.from.ip(), peer.to.ip(), 6, tcp.len()), &tcp]);
                    frame.data_mut()[50..52].copy_from_slice(&sum.to_be_bytes());
                }
                peer.seq = peer.seq.wrapping_add(request.len() as u32);
                peer.ack = peer.ack.wrapping_add(response.len() as u32);
                frames.push(frame);
            }
            let mut buffer = [0; 256];
            let start = Instant::now();
            for (frame, &socket) in frames.into_iter().zip(&sockets) {
                host.now_ns += 300;
                let mut io = Io {
                    now_ns: host.now_ns,
                    tx: &mut host.ring,
                    pool: &mut host.pool,
                    changes: &mut host.changes,
                };
                host.stack.receive(frame, &mut io);
                let count = host.stack.tcp_recv(socket, &mut buffer, &mut io).unwrap();
                assert_eq!(count, request.len());
                host.stack.tcp_send(socket, &response, &mut io).unwrap();
                io.changes.clear();
            }
            let mut io = Io {
                now_ns: host.now_ns,
                tx: &mut host.ring,
                pool: &mut host.pool,
                changes: &mut host.changes,
            };
            host.stack.run_timers(&mut io);
            spent += start.elapsed().as_nanos();
            let sent = std::mem::take(&mut host.ring.frames);
            assert_eq!(sent.len(), connections);
            sent.into_iter().for_each(|frame| free.recycle(frame));
        }
        best = best.min(spent as f64 / (rounds * connections) as f64);
    }
    best
}

#[test]
#[ignore = "measures; run by hand with --release"]
fn cost_of_a_request() {
    for (connections, rounds) in [(1, 20_000), (64, 1000), (1024, 50), (10_000, 8)] {
        for offload in [true, false] {
            let cost = nanoseconds_per_request(connections, rounds, offload);
            println!("{connections:6} connections, checksum offload {offload:5}: {cost:4.0} ns per request");
        }
    }
}
