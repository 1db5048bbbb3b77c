//! Known bugs of the core, switched on in random worlds: each must be caught within the default run, and by an
//! invariant rather than by what comes of it.

use lull_core::napi::Mutant;

use crate::random::plan::Plan;
use crate::random::report_with;
use crate::sim::Sim;

/// Worlds of a default run.
const WORLDS: u64 = 2_000;

/// What a world is made of.
fn size(plan: &Plan) -> usize {
    let world = &plan.world;
    world.queues.len() + world.contexts.len() + world.workers.len() + world.connections.len() + plan.script.len()
}

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
        assert!(size(&shrunk.plan) < size(&plan), "{} against {}", shrunk.plan, plan);
        let (replayed, _) = shrunk.plan.run_with(0, switch_on(mutant));
        assert_eq!(replayed.violation, Some(shrunk.violation.clone()), "a shrunk world replays");
        let report = report_with(seed, &switch_on(mutant));
        assert!(report.contains(&format!("lull sim replay {seed} --shrunk")));
        assert!(report.contains("poll begins") && report.contains(&shrunk.violation.to_string()));
        println!("{report}");
        assert_eq!(Plan::random(seed).run().violation, None, "the real rules pass the same world");
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
