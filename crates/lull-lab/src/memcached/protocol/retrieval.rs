//! Retrievals: it looks up the keys of a line as far as the output has room, and handles lines that are longer than a
//! normal line may be.

use super::super::command::{self, BAD_EXPTIME, BAD_FORMAT, Retrieval, next_token};
use super::super::item::{KEY_BYTES_MAX, expiry_s};
use super::super::reply::look_up;
use super::super::store::Store;
use super::{Keys, LINE_BYTES_MAX, OUTPUT_PAUSE_BYTES, Session, State, Step, trim_cr};

/// The most blanks before a retrieval that is longer than a line.
const LEADING_BLANKS_MAX: usize = 100;

impl Session {
    /// Handles a full `line` without a line end: a long retrieval is processed as it arrives, and anything else is an
    /// error.
    pub(super) fn begin_long_line(&mut self, out: &mut Vec<u8>, now_s: u32) {
        let blanks = self.line.iter().take_while(|byte| **byte == b' ').count();
        let begun = next_token(&self.line).and_then(|(verb, rest)| {
            let retrieval = command::retrieval(verb).filter(|_| blanks <= LEADING_BLANKS_MAX)?;
            Some((retrieval, self.line.len() - rest.len()))
        });
        let Some((retrieval, mut at)) = begun else {
            self.state = State::Closed;
            return;
        };
        let mut expires_s = 0;
        if retrieval.touch {
            // An expiry time that does not end within the first 2 KiB is handled like one that is not a number.
            let rest = &self.line[at..];
            match next_token(rest).filter(|(_, after)| !after.is_empty()) {
                Some((token, after)) if command::signed(token).is_some() => {
                    expires_s = command::signed(token).map_or(0, |exptime| expiry_s(exptime, now_s));
                    at += rest.len() - after.len();
                }
                _ => {
                    out.extend_from_slice(BAD_EXPTIME);
                    self.line.clear();
                    self.state = State::SkipLine;
                    return;
                }
            }
        }
        self.line.drain(..at);
        self.state = State::Keys(Keys { retrieval, expires_s, complete: false });
    }

    #[inline]
    pub(super) fn retrieve(
        &mut self,
        retrieval: Retrieval,
        mut keys: &[u8],
        out: &mut Vec<u8>,
        store: &Store,
        now_s: u32,
    ) {
        let mut expires_s = 0;
        if retrieval.touch {
            // `command::parse` has checked that there is an argument.
            let (token, rest) = next_token(keys).unwrap_or((&[], &[]));
            let Some(exptime) = command::signed(token) else {
                out.extend_from_slice(BAD_EXPTIME);
                return;
            };
            expires_s = expiry_s(exptime, now_s);
            keys = rest;
        }
        // A key that is too long makes the whole command an error, before anything is printed.
        if keys.len() > KEY_BYTES_MAX && keys.split(|byte| *byte == b' ').any(|key| key.len() > KEY_BYTES_MAX) {
            out.extend_from_slice(BAD_FORMAT);
            return;
        }
        while let Some((key, rest)) = next_token(keys) {
            if out.len() >= OUTPUT_PAUSE_BYTES {
                self.line = keys.to_vec();
                self.state = State::Keys(Keys { retrieval, expires_s, complete: true });
                return;
            }
            look_up(retrieval, key, expires_s, out, store, now_s);
            keys = rest;
        }
        out.extend_from_slice(b"END\r\n");
    }

    /// Continues a retrieval whose keys are in `line`.
    pub(super) fn take_keys(
        &mut self,
        Keys { retrieval, expires_s, mut complete }: Keys,
        input: &[u8],
        out: &mut Vec<u8>,
        store: &Store,
        now_s: u32,
    ) -> Step {
        let mut used = 0;
        if !complete {
            let room = (LINE_BYTES_MAX + 1).saturating_sub(self.line.len());
            let window = &input[..input.len().min(room)];
            let end = memchr::memchr(b'\n', window);
            self.line.extend_from_slice(&window[..end.unwrap_or(window.len())]);
            used = end.map_or(window.len(), |end| end + 1);
            complete = end.is_some();
            if complete {
                let trimmed = trim_cr(&self.line).len();
                self.line.truncate(trimmed);
            }
        }
        let line = std::mem::take(&mut self.line);
        let mut keys = &line[..];
        let mut bad_key = false;
        while let Some((key, rest)) = next_token(keys) {
            let unfinished = rest.is_empty() && !complete;
            // The first half of a line end may be part of the unfinished token.
            bad_key = key.len() > KEY_BYTES_MAX + usize::from(unfinished) || key.contains(&0);
            if unfinished || bad_key || out.len() >= OUTPUT_PAUSE_BYTES {
                keys = &keys[keys.iter().take_while(|byte| **byte == b' ').count()..];
                break;
            }
            look_up(retrieval, key, expires_s, out, store, now_s);
            keys = rest;
        }
        let blank = next_token(keys).is_none();
        if bad_key {
            out.extend_from_slice(BAD_FORMAT);
            self.state = if complete { State::Line } else { State::SkipLine };
        } else if complete && blank {
            out.extend_from_slice(b"END\r\n");
            self.state = State::Line;
        } else {
            self.state = State::Keys(Keys { retrieval, expires_s, complete });
            if !blank {
                self.line = keys.to_vec();
            }
            if !complete && input.is_empty() {
                return Step::Starved;
            }
        }
        Step::Used(used)
    }
}
