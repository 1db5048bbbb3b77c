//! `lull load --hdr --start-at` and `lull merge`: several generators on one memcached, added up.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LULL: &str = env!("CARGO_BIN_EXE_lull");
/// This only bounds a failure.
const LOST: Duration = Duration::from_secs(120);

/// A memcached on a port of its own, which ends with the test.
struct Memcached(Child, String);

impl Memcached {
    fn start() -> Option<Memcached> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("lull-load-port-{}-{nth}", std::process::id()));
        // memcached chooses a free port itself, and writes it to a file.
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p", "-1"]).stderr(Stdio::null());
        let mut child = command.env("MEMCACHED_PORT_FILENAME", &file).spawn().ok()?;
        let begun = Instant::now();
        let port = loop {
            let written = std::fs::read_to_string(&file).unwrap_or_default();
            if let Some(port) = written.lines().find_map(|line| line.strip_prefix("TCP INET: ")) {
                break port.to_owned();
            }
            assert_eq!(child.try_wait().unwrap(), None, "memcached ended");
            assert!(begun.elapsed() < LOST, "memcached does not listen");
            std::thread::sleep(Duration::from_millis(10));
        };
        let _ = std::fs::remove_file(file);
        Some(Memcached(child, format!("127.0.0.1:{port}")))
    }

    fn load(&self, more: &[&str]) -> Command {
        let mut command = Command::new(LULL);
        command.args(["load", &self.1, "--connections", "2", "--records", "50"]).args(more);
        command
    }
}

impl Memcached {
    /// Returns its answer to a command, up to `end`.
    fn ask(&self, command: &str, end: &str) -> String {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        stream.write_all(command.as_bytes()).unwrap();
        let (mut answer, mut part) = (String::new(), [0; 4096]);
        while !answer.ends_with(end) {
            let count = stream.read(&mut part).unwrap();
            assert!(count > 0, "{answer}");
            answer += std::str::from_utf8(&part[..count]).unwrap();
        }
        answer
    }
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn merge(files: &[&str]) -> Output {
    Command::new(LULL).arg("merge").args(files).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A server that answers every request with a miss, `answers` times in all, and then closes every connection and its
/// listener.
struct Dying {
    address: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Dying {
    fn after(answers: usize) -> Dying {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut connections, mut input, mut left): (Vec<TcpStream>, _, _) = (Vec::new(), [0; 4096], answers);
            while left > 0 && !stopped.load(Ordering::Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    connections.push(stream);
                }
                connections.retain_mut(|stream| match stream.read(&mut input) {
                    Ok(0) => false,
                    Ok(_) => {
                        left = left.saturating_sub(1);
                        stream.write_all(b"END\r\n").is_ok()
                    }
                    Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                });
                std::thread::yield_now();
            }
        });
        Dying { address, stop, thread }
    }

    /// Whether it has closed by itself and was not stopped by the test.
    fn has_died(self) -> bool {
        let died = self.thread.is_finished();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        died
    }
}

#[test]
fn a_server_that_dies_in_an_open_loop_ends_the_load_with_a_failure() {
    // On a busy machine the server may not give that many answers within a window, so each window is ten times as long
    // as the one before.
    for seconds in ["1", "10", "100"] {
        let server = Dying::after(100);
        let mut command = Command::new(LULL);
        let server_is =
            [server.address.as_str(), "--connections", "2", "--records", "50", "--no-preload", "--update", "0"];
        command.arg("load").args(server_is);
        let output = command.args(["--load", "20K", "--warm-up", "0.01", "--seconds", seconds]).output().unwrap();
        if !server.has_died() {
            continue;
        }
        let said = said(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("were due and never sent; the latencies leave them out"), "{said}");
        assert!(said.contains("the server went away while it was measured"), "{said}");
        return;
    }
    panic!("the server was never asked as often as it answers");
}

#[test]
fn generators_that_begin_together_add_up() {
    let Some(memcached) = Memcached::start() else {
        println!("SKIP: generators add up: memcached is not installed");
        return;
    };
    let directory = Scratch(std::env::temp_dir().join(format!("lull-load-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).unwrap();
    let file = |name: &str| directory.0.join(name).to_str().unwrap().to_owned();
    let names = [file("0"), file("1"), file("2")];
    let run = |begin: &str, name: &String| {
        let options = ["--load", "200", "--seconds", "1", "--warm-up", "0.5", "--start-at", begin, "--hdr", name];
        memcached.load(&options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // All have the same start, which is ever later until all of them have connected by then.
    let mut ahead = Duration::from_secs(4);
    loop {
        let begin = (SystemTime::now() + ahead).duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
        let mut running: Vec<_> = names.iter().map(|name| run(&begin, name)).collect();
        let why = running.iter_mut().find_map(|one| {
            let status = one.wait().unwrap();
            let mut why = String::new();
            one.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            (!status.success()).then_some(why)
        });
        let Some(why) = why else { break };
        assert!(why.contains("give a later time") && ahead < LOST, "{why}");
        running.iter_mut().for_each(|one| drop((one.kill(), one.wait())));
        ahead *= 3;
    }

    let [one, two, three] = names.each_ref().map(String::as_str);
    let both = file("both");
    assert!(merge(&[one, two, "--hdr", &both]).status.success());
    let json = |files: &[&str]| -> Value {
        let output = merge(&[files, &["--json"]].concat());
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (sum, in_steps) = (json(&[one, two, three]), json(&[three, &both]));
    assert_eq!((&sum["generators"], &sum["connections"]), (&3.into(), &6.into()));
    for key in ["received", "sent", "hits", "misses", "stored", "errors", "latency_ns", "generators"] {
        assert_eq!(sum[key], in_steps[key], "{key}");
    }
    let each: u64 = [one, two, three].map(|file| json(&[file])["received"].as_u64().unwrap()).iter().sum();
    assert_eq!(sum["received"], each);
    assert!(each > 0);

    let output = merge(&[one, one]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("which would count twice"), "{}", said(&output));
}

#[test]
fn a_load_that_a_signal_ends_before_its_window_has_not_succeeded() {
    let Some(memcached) = Memcached::start() else {
        println!("SKIP: a load that a signal ends: memcached is not installed");
        return;
    };
    // The records are stored before the wait for the start, and the first requests are those of the warm-up.
    for (options, begun) in [
        (["--start-at", "+3600s"], "cmd_set 50\r\n"),
        (["--warm-up", "3600"], "get_hits "),
        (["--seconds", "3600"], "get_hits "),
    ] {
        memcached.ask("stats reset\r\n", "RESET\r\n");
        let mut command = memcached.load(&options);
        let child = command.args(["--hdr", "/dev/null"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut child = Ended(child);
        let until = Instant::now() + LOST;
        let has_begun = |stats: &str| stats.contains(begun) && (begun.contains("set") || !stats.contains("get_hits 0"));
        while !has_begun(&memcached.ask("stats\r\n", "END\r\n")) {
            assert!(Instant::now() < until && child.0.try_wait().unwrap().is_none(), "{options:?} does not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
        assert_eq!(child.0.wait().unwrap().code(), Some(130), "{options:?}");
    }
}

#[test]
fn a_start_that_has_passed_is_refused_with_what_helps() {
    let Some(memcached) = Memcached::start() else {
        println!("SKIP: a start that has passed: memcached is not installed");
        return;
    };
    let output = memcached.load(&["--start-at", "2020-01-01T00:00:00Z"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("give a later time"), "{}", said(&output));
    for wrong in ["soon", "2026-13-01T00:00:00Z", "+x"] {
        let output = memcached.load(&["--start-at", wrong]).output().unwrap();
        assert!(said(&output).contains("is no moment"), "{}", said(&output));
    }
}

#[test]
fn a_file_that_is_no_log_is_named() {
    let output = merge(&["/proc/self/status"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("/proc/self/status: it is no histogram log"), "{}", said(&output));
    let output = merge(&["/nowhere"]);
    assert!(said(&output).contains("cannot use /nowhere"), "{}", said(&output));
    let output = merge(&["/nowhere", "--hdr", "-"]);
    assert!(said(&output).contains("name a file, or /dev/stdout"), "{}", said(&output));
}
