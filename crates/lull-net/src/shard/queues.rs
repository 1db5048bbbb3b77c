//! What is known of a connection: what lies in its queues, and how far it is.

use smoltcp::socket::tcp::State;

use super::connection::Phase;
use super::error::NetError;
use super::socket::SocketId;
use super::stack::Stack;

/// What is known of a connection (TCP_INFO). smoltcp tells neither its round-trip time nor its congestion window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// Its state by its RFC 9293 name.
    pub state: &'static str,
    /// Both ends send timestamps (RFC 7323).
    pub timestamps: bool,
    /// What our window is shifted by.
    pub rcv_scale: u8,
    /// Bytes that were written and never sent, with the FIN.
    pub unsent: usize,
    /// How long ago its last segment came, in nanoseconds.
    pub heard_ns: u64,
}

impl Stack {
    /// What is known of a connection.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_info(&self, id: SocketId, now_ns: u64) -> Result<TcpInfo, NetError> {
        let connection = self.connection(id)?;
        Ok(TcpInfo {
            state: self.tcp_state(id)?,
            timestamps: connection.timestamps.is_some(),
            rcv_scale: connection.rcv_scale(),
            unsent: self.tcp_unsent(id)?,
            heard_ns: now_ns.saturating_sub(connection.heard_ns),
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
