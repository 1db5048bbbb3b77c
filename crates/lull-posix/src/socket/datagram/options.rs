//! Options of UDP sockets. The placeholder is itself a UDP socket, and keeps them.

use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;

use super::{Datagram, control, errors, path_mtu};
use crate::socket::options::egress::{self, Egress};
use crate::socket::options::{BUSY, Name, buffers, int, steer};
use crate::{Errno, Result, kernel};

/// Options that change what is sent, which lull's half would not do.
const REFUSED: [Name; 1] = [(libc::SOL_UDP, libc::UDP_ENCAP)];

/// Options that ask for what lull's half never has: groups, and ancillary data that nobody fills in. A socket in both
/// worlds gets them from the kernel's half. For one that is lull's alone, to accept them would deceive the program.
const KERNELS_ALONE: [Name; 16] = [
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::SOL_IP, libc::IP_ADD_MEMBERSHIP),
    (libc::SOL_IP, libc::IP_ADD_SOURCE_MEMBERSHIP),
    (libc::SOL_IP, libc::IP_RECVOPTS),
    (libc::SOL_IP, libc::IP_RETOPTS),
    (libc::SOL_IP, libc::IP_RECVORIGDSTADDR),
    (libc::SOL_IP, libc::IP_TRANSPARENT),
    (libc::SOL_IP, libc::IP_OPTIONS),
    (libc::SOL_IP, libc::IP_HDRINCL),
    (libc::SOL_IPV6, libc::IPV6_ADD_MEMBERSHIP),
    (libc::SOL_IPV6, IPV6_2292PKTINFO),
    (libc::SOL_IPV6, IPV6_2292PKTOPTIONS),
    (libc::SOL_IPV6, IPV6_2292HOPLIMIT),
    (libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR),
    (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    (libc::SOL_IPV6, libc::IPV6_RECVPATHMTU),
];

/// These are named as in RFC 2292, and the libc crate does not have them.
const IPV6_2292PKTINFO: c_int = 2;
const IPV6_2292PKTOPTIONS: c_int = 6;
const IPV6_2292HOPLIMIT: c_int = 8;

impl Datagram {
    pub(in crate::socket) fn set_option(&self, fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        if REFUSED.contains(&(level, name)) || !self.wildcard.load(Relaxed) && KERNELS_ALONE.contains(&(level, name)) {
            return Err(Errno::new(libc::EOPNOTSUPP));
        }
        if steer::steers(level, name) {
            let program = steer::asked((level, name), value)?;
            if program.is_some() {
                kernel::setsockopt(fd, level, name, value)?;
            }
            return self.sockets.steer(program.as_ref());
        }
        kernel::setsockopt(fd, level, name, value)?;
        match (level, name) {
            (libc::SOL_UDP, libc::UDP_CORK) => self.set_cork(int(value)? != 0),
            (libc::SOL_UDP, libc::UDP_GRO) => self.sockets.set_gro(int(value)? != 0)?,
            // The kernel has checked that the value is as small as that.
            (libc::SOL_UDP, libc::UDP_SEGMENT) => self.each_bytes.store(int(value)? as u16, Relaxed),
            _ => {}
        }
        if BUSY.contains(&(level, name)) {
            self.sockets.set_busy((level, name), int(value)?);
        }
        if egress::concerns((level, name)) {
            self.sockets.put_egress(Egress::of_placeholder(fd));
        }
        if buffers::is_read_as((level, name)) == buffers::RECEIVE {
            self.sockets.set_receive_buffer(buffers::receive_buffer(fd));
        }
        if path_mtu::concerns((level, name)) {
            path_mtu::put(fd, &self.sockets);
        }
        if control::concerns((level, name)) {
            self.wanted.renew(fd);
        }
        if errors::concerns((level, name)) {
            errors::put(fd, &self.sockets);
        }
        self.options.acted().set(level, name, value, None).unwrap_or(Ok(()))
    }

    /// The value of an option that the placeholder does not know.
    pub(in crate::socket) fn option(&self, fd: c_int, level: c_int, name: c_int) -> Option<Result<c_int>> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => Some(match self.sockets.take_error() {
                Ok(Some(error)) => Ok(error.number()),
                Ok(None) => kernel::int_option(fd, level, name),
                Err(error) => Err(error),
            }),
            (libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID) => Some(Ok(self.sockets.first().incoming_napi_id() as c_int)),
            (libc::SOL_IP, libc::IP_MTU) | (libc::SOL_IPV6, libc::IPV6_MTU) if self.has_peer() => {
                Some(self.sockets.first().path_mtu().map(|bytes| bytes as c_int).map_err(Errno::from))
            }
            _ => None,
        }
    }
}
