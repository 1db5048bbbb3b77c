//! Makes from a world file as it is written one that can be simulated: limits, defaults, and contradictions.
//!
//! A limit here comes from physics (a machine has a core), from the kernel or the hardware, or from what can still be
//! simulated.

use std::ops::RangeInclusive;
use std::path::Path;

use toml::Spanned;

use super::af_xdp;
use super::calibrate::Division;
use super::check::{Check, LATENCY};
use super::costs::{COST, Charged, charged, put_in_force, request};
use super::error::{Source, WorldFileError};
use super::file::{AGENDA_EVENT_BYTES, Bounds, EVENTS_DEFAULT, Second, WorldFile};
use super::raw::Raw;
use super::{group, load, plane, transmit};
use crate::engine::dim::Moderation;
use crate::engine::traffic::{FrameSizes, KeyValueSizes};
use crate::instructions::Instructions;
use crate::units::{Count, Time};
use crate::world::{ModerationSpec, NetSpec, Period, UpstreamSpec};
use lull_units::time_text;

const CORES: RangeInclusive<u64> = 1..=256;
const CONNECTIONS: RangeInclusive<u64> = 1..=1_000_000;
const EVENTS_PER_CALL: RangeInclusive<u64> = 1..=65_536;
/// NICs have rings from 32 to 32,768 descriptors.
const RING: RangeInclusive<u64> = 32..=32_768;
const FRAMES: RangeInclusive<u64> = 1..=65_535;
const USECS: RangeInclusive<u64> = 0..=65_535_000;
const SPEED: RangeInclusive<u64> = 10_000_000..=1_600_000_000_000;
const HZ: RangeInclusive<u64> = 100_000_000..=10_000_000_000;
const MESSAGE: RangeInclusive<u64> = 1..=1_048_576;
const WARMUP: RangeInclusive<u64> = 0..=60_000_000_000;
/// This is long enough for adaptive moderation to find its step and for queues to fill.
const WARMUP_DEFAULT_NS: u64 = 50_000_000;
const RETURNS: RangeInclusive<u64> = 0..=1_000_000;
const SECOND_LOAD: RangeInclusive<u64> = 1..=100_000_000;
const EVENTS: RangeInclusive<u64> = 10_000..=100_000_000_000;
const INSTRUCTIONS: RangeInclusive<u64> = 0..=1_000_000_000_000;
const BACKLOG: RangeInclusive<u64> = 1..=1_000_000_000;
const MEMORY: RangeInclusive<u64> = 1_048_576..=1_099_511_627_776;

/// The share of the wire above which its queues would matter, which the simulator does not have.
pub const WIRE_SHARE_MAX: f64 = 0.95;
/// Ethernet frame, preamble, gap, IP and TCP with time stamps around each segment.
const HEADER_BYTES: u64 = 38 + 20 + 32;
/// Ethernet frame, preamble, gap, IP and UDP around a datagram of an AF_XDP responder.
const DATAGRAM_HEADER_BYTES: u64 = 38 + 20 + 8;
/// Payload of a frame that fits a UMEM chunk of 2048 bytes behind the headroom and its headers.
const DATAGRAM: RangeInclusive<u64> = 1..=1_448;
/// Payload of a segment.
const SEGMENT_BYTES: u64 = 1_448;
/// The memory of a connection, of a packet in a ring, and of a core with its queues.
const CONNECTION_BYTES: u64 = 64 + 4 * AGENDA_EVENT_BYTES;
const PACKET_BYTES: u64 = 16;
const CORE_BYTES: u64 = 65_536;

pub(super) fn resolve(source: &Source<'_>, raw: &Raw) -> Result<WorldFile, WorldFileError> {
    let check = Check(source);
    af_xdp::refuse_strangers(&check, raw)?;
    let Charged { profile, mut costs, cache, overridden } = charged(&check, raw)?;
    let cores = check.count("machine.cores", &raw.machine.cores, &CORES)? as u16;
    let workers = check.count_or("service.workers", &raw.service.workers, &CORES, cores)? as u16;
    let queues = check.count_or("nic.queues", &raw.nic.queues, &CORES, workers)? as u16;
    let xdp = match raw.is_af_xdp() {
        true => Some(af_xdp::resolve(&check, raw, (cores, workers, queues), &mut costs)?),
        false => None,
    };
    let has_twins = xdp.is_some_and(|(xdp, _)| xdp.twin_delay_ns.is_some());
    let connections = connections(&check, raw, (workers, queues), has_twins)?;
    let frequency = raw.machine.frequency.as_ref();
    let hz = frequency.map_or(Ok(profile.hz), |hz| {
        check.within("machine.frequency", hz, hz.get_ref().0, &HZ, |hz| format!("{}GHz", hz as f64 / 1e9))
    })?;
    let (rx, tx, (rx_period, tx_period)) = moderation(&check, raw)?;
    let speed = &raw.nic.speed;
    let gbit = |bits: u64| format!("{}Gbit/s", bits as f64 / 1e9);
    let bits_per_s = check.within("nic.speed", speed, speed.get_ref().0, &SPEED, gbit)?;
    let (bits, frames) = on_the_wire(&check, raw, xdp.is_some())?;
    let host = plane::host(&check, raw)?;
    let mut net = network(&check, raw, bits, bits_per_s)?;
    net.acks = raw.load.acks.as_ref().map_or(host.is_none(), |acks| *acks.get_ref());
    net.generator = load::generator(&check, raw)?;
    let (upstream, (request_cost, division)) = match xdp {
        None => (upstream(&check, raw)?, request(&check, raw)?),
        Some((_, cost)) => (None, (cost, Division { user_permille: 1_000, random_permille: 0 })),
    };
    let worker_cores = plane::worker_cores(&check, raw, workers.min(cores))?;
    let rss_spread = rss_spread(&check, raw)?;
    let spread = plane::spread(&check, raw, (workers.max(queues), connections))?;
    let ring_packets = check.count_or("nic.ring", &raw.nic.ring, &RING, 1_024u64)? as u32;
    let bounds = bounds(&check, raw)?;
    fits_memory(&check, raw, (cores.max(workers), connections), (queues, ring_packets), &bounds)?;
    let warmup_ns = match &raw.run.warmup {
        None => WARMUP_DEFAULT_NS,
        Some(value) => check.within("run.warmup", value, value.get_ref().0, &WARMUP, time_text)?,
    };
    let mut file = WorldFile {
        name: name(source.file),
        cores,
        workers,
        worker_cores,
        l3_cores: check.count_or("machine.l3_cores", &raw.machine.l3_cores, &CORES, 0u64)? as u16,
        group: group::resolve(&check, raw, (cores, queues))?,
        transmit: transmit::resolve(&check, raw)?,
        host,
        queues,
        connections,
        request_cost,
        rx,
        tx,
        rx_period,
        tx_period,
        ring_packets,
        rss_spread,
        spread,
        completes_off_affinity: plane::completes_off_affinity(&check, raw)?,
        calibrated_over: plane::calibrated(&check, raw)?,
        instructions: instructions(&check, raw)?,
        tx_completions: raw.nic.tx_completions.unwrap_or(host.is_none()),
        arrivals: load::arrivals(&check, raw)?,
        frames,
        sized: raw.service.request_size.is_some() || raw.service.answer_size.is_some(),
        bits_per_s,
        bits,
        net,
        upstream,
        xdp: xdp.map(|(xdp, _)| xdp),
        events_max: check.count_or("service.events_max", &raw.service.events_max, &EVENTS_PER_CALL, EVENTS_DEFAULT)?
            as u32,
        answers_together: check.count_or(
            "service.answers_together",
            &raw.service.answers_together,
            &EVENTS_PER_CALL,
            1u64,
        )? as u32,
        poll_after_returns: check.count_or(
            "service.poll_after_returns",
            &raw.service.poll_after_returns,
            &RETURNS,
            0u64,
        )? as u32,
        second: second(&check, raw)?,
        hz,
        profile,
        overridden,
        costs,
        cache,
        warmup_ns,
        bounds,
    };
    put_in_force(&check, raw, &mut file, division)?;
    Ok(file)
}

/// Reads the instructions that a query takes (`[instructions]`).
fn instructions(check: &Check<'_>, raw: &Raw) -> Result<Option<Instructions>, WorldFileError> {
    let Some(raw) = &raw.instructions else { return Ok(None) };
    let count = |key: &'static str, value| check.count(key, value, &INSTRUCTIONS).map(|count| count as f64);
    Ok(Some(Instructions {
        request: count("instructions.request", &raw.request)?,
        poll: count("instructions.poll", &raw.poll)?,
        interrupt: raw.interrupt.as_ref().map_or(Ok(0.0), |value| count("instructions.interrupt", value))?,
    }))
}

/// Reads how many connections the clients have: each worker and each queue has at least one, except with twins, which
/// need none.
fn connections(
    check: &Check<'_>,
    raw: &Raw,
    (workers, queues): (u16, u16),
    has_twins: bool,
) -> Result<u32, WorldFileError> {
    let connections = match &raw.service.connections {
        Some(connections) => check.count("service.connections", connections, &CONNECTIONS)? as u32,
        None if has_twins => 0,
        None => {
            let problem = "missing, and it has no default: over how many connections clients ask";
            return Err(check.error("service.connections", &raw.service.kind, problem));
        }
    };
    if let (Some(value), true) = (&raw.service.connections, connections < u32::from(workers.max(queues))) {
        let problem = format!(
            "{connections} connections leave some of {workers} workers on {queues} queues without any: allowed is {} \
             or more",
            workers.max(queues)
        );
        return Err(check.error("service.connections", value, problem));
    }
    Ok(connections)
}

/// Whether queues have as many connections as a hash gives them.
fn rss_spread(check: &Check<'_>, raw: &Raw) -> Result<bool, WorldFileError> {
    match &raw.nic.rss {
        None => Ok(true),
        Some(rss) => match rss.get_ref().as_str() {
            "hash" => Ok(true),
            "even" => Ok(false),
            other => {
                let problem =
                    format!("'{other}' is no way of spreading connections: allowed are \"hash\" and \"even\"");
                Err(check.error("nic.rss", rss, problem))
            }
        },
    }
}

fn bounds(check: &Check<'_>, raw: &Raw) -> Result<Bounds, WorldFileError> {
    let default = Bounds::default();
    let memory = &raw.run.memory_max;
    Ok(Bounds {
        events_max: check.count_or("run.events_max", &raw.run.events_max, &EVENTS, default.events_max)?,
        memory_max_bytes: check.bytes_or("run.memory_max", memory, &MEMORY, default.memory_max_bytes)?,
        backlog_max: check.count_or("run.backlog_max", &raw.run.backlog_max, &BACKLOG, default.backlog_max)?,
    })
}

/// Refuses a world that takes more memory than a run may.
fn fits_memory(
    check: &Check<'_>,
    raw: &Raw,
    (cores, connections): (u16, u32),
    (queues, ring_packets): (u16, u32),
    bounds: &Bounds,
) -> Result<(), WorldFileError> {
    let packets = u64::from(queues) * u64::from(ring_packets);
    let memory_bytes =
        u64::from(connections) * CONNECTION_BYTES + packets * PACKET_BYTES + u64::from(cores.max(queues)) * CORE_BYTES;
    if memory_bytes <= bounds.memory_max_bytes {
        return Ok(());
    }
    let problem = format!(
        "{connections} connections on {queues} queues take about {} MiB, and run.memory_max allows {} MiB",
        memory_bytes >> 20,
        bounds.memory_max_bytes >> 20
    );
    Err(match &raw.service.connections {
        Some(connections) => check.error("service.connections", connections, problem),
        None => check.error("service.kind", &raw.service.kind, problem),
    })
}

/// Returns a request and its answer on the wire, in bits, and the sizes of frames.
fn on_the_wire(check: &Check<'_>, raw: &Raw, is_xdp: bool) -> Result<((u64, u64), FrameSizes), WorldFileError> {
    let sizes = if is_xdp { &DATAGRAM } else { &MESSAGE };
    let facebook = load::facebook_sizes(check, raw)?;
    let (request_default, answer_default) = match facebook {
        _ if is_xdp => (64, 64),
        // These are the means that the published clients counted.
        true => (42, 240),
        false => (64, 512),
    };
    let request_bytes = check.bytes_or("service.request_size", &raw.service.request_size, sizes, request_default)?;
    let answer_bytes = check.bytes_or("service.answer_size", &raw.service.answer_size, sizes, answer_default)?;
    let on_wire = |bytes: u64| if is_xdp { (bytes + DATAGRAM_HEADER_BYTES) * 8 } else { bits_on_wire(bytes) };
    let frames = match facebook {
        true => FrameSizes::KeyValue(KeyValueSizes::FACEBOOK),
        false => load::fixed_sizes(request_bytes, answer_bytes),
    };
    Ok(((on_wire(request_bytes), on_wire(answer_bytes)), frames))
}

/// Returns the file's name without directories and extension.
fn name(file: &str) -> String {
    Path::new(file).file_stem().map_or_else(|| file.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Reads receive and transmit moderation, and when their periods begin.
fn moderation(
    check: &Check<'_>,
    raw: &Raw,
) -> Result<(ModerationSpec, ModerationSpec, (Period, Period)), WorldFileError> {
    let nic = &raw.nic;
    let rx_fixed = nic.rx_usecs.is_some() || nic.rx_frames.is_some();
    let tx_fixed = nic.tx_usecs.is_some() || nic.tx_frames.is_some();
    let adaptive = nic.adaptive.as_ref().map_or(!rx_fixed, |adaptive| *adaptive.get_ref());
    let restart = nic.restart.as_ref().map_or(adaptive, |restart| *restart.get_ref());
    let periods = (
        if restart { Period::Completion } else { Period::First },
        // Adaptive drivers limit the rate of transmit interrupts.
        if adaptive && !tx_fixed { Period::Interrupt } else { Period::First },
    );
    if let (true, Some(value)) = (adaptive, &nic.adaptive)
        && (rx_fixed || tx_fixed)
    {
        let problem = "with adaptive moderation the driver chooses usecs and frames: remove rx_usecs, rx_frames, \
            tx_usecs and tx_frames, or set adaptive = false";
        return Err(check.error("nic.adaptive", value, problem));
    }
    let side = |usecs: (&str, &Option<Spanned<Time>>), frames: (&str, &Option<Spanned<Count>>), or: Moderation| {
        let ns = check.time_or(usecs.0, usecs.1, &USECS, or.usecs * 1_000)?;
        if let (Some(value), false) = (usecs.1, ns % 1_000 == 0) {
            return Err(check.error(
                usecs.0,
                value,
                "moderation is in whole microseconds: allowed is 0us, 1us, 2us ...",
            ));
        }
        // With usecs alone a driver lets only the time count.
        let by_time = if ns > 0 { 65_535 } else { 1 };
        let or_frames = if usecs.1.is_some() && (or.usecs == 0 || ns == 0) { by_time } else { or.frames };
        let count = check.count_or(frames.0, frames.1, &FRAMES, or_frames)? as u32;
        if let (Some(value), 0, 2..) = (frames.1, ns, count) {
            let problem = format!(
                "without a time fewer frames would wait for ever: allowed is 1, or more with {} above 0us",
                usecs.0.trim_start_matches("nic.")
            );
            return Err(check.error(frames.0, value, problem));
        }
        Ok(Moderation { usecs: ns / 1_000, frames: count })
    };
    let none = Moderation { usecs: 0, frames: 1 };
    let rx_side = |or| side(("nic.rx_usecs", &nic.rx_usecs), ("nic.rx_frames", &nic.rx_frames), or);
    let tx_side = |or| side(("nic.tx_usecs", &nic.tx_usecs), ("nic.tx_frames", &nic.tx_frames), or);
    let (rx, tx) = match (adaptive, tx_fixed) {
        (true, false) => (ModerationSpec::Adaptive, ModerationSpec::Adaptive),
        (true, true) => (ModerationSpec::Adaptive, ModerationSpec::Fixed(tx_side(none)?)),
        (false, _) => {
            let rx = rx_side(none)?;
            (ModerationSpec::Fixed(rx), ModerationSpec::Fixed(tx_side(rx)?))
        }
    };
    Ok((rx, tx, periods))
}

fn bits_on_wire(payload_bytes: u64) -> u64 {
    (payload_bytes + payload_bytes.div_ceil(SEGMENT_BYTES) * HEADER_BYTES) * 8
}

/// Reads the network. `network.latency` is the way there and back, without the server; transmission times are added.
fn network(check: &Check<'_>, raw: &Raw, bits: (u64, u64), bits_per_s: u64) -> Result<NetSpec, WorldFileError> {
    let network = &raw.network;
    let latency_ns = check.time("network.latency", &network.latency, &LATENCY)?;
    let sending_ns = |bits: u64| (bits as f64 * 1e9 / bits_per_s as f64).round() as u32;
    let one_way_ns = latency_ns / 2;
    let slow_permille = check.share_or("network.slow_share", &network.slow_share, 0)?;
    let slow_min_ns = check.time_or("network.slow_from", &network.slow_from, &LATENCY, 0)?;
    let slow_max_ns = check.time_or("network.slow_to", &network.slow_to, &LATENCY, slow_min_ns)?;
    match (&network.slow_share, &network.slow_to) {
        (Some(share), None) => {
            let problem = "needs slow_from and slow_to, between which these answers take longer";
            return Err(check.error("network.slow_share", share, problem));
        }
        (None, _) if network.slow_from.is_some() || network.slow_to.is_some() => {
            let keys = [("network.slow_from", &network.slow_from), ("network.slow_to", &network.slow_to)];
            if let Some((key, value)) = keys.iter().find_map(|(key, value)| Some((*key, value.as_ref()?))) {
                let problem = "needs slow_share, how many of the answers take longer, such as \"1%\"";
                return Err(check.error(key, value, problem));
            }
        }
        (_, Some(to)) if slow_max_ns < slow_min_ns => {
            let problem = format!("is below slow_from: allowed is {} or more", time_text(u64::from(slow_min_ns)));
            return Err(check.error("network.slow_to", to, problem));
        }
        _ => {}
    }
    Ok(NetSpec {
        request_ns: one_way_ns + sending_ns(bits.0),
        answer_ns: latency_ns - one_way_ns + sending_ns(bits.1),
        client_random_ns: check.time_or("network.jitter", &network.jitter, &LATENCY, 0)?,
        slow_share: slow_permille * 1_024 / 1_000,
        slow_min_ns,
        slow_max_ns,
        ack_ns: one_way_ns,
        tx_done_ns: 1_000 + sending_ns(bits.1),
        ..NetSpec::default()
    })
}

fn upstream(check: &Check<'_>, raw: &Raw) -> Result<Option<UpstreamSpec>, WorldFileError> {
    let service = &raw.service;
    match (service.kind.get_ref().as_str(), &service.upstream_latency, &service.upstream_jitter) {
        ("epoll", None, None) => Ok(None),
        ("epoll", Some(latency), _) => {
            let problem = "a service of kind \"epoll\" has no server behind it: remove this, or use kind = \"proxy\"";
            Err(check.error("service.upstream_latency", latency, problem))
        }
        ("epoll", None, Some(jitter)) => {
            let problem = "a service of kind \"epoll\" has no server behind it: remove this, or use kind = \"proxy\"";
            Err(check.error("service.upstream_jitter", jitter, problem))
        }
        ("proxy", Some(latency), jitter) => Ok(Some(UpstreamSpec {
            answer_ns: check.time("service.upstream_latency", latency, &LATENCY)?,
            random_ns: check.time_or("service.upstream_jitter", jitter, &LATENCY, 0)?,
        })),
        ("proxy", None, _) => {
            let problem = "a proxy needs upstream_latency, the time from its NIC to the server behind it and back";
            Err(check.error("service.kind", &service.kind, problem))
        }
        (other, _, _) => {
            let problem = format!("'{other}' is no kind of service: allowed are \"epoll\", \"proxy\" and \"af_xdp\"");
            Err(check.error("service.kind", &service.kind, problem))
        }
    }
}

fn second(check: &Check<'_>, raw: &Raw) -> Result<Option<Second>, WorldFileError> {
    let Some(second) = &raw.second else { return Ok(None) };
    Ok(Some(Second {
        connections: check.count("second.connections", &second.connections, &CONNECTIONS)? as u32,
        per_s: check.count("second.load", &second.load, &SECOND_LOAD)? as u32,
        request_ns: check.time("second.request_cost", &second.request_cost, &COST)?,
    }))
}
