//! Makes the published machine as a world, from its parameters.

use lull_core::Mode;

use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::engine::dim::Moderation;
use crate::engine::rng::{Component, Stream};
use crate::engine::traffic::{FrameSizes, KeyValueSizes};
use crate::params::Params;
use crate::world::{ConnectionsSpec, CoresSpec, ModerationSpec, NetSpec, Period, QueueSpec, Traffic, World};

/// The parameters of the published world and their units.
pub const KNOWN: [(&str, &str); 42] = [
    ("irq_ns", "ns"),
    ("timer_irq_ns", "ns"),
    ("timer_start_ns", "ns"),
    ("softirq_ns", "ns"),
    ("poll_ns", "ns"),
    ("rx_request_ns", "ns"),
    ("rx_ack_ns", "ns"),
    ("tx_done_ns", "ns"),
    ("wake_ns", "ns"),
    ("switch_ns", "ns"),
    ("epoll_call_ns", "ns"),
    ("epoll_sleep_ns", "ns"),
    ("epoll_event_ns", "ns"),
    ("busy_call_ns", "ns"),
    ("busy_round_ns", "ns"),
    ("request_sys_ns", "ns"),
    ("request_user_ns", "ns"),
    ("request_random_ns", "ns"),
    ("idle_exit_ns", "ns"),
    ("uncharged_in_idle", "share"),
    ("cold_packet_ns", "ns"),
    ("cold_request_ns", "ns"),
    ("cache_requests", "requests"),
    ("broken_packet_ns", "ns"),
    ("broken_thread_ns", "ns"),
    ("cross_packet_ns", "ns"),
    ("cross_request_ns", "ns"),
    ("client_request_ns", "ns"),
    ("client_answer_ns", "ns"),
    ("client_random_ns", "ns"),
    ("client_load_ns", "ns"),
    ("client_slow_share", "share"),
    ("client_slow_load_share", "share"),
    ("client_slow_min_ns", "ns"),
    ("client_slow_max_ns", "ns"),
    ("client_queues", "queues"),
    ("ack_ns", "ns"),
    ("tx_completion_ns", "ns"),
    ("openings_per_s", "1/s"),
    ("trace_idle_s", "s"),
    ("other_polls_per_s", "1/s"),
    ("command_irqs", "interrupts"),
];

/// The connections of the eight queues: the hash spreads 4480 binomially, and these are the means of the ordered
/// counts.
const CONNECTIONS: [u32; 8] = [563, 591, 541, 570, 529, 550, 579, 557];
/// How many cores share an L3 cache (EPYC 7662: a CCX).
const CORES_PER_L3: u16 = 4;
/// All connections.
pub(crate) const ALL_CONNECTIONS: u32 = 4_480;
/// Queues of the published machine.
pub(crate) const QUEUES: u32 = 8;
/// Shape of mutilate's `fb_ia`.
const GAP_SHAPE: f64 = 0.154_971;

/// Returns the NIC's moderation: that of the published runs, or a fixed one (for the rejected design `coalesce-X`).
fn moderation(mode: &Mode) -> ModerationSpec {
    match mode.rx_usecs {
        Some(usecs) => ModerationSpec::Fixed(Moderation { usecs, frames: u32::MAX }),
        None => ModerationSpec::Adaptive,
    }
}

fn queue(mode: &Mode, cpu: u16) -> QueueSpec {
    QueueSpec {
        napi: mode.napi,
        rx: moderation(mode),
        tx: moderation(mode),
        // A fixed rx-usecs limits the wait of a packet, like a timeout.
        rx_period: if mode.rx_usecs.is_some() { Period::First } else { Period::Completion },
        // It is a striding ring of 1024 descriptors, which small packets share.
        ring_packets: 8_192,
        completes_off_affinity: true,
        ..QueueSpec::new(cpu)
    }
}

/// Returns the core on which each queue's worker starts. The workers are not pinned, so any assignment of the eight
/// workers to the cores is possible.
fn placement(seed: u64) -> [u16; CONNECTIONS.len()] {
    let mut rng = Stream::new(seed, Component::Placement, 0);
    let mut cpus = std::array::from_fn(|cpu| cpu as u16);
    for last in (1..cpus.len()).rev() {
        cpus.swap(last, rng.below(last as u32 + 1) as usize);
    }
    cpus
}

/// Makes the serving cores under `mode` at `qps` queries per second over the eight cores; `None` is a closed loop. The
/// seed places the workers.
pub fn service_world(params: &Params, mode: &Mode, qps: Option<f64>, seed: u64) -> World {
    // The load of the clients' machines, in millions of queries per second.
    let load = qps.unwrap_or(1e6) / 1e6;
    let per_connection = qps.map(|qps| qps / f64::from(ALL_CONNECTIONS));
    let traffic = |count: u32| match per_connection {
        Some(per_s) => Traffic::Renewal { per_s: per_s * f64::from(count), shape: GAP_SHAPE },
        None => Traffic::Closed,
    };
    let mut world = World::epoll_service(CONNECTIONS.len() as u16, mode, 0, Traffic::Closed);
    world.queues = (0..CONNECTIONS.len() as u16).map(|cpu| queue(mode, cpu)).collect();
    for (worker, cpu) in world.workers.iter_mut().zip(placement(seed)) {
        worker.cpu = cpu;
    }
    // In a closed loop no worker ever sleeps, so each stays where the run began.
    world.cores = CoresSpec { per_l3: CORES_PER_L3, workers_move: qps.is_some(), ..CoresSpec::default() };
    world.connections = CONNECTIONS
        .iter()
        .enumerate()
        .map(|(core, &count)| ConnectionsSpec {
            count,
            queue: core as u32,
            context: core as u32,
            traffic: traffic(count),
        })
        .collect();
    world.costs = costs(params);
    world.cache = CacheSpec {
        cold_packet_ns: params.whole("cold_packet_ns"),
        cold_request_ns: params.whole("cold_request_ns"),
        capacity_requests: params.whole("cache_requests"),
        broken_packet_ns: params.whole("broken_packet_ns"),
        broken_thread_ns: params.whole("broken_thread_ns"),
        cross_packet_ns: params.whole("cross_packet_ns"),
        cross_request_ns: params.whole("cross_request_ns"),
        ..CacheSpec::default()
    };
    world.net = NetSpec {
        request_ns: params.whole("client_request_ns"),
        answer_ns: params.whole("client_answer_ns") + (params.get("client_load_ns") * load).round() as u32,
        client_random_ns: params.whole("client_random_ns"),
        slow_share: ((params.get("client_slow_share") + params.get("client_slow_load_share") * load) * 1_024.0).round()
            as u32,
        slow_min_ns: params.whole("client_slow_min_ns"),
        slow_max_ns: params.whole("client_slow_max_ns"),
        slow_renewed_per_s: (1e6 * load / params.get("client_queues")).round() as u32,
        ack_ns: params.whole("ack_ns"),
        tx_done_ns: params.whole("tx_completion_ns"),
        ..NetSpec::default()
    };
    world.frames = FrameSizes::KeyValue(KeyValueSizes::FACEBOOK);
    world
}

fn costs(params: &Params) -> Costs {
    Costs {
        irq_ns: params.whole("irq_ns"),
        timer_irq_ns: params.whole("timer_irq_ns"),
        timer_start_ns: params.whole("timer_start_ns"),
        softirq_ns: params.whole("softirq_ns"),
        poll_ns: params.whole("poll_ns"),
        rx_request_ns: params.whole("rx_request_ns"),
        rx_ack_ns: params.whole("rx_ack_ns"),
        tx_done_ns: params.whole("tx_done_ns"),
        wake_ns: params.whole("wake_ns"),
        switch_ns: params.whole("switch_ns"),
        epoll_call_ns: params.whole("epoll_call_ns"),
        epoll_sleep_ns: params.whole("epoll_sleep_ns"),
        epoll_event_ns: params.whole("epoll_event_ns"),
        busy_call_ns: params.whole("busy_call_ns"),
        busy_round_ns: params.whole("busy_round_ns"),
        request_sys_ns: params.whole("request_sys_ns"),
        request_user_ns: params.whole("request_user_ns"),
        request_random_ns: params.whole("request_random_ns"),
        idle_shallow_exit_ns: params.whole("idle_exit_ns"),
        uncharged_in_idle: (params.get("uncharged_in_idle") * 1_024.0).round() as u32,
        ..Costs::default()
    }
}

/// Makes one queue before and after the load, while connections are opened and closed.
pub(crate) fn unloaded_world(params: &Params, mode: &Mode, window_ns: u64) -> World {
    let noise = Traffic::Noise { per_s: params.get("openings_per_s") };
    World {
        cpus: vec![false],
        costs: costs(params),
        queues: vec![queue(mode, 0)],
        connections: vec![ConnectionsSpec { count: 1, queue: 0, context: 0, traffic: noise }],
        warmup_ns: 200_000_000,
        window_ns,
        ..World::default()
    }
}
