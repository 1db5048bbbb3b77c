//! What a frame costs on the in-memory pair, by batch: `cargo bench -p lull-nic --bench mem`.
//!
//! `LULL_ROUNDS` sets the rounds, for counting instructions instead of nanoseconds:
//! `LULL_ROUNDS=10000 valgrind --tool=callgrind target/release/deps/mem-...`.

use std::time::Instant;

use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, FramePool, Queue};

const FRAME_BYTES: usize = 60;

/// Sends `batch` frames with one doorbell and receives them with one poll, `rounds` times.
fn run(from: &mut Queue, to: &mut Queue, pool: &mut FramePool, batch: usize, rounds: usize) {
    for _ in 0..rounds {
        for _ in 0..batch {
            let mut frame = pool.alloc();
            frame.set_len(FRAME_BYTES);
            frame.data_mut()[12] = 8;
            from.tx.transmit(frame).expect("the ring was polled empty");
        }
        from.tx.doorbell();
        let got = to.rx.poll(batch, pool, &mut |frame, pool| pool.recycle(frame));
        assert_eq!(got, batch);
    }
}

fn main() {
    let rounds = std::env::var("LULL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1_000_000);
    let (a, b) = mem::pair(MemConfig::default());
    let (mut from, mut to) = (a.take_queue(0).expect("a queue"), b.take_queue(0).expect("a queue"));
    let mut pool = FramePool::new(256);
    for batch in [1, 8, 64] {
        run(&mut from, &mut to, &mut pool, batch, rounds / 100 + 1);
        let start = Instant::now();
        run(&mut from, &mut to, &mut pool, batch, rounds / batch);
        let frames = (rounds / batch * batch).max(1) as f64;
        println!("batch {batch:2}: {:6.1} ns a frame", start.elapsed().as_nanos() as f64 / frames);
    }
}
