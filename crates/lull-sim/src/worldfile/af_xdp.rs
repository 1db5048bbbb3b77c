//! AF_XDP responders in world files: for each worker a socket, a queue and a thread, which answers every frame inline.
//!
//! How the program waits decides which modes it can have. A program that sleeps in epoll can have those that act in
//! `epoll_wait`. One that looks at its ring in user space can have its sockets' calls busy poll, its own calls or those
//! of a thread on another core. Its clients are either somewhere in the network, like those of every service, or
//! *twins*: machines like this one in the same mode, whose sender keeps a fixed rate and whose receiver is busy for a
//! while after each answer (the published AF_XDP measurements).

use std::ops::RangeInclusive;

use toml::Spanned;

use super::check::{Check, LATENCY};
use super::error::WorldFileError;
use super::raw::Raw;
use super::request_cost::RequestCost;
use super::responder::{AfXdp, Wait};
use crate::costs::Costs;
use crate::units::Time;

/// What a frame may cost the driver or the program.
const FRAME: RangeInclusive<u64> = 10..=100_000_000;
/// How many frames it takes at a time: the ring of a socket holds 2048.
const BATCH: RangeInclusive<u64> = 1..=2_048;
const BATCH_DEFAULT: u64 = 64;

/// Refuses keys of other services if it is a responder, and a responder's keys if it is another service.
pub(super) fn refuse_strangers(check: &Check<'_>, raw: &Raw) -> Result<(), WorldFileError> {
    let service = &raw.service;
    if !raw.is_af_xdp() {
        let kind = service.kind.get_ref();
        let stranger = |key: &str, at| {
            let problem = format!(
                "this is a key of AF_XDP responders, and this service is of kind \"{kind}\": remove it, or use kind = \
                 \"af_xdp\""
            );
            Err(check.at(&format!("service.{key}"), &at, problem))
        };
        let texts = [("wait", &service.wait), ("polling", &service.polling), ("client", &service.client)];
        let times = [
            ("receive_cost", &service.receive_cost),
            ("handle_cost", &service.handle_cost),
            ("send_cost", &service.send_cost),
            ("client_delay", &service.client_delay),
        ];
        let spans = texts.iter().filter_map(|(key, value)| Some((*key, value.as_ref()?.span())));
        let spans = spans.chain(times.iter().filter_map(|(key, value)| Some((*key, value.as_ref()?.span()))));
        let spans = spans.chain(service.batch.as_ref().map(|batch| ("batch", batch.span())));
        return spans.map(|(key, at)| stranger(key, at)).next().unwrap_or(Ok(()));
    }
    let stranger = |key: &str, at, instead: &str| {
        Err(check.at(&format!("service.{key}"), &at, format!("an AF_XDP responder has {instead}")))
    };
    let costs = "receive_cost (a frame in the driver's poll), handle_cost (in the program) and send_cost (a send call) \
                 instead";
    for (key, value) in [
        ("request_cost", &service.request_cost),
        ("request_cost_total", &service.request_cost_total),
        ("request_cost_own", &service.request_cost_own),
    ] {
        if let Some(value) = value {
            return stranger(key, value.span(), costs);
        }
    }
    no_tcp_clients(check, raw)?;
    for (key, value) in [("user_share", &service.user_share), ("random_share", &service.random_share)] {
        if let Some(value) = value {
            return stranger(key, value.span(), "no parts of a request cost: remove this");
        }
    }
    for (key, value) in [("upstream_latency", &service.upstream_latency), ("upstream_jitter", &service.upstream_jitter)]
    {
        if let Some(value) = value {
            return stranger(key, value.span(), "no server behind it: remove this, or use kind = \"proxy\"");
        }
    }
    for (key, value) in [("events_max", &service.events_max), ("poll_after_returns", &service.poll_after_returns)] {
        if let Some(value) = value {
            return stranger(key, value.span(), "one event a socket: batch is what bounds its frames");
        }
    }
    if let Some(value) = &service.answers_together {
        return stranger(
            "answers_together",
            value.span(),
            "its own rule: what it sends leaves with the poll of its batch",
        );
    }
    match &raw.second {
        Some(second) => {
            let problem = "every frame of its queues goes to its own sockets, so no second application can share them: \
                           remove [second]";
            Err(check.error("second.connections", &second.connections, problem))
        }
        None => Ok(()),
    }
}

/// Its clients send datagrams, and are not threads of a generator.
fn no_tcp_clients(check: &Check<'_>, raw: &Raw) -> Result<(), WorldFileError> {
    let load = &raw.load;
    if let Some(acks) = &load.acks {
        return Err(check.error("load.acks", acks, "nobody acknowledges a datagram: remove this"));
    }
    let times = [
        ("load.generator_send", &load.generator_send),
        ("load.generator_answer", &load.generator_answer),
        ("load.generator_raise", &load.generator_raise),
    ];
    match times.iter().find_map(|(key, value)| Some((*key, value.as_ref()?))) {
        Some((key, value)) => {
            let problem = "a generator has a thread for each worker's epoll context, and an AF_XDP responder has none: \
                           remove this";
            Err(check.error(key, value, problem))
        }
        None => Ok(()),
    }
}

/// Reads a key that allows certain words.
fn word<T: Copy>(
    check: &Check<'_>,
    key: &str,
    value: &Option<Spanned<String>>,
    words: &[(&str, T)],
    default: T,
) -> Result<T, WorldFileError> {
    let Some(value) = value else { return Ok(default) };
    let found = words.iter().find(|(name, _)| *name == value.get_ref());
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let allowed: Vec<String> = words.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        check.error(key, value, format!("'{}' is unknown here: allowed are {}", value.get_ref(), allowed.join(" and ")))
    })
}

/// Reads its keys; the costs that they give go into `costs`.
pub(super) fn resolve(
    check: &Check<'_>,
    raw: &Raw,
    (cores, workers, queues): (u16, u16, u16),
    costs: &mut Costs,
) -> Result<(AfXdp, RequestCost), WorldFileError> {
    let service = &raw.service;
    if queues != workers {
        let problem =
            format!("an AF_XDP socket is bound to one queue, and each worker has one socket: allowed is {workers}");
        return Err(match &raw.nic.queues {
            Some(value) => check.error("nic.queues", value, problem),
            None => check.error("service.kind", &service.kind, problem),
        });
    }
    let wait =
        word(check, "service.wait", &service.wait, &[("epoll", Wait::Epoll), ("spin", Wait::Spin)], Wait::Epoll)?;
    let separate = word(check, "service.polling", &service.polling, &[("inline", false), ("separate", true)], false)?;
    if let Some(polling) = &service.polling {
        if wait == Wait::Epoll {
            let problem = "says whose calls busy poll, and a program that waits in epoll makes none: remove this, or \
            set wait = \"spin\"";
            return Err(check.error("service.polling", polling, problem));
        }
        if separate && cores < 2 * workers {
            let problem = format!(
                "\"separate\" takes a core besides each worker's: allowed with machine.cores of {} or \
                more",
                2 * workers
            );
            return Err(check.error("service.polling", polling, problem));
        }
    }
    let twin = word(check, "service.client", &service.client, &[("remote", false), ("twin", true)], false)?;
    let delay_ns = check.time_or("service.client_delay", &service.client_delay, &LATENCY, 0)?;
    match (&service.client, &service.client_delay) {
        (_, Some(delay)) if !twin => {
            let problem = "only a twin has a delay that is known: remove this, or set client = \"twin\"";
            return Err(check.error("service.client_delay", delay, problem));
        }
        (Some(client), _) if twin && wait == Wait::Epoll => {
            let problem = "a twin looks at its ring as its machine's program does: set wait = \"spin\", or client = \
                           \"remote\"";
            return Err(check.error("service.client", client, problem));
        }
        _ => {}
    }
    if twin {
        refuse_with_twin(check, raw)?;
    }
    let Some(handle) = &service.handle_cost else {
        let problem = "missing, and it has no default: what the program does with a frame, such as \"150ns\"";
        return Err(check.error("service.handle_cost", &service.kind, problem));
    };
    let cost =
        |key: &str, value: &Option<Spanned<Time>>, default_ns: u32| check.time_or(key, value, &FRAME, default_ns);
    costs.rx_request_ns = cost("service.receive_cost", &service.receive_cost, costs.rx_request_ns)?;
    costs.recv_take_ns = check.time("service.handle_cost", handle, &FRAME)?;
    costs.send_ns = cost("service.send_cost", &service.send_cost, costs.send_ns)?;
    let frame_ns = costs.rx_request_ns + costs.recv_take_ns + costs.send_ns;
    let batch = check.count_or("service.batch", &service.batch, &BATCH, BATCH_DEFAULT)? as u32;
    let xdp = AfXdp { wait, separate, batch, twin_delay_ns: twin.then_some(delay_ns) };
    Ok((xdp, RequestCost::Frame(frame_ns)))
}

/// Refuses keys that have no meaning with twins.
fn refuse_with_twin(check: &Check<'_>, raw: &Raw) -> Result<(), WorldFileError> {
    let problem = "a twin sends one flow at a fixed rate over a wire that takes the same time always: remove this, or \
    set client = \"remote\"";
    if let Some(value) = &raw.service.connections {
        return Err(check.error("service.connections", value, problem));
    }
    let times = [
        ("network.jitter", &raw.network.jitter),
        ("network.slow_from", &raw.network.slow_from),
        ("network.slow_to", &raw.network.slow_to),
    ];
    if let Some((key, value)) = times.iter().find_map(|(key, value)| Some((*key, value.as_ref()?))) {
        return Err(check.error(key, value, problem));
    }
    if let Some(value) = raw.load.arrivals.as_ref().or(raw.load.trace.as_ref()) {
        return Err(check.error("load.arrivals", value, problem));
    }
    match (&raw.network.slow_share, &raw.nic.rss) {
        (Some(value), _) => Err(check.error("network.slow_share", value, problem)),
        (None, Some(value)) => Err(check.error("nic.rss", value, problem)),
        (None, None) => Ok(()),
    }
}
