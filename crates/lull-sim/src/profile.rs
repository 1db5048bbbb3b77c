//! Profiles: sets of costs that a world file builds on, by name.

use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::params::Params;
use crate::published::{KNOWN, PARAMS_TOML, service_world, xsk_rr};

/// A set of costs.
#[derive(Debug)]
pub struct Profile {
    /// Its name in world files.
    pub name: &'static str,
    /// Where its costs come from.
    pub what: &'static str,
    /// The core frequency of its costs, in Hz.
    pub hz: u64,
    costs: fn() -> (Costs, CacheSpec),
}

impl Profile {
    /// Returns its costs, and its interference.
    pub fn costs(&self) -> (Costs, CacheSpec) {
        (self.costs)()
    }
}

/// The profiles; the first is the default of services that wait in epoll.
pub static PROFILES: [&Profile; 4] = [&EPYC_7662, &ROUND, &XSK_RR, &LULL_USER];

static EPYC_7662: Profile = Profile {
    name: "epyc-7662",
    what: "fitted to 24 of the 72 published cells of the IRQ suspension series v6: memcached, EPYC 7662, ConnectX-5",
    hz: 3_300_000_000,
    costs: fitted,
};

static ROUND: Profile = Profile {
    name: "round",
    what: "round figures of a server of the 2020s, fitted to nothing",
    hz: 3_000_000_000,
    costs: || (Costs::default(), CacheSpec::default()),
};

/// The default of AF_XDP responders.
pub static XSK_RR: Profile = Profile {
    name: "xsk-rr",
    what: "AF_XDP: fitted to 6 of the 20 published medians of the threaded NAPI busy poll series v4, and round figures",
    hz: 3_000_000_000,
    costs: || (af_xdp(), CacheSpec::default()),
};

/// The default of lull's own stack (`machine.plane = "user"`).
pub static LULL_USER: Profile = Profile {
    name: "lull-user",
    what: "lull's own stack in memory on a virtual machine of two cores, in round figures",
    hz: 2_600_000_000,
    costs: || (lull_user(), CacheSpec::default()),
};

/// In a process, delivery mainly costs waking a thread and taking the core from another one; a poll and a request cost
/// little.
fn lull_user() -> Costs {
    Costs {
        irq_ns: 10_000,
        timer_irq_ns: 10_000,
        timer_start_ns: 0,
        timer_late_ns: 20_000,
        softirq_ns: 50,
        poll_ns: 50,
        rx_request_ns: 150,
        wake_ns: 8_000,
        switch_ns: 2_000,
        epoll_call_ns: 100,
        epoll_sleep_ns: 4_000,
        epoll_event_ns: 20,
        busy_call_ns: 50,
        busy_round_ns: 50,
        idle_shallow_exit_ns: 18_000,
        idle_deep_residency_ns: u32::MAX,
        uncharged_in_idle: 0,
        ..Costs::default()
    }
}

/// The costs of the published AF_XDP machines.
fn af_xdp() -> Costs {
    // The file is part of the program, and a test reads it.
    Params::parse(xsk_rr::PARAMS_TOML, &xsk_rr::KNOWN)
        .map_or_else(|_| Costs::default(), |params| xsk_rr::costs(&params))
}

/// The costs of the published machine.
fn fitted() -> (Costs, CacheSpec) {
    // The file is part of the program, and a test reads it.
    let Ok(params) = Params::parse(PARAMS_TOML, &KNOWN) else { return (Costs::default(), CacheSpec::default()) };
    let Ok(base) = "base".parse() else { return (Costs::default(), CacheSpec::default()) };
    let world = service_world(&params, &base, None, 0);
    (world.costs, world.cache)
}

/// Returns the profile of this name.
pub fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.into_iter().find(|profile| profile.name == name)
}

/// Returns the names of all profiles, for messages.
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
