//! A call that was not to block and does would hang the test without a word: this says which one it was.

use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use super::call::Call;

/// Nothing takes so long on the busiest machine.
const HANGS: Duration = Duration::from_secs(300);

static DOING: Mutex<Option<(Instant, String)>> = Mutex::new(None);

fn lock() -> std::sync::MutexGuard<'static, Option<(Instant, String)>> {
    DOING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program is about to make this call, after those of `log`.
pub fn doing(call: &Call, log: &[String]) {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(5));
                if let Some((since, what)) = &*lock()
                    && since.elapsed() > HANGS
                {
                    eprintln!("a call hangs: {what}");
                    std::process::abort();
                }
            }
        });
    });
    *lock() = Some((Instant::now(), format!("{call:?}, after\n{}", log.join("\n"))));
}

/// No program runs.
pub fn nothing() {
    *lock() = None;
}
