//! The help of options that take a mode. Names and lines come from the core's catalogue.

use lull_core::mode::{self, Plane};

/// The text for `lull -h`: what the option takes, and the names.
pub fn short(what: &str, plane: Plane) -> String {
    format!("{what}: {} (X in microseconds)", mode::names(plane))
}

/// The text for `lull --help`: the same with a line for each mode.
pub fn long(what: &str, plane: Plane) -> String {
    format!("{what}, X in microseconds:\n\n{}", mode::help(plane))
}

/// Returns the given names, each once: a mode that is measured twice would look like one with narrower intervals.
pub fn once(given: &[String]) -> Vec<&str> {
    let named = given.iter().enumerate();
    named.filter(|&(at, name)| !given[..at].contains(name)).map(|(_, name)| name.as_str()).collect()
}

/// Returns the given names, or else the default ones.
pub fn named<'a>(given: &'a [String], default: &[&'a str]) -> Vec<&'a str> {
    if given.is_empty() { default.to_vec() } else { once(given) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_is_named_twice_is_one() {
        let given = ["suspend20", "base", "suspend20", "base"].map(str::to_owned);
        assert_eq!(named(&given, &["fullbusy"]), ["suspend20", "base"]);
        assert_eq!(named(&[], &["fullbusy"]), ["fullbusy"]);
    }

    #[test]
    fn every_mode_of_the_plane_is_named_and_explained() {
        assert!(short("The mode", Plane::Kernel).contains("base, deferX, napibusy"));
        let long = long("The mode", Plane::User);
        assert_eq!(long.lines().count(), 2 + mode::CATALOGUE.len(), "{long}");
    }
}
