//! `lull doctor` and `lull prepare` on a veth in a network namespace.

mod kernel;

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use kernel::{BASE, SUSPEND20, World, lines_of, script};

/// Writes a profile with these steps.
fn profile(world: &World, steps: &str) -> String {
    fs::create_dir_all(&world.state).unwrap();
    let path = world.state.join("profile.toml");
    fs::write(&path, steps).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn prepare_changes_the_named_device_and_gives_it_back() {
    let Some(world) = World::new("prepare", 2) else { return };
    world.run(&["sh", "-c", "echo 1 > /sys/class/net/va/queues/rx-0/rps_cpus"]);
    let facts = |world: &World| {
        let rps = world.run(&["sh", "-c", "cat /sys/class/net/va/queues/rx-0/rps_cpus"]);
        (rps, world.run(&["ethtool", "-l", "va"]))
    };
    let before = facts(&world);
    let steps = "[device]\nrx-queues = 1\nrx-ring = 64\nadaptive-rx = false\nrps-cpus = \"\"\nirq-cpus = \"0\"\n";
    let profile = profile(&world, steps);
    assert!(world.ok(&format!("prepare va --dry-run --profile {profile}")).contains("would set  rx queues: 2 -> 1"));
    assert_eq!(facts(&world), before);
    let said = world.ok(&format!("prepare va --profile {profile}"));
    for line in ["set        rx queues: 2 -> 1", "lacking    rx ring", "lacking    adaptive-rx", "--undo"] {
        assert!(said.contains(line), "{said}");
    }
    let now = facts(&world);
    assert!(now.0.trim().chars().all(|c| c == '0' || c == ','), "{now:?}");
    assert_eq!(world.raw().len(), 1);
    // Modes and preparation are undone separately.
    world.ok("apply va --mode defer50");
    world.ok("undo va");
    assert_eq!(facts(&world), now);
    world.ok("prepare va --undo");
    assert_eq!(facts(&world), before);
    assert_eq!(world.state_file(), None);
    assert!(world.ok("prepare va --undo").contains("nothing was prepared"));
    assert!(world.ok("prepare --show-profile").contains("irq-cpus"));
    world.refused("prepare nix", &["'nix'", "va"]);
    world.refused("prepare va --profile /no/such", &["/no/such"]);
}

#[test]
fn a_watcher_does_again_what_was_prepared() {
    let Some(world) = World::new("prepared and watched", 1) else { return };
    let profile = profile(&world, "[device]\nrps-cpus = \"0\"\n");
    world.ok(&format!("prepare va --profile {profile}"));
    let mut watcher = world.start("apply va --mode defer50 --watch --read-back 0.1");
    watcher.wait_for("watching");
    // A driver does this when it sets its queues up again.
    world.run(&["sh", "-c", "echo 0 > /sys/class/net/va/queues/rx-0/rps_cpus"]);
    let line = watcher.wait_for("again");
    assert!(line.contains("RPS of rx-0") && line.contains("-> 1"), "{line}");
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
    world.ok("prepare va --undo");
    let now = world.run(&["cat", "/sys/class/net/va/queues/rx-0/rps_cpus"]);
    assert!(now.trim().chars().all(|c| c == '0' || c == ','), "{now}");
}

#[test]
fn a_number_that_the_kernel_rounds_is_set_once() {
    let Some(world) = World::new("prepared and rounded", 1) else { return };
    let flows = || world.run(&["cat", "/sys/class/net/va/queues/rx-0/rps_flow_cnt"]).trim().to_owned();
    let before = flows();
    let prepare = format!("prepare va --profile {}", profile(&world, "[device]\nrfs-flows = 1000\n"));
    let said = world.ok(&prepare);
    if flows() == "1000" {
        println!("SKIP: prepared and rounded: this kernel does not round the flows of RFS");
        return;
    }
    assert!(said.contains("-> 1000, which became 1024"), "{said}");
    assert!(world.ok(&prepare).contains("already    RFS of rx-0: 1024"));
    let mut watcher = world.start("apply va --mode defer50 --watch --read-back 0.1");
    watcher.wait_for("watching");
    for other in ["5", "6", "7"] {
        // Each check sees both changes.
        world.set_raw(world.raw()[0].id, &[&format!("defer={other}")]);
        let line = watcher.wait_for("again");
        assert!(line.contains(&format!("defer-hard-irqs {other} -> 100")), "{line}");
    }
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
    world.ok("prepare va --undo");
    assert_eq!(flows(), before);
}

#[test]
fn a_watcher_leaves_a_device_alone_that_has_the_name_of_then() {
    let Some(world) = World::new("prepared and renamed", 1) else { return };
    let profile = profile(&world, "[device]\nrps-cpus = \"0\"\n");
    world.ok(&format!("prepare va --profile {profile}"));
    let mut watcher = world.start("apply va --mode defer50 --watch --read-back 0.1");
    watcher.wait_for("watching");
    for change in ["set va down", "set va name vx", "set vx up", "add va type veth peer name vy"] {
        world.run(&[&["ip", "link"], &change.split(' ').collect::<Vec<_>>()[..]].concat());
    }
    let mask = |device: &str| format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
    world.run(&["sh", "-c", &format!("echo 0 > {}; echo 0 > {}", mask("va"), mask("vx"))]);
    let line = watcher.wait_for("RPS of rx-0");
    assert!(line.contains("-> 1"), "{line}");
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
    let on = |device: &str| world.run(&["cat", &mask(device)]).trim().ends_with('1');
    assert_eq!((on("va"), on("vx")), (false, true));
    world.ok("prepare vx --undo");
    assert!(!on("vx"));
}

/// A lull that has opened the lock file of its device and was stopped before it took the lock.
struct Stopped(Option<Child>);

impl Stopped {
    /// Returns `None` if strace cannot do that.
    fn start(world: &World, test: &str, arguments: &str) -> Option<Stopped> {
        let works = Command::new("strace").args(["-e", "trace=none", "true"]).output();
        if !works.is_ok_and(|output| output.status.success()) {
            println!("SKIP: {test}: strace is not installed, or may not trace");
            return None;
        }
        fs::create_dir_all(&world.state).unwrap();
        // The lock has the name of the device's node, however the device is called.
        let node = world.run(&["stat", "-Lc", "%i", "/sys/class/net/va"]);
        let file = |name: &str| world.state.join(name).to_str().unwrap().to_owned();
        let (lock, log) = (file(&format!("node-{}.lock", node.trim())), file("strace"));
        let at_lock = ["-P", &lock, "-e", "trace=openat", "-e", "inject=openat:signal=SIGSTOP:when=1"];
        let lull = [&[env!("CARGO_BIN_EXE_lull")], &arguments.split(' ').collect::<Vec<_>>()[..]].concat();
        let mut command = world.command(&[&["strace", "-qq", "-o", &log], &at_lock[..], &lull].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        let mut stopped = Stopped(Some(child));
        while !fs::read_to_string(&log).is_ok_and(|log| log.contains("stopped by SIGSTOP")) {
            assert_eq!(stopped.0.as_mut().unwrap().try_wait().unwrap(), None, "it never took {lock}");
            assert!(begun.elapsed() < Duration::from_secs(60), "it never took {lock}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(stopped)
    }

    /// Sends a signal to lull, which is strace's child.
    fn signal(strace: &Child, signal: &str) {
        let children = format!("/proc/{0}/task/{0}/children", strace.id());
        let lull = fs::read_to_string(children).unwrap_or_default();
        let _ = Command::new("kill").args([signal, lull.trim()]).status();
    }

    fn go_on(mut self) -> Output {
        let strace = self.0.take().unwrap();
        Stopped::signal(&strace, "-CONT");
        strace.wait_with_output().unwrap()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(mut strace) = self.0.take() {
            Stopped::signal(&strace, "-KILL");
            let _ = strace.wait();
        }
    }
}

#[test]
fn what_is_applied_while_a_preparation_is_undone_can_be_undone() {
    let Some(world) = World::new("prepare beside apply", 1) else { return };
    let profile = profile(&world, "[device]\nrps-cpus = \"0\"\n");
    world.ok(&format!("prepare va --profile {profile}"));
    let Some(undo) = Stopped::start(&world, "prepare beside apply", "prepare va --undo") else { return };
    world.ok("apply va --mode suspend20");
    assert!(undo.go_on().status.success());
    assert_eq!(world.values(), [SUSPEND20]);
    assert!(world.ok("undo va").contains("irq-suspend-timeout 20ms -> 0"));
    assert_eq!((world.values(), world.state_file()), (vec![BASE], None));
}

#[test]
fn a_run_leaves_a_mode_alone_that_was_applied_while_it_started() {
    let Some(world) = World::new("run beside apply", 1) else { return };
    let Some(run) = Stopped::start(&world, "run beside apply", "run --dev va --mode base -- true") else { return };
    world.ok("apply va --mode suspend20");
    let said = run.go_on();
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(2) && words.contains("has a mode applied already"), "{words}");
    assert_eq!(world.values(), [SUSPEND20]);
    world.ok("undo va");
}

#[test]
fn the_doctor_names_what_gives_a_preparation_back() {
    let Some(world) = World::new("doctor of a preparation", 1) else { return };
    let profile = profile(&world, "[device]\nrps-cpus = \"0\"\n");
    let said = |what: &str| {
        let text = String::from_utf8(world.lull("doctor va").stdout).unwrap();
        let line = text.lines().find(|line| line.contains("state file of va")).map(str::to_owned);
        line.filter(|line| line.contains(what)).unwrap_or_else(|| panic!("'{what}' is not in {text}"))
    };
    said("nothing was applied");
    world.ok(&format!("prepare va --profile {profile}"));
    assert!(!said("`lull prepare va --undo` gives back").contains("lull undo"));
    world.ok("apply va --mode defer50");
    assert!(said("`lull prepare va --undo` gives back").contains("`lull undo va` gives back"));
    world.ok("prepare va --undo");
    assert!(!said("`lull undo va` gives back").contains("prepare"));
    world.ok("undo va");
}

#[test]
fn the_doctor_finds_what_is_wrong_and_says_so_in_its_status() {
    let Some(world) = World::new("doctor", 1) else { return };
    let examine = |arguments: &str| {
        let output = world.lull(&format!("doctor va {arguments} --json"));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let verdict = |report: &serde_json::Value, what: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["what"].as_str().unwrap().contains(what));
        check.unwrap_or_else(|| panic!("no check of {what}: {report}"))["verdict"].as_str().unwrap().to_owned()
    };
    let possible = |report: &serde_json::Value, mode: &str| {
        let modes = report["modes"].as_array().unwrap();
        modes.iter().find(|it| it["mode"] == mode).unwrap()["possible"].as_bool().unwrap()
    };
    let (_, report) = examine("");
    assert_eq!(verdict(&report, "NAPIs of va"), "ok");
    assert!(possible(&report, "suspend20") && possible(&report, "base"));

    // Two programs that prefer busy polling on one NAPI.
    let start = |port: &str| {
        let arguments = [&script("epoll.py"), "10.99.0.1", port, "0", "64", "1"];
        let mut program = world.command(&[&["python3"], &arguments[..]].concat());
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = lines_of(&mut program);
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let send = format!(
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('10.99.0.1', {port}))"
        );
        let sent = Command::new("ip").args(["netns", "exec", &world.far, "python3", "-c", &send]).status();
        assert!(sent.unwrap().success());
        assert_eq!(lines.next().unwrap().unwrap(), "heard");
        program
    };
    // A server that has received nothing yet is reported as idle and not as wrong.
    let mut idle = world.command(&["python3", &script("epoll.py"), "10.99.0.1", "5000", "0", "64", "1"]);
    let mut idle = idle.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(lines_of(&mut idle).next().unwrap().unwrap(), "ready");
    let (_, report) = examine(&format!("--pid {}", idle.id()));
    assert_eq!(verdict(&report, "NAPI ids of"), "unknown");
    drop(idle.stdin.take());
    assert!(idle.wait().unwrap().success());

    let mut first = start("5001");
    let (_, report) = examine(&format!("--pid {}", first.id()));
    assert_eq!(verdict(&report, "programs on va"), "ok");
    for what in ["epoll of", "NAPI ids of", "queues of python3", "workers of", "timeouts of"] {
        assert_eq!(verdict(&report, what), "ok", "{what}");
    }
    let mut second = start("5002");
    let (status, report) = examine("");
    assert_eq!((status, verdict(&report, "programs on va").as_str()), (Some(1), "wrong"));
    for program in [&mut first, &mut second] {
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }

    world.run(&["ethtool", "-K", "va", "gro", "off"]);
    let (status, report) = examine("");
    assert_eq!(status, Some(1));
    assert_eq!((verdict(&report, "NAPIs of va"), verdict(&report, "GRO of va")), ("wrong".into(), "wrong".into()));
    assert!(!possible(&report, "base"));
    let said = String::from_utf8(world.lull("doctor va").stdout).unwrap();
    assert!(said.contains("-> ") && !said.contains("as it says"), "{said}");
    // There is one reason for all modes, and on older kernels another one for threads that busy poll.
    assert!(said.matches("no   ").count() <= 2, "{said}");
    world.refused("doctor nix", &["'nix'", "va"]);
    world.refused("doctor va --pid 2147483647", &["process 2147483647"]);
}

#[test]
fn the_doctor_counts_calls_with_timeout_zero() {
    let Some(world) = World::new("zero timeouts", 1) else { return };
    let spin = "import select\ne = select.epoll()\nprint('ready', flush=True)\nwhile True: e.poll(0)";
    let wait = "import select\ne = select.epoll()\nprint('ready', flush=True)\nwhile True: e.poll(0.02)";
    // epoll_pwait2, by its number on every newer architecture and x86-64.
    let pwait2 = |nanoseconds: u32| {
        format!(
            "import ctypes, select, sys\ne = select.epoll()\ncall = ctypes.CDLL(None).syscall\n\
             events, timeout = ctypes.create_string_buffer(16), (ctypes.c_int64 * 2)(0, {nanoseconds})\n\
             wait = lambda: call(441, e.fileno(), events, 1, timeout, None, 8)\n\
             wait() == 0 or sys.exit('no epoll_pwait2')\nprint('ready', flush=True)\n\
             while True: wait()"
        )
    };
    // A timeout of 1 ms that passes each time is no loop of zeros.
    let (spin2, wait2) = (&pwait2(0), &pwait2(1_000_000));
    for (program, wanted) in [(spin, "wrong"), (wait, "ok"), (spin2, "wrong"), (wait2, "ok")] {
        let is_pwait2 = program.contains("441");
        let mut program = Command::new("python3").args(["-c", program]).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(lines_of(&mut program).next().unwrap().unwrap(), "ready");
        // This runs in a mount namespace of its own, which `ip netns exec` makes.
        let mount = "mount -t tracefs none /sys/kernel/tracing && test -e /sys/kernel/tracing/events/syscalls";
        let examine =
            format!("{mount} || exit 99; {} doctor --pid {} --json", env!("CARGO_BIN_EXE_lull"), program.id());
        let output = world.command(&["sh", "-c", &examine]).output().unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        if output.status.code() == Some(99) {
            println!("SKIP: zero timeouts: this kernel has no tracepoints of system calls");
            return;
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["what"].as_str().unwrap().starts_with("timeouts")).unwrap();
        assert_eq!(check["verdict"], wanted, "{check}");
        assert_eq!(
            check["reason"].as_str().unwrap().contains("epoll_pwait2"),
            wanted == "wrong" && is_pwait2,
            "{check}"
        );
    }
}

#[test]
fn in_a_user_namespace_the_doctor_says_no_and_apply_changes_nothing() {
    let Some(world) = World::new("user namespace", 1) else { return };
    let inside = |arguments: &str| {
        let lull = format!("{} {arguments}", env!("CARGO_BIN_EXE_lull"));
        world.command(&["unshare", "-Ur", "sh", "-c", &lull]).output().unwrap()
    };
    if !world.command(&["unshare", "-Ur", "true"]).output().unwrap().status.success() {
        println!("SKIP: user namespace: none here (unshare -Ur)");
        return;
    }
    let output = inside("doctor va");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("WRONG    rights: CAP_NET_ADMIN in a user namespace of its own"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    let output = inside("apply va --mode defer50");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("CAP_NET_ADMIN in the initial user namespace"), "{said}");
    assert_eq!(world.values(), [BASE]);
    assert_eq!(world.state_file(), None);
}
