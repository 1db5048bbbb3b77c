//! Random worlds: the simulator as the first test of the core.
//!
//! A [`Plan`] is drawn from a seed, run with the core's invariants looked at after every step, and, where one breaks,
//! shrunk until nothing can be left out. A seed replays bit for bit: `lull sim replay SEED` shows its events.
//!
//! | module | what |
//! | --- | --- |
//! | [`plan`] | what there is, drawn from a seed |
//! | [`action`], [`script`] | what is done to it while it runs |
//! | [`run`] | load, then silence, in which everything must be delivered |
//! | [`check`] | the invariants of `napi_semantics` §14 |
//! | [`shrink`] | the smallest world that still fails |
//! | `timeline` | a run, readable |
//!
//! ```
//! use lull_sim::random::Plan;
//!
//! let outcome = Plan::random(7).run();
//! assert_eq!(outcome.violation, None);
//! assert_eq!(outcome.digest, Plan::random(7).run().digest);
//! ```

pub mod action;
pub mod check;
pub mod plan;
pub mod run;
pub mod script;
mod shape;
pub mod shrink;
mod timeline;
mod words;

pub use check::Violation;
pub use plan::Plan;
pub use run::{Bound, WorldOutcome};
pub use shape::Shape;
pub use shrink::Shrunk;
pub use timeline::Timeline;

use crate::engine::transition::Coverage;

/// How many events a report shows.
const REPORTED: usize = 60;

/// Describes a failing world: shrunk, with its last events and the command that shows it again. If it does not fail,
/// the text says so.
pub fn report(seed: u64, shape: Shape) -> String {
    let Some(shrunk) = Plan::random_of(seed, shape).shrink() else {
        return format!("seed {seed} keeps every invariant\n");
    };
    let timeline = shrunk.plan.timeline(REPORTED);
    let option = match shape {
        Shape::Any => "",
        Shape::Groups => " --groups",
        Shape::Transmit => " --transmit",
    };
    let (plan, violation, tries) = (&shrunk.plan, &shrunk.violation, shrunk.tries);
    format!(
        "seed {seed} FAILED, {violation}\nshrunk in {tries} worlds; to see it again: \
         lull sim replay {seed} --shrunk{option}\n\n{plan}\n{timeline}\n"
    )
}

/// The outcome of many worlds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The worlds that were run.
    pub worlds: u64,
    /// Transitions of the core that they took.
    pub transitions: u64,
    /// Events of their agendas.
    pub events: u64,
    /// The fewest transitions that a world took.
    pub transitions_min: u64,
    /// The longest time that a world took from its last request until everything was delivered, in nanoseconds.
    pub drain_max_ns: u64,
    /// Packets that were polled, dropped on the way, and lost by resets.
    pub packets: (u64, u64, u64),
    /// Worlds that a bound ended.
    pub bounded: Vec<(u64, Bound)>,
    /// Worlds that failed.
    pub failed: Vec<(u64, Violation)>,
    /// How often each transition was taken.
    pub covered: Coverage,
}

impl Tally {
    /// Adds the outcome of the world of `seed`.
    pub fn add(&mut self, seed: u64, outcome: &WorldOutcome) {
        self.worlds += 1;
        self.transitions += outcome.transitions;
        self.events += outcome.events;
        let min = if self.worlds == 1 { u64::MAX } else { self.transitions_min };
        self.transitions_min = min.min(outcome.transitions);
        self.drain_max_ns = self.drain_max_ns.max(outcome.drain_ns);
        let (polled, dropped, flushed) = outcome.packets;
        self.packets = (self.packets.0 + polled, self.packets.1 + dropped, self.packets.2 + flushed);
        self.covered.merge(&outcome.covered);
        if let Some(bound) = outcome.bound {
            self.bounded.push((seed, bound));
        }
        if let Some(violation) = &outcome.violation {
            self.failed.push((seed, violation.clone()));
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (polled, dropped, flushed) = self.packets;
        writeln!(
            f,
            "{} worlds, {} transitions of the core ({} in the shortest world), {} events; {} packets polled, \
             {} dropped, {} lost by resets; the longest end took {} ms",
            self.worlds,
            self.transitions,
            self.transitions_min,
            self.events,
            polled,
            dropped,
            flushed,
            self.drain_max_ns / 1_000_000,
        )?;
        for (seed, bound) in &self.bounded {
            writeln!(f, "seed {seed} {bound}: its end was not checked")?;
        }
        for (seed, violation) in &self.failed {
            writeln!(f, "seed {seed} FAILED, {violation}: lull sim replay {seed}")?;
        }
        Ok(())
    }
}
