//! The search for settings refuses the impossible and names what comes nearest, and its recommendation holds when it is
//! predicted again.

use lull_sim::predict::{self, Job, Offered};
use lull_sim::tune::{Answer, Figures, Objective, TuneError, reachable, tune};
use lull_sim::{PredictError, WorldFile};

/// One core, quick to simulate, with costs that no fit changes.
const SMALL: &str = r#"[machine]
cores = 1
[nic]
speed = "10Gbit/s"
rx_usecs = "50us"
[network]
latency = "20us"
[service]
kind = "epoll"
connections = 100
request_cost = "6us"
[costs]
profile = "round"
[run]
warmup = "10ms"
"#;

fn small() -> WorldFile {
    WorldFile::parse("small.toml", SMALL).unwrap()
}

fn objective(slo: &str, per_s: f64, cpu_max_percent: Option<f64>) -> Objective {
    Objective {
        slo: slo.parse().unwrap(),
        per_s,
        cpu_max_percent,
        spare_percent: 10.0,
        seeds: 4,
        seed: 1,
        window_ns: 60_000_000,
    }
}

fn run(file: &WorldFile, jobs: &[Job]) -> Vec<Result<Figures, PredictError>> {
    jobs.iter().map(|job| predict::run(file, job).map(|outcome| Figures::of(&outcome))).collect()
}

fn search(file: &WorldFile, objective: &Objective) -> Answer {
    tune(objective, &mut |jobs| Some(run(file, jobs))).unwrap()
}

#[test]
fn what_is_recommended_holds_when_predicted_anew_with_other_seeds() {
    let file = small();
    for (slo, per_s, cpu_max) in [("p99<150us", 50_000.0, None), ("p99<90us,avg<60us", 60_000.0, Some(95.0))] {
        let objective = objective(slo, per_s, cpu_max);
        let answer = search(&file, &objective);
        let recommended = answer.recommended.as_ref().unwrap_or_else(|| panic!("{slo}: nothing found"));
        assert_eq!(recommended.runs.len(), 4);
        assert!(recommended.confirmed(&objective) && answer.nearest.is_none());
        let mode = recommended.setting.mode.clone();
        let job = |seed| Job { mode: mode.clone(), offered: Offered::PerSecond(per_s), seed, window_ns: 60_000_000 };
        for figures in run(&file, &(101..106).map(job).collect::<Vec<_>>()) {
            let figures = figures.unwrap();
            for bound in objective.slo.bounds() {
                assert!(figures.latency_us(bound.statistic) < bound.limit_us(), "{slo}: {mode}: {figures:?}");
            }
            assert!(cpu_max.is_none_or(|max| figures.cpu_percent <= max), "{slo}: {mode}: {figures:?}");
            assert!(figures.per_s > 0.97 * per_s);
        }
    }
}

#[test]
fn nothing_cheaper_that_was_tried_meets_the_objective_with_something_to_spare() {
    let objective = objective("p99<150us", 50_000.0, None);
    let answer = search(&small(), &objective);
    let recommended = answer.recommended.as_ref().unwrap();
    assert!(answer.spares() && answer.margin().unwrap() >= 10.0);
    let cpu = |tried: &lull_sim::tune::Tried| tried.mean(|run| run.cpu_percent);
    for tried in &answer.tried {
        let spares = tried.carries() && tried.mean(|run| run.p99_us) < 135.0;
        assert!(!spares || cpu(tried) > cpu(recommended) - 1.0, "{} at {:.1}", tried.setting, cpu(tried));
    }
    // Every mode was tried, and so were timeouts between those of the grid, and half and double the load.
    for name in ["base", "fullbusy", "threaded-busy", "suspend0", "napibusy"] {
        assert!(answer.tried.iter().any(|tried| tried.setting.to_string() == name), "{name}");
    }
    assert!(answer.tried.len() > 22, "{}", answer.tried.len());
    let factors: Vec<f64> = answer.elsewhere.iter().map(|at| at.factor).collect();
    assert_eq!(factors, [0.5, 2.0]);
    assert!(answer.elsewhere[0].recommended.carries() && answer.elsewhere[0].best.is_some());
    // Half the load is no harder: the setting for both loads is at most as cheap as the one for half the load alone.
    let at_half = Answer { elsewhere: answer.elsewhere[..1].to_vec(), ..answer.clone() };
    let steady = at_half.steady().unwrap();
    assert!(answer.steady().is_none_or(|both| cpu(both) >= cpu(steady)));
    assert!(Answer { elsewhere: Vec::new(), ..answer.clone() }.steady().is_none());
    // A setting that confirmation refuted is not recommended.
    let refuted = vec![steady.setting.clone()];
    let other = Answer { refuted, ..at_half.clone() };
    assert!(other.steady().is_some_and(|other| other.setting != steady.setting && cpu(other) >= cpu(steady)));
    let frontier: Vec<(f64, f64)> = answer.frontier().iter().map(|t| (cpu(t), t.mean(|run| run.p99_us))).collect();
    assert!(frontier.len() > 3 && frontier.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 > pair[1].1));
}

/// A queue's packets are a millisecond apart, on a NIC that holds interrupts back for 100 us. Timeouts that are short
/// enough for the objective end before the next packet comes if there are 100 of them, and the packet waits for the
/// interrupt.
#[test]
fn more_timer_polls_than_the_modes_own_100_bridge_the_gaps_of_a_quiet_queue() {
    let file = WorldFile::parse("quiet.toml", &SMALL.replace("\"50us\"", "\"100us\"")).unwrap();
    let objective = Objective { window_ns: 300_000_000, ..objective("p99<50us", 1_000.0, None) };
    let answer = search(&file, &objective);
    let recommended = answer.recommended.as_ref().unwrap();
    assert!(recommended.setting.is_refined(), "{}", recommended.setting);
    let line = recommended.setting.apply_line("eth0");
    assert!(line.ends_with(" --defer-hard-irqs 1000"), "{line}");
    // With the modes' own values it takes a core that spins.
    let (other, own) = answer.refinement();
    let cpu = |tried: &lull_sim::tune::Tried| tried.mean(|run| run.cpu_percent);
    assert!(cpu(other.unwrap()) < 5.0 && own.is_none_or(|own| cpu(own) > 90.0));
    // The setting that is in force is the simulated one: the same mode without the override waits for the interrupt.
    let job = |mode| Job { mode, offered: Offered::PerSecond(1_000.0), seed: 7, window_ns: 300_000_000 };
    let figures = run(&file, &[job(recommended.setting.mode.clone()), job(recommended.setting.unrefined().mode)]);
    let p99 = |index: usize| figures[index].as_ref().unwrap().p99_us;
    assert!(p99(0) < 50.0 && p99(1) > 100.0, "{} {}", p99(0), p99(1));
}

/// Requests take microseconds, so no batch comes near the 20 ms for which interrupts stay suspended.
#[test]
fn other_suspend_timeouts_are_tried_and_passed_over_where_they_earn_nothing() {
    let file = small();
    let answer = search(&file, &objective("p99<150us", 50_000.0, None));
    let names: Vec<String> = answer.tried.iter().map(|tried| tried.setting.to_string()).collect();
    assert!(names.iter().any(|name| name.ends_with("/suspend=1ms")), "{names:?}");
    assert!(names.iter().any(|name| name.ends_with("/defer=5")), "{names:?}");
    let recommended = answer.recommended.as_ref().unwrap();
    assert!(!recommended.setting.is_refined(), "{}", recommended.setting);
    assert!(!recommended.setting.apply_line("eth0").contains("--irq-suspend-timeout"));
    // The frontier has no setting with other values that make no difference.
    let cpu = |tried: &lull_sim::tune::Tried| tried.mean(|run| run.cpu_percent);
    for point in answer.frontier().into_iter().filter(|point| point.setting.is_refined()) {
        let own = answer.tried.iter().find(|tried| tried.setting == point.setting.unrefined());
        let same = |own: &lull_sim::tune::Tried| {
            (cpu(own) - cpu(point)).abs() < 0.1 && own.mean(|run| run.p99_us) < 1.01 * point.mean(|run| run.p99_us)
        };
        assert!(!own.is_some_and(same), "{}", point.setting);
    }
}

/// Returns the answer for a machine in which fullbusy spins for 50 us, suspend5 has 55 us at `cpu_percent`, and
/// everything else is slow.
fn two_that_meet(asked: &Objective, cpu_percent: f64) -> Answer {
    let figures = |job: &Job| {
        let (p99_us, cpu_percent) = match job.mode.to_string().as_str() {
            "fullbusy" => (50.0, 100.0),
            "suspend5" => (55.0, cpu_percent),
            _ => (300.0, 30.0),
        };
        let Offered::PerSecond(per_s) = job.offered else { panic!("an open loop") };
        Figures {
            per_s,
            answers: 1_000,
            window_ns: job.window_ns,
            avg_us: p99_us,
            p50_us: p99_us,
            p95_us: p99_us,
            p99_us,
            cpu_percent,
            busy_percent: cpu_percent,
        }
    };
    tune(asked, &mut |jobs| Some(jobs.iter().map(|job| Ok(figures(job))).collect())).unwrap()
}

#[test]
fn something_to_spare_is_worth_ten_points_of_cpu_and_what_lies_on_the_other_side_is_named() {
    let asked = objective("p99<58us", 50_000.0, None);
    let names = |answer: &Answer| {
        (answer.recommended.as_ref().unwrap().setting.to_string(), answer.near_miss().map(|t| t.setting.to_string()))
    };
    let dear = two_that_meet(&asked, 60.0);
    assert_eq!(names(&dear), ("suspend5".to_owned(), Some("fullbusy".to_owned())));
    assert!(!dear.spares());
    let cheap = two_that_meet(&asked, 95.0);
    assert_eq!(names(&cheap), ("fullbusy".to_owned(), Some("suspend5".to_owned())));
    assert!(cheap.spares());
    // Without a spare there is no alternative to it.
    let exact = Objective { spare_percent: 0.0, ..asked };
    assert_eq!(names(&two_that_meet(&exact, 60.0)), ("suspend5".to_owned(), None));
}

#[test]
fn what_the_network_alone_takes_longer_for_is_refused_before_anything_is_run() {
    let file = small();
    let error = reachable(&file, &objective("avg<1ms,p99<20us", 50_000.0, None)).unwrap_err().to_string();
    assert!(error.contains("p99<20us") && error.contains("there and back (network.latency, and"), "{error}");
    reachable(&file, &objective("p99<21us", 50_000.0, None)).unwrap();
}

#[test]
fn the_impossible_is_refused_and_the_nearest_is_named() {
    let file = small();
    let impossible = objective("p99<21us", 50_000.0, None);
    let answer = search(&file, &impossible);
    assert!(answer.recommended.is_none() && answer.elsewhere.is_empty());
    let nearest = answer.nearest.as_ref().unwrap();
    let lowest =
        answer.tried.iter().filter(|t| t.carries()).map(|t| t.excess(&impossible)).fold(f64::INFINITY, f64::min);
    assert!((nearest.excess(&impossible) - lowest).abs() < 0.1 * lowest && lowest > 1.0, "{}", nearest.setting);
    assert!(nearest.worst(&impossible).starts_with("p99 is "), "{}", nearest.worst(&impossible));
    // Latency allows some settings, but CPU does not.
    let cheap = objective("p99<60us", 50_000.0, Some(20.0));
    assert!(search(&file, &cheap).recommended.is_none());
}

#[test]
fn what_does_not_carry_the_load_meets_no_objective_however_wide() {
    // The core serves 100,000 a second at the most. Nothing waits for longer than the run takes.
    let answer = search(&small(), &objective("p99<1s", 400_000.0, None));
    assert!(answer.recommended.is_none() && answer.nearest.is_none());
    assert!(!answer.tried.is_empty() && answer.tried.iter().all(|tried| !tried.carries()));
    let worst = answer.base.worst(&answer.objective);
    assert!(worst.contains("% of the load") && answer.base.mean(|run| run.p99_us) < 1_000_000.0, "{worst}");
}

#[test]
fn what_answers_nothing_meets_no_objective_and_noise_is_that_of_the_requests_in_the_window() {
    // The service answers a share of its requests at once, and none if the seed is among the silent ones.
    let answer = |asked: &Objective, share: f64, silent: &[u64]| {
        let figures = |job: &Job| {
            let Offered::PerSecond(per_s) = job.offered else { panic!("an open loop") };
            let share = if silent.contains(&job.seed) { 0.0 } else { share };
            let answers = (share * per_s * job.window_ns as f64 / 1e9) as u64;
            let us = if answers > 0 { 50.0 } else { 0.0 };
            Figures {
                per_s: share * per_s,
                answers,
                window_ns: job.window_ns,
                avg_us: us,
                p50_us: us,
                p95_us: us,
                p99_us: us,
                cpu_percent: 10.0,
                busy_percent: 10.0,
            }
        };
        tune(asked, &mut |jobs| Some(jobs.iter().map(|job| Ok(figures(job))).collect())).unwrap()
    };
    let few = Objective { window_ns: 4_000_000_000, ..objective("p99<200us", 5.0, None) };
    assert!(answer(&few, 0.95, &[]).recommended.is_some(), "20 requests a run are no more exact");
    for silent in [&[1, 2, 3, 4][..], &[2], &[4]] {
        assert!(answer(&few, 0.95, silent).recommended.is_none(), "{silent:?}");
    }
    // With as many a second for longer they are.
    let many = Objective { window_ns: 40_000_000_000_000, ..few };
    assert!(answer(&many, 0.95, &[]).recommended.is_none() && answer(&many, 0.99, &[]).recommended.is_some());
}

#[test]
fn the_answer_is_the_same_every_time_and_bad_luck_is_passed_on() {
    let (file, asked) = (small(), objective("p99<150us", 50_000.0, None));
    let (first, again) = (search(&file, &asked), search(&file, &asked));
    assert_eq!(first.recommended.unwrap().runs, again.recommended.unwrap().runs);
    assert_eq!(tune(&asked, &mut |_| None).unwrap_err(), TuneError::Stopped);
    let error = PredictError::Mode("no".to_owned());
    let all = tune(&asked, &mut |jobs| Some(jobs.iter().map(|_| Err(error.clone())).collect()));
    assert_eq!(all.unwrap_err(), TuneError::Run(error));
}

#[test]
fn a_load_beyond_the_wire_is_refused() {
    let file = WorldFile::parse("small.toml", &SMALL.replace("10Gbit/s", "100Mbit/s")).unwrap();
    let asked = objective("p99<1ms", 50_000.0, None);
    let error = tune(&asked, &mut |jobs| Some(run(&file, jobs))).unwrap_err().to_string();
    assert!(error.contains("50K requests per second do not fit the wire") && error.contains("nic.speed"), "{error}");
    // A second application takes its part of the wire.
    let beside = |per_s: &str| {
        let second = format!("[second]\nconnections = 10\nload = \"{per_s}\"\nrequest_cost = \"1us\"\n");
        let file =
            WorldFile::parse("small.toml", &format!("{}{second}", SMALL.replace("10Gbit/s", "500Mbit/s"))).unwrap();
        predict::fits_wire(&file, 50_000.0).map_err(|error| error.to_string())
    };
    assert_eq!(beside("1K"), Ok(()));
    let error = beside("80K").unwrap_err();
    assert!(error.contains("50K requests per second and the 80K of [second] do not fit the wire"), "{error}");
}

#[test]
fn the_candidates_begin_with_the_recommendation_and_go_on_by_cpu() {
    let asked = objective("p99<150us", 50_000.0, None);
    let answer = search(&small(), &asked);
    let candidates = answer.candidates(4);
    assert_eq!(candidates.len(), 4);
    assert_eq!(candidates[0].setting, answer.recommended.as_ref().unwrap().setting);
    let settings: Vec<String> = candidates.iter().map(|tried| tried.setting.to_string()).collect();
    let mut once = settings.clone();
    once.dedup();
    assert_eq!(once, settings);
    // Settings that meet the objective come before those that do not, and among the former the cheaper comes first.
    let meets = |tried: &&lull_sim::tune::Tried| tried.excess(&asked) < 1.0;
    let others = &candidates[1..];
    let meeting = others.iter().take_while(|tried| meets(tried)).count();
    assert!(!others[meeting..].iter().any(meets));
    let cpu = |tried: &lull_sim::tune::Tried| tried.mean(|run| run.cpu_percent);
    assert!(others[..meeting].windows(2).all(|pair| cpu(pair[0]) <= cpu(pair[1])));
    // If none meets it, the one that comes nearest is first.
    let impossible = objective("p99<21us", 50_000.0, None);
    let answer = search(&small(), &impossible);
    let nearest = answer.candidates(2);
    assert!(nearest[0].excess(&impossible) <= nearest[1].excess(&impossible));
}
