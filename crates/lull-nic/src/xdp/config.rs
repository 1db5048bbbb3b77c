//! What an AF_XDP device is made of.

use std::net::IpAddr;

use crate::device::DeviceError;
use crate::interface;

/// Slots that the rings have at least and at most. The kernel wants a power of two.
pub const RING_SLOTS_RANGE: std::ops::RangeInclusive<u32> = 64..=1 << 16;
/// The highest VLAN (IEEE 802.1Q clause 9.6).
pub const VLAN_MAX: u16 = 4094;

/// An address whose packets are taken from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpAddress {
    /// The address.
    pub ip: IpAddr,
    /// It is the host's, too: then its ARP, neighbour discovery and ICMP stay the host's, and
    /// [`XdpConfig::ports`] say what is taken.
    pub is_hosts: bool,
}

impl XdpAddress {
    /// `ip`, after a look whether an interface of the calling thread's namespace has it.
    ///
    /// # Errors
    /// The kernel does not tell the interfaces' addresses.
    pub fn look_up(ip: IpAddr) -> std::io::Result<XdpAddress> {
        Ok(XdpAddress { ip, is_hosts: interface::is_hosts(ip)? })
    }
}

/// Who lets the kernel busy poll the interface's driver, where it can (SO_BUSY_POLL with SO_PREFER_BUSY_POLL).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpBusyPoll {
    /// Polls of a queue that find nothing: whoever polls in user space has the driver polled as well.
    #[default]
    ByPolls,
    /// The calls of [`super::XdpCalls`], and sending; polls of a queue look at the rings alone.
    ByCalls {
        /// SO_BUSY_POLL. A call polls once, whatever the time; it only has to be above 0.
        usecs: u32,
        /// SO_BUSY_POLL_BUDGET.
        budget: u32,
    },
    /// Nobody does: the options are not set, and interrupts bring the frames.
    Off,
}

/// Which interface to take frames from, and which.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// Interface name.
    pub name: String,
    /// The interface's queues, a socket each; empty: all. Frames that come in by others are left to the host.
    pub queues: Vec<u32>,
    /// The addresses whose packets are taken. Empty: all frames are, for an interface that is nobody else's.
    pub addresses: Vec<XdpAddress>,
    /// TCP and UDP ports that are taken; empty: all packets to the addresses. A connection that is opened from here takes
    /// one of these ports, too, or its answers stay with the host.
    pub ports: Vec<u16>,
    /// The VLAN that the device is on: it takes frames with this tag, and sends with it. `None` is for untagged frames,
    /// and those whose tag has a priority alone.
    pub vlan: Option<u16>,
    /// Slots of the receive and of the fill ring.
    pub rx_ring: u32,
    /// Slots of the transmit and of the completion ring.
    pub tx_ring: u32,
    /// Who busy polls the driver.
    pub busy_poll: XdpBusyPoll,
    /// The kernel copies frames, also where the driver could read and write the memory itself.
    pub copy: bool,
}

impl Default for XdpConfig {
    /// All queues and frames, with rings that together take 4 MiB a queue at the usual MTU: half of what Linux lets a
    /// program without privileges pin (RLIMIT_MEMLOCK, 8 MiB).
    fn default() -> XdpConfig {
        XdpConfig {
            name: String::new(),
            queues: Vec::new(),
            addresses: Vec::new(),
            ports: Vec::new(),
            vlan: None,
            rx_ring: 1024,
            tx_ring: 512,
            busy_poll: XdpBusyPoll::ByPolls,
            copy: false,
        }
    }
}

impl XdpConfig {
    /// Chunks to receive into: those of the ring, and as many more as the stack may hold meanwhile.
    pub(super) fn rx_chunks(rx_ring: u32) -> u32 {
        rx_ring + rx_ring / 2
    }

    /// Refuses what cannot be; the queues, of which `receiving` receive on the interface and `sending` send.
    pub(super) fn check(&self, (receiving, sending): (u32, u32)) -> Result<Vec<u32>, DeviceError> {
        let invalid = |what, why| Err(DeviceError::Invalid { device: self.name.clone(), what, why });
        for (what, slots) in [("the receive ring", self.rx_ring), ("the transmit ring", self.tx_ring)] {
            if !RING_SLOTS_RANGE.contains(&slots) || !slots.is_power_of_two() {
                let (min, max) = (RING_SLOTS_RANGE.start(), RING_SLOTS_RANGE.end());
                return invalid(what, format!("{slots} slots; a ring has a power of two from {min} to {max}"));
            }
        }
        if self.vlan.is_some_and(|vlan| !(1..=VLAN_MAX).contains(&vlan)) {
            return invalid("the VLAN", format!("{}; VLANs are 1 to {VLAN_MAX}", self.vlan.unwrap_or(0)));
        }
        if self.ports.is_empty()
            && let Some(address) = self.addresses.iter().find(|address| address.is_hosts)
        {
            let why = format!("{} is the host's own; name the ports that are taken from it (--ports)", address.ip);
            return invalid("the address", why);
        }
        let mut queues = if self.queues.is_empty() { (0..receiving).collect() } else { self.queues.clone() };
        queues.sort_unstable();
        queues.dedup();
        match queues.last() {
            Some(last) if *last >= receiving => {
                invalid("the queues", format!("{last} is not there; the interface has 0 to {}", receiving - 1))
            }
            // The kernel takes a socket for it, and drops what that sends.
            Some(last) if *last >= sending => invalid(
                "the queues",
                format!(
                    "{last} receives and cannot send, as the interface has {receiving} receive queues and {sending} to \
                     transmit; give it as many of each (ethtool -L {}), or name queues below {sending}",
                    self.name
                ),
            ),
            _ => Ok(queues),
        }
    }

    /// The Ethernet groups of neighbour discovery for the addresses that are lull's alone.
    pub(super) fn solicited_groups(&self) -> Vec<[u8; 6]> {
        let alone = self.addresses.iter().filter(|address| !address.is_hosts);
        interface::solicited_groups(alone.map(|address| address.ip))
    }
}
