//! The host's small protocols under loom: the seat with its sleepers, the deadlines, the shard lock, the list of raised
//! interrupts.
//!
//! A model that loses a wake-up ends with every thread asleep, which loom reports as a deadlock. Data that only the
//! seat or the lock protects sits in loom's cells: two holders at once, or two in a row that are not ordered, panic.
//!
//! Every model says how many preemptions it is bounded by. Loom explores all interleavings within the bound, and all
//! values that a load may return.

#![allow(unsafe_code)]

use loom::sync::Arc;
use loom::thread;
use lull_core::{Cx, Napi, Owner, Schedule};

use crate::deadlines::{Deadlines, NEVER};
use crate::lock::{HandoffGuard, HandoffLock};
use crate::parker::{ON_FUTEX, ParkWord};
use crate::raised::{Link, Raised};
use crate::seat::{GUEST, Holder, IRQ_THREAD, KSOFTIRQD, Seat};
use crate::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell};

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// `Parker`, without its descriptors and timeouts. A wake-up of the kernel that comes late ends the next sleep early,
/// which is allowed.
struct Sleeper {
    word: ParkWord,
}

impl Sleeper {
    fn new() -> Sleeper {
        Sleeper { word: ParkWord::new() }
    }

    fn park(&self) {
        if self.word.begin(ON_FUTEX) {
            self.word.0.wait(ON_FUTEX);
            self.word.end();
        }
    }

    fn wake(&self) {
        if self.word.notify().is_some() {
            self.word.0.wake();
        }
    }
}

// ---- the seat ----

// SAFETY: `delivered` is touched by one thread at a time, which is what the models verify.
unsafe impl Sync for Cpu {}

/// A CPU whose work is a flag per item: published relaxed, so that nothing but the seat orders them.
struct Cpu {
    seat: Seat,
    workers: Vec<Sleeper>,
    irq: Sleeper,
    ksoftirqd: Sleeper,
    /// The next run leaves something over.
    leftover: AtomicBool,
    items: Vec<AtomicBool>,
    /// Touched by the holder of the seat only.
    delivered: UnsafeCell<usize>,
    finished: AtomicBool,
    /// What worker 0 waits for is there, whatever else is under way.
    called_off: AtomicBool,
}

impl Cpu {
    fn new(items: usize, workers: usize) -> Arc<Cpu> {
        Arc::new(Cpu {
            seat: Seat::new(),
            workers: (0..workers).map(|_| Sleeper::new()).collect(),
            irq: Sleeper::new(),
            ksoftirqd: Sleeper::new(),
            leftover: AtomicBool::new(false),
            items: (0..items).map(|_| AtomicBool::new(false)).collect(),
            delivered: UnsafeCell::new(0),
            finished: AtomicBool::new(false),
            called_off: AtomicBool::new(false),
        })
    }

    /// A device's side.
    fn publish(&self, item: usize) {
        self.items[item].store(true, Ordering::Relaxed);
        self.raise();
    }

    fn raise(&self) {
        match self.seat.raise() {
            None => {}
            Some(holder) => match holder.slot() {
                Some(slot) => self.workers[slot as usize].wake(),
                None if holder == KSOFTIRQD => self.ksoftirqd.wake(),
                None => self.irq.wake(),
            },
        }
    }

    /// `Delivery::run`. The last item ends the model: it is what every worker waits for.
    fn run(&self) {
        loop {
            self.seat.begin();
            for item in &self.items {
                if item.load(Ordering::Relaxed) {
                    item.store(false, Ordering::Relaxed);
                    // SAFETY: the caller holds the seat; loom verifies that nobody else does.
                    let delivered = self.delivered.with_mut(|delivered| unsafe {
                        *delivered += 1;
                        *delivered
                    });
                    if delivered == self.items.len() {
                        self.finished.swap(true, Ordering::AcqRel);
                        self.workers.iter().for_each(Sleeper::wake);
                        self.irq.wake();
                        self.ksoftirqd.wake();
                    }
                }
            }
            if !self.seat.is_pending() {
                return;
            }
        }
    }

    /// `Delivery::leave`.
    fn leave(&self, me: Holder) {
        while !self.seat.pass(me) {
            self.run();
        }
    }

    /// `Worker::sleep` for ever.
    fn sleep(&self, slot: u32) {
        let me = Holder::worker(slot);
        self.seat.sleeper_begins(slot);
        let mut in_seat = self.seat.take(me);
        loop {
            if in_seat && self.leftover.swap(false, Ordering::Relaxed) {
                self.seat.pass_to_ksoftirqd();
                self.ksoftirqd.wake();
                in_seat = false;
            } else if in_seat {
                self.run();
            }
            self.workers[slot as usize].word.forget();
            if !in_seat && self.seat.wake_up(me) {
                in_seat = true;
                continue;
            }
            if self.is_finished() || (slot == 0 && self.called_off.fetch_or(false, Ordering::AcqRel)) {
                break;
            }
            if in_seat && !self.seat.sleep(me) {
                continue;
            }
            self.workers[slot as usize].park();
            in_seat = self.seat.take(me);
        }
        in_seat |= self.seat.sleeper_ends(slot);
        if in_seat {
            self.leave(me);
        }
    }

    /// The interrupt thread. It may be woken for nothing: then it looks once, as after a kernel timer.
    fn irq_thread(&self) {
        while !self.is_finished() {
            self.irq.park();
            if self.seat.take(IRQ_THREAD) {
                self.run();
                self.leave(IRQ_THREAD);
            } else {
                self.raise();
            }
        }
    }

    fn ksoftirqd(&self) {
        while !self.is_finished() {
            self.ksoftirqd.park();
            if self.seat.wake_up(KSOFTIRQD) {
                self.run();
                self.leave(KSOFTIRQD);
            }
        }
    }

    /// `Delivery::poll_point` of a thread that computes and passes by.
    fn visit(&self, me: Holder) {
        if self.seat.take(me) {
            self.run();
            self.leave(me);
        }
    }

    /// Read by a swap, which sees the latest value: what a stale one does, the model of the sleeper's word explores.
    fn is_finished(&self) -> bool {
        self.finished.fetch_or(false, Ordering::AcqRel)
    }

    fn check(&self) {
        // SAFETY: every thread has ended; loom verifies it.
        self.delivered.with(|delivered| assert_eq!(unsafe { *delivered }, self.items.len()));
    }
}

type Role = fn(&Cpu);

/// Runs `roles` beside a device that publishes one item after the other; its thread then becomes the interrupt thread,
/// so that there are no more threads than loom can explore.
fn seat_model(preemptions: usize, items: usize, workers: usize, roles: &'static [Role]) {
    seat_model_with(preemptions, items, items, workers, roles);
}

/// The device publishes only the first few items; the others are up to a role.
fn seat_model_with(preemptions: usize, items: usize, by_device: usize, workers: usize, roles: &'static [Role]) {
    check(preemptions, move || {
        let cpu = Cpu::new(items, workers);
        let spawn = |role: &Role| {
            let (cpu, role) = (cpu.clone(), *role);
            thread::spawn(move || role(&cpu))
        };
        let threads: Vec<_> = roles.iter().map(spawn).collect();
        (0..by_device).for_each(|item| cpu.publish(item));
        cpu.irq_thread();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        cpu.check();
    });
}

/// Four preemptions.
#[test]
fn loom_seat_worker_and_interrupt_thread() {
    seat_model(4, 2, 1, &[|cpu| cpu.sleep(0)]);
}

/// A thread passes by, and gives the seat to the worker that goes to sleep just then, or wakes up. Two preemptions.
#[test]
fn loom_seat_passer_and_a_worker_that_goes_to_sleep() {
    seat_model(2, 1, 1, &[|cpu| cpu.sleep(0), |cpu| cpu.visit(GUEST)]);
}

/// A worker leaves its sleep with work still to come, just as the seat is passed to it: it must not take the seat along.
/// Two preemptions.
#[test]
fn loom_seat_passer_and_a_worker_that_leaves() {
    fn calls_off(cpu: &Cpu) {
        let in_seat = cpu.seat.take(GUEST);
        cpu.called_off.swap(true, Ordering::AcqRel);
        cpu.workers[0].wake();
        if in_seat {
            cpu.leave(GUEST);
        }
        cpu.publish(0);
    }
    seat_model_with(2, 1, 0, 1, &[|cpu| cpu.sleep(0), calls_off]);
}

/// A passer as above, with two interrupts. Two preemptions.
#[test]
fn loom_seat_passer_worker_and_two_interrupts() {
    seat_model(2, 2, 1, &[|cpu| cpu.sleep(0), |cpu| cpu.visit(GUEST)]);
}

/// Two preemptions.
#[test]
fn loom_seat_two_workers_sleep() {
    seat_model(2, 1, 2, &[|cpu| cpu.sleep(0), |cpu| cpu.sleep(1)]);
}

/// One worker sleeps, the other comes by between computing and sleeping. One preemption.
#[test]
fn loom_seat_one_worker_sleeps_and_one_computes() {
    fn computes(cpu: &Cpu) {
        cpu.visit(Holder::worker(1));
        cpu.sleep(1);
    }
    seat_model(1, 1, 2, &[|cpu| cpu.sleep(0), computes]);
}

/// What a worker leaves over goes to ksoftirqd, which gives the seat back to the worker while that goes to sleep outside
/// it. Two preemptions.
#[test]
fn loom_seat_leftovers_go_to_ksoftirqd_and_the_seat_comes_back() {
    fn leaves_over(cpu: &Cpu) {
        cpu.leftover.store(true, Ordering::Relaxed);
        cpu.sleep(0);
    }
    seat_model(2, 1, 1, &[leaves_over, Cpu::ksoftirqd]);
}

// ---- the sleeper's word ----

/// Two wakers with a reason each; the sleeper needs both reasons. The second wake-up may come just as the sleeper is
/// leaving its sleep for the first. Three preemptions.
#[test]
fn loom_parker_keeps_the_wake_up_that_meets_the_end_of_a_sleep() {
    check(3, || {
        let world = Arc::new((Sleeper::new(), AtomicBool::new(false), AtomicBool::new(false)));
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

// ---- the list of raised interrupts ----

/// Two raises of one interrupt and one of another, against a holder that takes them: each raise is taken, or found
/// another that is yet to be taken and covers it. Three preemptions.
#[test]
fn loom_raised_is_taken_once_and_covers_those_who_found_it_queued() {
    check(3, || {
        struct World {
            raised: Raised,
            links: [Link; 2],
            /// What each raise published, and on which link.
            published: [(AtomicBool, usize); 3],
            seat: Seat,
            irq: Sleeper,
        }
        let world = Arc::new(World {
            raised: Raised::new(),
            links: [Link::new(), Link::new()],
            published: [0, 0, 1].map(|link| (AtomicBool::new(false), link)),
            seat: Seat::new(),
            irq: Sleeper::new(),
        });
        let devices: Vec<_> = [vec![0], vec![1, 2]]
            .into_iter()
            .map(|raises| {
                let world = world.clone();
                thread::spawn(move || {
                    for raise in raises {
                        let (published, link) = &world.published[raise];
                        published.store(true, Ordering::Relaxed);
                        if world.raised.push(*link as u32, &world.links[*link])
                            && let Some(holder) = world.seat.raise()
                        {
                            assert_eq!(holder, IRQ_THREAD);
                            world.irq.wake();
                        }
                    }
                })
            })
            .collect();
        let mut seen = 0;
        while seen < 3 {
            world.irq.park();
            assert!(world.seat.take(IRQ_THREAD));
            loop {
                world.seat.begin();
                let mut at = world.raised.take();
                while let Some(index) = at {
                    at = Raised::next(&world.links[index as usize]);
                    for (published, link) in &world.published {
                        if *link == index as usize && published.load(Ordering::Relaxed) {
                            published.store(false, Ordering::Relaxed);
                            seen += 1;
                        }
                    }
                }
                if world.seat.pass(IRQ_THREAD) {
                    break;
                }
            }
        }
        devices.into_iter().for_each(|device| device.join().unwrap());
    });
}

// ---- deadlines ----

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

/// A worker that promised to look at 40 wakes up then, and goes to compute; meanwhile another thread starts a timer for
/// 50, which that promise would cover. Four preemptions.
#[test]
fn loom_deadlines_a_promise_that_ends_leaves_no_timer_uncovered() {
    check(4, || {
        let timers = Timers::new();
        timers.start(0, 40);
        timers.deadlines.worker_will_look(40);
        let other = {
            let timers = timers.clone();
            thread::spawn(move || {
                timers.start(1, 50);
                timers.cover();
            })
        };
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
        let other = {
            let timers = timers.clone();
            thread::spawn(move || {
                timers.start(1, 50);
                timers.cover();
            })
        };
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
        let other = {
            let timers = timers.clone();
            thread::spawn(move || {
                timers.start(1, 50);
                timers.cover();
            })
        };
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

// ---- the shard lock ----

/// A shard: how often it was entered by a call, and how often polled.
#[derive(Default)]
struct Shard {
    calls: u32,
    polls: u32,
}

impl crate::lock::Shard for Shard {
    fn take_down(&mut self) {}
}

fn owner(napi: &Napi) -> Owner {
    napi.enable(9000, None);
    let Schedule::Owned(owner) = napi.schedule(&Cx::new(0, 0)) else { panic!("nobody else owns it") };
    owner
}

fn unlock(mut guard: HandoffGuard<'_, Shard>) {
    while let Err((mut held, parked)) = guard.unlock() {
        held.with_mut(|shard| shard.polls += 1);
        parked.owner.abandon();
        guard = held;
    }
}

fn call(lock: &HandoffLock<Shard>) {
    let mut guard = lock.lock();
    guard.with_mut(|shard| shard.calls += 1);
    unlock(guard);
}

fn softirq(lock: &HandoffLock<Shard>, owner: Owner) {
    if let Some((mut guard, owner)) = lock.lock_or_park(owner, 0) {
        guard.with_mut(|shard| shard.polls += 1);
        owner.abandon();
        unlock(guard);
    }
}

fn lock_model(preemptions: usize, callers: usize, with_softirq: bool) {
    check(preemptions, move || {
        let lock = Arc::new(HandoffLock::new(Shard::default()));
        let callers_run: Vec<_> = (0..callers)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || call(&lock))
            })
            .collect();
        if with_softirq {
            softirq(&lock, owner(&Napi::new(0)));
        } else {
            call(&lock);
        }
        callers_run.into_iter().for_each(|caller| caller.join().unwrap());
        let mut guard = lock.lock();
        let (calls, polls) = guard.with_mut(|shard| (shard.calls, shard.polls));
        unlock(guard);
        assert_eq!((calls as usize, polls as usize), (callers + usize::from(!with_softirq), usize::from(with_softirq)));
    });
}

/// Softirq comes while a caller holds the lock and unlocks: the ownership is polled once, by one of them. Four
/// preemptions.
#[test]
fn loom_lock_an_ownership_parked_while_unlocking_is_polled_once() {
    lock_model(4, 1, true);
}

/// As before with a second caller that sleeps for the lock. Three preemptions.
#[test]
fn loom_lock_parks_beside_a_sleeping_waiter() {
    lock_model(3, 2, true);
}

/// Three callers: nobody sleeps for ever. Three preemptions.
#[test]
fn loom_lock_leaves_no_waiter_behind() {
    lock_model(3, 2, false);
}

/// Who only tries neither gets in beside the holder nor throws them out. Four preemptions.
#[test]
fn loom_lock_a_failed_try_leaves_the_holder_alone() {
    check(4, || {
        let lock = Arc::new(HandoffLock::new(Shard::default()));
        let caller = {
            let lock = lock.clone();
            thread::spawn(move || call(&lock))
        };
        for _ in 0..2 {
            if let Some(mut guard) = lock.try_lock() {
                guard.with_mut(|shard| shard.calls += 1);
                unlock(guard);
            }
        }
        caller.join().unwrap();
    });
}
