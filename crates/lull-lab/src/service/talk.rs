//! One connection's exchange: bytes off a stream through the protocol, and replies back. The streams of lull's own
//! stack and of the kernel's both carry it.

use std::io;

use crate::memcached::{Session, Store};

/// Bytes taken from a connection at a time (memcached's `DATA_BUFFER_SIZE`).
pub(crate) const READ_BYTES: usize = 16 * 1024;

/// A connected stream that does not block.
pub(crate) trait Stream {
    /// Takes what is there; 0 at the end of the stream.
    fn recv(&mut self, into: &mut [u8]) -> io::Result<usize>;
    /// Sends what there is room for.
    fn send(&mut self, data: &[u8]) -> io::Result<usize>;
}

/// A connection's protocol and what it could not send yet.
#[derive(Default)]
pub(crate) struct Talk {
    session: Session,
    /// Output that the socket had no room for; while there is some, nothing is read.
    unsent: Vec<u8>,
}

/// What a connection asks for after it was served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// To be told when there is more to read.
    Read,
    /// To be told when there is room to send.
    Write,
    /// To be closed.
    Close,
}

impl Talk {
    /// Whether it stands between two commands with nothing to send.
    pub(crate) fn is_idle(&self) -> bool {
        self.unsent.is_empty() && self.session.is_idle()
    }

    /// Whether output waits for room in the socket.
    pub(crate) fn is_writing(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what waits, reads what is there, answers it.
    pub(crate) fn serve(
        &mut self,
        stream: &mut impl Stream,
        input: &mut [u8],
        output: &mut Vec<u8>,
        store: &Store,
        now_s: u32,
    ) -> Next {
        if !self.unsent.is_empty() {
            let unsent = std::mem::take(&mut self.unsent);
            match self.send(stream, &unsent) {
                Next::Read => {}
                other => return other,
            }
            // Replies that were held back while the output was too long.
            match self.answer(stream, &[], output, store, now_s) {
                Next::Read => {}
                other => return other,
            }
        }
        match stream.recv(input) {
            Ok(0) => Next::Close,
            Ok(count) => self.answer(stream, &input[..count], output, store, now_s),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Read,
            Err(_) => Next::Close,
        }
    }

    /// Answers what was read. Not while output waits ([`Talk::is_writing`]).
    pub(crate) fn answer(
        &mut self,
        stream: &mut impl Stream,
        mut input: &[u8],
        output: &mut Vec<u8>,
        store: &Store,
        now_s: u32,
    ) -> Next {
        loop {
            output.clear();
            let fed = self.session.feed(input, output, store, now_s);
            input = &input[fed.consumed..];
            if !output.is_empty() {
                match self.send(stream, output) {
                    Next::Read => {}
                    Next::Write if !fed.close && input.is_empty() => return Next::Write,
                    // A client that neither reads its replies nor stops asking is closed: memory is bounded.
                    _ => return Next::Close,
                }
            }
            if fed.close {
                return Next::Close;
            }
            if !fed.blocked && input.is_empty() {
                return Next::Read;
            }
        }
    }

    /// `Next::Write` if some of it has to wait.
    fn send(&mut self, stream: &mut impl Stream, data: &[u8]) -> Next {
        let mut sent = 0;
        while sent < data.len() {
            match stream.send(&data[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent.extend_from_slice(&data[sent..]);
                    return Next::Write;
                }
                Err(_) => return Next::Close,
            }
        }
        Next::Read
    }
}
