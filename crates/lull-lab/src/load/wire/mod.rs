//! The fast generator: thousands of TCP connections in one polling thread, over a raw `lull_nic` queue.
//!
//! It has to be cheaper for each request than the server, so that one core of generator saturates one core of server.
//! Hence a TCP that does what a memcached client needs and no more: connections opened actively, IPv4, no options but
//! the MSS, data in order only (what arrives early is dropped and asked for again by a duplicate ACK), go-back-N with
//! an RTO of at least 200 ms, ACKs with the next request or after 20 to 25 ms. Nothing is stored for retransmission:
//! a request's bytes are made again from its 4-byte [`super::Query`].
//!
//! - [`WireConfig`]: addresses, connections, offloads;
//! - [`WireClient`]: the client; [`WireClient::run`] does a whole run, [`WireClient::begin`], [`WireClient::poll`] and
//!   [`WireClient::finish`] the same in steps, for a single-threaded world with its own time.

mod client;
mod connection;
mod egress;
mod packet;

use std::net::Ipv4Addr;

use super::{LoadError, PATIENCE_NS};

pub use client::WireClient;

/// The most connections of a client: each needs a port, and one that is opened again needs another.
pub const CONNECTIONS_MAX: usize = 30_000;
/// The largest payload of a segment, which makes an IP packet of 1500 bytes.
pub const MSS_BYTES_MAX: u16 = 1460;

/// The configuration of a [`WireClient`].
#[derive(Clone, Debug)]
pub struct WireConfig {
    /// The client's Ethernet address.
    pub local_mac: [u8; 6],
    /// The client's IP address.
    pub local_ip: Ipv4Addr,
    /// The server's Ethernet address; `None` asks for it by ARP.
    pub peer_mac: Option<[u8; 6]>,
    /// The server's IP address, on the same link.
    pub peer_ip: Ipv4Addr,
    /// The server's TCP port.
    pub peer_port: u16,
    /// Connections, 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// Largest TCP payload that the client sends and asks for in bytes, 64 to [`MSS_BYTES_MAX`].
    pub mss_bytes: u16,
    /// Whether to leave TCP checksums to the device ([`lull_nic::Offloads::tx_checksum`]).
    pub tx_checksum_offload: bool,
    /// The number of frames to take from the device at a time, 1 to 1024. The answers of one batch share a receive
    /// time.
    pub rx_batch: usize,
    /// The time without an answer, with requests outstanding or no connection up, after which a run fails, in
    /// nanoseconds.
    pub silence_ns_max: u64,
    /// The time to wait for outstanding answers at the end of a run, in nanoseconds.
    pub drain_ns_max: u64,
    /// The seed of arrivals, of the records that are asked for and of sequence numbers. Clients of one run should
    /// differ.
    pub seed: u64,
}

impl WireConfig {
    /// Makes the configuration of a client at `local` for a server at `peer`, with defaults for the rest.
    pub fn new(local: ([u8; 6], Ipv4Addr), peer: (Ipv4Addr, u16), connections: usize) -> WireConfig {
        WireConfig {
            local_mac: local.0,
            local_ip: local.1,
            peer_mac: None,
            peer_ip: peer.0,
            peer_port: peer.1,
            connections,
            mss_bytes: MSS_BYTES_MAX,
            tx_checksum_offload: false,
            rx_batch: 32,
            silence_ns_max: PATIENCE_NS,
            drain_ns_max: PATIENCE_NS,
            seed: 1,
        }
    }

    fn validate(&self) -> Result<(), LoadError> {
        let invalid = |what, why| Err(LoadError::Invalid { what, why });
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return invalid("connections", format!("{} is not between 1 and {CONNECTIONS_MAX}", self.connections));
        }
        if !(64..=MSS_BYTES_MAX).contains(&self.mss_bytes) {
            return invalid("MSS", format!("{} is not between 64 and {MSS_BYTES_MAX}", self.mss_bytes));
        }
        if !(1..=1024).contains(&self.rx_batch) {
            return invalid("receive batch", format!("{} is not between 1 and 1024", self.rx_batch));
        }
        Ok(())
    }
}
