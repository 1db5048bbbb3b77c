//! Programs for the tests of the program's half of a mode: memcached, waiters, and a `lull attach` that stays.
#![allow(dead_code, reason = "each test binary uses its share")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::kernel::{World, lines_of, refused, script, succeeded};

/// How long to wait for something that happens by itself.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A descriptor and its usecs, budget and prefer.
pub type Params = (i32, u32, u32, u32);
pub const NONE: (u32, u32, u32) = (0, 0, 0);
pub const SUSPEND: (u32, u32, u32) = (0, 64, 1);
pub const FULLBUSY: (u32, u32, u32) = (1_000, 64, 1);

/// A directory for state files and programs, which is removed with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Scratch {
        let directory = std::env::temp_dir().join(format!("lull-program-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Scratch(directory)
    }

    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
        command.args(arguments.split_whitespace()).env("LULL_STATE_DIR", self.0.join("state"));
        command
    }

    pub fn lull(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    pub fn ok(&self, arguments: &str) -> String {
        succeeded(arguments, &self.lull(arguments))
    }

    #[track_caller]
    pub fn refused(&self, arguments: &str, words: &[&str]) {
        refused(arguments, &self.lull(arguments), words);
    }

    /// Returns what is left in the state directory.
    pub fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join("state")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that ends with the test.
pub struct Program {
    pub child: Child,
}

impl Program {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends a server if its test has failed; without a `lull run` above it, it would run for ever.
pub struct EndsWithFailure(pub u32);

impl Drop for EndsWithFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("kill").args(["-KILL", &self.0.to_string()]).status();
        }
    }
}

pub fn params(pid: u32) -> Vec<Params> {
    let output = Command::new("python3").args([&script("params.py"), &pid.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let parse = |line: &str| {
        let numbers: Vec<u32> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        (numbers[0] as i32, numbers[1], numbers[2], numbers[3])
    };
    String::from_utf8(output.stdout).unwrap().lines().map(parse).collect()
}

pub fn have(pid: u32, count: usize, wanted: (u32, u32, u32)) -> bool {
    let params = params(pid);
    params.len() == count && params.iter().all(|&(_, usecs, budget, prefer)| (usecs, budget, prefer) == wanted)
}

#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Prints why a test is skipped, if the programs that it needs are missing or it does not run as root.
pub fn lacks(test: &str, programs: &[&str]) -> bool {
    for program in programs {
        if !Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
            println!("SKIP: {test}: {program} is not installed");
            return true;
        }
    }
    let user = Command::new("id").arg("-u").output().unwrap().stdout;
    if user.trim_ascii() != b"0" {
        println!("SKIP: {test}: duplicating descriptors of other processes takes root here");
        return true;
    }
    is_old(test)
}

/// Prints why a test is skipped, if the kernel has no parameters of epoll contexts.
pub fn is_old(test: &str) -> bool {
    build_preload();
    let output = Command::new(env!("CARGO_BIN_EXE_lull"))
        .args(["run", "--mode", "suspend20", "--dry-run", "--", "true"])
        .output()
        .unwrap();
    let is_old = String::from_utf8(output.stderr).unwrap().contains("Linux 6.9");
    if is_old {
        println!("SKIP: {test}: this kernel has no busy-poll parameters of epoll contexts (Linux 6.9)");
    }
    is_old
}

/// Builds the preload library beside the `lull` that is tested, because `cargo test -p lull` alone does not build it.
pub fn build_preload() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_lull")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--workspace", "--lib", "--test", "preload", "--target-dir"])
            .arg(directory.parent().unwrap());
        if directory.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        assert!(directory.join("liblull_preload.so").is_file());
    });
}

/// Starts memcached with two workers on a loopback port that it chooses, and waits until it has its three contexts.
pub fn memcached() -> Program {
    let child = Command::new("memcached")
        .args(["-u", "nobody", "-l", "127.0.0.1", "-t", "2", "-U", "0", "-p", "-1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let program = Program { child };
    wait_until("memcached has its contexts", || params(program.pid()).len() == 3);
    program
}

/// Returns a port that nobody uses at the moment, and that no other test of this binary was given.
pub fn port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

/// Returns the statically linked program of `kernel/waiter.c`, or `None` if it cannot be made here.
pub fn waiter(scratch: &Scratch, test: &str) -> Option<PathBuf> {
    let program = scratch.0.join("waiter");
    let made = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(script("waiter.c")).output();
    if made.is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    println!("SKIP: {test}: no C compiler with a static C library");
    None
}

/// A running waiter.
pub struct Waiter {
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub lines: Lines<BufReader<ChildStdout>>,
}

impl Waiter {
    pub fn of(mut child: Child) -> Waiter {
        let input = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut waiter = Waiter { child, input, lines };
        waiter.answer("made");
        waiter
    }

    pub fn start(program: &Path) -> Waiter {
        Waiter::of(Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    pub fn answer(&mut self, word: &str) -> u32 {
        let line = self.lines.next().unwrap().unwrap();
        line.strip_prefix(word).unwrap().trim().parse().unwrap()
    }

    pub fn ask(&mut self, request: &str, word: &str) -> u32 {
        self.input.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        self.answer(word)
    }

    pub fn end(mut self) -> std::process::ExitStatus {
        drop(self.input.take());
        self.child.wait().unwrap()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `lull attach` that stays.
pub struct Attached {
    pub child: Child,
    pub lines: Lines<BufReader<ChildStderr>>,
}

impl Attached {
    pub fn start(scratch: &Scratch, arguments: &str) -> Attached {
        let mut child = scratch.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("is followed;")), "lull {arguments} did not stay");
        Attached { child, lines }
    }

    pub fn end(mut self) -> (Option<i32>, String) {
        let said = self.lines.by_ref().map_while(Result::ok).collect::<Vec<_>>().join("\n");
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the process of this name that a process has started.
pub fn child_of(parent: u32, name: &str) -> u32 {
    let mut found = None;
    wait_until(&format!("{name} runs"), || {
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        let is_it =
            |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
        found = children.split_whitespace().find(is_it).map(|pid| pid.parse().unwrap());
        found.is_some()
    });
    found.unwrap()
}

/// Returns memcached's statistics, by name, as it tells them to the far end over 16 connections, which stay open while
/// `meanwhile` runs.
pub fn statistics(world: &World, meanwhile: impl FnOnce()) -> impl Fn(&str) -> u64 {
    let mut client = Command::new("ip")
        .args(["netns", "exec", &world.far, "python3", &script("connections.py"), "10.99.0.1", "11211", "16"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Vec::new();
    for line in lines_of(&mut client) {
        let line = line.unwrap();
        let is_last = line == "END";
        lines.push(line);
        if is_last {
            break;
        }
    }
    meanwhile();
    drop(client.stdin.take());
    assert!(client.wait().unwrap().success());
    move |name: &str| {
        let value = lines.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        value.unwrap_or_else(|| panic!("no {name} in {lines:?}")).parse().unwrap()
    }
}
