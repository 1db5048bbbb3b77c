//! What the kernel says of an interface, for the devices that are on one of the host's.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::eventfd::{owned, readable};
use crate::namespace::{ifreq_ioctl, request};

/// The interface's index in the calling thread's namespace.
pub(crate) fn index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// An interface as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// What it is called now.
    pub(crate) name: String,
    pub(crate) mtu_bytes: usize,
    pub(crate) mac: [u8; 6],
    /// It is up and has a carrier.
    pub(crate) running: bool,
}

/// Reads the interface's state, by its index: it may be renamed. ENODEV: it is gone from the namespace of `control`.
pub(crate) fn state(control: &OwnedFd, ifindex: u32) -> io::Result<State> {
    let mut named = request("")?;
    named.ifr_ifru.ifru_ifindex = ifindex as libc::c_int;
    ifreq_ioctl(control, libc::SIOCGIFNAME, &mut named)?;
    let ask = |what| -> io::Result<libc::ifreq> {
        let mut request = libc::ifreq { ifr_name: named.ifr_name, ..named };
        ifreq_ioctl(control, what, &mut request)?;
        Ok(request)
    };
    let (mtu, mac, flags) = (ask(libc::SIOCGIFMTU)?, ask(libc::SIOCGIFHWADDR)?, ask(libc::SIOCGIFFLAGS)?);
    // SAFETY: each request has filled in the member that is read.
    let (mtu, mac, flags) =
        unsafe { (mtu.ifr_ifru.ifru_mtu, mac.ifr_ifru.ifru_hwaddr.sa_data, flags.ifr_ifru.ifru_flags) };
    let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let name = named.ifr_name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect::<Vec<_>>();
    Ok(State {
        name: String::from_utf8_lossy(&name).into_owned(),
        mtu_bytes: mtu as usize,
        mac: std::array::from_fn(|at| mac[at] as u8),
        running: flags & wanted == wanted,
    })
}

/// A structure of <linux/ethtool.h>, filled in by the command in its first word.
fn ethtool<T>(control: &OwnedFd, name: &str, value: &mut T) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    ifreq_ioctl(control, libc::SIOCETHTOOL as libc::c_ulong, &mut request)
}

/// The name of the interface's driver.
pub(crate) fn driver(control: &OwnedFd, name: &str) -> io::Result<String> {
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    const GDRVINFO: u32 = 3;
    let mut info = DriverInfo { command: GDRVINFO, driver: [0; 32], rest: [0; 160] };
    ethtool(control, name, &mut info)?;
    let driver = info.driver.iter().take_while(|byte| **byte != 0).copied().collect::<Vec<_>>();
    Ok(String::from_utf8_lossy(&driver).into_owned())
}

/// How many queues of the interface receive, and how many send; a driver that does not say has one of each.
pub(crate) fn queues(control: &OwnedFd, name: &str) -> (u32, u32) {
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        max: [u32; 4],
        rx: u32,
        tx: u32,
        other: u32,
        combined: u32,
    }
    const GCHANNELS: u32 = 0x3c;
    let mut channels = Channels { command: GCHANNELS, ..Channels::default() };
    match ethtool(control, name, &mut channels) {
        Ok(()) => ((channels.rx + channels.combined).max(1), (channels.tx + channels.combined).max(1)),
        Err(_) => (1, 1),
    }
}

/// Whether the calling thread's namespace has `address` on one of its interfaces.
pub(crate) fn is_hosts(address: IpAddr) -> io::Result<bool> {
    any_address(|entry| socket_address(entry.ifa_addr) == Some(address))
}

/// Whether the interface of this name is up and has `address`, with a prefix of so many bits.
pub(crate) fn is_up_with(name: &str, address: IpAddr, prefix: u8) -> io::Result<bool> {
    let bits = |mask: IpAddr| match mask {
        IpAddr::V4(mask) => u32::from(mask).count_ones(),
        IpAddr::V6(mask) => u128::from(mask).count_ones(),
    };
    any_address(|entry| {
        // SAFETY: an entry of the list has a name, which is a C string.
        let label = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes();
        // An address may have a label, which is the interface's name and more behind a colon. No name has a colon.
        label.split(|byte| *byte == b':').next() == Some(name.as_bytes())
            && entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0
            && socket_address(entry.ifa_addr) == Some(address)
            && socket_address(entry.ifa_netmask).map(bits) == Some(u32::from(prefix))
    })
}

/// Whether one of the addresses of the calling thread's namespace is what `is_it` looks for.
fn any_address(is_it: impl Fn(&libc::ifaddrs) -> bool) -> io::Result<bool> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` outlives the call, and is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut at = list;
    let mut found = false;
    while !at.is_null() {
        // SAFETY: an entry of the list, which is not freed yet.
        let entry = unsafe { &*at };
        found |= is_it(entry);
        at = entry.ifa_next;
    }
    // SAFETY: `getifaddrs` made it, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn socket_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller has an address of the list, whose family says which structure it is.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => Some(IpAddr::from((*address.cast::<libc::sockaddr_in>()).sin_addr.s_addr.to_ne_bytes())),
            libc::AF_INET6 => Some(IpAddr::from((*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr)),
            _ => None,
        }
    }
}

/// Tells the kernel which Ethernet address a neighbour has, as if it had heard that a while ago: it sends there without asking first, and
/// asks soon whether it is so still (NUD_STALE).
pub(crate) fn tell_of_neighbour(ifindex: u32, neighbour: IpAddr, mac: [u8; 6]) -> io::Result<()> {
    // The attributes are <linux/neighbour.h>'s.
    const NDA_DST: u16 = 1;
    const NDA_LLADDR: u16 = 2;
    const NUD_STALE: u16 = 0x04;
    let (family, address) = match neighbour {
        IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
    };
    let mut neighbour = vec![family, 0, 0, 0];
    neighbour.extend(ifindex.to_ne_bytes());
    neighbour.extend(NUD_STALE.to_ne_bytes());
    neighbour.extend([0, 0]);
    let attributes = [(NDA_DST, &address[..]), (NDA_LLADDR, &mac)];
    ask_rtnetlink(libc::RTM_NEWNEIGH, libc::NLM_F_REPLACE, &neighbour, &attributes)
}

/// Adds an IPv6 address that the kernel uses at once, without looking whether another station has it (IFA_F_NODAD).
pub(crate) fn add_ipv6_address(ifindex: u32, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
    // <linux/if_addr.h>.
    const IFA_ADDRESS: u16 = 1;
    const IFA_F_NODAD: u8 = 0x02;
    const SCOPE_UNIVERSE: u8 = 0;
    let mut header = vec![libc::AF_INET6 as u8, prefix, IFA_F_NODAD, SCOPE_UNIVERSE];
    header.extend(ifindex.to_ne_bytes());
    ask_rtnetlink(libc::RTM_NEWADDR, libc::NLM_F_EXCL, &header, &[(IFA_ADDRESS, &address.octets())])
}

/// Makes something in the kernel, with one request of `rtnetlink(7)`: its own header, and attributes.
fn ask_rtnetlink(request: u16, how: libc::c_int, header: &[u8], attributes: &[(u16, &[u8])]) -> io::Result<()> {
    const HEADER_BYTES: usize = size_of::<libc::nlmsghdr>();
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | how;
    let mut message = vec![0; size_of::<u32>()];
    message.extend(request.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    // Neither a sequence nor a sender's number is needed by who asks once.
    message.extend([0; 8]);
    message.extend(header);
    for (kind, value) in attributes {
        message.extend((4 + value.len() as u16).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(*value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
    let socket =
        unsafe { owned(libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)) }?;
    let mut answer = [0; 256];
    // SAFETY: both buffers outlive the calls, and their sizes are told. A socket without an address sends to the kernel, which answers at once.
    let got = unsafe {
        match libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) {
            0.. => libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0),
            failed => failed,
        }
    };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // `nlmsgerr` begins with an error below 0, or 0.
    match answer[HEADER_BYTES..].first_chunk().map_or(0, |error| i32::from_ne_bytes(*error)) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// A socket that becomes readable when any interface of the namespace changes, comes or goes (rtnetlink).
pub(crate) fn events() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
    let socket = unsafe { owned(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE)) }?;
    // SAFETY: a C structure of integers, for which zero is a value.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = libc::RTMGRP_LINK as u32;
    // SAFETY: the address outlives the call, and its size is told.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Reads an event socket empty; whether there was anything. What changed is asked for anew, so an overrun (ENOBUFS) is one
/// event more.
pub(crate) fn drain(events: &OwnedFd) -> bool {
    let mut message = [0u8; 8192];
    let mut any = false;
    while readable(events.as_fd(), Some(std::time::Duration::ZERO)).unwrap_or(false) {
        // SAFETY: the buffer outlives the call, and its size is told.
        unsafe { libc::recv(events.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), libc::MSG_DONTWAIT) };
        any = true;
    }
    any
}

/// Makes the interface receive frames to the Ethernet groups of `groups` for as long as the descriptor is open.
pub(crate) fn join(ifindex: u32, groups: &[[u8; 6]]) -> io::Result<OwnedFd> {
    // Protocol 0: the socket itself receives nothing.
    // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
    let socket = unsafe { owned(libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0)) }?;
    for group in groups {
        let mut mr_address = [0; 8];
        mr_address[..6].copy_from_slice(group);
        let member = libc::packet_mreq {
            mr_ifindex: ifindex as libc::c_int,
            mr_type: libc::PACKET_MR_MULTICAST as libc::c_ushort,
            mr_alen: 6,
            mr_address,
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)?;
    }
    Ok(socket)
}

/// `setsockopt`.
pub(crate) fn set_option<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is what the option takes (each caller's), outlives the call, and its size is told.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `getsockopt`, over a value that stays as it is where the kernel writes less.
pub(crate) fn option<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is a structure of integers that the option fills in (each caller's); it outlives the call, and its
    // size is told.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// The Ethernet groups of the IPv6 addresses' solicited nodes (RFC 4291 section 2.7.1, RFC 2464 section 7).
pub(crate) fn solicited_groups(addresses: impl Iterator<Item = IpAddr>) -> Vec<[u8; 6]> {
    let group = |address| {
        let IpAddr::V6(ip) = address else { return None };
        let ip = ip.octets();
        Some([0x33, 0x33, 0xff, ip[13], ip[14], ip[15]])
    };
    addresses.filter_map(group).collect()
}
