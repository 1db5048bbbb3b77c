//! The service over a TAP: any memcached client reaches it.

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
use lull_nic::tap::{Tap, TapConfig};

use super::{Serve, address, decorated, offer, refuse};
use crate::failure::Failure;
use crate::output::{outln, say};

/// memcached's defaults: memory for items (`-m`), and connections (`-c`).
const MEMORY_MEGABYTES: u32 = 64;
const CONNECTIONS_MAX: u32 = 1024;
/// Connections beyond the most that the stack has room for, so that who finds no slot is told.
const REFUSALS_ROOM: usize = 64;

/// Serves until a signal comes.
pub(super) fn run(args: &Serve, name: &str, mode: &Mode, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    refuse(
        &[("--load", args.load.is_some()), ("--connections", args.connections.is_some())],
        "tap",
        "the load comes from clients over the TAP, such as `lull load`",
    )?;
    if args.addr.is_empty() {
        return Err("cannot serve without an address: give one with --addr, such as --addr 10.0.0.2/24".into());
    }
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
    let available = match &args.cores {
        Some(cores) => check_cores(cores)?.to_vec(),
        None => usable_cores(),
    };
    if args.threads == 0 || args.threads > available.len() {
        return Err(format!(
            "cannot run {} workers on {} cores: use -t 1 to -t {}",
            args.threads,
            available.len(),
            available.len()
        )
        .into());
    }
    let (gateway4, gateway6) = gateways(&args.gateway)?;
    let tap = Tap::open(TapConfig { name: name.to_owned(), queues: args.threads, ..TapConfig::default() })?;
    if let Some(peer) = &args.peer_addr {
        let (ip, prefix) = address(peer)?;
        tap.kernel_side(ip, prefix)?;
    }
    let device = decorated(args, Arc::new(tap))?;
    // A service for every address of the host listens on the wildcard of the first one's family.
    let listen = SocketAddr::new(if addresses.len() == 1 { addresses[0].0 } else { IpAddr::from([0u8; 16]) }, port);
    let server = Server::start(
        device,
        ServerConfig {
            cores: available[..args.threads].to_vec(),
            network: NetworkConfig {
                addresses: addresses.clone(),
                gateway4,
                gateway6,
                connections_max: connections_max + REFUSALS_ROOM,
                rx_buffer_bytes: args.buffer_bytes,
                tx_buffer_bytes: args.buffer_bytes,
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
        },
    )?;
    server.set_mode(mode)?;
    for note in server.notes() {
        say!("lull: {note}");
    }
    let _control = offer(server.host());
    let shown = addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>().join(", ");
    outln!("serving memcached on {shown} port {} over {name} in mode {mode} with {} workers", port, args.threads)?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    outln!("stopped")?;
    Ok(ExitCode::SUCCESS)
}

/// One router for each family.
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
