//! An exhaustive search over what may happen during a busy poller's last poll (`napi_semantics` §7, edges 2 and 3): a
//! packet whose interrupt finds an owner, and a timer that finds one. Both were lost by real kernels or by earlier code.
#![cfg(not(loom))]

mod toy;

use lull_core::{BusyEnd, BusyPlan, NapiSettings};
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
    end: BusyEnd,
    during_round: Meanwhile,
    during_last_poll: Meanwhile,
}

fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    let meanwhile = [Meanwhile::Nothing, Meanwhile::Packet, Meanwhile::Timer];
    for with in [settings(0, 0, 0), settings(0, GRO_FLUSH, 0), settings(1, GRO_FLUSH, 0), settings(3, GRO_FLUSH, 0)] {
        for (deferred, prefer) in [(false, false), (false, true), (true, false), (true, true)] {
            for ring in 0..4 {
                for end in [BusyEnd::OneRound, BusyEnd::LastPoll] {
                    for during_round in meanwhile {
                        for during_last_poll in meanwhile {
                            all.push(Scenario { deferred, ring, prefer, with, end, during_round, during_last_poll });
                        }
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

/// Runs one busy-poll call (one round or the last poll alone, a budget of one packet), then lets time pass. Returns an error that names the
/// broken invariant or the packets that were lost.
fn run(scenario: Scenario) -> Result<(), String> {
    let mut toy = Toy::new(1, scenario.with);
    toy.queues[0].edge = true;
    if scenario.deferred {
        toy.packets(0, 1);
        toy.pending();
    }
    // These came without an interrupt: masked, or just before the poller that takes them.
    toy.queues[0].ring = scenario.ring;
    toy.queues[0].pending = toy.queues[0].masked && scenario.ring > 0;
    toy.queues[0].latched = !toy.queues[0].masked && scenario.ring > 0;
    let plan =
        BusyPlan { napi_id: toy.napi(0).id(), prefer: scenario.prefer, budget: 1, end: scenario.end, catch_up: false };
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

/// Runs every scenario that `chosen` accepts. Says in which of them an invariant broke.
fn hold_in(chosen: impl Fn(&Scenario) -> bool) {
    let chosen: Vec<_> = scenarios().into_iter().filter(chosen).collect();
    assert!(chosen.len() >= 64, "{} scenarios", chosen.len());
    let broken: Vec<_> =
        chosen.into_iter().filter_map(|scenario| run(scenario).err().map(|why| (scenario, why))).collect();
    assert!(broken.is_empty(), "{} scenarios break: {:#?}", broken.len(), &broken[..broken.len().min(3)]);
}

/// Edge 2: the interrupt of the last poll must not be forgotten, as nothing looks at the ring again.
#[test]
fn a_packet_during_the_last_poll_is_polled() {
    hold_in(|scenario| matches!(scenario.during_last_poll, Meanwhile::Packet));
}

/// Edge 3: a slow last poll that uses its budget must not swallow the timer that stands in for the interrupt.
#[test]
fn a_timer_during_the_last_poll_leaves_another_one_pending() {
    hold_in(|scenario| matches!(scenario.during_last_poll, Meanwhile::Timer));
}

#[test]
fn a_last_poll_that_nothing_disturbs_loses_nothing() {
    hold_in(|scenario| matches!(scenario.during_last_poll, Meanwhile::Nothing));
}
