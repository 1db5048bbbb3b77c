//! What the law promises, on services and readings that nobody chose: it settles and stays, it never changes settings
//! more often than it may, it keeps its bounds, and it falls back to the mode that was asked for.

use lull_slo::{
    Bounds, CHANGES_AT_ONCE, CHANGES_PER_MINUTE, Controller, Latency, NapiReading, Reading, Slo, Standing,
    TIMEOUT_NS_MIN, window_is_over,
};
use proptest::prelude::*;

const WINDOW_NS: u64 = 200_000_000;

fn controller(slo: &str, mode: &str, cpu_max: Option<f64>) -> (Controller, Bounds) {
    let slo: Slo = slo.parse().unwrap();
    let bounds = Bounds::new(&slo, &mode.parse().unwrap(), cpu_max).unwrap();
    (Controller::new(slo, bounds.clone()), bounds)
}

fn reading(now_ns: u64, work: u64, cpu_percent: f64, p99_ns: u64) -> Reading {
    let latency = Latency { answers: 2_000, avg_ns: p99_ns / 2, p50_ns: p99_ns / 2, p95_ns: p99_ns, p99_ns };
    Reading {
        now_ns,
        window_ns: WINDOW_NS,
        napis: vec![NapiReading { id: 7, polls: work / 4, work, suspends: Some(10), ..NapiReading::default() }],
        cpu_percent: Some(cpu_percent),
        latency: Some(latency),
    }
}

/// A service whose p99 is a fixed time and a share of the timeout, for which its packets wait.
struct Plant {
    floor_ns: u64,
    slope: f64,
    work: u64,
}

impl Plant {
    fn p99_ns(&self, controller: &Controller) -> u64 {
        let timeout_ns = controller.settings(7).gro_flush_timeout_ns;
        self.floor_ns + (timeout_ns as f64 * self.slope) as u64
    }
}

proptest! {
    /// Whatever the fixed time and the share are, the law changes nothing after forty windows, and the objective is met
    /// if it can be.
    #[test]
    fn it_settles_and_stays(
        floor_us in 1u64..150, slope in 0.3f64..1.9, load in 20_000u64..200_000, asked in 5u64..2_000, cpu in 1.0f64..90.0,
    ) {
        let (mut controller, _) = controller("p99<200us", &format!("suspend{asked}"), None);
        let plant = Plant { floor_ns: floor_us * 1_000, slope, work: load };
        let mut now_ns = 0;
        let mut step = |controller: &mut Controller| {
            now_ns += WINDOW_NS;
            let p99_ns = plant.p99_ns(controller);
            controller.decide(&reading(now_ns, plant.work, cpu, p99_ns))
        };
        (0..40).for_each(|_| { step(&mut controller); });
        let (changes, timeout_ns) = (controller.changes(), controller.timeout_ns());
        for _ in 0..1_000 {
            let standing = step(&mut controller);
            prop_assert!(matches!(standing, Standing::Met), "{standing:?}");
        }
        prop_assert_eq!((controller.changes(), controller.timeout_ns()), (changes, timeout_ns));
        prop_assert!(plant.p99_ns(&controller) < 200_000);
        // It does not stop short either. In the end the timeout is as long as it may be, or p99 is where nothing
        // changes (86 % of the limit), or p99 is so near to the aim of 180 us that half of the difference, in whole
        // microseconds, is less than a twentieth of the timeout, which is not worth a change.
        let is_longest = timeout_ns >= 180_000 * 19 / 20;
        let near_ns = (180_000 - timeout_ns / 10 - 2_000).min(172_000);
        let p99_ns = plant.p99_ns(&controller);
        prop_assert!(is_longest || p99_ns >= near_ns, "{timeout_ns} {p99_ns}");
    }

    /// However readings jump, no minute has more changes than the allowance, and every setting is within the bounds.
    #[test]
    fn changes_are_bounded(
        windows in prop::collection::vec((100u64..1_000, 0u64..100_000, 0.0f64..120.0, 0u64..3_000_000, 0u8..8), 1..600),
        mode in prop::sample::select(vec!["base", "defer50", "suspend0", "suspend20"]),
    ) {
        let (mut controller, bounds) = controller("p99<200us", mode, Some(60.0));
        let mut now_ns = 0;
        let mut changed_at = Vec::new();
        for (window_ms, work, cpu, p99_ns, kind) in windows {
            now_ns += window_ms * 1_000_000;
            let mut reading = Reading { window_ns: window_ms * 1_000_000, ..reading(now_ns, work, cpu, p99_ns) };
            match kind {
                0 => reading.latency = None,
                1 => reading.latency = Some(Latency { answers: 3, ..Latency::default() }),
                2 => reading.cpu_percent = None,
                _ => {}
            }
            let before = controller.settings(7);
            controller.decide(&reading);
            let after = controller.settings(7);
            if before != after {
                changed_at.push(now_ns);
            }
            let is_asked = after == bounds.asked;
            let is_interrupt = after == lull_core::NapiSettings::default();
            let is_within = (TIMEOUT_NS_MIN..=bounds.timeout_ns_max).contains(&after.gro_flush_timeout_ns)
                && after.irq_suspend_timeout_ns <= bounds.suspend_ns_max
                && (after.irq_suspend_timeout_ns != 0) == bounds.suspends;
            prop_assert!(is_asked || is_interrupt || is_within, "{after:?}");
        }
        for (nth, at_ns) in changed_at.iter().enumerate() {
            let within = changed_at[nth..].iter().filter(|other| **other - at_ns < 60_000_000_000).count();
            prop_assert!(within <= (CHANGES_AT_ONCE + CHANGES_PER_MINUTE) as usize, "{within} in a minute");
        }
    }
}

#[test]
fn a_window_has_answers_enough_or_has_lasted_too_long() {
    let ms = 1_000_000;
    assert!(!window_is_over(99 * ms, Some(1_000_000)));
    assert!(!window_is_over(500 * ms, Some(999)));
    assert!(window_is_over(100 * ms, Some(1_000)));
    assert!(!window_is_over(999 * ms, None));
    assert!(window_is_over(1_000 * ms, None) && window_is_over(1_000 * ms, Some(0)));
}

#[test]
fn a_queue_with_less_than_a_packet_a_timeout_has_its_interrupt_and_a_busy_one_a_timeout() {
    let (mut controller, _) = controller("p99<200us", "suspend20", None);
    let mut both = reading(WINDOW_NS, 20_000, 30.0, 60_000);
    both.napis.push(NapiReading { id: 8, polls: 3, work: 3, ..NapiReading::default() });
    controller.decide(&both);
    assert_eq!(controller.settings(8), lull_core::NapiSettings::default());
    assert_ne!(controller.settings(7).gro_flush_timeout_ns, 0);
    // The queue has a timeout again as soon as one gathers packets again.
    both.now_ns += WINDOW_NS;
    both.napis[1].work = 20_000;
    controller.decide(&both);
    assert_eq!(controller.settings(8), controller.settings(7));
}

#[test]
fn short_of_cpu_timeouts_become_longer_although_answers_are_late() {
    let (mut controller, _) = controller("p99<200us", "suspend20", None);
    let standing = controller.decide(&reading(WINDOW_NS, 100_000, 99.0, 2_000_000));
    assert_eq!((standing, controller.timeout_ns()), (Standing::CpuShort, 30_000));
    // A timeout that was made longer for want of CPU stays for ten seconds.
    controller.decide(&reading(2 * WINDOW_NS, 100_000, 80.0, 205_000));
    assert_eq!(controller.timeout_ns(), 30_000);
}

#[test]
fn cpu_above_its_bound_makes_timeouts_longer() {
    let (mut controller, bounds) = controller("p99<200us", "suspend20", Some(40.0));
    for window in 1..20 {
        assert_eq!(controller.decide(&reading(window * WINDOW_NS, 50_000, 55.0, 60_000)), Standing::CpuShort);
    }
    assert_eq!(controller.timeout_ns(), bounds.timeout_ns_max);
}

#[test]
fn an_objective_out_of_reach_brings_back_the_mode_that_was_asked_for() {
    let (mut controller, bounds) = controller("p99<200us", "suspend20", None);
    let standings: Vec<Standing> =
        (1..40).map(|n| controller.decide(&reading(n * WINDOW_NS, 50_000, 50.0, 900_000))).collect();
    assert_eq!(standings.last(), Some(&Standing::OutOfReach), "{standings:?}");
    assert_eq!(controller.settings(7), bounds.asked);
    // At another load the law tries again.
    assert_eq!(controller.decide(&reading(40 * WINDOW_NS, 20_000, 20.0, 900_000)), Standing::Moving);
    assert_ne!(controller.settings(7).irq_suspend_timeout_ns, bounds.asked.irq_suspend_timeout_ns);
}

#[test]
fn a_change_that_may_not_be_made_begins_no_rest() {
    let (mut controller, bounds) = controller("p99<200us", "defer20", None);
    let mut now_ns = 0;
    let mut decide = |controller: &mut Controller, p99_ns| {
        // Ten windows end before the next change may be made.
        now_ns += 10_000_000;
        (controller.decide(&reading(now_ns, 50_000, 50.0, p99_ns)), now_ns)
    };
    // Readings that jump use up the changes that may follow one another.
    let held = (0..100).any(|n| decide(&mut controller, [20_000, 230_000][n % 2]).0 == Standing::Held);
    let (before, changes) = (controller.settings(7), controller.changes());
    assert!(held && before != bounds.asked && changes == u64::from(CHANGES_AT_ONCE));
    // When the objective is out of reach, the law falls back as soon as it may.
    let late: Vec<_> = (0..200).map(|_| decide(&mut controller, 900_000)).collect();
    let (_, begins_ns) = late.iter().find(|(standing, _)| *standing == Standing::OutOfReach).unwrap();
    let held = late.iter().filter(|(standing, at_ns)| *standing == Standing::Held && at_ns < begins_ns).count();
    assert!(held > 20 && controller.changes() == changes + 1, "{late:?}");
    assert_eq!(controller.settings(7), bounds.asked);
    // The first rest has the shortest length, however often it could not begin.
    let ends = (0..2_000).map(|_| decide(&mut controller, 900_000)).find(|(standing, _)| *standing == Standing::Moving);
    assert_eq!(ends.map(|(_, at_ns)| at_ns - begins_ns), Some(10_000_000_000));
}

/// Runs windows of a controller, whose p99 depends on what is in force. Returns how long each rest was, in windows.
fn rests(controller: &mut Controller, windows: u64, mut seen: impl FnMut(&Controller) -> (f64, u64)) -> Vec<u64> {
    let mut lengths = Vec::new();
    let mut rested = false;
    for n in 1..=windows {
        let (cpu, p99_ns) = seen(controller);
        controller.decide(&reading(n * WINDOW_NS, 50_000, cpu, p99_ns));
        match (rested, controller.rests()) {
            (false, true) => lengths.push(1),
            (true, true) => *lengths.last_mut().unwrap() += 1,
            _ => {}
        }
        rested = controller.rests();
    }
    lengths
}

#[test]
fn a_rest_in_which_the_objective_is_met_lasts_and_the_next_is_twice_as_long() {
    let (mut controller, bounds) = controller("p99<200us", "suspend20", None);
    // The rests last 10, 20, 40, 80 and 160 s. Before each there are ten missed windows, and at first some with
    // changes.
    let windows = (10 + 20 + 40 + 80 + 160) * 5 + 5 * 10 + 20;
    let seen = |controller: &Controller| (50.0, if controller.rests() { 150_000 } else { 1_200_000 });
    assert_eq!(rests(&mut controller, windows, seen), [50, 100, 200, 400, 800]);
    // A rest tells how the mode that is in force stands to the objective.
    let (mut controller, _) = self::controller("p99<200us", "suspend20", None);
    let _ = rests(&mut controller, 20, |_| (50.0, 1_200_000));
    assert_eq!(controller.settings(7), bounds.asked);
    assert_eq!(controller.decide(&reading(21 * WINDOW_NS, 50_000, 50.0, 150_000)), Standing::Met);
    assert_eq!(controller.settings(7), bounds.asked);
}

#[test]
fn a_rest_that_was_not_needed_for_long_is_a_short_one_again() {
    let (mut controller, _) = controller("p99<200us", "suspend20", None);
    let mut nth = 0;
    let seen = |_: &Controller| {
        nth += 1;
        // The objective is missed for 20 s, met for 200 s, and missed again.
        (50.0, if (100..1_100).contains(&nth) { 175_000 } else { 1_200_000 })
    };
    let lengths = rests(&mut controller, 1_170, seen);
    assert_eq!((lengths.len(), lengths[0], lengths.last()), (3, 50, Some(&50)), "{lengths:?}");
}

#[test]
fn cpu_above_its_bound_ends_a_rest_which_does_not_begin_again_before_its_end() {
    let (mut controller, _) = controller("p99<200us", "suspend20", Some(60.0));
    let mut standings = Vec::new();
    let mut rested = 0;
    for n in 1..=66 {
        // The mode that was asked for uses more CPU than the bound allows.
        let cpu = if controller.rests() { 80.0 } else { 50.0 };
        standings.push(controller.decide(&reading(n * WINDOW_NS, 50_000, cpu, 1_200_000)));
        rested += usize::from(controller.rests());
    }
    let begins = standings.iter().position(|standing| *standing == Standing::OutOfReach).unwrap();
    assert_eq!(standings[begins + 1], Standing::CpuShort, "{standings:?}");
    // From the beginning of one rest to that of the next it is ten seconds.
    assert_eq!(standings[begins + 2..begins + 50], [Standing::Missed; 48], "{standings:?}");
    assert_eq!((standings[begins + 50], rested), (Standing::OutOfReach, 2), "{standings:?}");
}

#[test]
fn windows_that_are_short_of_cpu_or_move_something_do_not_count_as_out_of_reach() {
    let (mut controller, _) = controller("p99<200us", "suspend20", None);
    let mut n = 0;
    let mut decide = |cpu, p99_ns| {
        n += 1;
        controller.decide(&reading(n * WINDOW_NS, 50_000, cpu, p99_ns))
    };
    (0..20).for_each(|_| assert_eq!(decide(99.0, 1_200_000), Standing::CpuShort));
    // Nine windows are missed with CPU to spare, and the tenth is out of reach.
    while decide(50.0, 1_200_000) == Standing::Moving {}
    (0..8).for_each(|_| assert_eq!(decide(50.0, 1_200_000), Standing::Missed));
    assert_eq!(decide(50.0, 1_200_000), Standing::OutOfReach);
}

#[test]
fn a_suspension_that_was_made_shorter_is_tried_again_later() {
    let (mut controller, bounds) = controller("p99<2ms", "suspend20", None);
    let late_ns = bounds.suspend_ns_max + 60_000;
    assert_eq!(controller.decide(&reading(WINDOW_NS, 20_000, 20.0, late_ns)), Standing::Moving);
    let after = |controller: &mut Controller, n: u64| {
        controller.decide(&reading(n * WINDOW_NS, 20_000, 20.0, 1_800_000));
        controller.settings(7).irq_suspend_timeout_ns
    };
    assert!((2..=50).all(|n| after(&mut controller, n) == bounds.suspend_ns_max / 2));
    assert_eq!(after(&mut controller, 51), bounds.suspend_ns_max);
    // The next time the suspension stays shorter for twice as long.
    controller.decide(&reading(52 * WINDOW_NS, 20_000, 20.0, late_ns));
    assert!((53..152).all(|n| after(&mut controller, n) == bounds.suspend_ns_max / 2));
    assert_eq!(after(&mut controller, 152), bounds.suspend_ns_max);
}

#[test]
fn a_latency_without_end_is_a_late_one() {
    let (mut controller, _) = controller("p99<200us,avg<80us", "suspend20", None);
    for n in 1..20 {
        let mut reading = reading(n * WINDOW_NS, 50_000, 50.0, u64::MAX);
        reading.latency.as_mut().unwrap().avg_ns = u64::MAX;
        assert_ne!(controller.decide(&reading), Standing::Met);
    }
    assert!(controller.rests());
}

#[test]
fn packets_that_a_suspension_keeps_waiting_shorten_it_and_not_the_timeout() {
    let (mut controller, bounds) = controller("p99<2ms", "suspend20", None);
    // One packet in a hundred waits for the suspension of a queue that nobody comes back to.
    let standing = controller.decide(&reading(WINDOW_NS, 20_000, 20.0, bounds.suspend_ns_max + 60_000));
    assert_eq!(standing, Standing::Moving);
    assert_eq!(controller.settings(7).irq_suspend_timeout_ns, bounds.suspend_ns_max / 2);
    assert_eq!(controller.timeout_ns(), 20_000);
}

#[test]
fn without_latency_half_of_the_limit_is_left_and_cpu_decides() {
    let (mut controller, bounds) = controller("p99<200us", "suspend20", Some(50.0));
    let blind = |n: u64, cpu| Reading { latency: None, ..reading(n * WINDOW_NS, 50_000, cpu, 0) };
    assert_eq!(controller.decide(&blind(1, 30.0)), Standing::CpuOnly);
    assert_eq!(controller.timeout_ns(), bounds.timeout_ns_max / 2);
    (2..20).for_each(|n| assert_eq!(controller.decide(&blind(n, 55.0)), Standing::CpuOnly));
    assert_eq!(controller.timeout_ns(), bounds.timeout_ns_max);
    (20..60).for_each(|n| assert_eq!(controller.decide(&blind(n, 20.0)), Standing::CpuOnly));
    assert_eq!(controller.timeout_ns(), bounds.timeout_ns_max / 2);
}

#[test]
fn latency_that_is_no_longer_known_brings_back_the_mode_that_was_asked_for() {
    let (mut controller, bounds) = controller("p99<200us", "suspend20", None);
    controller.decide(&reading(WINDOW_NS, 20_000, 30.0, 60_000));
    assert_ne!(controller.settings(7), bounds.asked);
    let blind = Reading { latency: None, ..reading(2 * WINDOW_NS, 20_000, 30.0, 0) };
    assert_eq!(controller.decide(&blind), Standing::Blind);
    assert_eq!(controller.settings(7), bounds.asked);
    controller.decide(&reading(3 * WINDOW_NS, 20_000, 30.0, 60_000));
    assert_ne!(controller.settings(7), bounds.asked);
}

#[test]
fn modes_without_a_timeout_to_choose_are_refused_by_name() {
    let slo: Slo = "p99<200us".parse().unwrap();
    for mode in
        ["fullbusy", "napibusy", "threaded", "threaded-busy", "group", "group50", "busyread", "coalesce-20", "longgro"]
    {
        let error = Bounds::new(&slo, &mode.parse().unwrap(), None).unwrap_err().to_string();
        assert!(error.contains(mode) && error.contains("suspend20"), "{error}");
    }
    for mode in ["base", "defer20", "suspend0", "suspend200"] {
        Bounds::new(&slo, &mode.parse().unwrap(), None).unwrap();
    }
}
