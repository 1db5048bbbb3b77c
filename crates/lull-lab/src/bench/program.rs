//! The bench on an unmodified program: the installed memcached, on lull's stack by the preload library, with the
//! generator on the kernel's sockets at the other end of its NIC.
//!
//! `lull run` starts it, as an operator would. The mode is an option of `lull run`, so each run has a process of its
//! own. The process reports its counters over its control socket.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lull_control::Client;
use lull_control::place::Places;
use lull_control::schema::{Answer, Request, Shown};
use lull_core::{Mode, Stats};
use lull_host::{LatenessSnapshot, pin_thread};

use super::kernel::pair::{Pair, ServerStack, Side};
use super::kernel::program::threads_of;
use super::kernel::usage::run_ns;
use super::spent::{Spent, ThreadTimes};
use super::window::{Counted, Windowed, around, pace, row};
use super::{Bench, BenchConfig, BenchError, CLIENT_IP, Cores, PORT, Run, SERVICE_IP};
use crate::cell::{Enforcement, RunResult};
use crate::check::Evidence;
use crate::load::Workload;
use crate::load::kernel::{KernelClient, KernelConfig};

/// How long the program may take to start, to be connected to, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one connection to the program may take while it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The program's memory limit, in MiB.
const MEMORY_MIB: u32 = 1024;
/// The exit status of a refused command.
const REFUSED: i32 = 2;

/// The notes of every table of this bench.
const NOTES: [&str; 3] = [
    "The service is memcached as installed, under `lull run`: the preload library takes its sockets to lull's stack. \
     Each run has a process of its own, since the mode is an option of `lull run`.",
    "memcached waits without a timeout: in fullbusy, where the published runs waited 1 ms at a time, its queues are \
     polled until it has had no event for 100 ms.",
    "CPU is the run time of all of its threads, those that deliver among them. Empty columns are what the process \
     does not tell: calls of epoll_wait are the program's own, and system calls are not counted.",
];

/// The NIC under the program.
pub enum ProgramNic {
    /// A TAP in the network namespace of the caller, which `lull run` makes and removes.
    Tap,
    /// One end of a veth pair, over AF_XDP.
    Xdp(Pair),
}

/// memcached on lull's stack.
pub struct ProgramBench {
    launcher: PathBuf,
    nic: ProgramNic,
    cores: Cores,
    config: BenchConfig,
    workload: Arc<Workload>,
    tsc_khz: Option<u64>,
}

/// The counters at one end of a window.
struct Marked {
    shown: Shown,
    /// The CPU time of all of the program's threads.
    spent: Spent,
}

impl ProgramBench {
    /// Tries the program out over TAP. `launcher` is the `lull` command.
    ///
    /// This has to be called by the thread that will run the cells, because the launcher ends with it.
    ///
    /// # Errors
    ///
    /// This fails if memcached or the preload library is missing, if the process has no right to the NIC, or if there
    /// are more workers than cores.
    pub fn on_tap(config: BenchConfig, launcher: PathBuf) -> Result<ProgramBench, BenchError> {
        ProgramBench::start(config, launcher, ProgramNic::Tap)
    }

    /// Tries the program out over AF_XDP, in network namespaces that it makes.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`ProgramBench::on_tap`], and without root.
    pub fn on_xdp(config: BenchConfig, launcher: PathBuf) -> Result<ProgramBench, BenchError> {
        let pair = Pair::make(config.queues(), ServerStack::Lull)?;
        ProgramBench::start(config, launcher, ProgramNic::Xdp(pair))
    }

    fn start(config: BenchConfig, launcher: PathBuf, nic: ProgramNic) -> Result<ProgramBench, BenchError> {
        if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
            let remedy = "install memcached, or leave --service out for lull's own service";
            return Err(BenchError::Invalid(format!("cannot run memcached: it is not installed; {remedy}")));
        }
        let cores = Cores::split(&config)?;
        let workload = Arc::new(Workload::new(config.workload)?);
        let tsc_khz = lull_host::Clock::new().tsc_khz();
        let bench = ProgramBench { launcher, nic, cores, config, workload, tsc_khz };
        let base: Mode = "base".parse().map_err(|error| BenchError::Invalid(format!("{error}")))?;
        if let Some(reason) = bench.refusal(&base)? {
            return Err(BenchError::Invalid(reason));
        }
        bench.program(&base)?.end()?;
        Ok(bench)
    }

    fn client_side(&self) -> Option<&Side> {
        match &self.nic {
            ProgramNic::Tap => None,
            ProgramNic::Xdp(pair) => Some(&pair.client),
        }
    }

    /// Returns the command that starts the launcher, with all arguments in front of the program's.
    fn launcher(&self, mode: &Mode) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(&self.launcher).arg("run");
        command.args(["--addr", &format!("{SERVICE_IP}/24"), "--mode", mode.name()]);
        match &self.nic {
            ProgramNic::Tap => {
                command.args(["--nic", &format!("tap:lull-{}", std::process::id())]);
                command.args(["--peer-addr", &format!("{CLIENT_IP}/24")]);
                command.args(["--queues", &self.config.queues().to_string()]);
            }
            ProgramNic::Xdp(pair) => {
                command.args(["--nic", &format!("xdp:{}", pair.server.device())]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Returns why a mode cannot be run here, in the launcher's words, or `None` if it can.
    fn refusal(&self, mode: &Mode) -> Result<Option<String>, BenchError> {
        let output = self.launcher(mode).args(["--dry-run", "--", "memcached"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(0) => Ok(None),
            Some(REFUSED) => Ok(Some(said.trim_start_matches("lull: ").to_owned())),
            _ => Err(BenchError::Invalid(format!("cannot run {} run: {said}", self.launcher.display()))),
        }
    }

    /// Starts the program in a mode. It listens when this returns.
    fn program(&self, mode: &Mode) -> Result<Program, BenchError> {
        let mut command = self.launcher(mode);
        // As root, memcached would change its groups, which a user namespace may refuse.
        command.args(["--", "unshare", "--user", "--map-user=1000", "memcached", "-U", "0"]);
        command.args(["-l", &SERVICE_IP.to_string(), "-p", &PORT.to_string(), "-t", &self.config.workers.to_string()]);
        command.args(["-c", &(self.config.connections + 64).to_string(), "-m", &MEMORY_MIB.to_string()]);
        if self.config.workers > 1 && self.config.queues() == self.config.workers {
            // memcached chooses threads by NAPI id if each NAPI can have a thread of its own.
            command.args(["-N", &self.config.workers.to_string()]);
        }
        command.stderr(Stdio::piped());
        let here = std::fs::File::open("/proc/thread-self/ns/net")?;
        let cores_before = rustix::thread::sched_getaffinity(None).map_err(std::io::Error::from)?;
        if let ProgramNic::Xdp(pair) = &self.nic {
            pair.server.enter()?;
        }
        // The child inherits the cores of the thread that starts it.
        let spawned = pin_thread(&self.cores.service).and_then(|()| command.spawn());
        rustix::thread::sched_setaffinity(None, &cores_before).map_err(std::io::Error::from)?;
        let network = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&here), network)
            .map_err(std::io::Error::from)?;
        let mut program = Program::of(spawned?);
        program.wait_until_it_listens(self.client_side())?;
        Ok(program)
    }

    fn row(&self, run: &Run<'_>, window: &Windowed<Result<Marked, BenchError>>, marked: [&Marked; 2]) -> RunResult {
        let [before, after] = marked;
        let stats = |shown: &Shown| {
            // Transmit queues have NAPIs of their own.
            let receive = shown.napis.iter().filter(|napi| napi.qdisc.is_none());
            receive.fold(Stats::default(), |all, napi| all + napi.stats)
        };
        let napi = stats(&after.shown) - stats(&before.shown);
        let cpu = |each: &dyn Fn(&lull_control::schema::Cpu) -> u64| -> u64 {
            let sum = |shown: &Shown| shown.cpus.iter().map(each).sum::<u64>();
            sum(&after.shown).saturating_sub(sum(&before.shown))
        };
        let lateness = lateness(&after.shown).since(&lateness(&before.shown));
        let interrupts = cpu(&|cpu| cpu.interrupts);
        let window_ns = after.shown.now_ns - before.shown.now_ns;
        let counted = Counted {
            seconds: window_ns as f64 / 1e9,
            cpu_s: after.spent.threads.since(&before.spent.threads) as f64 / 1e9,
            cores: self.cores.service.len(),
            busy_percent: Some(after.spent.busy_percent(&before.spent, window_ns, &self.cores.service)),
            tsc_khz: self.tsc_khz,
            hardware: window.hardware,
            evidence: Evidence::of_core(&napi, lateness.median_ns(), window.summary.received),
        };
        RunResult {
            interrupts: Some(interrupts),
            polls: Some(napi.polls),
            mean_work: (napi.polls > 0).then(|| napi.work as f64 / napi.polls as f64),
            empty_polls: Some(napi.empty_polls),
            softirq_ms: Some(cpu(&|cpu| cpu.softirq_ns) as f64 / 1e6),
            wakeups: Some(cpu(&|cpu| cpu.wakeups)),
            timer_ops: Some(cpu(&|cpu| cpu.timer_ops)),
            resumes: Some(napi.resumes),
            ..row(run, &window.summary, &counted)
        }
    }
}

/// Returns how late the timers of all its NAPIs were.
fn lateness(shown: &Shown) -> LatenessSnapshot {
    let mut all = LatenessSnapshot::of_counts(&[]);
    shown.napis.iter().for_each(|napi| all.merge(&LatenessSnapshot::of_counts(&napi.timer_lateness)));
    all
}

impl Bench for ProgramBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        if let Some(reason) = self.refusal(run.mode)? {
            let refused = RunResult::new(run.mode.name(), run.load, run.run, 0.0, 0.0);
            return Ok(RunResult { verdict: Enforcement::Refused { reason }, ..refused });
        }
        let program = self.program(run.mode)?;
        let mut kernel = KernelConfig::new(SocketAddr::from((SERVICE_IP, PORT)), self.config.connections);
        kernel.threads = self.cores.generator.len().min(self.config.connections);
        kernel.spin = true;
        let (workload, side, generator) = (self.workload.clone(), self.client_side(), &self.cores.generator);
        let connect = || -> Result<KernelClient, BenchError> {
            // The client's threads inherit these cores.
            pin_thread(generator)?;
            let mut client = KernelClient::connect(kernel, workload, PATIENCE)?;
            client.preload(run.stop)?;
            Ok(client)
        };
        let mut client = match side {
            Some(side) => side.within(connect)??,
            None => std::thread::scope(|scope| scope.spawn(connect).join())
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
        };
        let pace = pace(&self.config, run);
        let generate = |run: &Run<'_>| -> Result<_, BenchError> {
            side.map_or(Ok(()), Side::enter)?;
            pin_thread(generator)?;
            client.set_run(run.run);
            Ok(client.run(pace, run.warm_up, run.window, run.stop)?)
        };
        let pid = program.pid()?;
        let window = around(run, &threads_of(pid), generate, || mark(pid), || Ok(()))?;
        drop(client);
        program.end()?;
        let [Ok(before), Ok(after)] = [&window.before, &window.after] else {
            let Windowed { before, after, .. } = window;
            let error = before.and(after).err();
            return Err(error.unwrap_or_else(|| BenchError::Invalid("it counted nothing".to_owned())));
        };
        Ok(self.row(run, &window, [before, after]))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = NOTES.map(str::to_owned).to_vec();
        notes.extend(self.config.several_napis(
            "their connections are dealt out by memcached, so that a context has sockets on all of them, and attends to each.",
        ));
        match &self.nic {
            ProgramNic::Tap => notes.push(
                "on TAP each frame takes a read or write of its own, and the kernel's TCP runs on the generator"
                    .to_owned(),
            ),
            ProgramNic::Xdp(_) => notes.push(
                "on a veth AF_XDP copies every frame, and the generator's send runs the service's receive path"
                    .to_owned(),
            ),
        }
        if self.cores.shared {
            notes.push("the generator shares a core with the service: the figures say little".to_owned());
        }
        notes
    }
}

/// Reads the process's counters, and the CPU time of its threads.
fn mark(pid: i32) -> Result<Marked, BenchError> {
    let refused = |why: String| BenchError::Invalid(format!("memcached does not tell what it counts: {why}"));
    let mut client = Client::connect(pid as u32, &Places::default()).map_err(|error| refused(error.to_string()))?;
    let shown = match client.ask(&Request::Show).map_err(|error| refused(error.to_string()))? {
        Answer::Shown(shown) => shown,
        other => return Err(refused(format!("it answered {other:?}"))),
    };
    // The launcher gives it no CPU group.
    let spent = Spent {
        threads: ThreadTimes::read(threads_of(pid), run_ns),
        vain_ns: shown.cpus.iter().map(|cpu| cpu.vain_ns).sum(),
        ..Spent::default()
    };
    Ok(Marked { shown, spent })
}

/// A running launcher, and what it has written. It and its program end when this is dropped.
struct Program {
    launcher: Child,
    said: Arc<Mutex<String>>,
}

impl Program {
    fn of(mut launcher: Child) -> Program {
        let said = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = launcher.stderr.take() {
            let said = said.clone();
            // The thread reads to the end, so that the pipe never fills up, and ends with the program.
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.push_str(&line);
                    said.push('\n');
                }
            });
        }
        Program { launcher, said }
    }

    fn failed(&self, what: &str) -> BenchError {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        BenchError::Invalid(format!("memcached on lull's stack {what}; it said: {}", said.trim().replace('\n', "; ")))
    }

    fn wait_until_it_listens(&mut self, side: Option<&Side>) -> Result<(), BenchError> {
        let until = Instant::now() + PATIENCE;
        let address = SocketAddr::from((SERVICE_IP, PORT));
        let connects = || TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok();
        loop {
            let listens = match side {
                Some(side) => side.within(connects)?,
                None => connects(),
            };
            if listens {
                return Ok(());
            }
            if let Some(status) = self.launcher.try_wait()? {
                return Err(self.failed(&format!("ended at once ({status})")));
            }
            if Instant::now() > until {
                return Err(self.failed(&format!("does not listen on {address}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the process id of the program itself, which is the launcher's child.
    fn pid(&self) -> Result<i32, BenchError> {
        let launcher = self.launcher.id();
        let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"))?;
        let first = children.split(' ').next().and_then(|pid| pid.parse().ok());
        first.ok_or_else(|| self.failed("has ended"))
    }

    /// Ends the program as an operator does. The NIC is gone when this returns.
    fn end(mut self) -> Result<(), BenchError> {
        let pid = rustix::process::Pid::from_child(&self.launcher);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(std::io::Error::from)?;
        let until = Instant::now() + PATIENCE;
        while self.launcher.try_wait()?.is_none() {
            if Instant::now() > until {
                return Err(self.failed("does not end at SIGTERM"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !matches!(self.launcher.try_wait(), Ok(None)) {
            return;
        }
        if let Ok(pid) = self.pid() {
            let _ = rustix::process::Pid::from_raw(pid)
                .map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_sentences_with_single_blanks() {
        NOTES.iter().for_each(|note| assert!(!note.contains("  "), "{note}"));
    }
}
