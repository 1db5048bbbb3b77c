//! The comparison as one self-contained page: a scatter of simulated against published values per column, and the tables.

use std::fmt::Write as _;

use crate::published::CALIBRATION_CASES;
use crate::published::cells::{Column, Table};
use crate::published::rows::Row;

/// Side of a chart, in pixels.
const SIDE: f64 = 280.0;
/// Margin around its area.
const MARGIN: f64 = 34.0;

/// Renders the page. `sections` are titles and preformatted texts.
pub fn render(simulated: &Table, published: &Table, sections: &[(&str, String)]) -> String {
    let mut page = format!(
        "{STYLE}<main><h1>Simulated against published: IRQ suspension, 12 cases at 6 loads</h1><p>{LEGEND}</p>"
    );
    page.push_str("<div class=charts>");
    for column in [
        Column::Qps,
        Column::Avg,
        Column::P99,
        Column::Cpu,
        Column::Irqs,
        Column::Polls,
        Column::EpollCalls,
        Column::Softirq,
    ] {
        page.push_str(&chart(column, simulated, published));
    }
    page.push_str("</div>");
    for (title, text) in sections {
        let _ = write!(page, "<h2>{}</h2><pre>{}</pre>", escape(title), escape(text));
    }
    page.push_str("</main>");
    page
}

/// Renders the page of a table of rows: a chart for each of `groups`, which are ends of the rows' names, and `text`.
pub fn render_rows(title: &str, rows: &[Row], groups: &[&str], text: &str) -> String {
    let mut page = format!("{STYLE}<main><h1>{}</h1><p>{LEGEND}</p><div class=charts>", escape(title));
    for group in groups {
        let points = rows.iter().filter(|row| row.name.ends_with(group)).map(|row| {
            let name = format!("{}: simulated {:.0}, published {:.0}", row.name, row.simulated, row.published);
            (row.published, row.simulated, name, row.fitted)
        });
        page.push_str(&scatter(group, points.filter(|point| point.0 > 0.0 && point.1 > 0.0).collect()));
    }
    let _ = write!(page, "</div><pre>{}</pre></main>", escape(text));
    page
}

/// Published across, simulated up, both logarithmic; on the diagonal the model is right.
fn chart(column: Column, simulated: &Table, published: &Table) -> String {
    let points: Vec<(f64, f64, String, bool)> = simulated
        .cells
        .iter()
        .filter_map(|cell| {
            let (x, y) = (published.cell(&cell.case, &cell.load)?.get(column), cell.get(column));
            let name = format!("{} {}: simulated {y:.1}, published {x:.1}", cell.case, cell.load);
            (x > 0.0 && y > 0.0).then(|| (x, y, name, CALIBRATION_CASES.contains(&cell.case.as_str())))
        })
        .collect();
    scatter(column.name(), points)
}

/// Points of published value, simulated value, name, and whether calibration saw it.
fn scatter(caption: &str, points: Vec<(f64, f64, String, bool)>) -> String {
    let low = points.iter().map(|point| point.0.min(point.1)).fold(f64::MAX, f64::min) * 0.8;
    let high = points.iter().map(|point| point.0.max(point.1)).fold(0.0, f64::max) * 1.25;
    let (log_low, log_high) = (libm::log(low), libm::log(high));
    let place = |value: f64| (libm::log(value) - log_low) / (log_high - log_low) * (SIDE - 2.0 * MARGIN);
    let mut svg = format!(
        "<figure><svg viewBox='0 0 {SIDE} {SIDE}' width={SIDE} height={SIDE}><line class=ideal x1={MARGIN} y1={} x2={} y2={MARGIN} />",
        SIDE - MARGIN,
        SIDE - MARGIN
    );
    let mut decade = libm::pow(10.0, libm::ceil(libm::log10(low)));
    while decade < high {
        let at = place(decade);
        let _ = write!(
            svg,
            "<text x={:.1} y={} text-anchor=middle>{}</text><text x={} y={:.1} text-anchor=end>{}</text>",
            MARGIN + at,
            SIDE - MARGIN + 14.0,
            short(decade),
            MARGIN - 4.0,
            SIDE - MARGIN - at + 3.0,
            short(decade)
        );
        decade *= 10.0;
    }
    for (x, y, name, fitted) in points {
        let _ = write!(
            svg,
            "<circle class={} cx={:.1} cy={:.1} r=3.5><title>{}</title></circle>",
            if fitted { "fitted" } else { "predicted" },
            MARGIN + place(x),
            SIDE - MARGIN - place(y),
            escape(&name)
        );
    }
    let _ = write!(svg, "</svg><figcaption>{}</figcaption></figure>", escape(caption));
    svg
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => format!("{value}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const STYLE: &str = "<!doctype html><html lang=en><meta charset=utf-8><title>lull: simulated against published</title><style>
body{font:15px/1.5 system-ui,sans-serif;margin:0;background:#fafaf8;color:#1d1d1b}main{max-width:1400px;margin:auto;padding:24px}
h1{font-size:22px}h2{font-size:17px;margin-top:32px}pre{overflow-x:auto;font:12px/1.4 ui-monospace,monospace}
.charts{display:flex;flex-wrap:wrap;gap:12px}figure{margin:0}figcaption{text-align:center;font-size:13px}
svg{background:#fff;border:1px solid #ddd}svg text{font-size:10px;fill:#666}.ideal{stroke:#bbb}
.fitted{fill:#8a8a86;opacity:.7}.predicted{fill:#c2410c;opacity:.75}
@media(prefers-color-scheme:dark){body{background:#171715;color:#e8e8e4}svg{background:#1f1f1d;border-color:#333}}
</style>";
const LEGEND: &str = "Each point is a cell: published value across, simulated value up, both logarithmic. Grey cells were seen by \
    calibration, orange ones are predictions. Point at one for its name.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_stands_alone_and_names_every_cell() {
        let table = Table::parse(crate::published::V6_CSV).unwrap();
        let page = render(&table, &table, &[("Goals", "a < b".into())]);
        assert!(!page.contains("http") && page.contains("a &lt; b"));
        assert_eq!(page.matches("suspend20 400K:").count(), 8);
        assert!(page.matches("class=fitted").count() >= 24 * 6);
    }
}
