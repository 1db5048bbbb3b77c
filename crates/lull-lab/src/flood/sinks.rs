//! Sinks: a thread for each flow that takes datagrams and counts them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use super::sched::SchedStat;
use crate::bench::BenchError;

/// How long a sink waits for a datagram before it checks whether to end.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The size of a sink's buffer for a datagram.
pub const BUFFER_BYTES: usize = 65_536;

/// A sink's counter, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// All sinks. They end when this is dropped.
pub struct Sinks {
    counts: Vec<Arc<Count>>,
    tids: Vec<i32>,
    joins: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Sinks {
    /// Starts a thread on `core` for each of `receive`, which waits for a datagram for [`LOOK_INTERVAL`] at most and
    /// returns whether one came. Any error ends the thread.
    ///
    /// # Errors
    ///
    /// This fails if a thread cannot be started or pinned.
    pub fn start<R: FnMut() -> io::Result<bool> + Send + 'static>(
        core: usize,
        receive: impl Iterator<Item = R>,
    ) -> Result<Sinks, BenchError> {
        let over = Arc::new(AtomicBool::new(false));
        let mut sinks = Sinks { counts: Vec::new(), tids: Vec::new(), joins: Vec::new(), over: over.clone() };
        for (flow, mut receive) in receive.enumerate() {
            let (count, over) = (Arc::new(Count::default()), over.clone());
            sinks.counts.push(count.clone());
            let (started, starting) = mpsc::channel();
            let sink = move || {
                let pinned = lull_host::pin_thread(&[core]);
                let go = pinned.is_ok();
                // The thread that starts it waits for this message.
                let _ = started.send(pinned.map(|()| lull_host::thread_id()));
                while go && !over.load(Ordering::Relaxed) {
                    match receive() {
                        Ok(true) => drop(count.0.fetch_add(1, Ordering::Relaxed)),
                        Ok(false) => {}
                        // The sink's network has gone away.
                        Err(_) => return,
                    }
                }
            };
            sinks.joins.push(std::thread::Builder::new().name(format!("sink/{flow}")).spawn(sink)?);
            sinks.tids.push(starting.recv().map_err(io::Error::other)??);
        }
        Ok(sinks)
    }

    /// Returns the number of datagrams that all of them received.
    pub fn received(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    /// Returns the scheduler's counters of the sinks.
    pub fn sched(&self) -> SchedStat {
        SchedStat::read(&self.tids)
    }
}

impl Drop for Sinks {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for join in self.joins.drain(..) {
            // A sink that panicked has written so to stderr.
            let _ = join.join();
        }
    }
}
