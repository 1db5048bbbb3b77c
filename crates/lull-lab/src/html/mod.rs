//! The report as one page: charts, words and table. Nothing is loaded from elsewhere. Without scripts only tooltips and
//! switches are missing.
//!
//! | module | holds |
//! | --- | --- |
//! | [`narrate()`] | what the cells show, in words |
//! | `figures` | what each chart draws |
//! | `lines`, `bars`, `scatter`, `ratios` | the charts |
//! | `scale`, `svg`, `palette` | axes, text and colour |
//! | `rows` | the table |
//! | [`case`] | the page of a case |
//! | [`published`] | the pages of published tables, simulated |
//! | [`tuning`] | the page of a search for settings |
//! | [`control`] | the page of a controller under changing load |

mod bars;
pub mod case;
pub mod control;
mod figures;
mod lines;
mod narrate;
mod palette;
pub mod published;
mod ratios;
mod rows;
mod scale;
mod scatter;
mod svg;
pub mod tuning;

use std::io;
use std::path::Path;

use self::figures::LoadAxis;
use self::svg::escape;
use crate::cell::compare::Metric;
use crate::cell::{CellSummary, Load, Report};
use crate::csv::atomic;

pub use narrate::narrate;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page. It replaces the file whole or not at all.
///
/// # Errors
///
/// This fails for the same reasons as [`atomic::write`].
pub fn write(path: &Path, report: &Report) -> io::Result<()> {
    atomic::write(path, render(report).as_bytes())
}

/// Returns the page.
pub fn render(report: &Report) -> String {
    page("lull compare", &(head(report) + &charts(report) + &table(report)))
}

/// Puts a page with style and script around its body.
fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{}{STYLE}</style>\n</head>\n<body>\n{body}<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        palette::css(),
    )
}

fn head(report: &Report) -> String {
    let stopped =
        report.stopped().map_or(String::new(), |s| format!("<p class=\"stopped\">This comparison was {s}.</p>"));
    let notes: String = report.notes.iter().map(|note| format!("<p>{}</p>", escape(note))).collect();
    format!(
        "<header>\n<h1>IRQ delivery modes, compared</h1>\n<p class=\"machine\">{}</p>\n\
         <p class=\"machine\">{}</p>\n\
         <pre>{}</pre>\n{stopped}</header>\n<section class=\"words\"><h2>In words</h2><p>{}</p>{notes}</section>\n",
        escape(&report.machine.to_string()),
        escape(&report.set_up()),
        escape(&report.command),
        escape(&narrate(&report.cells)),
    )
}

fn charts(report: &Report) -> String {
    if report.cells.is_empty() {
        return String::new();
    }
    let axis = LoadAxis::of(report);
    let mut out = legend(report) + "<div class=\"charts\">\n";
    for (metric, title, unit) in [
        (Metric::Avg, "Average latency against load", "average latency, µs"),
        (Metric::P99, "p99 latency against load", "p99 latency, µs"),
    ] {
        let series = figures::series(report, metric, axis);
        let both = both_scales(|log| lines::draw(&series, &axis.titles(unit), log));
        out += &figure(title, &both, "");
    }
    let cpu = figures::series(report, Metric::Cpu, axis);
    out += &figure("CPU against load", &lines::draw(&cpu, &axis.titles("server CPU, %"), false), "");
    let bars = figures::bars(report);
    if !bars.is_empty() {
        let published = bars.iter().any(|b| b.published_qps.is_some());
        let caption = if published { "Upright mark: the published ratio to base, on this machine's base." } else { "" };
        out += &figure("Throughput at MAX", &bars::draw(&bars, "throughput at MAX, a bar for each mode"), caption);
    }
    if let Some((load, dots)) = figures::dots(report) {
        let what = "p99 latency against CPU, a point for each mode";
        let extras = scatter::Extras { y_title: "p99 latency, µs".to_owned(), ..scatter::Extras::default() };
        let both = both_scales(|log| scatter::draw(&dots, what, &extras, log));
        out += &figure(&format!("What latency costs, at {load}"), &both, "Lower left is better.");
    }
    let ratios = figures::ratios(report);
    if let Some((load, ratios)) = ratios {
        let caption = if ratios.iter().any(|r| r.published.iter().any(Option::is_some)) {
            "Run by run, with interval. Upright mark: published, interpolated at the same share of base's maximum."
        } else {
            "Run by run, with interval."
        };
        out += &figure(&format!("Against base, at {load}"), &ratios::draw(&ratios), caption);
    }
    out + "</div>\n" + &caption(report)
}

/// Returns a picture on both scales. The page shows one of them.
fn both_scales(draw: impl Fn(bool) -> String) -> String {
    format!("<div class=\"log\">{}</div><div class=\"linear\">{}</div>", draw(true), draw(false))
}

fn figure(title: &str, picture: &str, caption: &str) -> String {
    let caption = if caption.is_empty() { String::new() } else { format!("<p>{}</p>", escape(caption)) };
    format!("<figure><figcaption>{}</figcaption>{picture}{caption}</figure>\n", escape(title))
}

fn legend(report: &Report) -> String {
    let mut out = String::from("<nav class=\"legend\" aria-label=\"modes\">");
    for mode in figures::modes(report) {
        let look = palette::look(&mode);
        out += &format!(
            "<button class=\"{}\" data-toggle=\"{mode}\" aria-pressed=\"true\"><svg viewBox=\"-6 -6 12 12\">\
             <path d=\"{}\" class=\"mark\"/></svg>{mode}</button>",
            look.class(),
            look.marker(),
            mode = escape(&mode),
        );
    }
    out + "<button class=\"scale\" data-scale>linear scale</button></nav>\n"
}

/// Returns what the reader of the charts has to know, above all what they leave out.
fn caption(report: &Report) -> String {
    let off: Vec<String> = report
        .cells
        .iter()
        .filter(|c| !c.verdict.shows_mode())
        .map(|c| format!("{} at {}", c.testcase, c.load))
        .collect();
    let mut text = String::from("Whiskers: confidence intervals over runs.");
    if report.cells.iter().any(|c| c.load == Load::Max) {
        text += " Dashed: the way to MAX (closed loop).";
    }
    let hollow = |c: &CellSummary| c.verdict.shows_mode() && !c.standing.counts();
    if report.cells.iter().any(hollow) {
        text += " Hollow: generator-bound, generator-late or unserved, which says little of the server.";
    }
    if !off.is_empty() {
        text += &format!(" Left out of the lines, since not in force: {}.", off.join(", "));
    }
    format!("<p class=\"caption\">{}</p>\n", escape(&text))
}

fn table(report: &Report) -> String {
    format!(
        "<section><h2>All cells</h2>\n<div class=\"wide\">{}</div>\n<p class=\"caption\">Latencies are medians over runs, \
         the rest means; ± is the farther end of the confidence interval (95 %; for medians of fewer than six runs their \
         range). {} Counts are totals of one \
         window; lag is the 99th percentile of how late the generator sent, in µs.</p></section>\n",
        rows::table(report),
        report.cycles_by.sentence()
    )
}
