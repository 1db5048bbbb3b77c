//! The service over a TAP or an interface of the host, where any memcached client reaches it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lull_core::{EpollOptions, Mode};
use lull_host::usable_cores;
use lull_lab::bench::{PORT, Server, ServerConfig, check_cores};
use lull_lab::memcached::{ITEM_BYTES_MAX, StoreConfig};
use lull_lab::service::Limits;
use lull_net::NetworkConfig;
use lull_nic::Device;
use lull_nic::packet::{Packet, PacketConfig};
use lull_nic::tap::{Tap, TapConfig};
use lull_nic::xdp::Xdp;
use lull_units::counted;

use super::{Offloads, Serve, address, decorated, offer, refuse, refuse_loopback};
use crate::failure::Failure;
use crate::output::{outln, say};
use crate::own_addresses::OwnAddresses;
use crate::xdp;

/// memcached's default for the memory of items (`-m`).
const MEMORY_MEGABYTES: u32 = 64;
const CONNECTIONS_MAX: u32 = 1024;
/// The stack has room for this many connections above the limit, so that a client beyond the limit gets an error.
const REFUSALS_ROOM: usize = 64;

/// The NIC over which clients come.
pub(super) enum Wire<'a> {
    /// A TAP of this name.
    Tap(&'a str),
    /// `DEV[:QUEUES]` of the host, by AF_XDP.
    Xdp(&'a str),
    /// An interface of the host, by a packet socket.
    Packet(&'a str),
}

impl Wire<'_> {
    /// The name as `--nic` has it.
    fn name(&self) -> String {
        match self {
            Wire::Tap(name) => format!("tap:{name}"),
            Wire::Xdp(spec) => format!("xdp:{spec}"),
            Wire::Packet(name) => format!("packet:{name}"),
        }
    }

    /// Refuses the options of other NICs.
    fn check(&self, args: &Serve) -> Result<(), Failure> {
        let load = [("--load", args.load.is_some()), ("--connections", args.connections.is_some())];
        match self {
            Wire::Tap(_) => {
                refuse(&load, "tap", "the load comes from clients over the TAP, such as `lull load`")?;
                refuse(&args.xdp.given(), "tap", "it is for xdp:DEV")
            }
            Wire::Xdp(_) | Wire::Packet(_) => {
                let nic = if let Wire::Xdp(_) = self { "xdp" } else { "packet" };
                refuse(&load, nic, "the load comes from clients over the interface, such as `lull load`")?;
                let peer = [("--peer-addr", args.peer_addr.is_some())];
                refuse(&peer, nic, "it is for tap:NAME; give the interface its address with `ip addr add`")?;
                let offloads = [("--offloads", args.offloads.is_some())];
                refuse(&offloads, nic, "it is for tap:NAME; frames come here as they are on the wire")?;
                if nic == "xdp" { Ok(()) } else { refuse(&args.xdp.given(), nic, "it is for xdp:DEV") }
            }
        }
    }

    fn open(&self, args: &Serve, addresses: &[(IpAddr, u8)], port: u16) -> Result<Opened, Failure> {
        match self {
            Wire::Tap(name) => {
                let offloads = args.offloads.unwrap_or_default() == Offloads::On;
                let config =
                    TapConfig { name: (*name).to_owned(), queues: args.threads, offloads, ..TapConfig::default() };
                let tap = Tap::open(config)?;
                if let Some(peer) = &args.peer_addr {
                    let (ip, prefix) = address(peer)?;
                    tap.kernel_side(ip, prefix)?;
                }
                let with = if offloads { " with offloads" } else { "" };
                Ok(Opened { device: Arc::new(tap), words: format!("{name}{with}"), xdp: None })
            }
            Wire::Xdp(spec) => {
                let config = args.xdp.config(spec, addresses)?;
                if !config.ports.is_empty() && !config.ports.contains(&port) {
                    return Err(format!("cannot listen on port {port}, which is not among --ports: add it").into());
                }
                let xdp = Arc::new(Xdp::open(&config)?);
                let (queues, words) = (xdp.info().queues, xdp::words(&xdp));
                if queues < args.threads {
                    return Err(format!(
                        "cannot run {} on {} of {}: use -t 1 to -t {queues}, or give it more queues (ethtool -L)",
                        counted(args.threads, "worker"),
                        counted(queues, "queue"),
                        config.name
                    )
                    .into());
                }
                if let Some(note) = xdp::left_to_the_host(&config) {
                    say!("lull: {note}");
                }
                let words = format!("{} ({words})", config.name);
                Ok(Opened { device: xdp.clone(), words, xdp: Some(xdp) })
            }
            Wire::Packet(name) => {
                if args.threads > 1 {
                    return Err(format!(
                        "cannot run {} workers on packet:{name}, which has one queue: use -t 1, or xdp:{name}",
                        args.threads
                    )
                    .into());
                }
                let addresses = addresses.iter().map(|(ip, _)| *ip).collect();
                let packet = Packet::open(&PacketConfig { name: (*name).to_owned(), addresses })?;
                Ok(Opened { device: Arc::new(packet), words: format!("{name} (copies by a packet socket)"), xdp: None })
            }
        }
    }
}

/// A NIC that was opened.
struct Opened {
    device: Arc<dyn Device>,
    /// Its description in the line that says what is served.
    words: String,
    xdp: Option<Arc<Xdp>>,
}

/// Serves until a signal comes.
pub(super) fn run(args: &Serve, wire: &Wire<'_>, mode: &Mode, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    wire.check(args)?;
    if args.addr.is_empty() {
        return Err("cannot serve without an address: give one with --addr, such as --addr 10.0.0.2/24".into());
    }
    let config = configured(args, mode)?;
    config.network.check()?;
    if let Wire::Tap(_) = wire {
        refuse_loopback(&config.network.addresses)?;
    }
    let (addresses, port) = (config.network.addresses.clone(), config.address.port());
    let Opened { device, words: name, xdp } = wire.open(args, &addresses, port)?;
    let _addresses =
        (!args.xdp.has_ports()).then(|| OwnAddresses::take(&addresses, &wire.name(), |line| say!("lull: {line}")));
    let server = Server::start(decorated(args, device)?, config)?;
    server.set_mode(mode)?;
    for note in server.notes() {
        say!("lull: {note}");
    }
    let _offered = offer(args, mode, server.network())?;
    let shown = addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>().join(", ");
    let workers = counted(args.threads, "worker");
    outln!("serving memcached on {shown} port {port} over {name} in mode {mode} with {workers}")?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    if let Some(xdp) = xdp {
        say!("lull: {}: {}", xdp.info().name, xdp::at_the_end(&xdp));
    }
    if let Some(silos) = server.silos() {
        let (own, all) = (silos.own(), silos.all());
        let percent = 100.0 * own as f64 / all.max(1) as f64;
        outln!("{own} of {all} connections came by a queue of their worker's ({percent:.0} %)")?;
    }
    outln!("stopped")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns what the arguments ask of the service, or why that is impossible. Nothing was opened yet.
fn configured(args: &Serve, mode: &Mode) -> Result<ServerConfig, Failure> {
    let port = args.port.unwrap_or(PORT);
    let addresses = args.addr.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?;
    let memory_bytes = (args.memory_megabytes.unwrap_or(MEMORY_MEGABYTES) as usize) << 20;
    let item_bytes_max = args.item_bytes_max.unwrap_or(ITEM_BYTES_MAX);
    if item_bytes_max > memory_bytes / 2 {
        return Err(format!(
            "cannot let one item have {item_bytes_max} bytes of {memory_bytes}: half of the memory is the most; lower \
             --item-bytes-max (-I) or raise --memory-megabytes (-m)"
        )
        .into());
    }
    let connections_max = args.connections_max.unwrap_or(CONNECTIONS_MAX) as usize;
    let cores = worker_cores(args)?;
    let (gateway4, gateway6) = gateways(&args.gateway)?;
    // A service with several addresses of the host listens on the wildcard address of IPv6.
    let listen = SocketAddr::new(if addresses.len() == 1 { addresses[0].0 } else { IpAddr::from([0u8; 16]) }, port);
    Ok(ServerConfig {
        cores,
        group: args.group.setup(std::slice::from_ref(mode))?,
        network: NetworkConfig {
            addresses,
            gateway4,
            gateway6,
            connections_max: connections_max + REFUSALS_ROOM,
            rx_buffer_bytes: args.buffer_bytes,
            tx_buffer_bytes: args.buffer_bytes,
            qdisc: args.qdisc,
            ..NetworkConfig::default()
        },
        realtime: args.realtime,
        after_resume: args.after_resume.into(),
        epoll: EpollOptions::default(),
        moderation: None,
        store: StoreConfig {
            memory_bytes_max: memory_bytes,
            item_bytes_max,
            threads: args.threads,
            ..StoreConfig::default()
        },
        address: listen,
        limits: Limits { connections_max, idle_timeout: args.idle_timeout, keepalive: true },
        steer: args.steer.clone(),
    })
}

/// Returns a core for each worker.
fn worker_cores(args: &Serve) -> Result<Vec<usize>, Failure> {
    let available = match &args.cores {
        Some(cores) => check_cores(cores)?.to_vec(),
        None => usable_cores(),
    };
    if args.threads == 0 || args.threads > available.len() {
        return Err(format!(
            "cannot run {} on {}: use -t 1 to -t {}",
            counted(args.threads, "worker"),
            counted(available.len(), "core"),
            available.len()
        )
        .into());
    }
    Ok(available[..args.threads].to_vec())
}

/// Returns the router of each family.
pub fn gateways(given: &[IpAddr]) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>), Failure> {
    let (mut v4, mut v6) = (None, None);
    for &gateway in given {
        let former = match gateway {
            IpAddr::V4(ip) => v4.replace(ip).map(IpAddr::V4),
            IpAddr::V6(ip) => v6.replace(ip).map(IpAddr::V6),
        };
        if let Some(former) = former {
            return Err(
                format!("cannot route over both {former} and {gateway}: give one --gateway for each family").into()
            );
        }
    }
    Ok((v4, v6))
}
