//! `lull top` on a terminal, and `--prometheus`: the figures of a running service.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const LULL: &str = env!("CARGO_BIN_EXE_lull");
/// This only bounds a failure.
const LIMIT: Duration = Duration::from_secs(120);

/// A service on the in-memory NIC, which ends with the test, and the address of its metrics.
struct Service(Child, String);

impl Service {
    fn start() -> Service {
        Service::with(&[])
    }

    fn with(options: &[&str]) -> Service {
        let mut command = Command::new(LULL);
        command.args(["serve", "--nic", "mem", "--mode", "suspend20", "--load", "2K", "--connections", "4"]);
        command.args(options).args(["--prometheus", "127.0.0.1:0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find_map(|line| Some(line.ok()?.split_once("http://")?.1.to_owned()));
        // The rest of its output is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.count());
        Service(child, line.expect("it says where its metrics are").strip_suffix("/metrics").unwrap().to_owned())
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: lull\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The value of a series of its only NAPI, over all pollers.
    fn value(&self, name: &str) -> f64 {
        let metrics = self.metrics();
        let values = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn lull(args: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = Command::new(LULL).args(args).output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

#[test]
fn a_service_exports_what_its_control_socket_shows() {
    let service = Service::start();
    until("the load's packets are counted", || service.value("lull_napi_packets_total") >= 100.0);
    let first = service.value("lull_napi_polls_total");
    assert!(first > 0.0, "packets are taken by polls");
    until("counters grow", || service.value("lull_napi_polls_total") > first);
    let metrics = service.metrics();
    assert!(metrics.contains(r#"mode="suspend20"} 1"#), "{metrics}");
    assert_eq!(service.value("lull_napi_gro_flush_timeout_seconds"), 0.00002, "{metrics}");
    let pid = service.0.id().to_string();
    let (done, said) = lull(&["set", &pid, "gro-flush-timeout=50us"]);
    assert!(done, "{said}");
    assert_eq!(
        service.value("lull_napi_gro_flush_timeout_seconds"),
        0.00005,
        "what is changed shows at the next scrape"
    );
}

#[test]
fn a_service_keeps_an_objective_and_shows_what_was_decided() {
    // Even on a busy machine every answer is within this bound, so timeouts become longer.
    let service = Service::with(&["--slo", "p99<10s"]);
    until("requests are timed", || service.value("lull_napi_answer_seconds_count") >= 100.0);
    until("the timeout was moved", || service.value("lull_napi_gro_flush_timeout_seconds") > 0.001);
    // The decision is reported after the settings that it has changed.
    until("what was decided shows", || service.metrics().contains(r#"objective="p99<10s",mode="suspend20"} 1"#));
    until("the change is counted", || service.value("lull_controller_changes_total") >= 1.0);
    let pid = service.0.id().to_string();
    let (done, said) = lull(&["show", &pid]);
    assert!(done && said.contains("controller: p99<10s from suspend20: "), "{said}");
    // A change by another program is found after the next window.
    let (done, said) = lull(&["set", &pid, "gro-flush-timeout=7us"]);
    assert!(done, "{said}");
    until("its timeout is in force again", || service.value("lull_napi_gro_flush_timeout_seconds") > 0.001);
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    until("it ends", || !std::path::Path::new(&format!("/proc/{pid}/fd/0")).exists());
}

#[test]
fn an_objective_is_refused_where_nobody_can_keep_it() {
    for (args, why) in [
        (&["serve", "--nic", "mem", "--mode", "fullbusy", "--slo", "p99<1ms"][..], "'fullbusy'"),
        (&["serve", "--nic", "mem", "--mode", "suspend20", "--slo", "p98<1ms"], "'p98'"),
        (&["run", "--mode", "suspend20", "--slo", "p99<1ms", "--", "true"], "--slo takes --dev or --nic"),
        (
            &[
                "run",
                "--nic",
                "tap:x",
                "--addr",
                "10.0.0.2/24",
                "--mode",
                "base",
                "--slo",
                "p99<1ms",
                "--report",
                "/x",
                "--",
                "true",
            ],
            "cannot use --report with --nic",
        ),
        (
            &["run", "--nic", "tap:x", "--addr", "10.0.0.2/24", "--mode", "napibusy", "--slo", "p99<1ms", "--", "true"],
            "'napibusy'",
        ),
    ] {
        let (done, said) = lull(args);
        assert!(!done && said.contains(why), "{args:?}: {said}");
    }
}

#[test]
fn an_address_that_is_taken_ends_the_command_with_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (done, said) = lull(&["serve", "--nic", "mem", "--load", "1K", "--prometheus", &address]);
    assert!(!done && said.contains("give --prometheus another address"), "{said}");
}

#[test]
fn metrics_are_refused_where_nobody_stays_to_serve_them() {
    for (args, why) in [
        (&["apply", "lo", "--mode", "suspend20", "--prometheus", "127.0.0.1:0"][..], "--prometheus takes --watch"),
        (&["run", "--mode", "suspend20", "--prometheus", "127.0.0.1:0", "--", "true"], "takes --dev or --nic"),
    ] {
        let (done, said) = lull(args);
        assert!(!done && said.contains(why), "{said}");
    }
}

#[test]
fn top_needs_a_terminal() {
    let (done, said) = lull(&["top"]);
    assert!(!done && said.contains("`lull stat` prints"), "{said}");
}

/// Ends the server of the terminal with the test, however that ends.
struct Terminal<'a>(&'a str);

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", self.0, "kill-server"]).output();
    }
}

#[test]
fn top_draws_a_service_and_ends_at_q() {
    let server = format!("lull-top-{}", std::process::id());
    let tmux = |args: &[&str]| Command::new("tmux").args(["-L", &server, "-f", "/dev/null"]).args(args).output();
    if tmux(&["-V"]).is_err() {
        println!("SKIP: top on a terminal: tmux is not installed");
        return;
    }
    let _ended = Terminal(&server);
    let service = Service::with(&["--slo", "p99<10s"]);
    // The command is given word by word, so that no shell runs it: the user's may be one that refuses to.
    let pid = service.0.id().to_string();
    let top = [LULL, "top", &pid, "--interval", "200ms"];
    let started = tmux(&[&["new-session", "-d", "-x", "170", "-y", "20"][..], &top].concat()).unwrap();
    assert!(started.status.success(), "{started:?}");
    let mut screen = String::new();
    until("the service's NAPI has a row", || {
        screen = String::from_utf8_lossy(&tmux(&["capture-pane", "-p"]).unwrap().stdout).into_owned();
        // The controller's decision is below the table.
        let whole = ["lull serve (", "mem0:0", "suspend20", "who polls", "controller: p99<10s from suspend20: "];
        whole.iter().all(|part| screen.contains(part)) && (screen.contains("softirq") || screen.contains("busy-poll"))
    });
    tmux(&["send-keys", "q"]).unwrap();
    until("it ends", || !tmux(&["has-session"]).unwrap().status.success());
}
