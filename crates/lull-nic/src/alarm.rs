//! A device thread that runs a function when it is due, where no call comes by to look at the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// A thread that calls `tick` whenever it is woken or the time that `tick` last asked for has passed. Dropping it ends
/// and joins the thread.
pub(crate) struct Alarm {
    thread: Thread,
    stop: Arc<AtomicBool>,
    join: Option<JoinHandle<()>>,
}

impl Alarm {
    /// Starts the thread. `tick` returns how long to sleep, or `None` to sleep until woken.
    pub(crate) fn spawn(
        name: &str,
        mut tick: impl FnMut() -> Option<Duration> + Send + 'static,
    ) -> std::io::Result<Alarm> {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let run = move || {
            // `unpark` before `park` is not lost: the token waits. So a wake between `tick` and `park` is seen.
            while !ended.load(Ordering::Acquire) {
                match tick() {
                    None => thread::park(),
                    Some(wait) => thread::park_timeout(wait),
                }
            }
        };
        let join = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Alarm { thread: join.thread().clone(), stop, join: Some(join) })
    }

    /// The handle to wake it by.
    pub(crate) fn thread(&self) -> &Thread {
        &self.thread
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.unpark();
        // A sink called from the thread may drop the device; the thread then ends by itself.
        if self.thread.id() != thread::current().id()
            && let Some(join) = self.join.take()
        {
            // Err: `tick` panicked, and the panic hook has reported it.
            let _ = join.join();
        }
    }
}
