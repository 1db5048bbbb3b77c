//! TCP_CORK and MSG_MORE: what fills no segment is kept until the rest of it comes.
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

use std::io::IoSlice;

use super::connection::{Connection, Flags, Phase};
use super::error::NetError;
use super::socket::{Ready, SocketId};
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;

/// tcp(7): the ceiling of TCP_CORK.
const CORKED_NS_MAX: u64 = 200_000_000;
const TCP_HEADER_BYTES: usize = 20;
const TIMESTAMP_BYTES: usize = 12;

/// What a connection keeps.
#[derive(Debug)]
pub(super) struct Cork {
    /// Less than a segment has, in front of what smoltcp has.
    kept: Vec<u8>,
    /// TCP_CORK is on. Otherwise only the last write said that there will be more.
    on: bool,
    until_ns: u64,
}

impl Cork {
    fn new() -> Cork {
        Cork { kept: Vec::new(), on: false, until_ns: NEVER_NS }
    }
}

impl Connection {
    fn cork(&self) -> Option<&Cork> {
        if self.flags.contains(Flags::CORKED) { self.asked.as_ref()?.cork.as_ref() } else { None }
    }

    fn take_cork(&mut self) -> Option<Cork> {
        self.flags.remove(Flags::CORKED);
        self.asked.as_mut()?.cork.take()
    }

    fn put_cork(&mut self, cork: Cork) {
        if cork.on || !cork.kept.is_empty() {
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

    /// Hands what is kept to smoltcp.
    pub(super) fn push_kept(&mut self) {
        let Some(mut cork) = self.take_cork() else { return };
        // There is room: it counts as written.
        let _ = self.socket_mut().send_slice(&std::mem::take(&mut cork.kept));
        cork.until_ns = NEVER_NS;
        self.put_cork(cork);
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
        let full = self.segment_bytes(id)?;
        let connection = self.connection_mut(id)?;
        let wanted: usize = data.iter().map(|part| part.len()).sum();
        if wanted == 0 {
            return Ok(0);
        }
        let outstanding = connection.outstanding();
        let mut cork = connection.take_cork().unwrap_or_else(Cork::new);
        let socket = connection.socket();
        let taken = wanted.min(socket.send_capacity() - socket.send_queue() - cork.kept.len());
        let mut left = taken;
        for part in data {
            let count = part.len().min(left);
            cork.kept.extend_from_slice(&part[..count]);
            left -= count;
        }
        let in_flight = connection.snd_nxt.wrapping_sub(connection.snd_una) as usize;
        let unsent = socket.send_queue().saturating_sub(in_flight);
        let goes = if (more || cork.on) && taken == wanted {
            let all = unsent + cork.kept.len();
            (all - all % full).saturating_sub(unsent)
        } else {
            cork.kept.len()
        };
        if goes > 0 {
            // There is room: it was looked at before.
            let _ = connection.socket_mut().send_slice(&cork.kept[..goes]);
            cork.kept.drain(..goes);
            cork.until_ns = NEVER_NS;
        }
        if !cork.kept.is_empty() && cork.until_ns == NEVER_NS {
            cork.until_ns = io.now_ns.saturating_add(CORKED_NS_MAX);
        }
        connection.put_cork(cork);
        if !outstanding && goes > 0 {
            connection.progress_ns = io.now_ns;
        }
        self.pump(id.index(), goes > 0, io);
        let connection = self.connection_mut(id)?;
        if !connection.readiness().contains(Ready::WRITABLE) {
            connection.ready.remove(Ready::WRITABLE);
        }
        if taken == 0 { Err(NetError::WouldBlock) } else { Ok(taken) }
    }

    /// What a full segment of a connection carries. A peer that takes less gets the rest of such a one in a segment of its own.
    fn segment_bytes(&self, id: SocketId) -> Result<usize, NetError> {
        let connection = self.connection(id)?;
        let mtu = if connection.path_mtu != 0 { usize::from(connection.path_mtu) } else { self.config.mtu_bytes };
        let ip = if connection.flow.remote().is_ipv6() { 40 } else { 20 };
        let options = if connection.timestamps.is_some() { TIMESTAMP_BYTES } else { 0 };
        Ok(mtu.saturating_sub(ip + TCP_HEADER_BYTES + options).max(1))
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
