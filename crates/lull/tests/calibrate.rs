//! `lull calibrate`, `lull compare --predict` and `lull tune --measure` on this machine, in memory. The tests assert
//! structure, because the precision of the figures depends on what else the machine does.

#[path = "calibrate/device.rs"]
mod device;
mod kernel;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use lull_sim::WorldFile;
use rustix::process::{Pid, Signal, kill_process};

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lull(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lull")).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_machine_is_calibrated_held_against_measurements_and_tuned() {
    if lull_host::usable_cores().len() < 2 {
        println!("SKIP: calibration takes two cores");
        return;
    }
    let directory = Directory(std::env::temp_dir().join(format!("lull-calibrate-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).unwrap();
    let path = directory.0.join("machine.toml").display().to_string();
    let output = lull(&["calibrate", "--limit", "5", "--out", &path]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for part in
        ["system call", "costs.irq", "base at MAX", "defer200 at ", "suspend20 at 50% was not used", "--predict"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let file = WorldFile::read(path.as_ref()).unwrap();
    assert!(file.host.is_some() && file.workers == 1 && file.connections == 64);
    assert!(file.net.generator.is_some() && file.overridden.contains(&"idle_shallow_exit"));

    let output = lull(&[
        "compare",
        "--predict",
        &path,
        "--modes",
        "base,suspend20",
        "--loads",
        "2K,MAX",
        "--runs",
        "2",
        "--seconds",
        "0.3",
    ]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Predicted beside measured, by machine: lull's own stack on 1 core"), "{text}");
    assert!(text.contains("of 4 cells are sharp"), "{text}");

    let output = lull(&["tune", &path, "--slo", "p99<1s", "--load", "2K", "--measure"]);
    let text = said(&output);
    assert!(text.contains("lull run --nic NIC --addr IP/PREFIX --mode ") && !text.contains("lull apply"), "{text}");
    assert!(text.contains("Measured over mem. The service is lull's own."), "{text}");
    assert!(text.contains("Measured on this machine at 2K requests per second"), "{text}");
    assert!(text.contains("met in "), "{text}");
}

/// Sends a signal at the first line that begins with `at`; returns the status, and what is printed from there on.
fn signalled(at: &str, signal: Signal, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lull"));
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with(&format!("lull: {at}"))), "it never says {at}");
    kill_process(Pid::from_child(&child), signal).unwrap();
    let rest: Vec<String> = lines.collect();
    (child.wait().unwrap().code(), rest.join("\n"))
}

#[test]
fn signals_end_a_calibration_wherever_it_is() {
    if lull_host::usable_cores().len() < 2 {
        println!("SKIP: calibration takes two cores");
        return;
    }
    let directory = Directory(std::env::temp_dir().join(format!("lull-calibrate-stop-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).unwrap();
    let path = directory.0.join("machine.toml").display().to_string();
    for (at, signal) in
        [("measuring what", Signal::TERM), ("base at MAX, run 1", Signal::INT), ("fitting: ", Signal::TERM)]
    {
        // With this limit no step is over before the signal comes.
        let (status, rest) = signalled(at, signal, &["calibrate", "--limit", "3600", "--out", &path]);
        assert_eq!(status, Some(130), "{at}: {rest}");
        assert!(rest.ends_with("stopped before everything was measured: start it again"), "{at}: {rest}");
        assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0, "{at}");
    }
}

/// A machine with lull's own stack that takes 10 ns for everything that a request needs.
fn fast_world() -> String {
    let costs = "irq timer_irq ipi timer_start timer_late softirq poll rx_request rx_ack tx_done wake switch epoll_call \
                 epoll_sleep epoll_event busy_call busy_round idle_shallow_exit idle_deep_exit cold_packet cold_request";
    let costs: String = costs.split_whitespace().map(|what| format!("{what} = \"10ns\"\n")).collect();
    format!(
        "[machine]\ncores = 1\nplane = \"user\"\n[nic]\nspeed = \"10Gbit/s\"\nrx_usecs = \"0us\"\n[network]\nlatency = \"0us\"\n[service]\n\
         kind = \"epoll\"\nconnections = 64\nrequest_cost_own = \"10ns\"\n[costs]\n{costs}"
    )
}

#[test]
fn an_answer_that_was_not_confirmed_is_no_success() {
    if lull_host::usable_cores().len() < 2 {
        println!("SKIP: measuring takes two cores");
        return;
    }
    let directory = Directory(std::env::temp_dir().join(format!("lull-unconfirmed-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).unwrap();
    let path = directory.0.join("fast.toml").display().to_string();
    std::fs::write(&path, fast_world()).unwrap();
    let tune = |slo| ["tune", &path, "--slo", slo, "--load", "2K", "--seconds", "0.2", "--seeds", "3", "--measure"];
    let (status, rest) = signalled("measuring ", Signal::TERM, &tune("p99<1s"));
    assert_eq!(status, Some(130), "{rest}");
    assert!(rest.ends_with("stopped before everything was measured: start it again"), "{rest}");
    let output = lull(&tune("p50<1us"));
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("not confirmed") || text.contains("Nothing can be said of"), "{text}");
}

#[test]
fn a_world_that_describes_something_else_is_refused_before_anything_is_measured() {
    let directory = Directory(std::env::temp_dir().join(format!("lull-calibrate-other-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).unwrap();
    let path = directory.0.join("w.toml").display().to_string();
    let world = "[machine]\ncores = 1\nplane = \"user\"\n[nic]\nspeed = \"10Gbit/s\"\nrx_usecs = \"0us\"\n[network]\nlatency = \"2us\"\n[service]\n\
                 kind = \"epoll\"\nconnections = 32\nrequest_cost_own = \"2us\"\n";
    let refused = |text: &str, arguments: &[&str], says: &str| {
        std::fs::write(&path, text).unwrap();
        let output = lull(arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(says), "{says} is not in\n{text}");
    };
    let compare = ["compare", "--predict", &path];
    refused(world, &compare, "cannot hold w against this: it has 32 connections instead of 64");
    let kernel = world.replace("plane = \"user\"\n", "");
    refused(&kernel, &compare, "cannot hold w against this: it has the kernel plane");
    let deep = [&compare[..], &["--connections", "32", "--depth", "4"]].concat();
    refused(world, &deep, "cannot use --depth with --predict");
    for option in [&["--buffer-bytes", "8192"][..], &["--records", "7"], &["--realtime"], &["--qdisc", "fq"]] {
        let other = [&compare[..], &["--connections", "32"], option].concat();
        refused(world, &other, &format!("cannot use {} with --predict", option[0]));
    }
    let bursts = [&compare[..], &["--connections", "32", "--arrivals", "facebook"]].concat();
    refused(world, &bursts, "give --arrivals what its load.arrivals says");
    let two = world.replace("cores = 1", "cores = 2").replace("kind", "workers = 1\nkind");
    let tune = ["tune", &path, "--slo", "p99<1s", "--load", "2K", "--measure"];
    let compare_32 = [&compare[..], &["--connections", "32"]].concat();
    refused(&two, &tune, "cannot measure w with the lab: the lab has a core and a queue for each worker");
    for (keys, what) in [
        ("events_max = 8", "service.events_max"),
        ("request_size = \"2KiB\"", "service.request_size"),
        ("answer_size = \"64KiB\"", "answer_size"),
        ("poll_after_returns = 1", "service.poll_after_returns"),
        ("[transmit]\nqdisc = \"fq\"", "[transmit]"),
        ("[second]\nconnections = 4\nload = \"2K\"\nrequest_cost = \"2us\"", "[second]"),
    ] {
        for command in [&tune[..], &compare_32] {
            refused(&format!("{world}{keys}\n"), command, "cannot measure w with the lab: the lab");
            refused(&format!("{world}{keys}\n"), command, what);
        }
    }
    for (key, other, what) in [
        ("rx_usecs = \"0us\"", "rx_usecs = \"8us\"", "nic.rx_usecs"),
        ("rx_usecs = \"0us\"", "rx_usecs = \"0us\"\ntx_usecs = \"8us\"", "tx_usecs"),
        ("rx_usecs = \"0us\"", "", "nic.adaptive"),
        ("plane = \"user\"", "plane = \"user\"\nafter_resume = \"deferral\"", "machine.after_resume"),
    ] {
        for command in [&tune[..], &compare_32] {
            refused(&world.replace(key, other), command, what);
        }
    }
    // A world that was calibrated over a device has the device's moderation, and is refused because it is a device's.
    let device = kernel.replace("\"0us\"", "\"8us\"\ncalibrated = \"device\"").replace("cost_own", "cost");
    for command in [&tune[..], &[&compare_32[..], &["--plane", "kernel"]].concat()] {
        refused(&device, command, "calibrated over device instead of veth");
    }
    refused(
        world,
        &[&tune[..], &["--service", "own"]].concat(),
        "cannot use --service: the file describes lull's own stack",
    );
    refused(
        world,
        &["calibrate", "--nic", "mem", "--plane", "kernel", "--out", &path],
        "cannot use --nic on the kernel plane",
    );
    let nowhere = directory.0.join("none").join("m.toml").display().to_string();
    refused(world, &["calibrate", "--out", &nowhere], "is not a directory; make it first");
}
