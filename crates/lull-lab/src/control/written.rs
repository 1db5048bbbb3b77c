//! Writes the results of the traces as a table, as data and as a page.

use std::fmt::Write as _;

use serde_json::json;

use super::{Proof, Proven};
use crate::document::{Document, pretty};

impl Document for Proof<'_> {
    /// Each slice of each controlled run is a row.
    fn csv(&self) -> String {
        let mut text = "seed,phase,load,begin_s,end_s,answers,avg_us,p50_us,p95_us,p99_us,cpu_percent,busy_percent,\
                        interrupts,polls,timeouts_us,controller\n"
            .to_owned();
        let us = |ns: u64| ns as f64 / 1e3;
        for proven in &self.proven {
            for slice in &proven.score.run.slices {
                let latency = &slice.latency;
                let timeouts: Vec<String> = slice.timeouts_ns.iter().map(|ns| us(*ns).to_string()).collect();
                let _ = writeln!(
                    text,
                    "{},{},{},{:.2},{:.2},{},{:.1},{:.1},{:.1},{:.1},{:.2},{:.2},{},{},{},{}",
                    proven.seed,
                    slice.phase,
                    proven.trace.phases[slice.phase],
                    slice.begin_ns as f64 / 1e9,
                    slice.end_ns as f64 / 1e9,
                    latency.answers,
                    us(latency.avg_ns),
                    us(latency.p50_ns),
                    us(latency.p95_ns),
                    us(latency.p99_ns),
                    slice.cpu_percent,
                    slice.busy_percent,
                    slice.irqs,
                    slice.polls,
                    timeouts.join(" "),
                    slice.standing.map_or_else(String::new, |standing| standing.to_string()),
                );
            }
        }
        text
    }

    fn json(&self) -> std::io::Result<String> {
        let phases = |proven: &Proven| -> Vec<serde_json::Value> {
            let pairs = proven.trace.phases.iter().zip(&proven.score.phases);
            let phase = pairs.map(|(phase, score)| {
                json!({
                    "load": phase.to_string(),
                    "best_fixed": score.best,
                    "best_fixed_meets_it": score.reachable,
                    "windows": score.judged,
                    "busy_percent": score.busy_percent.0,
                    "best_fixed_busy_percent": score.busy_percent.1,
                })
            });
            phase.collect()
        };
        let missed = |proven: &Proven| -> Vec<serde_json::Value> {
            let one = |missed: &lull_sim::control::Missed| {
                json!({
                    "phase": missed.phase,
                    "end_s": missed.end_ns as f64 / 1e9,
                    "us": missed.ns.0 as f64 / 1e3,
                    "best_fixed_us": missed.ns.1 as f64 / 1e3,
                })
            };
            proven.score.missed.iter().map(one).collect()
        };
        let trace = |proven: &Proven| {
            json!({
                "seed": proven.seed,
                "changes": proven.score.run.changes,
                "phases": phases(proven),
                "missed": missed(proven),
            })
        };
        let (judged, missed_windows) = self.windows();
        pretty(&json!({
            "command": self.command,
            "world": self.proving.file.describe(),
            "objective": self.proving.slo.to_string(),
            "mode": self.proving.mode.to_string(),
            "windows": judged,
            "missed": missed_windows,
            "cpu_ratio": self.cpu_ratio(),
            "traces": self.proven.iter().map(trace).collect::<Vec<_>>(),
        }))
    }

    fn html(&self) -> String {
        crate::html::control::render(self)
    }
}
