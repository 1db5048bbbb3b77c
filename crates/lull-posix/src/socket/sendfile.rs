//! `sendfile` to a socket of lull's goes through a buffer. From such a socket into a pipe it is `splice`.

use std::io::IoSlice;

use libc::{c_int, off_t};

use super::{Send, send, splice};
use crate::{Errno, Result, files, kernel};

/// How much is read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// `sendfile`. With an offset, the file's own position stays where it is and the offset moves. Without one, the
/// position moves.
pub fn sendfile(to: c_int, from: c_int, offset: Option<&mut off_t>, count: usize) -> Result<usize> {
    if files::is_lull(from) {
        return match offset {
            // A socket has no place to begin at.
            Some(_) => Err(Errno::new(libc::ESPIPE)),
            // Into a pipe it is `splice` (`do_sendfile`). What is neither that nor mapped is refused there.
            None => splice((from, false), (to, false), count, 0),
        };
    }
    let mut at = match offset.as_deref() {
        Some(offset) => *offset,
        // A pipe has no position, and no offset was given (`splice_direct_to_actor`).
        None => kernel::position(from).map_err(|error| match error.number() {
            libc::ESPIPE => Errno::new(libc::EINVAL),
            _ => error,
        })?,
    };
    let begin = at;
    let mut chunk = vec![0; CHUNK_BYTES.min(count)];
    let result = loop {
        let left = count - (at - begin) as usize;
        if left == 0 {
            break Ok(());
        }
        let room = chunk.len().min(left);
        let read = match kernel::pread(from, &mut chunk[..room], at) {
            Ok(0) => break Ok(()),
            Ok(read) => read,
            // A directory is no file that could be sent.
            Err(error) if error.number() == libc::EISDIR => break Err(Errno::new(libc::EINVAL)),
            Err(error) => break Err(error),
        };
        match send(to, &[IoSlice::new(&chunk[..read])], Send::default()) {
            Ok(sent) => {
                at += sent as off_t;
                if sent < read {
                    break Ok(());
                }
            }
            Err(error) => break Err(error),
        }
    };
    let sent = (at - begin) as usize;
    match offset {
        Some(offset) => *offset = at,
        None => kernel::set_position(from, at)?,
    }
    // The call tells how much was taken before an error, and the next call tells the error.
    if sent == 0 { result.map(|()| 0) } else { Ok(sent) }
}
