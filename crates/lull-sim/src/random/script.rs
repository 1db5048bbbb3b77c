//! What an operator, a device and other programs do to a world while it runs: a list of steps, each with its time.
//!
//! A step acts in an inter-processor call on its CPU, so that what it schedules is delivered there as after any
//! interrupt. A step that has to wait (a disable for the owner, a closing for the threads inside) is tried again later.
//! Steps on queues are in `device`, and those on groups in `operators`.

mod device;
mod operators;

use std::cell::RefCell;
use std::rc::Rc;

use lull_core::{DeviceConfig, EpollBusy, NAPI_ID_MIN, NapiSettings, Threaded};

use crate::engine::agenda::{Event, PacketKind};
use crate::engine::cpu::Irq;
use crate::engine::epoll::Item;
use crate::engine::id::{ConnId, ContextId, CpuId, GroupId, Id, QueueId, StepId, Table};
use crate::engine::nic::Packet;
use crate::engine::recorder::{What, Whom};
use crate::engine::sim::{Operator, Sim};
use crate::engine::transition::Transition;
use crate::random::action::Action;

/// How long a disable sleeps between two attempts (20 to 200 us in Linux).
const DISABLE_RETRY_NS: u64 = 40_000;
/// How long turning threads off sleeps between two attempts (20 ms in Linux; worlds are shorter).
const THREADED_RETRY_NS: u64 = 200_000;
/// How long a closing sleeps between two looks whether threads are still inside of `epoll_wait`.
const CLOSE_RETRY_NS: u64 = 7_000;
const CLOSE_RETRIES_MAX: u32 = 400;
/// The connection to which the packets of a burst formally belong. Nobody serves them.
const BURST_CONNECTION: ConnId = ConnId::new(0);

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it acts, in nanoseconds after the beginning of a lap of the script.
    pub at_ns: u64,
    /// The CPU on which it acts.
    pub cpu: u16,
    /// What it does.
    pub action: Action,
}

/// The progress of a step that has to be tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Fresh,
    Waiting(u32),
    Down,
    /// The queue is enabled again and is to become a member again; this many attempts were refused.
    Entering(u32),
}

/// A script in execution.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) steps: Table<StepId, Step>,
    progress: Table<StepId, Progress>,
    /// Whether a step is on the agenda.
    due: Table<StepId, bool>,
    /// Whether a step is in progress that takes the queue down or changes its thread.
    busy: Table<QueueId, bool>,
    config: DeviceConfig,
    /// The group and weight that each queue keeps, also over a disable.
    kept: Table<QueueId, Option<(GroupId, u32)>>,
    /// How many changes of groups there were so far.
    pub(crate) group_changes: u32,
    next_id: u32,
    /// How many steps are on the agenda, first attempts and later ones.
    pub(crate) ahead: u32,
    /// How many writes of settings there were so far.
    pub(crate) writes: u32,
    /// The longest timeouts that were ever in force, per queue, which I8 allows.
    pub(crate) timeout_max_ns: Table<QueueId, u64>,
}

impl Script {
    /// Notes that these settings are in force from now on.
    fn written(&mut self, queue: QueueId, settings: &NapiSettings) {
        let longest = &mut self.timeout_max_ns[queue];
        *longest = (*longest).max(longest_ns(settings));
        self.writes += 1;
    }
}

/// A script as the engine's operator, whose steps the engine asks for.
#[derive(Debug)]
pub(crate) struct Operating(pub(crate) Rc<RefCell<Script>>);

impl Operator for Operating {
    fn cpu_of(&self, step: StepId) -> CpuId {
        CpuId::new(self.0.borrow().steps[step].cpu)
    }

    fn act(&mut self, sim: &mut Sim, step: StepId, cpu: CpuId) {
        self.0.borrow_mut().step(sim, step, cpu);
    }
}

impl Script {
    /// Makes a script for this world; [`Script::lap`] runs it.
    pub(crate) fn new(sim: &Sim, steps: Vec<Step>, persistent: bool) -> Script {
        let queues = sim.nic.queues.len();
        let mut config = DeviceConfig::new(queues, persistent);
        let mut timeout_max_ns = Table::new();
        for (index, queue) in sim.nic.queues.rows() {
            // The initial settings were put in force unchecked, and the slot keeps them in any case.
            let _ = config.set_queue(index.place(), &queue.spec.napi);
            let id = queue.napi.id();
            let _ = config.enabled(index.place(), || id);
            timeout_max_ns.push(longest_ns(&queue.spec.napi));
        }
        let mut kept: Table<QueueId, _> = (0..queues).map(|_| None).collect();
        for (group, spec) in sim.env.world.groups.iter().enumerate() {
            for member in &spec.members {
                kept[QueueId::new(member.queue)] = Some((GroupId::at(group), member.weight));
            }
        }
        Script {
            kept,
            group_changes: 0,
            due: steps.iter().map(|_| false).collect(),
            progress: steps.iter().map(|_| Progress::Fresh).collect(),
            steps: steps.into_iter().collect(),
            busy: (0..queues).map(|_| false).collect(),
            config,
            next_id: NAPI_ID_MIN + queues as u32,
            ahead: 0,
            writes: 0,
            timeout_max_ns,
        }
    }

    /// Plans every step once more, from now on.
    pub(crate) fn lap(&mut self, sim: &mut Sim) {
        for step in self.steps.ids() {
            // A step whose CPU was taken all the time has not acted yet.
            if self.progress[step] == Progress::Fresh && !self.due[step] {
                let at_ns = sim.env.now_ns + self.steps[step].at_ns;
                self.again(sim, step, at_ns);
            }
        }
    }

    /// Names the steps that have begun and do not end.
    pub(crate) fn waiting(&self) -> String {
        let begun = self.progress.rows().filter(|(_, progress)| **progress != Progress::Fresh);
        let steps: Vec<String> = begun.map(|(step, _)| self.steps[step].action.to_string()).collect();
        format!("these steps do not end: {}", steps.join("; "))
    }

    fn again(&mut self, sim: &mut Sim, step: StepId, at_ns: u64) {
        self.ahead += 1;
        self.due[step] = true;
        sim.env.agenda.push(at_ns, Event::Operator { step });
    }

    /// Executes a step on its CPU.
    fn step(&mut self, sim: &mut Sim, step: StepId, cpu: CpuId) {
        self.ahead -= 1;
        self.due[step] = false;
        let before = std::mem::take(&mut self.progress[step]);
        let action = self.steps[step].action;
        if before == Progress::Fresh {
            sim.env.tell(cpu, What::Step(step));
        }
        let after = self.act(sim, action, before, step, cpu);
        if let Some((progress, in_ns)) = after {
            self.progress[step] = progress;
            self.again(sim, step, sim.env.now_ns + in_ns);
        }
    }

    /// Acts, and returns what is left to do and after how long.
    fn act(
        &mut self,
        sim: &mut Sim,
        action: Action,
        before: Progress,
        step: StepId,
        cpu: CpuId,
    ) -> Option<(Progress, u64)> {
        let (queue_of, context_of) = (QueueId::new, ContextId::new);
        match action {
            Action::Set { queue, settings } => self.set_queue(sim, queue_of(queue), &settings, step, cpu),
            Action::SetDevice { settings } => self.set_device(sim, &settings, cpu),
            Action::Thread { queue, threaded } => {
                return self.act_thread(sim, queue_of(queue), threaded, before, step, cpu);
            }
            Action::Disable { queue, down_ns, reset } => {
                return self.act_disable(sim, queue_of(queue), (down_ns, reset), before, step, cpu);
            }
            Action::Link { down_ns } => {
                sim.env.faults.link_down = before == Progress::Fresh;
                return sim.env.faults.link_down.then_some((Progress::Down, u64::from(down_ns)));
            }
            Action::Params { context, params } => {
                // The author of a world may set any parameters with every privilege, and the generator keeps to the
                // limits.
                let _ = sim.contexts[context_of(context)].ep.set_params(&params, true);
                sim.env.note(cpu, Whom::Context(context_of(context)), Transition::EpollParams);
            }
            Action::Reopen { context } => return self.act_reopen(sim, context_of(context), before, step, cpu),
            Action::Other { context, count, gap_ns } => {
                sim.make_ready(context_of(context), Item::Other, cpu);
                let done = if let Progress::Waiting(done) = before { done + 1 } else { 1 };
                return (done < count).then_some((Progress::Waiting(done), u64::from(gap_ns)));
            }
            Action::Burst { queue, packets } => {
                for _ in 0..packets {
                    let _ = sim.nic.packet_arrives(
                        &mut sim.env,
                        &mut sim.cpus,
                        queue_of(queue),
                        Packet::new(BURST_CONNECTION, PacketKind::Ack),
                    );
                }
            }
            Action::Send { queue, frames, rate_bytes_per_s } => {
                self.act_send(sim, (queue_of(queue), frames, rate_bytes_per_s), step, cpu);
            }
            Action::Kick { queue } => {
                sim.nic.schedule(&mut sim.env, &mut sim.cpus, queue_of(queue), cpu);
            }
            Action::Spurious { queue } => {
                let cpu = sim.nic.queues[queue_of(queue)].cpu();
                sim.cpus.interrupt(&mut sim.env, cpu, Irq::Device(queue_of(queue)));
            }
            Action::Stall { ns } => sim.env.faults.next_stall_ns = u64::from(ns),
            Action::Attach { group, cpu: at } => self.act_attach(sim, GroupId::new(group), CpuId::new(at), step, cpu),
            Action::Detach { group, cpu: at } => {
                return self.act_detach(sim, GroupId::new(group), CpuId::new(at), (before, step, cpu));
            }
            Action::Add { group, queue, weight } => {
                let member = (GroupId::new(group), weight);
                return self.act_add(sim, queue_of(queue), member, (before, step, cpu));
            }
            Action::Remove { queue } => return self.act_remove(sim, queue_of(queue), (before, step, cpu)),
            Action::Steal { ns } => {
                sim.cpus[cpu].stolen_ns += u64::from(ns);
                sim.cpus.interrupt(&mut sim.env, cpu, Irq::Resched);
            }
        }
        None
    }

    fn set_queue(&mut self, sim: &mut Sim, queue: QueueId, settings: &NapiSettings, step: StepId, cpu: CpuId) {
        if sim.nic.queues[queue].napi.id() == 0 {
            // Without an id netlink cannot name the instance.
            sim.env.tell(cpu, What::Skipped(step));
            return;
        }
        self.put(sim, queue, settings);
        sim.env.note(cpu, Whom::Queue(queue), Transition::NapiSet);
    }

    /// Overwrites every instance and every slot; `irq_suspend_timeout` has no device-level value.
    fn set_device(&mut self, sim: &mut Sim, settings: &NapiSettings, cpu: CpuId) {
        // The generator has drawn the values within the limits.
        let _ = self.config.set_device(&NapiSettings { threaded: Threaded::Off, ..*settings });
        for queue in sim.nic.queues.ids() {
            let napi = &sim.nic.queues[queue].napi;
            if napi.id() != 0 {
                let irq_suspend_timeout_ns = napi.settings().irq_suspend_timeout_ns;
                self.put(sim, queue, &NapiSettings { irq_suspend_timeout_ns, ..*settings });
            }
            sim.env.note(cpu, Whom::Queue(queue), Transition::DeviceSet);
        }
    }

    /// Puts settings in force and into the queue's slot; the thread stays as it is.
    fn put(&mut self, sim: &mut Sim, queue: QueueId, settings: &NapiSettings) {
        let napi = &sim.nic.queues[queue].napi;
        let settings = NapiSettings { threaded: napi.settings().threaded, ..*settings };
        napi.set(&settings);
        let _ = self.config.set_queue(queue.place(), &settings);
        self.written(queue, &settings);
    }

    fn act_reopen(
        &mut self,
        sim: &mut Sim,
        context: ContextId,
        before: Progress,
        step: StepId,
        cpu: CpuId,
    ) -> Option<(Progress, u64)> {
        if sim.contexts[context].inside > 0 {
            let tried = if let Progress::Waiting(tried) = before { tried + 1 } else { 1 };
            if tried < CLOSE_RETRIES_MAX && !sim.env.faults.quiet {
                return Some((Progress::Waiting(tried), CLOSE_RETRY_NS));
            }
            sim.env.tell(cpu, What::Skipped(step));
            return None;
        }
        let left: Vec<u32> = sim.contexts[context].ep.free().collect();
        sim.env.note(cpu, Whom::Context(context), Transition::EpollFreed);
        for id in left {
            sim.env.note(cpu, Whom::Context(context), Transition::EpollFreedResumes);
            sim.nic.resume(&mut sim.env, &mut sim.cpus, id, cpu);
        }
        let params = sim.contexts[context].ep.params();
        let ep = EpollBusy::new(&sim.env.world.sysctl, sim.env.world.contexts[context.place()].options);
        let _ = ep.set_params(&params, true);
        let queue = sim.env.world.connections.iter().find(|group| group.context == context.raw() && group.count > 0);
        if let Some(queue) = queue.map(|group| QueueId::new(group.queue)) {
            // EPOLL_CTL_ADD notes the socket's NAPI.
            let _ = ep.note_napi(sim.nic.queues[queue].napi.id());
        }
        sim.contexts[context].ep = ep;
        None
    }
}

/// Returns the longest time for which these settings leave a masked instance without a poll.
fn longest_ns(settings: &NapiSettings) -> u64 {
    settings.gro_flush_timeout_ns.max(settings.irq_suspend_timeout_ns)
}
