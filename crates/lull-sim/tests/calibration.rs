//! Calibrates simulated machines, whose costs are known.

use std::sync::atomic::{AtomicBool, Ordering};

use lull_core::Mode;
use lull_sim::calibration::{
    CalibrateError, Calibrated, Cell, Column, Effort, Figure, Interrupts, KEYS, Measured, REQUESTS, Setup, calibrate,
    simulate,
};

use lull_sim::{RunError, WorldFile};

/// The true machine: one core of lull's own stack, with costs at which no search starts.
const TRUTH: &str = r#"[machine]
cores = 1
plane = "user"
[nic]
speed = "1000Gbit/s"
rx_usecs = "0us"
rss = "even"
ring = 8192
[network]
latency = "2500ns"
jitter = "400ns"
slow_share = "2%"
slow_from = "0us"
slow_to = "40us"
[load]
generator_send = "310ns"
generator_answer = "150ns"
generator_raise = "7us"
[service]
kind = "epoll"
connections = 64
request_cost_own = "1300ns"
answers_together = 8
user_share = "95%"
[costs]
profile = "lull-user"
cache_requests = 48
irq = "9us"
timer_irq = "9us"
timer_late = "22us"
poll = "90ns"
rx_request = "340ns"
epoll_call = "120ns"
epoll_sleep = "7us"
epoll_event = "30ns"
busy_round = "110ns"
idle_shallow_exit = "24us"
cold_packet = "0ns"
cold_request = "0ns"
[run]
warmup = "20ms"
"#;

/// An effort for tests that need fewer requests than percentiles take.
fn effort(evaluations: usize) -> Effort {
    Effort { evaluations, requests: 4_000 }
}

fn setup() -> Setup {
    Setup {
        head: vec!["A test's.".to_owned()],
        user_plane: true,
        over: "mem",
        workers: 1,
        connections: 64,
        hz: 2_600_000_000,
        generator: true,
        user_percent: 95.0,
        answers_together: 8,
        interrupts: Interrupts::default(),
    }
}

fn cell(mode: &str, per_s: Option<f64>) -> Cell {
    Cell { mode: mode.parse::<Mode>().unwrap(), per_s, figures: Vec::new(), instructions: None }
}

/// Returns a measurement of the true machine, with an error of 1 %; its seed is none of the search's.
fn measured(truth: &WorldFile, mode: &str, per_s: Option<f64>) -> Cell {
    let mut cell = cell(mode, per_s);
    let shown = simulate(truth, &cell, 77).unwrap();
    cell.figures =
        shown.into_iter().map(|(column, value)| (column, Figure { value, interval: 0.01 * value })).collect();
    cell
}

fn of(cell: &[(Column, f64)], column: Column) -> f64 {
    cell.iter().find(|(of, _)| *of == column).unwrap().1
}

fn value(calibrated: &Calibrated, key: &str) -> f64 {
    calibrated.found.iter().find(|found| found.key.name == key).unwrap().value
}

#[test]
fn the_costs_of_a_simulated_machine_are_recovered_and_predict_what_was_not_used() {
    let truth = WorldFile::parse("truth.toml", TRUTH).unwrap();
    let max = of(&simulate(&truth, &cell("base", None), 5).unwrap(), Column::PerS);
    let low = Some(0.25 * max);
    let cells: Vec<Cell> = [("base", None), ("fullbusy", None), ("base", low), ("fullbusy", low), ("defer200", low)]
        .into_iter()
        .map(|(mode, per_s)| measured(&truth, mode, per_s))
        .collect();
    // These are results of micro-benchmarks, which are a little off.
    let micro = [("costs.irq", 8_000.0), ("costs.idle_shallow_exit", 22_000.0), ("costs.timer_late", 24_000.0)];
    let micro = micro.map(|(key, value)| Measured { key, value, interval: 0.15 * value });
    let mut told = 0;
    let calibrated = calibrate(
        &setup(),
        &micro,
        &cells,
        Effort { evaluations: 225, requests: REQUESTS },
        &AtomicBool::new(false),
        &mut |done, most| {
            assert!(done <= most);
            told += 1;
        },
    )
    .unwrap();
    assert!(told > 20, "{told}");
    let (before, after) = calibrated.error;
    assert!(after < before / 4.0 && after < 1.5, "{before} {after}");
    // The maximum depends on receiving, and on the application's part.
    let sum = value(&calibrated, "costs.rx_request") + value(&calibrated, "service.request_cost_own");
    assert!((sum / 1_640.0 - 1.0).abs() < 0.12, "{sum}");
    let exit = value(&calibrated, "costs.idle_shallow_exit");
    assert!((exit / 24_000.0 - 1.0).abs() < 0.2, "{exit}");
    // These are cells that calibration did not see.
    for (mode, share) in [("suspend20", 0.5), ("suspend200", 0.25), ("napibusy", 0.75), ("defer20", 0.5)] {
        let unseen = cell(mode, Some(share * max));
        // Means over seeds are compared: requests that wait for their connections come in bunches, so the p99 of a
        // single run depends on its seed.
        let mean = |file: &WorldFile, column: Column| -> f64 {
            (9..15).map(|seed| of(&simulate(file, &unseen, seed).unwrap(), column) / 6.0).sum()
        };
        for column in [Column::AvgUs, Column::P99Us] {
            let error = mean(&calibrated.file, column) / mean(&truth, column) - 1.0;
            assert!(error.abs() < 0.2, "{mode} at {share}, {}: {error}", column.name());
        }
        let points = mean(&calibrated.file, Column::CpuPercent) - mean(&truth, Column::CpuPercent);
        assert!(points.abs() < 6.0, "{mode} at {share}: {points} points of CPU");
    }
    // The file is the one that predicted these cells, and has every value with its interval.
    let read = WorldFile::parse("m.toml", &calibrated.text).unwrap();
    assert_eq!(
        (read.costs, read.net, read.host),
        (calibrated.file.costs.clone(), calibrated.file.net.clone(), calibrated.file.host)
    );
    assert_eq!(read.calibrated_over, Some("mem"));
    for found in &calibrated.found {
        let name = found.key.name.split('.').nth(1).unwrap();
        let line = calibrated.text.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap();
        assert!(line.contains("# ±") && line.contains(found.key.meaning), "{line}");
        assert!(found.interval.is_finite() && found.interval >= 0.0, "{found:?}");
    }
}

/// A calibration in a quarter of the default time has this many.
#[test]
fn a_search_with_few_evaluations_finds_something_too() {
    let truth = WorldFile::parse("truth.toml", TRUTH).unwrap();
    let cells = [measured(&truth, "base", None), measured(&truth, "fullbusy", None)];
    for evaluations in [1, 40, 67] {
        let mut most = 0;
        let mut progress = |done: usize, of: usize| {
            assert!(done <= of, "{done} of {of}");
            most = of;
        };
        let stop = AtomicBool::new(false);
        let found = calibrate(&setup(), &[], &cells, effort(evaluations), &stop, &mut progress).unwrap();
        let (before, after) = found.error;
        assert!(after < 0.5 * before, "{evaluations}: {before} to {after}");
        assert!(most <= evaluations.max(30), "{most}");
    }
}

/// A micro-benchmark interrupts a thread that computes each time, while the service is often about to sleep.
#[test]
fn an_interrupt_may_cost_less_than_a_micro_benchmark_shows() {
    let truth = TRUTH.replace("\nirq = \"9us\"\ntimer_irq = \"9us\"", "\nirq = \"2us\"\ntimer_irq = \"2us\"");
    assert_ne!(truth, TRUTH);
    let truth = WorldFile::parse("truth.toml", &truth).unwrap();
    let max = of(&simulate(&truth, &cell("base", None), 5).unwrap(), Column::PerS);
    let cells: Vec<Cell> = [("base", None), ("fullbusy", None), ("base", Some(0.25 * max))]
        .into_iter()
        .map(|(mode, per_s)| measured(&truth, mode, per_s))
        .collect();
    let measured = |key, value| Measured { key, value, interval: 0.15 * value };
    let micro = [measured("costs.irq", 9_000.0), measured("costs.epoll_sleep", 7_000.0)];
    let calibrated = calibrate(&setup(), &micro, &cells, effort(270), &AtomicBool::new(false), &mut |_, _| ()).unwrap();
    let irq = value(&calibrated, "costs.irq");
    assert!((1_000.0..4_000.0).contains(&irq), "{irq}");
    let sleep = value(&calibrated, "costs.epoll_sleep");
    assert!((sleep / 7_000.0 - 1.0).abs() < 0.2, "{sleep}");
}

#[test]
fn a_key_that_no_cell_depends_on_stays_where_it_was_measured_and_says_how_little_is_known() {
    let truth = WorldFile::parse("truth.toml", TRUTH).unwrap();
    let cells = [measured(&truth, "fullbusy", None)];
    // A closed loop with busy polling never sleeps.
    let micro = [Measured { key: "costs.epoll_sleep", value: 6_000.0, interval: 600.0 }];
    let calibrated = calibrate(&setup(), &micro, &cells, effort(120), &AtomicBool::new(false), &mut |_, _| ()).unwrap();
    assert!((value(&calibrated, "costs.epoll_sleep") - 6_000.0).abs() < 1_500.0);
    let found = |key: &str| calibrated.found.iter().find(|found| found.key.name == key).unwrap();
    assert_eq!(found("costs.epoll_sleep").measured, Some(6_000.0));
    assert!(found("costs.epoll_sleep").how().starts_with("measured (6000ns)"));
    let timer = found("costs.timer_late");
    assert!(timer.measured.is_none() && timer.interval > 0.5 * timer.value, "{timer:?}");
    assert!(KEYS.iter().filter(|key| key.is_of(true)).count() == calibrated.found.len());
}

#[test]
fn a_search_that_is_stopped_finds_nothing() {
    let truth = WorldFile::parse("truth.toml", TRUTH).unwrap();
    let (cells, stop) = ([measured(&truth, "fullbusy", None)], AtomicBool::new(false));
    let found =
        calibrate(&setup(), &[], &cells, effort(40), &stop, &mut |done, _| stop.store(done >= 3, Ordering::Relaxed));
    assert_eq!(found.map(|_| ()), Err(CalibrateError::Run(RunError::Stopped)));
}

#[test]
fn a_set_up_that_no_world_file_can_hold_is_refused_by_the_key() {
    let none = Setup { workers: 0, ..setup() };
    let error = calibrate(&none, &[], &[cell("base", None)], effort(10), &AtomicBool::new(false), &mut |_, _| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("machine.cores"), "{error}");
}

#[test]
fn what_the_hardware_counted_of_the_cells_is_predicted_of_others_and_absent_where_it_did_not() {
    let truth = WorldFile::parse("truth.toml", TRUTH).unwrap();
    let cells = |instructions: &dyn Fn(&Cell) -> Option<f64>| -> Vec<Cell> {
        let loads = [
            ("base", None),
            ("fullbusy", None),
            ("base", Some(90e3)),
            ("fullbusy", Some(90e3)),
            ("defer200", Some(90e3)),
        ];
        let with = |(mode, per_s): (&str, Option<f64>)| {
            let cell = measured(&truth, mode, per_s);
            Cell { instructions: instructions(&cell), ..cell }
        };
        loads.into_iter().map(with).collect()
    };
    let of =
        |cell: &Cell, column: Column| cell.figures.iter().find(|(of, _)| *of == column).map_or(0.0, |(_, it)| it.value);
    let taken = |cell: &Cell| Some(5_000.0 + 80.0 * of(cell, Column::Polls) + 7_000.0 * of(cell, Column::Interrupts));
    let calibrated =
        |cells: &[Cell]| calibrate(&setup(), &[], cells, effort(1), &AtomicBool::new(false), &mut |_, _| ()).unwrap();
    let found = calibrated(&cells(&taken));
    let instructions = found.file.instructions.unwrap();
    let unseen = measured(&truth, "suspend20", Some(150e3));
    let predicted = instructions.of_query(of(&unseen, Column::Polls), of(&unseen, Column::Interrupts));
    assert!((predicted / taken(&unseen).unwrap() - 1.0).abs() < 0.02, "{predicted} {instructions:?}");
    let none = calibrated(&cells(&|_| None));
    assert!(none.file.instructions.is_none() && !none.text.contains("[instructions]"), "{}", none.text);
}
