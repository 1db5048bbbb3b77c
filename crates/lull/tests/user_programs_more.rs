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

/// dnsmasq closes at its start every descriptor that is open, those included that the launcher handed on.
#[test]
fn dnsmasq_answers_over_udp_and_tcp() {
    for mode in MODES {
        run("dnsmasq", "command -v dnsmasq && command -v python3 && command -v ip", mode, "");
    }
}

#[test]
fn event_loops_of_python_node_and_java_serve_and_a_client_of_asyncio_asks() {
    let with = |program: &str| format!("command -v python3 && command -v ip && {program}");
    for mode in MODES {
        run("http", &with("true"), mode, "python");
        run("http", &with("command -v node"), mode, "node");
        run("http", &with("command -v java && command -v javac"), mode, "java");
    }
}

#[test]
fn nginx_with_tls_answers_directly_and_behind_haproxy_on_a_second_nic() {
    let needs = "command -v nginx && command -v haproxy && command -v curl && command -v ab && command -v openssl && command -v ip";
    for mode in MODES {
        run("tls", needs, mode, "");
    }
}

#[test]
fn load_generators_of_others_find_nothing_amiss() {
    let needs = "command -v nginx && command -v ab && command -v curl && command -v redis-server && command -v redis-benchmark \
                 && command -v memcached && command -v ip";
    for mode in MODES {
        run("clients", needs, mode, "");
    }
}

#[test]
fn connections_that_are_paced_keep_their_rate_or_are_said_not_to() {
    for (mode, qdisc) in [("base", "fq"), ("suspend20", "fq"), ("base", "pfifo_fast"), ("base", "none")] {
        run("egress", "command -v python3 && command -v pgrep && command -v ip", mode, qdisc);
    }
}
