//! What a shard is told when it is made, with the source of every default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use lull_nic::frame::HEADROOM_BYTES;

use super::elsewhere::Elsewhere;
use super::error::NetError;
use super::wire;

const SECOND_NS: u64 = 1_000_000_000;

/// How long things may take, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Unacknowledged data without progress before the connection is given up (`ETIMEDOUT`). Linux: `tcp_retries2` =
    /// 15, which its documentation gives as 924.6 s. A socket can set its own.
    pub user_timeout_ns: u64,
    /// The same for a connection whose application has closed it. Linux: `tcp_orphan_retries` = 8, about 100 s.
    pub orphan_timeout_ns: u64,
    /// An unanswered SYN. Linux: `tcp_syn_retries` = 6, 127 s after the first.
    pub syn_sent_ns: u64,
    /// An unanswered SYN-ACK. Linux: `tcp_synack_retries` = 5, 63 s after the first.
    pub syn_received_ns: u64,
    /// A closed connection that waits for the peer's FIN. Linux: `tcp_fin_timeout` = 60 s.
    pub fin_wait_2_ns: u64,
    /// TIME-WAIT. Linux: `TCP_TIMEWAIT_LEN` = 60 s.
    pub time_wait_ns: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            user_timeout_ns: 924_600_000_000,
            orphan_timeout_ns: 100 * SECOND_NS,
            syn_sent_ns: 127 * SECOND_NS,
            syn_received_ns: 63 * SECOND_NS,
            fin_wait_2_ns: 60 * SECOND_NS,
            time_wait_ns: 60 * SECOND_NS,
        }
    }
}

/// When SYNs are answered by cookies, which cost no memory but forget most of the SYN's options (`tcp_syncookies`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SynCookies {
    /// Never: a SYN that finds the queue of half-open connections full is dropped.
    Off,
    /// When that queue is full. Linux's default.
    #[default]
    WhenFull,
    /// Always, for tests.
    Always,
}

/// Says whether the frames of a flow (local address, remote address) reach this shard's queue.
pub type Steering = Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>;

/// Default receive and transmit buffer of a connection, each, in bytes.
pub const BUFFER_BYTES: usize = 16 * 1024;
/// Smallest and largest buffer of a connection, in bytes. The upper limit is where smoltcp's window arithmetic ends.
pub const BUFFER_BYTES_RANGE: RangeInclusive<usize> = 256..=(1 << 30) - 1;
/// Ports for sockets that name none, by default (`ip_local_port_range`).
pub const EPHEMERAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;
/// How long a write may wait for more, in nanoseconds. The wait ends earlier wherever the thread itself waits, so this
/// bounds threads that compute for long, or wait where lull does not see it. With less, timers would cost as much as is
/// gained.
pub const COALESCE_NS: u64 = 500_000;
/// Smallest MTU: what every IPv6 link carries (RFC 8200 section 5).
pub const MTU_BYTES_MIN: usize = 1280;
/// Largest MTU: the IPv4 length field.
pub const MTU_BYTES_MAX: usize = 65_535;
/// Connections that a stack can be asked to have, at most: their numbers have 30 bits.
const CONNECTIONS_MAX: usize = (1 << 30) - 1;

/// How far the buffers of connections grow that the path and both ends would fill (`tcp_moderate_rcvbuf`, and `tcp_new_space`
/// for those to send from). A buffer whose size somebody asked for stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferGrowth {
    /// Receive buffer of a connection, at most, in bytes. By default what 800 Mbit/s take on a path of 40 ms (Linux's `tcp_rmem`: 6 MB,
    /// headers included).
    pub rx_bytes_max: usize,
    /// Transmit buffer of a connection, at most, in bytes. By default Linux's (`tcp_wmem`).
    pub tx_bytes_max: usize,
    /// All buffers of a shard, in bytes: beyond it none grows (`tcp_mem`).
    pub total_bytes_max: usize,
}

impl BufferGrowth {
    /// Every buffer stays as large as it is made.
    pub const NONE: BufferGrowth = BufferGrowth { rx_bytes_max: 0, tx_bytes_max: 0, total_bytes_max: 0 };
}

impl Default for BufferGrowth {
    fn default() -> BufferGrowth {
        BufferGrowth { rx_bytes_max: 4 << 20, tx_bytes_max: 4 << 20, total_bytes_max: 256 << 20 }
    }
}

/// Where a shard is, as programs see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The shard's queue on its device.
    pub queue: u32,
    /// The CPU of the queue's interrupt.
    pub cpu: u32,
}

/// Settings of one shard. `StackConfig::new` gives the defaults.
#[derive(Clone)]
pub struct StackConfig {
    /// Ethernet address that frames are sent from and accepted for.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu_bytes: usize,
    /// Own addresses with the length of their network prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Who may send: networks of sources. IP packets from elsewhere are dropped before anything looks at them, but for neighbour
    /// discovery. Empty: everybody.
    pub allowed_sources: Vec<(IpAddr, u8)>,
    /// IPv4 router for what is on no own network.
    pub gateway4: Option<Ipv4Addr>,
    /// IPv6 router for what is on no own network.
    pub gateway6: Option<Ipv6Addr>,
    /// Receive buffer of a new connection, in bytes; until it grows it is also the largest window offered.
    pub rx_buffer_bytes: usize,
    /// Transmit buffer of a new connection, in bytes.
    pub tx_buffer_bytes: usize,
    /// How far these grow.
    pub growth: BufferGrowth,
    /// What a UDP socket may hold unread, in bytes of frame buffers. Linux: `net.core.rmem_default` = 212 992.
    pub udp_rx_bytes: usize,
    /// Connections (of any state but TIME-WAIT), at most.
    pub connections_max: usize,
    /// Connections in TIME-WAIT, at most; beyond it the oldest is forgotten. Linux: `tcp_max_tw_buckets`.
    pub time_wait_max: usize,
    /// Connections send timestamps if the peer does, which tell old segments from new ones (`tcp_timestamps`).
    pub timestamps: bool,
    /// When SYNs are answered by cookies.
    pub syncookies: SynCookies,
    /// The device fills in TCP and UDP checksums: frames are sent as [`lull_nic::Checksum::Partial`].
    pub tx_checksum_offload: bool,
    /// The device cuts TCP segments of up to 64 KB ([`lull_nic::Segmentation::Tcp`]), which are sent over IPv4. It takes the
    /// checksum offload, too.
    pub tx_segmentation_offload: bool,
    /// How long what is written while a batch of events is answered may wait for more to leave with it, in nanoseconds; 0:
    /// nothing waits.
    pub coalesce_ns: u64,
    /// The doorbell of a quick answer waits for others of the batch ([`lull_nic::DeviceInfo::dear_doorbell`],
    /// [`Stack::holds_doorbell_back`](super::Stack::holds_doorbell_back)).
    pub share_doorbells: bool,
    /// Secret of this shard: initial sequence numbers, hash seeds, port choice. Give every shard its own, from
    /// `getrandom(2)`; a fixed value makes a run repeatable.
    pub seed: u64,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// Ports for sockets that name none. Linux: `ip_local_port_range`.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// Restricts ephemeral ports to flows whose frames come back to this shard's queue (RSS), or to ports that no other
    /// shard with the same addresses uses. `None` allows any port.
    pub steering: Option<Steering>,
    /// Where the shard is, for programs that are attached to reuseport groups.
    pub place: Place,
    /// The stacks of other processes that have the same addresses.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
    /// When this stack's clock began, in nanoseconds of a clock that those stacks have, too.
    pub epoch_ns: u64,
}

impl StackConfig {
    /// The stacks of other processes, if there may be any.
    pub(super) fn others(&self) -> Option<&Arc<dyn Elsewhere>> {
        self.elsewhere.as_ref().filter(|elsewhere| !elsewhere.is_nobody())
    }

    /// Defaults for a station with this Ethernet address and no IP address yet.
    pub fn new(mac: [u8; 6]) -> StackConfig {
        StackConfig {
            mac,
            mtu_bytes: 1500,
            addresses: Vec::new(),
            allowed_sources: Vec::new(),
            gateway4: None,
            gateway6: None,
            rx_buffer_bytes: BUFFER_BYTES,
            tx_buffer_bytes: BUFFER_BYTES,
            growth: BufferGrowth::NONE,
            udp_rx_bytes: 212_992,
            connections_max: 65_536,
            time_wait_max: 65_536,
            timestamps: true,
            syncookies: SynCookies::default(),
            tx_checksum_offload: false,
            tx_segmentation_offload: false,
            coalesce_ns: COALESCE_NS,
            share_doorbells: false,
            seed: 0,
            timeouts: Timeouts::default(),
            ephemeral_ports: EPHEMERAL_PORTS,
            steering: None,
            place: Place::default(),
            elsewhere: None,
            epoch_ns: 0,
        }
    }

    /// Checks that the values are within their limits.
    ///
    /// # Errors
    /// The first that is not.
    pub fn validate(&self) -> Result<(), OutOfLimits> {
        let must = |fits: bool, setting, value: String, limits: &str| match fits {
            true => Ok(()),
            false => Err(OutOfLimits { setting, value, limits: limits.to_owned() }),
        };
        let within = |setting, value: usize, limits: RangeInclusive<usize>| {
            let words = format!("{} to {}", limits.start(), limits.end());
            must(limits.contains(&value), setting, value.to_string(), &words)
        };
        for &(ip, prefix) in &self.addresses {
            let refused = refused_address(ip, prefix);
            must(refused.is_none(), "an address", format!("{ip}/{prefix}"), refused.unwrap_or_default())?;
        }
        for gateway in self.gateway4.into_iter().map(IpAddr::V4).chain(self.gateway6.map(IpAddr::V6)) {
            must(is_on_link(gateway, &self.addresses), "a gateway", gateway.to_string(), "on an own network")?;
        }
        let is_station = self.mac[0] & 1 == 0;
        must(is_station, "the device's Ethernet address", format!("{:02x?}", self.mac), "a station's, not a group's")?;
        within("the device's MTU", self.mtu_bytes, MTU_BYTES_MIN..=MTU_BYTES_MAX)?;
        // A checksum is made of each part.
        let offloads = self.tx_checksum_offload || !self.tx_segmentation_offload;
        must(offloads, "tx_segmentation_offload", true.to_string(), "false without tx_checksum_offload")?;
        within("rx_buffer_bytes", self.rx_buffer_bytes, BUFFER_BYTES_RANGE)?;
        within("tx_buffer_bytes", self.tx_buffer_bytes, BUFFER_BYTES_RANGE)?;
        within("growth.rx_bytes_max", self.growth.rx_bytes_max, 0..=*BUFFER_BYTES_RANGE.end())?;
        within("growth.tx_bytes_max", self.growth.tx_bytes_max, 0..=*BUFFER_BYTES_RANGE.end())?;
        within("connections_max", self.connections_max, 1..=CONNECTIONS_MAX)?;
        within("time_wait_max", self.time_wait_max, 1..=CONNECTIONS_MAX)?;
        let ports = &self.ephemeral_ports;
        let are_ports = *ports.start() > 0 && !ports.is_empty();
        must(are_ports, "ephemeral_ports", format!("{ports:?}"), "a range of ports above 0, the smallest first")
    }
}

/// A setting of a stack that is out of its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value}, and must be {limits}")]
pub struct OutOfLimits {
    setting: &'static str,
    value: String,
    limits: String,
}

/// As a call says it.
impl From<OutOfLimits> for NetError {
    fn from(_: OutOfLimits) -> NetError {
        NetError::Invalid
    }
}

/// Why a stack cannot have an address with this prefix; `None` if it can.
pub fn refused_address(ip: IpAddr, prefix: u8) -> Option<&'static str> {
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    match ip {
        _ if prefix > bits && bits == 32 => Some("a prefix of IPv4 has 32 bits at the most"),
        _ if prefix > bits => Some("a prefix of IPv6 has 128 bits at the most"),
        _ if ip.is_unspecified() => Some("it stands for any address, and is no station's; name one"),
        _ if ip.is_multicast() => Some("it is a group's; name a station's address"),
        IpAddr::V4(ip) if ip.is_broadcast() => Some("it is everybody's; name a station's address"),
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => Some("it is an IPv4 address; write it as one"),
        _ => None,
    }
}

/// Whether a gateway is on a network of these addresses: who else would answer for its Ethernet address (`fib_check_nh`)? A
/// link-local network is added to any of IPv6.
pub fn is_on_link(gateway: IpAddr, addresses: &[(IpAddr, u8)]) -> bool {
    addresses.iter().any(|&(ip, prefix)| wire::inside(gateway, ip, prefix)) || wire::is_link_local(gateway)
}

impl std::fmt::Debug for StackConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The seed is left out because it is a secret, and the steering because it is code.
        f.debug_struct("StackConfig")
            .field("mac", &self.mac)
            .field("mtu_bytes", &self.mtu_bytes)
            .field("addresses", &self.addresses)
            .field("gateway4", &self.gateway4)
            .field("gateway6", &self.gateway6)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}

// The Ethernet header is pushed in front of a packet that was written behind the pool's headroom.
const _: () = assert!(HEADROOM_BYTES >= 14);
