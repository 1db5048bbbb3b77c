//! The model beside predictors without a model, as text: goals met, and errors by kind of case and column.

use std::fmt::Write as _;

use lull_sim::published::cells::{Column, Table};
use lull_sim::published::predictors::Predictor;
use lull_sim::published::summary::{goals_met, median_error};

/// A kind of cases: its name, and whether a case belongs to it.
type Family = (&'static str, fn(&str) -> bool);

/// The kinds of predicted cases.
const FAMILIES: [Family; 5] = [
    ("all 48", |_| true),
    ("deferX", |case| case.starts_with("defer")),
    ("suspendX", |case| case.starts_with("suspend") && case != "suspend0"),
    ("suspend0", |case| case == "suspend0"),
    ("napibusy", |case| case == "napibusy"),
];

/// The columns in which they are compared.
const COLUMNS: [Column; 8] =
    [Column::Qps, Column::Avg, Column::P95, Column::P99, Column::Cpu, Column::Irqs, Column::Polls, Column::EpollCalls];

/// Compares the model and the predictors with the published table. The predictors are given only the `fitted` cells.
pub(super) fn text(simulated: &Table, fitted: &Table, published: &Table) -> String {
    let mut contenders = vec![("model", simulated.clone())];
    contenders.extend(Predictor::ALL.map(|predictor| (predictor.name(), predictor.predict(fitted))));
    let mut text = String::new();
    let (_, of) = goals_met(simulated, published);
    let _ = write!(text, "{:<30}", format!("goals met, of {of}"));
    for (name, table) in &contenders {
        let _ = write!(text, "{:>20}", format!("{name} {}", goals_met(table, published).0));
    }
    let _ = write!(text, "\n{:<30}", "median error");
    for (name, _) in &contenders {
        let _ = write!(text, "{name:>20}");
    }
    text.push_str("   closest\n");
    for (family, is_of) in FAMILIES {
        for column in COLUMNS {
            let _ = write!(text, "{family:<12}{:<18}", column.name());
            let errors: Vec<f64> =
                contenders.iter().map(|(_, table)| median_error(table, published, column, is_of)).collect();
            for error in &errors {
                let shown =
                    if column.is_percent() { format!("{error:.1}pt") } else { format!("{:.1}%", 100.0 * error) };
                let _ = write!(text, "{shown:>20}");
            }
            let closest = errors.iter().zip(&contenders).min_by(|a, b| a.0.total_cmp(b.0));
            let _ = writeln!(text, "   {}", closest.map_or("", |(_, (name, _))| name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::V6_CSV;

    #[test]
    fn a_table_that_is_published_is_closest_everywhere_and_a_copy_of_base_is_not() {
        let (published, fitted) =
            (Table::parse(V6_CSV).unwrap(), Table::parse(lull_sim::published::CALIBRATION_CSV).unwrap());
        let perfect = text(&published, &fitted, &published);
        assert!(perfect.starts_with("goals met, of 336") && perfect.contains("model 336"), "{perfect}");
        assert_eq!(perfect.matches("   model\n").count(), FAMILIES.len() * COLUMNS.len());
        let copied = text(&Predictor::Base.predict(&fitted), &fitted, &published);
        let line = |start: &str| copied.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        assert!(line("suspendX    p99").ends_with("   interpolation"), "{copied}");
        assert!(line("napibusy    p99").ends_with("   nearest fitted"), "{copied}");
    }
}
