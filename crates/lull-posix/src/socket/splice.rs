//! `splice` between a pipe and a connection of lull's. The data go through a buffer, and nothing in it is lost when one
//! side takes less.

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
/// How many locks there are, which all connections share.
const LOCKS: usize = 16;

static ONE_AT_A_TIME: Afresh<[Mutex<()>; LOCKS]> = Afresh::new();

/// Lets only one thread at a time move what is there, of those that splice out of one connection.
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

/// `splice` where at least one number is lull's. Each comes with whether it was given an offset.
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
        if let File::Listener(_) = **socket {
            // The pipe is looked at first (`splice_file_to_pipe`, `tcp_read_sock`).
            wait_for_room(end, waits)?;
            return error(libc::ENOTCONN);
        }
        let stream = stream(socket)?;
        let mut moved = 0;
        // An error that comes after something was moved is told by the next call (`tcp_splice_read`).
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
        wait_for_room(end, waits)?;
        let mut chunk = [0; CHUNK_BYTES];
        let room = chunk.len().min(self.count - moved);
        loop {
            match move_now((from, socket), end, &mut chunk[..room])? {
                Some(count) => return Ok(count),
                None if moved > 0 => return Err(WOULD_BLOCK),
                None => {}
            }
            // The connection's own flags say whether it is waited for. Another thread may take what comes.
            let waits = Receive { flags: libc::MSG_PEEK };
            if recv(from, &mut [IoSliceMut::new(&mut chunk[..1])], waits)? == 0 {
                return Ok(0);
            }
        }
    }

    /// From a pipe to a connection: no more is taken out of the pipe than the connection has room for.
    fn put_into(&self, end: c_int, to: c_int, socket: &Open) -> Result<usize> {
        let waits = pipe::is_blocking(end, false)? && self.waits;
        if let File::Listener(_) = **socket {
            // There is something to be sent first (`splice_to_socket`).
            wait_for(end, Interest::READABLE, waits)?;
            return send(to, &[], Send { flags: libc::MSG_DONTWAIT });
        }
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
            // The timeout is read once for the whole of a call (`sock_sndtimeo` in `tcp_sendmsg_locked`), although
            // another thread may take the room meanwhile.
            let timeout = stream.options.send_timeout();
            let until = *until.get_or_insert_with(|| timeout.map(|timeout| Instant::now() + timeout));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !block::until_ready(stream.stream(), Interest::WRITABLE, None, left)? {
                return Err(WOULD_BLOCK);
            }
            // A connection that ends meanwhile counts as ready, like one that has room, though it has none.
            send(to, &[], Send { flags: libc::MSG_DONTWAIT })?;
            room = stream.room()?;
        }
        let mut chunk = [0; CHUNK_BYTES];
        let room = room.min(chunk.len()).min(self.count - moved);
        let read = pipe::read(end, &mut chunk[..room])?;
        let mut sent = 0;
        // Another thread may have taken the room. What was taken out of the pipe has to be sent all the same.
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

/// Moves what has come on a connection, as far as the pipe has room for it and a buffer holds it. Returns nothing if
/// nothing is there.
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

/// Waits until a pipe has room, before the socket is looked at, and waited for (`wait_for_space`).
fn wait_for_room(end: c_int, waits: bool) -> Result<()> {
    wait_for(end, Interest::WRITABLE, waits)?;
    if pipe::has_no_reader(end) {
        kernel::signal_self(libc::SIGPIPE);
        return error(libc::EPIPE);
    }
    Ok(())
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
