//! `lull stat` and `lull compare --plane kernel` on a veth pair in namespaces of the test's own: the pollers are those
//! of the mode, and the output says what could not be seen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lull_core::Mode;
use lull_lab::bench::kernel::pair::{Pair, ServerStack};
use lull_lab::bench::kernel::program::Program;
use lull_lab::bench::{BenchConfig, ServiceKind};
use lull_linux::Roots;
use lull_linux::device::Device;
use lull_linux::netdev::{Napi, NapiChange, Netdev};
use lull_linux::polls::{Options, Polls, PollsError, Record, What};
use serde_json::Value;

const LULL: &str = env!("CARGO_BIN_EXE_lull");
/// This only bounds a failure: everything takes far less on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether there is a program, and it succeeds with these arguments.
fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A service behind a veth, and a client that talks to it.
struct World {
    program: Program,
    address: SocketAddr,
    pair: Pair,
}

impl World {
    /// Prints the reason if this machine cannot have one.
    fn new(test: &str) -> Option<World> {
        World::with_queues(test, 1)
    }

    fn with_queues(test: &str, queues: usize) -> Option<World> {
        let skip = |reason: String| println!("SKIP: {test}: {reason}");
        if !works("ip", &["-V"]) || !works("unshare", &["--net", "true"]) {
            skip("no network namespaces: it takes root, ip and unshare".to_owned());
            return None;
        }
        let pair = Pair::make(queues, ServerStack::Kernel).unwrap();
        match Polls::open(pair.server.device(), Options::default()) {
            Err(error @ (PollsError::NoTracefs(_) | PollsError::PidNamespace)) => {
                skip(error.to_string());
                return None;
            }
            trace => drop(trace.unwrap()),
        }
        let address = SocketAddr::new(pair.server.address(), 11211);
        let core = lull_host::usable_cores()[0];
        let config = BenchConfig { queues: Some(queues), connections: 16, ..BenchConfig::default() };
        let program = Program::start(ServiceKind::Auto, &pair.server, address, &[core], &config).unwrap();
        let world = World { program, address, pair };
        if world.napis().len() != queues {
            skip("this kernel shows no NAPI of a veth with GRO (Linux 6.13)".to_owned());
            return None;
        }
        Some(world)
    }

    fn napis(&self) -> Vec<Napi> {
        self.with_netdev(|netdev, ifindex| netdev.napis(ifindex).unwrap())
    }

    fn with_netdev<T: Send>(&self, work: impl FnOnce(&mut Netdev, u32) -> T + Send) -> T {
        let device = self.pair.server.device();
        let inside = || {
            let mut netdev = Netdev::new();
            let ifindex = Device::open(device, &mut netdev, &Roots::default()).unwrap().ifindex;
            work(&mut netdev, ifindex)
        };
        self.pair.server.within(inside).unwrap()
    }

    fn set(&self, mode: &str) {
        let mode: Mode = mode.parse().unwrap();
        self.with_netdev(|netdev, ifindex| {
            for napi in netdev.napis(ifindex).unwrap() {
                let change = NapiChange::between(&napi.settings, &mode.napi);
                if !change.is_empty() {
                    netdev.set(napi.id, &change).unwrap();
                }
            }
        });
        self.program.set_mode(&mode).unwrap();
    }

    /// Asks the service for a record again and again while `work` runs.
    fn talking<T>(&self, work: impl FnOnce() -> T) -> T {
        self.talking_over(1, work)
    }

    /// Does the same over several connections in turn.
    fn talking_over<T>(&self, connections: usize, work: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let talk = || {
                self.pair.client.enter().unwrap();
                let connect = |_| TcpStream::connect(self.address).unwrap();
                let mut streams: Vec<TcpStream> = (0..connections).map(connect).collect();
                let mut reply = [0; 64];
                while !over.load(Ordering::Relaxed) {
                    for stream in &mut streams {
                        stream.write_all(b"get nothing\r\n").unwrap();
                        assert!(stream.read(&mut reply).unwrap() > 0);
                    }
                }
            };
            scope.spawn(talk);
            // This also ends the talk when the work panics; otherwise it would go on for ever.
            let _over = SetAtEnd(&over);
            work()
        })
    }

    fn stat(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(LULL);
        command.args(["stat", self.pair.server.device()]).args(arguments);
        self.pair.server.within(|| command.output().unwrap()).unwrap()
    }

    fn stat_json(&self) -> Value {
        let output = self.stat(&["--interval", "300ms", "--count", "2", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let samples: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(samples.len(), 2);
        samples.into_iter().last().unwrap()
    }
}

/// Samples until one satisfies `shows`, because it depends on the machine how much happens in an interval.
#[track_caller]
fn sampled(world: &World, shows: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let sample = world.stat_json();
        if shows(&sample) {
            return sample;
        }
        assert!(begun.elapsed() < PATIENCE, "{sample:#}");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Returns the polls a second of one kind, by pollers for which `of` is true.
fn polls(sample: &Value, kind: &str, of: impl Fn(&Value) -> bool) -> f64 {
    let napis = sample["napis"].as_array().unwrap();
    let by = napis.iter().flat_map(|napi| napi["by"].as_array().unwrap());
    by.filter(|by| by["kind"] == kind && of(by)).map(|by| number(&by["polls_per_s"])).sum()
}

/// The trace has the thread numbers of the initial PID namespace, which belong to other threads in a container.
#[test]
fn in_another_pid_namespace_nobody_is_named_and_stat_says_why() {
    let Some(world) = World::new("in_another_pid_namespace_nobody_is_named_and_stat_says_why") else { return };
    world.set("base");
    let sampled = world.pair.server.within(|| {
        Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", LULL, "stat", world.pair.server.device()])
            .args(["--interval", "300ms", "--count", "1", "--json"])
            .output()
            .unwrap()
    });
    let output = sampled.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sample: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = sample["missing"][0].as_str().unwrap_or_default();
    assert!(missing.contains("this process is in another one; run lull in the initial one"), "{sample:#}");
    assert_eq!(sample["napis"], Value::Array(Vec::new()), "{sample:#}");
}

#[test]
fn stat_names_the_program_that_busy_polls_and_the_napi_that_it_polls() {
    let Some(world) = World::new("stat_names_the_program_that_busy_polls_and_the_napi_that_it_polls") else { return };
    let tids = world.program.tids();
    let own = |by: &Value| tids.contains(&(number(&by["tid"]) as i32));

    world.set("fullbusy");
    let packets = |sample: &Value| number(&sample["device_packets_per_s"]);
    let polled = |sample: &Value| polls(sample, "busy-poll", own) > 0.0 && packets(sample) > 0.0;
    let busy = world.talking(|| sampled(&world, polled));
    assert_eq!(polls(&busy, "busy-poll", |by| !own(by)), 0.0, "{busy:#}");
    assert_eq!(busy["napis"][0]["napi_id"], world.napis()[0].id);
    assert_eq!(busy["napis"][0]["suspensions_per_s"], Value::Null, "no timeout, nothing to tell it by");
    let napi = &busy["napis"][0];
    let sum: f64 = napi["by"].as_array().unwrap().iter().map(|by| number(&by["polls_per_s"])).sum();
    assert!((sum - number(&napi["polls_per_s"])).abs() < 1e-6 * sum, "the parts are the whole: {napi:#}");

    world.set("suspend20");
    let suspensions = |sample: &Value| sample["napis"][0]["suspensions_per_s"].as_f64();
    world.talking(|| sampled(&world, |sample| suspensions(sample).is_some_and(|rate| rate > 0.0)));

    world.set("base");
    // A timer of the former setting may still be pending.
    let by = |sample: &Value, kind: &str| polls(sample, kind, |_| true);
    let alone = |sample: &Value| by(sample, "softirq") > 0.0 && by(sample, "busy-poll") + by(sample, "timer") == 0.0;
    world.talking(|| sampled(&world, alone));

    world.set("threaded");
    let thread = world.napis()[0].thread_pid.unwrap();
    let threads = |sample: &Value| polls(sample, "napi-thread", |by| by["tid"] == thread);
    let named = |sample: &Value| sample["napis"][0]["thread"] == thread;
    world.talking(|| sampled(&world, |sample| threads(sample) > 0.0 && named(sample)));
    world.set("base");
}

#[test]
fn stat_tells_the_napis_of_several_queues_apart_by_their_ids() {
    const TEST: &str = "stat_tells_the_napis_of_several_queues_apart_by_their_ids";
    let Some(world) = World::with_queues(TEST, 2) else { return };
    // On a busy machine a sample may have lost polls, and says so.
    let whole = |sample: &Value| {
        !sample["napis"].as_array().unwrap().is_empty() && sample["missing"].as_array().unwrap().is_empty()
    };
    let sample = world.talking_over(16, || sampled(&world, whole));
    let ids: Vec<u64> = world.napis().iter().map(|napi| u64::from(napi.id)).collect();
    let mut seen: Vec<u64> = Vec::new();
    for napi in sample["napis"].as_array().unwrap() {
        let id = napi["napi_id"].as_u64().unwrap_or_else(|| panic!("{sample:#}"));
        assert!(ids.contains(&id) && !seen.contains(&id), "{ids:?}: {sample:#}");
        seen.push(id);
    }
    assert!(!seen.is_empty(), "{sample:#}");
}

#[test]
fn stat_shows_a_silent_device_as_silent() {
    let Some(world) = World::new("stat_shows_a_silent_device_as_silent") else { return };
    let sample = world.stat_json();
    assert_eq!((sample["traced"].as_bool(), sample["lost"].as_u64()), (Some(true), Some(0)));
    assert!(sample["napis"].as_array().unwrap().is_empty(), "{sample:#}");
    let text = String::from_utf8(world.stat(&["--interval", "20ms", "--count", "1"]).stdout).unwrap();
    assert!(text.contains("nobody: no poll in this interval") && text.contains("NET_RX softirqs/s"), "{text}");
}

#[test]
fn stat_without_the_right_to_trace_says_what_is_missing() {
    const TEST: &str = "stat_without_the_right_to_trace_says_what_is_missing";
    let unprivileged = |arguments: &[&str]| {
        let ids = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--", LULL];
        Command::new("setpriv").args(ids).args(arguments).output()
    };
    if !unprivileged(&["--version"]).is_ok_and(|output| output.status.success()) {
        println!("SKIP: {TEST}: this process cannot run lull as nobody");
        return;
    }
    let output = unprivileged(&["stat", "lo", "--interval", "50ms", "--count", "1"]).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("NET_RX softirqs/s") && !said.contains("who polled  "), "{said}");
    assert!(said.contains("who polled are not shown") && said.contains("run as root"), "{said}");
}

#[test]
fn unknown_devices_intervals_and_planes_are_refused() {
    let refused = |arguments: &str, says: &[&str]| {
        let output = Command::new(LULL).args(arguments.split_whitespace()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "lull {arguments}: {said}");
        says.iter().for_each(|word| assert!(said.contains(word), "lull {arguments} says: {said}"));
    };
    refused("stat no-such-device", &["no-such-device", "there are"]);
    refused("stat lo --interval 1us", &["1us", "10ms"]);
    refused("stat lo --count 0", &["--count"]);
    refused("compare --plane kernel --nic mem", &["--nic", "kernel plane"]);
    refused("compare --plane kernel --realtime", &["--realtime"]);
    refused("compare --service auto", &["--service", "user plane"]);
}

/// A file that is removed with it.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The seconds of a comparison's windows: on a busy machine a thread may not run even once in a short one.
const WINDOWS_S: [u32; 3] = [2, 8, 32];

/// A comparison's report and text.
struct Compared(Value, String);

impl Compared {
    /// Compares on the kernel's plane, in longer and longer windows, until `shows` is true or the windows are the
    /// longest. Meanwhile `beside` looks at its process again and again until it has ended.
    fn until(options: &str, mut beside: impl FnMut(u32), shows: impl Fn(&Compared) -> bool) -> Compared {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = Scratch(std::env::temp_dir().join(format!("lull-who-polls-{}-{nth}.json", std::process::id())));
        let mut windows = WINDOWS_S.iter().peekable();
        loop {
            let seconds = windows.next().unwrap();
            let always = format!("compare --plane kernel --loads MAX --runs 1 --records 100 --seconds {seconds}");
            let mut command = Command::new(LULL);
            command.args(always.split(' ')).args(options.split(' ')).args(["--progress", "off", "--json"]);
            let mut child = command.arg(&file.0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            while child.try_wait().unwrap().is_none() {
                beside(child.id());
                std::thread::sleep(Duration::from_millis(20));
            }
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            let report = std::fs::read_to_string(&file.0).unwrap();
            let compared = Compared(serde_json::from_str(&report).unwrap(), text);
            if shows(&compared) || windows.peek().is_none() {
                return compared;
            }
        }
    }

    fn runs(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0["cells"].as_array().unwrap().iter().map(|cell| (cell["testcase"].as_str().unwrap(), &cell["runs"][0]))
    }

    fn run(&self, mode: &str) -> &Value {
        self.runs().find(|(of, _)| *of == mode).unwrap_or_else(|| panic!("{mode}: {}", self.1)).1
    }
}

/// On a virtual machine a timer may be late; the verdict says so, and this test does not mind.
fn is_in_force(run: &Value) -> bool {
    ["in_force", "timeout_had"].contains(&run["verdict"]["is"].as_str().unwrap())
}

#[test]
fn the_kernel_plane_shows_each_mode_in_force_or_says_why_not() {
    const TEST: &str = "the_kernel_plane_shows_each_mode_in_force_or_says_why_not";
    let Some(world) = World::new(TEST) else { return };
    let threaded_max = world.with_netdev(|netdev, _| netdev.policy().unwrap()).threaded_max;
    drop(world);
    let options = "--connections 4 --modes base,defer200,suspend20,threaded,threaded-busy,busyread";
    let has_packets = |run: &Value| is_in_force(run) && run["polled_by"].is_object();
    let has = |(_, run): (&str, &Value)| has_packets(run) || run["verdict"]["is"] == "refused";
    let compared = Compared::until(options, drop, |compared| compared.runs().all(has));
    let text = &compared.1;
    for mode in ["base", "defer200", "suspend20", "threaded"] {
        assert!(has_packets(compared.run(mode)), "{mode}: {text}");
    }
    let verdict = |mode: &str| compared.run(mode)["verdict"]["is"].as_str().unwrap();
    assert_eq!(verdict("busyread"), "refused", "{text}");
    let threads_poll = threaded_max.is_some_and(|max| max >= 2);
    assert_eq!(verdict("threaded-busy"), if threads_poll { "in_force" } else { "refused" }, "{text}");
    let share = |mode: &str, who: &str| number(&compared.run(mode)["polled_by"][who]);
    assert_eq!(share("base", "busy_poll") + share("base", "timer") + share("base", "napi_thread"), 0.0, "{text}");
    // On a busy machine ksoftirqd runs the timer's softirqs.
    assert!(share("defer200", "timer") + share("defer200", "ksoftirqd") > 0.0, "{text}");
    assert!(share("suspend20", "busy_poll") > 0.0 && number(&compared.run("suspend20")["suspensions"]) > 0.0, "{text}");
    assert_eq!(share("threaded", "napi_thread"), 100.0, "{text}");
    for said in ["Who polled the packets", "base is flattered", "refused: "] {
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_comparison_on_several_queues_has_its_load_on_each_and_says_what_linux_makes_of_it() {
    const TEST: &str = "a_comparison_on_several_queues_has_its_load_on_each_and_says_what_linux_makes_of_it";
    let Some(world) = World::with_queues(TEST, 2) else { return };
    drop(world);
    // The comparison's own trace is not used: this one finds the device by the name that the comparison gives it.
    let traced = RefCell::new(None::<(u32, Polls, BTreeMap<u64, u64>)>);
    let drain = |pid: u32| {
        let mut traced = traced.borrow_mut();
        let of = |pid| (pid, Polls::open(&format!("lull-{pid}s0"), Options::default()).unwrap(), BTreeMap::new());
        if traced.as_ref().is_none_or(|(of, ..)| *of != pid) {
            *traced = Some(of(pid));
        }
        let (_, trace, packets) = traced.as_mut().unwrap();
        let count = |record: &Record| {
            if let What::Poll { napi, work, .. } = record.what {
                *packets.entry(napi).or_default() += u64::from(work);
            }
        };
        trace.drain(count).unwrap();
    };
    // Handshakes and the records that are stored first are a few hundred packets; the load is many more.
    let is_on_each = || {
        let pid = traced.borrow().as_ref().unwrap().0;
        drain(pid);
        let traced = traced.borrow();
        let packets = &traced.as_ref().unwrap().2;
        packets.len() == 2 && packets.values().all(|packets| *packets > 1_000)
    };
    let options = "--service own --queues 2 --modes base,suspend20 --connections 16";
    let in_force = |compared: &Compared| compared.runs().all(|(_, run)| is_in_force(run));
    let compared = Compared::until(options, drain, |compared| is_on_each() && in_force(compared));
    let text = &compared.1;
    assert!(is_on_each(), "{:?}: {text}", traced.borrow().as_ref().unwrap().2);
    assert!(in_force(&compared), "{text}");
    assert!(text.contains("suspends only the NAPI that woke it last"), "{text}");
}
