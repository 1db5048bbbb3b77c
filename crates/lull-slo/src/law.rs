//! The control law: from what a window showed to the timeouts of the next. `docs/control.md` states it in ten lines and
//! argues why it settles.

use std::collections::BTreeMap;

use lull_core::NapiSettings;

use crate::allowance::Allowance;
use crate::bounds::{AIM_PERCENT, Bounds, TIMEOUT_NS_MIN};
use crate::reading::{Latency, Reading};
use crate::{Slo, Standing, Statistic};

/// Nothing changes while the statistic that is nearest to its limit lies between these shares of it, in percent.
const CALM_PERCENT: (u64, u64) = (86, 95);
/// Packets per timeout, in hundredths: with fewer than the first a queue goes back to its interrupt, and with more than
/// the second it leaves it.
const PACKETS_PER_TIMEOUT: (u64, u64) = (45, 60);
/// The use of the CPUs, in percent, from which they are the bottleneck.
const SATURATED_PERCENT: f64 = 95.0;
/// How long a timeout that was made longer for want of CPU is not made shorter again, in nanoseconds.
const FLOOR_NS: u64 = 10_000_000_000;
/// Missed windows in a row after which an objective counts as out of reach.
const MISSED_MAX: u32 = 10;
/// The length of the first rest and of the longest one, in nanoseconds. After a rest the law tries again.
const REST_NS: (u64, u64) = (10_000_000_000, 160_000_000_000);

/// The settings that are in force.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InForce {
    /// `gro_flush_timeout` of the queues that have a timeout.
    timeout_ns: u64,
    /// `irq_suspend_timeout` of these queues.
    suspend_ns: u64,
    /// The queues, by the id of their NAPI, and whether each has its interrupt alone.
    interrupts: BTreeMap<u32, bool>,
    /// Whether the mode that was asked for is in force, and none of the above.
    asked: bool,
}

/// A rest that is twice as long each time it begins.
#[derive(Clone, Debug)]
struct Rest {
    until_ns: u64,
    next_ns: u64,
    /// The load at which it began, in packets per second.
    packets_per_s: u64,
}

impl Rest {
    fn none() -> Rest {
        Rest { until_ns: 0, next_ns: REST_NS.0, packets_per_s: 0 }
    }

    fn begin(&mut self, reading: &Reading) {
        // If no rest was needed for so long, the next one begins with the shortest length again.
        if reading.now_ns.saturating_sub(self.until_ns) >= REST_NS.1 {
            self.next_ns = REST_NS.0;
        }
        self.until_ns = reading.now_ns + self.next_ns;
        self.next_ns = (2 * self.next_ns).min(REST_NS.1);
        self.packets_per_s = reading.packets_per_s();
    }

    fn is_over(&self, reading: &Reading) -> bool {
        reading.now_ns >= self.until_ns
    }
}

/// A controller of the NAPIs of one device or process. It has no clock and does no I/O: give it a [`Reading`] when a
/// window is over ([`crate::window_is_over`]), and put [`Controller::settings`] in force.
#[derive(Clone, Debug)]
pub struct Controller {
    slo: Slo,
    bounds: Bounds,
    now: InForce,
    allowance: Allowance,
    /// A timeout that was made longer for want of CPU, and the time until which it is not made shorter.
    floor: (u64, u64),
    /// Windows in a row in which the objective was missed although CPU was left and nothing could be changed.
    missed: u32,
    /// The rest in the mode that was asked for, of an objective out of reach.
    rest: Rest,
    /// The time in which queues keep their timeouts because interrupts alone were too late, unless packets become much
    /// fewer.
    no_interrupts: Rest,
    /// The time in which suspensions stay shorter because they were too long.
    suspensions: Rest,
    /// Whether latency was ever known.
    has_seen: bool,
    changes: u64,
}

/// The statistic that is nearest to its limit.
struct Nearest {
    /// Its share of the limit, in percent.
    percent: u64,
    /// How far it is below the aim (above 0) or above it (below 0). Of several bounds it is that which asks for the
    /// shortest timeout.
    error_ns: i64,
    /// How far a statistic is above its limit; 0 if all limits are met.
    excess_ns: u64,
}

impl Controller {
    /// A controller that begins with the mode that was asked for.
    pub fn new(slo: Slo, bounds: Bounds) -> Controller {
        let now = InForce {
            timeout_ns: bounds.first_ns(),
            suspend_ns: bounds.suspend_ns_max,
            interrupts: BTreeMap::new(),
            asked: false,
        };
        Controller {
            slo,
            bounds,
            now,
            allowance: Allowance::full(),
            floor: (0, 0),
            missed: 0,
            rest: Rest::none(),
            no_interrupts: Rest::none(),
            suspensions: Rest::none(),
            has_seen: false,
            changes: 0,
        }
    }

    /// The objective.
    pub fn slo(&self) -> &Slo {
        &self.slo
    }

    /// The settings that the NAPI of this id should have now.
    pub fn settings(&self, napi_id: u32) -> NapiSettings {
        if self.now.asked {
            return self.bounds.asked;
        }
        match self.now.interrupts.get(&napi_id) {
            Some(true) => NapiSettings::default(),
            _ => self.bounds.deferred(self.now.timeout_ns, self.now.suspend_ns),
        }
    }

    /// `gro_flush_timeout` of the queues that have one, in nanoseconds.
    pub fn timeout_ns(&self) -> u64 {
        self.now.timeout_ns
    }

    /// Whether the mode that was asked for is in force, and no timeout of the controller's.
    pub fn rests(&self) -> bool {
        self.now.asked
    }

    /// How often settings were changed so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Decides after a window, and returns how that left the objective.
    pub fn decide(&mut self, reading: &Reading) -> Standing {
        let former = self.clone();
        let mut next = self.now.clone();
        let standing = self.judge(reading, &mut next);
        next.timeout_ns = next.timeout_ns.clamp(TIMEOUT_NS_MIN, self.bounds.timeout_ns_max);
        self.now = next;
        if reading.napis.iter().all(|napi| self.settings(napi.id) == former.settings(napi.id)) {
            return standing;
        }
        if !self.allowance.take(reading.now_ns) {
            // The decision does not come into force, so no rest and no floor begins with it. What was seen is kept.
            let Controller { missed, has_seen, .. } = *self;
            *self = Controller { missed, has_seen, ..former };
            return Standing::Held;
        }
        self.changes += 1;
        standing
    }

    fn judge(&mut self, reading: &Reading, next: &mut InForce) -> Standing {
        if reading.latency.is_none() {
            return self.without_latency(reading, next);
        }
        self.has_seen = true;
        let Some(latency) = reading.judged() else {
            // There are few answers: what is in force stays, and queues that have become quiet go back to their
            // interrupts.
            self.drive(reading, next, next.timeout_ns);
            return Standing::Quiet;
        };
        let nearest = self.nearest(latency);
        let standing = match self.cpus(reading, next, &nearest) {
            Some(standing) => standing,
            None if next.asked => self.resting(reading, next, &nearest),
            None => self.timeouts(reading, next, &nearest),
        };
        let is_lost = matches!(standing, Standing::Missed | Standing::OutOfReach);
        self.missed = if is_lost { self.missed.saturating_add(1) } else { 0 };
        standing
    }

    fn nearest(&self, latency: &Latency) -> Nearest {
        let mut nearest = Nearest { percent: 0, error_ns: i64::MAX, excess_ns: 0 };
        for bound in self.slo.bounds() {
            let (ns, limit_ns) = (latency.ns(bound.statistic), bound.limit_ns);
            nearest.percent = nearest.percent.max(ns.saturating_mul(100) / limit_ns);
            let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
            let error_ns = signed(limit_ns * AIM_PERCENT / 100) - signed(ns);
            // A timeout changes a mean and a median by half of itself, as long as requests are served at once.
            let halved = matches!(bound.statistic, Statistic::Avg | Statistic::P50) && error_ns > 0;
            nearest.error_ns = nearest.error_ns.min(if halved { 2 * error_ns } else { error_ns });
            // A statistic that equals its limit has missed it.
            nearest.excess_ns = nearest.excess_ns.max(ns.saturating_add(1).saturating_sub(limit_ns));
        }
        nearest
    }

    /// Decides where the CPUs are the bottleneck or are used above their bound: only a longer timeout helps.
    fn cpus(&mut self, reading: &Reading, next: &mut InForce, nearest: &Nearest) -> Option<Standing> {
        let used = reading.cpu_percent?;
        let saturated = used >= SATURATED_PERCENT && nearest.excess_ns > 0;
        if !saturated && used <= self.bounds.cpu_percent_max {
            return None;
        }
        // The mode that was asked for has no timeout that could become longer. It does not come back before its rest
        // would have ended.
        next.asked = false;
        // An interrupt for each packet costs more than a timer for several.
        self.leave_interrupts(reading, next);
        next.timeout_ns = (next.timeout_ns + next.timeout_ns / 2).min(self.bounds.timeout_ns_max);
        self.floor = (next.timeout_ns, reading.now_ns + FLOOR_NS);
        Some(Standing::CpuShort)
    }

    fn timeouts(&mut self, reading: &Reading, next: &mut InForce, nearest: &Nearest) -> Standing {
        let on_timeouts = self.has_timeouts(reading);
        let now_ns = self.now.timeout_ns;
        // If no timeout is in force, the latency is that without one.
        let from_ns = if on_timeouts { now_ns } else { 0 };
        let floor_ns = if reading.now_ns < self.floor.1 { self.floor.0 } else { TIMEOUT_NS_MIN };
        let moved = |error_ns: i64| from_ns.saturating_add_signed(error_ns).clamp(floor_ns, self.bounds.timeout_ns_max);
        let mut goal_ns = moved(nearest.error_ns);
        if !on_timeouts && nearest.excess_ns == 0 {
            // The queues have their interrupts: a timeout that was good enough before may still be.
            goal_ns = goal_ns.max(now_ns);
            next.timeout_ns = whole_us(goal_ns, now_ns);
        } else if nearest.percent > CALM_PERCENT.1 {
            return self.late(reading, next, nearest, goal_ns);
        } else if nearest.percent < CALM_PERCENT.0 {
            next.timeout_ns = whole_us(moved(nearest.error_ns / 2).min(2 * now_ns), now_ns);
        }
        if nearest.excess_ns == 0 && self.suspensions.is_over(reading) {
            next.suspend_ns = self.bounds.suspend_ns_max;
        }
        let moves = next.timeout_ns != now_ns || self.bounds.suspends && next.suspend_ns != self.now.suspend_ns;
        self.drive(reading, next, goal_ns);
        if moves { Standing::Moving } else { Standing::Met }
    }

    /// Decides where a statistic is too near to its limit, or above it.
    fn late(&mut self, reading: &Reading, next: &mut InForce, nearest: &Nearest, goal_ns: u64) -> Standing {
        let now_ns = self.now.timeout_ns;
        if !self.has_timeouts(reading) {
            // Interrupts alone are too late, perhaps by the NIC's moderation.
            self.no_interrupts.begin(reading);
            next.timeout_ns = whole_us(goal_ns, now_ns);
            self.leave_interrupts(reading, next);
            return Standing::Moving;
        }
        // A packet waits for one timeout, and then for the packets that waited with it. What is later than that has
        // another cause.
        let ours = nearest.excess_ns <= 2 * now_ns;
        if ours && goal_ns < now_ns {
            next.timeout_ns = whole_us(goal_ns, now_ns);
        } else if !ours && self.suspended_too_long(reading, nearest) {
            next.suspend_ns = (next.suspend_ns / 2).max(self.slo.tightest_ns() / 2);
            self.suspensions.begin(reading);
        }
        if *next != self.now {
            return Standing::Moving;
        }
        if nearest.excess_ns == 0 {
            return Standing::Met;
        }
        // A rest that was ended for want of CPU is not over yet.
        if self.missed >= MISSED_MAX - 1 && self.rest.is_over(reading) {
            next.asked = true;
            self.rest.begin(reading);
            return Standing::OutOfReach;
        }
        Standing::Missed
    }

    /// Whether a suspension may be what packets have waited for. It is if their queue is one that the application does
    /// not come back to.
    fn suspended_too_long(&self, reading: &Reading, nearest: &Nearest) -> bool {
        let suspends = reading.napis.iter().any(|napi| napi.suspends != Some(0));
        self.bounds.suspends
            && suspends
            && self.now.suspend_ns <= nearest.excess_ns.saturating_add(self.slo.tightest_ns())
            && self.now.suspend_ns > self.slo.tightest_ns() / 2
    }

    /// Decides while the mode that was asked for is in force because the objective was out of reach. That this mode
    /// meets the objective is no reason to leave it, since the objective would be out of reach again.
    fn resting(&mut self, reading: &Reading, next: &mut InForce, nearest: &Nearest) -> Standing {
        let (then, now) = (self.rest.packets_per_s, reading.packets_per_s());
        let other_load = now < then / 4 * 3 || now > then / 3 * 4;
        if other_load || self.rest.is_over(reading) {
            let (timeout_ns, suspend_ns) = (self.bounds.first_ns(), self.bounds.suspend_ns_max);
            *next = InForce { timeout_ns, suspend_ns, interrupts: BTreeMap::new(), asked: false };
            self.rest.until_ns = self.rest.until_ns.min(reading.now_ns);
            return Standing::Moving;
        }
        if nearest.excess_ns > 0 { Standing::OutOfReach } else { Standing::Met }
    }

    /// Decides where latency is not known. A packet's wait is bounded by half of what the objective leaves, and the use
    /// of the CPUs decides within that. If latency was known before, the mode that was asked for is in force.
    fn without_latency(&mut self, reading: &Reading, next: &mut InForce) -> Standing {
        if self.has_seen {
            next.asked = true;
            return Standing::Blind;
        }
        let (half_ns, most_ns) = (self.bounds.timeout_ns_max / 2, self.bounds.timeout_ns_max);
        let now_ns = next.timeout_ns;
        let max = self.bounds.cpu_percent_max;
        next.timeout_ns = match reading.cpu_percent {
            Some(used) if used > max && now_ns >= half_ns => now_ns + now_ns / 4,
            Some(used) if used > max * 0.75 && now_ns > half_ns => now_ns,
            Some(_) if now_ns > half_ns => (now_ns - now_ns / 5).max(half_ns),
            _ => half_ns,
        }
        .min(most_ns);
        self.drive(reading, next, next.timeout_ns);
        Standing::CpuOnly
    }

    /// Decides which queues have their interrupts alone: those whose timeout gathers less than one packet, so that each
    /// packet costs a timer instead of an interrupt.
    fn drive(&self, reading: &Reading, next: &mut InForce, goal_ns: u64) {
        let fewer = reading.packets_per_s() < self.no_interrupts.packets_per_s / 4 * 3;
        let may_leave = self.no_interrupts.is_over(reading) || fewer || reading.judged().is_none();
        for napi in &reading.napis {
            let hundredths = u128::from(napi.work) * u128::from(goal_ns) * 100 / u128::from(reading.window_ns.max(1));
            let interrupts = next.interrupts.entry(napi.id).or_default();
            if *interrupts {
                *interrupts = hundredths <= u128::from(PACKETS_PER_TIMEOUT.1);
            } else {
                *interrupts = may_leave && hundredths < u128::from(PACKETS_PER_TIMEOUT.0);
            }
        }
        next.interrupts.retain(|id, _| reading.napis.iter().any(|napi| napi.id == *id));
    }

    /// Makes queues that have packets leave their interrupts.
    fn leave_interrupts(&self, reading: &Reading, next: &mut InForce) {
        for napi in reading.napis.iter().filter(|napi| napi.work > 0) {
            next.interrupts.insert(napi.id, false);
        }
    }

    /// Whether a queue that had packets has a timeout.
    fn has_timeouts(&self, reading: &Reading) -> bool {
        let has = |id: u32| !self.now.interrupts.get(&id).copied().unwrap_or(false);
        reading.napis.iter().any(|napi| napi.work > 0 && has(napi.id))
    }
}

/// `ns` in whole microseconds, or `before_ns` if the difference is not worth a change.
fn whole_us(ns: u64, before_ns: u64) -> u64 {
    let ns = ns / 1_000 * 1_000;
    if ns.abs_diff(before_ns) < (before_ns / 20).max(1_000) { before_ns } else { ns }
}
