//! A message, and where it is read to.

use std::io::IoSliceMut;

use libc::c_int;

use crate::address::Name;
use crate::{Result, kernel};

/// Where a message is written to.
pub struct Room<'a, 'b> {
    /// Where the message's bytes go.
    pub buffers: &'a mut [IoSliceMut<'b>],
    /// Where the message's ancillary data go.
    pub control: &'a mut [u8],
}

/// What is known of a message that was read.
#[derive(Default)]
pub struct Message {
    /// What the call returns: how many bytes were read, or with MSG_TRUNC how many there were.
    pub bytes: usize,
    /// The sender's address.
    pub from: Name,
    /// How many bytes of ancillary data were written.
    pub control_bytes: usize,
    /// MSG_TRUNC and MSG_CTRUNC, where they apply.
    pub flags: c_int,
}

/// A datagram of the kernel's, if one waits.
pub(crate) fn kernels(fd: c_int, room: &mut Room<'_, '_>, flags: c_int) -> Result<Message> {
    let got = kernel::recvmsg(fd, room.buffers, room.control, flags | libc::MSG_DONTWAIT)?;
    Ok(Message { bytes: got.bytes, from: Name::Kernels(got.from), control_bytes: got.control_bytes, flags: got.flags })
}
