//! The vectors of Microsoft's "Verifying the RSS Hash Calculation".
#![cfg(not(loom))]

use std::net::{IpAddr, SocketAddr};

use lull_nic::rss::{MICROSOFT_KEY, SYMMETRIC_KEY, Toeplitz};

/// Source, destination, hash over the addresses, hash over addresses and TCP ports.
const VECTORS: [(&str, &str, u32, u32); 8] = [
    ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
    ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
    ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
    ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
    ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
    ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
    ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
    ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x4b61_e985, 0x02d1_feef),
];

const TCP: u8 = 6;

fn frame(source: SocketAddr, destination: SocketAddr, protocol: u8, vlan: bool) -> Vec<u8> {
    let mut frame = vec![0; 12];
    if vlan {
        frame.extend([0x81, 0, 0, 7]);
    }
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        _ => unreachable!("vectors do not mix families"),
    }
    frame.extend(source.port().to_be_bytes());
    frame.extend(destination.port().to_be_bytes());
    frame.extend([0; 16]);
    frame
}

#[test]
fn microsoft_vectors() {
    let toeplitz = Toeplitz::new(&MICROSOFT_KEY);
    for (source, destination, addresses, ports) in VECTORS {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        for vlan in [false, true] {
            assert_eq!(toeplitz.hash_frame(&frame(source, destination, TCP, vlan)), ports, "{source}");
            // A protocol without ports.
            assert_eq!(toeplitz.hash_frame(&frame(source, destination, 89, vlan)), addresses, "{source}");
        }
    }
}

#[test]
fn fragments_hash_by_address_alone() {
    let (source, destination, addresses, _) = VECTORS[0];
    let mut bytes = frame(source.parse().unwrap(), destination.parse().unwrap(), TCP, false);
    bytes[20] = 0x20;
    assert_eq!(Toeplitz::new(&MICROSOFT_KEY).hash_frame(&bytes), addresses);
}

#[test]
fn symmetric_key_hashes_both_directions_alike() {
    let toeplitz = Toeplitz::new(&SYMMETRIC_KEY);
    for (source, destination, ..) in VECTORS {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let there = toeplitz.hash_frame(&frame(source, destination, TCP, false));
        assert_eq!(there, toeplitz.hash_frame(&frame(destination, source, TCP, false)));
        assert_ne!(there, 0);
    }
}

#[test]
fn truncated_frames_hash_to_something_without_a_panic() {
    let toeplitz = Toeplitz::new(&MICROSOFT_KEY);
    for (source, destination, ..) in VECTORS {
        let bytes = frame(source.parse().unwrap(), destination.parse().unwrap(), TCP, true);
        for len in 0..bytes.len() {
            toeplitz.hash_frame(&bytes[..len]);
        }
    }
}
