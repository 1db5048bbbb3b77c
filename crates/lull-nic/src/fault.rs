//! A decorator that breaks what passes: drop, duplicate, corrupt, reorder, delay, link flaps and resets.
//!
//! Every decision comes from the seed, by direction and queue, and each frame uses up the same number of random
//! values: the n-th frame of a queue meets the same fate in every run. When a held frame comes out again depends on
//! the frames that pass it (`reorder_depth`), and on the clock only where it says nanoseconds.
//!
//! # No lost edge
//!
//! A frame held back on receive is not there yet: a poll does not bring it and an unmask does not raise for it, or a
//! poller would spin until it is due. When it becomes due it arrives, as from a wire: a thread raises the interrupt
//! if it is unmasked, and if it was masked then, the next unmask finds the frame due and raises at once. Over a
//! device whose interrupt is a descriptor, the descriptor of this one is readable for both reasons.
//!
//! Held frames on transmit are sent by the same thread. If they meet a full ring, the thread waits for the device's
//! room interrupt, and only what room is left then is told of above; `room_hold_ns` delays that as well.
//!
//! ```
//! use lull_nic::fault::{Fault, FaultConfig, Rates};
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::{Device, Frame};
//! use std::sync::Arc;
//!
//! let (port, _peer) = mem::pair(MemConfig::default());
//! let tx = Rates { drop: 1.0, ..Rates::default() };
//! let port = Fault::new(Arc::new(port), FaultConfig { seed: 7, tx, ..FaultConfig::default() })?;
//! let mut queue = port.take_queue(0)?;
//! queue.tx.transmit(Frame::copy_from(&[0; 60])).expect("an empty ring");
//! assert_eq!(port.stats().dropped, 1);
//! # Ok::<(), lull_nic::DeviceError>(())
//! ```

mod injector;
mod line;
mod queue;
mod room;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use crate::device::{Device, DeviceError, Queue};
use crate::observe;
use shared::{Shared, Step};

/// How often each thing happens to the frames of one direction. Probabilities are 0 to 1 for each frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Probability of losing it.
    pub drop: f64,
    /// Probability of a second copy right behind it.
    pub duplicate: f64,
    /// Probability of one flipped bit. The frame's checksum then counts as unverified, and one that was left to the
    /// device is filled in first, so that whoever verifies sees the damage.
    pub corrupt: f64,
    /// Probability of letting `reorder_depth` later frames pass first.
    pub reorder: f64,
    /// Frames that pass a reordered one.
    pub reorder_depth: u32,
    /// Nanoseconds after which a reordered frame goes on even if too few came to pass it.
    pub reorder_hold_ns: u64,
    /// Probability of a delay. A delayed frame is passed by those that are not.
    pub delay: f64,
    /// Nanoseconds of a delay.
    pub delay_ns: u64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            drop: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            reorder_depth: 3,
            reorder_hold_ns: 1_000_000,
            delay: 0.0,
            delay_ns: 1_000_000,
        }
    }
}

/// Something that happens to the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// The link goes down and comes up again.
    Flap {
        /// Nanoseconds that it is down.
        down_ns: u64,
    },
    /// The device is reset.
    Reset,
}

/// What to inject.
#[derive(Clone, Debug, Default)]
pub struct FaultConfig {
    /// Where all decisions come from.
    pub seed: u64,
    /// For received frames.
    pub rx: Rates,
    /// For sent frames.
    pub tx: Rates,
    /// Nanoseconds that every room interrupt is held back; 0: none is.
    pub room_hold_ns: u64,
    /// Disturbances, each with the nanoseconds after the start when it happens.
    pub schedule: Vec<(u64, Disturbance)>,
}

/// What was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultStats {
    /// Frames lost.
    pub dropped: u64,
    /// Second copies.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames held back for others to pass.
    pub reordered: u64,
    /// Frames delayed.
    pub delayed: u64,
    /// Held frames lost to a reset, or to the end of the device.
    pub reset_lost: u64,
    /// Link flaps begun.
    pub flaps: u64,
    /// Resets.
    pub resets: u64,
    /// Disturbances that the device refused.
    pub refused: u64,
    /// Room interrupts that were held back.
    pub rooms_held: u64,
}

/// A device with faults. Its counters are those of the device below; what was injected is in [`Fault::stats`].
pub struct Fault {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fault").field("inner", &self.inner.info()).finish_non_exhaustive()
    }
}

impl Fault {
    /// Wraps `inner` and starts the thread that keeps the times.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a probability outside 0 to 1, [`DeviceError::Os`] if there can be no thread.
    pub fn new(inner: Arc<dyn Device>, config: FaultConfig) -> Result<Fault, DeviceError> {
        for (what, rates) in [("receive faults", &config.rx), ("transmit faults", &config.tx)] {
            check(&inner, what, rates)?;
        }
        let shared = Shared::start(inner.clone(), config)?;
        Ok(Fault { inner, shared })
    }

    /// What was injected so far.
    pub fn stats(&self) -> FaultStats {
        self.shared.stats.get()
    }

    /// Takes the link down now, and up again after `down`.
    ///
    /// # Errors
    /// What the device's [`Device::set_link`] reports for the way down.
    pub fn flap(&self, down: Duration) -> Result<(), DeviceError> {
        self.shared.flap(u64::try_from(down.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Adds a disturbance, `after` from now.
    pub fn plan(&self, after: Duration, disturbance: Disturbance) {
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.shared.plan(self.shared.now_ns().saturating_add(after_ns), Step::from(disturbance));
    }
}

fn check(device: &Arc<dyn Device>, what: &'static str, rates: &Rates) -> Result<(), DeviceError> {
    let named = [
        ("drop", rates.drop),
        ("duplicate", rates.duplicate),
        ("corrupt", rates.corrupt),
        ("reorder", rates.reorder),
        ("delay", rates.delay),
    ];
    match named.into_iter().find(|(_, probability)| !(0.0..=1.0).contains(probability)) {
        None => Ok(()),
        Some((name, probability)) => {
            let why = format!("{name} {probability}; a probability is 0 to 1");
            Err(DeviceError::Invalid { device: device.info().name, what, why })
        }
    }
}

impl Device for Fault {
    observe::pass_on!();

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        queue::wrap(&self.shared, self.inner.take_queue(index)?)
    }
}
