//! The bench on the kernel plane: a memcached on Linux's own stack, behind a veth pair whose far end is the load
//! generator's, or behind a device of the user's, with the generator on its peer.
//!
//! | module | holds |
//! | --- | --- |
//! | [`pair`] | two network namespaces with a veth pair between them |
//! | [`device`] | a device of the user's, and the settings that it had before |
//! | `napi_threads` | the threads of NAPIs on the cores of the service |
//! | `peer` | `lull load` at the device's other end |
//! | [`program`] | memcached, or lull's own service over kernel sockets, and its half of a mode |
//! | `traced` | what the trace of a window shows |
//! | `usage` | what `/proc` counts around a window |

pub mod device;
pub(crate) mod napi_threads;
pub mod pair;
mod peer;
pub mod program;
pub(crate) mod traced;
pub(crate) mod usage;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lull_core::{Mode, Threaded};
use lull_host::pin_thread;
use lull_linux::Roots;
use lull_linux::device::Device;
use lull_linux::machine::kernel_release;
use lull_linux::netdev::{NapiChange, Netdev};
use lull_linux::plan::check_policy;
use lull_linux::polls::{Options, Polls, Record, Switch};
use lull_sim::calibration::Interrupts;

use self::device::{DeviceSetup, UsersDevice};
use self::pair::{Pair, ServerStack, Side, linux};
use self::peer::Peer;
use self::program::{Program, ServiceKind};
use self::traced::Traced;
pub(crate) use self::usage::ksoftirqds;
use self::usage::{Threads, Usage};
use super::window::{Counted, Windowed, around_from, pace, pass, row};
use super::{Bench, BenchConfig, BenchError, Cores, PORT, Run};
use crate::cell::{Enforcement, RunResult};
use crate::load::kernel::{KernelClient, KernelConfig};
use crate::load::{Summary, Workload};

/// How often the trace is read during a window.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);
/// The size of the trace's ring buffer, in KiB for each CPU: it holds a second of the fastest busy polling.
const TRACE_KIB: u32 = 64 * 1024;

/// A service on the kernel's stack, with a generator at the other end of a veth pair or of a device of the user's.
pub struct KernelBench {
    // The fields stand in the order in which they have to be dropped.
    generator: Generator,
    program: Program,
    polls: Polls,
    /// The trace records while a cell runs, and is off between two cells.
    recording: Switch,
    place: Place,
    cores: Cores,
    config: BenchConfig,
    /// Threads that deliver for the server: its cores' ksoftirqd, and in some modes the NAPIs' own.
    ksoftirqds: Vec<i32>,
    napi_threads: Vec<i32>,
    tsc_khz: Option<u64>,
}

/// Where the load comes from.
enum Generator {
    /// Threads of this process generate it, at the other end of the pair.
    Own { client: KernelClient, side: Side },
    /// A command generates it, at the other end of the device.
    Peer(Peer),
}

/// Where the service is.
enum Place {
    Pair { netdev: Netdev, ifindex: u32, side: Side },
    Device(Box<UsersDevice>),
}

impl Place {
    /// Returns the service's end.
    fn side(&self) -> &Side {
        match self {
            Place::Pair { side, .. } => side,
            Place::Device(device) => &device.side,
        }
    }

    /// Returns the connection over which the NAPIs are read and set, and the device's index.
    fn netdev(&mut self) -> (&mut Netdev, u32) {
        match self {
            Place::Pair { netdev, ifindex, .. } => (netdev, *ifindex),
            Place::Device(device) => {
                let ifindex = device.session().device().ifindex;
                (device.session().netdev(), ifindex)
            }
        }
    }

    /// Puts a mode's settings of the NAPIs in force.
    fn set(&mut self, mode: &Mode) -> Result<(), BenchError> {
        if let Place::Device(device) = self {
            return device.set(mode);
        }
        let (netdev, ifindex) = self.netdev();
        for napi in netdev.napis(ifindex).map_err(linux)? {
            let change = NapiChange::between(&napi.settings, &mode.napi);
            if !change.is_empty() {
                netdev.set(napi.id, &change).map_err(linux)?;
            }
        }
        Ok(())
    }
}

impl KernelBench {
    /// Makes the namespaces and the pair, starts the service, opens the connections and stores the records through
    /// them. This has to be called by the thread that will run the cells.
    ///
    /// # Errors
    ///
    /// This fails without root or tracefs, if there are more workers than cores, or if the service or the generator
    /// fails.
    pub fn start(config: BenchConfig, kind: ServiceKind) -> Result<KernelBench, BenchError> {
        let cores = Cores::split(&config)?;
        let pair = Pair::make(config.queues(), ServerStack::Kernel)?;
        let open = || {
            let mut netdev = Netdev::new();
            let device = Device::open(pair.server.device(), &mut netdev, &Roots::default())?;
            // A socket belongs to the namespace in which its first request was made.
            let napis = netdev.napis(device.ifindex)?.len();
            Ok((netdev, device.ifindex, napis))
        };
        let (netdev, ifindex, napis) = pair.server.within(open)?.map_err(linux)?;
        if napis != config.queues() {
            return Err(BenchError::Invalid(format!(
                "cannot compare on a veth of {} queues: the kernel shows {napis} NAPIs for it, and settings per NAPI \
                 take Linux 6.13 or newer",
                config.queues()
            )));
        }
        let Pair { server, client: side } = pair;
        let place = Place::Pair { netdev, ifindex, side: server };
        KernelBench::serve(config, kind, cores, place, |config, address, cores| {
            let workload = Arc::new(Workload::new(config.workload)?);
            let mut kernel = KernelConfig::new(address, config.connections);
            kernel.threads = cores.generator.len().min(config.connections);
            kernel.spin = true;
            let connect = || -> Result<KernelClient, BenchError> {
                pin_thread(&cores.generator)?;
                let mut client = KernelClient::connect(kernel, workload, Duration::from_secs(60))?;
                client.preload(&AtomicBool::new(false))?;
                Ok(client)
            };
            Ok(Generator::Own { client: side.within(connect)??, side })
        })
    }

    /// Takes a device of the caller's network namespace, and starts the service on its address. The load comes from the
    /// peer. The device gets its earlier settings back when this is dropped. This has to be called by the thread that
    /// will run the cells.
    ///
    /// # Errors
    ///
    /// This fails without root or tracefs, if the device is not as the service needs it, or if the service fails.
    pub fn on_device(config: BenchConfig, kind: ServiceKind, setup: &DeviceSetup) -> Result<KernelBench, BenchError> {
        let cores = Cores::split(&config)?;
        if !rustix::process::geteuid().is_root() {
            let name = &setup.device;
            return Err(BenchError::Invalid(format!("cannot set the NAPIs of {name}: run as root")));
        }
        let place = Place::Device(Box::new(UsersDevice::take(setup, &config, &cores.service)?));
        KernelBench::serve(config, kind, cores, place, |config, address, _| {
            Ok(Generator::Peer(Peer::new(&setup.load_by, address, config)))
        })
    }

    /// Starts the trace, the service and the generator that `generate` makes.
    fn serve(
        config: BenchConfig,
        kind: ServiceKind,
        cores: Cores,
        place: Place,
        generate: impl FnOnce(&BenchConfig, SocketAddr, &Cores) -> Result<Generator, BenchError>,
    ) -> Result<KernelBench, BenchError> {
        let side = place.side();
        let address = SocketAddr::new(side.address(), PORT);
        let options = Options { timers: true, buffer_kib: TRACE_KIB };
        let mut polls = Polls::open(side.device(), options).map_err(trace_error)?;
        let recording = polls.switch();
        let program = Program::start(kind, side, address, &cores.service, &config)?;
        let generator = generate(&config, address, &cores)?;
        recording.set(false).map_err(trace_error)?;
        polls.drain(|_| ()).map_err(trace_error)?;
        let ksoftirqds = ksoftirqds(&cores.service);
        let tsc_khz = lull_host::Clock::new().tsc_khz();
        // The thread that reads the trace must not run on the server's cores, and on the generator's only if there are
        // no others.
        pin_thread(if cores.spare.is_empty() { &cores.generator } else { &cores.spare })?;
        let napi_threads = Vec::new();
        Ok(KernelBench {
            generator,
            program,
            polls,
            recording,
            place,
            cores,
            config,
            ksoftirqds,
            napi_threads,
            tsc_khz,
        })
    }

    /// Returns how the device raises interrupts. A veth cannot hold any back.
    pub fn interrupts(&self) -> Interrupts {
        match &self.place {
            Place::Pair { .. } => Interrupts::default(),
            Place::Device(device) => device.interrupts(),
        }
    }

    /// Returns why this bench cannot run a mode, or `None` if it can.
    fn refusal(&mut self, mode: &Mode) -> Result<Option<String>, BenchError> {
        if let Err(error) = lull_linux::plan::check_kernel_has(mode) {
            return Ok(Some(error.to_string()));
        }
        let policy = self.place.netdev().0.policy().map_err(linux)?;
        let refused = check_policy(mode.name(), &mode.napi, &policy, &kernel_release()).err();
        Ok(refused.map(|error| error.to_string()).or_else(|| self.program.cannot(mode)))
    }

    /// Puts both halves of a mode in force: the settings of the NAPIs with their threads on the server's cores, and the
    /// program's half.
    fn set_mode(&mut self, mode: &Mode) -> Result<(), BenchError> {
        self.place.set(mode)?;
        self.napi_threads = if mode.napi.threaded == Threaded::Off {
            Vec::new()
        } else {
            let (netdev, ifindex) = self.place.netdev();
            napi_threads::pin(netdev, ifindex, &self.cores.service)?
        };
        self.program.set_mode(mode)
    }

    fn measure(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let pace = pace(&self.config, run);
        let KernelBench { generator, program, polls, recording, cores, .. } = self;
        let server = program.tids();
        let threads = Threads { server: &server, ksoftirqds: &self.ksoftirqds, napi: &self.napi_threads };
        let watched: Vec<i32> = server.iter().chain(&self.napi_threads).copied().collect();
        let lost_before = polls.lost().map_err(trace_error)?;
        let (begun_ns, over, told) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let begun = &begun_ns;
        // The first run is the one that is traced.
        let begins_at = |at_ns: u64| {
            let _ = begun.compare_exchange(0, at_ns, Ordering::AcqRel, Ordering::Relaxed);
        };
        let by_peer = matches!(generator, Generator::Peer(_));
        let (cores_of_generator, told) = (&cores.generator, &told);
        let mut generate = |run: &Run<'_>| -> Result<Summary, BenchError> {
            // The client's threads inherit these cores, and so does a peer on this machine.
            pin_thread(cores_of_generator)?;
            match &mut *generator {
                Generator::Own { client, side } => {
                    side.enter()?;
                    begins_at(lull_linux::polls::now_ns() + run.warm_up.as_nanos() as u64);
                    client.set_run(run.run);
                    Ok(client.run(pace, run.warm_up, run.window, run.stop)?)
                }
                Generator::Peer(peer) => peer.run(pace, run, || {
                    begins_at(lull_linux::polls::now_ns());
                    told.store(true, Ordering::Release);
                }),
            }
        };
        let generate = |run: &Run<'_>| {
            let generated = generate(run);
            if generated.is_err() {
                // Without this, the thread that waits for the window would wait for ever if no window begins.
                told.store(true, Ordering::Release);
            }
            generated
        };
        let begin = |run: &Run<'_>| match by_peer {
            true => peer::wait_for(told, run.stop),
            false => pass(run.warm_up, run.stop),
        };
        let mut traced = Traced::new(run.mode);
        // The window is the one that the generator measured, however late this thread gets to run on a busy machine.
        let length_ns = run.window.as_nanos() as u64;
        let of_window = |record: &Record| {
            let begun_ns = begun.load(Ordering::Acquire);
            if begun_ns != 0 && (begun_ns..begun_ns + length_ns).contains(&record.at_ns) {
                traced.add(record);
            }
        };
        recording.set(true).map_err(trace_error)?;
        let window = std::thread::scope(|scope| {
            let reading = scope.spawn(|| read_traces(std::slice::from_mut(polls), &over, of_window));
            let end = || {
                let ended = recording.set(false).map_err(trace_error);
                over.store(true, Ordering::Release);
                ended
            };
            let window = around_from(run, &watched, generate, begin, || Usage::read(&cores.service, threads), end);
            reading.join().map_err(|_| BenchError::Invalid("the reader of the trace panicked".to_owned()))??;
            window
        })?;
        traced.lost = self.polls.lost().map_err(trace_error)? - lost_before;
        traced.sum();
        Ok(self.row(run, &window, &mut traced, &server))
    }

    fn row(&self, run: &Run<'_>, window: &Windowed<Usage>, traced: &mut Traced, server: &[i32]) -> RunResult {
        let cores = self.cores.service.len();
        let used = window.after.since(&window.before, cores);
        let evidence = traced.evidence(server, window.summary.received, used.napi_sleeps);
        let total = traced.account.total();
        // A trace that lost events still shows that something happened, but not how often.
        let whole = traced.lost == 0;
        let counted = Counted {
            seconds: used.seconds,
            cpu_s: used.cpu_s,
            cores,
            busy_percent: traced.busy_percent(&used, cores),
            tsc_khz: self.tsc_khz,
            hardware: window.hardware,
            evidence,
        };
        let row = row(run, &window.summary, &counted);
        RunResult {
            polls: whole.then_some(total.polls),
            mean_work: total.mean_work().filter(|_| whole),
            empty_polls: whole.then_some(total.empty),
            softirq_ms: Some(used.softirq_ms),
            wakeups: Some(used.sleeps),
            timer_ops: whole.then_some(traced.timers_set),
            suspensions: row.suspensions.filter(|_| whole),
            polled_by: traced.polled_by(server).filter(|_| whole),
            verdict: match row.verdict {
                // The evidence that is missing may be among the lost events.
                Enforcement::NotInForce { reason } if !whole => {
                    Enforcement::NotInForce { reason: format!("{reason}; the trace lost {} events", traced.lost) }
                }
                verdict => verdict,
            },
            ..row
        }
    }
}

impl Bench for KernelBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        if let Some(reason) = self.refusal(run.mode)? {
            let refused = RunResult::new(run.mode.name(), run.load, run.run, 0.0, 0.0);
            return Ok(RunResult { verdict: Enforcement::Refused { reason }, ..refused });
        }
        self.set_mode(run.mode)?;
        self.measure(run)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![self.program.note()];
        let of_veth = matches!(self.place, Place::Pair { .. }).then(|| {
            "On a veth, base is flattered: there is no interrupt to pay for, and the sender's core does the receiver's \
             work in its own softirq (client's softirq, below). For a base that pays for it on the server's core \
             compare with threaded: its NAPI thread is pinned there."
                .to_owned()
        });
        notes.extend(of_veth);
        notes.extend([
            "In threaded-busy, too, the NAPI thread is pinned to the server's core. There it polls without pause and the \
             service waits for its turn; the published set-up gives it a core of its own."
                .to_owned(),
            "CPU is the run time of the service's threads, of NAPI threads and of ksoftirqd, and the softirq time of \
             the server's cores, to the kernel's tick: softirqs that interrupted one of those threads count twice. \
             What the client's core did for the server is not in it. Whether the server was the limit at MAX goes by \
             how busy its cores were, whoever kept them so, but for rounds of busy polling that found nothing. wakeups are the times that a thread of the service slept; \
             timer_ops counts the timers of all NAPIs."
                .to_owned(),
            "Empty columns are what the kernel does not show from outside: a veth has no interrupts, and calls of \
             epoll_wait are the program's own. Where the trace lost events, what it counts is left out."
                .to_owned(),
        ]);
        notes.extend(self.config.several_napis(
            "a context busy polls and suspends only the NAPI that woke it last, and one that it left suspended waits for \
             irq_suspend_timeout.",
        ));
        if self.cores.shared {
            notes.push("the generator shares a core with the service: the figures say little".to_owned());
        }
        notes
    }
}

/// Reads the traces until the window is over, and then what is left in them. The recording ends with the window and not
/// with the reader, because a NAPI thread that busy polls may record faster than this reads, which would make the
/// window longer.
pub(crate) fn read_traces(
    traces: &mut [Polls],
    over: &AtomicBool,
    mut each: impl FnMut(&Record),
) -> Result<(), BenchError> {
    loop {
        let last = over.load(Ordering::Acquire);
        for polls in &mut *traces {
            polls.drain(&mut each).map_err(trace_error)?;
        }
        if last {
            return Ok(());
        }
        std::thread::sleep(DRAIN_INTERVAL);
    }
}

pub(crate) fn trace_error(error: lull_linux::polls::PollsError) -> BenchError {
    BenchError::Invalid(error.to_string())
}
