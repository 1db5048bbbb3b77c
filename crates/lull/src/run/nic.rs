//! The NIC of a program on the user plane: opened by the launcher, handed on, and taken back when the program has ended.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use lull_core::Mode;
use lull_linux::netdev::Netdev;
use lull_nic::Device;
use lull_nic::tap::{self, Tap, TapConfig};
use lull_nic::xdp::{Xdp, XdpConfig, XdpSetup};
use lull_posix::depot;
use lull_posix::handover::Nic;

use super::depot::Depot;
use super::inboxes::Inboxes;
use super::queues::{Attached, Queues};
use crate::failure::Failure;
use crate::xdp;

/// The NIC that was asked for.
#[derive(Clone)]
pub(super) enum Asked {
    /// A TAP, and the address of the kernel's end.
    Tap { config: TapConfig, peer: Option<(IpAddr, u8)> },
    /// An interface of the host, by AF_XDP.
    Xdp(XdpConfig),
}

impl Asked {
    /// The ports that are lull's; none are listed if all are.
    pub(super) fn ports(&self) -> &[u16] {
        match self {
            Asked::Tap { .. } => &[],
            Asked::Xdp(config) => &config.ports,
        }
    }

    /// Refuses a mode that cannot be in force on this NIC.
    pub(super) fn check(&self, mode: &Mode) -> Result<(), Failure> {
        let Some(usecs) = mode.rx_usecs else { return Ok(()) };
        let (why, remedy) = match self {
            Asked::Tap { config, .. } => {
                (format!("{} is a TAP, which has none", config.name), format!("use suspend{usecs}"))
            }
            Asked::Xdp(config) => {
                let name = &config.name;
                let remedy = format!("use suspend0, and set it with `ethtool -C {name} rx-usecs {usecs}`");
                (format!("lull leaves that of {name} to the host"), remedy)
            }
        };
        Err(format!("cannot run a program in mode {mode}: it is made of the NIC's own coalescing, and {why}; {remedy}")
            .into())
    }

    /// Says what happens to frames that come by queues which were not asked for.
    pub(super) fn left_to_the_host(&self) -> Option<String> {
        match self {
            Asked::Tap { .. } => None,
            Asked::Xdp(config) => xdp::left_to_the_host(config),
        }
    }

    /// Describes the NIC in a few words.
    pub(super) fn words(&self) -> String {
        match self {
            Asked::Tap { config, .. } => {
                format!("tap:{} with {}", config.name, lull_units::counted(config.queues, "queue"))
            }
            Asked::Xdp(config) => {
                let list = |numbers: Vec<usize>| lull_units::numbers_text(&numbers);
                let queues = match &config.queues[..] {
                    [] => "all queues".to_owned(),
                    some => format!("queues {}", list(some.iter().map(|queue| *queue as usize).collect())),
                };
                let ports = match &config.ports[..] {
                    [] => String::new(),
                    some => format!(" and ports {} alone", list(some.iter().map(|port| usize::from(*port)).collect())),
                };
                format!("xdp:{} with {queues}{ports}", config.name)
            }
        }
    }

    /// Opens the NIC. `addresses` are those that the program will have.
    pub(super) fn open(&self, addresses: &[(IpAddr, u8)]) -> Result<Opened, Failure> {
        match self {
            Asked::Tap { config, peer } => {
                let tap = Tap::open(config.clone())?;
                if let Some((ip, prefix)) = peer {
                    tap.kernel_side(*ip, *prefix)?;
                    // Until the program needs its stack, nobody answers for its addresses, so the kernel is told of
                    // them. If it refuses one (IPv6 may be off), it asks for the address as for any other.
                    for (own, _) in addresses {
                        let _ = tap.tell_kernel_of(*own);
                    }
                }
                Ok(Opened::Tap(tap))
            }
            Asked::Xdp(config) => {
                let setup = XdpSetup::open(config)?;
                if setup.queues() > depot::QUEUES_MAX {
                    return Err(format!(
                        "cannot run a program on {} queues of {}: {} can be handed on; name them, as xdp:{}:0-{}",
                        setup.queues(),
                        config.name,
                        depot::QUEUES_MAX,
                        config.name,
                        depot::QUEUES_MAX - 1
                    )
                    .into());
                }
                let ends = depot::ends().map_err(|error| format!("cannot make a pair of sockets: {error}"))?;
                Ok(Opened::Xdp { setup: Arc::new(setup), depot: ends })
            }
        }
    }

    /// Returns the neighbours that the host knows, because lull cannot ask for them itself: answers to an address of
    /// the host's go to the host. Only those of IPv4 are known so: peers over IPv6 hear from the host, which resets
    /// connections that it does not know.
    pub(super) fn neighbours(&self) -> Vec<(IpAddr, [u8; 6])> {
        match self {
            Asked::Xdp(config) if config.addresses.iter().any(|address| address.is_hosts) => {
                neighbours(&std::fs::read_to_string("/proc/net/arp").unwrap_or_default(), &config.name)
            }
            _ => Vec::new(),
        }
    }
}

/// A NIC that was opened.
pub(super) enum Opened {
    Tap(Tap),
    /// Its sockets, and both ends of the socket pair over which processes ask for them.
    Xdp {
        setup: Arc<XdpSetup>,
        depot: (OwnedFd, OwnedFd),
    },
}

impl Opened {
    /// Returns the kernel's index of the interface.
    pub(super) fn ifindex(&self) -> Result<u32, Failure> {
        match self {
            Opened::Tap(tap) => {
                let (name, links) = (tap.info().name, Netdev::new().links()?);
                // An interface that was just deleted gets index 0, since nobody can ask about it.
                Ok(links.iter().find(|link| link.name == name).map_or(0, |link| link.ifindex))
            }
            Opened::Xdp { setup, .. } => Ok(setup.ifindex()),
        }
    }

    /// Returns notes for the user who runs the program.
    pub(super) fn notes(&self) -> Vec<String> {
        match self {
            Opened::Tap(_) => Vec::new(),
            Opened::Xdp { setup, .. } => setup.refusals(),
        }
    }

    /// Returns the number of its queues.
    pub(super) fn queues(&self) -> usize {
        match self {
            Opened::Tap(tap) => tap.queue_fds().len(),
            Opened::Xdp { setup, .. } => setup.queues(),
        }
    }

    /// Returns the queues that the processes of the program share, with their inboxes.
    pub(super) fn shared(&self, inboxes: &Inboxes) -> Result<Queues, Failure> {
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        Ok(match self {
            Opened::Tap(tap) if tap.queue_fds().len() > 1 => {
                Queues::Tap(Attached::none(tap.queue_fds().map(own).collect::<Result<_, _>>()?)?)
            }
            Opened::Tap(tap) => Queues::Unshared(tap.queue_fds().map(own).collect::<Result<_, _>>()?),
            Opened::Xdp { setup, depot } => {
                Queues::Xdp(Depot::new(setup.clone(), own(depot.0.as_fd())?, inboxes.clone()))
            }
        })
    }

    /// Describes the NIC for the program; `hand_on` duplicates a descriptor for it and returns the duplicate's number.
    pub(super) fn handed_on(
        &self,
        hand_on: &mut dyn FnMut(BorrowedFd<'_>) -> Result<RawFd, String>,
    ) -> Result<Nic, String> {
        Ok(match self {
            Opened::Tap(tap) => Nic::Tap { queues: tap.queue_fds().map(hand_on).collect::<Result<_, _>>()? },
            Opened::Xdp { setup, depot } => Nic::Xdp { queues: setup.queues(), depot: hand_on(depot.1.as_fd())? },
        })
    }

    /// Returns the device in this process, once the program has ended.
    pub(super) fn taken_back(self) -> Result<Arc<dyn Device>, Failure> {
        Ok(match self {
            Opened::Tap(tap) => {
                for queue in tap.queue_fds() {
                    tap::set_attached(queue, true)?;
                }
                Arc::new(tap)
            }
            Opened::Xdp { setup, .. } => {
                let all: Vec<usize> = (0..setup.queues()).collect();
                Arc::new(Xdp::start(setup.again(&all)?)?)
            }
        })
    }
}

/// Returns the complete entries (ATF_COM) for an interface in the kernel's table of IPv4 neighbours
/// (`arp_format_neigh_entry`).
fn neighbours(table: &str, device: &str) -> Vec<(IpAddr, [u8; 6])> {
    const COMPLETE: u32 = 2;
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [ip, _, flags, mac, _, name] = words[..] else { return None };
        let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
        let mac = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<Vec<u8>>>()?;
        let entry = (ip.parse::<Ipv4Addr>().ok()?.into(), mac.try_into().ok()?);
        (name == device && flags & COMPLETE != 0).then_some(entry)
    };
    table.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_the_complete_ones_of_the_interface() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     10.0.0.9         0x1         0x2         02:fc:00:00:00:05     *        x0\n\
                     10.0.0.8         0x1         0x0         00:00:00:00:00:00     *        x0\n\
                     10.0.0.7         0x1         0x2         02:fc:00:00:00:06     *        y0\n";
        assert_eq!(neighbours(table, "x0"), [("10.0.0.9".parse().unwrap(), [2, 0xfc, 0, 0, 0, 5])]);
    }
}
