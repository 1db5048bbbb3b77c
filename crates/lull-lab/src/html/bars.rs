//! Draws throughput at MAX, with a bar for each test case.

use super::palette::look;
use super::scale::Scale;
use super::svg::{Frame, escape, line, picture, short, text};
use crate::stats::Estimate;

/// Height of a row, in user units.
const ROW: f64 = 25.0;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The test case.
    pub testcase: String,
    /// Its rate, in queries per second; `None` if it was not measured.
    pub qps: Option<Estimate>,
    /// The ratio of the rate to base's, run by run.
    pub against_base: Option<Estimate>,
    /// The published ratio to base, drawn on this machine's base.
    pub published_qps: Option<f64>,
    /// The reason why the bar does not count; empty if it does.
    pub doubt: String,
    /// The tooltip.
    pub tip: String,
}

/// Draws the bars from the top in the order given.
pub fn draw(bars: &[Bar], what: &str) -> String {
    let widest = bars.iter().map(|b| b.testcase.chars().count()).max().unwrap_or(0);
    let left = 18.0 + 6.6 * widest as f64;
    let (top, rows) = (34.0, ROW * bars.len() as f64);
    let bottom = top + rows + 6.0;
    let frame = Frame { width: 630.0, height: bottom + 26.0, left, right: 440.0, top, bottom };
    let ends = bars.iter().flat_map(|b| {
        let high = b.qps.map(|e| e.interval.map_or(e.value, |i| i.high));
        [high, b.published_qps].into_iter().flatten()
    });
    let x = Scale::linear(ends, frame.left, frame.right);
    let mut parts = text(frame.left, frame.top - 10.0, "title", "start", "thousand queries per second, and times base");
    for tick in x.ticks() {
        parts += &line(x.place(tick), frame.top, x.place(tick), frame.bottom, "grid");
        parts += &text(x.place(tick), frame.bottom + 15.0, "tick", "middle", &short(tick / 1e3));
    }
    for (i, bar) in bars.iter().enumerate() {
        parts += &one(bar, frame.top + 4.0 + ROW * i as f64, &frame, &x);
    }
    picture(&frame, what, &parts)
}

fn one(bar: &Bar, y: f64, frame: &Frame, x: &Scale) -> String {
    let thick = ROW - 8.0;
    let middle = y + thick / 2.0;
    let look = look(&bar.testcase);
    let mut out = format!("<g class=\"series {}\" data-s=\"{}\">", look.class(), escape(&bar.testcase));
    out += &text(frame.left - 8.0, middle + 4.0, "label", "end", &bar.testcase);
    let Some(qps) = bar.qps else {
        return out + &text(frame.left + 6.0, middle + 4.0, "faint", "start", "not run") + "</g>";
    };
    let class = if bar.doubt.is_empty() { "bar" } else { "bar hollow" };
    out += &format!(
        "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{thick:.1}\" class=\"{class}\" data-tip=\"{}\"/>",
        frame.left,
        (x.place(qps.value) - frame.left).max(0.5),
        escape(&bar.tip)
    );
    if let Some(i) = qps.interval {
        let (low, high) = (x.place(i.low.max(0.0)), x.place(i.high));
        out += &line(low, middle, high, middle, "error");
        out += &line(low, middle - 4.0, low, middle + 4.0, "error");
        out += &line(high, middle - 4.0, high, middle + 4.0, "error");
    }
    if let Some(published) = bar.published_qps {
        out += &line(x.place(published), y - 3.0, x.place(published), y + thick + 3.0, "published");
    }
    let ratio = match bar.against_base {
        Some(Estimate { value, interval: Some(i), .. }) => format!(" · {value:.2}× [{:.2}, {:.2}]", i.low, i.high),
        Some(ratio) => format!(" · {:.2}×", ratio.value),
        None => String::new(),
    };
    // The reason takes the place of the ratio, because readers would take the ratio of a bar that does not count as a
    // result.
    let rest = if bar.doubt.is_empty() { ratio } else { format!(" · {}", bar.doubt) };
    out += &text(frame.right + 10.0, middle + 4.0, "label", "start", &format!("{}{rest}", short(qps.value)));
    out + "</g>"
}
