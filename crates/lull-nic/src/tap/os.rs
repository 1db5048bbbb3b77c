//! The system calls of a TAP interface.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::interface;
use crate::namespace::{ifreq_ioctl, request};

pub(super) const TUN_PATH: &str = "/dev/net/tun";

/// Opens the clone device, non-blocking.
pub(super) fn open_tun() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(TUN_PATH)
}

/// Attaches `file` to the interface `name` as a queue, creating the interface if there is none; its full name. `flags`
/// are those beyond a plain TAP's.
pub(super) fn attach(file: &File, name: &str, flags: libc::c_int) -> io::Result<String> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | flags) as libc::c_short;
    ifreq_ioctl(file, libc::TUNSETIFF as libc::c_ulong, &mut request)?;
    Ok(name_in(&request))
}

/// The name of the interface whose queue `file` is, and whether its frames have virtio-net headers; an error if there is no
/// interface, or none any more.
pub(super) fn interface(file: &File) -> io::Result<(String, bool)> {
    let mut request = request("")?;
    ifreq_ioctl(file, libc::TUNGETIFF as libc::c_ulong, &mut request)?;
    // SAFETY: TUNGETIFF has filled in this member.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok((name_in(&request), flags & libc::IFF_VNET_HDR != 0))
}

/// Makes the queue one of those that the kernel sends to, or takes it out (TUNSETQUEUE). False: it was so already, or the
/// interface has one queue alone.
pub(super) fn set_attached(file: BorrowedFd<'_>, attached: bool) -> io::Result<bool> {
    let mut request = request("")?;
    let flag = if attached { libc::IFF_ATTACH_QUEUE } else { libc::IFF_DETACH_QUEUE };
    request.ifr_ifru.ifru_flags = flag as libc::c_short;
    match ifreq_ioctl(&file, libc::TUNSETQUEUE as libc::c_ulong, &mut request) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the kernel knows virtio-net headers.
pub(super) fn knows_virtio(file: &File) -> bool {
    let mut features: libc::c_uint = 0;
    // SAFETY: TUNGETFEATURES writes one unsigned int, which outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETFEATURES, &raw mut features) };
    done >= 0 && features & libc::IFF_VNET_HDR as libc::c_uint != 0
}

/// Sets the length and byte order of the virtio-net headers; an earlier user of the interface may have set others.
pub(super) fn set_virtio_header(file: &File, bytes: usize) -> io::Result<()> {
    let (bytes, little_endian) = (bytes as libc::c_int, 1 as libc::c_int);
    for (request, value) in [(libc::TUNSETVNETHDRSZ, &bytes), (libc::TUNSETVNETLE, &little_endian)] {
        // SAFETY: both read one int, which outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_ref(value)) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Tells the kernel what it may leave undone in frames for us (`TUN_F_*`). It belongs to the interface and outlives us.
pub(super) fn set_offload(file: &File, features: libc::c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(features)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the interface behind `file` still exists.
pub(super) fn attached(file: &File) -> bool {
    interface(file).is_ok()
}

fn name_in(request: &libc::ifreq) -> String {
    let name = request.ifr_name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
    String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned()
}

/// Switches the carrier that the kernel side sees (Linux 5.0).
pub(super) fn set_carrier(file: &File, on: bool) -> io::Result<()> {
    let on = libc::c_int::from(on);
    // SAFETY: TUNSETCARRIER reads one int, which outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETCARRIER, &raw const on) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The interface's index in the calling thread's namespace.
pub(super) fn index(name: &str) -> io::Result<libc::c_uint> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Makes the descriptor of `file` mean what `replacement` means. Its number stays valid throughout.
pub(super) fn replace(file: &File, replacement: &OwnedFd) {
    // SAFETY: both are open and stay owned by whom they are; dup3 replaces atomically, so that a concurrent read or
    // write on `file` meets the one or the other. It fails only for descriptors that are not open, or the same.
    // By number: where a program's calls are taken over, `dup3` over a descriptor of lull's own is refused.
    unsafe { libc::syscall(libc::SYS_dup3, replacement.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) };
}

pub(super) fn mtu(socket: &OwnedFd, name: &str) -> io::Result<usize> {
    let mut request = request(name)?;
    ifreq_ioctl(socket, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: SIOCGIFMTU has filled in this member.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
}

pub(super) fn set_mtu(socket: &OwnedFd, name: &str, mtu: usize) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = mtu.try_into().unwrap_or(libc::c_int::MAX);
    ifreq_ioctl(socket, libc::SIOCSIFMTU, &mut request)
}

/// Slots of the queue from the kernel to us.
pub(super) fn queue_len(socket: &OwnedFd, name: &str) -> io::Result<usize> {
    let mut request = request(name)?;
    ifreq_ioctl(socket, libc::SIOCGIFTXQLEN, &mut request)?;
    // SAFETY: SIOCGIFTXQLEN has filled in an int at this place (`ifr_qlen`).
    Ok(unsafe { request.ifr_ifru.ifru_metric } as usize)
}

pub(super) fn set_queue_len(socket: &OwnedFd, name: &str, slots: i32) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_metric = slots;
    ifreq_ioctl(socket, libc::SIOCSIFTXQLEN, &mut request)
}

pub(super) fn mac(socket: &OwnedFd, name: &str) -> io::Result<[u8; 6]> {
    let mut request = request(name)?;
    ifreq_ioctl(socket, libc::SIOCGIFHWADDR, &mut request)?;
    // SAFETY: SIOCGIFHWADDR has filled in this member.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|at| address[at] as u8))
}

pub(super) fn set_mac(socket: &OwnedFd, name: &str, mac: [u8; 6]) -> io::Result<()> {
    let mut request = request(name)?;
    let mut sa_data = [0; 14];
    for (slot, byte) in sa_data.iter_mut().zip(mac) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data };
    ifreq_ioctl(socket, libc::SIOCSIFHWADDR, &mut request)
}

/// Adds an address to the interface.
pub(super) fn add_address(socket: &OwnedFd, name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
    match address {
        IpAddr::V4(address) => {
            let mut request = request(name)?;
            request.ifr_ifru.ifru_addr = ipv4_sockaddr(address);
            ifreq_ioctl(socket, libc::SIOCSIFADDR, &mut request)?;
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            request.ifr_ifru.ifru_netmask = ipv4_sockaddr(Ipv4Addr::from(mask));
            ifreq_ioctl(socket, libc::SIOCSIFNETMASK, &mut request)
        }
        // Nobody else is on the wire, whom the kernel would have to ask first.
        IpAddr::V6(address) => match interface::add_ipv6_address(index(name)?, address, prefix) {
            // An interface that was there before has it.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            added => added,
        },
    }
}

/// A `sockaddr_in` with port 0, in the clothes of a `sockaddr`: two bytes of port, then the address.
fn ipv4_sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    let mut sa_data = [0; 14];
    for (slot, byte) in sa_data[2..6].iter_mut().zip(address.octets()) {
        *slot = byte as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data }
}
