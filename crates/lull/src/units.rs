//! Reads arguments with units.

use std::time::{Duration, SystemTime};

use lull_nic::Moderation;

/// Reads seconds, as a decimal number.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is not a number of seconds between 0 and 86400")),
    }
}

/// Reads a moment: RFC 3339 in UTC, seconds since 1970, or a time from now such as `+10s`.
pub fn moment(text: &str) -> Result<SystemTime, String> {
    let from_now = |text| interval(text).ok().and_then(|after| SystemTime::now().checked_add(after));
    let since_1970 =
        |seconds: f64| Duration::try_from_secs_f64(seconds).ok().and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at));
    let moment = match (text.strip_prefix('+'), text.parse::<f64>()) {
        (Some(after), _) => from_now(after),
        (None, Ok(seconds)) => since_1970(seconds),
        (None, Err(_)) => humantime::parse_rfc3339(text).ok(),
    };
    moment
        .ok_or_else(|| format!("'{text}' is no moment: use 2026-11-22T10:00:00Z, seconds since 1970, or +10s from now"))
}

/// The shortest interval that can be asked for.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Reads an interval with its unit, such as `200ms` or `1s`.
pub fn interval(text: &str) -> Result<Duration, String> {
    // A number without a unit means seconds, and minutes are no unit of a setting.
    let minutes = text.strip_suffix("min").or_else(|| text.strip_suffix('m'));
    let seconds = match (text.parse::<f64>(), minutes) {
        (Ok(seconds), _) => seconds,
        (_, Some(minutes)) => minutes.parse::<f64>().map_or(f64::NAN, |minutes| minutes * 60.0),
        _ => lull_units::time_ns(text).map_or(f64::NAN, |ns| ns as f64 / 1e9),
    };
    if seconds >= INTERVAL_MIN.as_secs_f64() && seconds <= 86_400.0 {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(format!("'{text}' is not an interval between 10ms and a day, such as 200ms or 1s"))
}

/// Reads a whole percentage, such as `30%` or `30`.
pub fn percent(text: &str) -> Result<u32, String> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    digits.parse().map_err(|_| format!("'{text}' is not a percentage such as 30%"))
}

/// Reads interrupt coalescing: `16`, or `16/44` with the number of frames after which the interrupt is raised before
/// its time is up.
pub fn moderation(text: &str) -> Result<Moderation, String> {
    let (usecs, frames) = text.split_once('/').unwrap_or((text, "0"));
    match (usecs.parse(), frames.parse()) {
        (Ok(rx_usecs), Ok(rx_frames)) => Ok(Moderation { rx_usecs, rx_frames }),
        _ => Err(format!("'{text}' is not a coalescing such as 16, or 16/44 with its frames")),
    }
}

/// Reads a list of core numbers, such as `0,2-3`.
pub fn cores(text: &str) -> Result<Vec<usize>, String> {
    lull_units::numbers(text).map_err(|_| format!("'{text}' is not a list of cores such as 0,2-3"))
}

/// A list of numbers as one argument. clap takes a `Vec` for an argument that may be given several times.
#[derive(Clone, Debug)]
pub struct List(pub Vec<usize>);

impl List {
    /// Reads a list, for clap.
    pub fn parse(text: &str) -> Result<List, String> {
        lull_units::numbers(text).map(List)
    }
}

/// Reads inter-arrival times.
pub fn arrivals(text: &str) -> Result<lull_lab::load::Arrivals, String> {
    match text {
        "poisson" | "exponential" => Ok(lull_lab::load::Arrivals::Exponential),
        "facebook" | "fb_ia" => Ok(lull_lab::load::Arrivals::Facebook),
        _ => Err(format!("'{text}' is no arrival process: use poisson or facebook")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        assert_eq!(cores("0,2-3"), Ok(vec![0, 2, 3]));
        for bad in ["", "a", "3-1", "0,", "99999"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn intervals_have_units_and_limits() {
        assert_eq!(interval("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(interval("1.5"), Ok(Duration::from_millis(1_500)));
        for bad in ["", "s", "5us", "9ms", "-1s", "inf", "nan", "2000m", "1 x"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn coalescing_has_its_frames_behind_a_slash() {
        assert_eq!(moderation("16"), Ok(Moderation { rx_usecs: 16, rx_frames: 0 }));
        assert_eq!(moderation("16/44"), Ok(Moderation { rx_usecs: 16, rx_frames: 44 }));
        for bad in ["", "a", "1/", "1/2/3", "-1"] {
            assert!(moderation(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds_are_positive() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "x", "nan", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
