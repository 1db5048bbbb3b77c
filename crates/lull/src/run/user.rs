//! `lull run --nic`: an unmodified program on lull's user plane.
//!
//! The launcher opens the NIC, hands its descriptors to the program, waits until the program has ended, resets the
//! peers of connections that it left open, and removes what it made. The program itself needs no rights for any of
//! this.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use lull_control::slo::Whom;
use lull_core::Mode;
use lull_figures::process::{Asked as Figured, Which};
use lull_linux::run::Plain;
use lull_net::{COALESCE_NS, NetworkConfig, Qdisc};
use lull_nic::tap::TapConfig;
use lull_nic::{passing, pcap};
use lull_posix::handover::{self, HandOver};
use lull_posix::{Flows, handover::inheritable};

use super::ended::Ended;
use super::inboxes::{Inbox, Inboxes};
use super::{RunArgs, nic, peers, queues, watch};
use crate::after_resume::AfterResume;
use crate::failure::Failure;
use crate::keeper::Keeper;
use crate::output::{outln, say};
use crate::own_addresses::OwnAddresses;
use crate::serve::{address, gateways, refuse as refuse_nic, refuse_loopback};
use crate::xdp::XdpArgs;

/// Arguments of `lull run` for the user plane.
#[derive(Args)]
pub struct UserArgs {
    /// Run the program on lull's own network stack over this NIC: tap:NAME (an existing TAP, or one that is made and
    /// removed), or xdp:DEV (an interface of the host, by AF_XDP; xdp:DEV:0-1 takes these of its queues, by default it is
    /// all). Sockets that are bound to an address of --addr, or that connect into its networks or a --route, are lull's;
    /// all others stay the kernel's. With tap --queues is a number.
    #[arg(long, help_heading = USER)]
    nic: Option<String>,
    /// With --nic: an address of the program with its network's prefix, such as 10.0.0.2/24. May be given more than once.
    #[arg(long, value_name = "IP/PREFIX", help_heading = USER, requires = "nic")]
    addr: Vec<String>,
    /// With --nic tap: the address of the kernel's end, such as 10.0.0.1/24, which is brought up. A TAP that exists
    /// already is not changed: it has to be up, with that address.
    #[arg(long, value_name = "IP/PREFIX", help_heading = USER, requires = "nic")]
    peer_addr: Option<String>,
    /// With --nic: the router to other networks; one for each family.
    #[arg(long, value_name = "IP", help_heading = USER, requires = "nic")]
    gateway: Vec<IpAddr>,
    /// With --nic: a network beyond the router that the program reaches through lull, such as 10.1.0.0/16, or
    /// 0.0.0.0/0. Addresses that are in no network of --addr and no --route are reached through the kernel.
    #[arg(long, value_name = "IP/PREFIX", help_heading = USER, requires = "nic")]
    route: Vec<String>,
    /// With --nic: the networks that may send, such as 10.0.0.0/8,fd00::/64. IP packets from all other sources are
    /// dropped before the program's stack looks at them, and counted (`lull ss`); ARP and neighbour discovery pass from
    /// all. nftables does not see packets that come to lull.
    #[arg(long, value_name = "SOURCE/PREFIX", help_heading = USER, requires = "nic", value_delimiter = ',')]
    allow: Vec<String>,
    /// With --nic: write every frame to a pcap file. Each process of the program appends its frames in batches, and the
    /// last batch when it ends, so frames of several processes are not sorted by time. A process that is killed, or
    /// calls `_exit`, loses its last batch.
    #[arg(long, value_name = "FILE", help_heading = USER, requires = "nic")]
    pcap: Option<PathBuf>,
    /// With --nic: how long an answer may wait for others that the program writes to the same connection before it
    /// waits for events again; they then leave in one segment. It never waits while the program does. An answer that
    /// was the only one in the last batch of events waits only for answers to other connections, and only if these
    /// follow at once. A time such as 500us, or 'off'.
    #[arg(long, value_name = "TIME", help_heading = USER, requires = "nic")]
    coalesce: Option<String>,
    /// With --nic: the queueing discipline of the transmit queues: noqueue (a call that sends puts its frames on the ring),
    /// pfifo_fast (three bands by SO_PRIORITY or IP_TOS) or fq (sockets in turn, paced by SO_MAX_PACING_RATE) [default: noqueue].
    #[arg(long, value_name = "NAME", help_heading = USER, requires = "nic")]
    qdisc: Option<Qdisc>,
    /// With --nic: what follows when a program that prefers busy polling has found nothing, and one more poll of its
    /// queue has found nothing either: the interrupt at once, or deferral as Linux has it.
    #[arg(long, value_enum, help_heading = USER, requires = "nic")]
    after_resume: Option<AfterResume>,
    #[command(flatten, next_help_heading = USER)]
    xdp: XdpArgs,
}

const USER: &str = "The user plane";

impl UserArgs {
    /// Returns an option of the NIC that was given.
    pub fn of_the_nic(&self) -> Option<&'static str> {
        self.xdp.given().into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Whether the program is to run on the user plane.
    pub fn is_asked_for(&self) -> bool {
        self.nic.is_some()
    }
}

/// The options, checked.
struct Asked {
    nic: nic::Asked,
    pcap: Option<PathBuf>,
    mode: Mode,
    network: NetworkConfig,
    gateways: Vec<IpAddr>,
    routes: Vec<(IpAddr, u8)>,
    allowed: Vec<(IpAddr, u8)>,
    after_resume: AfterResume,
}

impl Asked {
    fn of(args: &RunArgs) -> Result<Asked, Failure> {
        refuse(args)?;
        let user = &args.user;
        if user.addr.is_empty() {
            return Err("cannot run a program on --nic without an address: give one with --addr, as 10.0.0.2/24".into());
        }
        let (gateway4, gateway6) = gateways(&user.gateway)?;
        let addresses = user.addr.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?;
        let routes = user.route.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?;
        for (ip, prefix) in &routes {
            let router = if ip.is_ipv4() { gateway4.is_some() } else { gateway6.is_some() };
            if !router {
                return Err(format!("cannot route {ip}/{prefix}: name the router of its family with --gateway").into());
            }
        }
        let nic = nic_of(args, &addresses)?;
        let mode: Mode = args.request.mode.parse()?;
        nic.check(&mode)?;
        let coalesce_ns = user.coalesce.as_deref().map_or(Ok(COALESCE_NS), coalesce_ns)?;
        if mode.group.is_some() {
            return Err(format!(
                "cannot run a program in mode {mode}: lull run gives it no CPUs for a group's pollers; serve with \
                 `lull serve`, or use threaded-busy"
            )
            .into());
        }
        let network =
            NetworkConfig { addresses, gateway4, gateway6, coalesce_ns, qdisc: user.qdisc, ..NetworkConfig::default() };
        // Otherwise the program would see the error only at its first socket, and might go on without lull.
        network.check()?;
        Ok(Asked {
            nic,
            pcap: user.pcap.clone(),
            mode,
            network,
            gateways: user.gateway.clone(),
            routes,
            allowed: user.allow.iter().map(|text| address(text)).collect::<Result<_, _>>()?,
            after_resume: user.after_resume.unwrap_or_default(),
        })
    }

    /// Says in words from whom the stack takes packets.
    fn who_may_send(&self) -> String {
        if self.allowed.is_empty() {
            return "it takes IP packets from everybody (--allow names sources); `lull ss` shows its sockets"
                .to_owned();
        }
        let allowed = self.allowed.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>().join(", ");
        format!("it takes IP packets from {allowed} alone; `lull ss` shows its sockets, and what was dropped")
    }

    /// Says in words what `--dry-run` would do, and what the launcher does.
    fn words(&self, command: &OsString) -> String {
        let addresses = self.network.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>();
        format!(
            "{} on lull's user plane: {}, {}, mode {}{}",
            command.to_string_lossy(),
            self.nic.words(),
            addresses.join(", "),
            self.mode,
            self.network.qdisc.map_or(String::new(), |qdisc| format!(", discipline {qdisc}"))
        )
    }
}

/// Returns the nanoseconds of `--coalesce`.
fn coalesce_ns(text: &str) -> Result<u64, Failure> {
    match text {
        "off" => Ok(0),
        text => Ok(lull_units::time_ns(text).map_err(|error| format!("cannot take --coalesce {text}: {error}"))?),
    }
}

/// Returns the NIC that was asked for; options of the other kind of NIC are refused.
fn nic_of(args: &RunArgs, addresses: &[(IpAddr, u8)]) -> Result<nic::Asked, Failure> {
    let user = &args.user;
    let queues = args.request.queues.as_deref();
    let given = user.nic.as_deref().unwrap_or_default();
    match given.split_once(':') {
        Some(("tap", name)) => {
            refuse_nic(&user.xdp.given(), "tap", "it is for xdp:DEV")?;
            let number = |text: &str| {
                text.parse()
                    .map_err(|_| format!("'{text}' is no number of queues: with --nic, --queues takes one, such as 2"))
            };
            let queues = queues.map_or(Ok(1), number)?;
            let peer = user.peer_addr.as_deref().map(address).transpose()?;
            refuse_loopback(addresses)?;
            Ok(nic::Asked::Tap { config: TapConfig { name: name.to_owned(), queues, ..TapConfig::default() }, peer })
        }
        Some(("xdp", spec)) => {
            let peer = [("--peer-addr", user.peer_addr.is_some())];
            refuse_nic(&peer, "xdp", "it is for tap:NAME; give the interface its address with `ip addr add`")?;
            let queues = [("--queues", queues.is_some())];
            refuse_nic(&queues, "xdp", "queues are named behind the interface, as xdp:eth0:0-1")?;
            Ok(nic::Asked::Xdp(user.xdp.config(spec, addresses)?))
        }
        _ => Err(format!("cannot run a program on the NIC '{given}': use tap:NAME or xdp:DEV").into()),
    }
}

/// Refuses options that have no effect here, so that none is silently ignored.
fn refuse(args: &RunArgs) -> Result<(), Failure> {
    let request = &args.request;
    let of_the_kernel = [
        ("--dev", args.dev.is_some()),
        ("--pin", args.pin),
        ("--socket-busy-poll", args.socket_busy_poll.is_some()),
        ("--socket-budget", args.socket_budget.is_some()),
        ("--socket-prefer", args.socket_prefer),
        ("--no-lift", args.no_lift),
        ("--events-max", args.events_max.is_some()),
        ("--one-napi", args.one_napi.is_some()),
        ("--steer", args.steer.is_some()),
        ("--gro-flush-timeout", request.gro_flush_timeout.is_some()),
        ("--irq-suspend-timeout", request.irq_suspend_timeout.is_some()),
        ("--defer-hard-irqs", request.defer_hard_irqs.is_some()),
        ("--threads-cpus", request.threads_cpus.is_some()),
        ("--thread-policy", request.thread_policy.is_some()),
        ("--report", args.report.is_some()),
    ];
    match of_the_kernel.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(format!(
            "cannot use {option} with --nic: it is for the kernel's devices and sockets; single settings are changed while the \
             program runs, with `lull set PID`"
        )
        .into()),
        None => Ok(()),
    }
}

/// Runs the program.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let asked = Asked::of(args)?;
    let mode: Mode = args.request.mode.parse()?;
    let controller = args.slo.controller(&mode, mode.napi)?;
    let program = Plain::of(&args.command)?;
    if args.dry_run {
        outln!("would run {}", asked.words(&args.command[0]))?;
        return Ok(ExitCode::SUCCESS);
    }
    let nic = asked.nic.open(&asked.network.addresses)?;
    nic.notes().iter().chain(&asked.nic.left_to_the_host()).for_each(|note| args.say(note));
    let _addresses = (asked.nic.ports().is_empty()).then(|| {
        let name = args.user.nic.as_deref().unwrap_or_default();
        OwnAddresses::take(&asked.network.addresses, name, |line| args.say(line))
    });
    let pcap = asked.pcap.as_ref().map(|path| {
        let remedy = "name a file in a directory that you may write to";
        begun(path).map_err(|error| format!("cannot write the capture {}: {error}; {remedy}", path.display()))
    });
    let pcap = pcap.transpose()?;
    let flows = Flows::create()?;
    let inboxes = Inboxes::of(nic.queues())?;
    let lobby = passing::inbox().map_err(|error| format!("cannot make a place for connections: {error}"))?;
    let handed_on = HandedOn::new(&asked, &nic, (inboxes.all(), &lobby), &flows, pcap.as_ref(), args.quiet)?;
    let number = handed_on.hand_over.as_raw_fd();
    args.say(&format!("runs {}", asked.words(&args.command[0])));
    args.say(&format!("its traffic passes nftables and conntrack by, and {}", asked.who_may_send()));
    if std::env::var_os("LISTEN_FDS").is_some() {
        args.say("the sockets that a service manager hands on (LISTEN_FDS) stay the kernel's");
    }
    let variables = [(handover::VARIABLE, OsString::from(number.to_string()))];
    let queues = nic.queues();
    let shared = nic.shared(&inboxes)?;
    let processes = queues::processes(&flows, queues)?;
    let _metrics = args.metrics.serve(|| Ok(Box::new(Figured(Which::Program(processes.clone())))))?;
    let quiet = args.quiet;
    let log = move |line: &str| {
        if !quiet {
            say!("lull: {line}")
        }
    };
    let keeper =
        controller.map(|controller| Keeper::start(Whom::Program(processes), controller, &mode, log)).transpose()?;
    let network = NetworkConfig { qdisc: None, ..asked.network };
    let ended = Ended::new(asked.nic.clone(), network.clone(), queues, Box::new(log));
    let mut watching = None;
    let started = || {
        watching = Some(watch::Watch::start(shared, inboxes.clone(), ended, &flows));
        // The program has its own duplicates by now.
        drop(handed_on);
    };
    let status = program.run(&variables, started, &mut |line| args.say(line))?;
    if let Some(Err(error)) = &watching {
        args.say(&format!("queues of processes that ended were not taken out: {error}"));
    }
    drop((watching, keeper));
    pcap.into_iter().for_each(cut);
    // These are connections that were kept for the next listener, or passed on to a process that ended, and that nobody
    // took.
    let waits = |inbox: &Inbox| std::iter::from_fn(|| passing::taken(inbox.0.as_fd())).collect::<Vec<_>>();
    let kept = inboxes.all().iter().chain([&lobby]).flat_map(waits).filter_map(|frame| lull_net::addresses_of(&frame));
    let left_open: Vec<_> = flows.all().into_iter().chain(kept).collect();
    // A program that was left in the background goes on with its own queues.
    let goes_on = (0..queues as u32).any(|queue| flows.holder(queue).is_some());
    if !left_open.is_empty() && !goes_on {
        let network = NetworkConfig { neighbours: asked.nic.neighbours(), ..network };
        let told = nic.taken_back().and_then(|nic| peers::reset(nic, network, &left_open));
        // The status of the program is returned in any case.
        args.say(&match told {
            Ok(told) => peers::left(left_open.len(), told),
            Err(error) => {
                format!("peers of {} connections that it left open could not be told: {error}", left_open.len())
            }
        });
    }
    Ok(ExitCode::from(status))
}

/// Makes a capture without frames, to which the processes of the program append theirs.
fn begun(capture: &Path) -> io::Result<File> {
    let mut file = File::create(capture)?;
    file.write_all(&pcap::file_header())?;
    Ok(file)
}

/// Removes the incomplete record that a process leaves in the capture if it is killed while it writes.
fn cut(capture: File) {
    const TRIES: usize = 100;
    const APART: Duration = Duration::from_millis(10);
    let capture = pcap::WholeWrites::to(capture);
    // A process that goes on in the background may be writing just now; it removes the record itself then.
    let is_busy = |cut: io::Result<()>| cut.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    for _ in 0..TRIES {
        if !is_busy(capture.cut()) {
            return;
        }
        std::thread::sleep(APART);
    }
}

fn secret() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("cannot draw a random number: {error}"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Duplicates of all descriptors that the program inherits.
struct HandedOn {
    hand_over: OwnedFd,
    _others: Vec<OwnedFd>,
}

impl HandedOn {
    fn new(
        asked: &Asked,
        nic: &nic::Opened,
        (inboxes, lobby): (&[Inbox], &Inbox),
        flows: &Flows,
        pcap: Option<&File>,
        quiet: bool,
    ) -> Result<HandedOn, Failure> {
        let failed = |error| format!("cannot hand descriptors on to the program: {error}; raise `ulimit -n`");
        let mut others = Vec::new();
        let mut hand_on = |fd: std::os::fd::BorrowedFd<'_>| -> Result<RawFd, String> {
            let made = inheritable(fd).map_err(failed)?;
            let number = made.as_raw_fd();
            others.push(made);
            Ok(number)
        };
        let nic_handed_on = nic.handed_on(&mut hand_on)?;
        let mut inbox = |(reads, writes): &Inbox| Ok((hand_on(reads.as_fd())?, hand_on(writes.as_fd())?));
        let hand_over = HandOver {
            nic: nic_handed_on,
            inboxes: inboxes.iter().map(&mut inbox).collect::<Result<_, String>>()?,
            lobby: inbox(lobby)?,
            ifindex: nic.ifindex()?,
            addresses: asked.network.addresses.clone(),
            gateways: asked.gateways.clone(),
            routes: asked.routes.clone(),
            allowed_sources: asked.allowed.clone(),
            ports: asked.nic.ports().to_vec(),
            mode: asked.mode.name().to_owned(),
            after_resume: asked.after_resume.into(),
            coalesce_ns: asked.network.coalesce_ns,
            qdisc: asked.network.qdisc.map(|qdisc| qdisc.name().to_owned()),
            secret: secret()?,
            flows: hand_on(flows.as_fd())?,
            pcap: pcap.map(|file| hand_on(file.as_fd())).transpose()?,
            quiet,
        };
        let file = hand_over.to_file().map_err(failed)?;
        Ok(HandedOn { hand_over: inheritable(file.as_fd()).map_err(failed)?, _others: others })
    }
}
