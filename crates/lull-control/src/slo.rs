//! The timeouts of processes on lull's own stack, chosen for an objective of latency while they run.
//!
//! The law is `lull-slo`'s. Its readings are what processes show: polls and packets of each NAPI, how long requests took from
//! the ring to the answer, and how busy their CPUs are; what it chooses goes the way of `lull set`. So `lull undo` knows
//! what was there before, and what a process has ends with it. What somebody else sets is set again after the next window.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_core::{NapiSettings, Stats};
use lull_linux::Roots;
use lull_linux::ticks::Ticks;
use lull_slo::{
    Controller, Decided, Latencies, NapiReading, Reading, Told, WINDOW_NS_MAX, WINDOW_NS_MIN, window_is_over,
};
use lull_units::time_text;

use crate::place::Places;
use crate::schema::{Answer, Change, Napi, Request, Set, Shown};
use crate::{Client, Offer, Program};

/// How often it is looked whether a controller is to end.
const STOP_EVERY: Duration = Duration::from_millis(20);

/// A process that has queues and cannot be asked for longer than this is not only starting.
const STARTING: Duration = Duration::from_secs(5);

/// Whose timeouts are chosen.
#[derive(Debug)]
pub enum Whom {
    /// This process's own.
    Own(Arc<Offer>),
    /// Those of a program's processes. They come and go.
    Program(Program),
}

/// A process, as it is asked.
enum Asked<'a> {
    Own(&'a Offer),
    Other(Client),
}

impl Asked<'_> {
    fn ask(&mut self, request: &Request) -> Result<Answer, String> {
        let answer = match self {
            Asked::Own(offer) => offer.ask(request),
            Asked::Other(client) => client.ask(request).map_err(|error| error.to_string())?,
        };
        match answer {
            Answer::Refused(why) => Err(why),
            answer => Ok(answer),
        }
    }

    fn show(&mut self) -> Option<Shown> {
        match self.ask(&Request::Show) {
            Ok(Answer::Shown(shown)) => Some(shown),
            _ => None,
        }
    }
}

impl Whom {
    /// Those that are there now, with what they show, and why others cannot be asked. One that is ending answers no more, and
    /// is none of them.
    fn shown(&self) -> (Vec<(Asked<'_>, Shown)>, Vec<String>) {
        let (mut asked, mut silent) = (Vec::new(), Vec::new());
        match self {
            Whom::Own(offer) => asked.push(Asked::Own(offer)),
            Whom::Program(program) => {
                for client in program.clients(&Places::default()) {
                    match client {
                        Ok(client) => asked.push(Asked::Other(client)),
                        Err(error) => silent.push(error.to_string()),
                    }
                }
            }
        }
        (asked.into_iter().filter_map(|mut asked| asked.show().map(|shows| (asked, shows))).collect(), silent)
    }
}

/// Processes that cannot be asked: those that are starting offer their sockets a moment later.
#[derive(Default)]
struct Silent(Option<Instant>);

impl Silent {
    /// What to say of them.
    fn complaint(&mut self, why: &[String]) -> Option<String> {
        let Some(first) = why.first() else {
            self.0 = None;
            return None;
        };
        (self.0.get_or_insert_with(Instant::now).elapsed() >= STARTING)
            .then(|| format!("timeouts stay as they are where nobody can be asked: {first}"))
    }
}

/// The NAPIs that receive: timeouts are theirs.
fn receiving(shown: &Shown) -> impl Iterator<Item = &Napi> {
    shown.napis.iter().filter(|napi| napi.id != 0 && napi.qdisc.is_none())
}

/// What was counted when.
struct Counted {
    at: Instant,
    napis: BTreeMap<u32, (Stats, Latencies)>,
    cpus: Vec<usize>,
    ticks: Option<Ticks>,
}

impl Counted {
    fn of<'s>(processes: impl Iterator<Item = &'s Shown> + Clone, roots: &Roots) -> Counted {
        let napis = processes.clone().flat_map(receiving);
        // Threads without a core of their own may be on any.
        let cores: Option<Vec<usize>> = processes.flat_map(|shown| &shown.cpus).map(|cpu| cpu.core).collect();
        let mut cpus = cores.unwrap_or_default();
        cpus.sort_unstable();
        cpus.dedup();
        Counted {
            at: Instant::now(),
            napis: napis.map(|napi| (napi.id, (napi.stats, napi.answers.clone().unwrap_or_default()))).collect(),
            ticks: Ticks::read(roots, &cpus),
            cpus,
        }
    }

    /// What happened since then. Latency is known from the first request on.
    fn since(&self, before: &Counted) -> Reading {
        let mut answers = Latencies::default();
        let mut napis = Vec::new();
        for (&id, (stats, latencies)) in &self.napis {
            let none = (Stats::default(), Latencies::default());
            let (former, timed) = before.napis.get(&id).unwrap_or(&none);
            // An id that another process has now counts from its beginning.
            let stats = if stats.polls < former.polls { *stats } else { *stats - *former };
            napis.push(NapiReading::of(id, &stats));
            answers.add(&latencies.since(timed));
        }
        let is_known = self.napis.values().any(|(_, latencies)| !latencies.is_empty());
        let same_cpus = self.cpus == before.cpus;
        Reading {
            now_ns: lull_linux::polls::now_ns(),
            window_ns: (self.at - before.at).as_nanos() as u64,
            napis,
            cpu_percent: self
                .ticks
                .zip(before.ticks)
                .filter(|_| same_cpus)
                .and_then(|(now, then)| now.percent_since(then)),
            latency: is_known.then(|| answers.latency()),
        }
    }
}

/// Chooses timeouts until `stop` is set. `mode` is the one that was asked for. Each change and each other standing is told to
/// `log` in a line.
pub fn keep(whom: &Whom, mut controller: Controller, mode: &str, stop: &AtomicBool, log: &mut dyn FnMut(&str)) {
    let (roots, mut told) = (Roots::default(), Told::default());
    let mut decided = Decided::new(&controller, mode);
    log(&format!("{} from {mode}: requests are timed from the ring to the answer", controller.slo()));
    let (mut before, mut silent): (Option<Counted>, _) = (None, Silent::default());
    // Whether what the last window decided was refused.
    let mut refused = false;
    while !wait(Duration::from_nanos(WINDOW_NS_MIN), stop) {
        let (mut processes, unasked) = whom.shown();
        let mut in_the_way = silent.complaint(&unasked);
        for (asked, _) in processes.iter_mut().filter(|(_, shown)| receiving(shown).any(|it| it.answers.is_none())) {
            if let Err(why) = asked.ask(&Request::TimeAnswers(true)) {
                in_the_way = Some(format!("requests are not timed, and CPU alone decides: {why}"));
            }
        }
        match in_the_way {
            Some(why) => told.complaint(&why, log),
            None if !refused => told.content(),
            None => {}
        }
        let now = Counted::of(processes.iter().map(|(_, shown)| shown), &roots);
        if now.napis.is_empty() {
            before = None;
            continue;
        }
        let Some(then) = &before else {
            before = Some(now);
            continue;
        };
        let reading = now.since(then);
        if !window_is_over(reading.window_ns, reading.latency.map(|latency| latency.answers)) {
            continue;
        }
        let standing = controller.decide(&reading);
        let mut changed = Vec::new();
        refused = false;
        decided.note(&controller, &reading, standing);
        for (asked, shown) in &mut processes {
            if let Err(why) = put_in_force(asked, shown, &controller, &mut changed) {
                told.complaint(&why, log);
                refused = true;
            }
            // One that is ending has nobody to show it to.
            let _ = asked.ask(&Request::Decided(Box::new(decided.clone())));
        }
        told.standing(standing, &reading, &changed, log);
        // What came while it decided is of the next window.
        before = Some(now);
    }
}

/// Sets what differs from what the controller wants, and adds it to `changed` in words.
fn put_in_force(
    asked: &mut Asked<'_>,
    shown: &Shown,
    controller: &Controller,
    changed: &mut Vec<String>,
) -> Result<(), String> {
    for napi in receiving(shown) {
        let wanted = controller.settings(napi.id);
        let words = difference(&napi.settings, &wanted);
        if words.is_empty() {
            continue;
        }
        let change = Change {
            defer_hard_irqs: Some(wanted.defer_hard_irqs),
            gro_flush_timeout_ns: Some(wanted.gro_flush_timeout_ns),
            irq_suspend_timeout_ns: Some(wanted.irq_suspend_timeout_ns),
            ..Change::default()
        };
        asked.ask(&Request::Set(Set { napi_ids: vec![napi.id], change }))?;
        changed.push(format!("{}:{} {}", napi.device, napi.queue, words.join(", ")));
    }
    Ok(())
}

/// What a controller sets anew, in words. Who polls is not its own to set.
fn difference(before: &NapiSettings, now: &NapiSettings) -> Vec<String> {
    let words =
        |name: &str, before: String, now: String| (before != now).then(|| format!("{name} {now} (was {before})"));
    let time = |name: &str, before: u64, now: u64| words(name, time_text(before), time_text(now));
    let all = [
        words("defer_hard_irqs", before.defer_hard_irqs.to_string(), now.defer_hard_irqs.to_string()),
        time("gro_flush_timeout", before.gro_flush_timeout_ns, now.gro_flush_timeout_ns),
        time("irq_suspend_timeout", before.irq_suspend_timeout_ns, now.irq_suspend_timeout_ns),
    ];
    all.into_iter().flatten().collect()
}

/// Sleeps; whether it is to stop.
fn wait(time: Duration, stop: &AtomicBool) -> bool {
    let until = Instant::now() + time.min(Duration::from_nanos(WINDOW_NS_MAX));
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(STOP_EVERY));
    }
    true
}

#[cfg(test)]
mod tests {
    use lull_core::Threaded;

    use super::*;

    #[test]
    fn what_is_not_a_controllers_to_set_is_no_difference() {
        let wanted = NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() };
        let by_hand = NapiSettings { threaded: Threaded::On, ..wanted };
        assert_eq!(difference(&by_hand, &wanted), Vec::<String>::new());
        let none = NapiSettings { threaded: Threaded::On, ..NapiSettings::default() };
        assert_eq!(difference(&none, &wanted), ["defer_hard_irqs 1 (was 0)", "gro_flush_timeout 20us (was 0ns)"]);
    }
}
