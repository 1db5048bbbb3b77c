//! `cargo +nightly fuzz run session` feeds any bytes, cut anywhere, into a memcached session.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../check.rs"]
mod check;

fuzz_target!(|input: &[u8]| {
    let cuts = input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    check::session(input, cuts);
});
