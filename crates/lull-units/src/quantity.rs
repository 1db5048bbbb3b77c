//! A number and its unit.

/// The number in front of a unit, and the unit. The number has digits and at most one point, but no sign and no
/// exponent.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    number.parse::<f64>().ok()?;
    Some((number, unit.trim_start()))
}

/// `number` times `worth`, which is what one of its unit is worth. Whole numbers are multiplied exactly; fractions are
/// rounded.
fn product(text: &str, number: &str, worth: u64) -> Result<u64, String> {
    let large = || format!("'{text}' is too large");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(worth).ok_or_else(large);
    }
    match number.parse::<f64>() {
        // The bound is 2^64 as the nearest float: every product below it fits.
        Ok(value) if value * (worth as f64) < 18_446_744_073_709_551_616.0 => Ok((value * worth as f64).round() as u64),
        _ => Err(large()),
    }
}

/// `text` as a number times what its unit is worth. `units` has the possible units, and `what` says what is measured.
fn scaled(text: &str, what: &str, units: &[(&str, u64)], example: &str) -> Result<u64, String> {
    let named = || units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ");
    let Some((number, unit)) = split(text) else {
        return Err(format!("'{text}' is no {what}: write a number and its unit ({}), such as \"{example}\"", named()));
    };
    match units.iter().find(|(name, _)| *name == unit) {
        Some((_, worth)) => product(text, number, *worth),
        None if unit.is_empty() => {
            Err(format!("'{text}' has no unit: write {} after the number, as in \"{example}\"", either(&named())))
        }
        None => Err(format!("'{unit}' is no unit of a {what}: use {}, as in \"{example}\"", either(&named()))),
    }
}

/// `ns, us, ms, s` as `ns, us, ms or s`.
fn either(list: &str) -> String {
    match list.rsplit_once(", ") {
        Some((most, last)) => format!("{most} or {last}"),
        None => list.to_owned(),
    }
}

const TIMES: [(&str, u64); 5] = [("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// A time, in nanoseconds: `20us`, `1.5 ms`. A bare 0 needs no unit; fractions of a nanosecond are rounded.
///
/// # Errors
/// The text is no number with one of the units, which the message names, or the value is larger than 64 bits hold.
pub fn time_ns(text: &str) -> Result<u64, String> {
    if text.trim() == "0" {
        return Ok(0);
    }
    scaled(text, "time", &TIMES, "20us")
}

/// A share, in 1/1000: `30%`.
///
/// # Errors
/// As [`time_ns`].
pub fn share_permille(text: &str) -> Result<u64, String> {
    scaled(text, "share", &[("%", 10)], "30%")
}

/// A speed, in bits per second: `100Gbit/s`.
///
/// # Errors
/// As [`time_ns`].
pub fn bits_per_s(text: &str) -> Result<u64, String> {
    scaled(text, "speed", &[("Mbit/s", 1_000_000), ("Gbit/s", 1_000_000_000)], "100Gbit/s")
}

/// A frequency, in Hz: `3.3GHz`.
///
/// # Errors
/// As [`time_ns`].
pub fn hz(text: &str) -> Result<u64, String> {
    scaled(text, "frequency", &[("MHz", 1_000_000), ("GHz", 1_000_000_000)], "3.3GHz")
}

/// A size, in bytes: `300B`, `1KiB`, `2GiB`.
///
/// # Errors
/// As [`time_ns`].
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    scaled(text, "size", &units, "300B")
}

const COUNTS: [(&str, u64); 7] = [
    ("", 1),
    ("K", 1_000),
    ("k", 1_000),
    ("M", 1_000_000),
    ("m", 1_000_000),
    ("G", 1_000_000_000),
    ("g", 1_000_000_000),
];

/// A rate, per second: `12345`, `400K`, `1.2M`. Fractions are rounded.
///
/// # Errors
/// As [`time_ns`].
pub fn rate_per_s(text: &str) -> Result<u64, String> {
    scaled(text, "rate", &COUNTS, "400K")
}

/// A count: `4480`, `400K`, `1.5M`.
///
/// # Errors
/// As [`time_ns`]; also a count that is not a whole number.
pub fn count(text: &str) -> Result<u64, String> {
    let value = scaled(text, "count", &COUNTS, "400K")?;
    // A number of thousands may have three decimals, one of millions six, and so on; a number without a suffix has
    // none.
    let (number, unit) = split(text).unwrap_or_default();
    let zeros = match unit {
        "" => 0,
        "K" | "k" => 3,
        "M" | "m" => 6,
        _ => 9,
    };
    let decimals = number.split_once('.').map_or("", |(_, decimals)| decimals.trim_end_matches('0'));
    if decimals.len() > zeros { Err(format!("'{text}' is no whole number")) } else { Ok(value) }
}

/// A time as a person writes it. It is exact: `20us`, `1.5ms`, `1234.567us`.
pub fn time_text(ns: u64) -> String {
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    for (unit, worth) in units {
        // A unit is used if three decimals are enough in it; otherwise the next smaller one is tried.
        if ns >= worth && ns.is_multiple_of(worth / 1_000) {
            let (whole, thousandths) = (ns / worth, ns % worth / (worth / 1_000));
            let decimals = format!("{thousandths:03}");
            let decimals = decimals.trim_end_matches('0');
            return if decimals.is_empty() { format!("{whole}{unit}") } else { format!("{whole}.{decimals}{unit}") };
        }
    }
    format!("{ns}ns")
}

/// A rate as the tables write it: `400K`, `12345`.
pub fn rate_text(per_s: f64) -> String {
    let whole = per_s.round();
    if whole >= 1e3 && whole % 1e3 == 0.0 { format!("{}K", whole / 1e3) } else { format!("{whole}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        assert_eq!(time_ns("20us"), Ok(20_000));
        assert_eq!(time_ns("1.5 ms"), Ok(1_500_000));
        assert_eq!(time_ns("6.2µs"), Ok(6_200));
        assert_eq!(share_permille("12.5%"), Ok(125));
        assert_eq!(bits_per_s("100Gbit/s"), Ok(100_000_000_000));
        assert_eq!(hz("3.3GHz"), Ok(3_300_000_000));
        assert_eq!(bytes("2KiB"), Ok(2_048));
        assert_eq!(count("400K"), Ok(400_000));
        assert_eq!(count("4480"), Ok(4_480));
        assert_eq!((count("1.5K"), count("2m")), (Ok(1_500), Ok(2_000_000)));
        assert_eq!((time_ns("0"), time_ns("18446744073709551615ns")), (Ok(0), Ok(u64::MAX)));
    }

    #[test]
    fn what_is_wrong_is_named_with_the_units_that_there_are() {
        let said = |result: Result<u64, String>| result.unwrap_err();
        let no_unit = "'20' has no unit: write ns, us, µs, ms or s after the number, as in \"20us\"";
        assert_eq!(said(time_ns("20")), no_unit);
        assert_eq!(said(time_ns("20 min")), "'min' is no unit of a time: use ns, us, µs, ms or s, as in \"20us\"");
        for bad in ["", "us", "-3us", "1e9us", "1..2us", "nan", "infs", "99999999999s", "99999999999.5s"] {
            assert!(time_ns(bad).is_err(), "{bad}");
        }
        assert!(said(bits_per_s("100G")).contains("Mbit/s or Gbit/s"));
        assert_eq!(said(share_permille("30")), "'30' has no unit: write % after the number, as in \"30%\"");
        assert_eq!(said(count("1.5")), "'1.5' is no whole number");
    }

    #[test]
    fn what_is_written_is_short_and_read_back() {
        for (ns, text) in [
            (900, "900ns"),
            (20_000, "20us"),
            (6_250, "6.25us"),
            (1_500_000, "1.5ms"),
            (2_000_000_000, "2s"),
            (1_234_567, "1234.567us"),
            (20_000_000_001, "20000000.001us"),
        ] {
            assert_eq!(time_text(ns), text);
            assert_eq!(time_ns(text), Ok(ns));
        }
        assert_eq!(rate_text(400_000.0), "400K");
        assert_eq!(rate_text(12_345.0), "12345");
    }
}
