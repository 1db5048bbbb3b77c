//! Objectives: `p99<200us,avg<80us`.

use std::fmt;
use std::str::FromStr;

use lull_units::{time_ns, time_text};

/// The longest limit, in nanoseconds. Nobody waits for longer, and no sum with it overflows.
pub const LIMIT_NS_MAX: u64 = 1_000_000_000_000;

/// A statistic of latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The mean.
    Avg,
    /// The median.
    P50,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
}

impl Statistic {
    /// All statistics, with their names.
    pub const ALL: [(Statistic, &'static str); 4] =
        [(Statistic::Avg, "avg"), (Statistic::P50, "p50"), (Statistic::P95, "p95"), (Statistic::P99, "p99")];
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Statistic::ALL.iter().find(|(statistic, _)| statistic == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

/// One bound: the statistic stays below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// What is bounded.
    pub statistic: Statistic,
    /// The limit, in nanoseconds.
    pub limit_ns: u64,
}

impl Bound {
    /// The limit, in microseconds.
    pub fn limit_us(&self) -> f64 {
        self.limit_ns as f64 / 1e3
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{}", self.statistic, time_text(self.limit_ns))
    }
}

/// A service-level objective: one bound or more, all of which have to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slo(Vec<Bound>);

impl Slo {
    /// Its bounds, as they were written. There is at least one.
    pub fn bounds(&self) -> &[Bound] {
        &self.0
    }

    /// The same bounds with their limits multiplied.
    #[must_use]
    pub fn scaled(&self, by: f64) -> Slo {
        let scaled = |bound: &Bound| Bound { limit_ns: (bound.limit_ns as f64 * by) as u64, ..*bound };
        Slo(self.0.iter().map(scaled).collect())
    }

    /// The least of the limits, in nanoseconds.
    pub fn tightest_ns(&self) -> u64 {
        self.0.iter().map(|bound| bound.limit_ns).min().unwrap_or(u64::MAX)
    }

    /// The bound that is written first, which charts and frontiers show.
    pub fn first(&self) -> Bound {
        self.0[0]
    }
}

/// The error for a text that cannot be read as an objective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read the objective '{text}': {why}; write avg, p50, p95 or p99, then <, then a time with its unit, \
     several joined by commas, such as 'p99<200us,avg<80us'"
)]
pub struct SloError {
    text: String,
    why: String,
}

impl FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Slo, SloError> {
        let refused = |why: String| SloError { text: text.to_owned(), why };
        let mut bounds: Vec<Bound> = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let Some((name, limit)) = part.split_once('<') else {
                return Err(refused(format!("'{part}' has no <")));
            };
            let name = name.trim();
            let Some(&(statistic, _)) = Statistic::ALL.iter().find(|(_, known)| *known == name) else {
                return Err(refused(format!("'{name}' is no statistic of latency")));
            };
            let limit_ns = time_ns(limit).map_err(refused)?;
            if limit_ns == 0 {
                return Err(refused(format!("nothing is below {}", limit.trim())));
            }
            if limit_ns > LIMIT_NS_MAX {
                return Err(refused(format!("{} is longer than {}", limit.trim(), time_text(LIMIT_NS_MAX))));
            }
            if bounds.iter().any(|bound| bound.statistic == statistic) {
                return Err(refused(format!("{statistic} is bounded twice")));
            }
            bounds.push(Bound { statistic, limit_ns });
        }
        Ok(Slo(bounds))
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_read_and_written_back() {
        for text in ["p99<200us", "avg<1.5ms", "p99<200us,avg<80us,p50<900ns,p95<1s"] {
            assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        }
        assert_eq!(" p99 < 200 us ".parse::<Slo>().unwrap().first().limit_us(), 200.0);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("p99", "'p99' has no <"),
            ("p99<200", "has no unit"),
            ("p98<200us", "'p98' is no statistic"),
            ("p99>200us", "has no <"),
            ("p99<0us", "nothing is below 0us"),
            ("p99<1001s", "1001s is longer than 1000s"),
            ("p99<18446744073s", "is longer than 1000s"),
            ("p99<1ms,p99<2ms", "p99 is bounded twice"),
            ("p99<200us,", "'' has no <"),
        ] {
            let said = text.parse::<Slo>().unwrap_err().to_string();
            assert!(said.contains(why) && said.contains(&format!("'{text}'")), "{said}");
            assert!(!said.contains('\n'));
        }
    }
}
