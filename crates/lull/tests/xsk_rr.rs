//! `lull xsk-rr` over each kind of socket: every answer is correct, and each cell says whether its mode was in force.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing here takes this long unless it is lost.
const LOST: Duration = Duration::from_secs(120);

fn lull(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lull")).arg("xsk-rr").args(args).output().unwrap()
}

/// Returns the JSON output of a run.
fn ran(args: &[&str]) -> Value {
    let output = lull(&[args, &["--json"]].concat());
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {error}");
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{args:?}: {out}"))
}

fn refused(args: &[&str], with: &str) {
    let output = lull(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{args:?} was taken");
    assert!(error.contains(with), "{args:?}: {error}");
}

/// Checks that each answer came once and as it was sent.
fn is_sound(args: &[&str], run: &Value) {
    let outcome = &run["outcome"];
    let count = |name: &str| outcome[name].as_u64().unwrap_or_else(|| panic!("{args:?}: {name} of {run}"));
    assert!(count("answered") > 0, "{args:?}: {run}");
    assert_eq!(count("answered") + count("lost") + count("under_way"), count("sent"), "{args:?}: {run}");
    assert_eq!(count("corrupt"), 0, "{args:?}: {run}");
    // On a busy machine a closed loop that got no answer for a second has given requests up whose answers come later.
    let is_closed = args.contains(&"-o");
    assert!(is_closed || count("unexpected") == 0, "{args:?}: {run}");
    let percentile = |of: &str, which: &str| outcome[of][which].as_u64().unwrap();
    for of in ["from_send_ns", "from_intended_ns"] {
        let row = ["p5", "p50", "p95", "p99", "max"].map(|which| percentile(of, which));
        assert!(row.is_sorted() && row[0] > 0, "{args:?}: {row:?}");
    }
    assert!(percentile("from_intended_ns", "p50") >= percentile("from_send_ns", "p5"), "{args:?}: {run}");
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t0")))
}

/// Whether the window had an answer: if the machine gives the server no core in it, all requests may be under way from
/// before to after.
fn is_answered(run: &Value) -> bool {
    run["outcome"]["answered"].as_u64() != Some(0)
}

/// Returns the output of a run that had an answer in its window.
fn answered(args: &[&str]) -> Value {
    let mut run = ran(args);
    for _ in 0..100 {
        if is_answered(&run) {
            break;
        }
        run = ran(args);
    }
    run
}

const SHORT: [&str; 4] = ["--seconds", "0.3", "--oversubscribe", "--verify"];

/// Returns how often a receive call was made.
fn receive_calls(run: &Value) -> u64 {
    let by_length = run["outcome"]["receive_calls"]["by_log2_ns"].as_array().unwrap();
    by_length.iter().map(|calls| calls.as_u64().unwrap()).sum()
}

#[test]
fn a_table_that_a_signal_ends_says_so_and_has_not_succeeded() {
    use std::io::{BufRead, BufReader};

    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    command.args(["xsk-rr", "--table", "--seconds", "0.5", "--oversubscribe"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // One cell is done, and 34 are not.
    assert!(lines.any(|line| line.contains(" interrupts ")));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(lines.any(|line| line.starts_with("INTERRUPTED")));
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_run_that_a_signal_ends_has_not_succeeded() {
    use std::io::{BufRead, BufReader};

    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    let args = ["xsk-rr", "-P", "1ms", "--seconds", "600", "-l", "0.05", "--oversubscribe"];
    let mut child = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(" answers, ")));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(lines.any(|line| line.starts_with("requests ")));
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn every_way_of_polling_answers_every_request_in_memory() {
    for mode in ["interrupts", "inline", "separate", "threaded", "threaded-busy", "group"] {
        let args = [&["--mode", mode, "-P", "2ms", "-d", "100us"], &SHORT[..]].concat();
        let (mut run, mut calls) = (Value::Null, 0);
        // On a busy machine the client may find every answer there when it looks, and never have to make a call.
        for _ in 0..100 {
            run = answered(&args);
            is_sound(&args, &run);
            calls = receive_calls(&run);
            if calls > 0 || !["interrupts", "inline"].contains(&mode) {
                break;
            }
        }
        match mode {
            "interrupts" => assert!(calls > 0 && run["state"]["is"] == "in_force", "{mode}: {run}"),
            // Whether a timer of 15 us is on time depends on the machine.
            "inline" => assert!(calls > 0, "{mode}: {run}"),
            "separate" => assert_eq!(calls, 0, "another thread's: {run}"),
            _ => assert!(calls == 0 && run["state"]["is"] == "in_force", "{mode}: {run}"),
        }
    }
}

#[test]
fn closed_loops_threads_and_payloads_are_as_asked_for() {
    for more in [
        &["-o", "8"][..],
        &["-o", "3", "-T", "-B", "16"],
        &["-P", "1500000", "-T", "-B", "1472"],
        &["-t", "-P", "2ms"],
        &["-n", "--mode", "interrupts", "-P", "2ms"],
        &["-l", "0.1", "-P", "2ms"],
    ] {
        let args = [more, &SHORT[..]].concat();
        is_sound(&args, &answered(&args));
    }
    let reporting = || {
        let output = lull(&["-P", "2ms", "-l", "0.1", "--seconds", "1", "--oversubscribe"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let is_report = |line: &&str| line.contains("answers, p5");
    let mut text = reporting();
    // This is the same for a window without an answer.
    for _ in 0..100 {
        if text.lines().any(|line| is_report(&line)) {
            break;
        }
        text = reporting();
    }
    let before = |text: &str, what: &str| -> Option<u64> { text.split(what).next()?.rsplit(' ').next()?.parse().ok() };
    let reports: Vec<&str> = text.lines().filter(is_report).collect();
    let reported: u64 = reports.iter().map(|report| before(report, " answers, p5").unwrap()).sum();
    let sum = text.lines().find(|line| line.contains(" answered, ")).unwrap();
    assert!(!reports.is_empty() && Some(reported) == before(sum, " answered, "), "{text}");
    assert!(text.contains("interrupts over mem: in force") && text.contains("from intended"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    refused(&["-B", "15"], "a payload of 15 bytes: it is 16 to 1472");
    refused(&["-o", "0"], "0 requests outstanding: it is 1 to");
    refused(&["-P", "0"], "every 0 ns");
    refused(&["-P", "fast"], "'fast' is no time");
    refused(&["-t", "-n"], "exclude one another");
    refused(&["--mode", "inline", "-n"], "polls by receive calls, which -n leaves out");
    refused(&["--mode", "turbo"], "use interrupts, inline, separate, threaded, threaded-busy, group");
    refused(&["--nic", "eth0"], "unknown NIC 'eth0': use mem, taps, veth, tap:NAME or xdp:DEV[:QUEUE]");
    refused(&["--nic", "xdp:eth0:0,1"], "a socket has one queue");
    refused(&["-h"], "--serve takes one end (tap:NAME or xdp:DEV)");
    refused(&["--zero-copy"], "--zero-copy takes xdp:DEV");
    refused(&["--nic", "xdp:eth0", "--table"], "--table takes both ends");
    refused(&["--nic", "veth", "--no-realtime"], "--no-realtime takes lull's own interrupt threads");
    refused(&["--server-mac", "02:00"], "no Ethernet address");
    let core = lull_host::usable_cores()[0].to_string();
    refused(&["--cores", &format!("{core},4096")], "cannot use core 4096");
    let too_few = "not enough cores: it takes 4, and there are 1; --oversubscribe";
    refused(&["--cores", &core, "--mode", "separate"], too_few);
    refused(&["--nic", "tap:x", "--cores", &core, "--mode", "group"], "it takes 2, and there are 1");
    refused(&["--nic", "xdp:nothere0"], "find the interface");
    refused(&["--nic", "xdp:lo", "--mode", "group"], "the nearest is threaded-busy");
}

#[test]
fn the_table_has_every_cell_ours_or_why_not_beside_the_published_one() {
    let core = lull_host::usable_cores()[0].to_string();
    let table = ran(&["--table", "--seconds", "0.02", "--cores", &core]);
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5 * 7);
    for row in rows {
        assert_eq!((row["state"]["is"].as_str(), row["state"]["has"].as_u64()), (Some("not_enough_cores"), Some(1)));
        assert!(row["ours_ns"].is_null());
        let has_published = !["threaded", "group", "two interrupt pairs"].contains(&row["polling"].as_str().unwrap());
        assert_eq!(row["published_ns"].is_array(), has_published, "{row}");
    }
    let pairs = rows.iter().find(|row| row["polling"] == "two interrupt pairs").unwrap();
    assert_eq!(pairs["state"]["needs"], 4);
    assert_eq!(rows[0]["published_ns"][1], 14_200);
}

/// Over TAPs a frame takes a read and a write; over veth the kernel's AF_XDP sockets are used.
#[test]
fn taps_and_the_kernels_sockets_answer_as_well_and_say_what_was_in_force() {
    if !is_root() {
        println!("SKIP: no root, which makes TAPs and veth pairs");
        return;
    }
    for mode in ["interrupts", "threaded", "group"] {
        let args = [&["--nic", "taps", "--mode", mode, "-P", "5ms"], &SHORT[..]].concat();
        let run = answered(&args);
        is_sound(&args, &run);
        assert_eq!(run["state"]["is"], "in_force", "{mode}: {run}");
    }
    for mode in ["interrupts", "inline", "separate", "threaded"] {
        let args = [&["--nic", "veth", "--mode", mode, "-P", "5ms"], &SHORT[..]].concat();
        let run = answered(&args);
        is_sound(&args, &run);
        assert!(run["device"].as_str().unwrap().contains("copy mode"), "{run}");
        match mode {
            // A veth has no NAPI to poll, because its driver names none.
            "inline" | "separate" if run["state"]["is"] != "in_force" => {
                let reason = run["state"]["reason"].as_str().unwrap_or_default();
                assert!(reason.contains("SO_BUSY_POLL has no effect"), "{mode}: {run}");
            }
            _ => assert_eq!(run["state"]["is"], "in_force", "{mode}: {run}"),
        }
    }
    refused(&["--nic", "veth", "--mode", "group", "--oversubscribe"], "Linux has no busy-polling groups");
}

/// The kernel names a NAPI's thread by its number in the initial PID namespace, which in a container is that of another
/// thread or of none. No thread is moved.
#[test]
fn in_another_pid_namespace_no_thread_is_taken_for_a_napis() {
    if !is_root() {
        println!("SKIP: no root, which makes veth pairs and PID namespaces");
        return;
    }
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_lull"), "xsk-rr"])
        .args(["--nic", "veth", "--mode", "threaded", "-P", "5ms"])
        .args(SHORT)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{error}");
    assert!(error.contains("its number is that of the initial PID namespace, and this is another"), "{error}");
}

/// A program that ends with the test, however that ends.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server is lull's, on a TAP; the client is an AF_XDP socket of the kernel's on the interface behind it.
#[test]
fn the_two_ends_may_be_two_programs_on_two_planes() {
    if !is_root() {
        println!("SKIP: no root, which makes a TAP and opens AF_XDP");
        return;
    }
    lull_nic::namespace::enter_private().unwrap();
    let server = Command::new(env!("CARGO_BIN_EXE_lull"))
        .args(["xsk-rr", "-h", "--nic", "tap:lull-one", "--oversubscribe"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut server = Ends(server);
    let up = || Command::new("ip").args(["link", "set", "lull-one", "up"]).stderr(Stdio::null()).status().unwrap();
    let begin = Instant::now();
    while !up().success() {
        assert!(begin.elapsed() < LOST, "the server made no TAP");
        std::thread::sleep(Duration::from_millis(20));
    }
    let args = [&["--nic", "xdp:lull-one", "-P", "5ms"], &SHORT[..]].concat();
    let run = answered(&args);
    // SIGTERM ends the server cleanly.
    Command::new("kill").arg(server.0.id().to_string()).status().unwrap();
    assert!(server.0.wait().unwrap().success());
    is_sound(&args, &run);
    assert!(run["device"].as_str().unwrap().contains("AF_XDP"), "{run}");
}
