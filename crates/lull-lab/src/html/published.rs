//! The page of a simulated published table: a scatter of simulated against published values per column, and the tables.

use lull_sim::published::CALIBRATION_CASES;
use lull_sim::published::cells::{Column, Table};
use lull_sim::published::rows::Row;

use super::palette::look;
use super::scale::Scale;
use super::svg::{Frame, axes, escape, line, picture, short};
use super::{figure, page};

const LEGEND: &str = "Each point is a cell: published value across, simulated value up, both logarithmic; on the diagonal \
                      the model is right. Hollow cells were seen by calibration, full ones are predictions. Point at one \
                      for its name.";
/// The columns that have a chart of their own.
const CHARTS: [Column; 8] = [
    Column::Qps,
    Column::Avg,
    Column::P99,
    Column::Cpu,
    Column::Irqs,
    Column::Polls,
    Column::EpollCalls,
    Column::Softirq,
];

/// One value, as published and as simulated.
struct Place {
    published: f64,
    simulated: f64,
    name: String,
    fitted: bool,
}

/// Returns the page of a table of cells. `sections` are titles and preformatted texts.
pub fn cells(simulated: &Table, published: &Table, sections: &[(&str, String)]) -> String {
    let title = "Simulated against published: IRQ suspension, 12 cases at 6 loads";
    let charts = CHARTS.iter().map(|column| (column.name(), of_column(*column, simulated, published))).collect();
    let texts: String = sections
        .iter()
        .map(|(title, text)| format!("<section><h2>{}</h2><pre>{}</pre></section>\n", escape(title), escape(text)))
        .collect();
    render(title, charts, &texts)
}

/// Returns the page of a table of rows: a chart for each of `groups`, which are ends of the rows' names, and `text`.
pub fn rows(title: &str, rows: &[Row], groups: &[&str], text: &str) -> String {
    let of_group = |group: &&str| {
        let places = rows.iter().filter(|row| row.name.ends_with(*group)).map(|row| Place {
            published: row.published,
            simulated: row.simulated,
            name: format!("{}: simulated {:.0}, published {:.0}", row.name, row.simulated, row.published),
            fitted: row.fitted,
        });
        places.collect::<Vec<_>>()
    };
    let charts = groups.iter().map(|group| (*group, of_group(group))).collect();
    let text = format!("<section><pre>{}</pre></section>\n", escape(text));
    render(&format!("Simulated against published: {title}"), charts, &text)
}

fn render(title: &str, charts: Vec<(&str, Vec<Place>)>, texts: &str) -> String {
    let head = format!("<header>\n<h1>{}</h1>\n<p>{LEGEND}</p></header>\n<div class=\"charts\">\n", escape(title));
    let charts: String =
        charts.into_iter().map(|(caption, places)| figure(caption, &scatter(caption, places), "")).collect();
    page("lull: simulated against published", &(head + &charts + "</div>\n" + texts))
}

fn of_column(column: Column, simulated: &Table, published: &Table) -> Vec<Place> {
    let place = |cell: &lull_sim::published::Cell| {
        let (x, y) = (published.cell(&cell.case, &cell.load)?.get(column), cell.get(column));
        Some(Place {
            published: x,
            simulated: y,
            name: format!("{} {}: simulated {y:.1}, published {x:.1}", cell.case, cell.load),
            fitted: CALIBRATION_CASES.contains(&cell.case.as_str()),
        })
    };
    simulated.cells.iter().filter_map(place).collect()
}

/// Draws published values across and simulated ones up, both on the same logarithmic scale.
fn scatter(what: &str, places: Vec<Place>) -> String {
    let frame = Frame { width: 420.0, height: 390.0, left: 18.0, right: 376.0, top: 34.0, bottom: 346.0 };
    let places: Vec<Place> =
        places.into_iter().filter(|place| place.published > 0.0 && place.simulated > 0.0).collect();
    let both = || places.iter().flat_map(|place| [place.published, place.simulated]);
    let (x, y) = (Scale::log(both(), frame.left, frame.right), Scale::log(both(), frame.bottom, frame.top));
    let mut parts = axes(&frame, &x, "published", short, &y, "simulated");
    let ends = (both().fold(f64::MAX, f64::min), both().fold(0.0, f64::max));
    if !places.is_empty() {
        parts += &line(x.place(ends.0), y.place(ends.0), x.place(ends.1), y.place(ends.1), "limit");
    }
    // All points form one series, in the colour of one of the modes.
    parts += &format!("<g class=\"{}\">", look("suspend20").class());
    for place in &places {
        parts += &format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" class=\"mark{}\" data-tip=\"{}\"/>",
            x.place(place.published),
            y.place(place.simulated),
            if place.fitted { " hollow" } else { "" },
            escape(&place.name)
        );
    }
    parts += "</g>";
    picture(&frame, &format!("simulated {what} against published"), &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_stands_alone_and_names_every_cell() {
        let table = Table::parse(crate::published::V6_CSV).unwrap();
        let page = cells(&table, &table, &[("Goals", "a < b".into())]);
        assert!(!page.contains("src=") && page.contains("a &lt; b"));
        assert_eq!(page.matches("suspend20 400K:").count(), 8);
        assert!(page.matches("mark hollow").count() >= 24 * 6);
    }
}
