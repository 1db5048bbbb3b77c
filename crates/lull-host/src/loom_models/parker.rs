//! The sleeper's word.

use loom::sync::Arc;
use loom::thread;

use super::{Bed, check};
use crate::sync::{AtomicBool, Ordering};

/// Two wakers with a reason each; the sleeper needs both reasons. The second wake-up may come just as the sleeper is
/// leaving its sleep for the first. Three preemptions.
#[test]
fn loom_parker_keeps_the_wake_up_that_meets_the_end_of_a_sleep() {
    check(3, || {
        let world = Arc::new((Bed::new(), AtomicBool::new(false), AtomicBool::new(false)));
        let waker = |second: bool| {
            let world = world.clone();
            thread::spawn(move || {
                if second { &world.2 } else { &world.1 }.store(true, Ordering::Relaxed);
                world.0.wake();
            })
        };
        let wakers = [waker(false), waker(true)];
        let (sleeper, first, second) = &*world;
        loop {
            if first.load(Ordering::Relaxed) && second.load(Ordering::Relaxed) {
                break;
            }
            sleeper.park();
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}
