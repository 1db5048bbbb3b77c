//! The thread of one CPU of a group: it does what the step machine says.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_core::group::{GroupConfig, Ring, Transmitted, Visit, Walk};
use lull_core::tx::TxLeft;
use lull_core::{GroupPoller, GroupStep};

use crate::contain::within;
use crate::cpu::Cpu;
use crate::delivery::{Delivery, Instance};
use crate::group::parts::HostGroup;
use crate::holder;
use crate::monitor::Monitor;
use crate::parker::Parker;
use crate::seat::GROUP_POLLER;
use crate::sync::{spin_loop, thread::JoinHandle};
use crate::threads;

/// Starts the thread of `poller`, pinned to the core of `cpu`.
pub(crate) fn start(
    host: &Arc<Delivery>,
    group: Arc<HostGroup>,
    poller: GroupPoller,
    cpu: u16,
    parker: Arc<Parker>,
) -> io::Result<(JoinHandle<()>, i32)> {
    let name = format!("group/{}/{cpu}", group.group.index());
    threads::spawn(host, cpu, name, false, move |host| {
        let members = Members { generation: None, by_slot: Vec::new() };
        let cpu = host.cpu(cpu);
        let monitor = Monitor::of_this_machine(&host.clock).filter(|_| may_watch(group.group.config()));
        Loop { host, group: &group, cpu, parker: &parker, monitor, members, in_seat: false }.run(poller);
    })
}

/// Whether a poller may watch its word before it sleeps. One with a budget sleeps in the kernel at once: a watch
/// occupies the core, which the budget leaves to others.
fn may_watch(config: &GroupConfig) -> bool {
    config.budget.empty_percent.is_none() && config.budget.total_percent.is_none()
}

/// The members as this thread last found them, so that to look at one of them is to look at its device.
struct Members {
    generation: Option<u32>,
    by_slot: Vec<Option<Arc<Instance>>>,
}

impl Members {
    fn refresh(&mut self, host: &Delivery, group: &HostGroup) {
        // The generation is read before the table, so that a member that comes meanwhile is found at the next look.
        let generation = group.group.generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        self.by_slot.clear();
        for member in group.group.members() {
            let slot = usize::from(member.slot);
            self.by_slot.resize_with(self.by_slot.len().max(slot + 1), || None);
            self.by_slot[slot] = host.instance(member.napi).map(|found| found.clone());
        }
    }

    #[inline]
    fn hint(&self, slot: u16) -> Option<bool> {
        self.by_slot.get(usize::from(slot))?.as_ref()?.vector.line.pending()
    }

    fn instance(&self, host: &Delivery, member: u16, napi: u32) -> Arc<Instance> {
        let known = self.by_slot.get(usize::from(member)).and_then(Option::as_ref);
        if let Some(instance) = known.filter(|instance| instance.napi.index() == napi) {
            return instance.clone();
        }
        match host.instance(napi) {
            Some(instance) => instance.clone(),
            None => unreachable!("NAPI {napi} was removed, and a disable waits for its group"),
        }
    }
}

struct Loop<'a> {
    host: &'a Delivery,
    group: &'a HostGroup,
    cpu: &'a Cpu,
    parker: &'a Parker,
    /// How it waits for a wake-up before it sleeps in the kernel, if the CPU has instructions for that.
    monitor: Option<Monitor>,
    members: Members,
    in_seat: bool,
}

impl Loop<'_> {
    fn run(&mut self, mut poller: GroupPoller) {
        let Loop { host, group, cpu, .. } = *self;
        while !host.stopping.load(Ordering::Acquire) {
            self.members.refresh(host, group);
            let now_ns = host.clock.now_ns();
            let cx = host.cx(cpu.index, now_ns);
            let hint = |slot, _| self.members.hint(slot);
            match poller.next(&group.group, hint, cpu.is_due(now_ns), cpu.need_resched(), &cx) {
                GroupStep::Poll(visit) => self.visit(&mut poller, &visit),
                GroupStep::Transmit(visit) => self.transmit(&mut poller, &visit),
                GroupStep::Doorbell(ring) => self.doorbell(&mut poller, &ring),
                GroupStep::DryRun(walk) => self.walk(&mut poller, &walk),
                GroupStep::Spin => spin_loop(),
                GroupStep::Softirqs => holder::pass_by(&host.on(cpu), GROUP_POLLER, &mut self.in_seat),
                GroupStep::Yield => cpu.let_others_run(),
                GroupStep::Wake(wake) => host.wake_poller(group, &wake),
                GroupStep::Park => self.sleep(None, true),
                GroupStep::Rest { until_ns } => {
                    let mut by_thread = true;
                    group.group.unmask_for_rest(|member| {
                        if let Some(instance) = host.instance(member.napi) {
                            by_thread &= !instance.vector.is_fd();
                            host.unmask(&instance, false);
                        }
                    });
                    // The CPU's interrupt thread tells of a descriptor, and needs this very core for that, so nothing
                    // is watched here.
                    self.sleep(until_ns.map(|until_ns| until_ns.saturating_sub(now_ns).max(1)), by_thread);
                }
                GroupStep::Sleep { until_ns } => self.sleep(Some(until_ns.saturating_sub(now_ns).max(1)), false),
                GroupStep::Detached => break,
            }
        }
        self.leave_seat();
    }

    fn visit(&mut self, poller: &mut GroupPoller, visit: &Visit) {
        let Loop { host, group, cpu, .. } = *self;
        let instance = self.members.instance(host, visit.member, visit.napi);
        if visit.mask {
            instance.vector.mask();
        }
        let polled = host.contain(&instance, "a group's poller", |receiver| {
            receiver.poll_if_free(host, visit.budget).map(|work| within(work, visit.budget))
        });
        let cx = host.cx(cpu.index, host.clock.now_ns());
        let leaves = match polled {
            Some(None) => poller.locked(&group.group, &instance.napi, &cx),
            // A queue that is down is found empty, and leaves.
            _ => poller.polled(&group.group, &instance.napi, polled.flatten().unwrap_or(0), &cx, |_| ()),
        };
        if let Some(stop) = leaves {
            host.leave_group(&instance, stop);
        }
    }

    fn transmit(&mut self, poller: &mut GroupPoller, visit: &Visit) {
        let Loop { host, group, cpu, .. } = *self;
        let instance = self.members.instance(host, visit.member, visit.napi);
        if visit.mask {
            instance.vector.mask();
        }
        let visited = host.contain(&instance, "a group's poller", |receiver| {
            receiver.transmitter().map(|transmitter| transmitter.visit(host, visit.budget))
        });
        // A queue that is down is found empty, and leaves.
        let nothing = Transmitted { frames: 0, bytes: 0, left: TxLeft::Nothing };
        let cx = host.cx(cpu.index, host.clock.now_ns());
        let sent = visited.flatten().unwrap_or(nothing);
        if let Some(stop) = poller.transmitted(&group.group, &instance.napi, &sent, &cx) {
            host.leave_group(&instance, stop);
        }
    }

    fn doorbell(&mut self, poller: &mut GroupPoller, ring: &Ring) {
        let Loop { host, group, cpu, .. } = *self;
        let instance = self.members.instance(host, ring.member, ring.napi);
        host.contain(&instance, "a group's poller", |receiver| {
            if let Some(transmitter) = receiver.transmitter() {
                transmitter.ring(host);
            }
        });
        let cx = host.cx(cpu.index, host.clock.now_ns());
        if let Some(stop) = poller.rung(&group.group, &instance.napi, &cx) {
            host.leave_group(&instance, stop);
        }
    }

    fn walk(&mut self, poller: &mut GroupPoller, walk: &Walk) {
        let Loop { host, group, cpu, .. } = *self;
        let instance = self.members.instance(host, walk.member, walk.napi);
        host.contain(&instance, "a group's poller", |receiver| receiver.dry_run(host));
        let cx = host.cx(cpu.index, host.clock.now_ns());
        if let Some(stop) = poller.dry_ran(&group.group, &instance.napi, &cx) {
            host.leave_group(&instance, stop);
        }
    }

    /// Sleeps until woken, or for at most `for_ns`. A wake-up that came before is kept. `watches` says that the wake-up
    /// may come soon, and that nobody for whom the poller waits needs the core.
    fn sleep(&mut self, for_ns: Option<u64>, watches: bool) {
        self.leave_seat();
        match self.monitor.filter(|_| watches && !self.cpu.need_resched()) {
            Some(monitor) => self.parker.park_watching(for_ns, &monitor, &self.cpu.sleeps),
            None => {
                self.parker.park(for_ns, &[], &self.cpu.sleeps);
            }
        }
        // The poller takes the seat again, and with it what waits for this CPU, whose interrupts need no second thread
        // now.
        if !self.host.stopping.load(Ordering::Acquire) {
            holder::pass_by(&self.host.on(self.cpu), GROUP_POLLER, &mut self.in_seat);
        }
    }

    fn leave_seat(&mut self) {
        if std::mem::take(&mut self.in_seat) {
            let ran = self.host.run(self.cpu);
            self.host.leave(self.cpu, GROUP_POLLER, ran);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use lull_core::group::Budget;

    use super::*;

    #[test]
    fn a_group_with_a_budget_leaves_its_core_to_others_at_once() {
        let with = |empty_percent, total_percent| {
            may_watch(&GroupConfig { budget: Budget { empty_percent, total_percent }, ..GroupConfig::default() })
        };
        assert!(with(None, None));
        assert!(!with(Some(5), None) && !with(None, Some(50)) && !with(Some(5), Some(50)));
    }
}
