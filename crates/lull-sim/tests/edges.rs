//! The weaknesses that Linux has and that the core keeps under `strict_linux` (`napi_semantics` §13, edges 14, 15, 18
//! and 19): for each a world in which it shows, and the same world with the option that mends it.
//!
//! The tests compare the longest time for which packets were in a ring before a poll looked: a queue that is only
//! deferred is polled every 100 us, and a suspended one that is forgotten is polled after the whole suspension, or
//! later.

use lull_core::epoll::TimeoutZero;
use lull_core::{EpollOptions, EpollParams, NapiSettings};
use lull_sim::random::action::Action;
use lull_sim::random::plan::ReaderSpec;
use lull_sim::random::script::Step;
use lull_sim::random::{Plan, WorldOutcome};
use lull_sim::transition::Transition;
use lull_sim::{ConnectionsSpec, ContextSpec, Costs, FaultSpec, QueueSpec, Traffic, WorkerSpec, World};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const GRO_FLUSH_NS: u64 = 100 * US;
const SUSPEND_NS: u64 = 5 * MS;
/// How much costs and a poll in progress may add to a bound.
const SLACK_NS: u64 = 100 * US;
const SEEDS: std::ops::Range<u64> = 0..8;

/// Makes a plan with `queues` queues that suspend and have their interrupts on CPU 0, and one context with the
/// recommended parameters, whose worker is on CPU 1. The load is datagrams, each of which takes `service_ns` of work.
fn plan(seed: u64, queues: u32, options: EpollOptions, per_s: f64, service_ns: u32) -> Plan {
    let napi = NapiSettings {
        defer_hard_irqs: 100,
        gro_flush_timeout_ns: GRO_FLUSH_NS,
        irq_suspend_timeout_ns: SUSPEND_NS,
        ..NapiSettings::default()
    };
    let params = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    let connections = |queue| ConnectionsSpec { count: 4, queue, context: 0, traffic: Traffic::Datagrams { per_s } };
    let world = World {
        cpus: vec![true; 2],
        costs: Costs { request_user_ns: service_ns, ..Costs::default() },
        queues: (0..queues).map(|_| QueueSpec { napi, has_thread: true, ..QueueSpec::new(0) }).collect(),
        contexts: vec![ContextSpec { params, options }],
        workers: vec![WorkerSpec { cpu: 1, context: 0, timeout_ns: None, events_max: 64 }],
        connections: (0..queues).map(connections).collect(),
        ..World::default()
    };
    let readers: Vec<ReaderSpec> = Vec::new();
    Plan { seed, world, readers, script: Vec::new(), lap_ns: 200 * MS, persistent: true, transitions_goal: 1 }
}

/// Runs it; returns the longest time that a poll kept a queue's packets waiting, over all queues.
fn longest_ns(plan: &Plan) -> (u64, WorldOutcome) {
    let outcome = plan.run();
    assert_eq!((&outcome.violation, outcome.bound), (&None, None), "seed {}", plan.seed);
    (outcome.unseen_max_ns.iter().copied().max().expect("a queue"), outcome)
}

#[test]
fn edge_14_an_id_change_leaves_the_suspended_queue_to_its_timer_unless_it_is_resumed() {
    for seed in SEEDS {
        let world = |options| plan(seed, 2, options, 700.0, 300_000);
        let (strict_ns, _) = longest_ns(&world(EpollOptions::strict_linux()));
        assert!(strict_ns > SUSPEND_NS / 2, "seed {seed}: {strict_ns}");
        let mended = EpollOptions { resume_on_id_change: true, ..EpollOptions::strict_linux() };
        let (mended_ns, outcome) = longest_ns(&world(mended));
        // The worker's own work keeps a suspended queue waiting, as it should; this is a batch of requests, and not the
        // timer.
        assert!(mended_ns < SUSPEND_NS / 2, "seed {seed}: {mended_ns}");
        assert!(outcome.covered.count(Transition::EpollLeftBehind) > 0);
    }
}

/// There are four queues, and enough work for one context's worker that it is never idle for long.
#[test]
fn edge_15_on_four_queues_those_that_are_not_the_last_wait_for_their_timers_unless_each_is_polled() {
    for seed in SEEDS {
        let world = |options| plan(seed, 4, options, 700.0, 300_000);
        let (strict_ns, _) = longest_ns(&world(EpollOptions::strict_linux()));
        assert!(strict_ns > SUSPEND_NS / 2, "seed {seed}: {strict_ns}");
        let mended = EpollOptions { every_napi: true, ..EpollOptions::strict_linux() };
        let (mended_ns, outcome) = longest_ns(&world(mended));
        // A queue waits for the work of one batch, like the only queue of a context.
        let (one_ns, _) = longest_ns(&plan(seed, 1, EpollOptions::strict_linux(), 4.0 * 700.0, 300_000));
        assert!(mended_ns < SUSPEND_NS && mended_ns < 2 * one_ns, "seed {seed}: {mended_ns}, with one queue {one_ns}");
        assert!(outcome.covered.count(Transition::EpollSuspend) > 0);
    }
}

#[test]
fn edge_18_other_events_starve_the_queue_unless_it_is_polled_after_some_returns() {
    const WORK_NS: u32 = 250_000;
    const RETURNS: u32 = 8;
    /// What a call costs besides the work.
    const CALL_NS: u64 = 20 * US;
    for seed in SEEDS {
        let world = |options| {
            // The next other event comes before the worker has finished with the last one, so there is always one.
            let other = Action::Other { context: 0, count: 500, gap_ns: WORK_NS * 4 / 5 };
            let script = vec![Step { at_ns: 20 * MS, cpu: 0, action: other }];
            let mut plan = Plan { script, ..plan(seed, 1, options, 400.0, WORK_NS) };
            plan.world.workers[0].events_max = 1;
            plan
        };
        let (strict_ns, _) = longest_ns(&world(EpollOptions::strict_linux()));
        // Every return stretches the timer anew, so the queue waits for far longer than any timeout.
        assert!(strict_ns > 10 * SUSPEND_NS, "seed {seed}: {strict_ns}");
        let mended = EpollOptions { poll_after_returns: RETURNS, ..EpollOptions::strict_linux() };
        let (mended_ns, outcome) = longest_ns(&world(mended));
        let bound_ns = u64::from(RETURNS) * (u64::from(WORK_NS) + CALL_NS) + SLACK_NS;
        assert!(mended_ns < bound_ns, "seed {seed}: {mended_ns} of {strict_ns}");
        assert!(outcome.covered.count(Transition::EpollCapPolls) > 0);
    }
}

#[test]
fn edge_19_a_loop_with_timeout_0_leaves_the_queue_to_its_timer_unless_it_polls() {
    for seed in SEEDS {
        let world = |options| {
            let mut plan = plan(seed, 1, options, 300.0, 3_000);
            plan.world.workers[0].timeout_ns = Some(0);
            plan.world.faults = FaultSpec { between_calls_ns: 20_000, ..FaultSpec::default() };
            plan
        };
        let (strict_ns, outcome) = longest_ns(&world(EpollOptions::strict_linux()));
        assert!(strict_ns > SUSPEND_NS / 2, "seed {seed}: {strict_ns}");
        assert_eq!(outcome.covered.count(Transition::EpollResume), 0);
        let mended = EpollOptions { timeout_zero: TimeoutZero::PollOnce, ..EpollOptions::strict_linux() };
        let (mended_ns, outcome) = longest_ns(&world(mended));
        assert!(mended_ns < GRO_FLUSH_NS + SLACK_NS, "seed {seed}: {mended_ns}");
        assert!(outcome.covered.count(Transition::EpollZeroPolls) > 0);
    }
}
