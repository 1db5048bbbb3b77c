//! Colour, marker and place of each test case. Families share a hue, and longer timeouts have a deeper shade.

use std::fmt::Write as _;

/// A family of test cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Interrupts without deferral.
    Base,
    /// Deferral.
    Defer,
    /// Suspension.
    Suspend,
    /// Busy polling.
    Busy,
    /// Everything else.
    Other,
}

/// How one test case is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its family.
    pub family: Family,
    /// Its shade within the family, from 0 (light) to 4.
    pub shade: usize,
}

/// The number of shades of a family.
const SHADES: usize = 5;

/// Colours on a light page, by family and shade.
const LIGHT: [(Family, [&str; SHADES]); 5] = [
    (Family::Base, ["#4a4a4a"; SHADES]),
    (Family::Defer, ["#9ec9ee", "#6fb0e6", "#3a8ad0", "#1f66ac", "#0d4178"]),
    (Family::Suspend, ["#9ccb6a", "#57b356", "#2c9549", "#12773a", "#075428"]),
    (Family::Busy, ["#c4161c", "#f07f2e", "#8a1538", "#d9534f", "#b5651d"]),
    (Family::Other, ["#b48ad6", "#8f5cc0", "#6c3aa3", "#b0457f", "#8a6d3b"]),
];

/// Colours on a dark page, by family and shade.
const DARK: [(Family, [&str; SHADES]); 5] = [
    (Family::Base, ["#d0d0d0"; SHADES]),
    (Family::Defer, ["#d3e8fa", "#b4d7f6", "#84bcef", "#559ee4", "#377fc9"]),
    (Family::Suspend, ["#dcf2c2", "#b2e39c", "#80d28a", "#4fba6c", "#339a56"]),
    (Family::Busy, ["#ff6b6b", "#ffb26b", "#e78aa8", "#ff9c99", "#d9a066"]),
    (Family::Other, ["#dcc6f0", "#c7a4ea", "#a97fdb", "#e39ac0", "#cbb27c"]),
];

/// Returns how a test case is drawn, by its name.
pub fn look(testcase: &str) -> Look {
    // The text behind the slash is a timeout in place of the mode's own.
    let testcase = testcase.split('/').next().unwrap_or(testcase);
    let timeout = |prefix: &str| testcase.strip_prefix(prefix).and_then(|x| x.parse::<u32>().ok());
    if let Some(us) = timeout("defer") {
        return Look { family: Family::Defer, shade: shade_of_timeout(us) };
    }
    if let Some(us) = timeout("suspend") {
        return Look { family: Family::Suspend, shade: shade_of_timeout(us) };
    }
    let (family, shade) = match testcase {
        "base" => (Family::Base, 0),
        "fullbusy" => (Family::Busy, 0),
        "napibusy" => (Family::Busy, 1),
        "busyread" => (Family::Busy, 2),
        "busyread-separate" => (Family::Busy, 3),
        "longgro" => (Family::Busy, 4),
        "threaded" => (Family::Other, 0),
        "threaded-busy" => (Family::Other, 1),
        "group" => (Family::Other, 2),
        name if name.starts_with("coalesce-") => (Family::Other, 3),
        _ => (Family::Other, 4),
    };
    Look { family, shade }
}

fn shade_of_timeout(us: u32) -> usize {
    match us {
        0 => 0,
        1..15 => 1,
        15..35 => 2,
        35..100 => 3,
        _ => 4,
    }
}

impl Look {
    /// Returns the style class that carries its colour.
    pub fn class(self) -> String {
        format!("c-{:?}-{}", self.family, self.shade).to_lowercase()
    }

    /// Returns the path of its marker around (0, 0), so that members of a family differ without colour.
    pub fn marker(self) -> &'static str {
        let round = "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0Z";
        match (self.family, self.shade) {
            (Family::Base, _) => round,
            (_, 0) => round,
            (_, 1) => "M-3.3,-3.3H3.3V3.3H-3.3Z",
            (_, 2) => "M0,-4.4L4.2,3.2H-4.2Z",
            (_, 3) => "M0,-4.8L4.4,0L0,4.8L-4.4,0Z",
            _ => "M0,4.4L4.2,-3.2H-4.2Z",
        }
    }
}

/// Returns the style rules of all colours, for both schemes.
pub fn css() -> String {
    let variables = |table: &[(Family, [&str; SHADES])]| {
        let mut text = String::new();
        for (family, colours) in table {
            for (shade, colour) in colours.iter().enumerate() {
                // Writing to a String cannot fail.
                let _ = write!(text, "--{}:{colour};", Look { family: *family, shade }.class());
            }
        }
        text
    };
    let mut css = format!(
        ":root{{{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n",
        variables(&LIGHT),
        variables(&DARK)
    );
    for (family, colours) in &LIGHT {
        for shade in 0..colours.len() {
            let class = Look { family: *family, shade }.class();
            let _ = writeln!(css, ".{class}{{--c:var(--{class})}}");
        }
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::MODES_DEFAULT;

    #[test]
    fn no_two_published_cases_look_alike() {
        for (i, one) in MODES_DEFAULT.iter().enumerate() {
            for other in &MODES_DEFAULT[i + 1..] {
                assert_ne!(look(one), look(other), "{one} {other}");
            }
        }
    }

    #[test]
    fn every_look_has_a_colour_in_both_schemes() {
        let css = css();
        for mode in MODES_DEFAULT {
            let class = look(mode).class();
            assert_eq!(css.matches(&format!("--{class}:#")).count(), 2, "{class}");
        }
    }
}
