//! Transmit queues of a random world.

use lull_core::Threaded;
use lull_qdisc::{Kind, Limits};

use super::Draw;
use crate::random::action::Action;
use crate::random::script::Step;
use crate::world::{GroupMemberSpec, Masking, QueueSpec, TransmitSpec, World};

/// The length of an answer.
const ANSWER_BYTES: u32 = 200;

/// Draws transmit queues, most of which are members of a group, and what is sent by them and done to them.
pub(super) fn draw(draw: &mut Draw, world: &mut World, script: &mut Vec<Step>, lap_ns: u64) {
    let (cpus, receive) = (world.cpus.len() as u32, world.queues.len() as u32);
    let count = draw.one_of(&[1, 1, 2]);
    world.costs.tx_frame_ns = draw.between(20, 400);
    world.costs.doorbell_ns = draw.between(20, 1_000);
    for queue in receive..receive + count {
        let cpu = |draw: &mut Draw| draw.between(0, cpus - 1) as u16;
        let threaded = draw.threaded();
        let mut napi = draw.settings(threaded);
        let homes: Vec<usize> = (0..world.groups.len()).filter(|group| !world.groups[*group].cpus.is_empty()).collect();
        if !homes.is_empty() && draw.chance(70) {
            napi.threaded = Threaded::Off;
            let group = draw.one_of(&homes);
            world.groups[group].members.push(GroupMemberSpec { queue, weight: draw.weight() });
        }
        let (irq_cpu, thread_cpu) = (cpu(draw), cpu(draw));
        let masking = if draw.chance(50) { Masking::Mask } else { Masking::Disarm };
        let qdisc = draw.one_of(&Kind::ALL);
        world.queues.push(QueueSpec {
            napi,
            thread_cpu,
            masking,
            has_thread: true,
            transmits: Some(TransmitSpec {
                qdisc,
                limits: Limits::of(qdisc),
                ring_frames: draw.one_of(&[4, 32, 256]),
                frame_bytes: ANSWER_BYTES,
                reaped_by: None,
                frame_wire_ns: draw.one_of(&[100, 1_000, 4_000]),
            }),
            ..QueueSpec::new(irq_cpu)
        });
    }
    let groups = world.groups.len() as u32;
    for _ in 0..draw.between(6, 24) {
        let queue = receive + draw.between(0, count - 1);
        let action = match draw.between(0, 15) {
            0..=7 => Action::Send {
                queue,
                frames: draw.one_of(&[1, 2, 8, 64, 200]),
                rate_bytes_per_s: draw.one_of(&[0, 0, 20_000_000, 200_000_000]),
            },
            8 | 9 => Action::Add { group: draw.between(0, groups - 1), queue, weight: draw.weight() },
            10 | 11 => Action::Remove { queue },
            12 => Action::Disable { queue, down_ns: draw.between(1_000, 400_000), reset: draw.chance(50) },
            13 => Action::Thread { queue, threaded: draw.threaded() },
            14 => Action::Set { queue, settings: draw.settings(Threaded::Off) },
            _ => Action::Kick { queue },
        };
        let at_ns = u64::from(draw.0.below(lap_ns as u32));
        script.push(Step { at_ns, cpu: draw.between(0, cpus - 1) as u16, action });
    }
}
