//! The controller on simulated machines: it meets what the best fixed setting meets, at little more CPU, and a run
//! depends only on its seed.

use lull_core::Mode;
use lull_sim::WorldFile;
use lull_sim::control::{PHASE_NS, Phase, Score, Shape, Trace, score};
use lull_slo::{Slo, Standing};

/// This is quick to simulate, with costs that no fit changes.
fn world(cores: u16) -> WorldFile {
    let text = format!(
        "[machine]\ncores = {cores}\nidle = \"shallow\"\n[nic]\nspeed = \"25Gbit/s\"\nrx_usecs = \"8us\"\nrx_frames = 128\n\
         [network]\nlatency = \"20us\"\njitter = \"4us\"\n[service]\nkind = \"epoll\"\nconnections = 200\nrequest_cost = \"12us\"\n\
         [costs]\nprofile = \"round\"\n"
    );
    WorldFile::parse("w.toml", &text).unwrap()
}

const MAX_PER_S: f64 = 50_000.0;

fn run(file: &WorldFile, mode: &str, slo: &str, trace: &Trace, seed: u64) -> Score {
    let (mode, slo): (Mode, Slo) = (mode.parse().unwrap(), slo.parse().unwrap());
    score(file, &mode, &slo, trace, seed).unwrap()
}

fn phase(shape: Shape, per_s: f64) -> Phase {
    Phase { shape, per_s, length_ns: PHASE_NS }
}

/// This runs nine seeded traces; `lull sim control --traces 1000` runs as many as there is time for.
#[test]
fn random_load_is_served_as_the_best_fixed_setting_would_at_little_more_cpu() {
    let file = world(1);
    let (mut judged, mut missed, mut ours, mut best) = (0, Vec::new(), 0.0, 0.0);
    for (seed, slo) in (1..=9).zip(["p99<200us", "avg<100us", "p99<600us"].into_iter().cycle()) {
        let score = run(&file, "suspend20", slo, &Trace::random(seed, MAX_PER_S, 1), seed);
        judged += score.judged();
        missed.extend(score.missed.into_iter().map(|missed| (seed, slo, missed)));
        for phase in score.phases.iter().filter(|phase| phase.reachable) {
            ours += phase.busy_percent.0;
            best += phase.busy_percent.1;
        }
    }
    assert!(judged > 100, "{judged}");
    assert!(missed.len() * 100 <= judged, "{} of {judged}: {missed:?}", missed.len());
    assert!(ours <= 1.15 * best, "{ours} {best}");
}

#[test]
fn a_run_is_its_seed() {
    let (file, trace) = (world(1), Trace::random(5, MAX_PER_S, 1));
    let text = || {
        let score = run(&file, "suspend20", "p99<150us", &trace, 5);
        format!("{:?} {:?}", score.run, score.phases)
    };
    assert_eq!(text(), text());
}

#[test]
fn a_queue_that_goes_idle_has_its_interrupt_while_another_is_busy() {
    let steps = [phase(Shape::Steady, 40_000.0), phase(Shape::OneQueue, 20_000.0)];
    let score = run(&world(2), "suspend20", "p99<200us", &Trace { phases: steps.to_vec() }, 1);
    let slices = &score.run.slices;
    let at_end = |phase: usize| slices.iter().rfind(|slice| slice.phase == phase).unwrap().timeouts_ns.clone();
    assert!(at_end(0).iter().all(|ns| *ns > 50_000), "{:?}", at_end(0));
    assert!(at_end(1)[0] > 50_000 && at_end(1)[1] == 0, "{:?}", at_end(1));
    assert!(score.missed.is_empty(), "{:?}", score.missed);
}

#[test]
fn queues_that_only_send_have_no_timeout_of_the_controllers() {
    let text = "[machine]\ncores = 2\nidle = \"shallow\"\n[nic]\nspeed = \"25Gbit/s\"\nrx_usecs = \"8us\"\n[network]\n\
                latency = \"20us\"\n[service]\nkind = \"epoll\"\nconnections = 200\nrequest_cost = \"12us\"\n[transmit]\n\
                qdisc = \"fq\"\n[costs]\nprofile = \"round\"\n";
    let file = WorldFile::parse("w.toml", text).unwrap();
    let trace = Trace { phases: vec![phase(Shape::Steady, 40_000.0)] };
    let slices = run(&file, "suspend20", "p99<200us", &trace, 1).run.slices;
    assert!(!slices.is_empty() && slices.iter().all(|slice| slice.timeouts_ns.len() == 2), "{slices:?}");
    assert!(slices.last().unwrap().timeouts_ns.iter().all(|timeout_ns| *timeout_ns > 20_000), "{slices:?}");
}

#[test]
fn in_deferx_and_from_base_it_finds_a_timeout_as_well() {
    let trace = Trace { phases: vec![phase(Shape::Steady, 20_000.0)] };
    for mode in ["base", "defer500"] {
        let score = run(&world(1), mode, "p99<200us", &trace, 1);
        let last = score.run.slices.last().unwrap();
        assert!((100_000..200_000).contains(&last.timeouts_ns[0]), "{mode}: {last:?}");
        assert_eq!((last.standing, score.missed.len()), (Some(Standing::Met), 0), "{mode}");
    }
}

/// There is hardly any load for a while, on four queues, and what comes after it comes at once.
#[test]
fn load_that_steps_up_does_not_wait_for_an_arrival_of_the_old_rate() {
    let steps = [phase(Shape::Steady, 0.5), phase(Shape::Steady, 40_000.0)];
    let score = run(&world(4), "suspend20", "p99<200us", &Trace { phases: steps.to_vec() }, 3);
    let first = score.run.slices.iter().find(|slice| slice.phase == 1).unwrap();
    let asked = (first.end_ns - first.begin_ns) as f64 * 40_000.0 / 1e9;
    assert!((first.latency.answers as f64 / asked - 1.0).abs() < 0.1, "{first:?}");
}

#[test]
fn what_nobody_can_meet_ends_in_the_mode_that_was_asked_for() {
    // The network alone takes 20 us, and an interrupt and a request take the same again.
    let trace = Trace { phases: vec![phase(Shape::Steady, 20_000.0)] };
    let score = run(&world(1), "suspend20", "p99<30us", &trace, 1);
    let last = score.run.slices.last().unwrap();
    assert_eq!((last.standing, last.timeouts_ns[0]), (Some(Standing::OutOfReach), 20_000));
}
