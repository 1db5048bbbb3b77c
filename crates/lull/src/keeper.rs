//! A controller beside a service on lull's own stack.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use lull_control::slo::{Whom, keep};
use lull_core::Mode;
use lull_linux::os;
use lull_slo::Controller;

use crate::failure::Failure;

/// Chooses timeouts until it is dropped.
pub struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the controller, which tells `log` what it does. Its thread takes no signals.
    ///
    /// # Errors
    ///
    /// This fails if no thread can be started.
    pub fn start(
        whom: Whom,
        controller: Controller,
        mode: &Mode,
        mut log: impl FnMut(&str) + Send + 'static,
    ) -> Result<Keeper, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, mode) = (stop.clone(), mode.to_string());
        let work = move || keep(&whom, controller, &mode, &ends, &mut log);
        let started = os::deaf(|| std::thread::Builder::new().name("lull-slo".to_owned()).spawn(work));
        let thread = started.flatten().map_err(|error| format!("cannot start the controller of --slo: {error}"))?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}
