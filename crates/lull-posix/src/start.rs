//! The engine from what the launcher hands on.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use lull_control::Offer;
use lull_control::place::Places;
use lull_net::lull_core::EpollOptions;
use lull_net::lull_nic::Device;
use lull_net::lull_nic::pcap::Pcap;
use lull_net::lull_nic::tap::Tap;
use lull_net::lull_nic::xdp::{Xdp, XdpSetup};
use lull_net::{Host, HostConfig, Mode, Network, NetworkConfig};

use crate::engine::{Engine, StartError, engage};
use crate::flows::{Flows, NotClaimed};
use crate::fork;
use crate::handover::{HandOver, Nic};
use crate::routing::Routing;

/// Makes the addresses of `hand_over` lull's in this process. Nothing starts before the program's first call that needs it.
/// `say` is told why it does not start, if it does not.
pub fn engage_with(hand_over: HandOver, say: fn(&StartError)) -> bool {
    let routing = Routing {
        addresses: hand_over.addresses.clone(),
        routes: hand_over.routes.clone(),
        ports: hand_over.ports.clone(),
    };
    engage(routing, Box::new(move || start(&hand_over, say)), say)
}

fn start(hand_over: &HandOver, say: fn(&StartError)) -> Result<Engine, StartError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| StartError(format!("{what}: {error}"));
    let mode: Mode = hand_over.mode.parse().map_err(|error| failed("cannot take the mode", &error))?;
    let queues = hand_over.nic.queues();
    // Claimed first: another process's NIC is not to be touched.
    let flows = flows(hand_over, queues)?;
    let device = device(hand_over)?;
    let host = Host::new(HostConfig {
        cpus: vec![None; queues],
        epoll: EpollOptions { every_napi: true, ..EpollOptions::default() },
        after_resume: hand_over.after_resume,
        ..HostConfig::default()
    })
    .map_err(|error| failed("cannot start the engine", &error))?;
    let gateway = |v4: bool| hand_over.gateways.iter().find(|gateway| gateway.is_ipv4() == v4);
    let config = NetworkConfig {
        addresses: hand_over.addresses.clone(),
        gateway4: gateway(true).and_then(|gateway| if let IpAddr::V4(ip) = gateway { Some(*ip) } else { None }),
        gateway6: gateway(false).and_then(|gateway| if let IpAddr::V6(ip) = gateway { Some(*ip) } else { None }),
        cpus: (0..queues as u16).collect(),
        ..NetworkConfig::default()
    };
    let network = Network::new(&host, device, config.with_mode(&mode))
        .map_err(|error| failed("cannot bring the network up", &error))?;
    // The program is served without it as well.
    let control = Offer::start(&host, &name_of_this_program(), &Places::default());
    let control = control.inspect_err(|error| say(&failed("lull show does not see this program", error))).ok();
    Ok(Engine { host, network, mode, flows: Some(flows), control })
}

/// The program's name, as `ps` has it.
fn name_of_this_program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    if name.trim().is_empty() { "a program".to_owned() } else { name.trim().to_owned() }
}

fn device(hand_over: &HandOver) -> Result<Arc<dyn Device>, StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError(error.to_string());
    let device: Arc<dyn Device> = match &hand_over.nic {
        Nic::Tap { queues } => {
            let queues = queues.iter().map(|fd| own(*fd)).collect();
            Arc::new(Tap::adopt(queues).map_err(|error| failed(&error))?)
        }
        Nic::Xdp { setup, descriptors, .. } => {
            let descriptors = descriptors.iter().map(|fd| own(*fd)).collect();
            let setup = XdpSetup::from_parts(setup, descriptors)
                .ok_or_else(|| failed(&format!("'{setup}' is no AF_XDP device that this library understands")))?;
            Arc::new(Xdp::start(setup).map_err(|error| failed(&error))?)
        }
    };
    Ok(match hand_over.pcap {
        None => device,
        Some(fd) => recorded(device, File::from(own(fd))),
    })
}

/// Records every frame. What is buffered is written when the program exits; one that is killed loses the last of it.
#[allow(unsafe_code)]
fn recorded(device: Arc<dyn Device>, file: File) -> Arc<dyn Device> {
    static RECORD: OnceLock<Arc<Pcap<File>>> = OnceLock::new();
    extern "C" fn write_out() {
        // A child of `fork` has a copy of what its parent writes.
        if !fork::is_husk() {
            RECORD.get().inspect(|record| {
                record.flush();
            });
        }
    }
    let record = RECORD.get_or_init(|| Arc::new(Pcap::new(device, file)));
    // SAFETY: the function stays for as long as the process. Without memory to note it, only the end of the record is lost.
    unsafe { libc::atexit(write_out) };
    record.clone()
}

/// A descriptor that was handed on. It is this process's from now on, and nobody else's here.
#[allow(unsafe_code)]
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the launcher opened it for this process alone. If something on the way closed it, the first call on it says so.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The table of connections, with all queues claimed for this process.
fn flows(hand_over: &HandOver, queues: usize) -> Result<Flows, StartError> {
    let flows = Flows::open(own(hand_over.flows))
        .map_err(|error| StartError(format!("cannot share open connections: {error}")))?;
    for queue in 0..queues as u32 {
        flows.claim(queue).map_err(|error| {
            StartError(match error {
                NotClaimed::Taken { pid } => format!(
                    "queue {queue} of the NIC is process {pid}'s: one process of a program is on the user plane, the others have \
                     the kernel's addresses only"
                ),
                NotClaimed::System(error) => format!("cannot take queue {queue} of the NIC: {error}"),
            })
        })?;
    }
    Ok(flows)
}
