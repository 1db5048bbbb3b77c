//! A multi-queue TAP interface: the kernel's network stack is the peer.
//!
//! Each queue is a descriptor of its own, read and written one frame a system call. The kernel raises the interrupt:
//! [`crate::IrqLine::fd`] is the queue's descriptor. The kernel also picks the queue: the one that last sent in a
//! flow receives it, other flows are spread by hash (`tun_select_queue`).
//!
//! With [`TapConfig::offloads`] a frame has a virtio-net header in front ([`crate::virtio`]): neither side makes checksums
//! or checks them, and TCP segments of up to 64 KB pass whole. Without, frames carry final checksums both ways, and none
//! is longer than the MTU. Datagrams are never merged (`TUN_F_USO4`): whoever reads them wants them one by one.

mod open;
mod os;
mod queue;

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use self::open::{check, open_queues};
use crate::device::{Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Link, Offloads, Queue};
use crate::eventfd::never_readable;
use crate::interface;
use crate::namespace::{control_socket, set_interface_up};
use crate::own;
use crate::tally::Tally;
use crate::watchers::Watchers;

/// Queues that the kernel gives one interface (`MAX_TAP_QUEUES`).
pub const QUEUES_MAX: usize = 256;
/// Bytes of an interface name (`IFNAMSIZ` less its terminating zero).
pub const NAME_BYTES_MAX: usize = 15;
/// Frames that each queue of an interface which is made here holds for us; more are lost. The kernel's default of 1,000 is fewer than
/// the requests that ten thousand connections send while a program is away from a core for a moment.
const QUEUE_FRAMES: libc::c_int = 8192;
/// Frames that one doorbell can cover.
pub const TX_RING_SLOTS: usize = 256;
/// Ethernet header and one VLAN tag: what a frame may be longer than the MTU.
const HEADER_BYTES_MAX: usize = 18;

/// Where an interface comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// It was made when it was opened, and goes with its queues.
    Made,
    /// It was there before, and stays.
    There,
    /// Another process has opened the queues, and may go on with them.
    HandedOn,
}

impl Origin {
    /// The origin of an interface, by the index that its name had before its queues were opened and the one that it has
    /// now. The former interface may have been just about to go away, and then it is not the one that has the name now.
    fn of(before: Option<libc::c_uint>, after: Option<libc::c_uint>) -> Origin {
        match before {
            // If the name has no index now, the interface is renamed or gone, and nobody knows whose it was.
            Some(before) if after.is_none_or(|after| after == before) => Origin::There,
            _ => Origin::Made,
        }
    }
}

/// Which interface to open, and how.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Interface name, 1 to [`NAME_BYTES_MAX`] bytes. When creating, `%d` lets the kernel number it.
    pub name: String,
    /// Queue pairs, 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Create the interface if there is none of that name; it then vanishes with the device and its queues.
    /// `false`: it must exist.
    pub create: bool,
    /// MTU to set; `None` leaves it.
    pub mtu_bytes: Option<usize>,
    /// Ethernet address of our side; `None` derives a locally administered one from the kernel side's.
    pub mac: Option<[u8; 6]>,
    /// Leave checksums out, and pass TCP segments of up to 64 KB whole, both ways. Whoever reads frames then has to heed
    /// [`Frame::checksum`](crate::Frame::checksum).
    pub offloads: bool,
}

impl Default for TapConfig {
    fn default() -> TapConfig {
        TapConfig { name: "lull%d".to_owned(), queues: 1, create: true, mtu_bytes: None, mac: None, offloads: false }
    }
}

/// An open TAP interface.
pub struct Tap {
    shared: Arc<Shared>,
    untaken: Mutex<Vec<Option<Queue>>>,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// What the device and its queues share.
struct Shared {
    name: String,
    mac: [u8; 6],
    files: Vec<File>,
    /// For ioctls on the interface, in the namespace that it was opened in.
    control: OwnedFd,
    /// What the files become when the interface is gone, so that nobody who watches them spins.
    quiet: OwnedFd,
    mtu_bytes: AtomicUsize,
    rx_ring: usize,
    /// Frames have a virtio-net header in front.
    virtio: bool,
    origin: Origin,
    up: AtomicBool,
    gone: AtomicBool,
    resets: AtomicU64,
    counters: Vec<Tally>,
    watchers: Watchers,
}

impl Shared {
    fn os(&self, what: impl Into<String>, remedy: &'static str) -> impl FnOnce(io::Error) -> DeviceError {
        let (device, what) = (self.name.clone(), what.into());
        move |source| DeviceError::Os { device, what, remedy, source }
    }

    fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// After an error that a deleted interface would explain: makes sure, and if so ends the device.
    fn check_gone(&self, file: &File) -> bool {
        if self.gone() {
            return true;
        }
        if os::attached(file) {
            return false;
        }
        if !self.gone.swap(true, Ordering::Relaxed) {
            for file in &self.files {
                os::replace(file, &self.quiet);
            }
            self.watchers.tell(DeviceEvent::Gone);
        }
        true
    }

    /// The longest frame that is not to be cut.
    fn frame_bytes_max(&self) -> usize {
        self.mtu_bytes.load(Ordering::Relaxed) + HEADER_BYTES_MAX
    }

    /// The MTU may be changed under us, by `ip link set`.
    fn reread_mtu(&self) {
        if let Ok(mtu_bytes) = os::mtu(&self.control, &self.name) {
            self.mtu_bytes.store(mtu_bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // An interface that outlives us may next have a user who knows nothing of offloads.
        if self.virtio && self.origin != Origin::HandedOn && !self.gone() {
            let _ = os::set_offload(&self.files[0], 0);
        }
    }
}

impl Tap {
    /// Opens an existing interface or creates one.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a bad name or number of queues; [`DeviceError::Os`] when the interface does not
    /// exist, is in use, is not a TAP of enough queues, or the kernel forbids it, with what would help.
    pub fn open(config: TapConfig) -> Result<Tap, DeviceError> {
        check(&config)?;
        let before = match os::index(&config.name) {
            Err(source) if !config.create => {
                return Err(DeviceError::Os {
                    device: config.name.clone(),
                    what: "find the interface".to_owned(),
                    remedy: "make it first (ip tuntap add NAME mode tap multi_queue), or set `create`",
                    source,
                });
            }
            index => index.ok(),
        };
        let (name, files) = open_queues(&config)?;
        let origin = Origin::of(before, os::index(&name).ok());
        if origin == Origin::Made {
            // Where it may not be set the queue is as short as the kernel makes it, which `DeviceInfo::rx_ring` says.
            let _ = control_socket(libc::AF_INET).and_then(|control| os::set_queue_len(&control, &name, QUEUE_FRAMES));
        }
        let tap = Tap::of(name, files, config.mac, config.offloads, origin)?;
        if let Some(mtu_bytes) = config.mtu_bytes {
            tap.set_mtu(mtu_bytes)?;
        }
        Ok(tap)
    }

    /// Takes over the queues that another process has opened and handed on, one descriptor each. It takes no privilege.
    ///
    /// # Errors
    /// [`DeviceError::Os`] for a descriptor that is no queue of a TAP, or whose interface is gone;
    /// [`DeviceError::Invalid`] for none at all, and for queues of several interfaces.
    pub fn adopt(queues: Vec<OwnedFd>) -> Result<Tap, DeviceError> {
        let files: Vec<File> = queues.into_iter().map(File::from).collect();
        let invalid =
            |what, why: String| DeviceError::Invalid { device: "a TAP that was handed on".to_owned(), what, why };
        let mut tap: Option<(String, bool)> = None;
        for (queue, file) in files.iter().enumerate() {
            let its = os::interface(file).map_err(|source| DeviceError::Os {
                device: "a TAP that was handed on".to_owned(),
                what: format!("take over queue {queue}"),
                remedy: "hand on an open queue of a TAP interface that exists",
                source,
            })?;
            match &tap {
                Some((first, _)) if *first != its.0 => {
                    let its = its.0;
                    return Err(invalid(
                        "the queues",
                        format!("they belong to {first} and to {its}; take those of one"),
                    ));
                }
                _ => tap = Some(its),
            }
        }
        let (name, virtio) = tap.ok_or_else(|| invalid("the queues", "none; a TAP has at least one".to_owned()))?;
        Tap::of(name, files, None, virtio, Origin::HandedOn)
    }

    /// The descriptors of the queues, for a process that they are handed on to.
    pub fn queue_fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.shared.files.iter().map(AsFd::as_fd)
    }

    fn of(
        name: String,
        files: Vec<File>,
        mac: Option<[u8; 6]>,
        virtio: bool,
        origin: Origin,
    ) -> Result<Tap, DeviceError> {
        let failed = |what: &str, remedy, source| DeviceError::Os {
            device: name.clone(),
            what: what.to_owned(),
            remedy,
            source,
        };
        let no_descriptors = "raise the limit on open files (ulimit -n)";
        let control = own::made(|| control_socket(libc::AF_INET))
            .map_err(|source| failed("open a control socket", no_descriptors, source))?;
        let quiet = never_readable().map_err(|source| failed("open a descriptor", no_descriptors, source))?;
        let kernel_mac = os::mac(&control, &name)
            .map_err(|source| failed("read the address", "is the interface in another namespace?", source))?;
        let queues = files.len();
        let shared = Arc::new(Shared {
            mac: mac.unwrap_or_else(|| neighbour(kernel_mac)),
            mtu_bytes: AtomicUsize::new(os::mtu(&control, &name).unwrap_or(1500)),
            rx_ring: os::queue_len(&control, &name).unwrap_or(libc::TUN_READQ_SIZE as usize),
            virtio,
            origin,
            counters: files.iter().map(|_| Tally::default()).collect(),
            name,
            files,
            control,
            quiet,
            up: AtomicBool::new(true),
            gone: AtomicBool::new(false),
            resets: AtomicU64::new(0),
            watchers: Watchers::default(),
        });
        let untaken = (0..queues).map(|index| Some(queue::new(&shared, index))).collect();
        Ok(Tap { shared, untaken: Mutex::new(untaken) })
    }

    /// Gives the kernel's side `address` with a prefix of `prefix` bits, and brings it up. An IPv4 address replaces
    /// the former one; an IPv6 address is added, and usable at once, as nobody else on the wire could have it. An interface that
    /// was there before it was opened is not changed, as it would stay so: it has to be up, with this address.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a prefix longer than the address, and for an interface that was there before without this
    /// address; [`DeviceError::Os`] from the kernel.
    pub fn kernel_side(&self, address: IpAddr, prefix: u8) -> Result<(), DeviceError> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            let why = format!("{prefix}; the address has {bits} bits");
            return Err(DeviceError::Invalid { device: self.shared.name.clone(), what: "the prefix", why });
        }
        if self.shared.origin != Origin::Made {
            return self.is_there_with(address, prefix);
        }
        os::add_address(&self.shared.control, &self.shared.name, address, prefix).map_err(self.shared.os(
            format!("set the address {address}/{prefix}"),
            "needs CAP_NET_ADMIN in the interface's namespace (for IPv6, IPv6 not disabled there)",
        ))?;
        self.kernel_up()
    }

    fn is_there_with(&self, address: IpAddr, prefix: u8) -> Result<(), DeviceError> {
        let name = &self.shared.name;
        let is_up_with = interface::is_up_with(name, address, prefix)
            .map_err(self.shared.os("read the interface's addresses", "raise the limit on open files (ulimit -n)"))?;
        if is_up_with {
            return Ok(());
        }
        let why = format!(
            "{address}/{prefix}; the interface was there before, and would keep what it is given: run `ip addr add \
             {address}/{prefix} dev {name} && ip link set {name} up`, or name a TAP that is not there yet"
        );
        Err(DeviceError::Invalid { device: name.clone(), what: "the address of the kernel's side", why })
    }

    /// Brings the kernel's side up without changing its addresses.
    ///
    /// # Errors
    /// [`DeviceError::Os`] from the kernel.
    pub fn kernel_up(&self) -> Result<(), DeviceError> {
        set_interface_up(&self.shared.control, &self.shared.name)
            .map_err(self.shared.os("bring the interface up", "needs CAP_NET_ADMIN in the interface's namespace"))
    }

    /// Tells the kernel that `address` is on our side, so that what it sends there does not wait until somebody answers for it; it has to
    /// be up. It asks all the same, some seconds after it has first sent there. An interface that was there before is not changed.
    ///
    /// # Errors
    /// [`DeviceError::Os`] from the kernel.
    pub fn tell_kernel_of(&self, address: IpAddr) -> Result<(), DeviceError> {
        if self.shared.origin != Origin::Made {
            return Ok(());
        }
        os::index(&self.shared.name)
            .and_then(|ifindex| interface::tell_of_neighbour(ifindex, address, self.shared.mac))
            .map_err(
                self.shared
                    .os(format!("tell the kernel of {address}"), "needs CAP_NET_ADMIN in the interface's namespace"),
            )
    }

    /// Changes the MTU, in bytes.
    ///
    /// # Errors
    /// [`DeviceError::Os`] from the kernel: a TAP takes 68 to 65521.
    pub fn set_mtu(&self, mtu_bytes: usize) -> Result<(), DeviceError> {
        os::set_mtu(&self.shared.control, &self.shared.name, mtu_bytes).map_err(
            self.shared.os(format!("set the MTU to {mtu_bytes}"), "a TAP takes 68 to 65521; needs CAP_NET_ADMIN"),
        )?;
        self.shared.mtu_bytes.store(mtu_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The Ethernet address of the kernel's side. Ours is in [`Device::info`].
    ///
    /// # Errors
    /// [`DeviceError::Os`] from the kernel: the interface is gone.
    pub fn kernel_mac(&self) -> Result<[u8; 6], DeviceError> {
        os::mac(&self.shared.control, &self.shared.name)
            .map_err(self.shared.os("read the address", "open the interface again"))
    }

    /// Changes the Ethernet address of the kernel's side.
    ///
    /// # Errors
    /// [`DeviceError::Os`] from the kernel: a multicast address, or no right.
    pub fn set_kernel_mac(&self, mac: [u8; 6]) -> Result<(), DeviceError> {
        os::set_mac(&self.shared.control, &self.shared.name, mac)
            .map_err(self.shared.os("set the address", "take a unicast address; needs CAP_NET_ADMIN"))
    }

    /// Reads a queue empty, and returns how many frames that were.
    fn drain(&self, queue: usize) -> u64 {
        let mut scratch = [0; 64];
        let mut count = 0;
        // Bounded: the kernel may go on sending meanwhile.
        while count < 2 * self.shared.rx_ring as u64
            && io::Read::read(&mut &self.shared.files[queue], &mut scratch).is_ok()
        {
            count += 1;
        }
        count
    }
}

/// Makes a queue that was handed on one of those that the kernel sends frames to, or takes it out: a queue that nobody reads
/// must be out, or the flows that the kernel gives it find no answer. What waits in it is dropped when it is taken out. It takes
/// no privilege. False: it was so already, or the interface has only this queue, which is never taken out.
///
/// # Errors
/// [`DeviceError::Os`]: the descriptor is no queue of a TAP, or its interface is gone.
pub fn set_attached(queue: BorrowedFd<'_>, attached: bool) -> Result<bool, DeviceError> {
    os::set_attached(queue, attached).map_err(|source| DeviceError::Os {
        device: "a TAP that was handed on".to_owned(),
        what: format!("{} a queue", if attached { "attach" } else { "detach" }),
        remedy: "hand on an open queue of a TAP interface that exists",
        source,
    })
}

/// A locally administered unicast address next to `mac`, which it differs from.
fn neighbour(mut mac: [u8; 6]) -> [u8; 6] {
    mac[0] = (mac[0] | 2) & !1;
    mac[5] ^= 1;
    mac
}

impl Device for Tap {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.shared.name.clone(),
            mac: self.shared.mac,
            mtu_bytes: self.shared.mtu_bytes.load(Ordering::Relaxed),
            queues: self.shared.files.len(),
            rx_ring: self.shared.rx_ring,
            tx_ring: TX_RING_SLOTS,
            dear_doorbell: true,
            offloads: Offloads {
                rx_checksum: self.shared.virtio,
                tx_checksum: self.shared.virtio,
                tso: self.shared.virtio,
            },
        }
    }

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        let mut untaken = self.untaken.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = untaken.len();
        let queue = untaken.get_mut(index).and_then(Option::take);
        queue.ok_or_else(|| DeviceError::Queue { device: self.shared.name.clone(), index, queues })
    }

    fn link(&self) -> Link {
        if self.shared.up.load(Ordering::Relaxed) && !self.shared.gone() { Link::Up } else { Link::Down }
    }

    /// Switches the carrier that the kernel sees.
    fn set_link(&self, link: Link) -> Result<(), DeviceError> {
        let up = link == Link::Up;
        os::set_carrier(&self.shared.files[0], up)
            .map_err(self.shared.os("switch the carrier", "needs Linux 5.0 or newer, and the interface to exist"))?;
        if self.shared.up.swap(up, Ordering::Relaxed) != up {
            self.shared.watchers.tell(DeviceEvent::Link(link));
        }
        Ok(())
    }

    /// Reads every queue empty and drops what was transmitted without a doorbell.
    fn reset(&self) -> Result<(), DeviceError> {
        if self.shared.gone() {
            return Err(self.unsupported("resetting an interface that is gone"));
        }
        for (queue, counters) in self.shared.counters.iter().enumerate() {
            counters.rx_errors.fetch_add(self.drain(queue), Ordering::Relaxed);
        }
        self.shared.resets.fetch_add(1, Ordering::Relaxed);
        self.shared.watchers.tell(DeviceEvent::Reset);
        Ok(())
    }

    /// The kernel's spread of new flows.
    fn rss_table(&self) -> Vec<usize> {
        (0..self.shared.files.len()).collect()
    }

    fn set_rss_table(&self, _table: &[usize]) -> Result<(), DeviceError> {
        Err(self.unsupported("setting the RSS table (the kernel steers)"))
    }

    fn counters(&self, queue: usize) -> Counters {
        self.shared.counters.get(queue).map_or_else(Counters::default, |tally| tally.read(0))
    }

    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        self.shared.watchers.add(watcher);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Origin;

    #[test]
    fn an_interface_in_the_place_of_one_that_was_going_away_is_a_new_one() {
        for (before, after, origin) in [
            (None, Some(5), Origin::Made),
            (Some(4), Some(5), Origin::Made),
            (Some(5), Some(5), Origin::There),
            (Some(5), None, Origin::There),
            (None, None, Origin::Made),
        ] {
            assert_eq!(Origin::of(before, after), origin, "{before:?} {after:?}");
        }
    }
}
