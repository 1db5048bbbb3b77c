//! Reading datagrams of both worlds.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use libc::c_int;
use lull_net::Interest;

use super::Datagram;
use super::message::{Message, Room, kernels};
use super::sockets::{First, Sockets};
use crate::address::Name;
use crate::block::Wait;
use crate::errno::WOULD_BLOCK;
use crate::{Result, address, signals};

/// A wait for datagrams, in which the socket is a member of a context for as long as its reader waits. Each arrival wakes it once:
/// errors that are kept (MSG_ERRQUEUE) make the socket ready for as long as they are not read, and end no wait
/// (`__skb_wait_for_more_packets`).
struct Waiting<'a> {
    wait: Wait,
    sockets: &'a Sockets,
    kernels: Option<c_int>,
}

impl<'a> Waiting<'a> {
    fn begin(sockets: &'a Sockets, kernels: Option<c_int>) -> Result<Waiting<'a>> {
        const ARRIVALS: Interest = Interest::READABLE.union(Interest::EDGE);
        let waiting = Waiting { wait: Wait::new()?, sockets, kernels };
        waiting.wait.add(sockets, ARRIVALS, || ARRIVALS)?;
        kernels.map_or(Ok(()), |fd| waiting.wait.add_kernels(fd, ARRIVALS, || ARRIVALS))?;
        Ok(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.wait.remove(self.sockets);
        self.kernels.into_iter().for_each(|fd| self.wait.remove_kernels(fd));
    }
}

impl Datagram {
    pub(crate) fn receive(&self, fd: c_int, mut room: Room<'_, '_>, flags: c_int) -> Result<Message> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return match self.receive_error(&mut room) {
                Err(WOULD_BLOCK) if self.is_kernels_too() => kernels(fd, &mut room, flags),
                received => received,
            };
        }
        if !self.readers.process.load(Relaxed) {
            self.readers.process.store(true, Relaxed);
        }
        let dont_wait = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let (mut until, mut waiting) = (None, None);
        loop {
            match self.receive_now(fd, &mut room, flags) {
                Err(WOULD_BLOCK) if !dont_wait => {}
                received => return received,
            }
            // A call that would wait is told that nothing is to come. One that would not wait is never told
            // (`__skb_wait_for_more_packets`).
            if self.reads_no_more() {
                return Ok(Message::default());
            }
            let timeout = self.options.receive_timeout();
            let until = *until.get_or_insert_with(|| timeout.map(|timeout| Instant::now() + timeout));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let waiting = match &waiting {
                Some(waiting) => waiting,
                None => waiting.insert(Waiting::begin(&self.sockets, self.is_kernels_too().then_some(fd))?),
            };
            if !signals::or_restarts(waiting.wait.wait(left), left)? {
                return Err(WOULD_BLOCK);
            }
        }
    }

    /// Whether reading is shut down.
    pub(crate) fn reads_no_more(&self) -> bool {
        self.sockets.reads_no_more()
    }

    /// What there is now, to be passed on to another process.
    pub(crate) fn receive_for_another(&self, fd: c_int, mut room: Room<'_, '_>) -> Result<Message> {
        self.receive_now(fd, &mut room, 0)
    }

    fn receive_now(&self, fd: c_int, room: &mut Room<'_, '_>, flags: c_int) -> Result<Message> {
        let peek = flags & libc::MSG_PEEK != 0;
        let first = self.sockets.first_to_read(peek);
        if !self.is_kernels_too() {
            return self.lulls(first, room, flags);
        }
        let kernels =
            |room: &mut Room<'_, '_>| kernels(fd, room, flags).inspect(|_| self.sockets.has_read_kernels(peek));
        let (one, other) = match first.is_kernels {
            true => (kernels(room), None),
            false => (self.lulls(first, room, flags), Some(kernels)),
        };
        match (one, other) {
            (Err(WOULD_BLOCK), Some(kernels)) => kernels(room),
            (Err(WOULD_BLOCK), None) => self.lulls(first, room, flags),
            (one, _) => one,
        }
    }

    fn lulls(&self, first: First, room: &mut Room<'_, '_>, flags: c_int) -> Result<Message> {
        let received = self.sockets.receive(first, room.buffers, flags & libc::MSG_PEEK != 0)?;
        let (control_bytes, control_flags) = self.wanted.write(&received, room.control);
        let cut = received.datagram_bytes > received.bytes;
        Ok(Message {
            bytes: if flags & libc::MSG_TRUNC != 0 { received.datagram_bytes } else { received.bytes },
            from: Name::Lulls(address::Bytes::new(received.from, self.domain)),
            control_bytes,
            flags: control_flags | if cut { libc::MSG_TRUNC } else { 0 },
        })
    }
}
