//! The timeouts of a device, chosen while it runs, for an objective of latency.
//!
//! The law is that of `lull-slo`. This module gets its readings: the polls and packets of each NAPI from the
//! tracepoint, or the device's packets if that cannot be read; the use of CPUs from `/proc/stat`; and latencies from
//! the service's own report, if it sends one. What the law chooses is set in the same way as by `lull set`. So the
//! former values are on disk before the first change, and `undo` gives them back whatever becomes of the controller.
//! Settings that a link flap, a reset or somebody else has changed are set again after the next window, as the
//! controller alone writes while it runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_core::NapiSettings;
use lull_slo::{Controller, Decided, NapiReading, Reading, Slo, Told, WINDOW_NS_MIN, window_is_over};

use crate::apply::{Session, Undone, apply, undo};
use crate::device::{NapiState, Snapshot};
use crate::error::{Error, Result};
use crate::plan::DeviceRequest;
use crate::polls::now_ns;
use crate::prepare::Keeping;
use crate::report::{Report, Unread};
use crate::roots::Roots;
use crate::set::{Set, Setting, Which, set};
use crate::stat::{Sample, Watch};
use crate::state::Store;
use crate::ticks::Ticks;
use crate::watch::service_is_ready;

/// What a controller of a device needs.
#[derive(Debug)]
pub struct Control {
    /// The law, with its objective and bounds.
    pub controller: Controller,
    /// The report in which the service sends latencies, if it does.
    pub report: Option<Report>,
}

/// Applies `request`, then chooses timeouts until `stop` is set, and then undoes. Each change, and each standing that
/// differs from the last, is reported to `log` in a line.
///
/// # Errors
/// Those of looking at the device and of [`apply`], with nothing changed. Later refusals are logged and tried again,
/// but if the device has vanished that is an error.
pub fn control(
    session: &mut Session,
    request: &DeviceRequest,
    control: Control,
    stop: &AtomicBool,
    log: &mut dyn FnMut(&str),
) -> Result<Undone> {
    session.hold()?;
    // Opening what is looked at may fail, so it comes before the first change.
    let eyes = Eyes::open(session, log)?;
    for change in &apply(session, request)?.changes {
        log(&change.to_string());
    }
    let mut controlling = Controlling::begin(session, request, control, eyes, log);
    service_is_ready();
    while !stop.load(Ordering::Relaxed) {
        if !controlling.look(session, request, PART, stop, log)? {
            // It is tried again with the next window, and not at once.
            std::thread::sleep(PART);
        }
    }
    drop(controlling);
    let undone = undo(session)?;
    for change in &undone.changes {
        log(&format!("undone: {change}"));
    }
    Ok(undone)
}

/// How long one look lasts. A window ends soon after it can end.
const PART: Duration = Duration::from_nanos(WINDOW_NS_MIN);

/// A controller at work.
pub(crate) struct Controlling {
    control: Control,
    eyes: Eyes,
    window: Window,
    keeping: Keeping,
    told: Told,
    passed: Passed,
    decided: Decided,
    store: Store,
}

/// What was seen since the last decision.
struct Window {
    began: Instant,
    napis: Vec<NapiReading>,
}

impl Window {
    fn begin() -> Window {
        Window { began: Instant::now(), napis: Vec::new() }
    }
}

impl Controlling {
    /// Begins on a device to which `request` was applied. `eyes` were opened before that.
    pub(crate) fn begin(
        session: &Session,
        request: &DeviceRequest,
        mut control: Control,
        mut eyes: Eyes,
        log: &mut dyn FnMut(&str),
    ) -> Controlling {
        if let Some(report) = &mut control.report {
            report.is_for(control.controller.slo());
        }
        let latency = match &control.report {
            Some(report) => format!("latencies as they are reported on {}", report.path().display()),
            None => "CPU only: latency is not known here, --report takes the service's".to_owned(),
        };
        // What happened before the mode does not belong to the first window. If this fails, it fails again at the first
        // look.
        let _ = eyes.forget();
        log(&format!("{} on {}, from {}: {latency}", control.controller.slo(), session.device().name, request.mode));
        Controlling {
            decided: Decided::new(&control.controller, request.mode.name()),
            store: session.store().clone(),
            control,
            eyes,
            window: Window::begin(),
            keeping: Keeping::default(),
            told: Told::default(),
            passed: Passed::default(),
        }
    }

    /// Looks at the device for one part of a window, and if the window is over, decides. Returns false if something was
    /// refused, which is logged.
    ///
    /// # Errors
    /// The device has vanished, and its settings with it.
    pub(crate) fn look(
        &mut self,
        session: &mut Session,
        request: &DeviceRequest,
        part: Duration,
        stop: &AtomicBool,
        log: &mut dyn FnMut(&str),
    ) -> Result<bool> {
        match self.try_look(session, request, part, stop, log) {
            Ok(is_over) => {
                if is_over {
                    self.told.content();
                }
                Ok(true)
            }
            Err(gone @ Error::UnknownDevice { .. }) => {
                // A device that takes its name must not get its settings.
                session.forget()?;
                Err(gone)
            }
            Err(error) => {
                self.told.complaint(&error.to_string(), log);
                Ok(false)
            }
        }
    }

    /// Returns whether the window is over and everything was done.
    fn try_look(
        &mut self,
        session: &mut Session,
        request: &DeviceRequest,
        part: Duration,
        stop: &AtomicBool,
        log: &mut dyn FnMut(&str),
    ) -> Result<bool> {
        let sample = self.eyes.watch.sample(part, stop)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let snapshot = session.snapshot()?;
        add(&mut self.window.napis, chosen(&snapshot, request), &sample);
        let answers = self.control.report.as_mut().map(Report::drain);
        let window_ns = self.window.began.elapsed().as_nanos() as u64;
        if !window_is_over(window_ns, answers) {
            return Ok(false);
        }
        let reading = Reading {
            now_ns: now_ns(),
            window_ns,
            napis: std::mem::replace(&mut self.window, Window::begin()).napis,
            cpu_percent: self.eyes.cpu_percent(),
            latency: self.control.report.as_mut().and_then(Report::take),
        };
        self.keeping.look(session, "a window", log);
        self.passed.tell(self.control.report.as_mut(), self.control.controller.slo(), log);
        let standing = self.control.controller.decide(&reading);
        let (changed, refused) = put_in_force(session, request, &self.control.controller)?;
        self.decided.note(&self.control.controller, &reading, standing);
        self.store.decide(&self.decided);
        self.told.standing(standing, &reading, &changed, log);
        refused.map_or(Ok(true), Err)
    }
}

impl Drop for Controlling {
    fn drop(&mut self) {
        self.store.forget_decided();
    }
}

/// The NAPIs that a request is about.
fn chosen<'a>(snapshot: &'a Snapshot, request: &'a DeviceRequest) -> impl Iterator<Item = &'a NapiState> {
    let is_chosen = |napi: &&NapiState| match &request.queues {
        None => true,
        Some(queues) => napi.rx.iter().any(|queue| queues.contains(queue)),
    };
    snapshot.napis.iter().filter(is_chosen)
}

/// Sets what differs from what the controller wants. Returns the changes in words, and the first refusal. A NAPI that
/// is refused does not keep the others from being set.
///
/// # Errors
/// The device cannot be looked at, or has vanished.
fn put_in_force(
    session: &mut Session,
    request: &DeviceRequest,
    controller: &Controller,
) -> Result<(Vec<String>, Option<Error>)> {
    let snapshot = session.snapshot()?;
    let (mut changed, mut refused) = (Vec::new(), None);
    for napi in chosen(&snapshot, request) {
        let (now, wanted): (NapiSettings, NapiSettings) = (napi.settings.into(), controller.settings(napi.id));
        if now == wanted {
            continue;
        }
        let mut settings = vec![
            Setting::DeferHardIrqs(wanted.defer_hard_irqs),
            Setting::GroFlushTimeoutNs(wanted.gro_flush_timeout_ns),
            Setting::IrqSuspendTimeoutNs(wanted.irq_suspend_timeout_ns),
        ];
        if now.threaded != wanted.threaded {
            // Somebody else has turned threads on.
            settings.push(Setting::Threaded(wanted.threaded));
        }
        let which = Which { queues: Vec::new(), napi_ids: vec![napi.id] };
        match set(session, &Set { which, settings }) {
            Ok(applied) => changed.extend(applied.changes.iter().map(ToString::to_string)),
            Err(gone @ Error::UnknownDevice { .. }) => return Err(gone),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Ok((changed, refused))
}

/// The ways in which a device is looked at.
pub(crate) struct Eyes {
    watch: Watch,
    cpu: Option<Ticks>,
    roots: Roots,
}

impl Eyes {
    /// Begins to look at a device.
    ///
    /// # Errors
    /// Those of [`Watch::open`] and of the first look.
    pub(crate) fn open(session: &Session, log: &mut dyn FnMut(&str)) -> Result<Eyes> {
        let roots = session.roots().clone();
        let watch = Watch::open(&session.device().name, &roots)?;
        if let Some(why) = watch.untraced() {
            log(&format!("packets are counted for the device as a whole: {why}"));
        }
        let mut eyes = Eyes { watch, cpu: None, roots };
        eyes.forget()?;
        Ok(eyes)
    }

    /// Forgets what was to be seen until now, such as the contents of the ring buffers.
    ///
    /// # Errors
    /// Those of a look.
    fn forget(&mut self) -> Result<()> {
        self.watch.sample(Duration::ZERO, &AtomicBool::new(true))?;
        self.cpu = Ticks::read(&self.roots, &[]);
        Ok(())
    }

    /// How busy the CPUs were since the last call.
    fn cpu_percent(&mut self) -> Option<f64> {
        let cpu = Ticks::read(&self.roots, &[]);
        let before = std::mem::replace(&mut self.cpu, cpu);
        cpu.zip(before).and_then(|(now, before)| now.percent_since(before))
    }
}

/// Adds what a sample showed of each NAPI.
fn add<'a>(napis: &mut Vec<NapiReading>, chosen: impl Iterator<Item = &'a NapiState>, sample: &Sample) {
    let chosen: Vec<u32> = chosen.map(|napi| napi.id).collect();
    let count = |per_s: f64| (per_s * sample.seconds).round() as u64;
    // Until it is known which of them is which, each may be the busiest of those that are not matched.
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

/// Whether it was reported that words of the service's are no latencies, and that summaries of it are incomplete.
#[derive(Default)]
struct Passed {
    words: bool,
    summaries: bool,
}

impl Passed {
    /// Reports words that are not understood. Otherwise a service that reports in its own words would wait for ever for
    /// something to happen.
    fn tell(&mut self, report: Option<&mut Report>, slo: &Slo, log: &mut dyn FnMut(&str)) {
        let Some(report) = report else { return };
        let (Unread { words, summaries }, path) = (report.take_unread(), report.path().display());
        if words > 0 && !std::mem::replace(&mut self.words, true) {
            log(&format!(
                "{words} words on {path} are no latency and are passed over: send times with their units, such as 85us 1.2ms"
            ));
        }
        if summaries > 0 && !std::mem::replace(&mut self.summaries, true) {
            let wanted = slo.bounds().iter().map(|bound| format!(" {}=TIME", bound.statistic)).collect::<String>();
            log(&format!(
                "{summaries} summaries on {path} say too little for {slo} and are passed over: send answers=NUMBER{wanted}"
            ));
        }
    }
}
