//! More unmodified programs on lull's user plane: UDP, event loops of other languages, TLS, and clients of others.

mod user;

use user::run;

/// A mode of each kind: interrupts, suspension, busy polling.
const MODES: [&str; 3] = ["base", "suspend20", "fullbusy"];

#[test]
fn memcached_answers_datagrams() {
    for (mode, threads) in [("base", "1"), ("suspend20", "4"), ("fullbusy", "1")] {
        run("memcached_udp", "command -v memcached && command -v python3 && command -v ip", mode, threads);
    }
}

#[test]
fn datagrams_of_both_worlds_reach_a_server_and_a_client_reaches_both_worlds() {
    for mode in MODES {
        run("udp", "command -v python3 && command -v ip", mode, "");
    }
}
