//! A member that leaves its group (§15) against the operator who takes members out and CPUs away.
#![cfg(not(loom))]

use std::sync::Mutex;

use lull_core::event::{Event, EventKind, EventSink};
use lull_core::group::{GroupConfig, GroupPoller, GroupWake, Removal};
use lull_core::{BusyStop, Cx, Group, GroupStep, NAPI_ID_MIN, Napi, state};

fn cx() -> Cx<'static> {
    Cx::new(0, 20_000_000)
}

fn enabled(index: u32) -> Napi {
    let napi = Napi::new(index);
    napi.enable(NAPI_ID_MIN + index, None);
    napi
}

fn group() -> (Group, GroupPoller) {
    let group = Group::new(0, GroupConfig::default()).unwrap();
    let poller = group.attach(0, &cx()).unwrap();
    (group, poller)
}

/// The poller visits the only member; `during` happens before the visit's end.
fn visit(group: &Group, poller: &mut GroupPoller, napi: &Napi, cx: &Cx<'_>, during: impl FnOnce()) -> Option<BusyStop> {
    let step = poller.next(group, |_, _| Some(true), false, false, cx);
    assert!(matches!(step, GroupStep::Poll(_)), "{step:?}");
    during();
    poller.polled(group, napi, 0, cx, |_| ())
}

#[test]
fn who_removes_a_member_that_a_poller_has_let_go_leaves_its_successor_alone() {
    let ((group, mut poller), down, successor) = (group(), enabled(0), enabled(1));
    let before = group.enter(&down, 64, &cx()).unwrap();
    // As when a panic in the poll takes the queue down.
    let stop = visit(&group, &mut poller, &down, &cx(), || down.disable_begin()).expect("it leaves");
    let entered = group.enter(&successor, 64, &cx()).unwrap();
    assert_eq!(entered.slot, before.slot, "it has the place of the one that left");
    for _ in 0..2 {
        assert!(matches!(group.remove(before.slot, &down, &cx()), Removal::Absent));
        assert!(successor.snapshot().has(state::GROUPED));
    }
    let _ = stop.polled(&down, 0, false, &cx(), |_| ());
    assert!(visit(&group, &mut poller, &successor, &cx(), || ()).is_none(), "it stays a member");
    let Removal::Mine(stop) = group.remove(entered.slot, &successor, &cx()) else { panic!("nobody serves it") };
    let _ = stop.polled(&successor, 0, false, &cx(), |_| ());
}

/// Detaches the CPU at the first moment in which an operator could find the member without GROUPED.
struct Operator<'a> {
    group: &'a Group,
    napi: &'a Napi,
    detached: Mutex<Option<GroupWake>>,
}

impl EventSink for Operator<'_> {
    fn event(&self, event: Event) {
        if matches!(event.kind, EventKind::PollBegin { .. }) && !self.napi.snapshot().has(state::GROUPED) {
            *self.detached.lock().unwrap() = Some(self.group.detach(0).expect("no member is left"));
        }
    }
}

#[test]
fn the_last_cpu_goes_as_soon_as_its_poller_has_let_the_last_member_go() {
    let ((group, mut poller), napi) = (group(), enabled(0));
    let entered = group.enter(&napi, 64, &cx()).unwrap();
    let operator = Operator { group: &group, napi: &napi, detached: Mutex::new(None) };
    let watched = Cx { sink: Some(&operator), ..cx() };
    let stop = visit(&group, &mut poller, &napi, &watched, || {
        assert!(matches!(group.remove(entered.slot, &napi, &cx()), Removal::Holders));
    });
    let stop = stop.expect("it leaves");
    assert!(operator.detached.lock().unwrap().is_some());
    let _ = stop.polled(&napi, 0, false, &cx(), |_| ());
    assert_eq!(poller.next(&group, |_, _| None, false, false, &cx()), GroupStep::Detached);
}
