//! The application's calls that set options of sockets or ask about them.

use std::net::SocketAddr;

use smoltcp::socket::tcp::State;

use super::config::Timeouts;
use super::connection::{Flags, Phase, timeout_ms};
use super::error::NetError;
use super::socket::{Keepalive, Ready, SocketId, SocketKind};
use super::stack::{Io, Stack};

impl Stack {
    /// Turns Nagle's algorithm off or on (`TCP_NODELAY`). Off sends at once what it held back.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_nodelay(&mut self, id: SocketId, nodelay: bool, io: &mut Io<'_>) -> Result<(), NetError> {
        let connection = self.connection_mut(id)?;
        connection.flags.set(Flags::NODELAY, nodelay);
        if nodelay {
            // This is an explicit push, which overrides TCP_CORK for what is there (`__tcp_sock_set_nodelay`).
            connection.push_kept();
        }
        self.let_go(id, io);
        self.repump(id, io);
        Ok(())
    }

    /// Whether Nagle's algorithm is off.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn nodelay(&self, id: SocketId) -> Result<bool, NetError> {
        Ok(self.connection(id)?.flags.contains(Flags::NODELAY))
    }

    /// Probes the connection while it is idle (`SO_KEEPALIVE`), or not.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: a time or the count is 0.
    pub fn set_keepalive(
        &mut self,
        id: SocketId,
        keepalive: Option<Keepalive>,
        io: &mut Io<'_>,
    ) -> Result<(), NetError> {
        if keepalive.is_some_and(|k| k.idle_ns == 0 || k.interval_ns == 0 || k.probes == 0) {
            return Err(NetError::Invalid);
        }
        let connection = self.connection_mut(id)?;
        connection.asked_mut().keepalive = keepalive;
        connection.flags.remove(Flags::PROBING);
        connection.socket_mut().set_keep_alive(None);
        self.repump(id, io);
        Ok(())
    }

    /// Gives up when sent data, or a SYN, stays unacknowledged for so long, in nanoseconds (`TCP_USER_TIMEOUT`), even if the peer
    /// is alive and only refuses to read. `None`: the stack's default, which a peer that answers puts off.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: 0.
    pub fn set_user_timeout(&mut self, id: SocketId, timeout_ns: Option<u64>, io: &mut Io<'_>) -> Result<(), NetError> {
        if timeout_ns == Some(0) {
            return Err(NetError::Invalid);
        }
        let Timeouts { user_timeout_ns, syn_sent_ns, .. } = self.config.timeouts;
        let connection = self.connection_mut(id)?;
        connection.asked_mut().own_timeout = timeout_ns.is_some();
        connection.user_timeout_ms = timeout_ms(timeout_ns.unwrap_or(user_timeout_ns));
        if connection.phase == Phase::SynSent {
            // Not before the SYN was due to be sent again (`retransmits_timed_out`).
            const FIRST_RETRY_NS: u64 = 1_000_000_000;
            let wait_ns = timeout_ns.map_or(syn_sent_ns, |timeout_ns| syn_sent_ns.min(timeout_ns.max(FIRST_RETRY_NS)));
            connection.expires(connection.progress_ns.saturating_add(wait_ns));
        }
        self.repump(id, io);
        Ok(())
    }

    /// Makes closing a reset (`SO_LINGER` on, with 0 seconds), or not.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_reset_on_close(&mut self, id: SocketId, reset: bool) -> Result<(), NetError> {
        self.connection_mut(id)?.asked_mut().reset_on_close = reset;
        Ok(())
    }

    /// Makes a connection readable from so many bytes on (`SO_RCVLOWAT`, `tcp_set_rcvlowat`), half its buffer at the most.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_low_water(&mut self, id: SocketId, bytes: u32, io: &mut Io<'_>) -> Result<(), NetError> {
        let connection = self.connection_mut(id)?;
        let bytes = bytes.min((connection.socket().recv_capacity() / 2) as u32);
        connection.flags.set(Flags::LOW_WATER, bytes > 1);
        connection.asked_mut().low_water = bytes;
        // What is there may be enough now, so waiters are told, whatever was enough before (`tcp_data_ready`).
        self.announce(id.index(), true, io);
        Ok(())
    }

    pub(super) fn repump(&mut self, id: SocketId, io: &mut Io<'_>) {
        if self.connections.get(id.index()).is_some_and(|connection| connection.phase != Phase::Over) {
            self.pump(id.index(), false, io);
        }
    }

    /// Receive and transmit buffer of a connection, in bytes: what [`ListenOptions`](super::ListenOptions),
    /// [`ConnectOptions`](super::ConnectOptions) or [`Stack::set_receive_buffer`] asked for, or else what they have grown to
    /// ([`BufferGrowth`](super::BufferGrowth)).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn buffer_sizes(&self, id: SocketId) -> Result<(usize, usize), NetError> {
        let socket = self.connection(id)?.socket();
        Ok((socket.recv_capacity(), socket.send_capacity()))
    }

    /// Takes the socket's error (`SO_ERROR`): the one that ended it, else one that only slowed it down.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn take_error(&mut self, id: SocketId) -> Result<Option<NetError>, NetError> {
        match id.kind() {
            SocketKind::Tcp => {
                let connection = self.connection_mut(id)?;
                connection.ready.remove(Ready::ERR);
                Ok(connection.error.take().or_else(|| connection.take_soft_error()))
            }
            SocketKind::Listener => self.listener_mut(id).map(|_| None),
            SocketKind::Udp => self.udp_take_error(id),
        }
    }

    /// The socket's own address. The IP address is unspecified for one that takes packets to any.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn local_addr(&self, id: SocketId) -> Result<SocketAddr, NetError> {
        match id.kind() {
            SocketKind::Tcp => Ok(self.connection(id)?.flow.local()),
            SocketKind::Listener => Ok(self.listener(id)?.local),
            SocketKind::Udp => self.udp_local(id),
        }
    }

    /// The peer's address.
    ///
    /// # Errors
    /// [`NetError::NotConnected`]: there is none (any more).
    pub fn peer_addr(&self, id: SocketId) -> Result<SocketAddr, NetError> {
        match id.kind() {
            SocketKind::Tcp => {
                let connection = self.connection(id)?;
                match connection.phase {
                    Phase::Open => Ok(connection.flow.remote()),
                    _ => Err(NetError::NotConnected),
                }
            }
            SocketKind::Listener => Err(NetError::NotConnected),
            SocketKind::Udp => self.udp_peer(id),
        }
    }

    /// What the socket is ready for now.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn ready(&self, id: SocketId) -> Result<Ready, NetError> {
        match id.kind() {
            SocketKind::Tcp => Ok(self.connection(id)?.readiness()),
            SocketKind::Listener => Ok(self.listener(id)?.ready),
            SocketKind::Udp => self.udp_ready(id),
        }
    }

    /// How many established connections may wait to be accepted from now on (a second `listen`).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_backlog(&mut self, id: SocketId, backlog: usize) -> Result<(), NetError> {
        self.listener_mut(id)?.options.backlog = backlog;
        Ok(())
    }

    /// State of a connection by its RFC 9293 name, for tables and traces.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_state(&self, id: SocketId) -> Result<&'static str, NetError> {
        let connection = self.connection(id)?;
        Ok(match (connection.phase, connection.socket().state()) {
            (Phase::Over, _) => "CLOSED",
            (_, State::Closed) => "CLOSED",
            (_, State::Listen) => "LISTEN",
            (_, State::SynSent) => "SYN-SENT",
            (_, State::SynReceived) => "SYN-RECEIVED",
            (_, State::Established) if connection.is_to_finish() => "FIN-WAIT-1",
            (_, State::Established) => "ESTABLISHED",
            (_, State::FinWait1) => "FIN-WAIT-1",
            (_, State::FinWait2) => "FIN-WAIT-2",
            (_, State::CloseWait) if connection.is_to_finish() => "LAST-ACK",
            (_, State::CloseWait) => "CLOSE-WAIT",
            (_, State::Closing) => "CLOSING",
            (_, State::LastAck) => "LAST-ACK",
            (_, State::TimeWait) => "TIME-WAIT",
        })
    }
}
