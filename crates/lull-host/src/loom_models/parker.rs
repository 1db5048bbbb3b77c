//! The sleeper's word.

use loom::sync::Arc;
use loom::thread;

use super::{Bed, check};
use crate::sync::{AtomicBool, Ordering};

/// Two wakers with a reason each; the sleeper needs both reasons. The second wake-up may come just as the sleeper is
/// leaving its sleep for the first. Three preemptions.
#[test]
fn loom_parker_keeps_the_wake_up_that_meets_the_end_of_a_sleep() {
    check(3, || wakers_meet_the_end_of_a_sleep(Bed::park));
}

/// The same where the sleeper watches the word itself: a store that it has missed it waits for in vain.
#[test]
fn loom_parker_keeps_the_wake_up_that_comes_before_the_word_is_watched() {
    check(3, || wakers_meet_the_end_of_a_sleep(|bed| bed.park_watching(u32::MAX)));
}

/// The same where the time for watching is over: wakers have to know that the sleeper is in the kernel by now.
#[test]
fn loom_parker_keeps_the_wake_up_that_meets_the_end_of_a_watch() {
    check(3, || wakers_meet_the_end_of_a_sleep(|bed| bed.park_watching(0)));
}

fn wakers_meet_the_end_of_a_sleep(park: impl Fn(&Bed)) {
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
        park(sleeper);
    }
    wakers.into_iter().for_each(|waker| waker.join().unwrap());
}
