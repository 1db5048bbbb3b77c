//! ICMP errors about datagrams that a socket has sent. If it asks for them (IP_RECVERR, IPV6_RECVERR), they are kept
//! for it to read, with what came back of the datagram (`ip_icmp_error`). If it does not, only a socket with a peer
//! hears of an error, by its next call.

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};

use super::error::NetError;
use super::flow::Owner;
use super::quoted::{Quoted, Report};
use super::socket::{Ready, SocketId};
use super::stack::{Io, Stack};
use super::udp_socket::Kept;
use super::wire;

/// How many errors a socket keeps that it has not read; what comes beyond is lost, as beyond SO_RCVBUF (`sock_queue_err_skb`).
const ERRORS_MAX: usize = 64;

/// An error that a socket has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedError {
    /// What it means to the socket.
    pub error: NetError,
    /// The type of the ICMP message.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The MTU in bytes, where the datagram was longer; else 0.
    pub info: u32,
    /// Who sent the message.
    pub offender: IpAddr,
    /// The own address that the message came to.
    pub own: IpAddr,
    /// What the message's IP header said: DSCP and ECN (IP_RECVTOS, IPV6_RECVTCLASS).
    pub traffic_class: u8,
    /// What the message's IP header said: how many hops were left (IP_RECVTTL, IPV6_RECVHOPLIMIT).
    pub hop_limit: u8,
    /// Where the datagram was sent to.
    pub to: SocketAddr,
    /// Bytes of the datagram that were copied out.
    pub bytes: usize,
    /// Bytes of the datagram that came back. More than `bytes`: the rest is lost (`MSG_TRUNC`).
    pub datagram_bytes: usize,
    /// How long ago the stack took it in, in nanoseconds.
    pub waited_ns: u64,
}

impl Stack {
    /// Whether the socket keeps what ICMP says of its datagrams, over IPv4 and over IPv6 (`IP_RECVERR`,
    /// `IPV6_RECVERR`). Errors that were kept are lost when both are off.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn udp_set_receive_errors(&mut self, id: SocketId, takes: [bool; 2]) -> Result<(), NetError> {
        let socket = self.udp_mut(id)?;
        match takes {
            [false, false] => socket.errors = None,
            _ => socket.errors.get_or_insert_default().takes = takes,
        }
        Ok(())
    }

    /// Takes the oldest error that the socket has kept, and what came back of the datagram into several buffers in turn
    /// (`MSG_ERRQUEUE`). The next call that does something else is told the next of them, if there is one (`sock_dequeue_err_skb`).
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: there is none. [`NetError::InvalidSocket`].
    pub fn udp_recv_error(
        &mut self,
        id: SocketId,
        buffers: &mut [IoSliceMut<'_>],
        io: &mut Io<'_>,
    ) -> Result<ReceivedError, NetError> {
        let socket = self.udp_mut(id)?;
        let kept = socket.errors.as_mut().and_then(|errors| errors.kept.pop_front());
        let Kept { report, to, data, came_ns } = kept.ok_or(NetError::WouldBlock)?;
        socket.error = socket.errors.as_ref().and_then(|errors| errors.kept.front()).map(|next| next.report.error);
        if socket.error.is_some() {
            let ready = socket.ready();
            self.notify(id, ready, Ready::ERR, io);
        }
        let mut rest = &data[..];
        for buffer in buffers.iter_mut() {
            let (first, behind) = rest.split_at(buffer.len().min(rest.len()));
            buffer[..first.len()].copy_from_slice(first);
            rest = behind;
        }
        let Report { error, kind, code, info, offender, own, traffic_class, hop_limit } = report;
        Ok(ReceivedError {
            error,
            kind,
            code,
            info,
            offender,
            own,
            traffic_class,
            hop_limit,
            to,
            bytes: data.len() - rest.len(),
            datagram_bytes: data.len(),
            waited_ns: io.now_ns.saturating_sub(came_ns),
        })
    }

    /// An error about a datagram of ours. A socket with a peer hears of a hard one in any case (`__udp4_lib_err`).
    /// Returns false if nobody here takes it.
    pub(super) fn udp_icmp(&mut self, quoted: &Quoted<'_>, report: Report, hard: bool, io: &mut Io<'_>) -> bool {
        let (own, to) = (quoted.flow.local(), quoted.flow.remote());
        let connected = match self.flows.get(&quoted.flow) {
            Some(&Owner::Udp(index)) => Some(index),
            _ => None,
        };
        let index = connected.or_else(|| self.udp_ports.find(own.ip(), own.port(), |_| 0, || 0));
        let Some((index, socket)) = index.and_then(|index| Some((index, self.udps.get_mut(index)?))) else {
            return false;
        };
        if socket.takes_errors(to.is_ipv6()) {
            let kept = &mut socket.errors.get_or_insert_default().kept;
            if kept.len() < ERRORS_MAX {
                let data = quoted.transport.get(wire::UDP..).unwrap_or_default().to_vec();
                kept.push_back(Kept { report, to, data, came_ns: io.now_ns });
            }
        } else if !hard || connected.is_none() {
            return false;
        }
        self.udp_error(index, report.error, io);
        true
    }
}
