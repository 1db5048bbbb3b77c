//! A random world, drawn from a seed: machine, applications, load, faults and the script of what is done to it.

mod transmit;

use lull_core::epoll::TimeoutZero;
use lull_core::group::{Budget, Thresholds};
use lull_core::{EpollOptions, EpollParams, GroupConfig, NapiSettings, Sysctl, Threaded};

use crate::engine::dim::Moderation;
use crate::engine::rng::{Component, Stream};
use crate::random::Shape;
use crate::random::action::Action;
use crate::random::script::Step;
use crate::random::words::{params, settings};
use crate::world::{
    ConnectionsSpec, ContextSpec, GroupMemberSpec, GroupSpec, Masking, ModerationSpec, NetSpec, Period, QueueSpec,
    Traffic, WorkerSpec, World,
};
use crate::{Costs, FaultSpec};

/// Transitions of the core that a world takes before its load ends.
pub const TRANSITIONS_GOAL: u64 = 10_000;
/// Bound of a world: events of its agenda.
pub const EVENTS_MAX: u64 = 4_000_000;
/// Bound of a world: events that lie ahead at one time (packets on the wire, steps of the script).
pub const AHEAD_MAX: usize = 200_000;

/// A receiver that busy polls on its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderSpec {
    /// Its CPU.
    pub cpu: u16,
    /// What it receives: the connections of this context, in which nobody else waits.
    pub context: u32,
    /// The queue of its socket.
    pub queue: u32,
    /// SO_BUSY_POLL, in microseconds.
    pub usecs: u32,
    /// SO_BUSY_POLL_BUDGET.
    pub budget: u32,
    /// SO_PREFER_BUSY_POLL.
    pub prefer: bool,
    /// Whether it calls without waiting.
    pub nonblocking: bool,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was drawn from; the run's generators too.
    pub seed: u64,
    /// Machine, applications, load, faults.
    pub world: World,
    /// Receivers on sockets.
    pub readers: Vec<ReaderSpec>,
    /// What is done to it, once per lap.
    pub script: Vec<Step>,
    /// How long a lap takes, in nanoseconds.
    pub lap_ns: u64,
    /// Whether a queue keeps its settings and its id while it is disabled.
    pub persistent: bool,
    /// Laps go on until the core has taken so many transitions.
    pub transitions_goal: u64,
}

struct Draw(Stream);

impl Draw {
    fn chance(&mut self, percent: u32) -> bool {
        self.0.below(100) < percent
    }

    /// From `low` to `high`, both included.
    fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.0.below(high - low + 1)
    }

    fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.0.below(these.len() as u32) as usize]
    }

    fn settings(&mut self, threaded: Threaded) -> NapiSettings {
        let defer_hard_irqs = self.one_of(&[0, 0, 1, 1, 2, 3, 5, 20, 100]);
        let gro_us = self.one_of(&[0, 0, 5, 10, 20, 50, 100, 200]);
        let suspend_us = self.one_of(&[0, 0, 50, 200, 500, 1_000, 3_000, 20_000]);
        NapiSettings {
            defer_hard_irqs,
            gro_flush_timeout_ns: gro_us * 1_000,
            irq_suspend_timeout_ns: suspend_us * 1_000,
            threaded,
        }
    }

    fn params(&mut self) -> EpollParams {
        EpollParams {
            busy_poll_usecs: self.one_of(&[0, 0, 0, 5, 20, 64]),
            busy_poll_budget: self.one_of(&[0, 1, 2, 4, 8, 16, 64]),
            prefer_busy_poll: self.chance(65),
        }
    }

    fn threaded(&mut self) -> Threaded {
        self.one_of(&[Threaded::Off, Threaded::Off, Threaded::Off, Threaded::On, Threaded::On, Threaded::BusyPoll])
    }

    fn moderation(&mut self) -> ModerationSpec {
        match self.between(0, 4) {
            0 => ModerationSpec::Adaptive,
            1 => ModerationSpec::Fixed(Moderation { usecs: self.between(1, 40), frames: self.between(1, 64) }),
            _ => ModerationSpec::Off,
        }
    }

    fn period(&mut self) -> Period {
        self.one_of(&[Period::Completion, Period::First, Period::Interrupt])
    }

    fn options(&mut self) -> EpollOptions {
        if self.chance(60) {
            return EpollOptions::strict_linux();
        }
        EpollOptions {
            resume_on_id_change: self.chance(60),
            poll_after_returns: self.one_of(&[0, 1, 3, 8]),
            timeout_zero: if self.chance(60) { TimeoutZero::PollOnce } else { TimeoutZero::Return },
            every_napi: self.chance(60),
        }
    }

    fn weight(&mut self) -> u32 {
        self.one_of(&[1, 4, 16, 64, 64])
    }

    fn group_config(&mut self) -> GroupConfig {
        let percent = |draw: &mut Draw| draw.one_of(&[None, None, None, Some(5), Some(30), Some(100)]);
        GroupConfig {
            rest_ns: self.one_of(&[None, Some(0), Some(5_000), Some(50_000)]),
            budget: Budget { empty_percent: percent(self), total_percent: percent(self) },
            thresholds: self.one_of(&[
                Thresholds::default(),
                Thresholds { wake_above: 20, park_below: 10 },
                Thresholds { wake_above: 100, park_below: 99 },
            ]),
        }
    }

    fn costs(&mut self) -> Costs {
        let mut cost = |low, high| self.between(low, high);
        Costs {
            irq_ns: cost(100, 2_000),
            timer_irq_ns: cost(100, 1_500),
            ipi_ns: cost(100, 1_000),
            softirq_ns: cost(50, 500),
            poll_ns: cost(50, 3_000),
            rx_request_ns: cost(50, 2_000),
            rx_ack_ns: cost(50, 800),
            tx_done_ns: cost(20, 200),
            wake_ns: cost(50, 1_000),
            switch_ns: cost(200, 2_000),
            epoll_call_ns: cost(100, 1_500),
            epoll_sleep_ns: cost(50, 1_500),
            epoll_event_ns: cost(20, 200),
            busy_call_ns: cost(50, 500),
            busy_round_ns: cost(200, 4_000),
            request_sys_ns: cost(200, 6_000),
            request_user_ns: cost(0, 6_000),
            request_random_ns: if cost(0, 3) == 0 { cost(1, 3_000) } else { 0 },
            idle_shallow_exit_ns: cost(100, 2_000),
            idle_deep_exit_ns: cost(2_000, 60_000),
            idle_deep_residency_ns: cost(10_000, 600_000),
            ..Costs::default()
        }
    }

    fn faults(&mut self) -> FaultSpec {
        let mut faults = FaultSpec { between_calls_ns: self.between(2_000, 20_000), ..FaultSpec::default() };
        if self.chance(50) {
            faults.timer_late_max_ns = self.one_of(&[500, 5_000, 60_000, 400_000]);
        }
        if self.chance(50) {
            faults.slow_poll_share = self.one_of(&[4, 30, 200]);
            faults.slow_poll_max_ns = self.one_of(&[10_000, 60_000, 300_000]);
        }
        if self.chance(50) {
            faults.tail_max_ns = self.one_of(&[200, 1_000, 8_000]);
        }
        if self.chance(40) {
            faults.settle_late_share = self.one_of(&[4, 30, 300]);
            faults.settle_late_max_ns = self.one_of(&[500, 5_000, 40_000]);
        }
        if self.chance(60) {
            faults.stall_share = self.one_of(&[1, 4, 20]);
            faults.stall_max_ns = self.one_of(&[50_000, 500_000, 4_000_000]);
        }
        faults
    }
}

impl Plan {
    /// The world of this seed.
    pub fn random(seed: u64) -> Plan {
        Plan::draw(seed, Shape::Any)
    }

    /// The world of this seed, with busy-polling CPU groups in any case.
    pub fn random_grouped(seed: u64) -> Plan {
        Plan::draw(seed, Shape::Groups)
    }

    /// The world of this seed, with such groups, and transmit queues that they may have as members.
    pub fn random_transmitting(seed: u64) -> Plan {
        Plan::draw(seed, Shape::Transmit)
    }

    /// The world of this seed among those of this shape.
    pub fn random_of(seed: u64, shape: Shape) -> Plan {
        Plan::draw(seed, shape)
    }

    fn draw(seed: u64, shape: Shape) -> Plan {
        let mut draw = Draw(Stream::new(seed, Component::Worlds, 0));
        let cpus = draw.between(1, 3);
        let queues = draw.between(1, 4);
        let contexts = draw.between(1, 4);
        let readers = draw.one_of(&[0, 0, 1, 2]);
        let mut world = World {
            cpus: vec![true; cpus as usize],
            costs: draw.costs(),
            faults: draw.faults(),
            sysctl: Sysctl {
                busy_poll_usecs: draw.one_of(&[0, 0, 0, 0, 10, 50]),
                busy_read_usecs: 0,
                netdev_budget: draw.one_of(&[16, 64, 300, 300]),
                netdev_budget_usecs: Sysctl::default().netdev_budget_usecs,
            },
            net: NetSpec {
                request_ns: draw.between(500, 20_000),
                answer_ns: draw.between(500, 20_000),
                ack_ns: draw.between(500, 10_000),
                tx_done_ns: draw.between(200, 5_000),
                client_random_ns: draw.one_of(&[0, 0, 2_000]),
                retransmit_ns: 1_000_000,
                ..NetSpec::default()
            },
            events_max: EVENTS_MAX,
            ..World::default()
        };
        let cpu = |draw: &mut Draw| draw.between(0, cpus - 1) as u16;
        for _ in 0..queues {
            let threaded = draw.threaded();
            let napi = draw.settings(threaded);
            let irq_cpu = cpu(&mut draw);
            world.queues.push(QueueSpec {
                napi,
                thread_cpu: cpu(&mut draw),
                rx: draw.moderation(),
                tx: draw.moderation(),
                rx_period: draw.period(),
                tx_period: draw.period(),
                ring_packets: draw.one_of(&[16, 64, 256, 1_024]),
                gro_holds: draw.chance(40),
                masking: if draw.chance(50) { Masking::Mask } else { Masking::Disarm },
                has_thread: true,
                ..QueueSpec::new(irq_cpu)
            });
        }
        for context in 0..contexts {
            world.contexts.push(ContextSpec { params: draw.params(), options: draw.options() });
            for _ in 0..draw.one_of(&[1, 1, 1, 2, 3]) {
                let timeout_ns = match draw.between(0, 9) {
                    0..=5 => None,
                    6 => Some(0),
                    _ => Some(u64::from(draw.between(10, 2_000)) * 1_000),
                };
                let events_max = draw.one_of(&[1, 4, 64, 1_024]);
                world.workers.push(WorkerSpec { cpu: cpu(&mut draw), context, timeout_ns, events_max });
            }
        }
        let mut plan_readers = Vec::new();
        for reader in 0..readers {
            world.contexts.push(ContextSpec::default());
            plan_readers.push(ReaderSpec {
                cpu: cpu(&mut draw),
                context: contexts + reader,
                queue: draw.between(0, queues - 1),
                usecs: draw.one_of(&[1, 10, 50, 100]),
                budget: draw.one_of(&[0, 1, 8, 64]),
                prefer: draw.chance(50),
                nonblocking: draw.chance(40),
            });
        }
        connect(&mut draw, &mut world, &plan_readers, contexts);
        let lap_ns = u64::from(draw.between(4, 16)) * 1_000_000;
        let steps = draw.between(4, 40);
        let mut script: Vec<Step> = (0..steps).map(|_| step(&mut draw, lap_ns, (cpus, queues, contexts))).collect();
        let persistent = draw.chance(50);
        // Drawn last, so that worlds without groups are what they were.
        if shape != Shape::Any || draw.chance(30) {
            groups(&mut draw, &mut world, &mut script, lap_ns);
        }
        if shape == Shape::Transmit {
            transmit::draw(&mut draw, &mut world, &mut script, lap_ns);
        }
        leave_time(&mut script, cpus, lap_ns);
        Plan { seed, world, readers: plan_readers, script, lap_ns, persistent, transitions_goal: TRANSITIONS_GOAL }
    }
}

/// Takes CPUs for nine tenths of a lap at most. What is taken adds up: of a CPU that is taken for longer than a lap, nothing would
/// ever be left to its world.
fn leave_time(script: &mut Vec<Step>, cpus: u32, lap_ns: u64) {
    let mut left_ns = vec![lap_ns / 10 * 9; cpus as usize];
    script.retain(|step| match step.action {
        Action::Steal { ns } => {
            let left_ns = &mut left_ns[usize::from(step.cpu)];
            let fits = u64::from(ns) <= *left_ns;
            *left_ns -= if fits { u64::from(ns) } else { 0 };
            fits
        }
        _ => true,
    });
}

/// Draws groups, and what is done to them.
fn groups(draw: &mut Draw, world: &mut World, script: &mut Vec<Step>, lap_ns: u64) {
    let (cpus, queues) = (world.cpus.len() as u32, world.queues.len() as u32);
    let count = draw.one_of(&[1, 1, 1, 2]);
    let mut free_cpus: Vec<u16> = (0..cpus as u16).collect();
    let mut free_queues: Vec<u32> = (0..queues).collect();
    world.costs.group_look_ns = draw.between(1, 60);
    world.costs.group_pass_ns = draw.between(20, 300);
    world.costs.group_claim_ns = draw.between(10, 200);
    for _ in 0..count {
        let mut spec = GroupSpec { config: draw.group_config(), ..GroupSpec::default() };
        for _ in 0..draw.one_of(&[1, 1, 2, 3]) {
            if !free_cpus.is_empty() {
                spec.cpus.push(free_cpus.swap_remove(draw.0.below(free_cpus.len() as u32) as usize));
            }
        }
        for _ in 0..draw.one_of(&[0, 1, 2, 4]) {
            if !free_queues.is_empty() && !spec.cpus.is_empty() {
                let queue = free_queues.swap_remove(draw.0.below(free_queues.len() as u32) as usize);
                // A member has no thread of its own.
                world.queues[queue as usize].napi.threaded = Threaded::Off;
                spec.members.push(GroupMemberSpec { queue, weight: draw.weight() });
            }
        }
        world.groups.push(spec);
    }
    for _ in 0..draw.between(2, 16) {
        let (group, queue) = (draw.between(0, count - 1), draw.between(0, queues - 1));
        let cpu = draw.between(0, cpus - 1) as u16;
        let action = match draw.between(0, 15) {
            0..=2 => Action::Attach { group, cpu },
            3 | 4 => Action::Detach { group, cpu },
            5..=8 => Action::Add { group, queue, weight: draw.weight() },
            9 | 10 => Action::Remove { queue },
            11 | 12 => Action::Steal { ns: draw.one_of(&[20_000, 300_000, 3_000_000]) },
            13 => Action::Thread { queue, threaded: Threaded::Off },
            _ => Action::Burst { queue, packets: draw.one_of(&[64, 300, 1_000]) },
        };
        let at_ns = u64::from(draw.0.below(lap_ns as u32));
        script.push(Step { at_ns, cpu: draw.between(0, cpus - 1) as u16, action });
    }
}

/// Draws the connections: every context and every reader has some, and several queues may meet in one context.
fn connect(draw: &mut Draw, world: &mut World, readers: &[ReaderSpec], contexts: u32) {
    let queues = world.queues.len() as u32;
    let mut group = |draw: &mut Draw, queue, context| {
        let first = world.connections.is_empty();
        // Most loads are such that the CPUs can bear them, so that delivery goes through its states all the time.
        let bearable = 10 * world.cpus.len() as u32;
        let highest = if draw.chance(12) { 60 } else { bearable };
        let per_s = f64::from(draw.between(1, highest)) * 1_000.0;
        let traffic = match draw.between(if first { 2 } else { 0 }, 15) {
            0 => Traffic::Closed,
            1 => Traffic::Noise { per_s: f64::from(draw.one_of(&[2_000, 10_000, 50_000])) },
            2..=8 => Traffic::Datagrams { per_s },
            _ => Traffic::Open { per_s },
        };
        let count = draw.one_of(&[1, 2, 8, 32]);
        world.connections.push(ConnectionsSpec { count, queue, context, traffic });
    };
    for context in 0..contexts {
        for _ in 0..draw.one_of(&[1, 1, 2, 3]) {
            let queue = draw.between(0, queues - 1);
            group(draw, queue, context);
        }
    }
    for reader in readers {
        group(draw, reader.queue, reader.context);
    }
}

fn step(draw: &mut Draw, lap_ns: u64, (cpus, queues, contexts): (u32, u32, u32)) -> Step {
    let queue = draw.between(0, queues - 1);
    let context = draw.between(0, contexts - 1);
    let action = match draw.between(0, 31) {
        0..=5 => Action::Set { queue, settings: draw.settings(Threaded::Off) },
        6 => Action::SetDevice { settings: draw.settings(Threaded::Off) },
        7..=9 => Action::Thread { queue, threaded: draw.threaded() },
        10 | 11 => Action::Disable { queue, down_ns: draw.between(1_000, 400_000), reset: draw.chance(50) },
        12 => Action::Link { down_ns: draw.between(1_000, 1_000_000) },
        13..=16 => Action::Params { context, params: draw.params() },
        17 => Action::Reopen { context },
        18..=20 => {
            let count = draw.one_of(&[1, 3, 30]);
            Action::Other { context, count, gap_ns: draw.one_of(&[2_000, 30_000, 150_000]) }
        }
        21..=24 => Action::Burst { queue, packets: draw.one_of(&[1, 8, 64, 130, 600]) },
        25..=27 => Action::Kick { queue },
        28 | 29 => Action::Spurious { queue },
        _ => Action::Stall { ns: draw.one_of(&[100_000, 1_500_000, 6_000_000]) },
    };
    let at_ns = u64::from(draw.0.below(lap_ns as u32));
    Step { at_ns, cpu: draw.between(0, cpus - 1) as u16, action }
}

impl std::fmt::Display for Plan {
    /// What there is, one line a part.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let World { cpus, queues, contexts, workers, connections, faults, sysctl, .. } = &self.world;
        writeln!(
            f,
            "seed {}: {} CPUs, {} queues, {} epoll contexts; a lap of {} ms, {} steps of script; slots {}",
            self.seed,
            cpus.len(),
            queues.len(),
            contexts.len(),
            self.lap_ns / 1_000_000,
            self.script.len(),
            if self.persistent { "kept" } else { "lost" },
        )?;
        writeln!(f, "  sysctl busy_poll {} us, netdev_budget {}", sysctl.busy_poll_usecs, sysctl.netdev_budget)?;
        for (index, queue) in queues.iter().enumerate() {
            writeln!(
                f,
                "  queue {index}: cpu {}, thread cpu {}, {}, {:?}, rx {:?}, tx {:?}, ring {}{}{}",
                queue.cpu,
                queue.thread_cpu,
                settings(&queue.napi, true),
                queue.masking,
                queue.rx,
                queue.tx,
                queue.ring_packets,
                if queue.gro_holds { ", GRO holds" } else { "" },
                queue.transmits.map_or_else(String::new, |spec| format!(", {spec:?}")),
            )?;
        }
        for (index, group) in self.world.groups.iter().enumerate() {
            writeln!(f, "  group {index}: {group:?}")?;
        }
        for (index, context) in contexts.iter().enumerate() {
            write!(f, "  context {index}: {}", params(&context.params))?;
            if context.options != EpollOptions::strict_linux() {
                write!(f, ", {:?}", context.options)?;
            }
            for worker in workers.iter().filter(|worker| worker.context as usize == index) {
                let timeout = worker.timeout_ns.map_or("none".to_owned(), |ns| format!("{} us", ns / 1_000));
                write!(f, "; worker on cpu {}, timeout {timeout}, up to {} events", worker.cpu, worker.events_max)?;
            }
            for reader in self.readers.iter().filter(|reader| reader.context as usize == index) {
                write!(f, "; {reader:?}")?;
            }
            writeln!(f)?;
        }
        for group in connections {
            let ConnectionsSpec { count, queue, context, traffic } = group;
            writeln!(f, "  {count} connections of queue {queue} in context {context}: {traffic:?}")?;
        }
        writeln!(f, "  {faults:?}")?;
        let mut script: Vec<&Step> = self.script.iter().collect();
        script.sort_by_key(|step| step.at_ns);
        for Step { at_ns, cpu, action } in script {
            let (ms, ns) = (at_ns / 1_000_000, at_ns % 1_000_000);
            writeln!(f, "  script, {ms}.{ns:06} ms into a lap, on cpu {cpu}: {action}")?;
        }
        Ok(())
    }
}
