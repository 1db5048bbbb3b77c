//! The answer of a search in words: sentences and commands to type, for the text and for the page.

use lull_core::Mode;
use lull_sim::tune::{Answer, Elsewhere, Objective, Tried, us_text};
use lull_sim::{PredictError, WorldFile};
use lull_slo::Statistic;
use lull_units::{rate_text, time_text};

use crate::simulated::mixed_queues;

/// If accounting misses more time than this, in percent of the cores, the text mentions it.
const UNSEEN_PERCENT: f64 = 5.0;

/// The goal of the published table's calibration for p99, in percent.
const FIT_GOAL_P99_PERCENT: f64 = 25.0;

/// Returns a refusal in one line: nothing meets the objective, and what comes nearest.
pub fn refusal(answer: &Answer) -> String {
    let asked = objective_text(&answer.objective);
    match &answer.nearest {
        Some(nearest) => {
            let worst = match nearest.excess(&answer.objective) < 1.0 {
                // It is met on average, but not by every seed or not with enough to spare.
                true => format!("meets it on average, but not on each of {} seeds", nearest.runs.len()),
                false => format!("comes nearest: {}", nearest.worst(&answer.objective)),
            };
            format!(
                "no setting meets {asked}: {} {worst}, CPU {:.0} %; relax the objective, lower the load or add cores",
                nearest.setting,
                nearest.mean(|run| run.cpu_percent)
            )
        }
        None if answer.base.ran_too_short() => format!(
            "cannot judge {asked}: a run of {} has no answer, as so few requests come in its time; simulate more with \
             --seconds, or raise the load",
            answer.base.setting
        ),
        None => format!(
            "no setting meets {asked}: none carries the load ({}: {}); lower the load, or add cores or connections",
            answer.base.setting,
            answer.base.worst(&answer.objective)
        ),
    }
}

/// Formats an objective: `p99<200us at 400K requests per second with at most 50 % CPU`.
pub fn objective_text(objective: &Objective) -> String {
    let cpu = objective.cpu_max_percent.map_or(String::new(), |max| format!(" with at most {max} % CPU"));
    format!("{} at {} requests per second{cpu}", objective.slo, rate_text(objective.per_s))
}

/// Returns the commands to type for the recommendation, each with its purpose. There are none without a recommendation.
pub fn lines(file: &WorldFile, answer: &Answer, dev: &str) -> Vec<(String, String)> {
    let Some(recommended) = &answer.recommended else { return Vec::new() };
    let setting = &recommended.setting;
    if file.host.is_some() {
        let (run, set) = setting.user_lines();
        let set = set.map(|line| (line, "while it runs".to_owned()));
        return [(run, String::new())].into_iter().chain(set).collect();
    }
    let caveat = setting.caveat().map(str::to_owned).unwrap_or_default();
    let mut lines = vec![(setting.apply_line(dev), caveat)];
    // lull run works for sockets of IPv4 and IPv6, not for those of AF_XDP.
    let own = file.socket_options(&setting.mode).map(|options| (format!("# {options}"), String::new()));
    let half = |line: String| {
        let stays = if line.ends_with("--once") { "; without --once it stays and follows the program" } else { "" };
        (line, format!("the application's half{stays}"))
    };
    lines.extend(own.or_else(|| setting.program_line().map(half)));
    lines
}

/// Returns a sentence that compares the recommendation's latency and CPU with those of base.
pub fn against_base(answer: &Answer) -> Option<String> {
    let recommended = answer.recommended.as_ref()?;
    let (base, objective) = (&answer.base, &answer.objective);
    if recommended.setting == base.setting {
        return Some("base itself meets the objective at the least CPU: leave everything as it is.".to_owned());
    }
    let change = |now: f64, before: f64| format!("{:+.0} %", 100.0 * (now / before - 1.0));
    let mut parts = Vec::new();
    let statistics = Statistic::ALL.iter().map(|(statistic, _)| *statistic);
    let bounded = |statistic| objective.slo.bounds().iter().any(|bound| bound.statistic == statistic);
    for statistic in statistics.filter(|statistic| bounded(*statistic) || *statistic == Statistic::Avg) {
        let of = |tried: &Tried| tried.mean(|run| run.latency_us(statistic));
        parts.push(format!(
            "{statistic} {} instead of {} ({})",
            us_text(of(recommended)),
            us_text(of(base)),
            change(of(recommended), of(base))
        ));
    }
    let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
    let carried = match base.carries() {
        true => String::new(),
        false => format!(" Base does not carry the load: it answers {:.0} %.", 100.0 * base.carried()),
    };
    let busy = |tried: &Tried| tried.mean(|run| run.busy_percent);
    let unseen = match busy(recommended) - cpu(recommended) >= UNSEEN_PERCENT {
        false => String::new(),
        true => format!(
            " Cores are not idle for {:.0} % of the time instead of {:.0} %: accounting does not see what interrupts and \
             timers take out of idle.",
            busy(recommended),
            busy(base)
        ),
    };
    Some(format!(
        "Against base: {}; CPU {:.1} % instead of {:.1} % ({:+.1} points).{unseen}{carried}",
        parts.join(", "),
        cpu(recommended),
        cpu(base),
        cpu(recommended) - cpu(base)
    ))
}

/// Returns sentences on why this setting was chosen.
pub fn reasons(answer: &Answer) -> Vec<String> {
    let Some(recommended) = &answer.recommended else { return Vec::new() };
    let objective = &answer.objective;
    let meeting = answer.tried.iter().filter(|tried| tried.excess(objective) < 1.0).count();
    let run = answer.tried.iter().filter(|tried| !is_left_out(tried)).count();
    let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
    let spare = match (objective.spare_percent > 0.0, answer.spares()) {
        (false, _) => String::new(),
        (true, true) => format!(" of those with {} % to spare", objective.spare_percent),
        (true, false) => format!(" (none has {} % to spare)", objective.spare_percent),
    };
    let mut reasons = vec![format!(
        "{} settings were tried, {meeting} meet the objective on average; {} does at the least CPU{spare}. Within a \
         point of CPU, and five of time that cores are not idle, the lowest {} decides.",
        run,
        recommended.setting,
        objective.slo.first().statistic
    )];
    reasons.extend(refinement(answer));
    reasons.extend(near_miss(answer));
    let said = answer.near_miss().map(|tried| &tried.setting);
    let cheaper = answer
        .tried
        .iter()
        .filter(|tried| Some(&tried.setting) != said)
        .filter(|tried| cpu(tried) < cpu(recommended) && tried.carries() && tried.setting != recommended.setting)
        // The results of other values were reported before.
        .filter(|tried| !(tried.setting.is_refined() && tried.excess(objective) < 1.0))
        .min_by(|a, b| a.excess(objective).total_cmp(&b.excess(objective)));
    if let Some(cheaper) = cheaper {
        let but = match cheaper.excess(objective) {
            excess if excess >= 1.0 => "misses it".to_owned(),
            excess if excess >= 1.0 - objective.spare_percent / 100.0 => "meets it too closely".to_owned(),
            _ => format!("is within a point of CPU, with a higher {}", objective.slo.first().statistic),
        };
        reasons.push(format!(
            "Of the cheaper ones {} comes nearest and {but}: {}, CPU {:.1} %.",
            cheaper.setting,
            cheaper.worst(objective),
            cpu(cheaper),
        ));
    }
    let first = objective.slo.first();
    reasons.push(format!(
        "Confirmed: each of {} seeds ({} to {}, {} of virtual time each) meets every bound; a further one stays below \
         {} {} with 95 %.",
        recommended.runs.len(),
        objective.seed,
        objective.seed + u64::from(objective.seeds) - 1,
        time_text(objective.window_ns),
        first.statistic,
        us_text(recommended.upper(|run| run.latency_us(first.statistic))),
    ));
    if !answer.refuted.is_empty() {
        let names: Vec<String> = answer.refuted.iter().map(ToString::to_string).collect();
        reasons.push(format!("Met it on average and failed this confirmation: {}.", names.join(", ")));
    }
    if let Some(margin) = answer.margin() {
        let advice = if margin < FIT_GOAL_P99_PERCENT { ": measure before you rely on it" } else { "" };
        reasons.push(format!(
            "The tightest bound is kept with {margin:.0} % to spare; the fit of the costs aims at \
             {FIT_GOAL_P99_PERCENT:.0} % for p99 on the machine that they were fitted to{advice}."
        ));
    }
    reasons
}

/// Returns a sentence on the best setting beyond the spare, and its price.
fn near_miss(answer: &Answer) -> Option<String> {
    let (recommended, other) = (answer.recommended.as_ref()?, answer.near_miss()?);
    let (first, spare) = (answer.objective.slo.first().statistic, answer.objective.spare_percent);
    let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
    let points = (cpu(other) - cpu(recommended)).abs();
    let figures = format!(
        "{first} {}, CPU {:.1} %, {points:.1} points",
        us_text(other.mean(|run| run.latency_us(first))),
        cpu(other)
    );
    Some(match answer.spares() {
        true => format!(
            "{} just meets it, too ({figures} less): --spare 0% takes it if it can be confirmed.",
            other.setting
        ),
        false => format!("{} keeps {spare} % to spare, which is not worth its price ({figures} more).", other.setting),
    })
}

/// Whether the described service cannot have this setting.
fn is_left_out(tried: &Tried) -> bool {
    matches!(tried.error, Some(PredictError::Mode(_)))
}

/// Returns a sentence on the results of other values of `irq_suspend_timeout` and `defer_hard_irqs` than the modes'
/// own, or `None` if none were tried.
fn refinement(answer: &Answer) -> Option<String> {
    let tried = answer.tried.iter().filter(|tried| tried.setting.is_refined() && !tried.runs.is_empty()).count();
    if tried == 0 {
        return None;
    }
    let first = answer.objective.slo.first().statistic;
    let figures = |tried: &Tried| {
        let latency = us_text(tried.mean(|run| run.latency_us(first)));
        format!("{} (CPU {:.1} %, {first} {latency})", tried.setting, tried.mean(|run| run.cpu_percent))
    };
    let recommended = answer.recommended.as_ref()?;
    let searched =
        format!("{tried} of them have other values of irq_suspend_timeout or defer_hard_irqs than their modes'");
    Some(match (answer.refinement(), recommended.setting.is_refined()) {
        ((_, Some(own)), true) => {
            format!("{searched}, and these earn it: the best with a mode's own values is {}.", figures(own))
        }
        ((_, None), true) => format!("{searched}: with the modes' own values nothing meets the objective."),
        ((Some(other), _), false) => format!(
            "{searched}: the best of those, {}, is not better than {} by what it would have to be (a point of CPU, or \
            5 % of latency at no more CPU).",
            figures(other),
            figures(recommended)
        ),
        ((None, _), false) => format!("{searched}: none of those meets the objective."),
    })
}

/// Returns a sentence on how good the answer is at another load.
pub fn elsewhere(answer: &Answer, at: &Elsewhere) -> String {
    // The limit of CPU belongs to the load that was asked for.
    let objective = &answer.objective.latency_only();
    let first = objective.slo.first().statistic;
    let figures = |tried: &Tried| {
        format!(
            "{first} {}, CPU {:.0} %",
            us_text(tried.mean(|run| run.latency_us(first))),
            tried.mean(|run| run.cpu_percent)
        )
    };
    let recommended = &at.recommended;
    let stands = match (recommended.carries(), recommended.excess(objective) < 1.0) {
        (true, true) => format!("still meets it ({})", figures(recommended)),
        (true, false) => format!("no longer meets it: {} ({})", recommended.worst(objective), figures(recommended)),
        (false, _) => format!("no longer carries the load ({})", recommended.worst(objective)),
    };
    let best = match &at.best {
        Some(best) if best.setting == recommended.setting => "it would be chosen there too".to_owned(),
        Some(best) => format!("there {} would be chosen ({})", best.setting, figures(best)),
        None => "nothing meets the objective there".to_owned(),
    };
    let base = match at.base.carries() {
        true => figures(&at.base),
        false => at.base.worst(objective),
    };
    format!(
        "At {} ({} times the load) {} {stands}; {best}; base: {base}.",
        rate_text(recommended.per_s),
        at.factor,
        recommended.setting
    )
}

/// Returns a sentence on the setting that holds at all the loads that were tried.
pub fn steady(answer: &Answer) -> String {
    let recommended = answer.recommended.as_ref().map(|tried| &tried.setting);
    match answer.steady() {
        Some(steady) if Some(&steady.setting) == recommended => {
            format!("{} is also the cheapest that meets the objective at all of these loads.", steady.setting)
        }
        Some(steady) => format!(
            "If the load moves that far, {} is the cheapest that meets the objective at all of these loads (CPU {:.1} \
             % at {}).",
            steady.setting,
            steady.mean(|run| run.cpu_percent),
            rate_text(answer.objective.per_s)
        ),
        None => "Nothing that was tried meets the objective at all of these loads.".to_owned(),
    }
}

/// Returns further notes for the reader.
pub fn notes(file: &WorldFile, answer: &Answer) -> Vec<String> {
    let modes: Vec<Mode> = answer.recommended.iter().map(|tried| tried.setting.mode.clone()).collect();
    let left_out: Vec<&Tried> = answer.tried.iter().filter(|tried| is_left_out(tried)).collect();
    let left_out = left_out.first().and_then(|first| {
        let others = match left_out.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        first.error.as_ref().map(|error| format!("Left out{others}: {error}."))
    });
    mixed_queues(file, &modes).into_iter().chain(left_out).collect()
}

/// Returns how a setting compares with the objective, for a column.
pub fn standing(answer: &Answer, tried: &Tried) -> String {
    let objective = &answer.objective;
    let recommended = answer.recommended.as_ref().is_some_and(|one| one.setting == tried.setting);
    match tried.excess(objective) {
        _ if recommended => "recommended".to_owned(),
        _ if tried.runs.is_empty() || !tried.carries() => tried.worst(objective),
        excess if excess < 1.0 && answer.refuted.contains(&tried.setting) => "met, not by all seeds".to_owned(),
        excess if excess < 1.0 => "met".to_owned(),
        _ => format!("missed: {}", tried.worst(objective)),
    }
}
