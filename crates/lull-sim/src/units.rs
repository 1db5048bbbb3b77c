//! Quantities as people write them: a number and its unit, such as `20us`, `400K`, `100Gbit/s` or `30%`.
//!
//! A quantity that has a unit is refused without one: `20` could be nanoseconds or milliseconds.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// The number in front of a unit, and the unit. Digits and at most one point: no sign, no exponent.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

/// `text` as a number times what its unit is worth; `units` names the units that there are.
fn scaled(text: &str, what: &str, units: &[(&str, f64)], example: &str) -> Result<f64, String> {
    let named = || units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ");
    let Some((number, unit)) = split(text) else {
        return Err(format!("'{text}' is no {what}: write a number and its unit ({}), such as \"{example}\"", named()));
    };
    match units.iter().find(|(name, _)| *name == unit) {
        Some((_, worth)) => Ok(number * worth),
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

const TIMES: [(&str, f64); 5] = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// A time, in nanoseconds: `20us`, `1.5 ms`.
///
/// # Errors
/// What is wrong with it, and the units that there are.
pub fn time_ns(text: &str) -> Result<u64, String> {
    // Fractions of a nanosecond are rounded; what exceeds 64 bits saturates and fails its limit.
    Ok(scaled(text, "time", &TIMES, "20us")?.round() as u64)
}

/// A share, in 1/1000: `30%`.
///
/// # Errors
/// As [`time_ns`].
pub fn share_permille(text: &str) -> Result<u64, String> {
    Ok(scaled(text, "share", &[("%", 10.0)], "30%")?.round() as u64)
}

/// A speed, in bits per second: `100Gbit/s`.
///
/// # Errors
/// As [`time_ns`].
pub fn bits_per_s(text: &str) -> Result<u64, String> {
    Ok(scaled(text, "speed", &[("Mbit/s", 1e6), ("Gbit/s", 1e9)], "100Gbit/s")?.round() as u64)
}

/// A frequency, in Hz: `3.3GHz`.
///
/// # Errors
/// As [`time_ns`].
pub fn hz(text: &str) -> Result<u64, String> {
    Ok(scaled(text, "frequency", &[("MHz", 1e6), ("GHz", 1e9)], "3.3GHz")?.round() as u64)
}

/// A size, in bytes: `300B`, `1KiB`, `2GiB`.
///
/// # Errors
/// As [`time_ns`].
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];
    Ok(scaled(text, "size", &units, "300B")?.round() as u64)
}

/// A count: `4480`, `400K`, `50M`.
///
/// # Errors
/// As [`time_ns`].
pub fn count(text: &str) -> Result<u64, String> {
    let units = [("", 1.0), ("K", 1e3), ("M", 1e6), ("G", 1e9)];
    let value = scaled(text, "count", &units, "400K")?;
    if value.fract() == 0.0 { Ok(value as u64) } else { Err(format!("'{text}' is no whole number")) }
}

/// A time as a person writes it: `20us`, `1.5ms`.
pub fn time_text(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    // Three decimals are all that a nanosecond in microseconds needs.
    format!("{}{unit}", format!("{value:.3}").trim_end_matches('0').trim_end_matches('.'))
}

/// A rate as the tables write it: `400K`, `12345`.
pub fn rate_text(per_s: f64) -> String {
    let whole = per_s.round();
    if whole >= 1e3 && whole % 1e3 == 0.0 { format!("{}K", whole / 1e3) } else { format!("{whole}") }
}

macro_rules! quantity {
    ($($(#[$doc:meta])* $name:ident: $parse:path, $what:literal, $example:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) u64);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("a ", $what, " with its unit in quotes, such as \"", $example, "\""))
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $parse(text).map($name).map_err(E::custom)
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        // Only a count is whole without a unit.
                        $parse(&number.to_string()).map($name).map_err(E::custom)
                    }

                    fn visit_f64<E: de::Error>(self, number: f64) -> Result<$name, E> {
                        $parse(&number.to_string()).map($name).map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Reader)
            }
        }
    )*};
}

quantity! {
    /// Nanoseconds.
    Time: time_ns, "time", "20us";
    /// Thousandths.
    Share: share_permille, "share", "30%";
    /// Bits per second.
    Speed: bits_per_s, "speed", "100Gbit/s";
    /// Hz.
    Frequency: hz, "frequency", "3.3GHz";
    /// Bytes.
    Size: bytes, "size", "300B";
    /// A whole number.
    Count: count, "count", "4480";
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
    }

    #[test]
    fn what_is_wrong_is_named_with_the_units_that_there_are() {
        let said = |result: Result<u64, String>| result.unwrap_err();
        let no_unit = "'20' has no unit: write ns, us, µs, ms or s after the number, as in \"20us\"";
        assert_eq!(said(time_ns("20")), no_unit);
        assert_eq!(said(time_ns("20 min")), "'min' is no unit of a time: use ns, us, µs, ms or s, as in \"20us\"");
        for bad in ["", "us", "-3us", "1e9us", "1..2us", "nan", "infs"] {
            assert!(time_ns(bad).is_err(), "{bad}");
        }
        assert!(said(bits_per_s("100G")).contains("Mbit/s or Gbit/s"));
        assert_eq!(said(share_permille("30")), "'30' has no unit: write % after the number, as in \"30%\"");
        assert_eq!(said(count("1.5")), "'1.5' is no whole number");
    }

    #[test]
    fn what_is_written_is_short_and_read_back() {
        for (ns, text) in
            [(900, "900ns"), (20_000, "20us"), (6_250, "6.25us"), (1_500_000, "1.5ms"), (2_000_000_000, "2s")]
        {
            assert_eq!(time_text(ns), text);
            assert_eq!(time_ns(text), Ok(ns));
        }
        assert_eq!(rate_text(400_000.0), "400K");
        assert_eq!(rate_text(12_345.0), "12345");
    }
}
