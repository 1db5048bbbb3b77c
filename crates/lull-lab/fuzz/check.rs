//! The properties that must hold for any input to a memcached session. The fuzz target and the ordinary tests share
//! them.

use lull_lab::memcached::{Fed, OUTPUT_PAUSE_BYTES, Session, Store, StoreConfig};

/// The limits are small enough for an input to reach them.
const CONFIG: StoreConfig =
    StoreConfig { memory_bytes_max: 64 << 10, item_bytes_max: 16 << 10, shards: 2, hash_seed: Some(1), threads: 1 };
const NOW_S: u32 = 1_700_000_000;

/// Feeds `input` whole, and again in pieces that `cuts` chooses; the replies must be the same.
pub fn session(input: &[u8], cuts: u64) {
    let (whole, whole_closed) = feed(input, |_| usize::MAX);
    let mut state = cuts | 1;
    let (pieces, pieces_closed) = feed(input, |_| {
        // xorshift makes mostly small pieces, and now and then a large one.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state.is_multiple_of(8) { (state >> 32) as usize % 4096 + 1 } else { (state >> 32) as usize % 7 + 1 }
    });
    // `pid` and the traffic counters may differ; everything else is the same to the byte.
    if !input.windows(5).any(|window| window == b"stats") {
        assert_eq!(whole_closed, pieces_closed);
        assert!(whole == pieces, "{}\n---\n{}", String::from_utf8_lossy(&whole), String::from_utf8_lossy(&pieces));
    }
}

fn feed(input: &[u8], mut piece: impl FnMut(usize) -> usize) -> (Vec<u8>, bool) {
    let store = Store::new(CONFIG);
    let mut session = Session::new();
    let (mut replies, mut out) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < input.len() {
        let end = input.len().min(at.saturating_add(piece(at)));
        // A blocked session goes on once its output is taken: first with the input that it left, and then with none.
        loop {
            let fed = session.feed(&input[at..end], &mut out, &store, NOW_S);
            check(&fed, end - at, out.len(), &store);
            at += fed.consumed;
            replies.append(&mut out);
            if fed.close {
                return (replies, true);
            }
            if !fed.blocked {
                break;
            }
        }
        assert_eq!(at, end, "an unblocked session takes everything");
    }
    (replies, false)
}

fn check(fed: &Fed, offered: usize, output: usize, store: &Store) {
    assert!(fed.consumed <= offered);
    assert!(output <= OUTPUT_PAUSE_BYTES + CONFIG.item_bytes_max + (2 << 20), "{output} bytes of output at once");
    let stats = store.stats();
    let limit = stats.limit_maxbytes;
    assert!(stats.bytes <= limit, "{} bytes stored of {limit}", stats.bytes);
}
