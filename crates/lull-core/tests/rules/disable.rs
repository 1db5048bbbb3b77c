//! Disable and enable (§11).

use super::*;

#[test]
fn disabling_a_suspended_or_deferred_instance_is_immediate() {
    for suspend in [false, true] {
        let mut toy = Toy::new(1, settings(9, GRO_FLUSH, SUSPEND));
        toy.packets(0, 1);
        toy.pending();
        let id = toy.napi(0).id();
        if suspend {
            toy.suspend(id, 1);
        }
        toy.napi(0).disable_begin();
        assert!(toy.disable_try(0));
        assert_eq!((toy.timer_in(0), toy.napi(0).id()), (None, 0));
    }
}

#[test]
fn everything_is_refused_while_disabling_and_while_disabled() {
    let mut toy = Toy::new(1, settings(9, GRO_FLUSH, SUSPEND));
    toy.packets(0, 1);
    toy.pending();
    let refused = |toy: &mut Toy| {
        let from = toy.polls.len();
        toy.kick(0, 1);
        let plan = BusyPlan { napi_id: toy.napi(0).id().max(NAPI_ID_MIN), ..one_round(toy, 0, true) };
        toy.busy(plan, 1, |_| false);
        assert!(toy.napi(0).resume(&toy.cx(1)).is_none());
        toy.run_for(MS); // the timer
        assert_eq!(toy.polls_since(from), []);
    };
    toy.napi(0).disable_begin();
    refused(&mut toy);
    assert_eq!(toy.napi(0).stats().timer_swallowed, 1);
    assert!(toy.disable_try(0));
    refused(&mut toy);
    toy.packets(0, 1);
    toy.enable(0);
    toy.pending();
    assert_eq!(toy.queues[0].delivered, 2, "what came meanwhile is found by the unmask");
    toy.assert_invariants();
}

#[test]
fn nothing_of_an_earlier_life_survives_enable() {
    let mut toy = Toy::new(1, settings(9, GRO_FLUSH, 0));
    toy.disable(0);
    assert!(matches!(toy.napi(0).schedule(&toy.cx(0)), Schedule::Missed), "a disabled instance is owned");
    let plan = one_round(&toy, 0, true);
    let mut late = lull_core::BusyLoop::begin(toy.napi(0), &plan, &toy.cx(1));
    assert_eq!(late.round(toy.napi(0), &toy.cx(1)), lull_core::BusyRound::Lost);
    assert!(late.stop(toy.napi(0), &toy.cx(1)).is_none());
    assert!(toy.has(0, state::MISSED | state::PREFER_BUSY_POLL));
    toy.enable(0);
    assert_eq!(toy.napi(0).snapshot().bits(), 0);
    toy.pending();
    assert_eq!(toy.polls.len(), 0);
}

#[test]
#[should_panic(expected = "not disabled")]
fn enabling_twice_is_caught() {
    Toy::new(1, settings(0, 0, 0)).enable(0);
}

#[test]
fn settings_and_id_persist_across_a_reset_with_a_slot() {
    for persistent in [true, false] {
        let mut device = DeviceConfig::new(1, persistent);
        let mut fresh = NAPI_ID_MIN..;
        let napi = Napi::new(0);
        let (id, with) = device.enabled(0, || fresh.next().unwrap_or(0));
        napi.enable(id, Some(&with));
        let with = NapiSettings { threaded: lull_core::Threaded::On, ..settings(7, GRO_FLUSH, SUSPEND) };
        device.set_queue(0, &with).expect("within the limits");
        napi.set(&with);
        napi.threaded_on(false);
        napi.disable_begin();
        assert_eq!(napi.disable_claim(), DisableClaim::Claimed);
        assert!(!napi.snapshot().any(state::THREADED));
        device.disabled(0, napi.id());
        napi.disable_end(&lull_core::Cx::new(0, 0));
        let (again, with_again) = device.enabled(0, || fresh.next().unwrap_or(0));
        napi.enable(again, Some(&with_again));
        assert_eq!(again == id, persistent);
        assert_eq!(napi.settings() == with, persistent);
        assert_eq!(napi.snapshot().has(state::THREADED), persistent, "threading is restored with the settings");
    }
}

#[test]
fn owners_and_polls_are_checked() {
    let napi = Napi::new(0);
    let other = Napi::new(1);
    let cx = lull_core::Cx::new(0, 0);
    [&napi, &other].into_iter().for_each(|napi| napi.enable(NAPI_ID_MIN, None));
    let Schedule::Owned(owner) = napi.schedule(&cx) else { panic!("free") };
    let wrong = std::panic::AssertUnwindSafe(|| drop(other.route(owner, &cx)));
    assert!(std::panic::catch_unwind(wrong).is_err(), "I1: an owner polls its own instance only");
    let Schedule::Owned(owner) = other.schedule(&cx) else { panic!("free") };
    let greedy = std::panic::AssertUnwindSafe(|| match other.softirq_polled(owner, 65, false, &cx, |_| ()) {
        Polled::Repoll(owner) => owner.abandon(),
        Polled::Completed(_) => {}
    });
    assert!(std::panic::catch_unwind(greedy).is_err(), "I5: no more than the budget");
}
