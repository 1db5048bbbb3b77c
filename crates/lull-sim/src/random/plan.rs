//! A random world, drawn from a seed: machine, applications, load, faults, and the script of what is done to it.

mod draw;
mod transmit;

use lull_core::{EpollOptions, Sysctl, Threaded};

use self::draw::Draw;
use crate::engine::rng::{Component, Stream};
use crate::random::action::Action;
use crate::random::script::Step;
use crate::random::shape::Shape;
use crate::random::words::{params, settings};
use crate::world::{
    ConnectionsSpec, ContextSpec, GroupMemberSpec, GroupSpec, Masking, NetSpec, QueueSpec, Traffic, WorkerSpec, World,
};

/// How many transitions of the core a world takes before its load ends.
pub const TRANSITIONS_GOAL: u64 = 10_000;
/// The bound of the events of a world's agenda.
pub const EVENTS_MAX: u64 = 4_000_000;
/// The bound of the events that are pending at one time (packets on the wire, steps of the script).
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
    /// Whether its calls do not block.
    pub nonblocking: bool,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed from which it was drawn, and that of the run's generators.
    pub seed: u64,
    /// The machine, applications, load and faults.
    pub world: World,
    /// Receivers on sockets.
    pub readers: Vec<ReaderSpec>,
    /// What is done to it, once per lap.
    pub script: Vec<Step>,
    /// How long a lap takes, in nanoseconds.
    pub lap_ns: u64,
    /// Whether a queue keeps its settings and its id while it is disabled.
    pub persistent: bool,
    /// Laps go on until the core has taken this many transitions.
    pub transitions_goal: u64,
}

impl Plan {
    /// Draws the world of this seed.
    pub fn random(seed: u64) -> Plan {
        Plan::draw(seed, Shape::Any)
    }

    /// Draws the world of this seed, which always has busy-polling CPU groups.
    pub fn random_grouped(seed: u64) -> Plan {
        Plan::draw(seed, Shape::Groups)
    }

    /// Draws the world of this seed, with such groups, and transmit queues that may be their members.
    pub fn random_transmitting(seed: u64) -> Plan {
        Plan::draw(seed, Shape::Transmit)
    }

    /// Draws the world of this seed and this shape.
    pub fn random_of(seed: u64, shape: Shape) -> Plan {
        Plan::draw(seed, shape)
    }

    fn draw(seed: u64, shape: Shape) -> Plan {
        let mut draw = Draw(Stream::new(seed, Component::Worlds, 0));
        let cpus = draw.between(1, 3);
        let queues = draw.between(1, 4);
        let contexts = draw.between(1, 4);
        let readers = draw.one_of(&[0, 0, 1, 2]);
        let mut world = machine(&mut draw, cpus);
        for _ in 0..queues {
            let queue = queue(&mut draw, cpus);
            world.queues.push(queue);
        }
        for context in 0..contexts {
            workers(&mut draw, &mut world, context);
        }
        let readers: Vec<ReaderSpec> =
            (0..readers).map(|reader| self::reader(&mut draw, cpus, contexts + reader, queues)).collect();
        world.contexts.extend(readers.iter().map(|_| ContextSpec::default()));
        connect(&mut draw, &mut world, &readers, contexts);
        let lap_ns = u64::from(draw.between(4, 16)) * 1_000_000;
        let steps = draw.between(4, 40);
        let mut script: Vec<Step> = (0..steps).map(|_| step(&mut draw, lap_ns, (cpus, queues, contexts))).collect();
        let persistent = draw.chance(50);
        // Groups are drawn last, so that worlds without groups stay what they were.
        if shape != Shape::Any || draw.chance(30) {
            groups(&mut draw, &mut world, &mut script, lap_ns);
        }
        if shape == Shape::Transmit {
            transmit::draw(&mut draw, &mut world, &mut script, lap_ns);
        }
        leave_time(&mut script, cpus, lap_ns);
        Plan { seed, world, readers, script, lap_ns, persistent, transitions_goal: TRANSITIONS_GOAL }
    }
}

/// Draws CPUs, costs and the wire, without queues and applications.
fn machine(draw: &mut Draw, cpus: u32) -> World {
    World {
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
    }
}

fn cpu(draw: &mut Draw, cpus: u32) -> u16 {
    draw.between(0, cpus - 1) as u16
}

fn queue(draw: &mut Draw, cpus: u32) -> QueueSpec {
    let threaded = draw.threaded();
    let napi = draw.settings(threaded);
    let irq_cpu = cpu(draw, cpus);
    QueueSpec {
        napi,
        thread_cpu: cpu(draw, cpus),
        rx: draw.moderation(),
        tx: draw.moderation(),
        rx_period: draw.period(),
        tx_period: draw.period(),
        ring_packets: draw.one_of(&[16, 64, 256, 1_024]),
        gro_holds: draw.chance(40),
        masking: if draw.chance(50) { Masking::Mask } else { Masking::Disarm },
        has_thread: true,
        ..QueueSpec::new(irq_cpu)
    }
}

/// Draws an epoll context with the threads that wait on it.
fn workers(draw: &mut Draw, world: &mut World, context: u32) {
    let cpus = world.cpus.len() as u32;
    world.contexts.push(ContextSpec { params: draw.params(), options: draw.options() });
    for _ in 0..draw.one_of(&[1, 1, 1, 2, 3]) {
        let timeout_ns = match draw.between(0, 9) {
            0..=5 => None,
            6 => Some(0),
            _ => Some(u64::from(draw.between(10, 2_000)) * 1_000),
        };
        let events_max = draw.one_of(&[1, 4, 64, 1_024]);
        world.workers.push(WorkerSpec { cpu: cpu(draw, cpus), context, timeout_ns, events_max });
    }
}

/// Draws a receiver that busy polls on a socket of its own, in a context of its own.
fn reader(draw: &mut Draw, cpus: u32, context: u32, queues: u32) -> ReaderSpec {
    ReaderSpec {
        cpu: cpu(draw, cpus),
        context,
        queue: draw.between(0, queues - 1),
        usecs: draw.one_of(&[1, 10, 50, 100]),
        budget: draw.one_of(&[0, 1, 8, 64]),
        prefer: draw.chance(50),
        nonblocking: draw.chance(40),
    }
}

/// Limits how long CPUs are taken to nine tenths of a lap. These times add up: if a CPU were taken for longer than a
/// lap, its world would never get any of it.
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
    world.costs.dry_run_ns = draw.between(50, 2_000);
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
        // Most loads are such that the CPUs can carry them, so that delivery goes through its states all the time.
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
    /// Writes the parts of the world, one per line.
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
