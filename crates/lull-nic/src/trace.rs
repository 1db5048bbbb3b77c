//! A decorator that shows every frame of a device to a closure, or as a line of text.
//!
//! ```
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::trace::Trace;
//! use lull_nic::{Device, Frame};
//! use std::sync::{Arc, Mutex};
//!
//! let lines = Arc::new(Mutex::new(Vec::new()));
//! let (port, _peer) = mem::pair(MemConfig::default());
//! let traced = lines.clone();
//! let port = Trace::new(Arc::new(port), move |event| traced.lock().unwrap().push(event.summary().to_string()));
//! let mut queue = port.take_queue(0)?;
//! queue.tx.transmit(Frame::copy_from(&[0xff; 60])).expect("an empty ring");
//! assert_eq!(lines.lock().unwrap()[0], "ff:ff:ff:ff:ff:ff > ff:ff:ff:ff:ff:ff type 0xffff len 60");
//! # Ok::<(), lull_nic::DeviceError>(())
//! ```

mod summary;

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::device::{Device, DeviceError, Queue};
use crate::frame::Frame;
pub use crate::observe::Direction;
use crate::observe::{self, Observer};
pub use summary::Summary;

/// A frame that passes. Displayed, it is one line: time, direction, queue and what the frame is.
#[derive(Debug)]
#[non_exhaustive]
pub struct TraceEvent<'a> {
    /// Time since the trace began.
    pub at: Duration,
    /// Which way the frame goes.
    pub direction: Direction,
    /// The queue that it passes.
    pub queue: usize,
    /// The frame.
    pub frame: &'a Frame,
}

impl<'a> TraceEvent<'a> {
    /// What the frame is, in a few words; headers are read from the first segment.
    pub fn summary(&self) -> Summary<'a> {
        Summary::new(self.frame.data(), self.frame.chain_len())
    }
}

impl fmt::Display for TraceEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        };
        let (seconds, nanos) = (self.at.as_secs(), self.at.subsec_nanos());
        write!(f, "{seconds}.{nanos:09} {direction} q{} {}", self.queue, self.summary())
    }
}

/// Shows a device's frames to a closure. It is called by whoever polls or transmits, and its time is theirs.
pub struct Trace {
    inner: Arc<dyn Device>,
    observer: Arc<dyn Observer>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("inner", &self.inner.info()).finish_non_exhaustive()
    }
}

impl Trace {
    /// Wraps `inner`; `show` is called for every frame.
    pub fn new(inner: Arc<dyn Device>, show: impl Fn(&TraceEvent<'_>) + Send + Sync + 'static) -> Trace {
        Trace { inner, observer: Arc::new(Shower { epoch: Instant::now(), show }) }
    }

    /// Wraps `inner`; every frame makes a line in `writer`. A line that cannot be written is lost.
    pub fn to_writer(inner: Arc<dyn Device>, writer: impl Write + Send + 'static) -> Trace {
        let writer = Mutex::new(writer);
        Trace::new(inner, move |event| {
            // A trace that nobody can read must not disturb what it traces.
            let _ = writeln!(writer.lock().unwrap_or_else(PoisonError::into_inner), "{event}");
        })
    }
}

struct Shower<F> {
    epoch: Instant,
    show: F,
}

impl<F: Fn(&TraceEvent<'_>) + Send + Sync> Observer for Shower<F> {
    fn see(&self, direction: Direction, queue: usize, frame: &Frame) {
        (self.show)(&TraceEvent { at: self.epoch.elapsed(), direction, queue, frame });
    }
}

impl Device for Trace {
    observe::pass_on!();

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        Ok(observe::wrap(self.inner.take_queue(index)?, self.observer.clone()))
    }
}
