//! `lull forward` between two TAPs whose kernel ends are in two network namespaces: a ping passes in both directions,
//! and the TAPs are removed with the command.

use std::process::Command;

/// Runs in a network and mount namespace of its own. `$1` is lull.
const SCRIPT: &str = r#"
set -eu
"$1" forward --from tap:fwd0 --to tap:fwd1 --mode "$2" --queues 2 > "$3" 2>&1 &
pid=$!
until grep -q "^forwarding between" "$3"; do kill -0 $pid; sleep 0.1; done
ip netns add far
trap 'ip netns del far' EXIT
ip link set fwd1 netns far
ip addr add 10.9.0.1/24 dev fwd0
ip link set fwd0 up
ip netns exec far ip addr add 10.9.0.2/24 dev fwd1
ip netns exec far ip link set fwd1 up
# Duplicate address detection and the like only add frames; the first answer may wait for a neighbour.
ping -c 3 -i 0.2 -w 60 10.9.0.2
ip netns exec far ping -c 3 -i 0.2 -w 60 10.9.0.1
kill -INT $pid
wait $pid
! ip link show fwd0 2> /dev/null
"#;

/// The same namespaces, in which a TAP is deleted while frames pass.
const DELETED: &str = r#"
set -u
timeout 120 "$1" forward --from tap:fwd0 --to tap:fwd1 --mode "$2" > "$3" 2>&1 &
pid=$!
until grep -q "^forwarding between" "$3"; do kill -0 $pid || exit 1; sleep 0.1; done
ip link set fwd0 up
ip link set fwd1 up
ip link del fwd1
wait $pid
[ $? = 2 ] || exit 1
! ip link show fwd0 2> /dev/null
"#;

/// Returns why the tests cannot run here.
fn lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces take root".to_owned());
    }
    let is_there = |tool: &&str| {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool} > /dev/null")]).status();
        found.is_ok_and(|found| found.success())
    };
    ["ip", "ping", "unshare"].iter().find(|tool| !is_there(tool)).map(|tool| format!("there is no {tool}"))
}

/// Runs a script in a network and mount namespace of its own; returns whether it succeeded, its output, and lull's.
fn run(script: &str, mode: &str) -> (bool, String, String) {
    let log = std::env::temp_dir().join(format!("lull-forward-{}-{}-{mode}", std::process::id(), script.len()));
    // `ip netns` keeps names in /run/netns, which is a directory of the script's own here.
    let own = "mount -t tmpfs none /run && mount -t sysfs none /sys && exec sh -c \"$0\" sh \"$@\"";
    let output = Command::new("unshare")
        // Processes that a failed script leaves behind end with its PID namespace.
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            own,
            script,
            env!("CARGO_BIN_EXE_lull"),
            mode,
        ])
        .arg(&log)
        .output()
        .unwrap();
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.success(), format!("{out}\n{err}"), said)
}

#[test]
fn a_ping_passes_between_two_taps_in_several_modes() {
    if let Some(lacks) = lacks() {
        println!("SKIP: {lacks}");
        return;
    }
    for mode in ["base", "threaded"] {
        let (ended_well, out, said) = run(SCRIPT, mode);
        assert!(ended_well, "{mode}: {out}\nlull said: {said}");
        // Answers that waited for a neighbour come together, and there may be one more than was waited for.
        assert!(said.contains("stopped") && out.matches(" received").count() == 2, "{mode}: {out}\n{said}");
    }
}

#[test]
fn a_tap_that_is_deleted_ends_the_command_by_name() {
    if let Some(lacks) = lacks() {
        println!("SKIP: {lacks}");
        return;
    }
    for mode in ["base", "threaded-busy"] {
        let (ended_well, out, said) = run(DELETED, mode);
        assert!(ended_well && said.contains("fwd1 was deleted"), "{mode}: {out}\nlull said: {said}");
    }
}
