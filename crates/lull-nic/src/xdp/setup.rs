//! The half of opening a device that takes privileges: the program, its maps and the link, and sockets that are bound to
//! nothing yet.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::bpf::{self, Pieces, XdpMode};
use super::program::{self, Maps, address, port_key};
use super::{XdpBusyPoll, XdpConfig, socket};
use crate::device::DeviceError;
use crate::interface;
use crate::namespace::control_socket;
use crate::wire::{PROTOCOL_TCP, PROTOCOL_UDP};

/// Times that SO_BUSY_POLL lets a call poll the driver, in microseconds, and frames that it takes at a time. One call
/// polls once here, whatever the time; the kernel only wants one that is not 0.
const BUSY_POLL_USECS: u32 = 20;
const BUSY_POLL_BUDGET: u32 = 64;

/// An interface whose frames a program steers to sockets that wait for their memory. All that takes privileges
/// (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF) has been done. [`super::Xdp::start`] does the rest, in this process or, by
/// [`XdpSetup::parts`], in another without any.
///
/// Everything is given back when the last descriptor is closed, however the process ends.
#[derive(Debug)]
pub struct XdpSetup {
    pub(super) name: String,
    pub(super) ifindex: u32,
    pub(super) queues: Vec<u32>,
    pub(super) mode: XdpMode,
    pub(super) vlan: Option<u16>,
    pub(super) rx_ring: u32,
    pub(super) tx_ring: u32,
    pub(super) busy_poll: XdpBusyPoll,
    pub(super) copy: bool,
    /// One for each of `queues`.
    pub(super) sockets: Vec<OwnedFd>,
    pub(super) control: OwnedFd,
    pub(super) events: OwnedFd,
    /// Queue index to socket, as the program has it.
    pub(super) by_queue: OwnedFd,
    /// The link, and the memberships in Ethernet groups, which only have to stay open.
    pub(super) kept: Vec<OwnedFd>,
    /// Why the program does not run in the driver.
    pub(super) native_refused: Option<String>,
    /// Why calls on the sockets do not busy poll the driver.
    pub(super) busy_poll_refused: Option<String>,
}

const NO_DESCRIPTORS: &str = "raise the limit on open files (ulimit -n)";

impl XdpSetup {
    /// Loads the program, attaches it to the interface, and opens the sockets.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a setting out of its limits; [`DeviceError::Os`] when the interface does not exist,
    /// another program is attached, or the kernel forbids it, with what would help.
    pub fn open(config: &XdpConfig) -> Result<XdpSetup, DeviceError> {
        let failed = |what: &str, remedy: &'static str| {
            let (device, what) = (config.name.clone(), what.to_owned());
            move |source| DeviceError::Os { device, what, remedy, source }
        };
        let ifindex = interface::index(&config.name)
            .map_err(failed("find the interface", "name one of this network namespace (ip link)"))?;
        let control = control_socket(libc::AF_INET).map_err(failed("open a control socket", NO_DESCRIPTORS))?;
        let queues = config.check(interface::queues(&control, &config.name))?;
        let events = interface::events().map_err(failed("listen to the interface's changes", NO_DESCRIPTORS))?;
        let (sockets, busy_poll_refused) = open_sockets(&queues, config.rx_ring, config.busy_poll)
            .map_err(failed("open an AF_XDP socket", "needs CAP_NET_RAW and a kernel with CONFIG_XDP_SOCKETS"))?;
        let (program, by_queue) = program(config, &queues, &sockets)?;
        let (link, mode, native_refused) = attach(&program, ifindex, &config.name)?;
        let groups = config.solicited_groups();
        let groups = interface::join(ifindex, &groups)
            .map_err(failed("join the Ethernet groups of neighbour discovery", "needs CAP_NET_RAW"))?;
        Ok(XdpSetup {
            name: config.name.clone(),
            ifindex,
            queues,
            mode,
            vlan: config.vlan,
            rx_ring: config.rx_ring,
            tx_ring: config.tx_ring,
            busy_poll: config.busy_poll,
            copy: config.copy,
            sockets,
            control,
            events,
            by_queue,
            kept: vec![link, groups],
            native_refused,
            busy_poll_refused,
        })
    }

    /// The setup for another process: a line of text, and the descriptors, in the order in which that has to give
    /// (duplicates of) them to [`XdpSetup::from_parts`].
    pub fn parts(&self) -> (String, Vec<BorrowedFd<'_>>) {
        let queues = self.queues.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let vlan = self.vlan.map_or("-".to_owned(), |vlan| vlan.to_string());
        let busy_poll = match self.busy_poll {
            XdpBusyPoll::ByPolls => "by-polls".to_owned(),
            XdpBusyPoll::ByCalls { usecs, budget } => format!("{usecs}/{budget}"),
            XdpBusyPoll::Off => "off".to_owned(),
        };
        let text = format!(
            "xdp {} {} {queues} {} {vlan} {} {} {busy_poll} {}",
            self.name, self.ifindex, self.mode, self.rx_ring, self.tx_ring, self.copy
        );
        let fds = self.sockets.iter().chain([&self.control, &self.events, &self.by_queue]).chain(&self.kept);
        (text, fds.map(AsFd::as_fd).collect())
    }

    /// How many queues the device will have.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The interface's index.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// What the kernel refused that makes the device slower, in words. These words are not handed to another process.
    pub fn refusals(&self) -> Vec<String> {
        let above = self.native_refused.as_ref();
        let above = above.map(|why| format!("the XDP program runs above the driver, which refused it: {why}"));
        let busy_poll = self.busy_poll_refused.as_ref();
        let busy_poll = busy_poll.map(|why| format!("busy polling of the driver was refused: {why}"));
        above.into_iter().chain(busy_poll).collect()
    }

    /// The setup of some of its queues, by their place among them, with new sockets, which get the frames from now on.
    /// A socket takes memory once, from the process that starts it. So to let several processes have the device, one
    /// after the other or at the same time, give each a setup of its own.
    ///
    /// # Errors
    /// [`DeviceError::Queue`] for one that it does not have; [`DeviceError::Os`]: the privileges are gone.
    pub fn again(&self, queues: &[usize]) -> Result<XdpSetup, DeviceError> {
        let numbered = |index: &usize| {
            let (device, queues) = (self.name.clone(), self.queues.len());
            self.queues.get(*index).copied().ok_or(DeviceError::Queue { device, index: *index, queues })
        };
        let queues = queues.iter().map(numbered).collect::<Result<Vec<_>, _>>()?;
        let failed = |source| DeviceError::Os {
            device: self.name.clone(),
            what: "open AF_XDP sockets anew".to_owned(),
            remedy: "needs CAP_NET_RAW, as opening the device did",
            source,
        };
        let (sockets, busy_poll_refused) = open_sockets(&queues, self.rx_ring, self.busy_poll).map_err(failed)?;
        for (queue, socket) in queues.iter().zip(&sockets) {
            bpf::set_socket(&self.by_queue, *queue, socket.as_fd()).map_err(failed)?;
        }
        Ok(XdpSetup {
            name: self.name.clone(),
            queues,
            sockets,
            control: self.control.try_clone().map_err(failed)?,
            // Each process hears of every change.
            events: interface::events().map_err(failed)?,
            by_queue: self.by_queue.try_clone().map_err(failed)?,
            kept: self.kept.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>().map_err(failed)?,
            native_refused: self.native_refused.clone(),
            busy_poll_refused,
            ..*self
        })
    }

    /// Puts together what [`XdpSetup::parts`] gave; `None` if it is not that. Why something was refused does
    /// not cross over.
    pub fn from_parts(text: &str, fds: Vec<OwnedFd>) -> Option<XdpSetup> {
        let words: Vec<&str> = text.split(' ').collect();
        let ["xdp", name, ifindex, queues, mode, vlan, rx_ring, tx_ring, busy_poll, copy] = words[..] else {
            return None;
        };
        let busy_poll = match (busy_poll, busy_poll.split_once('/')) {
            ("by-polls", _) => XdpBusyPoll::ByPolls,
            ("off", _) => XdpBusyPoll::Off,
            (_, pair) => {
                let (usecs, budget) = pair?;
                XdpBusyPoll::ByCalls { usecs: usecs.parse().ok()?, budget: budget.parse().ok()? }
            }
        };
        let queues = queues.split(',').map(|queue| queue.parse().ok()).collect::<Option<Vec<u32>>>()?;
        let mut fds = fds.into_iter();
        let sockets: Vec<_> = fds.by_ref().take(queues.len()).collect();
        Some(XdpSetup {
            name: name.to_owned(),
            ifindex: ifindex.parse().ok()?,
            mode: [XdpMode::Native, XdpMode::Generic].into_iter().find(|known| known.to_string() == mode)?,
            vlan: if vlan == "-" { None } else { Some(vlan.parse().ok()?) },
            rx_ring: rx_ring.parse().ok()?,
            tx_ring: tx_ring.parse().ok()?,
            busy_poll,
            copy: copy.parse().ok()?,
            sockets: Some(sockets).filter(|sockets| sockets.len() == queues.len())?,
            queues,
            control: fds.next()?,
            events: fds.next()?,
            by_queue: fds.next()?,
            kept: fds.collect(),
            native_refused: None,
            busy_poll_refused: None,
        })
    }
}

/// A socket for each queue, and why calls on them do not busy poll the driver.
fn open_sockets(queues: &[u32], rx_ring: u32, busy_poll: XdpBusyPoll) -> io::Result<(Vec<OwnedFd>, Option<String>)> {
    let sockets = queues.iter().map(|_| socket::open(rx_ring)).collect::<io::Result<Vec<_>>>()?;
    let (usecs, budget) = match busy_poll {
        XdpBusyPoll::ByPolls => (BUSY_POLL_USECS, BUSY_POLL_BUDGET),
        XdpBusyPoll::ByCalls { usecs, budget } => (usecs, budget),
        XdpBusyPoll::Off => return Ok((sockets, None)),
    };
    let refused = sockets.iter().find_map(|socket| socket::set_busy_poll(socket, usecs, budget).err());
    Ok((sockets, refused.map(|error| error.to_string())))
}

/// Loads the program with its maps filled. It keeps the maps; that of the sockets is wanted here, too.
fn program(config: &XdpConfig, queues: &[u32], sockets: &[OwnedFd]) -> Result<(OwnedFd, OwnedFd), DeviceError> {
    let load = || -> io::Result<(OwnedFd, OwnedFd)> {
        let slots = queues.iter().max().map_or(0, |queue| queue + 1);
        let by_queue = bpf::sockets(slots)?;
        for (queue, socket) in queues.iter().zip(sockets) {
            bpf::set_socket(&by_queue, *queue, socket.as_fd())?;
        }
        let (mut v4, mut v6, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        for address in &config.addresses {
            let alone = if address.is_hosts { 0 } else { address::ALONE };
            let bits = alone | if config.ports.is_empty() { address::EVERY_PORT } else { 0 };
            match address.ip {
                IpAddr::V4(ip) => v4.push((ip.octets(), bits)),
                IpAddr::V6(ip) => v6.push((ip.octets(), bits)),
            }
        }
        for port in &config.ports {
            ports.extend([PROTOCOL_TCP, PROTOCOL_UDP].map(|protocol| (port_key(protocol, *port), 1)));
        }
        let (v4, v6, ports) = (bpf::hash(&v4)?, bpf::hash(&v6)?, bpf::hash(&ports)?);
        let program = if config.addresses.is_empty() {
            program::everything(by_queue.as_raw_fd())
        } else {
            let [v4, v6, ports] = [&v4, &v6, &ports].map(AsRawFd::as_raw_fd);
            program::addresses(Maps { sockets: by_queue.as_raw_fd(), v4, v6, ports }, config.vlan)
        };
        // Kernels before 5.18 do not know that frames may be in several pieces.
        let program = bpf::load(&program, Pieces::Several).or_else(|_| bpf::load(&program, Pieces::One))?;
        Ok((program, by_queue))
    };
    load().map_err(|source| DeviceError::Os {
        device: config.name.clone(),
        what: "load the XDP program".to_owned(),
        remedy: "needs CAP_BPF and CAP_NET_ADMIN (root), and a kernel with CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS; \
                 without them use packet:DEV",
        source,
    })
}

/// Attaches in the driver, or else above it; the link, where, and why not in the driver.
fn attach(program: &OwnedFd, ifindex: u32, name: &str) -> Result<(OwnedFd, XdpMode, Option<String>), DeviceError> {
    let native = match bpf::attach(program, ifindex, XdpMode::Native) {
        Ok(link) => return Ok((link, XdpMode::Native, None)),
        Err(error) => error,
    };
    let failed = |source: io::Error| DeviceError::Os {
        device: name.to_owned(),
        what: "attach the XDP program".to_owned(),
        remedy: match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => {
                "another XDP program is attached, by another lull perhaps (ip link show names its number, bpftool net \
                 its name): end that program, or take another device"
            }
            Some(libc::EPERM) => "needs CAP_NET_ADMIN: run as root, or have a launcher open the device",
            _ => "needs Linux 5.9 or newer; where XDP is refused use packet:DEV",
        },
        source,
    };
    if matches!(native.raw_os_error(), Some(libc::EBUSY | libc::EEXIST | libc::EPERM)) {
        return Err(failed(native));
    }
    let link = bpf::attach(program, ifindex, XdpMode::Generic).map_err(failed)?;
    Ok((link, XdpMode::Generic, Some(native.to_string())))
}
