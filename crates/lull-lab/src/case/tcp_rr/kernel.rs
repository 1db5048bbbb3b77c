//! TCP_RR on Linux's stack: a veth pair between two network namespaces, whose settings end with them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use lull_core::Mode;
use lull_host::{pin_thread, thread_id};
use lull_linux::offload::{self, Offload};
use lull_linux::os::set_busy_poll;
use lull_linux::polls::{self, Options, Polls, Record};

use super::{Connection, PATIENCE, observed};
use crate::bench::kernel::pair::{Pair, ServerStack, linux};
use crate::bench::kernel::traced::Traced;
use crate::bench::kernel::usage::{Threads, Usage};
use crate::bench::kernel::{read_traces, trace_error};
use crate::bench::{BenchError, PORT};
use crate::case::{Effort, Observed};
use crate::cell::Enforcement;
use crate::check::enforcement;
use crate::flood::kernel::set_napis;

/// The deferral that stands in for rx-usecs 16, with which a frame waits for 15 us.
pub(super) const DEFERRAL_NS: u64 = 15_000;
/// The reason why coalescing is refused here.
pub(super) const NO_COALESCING: &str = "cannot set rx-usecs on the kernel plane: a veth has no coalescing; name a deferral instead (--modes base,defer15,busyread)";
/// A note for the reader of the table.
pub(super) const NOTE: &str = "A veth has no interrupt and no coalescing: whoever sends runs the receiver's softirq on its own core, \
                               and deferX, which polls every X us, stands in for rx-usecs. The trace that shows who polled \
                               costs each poll part of a microsecond.";
/// The size of a trace's ring buffer, in KiB for each CPU: it holds the polls of one end between two reads of the
/// trace.
const TRACE_KIB: u32 = 16 * 1024;

impl Connection for TcpStream {
    fn send_byte(&self) -> io::Result<()> {
        let mut stream = self;
        stream.write_all(&[1])
    }

    fn receive_byte(&self) -> io::Result<bool> {
        let mut stream = self;
        Ok(stream.read(&mut [0])? != 0)
    }
}

/// The time of the window, by the clock of the trace.
struct Window {
    from_ns: AtomicU64,
    to_ns: AtomicU64,
}

impl Window {
    fn new() -> Window {
        Window { from_ns: AtomicU64::new(u64::MAX), to_ns: AtomicU64::new(u64::MAX) }
    }

    /// Marks the window's beginning, and at the second call its end.
    fn mark(&self) {
        let now_ns = polls::now_ns();
        let begins = self.from_ns.compare_exchange(u64::MAX, now_ns, Ordering::Release, Ordering::Relaxed);
        if begins.is_err() {
            self.to_ns.store(now_ns, Ordering::Release);
        }
    }

    fn has(&self, record: &Record) -> bool {
        (self.from_ns.load(Ordering::Acquire)..self.to_ns.load(Ordering::Acquire)).contains(&record.at_ns)
    }
}

/// Measures one run of a row, in namespaces of its own.
pub(super) fn measure(mode: &Mode, cores: &[usize], effort: &Effort<'_>) -> Result<Observed, BenchError> {
    if let Err(error) = lull_linux::plan::check_kernel_has(mode) {
        let verdict = Enforcement::Refused { reason: error.to_string() };
        return Ok(Observed { values: vec![None; 5], verdict, load: None });
    }
    let pair = Pair::make(1, ServerStack::Kernel)?;
    // With GRO both ends receive by a NAPI, and no frame bypasses it on the veth.
    pair.client.within(|| offload::set(pair.client.device(), Offload::Gro, true))?.map_err(linux)?;
    pair.server.within(|| offload::set(pair.server.device(), Offload::Tso, false))?.map_err(linux)?;
    let (client, server) = connect(&pair, mode)?;
    let mut napi_threads = set_napis(&pair.client, mode, cores[0])?;
    napi_threads.extend(set_napis(&pair.server, mode, cores[1])?);
    // The timers of all NAPIs count.
    let open =
        |device: &str, timers| Polls::open(device, Options { timers, buffer_kib: TRACE_KIB }).map_err(trace_error);
    let mut traces = [open(pair.client.device(), true)?, open(pair.server.device(), false)?];
    let lost = |traces: &[Polls]| traces.iter().map(|trace| trace.lost().map_err(trace_error)).sum::<Result<u64, _>>();
    let lost_before = lost(&traces)?;
    let (serving_tid, over, window) = (AtomicI32::new(0), AtomicBool::new(false), Window::new());
    let mark = || {
        window.mark();
        (Usage::read(cores, Threads { napi: &napi_threads, ..Threads::default() }), thread_id())
    };
    let mut traced = Traced::new(mode);
    let (latencies, seconds, before, after) = std::thread::scope(|scope| {
        let (over, window, serving_tid, mark) = (&over, &window, &serving_tid, &mark);
        let (traces, traced) = (&mut traces, &mut traced);
        let of_window = move |record: &Record| {
            if window.has(record) {
                traced.add(record);
            }
        };
        let reading = scope.spawn(move || read_traces(traces, over, of_window));
        let serving = scope.spawn(move || {
            pin_thread(&cores[1..2])?;
            serving_tid.store(thread_id(), Ordering::Release);
            super::echo(&server, over)
        });
        // The client's end is closed when it is done or has failed, which ends the server.
        let asking = scope.spawn(move || pin_thread(&cores[..1]).and_then(|()| super::transact(&client, effort, mark)));
        let asked = asking.join().map_err(|_| BenchError::Invalid("the client panicked".to_owned()));
        over.store(true, Ordering::Release);
        let served = serving.join().map_err(|_| BenchError::Invalid("the server panicked".to_owned()))?;
        let read = reading.join().map_err(|_| BenchError::Invalid("the reader of the trace panicked".to_owned()))?;
        let asked = asked??;
        served?;
        read?;
        Ok::<_, BenchError>(asked)
    })?;
    traced.lost = lost(&traces)? - lost_before;
    traced.sum();
    let ((before, client_tid), (after, _)) = (before, after);
    let sleeps = after.since(&before, cores.len()).napi_sleeps;
    let evidence = traced.evidence(&[client_tid, serving_tid.into_inner()], latencies.len(), sleeps);
    let verdict = match enforcement(mode, &evidence) {
        // The evidence that is missing may be among the lost events.
        Enforcement::NotInForce { reason } if traced.lost != 0 => {
            Enforcement::NotInForce { reason: format!("{reason}; the trace lost {} events", traced.lost) }
        }
        verdict => verdict,
    };
    Ok(observed(&latencies, seconds, evidence.softirq_polls, evidence.busy_polls, verdict))
}

/// Makes one connection between the two ends. Returns the client's socket and the server's.
fn connect(pair: &Pair, mode: &Mode) -> Result<(TcpStream, TcpStream), BenchError> {
    let address = SocketAddr::from((pair.server.address(), PORT));
    let listener = pair.server.within(|| TcpListener::bind(address))??;
    let client = pair.client.within(|| TcpStream::connect_timeout(&address, PATIENCE))??;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        if mode.socket_busy_poll_usecs != 0 {
            set_busy_poll(stream.as_fd(), mode.socket_busy_poll_usecs)?;
        }
    }
    Ok((client, server))
}
