//! The published tables as worlds: what calibration can see, that results do not depend on threads, and robust results.

use lull_core::Mode;
use lull_sim::fit::{FitBudget, distance, fit, perturbed};
use lull_sim::params::Params;
use lull_sim::published::{Budget, CALIBRATION_CSV, Column, KNOWN, PARAMS_TOML, START_TOML, Table, simulate};

fn params() -> Params {
    Params::parse(PARAMS_TOML, &KNOWN).expect("the shipped parameters are within their ranges")
}

fn modes(names: &[&str]) -> Vec<Mode> {
    names.iter().map(|name| name.parse().expect("a mode")).collect()
}

const TINY: Budget = Budget { runs: 1, warmup_ms: 1, open_ms: 2, busy_ms: 2, threads: 2 };

#[test]
fn what_the_fit_found_differs_from_its_start_in_values_only() {
    let (found, start) = (params(), Params::parse(START_TOML, &KNOWN).expect("the start is within its ranges"));
    let mut moved = 0;
    for ((name, found), (_, start)) in found.iter().zip(start.iter()) {
        assert_eq!((&found.unit, found.range, &found.meaning), (&start.unit, start.range, &start.meaning), "{name}");
        moved += usize::from(found.value != start.value);
    }
    assert!(moved > 30, "{moved} moved");
}

#[test]
fn a_perturbed_start_moves_every_parameter_within_its_range_as_its_seed_says() {
    let start = Params::parse(START_TOML, &KNOWN).unwrap();
    let one = perturbed(&start, 0.3, 1);
    assert_eq!(one, perturbed(&start, 0.3, 1));
    assert_ne!(one, perturbed(&start, 0.3, 2));
    one.check().unwrap();
    let shares: Vec<f64> = start
        .iter()
        .map(|(name, param)| (one.get(name) - param.value).abs() / (param.range[1] - param.range[0]))
        .collect();
    // Rounding to four digits may add a little.
    assert!(shares.iter().all(|share| *share < 0.301), "{shares:?}");
    assert!(shares.iter().filter(|share| **share > 0.05).count() > 25, "{shares:?}");
}

#[test]
fn a_fit_replays_and_takes_no_more_evaluations_than_it_was_given() {
    let budget = FitBudget { evaluations: 6, cell: TINY, seed: 3 };
    let cells = Table::parse(CALIBRATION_CSV).unwrap();
    let run = || {
        let mut told = Vec::new();
        let fit = fit(&params(), &cells, &budget, |evaluation, _| told.push(evaluation)).unwrap();
        assert_eq!(told, [1, 2, 3, 4, 5, 6]);
        (fit.params, fit.before.to_bits(), fit.after.to_bits())
    };
    assert_eq!(run(), run());
}

#[test]
fn deferred_interrupts_fall_with_the_timeout_and_do_not_depend_on_the_load() {
    let names = ["defer10", "defer50", "suspend50"];
    let table = simulate(&params(), &modes(&names), &["200K", "MAX"], TINY, 1).unwrap().table;
    let irqs = |case: &str, load: &str| table.cell(case, load).unwrap().get(Column::Irqs);
    for case in names {
        assert_eq!(irqs(case, "200K"), irqs(case, "MAX"), "{case}");
    }
    assert_eq!(irqs("defer50", "MAX"), irqs("suspend50", "MAX"));
    assert!(irqs("defer10", "MAX") > 1.3 * irqs("defer50", "MAX"));
}

#[test]
fn a_fit_follows_the_cells_that_it_is_given() {
    let budget = FitBudget { evaluations: 1, cell: TINY, seed: 3 };
    let mut cells = Table::parse(CALIBRATION_CSV).unwrap();
    let before = distance(&params(), &cells, &budget).unwrap();
    for cell in &mut cells.cells {
        cell.set(Column::Avg, 10.0 * cell.get(Column::Avg));
    }
    assert!(distance(&params(), &cells, &budget).unwrap() > before);
}

#[test]
fn a_table_does_not_depend_on_how_many_threads_ran_it() {
    let modes = modes(&["base", "suspend20"]);
    let run = |threads: usize| simulate(&params(), &modes, &["200K", "MAX"], Budget { threads, ..TINY }, 5).unwrap();
    let (one, two) = (run(1), run(2));
    assert_eq!(one.table, two.table);
    assert_eq!(one.events, two.events);
}

#[test]
fn suspension_has_the_published_shape() {
    let names = ["base", "defer20", "fullbusy", "suspend20", "coalesce-20", "longgro"];
    let budget = Budget { runs: 2, warmup_ms: 30, open_ms: 40, busy_ms: 40, threads: 2 };
    let table = simulate(&params(), &modes(&names), &["400K", "MAX"], budget, 1).unwrap().table;
    let get = |case: &str, load: &str, column: Column| table.cell(case, load).unwrap().get(column);
    // At saturation suspension has fullbusy's throughput, well above base; at moderate load it costs half of fullbusy's
    // CPU.
    assert!(get("suspend20", "MAX", Column::Qps) > 1.05 * get("base", "MAX", Column::Qps));
    assert!(get("suspend20", "MAX", Column::Qps) > 0.97 * get("fullbusy", "MAX", Column::Qps));
    assert!(get("suspend20", "400K", Column::Cpu) < 70.0 && get("fullbusy", "400K", Column::Cpu) > 99.0);
    assert!(get("suspend20", "400K", Column::Avg) < get("base", "400K", Column::Avg));
    // These are designs that were rejected: coalescing never masks the interrupt, and with a long gro_flush_timeout
    // packets wait for that time.
    assert!(get("coalesce-20", "MAX", Column::Irqs) > 100.0 * get("suspend20", "MAX", Column::Irqs));
    assert!(get("longgro", "400K", Column::P99) > 20.0 * get("suspend20", "400K", Column::P99));
}
