//! Checks a stream of answers, whose segments may be cut anywhere.

use super::workload::{Query, Workload};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record, with the right size.
    Hit,
    /// `END`: there is no such record.
    Miss,
    /// `STORED`.
    Stored,
    /// A value of another size than the workload's, or a line that is no answer to the request.
    Wrong,
    /// `ERROR`, `CLIENT_ERROR`, `SERVER_ERROR` or `NOT_STORED`.
    Refused,
}

/// The state of one connection's answers. It is small, because every connection has one and most are idle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checker {
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Before the first byte of an answer.
    #[default]
    Start,
    /// In the first line. The state keeps its first two bytes, the number of blanks, and the number after the last
    /// blank.
    Line { head: [u8; 2], blanks: u8, number: u32 },
    /// In the value of a hit and its line end.
    Value { left: u32, right_size: bool },
    /// In the `END` line behind a value.
    End { right_size: bool },
}

/// The end of every hit.
const HIT_END: &[u8] = b"\r\nEND\r\n";

impl Checker {
    /// Takes bytes of the answer to `request`. Returns how many belong to it, and the outcome if the answer is
    /// complete.
    #[inline]
    pub fn feed(&mut self, workload: &Workload, request: Query, bytes: &[u8]) -> (usize, Option<Outcome>) {
        if let State::Start = self.state {
            // In the common case the whole of the expected answer is there.
            let expected = workload.response_bytes(request);
            if let Some(answer) = bytes.get(..expected) {
                if request.is_set() {
                    if answer == b"STORED\r\n" {
                        return (expected, Some(Outcome::Stored));
                    }
                } else if answer.starts_with(b"VALUE ")
                    && answer.ends_with(HIT_END)
                    && line_fits(workload, request, answer)
                {
                    return (expected, Some(Outcome::Hit));
                }
            }
        }
        self.feed_slow(workload, request, bytes)
    }

    fn feed_slow(&mut self, workload: &Workload, request: Query, bytes: &[u8]) -> (usize, Option<Outcome>) {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            match self.state {
                State::Start => {
                    at += 1;
                    self.state = State::Line { head: [byte, 0], blanks: 0, number: 0 };
                }
                State::Line { mut head, blanks, number } => {
                    at += 1;
                    if byte != b'\n' {
                        if head[1] == 0 {
                            head[1] = byte;
                        }
                        self.state = match byte {
                            b' ' => State::Line { head, blanks: blanks.saturating_add(1), number: 0 },
                            b'0'..=b'9' => {
                                let number = number.saturating_mul(10).saturating_add(u32::from(byte - b'0'));
                                State::Line { head, blanks, number }
                            }
                            _ => State::Line { head, blanks, number },
                        };
                        continue;
                    }
                    if head == *b"VA" && blanks == 3 && !request.is_set() {
                        let right_size = number as usize == workload.value_bytes(request.record());
                        self.state = State::Value { left: number.saturating_add(2), right_size };
                        continue;
                    }
                    self.state = State::Start;
                    return (at, Some(line_outcome(head, request)));
                }
                State::Value { left, right_size } => {
                    let taken = (bytes.len() - at).min(left as usize);
                    at += taken;
                    self.state = match left - taken as u32 {
                        0 => State::End { right_size },
                        left => State::Value { left, right_size },
                    };
                }
                State::End { right_size } => {
                    at += 1;
                    if byte == b'\n' {
                        self.state = State::Start;
                        return (at, Some(if right_size { Outcome::Hit } else { Outcome::Wrong }));
                    }
                }
            }
        }
        (at, None)
    }
}

/// Whether the first line of an answer, complete and of the expected length, ends with the expected size.
#[inline]
fn line_fits(workload: &Workload, request: Query, answer: &[u8]) -> bool {
    let value_bytes = workload.value_bytes(request.record());
    let line_end = answer.len() - HIT_END.len() - value_bytes - 2;
    let mut number = value_bytes;
    let mut at = line_end;
    loop {
        at -= 1;
        if answer[at] != b'0' + (number % 10) as u8 {
            return false;
        }
        number /= 10;
        if number == 0 {
            break;
        }
    }
    answer[at - 1] == b' ' && answer[line_end..].starts_with(b"\r\n")
}

/// Returns the outcome that a line without a value states. The answers of a memcached differ in their first two
/// letters.
fn line_outcome(head: [u8; 2], request: Query) -> Outcome {
    match (&head, request.is_set()) {
        (b"EN", false) => Outcome::Miss,
        (b"ST", true) => Outcome::Stored,
        // These are ERROR, CLIENT_ERROR, SERVER_ERROR and NOT_STORED.
        (b"ER" | b"CL" | b"SE" | b"NO", _) => Outcome::Refused,
        _ => Outcome::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::workload::WorkloadConfig;

    fn answer(workload: &Workload, record: u32) -> Vec<u8> {
        let mut key = [0; 250];
        let len = workload.write_key(record, &mut key);
        let value = workload.value(record);
        let mut text = format!("VALUE {} 0 {}\r\n", String::from_utf8_lossy(&key[..len]), value.len()).into_bytes();
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\nEND\r\n");
        text
    }

    #[test]
    fn answers_are_recognised_however_they_are_cut() {
        let workload = Workload::new(WorkloadConfig { records: 200, ..WorkloadConfig::default() }).expect("valid");
        for record in 0..200 {
            let (get, set) = (Query::get(record), Query::set(record));
            let hit = answer(&workload, record);
            assert_eq!(hit.len(), workload.response_bytes(get));
            let wrong = answer(
                &workload,
                (0..200)
                    .find(|other| workload.value_bytes(*other) != workload.value_bytes(record))
                    .expect("sizes differ"),
            );
            for (request, text, outcome) in [
                (get, &hit[..], Outcome::Hit),
                (get, b"END\r\n", Outcome::Miss),
                (get, &wrong, Outcome::Wrong),
                (get, b"SERVER_ERROR out of memory\r\n", Outcome::Refused),
                (get, b"ERROR\r\n", Outcome::Refused),
                (set, b"STORED\r\n", Outcome::Stored),
                (set, b"NOT_STORED\r\n", Outcome::Refused),
                (set, b"END\r\n", Outcome::Wrong),
            ] {
                for cut in 0..text.len().min(400) {
                    let mut checker = Checker::default();
                    let (first, second) = text.split_at(cut);
                    let (taken, none) = checker.feed(&workload, request, first);
                    assert_eq!((taken, none), (cut, None));
                    let next = [second, b"NEXT"].concat();
                    assert_eq!(checker.feed(&workload, request, &next), (second.len(), Some(outcome)));
                }
            }
        }
    }
}
