//! `lull sim replay` and `lull sim worlds` as commands.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn lull(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lull")).args(args).output().expect("lull runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn replay_shows_the_same_world_and_timeline_each_time() {
    let first = lull(&["sim", "replay", "3", "--limit", "20"]);
    let shown = text(&first.stdout);
    assert!(first.status.success(), "{shown}");
    assert!(shown.starts_with("seed 3: ") && shown.contains("every invariant held"), "{shown}");
    let events = shown.lines().filter(|line| line.contains(" ms  cpu ")).count();
    assert!((1..=20).contains(&events), "{shown}");
    assert_eq!(text(&lull(&["sim", "replay", "3", "--limit", "20"]).stdout), shown);
    assert_ne!(text(&lull(&["sim", "replay", "4", "--limit", "20"]).stdout), shown);
}

#[test]
fn what_cannot_be_done_is_said_in_one_line_with_status_2() {
    let out = lull(&["sim", "replay", "3", "--shrunk"]);
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(text(&out.stderr).lines().count(), 1);
    assert!(text(&out.stderr).contains("seed 3 keeps every invariant"), "{}", text(&out.stderr));
    let out = lull(&["sim", "worlds", "--from", "18446744073709551615", "--count", "2"]);
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(text(&out.stderr).lines().count(), 1);
    assert_eq!(lull(&["sim", "worlds", "--count", "0"]).status.code(), Some(2));
}

#[test]
fn worlds_tells_how_many_ran_and_what_they_covered() {
    let out = lull(&["sim", "worlds", "--count", "5", "--from", "10"]);
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{shown}");
    assert!(shown.contains("\n5 worlds, ") && shown.contains("  schedule: taken\n"), "{shown}");
}

#[test]
fn worlds_that_a_signal_left_out_are_no_success() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    command.args(["sim", "worlds", "--count", "1000000000"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // It installs the handler of SIGTERM after that of SIGINT, so when the latter shows, both are there.
    let status = format!("/proc/{}/status", child.id());
    let caught = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while caught() & 1 << (Signal::TERM.as_raw() - 1) == 0 {
        assert!(Instant::now() < until, "it awaits no signal");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("stopped after "), "{}", text(&output.stderr));
}
