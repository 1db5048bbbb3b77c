//! Reading and writing. For each direction there is one function, whichever call the program makes.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::c_int;
use lull_net::{Interest, Ready, TcpStream};

use super::datagram::control::{Writer, check_of_stream};
use super::{Message, Room, Stream};
use crate::errno::WOULD_BLOCK;
use crate::files::{self, File};
use crate::{Errno, Result, block, inherit, kernel, signals};

/// Either data, or their end.
const SOMETHING_TO_READ: Interest = Interest::READABLE.union(Interest::RDHUP);

/// `include/uapi/linux/tcp.h`: the ancillary data of TCP_INQ.
const TCP_CM_INQ: c_int = libc::TCP_INQ;

/// How a call reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receive {
    /// MSG_PEEK and its kin; 0 for `read`.
    pub flags: c_int,
}

/// How a call writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Send {
    /// MSG_DONTWAIT and its kin; 0 for `write`.
    pub flags: c_int,
}

/// `read`, `readv` on a number that is lull's. A call that asks for no bytes returns at once, whatever the socket is
/// (`sock_read_iter`).
#[inline]
pub fn read(fd: c_int, buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
    let Some(file) = files::get(fd) else { return recv(fd, buffers, Receive { flags: 0 }) };
    match &*file {
        File::Epoll(_) => Err(Errno::new(libc::EINVAL)),
        _ if buffers.iter().all(|buffer| buffer.is_empty()) => Ok(0),
        file => recv_from(fd, file, buffers, 0),
    }
}

/// `recv`, `recvmsg` on a number that is lull's. Returns how many bytes were read.
#[inline]
pub fn recv(fd: c_int, buffers: &mut [IoSliceMut<'_>], how: Receive) -> Result<usize> {
    match files::get(fd) {
        Some(file) => recv_from(fd, &file, buffers, how.flags),
        None => match inherit::receive(fd, Room { buffers, control: &mut [] }, how.flags) {
            Err(inherit::GONE) if is_own_now(fd) => recv(fd, buffers, how),
            received => received.map(|message| message.bytes),
        },
    }
}

#[inline]
fn recv_from(fd: c_int, file: &File, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize> {
    match file {
        File::Stream(stream) => stream.recv(buffers, flags),
        File::Datagram(datagram) => {
            let room = Room { buffers, control: &mut [] };
            datagram.receive(fd, room, flags).map(|message| message.bytes)
        }
        // The error queue is looked at first (`tcp_recvmsg`).
        File::Listener(_) if flags & libc::MSG_ERRQUEUE != 0 => Err(WOULD_BLOCK),
        // A listener that was shut down no longer listens, and has no urgent data either.
        File::Listener(listener) if flags & libc::MSG_OOB != 0 && listener.stopped.load(Ordering::Relaxed) => {
            Err(Errno::new(libc::EINVAL))
        }
        File::Listener(_) => Err(Errno::new(libc::ENOTCONN)),
        File::Epoll(_) => Err(Errno::new(libc::ENOTSOCK)),
    }
}

/// Whether a number that another process had is this one's own, because that process has ended.
#[cold]
fn is_own_now(fd: c_int) -> bool {
    inherit::goes_on_soon() && files::is_known(fd)
}

/// As [`recv`], with what is known of the message beside its bytes.
pub fn recv_message(fd: c_int, room: Room<'_, '_>, how: Receive) -> Result<Message> {
    let Some(file) = files::get(fd) else {
        let again = Room { buffers: &mut *room.buffers, control: &mut *room.control };
        return match inherit::receive(fd, again, how.flags) {
            Err(inherit::GONE) if is_own_now(fd) => recv_message(fd, room, how),
            received => received,
        };
    };
    match &*file {
        File::Datagram(datagram) => datagram.receive(fd, room, how.flags),
        File::Stream(stream) if stream.options.tells_unread() && how.flags & libc::MSG_ERRQUEUE == 0 => {
            let bytes = stream.recv(room.buffers, how.flags)?;
            let mut writer = Writer::new(room.control);
            writer.put(libc::SOL_TCP, TCP_CM_INQ, &stream.unread_and_end().to_ne_bytes());
            Ok(Message { bytes, control_bytes: writer.used, flags: writer.flags, ..Message::default() })
        }
        // A stream has no address.
        _ => Ok(Message { bytes: recv(fd, room.buffers, how)?, ..Message::default() }),
    }
}

/// As [`send`], to an address in the kernel's form and with ancillary data, if there are bytes of either. A stream has no
/// use for them, but refuses ancillary data that are wrong.
pub fn send_message(fd: c_int, buffers: &[IoSlice<'_>], to: &[u8], control: &[u8], how: Send) -> Result<usize> {
    let Some(file) = files::get_to_send(fd) else {
        return match inherit::send(fd, buffers, to, control, how.flags) {
            Err(inherit::GONE) if is_own_now(fd) => send_message(fd, buffers, to, control, how),
            sent => sent,
        };
    };
    match &*file {
        File::Datagram(datagram) => datagram.send(fd, buffers, to, control, how.flags),
        File::Stream(_) if !control.is_empty() => {
            // Whether it may be written to at all is told first (`tcp_sendmsg_locked`).
            send(fd, &[], how)?;
            check_of_stream(control)?;
            send(fd, buffers, how)
        }
        _ => send(fd, buffers, how),
    }
}

/// `write` on a number that is lull's.
#[inline]
pub fn write(fd: c_int, buffers: &[IoSlice<'_>]) -> Result<usize> {
    let Some(file) = files::get_to_send(fd) else { return send(fd, buffers, Send { flags: 0 }) };
    match &*file {
        File::Epoll(_) => Err(Errno::new(libc::EINVAL)),
        file => send_to(fd, file, buffers, 0),
    }
}

/// `writev` on a number that is lull's. Nothing is written at once, whatever the socket is (`vfs_writev`).
#[inline]
pub fn writev(fd: c_int, buffers: &[IoSlice<'_>]) -> Result<usize> {
    let Some(file) = files::get_to_send(fd) else { return write(fd, buffers) };
    match &*file {
        File::Epoll(_) => Err(Errno::new(libc::EINVAL)),
        _ if buffers.iter().all(|buffer| buffer.is_empty()) => Ok(0),
        file => send_to(fd, file, buffers, 0),
    }
}

/// `send`, `sendmsg` on a number that is lull's. Returns how many bytes were taken.
#[inline]
pub fn send(fd: c_int, buffers: &[IoSlice<'_>], how: Send) -> Result<usize> {
    match files::get_to_send(fd) {
        Some(file) => send_to(fd, &file, buffers, how.flags),
        None => send_message(fd, buffers, &[], &[], how),
    }
}

#[inline]
fn send_to(fd: c_int, file: &File, buffers: &[IoSlice<'_>], flags: c_int) -> Result<usize> {
    let sent = match file {
        File::Stream(stream) => stream.send(buffers, flags),
        // No signal tells of a datagram (`sk_stream_error` is TCP's).
        File::Datagram(datagram) => return datagram.send(fd, buffers, &[], &[], flags),
        File::Listener(_) => Err(Errno::new(libc::EPIPE)),
        File::Epoll(_) => Err(Errno::new(libc::ENOTSOCK)),
    };
    match sent {
        Err(error) if error.number() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 => {
            kernel::signal_self(libc::SIGPIPE);
            Err(error)
        }
        sent => sent,
    }
}

impl Stream {
    #[inline]
    fn recv(&self, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(WOULD_BLOCK);
        }
        if flags & libc::MSG_OOB != 0 {
            // Urgent data are never kept (`tcp_recv_urg`).
            return Err(Errno::new(libc::EINVAL));
        }
        let dont_wait = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        match self.recv_now(buffers, flags) {
            Err(error) if error == WOULD_BLOCK && !dont_wait => self.recv_waiting(buffers, flags),
            Ok(count) if !dont_wait && self.wants_more(flags, count) => {
                self.recv_rest(buffers, flags, count, self.receive_until())
            }
            received => received,
        }
    }

    /// Whether a call that blocks may go on with so many bytes (`sock_rcvlowat`).
    #[inline]
    fn wants_more(&self, flags: c_int, count: usize) -> bool {
        flags & libc::MSG_WAITALL != 0 || count < self.options.low_water()
    }

    #[inline]
    fn recv_now(&self, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize> {
        if flags & (libc::MSG_PEEK | libc::MSG_TRUNC) != 0 {
            return self.recv_otherwise(buffers, flags);
        }
        match buffers {
            buffers if buffers.iter().all(|buffer| buffer.is_empty()) => self.recv_nothing(),
            [buffer] => Ok(self.stream.recv(buffer)?),
            buffers => Ok(self.stream.recv_vectored(buffers)?),
        }
    }

    /// A call without room for any data waits for them all the same, and then gets none (`tcp_recvmsg_locked`).
    #[cold]
    fn recv_nothing(&self) -> Result<usize> {
        self.stream.peek(&mut [0])?;
        Ok(0)
    }

    /// MSG_PEEK leaves the data where it is; MSG_TRUNC throws it away, unseen (tcp(7)).
    #[cold]
    fn recv_otherwise(&self, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize> {
        let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        if wanted == 0 {
            return self.recv_nothing();
        }
        // No more is taken than there is, as a program may ask for far more. If nothing is there yet, the end and
        // errors are looked for first. Data that arrive meanwhile are counted afterwards, so that none are cut off.
        let unread = loop {
            match self.stream.unread()? {
                0 if self.stream.peek(&mut [0])? == 0 => return Ok(0),
                0 => {}
                unread => break unread,
            }
        };
        let mut whole = vec![0; wanted.min(unread)];
        if flags & libc::MSG_PEEK == 0 {
            return Ok(self.stream.recv(&mut whole)?);
        }
        let count = self.stream.peek(&mut whole)?;
        if flags & libc::MSG_TRUNC == 0 {
            scatter(&whole[..count], buffers);
        }
        Ok(count)
    }

    /// What TCP_INQ tells: how many bytes are left to be read, and one more if the peer has ended (`tcp_inq_hint`).
    #[cold]
    fn unread_and_end(&self) -> c_int {
        const ENDED: [&str; 4] = ["CLOSE-WAIT", "LAST-ACK", "CLOSING", "TIME-WAIT"];
        let has_ended = self.stream.info().is_ok_and(|info| ENDED.contains(&info.state));
        self.stream.unread().map_or(0, |bytes| bytes as c_int) + c_int::from(has_ended)
    }

    /// Whether there is nothing left to be received but an error.
    pub(super) fn has_error_alone(&self) -> bool {
        self.has_failed() && self.stream.unread().is_ok_and(|unread| unread == 0)
    }

    /// Whether an error waits to be told (`sk_err`).
    fn has_failed(&self) -> bool {
        self.stream.ready().contains(Ready::ERR)
    }

    #[cold]
    fn recv_waiting(&self, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize> {
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return match block::until_ready(&self.stream, SOMETHING_TO_READ, None, self.options.receive_timeout()) {
                Err(error) if !signals::goes_on_waiting() => Err(error),
                // Whatever ends the wait, a signal as well, nothing is what was asked for (`tcp_recvmsg_locked`).
                _ => Ok(0),
            };
        }
        let until = self.receive_until();
        // The first look has already polled for one round.
        self.stream.busy_loop(false);
        let count = loop {
            let waited = block::until_ready(&self.stream, SOMETHING_TO_READ, None, left(until));
            match (self.recv_now(buffers, flags), waited) {
                (Ok(count), Ok(true)) => break count,
                (Err(WOULD_BLOCK), Ok(true)) => {}
                (Err(WOULD_BLOCK), Ok(false)) => return Err(WOULD_BLOCK),
                (Err(WOULD_BLOCK), Err(ended)) => return Err(ended),
                // Fewer bytes than SO_RCVLOWAT wake nobody, but a call that wakes for another reason takes them
                // (`tcp_recvmsg_locked`).
                (received, _) => return received,
            }
        };
        if self.wants_more(flags, count) { self.recv_rest(buffers, flags, count, until) } else { Ok(count) }
    }

    /// When SO_RCVTIMEO ends a call that begins now. The option is read once for the whole of a call (`sock_rcvtimeo`),
    /// whatever becomes of it meanwhile.
    fn receive_until(&self) -> Option<Instant> {
        self.options.receive_timeout().map(|timeout| Instant::now() + timeout)
    }

    /// With MSG_WAITALL this reads until the buffers are full, or the stream ends, fails or is interrupted, and returns
    /// what came before. Without it, it reads until as many bytes are there as SO_RCVLOWAT says. MSG_PEEK changes
    /// neither.
    #[cold]
    fn recv_rest(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: c_int,
        first: usize,
        until: Option<Instant>,
    ) -> Result<usize> {
        let room: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let wanted = if flags & libc::MSG_WAITALL != 0 { room } else { room.min(self.options.low_water()) };
        if flags & libc::MSG_PEEK != 0 {
            return if (1..wanted).contains(&first) {
                self.peek_until(buffers, flags, wanted, until)
            } else {
                Ok(first)
            };
        }
        let mut count = first;
        let mut goes_on = true;
        while count != 0 && count < wanted {
            // An error that comes after what was read is told by the next call (`tcp_recvmsg_locked`).
            if self.has_error_alone() {
                break;
            }
            let mut rest = vec![0; room - count];
            let got = match self.recv_now(&mut [IoSliceMut::new(&mut rest)], flags) {
                Ok(got) => got,
                Err(WOULD_BLOCK) if goes_on => {
                    let waited = block::until_ready(&self.stream, SOMETHING_TO_READ, None, left(until));
                    goes_on = waited == Ok(true);
                    continue;
                }
                Err(_) => break,
            };
            if got == 0 {
                break;
            }
            // Data that MSG_TRUNC throws away are not written to the program's memory.
            if flags & libc::MSG_TRUNC == 0 {
                scatter_at(&rest[..got], buffers, count);
            }
            count += got;
        }
        Ok(count)
    }

    /// Waits until so many bytes can be peeked at, or no more will come. As bytes that are there already make the
    /// socket readable, this waits for edges.
    #[cold]
    fn peek_until(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: c_int,
        wanted: usize,
        until: Option<Instant>,
    ) -> Result<usize> {
        const OVER: Ready = Ready::RDHUP.union(Ready::ERR).union(Ready::HUP);
        let edges = SOMETHING_TO_READ | Interest::EDGE;
        let wait = block::Wait::new()?;
        wait.add(&self.stream, edges, || edges)?;
        let mut goes_on = true;
        let peeked = loop {
            // The end is looked at first, so that all that came before it is seen.
            goes_on &= !self.stream.ready().intersects(OVER);
            match self.recv_now(buffers, flags) {
                Ok(count) if count < wanted && goes_on => goes_on = wait.wait(left(until)) == Ok(true),
                peeked => break peeked,
            }
        };
        wait.remove(&self.stream);
        peeked
    }

    #[inline]
    fn send(&self, buffers: &[IoSlice<'_>], flags: c_int) -> Result<usize> {
        if flags & (libc::MSG_OOB | libc::MSG_FASTOPEN) != 0 {
            // The stack sends no urgent data, and begins no connection with data.
            return Err(Errno::new(libc::EOPNOTSUPP));
        }
        let more = flags & libc::MSG_MORE != 0;
        let sent = if more { self.send_more(buffers) } else { self.send_now(buffers) };
        if self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0 {
            return sent;
        }
        let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        match sent {
            Ok(count) if count < wanted => self.send_rest(buffers, count, more),
            Err(error) if error == WOULD_BLOCK => self.send_rest(buffers, 0, more),
            sent => sent,
        }
    }

    #[cold]
    fn send_more(&self, buffers: &[IoSlice<'_>]) -> Result<usize> {
        Ok(self.stream.send_more(buffers)?)
    }

    #[inline]
    fn send_now(&self, buffers: &[IoSlice<'_>]) -> Result<usize> {
        match buffers {
            [buffer] => Ok(self.stream.send(buffer)?),
            buffers => Ok(self.stream.send_vectored(buffers)?),
        }
    }

    /// A call that blocks takes everything; if it is cut short, it says how much it took.
    #[cold]
    fn send_rest(&self, buffers: &[IoSlice<'_>], first: usize, more: bool) -> Result<usize> {
        let mut buffers = buffers.to_vec();
        let mut rest = buffers.as_mut_slice();
        IoSlice::advance_slices(&mut rest, first);
        let until = self.options.send_timeout().map(|timeout| Instant::now() + timeout);
        let mut count = first;
        let cut_short = |count: usize, error: Errno| if count == 0 { Err(error) } else { Ok(count) };
        while !rest.is_empty() {
            // An error that comes after something was taken is told by the next call (`tcp_sendmsg_locked`).
            if count > 0 && self.has_failed() {
                break;
            }
            match if more { self.send_more(rest) } else { self.send_now(rest) } {
                Ok(sent) => {
                    count += sent;
                    IoSlice::advance_slices(&mut rest, sent);
                }
                Err(error) if error == WOULD_BLOCK => {
                    match block::until_ready(&self.stream, Interest::WRITABLE, None, left(until)) {
                        Ok(true) => {}
                        Ok(false) => return cut_short(count, WOULD_BLOCK),
                        Err(error) => return cut_short(count, error),
                    }
                }
                Err(error) => return cut_short(count, error),
            }
        }
        Ok(count)
    }

    /// How many bytes the stream would take now.
    pub(super) fn room(&self) -> Result<usize> {
        Ok(self.stream.send_room()?)
    }

    /// The stream, for callers that wait on it.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// How much of a call's time is left.
fn left(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(Instant::now()))
}

/// Copies into several buffers in turn.
fn scatter(data: &[u8], buffers: &mut [IoSliceMut<'_>]) {
    scatter_at(data, buffers, 0);
}

/// Copies into several buffers in turn, past the first `skipped` bytes of them.
fn scatter_at(mut data: &[u8], buffers: &mut [IoSliceMut<'_>], mut skipped: usize) {
    for buffer in buffers {
        let begin = skipped.min(buffer.len());
        skipped -= begin;
        let count = data.len().min(buffer.len() - begin);
        buffer[begin..begin + count].copy_from_slice(&data[..count]);
        data = &data[count..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_scattered_past_what_is_there() {
        let (mut one, mut two) = ([0; 3], [0; 4]);
        scatter_at(b"abcd", &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)], 2);
        assert_eq!((&one, &two), (&[0, 0, b'a'], &[b'b', b'c', b'd', 0]));
    }
}
