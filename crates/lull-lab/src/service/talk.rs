//! One connection's exchange: bytes from a stream through the protocol, and replies back, on either plane.

use std::io;

use super::plane::Stream;
use crate::memcached::{Session, Store};

/// The number of bytes taken from a connection at a time (memcached's `DATA_BUFFER_SIZE`).
pub(super) const READ_BYTES: usize = 16 * 1024;

/// A connection's protocol, and the data that waits for room in its socket.
#[derive(Default)]
pub(super) struct Talk {
    session: Session,
    /// While data waits, nothing is read. So a client that sends requests and does not read the replies is held up by
    /// its own window, and costs the service one reply and [`READ_BYTES`] at most.
    waiting: Option<Box<Waiting>>,
}

/// The data for which a socket had no room.
struct Waiting {
    /// The replies, of which the first `sent` bytes were sent.
    output: Vec<u8>,
    sent: usize,
    /// The requests that were read and have to be answered after them.
    input: Vec<u8>,
    /// Whether the connection ends when the replies are sent.
    close: bool,
}

/// What a connection needs after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It waits for more input.
    Read,
    /// It waits for room to send.
    Write,
    /// It has to be closed.
    Close,
}

/// The buffers that the connections of a worker share while one of them is served.
pub(super) struct Desk<'a> {
    /// The buffer into which requests are read.
    pub input: &'a mut [u8],
    /// The buffer into which replies are written before they are sent.
    pub output: &'a mut Vec<u8>,
    pub store: &'a Store,
    /// The unix time in seconds.
    pub now_s: u32,
}

impl Talk {
    /// Whether the connection is between two commands with nothing to send.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_none() && self.session.is_idle()
    }

    /// Whether output waits for room in the socket.
    pub fn is_writing(&self) -> bool {
        self.waiting.is_some()
    }

    /// Sends waiting output, reads the input and answers it.
    pub fn serve(&mut self, stream: &impl Stream, desk: &mut Desk<'_>) -> Next {
        if let Some(mut waiting) = self.waiting.take() {
            match send(stream, &waiting.output[waiting.sent..]) {
                Ok(sent) => waiting.sent += sent,
                Err(_) => return Next::Close,
            }
            if waiting.sent < waiting.output.len() {
                self.waiting = Some(waiting);
                return Next::Write;
            }
            if waiting.close {
                return Next::Close;
            }
            // This input was read before the socket was full. Its replies may have been held back because there were
            // too many.
            match self.answer(stream, &waiting.input, desk) {
                Next::Read => {}
                other => return other,
            }
        }
        match stream.recv(desk.input) {
            Ok(0) => Next::Close,
            Ok(count) => {
                let input = std::mem::take(&mut desk.input);
                let next = self.answer(stream, &input[..count], desk);
                desk.input = input;
                next
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Read,
            Err(_) => Next::Close,
        }
    }

    /// Answers the input that was read. It must not be called while output waits ([`Talk::is_writing`]).
    pub fn answer(&mut self, stream: &impl Stream, mut input: &[u8], desk: &mut Desk<'_>) -> Next {
        loop {
            desk.output.clear();
            let fed = self.session.feed(input, desk.output, desk.store, desk.now_s);
            input = &input[fed.consumed..];
            let Ok(sent) = send(stream, desk.output) else { return Next::Close };
            if sent < desk.output.len() {
                let output = desk.output[sent..].to_vec();
                self.waiting = Some(Box::new(Waiting { output, sent: 0, input: input.to_vec(), close: fed.close }));
                return Next::Write;
            }
            if fed.close {
                return Next::Close;
            }
            if !fed.blocked && input.is_empty() {
                return Next::Read;
            }
        }
    }
}

/// Sends as much as there is room for. Returns how much that was.
fn send(stream: &impl Stream, data: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < data.len() {
        match stream.send(&data[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    use super::*;
    use crate::memcached::StoreConfig;

    const NOW_S: u32 = 1_700_000_000;
    const BIG: usize = 1_000_000;

    /// A client that has sent `asked`, and whose test reads the replies.
    #[derive(Default)]
    struct Client {
        asked: RefCell<VecDeque<u8>>,
        told: RefCell<Vec<u8>>,
        room: Cell<usize>,
    }

    impl Stream for Client {
        fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
            let mut asked = self.asked.borrow_mut();
            if asked.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = into.len().min(asked.len());
            asked.drain(..count).zip(into).for_each(|(byte, into)| *into = byte);
            Ok(count)
        }

        fn send(&self, data: &[u8]) -> io::Result<usize> {
            let count = data.len().min(self.room.get());
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.room.set(self.room.get() - count);
            self.told.borrow_mut().extend_from_slice(&data[..count]);
            Ok(count)
        }

        fn set_busy_poll(&self, _usecs: u32) -> io::Result<()> {
            Ok(())
        }
    }

    struct World {
        client: Client,
        talk: Talk,
        store: Store,
        input: Vec<u8>,
        output: Vec<u8>,
    }

    impl World {
        fn asking(request: &[u8]) -> World {
            let store = Store::new(StoreConfig { shards: 1, hash_seed: Some(1), ..StoreConfig::default() });
            store.store(crate::memcached::StoreMode::Set, b"big", &vec![b'v'; BIG], 0, 0, NOW_S);
            let client = Client { asked: RefCell::new(request.iter().copied().collect()), ..Client::default() };
            World { client, talk: Talk::default(), store, input: vec![0; READ_BYTES], output: Vec::new() }
        }

        /// Serves with room for this many bytes.
        fn serve(&mut self, room: usize) -> Next {
            self.client.room.set(room);
            let World { client, talk, store, input, output } = self;
            talk.serve(client, &mut Desk { input, output, store, now_s: NOW_S })
        }

        fn kept_bytes(&self) -> usize {
            self.talk.waiting.as_ref().map_or(0, |waiting| waiting.output.capacity() + waiting.input.capacity())
        }
    }

    fn reply() -> Vec<u8> {
        [format!("VALUE big 0 {BIG}\r\n").as_bytes(), &vec![b'v'; BIG], b"\r\nEND\r\n"].concat()
    }

    #[test]
    fn pipelined_large_reads_are_answered_to_the_last_byte() {
        let mut world = World::asking(&b"get big\r\n".repeat(5));
        let mut rounds = 0;
        while world.serve(16 * 1024) == Next::Write {
            rounds += 1;
            assert!(rounds < 10_000);
        }
        assert_eq!(*world.client.told.borrow(), reply().repeat(5));
        assert!(world.talk.is_idle());
    }

    #[test]
    fn what_comes_before_quit_is_sent_before_the_end() {
        let mut world = World::asking(b"get big\r\nquit\r\n");
        let mut next = Next::Write;
        for _ in 0..1_000 {
            if next == Next::Close {
                break;
            }
            next = world.serve(16 * 1024);
        }
        assert_eq!((next, world.client.told.borrow().len()), (Next::Close, reply().len()));
    }

    #[test]
    fn a_client_that_reads_nothing_is_read_from_no_more() {
        let asked = b"get big\r\n".repeat(100_000);
        let mut world = World::asking(&asked);
        assert_eq!(world.serve(1), Next::Write);
        for _ in 0..100 {
            assert_eq!(world.serve(0), Next::Write);
        }
        let taken = asked.len() - world.client.asked.borrow().len();
        assert!(taken <= READ_BYTES, "{taken} bytes were read");
        assert!(world.kept_bytes() < 2 * BIG, "{} bytes are kept", world.kept_bytes());
    }
}
