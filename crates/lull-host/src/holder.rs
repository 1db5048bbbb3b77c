//! How the holder of a CPU's seat runs, leaves, sleeps and passes by, whatever the work is.
//!
//! [`crate::seat`] has one word and its transitions; this file says who makes which when. Threads of the system run it
//! through [`crate::on_cpu`], and the loom models run the same code with work and sleepers of their own.

use crate::seat::{Holder, IRQ_THREAD, KSOFTIRQD, Seat};

/// Whether softirq work was left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    Done,
    /// It goes to ksoftirqd when the seat is left.
    Leftover,
}

/// How one pass over what waits for a CPU ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Everything that was there was seen to.
    All,
    /// As before, but the holder has been at it for as long as it may.
    AllAndTimeIsUp,
    /// Softirq ran out of budget.
    Leftover,
}

/// A CPU's seat and those who may hold it.
pub(crate) trait Seated {
    fn seat(&self) -> &Seat;

    /// Wakes the thread behind `holder`, or keeps the wake-up for its next sleep.
    fn wake(&self, holder: Holder);

    /// Wakes the thread that holds the seat, if it sleeps. What it is to see was published before.
    #[inline]
    fn raise(&self) {
        if let Some(holder) = self.seat().raise() {
            self.wake(holder);
        }
    }
}

/// What there is to do on a CPU.
pub(crate) trait SeatWork: Seated {
    /// What a run keeps from pass to pass.
    type Run<'a>
    where
        Self: 'a;

    fn begin_run(&self) -> Self::Run<'_>;

    /// Hard interrupts, timers that are due and softirq, once each.
    fn serve(&self, run: &mut Self::Run<'_>) -> Served;

    /// Leaves the unmasked descriptors to the interrupt thread. This is due whenever the seat is left, and for a holder
    /// that stays in it awake, because nobody else watches them.
    fn arm(&self);

    /// Sees to it that somebody wakes for the earliest deadline.
    fn cover(&self);

    /// Whether a deadline has passed.
    fn is_late(&self) -> bool;

    /// Leftovers went to ksoftirqd: wakes it.
    fn wake_ksoftirqd(&self);
}

/// A worker that sleeps until something comes.
pub(crate) trait Sleeper {
    type Work: SeatWork;
    /// What ended the sleep.
    type Woke;

    fn work(&self) -> &Self::Work;

    fn me(&self) -> Holder;

    /// Forgets a wake-up that was kept; its reason is looked for afterwards.
    fn forget(&self);

    /// What ends the sleep now, if anything does.
    fn over(&mut self) -> Option<Self::Woke>;

    /// The sleep will be in the seat: takes over what is to be watched meanwhile, and promises to look at the deadlines.
    /// Returns whether anything depends on it.
    fn promise(&mut self) -> bool;

    /// Takes the promise back: this worker does not look at the deadlines any more.
    fn take_back(&mut self);

    /// Sleeps until it is woken, or until a promise or its own end is due. What it saw of interrupts is raised.
    fn park(&mut self) -> Option<Self::Woke>;
}

/// Runs a CPU's delivery until nothing is pending, within Linux's bounds. The caller holds the seat, awake.
pub(crate) fn run<W: SeatWork>(work: &W) -> Ran {
    let mut run = work.begin_run();
    loop {
        work.seat().begin();
        let served = work.serve(&mut run);
        if served == Served::Leftover {
            return Ran::Leftover;
        }
        if !work.seat().is_pending() {
            return Ran::Done;
        }
        // Interrupts that come as fast as they are handled must not keep a worker from what it was woken for.
        if served == Served::AllAndTimeIsUp {
            return Ran::Leftover;
        }
    }
}

/// The holder is between two polls of softirq. Hard interrupts come in there, as they would between instructions. What else
/// PENDING may have been set for (a deadline that somebody found passed) is seen to by [`leave`], which comes after the run.
#[inline]
pub(crate) fn between_polls(seat: &Seat, hard_interrupts: impl FnOnce()) {
    if seat.is_pending() {
        seat.begin();
        hard_interrupts();
    }
}

/// Lets go of the seat: what is pending is run first, leftovers go to ksoftirqd, and somebody watches and wakes for what is
/// still to come.
pub(crate) fn leave<W: SeatWork>(work: &W, me: Holder, mut ran: Ran) {
    loop {
        work.arm();
        work.cover();
        if ran == Ran::Leftover {
            work.seat().pass_to_ksoftirqd();
            work.wake_ksoftirqd();
            return;
        }
        if work.seat().pass(me) {
            return;
        }
        ran = run(work);
    }
}

/// Runs what is due if the seat is free; a holder that is awake sees to it otherwise.
pub(crate) fn visit<W: SeatWork>(work: &W, me: Holder) {
    if work.seat().take(me) {
        let ran = run(work);
        leave(work, me, ran);
    } else if work.is_late() {
        // The holder may be past its look at the clock.
        work.raise();
    }
}

/// `local_bh_enable` of a thread that goes on: runs what is pending, in the seat if it can be had.
pub(crate) fn pass_by<W: SeatWork>(work: &W, me: Holder, in_seat: &mut bool) {
    *in_seat = *in_seat || work.seat().take(me);
    if !*in_seat {
        return;
    }
    if run(work) == Ran::Leftover {
        leave(work, me, Ran::Leftover);
        *in_seat = false;
    } else {
        // The thread may go on for long: the descriptors that softirq unmasked are to be watched meanwhile.
        work.arm();
    }
}

/// The interrupt thread has woken up, and published what it saw.
pub(crate) fn irq_thread_woke<W: SeatWork>(work: &W) {
    if work.seat().take(IRQ_THREAD) {
        let ran = run(work);
        leave(work, IRQ_THREAD, ran);
    } else {
        // The holder is awake, and looks once more before it lets go.
        work.raise();
    }
}

/// ksoftirqd has woken up. `others` lets other threads run between two rounds, and says whether to go on.
pub(crate) fn ksoftirqd_woke<W: SeatWork>(work: &W, others: impl Fn() -> bool) {
    // Whoever took the seat meanwhile runs what was left over.
    if !work.seat().wake_up(KSOFTIRQD) {
        return;
    }
    while run(work) == Ran::Leftover && others() {
        work.arm();
    }
    leave(work, KSOFTIRQD, Ran::Done);
}

/// Sleeps, delivering meanwhile if it gets the seat. The sleeper has said that it sleeps ([`Seat::sleeper_begins`]).
pub(crate) fn sleep<S: Sleeper>(sleeper: &mut S, in_seat: &mut bool) -> S::Woke {
    let me = sleeper.me();
    let mut woke = None;
    loop {
        if *in_seat && run(sleeper.work()) == Ran::Leftover {
            leave(sleeper.work(), me, Ran::Leftover);
            *in_seat = false;
        }
        if let Some(woke) = woke {
            return woke;
        }
        sleeper.forget();
        // The seat may have been passed to us since we looked, and the wake-up just forgotten meant for it.
        if !*in_seat && sleeper.work().seat().wake_up(me) {
            *in_seat = true;
            continue;
        }
        if let Some(woke) = sleeper.over() {
            return woke;
        }
        let mut promised = false;
        if *in_seat {
            promised = sleeper.promise();
            if !sleeper.work().seat().sleep(me) {
                sleeper.take_back();
                continue;
            }
        } else {
            // This thread may have started a timer in its turn, and whoever has the seat may be past the look that
            // covers it.
            sleeper.work().cover();
        }
        woke = sleeper.park();
        if promised {
            sleeper.take_back();
        }
        *in_seat = sleeper.work().seat().take(me);
        if promised && !*in_seat {
            // Somebody has the seat awake and may count on our looking at the clock and at the descriptors: PENDING sends
            // them back to look themselves before they let go.
            sleeper.work().raise();
        }
    }
}

/// As [`sleep`], for a thread that has no place on the CPU: it never sleeps in the seat, and others deliver meanwhile.
pub(crate) fn sleep_beside<S: Sleeper>(sleeper: &mut S, in_seat: &mut bool) -> S::Woke {
    if std::mem::take(in_seat) {
        let ran = run(sleeper.work());
        leave(sleeper.work(), sleeper.me(), ran);
    }
    loop {
        sleeper.forget();
        if let Some(woke) = sleeper.over() {
            return woke;
        }
        // This thread may have started a timer in its turn.
        sleeper.work().cover();
        if let Some(woke) = sleeper.park() {
            return woke;
        }
    }
}
