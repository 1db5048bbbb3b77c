//! Parses a complete command line. If several errors apply, memcached's order decides which is reported.

use super::item::{KEY_BYTES_MAX, StoreMode};

pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(super) const BAD_DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
pub(super) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const NO_SHUTDOWN: &[u8] = b"ERROR: shutdown not enabled\r\n";

/// One more token than any command except a retrieval takes.
const TOKENS_MAX: usize = 8;
/// The longest value length that is accepted as a length. memcached keeps it in an `int` together with the line end.
const VALUE_BYTES_MAX: u64 = i32::MAX as u64 - 2;

/// A retrieval's variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retrieval {
    /// Whether the reply has the CAS number (gets, gats).
    pub cas: bool,
    /// Whether the first argument is an expiry time to set (gat, gats).
    pub touch: bool,
}

/// A command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    Retrieve {
        retrieval: Retrieval,
        arguments: &'a [u8],
    },
    Store {
        mode: StoreMode,
        key: &'a [u8],
        flags: u32,
        exptime: i64,
        value_bytes: usize,
        noreply: bool,
    },
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    Arithmetic {
        up: bool,
        key: &'a [u8],
        delta: u64,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i64,
        noreply: bool,
    },
    /// The time, given as expiry times are. `None` means now.
    FlushAll {
        exptime: Option<i64>,
        noreply: bool,
    },
    Verbosity {
        level: u64,
        noreply: bool,
    },
    CacheMemlimit {
        mebibytes: u64,
        noreply: bool,
    },
    Stats {
        topic: &'a [u8],
        arguments: [&'a [u8]; 2],
    },
    Version,
    Quit,
    /// An HTTP request, from a browser or from a page in one.
    Http,
    Refused {
        reply: &'static [u8],
        noreply: bool,
    },
}

/// Returns the first token of `line`, and the text behind it.
pub(super) fn next_token(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = line.iter().position(|byte| *byte != b' ')?;
    let rest = &line[start..];
    // Keys are short, so a plain loop is faster than a vectorised search with its set-up.
    let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
    Some(rest.split_at(end))
}

/// Returns the retrieval that `verb` names.
pub(super) fn retrieval(verb: &[u8]) -> Option<Retrieval> {
    let (cas, touch) = match verb {
        b"get" | b"bget" => (false, false),
        b"gets" => (true, false),
        b"gat" => (false, true),
        b"gats" => (true, true),
        _ => return None,
    };
    Some(Retrieval { cas, touch })
}

/// Parses a line without its end.
#[inline]
pub(super) fn parse(line: &[u8]) -> Command<'_> {
    // Nearly every line is a get, so it is recognised before anything is split.
    if let Some(arguments) = line.strip_prefix(b"get ") {
        return retrieve(Retrieval { cas: false, touch: false }, arguments);
    }
    parse_slow(line)
}

fn parse_slow(line: &[u8]) -> Command<'_> {
    let Some((verb, rest)) = next_token(line) else { return refused(ERROR) };
    if let Some(retrieval) = retrieval(verb) {
        return retrieve(retrieval, rest);
    }
    if is_http(verb, rest) {
        return Command::Http;
    }
    let Some(tokens) = Tokens::split(rest) else {
        // Some commands ignore their arguments.
        return match verb {
            b"version" => Command::Version,
            b"quit" => Command::Quit,
            _ => refused(ERROR),
        };
    };
    match verb {
        b"set" => store(StoreMode::Set, &tokens, 4),
        b"add" => store(StoreMode::Add, &tokens, 4),
        b"replace" => store(StoreMode::Replace, &tokens, 4),
        b"append" => store(StoreMode::Append, &tokens, 4),
        b"prepend" => store(StoreMode::Prepend, &tokens, 4),
        b"cas" => store(StoreMode::Cas(0), &tokens, 5),
        b"delete" => delete(&tokens),
        b"incr" => arithmetic(true, &tokens),
        b"decr" => arithmetic(false, &tokens),
        b"touch" => touch(&tokens),
        b"flush_all" => flush_all(&tokens),
        b"verbosity" => verbosity(&tokens),
        b"cache_memlimit" => cache_memlimit(&tokens),
        b"stats" => Command::Stats { topic: tokens.get(0), arguments: [tokens.get(1), tokens.get(2)] },
        b"version" => Command::Version,
        b"quit" => Command::Quit,
        b"shutdown" => refused(NO_SHUTDOWN),
        _ => refused(ERROR),
    }
}

/// Whether a line begins an HTTP request, by its method or by its version. memcached checks the version only.
fn is_http(verb: &[u8], rest: &[u8]) -> bool {
    const METHODS: [&[u8]; 9] =
        [b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE"];
    METHODS.contains(&verb) || rest.rsplit(|byte| *byte == b' ').next().is_some_and(|last| last.starts_with(b"HTTP/"))
}

fn retrieve(retrieval: Retrieval, arguments: &[u8]) -> Command<'_> {
    if arguments.iter().all(|byte| *byte == b' ') {
        return refused(ERROR);
    }
    Command::Retrieve { retrieval, arguments }
}

fn refused(reply: &'static [u8]) -> Command<'static> {
    Command::Refused { reply, noreply: false }
}

/// The arguments of a command.
struct Tokens<'a> {
    tokens: [&'a [u8]; TOKENS_MAX],
    len: usize,
    noreply: bool,
}

impl<'a> Tokens<'a> {
    /// Splits the tokens. Returns `None` if there are more than any command takes.
    fn split(mut rest: &'a [u8]) -> Option<Tokens<'a>> {
        let mut tokens = Tokens { tokens: [&[]; TOKENS_MAX], len: 0, noreply: false };
        while let Some((token, after)) = next_token(rest) {
            *tokens.tokens.get_mut(tokens.len)? = token;
            tokens.len += 1;
            rest = after;
        }
        tokens.noreply = tokens.len > 0 && tokens.tokens[tokens.len - 1] == b"noreply";
        Some(tokens)
    }

    /// Returns a token, which is empty if there are fewer.
    fn get(&self, index: usize) -> &'a [u8] {
        self.tokens[index]
    }

    fn refused(&self, reply: &'static [u8]) -> Command<'a> {
        Command::Refused { reply, noreply: self.noreply }
    }
}

fn store<'a>(mode: StoreMode, tokens: &Tokens<'a>, wanted: usize) -> Command<'a> {
    if tokens.len != wanted && tokens.len != wanted + 1 {
        return refused(ERROR);
    }
    let key = tokens.get(0);
    let flags = unsigned(tokens.get(1)).and_then(|flags| u32::try_from(flags).ok());
    let value_bytes = unsigned(tokens.get(3)).filter(|bytes| *bytes < VALUE_BYTES_MAX);
    let (Some(flags), Some(exptime), Some(value_bytes)) = (flags, signed(tokens.get(2)), value_bytes) else {
        return tokens.refused(BAD_FORMAT);
    };
    let mode = match mode {
        StoreMode::Cas(_) => match unsigned(tokens.get(4)) {
            Some(cas) => StoreMode::Cas(cas),
            None => return tokens.refused(BAD_FORMAT),
        },
        mode => mode,
    };
    if key.len() > KEY_BYTES_MAX {
        return tokens.refused(BAD_FORMAT);
    }
    Command::Store { mode, key, flags, exptime, value_bytes: value_bytes as usize, noreply: tokens.noreply }
}

fn delete<'a>(tokens: &Tokens<'a>) -> Command<'a> {
    let key = tokens.get(0);
    match tokens.len {
        1 => {}
        // The time that delete once took may still be given as 0.
        2 if tokens.get(1) == b"0" || tokens.noreply => {}
        3 if tokens.get(1) == b"0" && tokens.noreply => {}
        2 | 3 => return tokens.refused(BAD_DELETE),
        _ => return refused(ERROR),
    }
    if key.len() > KEY_BYTES_MAX {
        return tokens.refused(BAD_FORMAT);
    }
    Command::Delete { key, noreply: tokens.noreply }
}

fn arithmetic<'a>(up: bool, tokens: &Tokens<'a>) -> Command<'a> {
    if tokens.len != 2 && tokens.len != 3 {
        return refused(ERROR);
    }
    let key = tokens.get(0);
    if key.len() > KEY_BYTES_MAX {
        return tokens.refused(BAD_FORMAT);
    }
    match unsigned(tokens.get(1)) {
        Some(delta) => Command::Arithmetic { up, key, delta, noreply: tokens.noreply },
        None => tokens.refused(BAD_DELTA),
    }
}

fn touch<'a>(tokens: &Tokens<'a>) -> Command<'a> {
    if tokens.len != 2 && tokens.len != 3 {
        return refused(ERROR);
    }
    let key = tokens.get(0);
    if key.len() > KEY_BYTES_MAX {
        return tokens.refused(BAD_FORMAT);
    }
    match signed(tokens.get(1)) {
        Some(exptime) => Command::Touch { key, exptime, noreply: tokens.noreply },
        None => tokens.refused(BAD_EXPTIME),
    }
}

fn flush_all<'a>(tokens: &Tokens<'a>) -> Command<'a> {
    let noreply = tokens.noreply;
    let exptime = match tokens.len {
        0 => None,
        1 if noreply => None,
        1 | 2 => match signed(tokens.get(0)) {
            Some(exptime) => Some(exptime).filter(|exptime| *exptime > 0),
            None => return tokens.refused(BAD_EXPTIME),
        },
        _ => return refused(ERROR),
    };
    Command::FlushAll { exptime, noreply }
}

fn verbosity<'a>(tokens: &Tokens<'a>) -> Command<'a> {
    match (tokens.len, unsigned(tokens.get(0))) {
        (1..=3, Some(level)) => Command::Verbosity { level, noreply: tokens.noreply },
        (1..=3, None) => tokens.refused(BAD_FORMAT),
        _ => refused(ERROR),
    }
}

fn cache_memlimit<'a>(tokens: &Tokens<'a>) -> Command<'a> {
    match (tokens.len, unsigned(tokens.get(0))) {
        (1..=2, Some(mebibytes)) => Command::CacheMemlimit { mebibytes, noreply: tokens.noreply },
        (1..=2, None) => tokens.refused(ERROR),
        _ => refused(ERROR),
    }
}

/// Parses a decimal number that fits 64 bits. A plus sign is allowed.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a decimal number with an optional sign that fits 64 bits.
pub(super) fn signed(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_do_not_matter() {
        let expected = parse(b"set key 1 -2 3 noreply");
        assert_eq!(parse(b"  set  key 1   -2 3  noreply "), expected);
        assert_eq!(
            expected,
            Command::Store { mode: StoreMode::Set, key: b"key", flags: 1, exptime: -2, value_bytes: 3, noreply: true }
        );
    }

    #[test]
    fn numbers_are_whole_and_bounded() {
        assert_eq!(unsigned(b"+1"), Some(1));
        for bad in [&b""[..], b"1x", b"0x1", b"-1", b"18446744073709551616", b"\xff"] {
            assert_eq!(unsigned(bad), None, "{bad:?}");
        }
        assert_eq!(signed(b"-9"), Some(-9));
        assert_eq!(parse(b"set k 0 0 2147483645"), refused(BAD_FORMAT));
        assert_eq!(parse(b"set k 4294967296 0 1"), refused(BAD_FORMAT));
    }
}
