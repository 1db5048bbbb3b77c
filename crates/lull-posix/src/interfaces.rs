//! The addresses that a program finds when it lists its interfaces: `getifaddrs`, and `ioctl` with SIOCGIFCONF.
//!
//! The kernel does not know lull's, and a server that listens on each address that it finds (named, rpcbind) would leave them out.
//! So they are listed with lull's device, behind all that the kernel has; one that the kernel lists itself (AF_XDP with the host's own
//! address) is not listed twice.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::CStr;
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{c_char, c_int, c_uint, c_void, ifaddrs, sockaddr};

use crate::{address, engine, memory, netlink};

/// The C library's `getifaddrs`.
pub type List = unsafe extern "C" fn(*mut *mut ifaddrs) -> c_int;
/// The C library's `freeifaddrs`.
pub type Free = unsafe extern "C" fn(*mut ifaddrs);

/// The data of lull's entries, which no other entry has, so that freeing a list can tell where they begin. An address
/// has no data that anybody would read; a program that does finds zeroes.
static MARK: [u64; 64] = [0; 64];

/// The name of an interface, which ends with a zero.
type Name = [c_char; libc::IF_NAMESIZE];

/// An entry of lull's, and what it points to.
#[repr(C)]
struct Entry {
    listed: ifaddrs,
    address: [u8; ADDRESS_BYTES],
    netmask: [u8; ADDRESS_BYTES],
    broadcast: [u8; ADDRESS_BYTES],
    name: Name,
}

const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_storage>();

/// lull's device, and the addresses on it.
fn device() -> Option<(Name, &'static [(IpAddr, u8)])> {
    let (routing, ifindex) = (engine::routing()?, netlink::ifindex()?);
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: there is room for a name.
    let found = unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) };
    (!found.is_null()).then_some((name, &routing.addresses[..]))
}

/// `getifaddrs`.
///
/// # Safety
/// As that function.
pub unsafe fn getifaddrs(list: *mut *mut ifaddrs, real: List) -> c_int {
    // SAFETY: the program vouches for its argument.
    let result = unsafe { real(list) };
    if result == 0
        && let Some((name, addresses)) = device()
    {
        // SAFETY: the call has written a list there.
        unsafe { append(&mut *list, name, addresses) };
    }
    result
}

/// Puts entries of lull's behind a list.
///
/// # Safety
/// It is one of `getifaddrs`.
unsafe fn append(list: &mut *mut ifaddrs, name: Name, addresses: &[(IpAddr, u8)]) {
    let mut flags = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_BROADCAST | libc::IFF_MULTICAST) as c_uint;
    let mut known = HashSet::new();
    let mut last: *mut *mut ifaddrs = list;
    // SAFETY: as above; names end with a zero.
    unsafe {
        while let Some(entry) = (*last).as_mut() {
            known.extend(ip_of(entry.ifa_addr));
            if CStr::from_ptr(entry.ifa_name) == CStr::from_ptr(name.as_ptr()) {
                flags = entry.ifa_flags;
            }
            last = &raw mut entry.ifa_next;
        }
    }
    let new: Vec<(IpAddr, u8)> = addresses.iter().copied().filter(|(ip, _)| !known.contains(ip)).collect();
    if new.is_empty() {
        return;
    }
    // SAFETY: a call of the allocator's; zeroes are a value of an entry.
    let block: *mut Entry = unsafe { libc::calloc(new.len(), size_of::<Entry>()) }.cast();
    if block.is_null() {
        return;
    }
    for (place, &(ip, prefix)) in new.iter().enumerate() {
        // SAFETY: the block has so many entries.
        let at = unsafe { block.add(place) };
        // SAFETY: nobody else has it yet.
        let entry = unsafe { &mut *at };
        put(&mut entry.address, ip);
        put(&mut entry.netmask, mask(ip, prefix));
        entry.name = name;
        let broadcast = broadcast(ip, prefix);
        broadcast.inspect(|ip| put(&mut entry.broadcast, *ip));
        let within = |offset: usize| at.cast::<u8>().wrapping_add(offset);
        entry.listed.ifa_name = within(offset_of!(Entry, name)).cast();
        entry.listed.ifa_flags = flags;
        entry.listed.ifa_addr = within(offset_of!(Entry, address)).cast();
        entry.listed.ifa_netmask = within(offset_of!(Entry, netmask)).cast();
        if broadcast.is_some() {
            entry.listed.ifa_ifu = within(offset_of!(Entry, broadcast)).cast();
        }
        entry.listed.ifa_data = MARK.as_ptr().cast_mut().cast();
        // SAFETY: the end of the list, or of what stands there by now.
        unsafe { *last = &raw mut entry.listed };
        last = &raw mut entry.listed.ifa_next;
    }
}

/// `freeifaddrs`.
///
/// # Safety
/// As that function.
pub unsafe fn freeifaddrs(mut list: *mut ifaddrs, real: Free) {
    let mut last: *mut *mut ifaddrs = &raw mut list;
    let mark: *const c_void = MARK.as_ptr().cast();
    // SAFETY: a list of `getifaddrs`. Entries of lull's are one block, which begins with the first of them.
    unsafe {
        while let Some(entry) = (*last).as_mut() {
            if std::ptr::eq(entry.ifa_data, mark) {
                let block = std::mem::replace(&mut *last, std::ptr::null_mut());
                libc::free(block.cast());
                break;
            }
            last = &raw mut entry.ifa_next;
        }
        real(list);
    }
}

/// What SIOCGIFCONF reads and writes: `struct ifconf`.
#[repr(C)]
struct Conf {
    bytes: c_int,
    at: *mut ConfEntry,
}

/// `struct ifreq`, as SIOCGIFCONF writes it.
#[repr(C)]
struct ConfEntry {
    name: Name,
    address: [u8; 24],
}

/// `ioctl` with SIOCGIFCONF, which lists IPv4 addresses; `real` asks the kernel.
///
/// # Safety
/// The program vouches for what `argument` points to.
pub unsafe fn configuration(argument: usize, real: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: as above.
    let room = unsafe { memory::object_at::<Conf>(argument) }.map(|conf| conf.bytes);
    let result = real();
    // SAFETY: as above.
    let conf = unsafe { memory::object_at::<Conf>(argument) };
    if result == 0
        && let (Some(room), Some(conf), Some((name, addresses))) = (room, conf, device())
    {
        let entry_bytes = size_of::<ConfEntry>();
        for &(ip, _) in addresses.iter().filter(|(ip, _)| ip.is_ipv4()) {
            let count = usize::try_from(conf.bytes).unwrap_or(0) / entry_bytes;
            // SAFETY: the kernel has written so many, if it was given a place.
            let known = if conf.at.is_null() { &[][..] } else { unsafe { std::slice::from_raw_parts(conf.at, count) } };
            let is_known =
                known.iter().any(|entry| address::parse(&entry.address[..16]).is_some_and(|at| at.ip() == ip));
            let fits = conf.at.is_null() || (count + 1) * entry_bytes <= usize::try_from(room).unwrap_or(0);
            if is_known || !fits {
                continue;
            }
            if !conf.at.is_null() {
                let mut entry = ConfEntry { name, address: [0; 24] };
                put(&mut entry.address, ip);
                // SAFETY: there is room for one more.
                unsafe { conf.at.add(count).write(entry) };
            }
            conf.bytes += entry_bytes as c_int;
        }
    }
    result
}

/// Writes an address as the kernel has it.
fn put(at: &mut [u8], ip: IpAddr) {
    let domain = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let bytes = address::Bytes::new(SocketAddr::new(ip, 0), domain);
    at[..bytes.len()].copy_from_slice(&bytes);
}

/// The IP address of an entry, if it has one.
///
/// # Safety
/// It is null, or an address of its family.
unsafe fn ip_of(address: *const sockaddr) -> Option<IpAddr> {
    // SAFETY: as above.
    let family = c_int::from(unsafe { address.as_ref() }?.sa_family);
    let length = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: an address of this family has so many bytes.
    address::parse(unsafe { memory::bytes(address.cast(), length) }).map(|address| address.ip())
}

fn mask(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::from(!u32::MAX.checked_shr(prefix.into()).unwrap_or(0)).into(),
        IpAddr::V6(_) => Ipv6Addr::from(!u128::MAX.checked_shr(prefix.into()).unwrap_or(0)).into(),
    }
}

/// The address of everybody on its network, where there is one (RFC 3021).
fn broadcast(ip: IpAddr, prefix: u8) -> Option<IpAddr> {
    let (IpAddr::V4(own), IpAddr::V4(mask)) = (ip, mask(ip, prefix)) else { return None };
    (prefix < 31).then(|| Ipv4Addr::from(u32::from(own) | !u32::from(mask)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_broadcasts_are_those_of_the_prefix() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (own, prefix, netmask, everybody) in [
            ("10.0.0.2", 24, "255.255.255.0", Some("10.0.0.255")),
            ("10.0.0.2", 32, "255.255.255.255", None),
            ("10.0.0.2", 31, "255.255.255.254", None),
            ("10.0.0.2", 0, "0.0.0.0", Some("255.255.255.255")),
            ("fd00::2", 64, "ffff:ffff:ffff:ffff::", None),
            ("fd00::2", 128, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None),
        ] {
            assert_eq!(mask(ip(own), prefix), ip(netmask), "{own}/{prefix}");
            assert_eq!(broadcast(ip(own), prefix), everybody.map(ip), "{own}/{prefix}");
        }
    }
}
