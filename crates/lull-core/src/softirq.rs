//! The receive softirq: `net_rx_action` with its budgets, and the restarts of `handle_softirqs` (§5), as steps.
//!
//! # Example: a CPU takes an interrupt and runs its softirq
//!
//! ```
//! use lull_core::{Completion, Cx, NAPI_ID_MIN, Napi, Route, RxStep, Schedule, SoftirqNext, SoftirqRun, Softnet, Sysctl};
//!
//! let (napi, cx) = (Napi::new(0), Cx::new(0, 16_000));
//! napi.enable(NAPI_ID_MIN, None);
//! let (mut softnet, sysctl) = (Softnet::new(), Sysctl::default());
//! let (mut ring, mut unmasked) = (100_u32, false); // a hundred packets wait in the device
//!
//! // The interrupt handler masks the interrupt, and puts the instance on the list of this CPU.
//! if let Schedule::Owned(owner) = napi.schedule(&cx)
//!     && let Route::Softirq(owner) = napi.route(owner, &cx)
//! {
//!     softnet.push(owner);
//! }
//!
//! let mut run = SoftirqRun::begin(cx.now_ns);
//! let next = loop {
//!     // One pass of `net_rx_action`.
//!     let mut pass = softnet.begin(&sysctl, cx.now_ns);
//!     let end = loop {
//!         match pass.next(&mut softnet) {
//!             RxStep::End(end) => break end,
//!             RxStep::Poll(owner) => {
//!                 napi.poll_begin(&owner, napi.weight(), &cx);
//!                 let work = ring.min(napi.weight()); // the device's poll
//!                 ring -= work;
//!                 let polled = napi.softirq_polled(owner, work, false, &cx, |_flush| ());
//!                 match pass.polled(polled, work, cx.now_ns) {
//!                     None => {} // a full weight: it is polled again in the next pass
//!                     Some(Completion::Released(release)) => unmasked = release.settle(&napi, &cx).unmask,
//!                     Some(Completion::Again(owner)) => softnet.push(owner), // an interrupt came during the poll
//!                     Some(Completion::Kept(_)) => unreachable!("no busy poller is here"),
//!                 }
//!             }
//!         }
//!     };
//!     match run.after_pass(end.raised, false, cx.now_ns) {
//!         SoftirqNext::Again => {}
//!         next => break next,
//!     }
//! };
//! // 64 packets in the first pass, 36 in the second, which completed and unmasked the interrupt.
//! assert_eq!((next, ring, unmasked, napi.stats().polls), (SoftirqNext::Done, 0, true, 2));
//! ```

use std::collections::VecDeque;

use crate::owner::{Completion, Owner, Polled};
use crate::settings::{SOFTIRQ_RESTARTS_MAX, SOFTIRQ_TIME_MAX_NS, Sysctl};

/// What one CPU knows about its receive softirq (`softnet_data`). One context at a time touches it.
#[derive(Debug, Default)]
pub struct Softnet {
    list: VecDeque<Owner>,
    raised: bool,
    in_net_rx_action: bool,
    time_squeeze: u64,
}

impl Softnet {
    /// An empty list.
    pub fn new() -> Softnet {
        Softnet::default()
    }

    /// Appends a scheduled instance and raises the softirq, unless `net_rx_action` runs on this CPU: it looks again.
    #[inline]
    pub fn push(&mut self, owner: Owner) {
        self.list.push_back(owner);
        if !self.in_net_rx_action {
            self.raised = true;
        }
    }

    /// Whether the softirq is raised.
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.raised
    }

    /// Runs of `net_rx_action` that ended for want of budget or time.
    pub fn time_squeeze(&self) -> u64 {
        self.time_squeeze
    }

    /// Begins a run of `net_rx_action`.
    pub fn begin(&mut self, sysctl: &Sysctl, now_ns: u64) -> NetRx {
        self.raised = false;
        self.in_net_rx_action = true;
        NetRx {
            budget: i64::from(sysctl.netdev_budget),
            deadline_ns: now_ns.saturating_add(u64::from(sysctl.netdev_budget_usecs) * 1_000),
            list: std::mem::take(&mut self.list),
            repoll: VecDeque::new(),
            exhausted: false,
        }
    }
}

impl Drop for Softnet {
    fn drop(&mut self) {
        self.list.drain(..).for_each(Owner::abandon);
    }
}

/// What `net_rx_action` does next.
#[must_use]
#[derive(Debug)]
pub enum RxStep {
    /// Poll this instance with its weight, tell [`crate::Napi::softirq_polled`], then [`NetRx::polled`].
    Poll(Owner),
    /// The run is over.
    End(RxEnd),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxEnd {
    /// Whether it ran out of budget or time (`time_squeeze`).
    pub squeezed: bool,
    /// Whether instances are left and the softirq was raised again.
    pub raised: bool,
}

/// One run of `net_rx_action`.
#[derive(Debug)]
pub struct NetRx {
    budget: i64,
    deadline_ns: u64,
    list: VecDeque<Owner>,
    repoll: VecDeque<Owner>,
    exhausted: bool,
}

impl NetRx {
    /// The next step. The budget is checked after a poll, so a run polls at least once.
    #[inline]
    pub fn next(&mut self, softnet: &mut Softnet) -> RxStep {
        if !self.exhausted {
            if let Some(owner) = self.list.pop_front() {
                return RxStep::Poll(owner);
            }
            // The CPU list was refilled meanwhile: the same budget and deadline go on, once there are no repolls.
            if self.repoll.is_empty() && !softnet.list.is_empty() {
                std::mem::swap(&mut self.list, &mut softnet.list);
                if let Some(owner) = self.list.pop_front() {
                    return RxStep::Poll(owner);
                }
            }
        }
        RxStep::End(self.end(softnet))
    }

    /// Accounts for a poll of `work` packets that began with an owner from [`NetRx::next`]; keeps the instance if it
    /// wants to be polled again, else returns its completion.
    #[inline]
    pub fn polled(&mut self, polled: Polled, work: u32, now_ns: u64) -> Option<Completion> {
        self.budget -= i64::from(work);
        if self.budget <= 0 || now_ns >= self.deadline_ns {
            self.exhausted = true;
        }
        match polled {
            Polled::Repoll(owner) => {
                self.repoll.push_back(owner);
                None
            }
            Polled::Completed(completion) => Some(completion),
        }
    }

    /// Puts back, in Linux's order, the unfinished, the newly arrived and the repolls.
    fn end(&mut self, softnet: &mut Softnet) -> RxEnd {
        let squeezed = self.exhausted;
        if squeezed {
            softnet.time_squeeze += 1;
        }
        if !self.list.is_empty() || !self.repoll.is_empty() {
            let mut put_back = std::mem::take(&mut self.list);
            put_back.append(&mut softnet.list);
            put_back.append(&mut self.repoll);
            softnet.list = put_back;
        } else if self.list.capacity() > softnet.list.capacity() && softnet.list.is_empty() {
            // Keep the allocation: lists must not allocate on every interrupt.
            std::mem::swap(&mut self.list, &mut softnet.list);
        }
        softnet.in_net_rx_action = false;
        softnet.raised = !softnet.list.is_empty();
        RxEnd { squeezed, raised: softnet.raised }
    }
}

impl Drop for NetRx {
    fn drop(&mut self) {
        self.list.drain(..).chain(self.repoll.drain(..)).for_each(Owner::abandon);
    }
}

/// What `handle_softirqs` does after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftirqNext {
    /// Nothing is raised: done.
    Done,
    /// Run another pass.
    Again,
    /// Leave the rest to ksoftirqd: wake it.
    Ksoftirqd,
}

/// One run of `handle_softirqs`: the first pass and up to nine restarts, within 2 ms, unless somebody else is waiting for
/// the CPU.
#[derive(Clone, Copy, Debug)]
pub struct SoftirqRun {
    deadline_ns: u64,
    restarts: u32,
}

impl SoftirqRun {
    /// Begins a run.
    pub fn begin(now_ns: u64) -> SoftirqRun {
        SoftirqRun { deadline_ns: now_ns.saturating_add(SOFTIRQ_TIME_MAX_NS), restarts: SOFTIRQ_RESTARTS_MAX }
    }

    /// After a pass: `raised` is whether the softirq was raised again, `need_resched` whether a thread waits.
    pub fn after_pass(&mut self, raised: bool, need_resched: bool, now_ns: u64) -> SoftirqNext {
        if !raised {
            return SoftirqNext::Done;
        }
        self.restarts -= 1;
        if now_ns < self.deadline_ns && !need_resched && self.restarts > 0 {
            SoftirqNext::Again
        } else {
            SoftirqNext::Ksoftirqd
        }
    }
}
