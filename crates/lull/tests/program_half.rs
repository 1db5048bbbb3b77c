//! The program's half of a mode under `lull run`. Parameters are read back by a script of the tests' own
//! (`kernel/params.py`), settings of devices by raw netlink.

mod kernel;
mod program;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use kernel::{BASE, SUSPEND20, World, script};
use lull_linux::apply::Options;
use lull_linux::attach::{Event, Follower, ProgramRequest, Role, Which};
use program::*;

#[test]
fn bad_input_is_refused_in_one_line() {
    if is_old("bad_input_is_refused_in_one_line") {
        return;
    }
    let scratch = Scratch::new("bad");
    scratch.refused("attach --pid 99999999 --mode suspend20", &["99999999"]);
    scratch.refused("attach --pid 0 --mode suspend20", &["no process 0"]);
    scratch.refused("attach --pid -5 --mode suspend20", &["no process -5"]);
    scratch.refused("detach --pid 99999999", &["99999999"]);
    scratch.refused("attach --pid 1", &["--mode", "--usecs"]);
    scratch.refused("attach --pid 1 --mode suspendx", &["suspendx"]);
    scratch.refused("attach --pid 1 --mode busyread", &["SO_BUSY_POLL", "lull run"]);
    scratch.refused("attach --pid 1 --usecs 2147483648", &["busy_poll_usecs", "2147483647"]);
    scratch.refused("attach --pid 1 --budget 65536", &["busy_poll_budget", "65535"]);
    scratch.refused("run --mode base -- no-such-program", &["no-such-program", "PATH"]);
    scratch.refused("run --mode nothing -- true", &["nothing"]);
    scratch.refused("run --mode base --pin -- true", &["--dev"]);
    for option in [
        "--queues 0",
        "--gro-flush-timeout 50us",
        "--irq-suspend-timeout 1ms",
        "--defer-hard-irqs 9",
        "--threads-cpus 0",
        "--thread-policy fifo:50",
    ] {
        let name = option.split(' ').next().unwrap();
        for dry in ["", "--dry-run"] {
            scratch.refused(&format!("run --mode suspend20 {option} {dry} -- true"), &[name, "--dev"]);
        }
    }
    scratch.refused("run --dev no-such-device --mode base -- true", &["no-such-device"]);
    scratch.refused("run --mode base --socket-prefer -- true", &["--socket-busy-poll"]);
    let mut elsewhere = scratch.command("run --mode suspend20 -- true");
    let output = elsewhere.env("LULL_PRELOAD", "/no/such/library.so").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("/no/such/library.so") && said.contains("LULL_PRELOAD"), "{said}");
    // A program without any context.
    let sleeper = Program { child: Command::new("sleep").arg("600").spawn().unwrap() };
    scratch.refused(&format!("attach --pid {} --prefer --once", sleeper.pid()), &["no epoll context", "--once"]);
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

/// Whether this process ignores a signal, and so also what it starts.
fn ignores(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (number - 1)) != 0
}

#[test]
fn exit_status_signals_and_environment_are_the_programs() {
    if is_old("exit_status_signals_and_environment_are_the_programs") {
        return;
    }
    let scratch = Scratch::new("status");
    let run = |words: &[&str]| {
        let mut command = scratch.command("run --mode fullbusy -q --");
        command.args(words).env("LD_PRELOAD", "").output().unwrap()
    };
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(128 + 9));
    assert_eq!(run(&["sh", "-c", "kill -15 $$"]).status.code(), Some(128 + 15));

    let signals = [("HUP", 1u32), ("INT", 2), ("TERM", 15), ("USR1", 10), ("USR2", 12), ("WINCH", 28), ("ALRM", 14)];
    let more = [("VTALRM", 26), ("PROF", 27), ("XCPU", 24), ("IO", 29), ("PWR", 30), ("RTMIN", 34), ("RTMAX", 64)];
    for (name, number) in signals.into_iter().chain(more) {
        if ignores(number) {
            // A shell cannot trap a signal that it was told to ignore (`nohup`), and `lull run` passes that on.
            println!("SKIP: exit_status_signals_and_environment_are_the_programs: SIG{name} is ignored here");
            continue;
        }
        let trap = format!("trap 'exit {number}' {number}; echo ready; while :; do sleep 0.02; done");
        let mut command = scratch.command("run --mode suspend20 -q --");
        let mut child = command.args(["sh", "-c", &trap]).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(kernel::lines_of(&mut child).next().unwrap().unwrap(), "ready");
        // These signals would stop a process that does not handle them.
        signal(child.id(), "-TTOU");
        signal(child.id(), "-TTIN");
        signal(child.id(), &format!("-{number}"));
        wait_until(&format!("SIG{name} ends the program"), || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(number as i32), "SIG{name}");
    }
    // No further signal is blocked, and those that are ignored stay so.
    let seen = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.starts_with("SigBlk") || line.starts_with("SigIgn")).collect::<String>()
    };
    let lull = format!("{} run --mode base -q -- cat /proc/self/status", env!("CARGO_BIN_EXE_lull"));
    let ignoring = |command: &str| seen(&["sh", "-c", &format!("trap '' HUP USR1; exec {command}")]);
    assert_eq!(ignoring(&lull), ignoring("cat /proc/self/status"));

    let output = scratch.command("run --mode fullbusy -q -- env").env("LD_PRELOAD", "/no/such.so").output().unwrap();
    let environment = String::from_utf8(output.stdout).unwrap();
    let preload = environment.lines().find_map(|line| line.strip_prefix("LD_PRELOAD=")).unwrap();
    assert!(preload.starts_with("/no/such.so:/") && preload.ends_with("/liblull_preload.so"), "{preload}");
    for variable in ["LULL_EPOLL_USECS=1000", "LULL_EPOLL_BUDGET=64", "LULL_EPOLL_PREFER=1", "LULL_EPOLL_TIMEOUT_MS=1"]
    {
        assert!(environment.lines().any(|line| line == variable), "{variable}: {environment}");
    }
    // A mode without a program's half adds no variables, and removes those that another `lull run` has left.
    let output = scratch.command("run --mode base -q -- env").env("LULL_EPOLL_USECS", "9").output().unwrap();
    let environment = String::from_utf8(output.stdout).unwrap();
    assert!(!environment.contains("LULL_EPOLL") && !environment.contains("liblull_preload"), "{environment}");
}

#[test]
fn a_signal_that_the_program_has_no_room_for_is_told_and_lull_goes_on() {
    const TEST: &str = "a_signal_that_the_program_has_no_room_for_is_told_and_lull_goes_on";
    if lacks(TEST, &["python3"]) {
        return;
    }
    let scratch = Scratch::new("signal-queue");
    let program = "import resource, sys\n\
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))\n\
        print('ready', flush=True)\n\
        sys.stdin.read()\n\
        sys.exit(7)";
    let queue = "import ctypes, signal, sys\n\
        sys.exit(ctypes.CDLL(None).sigqueue(int(sys.argv[1]), signal.SIGRTMIN, ctypes.c_void_p(5)))";
    let mut command = scratch.command("run --mode suspend20 -- python3 -c");
    command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Program { child: command.spawn().unwrap() };
    let mut said = BufReader::new(run.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(kernel::lines_of(&mut run.child).next().unwrap().unwrap(), "ready");
    assert!(Command::new("python3").args(["-c", queue, &run.pid().to_string()]).status().unwrap().success());
    let line = said.find(|line| line.contains("signal") || line.contains("cannot")).unwrap();
    assert!(line.contains("signal 34 was not passed on") && line.contains("RLIMIT_SIGPENDING"), "{line}");
    drop(run.child.stdin.take());
    assert_eq!(run.child.wait().unwrap().code(), Some(7));
}

#[test]
fn a_terminals_interrupt_reaches_the_program_once() {
    const TEST: &str = "a_terminals_interrupt_reaches_the_program_once";
    if lacks(TEST, &["python3"]) {
        return;
    }
    let lull = env!("CARGO_BIN_EXE_lull");
    let output = Command::new("python3").args([&script("terminal.py"), lull]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn sockets_of_programs_without_epoll_get_their_options() {
    const TEST: &str = "sockets_of_programs_without_epoll_get_their_options";
    if lacks(TEST, &["python3"]) {
        return;
    }
    let scratch = Scratch::new("sockets");
    // The budget cannot be read, but without rights it cannot be raised either.
    let show = "import os, socket\n\
        sockets = [socket.socket(it) for it in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)]\n\
        print(*[it.getsockopt(socket.SOL_SOCKET, 46) for it in sockets])\n\
        os.setuid(65534)\n\
        def may(budget):\n \
            try: sockets[0].setsockopt(socket.SOL_SOCKET, 70, budget)\n \
            except PermissionError: return False\n \
            return True\n\
        print(may(17), may(16))";
    let run = |arguments: &str| {
        let output = scratch.command(arguments).args(["--", "python3", "-c", show]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run("run --mode base"), "0 0 0\nFalse False\n");
    assert_eq!(run("run --mode busyread"), "400 400 0\nFalse False\n");
    let all = "run --mode base --socket-busy-poll 50 --socket-budget 16 --socket-prefer";
    assert_eq!(run(all), "50 50 0\nFalse True\n");
}

#[test]
fn a_static_program_under_run_is_attached_to() {
    const TEST: &str = "a_static_program_under_run_is_attached_to";
    let scratch = Scratch::new("run-static");
    if lacks(TEST, &["python3"]) {
        return;
    }
    let Some(program) = waiter(&scratch, TEST) else { return };
    let mut command = scratch.command("run --mode suspend20 --");
    let child = command.arg(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Waiter::of(child.spawn().unwrap());
    // Nobody reads the later messages, which must not matter.
    let said = BufReader::new(run.child.stderr.take().unwrap()).lines();
    assert!(said.map_while(Result::ok).any(|line| line.contains("statically linked") && line.contains("attached")));
    let pid = child_of(run.child.id(), "waiter");
    wait_until("its context is set", || have(pid, 1, SUSPEND));
    run.ask("epoll\n", "made ");
    wait_until("its later context is set", || have(pid, 2, SUSPEND));
    scratch.refused(&format!("detach --pid {pid}"), &["lull run"]);
    assert!(run.end().success());
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());

    let mut only_sockets = scratch.command("run --mode busyread --");
    let output = only_sockets.arg(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("statically linked"));
}

/// Runs a memcached with two workers, split by NAPI id, under `lull run` on the near end of the pair.
fn run_memcached(world: &World) -> Program {
    let lull = [env!("CARGO_BIN_EXE_lull"), "run", "--dev", "va", "--mode", "suspend20", "--"];
    let memcached = ["memcached", "-u", "nobody", "-l", "10.99.0.1", "-t", "2", "-N", "2"];
    let mut command = world.command(&[&lull[..], &memcached].concat());
    Program { child: command.stderr(Stdio::null()).spawn().unwrap() }
}

#[test]
fn memcached_under_run_has_both_halves_and_leaves_nothing() {
    const TEST: &str = "memcached_under_run_has_both_halves_and_leaves_nothing";
    if lacks(TEST, &["memcached", "python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    let mut run = run_memcached(&world);
    let pid = child_of(run.pid(), "memcached");
    wait_until("memcached has its contexts", || have(pid, 3, SUSPEND));
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    world.refused("run --dev va --mode defer50 -- true", &["va"]);

    let napis: Vec<String> = world.raw().iter().map(|napi| format!("on NAPI {} (", napi.id)).collect();
    let statistic = statistics(&world, || {
        // Each worker gets packets from one NAPI.
        let said = world.ok(&format!("attach --pid {pid} --mode suspend20 --dry-run"));
        assert!(napis.iter().all(|napi| said.matches(napi.as_str()).count() == 1), "{napis:?} {said}");
        // With both halves in force the device shows the mode.
        let shown = world.ok("show va");
        assert_eq!(shown.lines().filter(|line| line.trim_end().ends_with("suspend20")).count(), 2, "{shown}");
    });
    assert_eq!((statistic("unexpected_napi_ids"), statistic("round_robin_fallback")), (0, 0));
    // This is the negative control: with TSO on at the sender the connections have no NAPI id.
    let far = |words: &str| {
        let words = words.split(' ').collect::<Vec<_>>();
        assert!(Command::new("ip").args(["netns", "exec", &world.far]).args(words).status().unwrap().success());
    };
    far("ethtool -K vb tso on");
    let statistic = statistics(&world, || {
        let output = world.lull(&format!("attach --pid {pid} --mode suspend20 --dry-run"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("have no NAPI id") && said.contains("tso off"), "{said}");
    });
    assert!(statistic("round_robin_fallback") > 0);
    far("ethtool -K vb tso off");

    signal(run.pid(), "-TERM");
    assert_eq!(run.child.wait().unwrap().code(), Some(0));
    assert_eq!(world.values(), [BASE, BASE]);
    assert!(world.state_file().is_none());
}

#[test]
fn a_device_under_run_is_applied_to_again_after_a_flap() {
    const TEST: &str = "a_device_under_run_is_applied_to_again_after_a_flap";
    if is_old(TEST) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    // One mode has a program's half, which lull follows, and one has none.
    for mode in ["suspend20", "defer50"] {
        let mut run = world.start(&format!("run --dev va --mode {mode} -- sleep 600"));
        let pid = child_of(run.child.id(), "sleep");
        let applied = world.values();
        assert_ne!(applied, [BASE, BASE]);
        world.run(&["ip", "link", "set", "va", "down"]);
        run.wait_for("shows no NAPI");
        world.run(&["ip", "link", "set", "va", "up"]);
        let line = run.wait_for("again, after");
        assert!(line.contains("queue 0") || line.contains("queue 1"), "{line}");
        world.wait_for(&applied);
        signal(pid, "-KILL");
        assert_eq!(run.end().0, Some(128 + 9));
        assert_eq!(world.values(), [BASE, BASE]);
        assert!(world.state_file().is_none());
    }
    // A device that vanishes does not end the program.
    let mut run = world.start("run --dev va --mode defer50 -- sleep 600");
    let pid = child_of(run.child.id(), "sleep");
    world.make_pair(2);
    // The device is missing, or the new one exists already.
    run.wait_for("device 'va'");
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    signal(pid, "-TERM");
    assert_eq!(run.end().0, Some(128 + 15));
    assert_eq!(world.values(), [BASE, BASE], "the device that took the name has nothing of it");
    assert!(world.state_file().is_none());
}

/// Returns the program of `kernel/polled.c`, or `None` if it cannot be made here.
fn polled(scratch: &Scratch, test: &str) -> Option<PathBuf> {
    let program = scratch.0.join("polled");
    let made = Command::new("cc").args(["-pthread", "-o"]).arg(&program).arg(script("polled.c")).output();
    if made.is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    println!("SKIP: {test}: no C compiler");
    None
}

/// Sends a datagram to the near end every 10 ms, until it is dropped.
fn sender(world: &World) -> Program {
    let send = "import socket, time\n\
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        while True:\n \
            out.sendto(b'%d' % time.monotonic_ns(), ('10.99.0.1', 5000))\n \
            time.sleep(0.01)";
    let child = Command::new("ip").args(["netns", "exec", &world.far, "python3", "-c", send]).spawn();
    Program { child: child.unwrap() }
}

/// The device's timer is so long that packets are seen to wait for it: of two seconds' datagrams half, which are 100,
/// are at least a second old when it fires. More than 100 come one after the other, and none late, only if the queue is
/// polled long after the kernel has stopped to do so.
#[test]
fn fullbusy_polls_for_a_program_that_waits_and_for_one_that_never_does() {
    const TEST: &str = "fullbusy_polls_for_a_program_that_waits_and_for_one_that_never_does";
    let scratch = Scratch::new("polled");
    if lacks(TEST, &["python3"]) {
        return;
    }
    let (Some(program), Some(world)) = (polled(&scratch, TEST), World::new(TEST, 1)) else { return };
    let _sender = sender(&world);
    for (what, lifted, option) in [("wait", false, ""), ("spin", true, ""), ("spin", false, "--no-lift")] {
        let lull = format!("run --dev va --mode fullbusy --gro-flush-timeout 2s {option} --");
        let program = [program.to_str().unwrap(), "10.99.0.1", "5000", what];
        let words =
            [&[env!("CARGO_BIN_EXE_lull")], &lull.split_whitespace().collect::<Vec<_>>()[..], &program].concat();
        let mut command = world.command(&words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let mut lines = kernel::lines_of(&mut child).map(Result::unwrap);
        let mut run = Program { child };
        assert_eq!(lines.next().as_deref(), Some("ready"));
        let (begun, mut in_time, mut late) = (Instant::now(), 0, 0);
        // Without lull's help only the timer polls for a loop of zero timeouts; when more than 100 datagrams have come
        // late, it has fired twice. On a busy machine some come late because the program had no turn meanwhile.
        while if option.is_empty() { in_time < 150 } else { late < 150 } {
            let line = lines.next().unwrap();
            let (now_in_time, now_late) = line.split_once(' ').unwrap();
            let [now_in_time, now_late] = [now_in_time, now_late].map(|count| count.parse::<u32>().unwrap());
            in_time = if now_late == 0 { in_time + now_in_time } else { 0 };
            late += now_late;
            let other = if option.is_empty() { "wait for the timer" } else { "are polled for" };
            assert!(begun.elapsed() < PATIENCE, "{what} {option}: its datagrams {other}");
        }
        drop(input);
        let last = lines.last().unwrap();
        let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [calls, sleeps] = numbers[..] else { panic!("{last}") };
        assert!(what == "wait" || sleeps * 100 < calls, "a loop of zero timeouts never sleeps: {last}");
        let said = std::io::read_to_string(run.child.stderr.take().unwrap()).unwrap();
        assert!(run.child.wait().unwrap().success());
        assert_eq!(said.contains("timeout 0") && said.contains("--no-lift"), lifted, "{what}: {said}");
    }
}

#[test]
fn a_signal_ends_a_wait_that_is_polled_for() {
    const TEST: &str = "a_signal_ends_a_wait_that_is_polled_for";
    let scratch = Scratch::new("signals");
    if lacks(TEST, &["python3"]) {
        return;
    }
    let (Some(program), Some(world)) = (polled(&scratch, TEST), World::new(TEST, 1)) else { return };
    let sender = sender(&world);
    let program = [program.to_str().unwrap(), "10.99.0.1", "5000", "signals", "300"];
    let lull = [env!("CARGO_BIN_EXE_lull"), "run", "--dev", "va", "--mode", "fullbusy", "-q", "--"];
    let mut child = world.command(&[&lull[..], &program].concat()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = kernel::lines_of(&mut child).map(Result::unwrap);
    let _run = Program { child };
    assert_eq!(lines.by_ref().nth(1).as_deref(), Some("heard"));
    drop(sender);
    let said = lines.last().unwrap();
    let lost = said.strip_prefix("lost ").unwrap().split(' ').next().unwrap();
    // A few datagrams may come between the program's mark and its call.
    assert!(lost.parse::<u32>().unwrap() < 5, "{said}");
}

#[test]
fn run_says_whether_the_mode_is_in_force_and_why_not() {
    const TEST: &str = "run_says_whether_the_mode_is_in_force_and_why_not";
    let scratch = Scratch::new("verdict");
    if lacks(TEST, &["python3"]) {
        return;
    }
    let (Some(program), Some(world)) = (polled(&scratch, TEST), World::new(TEST, 1)) else { return };
    let sender = sender(&world);
    let staying = |program: &str| {
        let mut run = world.start(&format!("run --dev va --mode suspend20 -- {program}"));
        let line = run.wait_for("in force");
        signal(run.child.id(), "-TERM");
        run.end();
        line
    };
    let line = staying(&format!("{} 10.99.0.1 5000 wait", program.display()));
    assert!(line.contains("suspend20 is in force: both halves are") && line.contains("polled (process"), "{line}");
    let line = staying(&format!("python3 {} 10.99.0.1 5000", script("poll.py")));
    assert!(line.contains("suspend20 is NOT in force") && line.contains("no epoll context"), "{line}");
    drop(sender);
    let output = world.lull("run --dev va --mode suspend20 -- true");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("suspend20 was not seen in force"), "{said}");
}

#[test]
fn traffic_that_comes_late_is_seen_soon() {
    const TEST: &str = "traffic_that_comes_late_is_seen_soon";
    let Some(world) = World::new(TEST, 1) else { return };
    let mut program = world.command(&["python3", &script("epoll.py"), "10.99.0.1", "5000", "0", "0", "1"]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = kernel::lines_of(&mut program);
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let request = ProgramRequest::new(Some("suspend20".parse().unwrap()), None, None, false).unwrap();
    let options = Options::in_dir(&world.state);
    let mut follower = Follower::open(program.id() as i32, &request, Which::All, Role::Attach, &options).unwrap();
    let mut hears = || {
        let events = follower.look().unwrap();
        events.iter().any(|event| matches!(event, Event::Sockets(on) if !on.by_napi.is_empty()))
    };
    assert!((0..40).all(|_| !hears()));
    let _sender = sender(&world);
    assert_eq!(lines.next().unwrap().unwrap(), "heard");
    assert!((0..16).any(|_| hears()), "not within the next looks");
    follower.restore().unwrap();
    drop(program.stdin.take());
    // It prints for as long as it is sent to.
    lines.for_each(drop);
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_killed_run_is_undone_and_its_program_goes_on() {
    const TEST: &str = "a_killed_run_is_undone_and_its_program_goes_on";
    let scratch = Scratch::new("killed-run");
    if lacks(TEST, &["python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    let start = |program: &str| {
        let words =
            [env!("CARGO_BIN_EXE_lull"), "run", "--dev", "va", "--mode", "suspend20", "-q", "--", program, "600"];
        Program { child: world.command(&words).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap() }
    };
    let mut run = start("sleep");
    let pid = child_of(run.pid(), "sleep");
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    run.child.kill().unwrap();
    assert_eq!(run.child.wait().unwrap().signal(), Some(9));
    world.wait_for(&[BASE, BASE]);
    wait_until("the state file is gone", || world.state_file().is_none());
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    signal(pid, "-KILL");

    // Programs that were attached to are restored as well.
    let Some(program) = waiter(&scratch, TEST) else { return };
    let mut run = start(program.to_str().unwrap());
    let pid = child_of(run.pid(), "waiter");
    wait_until("its context is set", || have(pid, 1, SUSPEND));
    // The program's input stays open, so that it goes on.
    let _input = run.child.stdin.take();
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    world.wait_for(&[BASE, BASE]);
    wait_until("its context is given back", || have(pid, 1, NONE));
    signal(pid, "-KILL");
}

#[test]
fn pinning_follows_the_napi_threads_or_is_refused() {
    const TEST: &str = "pinning_follows_the_napi_threads_or_is_refused";
    if lacks(TEST, &["python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    world.refused("run --dev va --mode suspend20 --pin -- true", &["va", "taskset"]);
    assert_eq!(world.values(), [BASE, BASE]);
    let cpus = |lull: &str| {
        let said = world.ok(&format!("{lull} -- cat /proc/self/status"));
        said.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(|it| it.trim().to_owned())).unwrap()
    };
    assert_eq!(cpus("run --dev va --mode threaded --threads-cpus 0 --pin"), "0");
    assert_eq!(world.values(), [BASE, BASE]);
    assert!(world.state_file().is_none());
}
