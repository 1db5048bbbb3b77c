//! The busy loop of a thread (`napi_busy_loop`, §7), with or without a worker's place on the CPU.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use lull_core::{BusyLoop, BusyPlan, BusyRound, BusyStopped};

use crate::cpu::{Cpu, Vain};
use crate::delivery::{Delivery, Instance, Receiver};
use crate::holder;
use crate::seat::{GUEST, Holder};

/// A thread in the busy loop, with or without a place of its own on the CPU.
#[derive(Clone, Copy)]
pub(crate) struct BusyPoller<'h> {
    pub(crate) host: &'h Delivery,
    pub(crate) cpu: &'h Cpu,
    pub(crate) me: Holder,
}

impl BusyPoller<'_> {
    /// `napi_busy_loop` (§7): polls the instance of `plan` until `ready` says so or the plan ends. An id that is gone ends it
    /// at once. Returns the most packets that one poll took; the error is a panic of `ready`, after which nothing is owned and the
    /// seat is the caller's to leave.
    pub(crate) fn run(
        &self,
        plan: &BusyPlan,
        lookup: &dyn Fn(u32) -> Option<Arc<Instance>>,
        in_seat: &mut bool,
        ready: &mut dyn FnMut(u64) -> bool,
    ) -> std::thread::Result<u32> {
        let BusyPoller { host, cpu, me } = *self;
        let mut most = 0;
        let start_ns = host.clock.now_ns();
        // A worker that comes from a sleep in the seat may have taken over the watch of the CPU's descriptors for that
        // sleep.
        let mut unwatched = *in_seat;
        // One round is over before a seat would pay for itself.
        *in_seat = *in_seat || (plan.end.spins() && cpu.seat.take(me));
        while let Some(instance) = lookup(plan.napi_id) {
            let yielded = self.rounds(&instance, plan, start_ns, in_seat, &mut unwatched, &mut most, ready)?;
            if !yielded {
                break;
            }
            unwatched = false;
            // Somebody waits for the core (`need_resched`): let them have it, then look the instance up again.
            if std::mem::take(in_seat) {
                let ran = host.run(cpu);
                host.leave(cpu, me, ran);
            }
            cpu.let_others_run();
            let now_ns = host.clock.now_ns();
            if ready(now_ns) || plan.end.reached(start_ns, now_ns) {
                break;
            }
        }
        Ok(most)
    }

    /// One acquisition of the loop; true if it ended only to yield the core.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the state of one loop, over its acquisitions")]
    fn rounds(
        &self,
        instance: &Instance,
        plan: &BusyPlan,
        start_ns: u64,
        in_seat: &mut bool,
        unwatched: &mut bool,
        most: &mut u32,
        ready: &mut dyn FnMut(u64) -> bool,
    ) -> std::thread::Result<bool> {
        let BusyPoller { host, cpu, .. } = *self;
        let mut now_ns = start_ns;
        // The time of a round includes the softirqs that ran before it; if some did, the round was not in vain.
        let (mut vain, mut ran_softirqs) = (Vain::default(), false);
        let mut busy = BusyLoop::begin(&instance.napi, plan, &host.cx(cpu.index, now_ns));
        // A panic in `ready` must not destroy the ownership.
        let yielded = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let cx = host.cx(cpu.index, now_ns);
                let found = match busy.round(&instance.napi, &cx) {
                    BusyRound::Poll { budget } => {
                        // A shard whose lock is held is being served by whoever holds it: an empty round.
                        let poll = |receiver: &dyn Receiver| receiver.poll_if_free(host, budget).unwrap_or(0);
                        let work = host.contained_poll(instance, "busy polling", budget, poll);
                        *most = work.max(*most);
                        busy.polled(&instance.napi, work, &cx);
                        work > 0
                    }
                    BusyRound::Last => {
                        instance.vector.mask();
                        true
                    }
                    BusyRound::Lost => false,
                };
                now_ns = host.clock.now_ns();
                if !found && !ran_softirqs {
                    vain.round(cpu, now_ns.saturating_sub(cx.now_ns));
                }
                ran_softirqs = self.pending_softirqs(in_seat, now_ns);
                let may_end = !busy.catches_up() && (ready(now_ns) || plan.end.reached(start_ns, now_ns));
                if may_end || instance.is_over() {
                    break false;
                }
                if cpu.need_resched() {
                    break true;
                }
                if std::mem::take(unwatched) && *in_seat {
                    // The loop may go on for long. It need not watch what it polls itself.
                    host.arm_fd_vectors_but(cpu, Some(instance.napi.index()));
                }
                crate::sync::spin_loop();
            }
        }));
        vain.tell(cpu);
        let cx = host.cx(cpu.index, now_ns);
        let Some(stop) = busy.stop(&instance.napi, &cx) else { return yielded };
        let last = |receiver: &dyn Receiver| receiver.poll(host, stop.budget());
        let work = host.contained_poll(instance, "the last poll of a busy loop", stop.budget(), last);
        *most = work.max(*most);
        let cx = host.cx(cpu.index, host.clock.now_ns());
        let owner = match stop.polled(&instance.napi, work, false, &cx, |_| ()) {
            BusyStopped::Completed(completion) => host.carry_out(instance, completion, *in_seat, &cx),
            BusyStopped::ToSoftirq(owner) => Some(owner),
        };
        if let Some(owner) = owner {
            // The seat is taken first; otherwise the interrupt thread would be woken for what this thread runs itself.
            if !*in_seat {
                *in_seat = cpu.seat.take(self.me);
            }
            host.route_outside(cpu, instance, owner, &cx);
            self.pending_softirqs(in_seat, cx.now_ns);
        }
        yielded
    }

    /// `local_bh_enable`: each busy iteration ends by running this CPU's pending softirqs. Returns whether there were
    /// some.
    #[inline]
    fn pending_softirqs(&self, in_seat: &mut bool, now_ns: u64) -> bool {
        let BusyPoller { host, cpu, me } = *self;
        if !cpu.is_due(now_ns) {
            return false;
        }
        holder::pass_by(&host.on(cpu), me, in_seat);
        true
    }
}

/// What threads without a worker do: blocking and busy-polling socket calls, and freeing a context.
impl Delivery {
    /// Does for a socket call what [`Turn::busy_loop`](crate::Turn::busy_loop) does for a worker: the poller passes by on the
    /// CPU of the instance's interrupt.
    pub fn busy_loop(&self, plan: &BusyPlan, ready: &mut dyn FnMut(u64) -> bool) {
        let lookup = |id| {
            let index = self.registry.by_id(id)?;
            self.instance(index).map(|found| found.clone())
        };
        let Some(instance) = lookup(plan.napi_id) else { return };
        let cpu = self.cpu(instance.cpu());
        let mut in_seat = false;
        let polled = BusyPoller { host: self, cpu, me: GUEST }.run(plan, &lookup, &mut in_seat, ready);
        if in_seat {
            let ran = self.run(cpu);
            self.leave(cpu, GUEST, ran);
        } else {
            self.cover(cpu);
        }
        let _ = polled.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// `napi_resume_irqs` from outside any CPU: the poll runs on the CPU of the instance's interrupt.
    pub fn resume(&self, id: u32) {
        let Some(index) = self.registry.by_id(id) else { return };
        let Some(instance) = self.instance(index) else { return };
        let cx = self.cx(instance.cpu(), self.clock.now_ns());
        if let Some(owner) = instance.napi.resume_to(self.after_resume, &cx) {
            self.route_outside(self.cpu(instance.cpu()), &instance, owner, &cx);
        }
    }
}
