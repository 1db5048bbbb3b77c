//! TCP_CORK and MSG_MORE: bytes that do not fill a segment are kept until the rest of it comes.
//!
//! A program that writes a response in parts (a header, then a file by `sendfile`) says so, and full segments leave meanwhile. What
//! is kept of a connection is less than a segment, in a buffer in front of smoltcp's, which would send it with the next
//! acknowledgement. It leaves when
//!
//! ```text
//! a segment is full        the full ones leave, the rest stays
//! the cork is taken off    or a write comes without MSG_MORE
//! it was asked for         TCP_NODELAY (which pushes even under a cork), shutdown, close
//! there is no more room    whoever waits for some waits for this to leave
//! 200 ms are over          the timer that `tcp_check_probe_timer` starts when nothing is in flight (tcp(7), TCP_CORK)
//! ```
//!
//! The same buffer has what a program may write beyond what smoltcp's buffer holds. A program may say how much may be
//! written and not acknowledged (SO_SNDBUF), and how much of that may be unsent (TCP_NOTSENT_LOWAT). smoltcp's buffer
//! is the congestion window until something is lost ([`grow`](super::grow)), so it is not made as large as the program
//! says: what it has no room for follows when an acknowledgement makes some, and the FIN behind that. If the program
//! has said nothing, four of the buffers that connections begin with may be written, as much as Linux holds for a new
//! connection (`tcp_sndbuf_expand`: about 87 KB with its headers), because programs that drop a client who leaves too
//! much unread expect that.

use std::io::IoSlice;

use smoltcp::socket::tcp::Socket;

use super::agreed::SACK;
use super::asked::{Cork, SendRoom};
use super::connection::{Connection, Flags, Phase};
use super::error::NetError;
use super::socket::{Ready, SocketId};
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;

/// tcp(7): the ceiling of TCP_CORK.
const CORKED_NS_MAX: u64 = 200_000_000;
/// How many of the buffers that connections begin with may be written to one at first.
const ROOM_BUFFERS: usize = 4;
/// The unit of [`Connection::room`].
const ROOM_UNIT_BYTES: usize = 4096;
const TCP_HEADER_BYTES: usize = 20;
pub(super) const TIMESTAMP_BYTES: usize = 12;

impl Connection {
    fn cork(&self) -> Option<&Cork> {
        if self.flags.contains(Flags::CORKED) { self.asked.as_ref()?.cork.as_ref() } else { None }
    }

    fn take_cork(&mut self) -> Option<Cork> {
        self.flags.remove(Flags::CORKED);
        self.asked.as_mut()?.cork.take()
    }

    fn put_cork(&mut self, cork: Cork) {
        if cork.on || !cork.kept.is_empty() || cork.room != SendRoom::default() {
            self.flags.insert(Flags::CORKED);
            self.asked_mut().cork = Some(cork);
        }
    }

    /// Bytes that are kept.
    #[inline]
    pub(super) fn kept_bytes(&self) -> usize {
        self.cork().map_or(0, |cork| cork.kept.len())
    }

    /// When what is kept leaves at the latest.
    #[inline]
    pub(super) fn corked_until_ns(&self) -> u64 {
        self.cork().map_or(NEVER_NS, |cork| cork.until_ns)
    }

    /// How much may be written to it.
    fn room(&self) -> SendRoom {
        self.cork().map_or(SendRoom::default(), |cork| cork.room)
    }

    /// How much may be written and not acknowledged, if the program has said so.
    pub(super) fn room_asked(&self) -> Option<usize> {
        Some(self.room().bytes).filter(|bytes| *bytes != 0)
    }

    /// How much may be written to it and not acknowledged, if the program has said nothing.
    #[inline]
    pub(super) fn room_at_first(&self, socket: &Socket<'static>) -> usize {
        socket.send_capacity().max(usize::from(self.room) * ROOM_UNIT_BYTES)
    }

    /// Lets as much be written to a new connection as is due where buffers begin with `buffer_bytes` and grow to
    /// `most`.
    pub(super) fn begin_with_room(&mut self, buffer_bytes: usize, most: usize) {
        let units = (buffer_bytes * ROOM_BUFFERS).min(most) / ROOM_UNIT_BYTES;
        self.room = u8::try_from(units).unwrap_or(u8::MAX);
    }

    /// Whether this many bytes are more than its buffer has room for, but may be written, at least in part.
    #[inline]
    pub(super) fn has_room_beyond_its_buffer(&self, bytes: usize) -> bool {
        let socket = self.socket();
        bytes > socket.send_capacity() - socket.send_queue() && self.room_at_first(socket) > socket.send_capacity()
    }

    /// What may be written to it and not acknowledged.
    fn all_room(&self) -> usize {
        self.room_asked().unwrap_or_else(|| self.room_at_first(self.socket()))
    }

    /// Bytes that smoltcp has not sent.
    pub(super) fn unsent(&self) -> usize {
        self.socket().send_queue().saturating_sub(self.snd_nxt.wrapping_sub(self.snd_una) as usize)
    }

    /// How many bytes may be written now.
    fn may_be_written(&self) -> usize {
        let (socket, kept, unsent_bytes) = (self.socket(), self.kept_bytes(), self.room().unsent_bytes);
        let left = self.all_room().saturating_sub(socket.send_queue() + kept);
        match unsent_bytes.saturating_sub(self.unsent() + kept) {
            _ if unsent_bytes == 0 => left,
            0 => 0,
            // Up to a segment's length is written as a whole, as it would be to a buffer of Linux's that has room.
            more => left.min(more.max((self.peer_mss & !SACK).into())),
        }
    }

    /// `sk_stream_is_writeable`, of a connection that keeps something or has bounds of its own: a third of what may be written is
    /// free, and not too much is unsent (`__tcp_stream_memory_free`).
    pub(super) fn has_room_to_write(&self) -> bool {
        let (all, unsent_bytes) = (self.all_room(), self.room().unsent_bytes);
        let kept = self.kept_bytes();
        let is_free = all.saturating_sub(self.socket().send_queue() + kept) * 3 >= all;
        is_free && (unsent_bytes == 0 || self.unsent() + kept < unsent_bytes)
    }

    /// Hands what is kept to smoltcp, as far as that has room for it.
    pub(super) fn push_kept(&mut self) {
        let Some(mut cork) = self.take_cork() else { return };
        let all = cork.kept.len();
        self.hand_over(&mut cork, all);
        cork.until_ns = NEVER_NS;
        self.put_cork(cork);
    }

    /// Hands the first `goes` bytes of what is kept to smoltcp, as far as that has room. Returns how many they were.
    fn hand_over(&mut self, cork: &mut Cork, goes: usize) -> usize {
        let (first, second) = cork.kept.as_slices();
        let (first, second) = (&first[..goes.min(first.len())], &second[..goes.saturating_sub(first.len())]);
        let socket = self.socket_mut();
        let mut gone = socket.send_slice(first).unwrap_or(0);
        if gone == first.len() {
            gone += socket.send_slice(second).unwrap_or(0);
        }
        cork.kept.drain(..gone);
        gone
    }
}

impl Stack {
    /// Keeps what fills no segment until the cork is taken off (`TCP_CORK`).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_cork(&mut self, id: SocketId, on: bool, io: &mut Io<'_>) -> Result<(), NetError> {
        let connection = self.connection_mut(id)?;
        if on {
            let cork = connection.take_cork().unwrap_or_else(Cork::new);
            connection.put_cork(Cork { on: true, ..cork });
        } else if let Some(cork) = connection.take_cork() {
            connection.put_cork(Cork { on: false, ..cork });
            connection.push_kept();
            self.let_go(id, io);
            self.repump(id, io);
        }
        Ok(())
    }

    /// As [`Stack::tcp_send_vectored`], with more to follow (`MSG_MORE`).
    ///
    /// # Errors
    /// Those of [`Stack::tcp_send`].
    pub fn tcp_send_more(&mut self, id: SocketId, data: &[IoSlice<'_>], io: &mut Io<'_>) -> Result<usize, NetError> {
        self.may_send(id)?;
        self.send_corked(id, data, true, io)
    }

    /// Writes to a connection that keeps something, or is to.
    #[cold]
    pub(super) fn send_corked(
        &mut self,
        id: SocketId,
        data: &[IoSlice<'_>],
        more: bool,
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let full = self.segment_bytes(id.index());
        let connection = self.connection_mut(id)?;
        let wanted: usize = data.iter().map(|part| part.len()).sum();
        if wanted == 0 {
            return Ok(0);
        }
        let outstanding = connection.outstanding();
        let was_writable = connection.ready.contains(Ready::WRITABLE);
        let taken = wanted.min(connection.may_be_written());
        let mut cork = connection.take_cork().unwrap_or_else(Cork::new);
        let is_plain = !more && !cork.on && cork.kept.is_empty();
        let mut left = taken;
        for part in data {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            let gone = match is_plain && cork.kept.is_empty() {
                true => connection.socket_mut().send_slice(part).unwrap_or(0),
                false => 0,
            };
            cork.kept.extend(&part[gone..]);
        }
        if is_plain && cork.kept.is_empty() {
            // From here on it is as without a cork.
            connection.put_cork(cork);
            let sent = self.after_send(id, taken, outstanding, false, io);
            let connection = self.connection_mut(id)?;
            let is_writable = was_writable && connection.readiness().contains(Ready::WRITABLE);
            connection.ready.set(Ready::WRITABLE, is_writable);
            return sent;
        }
        let goes = match (more || cork.on) && taken == wanted {
            true => full_segments(connection.unsent(), cork.kept.len(), full),
            false => cork.kept.len(),
        };
        let queued = connection.socket().send_queue();
        if connection.hand_over(&mut cork, goes) > 0 {
            cork.until_ns = NEVER_NS;
        }
        let goes = is_plain || connection.socket().send_queue() > queued;
        if !cork.kept.is_empty() && cork.until_ns == NEVER_NS && (more || cork.on) {
            cork.until_ns = io.now_ns.saturating_add(CORKED_NS_MAX);
        }
        connection.put_cork(cork);
        if !outstanding && goes {
            connection.progress_ns = io.now_ns;
        }
        self.pump(id.index(), goes, io);
        let connection = self.connection_mut(id)?;
        if !connection.readiness().contains(Ready::WRITABLE) {
            connection.ready.remove(Ready::WRITABLE);
        }
        if taken == 0 { Err(NetError::WouldBlock) } else { Ok(taken) }
    }

    /// How many bytes may be written to a connection now. If none may, there will be an edge when there is room.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_room(&mut self, id: SocketId) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        let room = connection.may_be_written();
        if room == 0 && !connection.readiness().contains(Ready::WRITABLE) {
            connection.ready.remove(Ready::WRITABLE);
        }
        Ok(room)
    }

    /// Says how much may be written to a connection, whatever its buffer holds (`SO_SNDBUF`, `TCP_NOTSENT_LOWAT`). What is written
    /// already stays, if it is more. Whoever waits for room looks again.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_send_room(&mut self, id: SocketId, room: SendRoom, io: &mut Io<'_>) -> Result<(), NetError> {
        let connection = self.connection_mut(id)?;
        if connection.room() != room {
            let cork = connection.take_cork().unwrap_or_else(Cork::new);
            connection.put_cork(Cork { room, ..cork });
            self.announce(id.index(), false, io);
        }
        Ok(())
    }

    /// An acknowledgement has made room for what smoltcp's buffer had none for; the FIN follows behind the last of it.
    #[cold]
    pub(super) fn push_what_had_no_room(&mut self, index: u32, io: &mut Io<'_>) {
        let id = self.connection_id(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.kept_bytes() == 0 || connection.phase != Phase::Open {
            return;
        }
        let full = self.segment_bytes(id.index());
        let Some(connection) = self.connections.get_mut(index) else { return };
        let ends = connection.is_to_finish();
        let Some(mut cork) = connection.take_cork() else { return };
        let all = cork.kept.len();
        let waits = cork.waits_for_more() && !ends;
        let goes = if waits { full_segments(connection.unsent(), all, full) } else { all };
        let gone = connection.hand_over(&mut cork, goes);
        if waits && !cork.kept.is_empty() && cork.until_ns == NEVER_NS {
            cork.until_ns = io.now_ns.saturating_add(CORKED_NS_MAX);
        }
        connection.put_cork(cork);
        if ends {
            connection.finish();
        }
        if gone > 0 {
            self.follow_up(index, None, false, io);
        }
    }

    /// How many bytes a full segment of a connection carries. A peer that takes less gets the rest of such a segment in
    /// another one.
    pub(super) fn segment_bytes(&self, index: u32) -> usize {
        let Some(connection) = self.connections.get(index) else { return 1 };
        let mtu = if connection.path_mtu != 0 { usize::from(connection.path_mtu) } else { self.config.mtu_bytes };
        let ip = if connection.flow.remote().is_ipv6() { 40 } else { 20 };
        let options = if connection.timestamps.is_some() { TIMESTAMP_BYTES } else { 0 };
        mtu.saturating_sub(ip + TCP_HEADER_BYTES + options).max(1)
    }

    /// The time of a connection is up; what is kept leaves.
    pub(super) fn cork_timer(&mut self, index: u32, now_ns: u64) {
        if let Some(connection) = self.connections.get_mut(index)
            && connection.phase == Phase::Open
            && connection.corked_until_ns() <= now_ns
        {
            connection.push_kept();
        }
    }
}

/// How much of what is kept fills segments of `full` bytes, together with what is not sent before it.
fn full_segments(unsent: usize, kept: usize, full: usize) -> usize {
    let all = unsent + kept;
    (all - all % full).saturating_sub(unsent)
}
