//! Waits in a kernel of the test's own, which has a clock of its own. They show what is polled for, how long, and what
//! is returned.

use std::cell::{Cell, RefCell};

use lull_core::POLLED_AFTER_EVENT_NS;
use lull_fd::table::Known;
use lull_fd::wait;
use lull_fd::{Kernel, Round, Table, Waited, time::FOR_EVER_NS};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// How long the kernel polls at the beginning of a wait.
const KERNEL_POLLS_NS: i64 = MS as i64;

/// A kernel in which an event is ready from some time on, if somebody polls then or if it is delivered by itself.
#[derive(Default)]
struct Fake {
    now_ns: Cell<u64>,
    /// When the packet comes.
    packet_ns: Option<u64>,
    /// When a signal comes that ends waits.
    signal_ns: Option<u64>,
    /// Whether the packet was delivered.
    delivered: Cell<bool>,
    polls: Cell<u64>,
    unfit: Cell<bool>,
    no_napi: bool,
    no_poller: bool,
    open: Cell<u32>,
    waits: RefCell<Vec<i64>>,
}

impl Fake {
    fn passes(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    fn has_come(at: Option<u64>, now_ns: u64) -> bool {
        at.is_some_and(|at| at <= now_ns)
    }

    fn signalled(&self) -> bool {
        Fake::has_come(self.signal_ns, self.now_ns.get())
    }
}

impl Kernel for Fake {
    type Poller = ();

    /// Polls for a millisecond in the first wait and sleeps in all others. Nobody delivers while it sleeps.
    fn wait(&self, timeout_ns: i64) -> i32 {
        assert_eq!(self.open.get(), 0, "a thread may be cancelled here: nothing may be open");
        self.waits.borrow_mut().push(timeout_ns);
        if self.delivered.get() {
            return 1;
        }
        if timeout_ns == 0 {
            self.passes(50);
            return 0;
        }
        let is_first = self.waits.borrow().len() == 1;
        let end_ns = if timeout_ns == FOR_EVER_NS { u64::MAX } else { self.now_ns.get() + timeout_ns as u64 };
        if let Some(packet_ns) = self.packet_ns.filter(|&at| is_first && at <= end_ns) {
            self.now_ns.set(self.now_ns.get().max(packet_ns));
            self.delivered.set(true);
            return 1;
        }
        if let Some(signal_ns) = self.signal_ns.filter(|&at| at <= end_ns) {
            self.now_ns.set(self.now_ns.get().max(signal_ns));
            return -1;
        }
        self.now_ns.set(end_ns);
        0
    }

    fn look(&self) -> i32 {
        self.passes(50);
        i32::from(self.delivered.get())
    }

    fn now_ns(&self) -> u64 {
        self.passes(20);
        self.now_ns.get()
    }

    fn napi_id(&self, fd: i32) -> u32 {
        self.passes(50);
        if self.no_napi { 0 } else { 300 + fd as u32 }
    }

    fn open(&self) -> Option<()> {
        self.passes(US);
        self.open.set(self.open.get() + u32::from(!self.no_poller));
        (!self.no_poller).then_some(())
    }

    fn poll(&self, (): &(), _socket: i32, interruptible: bool) -> Round {
        self.passes(US);
        if self.unfit.take() {
            return Round::Unfit;
        }
        if interruptible && self.signalled() {
            return Round::Interrupted;
        }
        self.polls.set(self.polls.get() + 1);
        if Fake::has_come(self.packet_ns, self.now_ns.get()) {
            self.delivered.set(true);
        }
        Round::Polled
    }

    fn close(&self, (): ()) {
        self.open.set(self.open.get() - 1);
    }
}

/// A new context with two sockets. Each use of this macro has a table of its own.
macro_rules! context {
    () => {{
        static TABLE: Table = Table::new();
        TABLE.born(5);
        TABLE.added(5, 8);
        TABLE.added(5, 9);
        TABLE.context(5).unwrap()
    }};
}

fn long(kernel: &Fake, context: Known<'_>, asked_ns: i64) -> Waited {
    let waited = wait::long(kernel, context, asked_ns, KERNEL_POLLS_NS);
    assert_eq!(kernel.open.get(), 0, "what was opened is closed");
    waited
}

#[test]
fn what_comes_while_the_kernel_polls_is_one_call() {
    let kernel = Fake { packet_ns: Some(MS / 2), ..Fake::default() };
    assert_eq!(long(&kernel, context!(), FOR_EVER_NS), Waited::Returned(1));
    assert_eq!((kernel.waits.take(), kernel.polls.get()), (vec![KERNEL_POLLS_NS], 0));
}

#[test]
fn what_comes_later_is_polled_for_at_once() {
    for asked_ns in [FOR_EVER_NS, 80 * MS as i64] {
        let kernel = Fake { packet_ns: Some(50 * MS), ..Fake::default() };
        assert_eq!(long(&kernel, context!(), asked_ns), Waited::Returned(1));
        assert!(kernel.now_ns.get() < 50 * MS + 10 * US, "{}", kernel.now_ns.get());
        assert_eq!(kernel.waits.take(), [KERNEL_POLLS_NS]);
    }
}

#[test]
fn a_wait_lasts_as_long_as_it_was_asked_to() {
    for asked_ms in [1, 2, 70, 500] {
        let kernel = Fake::default();
        assert_eq!(long(&kernel, context!(), asked_ms * MS as i64), Waited::Returned(0));
        let lasted_ns = kernel.now_ns.get();
        let asked_ns = asked_ms as u64 * MS;
        assert!((asked_ns..asked_ns + 20 * US).contains(&lasted_ns), "{asked_ms} ms lasted {lasted_ns} ns");
    }
}

#[test]
fn a_context_without_events_sleeps_at_last_over_all_its_waits() {
    let kernel = Fake::default();
    let context = context!();
    let asked_ns = 30 * MS as i64;
    for _ in 0..5 {
        assert_eq!(wait::long(&kernel, context, asked_ns, KERNEL_POLLS_NS), Waited::Returned(0));
    }
    let polls = kernel.polls.get();
    assert!(kernel.now_ns.get() >= POLLED_AFTER_EVENT_NS && polls > 1_000);
    // From here on the whole wait is a single call, which sleeps.
    kernel.waits.borrow_mut().clear();
    assert_eq!(wait::long(&kernel, context, asked_ns, KERNEL_POLLS_NS), Waited::Returned(0));
    assert_eq!((kernel.waits.take().len(), kernel.polls.get()), (1, polls));
    // After an event it polls again as at first.
    kernel.delivered.set(true);
    assert_eq!(wait::long(&kernel, context, asked_ns, KERNEL_POLLS_NS), Waited::Returned(1));
    kernel.delivered.set(false);
    assert_eq!(wait::long(&kernel, context, asked_ns, KERNEL_POLLS_NS), Waited::Returned(0));
    assert!(kernel.polls.get() > polls);
}

#[test]
fn a_signal_ends_a_wait_wherever_it_comes() {
    for signal_ns in [MS / 2, MS + 1, 2 * MS, 50 * MS, 300 * MS] {
        let kernel = Fake { signal_ns: Some(signal_ns), ..Fake::default() };
        let waited = long(&kernel, context!(), FOR_EVER_NS);
        assert!(matches!(waited, Waited::Interrupted | Waited::Returned(-1)), "{waited:?}");
        assert!(kernel.now_ns.get() < signal_ns + 10 * US, "{signal_ns}: {}", kernel.now_ns.get());
    }
}

#[test]
fn an_event_that_came_with_the_signal_is_not_kept_from_the_program() {
    let kernel = Fake { packet_ns: Some(5 * MS), signal_ns: Some(5 * MS), ..Fake::default() };
    kernel.passes(4 * MS);
    let context = context!();
    context.found_nothing(1);
    kernel.delivered.set(false);
    let waited = wait::long(&kernel, context, FOR_EVER_NS, KERNEL_POLLS_NS);
    assert_eq!(waited, Waited::Interrupted, "the packet is in the ring, and the signal came first");
    kernel.delivered.set(true);
    assert_eq!(wait::long(&kernel, context, FOR_EVER_NS, KERNEL_POLLS_NS), Waited::Returned(1));
}

#[test]
fn without_anything_to_poll_or_to_poll_through_the_kernel_sleeps() {
    for (no_napi, no_poller) in [(true, false), (false, true)] {
        let kernel = Fake { no_napi, no_poller, ..Fake::default() };
        assert_eq!(long(&kernel, context!(), 50 * MS as i64), Waited::Returned(0));
        assert_eq!((kernel.waits.borrow().len(), kernel.polls.get()), (2, 0));
    }
}

#[test]
fn a_socket_that_is_gone_is_passed_over() {
    let kernel = Fake { packet_ns: Some(5 * MS), ..Fake::default() };
    kernel.unfit.set(true);
    assert_eq!(long(&kernel, context!(), FOR_EVER_NS), Waited::Returned(1));
    assert!(kernel.now_ns.get() < 5 * MS + 10 * US);
}

/// Makes calls with timeout 0 until the given time, with other work between them. Returns how many calls there were,
/// and when the packet was found.
fn zeros(kernel: &Fake, context: Known<'_>, work_ns: u64, until_ns: u64) -> (u64, Option<u64>) {
    for call in 1.. {
        let (found, _) = wait::zero(kernel, Some(context));
        assert_eq!(kernel.open.get(), 0);
        if found != 0 {
            return (call, Some(kernel.now_ns.get()));
        }
        kernel.passes(work_ns);
        if kernel.now_ns.get() >= until_ns {
            return (call, None);
        }
    }
    unreachable!("time goes on")
}

#[test]
fn a_loop_of_zero_timeouts_is_polled_for_and_keeps_its_time() {
    for work_ns in [10, 300, 5 * US, 200 * US] {
        let kernel = Fake::default();
        let (calls, _) = zeros(&kernel, context!(), work_ns, 100 * MS);
        let own_ns = calls * (work_ns + 50);
        // A sixteenth goes to polls that find nothing, and some of the calls read the clock.
        assert!(own_ns >= kernel.now_ns.get() * 8 / 10, "{work_ns}: {own_ns} of {}", kernel.now_ns.get());
        assert!(kernel.polls.get() > 100, "{work_ns}: {}", kernel.polls.get());

        let kernel = Fake { packet_ns: Some(50 * MS), ..Fake::default() };
        let (_, found_ns) = zeros(&kernel, context!(), work_ns, 100 * MS);
        let delay_ns = found_ns.unwrap() - 50 * MS;
        assert!(delay_ns < 60 * US + 8 * (work_ns + 50), "{work_ns}: {delay_ns}");
    }
}

#[test]
fn a_loop_of_zero_timeouts_without_a_napi_is_left_alone() {
    let kernel = Fake { no_napi: true, ..Fake::default() };
    let (calls, _) = zeros(&kernel, context!(), 100, 100 * MS);
    assert_eq!(kernel.polls.get(), 0);
    assert!(calls * 150 >= kernel.now_ns.get() * 95 / 100);
    assert_eq!(wait::zero(&kernel, None), (0, false));
}

#[test]
fn a_zero_timeout_between_waits_is_never_polled_for() {
    let kernel = Fake::default();
    let context = context!();
    for _ in 0..50 {
        assert_eq!(wait::zero(&kernel, Some(context)), (0, false));
        assert_eq!(wait::long(&kernel, context, 1_000, KERNEL_POLLS_NS), Waited::Returned(0));
    }
    let polls_of_waits = kernel.polls.get();
    for _ in 0..7 {
        wait::zero(&kernel, Some(context));
    }
    assert_eq!(kernel.polls.get(), polls_of_waits);
}
