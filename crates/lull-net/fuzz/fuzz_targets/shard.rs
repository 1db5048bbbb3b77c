//! `cargo +nightly fuzz run shard` in `crates/lull-net`. The same bytes are replayed, and mutated, by the ordinary test
//! `tests/shard_fuzz.rs`.
#![no_main]

#[path = "../drive.rs"]
mod drive;
#[path = "../../tests/shard_harness/mod.rs"]
mod shard_harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drive::drive(data));
