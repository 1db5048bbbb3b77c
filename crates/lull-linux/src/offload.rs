//! Offloads of a device that decide what a NAPI sees: GRO on the receiver, TSO on the sender (`SIOCETHTOOL`).
//!
//! A veth has no NAPI of its own without GRO, and what arrives from a sender with TSO carries no NAPI id.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{Error, Result};

/// `SIOCETHTOOL` (`linux/sockios.h`).
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// An offload that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Generic receive offload.
    Gro,
    /// TCP segmentation offload.
    Tso,
}

impl Offload {
    /// The number of the command that sets it: `ETHTOOL_SGRO`, `ETHTOOL_STSO`.
    fn command(self) -> u32 {
        match self {
            Offload::Gro => 0x2c,
            Offload::Tso => 0x1f,
        }
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Turns an offload of a device of this thread's network namespace on or off.
///
/// # Errors
/// There is no such device, no right, or the driver cannot do it.
pub fn set(device: &str, offload: Offload, on: bool) -> Result<()> {
    let verb = if on { "on" } else { "off" };
    set_raw(device, offload, on).map_err(|error| {
        Error::os(format!("turn {offload:?} {verb} on {device}"), "the driver does not let it be changed", error)
    })
}

fn set_raw(device: &str, offload: Offload, on: bool) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut value = Value { command: offload.command(), data: u32::from(on) };
    // SAFETY: this is a C structure of integers and pointers, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request names a device and points to a value that outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
