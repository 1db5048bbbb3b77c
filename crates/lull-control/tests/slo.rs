//! A controller of the timeouts of a program with several processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lull_control::place::Places;
use lull_control::schema::{Answer, Request, Shown};
use lull_control::slo::{Whom, keep};
use lull_control::{Client, Offer, Program};
use lull_core::Mode;
use lull_host::{Host, HostConfig};
use lull_net::{Network, NetworkConfig};
use lull_nic::mem::{self, MemConfig};
use lull_slo::{Bounds, Controller, Slo};
use rustix::process::{Pid, Signal, kill_process};

/// This variable is set in a process that the test starts of itself.
const CHILD: &str = "LULL_TEST_PROCESS_WITH_QUEUES";
/// This is longer than the time after which a process takes a silent controller for gone.
const SILENCE: Duration = Duration::from_secs(13);
/// What has not come after this time does not come, even on a busy machine.
const LOST: Duration = Duration::from_secs(120);

/// This is what runs in the processes that the test starts of itself; in the test's own process it does nothing.
#[test]
fn process_with_queues() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (ours, _peer) = mem::pair(MemConfig::default());
    let host = Host::new(HostConfig::default()).unwrap();
    let addresses = vec![("10.0.0.2".parse().unwrap(), 24)];
    let config = NetworkConfig { addresses, cpus: vec![0], ..NetworkConfig::default() };
    let _network = Network::new(&host, Arc::new(ours), config).unwrap();
    let _offer = Offer::start(&host, "test", &Places::default()).unwrap();
    println!("\nready");
    // It runs until the test ends, in whatever way that happens.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A process with queues.
struct Process {
    child: Child,
    /// The process ends when this is closed.
    stdin: Option<ChildStdin>,
}

impl Process {
    fn start() -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_with_queues", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "the process ended early");
        // Somebody has to read what the test harness prints at the end.
        std::thread::spawn(move || lines.count());
        let stdin = child.stdin.take();
        Process { child, stdin }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn show(&self) -> Shown {
        let mut client = Client::connect(self.pid(), &Places::default()).unwrap();
        match client.ask(&Request::Show).unwrap() {
            Answer::Shown(shown) => shown,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::CONT);
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < LOST, "{what} does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Stops one of two processes: the one that is asked first, or the other.
fn one_is_stopped(first: bool) {
    let mut processes = [Process::start(), Process::start()];
    processes.sort_by_key(Process::pid);
    let [one, other] = &processes;
    let (stopped, goes_on) = if first { (one, other) } else { (other, one) };
    let pids: Vec<u32> = processes.iter().map(Process::pid).collect();
    let whom = Whom::Program(Program::new(move || pids.clone()));
    let (mode, slo): (Mode, Slo) = ("suspend20".parse().unwrap(), "p99<200us".parse().unwrap());
    let controller = Controller::new(slo.clone(), Bounds::new(&slo, &mode, None).unwrap());
    let (stop, said) = (AtomicBool::new(false), Mutex::new(Vec::<String>::new()));
    std::thread::scope(|scope| {
        // The controller ends however this ends, or the scope would wait for it.
        let _ends = Ends(&stop);
        scope.spawn(|| {
            keep(&whom, controller, "suspend20", &stop, &mut |line| said.lock().unwrap().push(line.to_owned()));
        });
        wait_until("the controller", || processes.iter().all(|process| process.show().controller.is_some()));
        stopped.signal(Signal::STOP);
        let begun = Instant::now();
        let named = format!("process {} did not answer", stopped.pid());
        let is_told = || said.lock().unwrap().iter().any(|line| line.contains(&named));
        wait_until("the complaint", || {
            let shown = goes_on.show();
            assert!(shown.controller.is_some(), "stopped first: {first}: {shown:?}");
            begun.elapsed() > SILENCE && is_told()
        });
        // The process that goes on is heard again, by the controller as well.
        stopped.signal(Signal::CONT);
        let windows =
            |process: &Process| process.show().controller.map(|decided| decided.windows.values().sum::<u64>());
        wait_until("the stopped one's controller", || windows(stopped) >= windows(goes_on));
    });
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_stopped_process_takes_the_objective_from_nobody_else() {
    std::thread::scope(|scope| {
        scope.spawn(|| one_is_stopped(true));
        one_is_stopped(false);
    });
}
