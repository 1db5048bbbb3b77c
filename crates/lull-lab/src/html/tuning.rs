//! The page of a search: the answer in words, the frontier of latency against CPU, what happens if the load changes,
//! and every setting that was tried.

use lull_sim::WorldFile;
use lull_sim::tune::{Answer, Elsewhere, Figures, Tried, us_text};
use lull_slo::Statistic;
use lull_units::rate_text;

use super::lines::{self, Point, Series, Titles};
use super::palette::look;
use super::scatter::{self, Dot, Extras};
use super::svg::escape;
use super::{both_scales, figure, page};
use crate::cell::Load;
use crate::stats::{self, Estimate};
use crate::tuning::words::{
    against_base, elsewhere, lines as lines_to_type, notes, objective_text, reasons, refusal, standing, steady,
};

/// If two points are nearer to each other than both of these, only one of them has its name beside it.
const NEAR_CPU_PERCENT: f64 = 6.0;
const NEAR_RATIO: f64 = 1.35;

/// Returns the page.
pub fn render(file: &WorldFile, answer: &Answer, dev: &str, command: &str) -> String {
    page("lull tune", &(head(file, answer, dev, command) + &charts(answer) + &table(answer)))
}

fn head(file: &WorldFile, answer: &Answer, dev: &str, command: &str) -> String {
    let title = match &answer.recommended {
        Some(recommended) => format!("{} for {}", recommended.setting, objective_text(&answer.objective)),
        None => format!("Nothing for {}", objective_text(&answer.objective)),
    };
    let words: Vec<String> = match &answer.recommended {
        Some(_) => against_base(answer).into_iter().chain(reasons(answer)).chain(notes(file, answer)).collect(),
        None => vec![refusal(answer) + "."],
    };
    let words: String = words.iter().map(|sentence| format!("<p>{}</p>", escape(&capital(sentence)))).collect();
    let typed: String = lines_to_type(file, answer, dev)
        .into_iter()
        .map(|(line, note)| if note.is_empty() { line + "\n" } else { format!("{line}   # {note}\n") })
        .collect();
    let typed = if typed.is_empty() { typed } else { format!("<pre>{}</pre>", escape(typed.trim_end())) };
    format!(
        "<header>\n<h1>{}</h1>\n<p class=\"machine\">SIMULATED {}</p>\n<p class=\"machine\">{}</p>\n{typed}</header>\n\
         <section class=\"words\"><h2>In words</h2>{words}<p class=\"machine\">Repeated by: {}</p></section>\n",
        escape(&title),
        escape(&file.describe()),
        escape(&file.provenance()),
        escape(command),
    )
}

fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

fn charts(answer: &Answer) -> String {
    let first = answer.objective.slo.first().statistic;
    let frontier = answer.frontier();
    let place = |tried: &Tried| (tried.mean(|run| run.cpu_percent), tried.mean(|run| run.latency_us(first)));
    let recommended = answer.recommended.as_ref().map(|tried| tried.setting.to_string());
    let named = named(answer, &frontier);
    let dots = answer.tried.iter().filter(|t| t.carries()).filter_map(|tried| {
        let name = tried.setting.to_string();
        let named = named.contains(&name);
        Some(Dot {
            // The mode's name determines colour and mark.
            label: if named { name.clone() } else { String::new() },
            testcase: name,
            cpu: estimate(tried, |run| run.cpu_percent)?,
            latency: estimate(tried, |run| run.latency_us(first))?,
            counts: tried.excess(&answer.objective) < 1.0,
            tip: tip(answer, tried),
        })
    });
    let dots: Vec<Dot> = dots.collect();
    if dots.is_empty() {
        return String::new();
    }
    let extras = Extras {
        y_title: format!("{first} latency, µs"),
        frontier: frontier.iter().map(|tried| place(tried)).collect(),
        limits: (Some(answer.objective.slo.first().limit_us()), answer.objective.cpu_max_percent),
        ringed: recommended,
    };
    let what = format!("{first} latency against CPU, a point for each setting");
    let both = both_scales(|log| scatter::draw(&dots, &what, &extras, log));
    let mut out = String::from(
        "<nav class=\"legend\" aria-label=\"scale\"><button class=\"scale\" data-scale>linear scale</button></nav>\n\
         <div class=\"charts\">\n",
    );
    let caption = "Lower left is better; the stepped line is the frontier. Ringed: recommended. Hollow: misses the \
    objective. Left out: what does not carry the load.";
    let title = format!("What {first} costs, at {}", rate_text(answer.objective.per_s));
    out += &figure(&title, &both, caption);
    out += &moved(answer, first);
    out + "</div>\n"
}

/// Returns the points that have their names beside them: the recommendation, the modes without a timeout, and those of
/// the frontier that are not too near to another.
fn named(answer: &Answer, frontier: &[&Tried]) -> Vec<String> {
    let first = answer.objective.slo.first().statistic;
    let place = |tried: &Tried| (tried.mean(|run| run.cpu_percent), tried.mean(|run| run.latency_us(first)));
    let mut named: Vec<&Tried> = answer.recommended.iter().collect();
    let plain = |tried: &&Tried| tried.setting.family.is_none() && !tried.setting.is_refined();
    let modes = answer.tried.iter().filter(plain).filter(|tried| tried.carries());
    named.extend(modes);
    for tried in frontier {
        let (cpu, latency) = place(tried);
        let near = |other: &&Tried| {
            let (other_cpu, other_latency) = place(other);
            (cpu - other_cpu).abs() < NEAR_CPU_PERCENT
                && latency.max(other_latency) < NEAR_RATIO * latency.min(other_latency)
        };
        if !named.iter().any(near) {
            named.push(tried);
        }
    }
    named.iter().map(|tried| tried.setting.to_string()).collect()
}

/// Draws the recommendation and base over the load.
fn moved(answer: &Answer, first: Statistic) -> String {
    let Some(recommended) = &answer.recommended else { return String::new() };
    let latency_only = answer.objective.latency_only();
    let points = |here: &Tried, there: &dyn Fn(&Elsewhere) -> Tried| {
        let mut all: Vec<Tried> = answer.elsewhere.iter().map(there).collect();
        all.push(here.clone());
        all.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
        let point = |tried: &Tried| {
            Some(Point {
                x: tried.per_s / 1e3,
                y: estimate(tried, |run| run.latency_us(first))?,
                load: Load::Rate { qps: tried.per_s as u64 },
                counts: tried.carries() && tried.excess(&latency_only) < 1.0,
                tip: tip(answer, tried),
            })
        };
        all.iter().filter_map(point).collect::<Vec<_>>()
    };
    let series = |here: &Tried, there: &dyn Fn(&Elsewhere) -> Tried| {
        let name = here.setting.to_string();
        Series { label: name.clone(), testcase: name, points: points(here, there) }
    };
    let mut all = vec![series(recommended, &|at| at.recommended.clone())];
    if recommended.setting != answer.base.setting {
        all.push(series(&answer.base, &|at| at.base.clone()));
    }
    let titles = Titles {
        what: format!("{first} latency over the load, for the recommendation and base"),
        x: "requests per second, thousands".to_owned(),
        y: format!("{first} latency, µs"),
        x_unit: "",
    };
    let both = both_scales(|log| lines::draw(&all, &titles, log));
    let sentences = answer.elsewhere.iter().map(|at| elsewhere(answer, at)).chain([steady(answer)]);
    let sentences: Vec<String> = sentences.collect();
    figure("If the load halves or doubles", &both, &(sentences.join(" ") + " Hollow: misses the objective there."))
}

fn estimate(tried: &Tried, of: impl Fn(&Figures) -> f64) -> Option<Estimate> {
    stats::mean(&tried.runs.iter().map(of).collect::<Vec<_>>())
}

fn tip(answer: &Answer, tried: &Tried) -> String {
    let us = |of: fn(&Figures) -> f64| us_text(tried.mean(of));
    format!(
        "{} at {}\naverage {}, p50 {}\np95 {}, p99 {}\nCPU {:.1} %, {} seeds\n{}",
        tried.setting,
        rate_text(tried.per_s),
        us(|run| run.avg_us),
        us(|run| run.p50_us),
        us(|run| run.p95_us),
        us(|run| run.p99_us),
        tried.mean(|run| run.cpu_percent),
        tried.runs.len(),
        if tried.per_s == answer.objective.per_s { standing(answer, tried) } else { String::new() }
    )
}

fn table(answer: &Answer) -> String {
    let mut tried: Vec<&Tried> = answer.tried.iter().collect();
    let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
    tried.sort_by(|a, b| cpu(a).total_cmp(&cpu(b)));
    let mut out = String::from(
        "<section><h2>All settings tried</h2>\n<div class=\"wide\"><table><thead><tr><th>setting</th><th>CPU, %</th>\
         <th>average</th><th>p50</th><th>p95</th><th>p99</th><th>answered, \
         /s</th><th>seeds</th><th>objective</th></tr></thead>\
         <tbody>",
    );
    for one in tried {
        let class = look(one.setting.mode.name()).class();
        let name = escape(&one.setting.to_string());
        let cells = match one.runs.is_empty() {
            true => "<td></td>".repeat(6),
            false => {
                let us = |of: fn(&Figures) -> f64| format!("<td>{}</td>", us_text(one.mean(of)));
                format!("<td>{:.1}</td>", cpu(one))
                    + &us(|run| run.avg_us)
                    + &us(|run| run.p50_us)
                    + &us(|run| run.p95_us)
                    + &us(|run| run.p99_us)
                    + &format!("<td>{:.0}</td>", one.mean(|run| run.per_s))
            }
        };
        out += &format!(
            "<tr><th class=\"{class}\"><i class=\"dot\"></i><span class=\"name\">{name}</span></th>{cells}<td>{}</td>\
             <td class=\"verdict\">{}</td></tr>",
            one.runs.len(),
            escape(&standing(answer, one))
        );
    }
    out + "</tbody></table></div>\n<p class=\"caption\">Means over seeds. Whiskers of the charts: 95 % intervals over \
    seeds.</p></section>\n"
}
