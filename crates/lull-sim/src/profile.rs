//! Profiles: sets of costs that a world file builds on, by name.

use crate::cache::CacheSpec;
use crate::costs::Costs;
use crate::params::Params;
use crate::published::{KNOWN, PARAMS_TOML, service_world};

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
pub static PROFILES: [Profile; 2] = [
    Profile {
        name: "epyc-7662",
        what: "fitted to 24 of the 72 published cells of the IRQ suspension series v6: memcached, EPYC 7662, \
        ConnectX-5",
        hz: 3_300_000_000,
        costs: fitted,
    },
    Profile {
        name: "round",
        what: "round figures of a server of the 2020s, fitted to nothing",
        hz: 3_000_000_000,
        costs: || (Costs::default(), CacheSpec::default()),
    },
];

/// The costs of the published machine.
fn fitted() -> (Costs, CacheSpec) {
    // The file is part of the program, and a test reads it.
    let Ok(params) = Params::parse(PARAMS_TOML, &KNOWN) else { return (Costs::default(), CacheSpec::default()) };
    let Ok(base) = "base".parse() else { return (Costs::default(), CacheSpec::default()) };
    let world = service_world(&params, &base, None);
    (world.costs, world.cache)
}

/// The profile of this name.
pub fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

/// The names of all, for messages.
pub fn names() -> String {
    PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_has_the_fitted_costs() {
        let (costs, cache) = PROFILES[0].costs();
        let params = Params::parse(PARAMS_TOML, &KNOWN).unwrap();
        assert_eq!(costs.irq_ns, params.whole("irq_ns"));
        assert_eq!(cache.capacity_requests, params.whole("cache_requests"));
        assert_ne!(costs, Costs::default());
        assert!(find("round").is_some() && find("square").is_none());
    }
}
