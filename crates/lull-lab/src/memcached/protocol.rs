//! One connection's protocol state: bytes in, bytes out.

mod retrieval;

use super::VERSION;
use super::command::{self, BAD_FORMAT, Command, Retrieval};
use super::item::{Arithmetic, StoreMode, expiry_s};
use super::reply::{outcome_text, put_number, reply};
use super::report;
use super::store::{MEMORY_BYTES_MIN, Store};

/// The longest command line in bytes, without its end, of any command except a retrieval. A longer one closes the
/// connection. Retrievals may be of any length and are processed as they arrive.
pub const LINE_BYTES_MAX: usize = 2048;
/// The first byte of a request of the binary protocol. No command begins with it.
const BINARY_REQUEST: u8 = 0x80;
/// The number of output bytes at which a session stops taking input until the owner has sent some. One reply may exceed
/// it by the size of an item, or by 2 MiB for `stats cachedump`.
pub const OUTPUT_PAUSE_BYTES: usize = 256 * 1024;
/// The number of bytes received or sent after which a session reports them to the store's counters.
const TRAFFIC_STEP_BYTES: u64 = 16 * 1024;
/// A buffer that grew beyond this is freed when it is empty.
const KEPT_BUFFER_BYTES: usize = 4096;

/// The result of [`Session::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// The number of input bytes taken: all of them unless `blocked` or `close`. The rest has to be offered again.
    pub consumed: usize,
    /// The output has reached [`OUTPUT_PAUSE_BYTES`]. The owner has to send it, and then to feed again, even with no
    /// input.
    pub blocked: bool,
    /// The owner has to send the output, and then to close the connection (`quit`, a line beyond the limit, HTTP, or
    /// the binary protocol).
    pub close: bool,
}

/// A connection's state between two arrivals of bytes.
///
/// It holds the incomplete part of the input: part of a line, part of a value (never more than the client has sent, and
/// never more than the item limit), and the keys of a retrieval whose output is too much to make at once. The output
/// does not depend on how the input was cut into pieces.
///
/// There are these differences from memcached 1.6.18. Whether a long line closes the connection does not depend on how
/// it was cut. Flags beyond 32 bits are refused, not truncated. A NUL byte in a line is an error (memcached ends the
/// line there). A line that begins with an HTTP method closes the connection, as one that ends with its version does. A
/// retrieval line longer than [`LINE_BYTES_MAX`] prints the items before a key that is too long. The binary protocol
/// closes the connection at the first byte of a request (0x80). The meta commands, slab and crawler control and UDP do
/// not exist (`ERROR`).
#[derive(Debug, Default)]
pub struct Session {
    state: State,
    /// Part of a line, or the keys still to be looked up.
    line: Vec<u8>,
    /// The key of the value being received.
    key: Vec<u8>,
    /// The value being received, with its line end.
    value: Vec<u8>,
    read_unreported: u64,
    written_unreported: u64,
}

/// A retrieval of which some keys have not been looked up yet.
#[derive(Clone, Copy, Debug)]
struct Keys {
    retrieval: Retrieval,
    expires_s: u32,
    /// Whether the line has ended, so that no more keys follow.
    complete: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Waiting for the end of a command line.
    #[default]
    Line,
    /// Receiving the value of a store.
    Value(Header),
    /// Skipping this many bytes of a refused value, its line end included.
    Swallow { left: usize },
    /// Looking up the keys in `line`.
    Keys(Keys),
    /// Skipping to the end of a line that was answered with an error.
    SkipLine,
    /// No more input is taken.
    Closed,
}

/// A store's command line, without the key.
#[derive(Clone, Copy, Debug)]
struct Header {
    mode: StoreMode,
    flags: u32,
    exptime: i64,
    value_bytes: usize,
    noreply: bool,
}

/// The result of one step of the session.
enum Step {
    /// This many input bytes were used, and the session goes on.
    Used(usize),
    /// All input was used, and more is needed.
    Starved,
}

impl Session {
    /// Makes a session at the start of a connection.
    pub fn new() -> Session {
        Session::default()
    }

    /// Whether the session is between two commands.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Line) && self.line.is_empty()
    }

    /// Takes received bytes, appends the replies to `out`, and returns how far it got.
    ///
    /// `now_s` is the unix time in seconds.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>, store: &Store, now_s: u32) -> Fed {
        let out_before = out.len();
        let mut at = 0;
        let blocked = loop {
            if matches!(self.state, State::Closed) {
                break false;
            }
            if out.len() >= OUTPUT_PAUSE_BYTES {
                break at < input.len() || matches!(self.state, State::Keys(_));
            }
            match self.step(&input[at..], out, store, now_s) {
                Step::Used(bytes) => at += bytes,
                Step::Starved => {
                    at = input.len();
                    break false;
                }
            }
        };
        self.count_traffic(at, out.len() - out_before, store);
        Fed { consumed: at, blocked, close: matches!(self.state, State::Closed) }
    }

    fn count_traffic(&mut self, read: usize, written: usize, store: &Store) {
        self.read_unreported += read as u64;
        self.written_unreported += written as u64;
        if self.read_unreported + self.written_unreported >= TRAFFIC_STEP_BYTES {
            self.report_traffic(store);
        }
    }

    fn report_traffic(&mut self, store: &Store) {
        store.add_traffic(std::mem::take(&mut self.read_unreported), std::mem::take(&mut self.written_unreported));
    }

    #[inline]
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>, store: &Store, now_s: u32) -> Step {
        match self.state {
            State::Line => self.take_line(input, out, store, now_s),
            State::Value(header) => self.take_value(header, input, out, store, now_s),
            State::Swallow { left } => {
                let skipped = left.min(input.len());
                self.state = if skipped == left { State::Line } else { State::Swallow { left: left - skipped } };
                if skipped == left { Step::Used(skipped) } else { Step::Starved }
            }
            State::Keys(keys) => self.take_keys(keys, input, out, store, now_s),
            State::SkipLine => match memchr::memchr(b'\n', input) {
                Some(end) => {
                    self.state = State::Line;
                    Step::Used(end + 1)
                }
                None => Step::Starved,
            },
            State::Closed => Step::Starved,
        }
    }

    /// Completes a line and runs it.
    #[inline]
    fn take_line(&mut self, input: &[u8], out: &mut Vec<u8>, store: &Store, now_s: u32) -> Step {
        match input.first() {
            None => return Step::Starved,
            // The rest of such a request may have no line end. Then both its sender and the service would wait.
            Some(&BINARY_REQUEST) if self.line.is_empty() => {
                self.state = State::Closed;
                return Step::Used(1);
            }
            Some(_) => {}
        }
        // One byte more than a line may have is enough to detect a line that is too long.
        let room = LINE_BYTES_MAX + 1 - self.line.len();
        let window = &input[..input.len().min(room)];
        let Some(end) = memchr::memchr(b'\n', window) else {
            self.line.extend_from_slice(window);
            if window.len() == room {
                self.begin_long_line(out, now_s);
            }
            return Step::Used(window.len());
        };
        let used = end + 1;
        if self.line.is_empty() {
            let taken = self.run(trim_cr(&window[..end]), &input[used..], out, store, now_s);
            return Step::Used(used + taken);
        }
        self.line.extend_from_slice(&window[..end]);
        let line = std::mem::take(&mut self.line);
        let taken = self.run(trim_cr(&line), &input[used..], out, store, now_s);
        if self.line.is_empty() {
            self.line = line;
            self.line.clear();
        }
        Step::Used(used + taken)
    }

    /// Runs a line. `rest` is the input behind it; returns how much of that it used.
    #[inline]
    fn run(&mut self, line: &[u8], rest: &[u8], out: &mut Vec<u8>, store: &Store, now_s: u32) -> usize {
        if memchr::memchr(0, line).is_some() {
            out.extend_from_slice(BAD_FORMAT);
            return 0;
        }
        match command::parse(line) {
            Command::Retrieve { retrieval, arguments } => self.retrieve(retrieval, arguments, out, store, now_s),
            Command::Store { mode, key, flags, exptime, value_bytes, noreply } => {
                let header = Header { mode, flags, exptime, value_bytes, noreply };
                return self.begin_store(header, key, rest, out, store, now_s);
            }
            other => self.run_other(other, out, store, now_s),
        }
        0
    }

    fn run_other(&mut self, command: Command<'_>, out: &mut Vec<u8>, store: &Store, now_s: u32) {
        match command {
            Command::Retrieve { .. } | Command::Store { .. } => unreachable!("run has handled these"),
            Command::Delete { key, noreply } => {
                let deleted = store.delete(key, now_s);
                reply(out, noreply, if deleted { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Arithmetic { up, key, delta, noreply } => {
                let result = if up { store.increment(key, delta, now_s) } else { store.decrement(key, delta, now_s) };
                match result {
                    Arithmetic::Value(_) if noreply => {}
                    Arithmetic::Value(value) => {
                        put_number(out, value);
                        out.extend_from_slice(b"\r\n");
                    }
                    Arithmetic::NotFound => reply(out, noreply, b"NOT_FOUND\r\n"),
                    Arithmetic::NonNumeric => {
                        let error = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
                        reply(out, noreply, error);
                    }
                }
            }
            Command::Touch { key, exptime, noreply } => {
                let touched = store.touch(key, expiry_s(exptime, now_s), now_s);
                reply(out, noreply, if touched { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::FlushAll { exptime, noreply } => {
                store.flush(exptime.map_or(now_s, |exptime| expiry_s(exptime, now_s)), now_s);
                reply(out, noreply, b"OK\r\n");
            }
            Command::Verbosity { level, noreply } => {
                store.set_verbosity(level);
                reply(out, noreply, b"OK\r\n");
            }
            Command::CacheMemlimit { mebibytes, noreply } => {
                let bytes = usize::try_from(mebibytes).ok().and_then(|mebibytes| mebibytes.checked_mul(1 << 20));
                match bytes {
                    Some(bytes) if bytes >= MEMORY_BYTES_MIN => {
                        store.set_memory_bytes_max(bytes, now_s);
                        reply(out, noreply, b"OK\r\n");
                    }
                    Some(_) => {
                        let error = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
                        reply(out, noreply, error);
                    }
                    None => reply(out, noreply, BAD_FORMAT),
                }
            }
            Command::Stats { topic, arguments } => {
                self.report_traffic(store);
                report::stats(topic, arguments, out, store, now_s);
            }
            Command::Version => {
                for part in ["VERSION ", VERSION, "\r\n"] {
                    out.extend_from_slice(part.as_bytes());
                }
            }
            // None of the following input may be taken for commands, because a web page could have chosen it.
            Command::Quit | Command::Http => self.state = State::Closed,
            Command::Refused { reply: text, noreply } => reply(out, noreply, text),
        }
    }

    /// Handles a complete line of a store: stores the value if all of it is there, and otherwise begins to collect it.
    fn begin_store(
        &mut self,
        header: Header,
        key: &[u8],
        rest: &[u8],
        out: &mut Vec<u8>,
        store: &Store,
        now_s: u32,
    ) -> usize {
        let block_bytes = header.value_bytes + 2;
        if !store.fits(key.len(), header.value_bytes) {
            let outcome = store.refuse_too_large(header.mode, key, now_s);
            reply(out, header.noreply, outcome_text(outcome));
            self.state = State::Swallow { left: block_bytes };
            return 0;
        }
        if rest.len() >= block_bytes {
            finish_store(header, key, &rest[..block_bytes], out, store, now_s);
            return block_bytes;
        }
        self.key.clear();
        self.key.extend_from_slice(key);
        self.state = State::Value(header);
        0
    }

    fn take_value(&mut self, header: Header, input: &[u8], out: &mut Vec<u8>, store: &Store, now_s: u32) -> Step {
        let block_bytes = header.value_bytes + 2;
        let taken = input.len().min(block_bytes - self.value.len());
        self.value.extend_from_slice(&input[..taken]);
        if self.value.len() < block_bytes {
            return Step::Starved;
        }
        finish_store(header, &self.key, &self.value, out, store, now_s);
        self.value.clear();
        if self.value.capacity() > KEPT_BUFFER_BYTES {
            self.value = Vec::new();
        }
        self.state = State::Line;
        Step::Used(taken)
    }
}

/// Stores a data block, or refuses it if it does not end where its length says.
fn finish_store(header: Header, key: &[u8], block: &[u8], out: &mut Vec<u8>, store: &Store, now_s: u32) {
    let Some(value) = block.strip_suffix(b"\r\n") else {
        reply(out, header.noreply, b"CLIENT_ERROR bad data chunk\r\n");
        return;
    };
    let expires_s = expiry_s(header.exptime, now_s);
    let outcome = store.store(header.mode, key, value, header.flags, expires_s, now_s);
    reply(out, header.noreply, outcome_text(outcome));
}

#[inline]
fn trim_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
