//! The queue halves of a device with faults.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::injector::Injector;
use super::line::{FaultLine, NEVER};
use super::shared::{Shared, lock};
use crate::device::{DeviceError, Queue, RxQueue, TxQueue};
use crate::frame::{Frame, FramePool};

/// Nanoseconds until a held frame that met a full ring is tried again.
const RETRY_NS: u64 = 100_000;

pub(super) fn wrap(shared: &Arc<Shared>, queue: Queue) -> Result<Queue, DeviceError> {
    let Queue { index, rx, tx, irq } = queue;
    let line = FaultLine::new(irq, shared.epoch).map_err(|source| DeviceError::Os {
        device: "fault injector".to_owned(),
        what: format!("make the interrupt of queue {index}"),
        remedy: "raise the limit on open files (ulimit -n)",
        source,
    })?;
    shared.add_line(&line);
    let injector = |direction, rates| Injector::new(shared.config.seed, (index as u64) << 1 | direction, rates);
    let state =
        Arc::new(Mutex::new(TxState { inner: tx, injector: injector(1, shared.config.tx), voids: shared.voids() }));
    shared.add_transmitter(&state);
    let rx = FaultRx {
        inner: rx,
        injector: injector(0, shared.config.rx),
        line: line.clone(),
        shared: shared.clone(),
        voids: shared.voids(),
    };
    let tx = FaultTx { state, shared: shared.clone() };
    Ok(Queue { index, rx: Box::new(rx), tx: Box::new(tx), irq: line })
}

/// Loses held frames if a reset (or the end) came since `seen`.
fn heed_voids(seen: &mut u64, injector: &mut Injector, shared: &Shared) {
    let voids = shared.voids();
    if *seen != voids {
        *seen = voids;
        shared.stats.reset_lost.fetch_add(injector.clear(), Ordering::Relaxed);
    }
}

struct FaultRx {
    inner: Box<dyn RxQueue>,
    injector: Injector,
    line: Arc<FaultLine>,
    shared: Arc<Shared>,
    voids: u64,
}

impl RxQueue for FaultRx {
    /// What it returns counts frames taken off the inner ring as well, so that a flood of dropped ones uses up the
    /// budget like any other.
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        self.line.begin_poll();
        heed_voids(&mut self.voids, &mut self.injector, &self.shared);
        let now_ns = self.shared.now_ns();
        self.injector.release(now_ns);
        let (mut delivered, mut taken, mut empty) = (0, 0, false);
        loop {
            while delivered < budget
                && let Some(frame) = self.injector.pop()
            {
                deliver(frame, pool);
                delivered += 1;
            }
            let left = budget - delivered.max(taken);
            if left == 0 || empty {
                break;
            }
            let (injector, stats) = (&mut self.injector, &self.shared.stats);
            let got = self.inner.poll(left, pool, &mut |frame, _| injector.push(frame, now_ns, stats));
            taken += got;
            empty = got < left;
        }
        let due_ns = if self.injector.ready() > 0 { 0 } else { self.injector.next_due_ns().unwrap_or(NEVER) };
        if due_ns != self.line.due_ns() || due_ns <= now_ns {
            self.line.set_due_ns(due_ns);
            if due_ns != NEVER {
                self.shared.wake();
            }
        }
        delivered.max(taken)
    }

    fn has_work(&self) -> bool {
        let due = || self.injector.next_due_ns().is_some_and(|due_ns| due_ns <= self.shared.now_ns());
        self.injector.ready() > 0 || due() || self.inner.has_work()
    }
}

/// The transmit half, behind a lock because the clock's thread sends what becomes due.
pub(super) struct TxState {
    inner: Box<dyn TxQueue>,
    injector: Injector,
    voids: u64,
}

impl TxState {
    /// Hands on what may go; whether all went.
    fn flush(&mut self) -> bool {
        while let Some(frame) = self.injector.pop() {
            if let Err(frame) = self.inner.transmit(frame) {
                self.injector.unpop(frame);
                return false;
            }
        }
        true
    }

    /// Sends what is due; when to come again. Called by the clock's thread.
    pub(super) fn release(&mut self, shared: &Shared) -> Option<u64> {
        heed_voids(&mut self.voids, &mut self.injector, shared);
        let now_ns = shared.now_ns();
        self.injector.release(now_ns);
        if self.injector.ready() > 0 {
            self.flush();
            self.inner.doorbell();
        }
        self.next_ns(now_ns)
    }

    fn next_ns(&self, now_ns: u64) -> Option<u64> {
        if self.injector.ready() > 0 { Some(now_ns + RETRY_NS) } else { self.injector.next_due_ns() }
    }
}

struct FaultTx {
    state: Arc<Mutex<TxState>>,
    shared: Arc<Shared>,
}

impl TxQueue for FaultTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        let mut state = lock(&self.state);
        let TxState { injector, voids, .. } = &mut *state;
        heed_voids(voids, injector, &self.shared);
        // Before any decision: a frame that comes a second time must not be decided about twice.
        if !state.flush() || state.inner.free_slots() == 0 {
            return Err(frame);
        }
        state.injector.push(frame, self.shared.now_ns(), &self.shared.stats);
        state.flush();
        Ok(())
    }

    fn doorbell(&mut self) {
        let mut state = lock(&self.state);
        let now_ns = self.shared.now_ns();
        let TxState { injector, voids, .. } = &mut *state;
        heed_voids(voids, injector, &self.shared);
        injector.release(now_ns);
        state.flush();
        state.inner.doorbell();
        if state.next_ns(now_ns).is_some() {
            self.shared.wake();
        }
    }

    fn free_slots(&self) -> usize {
        let state = lock(&self.state);
        state.inner.free_slots().saturating_sub(state.injector.ready())
    }

    fn reclaim(&mut self, pool: &mut FramePool) -> usize {
        lock(&self.state).inner.reclaim(pool)
    }
}
