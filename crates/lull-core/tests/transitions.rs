//! Every named transition from every composite state (`napi_semantics` §2) and the state that follows, as a table that
//! can be read: `transitions.txt`, beside this file.
#![cfg(not(loom))]

mod toy;

use std::fmt::Write;

use lull_core::{ThreadedOff, state};
use toy::{Busier, MS, Toy, US, one_round, settings};

const GRO_FLUSH: u64 = 20 * US;
const SUSPEND: u64 = 20 * MS;

/// The composite states. A busy poller does not mask the interrupt, so USERPOLL comes twice: taken from IDLE, and taken
/// from DEFERRED.
const STATES: [&str; 9] =
    ["DISABLED", "IDLE", "SOFTIRQ", "THREAD", "USERPOLL", "USERPOLL masked", "KPOLL", "DEFERRED", "SUSPENDED"];

/// A queue in one of the composite states; a USERPOLL has its busy loop in hand.
fn reach(name: &str) -> (Toy, Option<Busier>) {
    let mut toy = Toy::new(1, settings(2, GRO_FLUSH, SUSPEND));
    let mut busier = None;
    match name {
        "DISABLED" => toy.disable(0),
        "IDLE" => {}
        "USERPOLL" | "USERPOLL masked" => {
            if name != "USERPOLL" {
                toy.packets(0, 1);
                toy.pending();
            }
            let mut userpoll = toy.busy_begin(one_round(&toy, 0, true), 1).expect("the id is known");
            assert!(toy.busy_round(&mut userpoll));
            busier = Some(userpoll);
        }
        _ => {
            if name == "THREAD" || name == "KPOLL" {
                toy.threaded(0, name == "KPOLL");
            }
            toy.packets(0, 1);
            toy.irq(0);
            match name {
                "KPOLL" => assert!(toy.thread_round(0)),
                "DEFERRED" | "SUSPENDED" => assert!(toy.softirq(0)),
                _ => {}
            }
            if name == "SUSPENDED" {
                toy.suspend(toy.napi(0).id(), 1);
            }
        }
    }
    (toy, busier)
}

/// The composite state, and the bits that its name does not imply.
fn name(toy: &Toy) -> String {
    let word = toy.napi(0).snapshot();
    let (mut name, implied) = if word.has(state::SCHED | state::NPSVC) {
        ("DISABLED", state::SCHED | state::NPSVC)
    } else if word.has(state::SCHED | state::SCHED_THREADED | state::IN_BUSY_POLL) {
        ("KPOLL", state::SCHED | state::SCHED_THREADED | state::IN_BUSY_POLL)
    } else if word.has(state::SCHED | state::SCHED_THREADED) {
        ("THREAD", state::SCHED | state::SCHED_THREADED)
    } else if word.has(state::SCHED | state::IN_BUSY_POLL) {
        (if toy.queues[0].masked { "USERPOLL masked" } else { "USERPOLL" }, state::SCHED | state::IN_BUSY_POLL)
    } else if word.has(state::SCHED) {
        ("SOFTIRQ", state::SCHED)
    } else if !toy.queues[0].masked {
        ("IDLE", 0)
    } else {
        match toy.timer_in(0) {
            Some(ns) if ns > GRO_FLUSH => ("SUSPENDED", 0),
            Some(_) => ("DEFERRED", 0),
            None => ("LOST", 0),
        }
    };
    if name == "SOFTIRQ" && !toy.cpus.iter().any(|cpu| cpu.softnet.is_raised()) {
        name = "OWNED BY NOBODY";
    }
    let mut text = name.to_owned();
    let bits = [
        (state::MISSED, "missed"),
        (state::DISABLE, "disable"),
        (state::PREFER_BUSY_POLL, "prefer"),
        (state::THREADED, "threaded"),
        (state::THREADED_BUSY_POLL, "busy-threaded"),
    ];
    for (_, bit) in bits.iter().filter(|(bit, _)| word.has(*bit) && implied & bit == 0) {
        let _ = write!(text, " +{bit}");
    }
    // A pending timer goes without saying where it is what will end the state.
    if toy.timer_in(0).is_some() && name != "DEFERRED" && name != "SUSPENDED" {
        text.push_str(" (timer)");
    }
    text
}

/// Who owns the queue polls it once.
fn owner_polls(toy: &mut Toy, busier: &mut Option<Busier>) -> bool {
    if let Some(busier) = busier {
        return toy.busy_round(busier);
    }
    if toy.thread_round(0) {
        return true;
    }
    let raised = (0..2u16).find(|&cpu| toy.cpus[usize::from(cpu)].softnet.is_raised());
    if let Some(cpu) = raised {
        toy.net_rx(cpu);
    }
    raised.is_some()
}

type Transition = (&'static str, fn(&mut Toy, &mut Option<Busier>) -> bool);

/// Each says whether it applies to the state.
const TRANSITIONS: [Transition; 19] = [
    ("schedule", |toy, _| {
        toy.kick(0, 1);
        true
    }),
    ("timer expires", |toy, _| {
        let Some((deadline_ns, cpu)) = toy.napi(0).timer().pending() else { return false };
        toy.now_ns = deadline_ns;
        toy.timers(cpu)
    }),
    ("another poller's round", |toy, busier| {
        let Some(mut other) = toy.busy_begin(one_round(toy, 0, false), 1) else { return false };
        if toy.busy_round(&mut other) {
            *busier = Some(other);
        }
        true
    }),
    ("a preferring poller's round", |toy, busier| {
        let Some(mut other) = toy.busy_begin(one_round(toy, 0, true), 1) else { return false };
        if toy.busy_round(&mut other) {
            *busier = Some(other);
        }
        true
    }),
    ("owner polls nothing", |toy, busier| {
        toy.queues[0].ring = 0;
        owner_polls(toy, busier)
    }),
    ("owner polls some", |toy, busier| {
        toy.queues[0].ring = 9;
        owner_polls(toy, busier)
    }),
    ("owner polls a full weight", |toy, busier| {
        toy.queues[0].ring = 200;
        owner_polls(toy, busier)
    }),
    ("a full weight, prefer set", |toy, busier| {
        toy.queues[0].ring = 200;
        let Some(mut other) = toy.busy_begin(one_round(toy, 0, true), 1) else { return false };
        if toy.busy_round(&mut other) {
            *busier = Some(other);
            return false;
        }
        owner_polls(toy, busier)
    }),
    ("a full weight, disabling", |toy, busier| {
        toy.queues[0].ring = 200;
        toy.napi(0).disable_begin();
        owner_polls(toy, busier)
    }),
    ("missed, owner polls nothing", |toy, busier| {
        toy.queues[0].ring = 0;
        toy.during_poll(|toy| assert!(!toy.kick(0, 1)));
        // Softirq polls once more in the same pass.
        owner_polls(toy, busier)
    }),
    ("owner stops, nothing", |toy, busier| {
        toy.queues[0].ring = 0;
        busier.take().map(|busier| toy.busy_stop(busier)).is_some()
    }),
    ("owner stops, full budget", |toy, busier| {
        toy.queues[0].ring = 200;
        busier.take().map(|busier| toy.busy_stop(busier)).is_some()
    }),
    ("suspend", |toy, _| toy.napi(0).id() != 0 && toy.napi(0).suspend(&toy.cx(1)).is_some()),
    ("resume", |toy, _| {
        if toy.napi(0).id() == 0 {
            return false; // looked up by id, as suspend
        }
        if let Some(owner) = toy.napi(0).resume(&toy.cx(1)) {
            toy.route(0, owner, 1);
        }
        true
    }),
    ("disable", |toy, _| {
        if toy.napi(0).id() == 0 {
            return false; // not idempotent: it would wait for ever
        }
        toy.napi(0).disable_begin();
        toy.disable_try(0);
        true
    }),
    ("enable", |toy, _| {
        let disabled = toy.napi(0).id() == 0;
        if disabled {
            toy.enable(0);
        }
        disabled
    }),
    ("threaded on", |toy, _| {
        toy.threaded(0, false);
        true
    }),
    ("threaded busy-poll", |toy, _| {
        toy.threaded(0, true);
        true
    }),
    ("threaded off", |toy, _| toy.napi(0).threaded_off() == ThreadedOff::Off),
];

fn table() -> String {
    let mut table = String::new();
    for from in STATES {
        let (toy, busier) = reach(from);
        assert!(name(&toy).starts_with(from), "{from} was not reached but {}", name(&toy));
        let _ = writeln!(table, "{}", name(&toy));
        std::mem::forget(busier);
        for (transition, apply) in TRANSITIONS {
            let (mut toy, mut busier) = reach(from);
            let applies = apply(&mut toy, &mut busier);
            if applies {
                toy.assert_invariants();
                let _ = writeln!(table, "    {transition:<28} => {}", name(&toy));
            } else if transition == "threaded off" {
                let _ = writeln!(table, "    {transition:<28} => refused");
            }
            // What is owned in the end stays owned: the machine is thrown away.
            std::mem::forget(busier);
        }
    }
    table
}

#[test]
fn every_transition_from_every_state() {
    let (table, golden) = (table(), include_str!("transitions.txt"));
    let first = table.lines().zip(golden.lines()).find(|(now, then)| now != then);
    assert!(table == golden, "the table differs from transitions.txt, first at {first:?}; it is now:\n{table}");
}
