//! Known bugs of the core, switched on in random worlds: each must be caught within the default run, and by an invariant rather
//! than by what comes of it.

use lull_core::napi::Mutant;

use crate::random::plan::Plan;
use crate::sim::Sim;

/// Worlds of a default run.
const WORLDS: u64 = 2_000;
/// Events of a caught mutant's timeline that are told.
const TOLD: usize = 40;

fn switch_on(mutant: Mutant) -> impl Fn(&Sim) {
    move |sim| sim.queues.iter().for_each(|queue| queue.napi.set_mutant(mutant))
}

/// The first seed whose world catches it, and the rule that broke. Prints the shrunk world.
fn caught(mutant: Mutant) -> (u64, &'static str) {
    for seed in 0..WORLDS {
        let plan = Plan::random(seed);
        let (verdict, _) = plan.run_with(0, switch_on(mutant));
        let Some(violation) = verdict.violation else { continue };
        println!("{mutant:?} is caught by seed {seed}, world {} of {WORLDS}: {violation}", seed + 1);
        let shrunk = plan.shrink_with(&switch_on(mutant)).expect("it fails");
        assert_eq!(shrunk.violation.rule, violation.rule);
        assert!(shrunk.plan.script.len() <= plan.script.len());
        let timeline = shrunk.plan.timeline_with(TOLD, switch_on(mutant));
        assert_eq!(timeline.verdict.violation, Some(shrunk.violation.clone()), "a shrunk world replays");
        let steps = (plan.script.len(), shrunk.plan.script.len());
        println!("shrunk in {} worlds, from {} steps of script to {}:\n{}", shrunk.tries, steps.0, steps.1, shrunk.plan);
        println!("{timeline}{}\n", shrunk.violation);
        return (seed, violation.rule);
    }
    panic!("{mutant:?} survives {WORLDS} worlds");
}

#[test]
fn a_timer_started_before_the_last_poll_is_caught() {
    assert_eq!(caught(Mutant::TimerBeforeLastPoll).1, "I2");
}

#[test]
fn missed_cleared_after_the_last_poll_is_caught() {
    assert_eq!(caught(Mutant::MissedClearedAfterPoll).1, "I2");
}
