//! A comparison that was never run: the published table with noise, on a made-up machine.
//!
//! Each test file uses a part of it.
#![allow(dead_code)]

use lull_lab::cell::compare::{Metric, published_at};
use lull_lab::cell::report::{CyclesBy, REPORT_SCHEMA};
use lull_lab::cell::{Enforcement, Load, Report, RunResult, summarise};
use lull_lab::csv::published;
use lull_lab::machine::Machine;
use lull_lab::plan::{Asked, LIMIT_DEFAULT, MODES_DEFAULT, Plan, StepKind};

/// The made-up machine serves this share of the published one's rate.
const SCALE: f64 = 0.06;

/// Noise that repeats: a linear congruential generator, good enough to look like a shared machine.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Noise {
        Noise(seed)
    }

    /// Returns a factor around 1, within `share`.
    pub fn factor(&mut self, share: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1.0 + share * (2.0 * ((self.0 >> 33) as f64 / (1u64 << 31) as f64) - 1.0)
    }
}

pub fn plan(modes: &[&str], loads: &str) -> Plan {
    let modes = modes.iter().map(ToString::to_string).collect();
    Plan::fit(modes, Load::parse_list(loads).unwrap(), Asked::default(), LIMIT_DEFAULT).unwrap()
}

/// Returns a run as a machine like the published one would measure it.
pub fn run(testcase: &str, load: Load, number: u32, window_s: f64, noise: &mut Noise) -> RunResult {
    let base_max = 1_054_805.0;
    let at_max = published().iter().find(|r| r.testcase == testcase && r.load == Load::Max).unwrap();
    let share = load.offered_qps(Some(1.0)).filter(|_| load.needs_base());
    let at = |metric, max: Option<f64>| share.map_or(max.unwrap(), |s| published_at(metric, testcase, s).unwrap());
    let slow = noise.factor(0.04);
    let qps = share.map_or(at_max.qps.unwrap() * slow, |s| s * base_max) * SCALE * noise.factor(0.006);
    let avg = at(Metric::Avg, at_max.avg_latency_us) * noise.factor(0.05);
    let p99 = at(Metric::P99, at_max.p99_latency_us) * noise.factor(0.12);
    let cpu = (at(Metric::Cpu, at_max.cpu_percent) * noise.factor(0.03)).min(99.9);
    let queries = qps * window_s;
    let interrupts = (queries * if testcase == "base" { 0.4 } else { 0.01 }) as u64;
    RunResult {
        offered_qps: share.map(|s| s * base_max * SCALE),
        avg_latency_us: Some(avg),
        p50_latency_us: Some(avg * 0.9),
        p95_latency_us: Some(f64::midpoint(avg, p99).max(avg * 1.05)),
        p99_latency_us: Some(p99.max(avg * 1.1)),
        cpu_percent: Some(cpu),
        server_cpu_percent: Some(cpu),
        generator_busy_percent: Some(55.0 * noise.factor(0.1)),
        cycles_per_query: Some(cpu / 100.0 * 2.45e9 / qps),
        interrupts: Some(interrupts),
        polls: Some((queries * 0.6) as u64),
        mean_work: Some(3.2 * noise.factor(0.1)),
        empty_polls: Some((queries * 0.05) as u64),
        softirq_ms: Some(120.0 * noise.factor(0.1)),
        epoll_calls: Some((queries * 0.3) as u64),
        mean_events: Some(2.8 * noise.factor(0.1)),
        wakeups: Some(interrupts),
        timer_ops: Some((queries * 0.02) as u64),
        syscalls: Some((queries * 0.1) as u64),
        timer_lag_us: Some(4.2 * noise.factor(0.2)),
        raise_us: Some(9000.0),
        ..RunResult::new(testcase, load, number, window_s, qps)
    }
}

/// Returns all runs of a plan.
pub fn runs(plan: &Plan) -> Vec<RunResult> {
    let mut noise = Noise::new(7);
    let window_s = plan.window.as_secs_f64();
    plan.steps
        .iter()
        .filter(|s| s.kind == StepKind::Measure)
        .map(|s| run(&s.mode, s.load, s.run, window_s, &mut noise))
        .collect()
}

pub fn report(plan: &Plan, runs: Vec<RunResult>) -> Report {
    let planned = plan.steps.iter().filter(|s| s.kind == StepKind::Measure).count();
    Report {
        schema: REPORT_SCHEMA,
        command: "lull compare --nic mem --workers 1 --connections 64 --html report.html".to_string(),
        machine: Machine {
            cpu_model: Some("AMD EPYC 7B13".to_string()),
            architecture: "x86_64".to_string(),
            cores_online: Some(2),
            threads_per_core: Some(2),
            kernel: Some("6.18.0".to_string()),
            hypervisor: Some(true),
            tsc_hz: Some(2_450_000_000),
            memory_bytes: Some(8 << 30),
            governor: None,
        },
        nic: "mem".to_string(),
        workers: 1,
        connections: 64,
        window_s: plan.window.as_secs_f64(),
        runs: plan.runs,
        modes: plan.modes.clone(),
        loads: plan.loads.clone(),
        base_qps_max: Some(1_054_805.0 * SCALE),
        cycles_by: CyclesBy::Hardware,
        interrupted: runs.len() < planned,
        failed: false,
        notes: Vec::new(),
        cells: summarise(runs),
    }
}

/// Returns twelve modes at four loads, without any problem.
pub fn complete() -> Report {
    let plan = plan(&MODES_DEFAULT, "25%,50%,75%,MAX");
    let runs = runs(&plan);
    report(&plan, runs)
}

/// Returns the same on a machine with many problems: late timers, a mode that is not in force, a generator at its
/// limit, a late one, and a signal in the middle of the second run.
pub fn troubled() -> Report {
    let plan = plan(&MODES_DEFAULT, "25%,50%,75%,MAX");
    let mut runs = runs(&plan);
    runs.truncate(48 + 30);
    for run in &mut runs {
        match (run.testcase.as_str(), run.load) {
            ("suspend50", _) => {
                run.verdict = Enforcement::not_in_force("no suspension in 24 busy periods, a <plain> deferral")
            }
            ("defer20" | "suspend20", _) => run.verdict = Enforcement::TimeoutHad { asked_us: 20.0, had_us: 38.4 },
            ("defer10" | "suspend10", _) => run.verdict = Enforcement::TimeoutHad { asked_us: 10.0, had_us: 31.0 },
            ("fullbusy" | "suspend200", Load::Max) => run.generator_busy_percent = Some(97.0),
            ("napibusy", Load::Percent { permille: 750 }) => run.kept_up = false,
            ("defer200", Load::Percent { permille: 750 }) => run.qps *= 0.8,
            _ => {}
        }
    }
    report(&plan, runs)
}

/// Returns what is left if the first signal comes after five cells of the first run.
pub fn barely_begun() -> Report {
    let plan = plan(&MODES_DEFAULT, "25%,50%,75%,MAX");
    let mut runs = runs(&plan);
    runs.truncate(5);
    report(&plan, runs)
}

/// Returns one mode at two absolute rates.
pub fn one_mode() -> Report {
    let plan = plan(&["suspend20"], "20K,40K");
    let mut noise = Noise::new(3);
    let window_s = plan.window.as_secs_f64();
    let runs = plan
        .steps
        .iter()
        .map(|s| {
            let offered = s.load.offered_qps(None).unwrap();
            let like = Load::Percent { permille: (offered / 63.3) as u32 };
            let like = run(&s.mode, like, s.run, window_s, &mut noise);
            RunResult { load: s.load, offered_qps: Some(offered), qps: offered * noise.factor(0.005), ..like }
        })
        .collect();
    Report { base_qps_max: None, ..report(&plan, runs) }
}
