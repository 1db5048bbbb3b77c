//! The injector's clock: scheduled disturbances, and held frames that become due.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::injector::{Stats, count};
use super::line::FaultLine;
use super::{Disturbance, FaultConfig};
use crate::alarm::Alarm;
use crate::device::{Device, DeviceError, DeviceEvent, Link};

/// What the clock does to the device.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Flap { down_ns: u64 },
    Up,
    Reset,
}

impl From<Disturbance> for Step {
    fn from(disturbance: Disturbance) -> Step {
        match disturbance {
            Disturbance::Flap { down_ns } => Step::Flap { down_ns },
            Disturbance::Reset => Step::Reset,
        }
    }
}

/// The transmit half of a queue, to the clock.
pub(super) trait Transmits: Send + Sync {
    /// The clock's thread came by; when to come again.
    fn tick(&self, shared: &Shared) -> Option<u64>;

    /// The inner device was reset, which masks its room interrupt.
    fn mask_outer(&self);
}

/// What the device, its queues and its thread share.
pub(super) struct Shared {
    /// Weak: queues that outlive the device must not keep it, or its peer would not hear that it is gone.
    inner: Weak<dyn Device>,
    pub(super) config: FaultConfig,
    pub(super) stats: Stats,
    pub(super) epoch: Instant,
    /// Counts what makes held frames void: resets, and the end of the device.
    voids: AtomicU64,
    plan: Mutex<Vec<(u64, Step)>>,
    lines: Mutex<Vec<Weak<FaultLine>>>,
    transmitters: Mutex<Vec<Weak<dyn Transmits>>>,
    /// Set at the start; ends with the last queue, so that none is left with frames that nobody lets go.
    alarm: OnceLock<Alarm>,
}

impl Shared {
    pub(super) fn start(inner: Arc<dyn Device>, config: FaultConfig) -> Result<Arc<Shared>, DeviceError> {
        let plan = config.schedule.iter().map(|(at_ns, disturbance)| (*at_ns, Step::from(*disturbance))).collect();
        let shared = Arc::new(Shared {
            config,
            stats: Stats::default(),
            epoch: Instant::now(),
            voids: AtomicU64::new(0),
            plan: Mutex::new(plan),
            lines: Mutex::new(Vec::new()),
            transmitters: Mutex::new(Vec::new()),
            alarm: OnceLock::new(),
            inner: Arc::downgrade(&inner),
        });
        let watching = Arc::downgrade(&shared);
        inner.watch(Box::new(move |event| {
            if let Some(shared) = watching.upgrade() {
                shared.heed(event);
            }
        }));
        let ticking = Arc::downgrade(&shared);
        let alarm =
            Alarm::spawn("lull-nic-fault", move || ticking.upgrade()?.tick()).map_err(|source| DeviceError::Os {
                device: inner.info().name,
                what: "start the fault injector's thread".to_owned(),
                remedy: "raise the limit on threads",
                source,
            })?;
        // Empty until now, so it cannot fail.
        let _ = shared.alarm.set(alarm);
        Ok(shared)
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    pub(super) fn voids(&self) -> u64 {
        self.voids.load(Ordering::Acquire)
    }

    /// The inner device had an event. After a reset or its end, held frames are void; only a reset masks, because the
    /// last interrupt of a device that is gone has to come through.
    fn heed(&self, event: DeviceEvent) {
        if matches!(event, DeviceEvent::Link(_) | DeviceEvent::Mtu) {
            return;
        }
        self.voids.fetch_add(1, Ordering::AcqRel);
        if event == DeviceEvent::Reset {
            for line in alive(&self.lines) {
                line.mask_outer();
            }
            for transmitter in alive(&self.transmitters) {
                transmitter.mask_outer();
            }
        }
    }

    pub(super) fn add_line(&self, line: &Arc<FaultLine>) {
        lock(&self.lines).push(Arc::downgrade(line));
    }

    pub(super) fn add_transmitter(&self, transmitter: Arc<dyn Transmits>) {
        lock(&self.transmitters).push(Arc::downgrade(&transmitter));
    }

    /// Something may be due earlier than the thread knows.
    pub(super) fn wake(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.thread().unpark();
        }
    }

    pub(super) fn plan(&self, at_ns: u64, step: Step) {
        lock(&self.plan).push((at_ns, step));
        self.wake();
    }

    pub(super) fn flap(&self, down_ns: u64) -> Result<(), DeviceError> {
        if let Some(inner) = self.inner.upgrade() {
            inner.set_link(Link::Down)?;
        }
        count(&self.stats.flaps);
        self.plan(self.now_ns().saturating_add(down_ns), Step::Up);
        Ok(())
    }

    /// Does what is due; how long until the next.
    fn tick(&self) -> Option<Duration> {
        self.run_plan();
        let now_ns = self.now_ns();
        for line in alive(&self.lines) {
            line.raise_if_due(now_ns);
        }
        let mut next = Vec::new();
        for transmitter in alive(&self.transmitters) {
            next.extend(transmitter.tick(self));
        }
        next.extend(lock(&self.plan).iter().map(|(at_ns, _)| *at_ns));
        // Of the lines only what is still to come: what was due is raised, or waits for its unmask.
        next.extend(alive(&self.lines).map(|line| line.due_ns()).filter(|due_ns| *due_ns > now_ns));
        let next_ns = next.into_iter().min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(self.now_ns())))
    }

    fn run_plan(&self) {
        let now_ns = self.now_ns();
        let mut due: Vec<_> = lock(&self.plan).extract_if(.., |(at_ns, _)| *at_ns <= now_ns).collect();
        due.sort_by_key(|(at_ns, _)| *at_ns);
        // With the lock released: watchers run from here and may plan more.
        for (_, step) in due {
            let Some(inner) = self.inner.upgrade() else { return };
            let result = match step {
                Step::Flap { down_ns } => self.flap(down_ns),
                Step::Up => inner.set_link(Link::Up),
                Step::Reset => inner.reset().inspect(|()| count(&self.stats.resets)),
            };
            if result.is_err() {
                count(&self.stats.refused);
            }
        }
    }
}

fn alive<T: ?Sized>(list: &Mutex<Vec<Weak<T>>>) -> impl Iterator<Item = Arc<T>> {
    let mut list = lock(list);
    list.retain(|weak| weak.strong_count() > 0);
    let alive: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
    alive.into_iter()
}

/// Locks; no value guarded here is left half-written by a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
