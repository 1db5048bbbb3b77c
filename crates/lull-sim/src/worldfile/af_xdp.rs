//! AF_XDP responders of world files: a socket, a queue and a thread each, which answers every frame inline.
//!
//! How the program waits decides which modes it can have. One that sleeps in epoll has what acts in `epoll_wait`; one that looks at
//! its ring in user space can have its sockets' calls busy poll, its own or those of a thread on another core. Its clients are
//! either somewhere in the network, as those of every service, or *twins*: machines like this one in the same mode, whose
//! sender keeps a fixed rate and whose receiver is busy for a while after each answer (the published AF_XDP measurements).

use std::ops::RangeInclusive;

use lull_core::{Mode, Threaded};
use toml::Spanned;

use super::error::WorldFileError;
use super::raw::Raw;
use super::resolve::{Check, LATENCY};
use super::{RequestCost, WorldFile};
use crate::costs::Costs;
use crate::units::Time;
use crate::world::{
    Load, PeerKind, PeerSpec, QueueSpec, Receive, SocketSpec, Transmit, World, XskSpec, XskThreadSpec, XskWait,
};
use lull_units::time_text;

/// What a frame may cost the driver or the program.
const FRAME: RangeInclusive<u64> = 10..=100_000_000;
/// Frames at a time: the ring of a socket holds 2048.
const BATCH: RangeInclusive<u64> = 1..=2_048;
const BATCH_DEFAULT: u64 = 64;
/// Packets a round of busy polling, as AF_XDP programs ask for.
const BUSY_BUDGET: u32 = 64;
/// CPUs of a twin: receiver, sender, poller.
const TWIN_CPUS: u16 = 3;
/// A twin sends at least this often: once a second would leave nothing to count.
const TWIN_PER_S_MIN: f64 = 10.0;

/// How the program waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// In `epoll_wait` (`service.wait = "epoll"`, the default).
    Epoll,
    /// By looking at its ring in user space (`service.wait = "spin"`).
    Spin,
}

/// An AF_XDP responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfXdp {
    /// How it waits.
    pub wait: Wait,
    /// Whether a thread on a core of its own makes the calls that busy poll (`service.polling = "separate"`).
    pub separate: bool,
    /// Frames that it takes at a time (`service.batch`).
    pub batch: u32,
    /// Whether its clients are twins, and how long a twin is busy after each answer, in nanoseconds
    /// (`service.client = "twin"`, `service.client_delay`).
    pub twin_delay_ns: Option<u32>,
}

/// Whether the file describes such a service.
pub(super) fn is_meant(raw: &Raw) -> bool {
    raw.service.kind.get_ref() == "af_xdp"
}

/// Keys of other services that it has, or its own keys that another has, are refused.
pub(super) fn refuse_strangers(check: &Check<'_>, raw: &Raw) -> Result<(), WorldFileError> {
    let service = &raw.service;
    if !is_meant(raw) {
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
    if let Some(value) = &service.request_cost {
        return stranger("request_cost", value.span(), costs);
    }
    if let Some(value) = &service.request_cost_total {
        return stranger("request_cost_total", value.span(), costs);
    }
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
    match &raw.second {
        Some(second) => {
            let problem = "every frame of its queues goes to its own sockets, so no second application can share them: \
                           remove [second]";
            Err(check.error("second.connections", &second.connections, problem))
        }
        None => Ok(()),
    }
}

/// One of the words that a key allows.
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

/// Its keys; the costs that they give go into `costs`.
pub(super) fn resolve(
    check: &Check<'_>,
    raw: &Raw,
    (cores, workers, queues): (u16, u16, u16),
    costs: &mut Costs,
) -> Result<(AfXdp, RequestCost), WorldFileError> {
    let service = &raw.service;
    if queues != workers {
        let problem = format!(
            "an AF_XDP socket is bound to one queue, and each of the {workers} workers has one socket: allowed is \
            {workers}"
        );
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
            set \
                           wait = \"spin\"";
            return Err(check.error("service.polling", polling, problem));
        }
        if separate && cores < 2 * workers {
            let problem = format!(
                "\"separate\" takes a core besides each of {workers} workers': allowed with machine.cores of {} or \
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

/// What a world with twins has no place for.
fn refuse_with_twin(check: &Check<'_>, raw: &Raw) -> Result<(), WorldFileError> {
    let problem = "a twin sends one flow at a fixed rate over a wire that takes the same time always: remove this, \
    or set \
                   client = \"remote\"";
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
    match (&raw.network.slow_share, &raw.nic.rss) {
        (Some(value), _) => Err(check.error("network.slow_share", value, problem)),
        (None, Some(value)) => Err(check.error("nic.rss", value, problem)),
        (None, None) => Ok(()),
    }
}

impl AfXdp {
    /// Whether it can be run in a mode.
    pub(super) fn can_run(&self, mode: &Mode, (cores, workers): (u16, u16)) -> Result<(), String> {
        match self.wait {
            Wait::Epoll if mode.socket_busy_poll_usecs != 0 => Err(format!(
                "{mode} busy polls in receive calls, and the simulated responder waits in epoll: leave {mode} out, or \
                 describe one that looks at its ring (wait = \"spin\")"
            )),
            Wait::Epoll => Ok(()),
            Wait::Spin if mode.epoll.prefer_busy_poll || mode.epoll.busy_poll_usecs != 0 => Err(format!(
                "{mode} acts in epoll_wait, which the simulated responder never calls (wait = \"spin\"): leave {mode} \
                 out; what its own calls can do is busyread"
            )),
            Wait::Spin => {
                let needed = match mode.napi.threaded {
                    Threaded::Off => 0,
                    // A thread that sleeps may share its core with other NAPI threads, one that spins may not.
                    Threaded::On => 1,
                    Threaded::BusyPoll => workers,
                };
                if cores.saturating_sub(workers) >= needed {
                    return Ok(());
                }
                Err(format!(
                    "{mode} takes {needed} of machine.cores besides the {workers} on which workers spin, since a NAPI \
                     thread would wait behind them: leave {mode} out, or add cores"
                ))
            }
        }
    }

    /// Whether its clients can be asked for this load.
    pub(super) fn can_offer(&self, load: Load) -> Result<(), String> {
        match (self.twin_delay_ns, load) {
            (Some(_), Load::Open { per_s }) if per_s >= TWIN_PER_S_MIN => Ok(()),
            (Some(_), Load::Open { .. }) => {
                Err(format!("a twin client sends {TWIN_PER_S_MIN} frames a second at the least: ask for more"))
            }
            (Some(_), _) => Err("a twin client sends at a fixed rate and has no maximum, nor shares of one: ask for \
                                 loads in frames per second, such as 32K"
                .to_owned()),
            (None, _) => Ok(()),
        }
    }

    /// What its program sets on its sockets for a mode that busy polls in their calls.
    pub(super) fn socket_options(&self, mode: &Mode) -> String {
        let whose = if self.separate {
            "and a thread on a core of its own makes their calls"
        } else {
            "and makes their calls itself"
        };
        format!(
            "the program sets on its AF_XDP sockets: SO_BUSY_POLL {}, SO_PREFER_BUSY_POLL 1, SO_BUSY_POLL_BUDGET \
             {BUSY_BUDGET}, {whose}",
            mode.socket_busy_poll_usecs
        )
    }

    /// What it is, for a line that describes the world.
    pub(super) fn describe(&self, costs: &Costs) -> String {
        let text = |ns: u32| time_text(u64::from(ns));
        let wait = match (self.wait, self.separate) {
            (Wait::Epoll, _) => "waiting in epoll",
            (Wait::Spin, false) => "spinning",
            (Wait::Spin, true) => "spinning, polled for by other cores",
        };
        let clients = match self.twin_delay_ns {
            None => String::new(),
            Some(delay_ns) => format!(", twin clients with {} of delay", text(delay_ns)),
        };
        format!(
            "AF_XDP responder {wait}{clients}, {} to receive, {} to handle, {} to send",
            text(costs.rx_request_ns),
            text(costs.recv_take_ns),
            text(costs.send_ns)
        )
    }

    /// Its half of the world: sockets, threads, and clients that are twins.
    pub(super) fn complete(&self, file: &WorldFile, mode: &Mode, load: Load, mut world: World) -> World {
        let calls = mode.socket_busy_poll_usecs != 0;
        let transmit = match mode.napi.threaded {
            Threaded::BusyPoll => Transmit::Poll,
            _ if calls && self.separate => Transmit::Poll,
            _ if calls => Transmit::BusyPoll,
            _ => Transmit::Wakeup,
        };
        let xsk = |worker: u16| XskSpec {
            queue: u32::from(worker),
            context: (self.wait == Wait::Epoll).then_some(u32::from(worker)),
            transmit,
            batch: self.batch,
            busy_poll_usecs: mode.socket_busy_poll_usecs,
            prefer_busy_poll: calls,
            busy_poll_budget: BUSY_BUDGET,
        };
        world.xsks = (0..file.workers).map(xsk).collect();
        if self.wait == Wait::Epoll {
            return world;
        }
        let wait = if calls && !self.separate { XskWait::Call } else { XskWait::Spin };
        for (xsk, worker) in std::mem::take(&mut world.workers).into_iter().enumerate() {
            world.xsk_threads.push(XskThreadSpec { cpu: worker.cpu, xsk: xsk as u32, wait });
            if calls && self.separate {
                let cpu = world.queues[xsk].thread_cpu;
                world.xsk_threads.push(XskThreadSpec { cpu, xsk: xsk as u32, wait: XskWait::PollOnly });
            }
        }
        world.contexts.clear();
        match (self.twin_delay_ns, load) {
            (Some(delay_ns), Load::Open { per_s }) => self.with_twins(file, per_s, delay_ns, (mode, transmit), world),
            _ => world,
        }
    }

    /// Clients that are machines like this one in the same mode, on CPUs, queues and sockets after its own.
    fn with_twins(
        &self,
        file: &WorldFile,
        per_s: f64,
        delay_ns: u32,
        (mode, transmit): (&Mode, Transmit),
        mut world: World,
    ) -> World {
        let pairs = file.workers;
        let calls = mode.socket_busy_poll_usecs != 0;
        let socket = |own: u16, peer: u16, queue: u16, wire_ns: u32| SocketSpec {
            queue: u32::from(queue),
            tx_queue: u32::from(queue),
            peer: u32::from(peer),
            transmit,
            wire_ns,
            busy_poll_usecs: if own < pairs { mode.socket_busy_poll_usecs } else { 0 },
            prefer_busy_poll: calls,
            busy_poll_budget: BUSY_BUDGET,
        };
        let receive = if calls && !self.separate { Receive::Call } else { Receive::Spin };
        let kind = PeerKind::Taker { delay_ns: u64::from(delay_ns) };
        let period_ns = (1e9 * f64::from(pairs) / per_s).round().max(1.0) as u64;
        world.connections.clear();
        for pair in 0..pairs {
            let first = world.cpus.len() as u16;
            let (receiver, sender, poller) = (first, first + 1, first + 2);
            world.cpus.extend([false; TWIN_CPUS as usize]);
            let like = world.queues[usize::from(pair)].clone();
            world.queues.push(QueueSpec { cpu: receiver, thread_cpu: poller, ..like });
            let peer =
                |cpu: u16, kind: PeerKind, receive: Receive| PeerSpec { cpu, socket: u32::from(pair), kind, receive };
            world.peers.push(peer(receiver, kind, receive));
            world.peers.push(peer(sender, PeerKind::Pacer { period_ns }, Receive::Spin));
            if calls && self.separate {
                world.peers.push(peer(poller, PeerKind::Poller, Receive::Call));
            }
        }
        world.sockets = (0..pairs).map(|pair| socket(pair, pairs + pair, pairs + pair, world.net.request_ns)).collect();
        let servers = (0..pairs).map(|pair| socket(pairs + pair, pair, pair, world.net.answer_ns));
        world.sockets.extend(servers);
        world
    }
}
