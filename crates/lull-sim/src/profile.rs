//! Profiles: sets of costs that a world file builds on, by name.

use crate::cache::CacheSpec;
use crate::costs::Costs;

/// A set of costs.
#[derive(Debug)]
pub struct Profile {
    /// Its name in world files.
    pub name: &'static str,
    /// Where its costs come from.
    pub what: &'static str,
    /// Core frequency that they belong to, in Hz.
    pub hz: u64,
    costs: fn() -> (Costs, CacheSpec),
}

impl Profile {
    /// Its costs, and its interference.
    pub fn costs(&self) -> (Costs, CacheSpec) {
        (self.costs)()
    }
}

/// The profiles; the first is the default.
pub static PROFILES: [Profile; 1] = [Profile {
    name: "round",
    what: "round figures of a server of the 2020s, fitted to nothing",
    hz: 3_000_000_000,
    costs: || (Costs::default(), CacheSpec::default()),
}];

/// The profile of this name.
pub fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

/// The names of all, for messages.
pub fn names() -> String {
    PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ")
}
