//! The page of a controller's traces: the first trace over time, and the score of all.

use lull_sim::control::Slice;
use lull_sim::tune::us_text;

use super::lines::{self, Point, Series, Titles};
use super::svg::escape;
use super::{both_scales, figure, page};
use crate::cell::Load;
use crate::control::{Proof, Proven, per_s, phases};
use crate::stats::Estimate;

/// The number of traces whose phases the page lists.
const LISTED_MAX: usize = 100;

/// Returns the page.
pub fn render(proof: &Proof<'_>) -> String {
    let body = head(proof) + &proof.proven.first().map_or(String::new(), |proven| charts(proof, proven)) + &list(proof);
    page("lull sim control", &body)
}

fn head(proof: &Proof<'_>) -> String {
    let file = proof.proving.file;
    format!(
        "<header>\n<h1>{} under changing load</h1>\n<p class=\"machine\">SIMULATED {}</p>\n<p class=\"machine\">{}</p>\n\
         <pre>{}</pre></header>\n<section class=\"words\"><h2>In words</h2><p>{}</p><p>{}</p></section>\n",
        escape(&proof.proving.slo.to_string()),
        escape(&file.describe()),
        escape(&file.provenance()),
        escape(proof.command),
        escape(&proof.subject()),
        escape(&proof.words()),
    )
}

/// A line over time.
fn line(name: &str, proven: &Proven, of: impl Fn(&Slice) -> Option<f64>) -> Series {
    let point = |slice: &Slice| {
        let value = of(slice)?;
        let standing = slice.standing.map_or_else(String::new, |standing| standing.to_string());
        let (s, load) = (slice.end_ns as f64 / 1e9, &proven.trace.phases[slice.phase]);
        Some(Point {
            x: s,
            y: Estimate::exact(value),
            load: Load::Rate { qps: per_s(slice) as u64 },
            counts: true,
            tip: format!("{name}: {value:.1} at {s:.2} s\n{load}\n{standing}"),
        })
    };
    let points = proven.score.run.slices.iter().filter_map(point).collect();
    Series { testcase: name.to_owned(), label: name.to_owned(), points }
}

fn charts(proof: &Proof<'_>, proven: &Proven) -> String {
    let bound = proof.proving.slo.first();
    let titles = |what: &str, y: &str| Titles {
        what: format!("{what} over time"),
        x: "seconds".to_owned(),
        y: y.to_owned(),
        x_unit: "",
    };
    let latency = [
        line("base", proven, |_| Some(bound.limit_us())),
        line("suspend", proven, |slice| {
            (slice.latency.answers > 0).then(|| slice.latency.ns(bound.statistic) as f64 / 1e3)
        }),
    ];
    let named = |series: &[Series], names: &[&str]| -> Vec<Series> {
        series.iter().zip(names).map(|(one, name)| Series { label: (*name).to_owned(), ..one.clone() }).collect()
    };
    let latency = named(&latency, &["limit", "latency"]);
    let y = format!("{} latency, µs", bound.statistic);
    let both = both_scales(|log| lines::draw(&latency, &titles("latency", &y), log));
    let phases: Vec<String> = proven.trace.phases.iter().map(ToString::to_string).collect();
    let mut out = "<div class=\"charts\">\n".to_owned();
    out += &figure(&format!("{bound}, seed {}", proven.seed), &both, &format!("Load: {}.", phases.join("; ")));
    let queues = proven.score.run.slices.first().map_or(0, |slice| slice.timeouts_ns.len());
    let timeouts: Vec<Series> = (0..queues.min(8))
        .map(|queue| {
            let name = format!("queue {queue}");
            line(&name, proven, |slice| slice.timeouts_ns.get(queue).map(|ns| *ns as f64 / 1e3))
        })
        .collect();
    let picture = lines::draw(&timeouts, &titles("timeouts", "gro_flush_timeout, µs"), false);
    out += &figure("What the controller chose", &picture, "0: the queue's interrupt alone.");
    let load = named(&[line("defer", proven, |slice| Some(per_s(slice)))], &["answers"]);
    out += &figure("Load", &lines::draw(&load, &titles("load", "answers per second"), false), "");
    let cpu = named(&[line("fullbusy", proven, |slice| Some(slice.busy_percent))], &["CPU"]);
    let picture = lines::draw(&cpu, &titles("CPU", "time not idle, %"), false);
    out += &figure("CPU", &picture, "Charged or not: accounting does not see interrupts that come out of idle.");
    out + "</div>\n"
}

fn list(proof: &Proof<'_>) -> String {
    let all: String = proof.proven.iter().take(LISTED_MAX).map(phases).collect();
    let more = proof.proven.len().saturating_sub(LISTED_MAX);
    let more = if more > 0 { format!("and {more} more traces (--json has them)\n") } else { String::new() };
    let limit = us_text(proof.proving.slo.first().limit_us());
    format!(
        "<section><h2>All phases</h2>\n<pre>{}{more}</pre>\n<p class=\"caption\">Judged are windows of 1,000 answers or \
         more, 2 s after a phase began, in which the best fixed setting stayed below {limit}.</p></section>\n",
        escape(&all)
    )
}
