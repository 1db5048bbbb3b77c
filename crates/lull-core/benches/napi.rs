//! The cost of the state machine itself, uncontended: `cargo bench -p lull-core`. Goal: schedule and complete in 25 ns.

use std::sync::atomic::{AtomicU32, Ordering};

use divan::{Bencher, black_box};
use lull_core::{
    BusyLoop, BusyPlan, BusyRound, Completion, Cx, Group, GroupConfig, GroupPoller, GroupStep, Napi, NapiSettings,
    Polled, Route, Schedule,
};

fn main() {
    divan::main();
}

fn napi(settings: &NapiSettings) -> Napi {
    let napi = Napi::new(0);
    napi.enable(lull_core::NAPI_ID_MIN, Some(settings));
    napi
}

fn round(napi: &Napi, work: u32) {
    let cx = Cx::new(0, 1_000);
    let Schedule::Owned(owner) = napi.schedule(&cx) else { unreachable!("nobody else owns it") };
    let Route::Softirq(owner) = napi.route(owner, &cx) else { unreachable!("it is not threaded") };
    match napi.softirq_polled(owner, black_box(work), false, &cx, |_| ()) {
        Polled::Completed(Completion::Released(release)) => {
            let _ = black_box(release.settle(napi, &cx));
        }
        other => unreachable!("a short poll completes: {other:?}"),
    }
}

/// The floor on this machine: the two compare-and-swaps that a schedule and a completion cannot do without.
#[divan::bench]
fn two_compare_and_swaps(bencher: Bencher<'_, '_>) {
    let word = AtomicU32::new(0);
    bencher.bench_local(|| {
        let _ = black_box(word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire));
        let _ = black_box(word.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire));
    });
}

/// What an interrupt costs in the core: schedule, route, complete, unmask.
#[divan::bench]
fn schedule_and_complete(bencher: Bencher<'_, '_>) {
    let napi = napi(&NapiSettings::default());
    bencher.bench_local(|| round(&napi, 1));
}

/// The same with deferral: the timer is started instead.
#[divan::bench]
fn schedule_and_defer(bencher: Bencher<'_, '_>) {
    let settings = NapiSettings { defer_hard_irqs: 100, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() };
    let napi = napi(&settings);
    bencher.bench_local(|| round(&napi, 1));
}

/// One empty round of the busy loop, without device, clock or pause.
#[divan::bench]
fn empty_busy_round(bencher: Bencher<'_, '_>) {
    let napi = napi(&NapiSettings::default());
    let cx = Cx::new(0, 1_000);
    let end = lull_core::BusyEnd::AfterUsecs(u32::MAX >> 1);
    let plan = BusyPlan { napi_id: lull_core::NAPI_ID_MIN, prefer: true, budget: 64, end, catch_up: false };
    let mut busy = BusyLoop::begin(&napi, &plan, &cx);
    bencher.bench_local(|| {
        if let BusyRound::Poll { .. } = busy.round(&napi, &cx) {
            busy.polled(&napi, black_box(0), &cx);
        }
    });
    if let Some(stop) = busy.stop(&napi, &cx) {
        match stop.polled(&napi, 0, false, &cx, |_| ()) {
            lull_core::BusyStopped::Completed(Completion::Released(release)) => {
                let _ = black_box(release.settle(&napi, &cx));
            }
            other => unreachable!("an empty last poll completes: {other:?}"),
        }
    }
}

/// A group of one CPU with so many members, whose first visits are over.
fn group(members: u32) -> (Group, Vec<Napi>, GroupPoller) {
    let cx = Cx::new(0, 1_000);
    let group = Group::new(0, GroupConfig::default()).expect("the defaults are within the limits");
    let mut poller = group.attach(0, &cx).expect("there is room");
    let napis: Vec<Napi> = (0..members).map(Napi::new).collect();
    for napi in &napis {
        napi.enable(lull_core::NAPI_ID_MIN + napi.index(), None);
        let _ = group.enter(napi, 64, &cx).expect("it is free");
    }
    while let GroupStep::Poll(visit) = poller.next(&group, |_, _| Some(false), false, false, &cx) {
        assert!(poller.polled(&group, &napis[visit.napi as usize], 0, &cx, |_| ()).is_none());
    }
    (group, napis, poller)
}

/// A group's pass over 64 members that have nothing, the governor's look included: 64 empty visits.
#[divan::bench]
fn group_pass_of_64_empty_visits(bencher: Bencher<'_, '_>) {
    let (group, _napis, mut poller) = group(64);
    let cx = Cx::new(0, 1_000);
    bencher.bench_local(|| {
        let step = poller.next(&group, |_, _| black_box(Some(false)), false, false, &cx);
        assert_eq!(step, GroupStep::Spin);
    });
}

/// A visit that finds packets: claim, poll, release, without the device. A pass over one member goes with it.
#[divan::bench]
fn group_visit(bencher: Bencher<'_, '_>) {
    let (group, napis, mut poller) = group(1);
    let cx = Cx::new(0, 1_000);
    bencher.bench_local(|| {
        if let GroupStep::Poll(_) = poller.next(&group, |_, _| black_box(Some(true)), false, false, &cx) {
            assert!(poller.polled(&group, &napis[0], black_box(1), &cx, |_| ()).is_none());
        }
    });
}
