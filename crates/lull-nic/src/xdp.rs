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
//! What the kernel does not do for a socket in *copy mode* (a driver without zero-copy, or veth): no thread of it sends.
//! A doorbell is a system call that sends at most 32 frames, so it is repeated while it gets on; on a device that takes
//! nothing for now it says [`crate::Doorbell::Again`]. Nothing announces room either: while somebody waits for it, a thread of the
//! device looks.
//!
//! A veth peer in this machine leaves checksums to the device, and veth leaves them out: there, and there alone, received
//! frames count as verified.

mod asm;
mod bpf;
mod config;
mod home;
mod os;
mod program;
mod queue;
mod ring;
mod setup;
mod socket;
mod watch;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::device::{Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Link, Offloads, Queue};
use crate::eventfd::EventFdSink;
use crate::line::Line;
use crate::watchers::Watchers;
use crate::wire::{ETHERNET, VLAN_TAG};
pub use bpf::XdpMode;
pub use config::{RING_SLOTS_RANGE, VLAN_MAX, XdpAddress, XdpConfig};
use home::{Home, KERNEL_HEADROOM_BYTES};
use ring::holds_any;
pub use setup::XdpSetup;
use socket::{Rings, Umem};
use watch::Watch;

/// Bytes of a chunk at the usual MTU, and at larger ones: the kernel takes up to a page.
const CHUNK_BYTES: usize = 2048;
const LARGE_CHUNK_BYTES: usize = 4096;
/// Ethernet header and one VLAN tag: what a frame may be longer than the MTU.
const HEADER_BYTES_MAX: usize = ETHERNET + VLAN_TAG;
/// The longest frame that a chain of chunks holds (`MAX_SKB_FRAGS` of the kernel, at its usual value).
const SEGMENTS_MAX: usize = 17;

/// How long a queue may have the socket of a process that has just died: the kernel takes it back in its own time.
const BIND_PATIENCE: Duration = Duration::from_secs(2);
const BIND_PAUSE: Duration = Duration::from_millis(2);

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

/// Whether calls on the sockets busy poll the interface's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusyPoll {
    /// They do: received frames came from the NAPI instances with these ids, a queue each.
    InForce(Vec<u32>),
    /// No frame has named a NAPI instance: none has come yet, or the driver (veth) has no instance that can be polled.
    /// The options are set and do nothing.
    NoNapi,
    /// The kernel refused the options.
    Refused(String),
}

/// How the device works.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Busy polling of the driver.
    pub busy_poll: BusyPoll,
    /// What the kernel lost because its fill ring was empty, by queue. It counts tries.
    pub rx_fill_ring_empty: Vec<u64>,
}

/// Counters of one queue; each is written by the owner of one half.
#[derive(Default)]
struct QueueCounters {
    rx_frames: AtomicU64,
    rx_bytes: AtomicU64,
    rx_errors: AtomicU64,
    rx_syscalls: AtomicU64,
    tx_frames: AtomicU64,
    tx_bytes: AtomicU64,
    tx_dropped: AtomicU64,
    tx_syscalls: AtomicU64,
}

/// The socket of a queue.
struct Socket {
    fd: OwnedFd,
    rings: Arc<Rings>,
    umem: Arc<Umem>,
    /// The chunks that are sent from; those before them are received into.
    tx_chunks: Range<u32>,
    zero_copy: bool,
    counters: QueueCounters,
    room: Line,
    /// Transmit chunks that hold nothing: what the room interrupt goes by.
    tx_free: AtomicU32,
    /// The last doorbell left frames on the ring, which had let go of this many by then. Above `u32`: it left none.
    stuck_at: AtomicU64,
    /// The kernel's NAPI, once a frame has named it.
    napi_id: AtomicU32,
}

const NOT_STUCK: u64 = u64::MAX;

impl Socket {
    fn is_stuck(&self) -> bool {
        self.stuck_at.load(Ordering::Acquire) != NOT_STUCK
    }

    fn set_stuck(&self, is_stuck: bool) {
        let at = if is_stuck { u64::from(self.rings.tx.consumer().load(Ordering::Acquire)) } else { NOT_STUCK };
        self.stuck_at.store(at, Ordering::Release);
    }

    /// Whether calls on the socket poll the driver: the kernel names an instance only where that can be polled.
    fn is_busy_polled(&self) -> bool {
        self.napi_id.load(Ordering::Relaxed) != 0
    }
}

/// What the device and its queues share.
struct Shared {
    name: String,
    ifindex: u32,
    mac: [u8; 6],
    mode: XdpMode,
    queues: Vec<u32>,
    vlan: Option<u16>,
    rx_ring: u32,
    tx_ring: u32,
    native_refused: Option<String>,
    busy_poll_refused: Option<String>,
    sockets: Vec<Socket>,
    several_chunks: bool,
    /// The interface is a veth.
    peer_is_in_the_machine: bool,
    control: OwnedFd,
    events: OwnedFd,
    wake: EventFdSink,
    watch_stopped: AtomicBool,
    /// The longest packet that the rings' memory is cut for.
    mtu_bytes_max: usize,
    mtu_bytes: AtomicUsize,
    up: AtomicBool,
    gone: AtomicBool,
    watchers: Watchers,
    /// The link and what else is only kept open.
    _kept: Vec<OwnedFd>,
}

impl Shared {
    fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether frames cannot be sent at all.
    fn is_dead(&self) -> bool {
        self.gone() || !self.up.load(Ordering::Relaxed)
    }

    fn chunk_bytes(&self) -> usize {
        self.sockets[0].umem.chunk_bytes()
    }

    fn frame_bytes_max(&self) -> usize {
        self.mtu_bytes.load(Ordering::Relaxed).min(self.mtu_bytes_max) + HEADER_BYTES_MAX
    }

    /// Chunks that the longest frame takes.
    fn segments_max(&self) -> usize {
        (self.mtu_bytes_max + HEADER_BYTES_MAX).div_ceil(self.chunk_bytes())
    }

    /// Whether a transmitter that found no room, or whose doorbell left frames, would now get on.
    fn has_room(&self, socket: &Socket) -> bool {
        if self.is_dead() {
            return true;
        }
        let stuck_at = socket.stuck_at.load(Ordering::Acquire);
        if stuck_at != NOT_STUCK {
            return stuck_at != u64::from(socket.rings.tx.consumer().load(Ordering::Acquire));
        }
        let completion = &socket.rings.completion;
        let free = socket.tx_free.load(Ordering::Relaxed) as usize;
        let completed = if holds_any(completion.producer(), completion.consumer()) {
            let produced = completion.producer().load(Ordering::Acquire);
            produced.wrapping_sub(completion.consumer().load(Ordering::Relaxed)) as usize
        } else {
            0
        };
        free + completed >= self.segments_max()
    }

    fn wake_watch(&self) {
        crate::device::IrqSink::raise(&self.wake);
    }

    fn stop_watch(&self) {
        self.watch_stopped.store(true, Ordering::Release);
        self.wake_watch();
    }

    fn is_watch_stopped(&self) -> bool {
        self.watch_stopped.load(Ordering::Acquire)
    }

    /// Asks the kernel how the interface is, and tells the watchers what is new.
    fn look_again(&self) {
        match os::state(&self.control, self.ifindex) {
            Ok(state) => {
                self.mtu_bytes.store(state.mtu_bytes, Ordering::Relaxed);
                if self.up.swap(state.running, Ordering::Relaxed) != state.running && !self.gone() {
                    self.watchers.tell(DeviceEvent::Link(if state.running { Link::Up } else { Link::Down }));
                }
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                if !self.gone.swap(true, Ordering::Relaxed) {
                    self.watchers.tell(DeviceEvent::Gone);
                }
            }
            // Nothing is known then; the next change asks again.
            Err(_) => {}
        }
        // Nobody waits for a device that takes and drops everything.
        if self.is_dead() {
            for socket in self.sockets.iter().filter(|socket| socket.room.vector.is_armed()) {
                if socket.room.vector.take() {
                    socket.room.fire();
                }
            }
        }
    }
}

impl Xdp {
    /// [`XdpSetup::open`] and [`Xdp::start`].
    ///
    /// # Errors
    /// Theirs.
    pub fn open(config: &XdpConfig) -> Result<Xdp, DeviceError> {
        Xdp::start(XdpSetup::open(config)?)
    }

    /// Gives the sockets memory and binds them to their queues. It takes no privileges.
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
        let state = os::state(&setup.control, setup.ifindex).map_err(failed(
            "read the interface's state".to_owned(),
            "is it gone, or in another namespace? open it again",
        ))?;
        let driver = os::driver(&setup.control, &name).unwrap_or_default();
        let wake = EventFdSink::new()
            .map_err(failed("open a descriptor".to_owned(), "raise the limit on open files (ulimit -n)"))?;
        let is_large = state.mtu_bytes + HEADER_BYTES_MAX > CHUNK_BYTES - KERNEL_HEADROOM_BYTES;
        let chunk_bytes = if is_large { LARGE_CHUNK_BYTES } else { CHUNK_BYTES };
        let mut bound = Vec::new();
        let mut several_chunks = true;
        for (fd, queue) in setup.sockets.into_iter().zip(&setup.queues) {
            let rings = (setup.rx_ring, setup.tx_ring);
            let made = Bound::make(&name, fd, setup.ifindex, *queue, rings, chunk_bytes)?;
            several_chunks &= made.several_chunks;
            bound.push(made);
        }
        let one_chunk = chunk_bytes - KERNEL_HEADROOM_BYTES - HEADER_BYTES_MAX;
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
            ifindex: setup.ifindex,
            mac: state.mac,
            mode: setup.mode,
            queues: setup.queues,
            vlan: setup.vlan,
            rx_ring: setup.rx_ring,
            tx_ring: setup.tx_ring,
            native_refused: setup.native_refused,
            busy_poll_refused: setup.busy_poll_refused,
            sockets,
            several_chunks,
            peer_is_in_the_machine: driver == "veth",
            control: setup.control,
            events: setup.events,
            wake,
            watch_stopped: AtomicBool::new(false),
            // The rings' memory is cut for frames of the present MTU, up to the next whole number of chunks.
            mtu_bytes_max: state.mtu_bytes.max(if is_large { 0 } else { one_chunk }),
            mtu_bytes: AtomicUsize::new(state.mtu_bytes),
            up: AtomicBool::new(state.running),
            gone: AtomicBool::new(false),
            watchers: Watchers::default(),
            _kept: setup.kept,
        });
        let queues = homes.into_iter().enumerate();
        let untaken = queues.map(|(index, (home, origin))| Some(queue::new(&shared, index, home, origin))).collect();
        let watch = Watch::start(&shared)
            .map_err(failed("start the device's thread".to_owned(), "raise the limit on threads (ulimit -u)"))?;
        Ok(Xdp { shared, untaken: Mutex::new(untaken), _watch: watch })
    }

    /// How it works: what was found out, not what was asked for.
    pub fn report(&self) -> XdpReport {
        let shared = &self.shared;
        let napi_ids: Vec<_> = shared.sockets.iter().map(|socket| socket::napi_id(&socket.fd)).collect();
        let busy_poll = match &shared.busy_poll_refused {
            Some(why) => BusyPoll::Refused(why.clone()),
            None if napi_ids.iter().all(|id| *id == 0) => BusyPoll::NoNapi,
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
            busy_poll,
            rx_fill_ring_empty: shared.sockets.iter().map(statistics).collect(),
        }
    }
}

/// A socket with its memory, bound to its queue.
struct Bound {
    socket: Socket,
    home: (Arc<Home>, Arc<crate::frame::Origin>),
    several_chunks: bool,
}

impl Bound {
    fn make(
        name: &str,
        fd: OwnedFd,
        ifindex: u32,
        queue: u32,
        (rx_ring, tx_ring): (u32, u32),
        chunk_bytes: usize,
    ) -> Result<Bound, DeviceError> {
        let os = |what: String, remedy: &'static str, source| DeviceError::Os {
            device: name.to_owned(),
            what,
            remedy,
            source,
        };
        let rx_chunks = XdpConfig::rx_chunks(rx_ring);
        let chunks = rx_chunks + tx_ring;
        let kibibytes = chunks as usize * chunk_bytes / 1024;
        let memory = format!("pin {kibibytes} KiB for the frames of queue {queue} ({})", memlock());
        let memlock_remedy = "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=), or take smaller rings or fewer queues";
        let umem = Umem::new(chunks as usize, chunk_bytes)
            .and_then(|umem| socket::register(&fd, &umem).map(|()| Arc::new(umem)))
            .map_err(|source| os(memory, memlock_remedy, source))?;
        let rings = Rings::make(&fd, rx_ring, tx_ring)
            .map(Arc::new)
            .map_err(|source| os(format!("make the rings of queue {queue}"), "take smaller rings", source))?;
        let (home, origin) = Home::new(&umem, &rings, rx_chunks, rx_ring);
        home.lock().refill();
        let several_chunks = bind(&fd, ifindex, queue).map_err(|source| {
            let remedy = match source.raw_os_error() {
                Some(libc::EBUSY) => "another AF_XDP socket has this queue: end its program, or name other queues",
                Some(libc::EINVAL) => "does the interface have that queue still? (ethtool -l)",
                _ => "is the interface gone, or in another namespace? open it again",
            };
            os(format!("bind an AF_XDP socket to queue {queue}"), remedy, source)
        })?;
        let zero_copy = socket::is_zero_copy(&fd).unwrap_or(false);
        let socket = Socket {
            fd,
            rings,
            umem,
            tx_chunks: rx_chunks..chunks,
            zero_copy,
            counters: QueueCounters::default(),
            room: Line::new(),
            tx_free: AtomicU32::new(tx_ring),
            stuck_at: AtomicU64::new(NOT_STUCK),
            napi_id: AtomicU32::new(0),
        };
        Ok(Bound { socket, home: (home, origin), several_chunks })
    }
}

/// Binds the socket to its queue; whether frames may be in several chunks.
fn bind(fd: &OwnedFd, ifindex: u32, queue: u32) -> io::Result<bool> {
    let deadline = Instant::now() + BIND_PATIENCE;
    let mut flags = libc::XDP_USE_NEED_WAKEUP | libc::XDP_USE_SG;
    loop {
        let Err(error) = socket::bind(fd, ifindex, queue, flags) else {
            return Ok(flags & libc::XDP_USE_SG != 0);
        };
        match error.raw_os_error() {
            // Kernels before 6.6, and drivers that do zero-copy in one piece alone.
            Some(libc::EINVAL | libc::EOPNOTSUPP) if flags & libc::XDP_USE_SG != 0 => flags &= !libc::XDP_USE_SG,
            Some(libc::EBUSY) if Instant::now() < deadline => std::thread::sleep(BIND_PAUSE),
            _ => return Err(error),
        }
    }
}

/// What the process may pin, in words.
fn memlock() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call, which fills it in.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } < 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return "RLIMIT_MEMLOCK is unlimited".to_owned();
    }
    format!("RLIMIT_MEMLOCK is {} KiB for all of this user's", limit.rlim_cur / 1024)
}

impl Device for Xdp {
    fn info(&self) -> DeviceInfo {
        let shared = &self.shared;
        DeviceInfo {
            name: shared.name.clone(),
            mac: shared.mac,
            mtu_bytes: shared.mtu_bytes.load(Ordering::Relaxed).min(shared.mtu_bytes_max),
            queues: shared.sockets.len(),
            rx_ring: shared.rx_ring as usize,
            tx_ring: shared.tx_ring as usize,
            offloads: Offloads { rx_checksum: shared.peer_is_in_the_machine, ..Offloads::default() },
        }
    }

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        let mut untaken = self.untaken.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = untaken.len();
        let queue = untaken.get_mut(index).and_then(Option::take);
        queue.ok_or_else(|| DeviceError::Queue { device: self.shared.name.clone(), index, queues })
    }

    /// That of the interface: up, with a carrier.
    fn link(&self) -> Link {
        if self.shared.is_dead() { Link::Down } else { Link::Up }
    }

    /// The driver's spread, of which nothing more is known.
    fn rss_table(&self) -> Vec<usize> {
        (0..self.shared.sockets.len()).collect()
    }

    /// `interrupts` stays 0: the kernel raises them.
    fn counters(&self, queue: usize) -> Counters {
        let Some(socket) = self.shared.sockets.get(queue) else { return Counters::default() };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let lost = socket::statistics(&socket.fd).map_or(0, |kernel| kernel.rx_dropped + kernel.rx_ring_full);
        let counters = &socket.counters;
        Counters {
            rx_frames: read(&counters.rx_frames),
            rx_bytes: read(&counters.rx_bytes),
            rx_dropped: lost,
            rx_errors: read(&counters.rx_errors),
            tx_frames: read(&counters.tx_frames),
            tx_bytes: read(&counters.tx_bytes),
            tx_dropped: read(&counters.tx_dropped),
            interrupts: 0,
            syscalls: read(&counters.rx_syscalls) + read(&counters.tx_syscalls),
        }
    }

    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        self.shared.watchers.add(watcher);
    }
}
