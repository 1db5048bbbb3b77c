//! The deadlines of a CPU.

use loom::sync::Arc;
use loom::thread;

use super::check;
use crate::deadlines::{Deadlines, NEVER};
use crate::seat::{GUEST, Holder, Seat};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// A CPU's deadlines without a clock: what matters is who covers what. Two timers, as an instance's word is: started and
/// claimed with a swap.
struct Timers {
    deadlines: Deadlines,
    timers_ns: [AtomicU64; 2],
    moving: crate::sync::Mutex<()>,
}

impl Timers {
    fn new() -> Arc<Timers> {
        Arc::new(Timers {
            deadlines: Deadlines::new(),
            timers_ns: [AtomicU64::new(NEVER), AtomicU64::new(NEVER)],
            moving: crate::sync::Mutex::new(()),
        })
    }

    fn start(&self, timer: usize, deadline_ns: u64) {
        self.timers_ns[timer].swap(deadline_ns, Ordering::AcqRel);
        self.deadlines.note(deadline_ns);
    }

    fn look_up(&self) -> u64 {
        let deadlines_ns = || self.timers_ns.iter().map(|timer| timer.load(Ordering::Acquire));
        self.deadlines.look_up(|| deadlines_ns().min().unwrap_or(NEVER))
    }

    /// `Delivery::cover`.
    fn cover(&self) {
        if self.deadlines.is_covered(self.deadlines.earliest_ns(), 0) {
            return;
        }
        let deadline_ns = self.look_up();
        if !self.deadlines.is_covered(deadline_ns, 0) {
            let _moving = self.moving.lock().unwrap();
            if self.deadlines.backstop_ns() > deadline_ns {
                self.deadlines.backstop_is_set(deadline_ns);
            }
        }
    }

    /// `Delivery::timers` at `now_ns`.
    fn fire(&self, now_ns: u64) {
        if self.deadlines.earliest_ns() <= now_ns {
            self.deadlines.forget();
            for timer in &self.timers_ns {
                let deadline_ns = timer.load(Ordering::Acquire);
                if deadline_ns <= now_ns {
                    let _ = timer.compare_exchange(deadline_ns, NEVER, Ordering::AcqRel, Ordering::Relaxed);
                }
                self.deadlines.note(timer.load(Ordering::Acquire));
            }
        }
    }

    fn assert_covered(&self) {
        let deadline_ns = self.timers_ns.iter().map(|timer| timer.load(Ordering::Acquire)).min();
        assert!(self.deadlines.is_covered(deadline_ns.unwrap_or(NEVER), 0), "{deadline_ns:?} {:?}", self.deadlines);
    }
}

/// Another thread starts timer 1 for 50, and covers it.
fn start_elsewhere(timers: &Arc<Timers>) -> thread::JoinHandle<()> {
    let timers = timers.clone();
    thread::spawn(move || {
        timers.start(1, 50);
        timers.cover();
    })
}

/// A worker that promised to look at 40 wakes up then, and goes to compute; meanwhile another thread starts a timer for
/// 50, which that promise would cover. Four preemptions.
#[test]
fn loom_deadlines_a_promise_that_ends_leaves_no_timer_uncovered() {
    check(4, || {
        let timers = Timers::new();
        timers.start(0, 40);
        timers.deadlines.worker_will_look(40);
        let other = start_elsewhere(&timers);
        timers.deadlines.worker_looks_no_more();
        timers.fire(40);
        timers.cover();
        other.join().unwrap();
        timers.assert_covered();
    });
}

/// As before, but the worker wakes up for a reason of its own, and there is no other timer. Four preemptions.
#[test]
fn loom_deadlines_a_promise_that_ends_early_leaves_no_timer_uncovered() {
    check(4, || {
        let timers = Timers::new();
        timers.deadlines.worker_will_look(40);
        let other = start_elsewhere(&timers);
        timers.deadlines.worker_looks_no_more();
        timers.cover();
        other.join().unwrap();
        timers.assert_covered();
    });
}

/// The kernel timer fires at 40, for a timer that was started anew since, while another thread starts a timer for 50,
/// which it would cover. Four preemptions.
#[test]
fn loom_deadlines_a_backstop_that_fires_leaves_no_timer_uncovered() {
    check(4, || {
        let timers = Timers::new();
        timers.start(0, 40);
        timers.cover();
        timers.start(0, 60);
        let other = start_elsewhere(&timers);
        {
            let _moving = timers.moving.lock().unwrap();
            timers.deadlines.backstop_has_fired();
        }
        timers.fire(40);
        timers.cover();
        other.join().unwrap();
        timers.assert_covered();
    });
}

/// Three threads start a timer or look the deadlines up at once. Three preemptions.
#[test]
fn loom_deadlines_looked_up_by_several_at_once_are_covered() {
    check(3, || {
        let timers = Timers::new();
        let others: Vec<_> = [(0, 60), (1, 50)]
            .into_iter()
            .map(|(timer, deadline_ns)| {
                let timers = timers.clone();
                thread::spawn(move || {
                    timers.start(timer, deadline_ns);
                    timers.cover();
                })
            })
            .collect();
        timers.cover();
        others.into_iter().for_each(|other| other.join().unwrap());
        timers.assert_covered();
    });
}

/// A worker that slept in the seat and promised to look at 50 wakes up for nothing, finds the seat taken by a thread
/// that is awake, and goes back to sleep outside it: the other must not leave the seat in the belief that the worker
/// looks. Four preemptions.
#[test]
fn loom_deadlines_a_worker_that_lost_the_seat_takes_its_promise_back() {
    check(4, || {
        let world = Arc::new((Timers::new(), Seat::new(), AtomicBool::new(false)));
        let (timers, seat, woken) = &*world;
        // The worker sleeps in the seat.
        let worker = Holder::worker(0);
        assert!(seat.take(worker));
        seat.sleeper_begins(0);
        timers.start(0, 50);
        timers.deadlines.worker_will_look(50);
        assert!(seat.sleep(worker));
        let passer = {
            let world = world.clone();
            thread::spawn(move || {
                let (timers, seat, _) = &*world;
                if seat.take(GUEST) {
                    loop {
                        timers.cover();
                        if seat.pass(GUEST) {
                            break;
                        }
                        seat.begin();
                    }
                }
            })
        };
        // `Worker::sleep` after its park, up to the next one. In the seat it would look the deadlines up and promise anew.
        timers.deadlines.worker_looks_no_more();
        let mut in_seat = seat.take(worker);
        if !in_seat && let Some(holder) = seat.raise() {
            assert_eq!(holder, worker);
            woken.store(true, Ordering::Relaxed);
        }
        in_seat |= seat.wake_up(worker);
        passer.join().unwrap();
        if !in_seat && !woken.load(Ordering::Relaxed) {
            timers.assert_covered();
        }
    });
}
