//! `lull attach --once` killed at each of its system calls that change anything: `lull detach` gives back what the
//! program itself had, whatever had been set before.

mod kernel;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use kernel::{lines_of, script};

/// A program whose three epoll contexts have these parameters, and a directory for state files.
struct Program {
    child: Child,
    state: PathBuf,
}

const OWN: [&str; 3] = ["5 8 0", "0 0 0", "0 16 1"];

impl Program {
    fn start() -> Program {
        let make = "import fcntl, select, struct, sys\n\
             kept = []\n\
             for triple in sys.argv[1:]:\n\
             \tkept.append(select.epoll())\n\
             \tfcntl.ioctl(kept[-1].fileno(), 0x40088A01, struct.pack('IHBB', *map(int, triple.split()), 0))\n\
             print('made', flush=True)\n\
             sys.stdin.read()";
        let mut child = Command::new("python3")
            .args(["-c", make])
            .args(OWN)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(lines_of(&mut child).next().unwrap().unwrap(), "made");
        let state = std::env::temp_dir().join(format!("lull-attach-killed-{}", child.id()));
        Program { child, state }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["--pid", &self.child.id().to_string()]);
        command.env("LULL_STATE_DIR", &self.state).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The parameters of its contexts.
    fn params(&self) -> Vec<String> {
        let output = Command::new("python3").args([&script("params.py"), &self.child.id().to_string()]).output();
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

const LULL: &str = env!("CARGO_BIN_EXE_lull");
/// The second mode, as `params` prints it.
const FULLBUSY: &str = "1000 64 1";

/// `words` under strace, which kills it at the `nth` call of this name.
fn killed_at(call: &str, nth: u32, words: &[&str], program: &Program) -> Output {
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
    let strace = ["strace", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    assert!(nth < 200, "it never came to its end");
    program.run(&[&strace[..], words].concat())
}

/// A program to try it on, unless this machine cannot.
fn program(test: &str) -> Option<Program> {
    let works = Command::new("strace").args(["-e", "trace=none", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("SKIP: {test}: strace is not installed, or may not trace");
        return None;
    }
    let program = Program::start();
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
            // Another one on top of what the killed one has left.
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
