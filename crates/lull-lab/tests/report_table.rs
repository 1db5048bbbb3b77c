//! The table in terminals of any width, whole and in part.

mod report_synthetic;

use console::measure_text_width;
use lull_lab::table::{TableStyle, render};

fn plain(width_columns: Option<usize>) -> TableStyle {
    TableStyle { width_columns, colour: false }
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for report in [report_synthetic::complete(), report_synthetic::troubled(), report_synthetic::barely_begun()] {
        for width in [100, 120, 160, 240] {
            let text = render(&report, plain(Some(width)));
            let widest = text.lines().map(measure_text_width).max().unwrap();
            assert!(widest <= width, "{widest} > {width}\n{text}");
        }
    }
}

#[test]
fn narrow_terminals_lose_columns_and_say_so_but_never_the_verdict() {
    let report = report_synthetic::troubled();
    let wide = render(&report, plain(None));
    assert!(wide.contains("softirq") && !wide.contains("Too narrow"));
    let narrow = render(&report, plain(Some(80)));
    assert!(!narrow.contains("softirq") && narrow.contains("Too narrow"));
    for text in [&wide, &narrow] {
        assert!(text.contains("!suspend50") && text.contains("not in force ["), "{text}");
        assert!(text.contains("had 38 us") && text.contains("generator-bound") && text.contains("generator-late"));
        assert!(text.contains("no suspension in 24 busy periods"));
        assert!(text.contains("STOPPED EARLY, AFTER 78 OF 192 RUNS"), "{text}");
    }
}

#[test]
fn missing_cells_are_rows_that_say_so() {
    let text = render(&report_synthetic::barely_begun(), plain(None));
    assert_eq!(text.lines().filter(|l| l.contains("not run")).count(), 43);
    assert!(text.contains("Every cell ran once"));
}

#[test]
fn colours_only_where_asked_for() {
    let report = report_synthetic::troubled();
    assert!(!render(&report, plain(None)).contains('\u{1b}'));
    let coloured = render(&report, TableStyle { width_columns: None, colour: true });
    assert!(coloured.contains('\u{1b}'));
    assert_eq!(console::strip_ansi_codes(&coloured), render(&report, plain(None)));
}

#[test]
fn low_load_is_held_against_base_and_suspension_against_busy_polling() {
    let text = render(&report_synthetic::complete(), plain(Some(120)));
    assert!(text.contains("Against base at 25%, run by run:"), "{text}");
    assert!(text.contains("suspend20 / fullbusy at MAX, queries per second: 0.9"), "{text}");
    assert!(!render(&report_synthetic::one_mode(), plain(None)).contains("Against base"));
}
