//! `lull serve`.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lull_core::Mode;
use lull_host::usable_cores;
use lull_lab::bench::{PORT, Server, ServerConfig};
use lull_lab::memcached::StoreConfig;
use lull_net::NetworkConfig;
use lull_nic::Device;
use lull_nic::pcap::Pcap;
use lull_nic::tap::{Tap, TapConfig};
use lull_nic::trace::Trace;

use crate::Failure;
use crate::units;

/// Arguments of `lull serve`.
#[derive(Args)]
pub struct Serve {
    /// The NIC: tap:NAME (an existing TAP, or one that is made and goes with the service).
    #[arg(long)]
    nic: String,
    /// The service's address with its prefix, such as 10.0.0.2/24. May be given more than once.
    #[arg(long, required = true)]
    addr: Vec<String>,
    /// Give the kernel's end of a TAP this address, such as 10.0.0.1/24, and bring it up.
    #[arg(long)]
    peer_addr: Option<String>,
    /// The port to listen on.
    #[arg(long, short = 'p', default_value_t = PORT)]
    port: u16,
    /// The delivery mode.
    #[arg(long, default_value = "base")]
    mode: String,
    /// Worker threads, each with a queue of the NIC.
    #[arg(long, short = 't', default_value_t = 1)]
    threads: usize,
    /// Memory for items, in megabytes.
    #[arg(long, short = 'm', default_value_t = 64)]
    memory_megabytes: usize,
    /// Largest item, in bytes.
    #[arg(long, short = 'I', default_value_t = lull_lab::memcached::ITEM_BYTES_MAX)]
    item_bytes_max: usize,
    /// Most connections, per worker.
    #[arg(long, short = 'c', default_value_t = 1024)]
    connections_max: usize,
    /// Receive and transmit buffer of a connection, in bytes each.
    #[arg(long, default_value_t = lull_net::shard::BUFFER_BYTES)]
    buffer_bytes: usize,
    /// Cores for the workers; by default the first ones.
    #[arg(long, value_parser = units::cores)]
    cores: Option<std::vec::Vec<usize>>,
    /// Ask for SCHED_FIFO for the interrupt threads.
    #[arg(long)]
    realtime: bool,
    /// Write every frame to a pcap file, which Wireshark opens.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print a line for every frame on standard error.
    #[arg(long)]
    trace: bool,
}

/// Serves until a signal comes.
pub fn run(args: Serve, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let mode: Mode = args.mode.parse()?;
    let addresses = args.addr.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?;
    let Some(name) = args.nic.strip_prefix("tap:") else {
        return Err(format!(
            "cannot serve on the NIC '{}': use tap:NAME (for the in-memory NIC there is `lull compare`)",
            args.nic
        )
        .into());
    };
    let available = args.cores.clone().unwrap_or_else(usable_cores);
    if args.threads == 0 || args.threads > available.len() {
        return Err(format!(
            "cannot run {} workers on {} cores: use -t 1 to -t {}",
            args.threads,
            available.len(),
            available.len()
        )
        .into());
    }
    let tap = Tap::open(TapConfig { name: name.to_owned(), queues: args.threads, ..TapConfig::default() })?;
    if let Some(peer) = &args.peer_addr {
        let (ip, prefix) = address(peer)?;
        tap.kernel_side(ip, prefix)?;
    }
    let mut device: Arc<dyn Device> = Arc::new(tap);
    if let Some(path) = &args.pcap {
        let file = File::create(path).map_err(|error| {
            format!(
                "cannot write the capture {}: {error}; name a file in a directory that you may write to",
                path.display()
            )
        })?;
        device = Arc::new(Pcap::new(device, file));
    }
    if args.trace {
        device = Arc::new(Trace::to_writer(device, std::io::stderr()));
    }
    // A service for every address of the host listens on the wildcard of the first one's family.
    let listen =
        SocketAddr::new(if addresses.len() == 1 { addresses[0].0 } else { IpAddr::from([0u8; 16]) }, args.port);
    let server = Server::start(
        device,
        ServerConfig {
            cores: available[..args.threads].to_vec(),
            network: NetworkConfig {
                addresses: addresses.clone(),
                connections_max: args.connections_max,
                rx_buffer_bytes: args.buffer_bytes,
                tx_buffer_bytes: args.buffer_bytes,
                ..NetworkConfig::default()
            },
            realtime: args.realtime,
            store: StoreConfig {
                memory_bytes_max: args.memory_megabytes << 20,
                item_bytes_max: args.item_bytes_max,
                ..StoreConfig::default()
            },
            address: listen,
        },
    )?;
    server.set_mode(&mode)?;
    for note in server.notes() {
        eprintln!("lull: {note}");
    }
    let shown = addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>().join(", ");
    println!(
        "serving memcached on {shown} port {} over {name} in mode {mode} with {} workers",
        args.port, args.threads
    );
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn address(text: &str) -> Result<(IpAddr, u8), Failure> {
    let bad = || format!("'{text}' is no address with a prefix: write it as 10.0.0.2/24 or fd00::2/64");
    let (ip, prefix) = text.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    let prefix: u8 = prefix.parse().map_err(|_| bad())?;
    if prefix > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(bad().into());
    }
    Ok((ip, prefix))
}
