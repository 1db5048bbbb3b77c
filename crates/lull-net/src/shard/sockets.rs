//! The application's calls: reading, writing, closing.

use std::io::{IoSlice, IoSliceMut};

use super::connection::{Connection, Flags, Phase, timeout_ms};
use super::error::NetError;
use super::listener::Listener;
use super::socket::{Ready, Shutdown, SocketId, SocketKind};
use super::stack::{Io, Stack};

impl Stack {
    /// Reads. 0 means that the peer will send no more, or that `buffer` is empty.
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: nothing there yet. Otherwise the connection's error, once.
    pub fn tcp_recv(&mut self, id: SocketId, buffer: &mut [u8], io: &mut Io<'_>) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        let taken = connection.take(buffer);
        self.after_recv(id, taken, buffer.is_empty(), io)
    }

    /// Reads into several buffers in turn (`readv`).
    ///
    /// # Errors
    /// Those of [`Stack::tcp_recv`].
    pub fn tcp_recv_vectored(
        &mut self,
        id: SocketId,
        buffers: &mut [IoSliceMut<'_>],
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        let mut taken = 0;
        for buffer in buffers.iter_mut() {
            let count = connection.take(buffer);
            taken += count;
            if count < buffer.len() {
                break;
            }
        }
        let no_room = buffers.iter().all(|buffer| buffer.is_empty());
        self.after_recv(id, taken, no_room, io)
    }

    fn after_recv(&mut self, id: SocketId, taken: usize, no_room: bool, io: &mut Io<'_>) -> Result<usize, NetError> {
        let index = id.index();
        let connection = self.connection_mut(id)?;
        if taken == 0 {
            if no_room {
                return Ok(0);
            }
            if let Some(error) = connection.take_reading_error() {
                return Err(error);
            }
            // `RDHUP` is exactly the end of the stream; before the handshake there is none.
            return if connection.readiness().contains(Ready::RDHUP) { Ok(0) } else { Err(NetError::WouldBlock) };
        }
        connection.consumed = connection.consumed.saturating_add(taken as u32);
        let socket = connection.socket();
        // The window is worth an update when it has opened by half the buffer or a full segment (RFC 9293 section
        // 3.8.6.2.2); until then smoltcp need not be asked.
        const SEGMENT_BYTES: usize = 1460;
        let worth = connection.consumed as usize >= SEGMENT_BYTES.min(socket.recv_capacity() / 2);
        let drained = !connection.is_readable();
        let is_open = connection.phase == Phase::Open;
        let resizes = connection.asks(|asked| asked.growth.resizes_to_receive(worth)) && socket.recv_queue() == 0;
        if resizes {
            // This comes before the peer is told of the room that there is now.
            self.settle_receive_buffer(index, taken, io);
        }
        if is_open && worth {
            self.pump(index, false, io);
        }
        if resizes {
            self.grow_to_receive(index, io);
        }
        if drained {
            let Some(connection) = self.connections.get_mut(index) else { return Ok(taken) };
            if !connection.ready.contains(Ready::RDHUP) {
                connection.ready.remove(Ready::READABLE);
            }
            self.has_read(id, io);
        }
        Ok(taken)
    }

    /// Reads without removing (`MSG_PEEK`).
    ///
    /// # Errors
    /// Those of [`Stack::tcp_recv`]; an error is taken too.
    pub fn tcp_peek(&mut self, id: SocketId, buffer: &mut [u8]) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        match connection.socket_mut().peek_slice(buffer) {
            Ok(count) if count > 0 || buffer.is_empty() => return Ok(count),
            _ => {}
        }
        if let Some(error) = connection.take_reading_error() {
            return Err(error);
        }
        if connection.readiness().contains(Ready::RDHUP) { Ok(0) } else { Err(NetError::WouldBlock) }
    }

    /// Writes; what fits the transmit buffer. One poll of the protocol sends it.
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: the buffer is full, or the connection is not established yet.
    /// [`NetError::BrokenPipe`]: writing is shut down or the connection over. Otherwise the connection's error, once.
    pub fn tcp_send(&mut self, id: SocketId, data: &[u8], io: &mut Io<'_>) -> Result<usize, NetError> {
        let connection = self.may_send(id)?;
        if connection.flags.contains(Flags::CORKED) || connection.has_room_beyond_its_buffer(data.len()) {
            return self.send_corked(id, &[IoSlice::new(data)], false, io);
        }
        let outstanding = connection.outstanding();
        let sent = connection.put(data);
        self.after_send(id, sent, outstanding, data.is_empty(), io)
    }

    /// Writes several buffers as if they were one (`writev`): they leave in the same segments.
    ///
    /// # Errors
    /// Those of [`Stack::tcp_send`].
    pub fn tcp_send_vectored(
        &mut self,
        id: SocketId,
        data: &[IoSlice<'_>],
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let connection = self.may_send(id)?;
        let all = data.iter().map(|part| part.len()).sum();
        if connection.flags.contains(Flags::CORKED) || connection.has_room_beyond_its_buffer(all) {
            return self.send_corked(id, data, false, io);
        }
        let outstanding = connection.outstanding();
        let mut sent = 0;
        for part in data {
            let count = connection.put(part);
            sent += count;
            if count < part.len() {
                break;
            }
        }
        self.after_send(id, sent, outstanding, data.iter().all(|part| part.is_empty()), io)
    }

    #[inline]
    pub(super) fn may_send(&mut self, id: SocketId) -> Result<&mut Connection, NetError> {
        let connection = self.connection_mut(id)?;
        if let Some(error) = connection.error.take() {
            connection.ready.remove(Ready::ERR);
            return Err(error);
        }
        match connection.phase {
            _ if connection.flags.contains(Flags::WRITE_SHUT) => Err(NetError::BrokenPipe),
            Phase::Over => Err(NetError::BrokenPipe),
            Phase::SynSent => Err(NetError::WouldBlock),
            Phase::Open => Ok(connection),
        }
    }

    #[inline]
    pub(super) fn after_send(
        &mut self,
        id: SocketId,
        sent: usize,
        outstanding: bool,
        nothing: bool,
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        if sent == 0 {
            connection.ready = connection.readiness();
            return if nothing { Ok(0) } else { Err(NetError::WouldBlock) };
        }
        if !outstanding {
            connection.progress_ns = io.now_ns;
        }
        self.answer_goes(id.index(), io.now_ns);
        if !self.hold_back(id, sent, io) {
            self.pump(id.index(), true, io);
        }
        let connection = self.connection_mut(id)?;
        if connection.socket().send_queue() * 3 > connection.room_at_first(connection.socket()) * 2 {
            connection.ready.remove(Ready::WRITABLE);
        }
        Ok(sent)
    }

    /// Shuts down one or both directions. A listener that is shut down for reading takes no more connections, and those that
    /// nobody has accepted go to another stack that listens there, or are reset; its port is free. A connection that is not
    /// established yet is given up: it is over, with [`NetError::ConnectionReset`].
    ///
    /// # Errors
    /// [`NetError::NotConnected`]: the connection is over; or a UDP socket without a peer.
    pub fn shutdown(&mut self, id: SocketId, how: Shutdown, io: &mut Io<'_>) -> Result<(), NetError> {
        if how == Shutdown::Read {
            self.let_go(id, io);
        }
        match id.kind() {
            SocketKind::Listener => {
                let listener = self.listener_mut(id)?;
                if how == Shutdown::Write {
                    // `inet_shutdown` calls sk_state_change whatever it has done.
                    let ready = listener.ready;
                    if !ready.is_empty() {
                        self.notify(id, ready, ready, io);
                    }
                    return Ok(());
                }
                listener.stopped = true;
                // `tcp_disconnect`: from now on it is as one that was never connected (`tcp_poll`).
                let ready = Ready::WRITABLE | Ready::HUP;
                let edges = ready - listener.ready;
                listener.ready = ready;
                let port = listener.local.port();
                self.listener_ports.unbind(port, id.index());
                self.leave_children(id, io);
                if !edges.is_empty() {
                    self.notify(id, ready, edges, io);
                }
                Ok(())
            }
            SocketKind::Udp => self.udp_shutdown(id, how, io),
            SocketKind::Tcp => {
                let connection = self.connection_mut(id)?;
                match connection.phase {
                    Phase::Open => {}
                    // It is given up (`tcp_disconnect`); a peer that answers later is told so.
                    Phase::SynSent => {
                        self.over(id.index(), Some(NetError::ConnectionReset), io);
                        return Ok(());
                    }
                    Phase::Over => {
                        self.renew(id, io);
                        return Err(NetError::NotConnected);
                    }
                }
                if how != Shutdown::Write {
                    connection.flags.insert(Flags::READ_SHUT);
                }
                if how != Shutdown::Read && !connection.flags.contains(Flags::WRITE_SHUT) {
                    connection.flags.insert(Flags::WRITE_SHUT);
                    connection.push_kept();
                    if !connection.outstanding() {
                        connection.progress_ns = io.now_ns;
                    }
                    connection.finish();
                    self.holds_back_no_more(id, io.batch);
                }
                let connection = self.connection_mut(id)?;
                // As in `renew`, but with what the shutdown itself changes, so that a waiter is told once.
                connection.ready = Ready::empty();
                self.follow_up(id.index(), None, false, io);
                Ok(())
            }
        }
    }

    /// Everything that is ready is an edge again: `inet_shutdown` calls sk_state_change, which wakes everybody.
    fn renew(&mut self, id: SocketId, io: &mut Io<'_>) {
        if let Some(ready) = self.connection(id).ok().map(Connection::readiness).filter(|ready| !ready.is_empty()) {
            self.notify(id, ready, ready, io);
        }
    }

    /// Closes. The id is void afterwards; an open connection lives on until the protocol is done with it, unless there
    /// is unread data or it was told so ([`Stack::set_reset_on_close`]): then it is reset, as by `tcp_close`.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn close(&mut self, id: SocketId, io: &mut Io<'_>) -> Result<(), NetError> {
        let index = id.index();
        match id.kind() {
            SocketKind::Listener => {
                self.listener_mut(id)?;
                self.close_listener(id, io);
            }
            SocketKind::Udp => self.udp_close(id, io)?,
            SocketKind::Tcp => {
                let orphan_timeout_ns = self.config.timeouts.orphan_timeout_ns;
                let connection = self.connection_mut(id)?;
                let reset = connection.asks(|asked| asked.reset_on_close) || connection.socket().can_recv();
                match connection.phase {
                    Phase::Open if !reset => {
                        connection.flags.remove(Flags::HELD);
                        connection.flags.insert(Flags::READ_SHUT);
                        // Nobody can take the error, and nobody can set a timeout any more.
                        connection.user_timeout_ms = connection.user_timeout_ms.min(timeout_ms(orphan_timeout_ns));
                        if let Some(asked) = &mut connection.asked {
                            asked.keepalive = None;
                        }
                        connection.push_kept();
                        if !connection.outstanding() {
                            connection.progress_ns = io.now_ns;
                        }
                        connection.finish();
                        self.holds_back_no_more(id, io.batch);
                        self.follow_up(index, None, false, io);
                    }
                    Phase::Open => {
                        self.let_go(id, io);
                        self.send_reset(index, io);
                        self.free(index);
                    }
                    // Nothing to say to a peer that has not answered, or that is done.
                    Phase::SynSent | Phase::Over => self.free(index),
                }
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn connection_mut(&mut self, id: SocketId) -> Result<&mut Connection, NetError> {
        if id.kind() != SocketKind::Tcp || self.connections.generation(id.index()) != id.generation() {
            return Err(self.no_socket());
        }
        self.connections
            .get_mut(id.index())
            .filter(|connection| connection.flags.contains(Flags::HELD))
            .ok_or(NetError::InvalidSocket)
    }

    pub(super) fn connection(&self, id: SocketId) -> Result<&Connection, NetError> {
        if id.kind() != SocketKind::Tcp || self.connections.generation(id.index()) != id.generation() {
            return Err(self.no_socket());
        }
        self.connections
            .get(id.index())
            .filter(|connection| connection.flags.contains(Flags::HELD))
            .ok_or(NetError::InvalidSocket)
    }

    pub(super) fn listener_mut(&mut self, id: SocketId) -> Result<&mut Listener, NetError> {
        if id.kind() != SocketKind::Listener || self.listeners.generation(id.index()) != id.generation() {
            return Err(if id.kind() == SocketKind::Listener { self.no_socket() } else { NetError::Invalid });
        }
        self.listeners.get_mut(id.index()).ok_or(NetError::InvalidSocket)
    }

    pub(super) fn listener(&self, id: SocketId) -> Result<&Listener, NetError> {
        if id.kind() != SocketKind::Listener || self.listeners.generation(id.index()) != id.generation() {
            return Err(self.no_socket());
        }
        self.listeners.get(id.index()).ok_or(NetError::InvalidSocket)
    }
}

impl Connection {
    /// The error for a reader who finds nothing. Behind the peer's FIN there is none: the stream has its end
    /// (`tcp_recvmsg_locked` looks at SOCK_DONE first).
    fn take_reading_error(&mut self) -> Option<NetError> {
        if self.flags.contains(Flags::FIN_RECEIVED) {
            return None;
        }
        let error = self.error.take()?;
        self.ready.remove(Ready::ERR);
        Some(error)
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let socket = self.socket_mut();
        // smoltcp refuses to read in some states even what it has; `can_recv` does not.
        if socket.can_recv() { socket.recv_slice(buffer).unwrap_or(0) } else { 0 }
    }

    #[inline]
    fn put(&mut self, data: &[u8]) -> usize {
        self.socket_mut().send_slice(data).unwrap_or(0)
    }
}
