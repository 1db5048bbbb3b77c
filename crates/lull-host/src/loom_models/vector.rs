//! Interrupts that are descriptors: the code of [`crate::vector`] by itself, and with the core's instances, the core's softirq, the
//! seat and the list of raised interrupts around it, as a CPU has them.
//!
//! The kernel orders nothing here: what it knows of a descriptor is a word that is changed relaxed, and a thread that waits for it
//! spins. An interrupt that is lost leaves the interrupt thread spinning for ever, which loom reports as too many branches.
//! What only an owner of an instance touches is in a loom cell.

use std::os::fd::BorrowedFd;

use loom::sync::{Arc, MutexGuard};
use loom::thread;
use lull_core::{
    Completion, Cx, DisableClaim, NAPI_ID_MIN, Napi, Owner, Polled, Route, RxStep, Schedule, Softnet, Sysctl,
};
use rustix::io::Errno;

use super::{ALL, Line, check};
use crate::holder::{self, Ran, SeatWork, Seated, Served, Sleeper};
use crate::parker::{ON_FUTEX, ParkWord};
use crate::raised::{Link, Raised};
use crate::seat::{GUEST, Holder, Seat};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, UnsafeCell};
use crate::vector::{IrqEpoll, Vector, Watches};

const NOW: u64 = 16_000;

/// A frame in the descriptor: they are counted below the other bits.
const FRAME: u32 = 1;
const FRAMES: u32 = 0xff;
/// The interrupt thread's one-shot watch.
const WATCHED: u32 = 1 << 8;
/// Its set knows the descriptor no more.
const REMOVED: u32 = 1 << 9;

/// What the kernel knows of each descriptor.
struct Kernel(Vec<AtomicU32>);

impl Kernel {
    fn new(descriptors: usize) -> Kernel {
        Kernel((0..descriptors).map(|_| AtomicU32::new(0)).collect())
    }

    fn arrives(&self, index: usize) {
        self.0[index].fetch_add(FRAME, Ordering::Relaxed);
    }

    /// The word, of which the kernel always knows the latest.
    fn word(&self, index: usize) -> u32 {
        self.0[index].fetch_or(0, Ordering::Relaxed)
    }

    fn change(&self, index: usize, change: impl Fn(u32) -> Option<u32>) -> bool {
        let mut word = self.word(index);
        while let Some(next) = change(word) {
            match self.0[index].compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
    }

    fn read(&self, index: usize) -> bool {
        self.change(index, |word| (word & FRAMES != 0).then(|| word - FRAME))
    }

    fn is_readable(&self, index: usize) -> bool {
        self.word(index) & FRAMES != 0
    }

    /// Whether the set has something to report.
    fn is_ready(&self) -> bool {
        (0..self.0.len()).any(|index| reports(self.word(index)))
    }

    fn report(&self, mut each: impl FnMut(usize)) {
        for index in 0..self.0.len() {
            if self.change(index, |word| reports(word).then_some(word & !WATCHED)) {
                each(index);
            }
        }
    }
}

fn reports(word: u32) -> bool {
    word & WATCHED != 0 && word & FRAMES != 0
}

impl Watches for Kernel {
    fn add(&self, _: BorrowedFd<'_>, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn watch(&self, _: BorrowedFd<'_>, index: u32, watched: bool) -> Result<(), Errno> {
        let word = &self.0[index as usize];
        let before = if watched {
            word.fetch_or(WATCHED, Ordering::Relaxed)
        } else {
            word.fetch_and(!WATCHED, Ordering::Relaxed)
        };
        assert_eq!(before & REMOVED, 0, "another may have the descriptor's number");
        Ok(())
    }

    fn remove(&self, _: BorrowedFd<'_>) {
        // One model removes, and it has one descriptor.
        self.0[0].fetch_or(REMOVED, Ordering::Relaxed);
    }
}

struct Queue {
    napi: Napi,
    vector: Vector,
    link: Link,
    /// Frames that its owners took. Touched by the owner only.
    taken: UnsafeCell<u32>,
}

// SAFETY: `taken` is touched by one thread at a time, which is what the models verify.
unsafe impl Sync for Cpu {}

/// A CPU with some queues.
struct Cpu {
    seat: Seat,
    raised: Raised,
    softnet: Mutex<Softnet>,
    irq_epoll: IrqEpoll<Kernel>,
    irq: ParkWord,
    worker: ParkWord,
    queues: Vec<Queue>,
    /// Frames that are still to come, each when the one before it was taken.
    to_come: AtomicU32,
    left: AtomicU32,
    finished: AtomicBool,
}

impl Seated for Cpu {
    fn seat(&self) -> &Seat {
        &self.seat
    }

    fn wake(&self, holder: Holder) {
        // Neither sleeps: they spin.
        let _ = if holder.slot().is_some() { &self.worker } else { &self.irq }.notify();
    }
}

impl SeatWork for Cpu {
    type Run<'a> = MutexGuard<'a, Softnet>;

    fn begin_run(&self) -> MutexGuard<'_, Softnet> {
        self.softnet.lock().unwrap()
    }

    fn serve(&self, softnet: &mut MutexGuard<'_, Softnet>) -> Served {
        self.hard_interrupts(softnet);
        while softnet.is_raised() {
            self.net_rx_action(softnet);
        }
        Served::All
    }

    fn arm(&self) {
        for (index, queue) in self.queues.iter().enumerate() {
            self.irq_epoll.arm(&queue.vector, index as u32);
        }
    }

    fn cover(&self) {}

    fn is_late(&self) -> bool {
        false
    }

    fn wake_ksoftirqd(&self) {
        unreachable!("no run takes that long");
    }
}

fn cx() -> Cx<'static> {
    Cx::new(0, NOW)
}

impl Cpu {
    /// Queues that are enabled. `frames` are to be taken, of which `to_come` come by and by; who makes the model sends the others.
    fn new(queues: usize, frames: u32, to_come: u32) -> Arc<Cpu> {
        let queue = |index| Queue {
            napi: Napi::new(index as u32),
            vector: Vector::new(Line::new()),
            link: Link::new(),
            taken: UnsafeCell::new(0),
        };
        let cpu = Cpu {
            seat: Seat::new(),
            raised: Raised::new(),
            softnet: Mutex::new(Softnet::new()),
            irq_epoll: IrqEpoll::over(Kernel::new(queues)),
            irq: ParkWord::new(),
            worker: ParkWord::new(),
            queues: (0..queues).map(queue).collect(),
            to_come: AtomicU32::new(to_come),
            left: AtomicU32::new(frames),
            finished: AtomicBool::new(false),
        };
        for (index, queue) in cpu.queues.iter().enumerate() {
            cpu.irq_epoll.add(&queue.vector, index as u32).unwrap();
            cpu.enable(index);
        }
        Arc::new(cpu)
    }

    fn kernel(&self) -> &Kernel {
        &self.irq_epoll.watches
    }

    /// Read by a swap, which sees the latest value and orders nothing.
    fn is_finished(&self) -> bool {
        self.finished.fetch_or(false, Ordering::Relaxed)
    }

    // ---- the host's own, as in `softirq.rs` ----

    fn hard_interrupts(&self, softnet: &mut Softnet) {
        let mut at = self.raised.take();
        while let Some(index) = at {
            let queue = &self.queues[index as usize];
            at = Raised::next(&queue.link);
            if let Schedule::Owned(owner) = queue.napi.schedule(&cx()) {
                self.route(softnet, owner);
            }
        }
    }

    fn route(&self, softnet: &mut Softnet, owner: Owner) {
        match self.queues[owner.napi() as usize].napi.route(owner, &cx()) {
            Route::Softirq(owner) => softnet.push(owner),
            Route::Thread => unreachable!("there are none"),
        }
    }

    fn net_rx_action(&self, softnet: &mut Softnet) {
        let mut rx = softnet.begin(&Sysctl::default(), NOW);
        while let RxStep::Poll(owner) = rx.next(softnet) {
            let (index, work) = (owner.napi() as usize, self.poll(&owner));
            let polled = self.queues[index].napi.softirq_polled(owner, work, false, &cx(), |_| ());
            if let Some(completion) = rx.polled(polled, work, NOW)
                && let Some(owner) = self.carry_out(index, completion, true)
            {
                self.route(softnet, owner);
            }
            holder::between_polls(&self.seat, || self.hard_interrupts(softnet));
        }
    }

    fn carry_out(&self, index: usize, completion: Completion, in_seat: bool) -> Option<Owner> {
        match completion {
            Completion::Again(owner) => Some(owner),
            Completion::Released(release) => {
                let settled = release.settle(&self.queues[index].napi, &cx());
                assert!(settled.unmask && settled.timer_ns.is_none(), "nothing is deferred");
                self.unmask(index, in_seat);
                None
            }
            Completion::Kept(_) => unreachable!("nobody busy polls"),
        }
    }

    fn unmask(&self, index: usize, in_seat: bool) {
        self.queues[index].vector.unmask();
        if !in_seat && self.queues[index].vector.is_fd() {
            self.irq_epoll.arm(&self.queues[index].vector, index as u32);
        }
    }

    fn push_raised(&self, index: usize) -> bool {
        self.raised.push(index as u32, &self.queues[index].link)
    }

    // ---- what there is to poll ----

    /// The owner takes what is in the descriptor.
    fn poll(&self, owner: &Owner) -> u32 {
        let index = owner.napi() as usize;
        self.queues[index].taken.with_mut(|taken| {
            let mut work = 0;
            while self.kernel().read(index) {
                work += 1;
                self.took_a_frame(index);
            }
            // SAFETY: the caller owns the instance; loom verifies that nobody else does.
            unsafe { *taken += work };
            work
        })
    }

    fn took_a_frame(&self, index: usize) {
        if self.to_come.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            self.kernel().arrives(index);
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.finished.swap(true, Ordering::Relaxed);
            let _ = self.worker.notify();
        }
    }

    // ---- the threads ----

    /// The interrupt thread, until all frames are taken.
    fn irq_thread(&self) {
        while !self.is_finished() {
            if self.irq.begin(ON_FUTEX) {
                while self.irq.is_asleep() && !self.kernel().is_ready() && !self.is_finished() {
                    thread::yield_now();
                }
                self.irq.end();
            }
            self.kernel().report(|index| {
                if self.queues[index].vector.reported() {
                    self.push_raised(index);
                }
            });
            holder::irq_thread_woke(self);
        }
    }

    /// As `napi_enable` and `napi_disable` of `control.rs`.
    fn enable(&self, index: usize) {
        self.queues[index].napi.enable(NAPI_ID_MIN + index as u32, None);
        self.unmask(index, false);
    }

    fn disable(&self, index: usize) {
        let queue = &self.queues[index];
        queue.napi.disable_begin();
        while queue.napi.disable_claim() == DisableClaim::Owned {
            thread::yield_now();
        }
        queue.vector.mask();
        queue.napi.disable_end(&cx());
    }

    /// A poller outside the seat that owns the instance for a round, its interrupt masked: a busy poller's tour.
    fn tour(&self, index: usize) {
        let queue = &self.queues[index];
        // Whoever owns it already looks again.
        let Schedule::Owned(mut owner) = queue.napi.schedule(&cx()) else { return };
        queue.vector.mask();
        loop {
            let work = self.poll(&owner);
            let Polled::Completed(completion) = queue.napi.softirq_polled(owner, work, false, &cx(), |_| ()) else {
                unreachable!("there are fewer frames than a weight")
            };
            match self.carry_out(index, completion, false) {
                Some(again) => owner = again,
                None => return,
            }
        }
    }

    /// The room interrupt of the queue's transmit ring ([`crate::sinks::RoomSink`]).
    fn room(&self, index: usize) {
        self.queues[index].vector.mask();
        if self.push_raised(index) {
            self.raise();
        }
    }

    /// The worker sleeps until all frames are taken.
    fn sleep(&self) {
        let me = Holder::worker(0);
        self.seat.sleeper_begins(0);
        let mut in_seat = self.seat.take(me);
        holder::sleep(&mut OfWorker { cpu: self, watched: Vec::new() }, &mut in_seat);
        in_seat |= self.seat.sleeper_ends(0);
        if in_seat {
            holder::leave(self, me, Ran::Done);
        }
    }

    fn check(&self) {
        // SAFETY: every thread has ended; loom verifies it.
        let taken = self.queues.iter().map(|queue| queue.taken.with(|taken| unsafe { *taken })).sum::<u32>();
        assert!(taken > 0 && self.left.load(Ordering::Relaxed) == 0);
    }
}

/// The worker, which watches descriptors itself while it sleeps in the seat.
struct OfWorker<'a> {
    cpu: &'a Cpu,
    watched: Vec<usize>,
}

impl Sleeper for OfWorker<'_> {
    type Work = Cpu;
    type Woke = ();

    fn work(&self) -> &Cpu {
        self.cpu
    }

    fn me(&self) -> Holder {
        Holder::worker(0)
    }

    fn forget(&self) {
        self.cpu.worker.forget();
    }

    fn over(&mut self) -> Option<()> {
        self.watched.clear();
        self.cpu.is_finished().then_some(())
    }

    fn promise(&mut self) -> bool {
        for (index, queue) in self.cpu.queues.iter().enumerate() {
            if queue.vector.is_watched() {
                self.cpu.irq_epoll.disarm(&queue.vector, index as u32);
                self.watched.push(index);
            }
        }
        !self.watched.is_empty()
    }

    fn take_back(&mut self) {}

    fn park(&mut self) -> Option<()> {
        let word = &self.cpu.worker;
        let readable = |index: &usize| self.cpu.kernel().is_readable(*index);
        if word.begin(ON_FUTEX) {
            while word.is_asleep() && !self.watched.iter().any(readable) {
                thread::yield_now();
            }
            word.end();
        }
        for &index in self.watched.iter().filter(|index| readable(index)) {
            if self.cpu.queues[index].vector.fire() && self.cpu.push_raised(index) {
                self.cpu.raise();
            }
        }
        None
    }
}

/// One thread beside the interrupt thread, which also is the device that sends the first frames.
fn model(
    preemptions: usize,
    cpu: impl Fn() -> Arc<Cpu> + Sync + Send + 'static,
    beside: fn(&Cpu),
    first: &'static [usize],
) {
    check(preemptions, move || {
        let cpu = cpu();
        let other = {
            let cpu = cpu.clone();
            thread::spawn(move || beside(&cpu))
        };
        first.iter().for_each(|index| cpu.kernel().arrives(*index));
        cpu.irq_thread();
        other.join().unwrap();
        cpu.check();
    });
}

/// A poller outside the seat masks what is armed and unmasks it again while the watch fires: either the interrupt thread takes the
/// interrupt, or the poller arms anew. Three preemptions.
#[test]
fn loom_vector_a_tour_unmasks_while_the_watch_fires() {
    model(3, || Cpu::new(1, 2, 1), |cpu| cpu.tour(0), &[0]);
}

/// An operator disables the instance and enables it again while its watch fires; one frame comes before that or after it. Four
/// preemptions.
#[test]
fn loom_vector_is_disabled_and_enabled_while_the_watch_fires() {
    fn resets(cpu: &Cpu) {
        cpu.disable(0);
        cpu.enable(0);
    }
    model(4, || Cpu::new(1, 1, 0), resets, &[0]);
}

/// The queue's transmit ring has room while its frames come. Four preemptions.
#[test]
fn loom_vector_room_masks_while_the_watch_fires() {
    model(4, || Cpu::new(1, 2, 1), |cpu| cpu.room(0), &[0]);
}

/// Frames come at any time, also between the last look at the descriptor and its arming. Four preemptions.
#[test]
fn loom_vector_a_frame_comes_before_the_descriptor_is_armed() {
    fn device(cpu: &Cpu) {
        cpu.kernel().arrives(0);
        cpu.kernel().arrives(0);
    }
    model(4, || Cpu::new(1, 2, 0), device, &[]);
}

/// Two queues of a CPU, of which one is polled by a thread that passes by when the other's interrupt comes: that may be between two
/// polls of its run. Three preemptions.
#[test]
fn loom_vector_two_of_a_cpu_beside_a_passer() {
    fn passes(cpu: &Cpu) {
        if cpu.queues[1].vector.fire() && cpu.push_raised(1) {
            cpu.raise();
        }
        holder::visit(cpu, GUEST);
    }
    model(3, || Cpu::new(2, 3, 1), passes, &[0, 1]);
}

/// A worker sleeps in the seat and watches two descriptors itself. Two preemptions.
#[test]
fn loom_vector_two_of_a_cpu_beside_a_worker_that_sleeps() {
    model(2, || Cpu::new(2, 2, 0), |cpu| cpu.sleep(), &[0, 1]);
}

/// Somebody who unmasks late arms what is being removed: never after it was. Four preemptions.
#[test]
fn loom_vector_is_not_armed_behind_its_removal() {
    check(4, || {
        let cpu = Cpu::new(1, 0, 0);
        let late = {
            let cpu = cpu.clone();
            thread::spawn(move || {
                cpu.queues[0].vector.fire();
                cpu.irq_epoll.disarm(&cpu.queues[0].vector, 0);
                cpu.unmask(0, false);
            })
        };
        cpu.irq_epoll.remove(&cpu.queues[0].vector);
        late.join().unwrap();
    });
}

/// A worker takes the watch back while others arm: the word and the kernel say the same in the end. Four preemptions.
#[test]
fn loom_vector_armed_and_disarmed_at_once_is_what_the_kernel_has() {
    check(4, || {
        let cpu = Cpu::new(1, 0, 0);
        let worker = {
            let cpu = cpu.clone();
            thread::spawn(move || {
                cpu.irq_epoll.disarm(&cpu.queues[0].vector, 0);
                cpu.irq_epoll.disarm(&cpu.queues[0].vector, 0);
            })
        };
        let other = {
            let cpu = cpu.clone();
            thread::spawn(move || cpu.unmask(0, false))
        };
        cpu.unmask(0, false);
        worker.join().unwrap();
        other.join().unwrap();
        let is_watched = cpu.kernel().0[0].load(Ordering::Relaxed) & WATCHED != 0;
        assert_eq!(cpu.queues[0].vector.is_armed(), is_watched);
    });
}

/// What the models of this file's second half share: a vector, and what was written before it was unmasked.
struct HandOver {
    vector: Vector,
    before: UnsafeCell<u32>,
}

// SAFETY: `before` is touched by one thread at a time, which is what the models verify.
unsafe impl Sync for HandOver {}

impl HandOver {
    fn new() -> Arc<HandOver> {
        Arc::new(HandOver { vector: Vector::new(Line::new()), before: UnsafeCell::new(0) })
    }

    fn unmask(&self) {
        // SAFETY: nobody has taken the interrupt yet; loom verifies it.
        self.before.with_mut(|before| unsafe { *before = 1 });
        self.vector.unmask();
    }

    fn take(&self) {
        // SAFETY: one thread took the interrupt; loom verifies it.
        self.before.with_mut(|before| assert_eq!(unsafe { std::mem::take(&mut *before) }, 1, "it was taken twice"));
    }
}

/// Whoever takes the interrupt sees what came before the unmasking, and is alone: a worker that watches itself, and the interrupt
/// thread. All interleavings.
#[test]
fn loom_vector_one_takes_the_interrupt_and_sees_what_came_before_it_was_unmasked() {
    check(ALL, || {
        let world = HandOver::new();
        let takers: Vec<_> = [Vector::fire, Vector::reported]
            .into_iter()
            .map(|take: fn(&Vector) -> bool| {
                let world = world.clone();
                thread::spawn(move || {
                    if take(&world.vector) {
                        world.take();
                    }
                })
            })
            .collect();
        world.unmask();
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        if world.vector.fire() {
            world.take();
        }
    });
}

/// Whoever masks schedules afterwards, and that must not find the instance disabled if the unmasking that followed its enabling is
/// what was masked. All interleavings.
#[test]
fn loom_vector_who_masks_sees_what_came_before_it_was_unmasked() {
    check(ALL, || {
        let world = Arc::new((Vector::new(Line::new()), AtomicBool::new(false)));
        let masks = {
            let world = world.clone();
            thread::spawn(move || {
                let (vector, enabled) = &*world;
                vector.mask();
                enabled.load(Ordering::Relaxed)
            })
        };
        let (vector, enabled) = &*world;
        enabled.store(true, Ordering::Relaxed);
        vector.unmask();
        let is_scheduled = masks.join().unwrap();
        assert!(is_scheduled || vector.is_watched(), "it is masked, and its schedule was refused");
    });
}
