//! The published UDP_STREAM figures ("net: implement threaded-able napi poll loop support", P. Abeni and H. F. Sowa,
//! 2016) as worlds: six datagram sizes by five numbers of flows, in three modes.
//!
//! **The machine.** By the letter, there is a guest with one virtual CPU, a remote sender (`super_netperf`,
//! UDP_STREAM), a tun device without a queue discipline in the hypervisor, and `sdfn` as receive hash. So a frame
//! passes the wire (10 Gbit/s, which 1438 and 64000 bytes fill), the hypervisor's NIC, its softirq, tun's queue of 500
//! frames, the vhost thread, the guest's ring of 256 and its NAPI, and a socket; netserver has a process for each flow.
//! The letter does not give the number of the hypervisor's CPUs; here it has six with a queue each. One of them also
//! executes the guest and one vhost. Flows are spread over the queues. A single flow, and fragments, which carry no
//! ports, have one queue, on a CPU that executes neither.
//!
//! **The modes.** *vanilla*: softirq in both kernels. *guest threaded*: the guest's NAPI has a thread (the core's
//! `NapiThread`), which shares the CPU fairly with the sinks. *both threaded*: the hypervisor's NAPIs have threads,
//! too; the scheduler then keeps them off the two CPUs that are busy with guest and vhost, which it cannot do with
//! softirq.
//!
//! Softirq is that of Linux 4.6, which is also today's: it runs at the return of interrupts and wherever a system call
//! enables bottom halves, with ksoftirqd or without. Calibration sees ten of the thirty rows, from a file that has no
//! others.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lull_core::{NapiSettings, Threaded};

use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::engine::dim::Moderation;
use crate::fit::Fit;
use crate::params::Params;
use crate::published::rows::{Row, fit_rows, within};
use crate::published::statements::Statement;
use crate::world::{FloodSpec, ModerationSpec, Period, QueueSpec, RelaySpec, SenderSpec, VcpuSpec, World};
use crate::{RunError, Sim};

/// The published table.
pub const CSV: &str = include_str!("../../data/threaded_napi_udp_stream.csv");
/// The rows of it that calibration may see.
pub const CALIBRATION_CSV: &str = include_str!("../../data/udp_stream_calibration.csv");
/// The parameters.
pub const PARAMS_TOML: &str = include_str!("../../data/udp_stream.toml");
/// The start of the fit.
pub const START_TOML: &str = include_str!("../../data/udp_stream_start.toml");

/// The parameters and their units.
pub const KNOWN: [(&str, &str); 21] = [
    ("irq_ns", "ns"),
    ("softirq_ns", "ns"),
    ("poll_ns", "ns"),
    ("forward_ns", "ns"),
    ("copy_ns", "ns"),
    ("lock_ns", "ns"),
    ("signal_ns", "ns"),
    ("vm_exit_ns", "ns"),
    ("copy_byte_ps", "ps"),
    ("rx_frame_ns", "ns"),
    ("reassemble_ns", "ns"),
    ("wake_ns", "ns"),
    ("switch_ns", "ns"),
    ("recv_ns", "ns"),
    ("recv_sleep_ns", "ns"),
    ("cold_receive_ns", "ns"),
    ("cache_kib", "KiB"),
    ("send_ns", "ns"),
    ("send_fragment_ns", "ns"),
    ("send_byte_ps", "ps"),
    ("sender_cores", "cores"),
];
/// The parameters that the fit may change.
const FITTED: [&str; 17] = [
    "forward_ns",
    "copy_ns",
    "lock_ns",
    "signal_ns",
    "vm_exit_ns",
    "copy_byte_ps",
    "rx_frame_ns",
    "wake_ns",
    "switch_ns",
    "recv_ns",
    "recv_sleep_ns",
    "cold_receive_ns",
    "cache_kib",
    "send_ns",
    "send_fragment_ns",
    "send_byte_ps",
    "sender_cores",
];

/// Payloads, in bytes.
pub const SIZES: [u32; 6] = [1, 64, 256, 1_438, 4_096, 64_000];
/// Numbers of flows.
pub const FLOWS: [u32; 5] = [1, 25, 50, 100, 200];

/// Which NAPIs have threads, in the order of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// None.
    Vanilla,
    /// That of the guest.
    Guest,
    /// Those of the guest and of the hypervisor.
    Both,
}

/// All modes, in the order of the table's columns.
pub const MODES: [Threads; 3] = [Threads::Vanilla, Threads::Guest, Threads::Both];

impl Threads {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Threads::Vanilla => "vanilla",
            Threads::Guest => "guest threaded",
            Threads::Both => "both threaded",
        }
    }
}

/// Returns the value of a table in thousands of datagrams per second, or `None` if it has no such row.
fn value(table: &str, bytes: u32, flows: u32, mode: Threads) -> Option<f64> {
    let prefix = format!("{bytes},{flows},");
    table.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').nth(mode as usize)?.trim().parse().ok())
}

// The hypervisor's CPUs, and then the guest's.
const GUEST_ON: u16 = 0;
const VHOST: u16 = 1;
const HOST_CPUS: u16 = 6;
const GUEST: u16 = HOST_CPUS;
/// The queue of flows that cannot be spread.
const ONE_QUEUE: u32 = 2;
/// ixgbe's moderation at these rates: 20,000 interrupts a second for each queue.
const HOST_MODERATION: Moderation = Moderation { usecs: 50, frames: u32::MAX };
/// How many frames a ring of ixgbe, one of virtio_net, and tun's queue hold.
const HOST_RING: u32 = 512;
const GUEST_RING: u32 = 256;
const TUN_FRAMES: u32 = 500;
/// The letter's threads are assumed to let others run every `netdev_budget` packets.
const THREAD_PACKETS: u32 = 300;

/// Makes the world of one size and number of flows in one mode.
pub fn world(params: &Params, bytes: u32, flows: u32, mode: Threads, span: Span) -> World {
    let threaded =
        |on: bool| NapiSettings { threaded: if on { Threaded::On } else { Threaded::Off }, ..NapiSettings::default() };
    let host_queue = |cpu: u16| QueueSpec {
        napi: threaded(mode == Threads::Both),
        thread_cpu: 2 + cpu % (HOST_CPUS - 2),
        thread_packets: THREAD_PACKETS,
        rx: ModerationSpec::Fixed(HOST_MODERATION),
        rx_period: Period::Interrupt,
        ring_packets: HOST_RING,
        ..QueueSpec::new(cpu)
    };
    let guest_queue = QueueSpec {
        napi: threaded(mode != Threads::Vanilla),
        thread_packets: THREAD_PACKETS,
        ring_packets: GUEST_RING,
        ..QueueSpec::new(GUEST)
    };
    let flood = FloodSpec {
        flows,
        bytes,
        sender: SenderSpec {
            datagram_ns: params.whole("send_ns"),
            fragment_ns: params.whole("send_fragment_ns"),
            byte_ps: params.whole("send_byte_ps"),
            cores: params.get("sender_cores"),
        },
        sink_cpu: GUEST,
        ..FloodSpec::default()
    };
    let spread = flows > 1 && flood.frames() == 1;
    let queues = if spread { (0..u32::from(HOST_CPUS)).collect() } else { vec![ONE_QUEUE] };
    World {
        cpus: (0..=HOST_CPUS).map(|cpu| cpu == GUEST).collect(),
        costs: costs(params),
        cache: CacheSpec {
            cold_request_ns: params.whole("cold_receive_ns"),
            capacity_requests: params.whole("cache_kib"),
            ..CacheSpec::default()
        },
        queues: (0..HOST_CPUS).map(host_queue).chain([guest_queue]).collect(),
        flood: Some(FloodSpec { queues, ..flood }),
        relay: Some(RelaySpec {
            cpu: VHOST,
            guest_queue: u32::from(GUEST),
            queue_frames: TUN_FRAMES,
            forward_ns: params.whole("forward_ns"),
            copy_ns: params.whole("copy_ns"),
            lock_ns: params.whole("lock_ns"),
            signal_ns: params.whole("signal_ns"),
        }),
        vcpu: Some(VcpuSpec {
            guest_cpu: GUEST,
            host_cpu: GUEST_ON,
            interrupted_by: VHOST,
            exit_ns: params.whole("vm_exit_ns"),
        }),
        warmup_ns: span.warmup_ns,
        window_ns: span.window_ns,
        ..World::default()
    }
}

fn costs(params: &Params) -> Costs {
    Costs {
        irq_ns: params.whole("irq_ns"),
        softirq_ns: params.whole("softirq_ns"),
        poll_ns: params.whole("poll_ns"),
        rx_frame_ns: params.whole("rx_frame_ns"),
        reassemble_ns: params.whole("reassemble_ns"),
        copy_byte_ps: params.whole("copy_byte_ps"),
        wake_ns: params.whole("wake_ns"),
        switch_ns: params.whole("switch_ns"),
        recv_call_ns: 0,
        recv_take_ns: params.whole("recv_ns"),
        recv_sleep_ns: params.whole("recv_sleep_ns"),
        ..Costs::default()
    }
}

/// What is simulated of a cell, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The time before anything is counted, in which the sockets reach their steady state.
    pub warmup_ns: u64,
    /// The time that is counted.
    pub window_ns: u64,
}

/// What `lull sim published` simulates.
pub const FULL: Span = Span { warmup_ns: 200_000_000, window_ns: 100_000_000 };
/// What the fit simulates.
const SHORT: Span = Span { warmup_ns: 60_000_000, window_ns: 60_000_000 };

/// Runs the cells of `table`, in its columns, on several threads; the result does not depend on how many.
fn run(params: &Params, table: &'static str, span: Span, seed: u64) -> Result<Vec<Row>, RunError> {
    let mut jobs = Vec::new();
    for bytes in SIZES {
        for flows in FLOWS {
            for mode in MODES {
                if let Some(published) = value(table, bytes, flows, mode) {
                    jobs.push((bytes, flows, mode, published));
                }
            }
        }
    }
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Result<Row, RunError>>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(bytes, flows, mode, published)) = jobs.get(job) else { return };
                    let ran = Sim::new(&world(params, bytes, flows, mode, span), seed).run().map(|out| Row {
                        name: format!("{bytes} B, {flows} flows, {}", mode.name()),
                        fitted: value(CALIBRATION_CSV, bytes, flows, mode).is_some(),
                        published,
                        simulated: out.counts.served as f64 * 1e6 / out.window_ns as f64,
                    });
                    if let Ok(mut done) = done.lock() {
                        done[job] = Some(ran);
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).into_iter().flatten().collect()
}

/// Simulates the ninety values, in thousands of datagrams per second: by size, then flows, then mode.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn simulate(params: &Params, span: Span, seed: u64) -> Result<Vec<Row>, RunError> {
    run(params, CSV, span, seed)
}

/// Fits the parameters to the ten rows that calibration may see.
///
/// # Errors
///
/// This fails if a world hit its bound at the start.
pub fn fit(start: &Params, evaluations: usize, seed: u64, progress: impl FnMut(usize, f64)) -> Result<Fit, RunError> {
    let simulate = |params: &Params| run(params, CALIBRATION_CSV, SHORT, seed);
    fit_rows(start, &FITTED, evaluations, seed, simulate, progress)
}

/// Half of the table's last digit, as a share of a value near 18 thousand per second.
const ROUNDING: f64 = 0.03;

/// Checks the statements about the published table on the simulated one (in the order of [`simulate`]), with the
/// figures of the statements, and only the rounding of these figures allowed.
pub fn statements(rows: &[Row]) -> Vec<Statement> {
    let kpps = |size: usize, flows: usize, mode: Threads| {
        let index = (size * FLOWS.len() + flows) * MODES.len() + mode as usize;
        rows.get(index).map_or(f64::NAN, |row| row.simulated)
    };
    let [mut guest, mut both, mut kept] = [const { Vec::new() }; 3];
    for (size, bytes) in SIZES.into_iter().enumerate() {
        for (place, flows) in FLOWS.into_iter().enumerate() {
            let at = format!("{bytes}/{flows}");
            let threaded = kpps(size, place, Threads::Guest);
            let ratio = threaded / kpps(size, place, Threads::Vanilla);
            let (low, high) = if bytes == 64_000 { (1.0 - ROUNDING, 1.0 + ROUNDING) } else { (1.15, 3.85) };
            if flows > 1 {
                within(&mut guest, &format!("guest threaded to vanilla at {at}"), ratio, low, high);
            }
            let ratio = kpps(size, place, Threads::Both) / threaded;
            let slower = flows == 1 && matches!(bytes, 1_438 | 4_096);
            let (low, high) = if slower { (0.0, 1.005) } else { (0.995, 1.705) };
            within(&mut both, &format!("both to guest threaded at {at}"), ratio, low, high);
        }
        for mode in MODES {
            let peak = (0..FLOWS.len()).map(|flows| kpps(size, flows, mode)).fold(0.0, f64::max);
            let share = kpps(size, FLOWS.len() - 1, mode) / peak;
            let what = format!("share of the peak at {bytes}/200, {}", mode.name());
            match mode {
                Threads::Vanilla if bytes == 64_000 => {}
                Threads::Vanilla => within(&mut kept, &what, share, 0.235, 0.605),
                Threads::Guest | Threads::Both => within(&mut kept, &what, share, 0.655, 0.955),
            }
        }
    }
    let statement =
        |number: u32, says: &'static str, broken: Vec<String>| Statement { number, says, broken, near: Vec::new() };
    vec![
        statement(1, "from 25 flows guest-threaded is 1.2 to 3.8 times vanilla up to 4096 B, equal at 64000 B", guest),
        statement(2, "threading the hypervisor too adds 0 to 70 %, except at 1438/1 and 4096/1", both),
        statement(
            3,
            "at 200 flows throughput keeps 0.66 to 0.95 of its peak (vanilla 0.24 to 0.60 up to 4096 B)",
            kept,
        ),
    ]
}
