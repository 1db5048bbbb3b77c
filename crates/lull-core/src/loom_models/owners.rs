//! Those who may own an instance without a thread of its own: softirq, timer, busy pollers, and what an operator does meanwhile.

use super::*;

#[test]
fn schedule_against_completion() {
    for with in [settings(0, 0), settings(1, GRO_FLUSH)] {
        let begin = |world: &World| Some(world.scheduled(1));
        explore(None, with, begin, [softirq, |world, _| world.arrive_unmasked(NOW)]);
        explore(None, with, begin, [softirq, |world, _| world.arrive(NOW)]);
    }
}

/// At most three preemptions.
#[test]
fn two_schedules_against_completion() {
    let begin = |world: &World| Some(world.scheduled(1));
    let arrive: fn(&World, Option<Owner>) = |world, _| world.arrive_unmasked(NOW);
    explore(Some(3), settings(0, 0), begin, [softirq, arrive, arrive]);
}

#[test]
fn timer_against_owner() {
    let begin = |world: &World| {
        world.deferred(1);
        None
    };
    let timer: fn(&World, Option<Owner>) = |world, _| world.timer(LATER);
    explore(None, settings(2, GRO_FLUSH), begin, [timer, |world, _| world.arrive_unmasked(NOW)]);
    explore(None, settings(2, GRO_FLUSH), begin, [timer, |world, _| world.busy(1, true)]);
    explore(None, settings(2, GRO_FLUSH), begin, [timer, |world, _| world.busy_last(1)]);
    explore(None, settings(2, GRO_FLUSH), begin, [timer, timer]);
}

#[test]
fn busy_poller_against_interrupt() {
    for with in [settings(0, 0), settings(1, GRO_FLUSH)] {
        let begin = |_: &World| None;
        let busy: [fn(&World, Option<Owner>); 3] =
            [|world, _| world.busy(2, true), |world, _| world.busy(2, false), |world, _| world.busy_last(2)];
        for busy in busy {
            explore(None, with, begin, [busy, |world, _| world.arrive(NOW)]);
        }
    }
}

#[test]
fn busy_poller_that_parks_against_timer() {
    let begin = |world: &World| {
        world.deferred(3);
        None
    };
    explore(None, settings(1, GRO_FLUSH), begin, [|world, _| world.busy(1, true), |world, _| world.timer(LATER)]);
    explore(None, settings(1, GRO_FLUSH), begin, [|world, _| world.busy_last(1), |world, _| world.timer(LATER)]);
}

#[test]
fn preferring_poller_against_saturated_softirq() {
    for with in [settings(0, 0), settings(1, GRO_FLUSH)] {
        let begin = |world: &World| Some(world.scheduled(65));
        explore(None, with, begin, [softirq, |world, _| world.busy(64, true)]);
    }
}

/// At most two preemptions.
#[test]
fn two_pollers_and_an_interrupt() {
    let busy: fn(&World, Option<Owner>) = |world, _| world.busy(1, true);
    for with in [settings(0, 0), settings(1, GRO_FLUSH)] {
        explore(Some(2), with, |_| None, [busy, busy, |world, _| world.arrive(NOW)]);
    }
}

/// At most three preemptions.
#[test]
fn suspension_and_resume_against_completion() {
    for with in [settings(0, 0), settings(2, GRO_FLUSH)] {
        let begin = |world: &World| Some(world.scheduled(1));
        let application: fn(&World, Option<Owner>) = |world, _| {
            world.napi.suspend(&Cx::new(0, NOW));
            world.resume();
        };
        explore(Some(3), with, begin, [softirq, application, |world, _| world.arrive(NOW)]);
    }
}

#[test]
fn suspension_against_timer() {
    let begin = |world: &World| {
        world.deferred(1);
        None
    };
    explore(
        None,
        settings(2, GRO_FLUSH),
        begin,
        [
            |world, _| {
                world.napi.suspend(&Cx::new(0, NOW));
            },
            |world, _| world.timer(LATER),
        ],
    );
}

/// At most four preemptions of two contexts, two of three.
#[test]
fn disable_and_enable_against_all() {
    let reset: fn(&World, Option<Owner>) = |world, _| {
        world.disable();
        world.enable();
    };
    let begin = |world: &World| {
        world.deferred(1);
        None
    };
    let against: [fn(&World, Option<Owner>); 5] = [
        |world, _| world.arrive(NOW),
        |world, _| world.timer(LATER),
        |world, _| world.busy(1, true),
        |world, _| {
            world.napi.suspend(&Cx::new(0, NOW));
        },
        |world, _| world.resume(),
    ];
    for context in against {
        explore(Some(4), settings(2, GRO_FLUSH), begin, [reset, context]);
        explore(
            Some(2),
            settings(2, GRO_FLUSH),
            |_| None,
            [reset, context, |world, _| {
                world.arrive(NOW);
            }],
        );
    }
    let begin = |world: &World| Some(world.scheduled(65));
    explore(Some(4), settings(2, GRO_FLUSH), begin, [softirq, reset]);
}

/// The watchdog acquires what the completion released through the timer: a word that it reads from before would have it
/// swallow the timer that the completion has just started.
#[test]
fn completion_that_defers_against_its_timer() {
    let begin = |world: &World| Some(world.scheduled(1));
    explore(None, settings(1, GRO_FLUSH), begin, [softirq, |world, _| world.timer(LATER)]);
}

/// At most three preemptions.
#[test]
fn suspension_and_timer_against_softirq() {
    let suspend: fn(&World, Option<Owner>) = |world, _| {
        world.napi.suspend(&Cx::new(0, NOW));
    };
    for with in [settings(0, 0), settings(1, GRO_FLUSH)] {
        let begin = |world: &World| Some(world.scheduled(1));
        explore(Some(3), with, begin, [softirq, suspend, |world, _| world.timer(LATER)]);
        let begin = |world: &World| Some(world.scheduled(65));
        explore(Some(3), with, begin, [softirq, suspend, |world, _| world.arrive_unmasked(NOW)]);
    }
}

/// Settings change one by one under a completion, a stop and a timer, from deferral to none and back: nothing is lost,
/// whichever of them each decision reads.
#[test]
fn settings_against_all() {
    let change: fn(&World, Option<Owner>) = |world, _| {
        let before = world.napi.settings();
        let half = NapiSettings { defer_hard_irqs: 2 - before.defer_hard_irqs.min(2), ..before };
        let whole = NapiSettings { gro_flush_timeout_ns: GRO_FLUSH - before.gro_flush_timeout_ns, ..half };
        let other = NapiSettings { irq_suspend_timeout_ns: SUSPEND - before.irq_suspend_timeout_ns, ..whole };
        for settings in [half, whole, other] {
            world.napi.set(&settings);
            world.napi.snapshot(); // the settings are not loom's: this is where others get their turn
        }
    };
    for with in [settings(0, 0), settings(2, GRO_FLUSH)] {
        explore(None, with, |world: &World| Some(world.scheduled(1)), [softirq, change]);
        explore(None, with, |world: &World| Some(world.scheduled(65)), [softirq, change]);
        let poller: fn(&World, Option<Owner>) = |world, _| {
            world.busy(1, true);
            world.napi.suspend(&Cx::new(0, NOW));
            world.resume();
        };
        let begin = |world: &World| {
            world.arrived.fetch_add(2, Loom::Relaxed);
            world.line(|line| (line.masked, line.pending) = (false, false));
            None
        };
        explore(Some(4), with, begin, [poller, change]);
    }
}

/// The smallest of all: two contexts that own the instance one after the other, and nothing else that orders them.
#[test]
fn what_only_the_owner_touches_is_ordered_by_the_word() {
    loom::model(|| {
        let world = World::new(settings(0, 0));
        let other = {
            let world = world.clone();
            thread::spawn(move || world.arrive_unmasked(NOW))
        };
        world.arrive_unmasked(NOW);
        other.join().expect("its panic ends the model");
        world.assert_live();
    });
}
