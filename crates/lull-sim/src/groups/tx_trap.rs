//! The transmit trap: two workers on cores of their own send by one transmit queue, one as fast as it can, one a small
//! datagram each millisecond. The first sender drains the queueing discipline for both, or a group's poller on a third
//! core does.
//!
//! `lull compare --case tx-trap` measures the same on a machine with four cores. How deep the trap is depends on what a
//! send call costs until it has left its frame ([`Costs::enqueue_ns`]), compared with what a frame and a doorbell cost
//! the runner: each cost has rows of its own. The user plane's send calls cost 0.3 to 1 us.

use lull_core::GroupConfig;
use lull_core::tx::doorbell::DOORBELL_AGE_NS;
use lull_qdisc::{Kind, Limits};

use super::table::{CaseTable, new_waits, us};
use crate::costs::Costs;
use crate::engine::app::datagram_sender::DatagramSender;
use crate::engine::error::RunError;
use crate::engine::id::{CpuId, QueueId};
use crate::engine::rng::{Component, Stream};
use crate::engine::sim::Sim;
use crate::engine::transmit::SendCalls;
use crate::world::{GroupSpec, QueueSpec, TransmitSpec, World};

// The cores: one for each worker, and one on which the group polls and to which interrupts go.
const FLOODS: u16 = 0;
const ASKS: u16 = 1;
const DELIVERS: u16 = 2;
// The queues: one receives, and reaps what the other has sent.
const RECEIVES: u32 = 0;
const SENDS: u32 = 1;
const QDISCS: [Kind; 2] = [Kind::PfifoFast, Kind::Fq];
/// What a send call costs until it has left its frame, in nanoseconds.
const PRICES_NS: [u32; 3] = [300, 500, 1_000];
/// A write to a device, in nanoseconds.
const DOORBELL_NS: u32 = 400;
/// The flow of each worker, and the length of its frames.
const FLOOD: (u64, u32) = (1, 1_514);
const ASK: (u64, u32) = (2, 106);
/// The mean period at which the other worker sends, in nanoseconds.
const PERIOD_NS: f64 = 1e6;
const RING_FRAMES: u32 = 256;
/// 1514 bytes and the gap between frames, at 100 Gbit/s.
const FRAME_WIRE_NS: u32 = 123;
/// The senders: the core, the flow and frames, and the period (`None`: as fast as it can).
const SENDERS: [(u16, (u64, u32), Option<f64>); 2] = [(FLOODS, FLOOD, None), (ASKS, ASK, Some(PERIOD_NS))];
const WARMUP_NS: u64 = 20_000_000;
const WINDOW_NS: u64 = 1_000_000_000;
/// The goals for the p99 and the time trapped, as shares of those without a group, and for doorbells a frame.
const SHARE: f64 = 0.1;
const DOORBELLS: f64 = 0.1;

/// Runs two workers of one transmit queue, without and with a group that drains it.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn tx_trap(seed: u64) -> Result<CaseTable, RunError> {
    let (mut rows, mut statements) = (Vec::new(), Vec::new());
    for enqueue_ns in PRICES_NS {
        let calls = format!("calls of {} us", f64::from(enqueue_ns) / 1_000.0);
        let mut pairs = Vec::new();
        for qdisc in QDISCS {
            let [base, group] = [false, true].map(|group| run(&world(qdisc, enqueue_ns, group), &SENDERS, seed));
            let (base, group) = (base?, group?);
            rows.push((format!("{calls}, {qdisc}, base"), base.values()));
            rows.push((format!("{calls}, {qdisc}, group"), group.values()));
            pairs.push((qdisc, base, group));
        }
        statements.extend(judged(&calls, &pairs));
    }
    Ok(CaseTable {
        title: format!(
            "The transmit trap: of two workers of one transmit queue one floods with packets of 1500 bytes, one sends a small datagram \
             each millisecond; senders drain the discipline, or a group on a core of its own. A frame costs whoever drains {} ns, a \
             doorbell {DOORBELL_NS} ns; 100 Gbit/s",
            Costs::default().tx_frame_ns
        ),
        columns: vec![
            "send p50 us",
            "send p99 us",
            "trapped us per ms",
            "doorbells per frame",
            "held p50 us",
            "held max us",
            "flood kfps",
            "dropped per s",
        ],
        rows,
        statements,
    })
}

/// What was measured in a run.
struct Seen {
    p50_us: f64,
    p99_us: f64,
    trapped_us_per_ms: f64,
    doorbells_per_frame: f64,
    held_p50_us: f64,
    held_max_us: f64,
    flood_kfps: f64,
    dropped_per_s: f64,
}

impl Seen {
    fn values(&self) -> Vec<f64> {
        vec![
            self.p50_us,
            self.p99_us,
            self.trapped_us_per_ms,
            self.doorbells_per_frame,
            self.held_p50_us,
            self.held_max_us,
            self.flood_kfps,
            self.dropped_per_s,
        ]
    }
}

/// Returns what holds at one cost of a send call, in each discipline.
fn judged(calls: &str, pairs: &[(Kind, Seen, Seen)]) -> [(bool, String); 4] {
    let held_max_us = DOORBELL_AGE_NS as f64 / 1_000.0;
    let all = |holds: fn(&Seen, &Seen) -> bool| pairs.iter().all(|(_, base, group)| holds(base, group));
    let found = |of: fn(&Seen, &Seen) -> String| {
        let each = pairs.iter().map(|(qdisc, base, group)| format!("{} ({qdisc})", of(base, group)));
        each.collect::<Vec<_>>().join(", ")
    };
    [
        (
            all(|base, group| group.p99_us <= SHARE * base.p99_us),
            format!(
                "{calls}: with a group the p99 of a send call is at most {SHARE} of that without one: {}",
                found(|base, group| format!("{:.2} of {:.2} us", group.p99_us, base.p99_us))
            ),
        ),
        (
            all(|base, group| {
                base.trapped_us_per_ms > 0.0 && group.trapped_us_per_ms <= SHARE * base.trapped_us_per_ms
            }),
            format!(
                "{calls}: with a group senders are trapped for at most {SHARE} of the time without one: {}",
                found(|base, group| format!("{:.2} of {:.2} us a ms", group.trapped_us_per_ms, base.trapped_us_per_ms))
            ),
        ),
        (
            all(|_, group| group.doorbells_per_frame <= DOORBELLS),
            format!(
                "{calls}: a group rings at most {DOORBELLS} doorbells a frame: {}",
                found(|_, group| format!("{:.3}", group.doorbells_per_frame))
            ),
        ),
        (
            pairs.iter().all(|(_, _, group)| group.held_max_us <= held_max_us),
            format!(
                "{calls}: a group holds no frame back for a doorbell for more than {held_max_us} us: {}",
                found(|_, group| format!("{:.2} us", group.held_max_us))
            ),
        ),
    ]
}

fn run(world: &World, senders: &[(u16, (u64, u32), Option<f64>)], seed: u64) -> Result<Seen, RunError> {
    let mut sim = Sim::new(world, seed);
    for &(cpu, sends, period_ns) in senders {
        let rng = Stream::new(seed, Component::Load, sends.0 as u32);
        let sender = DatagramSender::new(QueueId::new(SENDS), sends, period_ns, rng);
        let thread = sim.spawn(CpuId::new(cpu), Box::new(sender));
        sim.cpus.wake(&mut sim.env, thread, CpuId::new(DELIVERS));
    }
    sim.run_until(WARMUP_NS)?;
    sim.begin_window();
    let (asks, _) = ASK;
    let calls = SendCalls { flow: asks, took_ns: new_waits(), trapped_ns: 0, held_ns: new_waits() };
    let sends = QueueId::new(SENDS);
    if let Some(transmit) = &mut sim.nic.queues[sends].transmit {
        transmit.calls = Some(calls);
    }
    sim.run_until(WARMUP_NS + WINDOW_NS)?;
    let counts = sim.outcome().counts;
    let Some(calls) = sim.nic.queues[sends].transmit.as_mut().and_then(|transmit| transmit.calls.take()) else {
        unreachable!("it was put there, and is nobody else's")
    };
    let per_s = |count: u64| count as f64 * 1e9 / WINDOW_NS as f64;
    Ok(Seen {
        p50_us: us(&calls.took_ns, 50.0),
        p99_us: us(&calls.took_ns, 99.0),
        trapped_us_per_ms: per_s(calls.trapped_ns) / 1e6,
        doorbells_per_frame: counts.doorbells as f64 / counts.rung_frames.max(1) as f64,
        held_p50_us: us(&calls.held_ns, 50.0),
        held_max_us: us(&calls.held_ns, 100.0),
        flood_kfps: per_s(counts.rung_frames) / 1_000.0,
        dropped_per_s: per_s(counts.tx_dropped),
    })
}

fn world(qdisc: Kind, enqueue_ns: u32, group: bool) -> World {
    let transmits = TransmitSpec {
        qdisc,
        limits: Limits::of(qdisc),
        ring_frames: RING_FRAMES,
        frame_bytes: FLOOD.1,
        frame_wire_ns: FRAME_WIRE_NS,
        reaped_by: Some(RECEIVES),
    };
    let queue = || QueueSpec::new(DELIVERS);
    let spec = || GroupSpec::new(vec![DELIVERS], [RECEIVES, SENDS], GroupConfig::default());
    World {
        cpus: vec![true; 3],
        queues: vec![queue(), QueueSpec { transmits: Some(transmits), ..queue() }],
        groups: if group { vec![spec()] } else { Vec::new() },
        costs: Costs { enqueue_ns, doorbell_ns: DOORBELL_NS, ..Costs::default() },
        ..World::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_alone_pays_for_the_call_the_frame_and_the_doorbell_and_beside_a_group_for_the_call() {
        let [base, group] = [false, true].map(|group| {
            let world = world(Kind::PfifoFast, 1_000, group);
            run(&world, &SENDERS[1..], 1).expect("within its bounds")
        });
        assert_eq!((base.trapped_us_per_ms, group.trapped_us_per_ms), (0.0, 0.0), "there is nobody to send for");
        assert_eq!(base.doorbells_per_frame, 1.0);
        // A call takes 0.5 to 1.5 us, a frame 0.1 us and a doorbell 0.4 us.
        assert!(
            (1.4..1.6).contains(&base.p50_us) && (1.9..=2.0).contains(&base.p99_us),
            "{} {}",
            base.p50_us,
            base.p99_us
        );
        assert!(
            (0.9..1.1).contains(&group.p50_us) && (1.4..=1.5).contains(&group.p99_us),
            "{} {}",
            group.p50_us,
            group.p99_us
        );
        // No packet comes soon, so a doorbell waits for two empty passes, and not for 5 us.
        assert!(group.held_max_us < 1.0, "{}", group.held_max_us);
    }
}
