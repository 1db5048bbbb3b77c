//! The SVG elements that the charts share.

use super::scale::Scale;

/// The area of a chart inside its margins, in user units (at full width, one unit is a CSS pixel).
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Width of the whole picture.
    pub width: f64,
    /// Height of the whole picture.
    pub height: f64,
    /// Left edge of the plot.
    pub left: f64,
    /// Right edge of the plot.
    pub right: f64,
    /// Upper edge of the plot.
    pub top: f64,
    /// Lower edge of the plot.
    pub bottom: f64,
}

/// Escapes text for HTML and SVG, in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

/// Returns a text at a place, with a style class and an anchor (`start`, `middle`, `end`).
pub fn text(x: f64, y: f64, class: &str, anchor: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>", escape(content))
}

/// Returns a straight line with a style class.
pub fn line(x1: f64, y1: f64, x2: f64, y2: f64, class: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>")
}

/// Returns a picture around its parts. `label` is for those who cannot see it.
pub fn picture(frame: &Frame, label: &str, parts: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"{}\">{parts}</svg>",
        frame.width,
        frame.height,
        escape(label)
    )
}

/// Returns both axes with grid lines, tick labels (those of y at the right) and titles. The titles name the unit.
pub fn axes(
    frame: &Frame,
    x: &Scale,
    x_title: &str,
    x_label: impl Fn(f64) -> String,
    y: &Scale,
    y_title: &str,
) -> String {
    let mut out = String::new();
    for tick in y.ticks() {
        let at = y.place(tick);
        out += &line(frame.left, at, frame.right, at, "grid");
        out += &text(frame.right + 6.0, at + 3.5, "tick", "start", &short(tick));
    }
    for tick in x.ticks() {
        let at = x.place(tick);
        out += &line(at, frame.bottom, at, frame.bottom + 4.0, "axis");
        out += &text(at, frame.bottom + 16.0, "tick", "middle", &x_label(tick));
    }
    out += &line(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
    out += &text(f64::midpoint(frame.left, frame.right), frame.bottom + 33.0, "title", "middle", x_title);
    // The title is above the axis and not turned, so that it can be read without tilting the head.
    out += &text(frame.width - 6.0, frame.top - 12.0, "title", "end", y_title);
    out
}

/// Formats a number short enough for a tick or a label: `1.5`, `250`, `12.5K`, `1.2M`.
pub fn short(value: f64) -> String {
    let trimmed = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    };
    match value.abs() {
        v if v >= 1e6 => trimmed(format!("{:.2}", value / 1e6)) + "M",
        v if v >= 1e4 => trimmed(format!("{:.1}", value / 1e3)) + "K",
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => trimmed(format!("{value:.1}")),
        _ => trimmed(format!("{value:.2}")),
    }
}

/// Moves labels of height `gap` apart so that none overlaps and all lie between `top` and `bottom`, each as near to its
/// wanted place as the others allow. Returns the places in the order given.
pub fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut places = vec![0.0; wanted.len()];
    // These are blocks of touching labels (first, count, sum of wanted offsets), merged while they overlap.
    let mut blocks: Vec<(usize, usize, f64)> = Vec::new();
    let start = |&(_, count, sum): &(usize, usize, f64)| {
        let height = (count as f64 - 1.0) * gap;
        (sum / count as f64).clamp(top, (bottom - height).max(top))
    };
    for (rank, &label) in order.iter().enumerate() {
        blocks.push((rank, 1, wanted[label]));
        while let [.., above, below] = blocks.as_slice() {
            if start(above) + above.1 as f64 * gap <= start(below) {
                break;
            }
            // After the merge, a label of the lower block wants its block to start higher by the height of the upper
            // one.
            let merged = (above.0, above.1 + below.1, above.2 + below.2 - (above.1 * below.1) as f64 * gap);
            blocks.truncate(blocks.len() - 2);
            blocks.push(merged);
        }
    }
    for block in &blocks {
        for offset in 0..block.1 {
            places[order[block.0 + offset]] = start(block) + offset as f64 * gap;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_never_overlap_and_stay_inside() {
        for wanted in [vec![50.0, 51.0, 52.0, 10.0], vec![0.0; 6], vec![100.0; 6], vec![42.0], vec![]] {
            let places = spread(&wanted, 12.0, 0.0, 100.0);
            let mut sorted = places.clone();
            sorted.sort_by(f64::total_cmp);
            assert!(sorted.windows(2).all(|p| p[1] - p[0] >= 12.0 - 1e-9), "{wanted:?}: {places:?}");
            assert!(places.iter().all(|p| (-1e-9..=100.0 + 1e-9).contains(p)), "{wanted:?}: {places:?}");
        }
        assert_eq!(spread(&[10.0, 50.0, 52.0], 12.0, 0.0, 100.0), [10.0, 45.0, 57.0]);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (0.5, "0.5"), (99.5, "99.5"), (250.0, "250"), (12_500.0, "12.5K"), (1.2e6, "1.2M")]
        {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn markup_in_a_name_stays_text() {
        assert_eq!(escape("<b a=\"1\">&'"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;");
    }
}
