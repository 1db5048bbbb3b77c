//! Bad input gets one line that names the object and the remedy, and exit status 2; signals end a comparison with its
//! partial table.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn lull(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lull")).args(arguments.split_whitespace()).output().unwrap()
}

#[track_caller]
fn refused(arguments: &str, says: &[&str]) {
    let output = lull(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "lull {arguments}: {said}");
    for word in says {
        assert!(said.contains(word), "lull {arguments} says: {said}");
    }
    assert!(output.stdout.is_empty());
}

#[track_caller]
fn refused_in_one_line(arguments: &str, says: &[&str]) {
    refused(arguments, says);
    let said = String::from_utf8(lull(arguments).stderr).unwrap();
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn wrong_modes_and_loads() {
    refused_in_one_line("compare --modes base,defr20", &["defr20", "suspendX"]);
    refused_in_one_line("compare --loads fast", &["fast", "MAX"]);
    refused_in_one_line("compare --loads 0%", &["0%"]);
    refused_in_one_line("compare --limit 1", &["1 s are allowed", "fewer"]);
    refused("compare --seconds -1", &["--seconds"]);
    refused("compare --nic eth0", &["eth0", "mem", "tap"]);
    refused_in_one_line("compare --workers 0", &["0 workers"]);
    refused_in_one_line("compare --workers 4000", &["4000", "--workers"]);
    refused_in_one_line("compare --queues 0", &["queues", "1 and 256"]);
    refused_in_one_line("compare --workers 2 --queues 1", &["2 workers", "--queues"]);
    refused("compare --queues 4 --epoll all", &["all", "linux", "every-napi"]);
    refused_in_one_line("compare --plane kernel --queues 4 --epoll every-napi", &["--epoll", "kernel plane"]);
    refused_in_one_line("compare --connections 0", &["connections"]);
    refused_in_one_line("compare --buffer-bytes 1", &["buffer"]);
    refused_in_one_line("compare --csv /no/such/place/x.csv", &["/no/such/place"]);
}

#[test]
fn two_outputs_to_one_file_are_refused() {
    for (one, other) in [("r", "r"), ("./r", "r"), ("r", "src/../r")] {
        refused_in_one_line(&format!("compare --csv {one} --html {other}"), &["two outputs", "name another file"]);
    }
    let directory = std::env::temp_dir().join(format!("lull-outputs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("file"), "").unwrap();
    std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
    let place = directory.display();
    refused_in_one_line(&format!("compare --csv {place}/file --json {place}/link"), &["two outputs", "link"]);
    // /dev/null may be given twice, because it is written to and not replaced; so the mode is what is refused.
    refused_in_one_line("flood --csv /dev/null --json /dev/null --runs 0", &["0 runs"]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_directory_that_cannot_be_written_is_said_before_anything_is_measured() {
    let directory = std::env::temp_dir().join(format!("lull-unwritable-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o555)).unwrap();
    let file = directory.join("r");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    command.args(["compare", "--modes", "base", "--runs", "1", "--seconds", "0.1", "--csv"]).arg(&file);
    // Root may write anywhere.
    if rustix::process::geteuid().is_root() {
        command.uid(65_534);
    }
    let output = command.output();
    std::fs::remove_dir_all(&directory).unwrap();
    let Ok(output) = output else {
        println!("SKIP: an unwritable directory: another user may not run what was built");
        return;
    };
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let place = directory.display();
    assert_eq!(
        said.trim_end(),
        format!(
            "lull: cannot write {place}/r: {place} cannot be written (Permission denied (os error 13)); name another file"
        )
    );
}

/// Such a command has nothing to clean up, and does not look at a flag while it computes.
#[test]
fn a_signal_ends_what_only_computes_at_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    command.args(["sim", "fit", "--evaluations", "100000"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "24 cells");
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let until = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > until {
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let _ = child.kill();
    assert_eq!(status.expect("it goes on").signal(), Some(15));
}

#[test]
fn what_would_be_changed_or_ignored() {
    refused("load 127.0.0.1:1 --depth 0", &["--depth", "1..=1024"]);
    refused("load 127.0.0.1:1 --depth 1025", &["--depth", "1..=1024"]);
    for option in ["-h", "-P 1us", "-o 2", "-d 1us", "-T", "-t", "-n", "-v", "-l 1", "--mode group", "--zero-copy"] {
        refused(&format!("xsk-rr --table {option}"), &["--table", "cannot be used with"]);
    }
    refused_in_one_line("sim fit --table xsk_rr --perturb 10", &["--perturb", "irq"]);
    refused_in_one_line("sim fit --out /no/such/place/x.toml", &["/no/such/place", "make it first"]);
    refused_in_one_line("calibrate --workers 4 --connections 2 --out m.toml", &["4 workers", "--connections"]);
}

#[test]
fn a_case_takes_its_own_options_only() {
    refused("compare --case many", &["many", "batch-limit"]);
    refused_in_one_line("compare --events-max 8", &["--events-max", "--case"]);
    refused_in_one_line("compare --case batch-limit --loads MAX", &["--loads", "batch-limit", "--events-max"]);
    refused_in_one_line("compare --case batch-limit --events-max 0", &["0 events", "1 to 64"]);
    refused_in_one_line("compare --case batch-limit --events-max 65", &["65 events", "1 to 64"]);
    refused_in_one_line("compare --case batch-limit --runs 0", &["0 runs", "at least 1"]);
    refused_in_one_line("compare --case batch-limit --modes base,suspend20", &["2 modes", "name one"]);
    refused_in_one_line("compare --case batch-limit --connections 0", &["connections"]);
    refused_in_one_line("compare --case batch-limit --connections 30001", &["30001 connections", "1 to 30000"]);
    refused_in_one_line("compare --case batch-limit --second-load 0", &["0 times", "at least 1"]);
    refused_in_one_line("compare --case first-packet --modes suspend20", &["--modes", "first-packet"]);
    refused_in_one_line("compare --case batch-limit --cores 0,0", &["core 0 twice"]);
    refused_in_one_line("compare --case tcp-rr --modes suspend20", &["suspend20", "epoll"]);
    refused("compare --case tcp-rr --rx-usecs 16/x", &["16/x", "16/44"]);
    refused_in_one_line("compare --rx-usecs 16,1", &["several", "--rx-usecs", "--case"]);
    refused_in_one_line("compare --rx-usecs 16/44 --rx-frames 3", &["--rx-frames", "once"]);
    refused_in_one_line("compare --qdisc fq,noqueue", &["several", "--qdisc", "--case"]);
    refused_in_one_line("compare --plane kernel --qdisc fq", &["--qdisc", "kernel plane"]);
    refused("compare --qdisc codel", &["codel", "pfifo_fast"]);
    refused("run --qdisc fq -- true", &["--nic"]);
    refused_in_one_line("compare --queues 1,4", &["several", "--queues", "--case"]);
    refused_in_one_line("compare --case many-queues --queues 0", &["queues", "1 and 256"]);
    refused_in_one_line("compare --case many-queues --loads 25%", &["25%", "200K"]);
    refused_in_one_line("compare --case many-queues --loads 10K,MAX", &["several loads"]);
    refused_in_one_line("compare --case batch-limit --csv /no/such/place/x.csv", &["/no/such/place"]);
}

#[test]
fn an_unmodified_service_takes_what_is_not_inside_lulls_own() {
    refused_in_one_line("compare --service auto", &["--service auto", "--plane kernel"]);
    refused_in_one_line("compare --service memcached --nic mem", &["in-memory NIC", "--nic tap"]);
    refused_in_one_line("compare --service memcached --buffer-bytes 4096", &["--buffer-bytes", "--service own"]);
    refused_in_one_line("compare --service memcached --realtime", &["--realtime", "--service own"]);
    refused_in_one_line("compare --service memcached --rx-usecs 16", &["--rx-usecs", "--service own"]);
}

#[test]
fn a_flood_has_sizes_flows_and_modes_of_its_own() {
    refused("flood --bytes x", &["--bytes", "x"]);
    refused_in_one_line("flood --bytes 0", &["0 bytes", "1 to 65507"]);
    refused_in_one_line("flood --flows 1001", &["1001 flows", "1 to 1000"]);
    refused_in_one_line("flood --modes suspend20", &["suspend20", "softirq-fifo", "threaded"]);
    refused_in_one_line("flood --modes softirq --thread-policy fifo:50", &["thread policy", "threaded"]);
    refused("flood --thread-policy nice:5", &["nice:5", "fifo"]);
    refused_in_one_line("flood --plane kernel --nic tap", &["--nic", "--plane kernel"]);
    refused_in_one_line("flood --plane kernel --group-cpus 1", &["--group-cpus", "--plane kernel"]);
    refused_in_one_line("flood --case fairness --flows 3", &["--flows", "fairness"]);
    refused_in_one_line("flood --case crowd --applications 65", &["65 applications", "1 to 64"]);
    refused_in_one_line("flood --applications 2", &["--applications"]);
    refused_in_one_line("flood --runs 0", &["0 runs"]);
    refused_in_one_line("flood --rate 0", &["rate of 0", "at least 1"]);
    refused_in_one_line("flood --case crowd --rate 0", &["rate of 0", "at least 1"]);
    refused("flood --table --bytes 64", &["--table", "--bytes"]);
    refused_in_one_line("flood --json /no/such/place/x.json", &["/no/such/place"]);
}

#[test]
fn forwarding_has_two_devices_of_a_kind() {
    refused_in_one_line("forward", &["two devices", "--from", "--to"]);
    refused("forward --from xdp:eth0 --to tap:b", &["xdp:eth0", "tap:NAME"]);
    refused_in_one_line("forward --from mem --to tap:b", &["mem", "two TAPs"]);
    refused_in_one_line("forward --from tap:a --to tap:a", &["itself", "--to"]);
    refused_in_one_line("forward --from tap:a --to tap:b --bytes 64", &["--bytes", "between TAPs"]);
    refused_in_one_line("forward --from tap:a --to tap:b --mode group", &["group", "--group-cpus"]);
    refused_in_one_line("forward --from mem --to mem --mode base", &["--mode", "--modes"]);
    refused_in_one_line("forward --from mem --to mem --modes suspend20", &["suspend20", "threaded"]);
    refused_in_one_line("forward --from mem --to mem --bytes 1473", &["1473", "1 to 1472"]);
    refused_in_one_line("forward --from mem --to mem --rate 0", &["rate of 0", "at least 1"]);
    refused_in_one_line("forward --plane kernel --from mem --to mem", &["--plane kernel", "--from"]);
}

#[test]
fn a_programs_nic_takes_its_own_options_only() {
    let run = |options: &str| format!("run --mode base --addr 10.0.0.2/24 {options} --dry-run -- /bin/true");
    refused_in_one_line(&run("--nic eth0"), &["eth0", "tap:NAME", "xdp:DEV"]);
    refused_in_one_line(&run("--nic xdp:"), &["xdp:DEV", "xdp:eth0"]);
    refused_in_one_line(&run("--nic xdp:lo --peer-addr 10.0.0.1/24"), &["--peer-addr", "xdp", "ip addr add"]);
    refused_in_one_line(&run("--nic xdp:lo --queues 2"), &["--queues", "xdp:eth0:0-1"]);
    refused_in_one_line(&run("--nic tap:x --ports 80"), &["--ports", "xdp:DEV"]);
    refused_in_one_line(&run("--nic tap:x --vlan 7"), &["--vlan", "xdp:DEV"]);
    refused_in_one_line("run --mode base --dev lo --ports 80 -- /bin/true", &["--ports", "--nic xdp:DEV"]);
}

/// The stack starts in the program, which might go on without it; so the error is told before the program starts.
#[test]
fn addresses_and_gateways_that_no_stack_can_have_are_refused_before_the_program_starts() {
    let run = |options: &str| format!("run --nic tap:x --mode base {options} --dry-run -- /bin/true");
    refused_in_one_line(&run("--addr 10.0.0.2/24 --gateway 10.9.0.1"), &["10.9.0.1", "10.0.0.2/24", "router"]);
    refused_in_one_line(&run("--addr 0.0.0.0/0"), &["0.0.0.0/0", "any address"]);
    refused_in_one_line(&run("--addr 224.0.0.9/8"), &["224.0.0.9/8", "group's"]);
    refused_in_one_line(&run("--addr 127.0.0.1/8"), &["127.0.0.1", "TAP", "--addr"]);
    let serve = "serve --nic tap:x --addr";
    refused_in_one_line(&format!("{serve} 10.0.0.2/24 --gateway 10.9.0.1"), &["10.9.0.1", "10.0.0.2/24", "router"]);
    refused_in_one_line(&format!("{serve} 127.0.0.1/8"), &["127.0.0.1", "TAP", "--addr"]);
}

/// `timeout` sends a signal to its child and once more to the group that the child is in.
#[test]
fn two_signals_at_once_are_one_request_to_end() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    command.args(["sim", "worlds", "--count", "1000000000"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().contains(" worlds, "));
    let drain = std::thread::spawn(move || said.for_each(drop));
    // While the process is stopped both signals become pending, and it takes both before it does anything else.
    for signal in ["-STOP", "-INT", "-TERM", "-CONT"] {
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    }
    let output = child.wait_with_output().unwrap();
    drain.join().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("transitions of the core"));
}

/// Such a command has nothing to restore, and would not look whether it is to end.
#[test]
fn a_command_that_only_shows_ends_at_the_first_signal() {
    use std::os::unix::fs::OpenOptionsExt;

    let fifo = std::env::temp_dir().join(format!("lull-merge-{}", std::process::id()));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    let mut child = command.arg("merge").arg(&fifo).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    // Nobody can open the pipe for writing before the command reads from it.
    let end = loop {
        match std::fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&fifo) {
            Ok(end) => break end,
            Err(error) => assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NXIO.raw_os_error())),
        }
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    // A command that went on would find the input empty.
    drop(end);
    let status = child.wait().unwrap();
    std::fs::remove_file(&fifo).unwrap();
    assert_eq!(status.signal(), Some(15), "{status}");
}

#[test]
fn wrong_addresses_and_nics() {
    refused_in_one_line("serve --nic eth0 --addr 10.0.0.2/24", &["eth0", "tap:NAME"]);
    refused_in_one_line("serve --nic mem --addr 10.0.0.2/24", &["--addr", "mem", "tap:NAME"]);
    refused_in_one_line("serve --nic xdp: --addr 10.0.0.2/24", &["xdp:DEV", "xdp:eth0"]);
    refused_in_one_line("serve --nic xdp:nowhere:x --addr 10.0.0.2/24", &["'x'", "0,2-3"]);
    refused_in_one_line("serve --nic xdp:nowhere --addr 10.0.0.2/24", &["nowhere", "find the interface", "ip link"]);
    refused_in_one_line("serve --nic xdp:lo --addr 10.0.0.2/24 --rx-ring 1000", &["1000 slots", "power of two"]);
    refused_in_one_line("serve --nic xdp:lo --addr 10.0.0.2/24 --vlan 4095", &["4095", "1 to 4094"]);
    refused_in_one_line("serve --nic xdp:lo --addr 10.0.0.2/24 --ports 0", &["port 0", "1 to 65535"]);
    refused_in_one_line("serve --nic xdp:lo --addr 10.0.0.2/24 --ports 80", &["11211", "--ports"]);
    refused_in_one_line("serve --nic xdp:lo --addr 127.0.0.1/24", &["127.0.0.1 is the host's own", "--ports"]);
    refused_in_one_line("serve --nic xdp:lo --addr 10.0.0.2/24 --peer-addr 10.0.0.1/24", &["--peer-addr", "xdp"]);
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2/24 --ports 11211", &["--ports", "xdp:DEV"]);
    refused_in_one_line("serve --nic packet:lo --addr 10.0.0.2/24 --ports 11211", &["--ports", "xdp:DEV"]);
    refused_in_one_line("serve --nic packet:lo --addr 127.0.0.1/24", &["127.0.0.1 is the host's own", "xdp:DEV"]);
    refused_in_one_line("doctor xdp:lo --pid 1", &["--pid"]);
    refused_in_one_line("doctor 1 --pid 2", &["two programs, 1 and 2"]);
    refused_in_one_line("undo", &["a device or a process", "--all"]);
    refused_in_one_line("serve --nic mem --load 25%", &["25%", "200K"]);
    refused_in_one_line("attach --pid 1 --mode coalesce-20 --once", &["coalesce-20", "suspend20", "ethtool"]);
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2/24 --load 1K", &["--load", "tap", "lull load"]);
    refused_in_one_line("serve --nic tap:x", &["--addr"]);
    refused_in_one_line(
        "serve --nic tap:x --addr 10.0.0.2/24 --gateway 10.0.0.1 --gateway 10.0.0.3",
        &["10.0.0.1", "10.0.0.3", "--gateway"],
    );
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2", &["10.0.0.2", "/24"]);
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2/33", &["10.0.0.2/33"]);
    refused_in_one_line(
        "serve --nic tap:a-name-that-is-far-too-long --addr 10.0.0.2/24",
        &["a-name-that-is-far-too-long"],
    );
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2/24 --mode fast", &["fast"]);
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2/24 -t 0", &["0 workers", "-t"]);
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2/24 --cores 4000", &["core 4000", "may use 0"]);
    refused_in_one_line("compare --cores 0,0", &["core 0 twice"]);
    refused_in_one_line("serve --nic tap:x --addr 10.0.0.2/24 -m 1", &["half of the memory", "-I", "-m"]);
    refused("serve --nic tap:x --addr 10.0.0.2/24 -m 0", &["'0'", "--memory-megabytes", "1.."]);
    refused("serve --nic tap:x --addr 10.0.0.2/24 -p 0", &["'0'", "--port", "1.."]);
    refused("serve --nic tap:x --addr 10.0.0.2/24 -c 0", &["'0'", "--connections-max", "1.."]);
    refused("serve --nic tap:x --addr 10.0.0.2/24 -I 512g", &["512g", "512k"]);
    refused_in_one_line("serve --nic mem --idle-timeout 5", &["--idle-timeout", "mem"]);
    refused_in_one_line("serve --nic mem --offloads on", &["--offloads", "mem"]);
    refused_in_one_line("load nowhere", &["nowhere", "HOST:PORT"]);
    refused_in_one_line("load 127.0.0.1:1 --load 25%", &["25%"]);
    refused_in_one_line("load 127.0.0.1:1 --connect-timeout 1", &["connections came up"]);
}

#[test]
fn what_a_controller_or_a_dry_run_would_ignore_is_refused() {
    let apply = "apply lo --mode suspend20";
    refused(&format!("{apply} --watch --read-back 1 --slo p99<1ms"), &["--slo", "--read-back"]);
    refused(&format!("{apply} --report /tmp/x"), &["--slo"]);
    refused(&format!("{apply} --cpu-max 60%"), &["--slo"]);
    refused(&format!("{apply} --dry-run --watch --prometheus 127.0.0.1:0"), &["--dry-run", "--prometheus"]);
    refused(&format!("{apply} --dry-run --slo p99<1ms --report /tmp/x"), &["--dry-run", "--report"]);
    refused("run --dev lo --mode base --dry-run --prometheus 127.0.0.1:0 -- true", &["--dry-run", "--prometheus"]);
}

#[test]
fn a_signal_ends_a_comparison_with_its_partial_table() {
    let arguments =
        "compare --modes base,suspend50 --loads MAX --runs 100 --seconds 0.2 --records 1000 --progress plain";
    let mut child = Command::new(env!("CARGO_BIN_EXE_lull"))
        .args(arguments.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The third line of progress means that both modes have been measured at least once.
    let stderr = child.stderr.take().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stderr));
    for _ in 0..3 {
        lines.next().unwrap().unwrap();
    }
    let drain = std::thread::spawn(move || lines.for_each(drop));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    drain.join().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(table.to_lowercase().contains("stopped early") && table.contains("suspend50"), "{table}");
}

/// Runs `lull` with its standard output, or its standard error, going elsewhere.
fn lull_with_output(arguments: &[&str], stdout: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    command.args(arguments).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

const PRINTING: [&[&str]; 5] = [
    &["sim", "replay", "7", "--limit", "5"],
    &["sim", "example", "memcached"],
    &["doctor"],
    &["prepare", "--show-profile"],
    &["--help"],
];

#[test]
fn a_reader_that_ends_first_is_no_panic() {
    for arguments in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = lull_with_output(arguments, writer.into());
        assert_eq!(output.status.code(), Some(141), "lull {arguments:?}: as a shell reports SIGPIPE");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "lull {arguments:?}");
    }
}

#[test]
fn an_output_that_is_full_is_said_in_one_line() {
    for arguments in PRINTING {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = lull_with_output(arguments, full.into());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "lull {arguments:?}: {said}");
        assert!(said.contains("cannot write to standard output: No space left"), "lull {arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "lull {arguments:?}: {said}");
    }
}

#[test]
fn a_standard_error_that_is_full_keeps_the_status() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    let status = command.args(["sim", "example", "no-such-example"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_command_below_another_that_prints_json_fails_in_json() {
    let output = lull("group show 4194300 --json");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.code() == Some(2) && said["error"].as_str().unwrap().contains("4194300"), "{said}");
    assert!(lull("group show 4194300").stdout.is_empty());
}
