//! The results of `lull sim control` for people: what a controller did with a changing load, and how it compares with
//! the best fixed setting.

mod written;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_core::Mode;
use lull_sim::WorldFile;
use lull_sim::control::{Score, ScoreError, Slice, Trace, score};
use lull_sim::tune::us_text;
use lull_slo::Slo;

use crate::table::grid::{Align, Grid};

/// What is run: the traces of consecutive seeds.
#[derive(Debug)]
pub struct Proving<'a> {
    /// The world.
    pub file: &'a WorldFile,
    /// The mode that the controller begins with and falls back to.
    pub mode: &'a Mode,
    /// The objective.
    pub slo: &'a Slo,
    /// Requests per second that the service answers at most, in base.
    pub max_per_s: f64,
    /// The first seed.
    pub seed: u64,
    /// The number of traces.
    pub traces: u64,
}

/// A trace with its score.
#[derive(Clone, Debug)]
pub struct Proven {
    /// Its seed.
    pub seed: u64,
    /// The load.
    pub trace: Trace,
    /// Its score.
    pub score: Score,
}

/// The traces that were run, as a document.
#[derive(Debug)]
pub struct Proof<'a> {
    /// The options with which they were run.
    pub proving: &'a Proving<'a>,
    /// The traces, by seed. There are fewer than asked for if it was stopped.
    pub proven: Vec<Proven>,
    /// The command that repeats it.
    pub command: &'a str,
}

/// Runs the traces, spread over threads. `done` is called for each finished trace.
///
/// # Errors
///
/// This returns the error of the first trace that failed.
pub fn prove(
    proving: &Proving<'_>,
    threads: usize,
    stop: &AtomicBool,
    done: impl Fn(&Proven) + Sync,
) -> Result<Vec<Proven>, ScoreError> {
    let next = AtomicU64::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= proving.traces {
                return;
            }
            let seed = proving.seed.wrapping_add(nth);
            let trace = Trace::random(seed, proving.max_per_s, proving.file.queues);
            let result = score(proving.file, proving.mode, proving.slo, &trace, seed);
            let result = result.map(|score| Proven { seed, trace, score });
            if let Ok(proven) = &result {
                done(proven);
            }
            // A thread that panicked has left only whole entries.
            results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..(threads as u64).min(proving.traces) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut proven = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    proven.sort_by_key(|proven| proven.seed);
    Ok(proven)
}

impl Proof<'_> {
    /// Returns the number of windows that were judged, and of those that were missed.
    pub fn windows(&self) -> (usize, usize) {
        let sum = |of: fn(&Score) -> usize| self.proven.iter().map(|proven| of(&proven.score)).sum();
        (sum(Score::judged), sum(|score| score.missed.len()))
    }

    /// Returns the ratio of the CPU to that of the best fixed settings, over the phases in which these met the
    /// objective, or `None` if they never did.
    pub fn cpu_ratio(&self) -> Option<f64> {
        let reachable = || self.proven.iter().flat_map(|proven| &proven.score.phases).filter(|phase| phase.reachable);
        let ours: f64 = reachable().map(|phase| phase.busy_percent.0).sum();
        let best: f64 = reachable().map(|phase| phase.busy_percent.1).sum();
        reachable().next().map(|_| ours / best.max(f64::MIN_POSITIVE))
    }

    /// Whether the objective was met in 99 % of the judged windows at no more than 1.15 times the CPU. If no fixed
    /// setting met it, there is no CPU time to compare with.
    pub fn holds(&self) -> bool {
        let (judged, missed) = self.windows();
        missed * 100 <= judged && self.cpu_ratio().is_some_and(|ratio| ratio <= CPU_RATIO_MAX)
    }

    /// Returns the score in one or two sentences.
    pub fn words(&self) -> String {
        let (judged, missed) = self.windows();
        let phases = || self.proven.iter().flat_map(|proven| &proven.score.phases);
        let reachable = phases().filter(|phase| phase.reachable).count();
        let dear = phases()
            .filter(|phase| phase.reachable && phase.busy_percent.0 > CPU_RATIO_MAX * phase.busy_percent.1)
            .count();
        let cpu = match self.cpu_ratio() {
            Some(ratio) => format!(
                "CPU is {ratio:.3} times that of the best fixed setting over {reachable} phases in which one met it; {dear} of \
                 these took more than {CPU_RATIO_MAX} times. In {} phases no fixed setting met it.",
                phases().count() - reachable
            ),
            None => "No phase was reachable: in none did a fixed setting meet it in every window, and there is no CPU to compare \
                     with."
                .to_owned(),
        };
        format!(
            "Of {judged} judged windows {missed} missed {} ({:.2} %). {cpu} The controller changed settings {} times in {:.0} s.",
            self.proving.slo,
            100.0 * missed as f64 / judged.max(1) as f64,
            self.proven.iter().map(|proven| proven.score.run.changes).sum::<u64>(),
            self.proven.iter().map(|proven| proven.trace.length_ns()).sum::<u64>() as f64 / 1e9,
        )
    }

    /// Returns what was run, in one sentence.
    pub fn subject(&self) -> String {
        let Proving { mode, slo, max_per_s, .. } = self.proving;
        format!(
            "A controller for {slo} that begins with {mode}, on load that changes at random, of at most 75 % of the {} \
             that the service answers.",
            lull_units::rate_text(max_per_s.round())
        )
    }
}

/// The largest ratio of a controller's CPU to that of the best fixed setting with which it still holds.
const CPU_RATIO_MAX: f64 = 1.15;

/// Returns the score of a trace, phase by phase, with every window that was missed.
pub fn phases(proven: &Proven) -> String {
    let mut out = format!("seed {}\n", proven.seed);
    let mut grid = Grid::default();
    for (head, align) in [
        ("phase", Align::Left),
        ("best", Align::Left),
        ("windows", Align::Right),
        ("missed", Align::Right),
        ("busy_percent", Align::Right),
        ("best_percent", Align::Right),
        ("ratio", Align::Right),
    ] {
        grid.column(head, align);
    }
    for (index, (phase, score)) in proven.trace.phases.iter().zip(&proven.score.phases).enumerate() {
        let (ours, best) = score.busy_percent;
        grid.row(vec![
            phase.to_string(),
            if score.reachable { score.best.clone() } else { format!("{} (misses)", score.best) },
            score.judged.to_string(),
            proven.score.missed.iter().filter(|missed| missed.phase == index).count().to_string(),
            format!("{ours:.2}"),
            format!("{best:.2}"),
            format!("{:.3}", ours / best.max(f64::MIN_POSITIVE)),
        ]);
    }
    out += &grid.to_string();
    for missed in &proven.score.missed {
        let us = |ns: u64| us_text(ns as f64 / 1e3);
        let _ = writeln!(
            out,
            "  missed at {:.2} s: {}, the fixed setting {}, timeouts {}",
            missed.end_ns as f64 / 1e9,
            us(missed.ns.0),
            us(missed.ns.1),
            timeouts_text(&missed.timeouts_ns)
        );
    }
    out
}

/// Returns the run of a trace, slice by slice.
pub fn timeline(proven: &Proven, slo: &Slo) -> String {
    let statistic = slo.first().statistic;
    let mut grid = Grid::default();
    for head in ["s", "answers/s"] {
        grid.column(head, Align::Right);
    }
    grid.column(statistic.to_string().as_str(), Align::Right);
    for head in ["CPU_percent", "busy_percent", "interrupts", "polls"] {
        grid.column(head, Align::Right);
    }
    grid.column("timeouts", Align::Left);
    grid.column("controller", Align::Left);
    grid.column("load", Align::Left);
    let mut phase = usize::MAX;
    for slice in &proven.score.run.slices {
        let begins = std::mem::replace(&mut phase, slice.phase) != slice.phase;
        grid.row(vec![
            format!("{:.2}", slice.end_ns as f64 / 1e9),
            format!("{:.0}", per_s(slice)),
            us_text(slice.latency.ns(statistic) as f64 / 1e3),
            format!("{:.1}", slice.cpu_percent),
            format!("{:.1}", slice.busy_percent),
            slice.irqs.to_string(),
            slice.polls.to_string(),
            timeouts_text(&slice.timeouts_ns),
            slice.standing.map_or_else(String::new, |standing| standing.to_string()),
            if begins { proven.trace.phases[slice.phase].to_string() } else { String::new() },
        ]);
    }
    grid.to_string()
}

/// Returns the answers per second of a slice.
pub(crate) fn per_s(slice: &Slice) -> f64 {
    slice.latency.answers as f64 * 1e9 / (slice.end_ns - slice.begin_ns).max(1) as f64
}

/// Formats the timeouts of queues: only one if all have the same. A timeout of 0 stands for the queue's interrupt.
fn timeouts_text(timeouts_ns: &[u64]) -> String {
    let text = |ns: &u64| if *ns == 0 { "interrupts".to_owned() } else { us_text(*ns as f64 / 1e3) };
    match timeouts_ns.split_first() {
        Some((first, rest)) if rest.iter().all(|ns| ns == first) => text(first),
        _ => timeouts_ns.iter().map(text).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use lull_sim::control::{PHASE_NS, Phase, PhaseScore, Shape, TraceRun};

    use super::*;
    use crate::document::Document;

    const WORLD: &str = "[machine]\ncores = 1\n[nic]\nspeed = \"10Gbit/s\"\n[network]\nlatency = \"20us\"\n\
                         [service]\nkind = \"epoll\"\nconnections = 2\nrequest_cost = \"6us\"\n[costs]\nprofile = \"round\"\n";

    #[test]
    fn where_no_phase_was_reachable_there_is_no_cpu_to_compare_with() {
        let file = WorldFile::parse("w.toml", WORLD).unwrap();
        let (mode, slo) = ("suspend20".parse().unwrap(), "p99<200us".parse().unwrap());
        let proving = Proving { file: &file, mode: &mode, slo: &slo, max_per_s: 50_000.0, seed: 1, traces: 1 };
        let score = |reachable| Score {
            run: TraceRun { slices: Vec::new(), changes: 0 },
            phases: vec![PhaseScore { best: "base".to_owned(), reachable, judged: 1, busy_percent: (22.0, 20.0) }],
            missed: Vec::new(),
        };
        let trace = Trace { phases: vec![Phase { shape: Shape::Steady, per_s: 1.0, length_ns: PHASE_NS }] };
        let proof = |reachable| Proof {
            proving: &proving,
            proven: vec![Proven { seed: 1, trace: trace.clone(), score: score(reachable) }],
            command: "lull sim control",
        };
        let of = proof(true);
        assert!(of.words().contains("CPU is 1.100 times") && of.holds(), "{}", of.words());
        let of = proof(false);
        assert!(of.words().contains("No phase was reachable") && !of.words().contains("0.000"), "{}", of.words());
        assert!(of.json().unwrap().contains("\"cpu_ratio\": null"), "{}", of.json().unwrap());
        assert!(!of.holds() && of.proven[0].score.cpu_ratio().is_none());
    }
}
