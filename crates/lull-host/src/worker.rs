//! An application thread's place on a CPU.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

use crate::affinity;
use crate::cpu::Cpu;
use crate::delivery::{Delivery, Instance};
use crate::error::HostError;
use crate::host::Host;
use crate::parker::Parker;
use crate::seat::{GUEST, Holder};
use crate::sync::relock;
use crate::table::Found;

/// An application thread's place on a CPU. It belongs to one thread at a time and may move to another: it is not `Sync`,
/// because two threads in one place would both believe to have the seat.
pub struct Worker {
    host: Host,
    cpu: u16,
    /// Its place in the seat's words. Those beyond [`crate::seat::WORKERS_MAX`] have none, and never sleep in the seat.
    pub(crate) slot: Option<u32>,
    pub(crate) parker: Arc<Parker>,
    /// The thread whose timer slack was set.
    prepared: Cell<Option<ThreadId>>,
    /// The last id looked up, and its index.
    last_looked_up: Cell<u64>,
}

/// Wakes a worker that sleeps, from any thread.
#[derive(Clone)]
pub struct Waker {
    host: std::sync::Weak<Delivery>,
    parker: Arc<Parker>,
    cpu: u16,
}

impl Waker {
    /// Ends the worker's sleep, or its next one.
    #[inline]
    pub fn wake(&self) {
        if let Some(host) = self.host.upgrade() {
            let cpu = host.cpu(self.cpu);
            // The worker is counted before it runs and takes the count back; otherwise a poller would let others run
            // while the answer is still to be sent.
            let count = || {
                cpu.woken.fetch_add(1, Ordering::Relaxed);
            };
            self.parker.wake_after(&cpu.sleeps, count);
        }
    }

    /// Whether both wake the same worker.
    pub fn is_same(&self, other: &Waker) -> bool {
        Arc::ptr_eq(&self.parker, &other.parker)
    }
}

impl Worker {
    /// A place on CPU `cpu` of `host`. The first 64 deliver for their CPU while they sleep; what comes for those beyond is
    /// delivered by others, who then wake them.
    ///
    /// # Errors
    /// No such CPU, or no descriptor to be had.
    pub fn new(host: &Host, cpu: u16) -> Result<Worker, HostError> {
        let inner = host.inner();
        if usize::from(cpu) >= inner.cpu_count() {
            return Err(HostError::NoCpu { cpu, cpus: inner.cpu_count() });
        }
        let os = |source| HostError::Os { what: "create a worker's event descriptor".to_owned(), source };
        let parker = Arc::new(Parker::new().map_err(os)?);
        let mut workers = relock(&inner.cpu(cpu).workers);
        let slot = workers.iter().position(Option::is_none);
        if let Some(slot) = slot {
            workers[slot] = Some(parker.clone());
        }
        drop(workers);
        Ok(Worker {
            host: host.clone(),
            cpu,
            slot: slot.map(|slot| slot as u32),
            parker,
            prepared: Cell::new(None),
            last_looked_up: Cell::new(0),
        })
    }

    /// The host that the worker is of.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The CPU that the worker has its place on.
    pub fn cpu(&self) -> u16 {
        self.cpu
    }

    /// Makes what wakes this worker.
    pub fn waker(&self) -> Waker {
        Waker { host: Arc::downgrade(self.host.inner()), parker: self.parker.clone(), cpu: self.cpu }
    }

    /// Pins the calling thread to the CPU's core, if the CPU has one.
    ///
    /// # Errors
    /// The system refused.
    pub fn pin_thread(&self) -> Result<(), HostError> {
        let Some(core) = self.host.core(self.cpu) else { return Ok(()) };
        let os = |source| HostError::Os { what: format!("pin a worker to core {core}"), source };
        affinity::pin_to(core).map_err(os)
    }

    pub(crate) fn place(&self) -> (&Delivery, &Cpu, Holder) {
        let inner = &**self.host.inner();
        (inner, inner.cpu(self.cpu), self.slot.map_or(GUEST, Holder::worker))
    }

    /// Runs what is due on this CPU, if anything is and nobody else is at it.
    #[inline]
    pub fn poll_point(&self) {
        let (host, cpu, me) = self.place();
        if cpu.is_due(host.clock.now_ns()) && cpu.seat.is_free() {
            host.visit(cpu, me);
        }
    }

    /// `napi_by_id`. The last answer is kept, and believed while the instance still has that id.
    #[inline]
    pub(crate) fn instance(&self, id: u32) -> Option<Found<'_, Instance>> {
        let inner = self.host.inner();
        let last = self.last_looked_up.get();
        if (last >> 32) as u32 == id {
            let found = inner.instance(last as u32);
            if let Some(instance) = found.filter(|instance| instance.napi.id() == id) {
                return Some(instance);
            }
        }
        let index = inner.registry.by_id(id)?;
        self.last_looked_up.set((u64::from(id) << 32) | u64::from(index));
        inner.instance(index)
    }

    pub(crate) fn prepare_thread(&self) {
        let thread = std::thread::current().id();
        if self.prepared.replace(Some(thread)) != Some(thread) {
            affinity::no_timer_slack();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (_, cpu, _) = self.place();
        if let Some(slot) = self.slot {
            relock(&cpu.workers)[slot as usize] = None;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::{HostConfig, Sleep};

    /// Few, since the waker gets little of a busy core.
    const ROUNDS: u64 = 5;

    /// Its waker is of a lesser class, so that a thread that is woken on the same core runs before the waker goes on.
    #[test]
    fn nobody_waits_for_the_core_once_those_who_were_woken_have_run() {
        let core = affinity::usable_cores()[0];
        let host = Host::new(HostConfig { cpus: vec![Some(core)], ..HostConfig::default() }).unwrap();
        let worker = Worker::new(&host, 0).unwrap();
        let waker = worker.waker();
        let (asked, done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (asked, done) = (&asked, &done);
            scope.spawn(move || {
                affinity::pin_to(core).unwrap();
                for round in 1..=ROUNDS {
                    let ready = &mut || asked.load(Ordering::Acquire) >= round;
                    worker.turn().sleep(&Sleep { until_ns: None, fd: None }, ready);
                    done.store(round, Ordering::Release);
                }
            });
            scope.spawn(move || {
                affinity::pin_to(core).unwrap();
                let param = libc::sched_param { sched_priority: 0 };
                // SAFETY: the parameter outlives the call, which only reads it.
                #[allow(unsafe_code)]
                let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
                assert_eq!(refused, 0);
                for round in 1..=ROUNDS {
                    // It sleeps by now, as a rule: it had the core.
                    std::thread::yield_now();
                    asked.store(round, Ordering::Release);
                    waker.wake();
                    while done.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                }
            });
        });
        assert!(!host.inner().cpu(0).need_resched(), "a poller would let others run, of whom there are none");
    }
}
