//! A run of a trace, with fixed settings or with a controller.

use hdrhistogram::Histogram;
use lull_core::{Mode, NapiSettings, Stats};
use lull_slo::{Controller, Latency, NapiReading, Reading, Standing, window_is_over};

use super::trace::{Rates, TICK_NS, Trace};
use crate::engine::id::{Id, SourceId};
use crate::metrics::{CpuUse, Latencies};
use crate::world::{ConnectionsSpec, Traffic};
use crate::{PredictError, Sim, WorldFile};

/// What a slice lasts at least, in nanoseconds.
const SLICE_NS: u64 = 250_000_000;
/// What a slice lasts at most, in nanoseconds.
const SLICE_NS_MAX: u64 = 1_000_000_000;
/// How many requests a slice should have.
const SLICE_REQUESTS: f64 = 1_200.0;

/// Who chooses the settings.
#[derive(Clone, Debug)]
pub enum Chooser {
    /// Nobody: every queue has these settings throughout.
    Fixed(NapiSettings),
    /// A controller.
    Controlled(Box<Controller>),
}

/// What was counted in a slice of a trace. A slice lasts for as many quarters of a second as bring enough requests, and
/// at most a second, so slices are the same whoever chooses the settings.
#[derive(Clone, Debug)]
pub struct Slice {
    /// When it began, since the beginning of the trace, in nanoseconds.
    pub begin_ns: u64,
    /// When it ended, since the beginning of the trace, in nanoseconds.
    pub end_ns: u64,
    /// Its phase.
    pub phase: usize,
    /// Its latencies.
    pub latency: Latency,
    /// Time that the service's CPUs were not idle, charged or not, in percent.
    pub busy_percent: f64,
    /// CPU as accounting shows it, in percent.
    pub cpu_percent: f64,
    /// Interrupts of the NIC, and polls.
    pub irqs: u64,
    /// Polls.
    pub polls: u64,
    /// The `gro_flush_timeout` of each queue that receives at the end of the slice, in nanoseconds.
    pub timeouts_ns: Vec<u64>,
    /// What the controller last said.
    pub standing: Option<Standing>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct TraceRun {
    /// Its slices.
    pub slices: Vec<Slice>,
    /// How often the controller changed settings.
    pub changes: u64,
}

/// The counts since some moment: answers, CPU, interrupts.
struct Since {
    latency: Histogram<u64>,
    sum_ns: u128,
    cpu: CpuUse,
    irqs: u64,
    /// How many requests the trace asks for.
    requests: f64,
    begin_ns: u64,
    before: Vec<Stats>,
}

impl Since {
    fn new(sim: &Sim) -> Since {
        let Latencies { ns: latency, .. } = Latencies::default();
        let before = sim.nic.receiving().map(|queue| queue.napi.stats()).collect();
        Since { latency, sum_ns: 0, cpu: CpuUse::default(), irqs: 0, requests: 0.0, begin_ns: sim.now_ns(), before }
    }

    fn latency(&self) -> Latency {
        let answers = self.latency.len();
        let at = |quantile: f64| if answers == 0 { 0 } else { self.latency.value_at_quantile(quantile) };
        Latency {
            answers,
            avg_ns: (self.sum_ns / u128::from(answers.max(1))) as u64,
            p50_ns: at(0.5),
            p95_ns: at(0.95),
            p99_ns: at(0.99),
        }
    }

    fn napis(&self, sim: &Sim) -> Vec<NapiReading> {
        let queues = sim.nic.receiving().zip(&self.before);
        queues.map(|(queue, before)| NapiReading::of(queue.napi.id(), &(queue.napi.stats() - *before))).collect()
    }
}

/// Runs a trace on a described world, in a mode whose NAPI settings a [`Chooser`] chooses.
///
/// # Errors
///
/// This fails if the world cannot have the mode, or if the run hit a bound.
pub fn run(
    file: &WorldFile,
    mode: &Mode,
    trace: &Trace,
    seed: u64,
    chooser: Chooser,
) -> Result<TraceRun, PredictError> {
    file.can_run(mode).map_err(PredictError::Mode)?;
    file.can_offer(Traffic::Open { per_s: 1.0 }).map_err(PredictError::Load)?;
    let mut world = file.world(mode, Traffic::Open { per_s: 1.0 }, 0);
    // A second application keeps its own load.
    let own = world.second.map_or(world.connections.len(), |second| second.first_group as usize);
    if world.connections[..own].iter().any(|group| !matches!(group.traffic, Traffic::Open { .. })) {
        let name = &file.name;
        return Err(PredictError::Load(format!(
            "{name}: load.arrivals: a load that changes comes as a Poisson process; leave arrivals and trace out of the file"
        )));
    }
    let shares: Vec<(u32, f64)> = world.connections[..own]
        .iter()
        .map(|group| (group.queue, f64::from(group.count) / f64::from(file.connections.max(1))))
        .collect();
    let noise = world.connections.len();
    // These are packets that nobody waits for: their context does not exist in the world.
    let traffic = Traffic::Noise { per_s: 0.0 };
    world.connections.push(ConnectionsSpec { count: 1, queue: 0, context: u32::MAX, traffic });
    let mut running = Running { sim: Sim::new(&world, seed), shares, noise, chooser, standing: None };
    running.all(trace)
}

struct Running {
    sim: Sim,
    /// The queue and the share of the load of each group of connections.
    shares: Vec<(u32, f64)>,
    /// The group that sends another program's packets.
    noise: usize,
    chooser: Chooser,
    standing: Option<Standing>,
}

impl Running {
    fn all(&mut self, trace: &Trace) -> Result<TraceRun, PredictError> {
        self.put_in_force();
        let begin_ns = self.sim.now_ns();
        let (mut slice, mut window) = (Since::new(&self.sim), Since::new(&self.sim));
        self.sim.begin_window();
        let mut slices = Vec::new();
        let mut rates = None;
        let mut at_ns = 0;
        while at_ns < trace.length_ns() {
            let now = trace.rates_at(at_ns);
            if rates.replace(now) != Some(now) {
                self.offer(now);
            }
            slice.requests += now.per_s * TICK_NS as f64 / 1e9;
            at_ns += TICK_NS;
            self.sim.run_until(begin_ns + at_ns).map_err(PredictError::Bound)?;
            let answers = window.latency.len() + self.sim.env.tally.counts.answered;
            let decides = matches!(self.chooser, Chooser::Controlled(_))
                && window_is_over(self.sim.now_ns() - window.begin_ns, Some(answers));
            let slice_ns = self.sim.now_ns() - slice.begin_ns;
            let phase_ends = trace.phase_at(at_ns).is_none_or(|(_, begins_ns)| begins_ns == at_ns);
            let ends = phase_ends
                || slice_ns.is_multiple_of(SLICE_NS) && (slice.requests >= SLICE_REQUESTS || slice_ns >= SLICE_NS_MAX);
            if !(decides || ends) {
                continue;
            }
            self.take(&mut [&mut slice, &mut window]);
            if decides {
                self.decide(&window);
                window = Since::new(&self.sim);
            }
            if ends {
                slices.push(self.slice(&slice, slice.begin_ns - begin_ns, at_ns, trace));
                slice = Since::new(&self.sim);
            }
        }
        let changes = if let Chooser::Controlled(controller) = &self.chooser { controller.changes() } else { 0 };
        Ok(TraceRun { slices, changes })
    }

    /// Sets the rates of all groups of connections.
    fn offer(&mut self, rates: Rates) {
        let busy: f64 = match rates.one_queue {
            true => self.shares.iter().filter(|(queue, _)| *queue == 0).map(|(_, share)| share).sum(),
            false => 1.0,
        };
        let (sim, shares) = (&mut self.sim, &self.shares);
        for (index, &(queue, share)) in shares.iter().enumerate() {
            let per_s =
                if rates.one_queue && queue != 0 { 0.0 } else { rates.per_s * share / busy.max(f64::MIN_POSITIVE) };
            sim.clients.set_rate(&mut sim.env, SourceId::at(index), per_s);
        }
        sim.clients.set_rate(&mut sim.env, SourceId::at(self.noise), rates.noise_per_s);
    }

    /// Adds what the simulator has counted so far to the counts since each moment.
    fn take(&mut self, sinces: &mut [&mut Since]) {
        let outcome = self.sim.outcome();
        for since in sinces {
            since.latency += &outcome.latency_ns;
            since.sum_ns += outcome.latency_sum_ns;
            since.cpu.add(&outcome.cpu);
            since.irqs += outcome.counts.irqs;
        }
        self.sim.begin_window();
    }

    fn decide(&mut self, window: &Since) {
        let Chooser::Controlled(controller) = &mut self.chooser else { return };
        let now_ns = self.sim.now_ns();
        let reading = Reading {
            now_ns,
            window_ns: now_ns - window.begin_ns,
            napis: window.napis(&self.sim),
            cpu_percent: Some(window.cpu.percent()),
            latency: Some(window.latency()),
        };
        self.standing = Some(controller.decide(&reading));
        self.put_in_force();
    }

    /// Settings are put in force on each receiving NAPI separately, as by `napi-set`.
    fn put_in_force(&self) {
        for queue in self.sim.nic.receiving() {
            let settings = match &self.chooser {
                Chooser::Fixed(settings) => *settings,
                Chooser::Controlled(controller) => controller.settings(queue.napi.id()),
            };
            queue.napi.set(&settings);
        }
    }

    fn slice(&self, since: &Since, begin_ns: u64, end_ns: u64, trace: &Trace) -> Slice {
        let busy_ns = since.cpu.busy_ns();
        Slice {
            begin_ns,
            end_ns,
            phase: trace.phase_at(end_ns - 1).map_or(0, |(index, _)| index),
            latency: since.latency(),
            busy_percent: 100.0 * busy_ns as f64 / (busy_ns + since.cpu.idle_ns).max(1) as f64,
            cpu_percent: since.cpu.percent(),
            irqs: since.irqs,
            polls: since.napis(&self.sim).iter().map(|napi| napi.polls).sum(),
            timeouts_ns: self.sim.nic.receiving().map(|queue| queue.napi.settings().gro_flush_timeout_ns).collect(),
            standing: self.standing,
        }
    }
}
