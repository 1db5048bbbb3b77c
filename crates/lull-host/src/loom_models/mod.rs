//! The host's small protocols under loom: the seat with its sleepers and the code of [`crate::holder`], the deadlines, the
//! shard lock, the list of raised interrupts, the table of instances, interrupts that are descriptors.
//!
//! A model that loses a wake-up ends with every thread asleep, which loom reports as a deadlock. Data that only the
//! seat or the lock protects sits in loom's cells: two holders at once, or two in a row that are not ordered, panic.
//!
//! Every model says how many preemptions it is bounded by. Loom explores all interleavings within the bound, and all
//! values that a load may return.

#![allow(unsafe_code)]

mod deadlines;
mod lock;
mod parker;
mod raised;
mod seat;
mod table;
mod vector;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use lull_nic::{IrqLine, IrqSink};

use std::cell::Cell;

use crate::parker::{ON_FUTEX, ON_MONITOR, ParkWord};
use crate::sync::Ordering;

/// More preemptions than any model has room for.
const ALL: usize = u8::MAX as usize;

/// Explores a model with so many preemptions, or fewer by LULL_LOOM_PREEMPTIONS, which is for a quick look.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let most = std::env::var("LULL_LOOM_PREEMPTIONS").ok().map(|most| most.parse().expect("a number of preemptions"));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = most.into_iter().chain([preemptions]).min();
    builder.max_branches = 20_000;
    builder.check(model);
}

/// `Parker`, without its descriptors and timeouts. A wake-up of the kernel that comes late ends the next sleep early,
/// which is allowed.
struct Bed {
    word: ParkWord,
}

impl Bed {
    fn new() -> Bed {
        Bed { word: ParkWord::new() }
    }

    fn park(&self) {
        if self.word.begin(ON_FUTEX) {
            self.word.0.wait(ON_FUTEX);
            self.word.end();
        }
    }

    /// The sleeper watches the word for so many waits first, each of which ends by a store that comes after the watch began and by
    /// nothing else, or sleeps in the kernel then.
    fn park_watching(&self, waits: u32) {
        if !self.word.begin(ON_MONITOR) {
            return;
        }
        let (armed, left) = (Cell::new(0), Cell::new(waits));
        let wait = || {
            if left.get() == 0 {
                return false;
            }
            left.set(left.get() - 1);
            while self.word.0.load(Ordering::Relaxed) == armed.get() {
                loom::thread::yield_now();
            }
            true
        };
        if let Some(kind) = self.word.watch(|word| armed.set(word.load(Ordering::Relaxed)), wait) {
            self.word.0.wait(kind);
        }
        self.word.end();
    }

    fn wake(&self) {
        if self.word.notify().is_some_and(ParkWord::sleeps_in_the_kernel) {
            self.word.0.wake();
        }
    }
}

/// A line that is a descriptor. Which one it is does not matter: the kernel of a model knows it by its index.
struct Line(std::io::Stdin);

impl Line {
    fn new() -> Arc<Line> {
        Arc::new(Line(std::io::stdin()))
    }
}

impl IrqLine for Line {
    fn connect(&self, _: Arc<dyn IrqSink>) {}

    fn mask(&self) {}

    fn unmask(&self) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
