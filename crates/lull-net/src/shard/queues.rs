//! What is known of a connection: what lies in its queues, and how far it is.

use smoltcp::socket::tcp::State;

use super::agreed::SACK;
use super::connection::Phase;
use super::error::NetError;
use super::sender::Sender;
use super::socket::SocketId;
use super::stack::Stack;
use super::wire;

/// What is known of a connection (TCP_INFO). Not known is what only a count of every segment could tell, and what
/// smoltcp keeps to itself: its retransmission timer, and its congestion window once something was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// Its state by its RFC 9293 name.
    pub state: &'static str,
    /// Both ends send timestamps (RFC 7323).
    pub timestamps: bool,
    /// Both ends take selective acknowledgements.
    pub sack: bool,
    /// What our window is shifted by.
    pub rcv_scale: u8,
    /// What the peer's window is shifted by.
    pub snd_scale: u8,
    /// Bytes that were written and never sent, with the FIN.
    pub unsent: usize,
    /// Bytes that are on their way to the peer.
    pub in_flight: usize,
    /// How long ago its last segment came, in nanoseconds.
    pub heard_ns: u64,
    /// The smoothed round trip in microseconds (RFC 6298 section 2); 0 before the first.
    pub rtt_us: u32,
    /// How far round trips lie from the smoothed one, in microseconds; 0 before the first.
    pub rtt_var_us: u32,
    /// Times that something was sent again.
    pub retransmits: u32,
    /// What a segment to the peer carries, at most.
    pub snd_mss: usize,
    /// What our SYN says that a segment to us may carry.
    pub advertised_mss: usize,
    /// What a packet to the peer may have.
    pub path_mtu: usize,
    /// Bytes that may be on their way by the congestion window, as long as nothing was lost.
    pub congestion_window: Option<usize>,
    /// The receive buffer, in bytes.
    pub receive_buffer: usize,
    /// The peer's window, in bytes.
    pub snd_window: usize,
    /// Our window as it was offered last, in bytes.
    pub rcv_window: usize,
}

impl Stack {
    /// What is known of a connection.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_info(&self, id: SocketId, now_ns: u64) -> Result<TcpInfo, NetError> {
        let connection = self.connection(id)?;
        let socket = connection.socket();
        let path_mtu = if connection.path_mtu != 0 { usize::from(connection.path_mtu) } else { self.config.mtu_bytes };
        let header = if connection.flow.remote().is_ipv6() { wire::IPV6 } else { wire::IPV4 } + wire::TCP;
        // The peer's does not count the options either (RFC 6691).
        let peers = usize::from(connection.peer_mss & !SACK) + header;
        let option = path_mtu - header - self.segment_bytes(id.index());
        Ok(TcpInfo {
            state: self.tcp_state(id)?,
            timestamps: connection.timestamps.is_some(),
            sack: connection.peer_mss & SACK != 0,
            rcv_scale: connection.rcv_scale(),
            snd_scale: connection.scales >> 4,
            unsent: self.tcp_unsent(id)?,
            in_flight: connection.snd_nxt.wrapping_sub(connection.snd_una) as usize,
            heard_ns: now_ns.saturating_sub(connection.heard_ns),
            rtt_us: connection.rtt_us,
            rtt_var_us: connection.rtt_var_us(),
            retransmits: connection.retransmits.into(),
            snd_mss: path_mtu.min(peers).saturating_sub(header + option).max(1),
            advertised_mss: self.config.mtu_bytes - header,
            path_mtu,
            congestion_window: match connection.sender().and_then(Sender::congestion_window) {
                Some(window) => Some(window as usize),
                None => (!connection.has_congestion_window()).then(|| socket.send_capacity()),
            },
            receive_buffer: socket.recv_capacity(),
            snd_window: connection.peer_window_bytes(),
            rcv_window: usize::from(connection.rcv_window) << connection.rcv_scale(),
        })
    }

    /// Bytes that a read would give now (`FIONREAD`).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_unread(&self, id: SocketId) -> Result<usize, NetError> {
        Ok(self.connection(id)?.socket().recv_queue())
    }

    /// Bytes that were written and not acknowledged yet, with the FIN (`SIOCOUTQ`: `write_seq - snd_una`).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_unacknowledged(&self, id: SocketId) -> Result<usize, NetError> {
        let connection = self.connection(id)?;
        if connection.phase != Phase::Open {
            return Ok(0);
        }
        let socket = connection.socket();
        let fin =
            matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck) || connection.is_to_finish();
        Ok(socket.send_queue() + connection.kept_bytes() + usize::from(fin))
    }

    /// Bytes that were written and not sent yet, with the FIN (`SIOCOUTQNSD`: `write_seq - snd_nxt`). Linux probes a closed
    /// window without sending anything new (`tcp_xmit_probe_skb`); smoltcp probes with the next byte, which is not counted.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_unsent(&self, id: SocketId) -> Result<usize, NetError> {
        let connection = self.connection(id)?;
        let in_flight = match connection.peer_window {
            0 => 0,
            _ => connection.snd_nxt.wrapping_sub(connection.snd_una) as usize,
        };
        Ok(self.tcp_unacknowledged(id)?.saturating_sub(in_flight))
    }
}
