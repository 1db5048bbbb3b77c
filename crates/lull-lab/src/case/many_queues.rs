//! Many queues: the same service and load on a NIC of more and more queues. Packets spread over them, so that each poll
//! and each interrupt brings fewer. A group of CPUs serves all queues in one pass.

use lull_core::Mode;
use lull_units::counted;

use super::{CaseTable, Effort, Measure, Observed};
use crate::bench::{Bench, BenchConfig, BenchError, MemBench, Run};
use crate::cell::{Load, RunResult, Standing};

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct ManyQueues {
    /// Numbers of queues.
    pub queues: Vec<usize>,
    /// Delivery modes.
    pub modes: Vec<Mode>,
    /// The load of all rows.
    pub load: Load,
    /// The service, its connections and its cores. The number of queues is each row's own.
    pub bench: BenchConfig,
}

impl ManyQueues {
    /// Measures every mode on every number of queues. The modes of one number are measured in turn. The service is
    /// started anew for each number, so that its memory is that of this number of queues.
    ///
    /// # Errors
    ///
    /// This fails if the load is a share of a maximum, which differs from row to row, or if the service or the
    /// generator fails.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        let offered_qps = match self.load {
            Load::Max => None,
            Load::Rate { qps } => Some(qps as f64),
            Load::Percent { .. } => {
                let what = format!("cannot offer {} here: name queries per second, such as 200K, or MAX", self.load);
                return Err(BenchError::Invalid(what));
            }
        };
        effort.check()?;
        let mut table = self.table(effort);
        for (at, queues) in self.queues.iter().enumerate() {
            let config = BenchConfig { queues: Some(*queues), ..self.bench.clone() };
            let mut bench = MemBench::start(config)?;
            if at == 0 {
                table.notes.extend(bench.notes());
            }
            let rows = at * self.modes.len()..(at + 1) * self.modes.len();
            for row in rows.clone() {
                table.rows[row].short_of_cores = bench.short_of_cores(&self.modes[row % self.modes.len()]);
            }
            table.measure(rows, effort, &mut |row, run| {
                let mode = &self.modes[row % self.modes.len()];
                let (warm_up, window, stop) = (effort.warm_up, effort.window, effort.stop);
                let found = bench.run(&Run { mode, load: self.load, offered_qps, run, warm_up, window, stop })?;
                Ok(observed(&found))
            })?;
            if table.interrupted {
                break;
            }
        }
        Ok(table)
    }

    fn table(&self, effort: &Effort<'_>) -> CaseTable {
        let measures = [
            Measure { name: "kqps", help: "queries answered, in thousands a second" },
            Measure { name: "p99_us", help: "their 99th percentile of latency" },
            Measure { name: "packets_per_poll", help: "mean over all polls that found something" },
            Measure { name: "kpolls_per_s", help: "such polls, in thousands a second" },
            Measure { name: "interrupts_per_s", help: "hard interrupts" },
            Measure { name: "softirq_percent", help: "time in softirq, of the service's cores" },
            Measure { name: "cpu_percent", help: "time of all threads that serve or deliver, of the service's cores" },
        ];
        let title = "The same service and load on more and more queues: packets per poll fall, interrupts rise, and with them \
                     the share of softirq.";
        let mut table = CaseTable::new("many-queues", title, &["queues", "mode"], &measures);
        table.set_up = format!(
            "nic mem, {}, {}, buffers of {} bytes, load {}; {}",
            counted(self.bench.workers, "worker"),
            counted(self.bench.connections, "connection"),
            self.bench.buffer_bytes,
            self.load,
            effort.words()
        );
        for queues in &self.queues {
            for mode in &self.modes {
                table.row(vec![queues.to_string(), mode.name().to_owned()]);
            }
        }
        table.notes.push(
            "Published is one sentence: a quarter of all cycles goes into softirq on 44 cores with 44 queues and 40 Gbit/s \
             of small packets. Here one core serves all queues, so rows say how the cost moves and not how large it is; the \
             simulator has the 44 cores."
                .to_owned(),
        );
        table
    }
}

fn observed(run: &RunResult) -> Observed {
    let per_s = |count: Option<u64>| count.map(|count| count as f64 / run.window_s);
    let found = run.polls.zip(run.empty_polls).map(|(polls, empty)| polls.saturating_sub(empty));
    let packets = run.polls.zip(run.mean_work).map(|(polls, mean)| polls as f64 * mean);
    Observed {
        values: vec![
            Some(run.qps / 1e3),
            run.p99_latency_us,
            packets.zip(found).filter(|(_, found)| *found > 0).map(|(packets, found)| packets / found as f64),
            per_s(found).map(|per_s| per_s / 1e3),
            per_s(run.interrupts),
            run.softirq_ms.map(|ms| ms / 10.0 / run.window_s),
            run.cpu_percent,
        ],
        verdict: run.verdict.clone(),
        load: Some(Standing::of_runs(run.load, std::slice::from_ref(run))),
    }
}
