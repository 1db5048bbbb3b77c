//! The output of a session does not depend on how its input is cut, and garbage in the input does no harm.

use lull_lab::load::Rng;
use lull_lab::memcached::{OUTPUT_PAUSE_BYTES, Session, Store, StoreConfig, StoreMode};

#[path = "../fuzz/check.rs"]
mod check;

const NOW_S: u32 = 1_700_000_000;
/// The number of mutated inputs that the ordinary test run tries. A fuzzer tries more.
const MUTATIONS: u64 = 3_000;

/// The fuzzer's seeds, by name so that the order is the same everywhere.
fn corpus() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/session");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the corpus is part of the source")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a readable file")).collect()
}

#[test]
fn the_corpus_passes_however_it_is_cut() {
    let corpus = corpus();
    assert!(corpus.len() >= 8);
    for input in &corpus {
        for cuts in 0..20 {
            check::session(input, cuts);
        }
    }
}

#[test]
fn mutations_of_the_corpus_pass() {
    let corpus = corpus();
    let mut rng = Rng::new(11);
    for _ in 0..MUTATIONS {
        let mut input = corpus[rng.below(corpus.len() as u64) as usize].clone();
        for _ in 0..rng.below(6) + 1 {
            mutate(&mut input, &corpus, &mut rng);
        }
        check::session(&input, rng.next_u64());
    }
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    if input.is_empty() {
        input.extend_from_slice(b"get a\r\n");
    }
    let at = rng.below(input.len() as u64) as usize;
    match rng.below(6) {
        0 => input[at] = rng.next_u64() as u8,
        1 => input[at] = b" \r\n0-9"[rng.below(6) as usize],
        2 => drop(input.drain(at..(at + 1 + rng.below(8) as usize).min(input.len()))),
        3 => input.truncate(at),
        4 => {
            // It inserts a piece of another seed in the middle.
            let other = &corpus[rng.below(corpus.len() as u64) as usize];
            let from = rng.below(other.len() as u64) as usize;
            let piece = &other[from..(from + rng.below(64) as usize).min(other.len())];
            drop(input.splice(at..at, piece.iter().copied()));
        }
        _ => {
            let end = (at + rng.below(300) as usize).min(input.len());
            let piece = input[at..end].to_vec();
            drop(input.splice(at..at, piece));
        }
    }
}

/// A random conversation of valid and nearly valid commands.
fn conversation(rng: &mut Rng) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..60 {
        let key = format!("k{}", rng.below(5));
        let other = format!("k{}", rng.below(5));
        let noreply = if rng.below(4) == 0 { " noreply" } else { "" };
        let value = match rng.below(4) {
            0 => rng.below(1000).to_string(),
            1 => String::new(),
            _ => "v".repeat(rng.below(3000) as usize),
        };
        let bytes = value.len();
        let line = match rng.below(12) {
            0..=2 => format!("get {key} {other} nope\r\n"),
            3 => format!("gets {key}\r\n"),
            4 => format!("set {key} 7 0 {bytes}{noreply}\r\n{value}\r\n"),
            5 => format!("add {key} 7 100 {bytes}{noreply}\r\n{value}\r\n"),
            6 => format!("append {key} 7 0 {bytes}{noreply}\r\n{value}\r\n"),
            7 => format!("cas {key} 7 0 {bytes} {}{noreply}\r\n{value}\r\n", rng.below(20)),
            8 => format!("incr {key} {}{noreply}\r\n", rng.next_u64()),
            9 => format!("delete {key}{noreply}\r\n"),
            10 => format!("gat {} {key} {other}\r\n", rng.below(3)),
            _ => format!("set {key} 0 0 {}\r\n{value}\r\n", bytes + 1),
        };
        text.extend_from_slice(line.as_bytes());
    }
    text
}

#[test]
fn conversations_do_not_depend_on_their_cuts() {
    let mut rng = Rng::new(12);
    for _ in 0..60 {
        let text = conversation(&mut rng);
        check::session(&text, rng.next_u64());
    }
}

#[test]
fn a_slow_reader_bounds_the_output_and_loses_nothing() {
    let store = Store::new(StoreConfig::default());
    let value = vec![b'v'; 100_000];
    store.store(StoreMode::Set, b"k", &value, 0, 0, NOW_S);
    let keys = 200;
    let request = [b"get".to_vec(), b" k".repeat(keys), b"\r\nversion\r\n".to_vec()].concat();
    let mut session = Session::new();
    let (mut out, mut total, mut at, mut turns) = (Vec::new(), 0, 0, 0);
    loop {
        let fed = session.feed(&request[at..], &mut out, &store, NOW_S);
        at += fed.consumed;
        turns += 1;
        assert!(out.len() < OUTPUT_PAUSE_BYTES + value.len() + 300);
        total += out.len();
        if !fed.blocked {
            break;
        }
        out.clear();
    }
    assert!(out.ends_with(b"END\r\nVERSION 1.6.0-lull-lab\r\n"));
    let item = "VALUE k 0 100000\r\n".len() + value.len() + 2;
    assert_eq!(total, keys * item + "END\r\nVERSION 1.6.0-lull-lab\r\n".len());
    assert!(turns > keys / 4);
}

#[test]
fn an_announced_value_takes_no_memory_before_it_comes() {
    let store = Store::new(StoreConfig::default());
    let mut sessions: Vec<Session> = (0..10_000).map(|_| Session::new()).collect();
    let mut out = Vec::new();
    // This would be 10 GB if the announced length were allocated.
    for session in &mut sessions {
        session.feed(b"set k 0 0 1000000\r\nx", &mut out, &store, NOW_S);
    }
    assert!(out.is_empty());
}
