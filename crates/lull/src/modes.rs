//! Help of the options that take a mode: names and lines come from the core's catalogue.

use lull_core::mode::{self, Plane};

/// Below `lull -h`: what the option takes, and the names.
pub fn short(what: &str, plane: Plane) -> String {
    format!("{what}: {} (X in microseconds)", mode::names(plane))
}

/// Below `lull --help`: the same with a line for each mode.
pub fn long(what: &str, plane: Plane) -> String {
    format!("{what}, X in microseconds:\n\n{}", mode::help(plane))
}

/// The names that were given, or else the default.
pub fn named<'a>(given: &'a [String], default: &[&'a str]) -> Vec<&'a str> {
    if given.is_empty() { default.to_vec() } else { given.iter().map(String::as_str).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_of_the_plane_is_named_and_explained() {
        assert!(short("The mode", Plane::Kernel).contains("base, deferX, napibusy"));
        let long = long("The mode", Plane::User);
        assert_eq!(long.lines().count(), 2 + mode::CATALOGUE.len(), "{long}");
    }
}
