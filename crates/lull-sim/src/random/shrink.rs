//! Shrinking: finds the smallest world that still breaks the same invariant, greedily, by leaving things out.

use crate::FaultSpec;
use crate::random::action::Action;
use crate::random::check::Violation;
use crate::random::plan::Plan;
use crate::world::{ModerationSpec, Traffic};

/// How many worlds are tried at the most.
const TRIES_MAX: u32 = 600;

/// A shrunk world.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The plan that is left.
    pub plan: Plan,
    /// Its violation.
    pub violation: Violation,
    /// How many worlds were tried.
    pub tries: u32,
}

/// Makes a change to a plan; false if there is nothing to change.
type Change = Box<dyn Fn(&mut Plan) -> bool>;

impl Plan {
    /// Shrinks a world that fails; `None` if it does not.
    pub fn shrink(&self) -> Option<Shrunk> {
        let outcome = self.run();
        let violation = outcome.violation?;
        let mut best = Shrunk { plan: self.clone(), violation, tries: 1 };
        // A smaller world may fail later than the first one did, but not arbitrarily late.
        best.plan.transitions_goal = (2 * outcome.transitions).min(self.transitions_goal);
        loop {
            let before = best.tries;
            let mut smaller = false;
            for change in changes(&best.plan) {
                if best.tries >= TRIES_MAX {
                    return Some(best);
                }
                smaller |= best.attempt(&*change);
            }
            if !smaller || best.tries == before {
                return Some(best);
            }
        }
    }
}

impl Shrunk {
    /// Keeps the change if the world still breaks the same rule.
    fn attempt(&mut self, change: &dyn Fn(&mut Plan) -> bool) -> bool {
        let mut plan = self.plan.clone();
        if !change(&mut plan) {
            return false;
        }
        self.tries += 1;
        let outcome = plan.run();
        match outcome.violation {
            Some(violation) if violation.rule == self.violation.rule => {
                plan.transitions_goal = (2 * outcome.transitions).min(plan.transitions_goal);
                self.plan = plan;
                self.violation = violation;
                true
            }
            _ => false,
        }
    }
}

/// Returns what may be left out, the largest parts first.
fn changes(plan: &Plan) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    let steps = plan.script.len();
    let mut chunk = steps;
    while chunk > 0 {
        for first in (0..steps).step_by(chunk) {
            all.push(Box::new(move |plan| {
                let end = (first + chunk).min(plan.script.len());
                first < end && plan.script.drain(first..end).count() > 0
            }));
        }
        chunk /= 2;
    }
    for index in (0..plan.readers.len()).rev() {
        all.push(Box::new(move |plan| drop_reader(plan, index)));
    }
    for index in (0..plan.world.connections.len()).rev() {
        all.push(Box::new(move |plan| {
            // The packets of a burst formally need a connection, though nobody may send on it.
            let groups = &mut plan.world.connections;
            groups.len() > 1 && index < groups.len() && {
                groups.remove(index);
                true
            }
        }));
    }
    for index in (0..plan.world.workers.len()).rev() {
        all.push(Box::new(move |plan| drop_worker(plan, index)));
    }
    for index in (0..plan.world.contexts.len()).rev() {
        all.push(Box::new(move |plan| drop_context(plan, index)));
    }
    for index in (0..plan.world.queues.len()).rev() {
        all.push(Box::new(move |plan| drop_queue(plan, index)));
    }
    for index in (0..plan.world.groups.len()).rev() {
        all.push(Box::new(move |plan| drop_group(plan, index)));
        for cpu in (0..plan.world.groups[index].cpus.len()).rev() {
            all.push(Box::new(move |plan| drop_group_cpu(plan, index, cpu)));
        }
        for member in (0..plan.world.groups[index].members.len()).rev() {
            all.push(Box::new(move |plan| drop_member(plan, index, member)));
        }
    }
    all.extend(fault_changes());
    for index in 0..plan.world.queues.len() {
        all.push(Box::new(move |plan| plain_queue(plan, index)));
    }
    for index in 0..plan.world.connections.len() {
        all.push(Box::new(move |plan| fewer_packets(plan, index)));
    }
    for index in 0..steps {
        all.push(Box::new(move |plan| shorter_step(plan, index)));
    }
    all
}

fn drop_reader(plan: &mut Plan, index: usize) -> bool {
    if index >= plan.readers.len() || plan.world.connections.len() < 2 {
        return false;
    }
    let reader = plan.readers.remove(index);
    let context = reader.context;
    // Its connections go with it, because nobody else receives them.
    plan.world.connections.retain(|group| group.context != context);
    !plan.world.connections.is_empty()
}

fn drop_worker(plan: &mut Plan, index: usize) -> bool {
    if index >= plan.world.workers.len() {
        return false;
    }
    let context = plan.world.workers.remove(index).context;
    let others = plan.world.workers.iter().any(|worker| worker.context == context);
    others || !plan.world.connections.iter().any(|group| group.context == context)
}

/// Returns the contexts that a plan names, one by one.
fn contexts(plan: &mut Plan) -> Vec<&mut u32> {
    let mut all: Vec<&mut u32> = Vec::new();
    all.extend(plan.world.connections.iter_mut().map(|group| &mut group.context));
    all.extend(plan.world.workers.iter_mut().map(|worker| &mut worker.context));
    all.extend(plan.readers.iter_mut().map(|reader| &mut reader.context));
    all.extend(plan.script.iter_mut().filter_map(|step| match &mut step.action {
        Action::Params { context, .. } | Action::Reopen { context } | Action::Other { context, .. } => Some(context),
        _ => None,
    }));
    all
}

/// Returns the queues that a plan names, one by one.
fn queues(plan: &mut Plan) -> Vec<&mut u32> {
    let mut all: Vec<&mut u32> = Vec::new();
    all.extend(plan.world.connections.iter_mut().map(|group| &mut group.queue));
    all.extend(plan.readers.iter_mut().map(|reader| &mut reader.queue));
    all.extend(plan.world.groups.iter_mut().flat_map(|group| &mut group.members).map(|member| &mut member.queue));
    all.extend(plan.script.iter_mut().filter_map(|step| match &mut step.action {
        Action::Set { queue, .. }
        | Action::Thread { queue, .. }
        | Action::Disable { queue, .. }
        | Action::Burst { queue, .. }
        | Action::Send { queue, .. }
        | Action::Kick { queue }
        | Action::Add { queue, .. }
        | Action::Remove { queue }
        | Action::Spurious { queue } => Some(queue),
        _ => None,
    }));
    all
}

/// Closes the gap that `index` leaves: the numbers above it move down. Returns false if something still names it.
fn close_gap(mut named: Vec<&mut u32>, index: usize) -> bool {
    if named.iter().any(|number| **number as usize == index) {
        return false;
    }
    named.iter_mut().filter(|number| ***number as usize > index).for_each(|number| **number -= 1);
    true
}

fn drop_context(plan: &mut Plan, index: usize) -> bool {
    if plan.world.contexts.len() < 2 || index >= plan.world.contexts.len() || !close_gap(contexts(plan), index) {
        return false;
    }
    plan.world.contexts.remove(index);
    true
}

fn drop_queue(plan: &mut Plan, index: usize) -> bool {
    if plan.world.queues.len() < 2 || index >= plan.world.queues.len() || !close_gap(queues(plan), index) {
        return false;
    }
    plan.world.queues.remove(index);
    true
}

fn drop_group(plan: &mut Plan, index: usize) -> bool {
    let named = plan.script.iter().any(|step| match step.action {
        Action::Attach { group, .. } | Action::Detach { group, .. } | Action::Add { group, .. } => {
            group as usize >= index
        }
        _ => false,
    });
    let there = !named && index < plan.world.groups.len();
    if there {
        plan.world.groups.remove(index);
    }
    there
}

fn drop_group_cpu(plan: &mut Plan, index: usize, cpu: usize) -> bool {
    let Some(group) = plan.world.groups.get_mut(index) else { return false };
    let there = cpu < group.cpus.len() && (group.cpus.len() > 1 || group.members.is_empty());
    if there {
        group.cpus.remove(cpu);
    }
    there
}

fn drop_member(plan: &mut Plan, index: usize, member: usize) -> bool {
    let Some(group) = plan.world.groups.get_mut(index) else { return false };
    let there = member < group.members.len();
    if there {
        group.members.remove(member);
    }
    there
}

fn fault_changes() -> Vec<Change> {
    let without: [fn(&mut FaultSpec); 5] = [
        |faults| faults.timer_late_max_ns = 0,
        |faults| (faults.slow_poll_share, faults.slow_poll_max_ns) = (0, 0),
        |faults| faults.tail_max_ns = 0,
        |faults| (faults.settle_late_share, faults.settle_late_max_ns) = (0, 0),
        |faults| (faults.stall_share, faults.stall_max_ns) = (0, 0),
    ];
    let change = |change: fn(&mut FaultSpec)| -> Change {
        Box::new(move |plan| {
            let before = plan.world.faults.clone();
            change(&mut plan.world.faults);
            before != plan.world.faults
        })
    };
    without.into_iter().map(change).collect()
}

fn plain_queue(plan: &mut Plan, index: usize) -> bool {
    let Some(queue) = plan.world.queues.get_mut(index) else { return false };
    let plain = queue.rx == ModerationSpec::Off && queue.tx == ModerationSpec::Off && !queue.gro_holds;
    (queue.rx, queue.tx, queue.gro_holds) = (ModerationSpec::Off, ModerationSpec::Off, false);
    !plain
}

fn fewer_packets(plan: &mut Plan, index: usize) -> bool {
    let Some(group) = plan.world.connections.get_mut(index) else { return false };
    match &mut group.traffic {
        Traffic::Open { per_s } | Traffic::Noise { per_s } | Traffic::Datagrams { per_s } if *per_s > 100.0 => {
            *per_s /= 4.0;
            true
        }
        Traffic::Closed if group.count > 1 => {
            group.count /= 2;
            true
        }
        _ => false,
    }
}

fn shorter_step(plan: &mut Plan, index: usize) -> bool {
    let Some(step) = plan.script.get_mut(index) else { return false };
    match &mut step.action {
        Action::Burst { packets, .. } if *packets > 1 => *packets /= 2,
        Action::Send { frames, .. } if *frames > 1 => *frames /= 2,
        Action::Other { count, .. } if *count > 1 => *count /= 2,
        Action::Stall { ns } | Action::Steal { ns, .. } if *ns > 10_000 => *ns /= 2,
        _ => return false,
    }
    true
}
