//! A service that has nothing to do: the CPU time that it takes meanwhile, and how long a request waits that comes
//! after a pause. A group of CPUs that rests (`groupX`) should then cost nothing, and a request should pay for one
//! wake-up.

use lull_core::Mode;
use lull_units::counted;

use super::{CaseTable, Effort, Measure, Observed};
use crate::bench::{Bench, BenchConfig, BenchError, MemBench, Run};
use crate::calibrate::micro::wake_latency_ns;
use crate::cell::{Load, RunResult, Standing};

/// Requests a second to a service that is idle.
const IDLE_QPS: u64 = 1;
/// Requests a second that each come after a pause. The pause is 20 ms, a hundred times as long as any mode waits before
/// it sleeps.
const PAUSED_QPS: u64 = 50;

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct AfterIdle {
    /// The delivery modes.
    pub modes: Vec<Mode>,
    /// The service, its connections and its cores.
    pub bench: BenchConfig,
}

impl AfterIdle {
    /// Measures every mode without load, and with requests that each come after a pause. Between two runs it also
    /// measures how long a thread on the generator's core takes to wake one on the service's core.
    ///
    /// # Errors
    ///
    /// This fails if the service or the generator fails.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        let mut bench = MemBench::start(self.bench.clone())?;
        let mut table = self.table(effort);
        table.notes.extend(bench.notes());
        for (mode, row) in self.modes.iter().zip(&mut table.rows) {
            // A group that rests leaves its core to the worker, as an interrupt thread does.
            let rests = mode.group.is_some_and(|group| group.rest_ns.is_some());
            row.short_of_cores = bench.short_of_cores(mode).filter(|_| !rests);
        }
        let (service, generator) = bench.cores();
        table.measure(0..self.modes.len(), effort, &mut |row, run| {
            let mode = &self.modes[row];
            let mut found = |qps: u64| {
                let (load, offered_qps) = (Load::Rate { qps }, Some(qps as f64));
                let (warm_up, window, stop) = (effort.warm_up, effort.window, effort.stop);
                bench.run(&Run { mode, load, offered_qps, run, warm_up, window, stop })
            };
            let (idle, paused) = (found(IDLE_QPS)?, found(PAUSED_QPS)?);
            let wake_ns = if service == generator { None } else { wake_latency_ns(service, generator, effort.stop)? };
            Ok(observed(&idle, &paused, wake_ns))
        })?;
        self.say_of_base(&mut table);
        Ok(table)
    }

    fn table(&self, effort: &Effort<'_>) -> CaseTable {
        let measures = [
            Measure {
                name: "idle_cpu_percent",
                help: "CPU of all threads that serve or deliver, at a request a second",
            },
            Measure { name: "after_pause_p50_us", help: "median latency of a request after a pause" },
            Measure { name: "after_pause_p99_us", help: "its 99th percentile" },
            Measure { name: "wake_us", help: "from waking a sleeping thread of the service's core until it runs" },
        ];
        let title = "A service without load, and requests that each come after a pause of 20 ms on average.";
        let mut table = CaseTable::new("after-idle", title, &["mode"], &measures);
        table.set_up = format!(
            "nic mem, {}, {}; {IDLE_QPS} and {PAUSED_QPS} requests/s; {}",
            counted(self.bench.workers, "worker"),
            counted(self.bench.connections, "connection"),
            effort.words()
        );
        for mode in &self.modes {
            table.row(vec![mode.name().to_owned()]);
        }
        table
    }

    /// Notes for each mode by how many wake-ups a request takes longer than in base.
    fn say_of_base(&self, table: &mut CaseTable) {
        let (latency, wake) = (table.measure_at("after_pause_p50_us"), table.measure_at("wake_us"));
        let value = |row: usize, measure: usize| table.rows[row].values[measure].ours.map(|ours| ours.value);
        let Some(base) = self.modes.iter().position(|mode| mode.name() == "base") else { return };
        let mut notes = Vec::new();
        for (row, mode) in self.modes.iter().enumerate().filter(|(row, _)| *row != base) {
            let (Some(ours), Some(of_base), Some(wake_us)) =
                (value(row, latency), value(base, latency), value(row, wake))
            else {
                continue;
            };
            let (more_us, name) = (ours - of_base, mode.name());
            notes.push(format!(
                "In {name} a request after a pause takes {more_us:+.1} us against base: {:+.2} wake-ups.",
                more_us / wake_us
            ));
        }
        table.notes.extend(notes);
    }
}

fn observed(idle: &RunResult, paused: &RunResult, wake_ns: Option<f64>) -> Observed {
    Observed {
        values: vec![idle.cpu_percent, paused.p50_latency_us, paused.p99_latency_us, wake_ns.map(|ns| ns / 1e3)],
        // Without load there is nothing by which modes could be told apart.
        verdict: paused.verdict.clone(),
        load: Some(Standing::of_runs(paused.load, std::slice::from_ref(paused))),
    }
}
