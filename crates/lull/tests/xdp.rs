//! `lull serve` and `lull doctor` on an interface of the host, each in network namespaces of their own. They take root.

use std::path::PathBuf;
use std::process::{Command, Output};

fn is_root(test: &str) -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !root {
        println!("SKIP: {test} over AF_XDP: not root");
    }
    root
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn serve(what: &str, modes: &[&str]) {
    if !is_root(what) {
        return;
    }
    for mode in modes {
        let scratch = std::env::temp_dir().join(format!("lull-xdp-{what}-{mode}-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/xdp/serve.sh");
        let mut command = Command::new("unshare");
        command.args(["-n", "bash"]).arg(script).args([env!("CARGO_BIN_EXE_lull"), what, mode]);
        let output = command.current_dir(&scratch).output().unwrap();
        std::fs::remove_dir_all(&scratch).unwrap();
        assert!(output.status.success(), "{what} in mode {mode}: {}", text(&output));
    }
}

#[test]
fn an_address_of_its_own_is_served_in_every_kind_of_mode() {
    serve("alone", &["base", "defer200", "napibusy", "fullbusy", "suspend0", "suspend20", "threaded", "busyread"]);
}

#[test]
fn a_port_of_the_hosts_own_address_is_served() {
    serve("shared", &["suspend20"]);
}

#[test]
fn two_workers_have_a_queue_each() {
    serve("queues", &["base", "suspend20"]);
}

#[test]
fn a_packet_socket_serves_where_it_is_named() {
    serve("packet", &["base", "suspend20", "fullbusy"]);
}

/// Runs shell commands in a network namespace of their own, which has a veth pair.
fn on_a_veth(commands: &str) -> Output {
    let script =
        format!("ip link add x0 type veth peer name x1 && ip link set x0 up && ip link set x1 up && {commands}");
    Command::new("unshare").args(["-n", "sh", "-c", &script, env!("CARGO_BIN_EXE_lull")]).output().unwrap()
}

#[test]
fn doctor_says_what_an_interface_has() {
    if !is_root("doctor") {
        return;
    }
    let said = on_a_veth("$0 doctor xdp:x0");
    assert!(said.status.success(), "{}", text(&said));
    for part in ["native", "veth has no zero-copy", "queues: 0 can", "has no NAPI", "KiB are pinned for each queue"] {
        assert!(text(&said).contains(part), "{part}: {}", text(&said));
    }
    let json = on_a_veth("$0 doctor xdp:x0 --json");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["checks"].as_array().map(Vec::len), Some(6));
    // veth's driver refuses a peer that sends by more queues than there are to receive by.
    let pair = "type veth peer name y1 numtxqueues 2 numrxqueues 2";
    let up = "ip link set y0 up && ip link set y1 up";
    let generic = on_a_veth(&format!("ip link add y0 numtxqueues 1 numrxqueues 1 {pair} && {up} && $0 doctor xdp:y0"));
    assert!(text(&generic).contains("generic: it runs above the driver, which refused it"), "{}", text(&generic));
    let none = on_a_veth("$0 doctor xdp:x7");
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none).contains("WRONG") && text(&none).contains("x7: cannot find the interface"), "{}", text(&none));
}

#[test]
fn whose_a_queue_without_a_socket_is_is_said() {
    if !is_root("queues of the host") {
        return;
    }
    let pair = "ip link add y0 numtxqueues 2 numrxqueues 2 type veth peer name y1 numtxqueues 2 numrxqueues 2";
    let run = |queues: &str| {
        let said = on_a_veth(&format!(
            "{pair} && ip link set y0 up && ip link set y1 up && $0 run --nic xdp:y0{queues} --addr 192.0.2.7/24 --mode base -- true"
        ));
        assert!(said.status.success(), "{}", text(&said));
        String::from_utf8(said.stderr).unwrap()
    };
    assert!(run(":0").contains("what comes by queue 1 of y0 is the host's"), "{}", run(":0"));
    for all in ["", ":0-1"] {
        assert!(!run(all).contains("is the host's"), "{}", run(all));
    }
}

#[test]
fn compare_runs_on_a_veth_pair_of_its_own() {
    if !is_root("compare") {
        return;
    }
    let arguments =
        "compare --nic xdp --modes base,suspend20 --loads 1K --seconds 0.3 --runs 1 --connections 4 --records 100";
    let output = Command::new(env!("CARGO_BIN_EXE_lull")).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success() && text(&output).contains("nic veth (AF_XDP)"), "{}", text(&output));
    let rows = text(&output).lines().filter(|line| line.starts_with("base ") || line.starts_with("suspend20 ")).count();
    assert!(rows >= 2, "{}", text(&output));
}
