//! `--steer` on the kernel plane: programs choose among the listeners of nginx's workers. They are attached by the
//! preload library and from outside, and are removed again.

mod kernel;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use kernel::{World, script};
use program::{PATIENCE, Scratch, build_preload, port, signal, wait_until};

const ASKED: usize = 40;

/// Returns whether nginx cannot be steered here, and prints why.
fn lacks(test: &str) -> bool {
    build_preload();
    if !Command::new("nginx").arg("-v").output().is_ok_and(|output| output.status.success()) {
        println!("SKIP: {test}: nginx is not installed");
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: {test}: duplicating descriptors of other processes takes root here");
        return true;
    }
    false
}

/// An nginx whose workers answer with their numbers. `$pid` is the worker's process.
struct Nginx {
    directory: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Nginx {
    fn new(scratch: &Scratch, workers: usize, reuseport: &str) -> Nginx {
        let (directory, port) = (scratch.0.join("nginx"), port());
        std::fs::create_dir_all(directory.join("logs")).unwrap();
        let nginx = Nginx { directory, port, child: None };
        nginx.configure(workers, reuseport);
        nginx
    }

    fn configure(&self, workers: usize, reuseport: &str) {
        let (at, port) = (self.directory.display(), self.port);
        let configuration = format!(
            "daemon off; user root; worker_processes {workers}; pid {at}/pid; error_log {at}/error;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;\n\
             uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;\n\
             server {{ listen 127.0.0.1:{port} {reuseport}; return 200 \"$pid\"; }} }}\n"
        );
        std::fs::write(self.directory.join("conf"), configuration).unwrap();
    }

    fn words(&self) -> Vec<String> {
        let at = |file: &str| self.directory.join(file).to_str().unwrap().to_owned();
        vec!["nginx".to_owned(), "-p".to_owned(), at(""), "-e".to_owned(), at("error"), "-c".to_owned(), at("conf")]
    }

    fn start(mut self) -> Nginx {
        let words = self.words();
        self.child = Some(Command::new(&words[0]).args(&words[1..]).spawn().unwrap());
        self.answers();
        self
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Waits until it serves.
    fn answers(&self) {
        wait_until("nginx answers", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// Returns the worker that answers a request.
    fn ask(&self) -> u32 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.rsplit("\r\n").next().unwrap().parse().unwrap_or_else(|_| panic!("{answer}"))
    }

    /// Returns the workers that answer many requests.
    fn ask_often(&self) -> BTreeSet<u32> {
        (0..ASKED).map(|_| self.ask()).collect()
    }

    /// Returns the workers that answer requests from a thread on one CPU.
    fn ask_on(&self, cpu: usize) -> BTreeSet<u32> {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                lull_host::pin_thread(&[cpu]).unwrap();
                self.ask_often()
            });
            asked.join().unwrap()
        })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }
}

/// Returns the processes of the listeners that these lines show, in their order.
fn told(lines: &str) -> Vec<u32> {
    let line = lines.lines().find(|line| line.contains("listeners steered by")).unwrap_or_else(|| panic!("{lines}"));
    let processes = line.split("(process ").skip(1);
    processes.map(|rest| rest.split(')').next().unwrap().parse().unwrap()).collect()
}

/// `lull run` with a program, and its output.
struct Run {
    child: Child,
    lines: Receiver<String>,
}

impl Run {
    fn start(scratch: &Scratch, arguments: &str, words: &[String]) -> Run {
        Run::of(scratch.command(arguments), words)
    }

    fn of(mut command: Command, words: &[String]) -> Run {
        let mut child = command.arg("--").args(words).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = channel();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || said.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Run { child, lines }
    }

    #[track_caller]
    fn line(&mut self, word: &str) -> String {
        let mut said = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            if line.contains(word) {
                return line;
            }
            said.push(line);
        }
        panic!("it never said '{word}': {said:?}");
    }

    fn end(mut self) {
        signal(self.child.id(), "-QUIT");
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{:?}", self.lines.try_iter().collect::<Vec<_>>());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = Command::new("kill").args(["-QUIT", &self.child.id().to_string()]).status();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn nginx_under_the_preload_library_is_steered_from_its_first_connection() {
    if lacks("nginx_under_the_preload_library_is_steered_from_its_first_connection") {
        return;
    }
    let scratch = Scratch::new("steer-run");
    let file = scratch.0.join("second.bpf");
    std::fs::write(&file, "1\n6 0 0 1\n").unwrap();
    let file = file.to_str().unwrap();
    for (steer, says) in [(file, "steered by a program of 1 instruction;"), ("hash", "steered by hash")] {
        let nginx = Nginx::new(&scratch, 2, "reuseport");
        let mut run = Run::start(&scratch, &format!("run --mode base --steer {steer}"), &nginx.words());
        nginx.answers();
        let asked = nginx.ask_often();
        let line = run.line(says);
        let workers = told(&line);
        assert_eq!(workers.len(), 2, "{line}");
        match steer {
            "hash" => assert_eq!(asked.len(), 2, "the hash spreads"),
            _ => assert_eq!(asked.len(), 1, "listener 1 gets all from the first connection on"),
        }
        run.end();
    }
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn nginx_is_steered_from_outside_by_cpu_and_given_back() {
    if lacks("nginx_is_steered_from_outside_by_cpu_and_given_back") {
        return;
    }
    let cpus = lull_host::usable_cores();
    if cpus.len() < 2 || cpus[..2] != [0, 1] {
        println!("SKIP: it takes CPUs 0 and 1");
        return;
    }
    let scratch = Scratch::new("steer-attach");
    let nginx = Nginx::new(&scratch, 2, "reuseport").start();
    let pid = nginx.pid();
    // Once its workers serve, they have their listeners in their epoll contexts.
    wait_until("both workers serve", || nginx.ask_often().len() == 2);
    let dry = scratch.ok(&format!("attach --pid {pid} --steer cpu --dry-run"));
    assert!(dry.contains("would set 127.0.0.1:") && dry.contains("2 listeners steered by CPU"), "{dry}");
    assert_eq!(nginx.ask_on(0).len(), 2, "a dry run attaches nothing");

    let line = scratch.ok(&format!("attach --pid {pid} --steer cpu --once"));
    let workers = told(&line);
    assert!(workers.len() == 2 && workers[0] != workers[1], "{line}");
    // A packet over loopback is delivered on the CPU that sends it.
    for (cpu, worker) in workers.iter().enumerate() {
        assert_eq!(nginx.ask_on(cpu), BTreeSet::from([*worker]), "{line}");
    }
    let json = scratch.ok(&format!("attach --pid {pid} --steer queue --once --json"));
    let events = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let event = events.into_iter().find(|event| event["event"] == "steered").unwrap_or_else(|| panic!("{json}"));
    assert_eq!(event["by"], "queue", "{json}");
    assert_eq!(event["listeners"][1]["pid"], workers[1], "{json}");
    assert_eq!(nginx.ask_on(0).len(), 2, "loopback records no queue, so that the hash chooses");

    scratch.ok(&format!("attach --pid {pid} --steer cpu --once"));
    let would = scratch.ok(&format!("detach --pid {pid} --dry-run"));
    assert!(would.contains("listeners chosen by the hash"), "{would}");
    assert_eq!(nginx.ask_on(0).len(), 1);
    let detached = scratch.ok(&format!("detach --pid {pid}"));
    assert!(detached.contains("listeners chosen by the hash again"), "{detached}");
    assert_eq!(nginx.ask_on(0).len(), 2);
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

/// A BPF file system in a mount namespace of the test's own, with pinned programs of extended BPF: `first` and `second`
/// choose the listener of that number, and `xdp` is for devices.
struct Programs(Child, String);

impl Programs {
    /// Returns `None`, and prints the reason, if there can be none.
    fn new(test: &str, scratch: &Scratch) -> Option<Programs> {
        let directory = scratch.0.join("bpf");
        std::fs::create_dir_all(&directory).unwrap();
        let directory = directory.to_str().unwrap().to_owned();
        let pin = script("pinned.py");
        let text = "mount -t bpf bpf \"$1\" && python3 \"$2\" \"$1\" && exec sleep 600";
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c", text, "sh", &directory, &pin])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut programs = Programs(child, directory);
        let line = kernel::lines_of(&mut programs.0).next().and_then(Result::ok);
        if line.as_deref() != Some("pinned") {
            println!("SKIP: {test}: no programs can be pinned here: {line:?}");
            return None;
        }
        Some(programs)
    }

    /// Returns a lull command in that namespace.
    fn lull(&self, scratch: &Scratch, arguments: &str) -> Command {
        let lull = scratch.command(arguments);
        let mut command = Command::new("nsenter");
        command
            .arg("--mount")
            .arg("--target")
            .arg(self.0.id().to_string())
            .arg(lull.get_program())
            .args(lull.get_args());
        command.envs(lull.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pinned_program_of_extended_bpf_chooses_from_outside_and_under_run() {
    let test = "a_pinned_program_of_extended_bpf_chooses_from_outside_and_under_run";
    if lacks(test) {
        return;
    }
    let scratch = Scratch::new("steer-pinned");
    let Some(programs) = Programs::new(test, &scratch) else { return };
    let at = |name: &str| format!("{}/{name}", programs.1);
    let said = |arguments: &str| {
        let output = programs.lull(&scratch, arguments).output().unwrap();
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap()).concat();
        (output.status.success(), said)
    };
    let nginx = Nginx::new(&scratch, 2, "reuseport").start();
    let pid = nginx.pid();
    wait_until("both workers serve", || nginx.ask_often().len() == 2);
    for (number, name) in ["first", "second"].into_iter().enumerate() {
        let (done, line) = said(&format!("attach --pid {pid} --steer {} --once", at(name)));
        assert!(done && line.contains(&format!("listeners steered by the program at {}", at(name))), "{line}");
        assert_eq!(nginx.ask_often(), BTreeSet::from([told(&line)[number]]), "{line}");
    }
    for (name, words) in [("xdp", "a reuseport group takes no program of type 6"), ("map", "take the program at")] {
        let (done, line) = said(&format!("attach --pid {pid} --steer {} --once", at(name)));
        assert!(!done && line.contains(words), "{name}: {line}");
    }
    assert_eq!(nginx.ask_often().len(), 1, "the one that was there stays");
    let (done, line) = said(&format!("detach --pid {pid}"));
    assert!(done && line.contains("listeners chosen by the hash again"), "{line}");
    assert_eq!(nginx.ask_often().len(), 2);
    drop(nginx);

    let nginx = Nginx::new(&scratch, 2, "reuseport");
    let command = programs.lull(&scratch, &format!("run --mode base --steer {}", at("second")));
    let mut run = Run::of(command, &nginx.words());
    nginx.answers();
    let line = run.line("listeners steered by the program at");
    // The line may have been printed before the worker was made, when the first process had the listener.
    let (chosen, answered) = (told(&line)[1], nginx.ask_often());
    assert_eq!(answered.len(), 1, "{line}");
    let first_process = |worker: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|pid| pid.trim() == chosen.to_string()))
    };
    assert!(answered.contains(&chosen) || answered.iter().any(first_process), "{answered:?}: {line}");
    run.end();
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn a_group_that_grows_is_steered_anew_and_a_killed_follower_is_undone() {
    if lacks("a_group_that_grows_is_steered_anew_and_a_killed_follower_is_undone") {
        return;
    }
    let scratch = Scratch::new("steer-grows");
    let nginx = Nginx::new(&scratch, 2, "reuseport").start();
    let pid = nginx.pid();
    let mut follower =
        scratch.command(&format!("attach --pid {pid} --steer cpu")).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = kernel::lines_of(&mut follower).map_while(Result::ok);
    assert!(lines.by_ref().any(|line| line.contains("2 listeners steered by CPU")));
    nginx.configure(3, "reuseport");
    signal(pid, "-HUP");
    let line = lines.by_ref().find(|line| line.contains("3 listeners steered by CPU")).unwrap();
    assert_eq!(told(&line).len(), 3, "{line}");
    follower.kill().unwrap();
    follower.wait().unwrap();
    let detached = scratch.ok(&format!("detach --pid {pid}"));
    assert!(detached.contains("listeners chosen by the hash again"), "{detached}");
    wait_until("three workers serve", || nginx.ask_on(0).len() == 3);
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn what_cannot_be_steered_is_refused_by_name() {
    if lacks("what_cannot_be_steered_is_refused_by_name") {
        return;
    }
    let scratch = Scratch::new("steer-refused");
    let rfs = String::from_utf8(scratch.lull("attach --pid 1 --steer rfs --once").stderr).unwrap();
    assert!(rfs.contains("RFS is not here"), "{rfs}");
    scratch.refused("run --mode base --steer queue --nic tap:x --addr 10.0.0.2/24 -- true", &["--steer", "--nic"]);
    for (workers, reuseport, says) in [(2, "", "without SO_REUSEPORT"), (1, "reuseport", "it is the only listener")] {
        let nginx = Nginx::new(&scratch, workers, reuseport).start();
        scratch.refused(&format!("attach --pid {} --steer queue --once", nginx.pid()), &["127.0.0.1:", says]);
    }
    let sleeper = program::Program { child: Command::new("sleep").arg("600").spawn().unwrap() };
    scratch.refused(&format!("attach --pid {} --steer queue --once", sleeper.pid()), &["listens nowhere"]);
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

/// Processes that have two listeners each on one address, until their input ends.
struct Listening {
    child: Child,
    port: u16,
    /// Their output, which somebody has to read.
    _lines: Lines<BufReader<ChildStdout>>,
}

/// Two listeners on every address of the network namespace.
const LISTEN: &str = "import socket, sys
kept = []
for _ in range(2):
\tkept.append(socket.socket())
\tkept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
\tkept[-1].bind(('0.0.0.0', int(sys.argv[1])))
\tkept[-1].listen()
print('listens', flush=True)
sys.stdin.read()";

impl Listening {
    /// Starts one at first, below a shell of `text`, which has the program as `$0`, the port as `$1` and the argument
    /// as `$2`.
    fn start(text: &str, argument: &str) -> Listening {
        let port = port();
        let mut command = Command::new("sh");
        command.args(["-c", text, LISTEN, &port.to_string(), argument]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = kernel::lines_of(&mut child);
        assert_eq!(lines.next().unwrap().unwrap(), "listens");
        Listening { child, port, _lines: lines }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
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

/// Runs the command while a system call fails with this error, on this path if one is given.
fn failing(scratch: &Scratch, arguments: &str, call: &str, error: &str, path: Option<&str>) -> Output {
    let lull = scratch.command(arguments);
    let mut command = Command::new("strace");
    command.args(["-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    command.args(["-e", &format!("inject={call}:error={error}")]);
    command.args(path.into_iter().flat_map(|path| ["-P", path]));
    command.arg(lull.get_program()).args(lull.get_args());
    command.envs(lull.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.output().unwrap()
}

#[test]
fn a_steered_group_of_a_process_that_cannot_be_opened_or_read_stays_in_the_record() {
    let test = "a_steered_group_of_a_process_that_cannot_be_opened_or_read_stays_in_the_record";
    if lacks(test) || !traces(test) {
        return;
    }
    let scratch = Scratch::new("steer-unreadable");
    let listening = Listening::start("exec python3 -c \"$0\" \"$1\"", "");
    let (pid, attach) = (listening.pid(), format!("attach --pid {} --steer cpu --once", listening.pid()));
    scratch.ok(&attach);
    let detach = format!("detach --pid {pid}");
    let (stat, descriptors, link) =
        (format!("/proc/{pid}/stat"), format!("/proc/{pid}/fd"), format!("/proc/{pid}/fd/3"));
    for (call, error, path, says) in [
        ("pidfd_open", "EMFILE", None, "open process"),
        ("openat", "EMFILE", Some(&*stat), "open process"),
        ("openat", "EACCES", Some(&*descriptors), "list the descriptors"),
        ("readlink", "EACCES", Some(&*link), "list the descriptors"),
    ] {
        let output = failing(&scratch, &detach, call, error, path);
        kernel::refused(call, &output, &[says, &format!("process {pid}"), "tries again"]);
        assert!(scratch.left().contains(&format!("process-{pid}.json")), "{call}: {:?}", scratch.left());
    }
    let said = scratch.ok(&detach);
    assert!(said.contains("listeners chosen by the hash again"), "{said}");
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn without_the_right_to_trace_steering_says_so() {
    let test = "without_the_right_to_trace_steering_says_so";
    if lacks(test) || !traces(test) {
        return;
    }
    let scratch = Scratch::new("steer-untraced");
    let listening = Listening::start("exec python3 -c \"$0\" \"$1\"", "");
    let attach = |pid: u32| format!("attach --pid {pid} --steer cpu --once");
    let descriptors = format!("/proc/{}/fd", listening.pid());
    for (call, error, path, says) in [
        ("pidfd_getfd", "EPERM", None, "cannot duplicate descriptor"),
        ("openat", "EACCES", Some(&*descriptors), "cannot list the descriptors"),
    ] {
        let output = failing(&scratch, &attach(listening.pid()), call, error, path);
        kernel::refused(call, &output, &[says, &format!("process {}", listening.pid()), "CAP_SYS_PTRACE"]);
    }
    // The listeners of a child are printed in its place.
    let below = Listening::start("python3 -c \"$0\" \"$1\"; exit", "");
    let output = failing(&scratch, &attach(below.pid()), "pidfd_getfd", "EPERM", None);
    kernel::refused("a child's", &output, &["was steered: cannot duplicate descriptor", "CAP_SYS_PTRACE"]);
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn groups_of_one_address_in_two_network_namespaces_are_both_given_back() {
    let test = "groups_of_one_address_in_two_network_namespaces_are_both_given_back";
    if lacks(test) {
        return;
    }
    if !Command::new("unshare").args(["--net", "true"]).output().is_ok_and(|output| output.status.success()) {
        println!("SKIP: {test}: no network namespace can be made");
        return;
    }
    let scratch = Scratch::new("steer-namespaces");
    // The second process begins when this file exists.
    let both = "exec 3<&0; python3 -c \"$0\" \"$1\" <&3 & until [ -e \"$2\" ]; do sleep 0.02; done; \
        unshare --net python3 -c \"$0\" \"$1\" <&3 & wait";
    let go = scratch.0.join("go");
    let listening = Listening::start(both, go.to_str().unwrap());
    let address = format!("0.0.0.0:{}", listening.port);
    let mut follower = scratch
        .command(&format!("attach --pid {} --steer cpu", listening.pid()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let steered = format!("{address}: 2 listeners steered by CPU");
    let mut lines = kernel::lines_of(&mut follower).map_while(Result::ok);
    assert!(lines.any(|line| line.contains(&steered)));
    std::fs::write(&go, "").unwrap();
    assert!(lines.any(|line| line.contains(&steered)));
    follower.kill().unwrap();
    follower.wait().unwrap();
    let said = scratch.ok(&format!("detach --pid {}", listening.pid()));
    assert_eq!(said.matches(&format!("{address}: listeners chosen by the hash again")).count(), 2, "{said}");
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn a_refused_attach_leaves_what_an_earlier_one_has_steered() {
    let test = "a_refused_attach_leaves_what_an_earlier_one_has_steered";
    if lacks(test) {
        return;
    }
    let scratch = Scratch::new("steer-refused-later");
    // Two workers, each with an epoll context, are children of the process that is attached to.
    let nginx = Nginx::new(&scratch, 2, "reuseport").start();
    let pid = nginx.pid();
    wait_until("both workers serve", || nginx.ask_often().len() == 2);
    let first = scratch.0.join("first.bpf");
    std::fs::write(&first, "1\n6 0 0 0\n").unwrap();
    let line = scratch.ok(&format!("attach --pid {pid} --steer {} --once", first.display()));
    let workers = told(&line);
    assert_eq!(nginx.ask_often(), BTreeSet::from([workers[0]]), "{line}");

    let follow = format!("attach --pid {} --mode fullbusy", workers[1]);
    let mut follower = scratch.command(&follow).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = kernel::lines_of(&mut follower).map_while(Result::ok);
    assert!(lines.any(|line| line.contains("usecs 1000")));
    for steer in ["", "--steer hash"] {
        let says = ["another lull works on descriptor", &format!("lull attach of process {}", workers[1])];
        scratch.refused(&format!("attach --pid {pid} --mode suspend20 {steer} --once"), &says);
        assert_eq!(nginx.ask_often(), BTreeSet::from([workers[0]]), "{steer}");
    }
    signal(follower.id(), "-TERM");
    lines.for_each(drop);
    assert!(follower.wait().unwrap().success());

    if traces(test) {
        let attach = format!("attach --pid {pid} --mode suspend20 --steer hash --once");
        let output = failing(&scratch, &attach, "setsockopt", "EPERM", None);
        kernel::refused("steering", &output, &["steer the listeners of 127.0.0.1:"]);
        assert!(workers.iter().all(|worker| program::have(*worker, 1, (0, 0, 0))), "what was set is given back");
        assert_eq!(nginx.ask_often(), BTreeSet::from([workers[0]]));
    }
    let detached = scratch.ok(&format!("detach --pid {pid}"));
    assert!(detached.contains("listeners chosen by the hash again"), "{detached}");
    wait_until("both workers serve again", || nginx.ask_often().len() == 2);
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

/// A veth records no receive queue (since Linux 5.17): a program sees the number of the queue that the peer sent from,
/// which is also the number of the NAPI.
#[test]
fn over_a_veth_each_worker_hears_from_its_own_queue() {
    let test = "over_a_veth_each_worker_hears_from_its_own_queue";
    if lacks(test) {
        return;
    }
    let Some(world) = World::new(test, 2) else { return };
    let steered = script("steered.py");
    let scratch = Scratch::new("steer-veth");
    let file = scratch.0.join("queue.bpf");
    // ld #queue; and #1; ret a
    std::fs::write(&file, "3\n32 0 0 4294963224\n84 0 0 1\n22 0 0 0\n").unwrap();
    for (steer, own) in [(file.to_str().unwrap(), true), ("hash", false)] {
        let mut run =
            world.start(&format!("run --mode base --steer {steer} -- python3 {steered} serve 10.99.0.1 7000 2"));
        run.wait_for("10.99.0.1:7000: 2 listeners");
        let asked = Command::new("ip")
            .args(["netns", "exec", &world.far, "python3", &steered, "ask", "10.99.0.1", "7000", "60"])
            .output()
            .unwrap();
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        let mut napis: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let answers = String::from_utf8(asked.stdout).unwrap();
        for line in answers.lines() {
            let (worker, napi) = line.split_once(' ').unwrap();
            napis.entry(worker).or_default().insert(napi);
        }
        assert_eq!(napis.len(), 2, "{steer}: {answers}");
        assert_eq!(napis.values().all(|napis| napis.len() == 1), own, "{steer}: {napis:?}");
        if own {
            assert_ne!(napis["0"], napis["1"], "{answers}");
        }
        run.signal("-TERM");
        run.end();
    }
}
