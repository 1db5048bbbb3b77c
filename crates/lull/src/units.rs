//! Arguments with units.

use std::time::Duration;

/// Seconds, as a decimal number.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is not a number of seconds between 0 and 86400")),
    }
}

/// A list of core numbers, such as `0,2-3`.
pub fn cores(text: &str) -> Result<Vec<usize>, String> {
    list(text).ok_or_else(|| format!("'{text}' is not a list of cores such as 0,2-3"))
}

/// A list of queue or CPU numbers, such as `0,2-3`.
pub fn numbers(text: &str) -> Result<Vec<usize>, String> {
    list(text).ok_or_else(|| format!("'{text}' is not a list of numbers such as 0,2-3"))
}

fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().ok()?;
        let last: usize = last.trim().parse().ok()?;
        if first > last || last > 4095 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Inter-arrival times.
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
    fn seconds_are_positive() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "x", "nan", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
