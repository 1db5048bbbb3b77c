//! The timeouts of a device, chosen while it runs, for an objective of latency.
//!
//! The law is `lull-slo`'s. Here it gets its readings (polls and packets of each NAPI from the tracepoint, or where that
//! cannot be read the device's packets; CPU from `/proc/stat`; latency from the service's own report, if it sends one),
//! and what it chooses goes to the NAPIs by the same path as `lull set`. So the former values are on disk before the
//! first change, and `undo` gives them back whatever becomes of the controller. Settings that a link flap, a reset or
//! somebody else has changed are set again after the next window: as long as it runs it alone writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_core::NapiSettings;
use lull_slo::{Controller, NapiReading, Reading, Standing, WINDOW_NS_MAX, WINDOW_NS_MIN, window_is_over};

use crate::apply::{Session, Undone, apply, undo};
use crate::device::{NapiState, Snapshot};
use crate::error::{Error, Result};
use crate::plan::DeviceRequest;
use crate::polls::now_ns;
use crate::prepare::Keeping;
use crate::report::Report;
use crate::roots::Roots;
use crate::set::{Set, Setting, Which, set};
use crate::stat::{Sample, Watch};
use crate::watch::service_is_ready;

/// What a controller of a device works with.
#[derive(Debug)]
pub struct Control {
    /// The law, with its objective and bounds.
    pub controller: Controller,
    /// Where the service reports latencies, if it does.
    pub report: Option<Report>,
}

/// Applies `request`, then chooses timeouts until `stop` is set, then undoes. Each change and each other standing is told
/// to `log` in a line.
///
/// # Errors
/// Those of [`apply`], with nothing changed; later refusals are logged and tried again, but a device that has vanished
/// ends it.
pub fn control(
    session: &mut Session,
    request: &DeviceRequest,
    control: &mut Control,
    stop: &AtomicBool,
    log: &mut dyn FnMut(&str),
) -> Result<Undone> {
    session.hold()?;
    for change in &apply(session, request)?.changes {
        log(&change.to_string());
    }
    let mut eyes = Eyes::open(session, log)?;
    let latency = match &control.report {
        Some(report) => format!("latencies as they are reported on {}", report.path().display()),
        None => "CPU only: latency is not known here, --report takes the service's".to_owned(),
    };
    log(&format!("{} on {}, from {}: {latency}", control.controller.slo(), session.device().name, request.mode));
    service_is_ready();
    let mut told = Told::default();
    let mut keeping = Keeping::default();
    while !stop.load(Ordering::Relaxed) {
        let seen = eyes.window(session, request, control, stop).and_then(|window| {
            let Some(reading) = window else { return Ok(()) };
            keeping.look(session, "a window", log);
            told.unread(control.report.as_mut(), log);
            let standing = control.controller.decide(&reading);
            let changed = put_in_force(session, request, &control.controller)?;
            told.standing(standing, &reading, &changed, log);
            Ok(())
        });
        match seen {
            Ok(()) => {}
            Err(gone @ Error::UnknownDevice { .. }) => {
                // Its settings are gone with it, and a device that takes its name must not get them.
                session.forget()?;
                return Err(gone);
            }
            Err(error) => told.complaint(&error, log),
        }
    }
    let undone = undo(session)?;
    for change in &undone.changes {
        log(&format!("undone: {change}"));
    }
    Ok(undone)
}

/// The NAPIs that a request is about.
fn chosen<'a>(snapshot: &'a Snapshot, request: &'a DeviceRequest) -> impl Iterator<Item = &'a NapiState> {
    let is_chosen = |napi: &&NapiState| match &request.queues {
        None => true,
        Some(queues) => napi.rx.iter().any(|queue| queues.contains(queue)),
    };
    snapshot.napis.iter().filter(is_chosen)
}

/// Sets what differs from what the controller wants; returns it in words.
fn put_in_force(session: &mut Session, request: &DeviceRequest, controller: &Controller) -> Result<Vec<String>> {
    let snapshot = session.snapshot()?;
    let mut changed = Vec::new();
    for napi in chosen(&snapshot, request) {
        let (now, wanted): (NapiSettings, NapiSettings) = (napi.settings.into(), controller.settings(napi.id));
        if now == wanted {
            continue;
        }
        let settings = vec![
            Setting::DeferHardIrqs(wanted.defer_hard_irqs),
            Setting::GroFlushTimeoutNs(wanted.gro_flush_timeout_ns),
            Setting::IrqSuspendTimeoutNs(wanted.irq_suspend_timeout_ns),
        ];
        let which = Which { queues: Vec::new(), napi_ids: vec![napi.id] };
        let applied = set(session, &Set { which, settings })?;
        changed.extend(applied.changes.iter().map(ToString::to_string));
    }
    Ok(changed)
}

/// What is seen of a device, window by window.
struct Eyes {
    watch: Watch,
    cpu: Option<Ticks>,
    roots: Roots,
}

impl Eyes {
    fn open(session: &Session, log: &mut dyn FnMut(&str)) -> Result<Eyes> {
        let roots = session.roots().clone();
        let mut watch = Watch::open(&session.device().name, &roots)?;
        if let Some(why) = watch.untraced() {
            log(&format!("packets are counted for the device as a whole: {why}"));
        }
        // What lies in the ring buffers from before does not belong to the first window.
        watch.sample(Duration::ZERO, &AtomicBool::new(true))?;
        Ok(Eyes { watch, cpu: Ticks::read(&roots), roots })
    }

    /// Waits for a window to be over; nothing if `stop` was set meanwhile.
    fn window(
        &mut self,
        session: &mut Session,
        request: &DeviceRequest,
        control: &mut Control,
        stop: &AtomicBool,
    ) -> Result<Option<Reading>> {
        let began = Instant::now();
        let part = Duration::from_nanos(if control.report.is_some() { WINDOW_NS_MIN } else { WINDOW_NS_MAX });
        let mut napis: Vec<NapiReading> = Vec::new();
        loop {
            let sample = self.watch.sample(part, stop)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let snapshot = session.snapshot()?;
            add(&mut napis, chosen(&snapshot, request), &sample);
            let answers = control.report.as_mut().map(Report::drain);
            if window_is_over(began.elapsed().as_nanos() as u64, answers) {
                break;
            }
        }
        let cpu = Ticks::read(&self.roots);
        let before = std::mem::replace(&mut self.cpu, cpu);
        Ok(Some(Reading {
            now_ns: now_ns(),
            window_ns: began.elapsed().as_nanos() as u64,
            napis,
            cpu_percent: cpu.zip(before).and_then(|(now, before)| now.percent_since(before)),
            latency: control.report.as_mut().and_then(Report::take),
        }))
    }
}

/// Adds what a sample showed of each NAPI.
fn add<'a>(napis: &mut Vec<NapiReading>, chosen: impl Iterator<Item = &'a NapiState>, sample: &Sample) {
    let chosen: Vec<u32> = chosen.map(|napi| napi.id).collect();
    let count = |per_s: f64| (per_s * sample.seconds).round() as u64;
    // Until it is known which of them is which, each may be the busiest of those that are not.
    let unmatched = sample.napis.iter().filter(|napi| napi.napi_id.is_none());
    let unmatched = unmatched.max_by(|a, b| a.rates.packets_per_s.total_cmp(&b.rates.packets_per_s));
    napis.retain(|napi| chosen.contains(&napi.id));
    for &id in &chosen {
        let seen = sample.napis.iter().find(|napi| napi.napi_id == Some(id)).or(unmatched);
        let part = match seen {
            Some(seen) => NapiReading {
                id,
                polls: count(seen.rates.polls_per_s),
                work: count(seen.rates.packets_per_s),
                timers: None,
                suspends: seen.suspensions_per_s.map(count),
            },
            None if sample.traced => NapiReading { id, suspends: Some(0), ..NapiReading::default() },
            None => {
                let each = sample.device_packets_per_s.unwrap_or(0.0) / chosen.len().max(1) as f64;
                NapiReading { id, work: count(each), ..NapiReading::default() }
            }
        };
        match napis.iter_mut().find(|napi| napi.id == id) {
            Some(napi) => {
                napi.polls += part.polls;
                napi.work += part.work;
                napi.suspends = napi.suspends.zip(part.suspends).map(|(one, other)| one + other);
            }
            None => napis.push(part),
        }
    }
}

/// Time of all CPUs, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn read(roots: &Roots) -> Option<Ticks> {
        Ticks::parse(&std::fs::read_to_string(roots.proc("stat")).ok()?)
    }

    /// The line `cpu` of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; what guests took is in
    /// user and nice already.
    fn parse(text: &str) -> Option<Ticks> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        (ticks.len() >= 5).then(|| Ticks { idle: ticks[3] + ticks[4], all: ticks.iter().sum() })
    }

    fn percent_since(self, before: Ticks) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(100.0 * (1.0 - self.idle.saturating_sub(before.idle) as f64 / all as f64))
    }
}

/// What was told last, so that nothing is told twice.
#[derive(Default)]
struct Told {
    standing: Option<Standing>,
    complaint: Option<String>,
    unread: bool,
}

impl Told {
    /// A service that reports in words of its own would wait for ever for something to happen.
    fn unread(&mut self, report: Option<&mut Report>, log: &mut dyn FnMut(&str)) {
        let Some(report) = report else { return };
        let words = report.take_unread();
        if words > 0 && !std::mem::replace(&mut self.unread, true) {
            log(&format!(
                "{words} words on {} are no latency and are passed over: send times with their units, such as 85us 1.2ms",
                report.path().display()
            ));
        }
    }

    fn standing(&mut self, standing: Standing, reading: &Reading, changed: &[String], log: &mut dyn FnMut(&str)) {
        self.complaint = None;
        // Moving and met take turns as it settles; the changes tell that.
        let is_new = self.standing.replace(standing) != Some(standing);
        if !is_new && changed.is_empty() {
            return;
        }
        let cpu = reading.cpu_percent.map_or_else(String::new, |percent| format!(", CPU {percent:.0} %"));
        let latency = reading.latency.map_or_else(String::new, |latency| {
            format!(", p99 {} of {} answers", lull_units::time_text(latency.p99_ns), latency.answers)
        });
        let changes = if changed.is_empty() { String::new() } else { format!(": {}", changed.join("; ")) };
        log(&format!("{standing}{latency}{cpu}{changes}"));
    }

    fn complaint(&mut self, error: &Error, log: &mut dyn FnMut(&str)) {
        let text = error.to_string();
        if self.complaint.as_ref() != Some(&text) {
            log(&text);
        }
        self.complaint = Some(text);
        // It is tried again with the next window, and not at once.
        std::thread::sleep(Duration::from_nanos(WINDOW_NS_MIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_what_was_not_idle() {
        let before = Ticks::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        let after = Ticks::parse("cpu  150 0 75 900 75 0 0 0 0 0\n").unwrap();
        assert_eq!(after.percent_since(before), Some(37.5));
        assert_eq!(before.percent_since(before), None);
        assert_eq!(Ticks::parse("intr 1 2 3\n"), None);
    }
}
