//! Too many applications that busy poll on few cores, so that the scheduler arbitrates between them: each polls in vain
//! while the one that has work waits for the core. They are compared with a group of one, which polls for all of them.

use lull_core::Mode;

use super::NOTHING_SENT;
use crate::bench::{Bench, BenchConfig, BenchError, Cores, GroupSetup, MemBench, Run};
use crate::case::{CaseTable, Effort, Measure, Observed, Placed};
use crate::cell::{Load, Standing};

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// The numbers of applications, each with a queue and an epoll context, all on one core.
    pub applications: Vec<usize>,
    /// The delivery modes.
    pub modes: Vec<Mode>,
    /// Requests per second over all applications.
    pub per_second: u64,
    /// The core of the applications, then the generator's. If it is empty, the first usable cores are taken.
    pub cores: Vec<usize>,
}

/// The most applications that are allowed: each is a thread that may never sleep.
pub const APPLICATIONS_MAX: usize = 64;

impl Crowd {
    /// Measures every mode with every number of applications.
    ///
    /// # Errors
    ///
    /// This fails if a number is outside its limits, or if the service or the generator fails.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        if let Some(count) = self.applications.iter().find(|count| !(1..=APPLICATIONS_MAX).contains(count)) {
            return Err(BenchError::Invalid(format!("cannot run {count} applications: use 1 to {APPLICATIONS_MAX}")));
        }
        if self.per_second == 0 {
            return Err(BenchError::Invalid(NOTHING_SENT.to_owned()));
        }
        effort.check()?;
        let placed = Placed::new(&self.cores, &["the applications", "the generator"])?;
        let mut table = self.table(&placed, effort);
        for (at, applications) in self.applications.iter().enumerate() {
            let config = BenchConfig {
                workers: *applications,
                queues: Some(*applications),
                connections: 8 * applications,
                group: Some(GroupSetup { cores: vec![placed.cores[0]], ..GroupSetup::default() }),
                ..BenchConfig::default()
            };
            let cores = Cores {
                service: vec![placed.cores[0]; *applications],
                generator: vec![placed.cores[1]],
                spare: Vec::new(),
                shared: placed.short.is_some(),
            };
            let mut bench = MemBench::start_on(config, cores, Ok)?;
            let rows = at * self.modes.len()..(at + 1) * self.modes.len();
            table.measure(rows, effort, &mut |row, run| self.measure(&mut bench, row, run, effort))?;
            if table.interrupted {
                break;
            }
        }
        Ok(table)
    }

    fn measure(&self, bench: &mut MemBench, row: usize, run: u32, effort: &Effort<'_>) -> Result<Observed, BenchError> {
        let mode = &self.modes[row % self.modes.len()];
        let (load, offered_qps) = (Load::Rate { qps: self.per_second }, Some(self.per_second as f64));
        let (warm_up, window, stop) = (effort.warm_up, effort.window, effort.stop);
        let found = bench.run(&Run { mode, load, offered_qps, run, warm_up, window, stop })?;
        Ok(Observed {
            values: vec![
                Some(found.qps / 1e3),
                found.p50_latency_us,
                found.p99_latency_us,
                found.cpu_percent.map(|percent| percent * bench.workers() as f64),
            ],
            load: Some(Standing::of_runs(load, std::slice::from_ref(&found))),
            verdict: found.verdict,
        })
    }

    fn table(&self, placed: &Placed, effort: &Effort<'_>) -> CaseTable {
        let measures = [
            Measure { name: "kqps", help: "requests answered, in thousands a second" },
            Measure { name: "p50_us", help: "their median latency" },
            Measure { name: "p99_us", help: "their 99th percentile" },
            Measure { name: "cpu_percent", help: "time of all threads that serve or deliver, of their one core" },
        ];
        let title = "A crowd on one core: applications that each busy poll a queue of their own, and the scheduler arbitrates \
                     between them, against a group of one that polls all queues.";
        let mut table = CaseTable::new("crowd", title, &["applications", "mode"], &measures);
        table.set_up = format!("nic mem, {} requests/s over all applications; {}", self.per_second, effort.words());
        for applications in &self.applications {
            for mode in &self.modes {
                let row = table.row(vec![applications.to_string(), mode.name().to_owned()]);
                row.short_of_cores.clone_from(&placed.short);
            }
        }
        table.notes.push(
            "The group's poller is on the applications' core, a thread among threads: what it saves is their polling in vain."
                .to_owned(),
        );
        table
    }
}
