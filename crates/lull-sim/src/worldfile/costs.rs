//! Costs: the profile, `[costs]`, and the cost of a request.

use std::ops::RangeInclusive;

use super::calibrate::{self, Division};
use super::check::Check;
use super::error::WorldFileError;
use super::file::WorldFile;
use super::raw::{Over, Raw};
use super::request_cost::RequestCost;
use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::profile::{self, PROFILES, Profile};

/// The least time that an application can take is less than the least that can be measured for a request.
const OWN_COST: RangeInclusive<u64> = 10..=100_000_000;
pub(super) const COST: RangeInclusive<u64> = 100..=100_000_000;
const CACHE_REQUESTS: RangeInclusive<u64> = 1..=100_000;
const STEP: RangeInclusive<u64> = 0..=10_000_000;

/// What the parts of delivery cost.
pub(super) struct Charged {
    pub(super) profile: &'static Profile,
    pub(super) costs: Costs,
    pub(super) cache: CacheSpec,
    /// The keys of `[costs]` that were given.
    pub(super) overridden: Vec<&'static str>,
}

/// Returns the profile's costs, with those that the file gives in their place.
pub(super) fn charged(check: &Check<'_>, raw: &Raw) -> Result<Charged, WorldFileError> {
    let profile = profile_of(check, raw)?;
    let (mut costs, mut cache) = profile.costs();
    let mut over = Over { costs: &mut costs, cache: &mut cache };
    let overridden = raw.costs.put_over(&mut over, |key, value| check.time(&format!("costs.{key}"), value, &STEP))?;
    if let Some(requests) = &raw.costs.cache_requests {
        cache.capacity_requests = check.count("costs.cache_requests", requests, &CACHE_REQUESTS)? as u32;
    }
    idle(check, raw, &mut costs)?;
    Ok(Charged { profile, costs, cache, overridden })
}

fn profile_of(check: &Check<'_>, raw: &Raw) -> Result<&'static Profile, WorldFileError> {
    let Some(name) = &raw.costs.profile else {
        let user = raw.machine.plane.as_ref().is_some_and(|plane| plane.get_ref() == "user");
        return Ok(match raw.is_af_xdp() {
            true => &profile::XSK_RR,
            false if user => &profile::LULL_USER,
            false => PROFILES[0],
        });
    };
    profile::find(name.get_ref()).ok_or_else(|| {
        let problem = format!("'{}' is no profile of costs: allowed are {}", name.get_ref(), profile::names());
        check.error("costs.profile", name, problem)
    })
}

/// Returns the costs of idle states: `machine.idle` leaves out the deep one, or both.
fn idle(check: &Check<'_>, raw: &Raw, costs: &mut Costs) -> Result<(), WorldFileError> {
    let Some(idle) = &raw.machine.idle else { return Ok(()) };
    match idle.get_ref().as_str() {
        "deep" => {}
        "shallow" => costs.idle_deep_residency_ns = u32::MAX,
        "poll" => (costs.idle_deep_residency_ns, costs.idle_shallow_exit_ns) = (u32::MAX, 0),
        other => {
            let problem = format!("'{other}' is no idle-state profile: allowed are \"deep\", \"shallow\" and \"poll\"");
            return Err(check.error("machine.idle", idle, problem));
        }
    }
    Ok(())
}

/// Returns the cost of a request, as it was given.
pub(super) fn request(check: &Check<'_>, raw: &Raw) -> Result<(RequestCost, Division), WorldFileError> {
    let service = &raw.service;
    let either = "give one of request_cost (CPU time of the serving thread), request_cost_total (of all cores) and \
                  request_cost_own (of the application alone)";
    let cost = match (&service.request_cost, &service.request_cost_total, &service.request_cost_own) {
        (Some(thread), None, None) => RequestCost::Thread(check.time("service.request_cost", thread, &COST)?),
        (None, Some(total), None) => RequestCost::Everything(check.time("service.request_cost_total", total, &COST)?),
        (None, None, Some(own)) => RequestCost::Own(check.time("service.request_cost_own", own, &OWN_COST)?),
        (Some(_), Some(total), _) => return Err(check.error("service.request_cost_total", total, either)),
        (_, _, Some(own)) => return Err(check.error("service.request_cost_own", own, either)),
        (None, None, None) => {
            let problem = "a service needs request_cost (CPU time of the serving thread a request), \
                           request_cost_total (of all cores) or request_cost_own (of the application alone), such as \
                           \"6.2us\"";
            return Err(check.error("service.kind", &service.kind, problem));
        }
    };
    let user_permille = check.share_or("service.user_share", &service.user_share, 300)?;
    let random_permille = check.share_or("service.random_share", &service.random_share, 0)?;
    if let (true, Some(random)) = (user_permille + random_permille > 1_000, &service.random_share) {
        let problem = format!(
            "user_share and random_share are parts of one cost: allowed is at most {}%",
            f64::from(1_000 - user_permille) / 10.0
        );
        return Err(check.error("service.random_share", random, problem));
    }
    Ok((cost, Division { user_permille, random_permille }))
}

/// Puts the cost of a request into the file's costs: unchanged, or corrected by what the simulated service shows.
pub(super) fn put_in_force(
    check: &Check<'_>,
    raw: &Raw,
    file: &mut WorldFile,
    division: Division,
) -> Result<(), WorldFileError> {
    match file.request_cost {
        RequestCost::Frame(_) => return Ok(()),
        RequestCost::Own(own_ns) => {
            calibrate::set(file, f64::from(own_ns), division);
            return Ok(());
        }
        RequestCost::Thread(_) | RequestCost::Everything(_) => {}
    }
    calibrate::fit(file, division).map_err(|problem| {
        match (&raw.service.request_cost, &raw.service.request_cost_total) {
            (Some(value), _) => check.error("service.request_cost", value, problem),
            (_, Some(value)) => check.error("service.request_cost_total", value, problem),
            (None, None) => check.error("service.kind", &raw.service.kind, problem),
        }
    })
}
