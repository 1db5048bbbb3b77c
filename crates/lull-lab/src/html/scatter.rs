//! Draws a latency against CPU, with a point for each test case, to show the CPU time that a low latency costs.

use super::palette::look;
use super::scale::Scale;
use super::svg::{Frame, axes, escape, line, picture, text};
use crate::stats::Estimate;

/// Height of a label and the mean width of one character, in user units.
const LABEL: (f64, f64) = (13.0, 6.9);

/// One test case.
#[derive(Clone, Debug)]
pub struct Dot {
    /// Its name.
    pub testcase: String,
    /// The label, if it says more than the name.
    pub label: String,
    /// CPU, in percent.
    pub cpu: Estimate,
    /// The latency that the y axis names, in microseconds.
    pub latency: Estimate,
    /// Whether the cell counts. One that does not is drawn hollow.
    pub counts: bool,
    /// The tooltip.
    pub tip: String,
}

/// The elements that are drawn besides the points.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// The title above the y axis, with the unit.
    pub y_title: String,
    /// A line through these places (CPU, latency), by rising CPU.
    pub frontier: Vec<(f64, f64)>,
    /// Limits of latency and CPU.
    pub limits: (Option<f64>, Option<f64>),
    /// The name of the point that gets a ring.
    pub ringed: Option<String>,
}

/// Draws the points, with latency on a logarithmic axis if `log`.
pub fn draw(dots: &[Dot], what: &str, extras: &Extras, log: bool) -> String {
    let frame = Frame { width: 630.0, height: 390.0, left: 18.0, right: 590.0, top: 34.0, bottom: 346.0 };
    let most = dots.iter().map(|d| d.cpu.value).fold(0.0, f64::max);
    // There is room at the right for the label of a mode that uses all CPU time.
    let x = Scale::between(0.0, (most * 1.16).max(1.0), frame.left, frame.right);
    let heights = dots.iter().map(|d| d.latency.value).chain(extras.limits.0);
    let y = match log {
        true => Scale::log(heights, frame.bottom, frame.top),
        false => Scale::linear(heights, frame.bottom, frame.top),
    };
    let mut parts = axes(&frame, &x, "server CPU, %", |tick| format!("{tick:.0}"), &y, &extras.y_title);
    parts += &limits(extras, &frame, &x, &y);
    let places: Vec<(f64, f64)> = dots.iter().map(|d| (x.place(d.cpu.value), y.place(d.latency.value))).collect();
    // A label may touch its own marker, and no other marker or whisker.
    let mut taken: Vec<Box4> = places.iter().map(|&(px, py)| Box4::around(px, py, 5.0)).collect();
    taken.extend(dots.iter().zip(&places).flat_map(|(dot, &at)| whiskers(dot, at, &x, &y, &frame)));
    for (i, (dot, &(px, py))) in dots.iter().zip(&places).enumerate() {
        let look = look(&dot.testcase);
        parts += &format!("<g class=\"series {}\" data-s=\"{}\">", look.class(), escape(&dot.testcase));
        for whisker in whiskers(dot, (px, py), &x, &y, &frame) {
            parts += &line(whisker.left, whisker.top, whisker.right, whisker.bottom, "whisker");
        }
        let hollow = if dot.counts { "" } else { " hollow" };
        parts += &format!(
            "<path d=\"{}\" transform=\"translate({px:.1},{py:.1})\" class=\"mark{hollow}\" data-tip=\"{}\"/>",
            look.marker(),
            escape(&dot.tip)
        );
        if extras.ringed.as_ref() == Some(&dot.testcase) {
            parts += &format!("<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"8\" class=\"ring\"/>");
        }
        if dot.label.is_empty() {
            parts += "</g>";
            continue;
        }
        let place = free_place(&dot.label, (px, py), i, &taken, &frame);
        if place.far {
            parts += &line(px, py, place.x, place.area.middle(), "leader");
        }
        parts += &text(place.x, place.area.bottom - 3.0, "label", place.anchor, &dot.label);
        taken.push(place.area);
        parts += "</g>";
    }
    picture(&frame, what, &parts)
}

/// Draws the frontier as steps, because no setting lies between two of its points, and the limits.
fn limits(extras: &Extras, frame: &Frame, x: &Scale, y: &Scale) -> String {
    let mut out = String::new();
    for pair in extras.frontier.windows(2) {
        let ((x1, y1), (x2, y2)) = ((x.place(pair[0].0), y.place(pair[0].1)), (x.place(pair[1].0), y.place(pair[1].1)));
        out += &line(x1, y1, x2, y1, "frontier");
        out += &line(x2, y1, x2, y2, "frontier");
    }
    if let Some(limit) = extras.limits.0 {
        let at = y.place(limit);
        out += &line(frame.left, at, frame.right, at, "limit");
        out += &text(frame.right - 4.0, at - 4.0, "label faint", "end", "objective");
    }
    if let Some(limit) = extras.limits.1 {
        let at = x.place(limit);
        if at <= frame.right {
            out += &line(at, frame.top, at, frame.bottom, "limit");
            out += &text(at + 4.0, 0.6 * frame.top + 0.4 * frame.bottom, "label faint", "start", "CPU at most");
        }
    }
    out
}

/// Returns the lines of both intervals, inside the frame.
fn whiskers(dot: &Dot, at: (f64, f64), x: &Scale, y: &Scale, frame: &Frame) -> impl Iterator<Item = Box4> {
    let across = |v: f64| x.place(v).clamp(frame.left, frame.right);
    let along = |v: f64| y.place(v).clamp(frame.top, frame.bottom);
    let cpu = dot.cpu.interval.map(|i| Box4 { left: across(i.low), right: across(i.high), top: at.1, bottom: at.1 });
    let latency =
        dot.latency.interval.map(|i| Box4 { left: at.0, right: at.0, top: along(i.high), bottom: along(i.low) });
    [cpu, latency].into_iter().flatten()
}

#[derive(Clone, Copy, Debug)]
struct Box4 {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Box4 {
    fn around(x: f64, y: f64, radius: f64) -> Box4 {
        Box4 { left: x - radius, right: x + radius, top: y - radius, bottom: y + radius }
    }

    fn middle(&self) -> f64 {
        f64::midpoint(self.top, self.bottom)
    }

    fn meets(&self, other: &Box4) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn within(&self, frame: &Frame) -> bool {
        self.left >= frame.left
            && self.right <= frame.right
            && self.top >= frame.top - 6.0
            && self.bottom <= frame.bottom
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    x: f64,
    anchor: &'static str,
    area: Box4,
    far: bool,
}

/// Returns the nearest place for a label at which it covers neither a point nor another label.
fn free_place(label: &str, at: (f64, f64), own: usize, taken: &[Box4], frame: &Frame) -> Place {
    let (height, width) = (LABEL.0, LABEL.1 * label.chars().count() as f64);
    let place = |right: bool, dx: f64, dy: f64| {
        let x = if right { at.0 + dx } else { at.0 - dx };
        let left = if right { x } else { x - width };
        let top = at.1 + dy - height / 2.0;
        let area = Box4 { left, right: left + width, top, bottom: top + height };
        Place { x, anchor: if right { "start" } else { "end" }, area, far: dx > 10.0 || dy.abs() > 15.0 }
    };
    let nearest = place(true, 9.0, 0.0);
    let offsets = [(9.0, 0.0), (7.0, 10.0), (16.0, 20.0), (24.0, 34.0), (34.0, 48.0), (44.0, 64.0), (60.0, 90.0)];
    let candidates = offsets
        .iter()
        .flat_map(|&(dx, dy)| [(true, -dy), (true, dy), (false, -dy), (false, dy)].map(|(r, d)| place(r, dx, d)));
    let free = |p: &Place| p.area.within(frame) && taken.iter().enumerate().all(|(i, t)| i == own || !t.meets(&p.area));
    candidates.into_iter().find(free).unwrap_or(nearest)
}
