//! AF_XDP: some frames of an interface, taken before the host's network stack sees them.
//!
//! A small program in the driver decides which frames are taken ([`XdpConfig`]); all others go to the host as ever. It is
//! attached by a link that ends with its last descriptor, so the host has all its traffic back when the process ends,
//! however that happens.
//!
//! Each queue of the interface has a socket, with memory of its own that both sides write frames to (UMEM), a receive and
//! a fill ring, a transmit and a completion ring. Received frames are that memory ([`crate::frame::Chunk`]) and go back
//! to the ring that they came from. Frames to send are copied into it: the stack's come from the heap. The memory belongs
//! to a queue and not to the device, so that queues share nothing, neither a lock nor a limit.
//!
//! In *copy mode* (a driver without zero-copy, or veth) no thread of the kernel sends for a socket. A doorbell is a
//! system call that sends at most 32 frames, so it is repeated for as long as frames leave; when the device takes none
//! for now it returns [`crate::Doorbell::Again`]. The kernel does not announce room either: while somebody waits for
//! it, a thread of the device looks.
//!
//! A veth peer in this machine leaves checksums to the device, and veth leaves them out: there, and there alone, received
//! frames count as verified.

mod asm;
mod bound;
mod bpf;
mod calls;
mod config;
mod home;
mod program;
mod queue;
mod receive;
mod ring;
mod send;
mod setup;
mod shared;
mod socket;
mod watch;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Link, Offloads, Queue};
use crate::interface;
use crate::known::Known;
use crate::namespace::control_socket;
use crate::watch::{Wake, Watch};
use crate::wire::{ETHERNET, VLAN_TAG};
use bound::{Bound, memlock_bytes, ways};
pub use bpf::XdpMode;
pub use calls::XdpCalls;
pub use config::{RING_SLOTS_RANGE, VLAN_MAX, XdpAddress, XdpBusyPoll, XdpConfig};
use home::KERNEL_HEADROOM_BYTES;
pub use setup::XdpSetup;
use shared::{Shared, Socket};

/// Bytes of a chunk at the usual MTU, and at larger ones: the kernel takes up to a page.
const CHUNK_BYTES: usize = 2048;
const LARGE_CHUNK_BYTES: usize = 4096;
/// Ethernet header and one VLAN tag: what a frame may be longer than the MTU.
const HEADER_BYTES_MAX: usize = ETHERNET + VLAN_TAG;
/// The longest frame that a chain of chunks holds (`MAX_SKB_FRAGS` of the kernel, at its usual value).
const SEGMENTS_MAX: usize = 17;

/// An interface of which AF_XDP sockets take frames.
pub struct Xdp {
    shared: Arc<Shared>,
    untaken: Mutex<Vec<Option<Queue>>>,
    _watch: Watch,
}

impl std::fmt::Debug for Xdp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Xdp").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// Returns the receive queues of an interface that are not among `queues`: frames that come by them are the host's,
/// whatever their address. An interface that does not exist has none.
pub fn queues_of_the_host(name: &str, queues: &[u32]) -> Vec<u32> {
    let Ok(control) = control_socket(libc::AF_INET) else { return Vec::new() };
    let (receiving, _) = interface::queues(&control, name);
    (0..receiving).filter(|queue| !queues.contains(queue)).collect()
}

/// Whether calls on the sockets busy poll the interface's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusyPoll {
    /// They do: received frames came from the NAPI instances with these ids, a queue each.
    InForce(Vec<u32>),
    /// No frame has named a NAPI instance: none has come yet, or the driver (veth) has no instance that can be polled.
    /// The options do nothing, or were not set ([`XdpBusyPoll::Off`]).
    NoNapi,
    /// The kernel refused the options.
    Refused(String),
}

/// How the device works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdpReport {
    /// Where the program runs.
    pub mode: XdpMode,
    /// Why not in the driver, if it does not.
    pub native_refused: Option<String>,
    /// The interface's queues that have a socket.
    pub queues: Vec<u32>,
    /// Whether the driver reads and writes the frames' memory itself, by queue.
    pub zero_copy: Vec<bool>,
    /// Whether frames may be in several chunks.
    pub several_chunks: bool,
    /// The longest frame, in bytes.
    pub frame_bytes_max: usize,
    /// Pinned memory of each queue, in bytes.
    pub umem_bytes: usize,
    /// What the process may pin, in bytes, unless it has CAP_IPC_LOCK; `None` without a limit.
    pub memlock_bytes: Option<u64>,
    /// The interface is a veth, whose peer is in this machine.
    pub is_veth: bool,
    /// Busy polling of the driver.
    pub busy_poll: BusyPoll,
    /// What the kernel lost because its fill ring was empty, by queue. It counts tries.
    pub rx_fill_ring_empty: Vec<u64>,
}

impl Xdp {
    /// [`XdpSetup::open`] and [`Xdp::start`].
    ///
    /// # Errors
    /// Theirs.
    pub fn open(config: &XdpConfig) -> Result<Xdp, DeviceError> {
        Xdp::start(XdpSetup::open(config)?)
    }

    /// Gives the sockets memory and binds them to their queues. It takes no privileges. The queues are free again when the
    /// device and every duplicate of its sockets is gone.
    ///
    /// # Errors
    /// [`DeviceError::Os`]: the memory exceeds RLIMIT_MEMLOCK, a queue has another socket, the interface is gone; or the
    /// MTU is larger than the kernel takes for AF_XDP.
    pub fn start(setup: XdpSetup) -> Result<Xdp, DeviceError> {
        let name = setup.name.clone();
        let failed = |what: String, remedy: &'static str| {
            let device = name.clone();
            move |source| DeviceError::Os { device, what, remedy, source }
        };
        let state = interface::state(&setup.control, setup.ifindex).map_err(failed(
            "read the interface's state".to_owned(),
            "is it gone, or in another namespace? open it again",
        ))?;
        // By its present name: it may have been renamed since the setup was made.
        let driver = interface::driver(&setup.control, &state.name).unwrap_or_default();
        let wake = Wake::new()
            .map(Arc::new)
            .map_err(failed("open a descriptor".to_owned(), "raise the limit on open files (ulimit -n)"))?;
        let is_large = state.mtu_bytes + HEADER_BYTES_MAX > CHUNK_BYTES - KERNEL_HEADROOM_BYTES;
        let chunk_bytes = if is_large { LARGE_CHUNK_BYTES } else { CHUNK_BYTES };
        let one_chunk = chunk_bytes - KERNEL_HEADROOM_BYTES - HEADER_BYTES_MAX;
        let mut ways = ways(setup.mode, state.mtu_bytes <= one_chunk);
        if setup.copy {
            ways.retain(|flags| flags & libc::XDP_COPY != 0);
        }
        let mut bound = Vec::new();
        let mut several_chunks = true;
        for (fd, queue) in setup.sockets.into_iter().zip(&setup.queues) {
            let rings = (setup.rx_ring, setup.tx_ring);
            let made = Bound::make(&name, fd, setup.ifindex, *queue, rings, chunk_bytes, &ways)?;
            several_chunks &= made.several_chunks;
            bound.push(made);
        }
        let mtu_bytes_max = if several_chunks { SEGMENTS_MAX * one_chunk } else { one_chunk };
        if state.mtu_bytes > mtu_bytes_max {
            let why = format!(
                "{}; AF_XDP takes at most {mtu_bytes_max} here, because the kernel or the driver has no frames in several \
                 buffers (Linux 6.6); lower the interface's MTU, or use packet:{name}",
                state.mtu_bytes
            );
            return Err(DeviceError::Invalid { device: name, what: "the MTU", why });
        }
        let (sockets, homes): (Vec<_>, Vec<_>) = bound.into_iter().map(|bound| (bound.socket, bound.home)).unzip();
        let shared = Arc::new(Shared {
            name: setup.name,
            mac: state.mac,
            mode: setup.mode,
            queues: setup.queues,
            vlan: setup.vlan,
            rx_ring: setup.rx_ring,
            tx_ring: setup.tx_ring,
            native_refused: setup.native_refused,
            busy_poll: setup.busy_poll,
            busy_poll_refused: setup.busy_poll_refused,
            sockets,
            several_chunks,
            peer_is_in_the_machine: driver == "veth",
            interface: Known::new(setup.control, setup.ifindex, &state),
            events: setup.events,
            wake: wake.clone(),
            // The rings' memory is cut for frames of the present MTU, up to the next whole number of chunks.
            mtu_bytes_max: state.mtu_bytes.max(if is_large { 0 } else { one_chunk }),
            _kept: setup.kept,
        });
        let queues = homes.into_iter().enumerate();
        let untaken = queues.map(|(index, (home, origin))| Some(queue::new(&shared, index, home, origin))).collect();
        let watched = shared.clone();
        let watch = Watch::start("lull-nic-xdp", &wake, move || watch::run(&watched))
            .map_err(failed("start the device's thread".to_owned(), "raise the limit on threads (ulimit -u)"))?;
        Ok(Xdp { shared, untaken: Mutex::new(untaken), _watch: watch })
    }

    /// The calls on the socket of queue `index`; `None` if there is no such queue.
    pub fn calls(&self, index: usize) -> Option<XdpCalls> {
        (index < self.shared.sockets.len()).then(|| XdpCalls::new(&self.shared, index))
    }

    /// How it works: what was found out, not what was asked for.
    pub fn report(&self) -> XdpReport {
        let shared = &self.shared;
        let napi_ids: Vec<_> = shared.sockets.iter().map(|socket| socket::napi_id(&socket.fd)).collect();
        let busy_poll = match &shared.busy_poll_refused {
            Some(why) => BusyPoll::Refused(why.clone()),
            None if shared.busy_poll == XdpBusyPoll::Off || napi_ids.iter().all(|id| *id == 0) => BusyPoll::NoNapi,
            None => BusyPoll::InForce(napi_ids),
        };
        let statistics = |socket: &Socket| socket::statistics(&socket.fd).map_or(0, |s| s.rx_fill_ring_empty_descs);
        XdpReport {
            mode: shared.mode,
            native_refused: shared.native_refused.clone(),
            queues: shared.queues.clone(),
            zero_copy: shared.sockets.iter().map(|socket| socket.zero_copy).collect(),
            several_chunks: shared.several_chunks,
            frame_bytes_max: shared.frame_bytes_max(),
            umem_bytes: shared.sockets[0].umem.bytes(),
            memlock_bytes: memlock_bytes(),
            is_veth: shared.peer_is_in_the_machine,
            busy_poll,
            rx_fill_ring_empty: shared.sockets.iter().map(statistics).collect(),
        }
    }
}

impl Device for Xdp {
    fn info(&self) -> DeviceInfo {
        let shared = &self.shared;
        DeviceInfo {
            name: shared.name.clone(),
            mac: shared.mac,
            mtu_bytes: shared.mtu_bytes(),
            queues: shared.sockets.len(),
            rx_ring: shared.rx_ring as usize,
            tx_ring: shared.tx_ring as usize,
            dear_doorbell: shared.sockets.iter().any(|socket| !socket.zero_copy),
            offloads: Offloads { rx_checksum: shared.peer_is_in_the_machine, ..Offloads::default() },
        }
    }

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        let mut untaken = self.untaken.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = untaken.len();
        let queue = untaken.get_mut(index).and_then(Option::take);
        queue.ok_or_else(|| DeviceError::Queue { device: self.shared.name.clone(), index, queues })
    }

    /// The link is up when the interface is up and has a carrier.
    fn link(&self) -> Link {
        if self.shared.is_dead() { Link::Down } else { Link::Up }
    }

    /// How the driver spreads flows, of which nothing more is known.
    fn rss_table(&self) -> Vec<usize> {
        (0..self.shared.sockets.len()).collect()
    }

    fn counters(&self, queue: usize) -> Counters {
        let Some(socket) = self.shared.sockets.get(queue) else { return Counters::default() };
        let lost = socket::statistics(&socket.fd).map_or(0, |kernel| kernel.rx_dropped + kernel.rx_ring_full);
        let counters = socket.counters.read(lost);
        Counters { syscalls: counters.syscalls + socket.calls.load(Ordering::Relaxed), ..counters }
    }

    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        self.shared.interface.watchers.add(watcher);
    }
}
