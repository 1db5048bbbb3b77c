//! More unmodified programs on lull's user plane: UDP, event loops of other languages, TLS, and clients that others
//! wrote.

mod user;

use std::process::Command;

use serde_json::Value;
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

/// At its start dnsmasq closes every descriptor that is open, including those that the launcher handed on.
#[test]
fn dnsmasq_answers_over_udp_and_tcp_also_from_the_background() {
    for (mode, how) in [("base", "--keep-in-foreground"), ("suspend20", ""), ("fullbusy", "--keep-in-foreground")] {
        run("dnsmasq", "command -v dnsmasq && command -v python3 && command -v ip", mode, how);
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
fn valgrind_finds_nothing_in_a_program_and_the_library() {
    let needs = "command -v valgrind && command -v redis-server && command -v redis-benchmark && command -v nginx \
                 && command -v ab && command -v curl && command -v ip";
    run("memcheck", needs, "suspend20", "tap");
    match user::missing(&format!("test $(id -u) = 0 && {needs}")) {
        Some(reason) => println!("SKIP: memcheck over AF_XDP: {reason}, or this is not root"),
        None => user::run_in(&["-n"], "memcheck", "fullbusy", "xdp"),
    }
}

#[test]
fn connections_that_are_paced_keep_their_rate_or_are_said_not_to() {
    for (mode, qdisc) in [("base", "fq"), ("suspend20", "fq"), ("base", "pfifo_fast"), ("base", "none")] {
        run("egress", "command -v python3 && command -v pgrep && command -v ip", mode, qdisc);
    }
}

/// `memcached -N` splits connections over threads by SO_INCOMING_NAPI_ID, so that each epoll context has one NAPI.
#[test]
fn memcached_splits_connections_over_its_threads_by_napi_id() {
    let needs = "memcached -h | grep -q napi_ids && command -v python3 && command -v pgrep && command -v ip";
    for mode in ["base", "suspend20"] {
        run("napi_ids", needs, mode, "");
    }
}

/// A program of another network namespace, whose device has the same name, runs beside it.
#[test]
fn an_objective_is_kept_for_one_program_and_ends_with_its_launcher() {
    let needs = "command -v memcached && command -v python3 && command -v jq && command -v pgrep && command -v ip";
    run("slo", needs, "suspend20", "");
}

/// Returns the cells of `lull compare` on memcached over a NIC, in windows of this many seconds.
fn compared(nic: &str, seconds: &str) -> Vec<Value> {
    let file = std::env::temp_dir().join(format!("lull-compare-{nic}-{}.json", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_lull"))
        .args([
            "compare",
            "--service",
            "memcached",
            "--nic",
            nic,
            "--modes",
            "base,suspend20,coalesce-20",
            "--loads",
            "MAX",
        ])
        .args(["--runs", "1", "--seconds", seconds, "--connections", "8", "--records", "100", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("memcached as installed"), "{nic}: {said}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    report["cells"].as_array().unwrap().clone()
}

/// A row shows what the process counted; a mode that cannot be in force has the launcher's reason.
#[test]
fn the_labs_comparison_measures_an_unmodified_memcached() {
    let needs = "command -v memcached && command -v setpriv && command -v ip";
    for (nic, needs) in [("tap", needs.to_owned()), ("xdp", format!("test $(id -u) = 0 && {needs}"))] {
        if let Some(reason) = user::missing(&needs) {
            println!("SKIP: memcached in the lab's comparison over {nic}: {reason}, or this is not root");
            continue;
        }
        user::build_preload();
        // On a busy machine a short window may show nothing of a mode.
        let shown = |cells: &[Value]| cells[..2].iter().all(|cell| cell["verdict"]["is"] != "not_in_force");
        let windows = ["1", "5", "20"].into_iter();
        let mut measured = windows.map(|seconds| compared(nic, seconds));
        let cells = measured.find(|cells| shown(cells)).expect("a window shows the modes");
        for cell in &cells[..2] {
            assert!(
                cell["qps"]["value"].as_f64() > Some(0.0) && cell["counts"]["polls"].as_f64() > Some(0.0),
                "{cell}"
            );
            assert!(cell["cpu_percent"]["value"].as_f64() > Some(0.0), "{cell}");
        }
        assert_eq!(cells[2]["verdict"]["is"], "refused", "{}", cells[2]);
        let reason = cells[2]["verdict"]["reason"].as_str().unwrap();
        assert!(reason.starts_with("cannot run a program in mode coalesce-20"), "{reason}");
    }
}

/// A child sends itself a signal for which another of its threads waits.
#[test]
fn apaches_children_end_when_they_have_served_their_share() {
    for queues in ["1", "2"] {
        let needs = "ls /usr/lib/apache2/modules/mod_mpm_event.so && command -v apache2 && command -v ab && command -v curl && command -v ip";
        user::run("spent_children", needs, "suspend20", queues);
    }
}
