//! Chooses the timeouts of processes on lull's own stack for an objective of latency, while they run.
//!
//! The law is that of `lull-slo`. Its readings are what processes show: the polls and packets of each NAPI, how long
//! requests took from the ring to the answer, and how busy the CPUs are. What it chooses is set as by `lull set`. So
//! `lull undo` knows what was there before, and the settings of a process end with it. A setting that somebody else
//! changes is set again after the next window.

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

use crate::client::Patience;
use crate::place::Places;
use crate::schema::{Answer, Change, Napi, Request, Set, Shown};
use crate::{Client, Offer, Program};

/// How often a sleeping controller looks whether it is to end.
const STOP_EVERY: Duration = Duration::from_millis(20);

/// A process that has queues and could not be asked for longer than this is not just starting.
const STARTING: Duration = Duration::from_secs(5);

/// How long those processes of a program together may take that do not answer what they have. A stopped process must
/// not take the time of the others, which count a controller as gone that has not reported for ten seconds. Processes
/// that answer use none of this time.
const SHOWN_WITHIN: Duration = Duration::from_millis(600);

/// The same for settings and reports. It is longer because a process that has just answered is not stopped, unless it
/// was stopped since, and a busy machine may be slow.
const DONE_WITHIN: Duration = Duration::from_secs(3);

/// The processes whose timeouts are chosen.
#[derive(Debug)]
pub enum Whom {
    /// This process itself.
    Own(Arc<Offer>),
    /// The processes of a program, which come and go.
    Program(Program),
}

/// One such process, with the way to ask it.
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

    fn show(&mut self) -> Result<Shown, String> {
        match self.ask(&Request::Show)? {
            Answer::Shown(shown) => Ok(shown),
            other => {
                Err(format!("it was asked what it shows, and answered {other:?}: use the version of lull that it runs"))
            }
        }
    }

    /// The process's number in this PID namespace.
    fn pid(&self) -> u32 {
        match self {
            Asked::Own(_) => std::process::id(),
            Asked::Other(client) => client.pid(),
        }
    }
}

impl Whom {
    /// The processes that are there now, with what they show. `silent` records those that cannot be asked or do not
    /// answer.
    fn shown(&self, silent: &mut Silent) -> Vec<(Asked<'_>, Shown)> {
        let program = match self {
            Whom::Own(offer) => {
                let mut own = Asked::Own(offer);
                // A process whose network is closed is ending.
                return own.show().ok().map(|shown| (own, shown)).into_iter().collect();
            }
            Whom::Program(program) => program,
        };
        let mut clients = program.clients(&Places::default());
        // A process that was silent may be silent again, and is asked last, so that it takes no time from those that
        // answer.
        clients.sort_by_key(|(pid, _)| silent.has(*pid));
        let (to_show, to_do) = (Patience::with_silence(SHOWN_WITHIN), Patience::with_silence(DONE_WITHIN));
        let (mut all, mut unheard) = (Vec::new(), Vec::new());
        for (pid, client) in clients {
            let shown = client.map_err(|error| error.to_string()).and_then(|mut client| {
                client.share(&to_show);
                let mut asked = Asked::Other(client);
                let shown = asked.show()?;
                if let Asked::Other(client) = &mut asked {
                    client.share(&to_do);
                }
                Ok((asked, shown))
            });
            match shown {
                Ok(shown) => all.push(shown),
                Err(why) => unheard.push((pid, why)),
            }
        }
        silent.are(unheard);
        all
    }
}

/// Processes that cannot be asked or do not answer, each with the time since when, and the first reason. A process that
/// is starting offers its socket a moment later, and one that is ending is gone a moment later.
#[derive(Default)]
struct Silent(BTreeMap<u32, (Instant, String)>);

impl Silent {
    /// Says that these are silent now, and no others.
    fn are(&mut self, unheard: Vec<(u32, String)>) {
        let mut before = std::mem::take(&mut self.0);
        let since = |(pid, why)| (pid, before.remove(&pid).unwrap_or_else(|| (Instant::now(), why)));
        self.0 = unheard.into_iter().map(since).collect();
    }

    fn has(&self, pid: u32) -> bool {
        self.0.contains_key(&pid)
    }

    /// The complaint about one that has been silent for too long, if there is one.
    fn complaint(&self) -> Option<String> {
        let (_, why) = self.0.values().find(|(since, _)| since.elapsed() >= STARTING)?;
        Some(format!("timeouts stay as they are where nobody can be asked: {why}"))
    }
}

/// The NAPIs that receive, which are those that have timeouts.
fn receiving(shown: &Shown) -> impl Iterator<Item = &Napi> {
    shown.napis.iter().filter(|napi| napi.id != 0 && napi.qdisc.is_none())
}

/// What was counted, and when.
struct Counted {
    at: Instant,
    /// The counts by process and id. The process is needed because a queue's next process has the ids of the former
    /// one.
    napis: BTreeMap<(u32, u32), (Stats, Latencies)>,
    cpus: Vec<usize>,
    ticks: Option<Ticks>,
}

impl Counted {
    /// The counts of processes, by their numbers.
    fn of<'s>(processes: impl Iterator<Item = (u32, &'s Shown)> + Clone, roots: &Roots) -> Counted {
        let napis = processes.clone().flat_map(|(pid, shown)| receiving(shown).map(move |napi| (pid, napi)));
        // Threads that are bound to no core may be on any.
        let cores: Option<Vec<usize>> = processes.flat_map(|(_, shown)| &shown.cpus).map(|cpu| cpu.core).collect();
        let mut cpus = cores.unwrap_or_default();
        cpus.sort_unstable();
        cpus.dedup();
        Counted {
            at: Instant::now(),
            napis: napis
                .map(|(pid, napi)| ((pid, napi.id), (napi.stats, napi.answers.clone().unwrap_or_default())))
                .collect(),
            ticks: Ticks::read(roots, &cpus),
            cpus,
        }
    }

    /// What has happened since `before`. Latency is known from the first request on.
    fn since(&self, before: &Counted) -> Reading {
        let mut answers = Latencies::default();
        let mut napis = Vec::new();
        for (&(pid, id), (stats, latencies)) in &self.napis {
            // If a process was not heard then, it is not known when it counted what it has. Its counting begins with
            // this time.
            let Some((former, timed)) = before.napis.get(&(pid, id)) else { continue };
            match stats.since(*former) {
                Some(since) => {
                    napis.push(NapiReading::of(id, &since));
                    answers.add(&latencies.since(timed));
                }
                // The NAPI was reset meanwhile, and has counted from 0 since.
                None => {
                    napis.push(NapiReading::of(id, stats));
                    answers.add(latencies);
                }
            }
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

/// Chooses timeouts until `stop` is set. `mode` is the one that was asked for. Each change, and each standing that
/// differs from the last, is reported to `log` in a line.
pub fn keep(whom: &Whom, mut controller: Controller, mode: &str, stop: &AtomicBool, log: &mut dyn FnMut(&str)) {
    let (roots, mut told) = (Roots::default(), Told::default());
    let mut decided = Decided::new(&controller, mode);
    log(&format!("{} from {mode}: requests are timed from the ring to the answer", controller.slo()));
    let (mut before, mut silent): (Option<Counted>, _) = (None, Silent::default());
    // Whether a process refused what the last window decided.
    let mut refused = false;
    while !wait(Duration::from_nanos(WINDOW_NS_MIN), stop) {
        let mut processes = whom.shown(&mut silent);
        let mut in_the_way = silent.complaint();
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
        let now = Counted::of(processes.iter().map(|(asked, shown)| (asked.pid(), shown)), &roots);
        if now.napis.is_empty() {
            before = None;
            continue;
        }
        let Some(then) = &before else {
            before = Some(now);
            continue;
        };
        let reading = now.since(then);
        if reading.napis.is_empty() {
            // None of these processes was heard at that time.
            before = Some(now);
            continue;
        }
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
            // A process that is ending has nobody to show it to.
            let _ = asked.ask(&Request::Decided(Box::new(decided.clone())));
        }
        told.standing(standing, &reading, &changed, log);
        // What came while it decided belongs to the next window.
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

/// The settings that a controller changes, in words. Who polls is not among what it sets.
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

/// Sleeps for that time. Returns true as soon as it is to stop.
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

    /// What is counted of one NAPI of each of these processes, which are given with their polls and packets.
    fn counted(napis: &[(u32, u64, u64)]) -> Counted {
        let napi = |&(pid, polls, work)| ((pid, 1), (Stats { polls, work, ..Stats::default() }, Latencies::default()));
        Counted { at: Instant::now(), napis: napis.iter().map(napi).collect(), cpus: Vec::new(), ticks: None }
    }

    fn work(now: &Counted, before: &Counted) -> u64 {
        now.since(before).napis.iter().map(|napi| napi.work).sum()
    }

    #[test]
    fn a_process_that_was_not_heard_in_a_window_has_not_done_all_its_work_in_the_next() {
        let [heard, unheard, again] =
            [counted(&[(7, 999_000, 999_000)]), counted(&[]), counted(&[(7, 1_000_000, 1_000_000)])];
        assert_eq!(work(&again, &unheard), 0);
        assert_eq!(work(&again, &heard), 1000);
    }

    #[test]
    fn a_queues_next_process_is_not_compared_with_the_former_one() {
        assert_eq!(work(&counted(&[(8, 9, 3)]), &counted(&[(7, 5, 100)])), 0);
        // A NAPI that was reset in its process has counted from 0 since, whichever of its counters tells that.
        assert_eq!(work(&counted(&[(7, 9, 3)]), &counted(&[(7, 5, 100)])), 3);
    }

    #[test]
    fn who_falls_silent_is_told_of_by_what_it_was_silent_of_at_first() {
        let mut silent = Silent::default();
        silent.are(vec![(7, "7 is stopped".to_owned())]);
        assert!(silent.has(7) && silent.complaint().is_none());
        silent.0.get_mut(&7).unwrap().0 -= STARTING;
        silent.are(vec![(7, "its queue is full".to_owned()), (8, "8 is starting".to_owned())]);
        assert!(silent.complaint().is_some_and(|why| why.ends_with("7 is stopped")));
        silent.are(vec![(8, "8 is starting".to_owned())]);
        assert!(!silent.has(7) && silent.complaint().is_none());
    }

    #[test]
    fn what_is_not_a_controllers_to_set_is_no_difference() {
        let wanted = NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() };
        let by_hand = NapiSettings { threaded: Threaded::On, ..wanted };
        assert_eq!(difference(&by_hand, &wanted), Vec::<String>::new());
        let none = NapiSettings { threaded: Threaded::On, ..NapiSettings::default() };
        assert_eq!(difference(&none, &wanted), ["defer_hard_irqs 1 (was 0)", "gro_flush_timeout 20us (was 0ns)"]);
    }
}
