//! `lull attach` and `lull detach`: killed at each of their system calls that change anything, over a record that cannot
//! be read or written, after the program's end, on process 1, on a program and on its child, and what they say in JSON.

mod kernel;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use kernel::{lines_of, script};

/// A program with three epoll contexts that have these parameters, and a directory for state files. It makes one more
/// context for each line that it reads.
struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// The process that has the contexts: `child`, or the child of that process.
    pid: u32,
    state: PathBuf,
}

const OWN: [&str; 3] = ["5 8 0", "0 0 0", "0 16 1"];

const MAKE: &str = "import fcntl, os, select, struct, sys
kept = []
for triple in sys.argv[1:]:
\tkept.append(select.epoll())
\tfcntl.ioctl(kept[-1].fileno(), 0x40088A01, struct.pack('IHBB', *map(int, triple.split()), 0))
print(os.getpid(), flush=True)
for line in sys.stdin:
\tkept.append(select.epoll())
\tprint('made', flush=True)";

impl Program {
    fn start() -> Program {
        Program::below(&["python3", "-c", MAKE])
    }

    /// Starts it as the child of a shell that outlives it.
    fn below_a_shell() -> Program {
        Program::below(&["sh", "-c", "python3 -c \"$0\" \"$@\"; exec sleep 600", MAKE])
    }

    fn below(words: &[&str]) -> Program {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(OWN).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = lines_of(&mut child);
        let pid = lines.next().unwrap().unwrap().parse().unwrap();
        let state = std::env::temp_dir().join(format!("lull-attach-{}", child.id()));
        Program { child, lines, pid, state }
    }

    /// Has the program make one more context.
    fn make_another(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(self.lines.next().unwrap().unwrap(), "made");
    }

    fn run(&self, words: &[&str]) -> Output {
        self.run_on(self.child.id(), words)
    }

    fn run_on(&self, pid: u32, words: &[&str]) -> Output {
        self.command_on(pid, words).output().unwrap()
    }

    fn command_on(&self, pid: u32, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["--pid", &pid.to_string()]).env("LULL_STATE_DIR", &self.state);
        command
    }

    /// Starts a `lull attach` that stays, and returns once it has set the contexts that there are.
    fn follower_of(&self, pid: u32, mode: &str) -> Follower {
        let mut command = self.command_on(pid, &[LULL, "attach", "--mode", mode, "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(&mut child);
        let mut follower = Follower { child, lines };
        assert!(follower.lines.any(|line| line.unwrap().contains("\"set\"")), "{mode}");
        follower
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        self.ok_on(self.child.id(), words)
    }

    #[track_caller]
    fn ok_on(&self, pid: u32, words: &[&str]) -> String {
        let output = self.run_on(pid, words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that fails with this status; returns what it prints on standard error.
    #[track_caller]
    fn refused(&self, words: &[&str]) -> String {
        self.refused_on(self.child.id(), words)
    }

    #[track_caller]
    fn refused_on(&self, pid: u32, words: &[&str]) -> String {
        let output = self.run_on(pid, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(words)).unwrap()
    }

    /// The record of the program's former parameters.
    fn record(&self) -> PathBuf {
        self.state.join(format!("process-{}.json", self.child.id()))
    }

    /// The parameters of the program's contexts.
    fn params(&self) -> Vec<String> {
        let output = Command::new("python3").args([&script("params.py"), &self.pid.to_string()]).output();
        let listed = String::from_utf8(output.unwrap().stdout).unwrap();
        listed.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

/// A `lull attach` that stays.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Returns its status, and what it has printed on standard error.
    fn end(&mut self) -> (Option<i32>, String) {
        // The output is read to its end, so that the process always has a reader.
        self.lines.by_ref().for_each(drop);
        let said = std::io::read_to_string(self.child.stderr.take().unwrap()).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LULL: &str = env!("CARGO_BIN_EXE_lull");
/// The second mode, as `params` prints it.
const FULLBUSY: &str = "1000 64 1";

/// Runs `words` under strace, which kills the command at the `nth` call of this name.
fn killed_at(call: &str, nth: u32, words: &[&str], program: &Program) -> Output {
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
    let strace = ["strace", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    assert!(nth < 200, "it never came to its end");
    program.run(&[&strace[..], words].concat())
}

/// Returns a program to test with, unless this machine cannot run it.
fn program(test: &str) -> Option<Program> {
    let works = Command::new("strace").args(["-e", "trace=none", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("SKIP: {test}: strace is not installed, or may not trace");
        return None;
    }
    usable(Program::start(), test)
}

/// The same below a shell, for tests that trace nothing.
fn below_a_shell(test: &str) -> Option<Program> {
    usable(Program::below_a_shell(), test)
}

fn usable(program: Program, test: &str) -> Option<Program> {
    if program.params() != OWN {
        println!("SKIP: {test}: no parameters of epoll contexts here (Linux 6.9, root)");
        return None;
    }
    Some(program)
}

#[test]
fn killed_anywhere_a_second_attach_keeps_what_the_program_had() {
    let Some(program) = program("killed_anywhere_a_second_attach_keeps_what_the_program_had") else { return };
    let mut half_way = false;
    // The record is written, synced and renamed; the contexts are set by ioctl.
    for call in ["write", "fsync", "/^rename", "ioctl"] {
        for nth in 1.. {
            program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
            let output = killed_at(call, nth, &[LULL, "attach", "--mode", "fullbusy", "--once"], &program);
            let ended = output.status.success();
            let set = program.params().iter().filter(|it| *it == FULLBUSY).count();
            half_way |= !ended && set != 0 && set != OWN.len();
            // A second attach goes on top of what the killed one has left.
            if nth % 2 == 0 {
                program.ok(&[LULL, "attach", "--mode", "napibusy", "--once"]);
            }
            let said = program.ok(&[LULL, "detach"]);
            assert_eq!(program.params(), OWN, "killed at {call} {nth}: {said}");
            assert!(!said.contains("left alone"), "killed at {call} {nth}: {said}");
            if ended {
                break;
            }
        }
    }
    assert!(half_way, "some of the kills came between two contexts");
}

#[test]
fn a_killed_detach_is_done_by_the_next() {
    let Some(program) = program("a_killed_detach_is_done_by_the_next") else { return };
    let mut half_way = false;
    for call in ["ioctl", "/^unlink"] {
        for nth in 1.. {
            program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
            let ended = killed_at(call, nth, &[LULL, "detach"], &program).status.success();
            let back = program.params().iter().zip(OWN).filter(|(now, own)| now == own).count();
            half_way |= !ended && back != 0 && back != OWN.len();
            let said = program.ok(&[LULL, "detach"]);
            assert_eq!(program.params(), OWN, "killed at {call} {nth}: {said}");
            if ended {
                break;
            }
        }
    }
    assert!(half_way, "some of the kills came between two contexts");
}

#[test]
fn a_record_that_cannot_be_read_is_no_success() {
    let Some(program) = program("a_record_that_cannot_be_read_is_no_success") else { return };
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    std::fs::write(program.record(), "{").unwrap();
    for words in [&[LULL, "detach"][..], &[LULL, "detach", "--dry-run"], &[LULL, "attach", "--mode", "base", "--once"]]
    {
        let said = program.refused(words);
        assert!(said.contains("cannot be read") && said.contains("detach") && said.contains("--forget"), "{said}");
    }
    std::fs::write(program.record(), r#"{"version": 9}"#).unwrap();
    assert!(program.refused(&[LULL, "detach"]).contains("it is of version 9"));
    assert_eq!(program.params(), ["0 64 1"; 3]);
    let said = program.json(&[LULL, "detach", "--forget", "--json"]);
    assert_eq!(said["detached"], "forgotten");
    assert!(!program.record().exists());
    assert!(program.ok(&[LULL, "detach"]).contains("nothing of process"));
}

#[test]
fn after_a_normal_end_detach_has_nothing_to_give_back_and_says_so() {
    let Some(mut program) = program("after_a_normal_end_detach_has_nothing_to_give_back_and_says_so") else { return };
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    drop(program.child.stdin.take());
    assert!(program.child.wait().unwrap().success());
    let said = program.json(&[LULL, "detach", "--dry-run", "--json"]);
    assert_eq!(said["detached"], "over");
    assert!(program.ok(&[LULL, "detach"]).contains("has ended by itself, and its epoll contexts with it"));
    // Nothing is known of the process any more: a wrong number and one that is long gone look alike.
    assert!(program.refused(&[LULL, "detach"]).contains("no process"));
}

#[test]
fn after_the_end_of_a_followed_program_detach_says_so_whoever_was_attached_to_meanwhile() {
    let test = "after_the_end_of_a_followed_program_detach_says_so_whoever_was_attached_to_meanwhile";
    let Some(mut program) = program(test) else { return };
    let pid = program.child.id().to_string();
    let words = ["attach", "--pid", &pid, "--mode", "suspend20", "--json"];
    let mut command = Command::new(LULL);
    let mut follower =
        command.args(words).env("LULL_STATE_DIR", &program.state).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = lines_of(&mut follower);
    assert!(lines.any(|line| line.unwrap().contains("\"set\"")));
    drop(program.child.stdin.take());
    assert!(program.child.wait().unwrap().success());
    // The output is read to its end, so that the process always has a reader.
    lines.for_each(drop);
    assert!(follower.wait().unwrap().success());
    // An attach to another program in the same directory removes records that are not needed any more.
    let other = Program::start();
    for verb in [&["attach", "--mode", "suspend20", "--once"][..], &["detach"]] {
        let other_pid = other.child.id().to_string();
        let status = Command::new(LULL)
            .args(verb)
            .args(["--pid", &other_pid])
            .env("LULL_STATE_DIR", &program.state)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    }
    assert_eq!(program.json(&[LULL, "detach", "--dry-run", "--json"])["detached"], "over");
    let said = program.ok(&[LULL, "detach"]);
    assert!(said.contains("has ended by itself") && said.contains("nothing is left to give back"), "{said}");
    assert!(!program.record().exists());
    assert!(program.refused(&[LULL, "detach"]).contains("no process"));
}

#[test]
fn what_could_not_be_given_back_stays_in_the_record_and_says_why() {
    let Some(program) = program("what_could_not_be_given_back_stays_in_the_record_and_says_why") else { return };
    let failing = |call: &str, how: &str| {
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{how}"));
        program.refused(&["strace", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject, LULL, "detach"])
    };
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    let said = failing("pidfd_getfd", "error=EPERM");
    assert!(said.contains("cannot duplicate") && said.contains("CAP_SYS_PTRACE"), "{said}");
    assert!(said.contains("it and 2 more keep what was set") && said.contains("tries again"), "{said}");
    assert_eq!(program.params(), ["0 64 1"; 3]);
    // Each context is read, read and set.
    let said = failing("ioctl", "error=EPERM:when=6");
    assert!(said.contains("above 64 needs CAP_NET_ADMIN") && said.contains("it keeps what was set"), "{said}");
    assert_eq!(program.params(), [OWN[0], "0 64 1", OWN[2]]);
    let said = program.ok(&[LULL, "detach"]);
    assert!(said.lines().count() == 1 && said.contains("again"), "{said}");
    assert_eq!(program.params(), OWN);
    assert!(!program.record().exists());
}

#[test]
fn what_is_attached_to_stays_so_whoever_else_shares_the_directory() {
    let test = "what_is_attached_to_stays_so_whoever_else_shares_the_directory";
    let Some(program) = program(test) else { return };
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]).args(words).env("LULL_STATE_DIR", &program.state);
        command.output().unwrap()
    };
    if !unshare(&["true"]).status.success() {
        println!("SKIP: {test}: no PID namespace can be made");
        return;
    }
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    let two_days_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 24 * 3600);
    std::fs::File::options().write(true).open(program.record()).unwrap().set_modified(two_days_ago).unwrap();
    let shown = unshare(&[LULL, "show"]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    // In another PID namespace the process of this number is another one.
    let pid = program.child.id().to_string();
    let other = format!(
        "echo $(({pid} - 1)) > /proc/sys/kernel/ns_last_pid; sleep 60 & {LULL} attach --pid $! --once --mode base"
    );
    let ran = unshare(&["sh", "-c", &other]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains(&format!("process {pid} has no epoll context")), "{said}");
    program.ok(&[LULL, "detach"]);
    assert_eq!(program.params(), OWN);
}

#[test]
fn detach_prints_one_shape_of_json() {
    let Some(program) = program("detach_prints_one_shape_of_json") else { return };
    let pid = program.child.id();
    assert_eq!(program.json(&[LULL, "detach", "--json"])["detached"], "nothing");
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once", "--json"]);
    for words in [&[LULL, "detach", "--dry-run", "--json"][..], &[LULL, "detach", "--json"]] {
        let said = program.json(words);
        assert_eq!((&said["detached"], &said["contexts"][0]["pid"]), (&"restored".into(), &pid.into()), "{said}");
        assert_eq!(said["contexts"][0]["now"]["busy_poll_usecs"], 5, "{said}");
        assert_eq!(said["left"].as_array().map(Vec::len), Some(0), "{said}");
    }
    assert_eq!(program.params(), OWN);
}

#[test]
fn the_children_of_process_1_are_set_only_if_it_is_said() {
    let refused = |arguments: &[&str]| {
        let output = Command::new(LULL).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    };
    // --dry-run changes nothing, whatever the outcome is.
    let said = refused(&["attach", "--pid", "1", "--mode", "suspend20", "--dry-run"]);
    assert!(said.contains("all programs of the machine") && said.contains("--children"), "{said}");
    let output = Command::new(LULL)
        .args(["attach", "--pid", "1", "--mode", "suspend20", "--dry-run", "--children", "no", "--json"])
        .output()
        .unwrap();
    let events = String::from_utf8(output.stdout).unwrap();
    assert!(!events.contains("\"child\""), "{events}");
}

#[test]
fn children_are_left_out_if_it_is_said() {
    let Some(program) = below_a_shell("children_are_left_out_if_it_is_said") else { return };
    // The shell has no contexts of its own; its child has three.
    let dry = |children: &str| {
        let output = program.run(&[LULL, "attach", "--mode", "suspend20", "--dry-run", "--children", children]);
        String::from_utf8(output.stdout).unwrap()
    };
    let named = format!("(process {})", program.pid);
    assert_eq!(dry("yes").matches(&named).count(), 4, "found, and three contexts: {}", dry("yes"));
    assert!(!dry("no").contains(&named));
}

#[test]
fn attached_to_at_two_levels_a_program_has_its_own_back_in_either_order() {
    let Some(program) = below_a_shell("attached_to_at_two_levels_a_program_has_its_own_back_in_either_order") else {
        return;
    };
    let (shell, child) = (program.child.id(), program.pid);
    for attached in [[shell, child], [child, shell]] {
        for detached in [[shell, child], [child, shell]] {
            for (pid, mode) in attached.into_iter().zip(["suspend20", "fullbusy"]) {
                program.ok_on(pid, &[LULL, "attach", "--mode", mode, "--once"]);
            }
            assert_eq!(program.params(), [FULLBUSY; 3]);
            let said = detached.map(|pid| program.ok_on(pid, &[LULL, "detach"]));
            assert_eq!(program.params(), OWN, "attached {attached:?}, detached {detached:?}: {said:?}");
        }
    }
    // The third attach is to the first process again, whose own record is out of date.
    for (pid, mode) in [(shell, "suspend20"), (child, "fullbusy"), (shell, "napibusy")] {
        program.ok_on(pid, &[LULL, "attach", "--mode", mode, "--once"]);
    }
    for pid in [child, shell] {
        program.ok_on(pid, &[LULL, "detach"]);
    }
    assert_eq!(program.params(), OWN);
}

#[test]
fn a_context_that_another_lull_follows_is_refused() {
    let Some(program) = below_a_shell("a_context_that_another_lull_follows_is_refused") else { return };
    let (shell, child) = (program.child.id(), program.pid);
    for (followed, other) in [(shell, child), (child, shell)] {
        let mut follower = program.follower_of(followed, "fullbusy");
        let said = program.refused_on(other, &[LULL, "attach", "--mode", "suspend20", "--once"]);
        let holder = format!("process {}, lull attach of process {followed}", follower.child.id());
        assert!(said.contains("another lull works on descriptor") && said.contains(&holder), "{said}");
        assert_eq!(program.params(), [FULLBUSY; 3]);
        // Setting the same parameters again is no change.
        let said = program.ok_on(other, &[LULL, "attach", "--mode", "fullbusy", "--once"]);
        assert!(said.contains("already"), "{said}");
        follower.signal("-TERM");
        assert_eq!(follower.end().0, Some(0));
        assert_eq!(program.params(), OWN);
    }
}

#[test]
fn what_another_lull_has_and_does_not_follow_is_not_refused() {
    let Some(program) = below_a_shell("what_another_lull_has_and_does_not_follow_is_not_refused") else { return };
    let (shell, child) = (program.child.id(), program.pid);
    for words in [&["--mode", "suspend20", "--children", "no"][..], &["--steer", "hash"]] {
        program.ok_on(shell, &[LULL, "attach", "--mode", "suspend20", "--once"]);
        // The attach has the record of the child's contexts.
        let mut command = program.command_on(shell, &[&[LULL, "attach"], words].concat());
        let mut staying = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, stderr) = (lines_of(&mut staying), staying.stderr.take().unwrap());
        let mut staying = Follower { child: staying, lines };
        let mut said = BufReader::new(stderr).lines().map(Result::unwrap);
        assert!(said.any(|line| line.contains("is followed;")));
        program.ok_on(child, &[LULL, "attach", "--mode", "fullbusy", "--once"]);
        assert_eq!(program.params(), [FULLBUSY; 3]);
        program.ok_on(child, &[LULL, "detach"]);
        assert_eq!(program.params(), OWN);
        staying.signal("-TERM");
        staying.lines.by_ref().for_each(drop);
        assert!(staying.child.wait().unwrap().success());
        assert_eq!(program.params(), OWN, "{words:?}");
    }
}

#[test]
fn an_attach_waits_for_another_that_is_soon_done() {
    let test = "an_attach_waits_for_another_that_is_soon_done";
    if program(test).is_none() {
        return;
    }
    let Some(program) = below_a_shell(test) else { return };
    let (shell, child) = (program.child.id(), program.pid);
    program.ok_on(shell, &[LULL, "attach", "--mode", "suspend20", "--once"]);
    // The test takes the lock, as if the other lull still had it.
    let lock = std::fs::File::open(program.record().with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let trace = program.state.join("trace");
    let strace = ["strace", "-qq", "-o", trace.to_str().unwrap(), "-e", "trace=flock"];
    let words = [&strace[..], &[LULL, "attach", "--mode", "fullbusy", "--once"]].concat();
    let mut other = program.command_on(child, &words).stdout(Stdio::null()).spawn().unwrap();
    while !std::fs::read_to_string(&trace).is_ok_and(|text| text.contains("EAGAIN")) {
        assert!(other.try_wait().unwrap().is_none(), "it asks for the lock");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(lock);
    assert!(other.wait().unwrap().success());
    assert_eq!(program.params(), [FULLBUSY; 3]);
    for pid in [shell, child] {
        program.ok_on(pid, &[LULL, "detach"]);
    }
    assert_eq!(program.params(), OWN);
}

#[test]
fn what_is_given_back_while_another_attach_looks_is_not_the_programs_own() {
    let test = "what_is_given_back_while_another_attach_looks_is_not_the_programs_own";
    if program(test).is_none() {
        return;
    }
    let Some(program) = below_a_shell(test) else { return };
    let (shell, child) = (program.child.id(), program.pid);
    program.ok_on(child, &[LULL, "attach", "--mode", "fullbusy", "--once"]);
    // The command is stopped when it has read the parameters of two of the three contexts.
    let trace = program.state.join("trace");
    let strace = ["strace", "-qq", "-o", trace.to_str().unwrap(), "-e", "trace=pidfd_getfd"];
    let stop = ["-e", "inject=pidfd_getfd:signal=STOP:when=3"];
    let words = [&strace[..], &stop, &[LULL, "attach", "--mode", "suspend20", "--once"]].concat();
    let mut other = program.command_on(shell, &words).stdout(Stdio::null()).spawn().unwrap();
    while !std::fs::read_to_string(&trace).is_ok_and(|text| text.contains("stopped by SIGSTOP")) {
        assert!(other.try_wait().unwrap().is_none(), "it looks at three contexts");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let detached = program.run_on(child, &[LULL, "detach"]);
    let stopped = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", other.id())).unwrap();
    assert!(Command::new("kill").args(["-CONT", stopped.trim()]).status().unwrap().success());
    assert!(other.wait().unwrap().success() && detached.status.success());
    assert_eq!(program.params(), ["0 64 1"; 3]);
    program.ok_on(shell, &[LULL, "detach"]);
    assert_eq!(program.params(), OWN);
}

/// This also holds for a `/proc` that is mounted with hidepid=1.
#[test]
fn a_number_that_another_users_process_has_by_now_is_in_no_detachs_way() {
    const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let test = "a_number_that_another_users_process_has_by_now_is_in_no_detachs_way";
    let Some(mut program) = program(test) else { return };
    // The command is copied to a place from which another user may run it.
    let lull = program.state.join("lull");
    std::fs::create_dir_all(&program.state).unwrap();
    std::fs::copy(LULL, &lull).unwrap();
    let lull = lull.to_str().unwrap().to_owned();
    let works = Command::new(NOBODY[0]).args(&NOBODY[1..]).args([&lull, "--version"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("SKIP: {test}: no program can be run as another user");
        return;
    }
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    // The record is changed as if the user had attached to a process whose number is now that of this process, which is
    // root's.
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(program.record()).unwrap()).unwrap();
    for context in record["contexts"].as_array_mut().unwrap() {
        context["pid"] = std::process::id().into();
    }
    std::fs::write(program.record(), record.to_string()).unwrap();
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    std::os::unix::fs::chown(&program.state, Some(65534), Some(65534)).unwrap();
    for file in std::fs::read_dir(&program.state).unwrap() {
        std::os::unix::fs::chown(file.unwrap().path(), Some(65534), Some(65534)).unwrap();
    }
    let stat = format!("/proc/{}/stat", std::process::id());
    let hidden = ["strace", "-qq", "-o", "/dev/null", "-P", &stat, "-e", "trace=openat"];
    let refused = ["-e", "inject=openat:error=EPERM", &lull, "detach"];
    let said = program.ok(&[&NOBODY[..], &hidden, &refused].concat());
    assert!(said.contains("nothing is left"), "{said}");
    assert!(!program.record().exists());
}

#[test]
fn a_file_with_a_path_that_is_too_long_is_in_nobodys_way() {
    // It makes a directory of 25 levels of 200 letters, below that of its state files.
    let deep = "import os, tempfile
os.makedirs(tempfile.gettempdir() + '/lull-attach-' + str(os.getpid()))
os.chdir(tempfile.gettempdir() + '/lull-attach-' + str(os.getpid()))
for _ in range(25):
\tos.mkdir('d' * 200)
\tos.chdir('d' * 200)
directory = os.open('.', os.O_RDONLY)
os.chdir('/')
";
    let program = Program::below(&["python3", "-c", &format!("{deep}{MAKE}")]);
    let Some(program) = usable(program, "a_file_with_a_path_that_is_too_long_is_in_nobodys_way") else { return };
    program.ok(&[LULL, "attach", "--mode", "fullbusy", "--once"]);
    assert_eq!(program.params(), [FULLBUSY; 3]);
    program.ok(&[LULL, "detach"]);
    assert_eq!(program.params(), OWN);
}

#[test]
fn a_new_child_that_another_lull_follows_is_left_to_that_one_until_it_ends() {
    let test = "a_new_child_that_another_lull_follows_is_left_to_that_one_until_it_ends";
    if program(test).is_none() {
        return;
    }
    // The shell's child does not begin before the outer follower has looked and is stopped.
    let begun = ["sh", "-c", "echo $$; read go; python3 -c \"$0\" \"$@\"; exec sleep 600", MAKE];
    let mut program = Program::below(&begun);
    let shell = program.pid;
    let mut outer = program.command_on(shell, &[LULL, "attach", "--mode", "suspend20", "--json"]);
    let mut child = outer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (lines, stderr) = (lines_of(&mut child), child.stderr.take().unwrap());
    let mut outer = Follower { child, lines };
    let mut said = BufReader::new(stderr).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("is followed;")));
    outer.signal("-STOP");
    program.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    program.pid = program.lines.next().unwrap().unwrap().parse().unwrap();
    let mut inner = program.follower_of(program.pid, "fullbusy");
    outer.signal("-CONT");
    let mut events = outer.lines.by_ref().map(Result::unwrap);
    let event = events.find(|line| line.contains("\"set\"") || line.contains("another lull")).unwrap();
    assert!(event.contains("\"warning\"") && event.contains("another lull works on descriptor"), "{event}");
    assert_eq!(program.params(), [FULLBUSY; 3]);
    inner.signal("-TERM");
    assert_eq!(inner.end().0, Some(0));
    assert!(outer.lines.by_ref().any(|line| line.unwrap().contains("\"set\"")));
    outer.signal("-TERM");
    outer.lines.by_ref().for_each(drop);
    assert!(outer.child.wait().unwrap().success());
    assert_eq!(program.params(), OWN);
}

#[test]
fn a_record_of_an_earlier_process_of_this_number_gives_back_to_those_that_live() {
    let test = "a_record_of_an_earlier_process_of_this_number_gives_back_to_those_that_live";
    let Some(program) = below_a_shell(test) else { return };
    // The record is changed as if the shell that was attached to had ended, and this one had got its number.
    let age = || {
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(program.record()).unwrap()).unwrap();
        record["start"] = (record["start"].as_u64().unwrap() - 1).into();
        std::fs::write(program.record(), record.to_string()).unwrap();
    };
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    age();
    let said = program.ok(&[LULL, "detach"]);
    assert_eq!(said.matches("again").count(), 3, "{said}");
    assert_eq!(program.params(), OWN);
    assert!(!program.record().exists());

    // Meanwhile another lull attaches to the child alone.
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    age();
    let said = program.refused(&[LULL, "attach", "--mode", "suspend20", "--once", "--children", "no"]);
    assert!(said.contains("has no epoll context"), "{said}");
    program.ok(&[LULL, "attach", "--mode", "fullbusy", "--once"]);
    assert_eq!(program.params(), [FULLBUSY; 3]);
    program.ok(&[LULL, "detach"]);
    assert_eq!(program.params(), OWN);
    assert!(!program.record().exists());
}

#[test]
fn an_attach_that_cannot_write_its_record_gives_back_what_it_has_set() {
    let Some(mut program) =
        usable(Program::start(), "an_attach_that_cannot_write_its_record_gives_back_what_it_has_set")
    else {
        return;
    };
    let mut follower = program.follower_of(program.pid, "suspend20");
    std::fs::remove_dir_all(&program.state).unwrap();
    program.make_another();
    let (status, said) = follower.end();
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("cannot write the state file") && said.contains("no context was changed"), "{said}");
    assert_eq!(program.params(), [&OWN[..], &["0 0 0"]].concat());
}

#[test]
fn the_supervisor_leaves_a_process_that_has_got_the_number_since() {
    let test = "the_supervisor_leaves_a_process_that_has_got_the_number_since";
    let Some(program) = usable(Program::start(), test) else { return };
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(program.record()).unwrap()).unwrap();
    let start = record["start"].as_u64().unwrap();
    for (start, now) in [(start - 1, ["0 64 1"; 3]), (start, OWN)] {
        let mut supervisor = Command::new(LULL)
            .args(["supervise", "--state-dir", program.state.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(lines_of(&mut supervisor).next().unwrap().unwrap(), "ready");
        // The pipe ends without a last message, as when `lull run` has died.
        writeln!(supervisor.stdin.take().unwrap(), "program {} {start}", program.pid).unwrap();
        assert!(supervisor.wait().unwrap().success());
        assert_eq!(program.params(), now);
    }
}

#[test]
fn detach_says_that_what_was_set_has_gone_with_a_child() {
    let Some(mut program) = below_a_shell("detach_says_that_what_was_set_has_gone_with_a_child") else { return };
    program.ok(&[LULL, "attach", "--mode", "suspend20", "--once"]);
    drop(program.child.stdin.take());
    let shell = program.child.id();
    let comm = || std::fs::read_to_string(format!("/proc/{shell}/comm")).unwrap();
    while comm() != "sleep\n" {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    for words in [&[LULL, "detach", "--dry-run"][..], &[LULL, "detach"]] {
        let said = program.ok(words);
        assert!(said.contains(&format!("nothing is left of what was set in process {shell}")), "{said}");
    }
    assert!(program.ok(&[LULL, "detach"]).contains("nothing of process"));
}
