//! The seat with the code of [`crate::holder`]: interrupt thread, ksoftirqd, workers and passers-by over a CPU whose work is a
//! few flags, one timer and one descriptor.

use std::os::fd::BorrowedFd;

use loom::sync::Arc;
use loom::thread;
use rustix::io::Errno;

use super::{Bed, Line, check};
use crate::deadlines::{Deadlines, NEVER};
use crate::holder::{self, Ran, SeatWork, Seated, Served, Sleeper};
use crate::seat::{GUEST, Holder, KSOFTIRQD, Seat};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, UnsafeCell};
use crate::vector::{IrqEpoll, Vector, Watches};

/// When the timer of a model is due.
const TIMER_NS: u64 = 50;

/// What the kernel does for us: a clock that somebody else moves, timeouts, and a descriptor that becomes readable.
#[derive(Default)]
struct Kernel {
    now_ns: u64,
    /// The interrupt thread's timer; it has fired once it is due.
    backstop_ns: Option<u64>,
    backstop_fired: bool,
    /// When the worker that sleeps wakes up by itself.
    timeout_ns: Option<(u32, u64)>,
    /// The descriptor's level.
    readable: bool,
    /// The interrupt thread's one-shot watch.
    watched: bool,
    /// The worker that watches in its sleep.
    watcher: Option<u32>,
}

/// The kernel, and the interrupt thread that waits for it.
struct Machine {
    kernel: Mutex<Kernel>,
    irq: Bed,
}

impl Watches for Machine {
    fn add(&self, _: BorrowedFd<'_>, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn watch(&self, _: BorrowedFd<'_>, _: u32, watched: bool) -> Result<(), Errno> {
        let mut kernel = self.kernel.lock().unwrap();
        kernel.watched = watched;
        if watched && kernel.readable {
            self.irq.wake();
        }
        Ok(())
    }

    fn remove(&self, _: BorrowedFd<'_>) {}
}

// SAFETY: `delivered` is touched by one thread at a time, which is what the models verify.
unsafe impl Sync for Cpu {}

/// A CPU whose work is a flag per item: published relaxed, so that nothing but the seat orders them.
struct Cpu {
    seat: Seat,
    deadlines: Deadlines,
    workers: Vec<Bed>,
    ksoftirqd: Bed,
    irq_epoll: IrqEpoll<Machine>,
    moving: Mutex<()>,
    /// The next pass leaves something over.
    leftover: AtomicBool,
    items: Vec<AtomicBool>,
    /// Item 1 comes while item 0 is polled. Not loom's: whoever sets it publishes item 0 afterwards.
    follows: std::sync::atomic::AtomicBool,
    timer_ns: AtomicU64,
    vector: Vector,
    /// The descriptor's interrupt was raised.
    raised: AtomicBool,
    /// Everything that has to be delivered.
    total: usize,
    /// Touched by the holder of the seat only.
    delivered: UnsafeCell<usize>,
    finished: AtomicBool,
    /// What worker 0 waits for is there, whatever else is under way.
    called_off: AtomicBool,
}

impl Seated for Cpu {
    fn seat(&self) -> &Seat {
        &self.seat
    }

    fn wake(&self, holder: Holder) {
        match holder.slot() {
            Some(slot) => self.workers[slot as usize].wake(),
            None if holder == KSOFTIRQD => self.ksoftirqd.wake(),
            None => self.irq().wake(),
        }
    }
}

/// What softirq is to poll.
enum Scheduled {
    Item(usize),
    Frame,
}

impl SeatWork for Cpu {
    type Run<'a> = ();

    fn begin_run(&self) {}

    fn serve(&self, (): &mut ()) -> Served {
        if self.leftover.swap(false, Ordering::Relaxed) {
            return Served::Leftover;
        }
        let mut scheduled = Vec::new();
        self.hard_interrupts(&mut scheduled);
        let now_ns = self.kernel().now_ns;
        if self.deadlines.earliest_ns() <= now_ns {
            self.deadlines.forget();
            let deadline_ns = self.timer_ns.load(Ordering::Acquire);
            let due = deadline_ns <= now_ns;
            if due && self.timer_ns.compare_exchange(deadline_ns, NEVER, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.deliver();
            }
            self.deadlines.note(self.timer_ns.load(Ordering::Acquire));
        }
        while let Some(what) = scheduled.pop() {
            self.poll(what);
            holder::between_polls(&self.seat, || self.hard_interrupts(&mut scheduled));
        }
        Served::All
    }

    fn arm(&self) {
        self.irq_epoll.arm(&self.vector, 0);
    }

    fn cover(&self) {
        if self.deadlines.is_covered(self.deadlines.earliest_ns(), 0) {
            return;
        }
        let deadline_ns = self.look_up();
        if self.deadlines.is_covered(deadline_ns, 0) {
            return;
        }
        let _moving = self.moving.lock().unwrap();
        if self.deadlines.backstop_ns() > deadline_ns {
            let mut kernel = self.kernel();
            kernel.backstop_ns = Some(deadline_ns);
            self.deadlines.backstop_is_set(deadline_ns);
            self.expire(&mut kernel);
        }
    }

    fn is_late(&self) -> bool {
        self.deadlines.earliest_ns() <= self.kernel().now_ns
    }

    fn wake_ksoftirqd(&self) {
        self.ksoftirqd.wake();
    }
}

impl Cpu {
    /// `items` flags, and a timer or a descriptor besides.
    fn new(items: usize, workers: usize, timer: bool, frames: usize) -> Arc<Cpu> {
        let cpu = Cpu {
            seat: Seat::new(),
            deadlines: Deadlines::new(),
            workers: (0..workers).map(|_| Bed::new()).collect(),
            ksoftirqd: Bed::new(),
            irq_epoll: IrqEpoll::over(Machine { kernel: Mutex::new(Kernel::default()), irq: Bed::new() }),
            moving: Mutex::new(()),
            leftover: AtomicBool::new(false),
            items: (0..items).map(|_| AtomicBool::new(false)).collect(),
            follows: Default::default(),
            timer_ns: AtomicU64::new(NEVER),
            vector: Vector::new(Line::new()),
            raised: AtomicBool::new(false),
            total: items + usize::from(timer) + frames,
            delivered: UnsafeCell::new(0),
            finished: AtomicBool::new(false),
            called_off: AtomicBool::new(false),
        };
        if frames > 0 {
            // As an instance is enabled: the interrupt thread watches.
            cpu.vector.unmask();
            cpu.arm();
        }
        Arc::new(cpu)
    }

    fn kernel(&self) -> loom::sync::MutexGuard<'_, Kernel> {
        self.irq_epoll.watches.kernel.lock().unwrap()
    }

    fn irq(&self) -> &Bed {
        &self.irq_epoll.watches.irq
    }

    fn hard_interrupts(&self, scheduled: &mut Vec<Scheduled>) {
        for (index, item) in self.items.iter().enumerate() {
            if item.load(Ordering::Relaxed) {
                item.store(false, Ordering::Relaxed);
                scheduled.push(Scheduled::Item(index));
            }
        }
        if self.raised.swap(false, Ordering::AcqRel) {
            scheduled.push(Scheduled::Frame);
        }
    }

    fn poll(&self, what: Scheduled) {
        match what {
            Scheduled::Item(index) => {
                if index == 0 && self.follows.swap(false, Ordering::Relaxed) {
                    self.publish(1);
                }
                self.deliver();
            }
            Scheduled::Frame => {
                // An interrupt that was seen before an earlier poll took its frame finds none.
                let frame = std::mem::take(&mut self.kernel().readable);
                if frame {
                    self.deliver();
                    // The next frame comes when this one was taken and the interrupt is not yet unmasked.
                    if !self.is_finished() {
                        self.arrive();
                    }
                }
                self.vector.unmask();
            }
        }
    }

    fn look_up(&self) -> u64 {
        self.deadlines.look_up(|| self.timer_ns.load(Ordering::Acquire))
    }

    /// The last item ends the model: it is what every worker waits for.
    fn deliver(&self) {
        // SAFETY: the caller holds the seat; loom verifies that nobody else does.
        let delivered = self.delivered.with_mut(|delivered| unsafe {
            *delivered += 1;
            *delivered
        });
        if delivered == self.total {
            self.finished.swap(true, Ordering::Relaxed);
            self.workers.iter().for_each(Bed::wake);
            self.irq().wake();
            self.ksoftirqd.wake();
        }
    }

    // ---- what happens from outside ----

    fn publish(&self, item: usize) {
        self.items[item].store(true, Ordering::Relaxed);
        self.raise();
    }

    /// A frame on the descriptor.
    fn arrive(&self) {
        let mut kernel = self.kernel();
        kernel.readable = true;
        if kernel.watched {
            self.irq().wake();
        }
        if let Some(slot) = kernel.watcher {
            self.workers[slot as usize].wake();
        }
    }

    /// A timer is started in a turn, at whose end somebody has to cover it.
    fn start_timer(&self) {
        self.timer_ns.swap(TIMER_NS, Ordering::AcqRel);
        self.deadlines.note(TIMER_NS);
    }

    fn time_passes(&self) {
        let mut kernel = self.kernel();
        kernel.now_ns = TIMER_NS;
        self.expire(&mut kernel);
    }

    /// The kernel's timers that are due.
    fn expire(&self, kernel: &mut Kernel) {
        if kernel.backstop_ns.is_some_and(|at_ns| at_ns <= kernel.now_ns) {
            kernel.backstop_ns = None;
            kernel.backstop_fired = true;
            self.irq().wake();
        }
        if let Some((slot, _)) = kernel.timeout_ns.filter(|(_, at_ns)| *at_ns <= kernel.now_ns) {
            self.workers[slot as usize].wake();
        }
    }

    // ---- the threads ----

    /// The interrupt thread. It may be woken for nothing: then it looks once, as after a kernel timer.
    fn irq_thread(&self) {
        while !self.is_finished() {
            self.irq().park();
            let (timer, readable) = {
                let mut kernel = self.kernel();
                let readable = kernel.watched && kernel.readable;
                kernel.watched &= !readable;
                (std::mem::take(&mut kernel.backstop_fired), readable)
            };
            if timer {
                let _moving = self.moving.lock().unwrap();
                self.deadlines.backstop_has_fired();
            }
            if readable && self.vector.reported() {
                self.raised.swap(true, Ordering::AcqRel);
            }
            holder::irq_thread_woke(self);
        }
    }

    fn ksoftirqd(&self) {
        while !self.is_finished() {
            self.ksoftirqd.park();
            holder::ksoftirqd_woke(self, || true);
        }
    }

    /// A worker that sleeps until everything is delivered (worker 0: or until it is called off).
    fn sleep(&self, slot: u32) {
        let me = Holder::worker(slot);
        self.seat.sleeper_begins(slot);
        let mut in_seat = self.seat.take(me);
        holder::sleep(&mut OfWorker { cpu: self, slot, me, wake_ns: NEVER, watches: false }, &mut in_seat);
        in_seat |= self.seat.sleeper_ends(slot);
        if in_seat {
            holder::leave(self, me, Ran::Done);
        }
    }

    /// As a worker without a place does, with the seat from a busy loop if it is free.
    fn sleep_beside(&self, slot: u32) {
        let mut in_seat = self.seat.take(GUEST);
        let mut beside = OfWorker { cpu: self, slot, me: GUEST, wake_ns: NEVER, watches: false };
        holder::sleep_beside(&mut beside, &mut in_seat);
        assert!(!in_seat, "it left the seat");
    }

    /// Read by a swap, which sees the latest value, and orders nothing: what a stale one does, the model of the sleeper's word explores.
    fn is_finished(&self) -> bool {
        self.finished.fetch_or(false, Ordering::Relaxed)
    }

    fn check(&self) {
        // SAFETY: every thread has ended; loom verifies it.
        self.delivered.with(|delivered| assert_eq!(unsafe { *delivered }, self.total));
    }
}

struct OfWorker<'a> {
    cpu: &'a Cpu,
    /// Where it sleeps; whether it has a place in the seat's words is told by `me`.
    slot: u32,
    me: Holder,
    wake_ns: u64,
    watches: bool,
}

impl Sleeper for OfWorker<'_> {
    type Work = Cpu;
    type Woke = ();

    fn work(&self) -> &Cpu {
        self.cpu
    }

    fn me(&self) -> Holder {
        self.me
    }

    fn forget(&self) {
        self.cpu.workers[self.slot as usize].word.forget();
    }

    fn over(&mut self) -> Option<()> {
        (self.wake_ns, self.watches) = (NEVER, false);
        let called_off = self.slot == 0 && self.cpu.called_off.fetch_or(false, Ordering::Relaxed);
        (called_off || self.cpu.is_finished()).then_some(())
    }

    fn promise(&mut self) -> bool {
        if self.cpu.vector.is_watched() {
            self.cpu.irq_epoll.disarm(&self.cpu.vector, 0);
            self.watches = true;
        }
        self.wake_ns = self.cpu.look_up();
        self.cpu.deadlines.worker_will_look(self.wake_ns);
        self.watches || self.wake_ns != NEVER
    }

    fn take_back(&mut self) {
        self.cpu.deadlines.worker_looks_no_more();
    }

    fn park(&mut self) -> Option<()> {
        let bed = &self.cpu.workers[self.slot as usize];
        let is_due = {
            let mut kernel = self.cpu.kernel();
            kernel.watcher = self.watches.then_some(self.slot).or(kernel.watcher);
            kernel.timeout_ns = (self.wake_ns != NEVER).then_some((self.slot, self.wake_ns)).or(kernel.timeout_ns);
            (self.watches && kernel.readable) || self.wake_ns <= kernel.now_ns
        };
        if !is_due {
            bed.park();
        }
        let mut kernel = self.cpu.kernel();
        kernel.watcher = kernel.watcher.filter(|slot| *slot != self.slot);
        kernel.timeout_ns = kernel.timeout_ns.filter(|(slot, _)| *slot != self.slot);
        let readable = self.watches && kernel.readable;
        drop(kernel);
        if readable && self.cpu.vector.fire() {
            self.cpu.raised.swap(true, Ordering::AcqRel);
            self.cpu.raise();
        }
        None
    }
}

type Role = fn(&Cpu);

struct Model {
    preemptions: usize,
    items: usize,
    workers: usize,
    timer: bool,
    frames: usize,
    /// What the device does; its thread then becomes the interrupt thread, so that there are no more threads than loom
    /// can explore.
    device: Role,
    roles: &'static [Role],
}

impl Model {
    fn check(self) {
        check(self.preemptions, move || {
            let cpu = Cpu::new(self.items, self.workers, self.timer, self.frames);
            let spawn = |role: &Role| {
                let (cpu, role) = (cpu.clone(), *role);
                thread::spawn(move || role(&cpu))
            };
            let threads: Vec<_> = self.roles.iter().map(spawn).collect();
            (self.device)(&cpu);
            cpu.irq_thread();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            cpu.check();
        });
    }
}

/// A device that publishes one item after the other.
fn seat_model(preemptions: usize, items: usize, workers: usize, roles: &'static [Role]) {
    fn publishes_all(cpu: &Cpu) {
        (0..cpu.items.len()).for_each(|item| cpu.publish(item));
    }
    Model { preemptions, items, workers, timer: false, frames: 0, device: publishes_all, roles }.check();
}

fn visits(cpu: &Cpu) {
    holder::visit(cpu, GUEST);
}

/// Three preemptions.
#[test]
fn loom_seat_worker_and_interrupt_thread() {
    seat_model(3, 2, 1, &[|cpu| cpu.sleep(0)]);
}

/// An interrupt comes while another one's queue is polled, and a third behind that poll, which may be when the second is taken
/// between two polls of one run. Two preemptions.
#[test]
fn loom_seat_interrupts_come_between_the_polls_of_a_run() {
    fn two_in_a_row(cpu: &Cpu) {
        cpu.follows.store(true, Ordering::Relaxed);
        cpu.publish(0);
    }
    let roles: &[Role] = &[|cpu| cpu.publish(2)];
    Model { preemptions: 2, items: 3, workers: 0, timer: false, frames: 0, device: two_in_a_row, roles }.check();
}

/// A thread passes by, and gives the seat to the worker that goes to sleep just then, or wakes up. Two preemptions.
#[test]
fn loom_seat_passer_and_a_worker_that_goes_to_sleep() {
    seat_model(2, 1, 1, &[|cpu| cpu.sleep(0), visits]);
}

/// A worker leaves its sleep with work still to come, just as the seat is passed to it: it must not take the seat along.
/// Two preemptions.
#[test]
fn loom_seat_passer_and_a_worker_that_leaves() {
    fn calls_off(cpu: &Cpu) {
        let in_seat = cpu.seat.take(GUEST);
        cpu.called_off.swap(true, Ordering::Relaxed);
        cpu.workers[0].wake();
        if in_seat {
            holder::leave(cpu, GUEST, Ran::Done);
        }
        cpu.publish(0);
    }
    let roles: &[Role] = &[|cpu| cpu.sleep(0), calls_off];
    Model { preemptions: 2, items: 1, workers: 1, timer: false, frames: 0, device: |_| (), roles }.check();
}

/// A passer as above, with two interrupts. Two preemptions.
#[test]
fn loom_seat_passer_worker_and_two_interrupts() {
    seat_model(2, 2, 1, &[|cpu| cpu.sleep(0), visits]);
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
        holder::visit(cpu, Holder::worker(1));
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

/// Two frames of a device whose interrupt is a descriptor: whoever has the seat sees to it that somebody watches. Two
/// preemptions.
#[test]
fn loom_seat_a_descriptor_is_watched_by_whoever_sleeps() {
    let roles: &[Role] = &[|cpu| cpu.sleep(0), visits];
    Model { preemptions: 2, items: 0, workers: 1, timer: false, frames: 2, device: Cpu::arrive, roles }.check();
}

/// A busy poller passes by time and again without ever leaving the seat: it polls another queue than the one whose two
/// frames come by a descriptor, so somebody has to watch that meanwhile. Three preemptions.
#[test]
fn loom_seat_a_descriptor_is_watched_beside_a_busy_poller() {
    fn busy_polls(cpu: &Cpu) {
        let (me, mut in_seat) = (Holder::worker(0), false);
        while !cpu.is_finished() {
            holder::pass_by(cpu, me, &mut in_seat);
            thread::yield_now();
        }
        if in_seat {
            holder::leave(cpu, me, Ran::Done);
        }
    }
    Model { preemptions: 3, items: 0, workers: 1, timer: false, frames: 2, device: Cpu::arrive, roles: &[busy_polls] }
        .check();
}

/// A timer while a worker sleeps in the seat, and a passer relies on the worker's promise to look just as that wakes up for
/// something else, finds the seat taken and sleeps on outside it. Two preemptions.
#[test]
fn loom_seat_a_timer_is_covered_when_its_sleeper_loses_the_seat() {
    fn wakes_and_visits(cpu: &Cpu) {
        cpu.workers[0].wake();
        visits(cpu);
    }
    fn clock(cpu: &Cpu) {
        cpu.time_passes();
    }
    fn starts_a_timer_and_sleeps(cpu: &Cpu) {
        cpu.start_timer();
        cpu.sleep(0);
    }
    let roles: &[Role] = &[starts_a_timer_and_sleeps, wakes_and_visits];
    Model { preemptions: 2, items: 0, workers: 1, timer: true, frames: 0, device: clock, roles }.check();
}

/// A worker without a place gives the seat up before it sleeps, to one with a place or to the interrupt thread. Two preemptions.
#[test]
fn loom_seat_a_worker_sleeps_beside_it() {
    seat_model(2, 2, 1, &[|cpu| cpu.sleep_beside(0)]);
    seat_model(2, 1, 2, &[|cpu| cpu.sleep(1), |cpu| cpu.sleep_beside(0)]);
}

/// It starts a timer, for which somebody else wakes, though who has the seat may be past the look that covers it. Two preemptions.
#[test]
fn loom_seat_a_timer_is_covered_when_its_starter_sleeps_beside() {
    fn starts_a_timer_and_sleeps(cpu: &Cpu) {
        cpu.start_timer();
        cpu.sleep_beside(0);
    }
    let roles: &[Role] = &[starts_a_timer_and_sleeps, visits];
    Model { preemptions: 2, items: 0, workers: 1, timer: true, frames: 0, device: |cpu| cpu.time_passes(), roles }
        .check();
}
