//! What the workers of both services have in common: where a worker keeps its connections, how long it waits, and how
//! its thread starts.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use lull_core::AppPolicy;

/// A worker's connections by number, which is the key of their events. Numbers are used again.
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }

    /// A number that is free, for as long as it takes to [`Slots::put`] something there or to [`Slots::release`] it.
    pub(crate) fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    /// A number that was reserved for nothing.
    pub(crate) fn release(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// Keeps something under a reserved number.
    pub(crate) fn put(&mut self, slot: usize, kept: T) {
        self.slots[slot] = Some(kept);
    }

    /// What is kept there: nothing where an event comes for what was closed in the same batch.
    pub(crate) fn get(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.as_ref()
    }

    /// As [`Slots::get`].
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Takes out what is kept there; its number is free then.
    pub(crate) fn take(&mut self, slot: usize) -> Option<T> {
        let taken = self.slots.get_mut(slot)?.take();
        if taken.is_some() {
            self.free.push(slot);
        }
        taken
    }
}

/// How long a worker waits in epoll in such a mode, in milliseconds; 0 is for ever.
pub(crate) fn wait_ms(app: AppPolicy) -> u64 {
    match app {
        AppPolicy::Blocking => 0,
        AppPolicy::TimeoutMs(ms) => u64::from(ms),
    }
}

/// Starts the `nth` worker's thread: it pins itself and then runs. Returns its kernel id once it is pinned.
///
/// # Errors
/// No thread can be made, or it cannot be pinned; nothing runs then.
pub(crate) fn start<W: Send + 'static>(
    nth: usize,
    worker: W,
    pin: impl FnOnce(&W) -> io::Result<()> + Send + 'static,
    run: impl FnOnce(W) + Send + 'static,
) -> io::Result<(JoinHandle<()>, i32)> {
    let (started, starting) = mpsc::channel();
    let join = std::thread::Builder::new().name(format!("worker/{nth}")).spawn(move || {
        let pinned = pin(&worker);
        let go = pinned.is_ok();
        // The starter waits for this message.
        let _ = started.send(pinned.map(|()| lull_host::thread_id()));
        if go {
            run(worker);
        }
    })?;
    let tid = starting.recv().map_err(io::Error::other)??;
    Ok((join, tid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_only_when_they_are_free() {
        let mut slots = Slots::new();
        let (first, second) = (slots.reserve(), slots.reserve());
        slots.put(first, 'a');
        slots.put(second, 'b');
        assert_eq!((first, second, slots.get(first), slots.get(7)), (0, 1, Some(&'a'), None));
        assert_eq!((slots.take(first), slots.take(first), slots.take(7)), (Some('a'), None, None));
        assert_eq!(slots.reserve(), first, "freed once, and so given out once");
        assert_eq!(slots.reserve(), 2);
        slots.release(2);
        assert_eq!(slots.reserve(), 2);
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
    }

    #[test]
    fn a_thread_that_cannot_be_pinned_does_not_run() {
        let refused = |(): &()| Err(io::Error::other("no such core"));
        assert_eq!(start(0, (), refused, |()| panic!("it runs")).unwrap_err().to_string(), "no such core");
        let (join, tid) = start(1, (), |()| Ok(()), |()| ()).unwrap();
        assert!(tid > 0 && join.join().is_ok());
    }
}
