//! `lull show`, `set` and `undo` of a process that runs lull's user plane.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LULL: &str = env!("CARGO_BIN_EXE_lull");

/// A `lull serve` on the in-memory NIC with hardly any load.
struct Service(Child);

impl Service {
    fn start() -> Service {
        Service::start_under(&[])
    }

    /// Starts it by this command.
    fn start_under(words: &[&str]) -> Service {
        Service::start_in(words, &["--mode", "defer50"])
    }

    /// Starts it by this command, in this mode.
    fn start_in(words: &[&str], mode: &[&str]) -> Service {
        let words = [words, &[LULL]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command.args(["serve", "--nic", "mem", "--load", "200", "--connections", "1"]).args(mode);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.starts_with("serving memcached") && first.contains("with 1 worker;"), "{first}");
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Service(child)
    }

    /// Runs `lull group` on the process.
    fn group(&self, action: &str, arguments: &str) -> (Option<i32>, String, String) {
        let pid = self.0.id().to_string();
        let words = ["group", action, &pid];
        let output = Command::new(LULL).args(words).args(arguments.split_whitespace()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Runs a command with the process as its target.
    fn run(&self, command: &str, arguments: &str) -> (Option<i32>, String, String) {
        let pid = self.0.id().to_string();
        let output = Command::new(LULL).args([command, &pid]).args(arguments.split_whitespace()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    #[track_caller]
    fn ok(&self, command: &str, arguments: &str) -> String {
        let (status, said, failed) = self.run(command, arguments);
        assert_eq!(status, Some(0), "lull {command} {arguments}: {failed}");
        said
    }

    #[track_caller]
    fn refused(&self, command: &str, arguments: &str, word: &str) {
        let (status, _, said) = self.run(command, arguments);
        assert!(status == Some(2) && said.contains(word), "lull {command} {arguments}: {said}");
    }

    #[track_caller]
    fn refused_device(&self, device: &str, word: &str) {
        let output = Command::new(LULL).args(["ss", device]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(word), "lull ss {device}: {said}");
    }

    /// Returns the settings of its NAPI.
    fn settings(&self) -> Value {
        let shown: Value = serde_json::from_str(&self.ok("show", "--json")).unwrap();
        shown[0]["napis"][0]["settings"].clone()
    }
}

/// Ends it as an operator does: a service that is killed leaves its control socket behind.
impl Drop for Service {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

#[test]
fn settings_of_a_process_are_set_and_given_back() {
    let service = Service::start();
    let before = service.settings();
    assert_eq!(before["gro_flush_timeout_ns"], 50_000, "{before}");
    let said = service.ok("set", "gro-flush-timeout=70us --dry-run");
    assert!(said.contains("would set queue 0") && said.contains("50us -> 70us"), "{said}");
    assert_eq!(service.settings(), before);
    assert!(service.ok("set", "--queue 0 gro-flush-timeout=70us defer-hard-irqs=9").contains("lull undo"));
    let now = service.settings();
    assert_eq!((&now["gro_flush_timeout_ns"], &now["defer_hard_irqs"]), (&70_000.into(), &9.into()));
    assert!(service.ok("set", "defer-hard-irqs=9").contains("already"));

    service.refused("set", "--queue 7 defer-hard-irqs=1", "no queue 7");
    service.refused("set", "--napi 1 defer-hard-irqs=1", "no NAPI 1");
    service.refused("set", "thread-cpus=0", "threaded=on");
    service.refused("set", "thread-cpus=0 --dry-run", "no thread");
    service.refused("set", "threaded=on thread-cpus=4000", "CPU 4000");
    service.refused("set", "gro-flush-timeout=11s", "10s");
    service.refused("undo", "--forget", "--forget");

    let undone: Value = serde_json::from_str(&service.ok("undo", "--json")).unwrap();
    assert_eq!(undone["changes"].as_array().map(Vec::len), Some(2), "{undone}");
    assert_eq!(service.settings(), before);
    assert!(service.ok("undo", "").contains("nothing was set"));
}

#[test]
fn sockets_of_a_service_are_listed_as_ss_lists_them() {
    let service = Service::start();
    let connected = |line: &str| line.contains("ESTAB") && line.contains("ms");
    let begun = std::time::Instant::now();
    loop {
        let shown = service.ok("ss", "");
        let listens = shown.lines().any(|line| line.contains("LISTEN") && line.contains(":11211"));
        if listens && shown.lines().any(connected) {
            break;
        }
        assert!(begun.elapsed().as_secs() < 60, "{shown}");
    }
    let listed: Value = serde_json::from_str(&service.ok("ss", "--json")).unwrap();
    let count = listed[0]["sockets"].as_array().map_or(0, Vec::len);
    let plural = if count == 1 { "" } else { "s" };
    assert!(service.ok("ss", "").lines().next().unwrap().ends_with(&format!(" {count} socket{plural}")), "{listed}");
    assert_eq!((&listed[0]["pid"], &listed[0]["service"]), (&service.0.id().into(), &"lull serve".into()));
    assert!(listed[0]["counters"]["tcp_segments"].as_u64() > Some(0), "{listed}");
    service.refused_device("no-such-device", "no process");
}

#[test]
fn the_next_command_takes_away_what_a_killed_service_left() {
    let mut service = Service::start();
    let pid = service.0.id();
    let uid = String::from_utf8(Command::new("id").arg("-u").output().unwrap().stdout).unwrap();
    let places = [
        "/run/lull/control".to_owned(),
        format!("/run/user/{0}/lull", uid.trim()),
        format!("/tmp/lull-{}", uid.trim()),
    ];
    let file = || {
        let is_its = |name: &str| name.starts_with(&format!("{pid}-")) && name.ends_with(".sock");
        let entries = places.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
        entries.map(|entry| entry.path()).find(|path| is_its(&path.file_name().unwrap_or_default().to_string_lossy()))
    };
    assert!(file().is_some(), "no control socket in {places:?}");
    service.0.kill().unwrap();
    service.0.wait().unwrap();
    let begun = std::time::Instant::now();
    // A file that is younger than a second is left alone, because it may still be being made.
    while file().is_some() {
        assert!(Command::new(LULL).args(["completions", "bash"]).stdout(Stdio::null()).status().unwrap().success());
        assert!(begun.elapsed().as_secs() < 60, "it is left: {:?}", file());
    }
}

#[test]
fn the_thread_of_a_napi_is_shown_bound_and_given_a_policy() {
    let service = Service::start();
    let core = lull_host::usable_cores()[0];
    // One nice value is the one that the service was started with, which is this test's own, and the other is higher: a
    // nice value may always be raised.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own: i32 = stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse().unwrap();
    let higher = own + 1;
    if higher > 19 {
        println!("SKIP: a thread's policy: this test has the highest nice value, and none above it can be set");
        return;
    }
    let said = service.ok("set", &format!("threaded=on thread-cpus={core} thread-policy=other:{own}"));
    assert!(said.contains("threaded off -> on"), "{said}");
    let napi = || {
        let shown: Value = serde_json::from_str(&service.ok("show", "--json")).unwrap();
        shown[0]["napis"][0].clone()
    };
    let thread = napi()["thread"].as_i64().unwrap();
    assert_eq!(napi()["scheduling"]["cpus"], serde_json::json!([core]));
    let shown = service.ok("show", "");
    assert!(shown.contains(&format!("{thread} cpu {core} other:{own}")), "{shown}");
    let said = service.ok("set", &format!("thread-policy=other:{higher}"));
    assert!(said.contains(&format!("thread-policy other:{own} -> other:{higher}")), "{said}");
    assert_eq!(napi()["scheduling"]["policy"]["other"], higher);
    let undone = service.ok("undo", "--dry-run");
    assert!(undone.contains(&format!("thread-policy other:{higher} -> other:{own}")), "{undone}");
}

#[test]
fn a_policy_that_the_service_may_not_give_is_refused_by_name_and_with_the_remedy() {
    let without = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"];
    let probe = Command::new(without[0]).args(&without[1..]).args(["prlimit", "--rtprio=0", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("SKIP: a refused policy: setpriv or prlimit is not installed, or may not (root)");
        return;
    }
    let service = Service::start_under(&[&without[..], &["prlimit", "--rtprio=0"]].concat());
    for word in ["Operation not permitted", "CAP_SYS_NICE", "in the process that serves"] {
        service.refused("set", "threaded=on thread-policy=fifo:50", word);
    }
    assert_eq!(service.settings()["threaded"], "off");
    assert!(service.ok("undo", "").contains("nothing was set"));
}

#[test]
fn the_doctor_says_the_mode_of_a_process_and_nothing_of_its_epoll_contexts_in_the_kernel() {
    let service = Service::start();
    let said = service.ok("doctor", "");
    assert!(said.contains("it runs lull's user plane: mem0:0 is in defer50"), "{said}");
    assert!(!said.contains("lull attach") && !said.contains("epoll of"), "{said}");
}

#[test]
fn a_group_is_shown_and_its_cpus_and_napis_come_and_go() {
    let mode = ["--mode", "group50", "--group-cpus", "0", "--oversubscribe"];
    let service = Service::start_in(&[], &mode);
    let group = |action: &str, arguments: &str| {
        let (status, said, failed) = service.group(action, arguments);
        assert_eq!(status, Some(0), "lull group {action} {arguments}: {failed}");
        said
    };
    let shown: Value = serde_json::from_str(&group("show", "--json")).unwrap();
    let id = shown[0]["members"][0]["napi_id"].to_string();
    assert_eq!((&shown[0]["rest_ns"], &shown[0]["pollers"][0]["core"]), (&50_000.into(), &0.into()));
    let said = service.ok("show", "");
    assert!(said.contains("group50") && said.contains("group 0 polls it, on core 0"), "{said}");
    service.refused("set", "threaded=on", "remove it from the group first");
    // The queue's transmit NAPI is a member like its receive NAPI.
    assert_eq!(shown[0]["members"].as_array().map(Vec::len), Some(2), "{shown}");
    let transmit = shown[0]["members"][1]["napi_id"].to_string();
    let doctor = || {
        let output = Command::new(LULL).args(["doctor", "--pid", &service.0.id().to_string()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(doctor().contains("it sends for each queue that it receives from"), "{}", doctor());
    assert!(group("remove", &id).contains("1 NAPI, 1 CPU"));
    assert!(group("add", &format!("{id} --weight 8")).contains("weight 8"));
    assert!(group("detach", "0").contains("0 NAPIs, 0 CPUs"));
    let (status, _, said) = service.group("add", &id);
    assert!(status == Some(2) && said.contains("attach one first"), "{said}");
    assert!(group("attach", "0").contains("0 NAPIs, 1 CPU"));
    assert!(group("add", &id).contains("1 NAPI, 1 CPU"));
    let said = doctor();
    assert!(said.contains("tx outside: no group sends for mem0:0") && said.contains(&transmit), "{said}");
    let (status, _, said) = service.group("attach", "0");
    assert!(status == Some(2) && said.contains("group 0 has it"), "{said}");
}
