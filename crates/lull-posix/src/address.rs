//! Socket addresses: the kernel's bytes and std's values.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::c_int;

use crate::{Errno, Result, kernel};

/// Bytes of `sockaddr_in` and `sockaddr_in6`.
const V4_BYTES: usize = 16;
const V6_BYTES: usize = 28;

/// The family of an address in the kernel's form; nothing if it is too short to have one.
pub fn family(bytes: &[u8]) -> Option<c_int> {
    let family = bytes.first_chunk::<2>()?;
    Some(c_int::from(u16::from_ne_bytes(*family)))
}

/// An internet address in the kernel's form. An IPv4 address in IPv6's form is given as IPv4. Nothing if it is no internet
/// address, or too short for one.
pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let port = |bytes: &[u8]| u16::from_be_bytes([bytes[2], bytes[3]]);
    match family(bytes)? {
        libc::AF_INET if bytes.len() >= V4_BYTES => {
            let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port(bytes)))
        }
        libc::AF_INET6 if bytes.len() >= V6_BYTES - 4 => {
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?);
            Some(SocketAddr::new(ip.to_canonical(), port(bytes)))
        }
        _ => None,
    }
}

/// An address in the kernel's form, for a socket of this family: IPv4 in IPv6's form on an IPv6 socket.
pub struct Bytes {
    bytes: [u8; V6_BYTES],
    length: usize,
}

impl Bytes {
    /// The address for a socket of `domain`.
    pub fn new(address: SocketAddr, domain: c_int) -> Bytes {
        let mut bytes = [0; V6_BYTES];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let v6 = match (address.ip(), domain) {
            (IpAddr::V4(ip), libc::AF_INET6) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
            (IpAddr::V4(ip), libc::AF_INET6) => ip.to_ipv6_mapped(),
            (IpAddr::V6(ip), _) => ip,
            (IpAddr::V4(ip), _) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&ip.octets());
                return Bytes { bytes, length: V4_BYTES };
            }
        };
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[8..24].copy_from_slice(&v6.octets());
        let scope = if let SocketAddr::V6(address) = address { SocketAddrV6::scope_id(&address) } else { 0 };
        bytes[24..].copy_from_slice(&scope.to_ne_bytes());
        Bytes { bytes, length: V6_BYTES }
    }
}

impl core::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Reads an address, or returns the error that `connect` and `bind` have for something that is none.
pub fn parse_or_refuse(bytes: &[u8], domain: c_int) -> Result<SocketAddr> {
    match family(bytes) {
        Some(family) if family == domain => parse(bytes).ok_or(Errno::new(libc::EINVAL)),
        Some(_) => Err(Errno::new(libc::EAFNOSUPPORT)),
        None => Err(Errno::new(libc::EINVAL)),
    }
}

/// An address of either world, in the kernel's form.
#[derive(Default)]
pub enum Name {
    /// No address: the data of a stream have no sender's.
    #[default]
    Nobodys,
    /// The address of a peer of lull's.
    Lulls(Bytes),
    /// The address of a peer of the kernel's.
    Kernels(kernel::RawAddress),
}

impl Name {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Name::Nobodys => &[],
            Name::Lulls(bytes) => bytes,
            Name::Kernels(address) => address.as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_from_its_bytes() {
        for (text, domain) in [("10.0.0.2:80", libc::AF_INET), ("[fd00::2]:443", libc::AF_INET6)] {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = Bytes::new(address, domain);
            assert_eq!((family(&bytes), parse(&bytes)), (Some(domain), Some(address)));
            assert!(parse(&bytes[..8]).is_none(), "too short");
        }
    }

    #[test]
    fn an_ipv4_address_on_an_ipv6_socket_is_mapped() {
        let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let bytes = Bytes::new(address, libc::AF_INET6);
        assert_eq!(bytes.len(), V6_BYTES);
        assert_eq!(&bytes[8..24], &Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets());
        assert_eq!(parse(&bytes), Some(address), "and is IPv4 for lull");
    }

    #[test]
    fn an_address_of_another_family_is_refused_as_linux_does() {
        let bytes = Bytes::new("10.0.0.2:80".parse().unwrap(), libc::AF_INET);
        assert_eq!(parse_or_refuse(&bytes, libc::AF_INET6), Err(Errno::new(libc::EAFNOSUPPORT)));
        assert_eq!(parse_or_refuse(&bytes[..1], libc::AF_INET), Err(Errno::new(libc::EINVAL)));
    }
}
