//! Parameters of a calibrated world: one file, in which each has a unit, a value, a plausible range and a meaning. A
//! value outside its range is an error, because it would fit the faults of the model and not the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One parameter.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// The plausible range, both ends included.
    pub range: [f64; 2],
    /// What it means.
    pub meaning: String,
}

/// A set of parameters by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Params(BTreeMap<String, Param>);

/// The error of a parameter file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsError {
    /// It cannot be read as TOML, or a parameter lacks a part.
    #[error("the parameter file cannot be read: {}", .0.trim_end())]
    Toml(String),
    /// The world does not know the parameter's name.
    #[error("no parameter is named '{0}': remove it")]
    Unknown(String),
    /// A parameter that the world needs is missing.
    #[error("the parameter '{0}' is missing: add it with value, unit, range, meaning")]
    Missing(&'static str),
    /// A parameter has another unit than the world's.
    #[error("the parameter '{name}' has the unit '{unit}': it is given in {needed}")]
    Unit {
        /// The parameter.
        name: String,
        /// The unit that it has.
        unit: String,
        /// The unit that it needs.
        needed: &'static str,
    },
    /// A value is outside its plausible range.
    #[error(
        "the parameter '{name}' is {value}, outside its plausible range [{}, {}]: a machine has no such value",
        range[0],
        range[1]
    )]
    Range {
        /// The parameter.
        name: String,
        /// Its value.
        value: f64,
        /// Its range.
        range: [f64; 2],
    },
}

impl Params {
    /// Reads a file's text and checks it against the names and units that the world knows.
    ///
    /// # Errors
    ///
    /// This fails with the first error that is found.
    pub fn parse(text: &str, known: &[(&'static str, &'static str)]) -> Result<Params, ParamsError> {
        let map: BTreeMap<String, Param> =
            toml::from_str(text).map_err(|error| ParamsError::Toml(error.to_string()))?;
        for (name, param) in &map {
            let Some(&(_, needed)) = known.iter().find(|(known, _)| known == name) else {
                return Err(ParamsError::Unknown(name.clone()));
            };
            if param.unit != needed {
                return Err(ParamsError::Unit { name: name.clone(), unit: param.unit.clone(), needed });
            }
        }
        if let Some(&(name, _)) = known.iter().find(|(name, _)| !map.contains_key(*name)) {
            return Err(ParamsError::Missing(name));
        }
        let params = Params(map);
        params.check()?;
        Ok(params)
    }

    /// Makes a set of parameters.
    ///
    /// # Errors
    ///
    /// This fails with the first value outside its range.
    pub fn new(params: BTreeMap<String, Param>) -> Result<Params, ParamsError> {
        let params = Params(params);
        params.check()?;
        Ok(params)
    }

    /// Checks the ranges.
    ///
    /// # Errors
    ///
    /// This fails with the first value that is outside its range, or not a number.
    pub fn check(&self) -> Result<(), ParamsError> {
        for (name, param) in &self.0 {
            let [low, high] = param.range;
            if !(low..=high).contains(&param.value) {
                return Err(ParamsError::Range { name: name.clone(), value: param.value, range: param.range });
            }
        }
        Ok(())
    }

    /// Returns a value. The names were checked when the file was read.
    pub fn get(&self, name: &str) -> f64 {
        self.0.get(name).map_or(f64::NAN, |param| param.value)
    }

    /// Returns a value in whole units.
    pub fn whole(&self, name: &str) -> u32 {
        self.get(name).round() as u32
    }

    /// Changes a value, and keeps it within its range.
    pub fn set(&mut self, name: &str, value: f64) {
        if let Some(param) = self.0.get_mut(name) {
            // It keeps four digits, because more would claim a precision that no fit has.
            let digits = 3 - libm::floor(libm::log10(value.abs().max(1e-9))) as i32;
            let scale = libm::pow(10.0, f64::from(digits));
            param.value = ((value * scale).round() / scale).clamp(param.range[0], param.range[1]);
        }
    }

    /// Returns all parameters, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Param)> {
        self.0.iter().map(|(name, param)| (name.as_str(), param))
    }

    /// Returns the same parameters with all fixed except those whose names begin with `prefix`: a fit does not move a
    /// parameter without a range.
    #[must_use]
    pub fn held_but(&self, prefix: &str) -> Params {
        let mut held = self.clone();
        for (_, param) in held.0.iter_mut().filter(|(name, _)| !name.starts_with(prefix)) {
            param.range = [param.value; 2];
        }
        held
    }

    /// Returns the same values with the ranges of `other`.
    #[must_use]
    pub fn with_ranges_of(&self, other: &Params) -> Params {
        let mut params = self.clone();
        for (name, param) in &mut params.0 {
            param.range = other.0.get(name).map_or(param.range, |other| other.range);
        }
        params
    }

    /// Returns the text of a file with these parameters.
    ///
    /// # Errors
    ///
    /// This fails if they cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String, ParamsError> {
        toml::to_string(&self.0).map_err(|error| ParamsError::Toml(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [(&str, &str); 1] = [("poll_ns", "ns")];

    fn file(value: &str, unit: &str) -> String {
        format!("[poll_ns]\nvalue = {value}\nunit = \"{unit}\"\nrange = [100, 500]\nmeaning = \"one poll\"\n")
    }

    #[test]
    fn a_value_outside_its_range_is_an_error() {
        assert!(Params::parse(&file("100", "ns"), &KNOWN).is_ok());
        let error = Params::parse(&file("501", "ns"), &KNOWN).unwrap_err().to_string();
        assert!(error.contains("'poll_ns' is 501") && error.contains("[100, 500]"), "{error}");
        assert!(Params::parse(&file("nan", "ns"), &KNOWN).is_err());
    }

    #[test]
    fn what_is_held_has_no_range_until_it_is_given_back() {
        let text = file("200", "ns") + &file("300", "ns").replace("poll_ns", "pole_ns");
        let params = Params::parse(&text, &[("poll_ns", "ns"), ("pole_ns", "ns")]).unwrap();
        let mut held = params.held_but("poll");
        held.set("poll_ns", 250.0);
        held.set("pole_ns", 250.0);
        assert_eq!((held.get("poll_ns"), held.get("pole_ns")), (250.0, 300.0));
        held.set("poll_ns", 200.0);
        assert_ne!(held, params);
        assert_eq!(held.with_ranges_of(&params), params);
    }

    #[test]
    fn unknown_missing_and_mismatched_parameters_are_named() {
        assert_eq!(Params::parse("", &KNOWN), Err(ParamsError::Missing("poll_ns")));
        let error = Params::parse(&file("200", "us"), &KNOWN).unwrap_err().to_string();
        assert!(error.contains("'us'") && error.contains("ns"), "{error}");
        let unknown = file("200", "ns").replace("poll_ns", "pole_ns");
        assert_eq!(Params::parse(&unknown, &KNOWN), Err(ParamsError::Unknown("pole_ns".into())));
    }
}
