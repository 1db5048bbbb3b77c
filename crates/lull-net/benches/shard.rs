//! What a request costs the server's shard, in memory: `cargo bench -p lull-net`.

#[path = "../tests/shard_harness/mod.rs"]
mod shard_harness;

use std::time::Instant;

use lull_net::shard::{Batch, Gro, Io};
use lull_nic::{Checksum, Frame, FramePool};
use shard_harness::*;

const REQUEST_BYTES: usize = 64;
const RESPONSE_BYTES: usize = 64;

/// The peer's next request.
fn next(peer: &mut Peer, template: &[u8], offload: bool, free: &mut FramePool) -> Frame {
    let mut frame = free.alloc();
    frame.set_len(template.len());
    let data = frame.data_mut();
    data.copy_from_slice(template);
    data[38..42].copy_from_slice(&peer.seq.to_be_bytes());
    data[42..46].copy_from_slice(&peer.ack.to_be_bytes());
    data[50..52].fill(0);
    let sum = checksum(&[&pseudo(peer.from.ip(), peer.to.ip(), 6, data.len() - 34), &data[34..]]);
    data[50..52].copy_from_slice(&sum.to_be_bytes());
    if offload {
        frame.set_checksum(Checksum::Partial);
    }
    peer.seq = peer.seq.wrapping_add(REQUEST_BYTES as u32);
    peer.ack = peer.ack.wrapping_add(RESPONSE_BYTES as u32);
    frame
}

fn nanoseconds_per_request(connections: usize, rounds: usize, offload: bool, gro: bool) -> f64 {
    let mut gro = gro.then(Gro::default);
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
        let socket = host.accept(listener);
        // The first request is acknowledged at once, and by itself.
        peer.send(&mut host, ACK | PSH, &[b'q'; REQUEST_BYTES]);
        host.recv(socket).unwrap();
        host.send(socket, &[b'r'; RESPONSE_BYTES]).unwrap();
        host.sent();
        peer.ack = peer.ack.wrapping_add(RESPONSE_BYTES as u32);
        peers.push(peer);
        sockets.push(socket);
    }
    let templates: Vec<Vec<u8>> =
        peers.iter().map(|peer| peer.segment(ACK | PSH, &[b'q'; REQUEST_BYTES]).frame().data().to_vec()).collect();
    let mut free = FramePool::new(4096);
    let mut best = f64::MAX;
    for _ in 0..5 {
        let mut spent = 0;
        for _ in 0..rounds {
            // As a NAPI poll delivers them: at most 64 at a time.
            for batch in 0..connections.div_ceil(64) {
                let range = batch * 64..connections.min(batch * 64 + 64);
                let (peers, templates) = (&mut peers[range.clone()], &templates[range.clone()]);
                let frames: Vec<Frame> = peers
                    .iter_mut()
                    .zip(templates)
                    .map(|(peer, bytes)| next(peer, bytes, offload, &mut free))
                    .collect();
                let mut buffer = [0; 256];
                let start = Instant::now();
                for (frame, &socket) in frames.into_iter().zip(&sockets[range]) {
                    host.now_ns += 300;
                    let mut io = Io {
                        now_ns: host.now_ns,
                        tx: &mut host.ring,
                        pool: &mut host.pool,
                        changes: &mut host.changes,
                        batch: Batch::NONE,
                    };
                    match &mut gro {
                        None => host.stack.receive(frame, &mut io),
                        Some(gro) => gro.receive(frame, io.now_ns, &mut |frame| host.stack.receive(frame, &mut io)),
                    }
                    let count = host.stack.tcp_recv(socket, &mut buffer, &mut io).unwrap();
                    assert_eq!(count, REQUEST_BYTES);
                    host.stack.tcp_send(socket, &[b'r'; RESPONSE_BYTES], &mut io).unwrap();
                    io.changes.clear();
                }
                host.call(|stack, io| stack.run_timers(io));
                spent += start.elapsed().as_nanos();
                assert_eq!(host.ring.frames.len(), peers.len());
                host.ring.frames.drain(..).for_each(|frame| free.recycle(frame));
            }
        }
        best = best.min(spent as f64 / (rounds * connections) as f64);
    }
    best
}

/// A stream of full segments as polls bring it, `burst` at a time of which the last pushes, read after each poll.
fn nanoseconds_per_segment(burst: usize, with_gro: bool) -> f64 {
    const ROUNDS: usize = 20_000;
    const SEGMENT: usize = 1460;
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let mut gro = with_gro.then(Gro::default);
    let (mut free, mut buffer) = (FramePool::new(4096), vec![0; 64 * 1024]);
    let template = peer.segment(ACK, &[b's'; SEGMENT]).frame().data().to_vec();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let mut spent = 0;
        for _ in 0..ROUNDS {
            let frames: Vec<Frame> = (0..burst)
                .map(|nth| {
                    let mut frame = free.alloc();
                    frame.set_len(template.len());
                    let data = frame.data_mut();
                    data.copy_from_slice(&template);
                    data[38..42].copy_from_slice(&peer.seq.to_be_bytes());
                    data[47] = if nth + 1 == burst { ACK | PSH } else { ACK };
                    // The segment stays as it is where the identification may.
                    frame.set_checksum(Checksum::Unnecessary);
                    peer.seq = peer.seq.wrapping_add(SEGMENT as u32);
                    frame
                })
                .collect();
            let start = Instant::now();
            host.now_ns += 10_000;
            let mut io = Io {
                now_ns: host.now_ns,
                tx: &mut host.ring,
                pool: &mut host.pool,
                changes: &mut host.changes,
                batch: Batch::NONE,
            };
            for frame in frames {
                match &mut gro {
                    None => host.stack.receive(frame, &mut io),
                    Some(gro) => gro.receive(frame, io.now_ns, &mut |frame| host.stack.receive(frame, &mut io)),
                }
            }
            let count = host.stack.tcp_recv(id, &mut buffer, &mut io).unwrap();
            spent += start.elapsed().as_nanos();
            assert_eq!(count, burst * SEGMENT);
            io.changes.clear();
            host.ring.frames.drain(..).for_each(|frame| free.recycle(frame));
        }
        best = best.min(spent as f64 / (ROUNDS * burst) as f64);
    }
    best
}

fn main() {
    // `cargo test --benches` runs this without measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        return println!("run with `cargo bench -p lull-net`");
    }
    for (connections, rounds) in [(1, 20_000), (64, 1000), (1024, 50), (10_000, 8)] {
        for offload in [true, false] {
            let [cost, gro] = [false, true].map(|gro| nanoseconds_per_request(connections, rounds, offload, gro));
            println!(
                "{connections:6} connections, checksum offload {offload:5}: {cost:4.0} ns per request, {gro:4.0} with GRO"
            );
        }
    }
    for burst in [1, 2, 4, 8] {
        let [cost, gro] = [false, true].map(|gro| nanoseconds_per_segment(burst, gro));
        println!("bursts of {burst} full segments: {cost:4.0} ns per segment, {gro:4.0} with GRO");
    }
}
