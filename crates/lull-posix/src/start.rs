//! Starts the engine from what the launcher hands on.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use lull_control::Offer;
use lull_control::place::Places;
use lull_fd::say;
use lull_net::lull_core::{EpollOptions, Sysctl};
use lull_net::lull_nic::own as own_numbers;
use lull_net::lull_nic::passing::{QUEUES_MAX, WithInboxes};
use lull_net::lull_nic::tap::{self, Tap};
use lull_net::lull_nic::xdp::Xdp;
use lull_net::lull_nic::{Device, Frame};
use lull_net::{EPHEMERAL_PORTS, Elsewhere, Host, HostConfig, Mode, Network, NetworkConfig};
use rustix::mm::{MapFlags, ProtFlags};

use crate::elsewhere::Others;
use crate::engine::{Engine, Share, StartError, engage_each};
use crate::flows::{self, Flows, NotClaimed};
use crate::handover::{HandOver, Nic};
use crate::routing::Routing;
use crate::{
    claimed, depot, elsewhere, exec, inherit, kernel, last_thread, left_open, listing, netlink, record, socket,
};

/// Where the contexts of unmodified programs differ from Linux's: they attend to the queues of all their sockets; a call with
/// timeout 0 polls them for one round, and never for longer; one whose rings fill faster than it calls empties them; and a
/// program whose events never run out polls once in so many calls. Such a one is a server without a free number for the next
/// connection, which would shut out even handshakes.
pub const EPOLL: EpollOptions = EpollOptions::mended();

/// Looks whether this process is the program that the launcher started on lull's user plane. This starts nothing yet.
pub fn at_load() {
    match HandOver::from_environment() {
        Ok(None) => {}
        Ok(Some(hand_over)) => {
            if hand_over.quiet {
                say::quiet();
            }
            engage_with(hand_over, |error| say::line(format_args!("{error}")));
            last_thread::begins_as_main();
        }
        Err(error) => say::line(format_args!("{error}: the program has the kernel's addresses only")),
    }
}

/// Makes the addresses of `hand_over` lull's in this process. Nothing starts before the program's first call that needs
/// it. If it does not start, `say` is told why.
fn engage_with(hand_over: HandOver, say: fn(&StartError)) {
    let routing = Routing {
        addresses: hand_over.addresses.clone(),
        routes: hand_over.routes.clone(),
        ports: hand_over.ports.clone(),
    };
    if hand_over.ifindex != 0 {
        netlink::serve(hand_over.ifindex, hand_over.flows, hand_over.nic.queues());
    }
    hand_over.numbers().for_each(own_numbers::mark);
    inherit::find();
    // It is opened only once, because closing any descriptor of it would give this process's queues back.
    let flows = Flows::open(own(hand_over.flows)).map(Arc::new);
    if let Ok(flows) = &flows {
        flows::are_the_programs(flows.clone());
    }
    let start = move |share| match &flows {
        Ok(flows) => start(&hand_over, flows.clone(), share, say),
        Err(error) => Err(StartError(format!("cannot share open connections: {error}"))),
    };
    engage_each(routing, Box::new(start), say);
    exec::environment::remember();
    socket::adopt_kept();
}

fn start(hand_over: &HandOver, flows: Arc<Flows>, share: Share, say: fn(&StartError)) -> Result<Engine, StartError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| StartError(format!("{what}: {error}"));
    let mode: Mode = hand_over.mode.parse().map_err(|error| failed("cannot take the mode", &error))?;
    let mode = mode.of_unmodified_programs();
    let qdisc = hand_over.qdisc.as_ref().map(|name| name.parse()).transpose();
    let qdisc = qdisc.map_err(|error| failed("cannot take the queueing discipline", &error))?;
    has_room(hand_over.nic.queues())?;
    // The queues are claimed first, so that no other process's queue is touched.
    let claimed = claim(hand_over, &flows, share)?;
    let queues = claimed.len();
    let unless_it_fails = GivesBack::new(hand_over, &flows, claimed.clone())?;
    let (device, for_the_one_before) = device(hand_over, &flows, &claimed)?;
    claimed::note(hand_over, &claimed);
    let elsewhere = others(hand_over, &flows, &claimed, share);
    // On a single core, an interrupt thread of its own for each queue would only be one more switch for each interrupt.
    let cpus = if lull_net::lull_host::usable_cores().len() == 1 { 1 } else { queues };
    let host = Host::new(HostConfig {
        cpus: vec![None; cpus],
        sysctl: sysctl(),
        epoll: EPOLL,
        after_resume: hand_over.after_resume,
        queue_numbers: claimed.iter().map(|queue| *queue as usize).collect(),
        napi_ids_left: claimed[0] * NAPI_IDS_EACH,
        ..HostConfig::default()
    })
    .map_err(|error| failed("cannot start the engine", &error))?;
    let gateway = |v4: bool| hand_over.gateways.iter().find(|gateway| gateway.is_ipv4() == v4);
    let config = NetworkConfig {
        addresses: hand_over.addresses.clone(),
        gateway4: gateway(true).and_then(|gateway| if let IpAddr::V4(ip) = gateway { Some(*ip) } else { None }),
        gateway6: gateway(false).and_then(|gateway| if let IpAddr::V6(ip) = gateway { Some(*ip) } else { None }),
        cpus: (0..queues).map(|queue| (queue % cpus) as u16).collect(),
        elsewhere: elsewhere.map(|others| others.clone() as Arc<dyn Elsewhere>),
        allowed_sources: hand_over.allowed_sources.clone(),
        ephemeral_ports: ports_of(&claimed, hand_over.nic.queues()),
        coalesce_ns: hand_over.coalesce_ns,
        qdisc,
        ..NetworkConfig::default()
    };
    let network = Network::new(&host, device, config.with_mode(&mode))
        .map_err(|error| failed("cannot bring the network up", &error))?;
    unless_it_fails.has_not();
    for_the_one_before.into_iter().for_each(|frame| network.take_over(frame));
    // The program is served without these as well.
    left_open::see_to_those_of_others(network.clone(), flows.clone(), claimed[0]).unwrap_or_else(|error| {
        say(&failed("peers of processes that are killed will wait for this program's end", &error))
    });
    let listed = network.clone();
    let sockets = Box::new(move || Some(listing::sockets(&listed)));
    let control = Offer::start_with_sockets(&host, &name_of_this_program(), &Places::default(), sockets);
    let control = control.inspect_err(|error| say(&failed("lull show does not see this program", error))).ok();
    Ok(Engine { host, network, mode, flows: Some(flows), control })
}

/// An engine that is being started. If the start fails, the queues are given back and the descriptors that were handed
/// on are restored, though starting closes them, so that this process may start another engine.
struct GivesBack {
    flows: Arc<Flows>,
    claimed: Vec<u32>,
    kept: Vec<(RawFd, OwnedFd)>,
}

impl GivesBack {
    fn new(hand_over: &HandOver, flows: &Arc<Flows>, claimed: Vec<u32>) -> Result<GivesBack, StartError> {
        let mut this = GivesBack { flows: flows.clone(), claimed, kept: Vec::new() };
        let queues: &[RawFd] = if let Nic::Tap { queues } = &hand_over.nic { queues } else { &[] };
        let (reads, writes) = hand_over.lobby;
        let inboxes = hand_over.inboxes.iter().flat_map(|(reads, writes)| [*reads, *writes]);
        let all = queues.iter().copied().chain(inboxes).chain([reads, writes]).chain(hand_over.pcap);
        for number in all {
            let kept = kernel::kept_duplicate(number);
            let kept = kept.map_err(|error| StartError(format!("cannot keep what was handed on: {error}")))?;
            this.kept.push((number, kept));
        }
        Ok(this)
    }

    /// It runs.
    fn has_not(mut self) {
        self.claimed.clear();
        self.kept.clear();
    }
}

impl Drop for GivesBack {
    fn drop(&mut self) {
        if self.claimed.is_empty() {
            return;
        }
        elsewhere::forget();
        // This closes its numbers.
        record::give_up();
        for (number, kept) in self.kept.drain(..) {
            // The descriptor is open, and the number is free or stands for the same file.
            let _ = kernel::dup3(kept.as_raw_fd(), number, 0);
            own_numbers::mark(number);
        }
        self.claimed.iter().for_each(|queue| self.flows.release(*queue));
    }
}

/// What the stack takes at its start, in bytes: tables for as many connections as it may have, and threads' stacks. It
/// was seen to take 48 MiB, and 17 MiB more for each further queue.
const ROOM_BYTES: usize = 48 << 20;
const ROOM_BYTES_PER_QUEUE: usize = 20 << 20;

/// Refuses to start where the stack would not get its memory. Otherwise an allocation that fails would end the program,
/// and nothing would say that it was lull's.
#[allow(unsafe_code)]
fn has_room(queues: usize) -> Result<(), StartError> {
    let bytes = ROOM_BYTES + queues * ROOM_BYTES_PER_QUEUE;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody else knows of when it is given back.
    let there = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)
            .map(|start| rustix::mm::munmap(start, bytes))
    };
    there.map(drop).map_err(|error| {
        StartError(format!(
            "process {} has no room for lull's stack, which takes up to {} MiB ({error}): raise its limits on memory (ulimit -v, \
             ulimit -d, LimitAS=)",
            std::process::id(),
            bytes >> 20
        ))
    })
}

/// How many NAPI ids a process may make before they reach those of the process with the next queue. By their ids,
/// netlink and programs that read SO_INCOMING_NAPI_ID tell all queues of a program apart.
const NAPI_IDS_EACH: u32 = 1 << 20;

/// `net.core.busy_poll` and `busy_read` are the machine's, so that poll, select and blocking reads busy poll on lull where they
/// would on the kernel. A network namespace does not show them: there they are 0.
fn sysctl() -> Sysctl {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?;
        text.trim().parse().ok()
    };
    Sysctl {
        busy_poll_usecs: read("busy_poll").unwrap_or(0),
        busy_read_usecs: read("busy_read").unwrap_or(0),
        ..Sysctl::default()
    }
}

/// The program's name, as `ps` has it.
fn name_of_this_program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    if name.trim().is_empty() { "a program".to_owned() } else { name.trim().to_owned() }
}

/// Makes a device of the claimed queues. With it comes what other processes had passed on to the process that had these
/// queues before.
fn device(hand_over: &HandOver, flows: &Flows, claimed: &[u32]) -> Result<(Arc<dyn Device>, Vec<Frame>), StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError(error.to_string());
    let device: Arc<dyn Device> = match &hand_over.nic {
        Nic::Tap { queues } => {
            let queues: Vec<OwnedFd> = claimed.iter().map(|queue| own(queues[*queue as usize])).collect();
            let tap = Tap::adopt(queues).map_err(|error| failed(&error))?;
            for queue in tap.queue_fds() {
                // The launcher detaches the queues that nobody has.
                tap::set_attached(queue, true).map_err(|error| failed(&error))?;
            }
            Arc::new(tap)
        }
        Nic::Xdp { depot, .. } => {
            // It stays open for what this process executes.
            let depot = ManuallyDrop::new(own(*depot));
            let asked = flows.alone(|| depot::ask(depot.as_fd(), claimed)).map_err(|error| failed(&error))?;
            let setup = asked.map_err(|why| failed(&format!("cannot have queues of the NIC: {why}")))?;
            Arc::new(Xdp::start(setup).map_err(|error| failed(&error))?)
        }
    };
    // A process that has all queues is passed nothing on.
    let (device, for_the_one_before) = match has_others(hand_over, claimed) {
        false => (device, Vec::new()),
        true => {
            let inboxes = claimed.iter().map(|queue| own(hand_over.inboxes[*queue as usize].0)).collect();
            let (device, waits) = WithInboxes::new(device, inboxes);
            (Arc::new(device) as Arc<dyn Device>, waits)
        }
    };
    let device = match hand_over.pcap {
        Some(fd) => record::of(device, File::from(own(fd))),
        None => device,
    };
    Ok((device, for_the_one_before))
}

/// Whether other processes may have queues.
fn has_others(hand_over: &HandOver, claimed: &[u32]) -> bool {
    hand_over.inboxes.len() > claimed.len()
}

/// The other processes that may have queues: at once, or after this one. Of those that inherited a listener, one takes the queue of
/// the other, and must not refuse what comes before it listens. They stand for nobody in a program of one process: what comes for one of
/// its listeners that is not real yet waits until it is, as on Linux, where `listen` alone decides, and is not refused. None: the NIC has
/// more queues than frames can tell apart.
fn others(hand_over: &HandOver, flows: &Arc<Flows>, claimed: &[u32], share: Share) -> Option<&'static Arc<Others>> {
    if hand_over.nic.queues() > QUEUES_MAX {
        return None;
    }
    let takes_turns = share == Share::One && hand_over.nic.queues() == 1;
    let is_alone = !takes_turns && !has_others(hand_over, claimed);
    let inboxes = hand_over.inboxes.iter().map(|(_, writes)| own(*writes)).collect();
    let (reads, writes) = hand_over.lobby;
    let lobby = (own(reads), own(writes));
    let others = Others::new(flows.clone(), claimed.to_vec(), is_alone, inboxes, lobby, hand_over.secret);
    socket::await_unasked(others);
    Some(others)
}

/// The ports for connections of a process that has these queues. No other process takes the same port for the same
/// peer.
fn ports_of(claimed: &[u32], queues: usize) -> RangeInclusive<u16> {
    if claimed.len() == queues {
        return EPHEMERAL_PORTS;
    }
    let (first, last) = (usize::from(*EPHEMERAL_PORTS.start()), usize::from(*EPHEMERAL_PORTS.end()));
    let each = (last + 1 - first) / queues;
    let own = first + each * claimed[0] as usize;
    own as u16..=(own + each - 1) as u16
}

/// Takes over a descriptor that was handed on. From now on it is this process's, and nothing else here has it.
#[allow(unsafe_code)]
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the launcher opened it for this process alone. If something on the way closed it, the first call on it says so.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Claims queues for this process.
fn claim(hand_over: &HandOver, flows: &Flows, share: Share) -> Result<Vec<u32>, StartError> {
    let queues = hand_over.nic.queues() as u32;
    let claimed = flows.alone(|| {
        let (mut claimed, mut refused) = (Vec::new(), None);
        for queue in 0..queues {
            match flows.claim(queue) {
                Ok(()) => {
                    flows.begins_with(queue, socket::has_listener);
                    claimed.push(queue);
                }
                Err(error) => refused = refused.or(Some((queue, error))),
            }
            if share == Share::One && !hand_over.is_whole() && !claimed.is_empty() {
                break;
            }
        }
        match refused {
            Some(refused) if claimed.is_empty() || hand_over.is_whole() => {
                claimed.iter().for_each(|queue| flows.release(*queue));
                Err(refused)
            }
            _ => Ok(claimed),
        }
    });
    claimed::note_others_have_all(matches!(claimed, Ok(Err((_, NotClaimed::Taken { .. })))));
    let (queue, error) = match claimed {
        Ok(Ok(claimed)) => return Ok(claimed),
        Ok(Err((queue, NotClaimed::Taken { pid }))) => {
            let remedy = if hand_over.is_whole() {
                "the NIC is one process's alone"
            } else if share == Share::All {
                "who makes a listener or connects takes all that are free, so that servers which do so beside each other need a `lull \
                 run` for each"
            } else {
                "a NIC with more queues (with tap:NAME `lull run --queues`) has one for each process"
            };
            return Err(StartError(format!(
                "process {} has no queue of the NIC: queue {queue} is process {pid}'s, and no other is free, so that until one is it \
                 gets lull's connections by way of the listeners that it has inherited alone, and connects by the kernel; {remedy}",
                std::process::id()
            )));
        }
        Ok(Err((queue, NotClaimed::System(error)))) => (queue, error),
        Err(error) => (0, error),
    };
    Err(StartError(format!("cannot take queue {queue} of the NIC: {error}")))
}
