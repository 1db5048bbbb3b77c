//! A frame in a few words.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::rss::ip_start;

/// Displays what a frame is: Ethernet, ARP, IPv4, IPv6, and TCP, UDP or the protocol's number within.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    frame: &'a [u8],
    length: usize,
}

impl<'a> Summary<'a> {
    /// Of a frame that starts with `frame` and has `length` bytes altogether.
    pub fn new(frame: &'a [u8], length: usize) -> Summary<'a> {
        Summary { frame, length }
    }

    fn ethernet(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((to, rest)) = self.frame.split_at_checked(6) else { return f.write_str("no ethernet header") };
        let (Some(from), Some((kind, _))) = (rest.get(..6), ip_start(self.frame)) else {
            return f.write_str("no ethernet header");
        };
        write!(f, "{} > {} type {kind:#06x}", Mac(from), Mac(to))
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = ip_start(self.frame).and_then(|(kind, at)| {
            let packet = self.frame.get(at..)?;
            match kind {
                0x0806 => arp(packet),
                0x0800 => ipv4(packet),
                0x86dd => ipv6(packet),
                _ => None,
            }
        });
        match known {
            Some(text) => f.write_str(&text)?,
            None => self.ethernet(f)?,
        }
        write!(f, " len {}", self.length)
    }
}

struct Mac<'a>(&'a [u8]);

impl fmt::Display for Mac<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// `N` bytes from `at`.
fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at + N)?.try_into().ok()
}

fn word(data: &[u8], at: usize) -> Option<u16> {
    bytes(data, at).map(u16::from_be_bytes)
}

fn arp(packet: &[u8]) -> Option<String> {
    let (sender, target) = (Ipv4Addr::from(bytes::<4>(packet, 14)?), Ipv4Addr::from(bytes::<4>(packet, 24)?));
    Some(match word(packet, 6)? {
        1 => format!("arp who has {target} tell {sender}"),
        2 => format!("arp {sender} is at {}", Mac(packet.get(8..14)?)),
        other => format!("arp operation {other}"),
    })
}

fn ipv4(packet: &[u8]) -> Option<String> {
    let (from, to) = (Ipv4Addr::from(bytes::<4>(packet, 12)?), Ipv4Addr::from(bytes::<4>(packet, 16)?));
    let header = usize::from(packet[0] & 15) * 4;
    let fragment = word(packet, 6)? & 0x1fff;
    if fragment != 0 {
        return Some(format!("ipv4 {from} > {to} fragment at {}", fragment * 8));
    }
    let payload = usize::from(word(packet, 2)?).saturating_sub(header);
    Some(transport("ipv4", from.into(), to.into(), packet[9], packet.get(header..)?, payload))
}

fn ipv6(packet: &[u8]) -> Option<String> {
    let (from, to) = (Ipv6Addr::from(bytes::<16>(packet, 8)?), Ipv6Addr::from(bytes::<16>(packet, 24)?));
    let payload = usize::from(word(packet, 4)?);
    Some(transport("ipv6", from.into(), to.into(), packet[6], packet.get(40..)?, payload))
}

fn transport(family: &str, from: IpAddr, to: IpAddr, protocol: u8, segment: &[u8], length: usize) -> String {
    let known = match protocol {
        6 => tcp(from, to, segment, length),
        17 => udp(from, to, segment),
        _ => None,
    };
    match known {
        Some(text) => format!("{family} {text}"),
        None => format!("{family} {from} > {to} protocol {protocol}"),
    }
}

fn ports(from: IpAddr, to: IpAddr, segment: &[u8]) -> Option<String> {
    let (from, to) = (SocketAddr::new(from, word(segment, 0)?), SocketAddr::new(to, word(segment, 2)?));
    Some(format!("{from} > {to}"))
}

fn udp(from: IpAddr, to: IpAddr, segment: &[u8]) -> Option<String> {
    Some(format!("udp {} data {}", ports(from, to, segment)?, word(segment, 4)?.saturating_sub(8)))
}

fn tcp(from: IpAddr, to: IpAddr, segment: &[u8], length: usize) -> Option<String> {
    let [offset, flags] = bytes(segment, 12)?;
    let set = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, '.'), (32, 'U')];
    let flags: String = set.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    let (sequence, acknowledged) = (u32::from_be_bytes(bytes(segment, 4)?), u32::from_be_bytes(bytes(segment, 8)?));
    let data = length.saturating_sub(usize::from(offset >> 4) * 4);
    let window = word(segment, 14)?;
    let ports = ports(from, to, segment)?;
    Some(format!("tcp {ports} [{flags}] seq {sequence} ack {acknowledged} win {window} data {data}"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn text(frame: &[u8]) -> String {
        Summary::new(frame, frame.len()).to_string()
    }

    #[test]
    fn known_protocols_are_named() {
        let mut frame = crate::checksum::tests::udp_frame(b"hello");
        assert_eq!(text(&frame), "ipv4 udp 10.0.0.1:12345 > 10.0.0.2:53 data 5 len 47");
        frame[23] = 6;
        frame.resize(54, 0);
        frame[16..18].copy_from_slice(&40u16.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = 0x12;
        assert!(text(&frame).starts_with("ipv4 tcp 10.0.0.1:12345 > 10.0.0.2:53 [S.] seq"), "{}", text(&frame));
        frame[21] = 2;
        assert_eq!(text(&frame), "ipv4 10.0.0.1 > 10.0.0.2 fragment at 16 len 54");
        let mut arp = vec![0xff; 42];
        arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!(text(&arp), "arp who has 255.255.255.255 tell 255.255.255.255 len 42");
    }

    #[test]
    fn every_truncation_is_survived() {
        let frame = crate::checksum::tests::udp_frame(b"hello");
        for length in 0..frame.len() {
            assert!(text(&frame[..length]).ends_with(&format!("len {length}")));
        }
    }
}
