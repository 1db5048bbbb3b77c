//! MSG_MORE and UDP_CORK: a datagram that is written in parts.
//!
//! Where it goes is what the first part said, as in Linux (`udp_sendmsg`, `do_append_data`): addresses of later parts are not
//! looked at. A part that makes it too long loses all of it.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::c_int;
use lull_net::SendOptions;

use super::Datagram;
use crate::{Errno, Result};

/// The longest payload that UDP's length field has room for, behind its own header.
const PAYLOAD_BYTES_MAX: usize = 0xffff - 8;

struct Part {
    to: Option<SocketAddr>,
    asked: SendOptions,
    bytes: Vec<u8>,
}

pub(super) struct Cork {
    /// UDP_CORK.
    on: AtomicBool,
    waits: AtomicBool,
    part: Mutex<Option<Part>>,
}

impl Cork {
    /// The state for a socket, which may have UDP_CORK set already.
    pub(super) fn new(on: bool) -> Cork {
        Cork { on: AtomicBool::new(on), waits: AtomicBool::new(false), part: Mutex::default() }
    }

    /// Whether UDP_CORK is on.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Whether a datagram has begun.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    fn part(&self) -> MutexGuard<'_, Option<Part>> {
        // Bytes are appended completely or not at all.
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Part> {
        let mut part = self.part();
        self.waits.store(false, Relaxed);
        part.take()
    }
}

impl Datagram {
    /// The first part of a datagram.
    pub(super) fn begin(&self, data: &[IoSlice<'_>], to: Option<SocketAddr>, asked: SendOptions) -> Result<usize> {
        if to.is_none() && self.peer().is_none() {
            return Err(Errno::new(libc::EDESTADDRREQ));
        }
        // Nothing is begun before an error that waits is told (`sock_alloc_send_pskb`).
        if let Some(error) = self.sockets.take_error()? {
            return Err(error);
        }
        self.cork.part().get_or_insert(Part { to, asked, bytes: Vec::new() });
        self.cork.waits.store(true, Relaxed);
        self.append(data, libc::MSG_MORE)
    }

    /// A further part of the datagram that has begun. It is the last one unless more is to come.
    pub(super) fn append(&self, data: &[IoSlice<'_>], flags: c_int) -> Result<usize> {
        let length = data.iter().map(|slice| slice.len()).sum();
        let is_too_long = {
            let mut part = self.cork.part();
            // Another thread may have sent the datagram meanwhile.
            let Some(part) = part.as_mut() else { return Err(Errno::new(libc::EINVAL)) };
            data.iter().for_each(|slice| part.bytes.extend_from_slice(slice));
            part.bytes.len() > PAYLOAD_BYTES_MAX
        };
        if is_too_long {
            self.cork.take();
            return Err(Errno::new(libc::EMSGSIZE));
        }
        if flags & libc::MSG_MORE == 0 && !self.cork.is_on() {
            self.push(flags)?;
        }
        Ok(length)
    }

    fn push(&self, flags: c_int) -> Result<()> {
        let Some(Part { to, asked, bytes }) = self.cork.take() else { return Ok(()) };
        self.send_whole(&[IoSlice::new(&bytes)], to, asked, flags).map(drop)
    }

    /// Sets UDP_CORK. Clearing it sends what waits, and does not tell of errors (`udp_lib_setsockopt`).
    pub(super) fn set_cork(&self, on: bool) {
        self.cork.on.store(on, Relaxed);
        if !on {
            let _ = self.push(0);
        }
    }
}
