//! The load: how much is asked of the server.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The highest share of base's maximum that can be asked for, in thousandths. Suspension serves 1.2 times base's
/// maximum, and a share of more than ten times is taken for a typing error.
pub const LOAD_PERMILLE_MAX: u32 = 10_000;

/// The highest absolute load that can be asked for, in queries per second.
pub const LOAD_QPS_MAX: u64 = 1_000_000_000;

/// The load of a cell. Loads are ordered as in the table: shares, then rates, then `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Load {
    /// An open loop at a share of the maximum that `base` was measured to serve, in thousandths (`25%` is 250).
    Percent {
        /// Thousandths of base's maximum, 1 to [`LOAD_PERMILLE_MAX`].
        permille: u32,
    },
    /// An open loop at a fixed rate (`200K`).
    Rate {
        /// Queries per second, 1 to [`LOAD_QPS_MAX`].
        qps: u64,
    },
    /// A closed loop: every connection sends its next query when the last is answered (`MAX`).
    Max,
}

/// The reason why a load cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadNameError {
    /// It has none of the three forms.
    #[error(
        "cannot read the load `{0}`: write a share of base's maximum (25%), queries per second (200K, 1.2M, 50000) or MAX"
    )]
    Form(String),
    /// It has a valid form, but its value is outside the limits.
    #[error(
        "the load `{0}` is out of range: shares go from 0.1% to {percent}%, rates from 1 to {millions}M queries per \
         second",
        percent = LOAD_PERMILLE_MAX / 10,
        millions = LOAD_QPS_MAX / 1_000_000
    )]
    Range(String),
    /// The list has no load.
    #[error("no load given: name at least one, for example 25%,50%,75%,MAX")]
    Empty,
}

impl Load {
    /// Returns the loads of a comparison for which none were named: 25 %, 50 %, 75 % and MAX.
    pub fn defaults() -> Vec<Load> {
        let share = |percent: u32| Load::Percent { permille: percent * 10 };
        vec![share(25), share(50), share(75), Load::Max]
    }

    /// Reads a comma-separated list. It keeps the order and drops repetitions.
    ///
    /// # Errors
    ///
    /// This returns the error of the first load that cannot be read, or [`LoadNameError::Empty`].
    pub fn parse_list(text: &str) -> Result<Vec<Load>, LoadNameError> {
        let mut loads = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let load = item.parse()?;
            if !loads.contains(&load) {
                loads.push(load);
            }
        }
        if loads.is_empty() { Err(LoadNameError::Empty) } else { Ok(loads) }
    }

    /// Returns the queries per second to offer, or `None` for a closed loop and for a share whose base is not known.
    pub fn offered_qps(self, base_qps_max: Option<f64>) -> Option<f64> {
        match self {
            Load::Percent { permille } => base_qps_max.map(|max| max * f64::from(permille) / 1000.0),
            Load::Rate { qps } => Some(qps as f64),
            Load::Max => None,
        }
    }

    /// Whether the load is a share of base's maximum, which then has to be measured first.
    pub fn needs_base(self) -> bool {
        matches!(self, Load::Percent { .. })
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Load::Percent { permille } if permille % 10 == 0 => format!("{}%", permille / 10),
            Load::Percent { permille } => format!("{}.{}%", permille / 10, permille % 10),
            // 1000K is written so, as in the published tables, and not as 1M.
            Load::Rate { qps } if qps % 1000 == 0 => format!("{}K", qps / 1000),
            Load::Rate { qps } => qps.to_string(),
            Load::Max => "MAX".to_string(),
        };
        f.pad(&text)
    }
}

impl FromStr for Load {
    type Err = LoadNameError;

    fn from_str(text: &str) -> Result<Self, LoadNameError> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("max") {
            return Ok(Load::Max);
        }
        let form = |_| LoadNameError::Form(text.to_string());
        if text.ends_with('%') {
            let permille = lull_units::share_permille(text).map_err(form)?;
            return match u32::try_from(permille) {
                Ok(permille @ 1..=LOAD_PERMILLE_MAX) => Ok(Load::Percent { permille }),
                _ => Err(LoadNameError::Range(text.to_string())),
            };
        }
        match lull_units::rate_per_s(text).map_err(form)? {
            qps @ 1..=LOAD_QPS_MAX => Ok(Load::Rate { qps }),
            _ => Err(LoadNameError::Range(text.to_string())),
        }
    }
}

impl TryFrom<String> for Load {
    type Error = LoadNameError;

    fn try_from(text: String) -> Result<Self, LoadNameError> {
        text.parse()
    }
}

impl From<Load> for String {
    fn from(load: Load) -> String {
        load.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_back() {
        for (text, load, shown) in [
            ("25%", Load::Percent { permille: 250 }, "25%"),
            ("12.5%", Load::Percent { permille: 125 }, "12.5%"),
            ("110%", Load::Percent { permille: 1100 }, "110%"),
            ("200K", Load::Rate { qps: 200_000 }, "200K"),
            ("1.2M", Load::Rate { qps: 1_200_000 }, "1200K"),
            ("1000k", Load::Rate { qps: 1_000_000 }, "1000K"),
            ("12345", Load::Rate { qps: 12_345 }, "12345"),
            ("max", Load::Max, "MAX"),
        ] {
            let read: Load = text.parse().unwrap();
            assert_eq!(read, load);
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse::<Load>().unwrap(), load);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_remedy() {
        for text in ["", "%", "fast", "-5%", "1e9", "inf", "nan%", "1..2K", "K"] {
            assert!(matches!(text.parse::<Load>(), Err(LoadNameError::Form(_))), "{text}");
        }
        for text in ["0%", "0", "0.01%", "99999%", "99999M", "0.0001K"] {
            assert!(matches!(text.parse::<Load>(), Err(LoadNameError::Range(_))), "{text}");
        }
        assert!("fast".parse::<Load>().unwrap_err().to_string().contains("25%"));
        assert_eq!(Load::parse_list(" , "), Err(LoadNameError::Empty));
    }

    #[test]
    fn lists_keep_their_order_and_drop_repetitions() {
        let loads = Load::parse_list("MAX, 25%,25.0%").unwrap();
        assert_eq!(loads, [Load::Max, Load::Percent { permille: 250 }]);
    }

    #[test]
    fn shares_need_base() {
        let quarter = Load::Percent { permille: 250 };
        assert_eq!(quarter.offered_qps(None), None);
        assert_eq!(quarter.offered_qps(Some(1000.0)), Some(250.0));
        assert_eq!(Load::Rate { qps: 7 }.offered_qps(None), Some(7.0));
        assert_eq!(Load::Max.offered_qps(Some(1000.0)), None);
    }
}
