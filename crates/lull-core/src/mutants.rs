//! The known bugs of the past, and the checks that catch them: a small exhaustive search over what may happen during a
//! busy poller's last poll. Here rather than beside the other tests, as the mutants are compiled in with `cfg(test)`.

#[path = "../tests/toy/mod.rs"]
mod toy;

use crate::napi::Mutant;
use crate::{BusyEnd, BusyPlan, NapiSettings};
use toy::{MS, Toy, US, settings};

const GRO_FLUSH: u64 = 20 * US;

/// What happens between the device's side of a poll and what follows it.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    /// A packet, and its interrupt.
    Packet,
    /// Time passes, and the timer interrupt with it: the poll was slow.
    Timer,
}

#[derive(Clone, Copy, Debug)]
struct Scenario {
    deferred: bool,
    ring: u32,
    prefer: bool,
    with: NapiSettings,
    during_round: Meanwhile,
    during_last_poll: Meanwhile,
}

fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    let meanwhile = [Meanwhile::Nothing, Meanwhile::Packet, Meanwhile::Timer];
    for with in [settings(0, 0, 0), settings(0, GRO_FLUSH, 0), settings(1, GRO_FLUSH, 0), settings(3, GRO_FLUSH, 0)] {
        for (deferred, prefer) in [(false, false), (false, true), (true, false), (true, true)] {
            for ring in 0..4 {
                for during_round in meanwhile {
                    for during_last_poll in meanwhile {
                        all.push(Scenario { deferred, ring, prefer, with, during_round, during_last_poll });
                    }
                }
            }
        }
    }
    all
}

fn let_happen(toy: &mut Toy, what: Meanwhile) {
    match what {
        Meanwhile::Nothing => {}
        Meanwhile::Packet => {
            toy.packets(0, 1);
            toy.irq(0);
        }
        Meanwhile::Timer => {
            toy.now_ns += GRO_FLUSH;
            (0..2).for_each(|cpu| {
                toy.timers(cpu);
            });
        }
    }
}

/// One busy call of one round with a budget of one packet, and then time; the invariant that broke, or what was lost.
fn run(mutant: Mutant, scenario: Scenario) -> Result<(), String> {
    let mut toy = Toy::new(1, scenario.with);
    toy.queues[0].edge = true;
    toy.napi(0).set_mutant(mutant);
    if scenario.deferred {
        toy.packets(0, 1);
        toy.pending();
    }
    // These came without an interrupt: masked, or just before the poller that takes them.
    toy.queues[0].ring = scenario.ring;
    toy.queues[0].pending = toy.queues[0].masked && scenario.ring > 0;
    toy.queues[0].latched = !toy.queues[0].masked && scenario.ring > 0;
    let plan = BusyPlan { napi_id: toy.napi(0).id(), prefer: scenario.prefer, budget: 1, end: BusyEnd::OneRound };
    let mut busier = toy.busy_begin(plan, 1).expect("the id is known");
    toy.busy_round(&mut busier);
    let_happen(&mut toy, scenario.during_round);
    toy.during_poll(move |toy| let_happen(toy, scenario.during_last_poll));
    toy.busy_stop(busier);
    toy.check()?;
    toy.run_for(MS);
    toy.check()?;
    if toy.queues[0].ring == 0 { Ok(()) } else { Err(format!("{} packets wait for ever", toy.queues[0].ring)) }
}

/// The scenarios in which the checks complain.
fn caught(mutant: Mutant) -> Vec<(Scenario, String)> {
    scenarios()
        .into_iter()
        .filter_map(|scenario| run(mutant, scenario).err().map(|broken| (scenario, broken)))
        .collect()
}

#[test]
fn the_real_rules_pass_every_scenario() {
    assert!(scenarios().len() > 500);
    let caught = caught(Mutant::None);
    assert!(caught.is_empty(), "{caught:#?}");
}

#[test]
fn a_timer_started_before_the_last_poll_is_caught() {
    let caught = caught(Mutant::TimerBeforeLastPoll);
    assert!(!caught.is_empty());
    for (scenario, broken) in caught {
        // A full and slow last poll swallows the timer that was to stand in for the interrupt.
        assert!(matches!(scenario.during_last_poll, Meanwhile::Timer), "{scenario:?}: {broken}");
        assert!(scenario.prefer && scenario.with.defer_hard_irqs > 0, "{scenario:?}: {broken}");
        assert!(broken.starts_with("I2"), "{scenario:?}: {broken}");
    }
}

#[test]
fn missed_cleared_after_the_last_poll_is_caught() {
    let caught = caught(Mutant::MissedClearedAfterPoll);
    assert!(!caught.is_empty());
    for (scenario, broken) in caught {
        // The interrupt of the last poll is forgotten, and nothing looks at the ring again.
        assert!(matches!(scenario.during_last_poll, Meanwhile::Packet), "{scenario:?}: {broken}");
        assert!(broken.contains("I2"), "{scenario:?}: {broken}");
    }
}
