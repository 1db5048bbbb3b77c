//! `lull apply --slo` on a veth in a network namespace: the controller changes timeouts by what is reported and seen,
//! and the former settings come back, however it ends. The settings are read back by raw netlink.

mod kernel;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kernel::World;

/// How long to wait for something that happens by itself; it takes far less, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The NAPI has these settings before, so that "restored" does not mean zero.
const FORMER: (u64, u64, u64, u64) = (7, 30_000, 5_000_000, 0);

/// Makes a pair with one queue whose NAPI has [`FORMER`].
fn world(test: &str) -> Option<World> {
    if Command::new("ping").arg("-V").output().is_err() {
        println!("SKIP: {test}: ping is not installed");
        return None;
    }
    let world = World::alone(test, 1)?;
    world.set_raw(world.raw()[0].id, &["defer=7", "gro=30000", "suspend=5000000"]);
    assert_eq!(world.values(), [FORMER]);
    std::fs::create_dir_all(&world.state).unwrap();
    Some(world)
}

/// Sends packets to the near end, for as long as it lives.
struct Packets(Child);

impl Packets {
    fn to(world: &World) -> Packets {
        let mut ping = Command::new("ip");
        // It sends a thousand a second on a busy machine as well: those for which it had no turn leave together. A
        // controller returns a queue with fewer packets to its interrupts.
        let options = ["-q", "-i", "0.001", "-l", "400"];
        ping.args(["netns", "exec", &world.far, "ping"]).args(options).arg("10.99.0.1").stdout(Stdio::null());
        Packets(ping.spawn().unwrap())
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service that reports its latencies, which are all of this many microseconds.
struct Service {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn on(path: PathBuf, us: u64) -> Service {
        let ends = Arc::new(AtomicBool::new(false));
        let over = ends.clone();
        let thread = std::thread::spawn(move || {
            let socket = UnixDatagram::unbound().unwrap();
            while !over.load(Ordering::Relaxed) {
                let word = format!("{us}us ");
                // A controller that is not there yet, or no longer, gets no report.
                let _ = socket.send_to(word.repeat(600).as_bytes(), &path);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Service { ends, thread: Some(thread) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits until the NAPI's `gro_flush_timeout` is as wanted.
#[track_caller]
fn timeout_becomes(world: &World, wanted: impl Fn(u64) -> bool) -> u64 {
    let begun = Instant::now();
    loop {
        let gro = world.raw()[0].gro;
        if wanted(gro) {
            return gro;
        }
        assert!(begun.elapsed() < PATIENCE, "gro_flush_timeout stayed at {gro}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn reported_latencies_move_the_timeout_silence_ends_that_and_a_killed_controller_can_be_undone() {
    let Some(world) = world("controller with reports") else { return };
    let (_packets, path) = (Packets::to(&world), world.state.join("report"));
    let arguments = format!("apply {} --mode suspend20 --slo p99<20ms --report {}", world.device, path.display());
    let mut controller = world.start(&arguments);
    controller.wait_for("latencies as they are reported");
    // This is far below the limit, so the timeout becomes longer than half of the longest one, which it is before
    // anything is known.
    let service = Service::on(path.clone(), 1_000);
    let long = timeout_becomes(&world, |gro| gro > 9_000_000);
    assert!(long <= 18_000_000, "{long}");
    // After the service has ended nobody reports, so the mode that was asked for is in force.
    drop(service);
    controller.wait_for("blind");
    world.wait_for(&[kernel::SUSPEND20]);
    controller.signal("-KILL");
    controller.end();
    assert_eq!(world.values(), [kernel::SUSPEND20]);
    world.ok(&format!("undo {}", world.device));
    assert_eq!(world.values(), [FORMER]);
    assert_eq!(world.state_file(), None);
}

#[test]
fn a_program_runs_with_an_objective_which_shows_and_the_device_has_back_what_it_had() {
    let Some(world) = world("controller of a run") else { return };
    let (_packets, path) = (Packets::to(&world), world.state.join("report"));
    let (device, report) = (&world.device, path.display());
    let arguments = format!("run --dev {device} --mode defer50 --slo p99<20ms --report {report} -- sleep 1000");
    let mut run = world.start(&arguments);
    run.wait_for("latencies as they are reported");
    let service = Service::on(path.clone(), 1_000);
    timeout_becomes(&world, |gro| gro > 9_000_000);
    let shown = world.ok(&format!("show {device}"));
    assert!(shown.contains("controller: p99<20ms from defer50: "), "{shown}");
    drop(service);
    run.signal("-TERM");
    let (status, said) = run.end();
    assert_eq!(status, Some(128 + 15), "{said}");
    assert_eq!(world.values(), [FORMER]);
    assert_eq!((world.state_file(), path.exists()), (None, false));
    let left: Vec<_> = std::fs::read_dir(&world.state).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Asks a service in the near namespace again and again until it is ended, with many requests at a time, so that the
/// service has enough to sum up although its packets wait for timeouts.
const CLIENT: &str = "
import socket, sys, time
while True:
    try:
        connection = socket.create_connection(('10.99.0.1', 7000))
        break
    except OSError:
        time.sleep(0.1)
while True:
    connection.sendall(50 * b'?')
    missing = 50
    while missing:
        answers = connection.recv(missing)
        assert answers
        missing -= len(answers)
    time.sleep(0.001)
";

#[test]
fn a_service_that_sums_up_its_own_latencies_is_heard() {
    if Command::new("python3").arg("-V").output().is_err() {
        println!("SKIP: a service that reports percentiles: python3 is not installed");
        return;
    }
    let Some(world) = world("controller of a service that reports percentiles") else { return };
    let (_packets, path) = (Packets::to(&world), world.state.join("report"));
    let service = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/reporting.py");
    let report = path.display();
    let arguments = format!("run --dev {} --mode suspend20 --slo", world.device);
    let program = format!("--report {report} -- python3 {service} 10.99.0.1 {report}");
    let mut run = world.start(&format!("{arguments} p99<20ms {program}"));
    run.wait_for("latencies as they are reported");
    let mut client = Command::new("ip");
    client.args(["netns", "exec", &world.far, "python3", "-c", CLIENT]);
    let client = Packets(client.spawn().unwrap());
    // This is far below the limit, so the timeout grows beyond half of the longest one, at which it stays while nothing
    // is reported. The timeout may change again, so the log is read for it.
    let said = run.wait_for(", p99 1ms of ");
    timeout_becomes(&world, |gro| gro > 9_000_000);
    let (_, rest) = said.split_once(", p99 1ms of ").expect("it says of how many");
    let answers: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    // The program reports 200 answers at a time.
    assert!(answers > 0 && answers.is_multiple_of(200), "{said}");
    drop(client);
    run.signal("-TERM");
    run.end();
    assert_eq!(world.values(), [FORMER]);

    // A summary without the statistic of the objective is no report, and a message says so.
    let mut run = world.start(&format!("{arguments} p95<20ms {program}"));
    run.wait_for("latencies as they are reported");
    let mut client = Command::new("ip");
    client.args(["netns", "exec", &world.far, "python3", "-c", CLIENT]);
    let client = Packets(client.spawn().unwrap());
    let line = run.wait_for("say too little for p95<20ms");
    assert!(line.contains("send answers=NUMBER p95=TIME"), "{line}");
    drop(client);
    run.signal("-TERM");
    run.end();
}

#[test]
fn without_reports_it_has_cpu_only_and_says_so_and_gives_everything_back() {
    let Some(world) = world("controller without latency") else { return };
    let _packets = Packets::to(&world);
    let mut controller = world.start(&format!("apply {} --mode defer50 --slo p99<20ms", world.device));
    let line = controller.wait_for("CPU only");
    assert!(line.contains("--report"), "{line}");
    // This is half of the longest timeout.
    timeout_becomes(&world, |gro| gro == 9_000_000);
    // A change by another program is found after the next window.
    world.set_raw(world.raw()[0].id, &["gro=999"]);
    timeout_becomes(&world, |gro| gro == 9_000_000);
    controller.signal("-TERM");
    let (status, said) = controller.end();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(world.values(), [FORMER]);
    assert_eq!(world.state_file(), None);
}

#[test]
fn threads_that_somebody_turns_on_are_turned_off_again() {
    let Some(world) = world("controller and threads") else { return };
    let _packets = Packets::to(&world);
    let mut controller = world.start(&format!("apply {} --mode defer50 --slo p99<20ms", world.device));
    controller.wait_for("CPU only");
    timeout_becomes(&world, |gro| gro == 9_000_000);
    world.set_raw(world.raw()[0].id, &["threaded=1"]);
    let begun = Instant::now();
    while world.raw()[0].threaded != 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", world.raw());
        std::thread::sleep(Duration::from_millis(20));
    }
    controller.signal("-TERM");
    controller.end();
    assert_eq!(world.values(), [FORMER]);
}

#[test]
fn polls_of_a_device_that_is_renamed_are_seen_by_its_new_name() {
    let Some(world) = world("renamed and watched") else { return };
    let _packets = Packets::to(&world);
    let stat = [env!("CARGO_BIN_EXE_lull"), "stat", &world.device, "--interval", "200ms", "--json"];
    let mut stat = world.command(&stat).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = kernel::lines_of(&mut stat);
    let begun = Instant::now();
    let mut sampled = |shows: &dyn Fn(&serde_json::Value) -> bool| loop {
        let sample: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if shows(&sample) {
            return sample;
        }
        assert!(begun.elapsed() < PATIENCE, "{sample:#}");
    };
    let packets = |sample: &serde_json::Value| {
        sample["napis"].as_array().unwrap().iter().any(|napi| napi["packets_per_s"].as_f64() > Some(0.0))
    };
    let first = sampled(&|sample| packets(sample) || sample["traced"] == false);
    let new = format!("{}x", world.device);
    let renamed = world.command(&["ip", "link", "set", &world.device, "name", &new]).status().unwrap().success();
    if first["traced"] == true && renamed {
        let sample = sampled(&|sample| sample["device"] == *new);
        let told = sample["missing"].as_array().unwrap().iter().any(|it| it.as_str().unwrap().contains("was renamed"));
        assert!(told && sample["traced"] == false, "{sample:#}");
        sampled(&|sample| packets(sample) && sample["traced"] == true);
    } else {
        println!("SKIP: renamed and watched: polls are not traced here, or this kernel renames no device that is up");
    }
    assert!(Command::new("kill").arg(stat.id().to_string()).status().unwrap().success());
    stat.wait().unwrap();
}

#[test]
fn a_controller_that_cannot_look_at_its_device_changes_nothing() {
    let works = Command::new("strace").args(["-e", "trace=none", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("SKIP: a blind controller: strace is not installed, or may not trace");
        return;
    }
    let Some(world) = world("a blind controller") else { return };
    let log = world.state.with_extension("strace");
    let (mut refused, mut at_work) = (0, 0);
    // Each socket that the controller opens is refused once.
    for nth in 1.. {
        let inject = format!("inject=socket:error=EMFILE:when={nth}");
        let strace = ["strace", "-qq", "-o", log.to_str().unwrap(), "-e", "trace=socket", "-e", &inject];
        let lull = [env!("CARGO_BIN_EXE_lull"), "apply", &world.device, "--mode", "defer50", "--slo", "p99<20ms"];
        let mut command = world.command(&[&strace[..], &lull].concat());
        let mut strace = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(strace.stderr.take().unwrap()).lines().map_while(Result::ok);
        if said.any(|line| line.contains("CPU only")) {
            let children = format!("/proc/{0}/task/{0}/children", strace.id());
            let lull = std::fs::read_to_string(children).unwrap();
            assert!(Command::new("kill").arg(lull.trim()).status().unwrap().success());
            said.for_each(drop);
            at_work += 1;
        } else {
            refused += 1;
        }
        strace.wait().unwrap();
        assert_eq!((world.values(), world.state_file()), (vec![FORMER], None), "socket {nth}");
        if !std::fs::read_to_string(&log).unwrap().contains("INJECTED") {
            break;
        }
    }
    let _ = std::fs::remove_file(&log);
    assert!(refused > 0 && at_work > 0, "{refused} and {at_work}");
}

#[test]
fn a_queue_without_packets_has_its_interrupt() {
    let Some(world) = world("controller of an idle queue") else { return };
    let controller = world.start(&format!("apply {} --mode suspend20 --slo p99<200us", world.device));
    world.wait_for(&[kernel::BASE]);
    controller.signal("-TERM");
    controller.end();
    assert_eq!(world.values(), [FORMER]);
}

#[test]
fn what_cannot_be_controlled_is_refused_before_anything_changes() {
    let Some(world) = world("refused controllers") else { return };
    let refused = |options: &str, words: &[&str]| world.refused(&format!("apply {} {options}", world.device), words);
    refused("--mode fullbusy --slo p99<200us", &["fullbusy", "suspend20"]);
    refused("--mode suspend20 --slo p98<200us", &["'p98'", "p99"]);
    refused("--mode suspend20 --slo p99<200us --cpu-max 0%", &["--cpu-max", "1% to 100%"]);
    refused("--mode suspend20 --slo p99<200us --report /nowhere/report", &["/nowhere/report"]);
    let json = world.lull(&format!("apply {} --mode suspend20 --slo p99<200us --json", world.device));
    assert!(json.status.code() == Some(2), "{json:?}");
    assert_eq!((world.values(), world.state_file()), (vec![FORMER], None));
}
