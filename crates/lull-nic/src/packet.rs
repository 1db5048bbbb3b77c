//! A packet socket (AF_PACKET): copies of an interface's frames, for where the kernel or the driver has no XDP.
//!
//! It is a fall-back, which is used only if it is named. The host's stack sees every frame as well, and ignores what is
//! for an address that is not its own: the addresses have to be lull's alone, and the host must not forward packets.
//! There is one queue.
//!
//! Receiving is a ring that the kernel fills (TPACKET_V2), behind a classic BPF filter that lets lull's addresses pass, and
//! ARP and neighbour discovery for them. Its slots have room for what the host's GRO has merged. Sending is a system call
//! for a batch, past the host's queueing discipline; a frame that the device does not take is lost, as on TAP.

mod filter;
mod queue;
mod ring;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Link, Offloads, Queue};
use crate::interface::{self, drain, is_hosts};
use crate::known::Known;
use crate::namespace::control_socket;
use crate::tally::Tally;
use crate::watch::{Wake, Watch};
use ring::Ring;

/// Frames that one doorbell can cover.
pub const TX_RING_SLOTS: usize = 256;
/// Most addresses of a device: the kernel takes filters of 4,096 instructions.
pub const ADDRESSES_MAX: usize = 64;

/// Which interface to take copies from, and which.
#[derive(Clone, Debug, Default)]
pub struct PacketConfig {
    /// Interface name.
    pub name: String,
    /// The addresses whose packets are taken, none of them the host's. Empty: all frames are.
    pub addresses: Vec<IpAddr>,
}

/// An interface that a packet socket takes copies from.
pub struct Packet {
    shared: Arc<Shared>,
    untaken: Mutex<Option<Queue>>,
    _watch: Watch,
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

struct Shared {
    name: String,
    mac: [u8; 6],
    socket: OwnedFd,
    ring: Ring,
    interface: Known,
    /// Membership in the Ethernet groups of neighbour discovery, for as long as it is open.
    _groups: OwnedFd,
    counters: Tally,
    /// Frames that the kernel dropped: it forgets what it was asked for.
    rx_lost: AtomicU64,
}

impl Shared {
    /// Takes the socket's error back, which keeps it readable, and returns whether there was one.
    fn takes_error(&self) -> bool {
        interface::option(&self.socket, libc::SOL_SOCKET, libc::SO_ERROR, 0i32).is_ok_and(|error| error != 0)
    }
}

impl Packet {
    /// Opens a packet socket on the interface.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for an address that is the host's, and too many; [`DeviceError::Os`] when the interface
    /// does not exist, or the kernel forbids it, with what would help.
    pub fn open(config: &PacketConfig) -> Result<Packet, DeviceError> {
        let failed = |what: &str, remedy: &'static str| {
            let (device, what) = (config.name.clone(), what.to_owned());
            move |source| DeviceError::Os { device, what, remedy, source }
        };
        let no_descriptors = "raise the limit on open files (ulimit -n)";
        check(config).map_err(failed("read the host's addresses", no_descriptors))??;
        let ifindex = interface::index(&config.name)
            .map_err(failed("find the interface", "name one of this network namespace (ip link)"))?;
        let control = control_socket(libc::AF_INET).map_err(failed("open a control socket", no_descriptors))?;
        // This comes before the state is read, so that later changes are told.
        let events = interface::events().map_err(failed("listen to the interface's changes", no_descriptors))?;
        let state = interface::state(&control, ifindex)
            .map_err(failed("read the interface's state", "is it gone? open it again"))?;
        let rights = "needs CAP_NET_RAW (root)";
        let (socket, ring) =
            ring::open(ifindex, &filter::of(&config.addresses)).map_err(failed("open a packet socket", rights))?;
        let groups = interface::join(ifindex, &interface::solicited_groups(config.addresses.iter().copied()))
            .map_err(failed("join the Ethernet groups of neighbour discovery", rights))?;
        let wake = Wake::new().map(Arc::new).map_err(failed("open a descriptor", no_descriptors))?;
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            mac: state.mac,
            socket,
            ring,
            interface: Known::new(control, ifindex, &state),
            _groups: groups,
            counters: Tally::default(),
            rx_lost: AtomicU64::new(0),
        });
        let (watched, woken) = (shared.clone(), wake.clone());
        let run = move || {
            while !woken.is_stopped() {
                woken.wait(&events, None);
                if drain(&events) {
                    watched.interface.look_again();
                }
            }
        };
        let watch = Watch::start("lull-nic-packet", &wake, run)
            .map_err(failed("start the device's thread", "raise the limit on threads (ulimit -u)"))?;
        Ok(Packet { untaken: Mutex::new(Some(queue::new(&shared))), shared, _watch: watch })
    }
}

fn check(config: &PacketConfig) -> io::Result<Result<(), DeviceError>> {
    let invalid = |why| Ok(Err(DeviceError::Invalid { device: config.name.clone(), what: "the addresses", why }));
    if config.addresses.len() > ADDRESSES_MAX {
        return invalid(format!("{}; a packet device has at most {ADDRESSES_MAX}", config.addresses.len()));
    }
    for address in &config.addresses {
        if is_hosts(*address)? {
            return invalid(format!(
                "{address} is the host's own, and the host would answer as well: take another, or use xdp:DEV with --ports"
            ));
        }
    }
    Ok(Ok(()))
}

impl Device for Packet {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.shared.name.clone(),
            mac: self.shared.mac,
            mtu_bytes: self.shared.interface.mtu_bytes(),
            queues: 1,
            rx_ring: self.shared.ring.slots(),
            tx_ring: TX_RING_SLOTS,
            dear_doorbell: false,
            offloads: Offloads { rx_checksum: true, ..Offloads::default() },
        }
    }

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        let mut untaken = self.untaken.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = if index == 0 { untaken.take() } else { None };
        queue.ok_or_else(|| DeviceError::Queue { device: self.shared.name.clone(), index, queues: 1 })
    }

    /// The link is up when the interface is up and has a carrier.
    fn link(&self) -> Link {
        if self.shared.interface.is_dead() { Link::Down } else { Link::Up }
    }

    fn counters(&self, queue: usize) -> Counters {
        if queue != 0 {
            return Counters::default();
        }
        let lost = ring::lost(&self.shared.socket);
        self.shared.counters.read(self.shared.rx_lost.fetch_add(lost, Ordering::Relaxed) + lost)
    }

    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        self.shared.interface.watchers.add(watcher);
    }
}
