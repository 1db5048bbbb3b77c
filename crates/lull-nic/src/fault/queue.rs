//! The queue halves of a device with faults.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::injector::Injector;
use super::line::{FaultLine, NEVER};
use super::room::FaultRoom;
use super::shared::{Shared, Transmits, lock};
use crate::device::{DeviceError, Doorbell, Queue, RxQueue, TxQueue};
use crate::frame::{Frame, FramePool, Sender};

pub(super) fn wrap(shared: &Arc<Shared>, queue: Queue) -> Result<Queue, DeviceError> {
    let Queue { index, rx, tx, irq, tx_irq } = queue;
    let line = FaultLine::new(irq, shared.epoch).map_err(|source| DeviceError::Os {
        device: "fault injector".to_owned(),
        what: format!("make the interrupt of queue {index}"),
        remedy: "raise the limit on open files (ulimit -n)",
        source,
    })?;
    shared.add_line(&line);
    let injector = |direction, rates| Injector::new(shared.config.seed, (index as u64) << 1 | direction, rates);
    let state = TxState { inner: tx, injector: injector(1, shared.config.tx), voids: shared.voids(), unsent: false };
    let room = FaultRoom::new(tx_irq, shared);
    let transmitter = Arc::new(Transmitter { state: Mutex::new(state), room: room.clone() });
    shared.add_transmitter(transmitter.clone());
    let rx = FaultRx {
        inner: rx,
        injector: injector(0, shared.config.rx),
        line: line.clone(),
        shared: shared.clone(),
        voids: shared.voids(),
    };
    let tx = FaultTx { transmitter, shared: shared.clone() };
    Ok(Queue { index, rx: Box::new(rx), tx: Box::new(tx), irq: line, tx_irq: room })
}

/// Loses held frames if a reset (or the end) came since `seen`; whether one did.
fn heed_voids(seen: &mut u64, injector: &mut Injector, shared: &Shared) -> bool {
    let voids = shared.voids();
    let new = *seen != voids;
    if new {
        *seen = voids;
        shared.stats.reset_lost.fetch_add(injector.clear(), Ordering::Relaxed);
    }
    new
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
}

/// The transmit half, behind a lock because the clock's thread sends what becomes due.
struct Transmitter {
    state: Mutex<TxState>,
    room: Arc<FaultRoom>,
}

struct TxState {
    inner: Box<dyn TxQueue>,
    injector: Injector,
    voids: u64,
    /// The inner device wants another doorbell.
    unsent: bool,
}

impl TxState {
    fn heed_voids(&mut self, shared: &Shared) {
        if heed_voids(&mut self.voids, &mut self.injector, shared) {
            self.unsent = false;
        }
    }

    /// Hands on the frames that may go, and returns whether all went.
    fn flush(&mut self) -> bool {
        while let Some(frame) = self.injector.pop() {
            if let Err(frame) = self.inner.transmit(frame) {
                self.injector.unpop(frame);
                return false;
            }
        }
        true
    }

    /// Whether something waits for room in the inner ring.
    fn is_stuck(&self) -> bool {
        self.unsent || self.injector.ready() > 0
    }
}

impl Transmitter {
    /// Sends what is due, and rings for it; `ring`: also for what was transmitted before. Returns whether something
    /// waits for room in the inner ring, and when the next frame is due.
    fn send_due(&self, shared: &Shared, ring: bool) -> (bool, Option<u64>) {
        let mut state = lock(&self.state);
        state.heed_voids(shared);
        state.injector.release(shared.now_ns());
        if ring || state.is_stuck() {
            state.flush();
            state.unsent = state.inner.doorbell() == Doorbell::Again;
        }
        // This is under the lock, so that of two threads the later one has the last word.
        self.room.set_stuck(state.is_stuck());
        (state.is_stuck(), state.injector.next_due_ns())
    }
}

impl Transmits for Transmitter {
    fn tick(&self, shared: &Shared) -> Option<u64> {
        let raised = self.room.take_due(shared.now_ns());
        let (stuck, next_ns) = self.send_due(shared, false);
        self.room.wait_or_pass_on(stuck, raised);
        next_ns.into_iter().chain(Some(self.room.due_ns()).filter(|due_ns| *due_ns != NEVER)).min()
    }

    fn mask_outer(&self) {
        self.room.mask_outer();
    }
}

struct FaultTx {
    transmitter: Arc<Transmitter>,
    shared: Arc<Shared>,
}

impl TxQueue for FaultTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        let mut state = lock(&self.transmitter.state);
        state.heed_voids(&self.shared);
        // This comes before any decision: a frame that comes a second time must not be decided about twice.
        if !state.flush() || state.inner.free_slots() == 0 {
            return Err(frame);
        }
        state.injector.push(frame, self.shared.now_ns(), &self.shared.stats);
        state.flush();
        Ok(())
    }

    /// What does not leave now leaves by the clock's thread.
    fn doorbell(&mut self) -> Doorbell {
        let (stuck, next_ns) = self.transmitter.send_due(&self.shared, true);
        self.transmitter.room.wait_or_pass_on(stuck, false);
        if next_ns.is_some() {
            self.shared.wake();
        }
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        let state = lock(&self.transmitter.state);
        state.inner.free_slots().saturating_sub(state.injector.ready())
    }

    fn room_for(&self, sender: Sender) -> usize {
        let state = lock(&self.transmitter.state);
        state.inner.room_for(sender).saturating_sub(state.injector.ready())
    }

    /// A frame that is delayed is on a wire that is slow, and one that waits for room is on the ring.
    fn outstanding(&self) -> Option<usize> {
        let state = lock(&self.transmitter.state);
        state.inner.outstanding().map(|count| count + state.injector.ready())
    }

    fn reap_sent(&mut self, pool: &mut FramePool) -> usize {
        lock(&self.transmitter.state).inner.reap_sent(pool)
    }
}
