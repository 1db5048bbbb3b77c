//! What is written to a file is read from it unchanged.

mod report_synthetic;

use std::fs;
use std::path::{Path, PathBuf};

use lull_lab::cell::{Load, Report, Standing};
use lull_lab::{csv, html, json};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn reports() -> [(&'static str, Report); 4] {
    [
        ("complete", report_synthetic::complete()),
        ("troubled", report_synthetic::troubled()),
        ("barely_begun", report_synthetic::barely_begun()),
        ("one_mode", report_synthetic::one_mode()),
    ]
}

#[test]
fn csv_comes_back_row_by_row() {
    for (name, report) in reports() {
        let path = path(&format!("{name}.csv"));
        csv::write(&path, &report).unwrap();
        let read = csv::read(&path).unwrap();
        assert_eq!(read.len(), report.modes.len() * report.loads.len(), "{name}");
        assert_eq!(csv::to_string(&read), fs::read_to_string(&path).unwrap(), "{name}");
    }
}

#[test]
fn csv_says_what_is_wrong_with_a_row() {
    let rows = csv::rows(&report_synthetic::troubled());
    let row = |mode: &str, load: Load| rows.iter().find(|r| r.testcase == mode && r.load == load).unwrap();
    let quarter = Load::Percent { permille: 250 };
    assert_eq!(row("base", quarter).verdict, "in force");
    assert_eq!(row("suspend50", quarter).verdict, "not in force");
    assert!(row("suspend50", quarter).note.starts_with("not in force: no suspension"));
    assert_eq!(row("defer20", quarter).verdict, "had 38 us");
    assert!(row("fullbusy", Load::Max).note.starts_with("generator-bound: server"));
    assert!(row("napibusy", Load::Percent { permille: 750 }).note.starts_with("generator-late"));
    assert!(row("defer200", Load::Percent { permille: 750 }).note.contains("the server answered"));
    assert!(row("base", quarter).instructions_per_query.is_none());
    let begun = csv::rows(&report_synthetic::barely_begun());
    assert_eq!(begun.iter().filter(|r| r.verdict == csv::NOT_RUN).count(), 43);
}

#[test]
fn json_comes_back_whole() {
    for (name, report) in reports() {
        let path = path(&format!("{name}.json"));
        json::write(&path, &report).unwrap();
        assert_eq!(json::read(&path).unwrap(), report, "{name}");
    }
    let other = json::to_string(&report_synthetic::one_mode()).unwrap().replacen("\"schema\": 1", "\"schema\": 99", 1);
    assert!(json::parse(&other).unwrap_err().to_string().contains("schema 99"));
}

#[test]
fn pages_are_self_contained_and_balanced() {
    for (name, report) in reports() {
        let path = path(&format!("{name}.html"));
        html::write(&path, &report).unwrap();
        let page = fs::read_to_string(&path).unwrap();
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{name}: {outside}");
        }
        for tag in ["svg", "g", "figure", "table", "tbody", "tr", "section", "text", "div", "p"] {
            let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{name}: {tag}");
        }
        for wrong in ["NaN", "\"inf", "inf\"", "<plain>"] {
            assert!(!page.contains(wrong), "{name}: {wrong}");
        }
        assert!(page.contains(&report.command) && page.contains(&report.machine.to_string()), "{name}");
    }
}

#[test]
fn a_mode_not_in_force_has_no_point_in_the_charts() {
    let page = html::render(&report_synthetic::troubled());
    assert!(!page.contains("data-tip=\"suspend50 at 25%"));
    assert!(page.contains("suspend50 at 25%, suspend50 at 50%"));
    let complete = html::render(&report_synthetic::complete());
    assert!(complete.contains("data-tip=\"suspend50 at 25%"));
}

#[test]
fn a_published_like_run_is_judged_like_the_published_one() {
    let report = report_synthetic::complete();
    assert!(report.cells.iter().all(|c| c.standing == Standing::Counts));
    let words = html::narrate(&report.cells);
    assert!(words.contains("; published: 98.3 %)"), "{words}");
    assert!(words.contains("more than base (published: 16.3 to 16.7 % more)"), "{words}");
    assert!(!words.contains("differs from the published one"), "{words}");
}
