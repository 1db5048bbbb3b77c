//! Predictors without a model: what anybody who has seen the fitted cases can predict for the others.
//!
//! A simulator that predicts worse than these is useless; where it does, these should be trusted.

use lull_core::Mode;
use lull_core::mode::PUBLISHED;

use crate::published::cells::{COLUMNS, Cell, Table};
use crate::published::summary::is_fitted;

/// A way to predict a case from the fitted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictor {
    /// Every case is `base`.
    Base,
    /// Every case is the fitted one that it resembles most: deferX is defer200, suspendX suspend200, suspend0 base, and
    /// napibusy fullbusy.
    Nearest,
    /// deferX and suspendX lie between fullbusy, which waits for nothing, and defer200 or suspend200, in proportion to
    /// X; the others are as for X of 0.
    Interpolation,
}

impl Predictor {
    /// All of them.
    pub const ALL: [Predictor; 3] = [Predictor::Base, Predictor::Nearest, Predictor::Interpolation];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Predictor::Base => "base copied",
            Predictor::Nearest => "nearest fitted",
            Predictor::Interpolation => "interpolation",
        }
    }

    /// Returns the fitted cases from which it predicts a case, with their weights.
    fn sources(self, case: &str) -> [(&'static str, f64); 2] {
        let far = if case.starts_with("suspend") { "suspend200" } else { "defer200" };
        let deferral_ns = case.parse::<Mode>().ok().and_then(|mode| mode.deferral_ns());
        let timed = deferral_ns.filter(|_| case.starts_with("suspend") || case.starts_with("defer"));
        match (self, timed) {
            (Predictor::Base, _) => [("base", 1.0), ("base", 0.0)],
            (Predictor::Nearest, Some(_)) => [(far, 1.0), (far, 0.0)],
            (Predictor::Nearest, None) if case == "napibusy" => [("fullbusy", 1.0), ("fullbusy", 0.0)],
            (Predictor::Nearest, None) => [("base", 1.0), ("base", 0.0)],
            (Predictor::Interpolation, timed) => {
                let share = timed.map_or(0.0, |deferral_ns| deferral_ns as f64 / FARTHEST_NS);
                [(far, share), ("fullbusy", 1.0 - share)]
            }
        }
    }

    /// Returns the published cases that calibration does not see, predicted from the `fitted` table.
    pub fn predict(self, fitted: &Table) -> Table {
        let mut cells = Vec::new();
        for case in PUBLISHED.iter().filter(|case| !is_fitted(case)) {
            for load in fitted.cells.iter().filter(|cell| cell.case == "base").map(|cell| &cell.load) {
                let mut predicted = Cell::new(case, load);
                for (column, _) in COLUMNS {
                    let value = |(source, weight): (&str, f64)| {
                        if weight == 0.0 {
                            0.0
                        } else {
                            weight * fitted.cell(source, load).map_or(f64::NAN, |cell| cell.get(column))
                        }
                    };
                    predicted.set(column, self.sources(case).into_iter().map(value).sum());
                }
                cells.push(predicted);
            }
        }
        Table { cells }
    }
}

/// X of defer200 and suspend200, in nanoseconds.
const FARTHEST_NS: f64 = 200_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::{CALIBRATION_CSV, Column};

    #[test]
    fn each_predictor_takes_what_it_says() {
        let fitted = Table::parse(CALIBRATION_CSV).unwrap();
        let of = |case: &str| fitted.cell(case, "400K").unwrap().get(Column::P99);
        let predicted = |by: Predictor, case: &str| by.predict(&fitted).cell(case, "400K").unwrap().get(Column::P99);
        assert_eq!(Predictor::Base.predict(&fitted).cells.len(), 48);
        assert_eq!(predicted(Predictor::Base, "suspend20"), of("base"));
        for (case, nearest) in
            [("defer10", "defer200"), ("suspend50", "suspend200"), ("suspend0", "base"), ("napibusy", "fullbusy")]
        {
            assert_eq!(predicted(Predictor::Nearest, case), of(nearest), "{case}");
        }
        let between = |far: &str, share: f64| share * of(far) + (1.0 - share) * of("fullbusy");
        assert_eq!(predicted(Predictor::Interpolation, "suspend50"), between("suspend200", 0.25));
        assert_eq!(predicted(Predictor::Interpolation, "defer10"), between("defer200", 0.05));
        assert_eq!(predicted(Predictor::Interpolation, "suspend0"), of("fullbusy"));
        assert_eq!(predicted(Predictor::Interpolation, "napibusy"), of("fullbusy"));
    }
}
