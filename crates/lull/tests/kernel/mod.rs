//! Two network namespaces with a veth pair between them, made for one test and removed with it.

#![allow(dead_code, reason = "each test binary uses its share")]

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long to wait for something that happens by itself; it takes far less, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The namespaces, the pair, and a directory for state files.
pub struct World {
    pub near: String,
    pub far: String,
    /// The name of the near end.
    pub device: String,
    pub state: PathBuf,
}

/// A NAPI, as a raw netlink message shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    pub id: u32,
    pub defer: u64,
    pub gro: u64,
    pub suspend: u64,
    pub threaded: u64,
    pub pid: i32,
}

impl Raw {
    /// Returns only the settings.
    pub fn values(&self) -> (u64, u64, u64, u64) {
        (self.defer, self.gro, self.suspend, self.threaded)
    }
}

pub const BASE: (u64, u64, u64, u64) = (0, 0, 0, 0);
pub const SUSPEND20: (u64, u64, u64, u64) = (100, 20_000, 20_000_000, 0);
pub const DEFER50: (u64, u64, u64, u64) = (100, 50_000, 0, 0);
pub const THREADED: (u64, u64, u64, u64) = (0, 0, 0, 1);

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

impl World {
    /// Makes a world with `queues` queues and GRO on at the near end `va`; if it cannot, it prints the reason.
    pub fn new(test: &str, queues: usize) -> Option<World> {
        World::with_device(test, queues, "va")
    }

    /// As [`World::new`], with a near end whose name no other device has: a trace knows devices by their names only, in
    /// whichever namespace they are.
    pub fn alone(test: &str, queues: usize) -> Option<World> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        World::with_device(test, queues, &format!("va{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    fn with_device(test: &str, queues: usize, device: &str) -> Option<World> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        for (program, argument) in [("ip", "-V"), ("ethtool", "--version"), ("python3", "--version")] {
            if !succeeds(program, &[argument]) {
                println!("SKIP: {test}: {program} is not installed");
                return None;
            }
        }
        let tag = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let world = World {
            near: format!("lull-{tag}-a"),
            far: format!("lull-{tag}-b"),
            device: device.to_owned(),
            state: std::env::temp_dir().join(format!("lull-state-{tag}")),
        };
        if !succeeds("ip", &["netns", "add", &world.near]) || !succeeds("ip", &["netns", "add", &world.far]) {
            println!("SKIP: {test}: no network namespaces: it takes root");
            return None;
        }
        world.make_pair(queues);
        if world.raw().len() != queues {
            println!("SKIP: {test}: this kernel shows no NAPIs of a veth with GRO (Linux 6.13)");
            return None;
        }
        Some(world)
    }

    /// Makes the pair of devices; if there is one, it is replaced.
    pub fn make_pair(&self, queues: usize) {
        let device = &*self.device;
        let _ = Command::new("ip").args(["-n", &self.near, "link", "del", device]).output();
        let queues = queues.to_string();
        let make = ["ip", "link", "add", device, "numrxqueues", &queues, "numtxqueues", &queues, "type", "veth"];
        let peer = ["peer", "name", "vb", "netns", &self.far, "numrxqueues", &queues, "numtxqueues", &queues];
        self.run(&[&make[..], &peer].concat());
        self.run(&["ip", "addr", "add", "10.99.0.1/24", "dev", device]);
        self.run(&["ethtool", "-K", device, "gro", "on"]);
        self.run(&["ip", "link", "set", device, "up"]);
        // Packets that a veth sends with TSO on bypass the peer's NAPI.
        for command in ["ip addr add 10.99.0.2/24 dev vb", "ethtool -K vb tso off", "ip link set vb up"] {
            let words = command.split(' ').collect::<Vec<_>>();
            assert!(Command::new("ip").args(["netns", "exec", &self.far]).args(words).status().unwrap().success());
        }
    }

    /// Returns a command in the near namespace, with the state directory of this world.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.near]).args(words).env("LULL_STATE_DIR", &self.state);
        command
    }

    /// Runs a command in the near namespace, which has to succeed.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs lull in the near namespace.
    pub fn lull(&self, arguments: &str) -> Output {
        let words = [&[env!("CARGO_BIN_EXE_lull")], &arguments.split_whitespace().collect::<Vec<_>>()[..]].concat();
        self.command(&words).output().unwrap()
    }

    /// Runs lull, which has to succeed, and returns its output.
    #[track_caller]
    pub fn ok(&self, arguments: &str) -> String {
        succeeded(arguments, &self.lull(arguments))
    }

    /// Runs lull, which has to refuse in one line with these words.
    #[track_caller]
    pub fn refused(&self, arguments: &str, words: &[&str]) {
        refused(arguments, &self.lull(arguments), words);
    }

    /// The NAPIs of the near end, by raw netlink.
    pub fn raw(&self) -> Vec<Raw> {
        self.raw_of(&self.device)
    }

    /// The NAPIs of a device of the near namespace, by raw netlink.
    pub fn raw_of(&self, device: &str) -> Vec<Raw> {
        let listed = self.run(&["python3", &script("napi.py"), "get", device]);
        let napi = |line: &str| {
            let values: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let (id, pid) = (values[0] as u32, values[5] as i32);
            Raw { id, defer: values[1], gro: values[2], suspend: values[3], threaded: values[4], pid }
        };
        listed.lines().map(napi).collect()
    }

    /// The settings of the near end's NAPIs.
    pub fn values(&self) -> Vec<(u64, u64, u64, u64)> {
        self.raw().iter().map(Raw::values).collect()
    }

    /// Sets a NAPI by raw netlink.
    pub fn set_raw(&self, id: u32, pairs: &[&str]) {
        let id = id.to_string();
        self.run(&[&["python3", &script("napi.py"), "set", &id], pairs].concat());
    }

    /// The device-wide values of the near end.
    pub fn device_wide(&self) -> String {
        let values = ["napi_defer_hard_irqs", "gro_flush_timeout", "threaded"];
        let files = values.map(|value| format!("/sys/class/net/{}/{value}", self.device));
        self.run(&["cat", &files[0], &files[1], &files[2]])
    }

    /// The state file of the near end, if there is one.
    pub fn state_file(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(&self.state).ok()?;
        entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|it| it == "json"))
    }

    /// Starts a lull that stays.
    pub fn start(&self, arguments: &str) -> Staying {
        self.start_by(&[], arguments)
    }

    /// Starts a lull that stays by a command that becomes it.
    pub fn start_by(&self, by: &[&str], arguments: &str) -> Staying {
        let lull = [env!("CARGO_BIN_EXE_lull")];
        let words = [by, &lull, &arguments.split_whitespace().collect::<Vec<_>>()[..]].concat();
        let mut child = self.command(&words).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let logged = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, lines) = channel();
        std::thread::spawn(move || logged.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Staying { child, lines }
    }

    /// Waits until the settings are these.
    #[track_caller]
    pub fn wait_for(&self, wanted: &[(u64, u64, u64, u64)]) {
        let begun = Instant::now();
        while self.values() != wanted {
            assert!(begun.elapsed() < PATIENCE, "{:?} never became {wanted:?}", self.values());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

/// A lull that stays until it is told to end (`ip netns exec` becomes it, so the process id is lull's).
pub struct Staying {
    pub child: Child,
    lines: Receiver<String>,
}

impl Staying {
    /// Reads its log up to a line with this word.
    #[track_caller]
    pub fn wait_for(&mut self, word: &str) -> String {
        let mut said = String::new();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            if line.contains(word) {
                return line;
            }
            said += &line;
            said.push('\n');
        }
        panic!("it never said '{word}': {said}");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits for its end.
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap().code();
        (status, self.lines.iter().collect::<Vec<_>>().join("\n"))
    }
}

/// If a test fails before its end, lull restores what it changed and ends its program, which it could not do if it were
/// killed. A program in the background takes a second signal.
impl Drop for Staying {
    fn drop(&mut self) {
        for signal in ["-TERM", "-TERM", "-KILL"] {
            let begun = Instant::now();
            if let Ok(None) = self.child.try_wait() {
                let _ = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
            }
            while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < PATIENCE / 4 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// A script beside the tests.
pub fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel").join(name).to_str().unwrap().to_owned()
}

/// Lines of a program's standard output.
pub fn lines_of(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

/// Returns the output of a lull that has to have succeeded.
#[track_caller]
pub fn succeeded(arguments: &str, output: &Output) -> String {
    assert!(output.status.success(), "lull {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Checks that lull refused in one line with these words.
#[track_caller]
pub fn refused(arguments: &str, output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "lull {arguments}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "lull {arguments}: {said}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(said.contains(word), "lull {arguments} says: {said}");
    }
}
