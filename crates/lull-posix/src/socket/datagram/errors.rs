//! IP_RECVERR, IPV6_RECVERR: what ICMP says of a socket's datagrams, read with MSG_ERRQUEUE.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libc::c_int;
use lull_net::ReceivedError;

use super::control::{Writer, is_on};
use super::{Datagram, Message, Room, Sockets};
use crate::address::{Bytes, Name as Address};
use crate::socket::options::Name;
use crate::{Errno, Result};

/// The options for IPv4 and for IPv6.
const NAMES: [Name; 2] = [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];

/// Whether an option is one of them.
pub(super) fn concerns(name: Name) -> bool {
    NAMES.contains(&name)
}

/// Puts in force what was set on the placeholder.
pub(super) fn put(fd: c_int, sockets: &Sockets) {
    let [v4, v6] = NAMES.map(|name| is_on(fd, name));
    sockets.set_receive_errors(v4, v6);
}

impl Datagram {
    /// Reads an error. With it come as much of the datagram as was sent back, and the address that it had been sent to
    /// (`ip_recv_error`, `ipv6_recv_error`).
    pub(super) fn receive_error(&self, room: &mut Room<'_, '_>) -> Result<Message> {
        let received = self.sockets.receive_error(room.buffers)?;
        let mut writer = Writer::new(room.control);
        self.wanted.write_timestamp(received.waited_ns, &mut writer);
        let header = (received.traffic_class, received.hop_limit);
        // Which address an answer comes from is of the data that came (`ipv4_pktinfo_prepare`).
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.wanted.write_header((received.own, nobody), header, &mut writer);
        let (level, name) = NAMES[usize::from(self.domain == libc::AF_INET6)];
        writer.put(level, name, &extended(&received, self.domain));
        let cut = if received.datagram_bytes > received.bytes { libc::MSG_TRUNC } else { 0 };
        Ok(Message {
            bytes: received.bytes,
            from: Address::Lulls(Bytes::new(received.to, self.domain)),
            control_bytes: writer.used,
            flags: writer.flags | cut | libc::MSG_ERRQUEUE,
        })
    }
}

/// `sock_extended_err`, with the address of the host that sent the message.
fn extended(received: &ReceivedError, domain: c_int) -> Vec<u8> {
    let error = Errno::from(io::Error::from(received.error)).number() as u32;
    let origin = if received.offender.is_ipv4() { libc::SO_EE_ORIGIN_ICMP } else { libc::SO_EE_ORIGIN_ICMP6 };
    let [errno, info, data] = [error, received.info, 0].map(u32::to_ne_bytes);
    let offender = Bytes::new(SocketAddr::new(received.offender, 0), domain);
    [&errno[..], &[origin, received.kind, received.code, 0], &info, &data, &offender].concat()
}
