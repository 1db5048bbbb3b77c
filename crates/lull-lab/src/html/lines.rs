//! Draws a line for each test case over the load.

use super::palette::look;
use super::scale::Scale;
use super::svg::{Frame, axes, escape, line, picture, spread, text};
use crate::cell::Load;
use crate::stats::Estimate;

/// Distance between labels, in user units.
const LABEL_GAP: f64 = 14.0;

/// Width of one character of a label, in user units: a little more than fonts need.
const CHARACTER: f64 = 6.9;

/// A value at a load.
#[derive(Clone, Debug)]
pub struct Point {
    /// Place on the x axis.
    pub x: f64,
    /// Value and interval.
    pub y: Estimate,
    /// The load of its cell.
    pub load: Load,
    /// Whether the cell counts. One that does not is drawn hollow.
    pub counts: bool,
    /// The tooltip.
    pub tip: String,
}

/// One test case.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name.
    pub testcase: String,
    /// The label, if it says more than the name.
    pub label: String,
    /// Its points, by rising load; `MAX` last.
    pub points: Vec<Point>,
}

/// The titles of a chart and its axes.
#[derive(Clone, Debug)]
pub struct Titles {
    /// A description of the picture, for those who cannot see it.
    pub what: String,
    /// The title below the x axis, with the unit.
    pub x: String,
    /// The title above the y axis, with the unit.
    pub y: String,
    /// The text appended to each tick of the x axis.
    pub x_unit: &'static str,
}

/// Draws the lines, on a logarithmic y axis if `log`.
pub fn draw(series: &[Series], titles: &Titles, log: bool) -> String {
    let widest = series.iter().map(|s| s.label.chars().count()).max().unwrap_or(0);
    let left = 42.0 + CHARACTER * widest as f64;
    let frame = Frame { width: 630.0, height: 390.0, left, right: 590.0, top: 34.0, bottom: 346.0 };
    let all = || series.iter().flat_map(|s| &s.points);
    let x = Scale::close(all().map(|p| p.x), frame.left, frame.right);
    let heights = all().map(|p| p.y.value);
    let y = match log {
        true => Scale::log(heights, frame.bottom, frame.top),
        false => Scale::linear(heights, frame.bottom, frame.top),
    };
    let x_label = |tick: f64| super::svg::short(tick) + titles.x_unit;
    let mut parts = axes(&frame, &x, &titles.x, x_label, &y, &titles.y);
    let drawn: Vec<&Series> = series.iter().filter(|s| !s.points.is_empty()).collect();
    for s in &drawn {
        parts += &one(s, &frame, &x, &y);
    }
    parts += &labels(&drawn, &frame, &x, &y);
    picture(&frame, &titles.what, &parts)
}

fn one(series: &Series, frame: &Frame, x: &Scale, y: &Scale) -> String {
    let look = look(&series.testcase);
    let at = |p: &Point| (x.place(p.x), y.place(p.y.value));
    let mut out = format!("<g class=\"series {}\" data-s=\"{}\">", look.class(), escape(&series.testcase));
    for pair in series.points.windows(2) {
        let ((x1, y1), (x2, y2)) = (at(&pair[0]), at(&pair[1]));
        // The segment to MAX is drawn differently, because its end is a closed loop and the points before are open
        // loops.
        let class = if pair[1].load == Load::Max { "line tomax" } else { "line" };
        out += &line(x1, y1, x2, y2, class);
    }
    for point in &series.points {
        let (px, py) = at(point);
        if let Some(i) = point.y.interval {
            let inside = |v: f64| y.place(v).clamp(frame.top, frame.bottom);
            out += &line(px, inside(i.low), px, inside(i.high), "whisker");
        }
        let hollow = if point.counts { "" } else { " hollow" };
        out += &format!(
            "<path d=\"{}\" transform=\"translate({px:.1},{py:.1})\" class=\"mark{hollow}\" data-tip=\"{}\"/>",
            look.marker(),
            escape(&point.tip)
        );
    }
    out + "</g>"
}

/// Places the names at the left, each with a line to the first point: at low load the modes differ most, and at MAX
/// they meet.
fn labels(series: &[&Series], frame: &Frame, x: &Scale, y: &Scale) -> String {
    let ends: Vec<(f64, f64)> =
        series.iter().filter_map(|s| s.points.first()).map(|p| (x.place(p.x), y.place(p.y.value))).collect();
    let wanted: Vec<f64> = ends.iter().map(|e| e.1).collect();
    let places = spread(&wanted, LABEL_GAP, frame.top, frame.bottom);
    let mut out = String::new();
    for ((s, end), place) in series.iter().zip(&ends).zip(&places) {
        let look = look(&s.testcase);
        let side = frame.left - 20.0;
        out += &format!("<g class=\"series {}\" data-s=\"{}\">", look.class(), escape(&s.testcase));
        out += &line(end.0 - 5.0, end.1, side + 7.0, *place, "leader");
        out += &format!("<path d=\"{}\" transform=\"translate({side:.1},{place:.1})\" class=\"mark\"/>", look.marker());
        out += &text(side - 8.0, place + 3.8, "label", "end", &s.label);
        out += "</g>";
    }
    out
}
