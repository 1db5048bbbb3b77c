//! `splice` between a pipe and a connection of lull's: through a buffer, of which nothing is lost when one side takes less.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use libc::{c_int, c_uint};
use lull_net::Interest;
use lull_net::lull_nic::Afresh;

use super::{Receive, Send, Stream, recv, send};
use crate::block::{self, Wait};
use crate::errno::WOULD_BLOCK;
use crate::files::{self, File, Open};
use crate::kernel::{self, pipe};
use crate::signals::{self, RESTARTS};
use crate::{Errno, Result};

/// What is moved at a time: what a pipe that says that it can be written to takes at once (PIPE_BUF, pipe(7)).
const CHUNK_BYTES: usize = 4096;
const FLAGS: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Locks that connections share.
const LOCKS: usize = 16;

static ONE_AT_A_TIME: Afresh<[Mutex<()>; LOCKS]> = Afresh::new();

/// Of threads that splice out of one connection one at a time moves what is there.
fn alone(socket: &Open) -> MutexGuard<'static, ()> {
    let nth = std::ptr::from_ref::<File>(socket) as usize / size_of::<File>();
    ONE_AT_A_TIME.get_or_init(Default::default)[nth % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child of `fork` has none of the threads that hold them.
pub(crate) fn forget() {
    ONE_AT_A_TIME.forget();
}

const fn error<T>(number: c_int) -> Result<T> {
    Err(Errno::new(number))
}

/// `splice` where one number is lull's at least; whether each of them was given an offset.
pub fn splice(
    (from, from_offset): (c_int, bool),
    (to, to_offset): (c_int, bool),
    count: usize,
    flags: c_uint,
) -> Result<usize> {
    if count == 0 {
        return Ok(0);
    }
    if flags & !FLAGS != 0 {
        return error(libc::EINVAL);
    }
    let splice = Splice { count, waits: flags & libc::SPLICE_F_NONBLOCK == 0, more: flags & libc::SPLICE_F_MORE != 0 };
    // Neither a pipe nor a socket has a place to begin at.
    match (files::get(from), files::get(to)) {
        (Some(_), None) if to_offset => error(libc::ESPIPE),
        (None, Some(_)) if from_offset => error(libc::ESPIPE),
        _ if from_offset || to_offset => error(libc::EINVAL),
        (Some(socket), None) => splice.out_of(from, &socket, to),
        (None, Some(socket)) => splice.put_into(from, to, &socket),
        // One of them has to be a pipe.
        _ => error(libc::EINVAL),
    }
}

struct Splice {
    count: usize,
    waits: bool,
    more: bool,
}

fn stream(socket: &Open) -> Result<&Stream> {
    match &**socket {
        File::Stream(stream) => Ok(stream),
        _ => error(libc::EINVAL),
    }
}

impl Splice {
    /// From a connection into a pipe (`tcp_splice_read`): what is there, and if that is nothing, what comes.
    fn out_of(&self, from: c_int, socket: &Open, end: c_int) -> Result<usize> {
        let waits = pipe::is_blocking(end, true)? && self.waits;
        let stream = stream(socket)?;
        let mut moved = 0;
        // An error that is behind what was moved is the next call's (`tcp_splice_read`).
        while moved < self.count && !(moved > 0 && stream.has_error_alone()) {
            match self.chunk_out_of((from, socket), end, moved, waits && moved == 0) {
                Ok(0) => break,
                Ok(count) => moved += count,
                Err(error) if moved == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(moved)
    }

    fn chunk_out_of(&self, (from, socket): (c_int, &Open), end: c_int, moved: usize, waits: bool) -> Result<usize> {
        wait_for(end, Interest::WRITABLE, waits)?;
        // Before the connection is looked at, and waited for (`wait_for_space`).
        if pipe::has_no_reader(end) {
            kernel::signal_self(libc::SIGPIPE);
            return error(libc::EPIPE);
        }
        let mut chunk = [0; CHUNK_BYTES];
        let room = chunk.len().min(self.count - moved);
        loop {
            match move_now((from, socket), end, &mut chunk[..room])? {
                Some(count) => return Ok(count),
                None if moved > 0 => return Err(WOULD_BLOCK),
                None => {}
            }
            // Whether the connection is waited for is its own affair. Another thread may have what comes.
            let waits = Receive { flags: libc::MSG_PEEK };
            if recv(from, &mut [IoSliceMut::new(&mut chunk[..1])], waits)? == 0 {
                return Ok(0);
            }
        }
    }

    /// From a pipe to a connection: no more is taken out of the pipe than the connection has room for.
    fn put_into(&self, end: c_int, to: c_int, socket: &Open) -> Result<usize> {
        let waits = pipe::is_blocking(end, false)? && self.waits;
        let stream = stream(socket)?;
        let mut moved = 0;
        while moved < self.count {
            match self.chunk_into(end, to, stream, moved, waits && moved == 0) {
                Ok(0) => break,
                Ok(count) => moved += count,
                Err(error) if moved == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(moved)
    }

    fn chunk_into(&self, end: c_int, to: c_int, stream: &Stream, moved: usize, waits: bool) -> Result<usize> {
        wait_for(end, Interest::READABLE, waits)?;
        // What cannot be written any more stays in the pipe.
        send(to, &[], Send { flags: libc::MSG_DONTWAIT })?;
        let more = if self.more { libc::MSG_MORE } else { 0 };
        let (mut room, mut until) = (stream.room()?, None);
        while room == 0 {
            if stream.is_nonblocking() || moved > 0 {
                return Err(WOULD_BLOCK);
            }
            // It is asked once for the whole of a call (`sock_sndtimeo` in `tcp_sendmsg_locked`): another thread may take the room.
            let timeout = stream.options.send_timeout();
            let until = *until.get_or_insert_with(|| timeout.map(|timeout| Instant::now() + timeout));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !block::until_ready(stream.stream(), Interest::WRITABLE, None, left)? {
                return Err(WOULD_BLOCK);
            }
            // One that ends meanwhile is told of like one that has room, and has none.
            send(to, &[], Send { flags: libc::MSG_DONTWAIT })?;
            room = stream.room()?;
        }
        let mut chunk = [0; CHUNK_BYTES];
        let room = room.min(chunk.len()).min(self.count - moved);
        let read = pipe::read(end, &mut chunk[..room])?;
        let mut sent = 0;
        // Another thread may have taken the room: what was taken out of the pipe has to leave all the same.
        while sent < read {
            match send(to, &[IoSlice::new(&chunk[sent..read])], Send { flags: more | libc::MSG_DONTWAIT }) {
                Ok(count) => sent += count,
                Err(WOULD_BLOCK) => match block::until_ready(stream.stream(), Interest::WRITABLE, None, None) {
                    Err(RESTARTS) if signals::goes_on_waiting() => {}
                    waited => drop(waited?),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

/// Moves what is there of a connection, and a pipe has room for, as far as it fills a buffer; nothing is there if it returns nothing.
fn move_now((from, socket): (c_int, &Open), end: c_int, chunk: &mut [u8]) -> Result<Option<usize>> {
    let _alone = alone(socket);
    let peek = Receive { flags: libc::MSG_PEEK | libc::MSG_DONTWAIT };
    let there = match recv(from, &mut [IoSliceMut::new(chunk)], peek) {
        Err(WOULD_BLOCK) => return Ok(None),
        there => there?,
    };
    let written = pipe::write(end, &chunk[..there])?;
    if written > 0 {
        let take = Receive { flags: libc::MSG_DONTWAIT };
        recv(from, &mut [IoSliceMut::new(&mut chunk[..written])], take)?;
    }
    Ok(Some(written))
}

/// Waits until a pipe is ready, if this waits.
fn wait_for(end: c_int, interest: Interest, waits: bool) -> Result<()> {
    if pipe::is_ready(end, interest == Interest::WRITABLE)? {
        return Ok(());
    }
    if !waits {
        return Err(WOULD_BLOCK);
    }
    let wait = Wait::new()?;
    wait.add_kernels(end, interest, || interest)?;
    let waited = wait.wait(None);
    wait.remove_kernels(end);
    signals::or_restarts(waited, None).map(drop)
}
