//! Third-party clients against `lull serve` over a TAP, each in a network namespace of its own.

use std::path::PathBuf;
use std::process::Command;

/// Returns the reason why this machine cannot run a test that needs `program`, if it cannot.
fn missing(program: &str) -> Option<String> {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_err() {
        return Some("/dev/net/tun cannot be opened".to_owned());
    }
    let namespace = Command::new("unshare").args(["-Urn", "true"]).output();
    if !namespace.is_ok_and(|output| output.status.success()) {
        return Some("no unprivileged user namespaces (unshare -Urn)".to_owned());
    }
    let found = Command::new("sh").args(["-c", program]).output().is_ok_and(|output| output.status.success());
    (!found).then(|| format!("`{program}` fails: the client is not installed"))
}

fn serve(client: &str, needs: &str, mode: &str) {
    if let Some(reason) = missing(needs) {
        println!("SKIP: {client} over TAP: {reason}");
        return;
    }
    let scratch = std::env::temp_dir().join(format!("lull-tap-{client}-{mode}-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tap/clients.sh");
    let output = Command::new("unshare")
        .args(["-Urn", "bash"])
        .arg(script)
        .args([env!("CARGO_BIN_EXE_lull"), client, mode])
        .current_dir(&scratch)
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(&scratch).unwrap();
    assert!(output.status.success(), "{client} in mode {mode}: {said}");
    assert!(said.contains("stopped"), "the service ends cleanly at SIGTERM: {said}");
}

#[test]
fn the_kernel_pings_us() {
    serve("ping", "command -v ping", "base");
}

#[test]
fn libmemcached_tools_work() {
    serve("libmemcached", "command -v memccapable && command -v memcslap", "suspend20");
}

#[test]
fn pymemcache_works() {
    serve("pymemcache", "python3 -c 'import pymemcache'", "base");
}

#[test]
fn our_own_load_over_kernel_sockets_is_answered_in_every_kind_of_mode() {
    for mode in ["base", "defer200", "napibusy", "fullbusy", "suspend0", "suspend20", "threaded", "busyread"] {
        serve("load", "true", mode);
    }
}

#[test]
fn raw_clients_that_pipeline_refuse_to_read_and_crowd_in_are_served_or_told() {
    serve("raw", "python3 -c 'import socket'", "base");
    serve("raw", "python3 -c 'import socket'", "suspend20");
}

#[test]
fn a_client_that_asks_nothing_is_closed_when_asked_to() {
    serve("idle", "python3 -c 'import socket'", "suspend20");
}

#[test]
fn a_client_behind_a_gateway_is_served() {
    serve("gateway", "command -v ip && python3 -c 'import socket'", "base");
}

#[test]
fn ipv6_works() {
    serve("ipv6", "command -v ip && command -v ping", "suspend50");
}
