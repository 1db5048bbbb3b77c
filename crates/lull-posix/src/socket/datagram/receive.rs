//! Reading datagrams of both worlds.

use std::io::IoSliceMut;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use libc::c_int;
use lull_net::{Interest, Ready};

use super::Datagram;
use crate::errno::WOULD_BLOCK;
use crate::socket::name::Name;
use crate::{Result, address, block, kernel};

/// The kernel is asked first once in so many reads: lull's datagrams may come faster than they are read.
const KERNELS_TURN: u32 = 16;

/// Where a message is written to.
pub struct Room<'a, 'b> {
    /// Its bytes.
    pub buffers: &'a mut [IoSliceMut<'b>],
    /// Its ancillary data.
    pub control: &'a mut [u8],
}

/// What is known of a message that was read.
#[derive(Default)]
pub struct Message {
    /// What the call returns: how many bytes were read, or with MSG_TRUNC how many there were.
    pub bytes: usize,
    /// Who sent it.
    pub from: Name,
    /// Bytes of ancillary data.
    pub control_bytes: usize,
    /// MSG_TRUNC, MSG_CTRUNC.
    pub flags: c_int,
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
        let mut until = None;
        loop {
            match self.receive_now(fd, &mut room, flags) {
                Err(WOULD_BLOCK) if !dont_wait => {}
                received => return received,
            }
            // Who would wait is told that nothing is to come; who would not wait never is (`__skb_wait_for_more_packets`).
            if self.reads_no_more() {
                return Ok(Message::default());
            }
            let timeout = self.options.receive_timeout();
            let until = *until.get_or_insert_with(|| timeout.map(|timeout| Instant::now() + timeout));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let kernels = self.is_kernels_too().then_some(fd);
            if !block::until_ready(&self.sockets, Interest::READABLE, kernels, left)? {
                return Err(WOULD_BLOCK);
            }
        }
    }

    /// Whether reading is shut down.
    pub(crate) fn reads_no_more(&self) -> bool {
        self.sockets.ready().contains(Ready::RDHUP)
    }

    /// What there is now, for another process.
    pub(crate) fn receive_for_another(&self, fd: c_int, mut room: Room<'_, '_>) -> Result<Message> {
        self.receive_now(fd, &mut room, 0)
    }

    fn receive_now(&self, fd: c_int, room: &mut Room<'_, '_>, flags: c_int) -> Result<Message> {
        let turn = self.turn.fetch_add(1, Relaxed);
        if !self.is_kernels_too() {
            return self.lulls(turn, room, flags);
        }
        let kernels = |room: &mut Room<'_, '_>| kernels(fd, room, flags);
        let (first, other) = match turn % KERNELS_TURN {
            0 => (kernels(room), None),
            _ => (self.lulls(turn, room, flags), Some(kernels)),
        };
        match (first, other) {
            (Err(WOULD_BLOCK), Some(kernels)) => kernels(room),
            (Err(WOULD_BLOCK), None) => self.lulls(turn, room, flags),
            (first, _) => first,
        }
    }

    fn lulls(&self, turn: u32, room: &mut Room<'_, '_>, flags: c_int) -> Result<Message> {
        let received = self.sockets.receive(turn as usize, room.buffers, flags & libc::MSG_PEEK != 0)?;
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

/// A datagram of the kernel's, if one waits.
pub(crate) fn kernels(fd: c_int, room: &mut Room<'_, '_>, flags: c_int) -> Result<Message> {
    let got = kernel::recvmsg(fd, room.buffers, room.control, flags | libc::MSG_DONTWAIT)?;
    Ok(Message { bytes: got.bytes, from: Name::Kernels(got.from), control_bytes: got.control_bytes, flags: got.flags })
}
