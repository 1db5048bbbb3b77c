//! What lies in a connection's queues.

use smoltcp::socket::tcp::State;

use super::connection::Phase;
use super::error::NetError;
use super::socket::SocketId;
use super::stack::Stack;

impl Stack {
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
        let fin = matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
        Ok(socket.send_queue() + usize::from(fin))
    }

    /// Bytes that were written and not sent yet, with the FIN (`SIOCOUTQNSD`: `write_seq - snd_nxt`).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_unsent(&self, id: SocketId) -> Result<usize, NetError> {
        let connection = self.connection(id)?;
        let in_flight = connection.snd_nxt.wrapping_sub(connection.snd_una) as usize;
        Ok(self.tcp_unacknowledged(id)?.saturating_sub(in_flight))
    }
}
