//! The page of a case: its table and its notes.

use super::page;
use super::svg::escape;
use crate::case::{CaseRow, CaseTable};
use crate::csv::number;

/// Returns the page.
pub fn render(table: &CaseTable) -> String {
    let stopped = if table.interrupted { "<p class=\"stopped\">This case was stopped early.</p>" } else { "" };
    let notes: String = table.notes.iter().map(|note| format!("<p>{}</p>", escape(note))).collect();
    let head = format!(
        "<header>\n<h1>{}</h1>\n<p class=\"machine\">{}</p>\n<p class=\"machine\">{}</p>\n<pre>{}</pre>\n{stopped}</header>\n\
         <section class=\"words\"><h2>In words</h2><p>{}</p>{notes}</section>\n",
        escape(table.case),
        escape(&table.machine.to_string()),
        escape(&table.set_up),
        escape(&table.command),
        escape(&table.title),
    );
    page(&format!("lull: {}", table.case), &(head + &rows(table)))
}

fn rows(table: &CaseTable) -> String {
    let mut out = String::from("<table><thead><tr>");
    for name in table.keys.iter().copied().chain(table.measures.iter().map(|measure| measure.name)).chain(["verdict"]) {
        out += &format!("<th>{}</th>", escape(name).replace('_', "<wbr>_"));
    }
    out += "</tr></thead><tbody>";
    table.rows.iter().for_each(|row| out += &tr(row));
    out + "</tbody></table>"
}

fn tr(row: &CaseRow) -> String {
    let (words, reason) = row.standing();
    let class = match (row.shows(), &row.verdict) {
        (true, _) => "",
        (false, None) => "missing",
        (false, Some(verdict)) if verdict.shows_mode() => "doubt",
        (false, Some(_)) => "off",
    };
    let keys: String = row.keys.iter().map(|key| format!("<th>{}</th>", escape(key))).collect();
    let mut out = format!("<tr class=\"{class}\">{keys}");
    for value in &row.values {
        let beside = |name: &str, value: Option<f64>| {
            value.map_or(String::new(), |value| format!("<small>{name} {}</small>", number(Some(value))))
        };
        out += &format!(
            "<td>{}{}{}</td>",
            number(value.ours.map(|ours| ours.value)),
            beside("published", value.published),
            beside("simulated", value.simulated)
        );
    }
    let reason = reason.map_or(String::new(), |reason| format!("<span>{}</span>", escape(reason)));
    out + &format!("<td class=\"verdict\">{}{reason}</td></tr>", escape(&words))
}
