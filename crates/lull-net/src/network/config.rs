//! The configuration of a network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use lull_core::mode::GroupPolling;
use lull_core::{Mode, NapiSettings};
use lull_host::GroupOptions;
use lull_nic::DeviceInfo;
use lull_nic::passing::QUEUES_MAX;
use lull_qdisc::Kind;

use super::NetworkError;
use crate::shard::{self, BUFFER_BYTES, BufferGrowth, COALESCE_NS, EPHEMERAL_PORTS, Elsewhere, SynCookies, Timeouts};
use crate::siblings;

/// The configuration of a network.
///
/// Fields will be added, so end it with `..NetworkConfig::default()`. It is not `non_exhaustive`, which would forbid
/// just that. The options of sockets are made in the same way.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Own addresses with the length of their network prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The networks that may send. IP packets from other sources are dropped before the stack looks at them, and
    /// counted (`drop_not_allowed`); this does not concern ARP and neighbour discovery. If it is empty, everybody may
    /// send.
    pub allowed_sources: Vec<(IpAddr, u8)>,
    /// The IPv4 router for addresses that are in none of the own networks.
    pub gateway4: Option<Ipv4Addr>,
    /// The IPv6 router for addresses that are in none of the own networks.
    pub gateway6: Option<Ipv6Addr>,
    /// The CPU of each queue's interrupt; queues beyond the list begin again with its first.
    pub cpus: Vec<u16>,
    /// The receive buffer with which a connection begins, in bytes.
    pub rx_buffer_bytes: usize,
    /// The transmit buffer with which a connection begins, in bytes.
    pub tx_buffer_bytes: usize,
    /// How far these buffers grow.
    pub growth: BufferGrowth,
    /// How many connections a shard has at most.
    pub connections_max: usize,
    /// The stacks of other processes that have the same addresses, on other queues of the interface.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
    /// The ports of sockets that name none (`ip_local_port_range`).
    pub ephemeral_ports: RangeInclusive<u16>,
    /// Whether connections send timestamps if the peer does (`tcp_timestamps`).
    pub timestamps: bool,
    /// How long data that a thread writes while it answers a batch of events may wait for more of the same batch, in
    /// nanoseconds, so that they leave in one segment. With 0 every write leaves by itself. Data never wait while the
    /// thread waits. Data of a connection that is written to once per batch wait only for those of other connections,
    /// and only if a doorbell is expensive ([`lull_nic::DeviceInfo::dear_doorbell`]), the batch has eight events or
    /// more, and the thread's answers, none longer than a packet, follow one another within 20 us.
    pub coalesce_ns: u64,
    /// Whether consecutive segments of one TCP stream go through the stack as one (GRO, Linux's `rx-gro`), and so do
    /// datagrams of one flow to a UDP socket that asks for it ([`UdpSocket::set_gro`](crate::UdpSocket::set_gro)). What
    /// is held for more waits for the end of the poll, or for `gro_flush_timeout` if that is set.
    pub gro: bool,
    /// When SYNs are answered by cookies.
    pub syncookies: SynCookies,
    /// How long each state of the stack may last.
    pub timeouts: Timeouts,
    /// Neighbours that are known from the start.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// The delivery settings with which every queue starts.
    pub napi: NapiSettings,
    /// SO_BUSY_POLL with which sockets start, in microseconds; with `None` it is the host's `busy_read`.
    pub socket_busy_poll_usecs: Option<u32>,
    /// Interrupt coalescing of the device, in microseconds; `None` leaves it as it is.
    pub rx_usecs: Option<u32>,
    /// The queueing discipline of the transmit queues. With `None` there is none, or `pfifo_fast` while a group sends.
    pub qdisc: Option<Kind>,
    /// The CPUs of the modes with a busy-polling CPU group; without them those modes are refused.
    pub group: Option<GroupCpus>,
    /// Whether such a group polls from the start, and how.
    pub group_polling: Option<GroupPolling>,
}

/// The CPUs of a network's busy-polling group, and what bounds it.
#[derive(Clone, Debug, Default)]
pub struct GroupCpus {
    /// The CPUs, by their index in the host.
    pub cpus: Vec<u16>,
    /// The options of the group. The mode decides whether it rests.
    pub options: GroupOptions,
}

impl NetworkConfig {
    /// Has the network's half of a mode in force from the start. The application's half is
    /// [`Epoll::set_mode`](crate::Epoll::set_mode) on each context, or
    /// [`AppHalf::without_epoll`](crate::AppHalf::without_epoll), which says whether the mode can do without a context.
    pub fn with_mode(mut self, mode: &Mode) -> NetworkConfig {
        self.napi = mode.napi;
        self.socket_busy_poll_usecs = (mode.socket_busy_poll_usecs != 0).then_some(mode.socket_busy_poll_usecs);
        self.rx_usecs = mode.rx_usecs;
        self.group_polling = mode.group;
        self
    }

    /// Checks whether a stack can have these addresses and gateways. This takes no device, so a caller that opens one,
    /// or that starts a program which does, can check first. [`Network::new`](crate::Network::new) checks as well.
    ///
    /// # Errors
    /// [`NetworkError::Address`] or [`NetworkError::Gateway`].
    pub fn check(&self) -> Result<(), NetworkError> {
        for &(address, prefix) in &self.addresses {
            if let Some(why) = shard::refused_address(address, prefix) {
                return Err(NetworkError::Address { address, prefix, why });
            }
        }
        let mut gateways = self.gateway4.into_iter().map(IpAddr::V4).chain(self.gateway6.map(IpAddr::V6));
        match gateways.find(|gateway| !shard::is_on_link(*gateway, &self.addresses)) {
            Some(gateway) => Err(NetworkError::Gateway { gateway, addresses: self.addresses.clone() }),
            None => Ok(()),
        }
    }

    /// The numbers by which frames know the device's queues (see [`siblings`]). `None` means that the device has more
    /// queues than frames can tell apart, so that each of its shards is on its own.
    pub(super) fn queue_numbers(&self, device: &DeviceInfo) -> Result<Option<Arc<[u32]>>, NetworkError> {
        let Some(elsewhere) = &self.elsewhere else { return Ok(siblings::numbers(device.queues)) };
        let named = elsewhere.queues();
        let bits =
            named.iter().filter(|number| **number < QUEUES_MAX as u32).fold(0_u32, |bits, number| bits | 1 << number);
        if named.len() != device.queues || bits.count_ones() as usize != named.len() {
            let (device, queues) = (device.name.clone(), device.queues);
            return Err(NetworkError::QueueNumbers { device, queues, named: named.to_vec() });
        }
        Ok(Some(named.into()))
    }
}

impl Default for NetworkConfig {
    fn default() -> NetworkConfig {
        NetworkConfig {
            addresses: Vec::new(),
            allowed_sources: Vec::new(),
            gateway4: None,
            gateway6: None,
            cpus: vec![0],
            rx_buffer_bytes: BUFFER_BYTES,
            tx_buffer_bytes: BUFFER_BYTES,
            growth: BufferGrowth::default(),
            connections_max: 65_536,
            elsewhere: None,
            ephemeral_ports: EPHEMERAL_PORTS,
            timestamps: true,
            coalesce_ns: COALESCE_NS,
            gro: true,
            syncookies: SynCookies::default(),
            timeouts: Timeouts::default(),
            neighbours: Vec::new(),
            napi: NapiSettings::default(),
            socket_busy_poll_usecs: None,
            rx_usecs: None,
            qdisc: None,
            group: None,
            group_polling: None,
        }
    }
}
