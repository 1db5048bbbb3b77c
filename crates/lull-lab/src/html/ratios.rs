//! Draws each mode against base at low load: p99 and CPU side by side, with intervals and the published values.

use super::palette::look;
use super::scale::Scale;
use super::svg::{Frame, escape, line, picture, short, text};
use crate::stats::Estimate;

/// Height of a row, in user units.
const ROW: f64 = 25.0;

/// The titles of the two panels.
const PANELS: [&str; 2] = ["p99, times base", "CPU, times base"];

/// The ratios of one mode to base.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// The test case.
    pub testcase: String,
    /// Its ratios, by panel; `None` if not measured or not in force.
    pub values: [Option<Estimate>; 2],
    /// The published ratios, by panel.
    pub published: [Option<f64>; 2],
    /// The reason why there is no value; empty if there is one.
    pub doubt: String,
    /// Whether the cell counts. One that does not is drawn hollow.
    pub counts: bool,
    /// The tooltip.
    pub tip: String,
}

/// Draws both panels, with a row for each mode, on logarithmic axes: half and twice are equally far from one.
pub fn draw(ratios: &[Ratio]) -> String {
    let widest = ratios.iter().map(|r| r.testcase.chars().count()).max().unwrap_or(0);
    let left = 18.0 + 6.9 * widest as f64;
    let (top, rows) = (34.0, ROW * ratios.len() as f64);
    let bottom = top + rows + 6.0;
    let frame = Frame { width: 630.0, height: bottom + 26.0, left, right: 612.0, top, bottom };
    let middle = f64::midpoint(frame.left, frame.right);
    let mut parts = String::new();
    for (i, ratio) in ratios.iter().enumerate() {
        let y = row_middle(&frame, i);
        parts += &format!("<g class=\"series\" data-s=\"{}\">", escape(&ratio.testcase));
        parts += &text(frame.left - 8.0, y + 4.0, "label", "end", &ratio.testcase);
        if !ratio.doubt.is_empty() {
            parts += &text(frame.left + 8.0, y + 4.0, "faint", "start", &ratio.doubt);
        }
        parts += "</g>";
    }
    for (panel, (from, to)) in [(frame.left, middle - 12.0), (middle + 12.0, frame.right)].into_iter().enumerate() {
        parts += &draw_panel(ratios, panel, Frame { left: from, right: to, ..frame });
    }
    picture(&frame, "p99 and CPU against base, a row for each mode", &parts)
}

fn row_middle(frame: &Frame, row: usize) -> f64 {
    frame.top + 4.0 + ROW * row as f64 + (ROW - 8.0) / 2.0
}

fn draw_panel(ratios: &[Ratio], panel: usize, frame: Frame) -> String {
    // The axis contains the measured and the published values, and 1. The interval of only two runs may exceed it.
    let values =
        ratios.iter().flat_map(|r| [r.values[panel].map(|e| e.value), r.published[panel]].into_iter().flatten());
    let x = Scale::log(values.chain([1.0]), frame.left, frame.right);
    let mut parts = text(frame.left, frame.top - 12.0, "title", "start", PANELS[panel]);
    for tick in x.ticks() {
        parts += &line(x.place(tick), frame.top, x.place(tick), frame.bottom, "grid");
        parts += &text(x.place(tick), frame.bottom + 15.0, "tick", "middle", &short(tick));
    }
    parts += &line(x.place(1.0), frame.top, x.place(1.0), frame.bottom, "axis");
    for (i, ratio) in ratios.iter().enumerate() {
        let Some(value) = ratio.values[panel] else { continue };
        let y = row_middle(&frame, i);
        let look = look(&ratio.testcase);
        parts += &format!("<g class=\"series {}\" data-s=\"{}\">", look.class(), escape(&ratio.testcase));
        if let Some(published) = ratio.published[panel] {
            parts += &line(x.place(published), y - 9.0, x.place(published), y + 9.0, "published");
        }
        if let Some(interval) = value.interval {
            let inside = |v: f64| x.place(v).clamp(frame.left, frame.right);
            parts += &line(inside(interval.low), y, inside(interval.high), y, "span");
        }
        let hollow = if ratio.counts { "" } else { " hollow" };
        parts += &format!(
            "<path d=\"{}\" transform=\"translate({:.1},{y:.1})\" class=\"mark{hollow}\" data-tip=\"{}\"/></g>",
            look.marker(),
            x.place(value.value),
            escape(&ratio.tip)
        );
    }
    parts
}
