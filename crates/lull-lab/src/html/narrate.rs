//! Describes what a comparison shows, in words computed from it.
//!
//! Every sentence is about usable cells: the mode was in force and the generator was not the limit. A difference is
//! only stated if the interval of the paired ratio excludes equality; otherwise the text says that it is open.

use crate::cell::compare::{Metric, Order, against_base, low_load, order, ratio};
use crate::cell::drift::Drift;
use crate::cell::report::find;
use crate::cell::{CellSummary, Enforcement, Load, Standing};
use crate::csv::published;
use crate::stats::Estimate;

/// The most reversed pairs that are named. Further ones are only counted.
const PAIRS_NAMED_MAX: usize = 4;

/// Returns one paragraph that says what the cells show, compared with what the published table states.
pub fn narrate(cells: &[CellSummary]) -> String {
    if cells.is_empty() {
        return "Nothing was measured.".to_string();
    }
    let mut sentences = Vec::new();
    if cells.iter().all(|c| c.runs.len() < 2) {
        sentences.push("Every cell ran once: no difference here can be told from noise.".to_string());
    }
    sentences.extend(Drift::of(cells).sentence());
    sentences.extend(throughput(cells));
    sentences.extend(suspend_against_fullbusy(cells));
    sentences.extend(low_load_ratios(cells));
    for (metric, name) in [(Metric::P99, "p99"), (Metric::Cpu, "CPU")] {
        sentences
            .extend(low_load(cells).and_then(|load| Some(order_sentence(&order(cells, metric, load)?, name, load))));
    }
    sentences.extend(doubts(cells));
    if sentences.is_empty() {
        sentences.push("The cells measured do not bear on any statement of the published table.".to_string());
    }
    sentences.join(" ")
}

/// Compares `suspendX`, X > 0, with `base` at MAX.
fn throughput(cells: &[CellSummary]) -> Option<String> {
    let suspending = |c: &&CellSummary| {
        let timeout = c.testcase.strip_prefix("suspend").and_then(|x| x.parse::<u32>().ok());
        c.load == Load::Max && timeout.is_some_and(|x| x > 0)
    };
    let suspended: Vec<&CellSummary> = cells.iter().filter(suspending).collect();
    if suspended.is_empty() {
        return None;
    }
    let base = match find(cells, "base", Load::Max) {
        Some(base) if base.usable() => base,
        Some(_) => {
            return Some("At MAX the row of base does not count, so no gain in throughput can be stated.".into());
        }
        None => return Some("At MAX base was not measured, so no gain in throughput can be stated.".into()),
    };
    let usable: Vec<&CellSummary> = suspended.into_iter().filter(|c| c.usable()).collect();
    let compared: Vec<(&str, Estimate)> =
        usable.iter().filter_map(|c| Some((c.testcase.as_str(), ratio(Metric::Qps, c, base)?))).collect();
    if compared.is_empty() {
        return Some("At MAX no row with suspension counts, so no gain in throughput can be stated.".into());
    }
    let group = |wanted: fn(&Estimate) -> bool| -> Vec<(&str, Estimate)> {
        compared.iter().copied().filter(|(_, r)| wanted(r)).collect()
    };
    let once = compared.iter().all(|(_, r)| r.interval.is_none());
    let mut clauses = Vec::new();
    for (group, direction) in [
        (group(|r| r.value > 1.0 && (r.interval.is_none() || r.excludes(1.0))), "more"),
        (group(|r| r.value < 1.0 && (r.interval.is_none() || r.excludes(1.0))), "less"),
    ] {
        if !group.is_empty() {
            let gains = range(group.iter().map(|(_, r)| 100.0 * (r.value - 1.0).abs()));
            let verb = if group.len() == 1 { "serves" } else { "serve" };
            clauses.push(format!("{} {verb} {gains} % {direction} than base", list(group.iter().map(|g| g.0))));
        }
    }
    let open = group(|r| r.interval.is_some() && !r.excludes(1.0));
    if !open.is_empty() {
        clauses.push(format!("{} cannot be told from base", list(open.iter().map(|g| g.0))));
    }
    let once = if once { ", in a single run" } else { "" };
    let published = range(compared.iter().filter_map(|(name, _)| Some(100.0 * (published_ratio(name, "base")? - 1.0))));
    let published = if published.is_empty() { published } else { format!(" (published: {published} % more)") };
    Some(format!("At MAX{once}, {}{published}.", clauses.join("; ")))
}

fn suspend_against_fullbusy(cells: &[CellSummary]) -> Option<String> {
    let (suspend, full) = (find(cells, "suspend20", Load::Max)?, find(cells, "fullbusy", Load::Max)?);
    if !(suspend.usable() && full.usable()) {
        let which = if suspend.usable() { "fullbusy" } else { "suspend20" };
        return Some(format!("suspend20 and fullbusy cannot be compared at MAX: the row of {which} does not count."));
    }
    let ratio = ratio(Metric::Qps, suspend, full)?;
    let interval = match ratio.interval {
        Some(i) => format!("{:.1} to {:.1}, paired over {} runs", 100.0 * i.low, 100.0 * i.high, ratio.count),
        None => "a single run".to_string(),
    };
    let published = match published_ratio("suspend20", "fullbusy") {
        Some(p) if ratio.excludes(p) => format!("; published: {:.1} %, outside this interval", 100.0 * p),
        Some(p) => format!("; published: {:.1} %", 100.0 * p),
        None => String::new(),
    };
    Some(format!(
        "At MAX suspend20 reaches {:.1} % of fullbusy's throughput ({interval}{published}).",
        100.0 * ratio.value
    ))
}

/// Returns the extremes of p99 and CPU against `base` at low load, or at the lowest load there is.
fn low_load_ratios(cells: &[CellSummary]) -> Option<String> {
    let lowest = || cells.iter().map(|c| c.load).filter(|&load| load != Load::Max).min();
    let load = low_load(cells).or_else(lowest)?;
    let base = find(cells, "base", load)?;
    if !base.usable() {
        return Some(format!("At {load} load the row of base does not count, so no mode can be held against it."));
    }
    let rows: Vec<_> = against_base(cells, load).into_iter().filter(|row| row.cell.usable()).collect();
    let extremes = |values: Vec<(&str, Estimate)>| {
        let least = values.iter().min_by(|a, b| a.1.value.total_cmp(&b.1.value)).copied()?;
        let most = values.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value)).copied()?;
        let one = |(name, r): (&str, Estimate)| format!("{:.2} times ({name})", r.value);
        Some(if least.0 == most.0 { one(least) } else { format!("between {} and {}", one(least), one(most)) })
    };
    let p99 = extremes(rows.iter().filter_map(|r| Some((r.cell.testcase.as_str(), r.p99?))).collect());
    let cpu = extremes(rows.iter().filter_map(|r| Some((r.cell.testcase.as_str(), r.cpu?))).collect());
    let parts: Vec<String> =
        [p99.map(|t| format!("p99 is {t}")), cpu.map(|t| format!("CPU is {t}"))].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("At {load} load, against base, {}.", parts.join("; ")))
}

fn order_sentence(order: &Order, name: &str, load: Load) -> String {
    let rank = order.spearman.map_or(String::new(), |rho| format!(", Spearman {rho:.2}"));
    let swapped = match order.reversed_within_noise {
        0 => String::new(),
        1 => ", one pair being swapped within noise".to_string(),
        pairs => format!(", {pairs} pairs being swapped within noise"),
    };
    if order.measured == order.published {
        return format!("The order by {name} at {load} is the published one.");
    }
    if order.reversed.is_empty() {
        return format!("The order by {name} at {load} does not contradict the published one{rank}{swapped}.");
    }
    let mut pairs: Vec<String> = order
        .reversed
        .iter()
        .take(PAIRS_NAMED_MAX)
        .map(|(better, worse)| format!("{better} is published below {worse} and lies above it here"))
        .collect();
    if order.reversed.len() > PAIRS_NAMED_MAX {
        pairs.push(format!("{} more pairs are reversed", order.reversed.len() - PAIRS_NAMED_MAX));
    }
    format!(
        "The order by {name} at {load} differs from the published one{rank}: {}{swapped}; lowest first it is {} here.",
        list(pairs.iter().map(String::as_str)),
        list(order.measured.iter().map(String::as_str))
    )
}

/// Returns sentences on the cells that do not count and on those that had another timeout.
fn doubts(cells: &[CellSummary]) -> Vec<String> {
    let group = |wanted: fn(&CellSummary) -> bool| {
        let found: Vec<&CellSummary> = cells.iter().filter(|c| wanted(c)).collect();
        (!found.is_empty()).then(|| by_mode(&found))
    };
    let mut sentences = Vec::new();
    if let Some(which) = group(|c| !c.verdict.shows_mode()) {
        sentences.push(format!("Not in force, and shown for the record only: {which}."));
    }
    let late: Vec<String> = timeouts_had(cells);
    if !late.is_empty() {
        sentences.push(format!("Timeouts that fired after another time than was asked: {}.", late.join(", ")));
    }
    if let Some(which) = group(|c| matches!(c.standing, Standing::Unserved { .. })) {
        sentences
            .push(format!("Requests failed, so that these are figures of other work than was asked for: {which}."));
    }
    if let Some(which) = group(|c| matches!(c.standing, Standing::GeneratorBound { .. })) {
        sentences.push(format!("Generator-bound, and so no maximum of the server: {which}."));
    }
    if let Some(which) = group(|c| matches!(c.standing, Standing::GeneratorLate { .. })) {
        sentences.push(format!("Generator-late, and so at less than the load named: {which}."));
    }
    sentences
}

/// Lists cells by mode: `suspend20 (25%, MAX), suspend50 (MAX)`.
fn by_mode(cells: &[&CellSummary]) -> String {
    let mut modes: Vec<(&str, Vec<String>)> = Vec::new();
    for cell in cells {
        match modes.iter_mut().find(|(name, _)| *name == cell.testcase) {
            Some((_, loads)) => loads.push(cell.load.to_string()),
            None => modes.push((&cell.testcase, vec![cell.load.to_string()])),
        }
    }
    modes.iter().map(|(name, loads)| format!("{name} ({})", loads.join(", "))).collect::<Vec<_>>().join(", ")
}

/// Lists the measured timeouts: `defer20 had 38 us` or, if the loads differ, `defer20 had 31 to 38 us`.
fn timeouts_had(cells: &[CellSummary]) -> Vec<String> {
    let mut modes: Vec<(&str, Vec<f64>)> = Vec::new();
    for cell in cells {
        let Enforcement::TimeoutHad { had_us, .. } = cell.verdict else { continue };
        match modes.iter_mut().find(|(name, _)| *name == cell.testcase) {
            Some((_, had)) => had.push(had_us),
            None => modes.push((&cell.testcase, vec![had_us])),
        }
    }
    modes.into_iter().map(|(name, had)| format!("{name} had {} us", range_with(had.into_iter(), 0))).collect()
}

fn published_ratio(numerator: &str, denominator: &str) -> Option<f64> {
    let qps = |name: &str| published().iter().find(|r| r.testcase == name && r.load == Load::Max)?.qps;
    Some(qps(numerator)? / qps(denominator)?)
}

/// Formats a range: `16.3 to 16.7`, or one number if both ends are written the same. It is empty without values.
fn range(values: impl Iterator<Item = f64>) -> String {
    range_with(values, 1)
}

fn range_with(values: impl Iterator<Item = f64>, decimals: usize) -> String {
    let ends =
        values.fold(None, |ends: Option<(f64, f64)>, v| Some(ends.map_or((v, v), |(l, h)| (l.min(v), h.max(v)))));
    let Some((low, high)) = ends else { return String::new() };
    let (low, high) = (format!("{low:.decimals$}"), format!("{high:.decimals$}"));
    if low == high { low } else { format!("{low} to {high}") }
}

/// Lists items: `a, b and c`.
fn list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<&str> = items.collect();
    match items.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_string(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{RunResult, summarise};

    fn at_max(testcase: &str, qps: [f64; 3]) -> Vec<RunResult> {
        let one = |(n, qps): (usize, f64)| RunResult {
            server_cpu_percent: Some(99.5),
            generator_busy_percent: Some(60.0),
            ..RunResult::new(testcase, Load::Max, n as u32, 1.0, qps)
        };
        qps.into_iter().enumerate().map(one).collect()
    }

    fn at_quarter(testcase: &str, p99: f64) -> Vec<RunResult> {
        let load = Load::Percent { permille: 250 };
        (0..3)
            .map(|n| RunResult {
                p99_latency_us: Some(p99 + f64::from(n) * 0.01),
                ..RunResult::new(testcase, load, n, 1.0, 1000.0)
            })
            .collect()
    }

    #[test]
    fn gains_are_stated_with_the_published_ones() {
        let cells = summarise(
            [
                at_max("base", [100.0, 102.0, 98.0]),
                at_max("suspend20", [116.0, 118.3, 113.7]),
                at_max("fullbusy", [118.0, 120.4, 115.6]),
            ]
            .concat(),
        );
        let text = narrate(&cells);
        assert!(text.contains("suspend20 serves 16.0 % more than base (published: 16.3 % more)"), "{text}");
        assert!(
            text.contains("At MAX suspend20 reaches 98.3 % of fullbusy's throughput (98.2 to 98.4, paired over 3 runs"),
            "{text}"
        );
    }

    #[test]
    fn noise_is_called_noise() {
        let cells =
            summarise([at_max("base", [100.0, 120.0, 90.0]), at_max("suspend20", [116.0, 95.0, 100.0])].concat());
        assert!(narrate(&cells).contains("suspend20 cannot be told from base"), "{}", narrate(&cells));
        let once = summarise(vec![at_max("base", [100.0; 3])[0].clone(), at_max("suspend20", [90.0; 3])[0].clone()]);
        let text = narrate(&once);
        assert!(
            text.starts_with("Every cell ran once") && text.contains("in a single run, suspend20 serves 10.0 % less")
        );
    }

    #[test]
    fn rows_that_do_not_count_carry_no_statement() {
        let mut runs =
            [at_max("base", [100.0; 3]), at_max("suspend20", [116.0; 3]), at_max("fullbusy", [1.0; 3])].concat();
        runs[3].verdict = Enforcement::not_in_force("no suspension");
        runs[8].generator_busy_percent = Some(400.0);
        let text = narrate(&summarise(runs));
        assert!(!text.contains("more than base"), "{text}");
        assert!(text.contains("no row with suspension counts"), "{text}");
        assert!(text.contains("the row of suspend20 does not count"), "{text}");
        assert!(text.contains("Not in force, and shown for the record only: suspend20 (MAX)."), "{text}");
        assert!(text.contains("Generator-bound, and so no maximum of the server: fullbusy (MAX)."), "{text}");
    }

    #[test]
    fn another_order_is_said_to_be_another() {
        let all = [("base", 100.0), ("fullbusy", 300.0), ("defer10", 30.0)];
        let text = narrate(&summarise(all.iter().flat_map(|&(n, p)| at_quarter(n, p)).collect()));
        assert!(text.contains("The order by p99 at 25% differs from the published one, Spearman -0.50"), "{text}");
        assert!(text.contains("fullbusy is published below base and lies above it here"), "{text}");
        assert!(text.contains("p99 is between 0.30 times (defer10) and 3.00 times (fullbusy)"), "{text}");
        let same = [("base", 100.0), ("fullbusy", 30.0), ("defer10", 40.0)];
        let text = narrate(&summarise(same.iter().flat_map(|&(n, p)| at_quarter(n, p)).collect()));
        assert!(text.contains("The order by p99 at 25% is the published one."), "{text}");
    }

    #[test]
    fn a_machine_that_drifts_is_said_to_and_ranked_by_pairs() {
        let speed = [1.0, 2.0, 1.0];
        let load = Load::Percent { permille: 250 };
        let runs = |name: &'static str, p99: f64, of: [usize; 3]| {
            of.map(|n| RunResult {
                p99_latency_us: Some(p99 / speed[n]),
                work_us: Some(100.0 / speed[n]),
                ..RunResult::new(name, load, n as u32, 1.0, 1000.0)
            })
        };
        // defer10 has no slow run, and so has the better figures; run by run it is the worse.
        let mut all: Vec<RunResult> = [runs("base", 300.0, [0, 1, 2]), runs("fullbusy", 100.0, [0, 1, 2])].concat();
        all.extend(runs("defer10", 120.0, [0, 1, 2]).into_iter().skip(1).take(1));
        let cells = summarise(all);
        let text = narrate(&cells);
        assert!(text.contains("speed changed by a factor of 2.0"), "{text}");
        let order = order(&cells, Metric::P99, load).unwrap();
        assert_eq!(order.measured, ["fullbusy", "defer10", "base"], "{text}");
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert_eq!(narrate(&[]), "Nothing was measured.");
        let one = narrate(&summarise(at_max("threaded", [1.0; 3])));
        assert!(one.contains("do not bear on any statement"), "{one}");
    }
}
