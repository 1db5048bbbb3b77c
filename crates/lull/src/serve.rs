//! `lull serve`: the lab's memcached service over a TAP or AF_XDP, or on the in-memory NIC under the lab's own load.

mod mem;
pub mod start;
mod wire;

pub use wire::gateways;

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use lull_control::Offer;
use lull_control::place::Places;
use lull_control::slo::Whom;
use lull_core::Mode;
use lull_figures::exporter::Exporter;
use lull_figures::process::Own;
use lull_lab::service::Steer;
use lull_net::Network;
use lull_nic::Device;
use lull_nic::pcap::{Pcap, WholeWrites};
use lull_nic::trace::Trace;

use crate::after_resume::AfterResume;
use crate::failure::Failure;
use crate::group_args::GroupArgs;
use crate::keeper::Keeper;
use crate::metrics::MetricsArgs;
use crate::output::say;
use crate::slo_args::SloArgs;
use crate::xdp::XdpArgs;
use crate::{steer_args, units};

/// The smallest and the largest limit of an item (memcached's `-I`).
const ITEM_BYTES_RANGE: std::ops::RangeInclusive<usize> = 1024..=1 << 30;

/// Whether a TAP has offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Offloads {
    /// Large segments pass whole: values above a kilobyte cost much less, and smaller ones cost the same.
    #[default]
    On,
    /// Frames are plain: they have final checksums, and are no longer than the MTU.
    Off,
}

/// Arguments of `lull serve`.
///
/// The service is the lab's. It speaks as much of memcached's text protocol as measuring needs, and shows lull's stack
/// under real clients. To use memcached itself, start it with `lull run`.
#[derive(Args)]
pub struct Serve {
    /// The NIC: tap:NAME (an existing TAP, or one that is made and removed with the service); xdp:DEV or xdp:DEV:QUEUES
    /// (an interface of the host, whose frames to --addr are taken by AF_XDP, while all others stay the host's; QUEUES
    /// is a list such as 0,2-3, by default all); packet:DEV (copies of an interface's frames, for hosts that refuse
    /// XDP); or mem (in memory, with the lab's load generator at its other end and a line of figures per second, to
    /// watch a mode).
    #[arg(long)]
    nic: String,
    /// The service's address with its prefix, such as 10.0.0.2/24. May be given more than once. With mem the lab
    /// chooses it.
    #[arg(long)]
    addr: Vec<String>,
    /// The router to clients on other networks, such as 10.0.0.1; one for each family. Without it only clients on the
    /// service's own networks are served.
    #[arg(long, value_name = "IP")]
    gateway: Vec<IpAddr>,
    /// With mem, the load: queries per second (200K), or MAX, which is the default.
    #[arg(long, value_name = "QPS")]
    load: Option<String>,
    /// With mem, the number of connections of the load; 64 by default.
    #[arg(long)]
    connections: Option<usize>,
    #[command(flatten)]
    xdp: XdpArgs,
    /// Give the kernel's end of a TAP this address, such as 10.0.0.1/24, and bring it up. A TAP that exists already is
    /// not changed: it has to be up, with that address.
    #[arg(long)]
    peer_addr: Option<String>,
    /// The port to listen on; 11211 by default.
    #[arg(long, short = 'p', value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The delivery mode.
    #[arg(long, default_value = "base")]
    mode: String,
    /// Worker threads, each with a queue of the NIC. With xdp:DEV the queues are distributed to them in turn.
    #[arg(long, short = 't', default_value_t = 1)]
    threads: usize,
    /// Memory for items, in megabytes; 64 by default.
    #[arg(long, short = 'm', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    memory_megabytes: Option<u32>,
    /// The largest item, in bytes or with a unit (512k, 2m); 1 MiB by default. At most half of the memory is allowed.
    #[arg(long, short = 'I', value_parser = item_bytes)]
    item_bytes_max: Option<usize>,
    /// The most connections per worker; 1024 by default. Further clients get an error, are counted, and their
    /// connections are closed.
    #[arg(long, short = 'c', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    connections_max: Option<u32>,
    /// Close connections on which nothing was asked for this many seconds. By default they may stay; only those whose
    /// client has vanished are closed, after three minutes (TCP keepalive).
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds)]
    idle_timeout: Option<std::time::Duration>,
    /// The initial size of the receive buffer and of the transmit buffer of a connection, in bytes each; they grow with
    /// what the path carries.
    #[arg(long, default_value_t = lull_net::BUFFER_BYTES)]
    buffer_bytes: usize,
    /// Cores for the workers; by default the first ones.
    #[arg(long, value_parser = units::cores)]
    cores: Option<std::vec::Vec<usize>>,
    /// Let every worker listen on every queue, as programs on Linux do with SO_REUSEPORT, and choose which of them gets
    /// a connection: queue (the worker of the SYN's queue), cpu (that of the CPU that delivered it), hash (the worker
    /// that the 4-tuple's hash chooses), or a file with a classic BPF program, as tcpdump -ddd or bpf_asm print it,
    /// which returns a worker's number. At the end a line says how many connections came by a queue of their own
    /// worker. By default each worker listens only on its own queues.
    #[arg(long, value_name = "queue|cpu|hash|FILE", value_parser = steer_args::steer)]
    steer: Option<Steer>,
    #[command(flatten)]
    group: GroupArgs,
    /// The queueing discipline of the transmit queues: noqueue (the application sends at once), pfifo_fast (three bands
    /// by SO_PRIORITY) or fq (sockets in turn, paced by SO_MAX_PACING_RATE) [default: noqueue; pfifo_fast if a group
    /// sends].
    #[arg(long, value_name = "NAME")]
    qdisc: Option<lull_net::Qdisc>,
    /// Ask for SCHED_FIFO for the interrupt threads.
    #[arg(long)]
    realtime: bool,
    /// What follows when an application that prefers busy polling has found nothing, and one more poll of its queue has
    /// found nothing either: the interrupt at once, or deferral as in Linux, which polls by timer for a while.
    #[arg(long, value_enum, default_value = "interrupt")]
    after_resume: AfterResume,
    /// The work that lull and the kernel leave out between them on a TAP: checksums, and cutting TCP data into
    /// segments, so that up to 64 KB pass at once (sent over IPv4, received over both families) [default: on].
    #[arg(long, value_enum)]
    offloads: Option<Offloads>,
    /// Write every frame to a pcap file, which Wireshark opens.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print a line for every frame on standard error.
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    slo: SloArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// What a running service offers until it is dropped: the controller of its timeouts, its metrics, and its control
/// socket.
type Offered = (Option<Keeper>, Option<Exporter>, Option<Arc<Offer>>);

/// Offers the service to `lull show`, `stat`, `top`, `ss` and `set`, serves its metrics if `--prometheus` is given, and
/// starts the controller of `--slo`. Without a control socket it serves all the same, and says why it has none.
fn offer(args: &Serve, mode: &Mode, network: &Network) -> Result<Offered, Failure> {
    let listed = network.clone();
    let sockets = Box::new(move || Some(lull_posix::listing::sockets(&listed)));
    let offered = Offer::start_with_sockets(network.host(), "lull serve", &Places::default(), sockets);
    let control = offered.inspect_err(|error| say!("lull: {error}")).ok().map(Arc::new);
    let metrics = args.metrics.serve(|| match &control {
        Some(control) => Ok(Box::new(Own(control.clone()))),
        None => Err("cannot serve metrics: they come from the control socket, which could not be made".into()),
    })?;
    let keeper = match (args.slo.controller(mode, mode.napi)?, &control) {
        (None, _) => None,
        (Some(controller), Some(control)) => {
            Some(Keeper::start(Whom::Own(control.clone()), controller, mode, |line| say!("lull: {line}"))?)
        }
        (Some(_), None) => {
            return Err("cannot keep an objective: this needs the control socket, which could not be made".into());
        }
    };
    Ok((keeper, metrics, control))
}

/// Refuses options that have no effect on this NIC, so that none is silently ignored.
pub fn refuse(given: &[(&str, bool)], nic: &str, remedy: &str) -> Result<(), Failure> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(format!("cannot use {option} with --nic {nic}: {remedy}").into()),
        None => Ok(()),
    }
}

/// Puts the decorators that were asked for around `device`.
fn decorated(args: &Serve, mut device: Arc<dyn Device>) -> Result<Arc<dyn Device>, Failure> {
    if let Some(path) = &args.pcap {
        let file = File::create(path).map_err(|error| {
            format!(
                "cannot write the capture {}: {error}; name a file in a directory that you may write to",
                path.display()
            )
        })?;
        device = Arc::new(Pcap::new(device, WholeWrites::to(file)));
    }
    if args.trace {
        device = Arc::new(Trace::to_writer(device, std::io::stderr()));
    }
    Ok(device)
}

/// Reads a number of bytes, with memcached's units.
fn item_bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| ITEM_BYTES_RANGE.contains(bytes)).ok_or_else(|| {
        format!("'{text}' is no size of an item between 1k and 1024m: write bytes, or a number with k or m, as 512k")
    })
}

pub fn address(text: &str) -> Result<(IpAddr, u8), Failure> {
    let bad = || format!("'{text}' is no address with a prefix: write it as 10.0.0.2/24 or fd00::2/64");
    let (ip, prefix) = text.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    let prefix: u8 = prefix.parse().map_err(|_| bad())?;
    if prefix > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(bad().into());
    }
    Ok((ip, prefix))
}

/// Refuses loopback addresses: the kernel takes no packet from or to such an address from a TAP, so that nobody would
/// reach the service.
pub fn refuse_loopback(addresses: &[(IpAddr, u8)]) -> Result<(), Failure> {
    match addresses.iter().find(|(ip, _)| ip.is_loopback()) {
        Some((ip, _)) => Err(format!(
            "cannot have {ip} on a TAP: packets of loopback addresses never leave the kernel; give another address with --addr, \
             such as 10.0.0.2/24"
        )
        .into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_items_have_memcacheds_units() {
        assert_eq!(item_bytes("512k"), Ok(512 << 10));
        assert_eq!(item_bytes("2M"), Ok(2 << 20));
        assert_eq!(item_bytes("1048576"), Ok(1 << 20));
        for bad in ["", "k", "0", "1023", "2g", "1025m", "-1k", "99999999999999999999m"] {
            assert!(item_bytes(bad).is_err(), "{bad}");
        }
    }
}
