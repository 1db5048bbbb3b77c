//! Code that must not panic: if it does nevertheless, the process ends with a message that says where.

use std::io::Write;

use lull_core::event::{Event, EventSink};

/// Ends the process if a panic drops it. Code that gets through forgets it.
struct EndsTheProcess<'a>(&'a dyn Fn() -> String);

impl Drop for EndsTheProcess<'_> {
    fn drop(&mut self) {
        // A model fails by the panic, and is named.
        if cfg!(loom) {
            return;
        }
        // There may be nobody left to read the message.
        let _ =
            writeln!(std::io::stderr(), "lull: a panic in {}: its state is unknown, so the process ends", (self.0)());
        std::process::abort();
    }
}

/// Runs what must not panic. `what` names it in the message that ends the process if it does nevertheless.
#[inline]
pub(crate) fn or_end<R>(what: &dyn Fn() -> String, run: impl FnOnce() -> R) -> R {
    let bomb = EndsTheProcess(what);
    let result = run();
    std::mem::forget(bomb);
    result
}

/// An event sink that may not panic: it is called in the middle of everything.
#[cfg_attr(loom, allow(dead_code))]
pub(crate) struct SinkOrEnd(pub(crate) Box<dyn EventSink + Send>);

impl EventSink for SinkOrEnd {
    fn event(&self, event: Event) {
        or_end(&|| format!("the event sink, which was told {:?}", event.kind), || self.0.event(event));
    }
}
