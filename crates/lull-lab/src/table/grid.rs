//! Text in columns, measured by the width that a terminal shows and not by bytes.

use std::fmt;

use console::measure_text_width;

/// The number of blanks between two columns.
const GUTTER: usize = 2;

/// The alignment of a column's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// At the left edge.
    Left,
    /// At the right edge.
    Right,
}

/// Columns whose heads have several lines (split at `_`), and rows with gaps between groups.
#[derive(Debug, Default)]
pub struct Grid {
    columns: Vec<(Vec<String>, Align)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// Adds a column. The words of its name are stacked.
    pub fn column(&mut self, name: &str, align: Align) {
        self.columns.push((name.split('_').map(String::from).collect(), align));
    }

    /// Adds a row with a text for each column. Colour codes take no width.
    pub fn row(&mut self, texts: Vec<String>) {
        debug_assert_eq!(texts.len(), self.columns.len(), "a row for other columns");
        self.rows.push(texts);
    }

    /// Adds an empty line.
    pub fn gap(&mut self) {
        self.rows.push(Vec::new());
    }

    /// Returns the number of terminal columns that it takes.
    pub fn width(&self) -> usize {
        let widths = self.widths();
        widths.iter().sum::<usize>() + GUTTER * widths.len().saturating_sub(1)
    }

    fn widths(&self) -> Vec<usize> {
        let widest = |texts: &mut dyn Iterator<Item = &String>| texts.map(|t| measure_text_width(t)).max().unwrap_or(0);
        self.columns
            .iter()
            .enumerate()
            .map(|(i, (head, _))| widest(&mut head.iter()).max(widest(&mut self.rows.iter().filter_map(|r| r.get(i)))))
            .collect()
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let line = |f: &mut fmt::Formatter<'_>, texts: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((text, &width), (_, align)) in texts.zip(&widths).zip(&self.columns) {
                let blanks = " ".repeat(width.saturating_sub(measure_text_width(text)));
                match align {
                    Align::Left => line.extend([text, blanks.as_str()]),
                    Align::Right => line.extend([blanks.as_str(), text]),
                }
                line.push_str(&" ".repeat(GUTTER));
            }
            writeln!(f, "{}", line.trim_end())
        };
        let depth = self.columns.iter().map(|(head, _)| head.len()).max().unwrap_or(0);
        for level in 0..depth {
            // Short heads are at the bottom, next to their values.
            let word = |head: &'_ Vec<String>| (level + head.len()).checked_sub(depth);
            line(f, &mut self.columns.iter().map(|(head, _)| word(head).map_or("", |i| head[i].as_str())))?;
        }
        for row in &self.rows {
            line(f, &mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

/// Breaks each line of a text at blanks so that it fits `width` columns, with later lines indented. The text ends with
/// a line end.
pub fn wrap(text: &str, width: usize, indent: &str) -> String {
    let mut out = String::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let full = measure_text_width(&line) + measure_text_width(word) > width;
            if !line.trim().is_empty() && full {
                out.push_str(line.trim_end());
                out.push('\n');
                line = indent.to_string();
            }
            line.push_str(word);
            line.push(' ');
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_stacked_and_wide_text_is_measured_as_shown() {
        let mut grid = Grid::default();
        grid.column("name", Align::Left);
        grid.column("avg_us", Align::Right);
        grid.row(vec!["a".into(), "5 ±1%".into()]);
        grid.gap();
        grid.row(vec!["\u{1b}[31mbb\u{1b}[0m".into(), "10".into()]);
        let text = console::strip_ansi_codes(&grid.to_string()).into_owned();
        assert_eq!(text, "        avg\nname     us\na     5 ±1%\n\nbb       10\n");
        assert_eq!(grid.width(), 11);
    }

    #[test]
    fn prose_is_wrapped_at_blanks() {
        assert_eq!(wrap("[1] aa bb cc\ndd", 9, "    "), "[1] aa bb\n    cc\ndd\n");
        assert_eq!(wrap("longer-than-the-line x", 5, ""), "longer-than-the-line\nx\n");
    }
}
