//! Formats a case's table for a terminal.

use console::Style;

use super::{CaseRow, CaseTable};
use crate::csv::number;
use crate::table::grid::{Align, Grid, wrap};
use crate::table::{Footnotes, PROSE_COLUMNS_MAX, PROSE_COLUMNS_MIN, TableStyle, percent_text};

impl CaseTable {
    /// Returns the table as text: machine, rows, footnotes and notes.
    pub fn render(&self, style: TableStyle) -> String {
        let prose = style.width_columns.unwrap_or(PROSE_COLUMNS_MAX).clamp(PROSE_COLUMNS_MIN, PROSE_COLUMNS_MAX);
        let mut out = wrap(&self.title, prose, "") + &wrap(&self.machine.to_string(), prose, "");
        out += &wrap(&self.set_up, prose, "");
        if self.interrupted {
            out += "STOPPED EARLY\n";
        }
        let mut footnotes = Footnotes::default();
        out += &format!("\n{}\n", self.grid(style, &mut footnotes));
        for (at, note) in footnotes.0.iter().enumerate() {
            out += &wrap(&format!("[{}] {note}", at + 1), prose, "    ");
        }
        for line in self.legend().into_iter().chain(self.notes.iter().cloned()) {
            out += &wrap(&line, prose, "");
        }
        out
    }

    fn grid(&self, style: TableStyle, footnotes: &mut Footnotes) -> Grid {
        let mut grid = Grid::default();
        self.keys.iter().for_each(|key| grid.column(&key.replace(' ', "_"), Align::Left));
        for (at, measure) in self.measures.iter().enumerate() {
            grid.column(measure.name, Align::Right);
            let (published, simulated) = self.has(at);
            if published {
                ["published", "ours_/ published"].iter().for_each(|head| grid.column(head, Align::Right));
            }
            if simulated {
                grid.column("simulated", Align::Right);
            }
        }
        grid.column("verdict", Align::Left);
        for row in &self.rows {
            let paint = paint(row, style.colour);
            let mut texts = row.keys.clone();
            texts.extend((0..self.measures.len()).flat_map(|at| self.value_texts(row, at)));
            texts.push(match row.standing() {
                (words, None) => words,
                (words, Some(reason)) => format!("{words} [{}]", footnotes.number(reason.to_owned())),
            });
            grid.row(texts.into_iter().map(|text| paint.apply_to(text).to_string()).collect());
        }
        grid
    }

    fn value_texts(&self, row: &CaseRow, at: usize) -> Vec<String> {
        let value = row.values[at];
        let spread = value.ours.and_then(|ours| ours.spread_percent());
        let spread = spread.map_or(String::new(), |percent| format!(" ±{}%", percent_text(percent)));
        let mut texts = vec![number(value.ours.map(|ours| ours.value)) + &spread];
        let (published, simulated) = self.has(at);
        if published {
            let ratio = value.ours.zip(value.published).map(|(ours, published)| ours.value / published);
            texts.extend([number(value.published), number(ratio)]);
        }
        if simulated {
            texts.push(number(value.simulated));
        }
        texts
    }

    fn legend(&self) -> Vec<String> {
        let help: Vec<String> =
            self.measures.iter().map(|measure| format!("{}: {}", measure.name, measure.help)).collect();
        vec![format!("Values are medians over runs, ± the farther end of their range. {}.", help.join("; "))]
    }
}

fn paint(row: &CaseRow, colour: bool) -> Style {
    let style = Style::new().force_styling(colour);
    match (&row.verdict, &row.short_of_cores) {
        (None, _) => style.dim(),
        (Some(verdict), _) if !verdict.shows_mode() => style.red().dim(),
        (_, Some(_)) => style.yellow(),
        _ if row.load.as_ref().is_some_and(|load| !load.counts()) => style.yellow(),
        _ => style,
    }
}
