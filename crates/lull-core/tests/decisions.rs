//! Single decisions, each between the value that it has to look at and one that it might be taken for: which timeout, whose
//! credits, which life of the instance. A mutant stands for each (`mutants/`).
#![cfg(not(loom))]

mod toy;

use lull_core::{
    BusyEnd, BusyPlan, DisableClaim, EpollBusy, EpollOptions, EpollParams, EpollWait, GroFlush, NAPI_ID_MIN, Sysctl,
    WaitStep,
};
use toy::{By, MS, Toy, US, settings};

const GRO_FLUSH: u64 = 20 * US;
const SUSPEND: u64 = 20 * MS;

/// A busy call of one round on a queue that never runs dry: its last poll takes its whole budget.
fn saturated_call(toy: &mut Toy, prefer: bool) {
    toy.queues[0].ring = 100;
    let plan = BusyPlan { napi_id: toy.napi(0).id(), prefer, budget: 8, end: BusyEnd::OneRound, catch_up: false };
    let mut busier = toy.busy_begin(plan, 1).expect("the id is known");
    assert!(toy.busy_round(&mut busier));
    toy.busy_stop(busier);
}

/// §7: `gro_flush_timeout` alone does not defer interrupts, so the stop has nothing to park for.
#[test]
fn a_saturated_stop_without_deferral_goes_to_softirq_and_not_to_a_timer() {
    let mut toy = Toy::new(1, settings(0, GRO_FLUSH, 0));
    saturated_call(&mut toy, true);
    assert_eq!(toy.timer_in(0), None);
    assert_eq!(toy.polls_since(0), [(By::Busy, 8), (By::Stop, 8), (By::Softirq, 64), (By::Softirq, 20)]);
}

/// §7: what GRO has held for long does not wait for the timer of the parked instance as well.
#[test]
fn a_stop_that_parks_passes_old_gro_packets_up() {
    let mut toy = Toy::new(1, settings(2, GRO_FLUSH, 0));
    toy.queues[0].gro_holds = true;
    saturated_call(&mut toy, true);
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
    assert_eq!(toy.queues[0].flushes, [GroFlush::Old]);
}

/// §8: with `irq_suspend_timeout` 0 suspension is off; it must not start a timer of 0 in place of the one that runs.
#[test]
fn suspension_that_is_off_leaves_the_timer_alone() {
    let mut toy = Toy::new(1, settings(2, GRO_FLUSH, 0));
    toy.packets(0, 1);
    toy.pending();
    let pending = toy.napi(0).timer().pending();
    assert!(pending.is_some());
    assert_eq!(toy.napi(0).suspend(&toy.cx(2)), None);
    assert_eq!(toy.napi(0).timer().pending(), pending);
    assert_eq!(toy.napi(0).stats().suspends, 0);
}

/// §8: a context's own `busy_poll_usecs` is its time limit, also where the sysctl is larger.
#[test]
fn the_usecs_of_a_context_come_before_the_sysctl() {
    for (own, sysctl, limit) in [(10, 50, 10), (50, 10, 50), (0, 50, 50), (10, 0, 10)] {
        let ep = EpollBusy::new(&Sysctl { busy_poll_usecs: sysctl, ..Sysctl::default() }, EpollOptions::default());
        ep.set_params(&EpollParams { busy_poll_usecs: own, ..EpollParams::default() }, false).unwrap();
        ep.note_napi(NAPI_ID_MIN);
        let WaitStep::Busy(plan) = EpollWait::begin(&ep, None, false, 0).next(&ep) else { panic!("it busy polls") };
        assert_eq!(plan.end, BusyEnd::AfterUsecs(limit), "own {own}, sysctl {sysctl}");
    }
}

/// §11: the deferral rounds that a former life had left are not those of the new one.
#[test]
fn deferral_rounds_do_not_outlive_a_disable() {
    let mut toy = Toy::new(1, settings(3, GRO_FLUSH, SUSPEND));
    toy.packets(0, 1);
    toy.pending();
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH), "two rounds are left");
    toy.disable(0);
    toy.enable(0);
    let before = toy.polls.len();
    assert!(toy.kick(0, 0));
    toy.softirq(0);
    assert_eq!(toy.polls_since(before), [(By::Softirq, 0)]);
    assert_eq!(
        (toy.queues[0].masked, toy.timer_in(0)),
        (false, None),
        "an empty poll of a new instance defers nothing"
    );
}

/// §11: a disable waits for the owner, whoever that is, and schedules are refused meanwhile.
#[test]
fn a_disable_waits_for_softirq_to_let_go() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 1);
    toy.irq(0);
    toy.napi(0).disable_begin();
    assert_eq!(toy.napi(0).disable_claim(), DisableClaim::Owned);
    toy.softirq(0);
    assert_eq!(toy.napi(0).disable_claim(), DisableClaim::Claimed);
}
