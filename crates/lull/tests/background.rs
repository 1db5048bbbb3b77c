//! A program that goes into the background under `lull run` keeps the mode until it ends, and gets its former settings
//! back when lull ends before it. Parameters are read back by a script of the tests' own (`kernel/params.py`), settings
//! of devices by raw netlink.

mod kernel;
mod program;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use kernel::{BASE, SUSPEND20, World};
use program::*;

#[test]
fn what_a_program_leaves_in_the_background_keeps_the_mode_until_it_ends() {
    const TEST: &str = "what_a_program_leaves_in_the_background_keeps_the_mode_until_it_ends";
    if lacks(TEST, &["memcached", "python3"]) {
        return;
    }
    let (scratch, Some(world)) = (Scratch::new("background"), World::new(TEST, 2)) else { return };
    let pid_of =
        |line: &str| -> u32 { line.split_once("(process ").unwrap().1.split_once(')').unwrap().0.parse().unwrap() };
    let mut run = world.start("run --dev va --mode suspend20 -- memcached -d -u nobody -l 10.99.0.1 -t 2");
    let pid = pid_of(&run.wait_for("is left in the background"));
    let daemon = EndsWithFailure(pid);
    wait_until("the daemon has its contexts", || have(pid, 3, SUSPEND));
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    // lull passes a signal on to the daemon, and ends when the daemon does.
    run.signal("-TERM");
    assert_eq!(run.end().0, Some(0));
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    drop(daemon);
    assert_eq!(world.values(), [BASE, BASE]);

    // At the second signal lull leaves a daemon alone that does not end.
    let script = scratch.0.join("stubborn");
    std::fs::write(&script, "trap '' TERM\nsleep 600 >/dev/null 2>&1 &\n").unwrap();
    let mut run = world.start(&format!("run --dev va --mode suspend20 -- sh {}", script.display()));
    let pid = pid_of(&run.wait_for("is left in the background"));
    let _stubborn = EndsWithFailure(pid);
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    run.signal("-TERM");
    run.wait_for("once more");
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    run.signal("-TERM");
    assert_eq!(run.end().0, Some(0));
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(world.values(), [BASE, BASE]);
    signal(pid, "-KILL");
}

/// Leaves fifty orphans that end at once, waits until they have been waited for, and says how many were not.
const ORPHANS: &str = "import os, time
for _ in range(50):
    if os.fork() == 0:
        if os.fork() != 0: os._exit(0)
        os._exit(0)
    os.wait()
def is_left(process):
    try: return open(f'/proc/{process}/stat').read().rpartition(')')[2].split()[:2] == ['Z', str(os.getppid())]
    except OSError: return False
left = lambda: sum(is_left(it) for it in os.listdir('/proc') if it.isdigit())
until = time.monotonic() + 120
while left() and time.monotonic() < until: time.sleep(0.1)
print(left())";

#[test]
fn orphans_that_end_while_the_program_runs_are_waited_for() {
    const TEST: &str = "orphans_that_end_while_the_program_runs_are_waited_for";
    if lacks(TEST, &["python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 1) else { return };
    let lull = env!("CARGO_BIN_EXE_lull");
    let of_device = ["run", "--dev", "va", "--mode", "base"];
    let of_nic = ["run", "--nic", "tap:orphans", "--addr", "10.98.0.2/24", "--mode", "base"];
    for options in [&of_device[..], &of_nic] {
        let said = world.run(&[&[lull], options, &["-q", "--", "python3", "-c", ORPHANS]].concat());
        assert_eq!(said.trim(), "0", "{options:?}");
    }
}

/// Whether strace is here and may trace.
fn traces(test: &str) -> bool {
    let works = Command::new("strace").args(["-e", "trace=none", "true"]).output();
    let works = works.is_ok_and(|output| output.status.success());
    if !works {
        println!("SKIP: {test}: strace is not installed, or may not trace");
    }
    works
}

/// The daemon has one context from before it became one, which was set in the process that it was forked from, and one
/// of its own. Then `wait` in `lull run` fails, as it does when the kernel has no memory.
#[test]
fn contexts_in_the_background_are_given_back_when_run_fails_later() {
    const TEST: &str = "contexts_in_the_background_are_given_back_when_run_fails_later";
    if lacks(TEST, &["python3"]) || !traces(TEST) {
        return;
    }
    let (scratch, Some(world)) = (Scratch::new("fails-later"), World::new(TEST, 1)) else { return };
    let Some(program) = waiter(&scratch, TEST) else { return };
    let lull = env!("CARGO_BIN_EXE_lull");
    let words = [lull, "run", "--dev", "va", "--mode", "suspend20", "--", program.to_str().unwrap()];
    let mut command = world.command(&words);
    // The output goes to a file, because the daemon would inherit a pipe, which would not end when lull ends.
    let said = scratch.0.join("said");
    command.stderr(File::create(&said).unwrap());
    let run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (pid, mut run) = (run.id(), Waiter::of(run));
    let parent = child_of(pid, "waiter");
    wait_until("the context is set", || have(parent, 1, SUSPEND));
    let daemon = run.ask("daemon\n", "daemon ");
    run.ask("epoll\n", "made ");
    wait_until("the daemon's own context is set, too", || have(daemon, 2, SUSPEND));
    assert_eq!(world.values(), [SUSPEND20]);

    let fails = ["-e", "trace=poll,ppoll", "-e", "inject=poll,ppoll:error=ENOMEM"];
    let mut traced = Command::new("strace");
    traced.args(["-qq", "-o", "/dev/null"]).args(fails).args(["-p", &pid.to_string()]);
    assert!(traced.status().is_ok());
    let status = run.child.wait().unwrap();
    let said = std::fs::read_to_string(said).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("wait for the program"), "{said}");
    assert!(have(daemon, 2, NONE), "{:?}", params(daemon));
    assert_eq!(world.values(), [BASE]);
    assert!(world.state_file().is_none());
    // The daemon goes on, and ends with its input.
    run.ask("epoll\n", "made ");
    drop(run.input.take());
    wait_until("the daemon has ended", || !Path::new(&format!("/proc/{daemon}")).exists());
}
