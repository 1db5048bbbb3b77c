//! The same scripts run on Linux and on lull's own engine, and have to give the same counts: how often each context
//! polled, how many packets, and how often a suspension began. The expected numbers are those of
//! `docs/napi_semantics.md`.
//!
//! The Linux side is a veth NAPI in a namespace of its own, counted from the tracepoint. The lull side is `lull-host`
//! and `lull-net` over `mem`, counted by its own statistics. Timeouts decide how long a script takes and never its
//! result: each is either far longer than what has to happen within it, or waited for until it is over. A machine that
//! stalls for longer than a timeout gives a script another result; it is then tried again, with timeouts twice as long.

#[path = "conformance/plane.rs"]
mod plane;

use std::process::Command;
use std::time::Duration;

use lull_core::{EpollParams, NapiSettings, Threaded};
use plane::{Linux, Lull, Plane, Seen};

/// The `gro_flush_timeout` of the first try.
const FLUSH_MS: u64 = 10;
/// The number of tries, each with timeouts twice as long.
const TRIES: u32 = 8;

/// A script: its steps on a plane with a deferral timeout of the given number of milliseconds. It returns what was seen
/// in each of its parts.
type Script = fn(&mut dyn Plane, u64) -> Vec<(&'static str, Seen)>;

/// Runs a script on both planes and compares the results with the expected ones.
fn conforms(script: Script, expected: &[(&str, Seen)]) {
    let mut lull = Lull::new();
    hold(&mut lull, script, expected);
    match Linux::new() {
        Ok(mut linux) => hold(&mut linux, script, expected),
        Err(reason) => {
            // Any other reason is a failure.
            assert!(is_missing(&reason), "{reason}");
            let name = std::thread::current().name().unwrap_or("conformance").to_owned();
            println!("SKIP: {name} (Linux's half): {reason}");
        }
    }
}

/// Whether Linux's half is missing because of rights, `ip`, tracefs or too old a kernel.
fn is_missing(reason: &str) -> bool {
    let works = |program, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let traces = ["tracefs is not mounted", "in the initial one"].iter().all(|it| !reason.contains(it));
    let all = works("ip", &["-V"]) && works("unshare", &["--net", "true"]) && traces;
    !all || reason.contains("it takes Linux 6.13 or newer")
}

fn hold(plane: &mut dyn Plane, script: Script, expected: &[(&str, Seen)]) {
    let mut seen = Vec::new();
    for attempt in 0..TRIES {
        seen = script(plane, FLUSH_MS << attempt);
        if seen == expected {
            return;
        }
    }
    assert_eq!(seen, expected, "on {}, {TRIES} times", plane.name());
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn settings(defer_hard_irqs: u32, flush_ms: u64, suspend_ms: u64) -> NapiSettings {
    NapiSettings {
        defer_hard_irqs,
        gro_flush_timeout_ns: flush_ms * 1_000_000,
        irq_suspend_timeout_ns: suspend_ms * 1_000_000,
        ..NapiSettings::default()
    }
}

/// Prefers busy polling, for one round.
fn preferring(budget: u32) -> EpollParams {
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: budget, prefer_busy_poll: true }
}

/// §4: the last productive poll is followed by `defer_hard_irqs` polls of the timer.
fn deferral(plane: &mut dyn Plane, defer_hard_irqs: u32, flush_ms: u64) -> Vec<(&'static str, Seen)> {
    plane.set(settings(defer_hard_irqs, flush_ms, 0), EpollParams::default());
    plane.deliver(1);
    // This is one timeout longer than the expected number.
    plane.rest(ms(flush_ms * u64::from(defer_hard_irqs + 1) + flush_ms / 2));
    let deferred = plane.seen();
    // The interrupt is unmasked again: a packet is polled for at once, and deferral begins anew.
    plane.deliver(1);
    plane.rest(ms(flush_ms * u64::from(defer_hard_irqs + 1) + flush_ms / 2));
    vec![("deferred", deferred), ("again", plane.seen())]
}

#[test]
fn deferral_gives_exactly_as_many_timer_polls_after_the_last_productive_one() {
    let expected = |n: u64| {
        let seen = Seen { softirq_polls: 1 + n, empty_polls: n, packets: 1, ..Seen::default() };
        [("deferred", seen), ("again", seen)]
    };
    conforms(|plane, flush_ms| deferral(plane, 1, flush_ms), &expected(1));
    conforms(|plane, flush_ms| deferral(plane, 3, flush_ms), &expected(3));
    conforms(|plane, flush_ms| deferral(plane, 5, flush_ms), &expected(5));
}

#[test]
fn either_knob_at_zero_defers_nothing() {
    let seen = Seen { softirq_polls: 1, packets: 1, ..Seen::default() };
    let expected = [("deferred", seen), ("again", seen)];
    conforms(|plane, flush_ms| deferral(plane, 0, flush_ms), &expected);
    conforms(
        |plane, _| {
            plane.set(settings(5, 0, 0), EpollParams::default());
            plane.deliver(1);
            plane.rest(ms(20));
            vec![("deferred", plane.seen())]
        },
        &expected[..1],
    );
}

/// §8: an epoll that returns events suspends, and packets that arrive then wait for the application. Its next call busy
/// polls for them and suspends again. A call that finds nothing resumes, and deferral leads back to the interrupt.
fn suspension(plane: &mut dyn Plane, defer_hard_irqs: u32, flush_ms: u64) -> Vec<(&'static str, Seen)> {
    let over = ms(flush_ms * u64::from(defer_hard_irqs + 2));
    plane.set(settings(defer_hard_irqs, flush_ms, 100 * flush_ms), preferring(0));
    plane.deliver(1);
    assert_eq!(plane.wait(ms(60_000)), 1, "the datagram is there");
    let armed = Seen { suspensions: plane.seen().suspensions, ..Seen::default() };
    plane.send(1);
    // This is longer than all of the deferral would take.
    plane.rest(over);
    let suspended = plane.seen();
    plane.take(1);
    let events = plane.wait(ms(60_000));
    let polled = plane.seen();
    plane.take(events);
    // It finds nothing, polls, resumes, and sleeps until deferral is over.
    let none = plane.wait(over);
    assert_eq!(none, 0, "all was taken");
    let resumed = plane.seen();
    plane.deliver(1);
    plane.rest(over);
    plane.take(1);
    vec![
        ("armed", armed),
        ("suspended", suspended),
        ("polled", polled),
        ("resumed", resumed),
        ("by interrupt", plane.seen()),
    ]
}

#[test]
fn suspension_arms_with_events_and_resumes_without() {
    let expected = |n: u64| {
        [
            ("armed", Seen { suspensions: 1, ..Seen::default() }),
            ("suspended", Seen::default()),
            // The loop's poll finds the datagram, and the stop's finds nothing.
            ("polled", Seen { busy_polls: 2, empty_polls: 1, packets: 1, suspensions: 1, ..Seen::default() }),
            // These are the polls of the loop, of the stop, of the resume, and of the timer: stop and resume have used
            // a credit each. If there is only one credit, the resume's poll unmasks (edge 8), and the stop's timer
            // finds nothing later (edge 5).
            ("resumed", Seen { busy_polls: 2, softirq_polls: n.max(2), empty_polls: 2 + n.max(2), ..Seen::default() }),
            ("by interrupt", Seen { softirq_polls: 1 + n, empty_polls: n, packets: 1, ..Seen::default() }),
        ]
    };
    conforms(|plane, flush_ms| suspension(plane, 1, flush_ms), &expected(1));
    conforms(|plane, flush_ms| suspension(plane, 3, flush_ms), &expected(3));
}

/// Edge 7: without deferral the interrupt is not masked, and a suspension is a timer that finds nothing.
#[test]
fn suspension_is_inert_without_deferral() {
    fn inert(plane: &mut dyn Plane, flush_ms: u64) -> Vec<(&'static str, Seen)> {
        plane.set(settings(0, 0, 10 * flush_ms), preferring(0));
        plane.deliver(1);
        assert_eq!(plane.wait(ms(60_000)), 1, "the datagram is there");
        let armed = Seen { suspensions: plane.seen().suspensions, ..Seen::default() };
        plane.deliver(1);
        plane.take(2);
        let interrupted = plane.seen();
        plane.rest(ms(15 * flush_ms));
        vec![("armed", armed), ("interrupted", interrupted), ("timer", plane.seen())]
    }
    let expected = [
        ("armed", Seen { suspensions: 1, ..Seen::default() }),
        ("interrupted", Seen { softirq_polls: 1, packets: 1, ..Seen::default() }),
        ("timer", Seen { softirq_polls: 1, empty_polls: 1, ..Seen::default() }),
    ];
    conforms(inert, &expected);
}

/// §10: the NAPI's thread polls in place of softirq, also for the timer.
#[test]
fn a_napi_thread_polls_in_softirqs_place() {
    fn threaded(plane: &mut dyn Plane, flush_ms: u64) -> Vec<(&'static str, Seen)> {
        let of_mode = |defer| NapiSettings { threaded: Threaded::On, ..settings(defer, flush_ms, 0) };
        plane.set(of_mode(0), EpollParams::default());
        plane.deliver(1);
        plane.rest(ms(flush_ms));
        let plain = plane.seen();
        plane.set(of_mode(2), EpollParams::default());
        plane.deliver(1);
        plane.rest(ms(4 * flush_ms));
        vec![("plain", plain), ("deferred", plane.seen())]
    }
    let plain = Seen { thread_polls: 1, packets: 1, ..Seen::default() };
    let deferred = Seen { thread_polls: 3, empty_polls: 2, packets: 1, ..Seen::default() };
    conforms(threaded, &[("plain", plain), ("deferred", deferred)]);
}

#[test]
fn a_suspension_that_the_application_forgets_ends_with_its_timeout() {
    fn forgotten(plane: &mut dyn Plane, flush_ms: u64) -> Vec<(&'static str, Seen)> {
        const DEFER: u32 = 2;
        plane.set(settings(DEFER, flush_ms, 10 * flush_ms), preferring(0));
        plane.deliver(1);
        assert_eq!(plane.wait(ms(60_000)), 1, "the datagram is there");
        plane.seen();
        plane.send(1);
        plane.rest(ms(flush_ms * 5));
        let suspended = plane.seen();
        plane.rest(ms(flush_ms * (5 + u64::from(DEFER) + 2)));
        plane.take(2);
        vec![("suspended", suspended), ("after the timeout", plane.seen())]
    }
    // The suspension's timer polls and finds the datagram, and deferral follows.
    let after = Seen { softirq_polls: 1 + 2, empty_polls: 2, packets: 1, ..Seen::default() };
    conforms(forgotten, &[("suspended", Seen::default()), ("after the timeout", after)]);
}

#[test]
fn usecs_zero_with_prefer_polls_one_round_which_is_two_polls() {
    fn round(plane: &mut dyn Plane, flush_ms: u64) -> Vec<(&'static str, Seen)> {
        plane.set(settings(0, 0, 0), preferring(0));
        plane.deliver(1);
        assert_eq!(plane.wait(ms(60_000)), 1, "the datagram is there");
        plane.take(1);
        plane.seen();
        assert_eq!(plane.wait(ms(flush_ms)), 0, "all was taken");
        let first = plane.seen();
        // The id is forgotten: there is nothing to poll until a packet brings it back.
        assert_eq!(plane.wait(ms(flush_ms)), 0, "all was taken");
        vec![("first", first), ("second", plane.seen())]
    }
    let first = Seen { busy_polls: 2, empty_polls: 2, ..Seen::default() };
    conforms(round, &[("first", first), ("second", Seen::default())]);
}

#[test]
fn a_timeout_of_zero_never_polls() {
    fn zero(plane: &mut dyn Plane, flush_ms: u64) -> Vec<(&'static str, Seen)> {
        plane.set(settings(3, flush_ms, 100 * flush_ms), preferring(0));
        plane.deliver(1);
        assert_eq!(plane.wait(ms(60_000)), 1, "the datagram is there");
        plane.take(1);
        plane.seen();
        plane.send(1);
        let found: usize = (0..10).map(|_| plane.wait(ms(0))).sum();
        let spun = (if found == 0 { "timeout 0" } else { "it came by itself" }, plane.seen());
        // With a timeout it is found at once.
        assert_eq!(plane.wait(ms(60_000)), 1, "the next call polls");
        plane.take(1);
        vec![spun, ("with a timeout", plane.seen())]
    }
    let found = Seen { busy_polls: 2, empty_polls: 1, packets: 1, suspensions: 1, ..Seen::default() };
    conforms(zero, &[("timeout 0", Seen::default()), ("with a timeout", found)]);
}

/// During a suspension twenty datagrams arrive. One round of two polls takes two budgets of them.
fn budget(plane: &mut dyn Plane, budget: u32, flush_ms: u64) -> Vec<(&'static str, Seen)> {
    plane.set(settings(3, 50 * flush_ms, 200 * flush_ms), preferring(budget));
    plane.deliver(1);
    assert_eq!(plane.wait(ms(60_000)), 1, "the datagram is there");
    plane.take(1);
    plane.seen();
    plane.send(20);
    assert_eq!(plane.wait(ms(60_000)), 1, "the socket is ready");
    let seen = plane.seen();
    // The rest is polled for when the suspension is over.
    plane.take(20);
    vec![("one round", seen)]
}

#[test]
fn a_busy_poll_takes_eight_packets_unless_told_otherwise() {
    let round = |packets| [("one round", Seen { busy_polls: 2, packets, suspensions: 1, ..Seen::default() })];
    conforms(|plane, flush_ms| budget(plane, 0, flush_ms), &round(2 * 8));
    conforms(|plane, flush_ms| budget(plane, 5, flush_ms), &round(2 * 5));
}
