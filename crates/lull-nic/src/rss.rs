//! Receive-side scaling: the Toeplitz hash over a frame's addresses and ports, and the indirection table.
//!
//! Source: Microsoft, "RSS Hashing Functions" and "Verifying the RSS Hash Calculation" (Windows driver documentation);
//! the tests check their vectors.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

/// Bytes of an RSS key.
pub const KEY_BYTES: usize = 40;
/// Most entries that an indirection table of ours takes, and how many it has unless set otherwise.
pub const TABLE_ENTRIES_MAX: usize = 128;

/// Microsoft's key, the default of most NICs.
pub const MICROSOFT_KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// A key of period 16 bits: both directions of a flow hash alike, because exchanging the addresses or the ports only
/// moves them by a multiple of the period.
pub const SYMMETRIC_KEY: [u8; KEY_BYTES] = {
    let mut key = [0; KEY_BYTES];
    let mut at = 0;
    while at < KEY_BYTES {
        key[at] = if at % 2 == 0 { 0x6d } else { 0x5a };
        at += 1;
    }
    key
};

/// Longest input: two IPv6 addresses and two ports.
const INPUT_BYTES_MAX: usize = 36;

/// The Toeplitz hash of one key, tabulated by half bytes: the hash is linear over XOR, so that two look-ups a byte
/// replace eight shifts, and the table (4.6 KB) stays in the first-level cache.
pub struct Toeplitz {
    by_nibble: Box<[[u32; 16]; 2 * INPUT_BYTES_MAX]>,
}

impl fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Toeplitz")
    }
}

impl Toeplitz {
    /// The hash function of `key`.
    pub fn new(key: &[u8; KEY_BYTES]) -> Toeplitz {
        let mut by_nibble = Box::new([[0; 16]; 2 * INPUT_BYTES_MAX]);
        for (position, row) in by_nibble.iter_mut().enumerate() {
            for (value, hash) in row.iter_mut().enumerate() {
                for bit in (0..4).filter(|bit| value & (8 >> bit) != 0) {
                    *hash ^= key_window(key, position * 4 + bit);
                }
            }
        }
        Toeplitz { by_nibble }
    }

    /// The hash of `input`, most significant bit of the first byte first.
    ///
    /// # Panics
    /// If `input` is longer than two IPv6 addresses and two ports (36 bytes).
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        assert!(input.len() <= INPUT_BYTES_MAX, "RSS input of {} bytes", input.len());
        let mut hash = 0;
        for (byte, rows) in input.iter().zip(self.by_nibble.chunks_exact(2)) {
            hash ^= rows[0][usize::from(byte >> 4)] ^ rows[1][usize::from(byte & 15)];
        }
        hash
    }

    /// The hash of an Ethernet frame: over addresses and ports of TCP and UDP (IPv4, or IPv6 without extension
    /// headers), over the addresses of fragments and other IP, 0 for the rest. One VLAN tag is skipped.
    #[inline]
    pub fn hash_frame(&self, frame: &[u8]) -> u32 {
        match ip_start(frame) {
            Some((0x0800, at)) => self.hash_ipv4(&frame[at..]),
            Some((0x86dd, at)) => self.hash_ipv6(&frame[at..]),
            _ => 0,
        }
    }

    /// The hash of a TCP or UDP flow: that of its frames.
    pub fn hash_flow(&self, source: SocketAddr, destination: SocketAddr) -> u32 {
        let mut input = Vec::with_capacity(INPUT_BYTES_MAX);
        for address in [source, destination] {
            match address.ip() {
                IpAddr::V4(ip) => input.extend(ip.octets()),
                IpAddr::V6(ip) => input.extend(ip.octets()),
            }
        }
        input.extend(source.port().to_be_bytes());
        input.extend(destination.port().to_be_bytes());
        self.hash(&input)
    }

    fn hash_ipv4(&self, packet: &[u8]) -> u32 {
        if packet.len() < 20 {
            return 0;
        }
        let header_bytes = usize::from(packet[0] & 15) * 4;
        // More fragments follow, or this is one: the ports are in the first only, so no fragment's count.
        let fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
        let ports = if has_ports(packet[9]) && !fragment { packet.get(header_bytes..header_bytes + 4) } else { None };
        let mut input = [0; 12];
        input[..8].copy_from_slice(&packet[12..20]);
        match ports {
            Some(ports) => {
                input[8..].copy_from_slice(ports);
                self.hash(&input)
            }
            None => self.hash(&input[..8]),
        }
    }

    fn hash_ipv6(&self, packet: &[u8]) -> u32 {
        if packet.len() < 40 {
            return 0;
        }
        match packet.get(40..44) {
            // Addresses and ports are adjacent, so the input is there as it is.
            Some(_) if has_ports(packet[6]) => self.hash(&packet[8..44]),
            _ => self.hash(&packet[8..40]),
        }
    }
}

fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17)
}

/// EtherType and offset of what follows the Ethernet header and at most one VLAN tag.
#[inline]
pub(crate) fn ip_start(frame: &[u8]) -> Option<(u16, usize)> {
    let kind_at = |at: usize| frame.get(at..at + 2).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
    match kind_at(12)? {
        0x8100 => Some((kind_at(16)?, 18)),
        kind => Some((kind, 14)),
    }
}

/// The 32 bits of the key that start at bit `at`.
fn key_window(key: &[u8; KEY_BYTES], at: usize) -> u32 {
    let mut window: u64 = 0;
    for byte in 0..5 {
        window = window << 8 | u64::from(key[(at / 8 + byte) % KEY_BYTES]);
    }
    (window >> (8 - at % 8)) as u32
}

/// An indirection table that transmitters read while it is changed.
#[derive(Debug)]
pub struct Indirection {
    entries: [AtomicU16; TABLE_ENTRIES_MAX],
    len: AtomicUsize,
}

impl Indirection {
    /// Spreads the buckets over `queues` evenly; one queue makes a table of one entry.
    pub fn even(queues: usize) -> Indirection {
        let len = if queues <= 1 { 1 } else { TABLE_ENTRIES_MAX };
        let entry = |bucket| AtomicU16::new((bucket % queues.max(1)) as u16);
        Indirection { entries: std::array::from_fn(entry), len: AtomicUsize::new(len) }
    }

    /// The queue of a hash.
    #[inline]
    pub fn queue(&self, hash: u32) -> usize {
        // A reader between the two writes of `set` mixes two tables, both of which name queues that exist.
        let len = self.len.load(Ordering::Relaxed);
        usize::from(self.entries[hash as usize % len].load(Ordering::Relaxed))
    }

    /// The table.
    pub fn get(&self) -> Vec<usize> {
        let len = self.len.load(Ordering::Relaxed);
        self.entries[..len].iter().map(|entry| usize::from(entry.load(Ordering::Relaxed))).collect()
    }

    /// Replaces the table.
    ///
    /// # Errors
    /// What is wrong with it: empty, longer than [`TABLE_ENTRIES_MAX`], or naming a queue from `queues` on.
    pub fn set(&self, table: &[usize], queues: usize) -> Result<(), String> {
        if table.is_empty() || table.len() > TABLE_ENTRIES_MAX {
            return Err(format!("{} entries; it takes 1 to {TABLE_ENTRIES_MAX}", table.len()));
        }
        if let Some(queue) = table.iter().find(|queue| **queue >= queues) {
            return Err(format!("queue {queue}; the device has {queues}"));
        }
        for (entry, queue) in self.entries.iter().zip(table) {
            entry.store(*queue as u16, Ordering::Relaxed);
        }
        self.len.store(table.len(), Ordering::Relaxed);
        Ok(())
    }
}
