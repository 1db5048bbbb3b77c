//! The command's side: it finds the socket of a process and sends it requests.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::peer::{self, Peer};
use crate::place::Places;
use crate::reach::{left, reach};
use crate::schema::{ANSWER_BYTES_MAX, Answer, Request};

/// How long it may take until a request is answered. A process that is stopped, or that belongs to somebody malicious,
/// must not block an operator's terminal for ever.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that runs lull's user plane, found by its socket. Each request takes a connection of its own.
#[derive(Debug)]
pub struct Client {
    pid: u32,
    path: PathBuf,
    patience: Option<Patience>,
}

/// The time that several processes share. Each request may take half of what is left, so that many silent processes
/// take no longer than one. All processes of a user share one such time, so that a user takes no time from others; for
/// a controller, the processes of a program do.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    left: Arc<Mutex<Duration>>,
    /// Whether only silent processes use the time up. Those that answer then take nothing from the others, however many
    /// they are.
    with_silence_only: bool,
}

impl Patience {
    fn of_user(time: Duration) -> Patience {
        Patience { left: Arc::new(Mutex::new(time)), with_silence_only: false }
    }

    /// For processes that are known not to answer late on purpose, to take others' time.
    pub(crate) fn with_silence(time: Duration) -> Patience {
        Patience { with_silence_only: true, ..Patience::of_user(time) }
    }

    fn next(&self) -> Duration {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) / 2
    }

    fn spend(&self, time: Duration, answer: &Result<Answer, Error>) {
        let is_answered = matches!(answer, Ok(_) | Err(Error::Refused { .. }));
        if !(self.with_silence_only && is_answered) {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            *left = left.saturating_sub(time);
        }
    }
}

impl Client {
    /// Finds the socket of process `pid`.
    ///
    /// # Errors
    /// The process offers no socket, is gone, or belongs to another user.
    pub fn connect(pid: u32, places: &Places) -> Result<Client, Error> {
        let mut failure = Error::NoSocket { pid };
        for path in places.candidates(pid) {
            let named = path.file_name().is_some_and(|name| *name == *crate::place::file_name(pid));
            match look(&path) {
                Ok((found, _)) if found == pid => return Ok(Client { pid, path, patience: None }),
                Ok((found, _)) if named => failure = Error::Impostor { pid, found, path },
                Err(error) if named => failure = explained(pid, path, error),
                _ => {}
            }
        }
        Err(failure)
    }

    /// Finds every process that offers a socket and that this user may ask. Files that killed processes of this user
    /// left behind are removed. Any other file behind which nobody listens is skipped.
    pub fn connect_all(places: &Places) -> Vec<Client> {
        places.sweep();
        let mut users: BTreeMap<u32, Patience> = BTreeMap::new();
        let found = |path: PathBuf| {
            let (pid, uid) = look(&path).ok()?;
            let patience = users.entry(uid).or_insert_with(|| Patience::of_user(ANSWER_TIMEOUT)).clone();
            Some(Client { pid, path, patience: Some(patience) })
        };
        places.files().into_iter().filter_map(found).collect()
    }

    /// The process's number in this PID namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// From now on the process's requests take their time from what it shares with others.
    pub(crate) fn share(&mut self, patience: &Patience) {
        self.patience = Some(patience.clone());
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// The process refused, did not answer in time, ended, or sent an answer that this version does not know.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        let within = self.patience.as_ref().map_or(ANSWER_TIMEOUT, Patience::next);
        let begun = Instant::now();
        let answer = self.ask_until(request, begun + within);
        if let Some(patience) = &self.patience {
            patience.spend(begun.elapsed(), &answer);
        }
        answer
    }

    fn ask_until(&self, request: &Request, end: Instant) -> Result<Answer, Error> {
        let pid = self.pid;
        let stream = match open(&self.path, Some(end)) {
            Ok((stream, found, _)) if found == pid => stream,
            Ok((_, found, _)) => return Err(Error::Impostor { pid, found, path: self.path.clone() }),
            Err(error) => return Err(explained(pid, self.path.clone(), error)),
        };
        let mut line = serde_json::to_string(request).expect("a request is plain data");
        line.push('\n');
        let answer = exchange(&stream, line.as_bytes(), end).map_err(|source| Error::Silent { pid, source })?;
        match serde_json::from_slice(&printable(&answer)) {
            Ok(Answer::Refused(why)) => Err(Error::Refused { pid, why }),
            Ok(answer) => Ok(answer),
            Err(error) => Err(Error::Foreign { pid, why: error.to_string() }),
        }
    }
}

/// Sends a request and reads the answer. All of it comes before `end`, in however many pieces.
fn exchange(mut stream: &UnixStream, request: &[u8], end: Instant) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(left(end)?))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let mut part = [0; 16 * 1024];
    while answer.last() != Some(&b'\n') {
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => answer.extend_from_slice(&part[..count]),
            // The time that is left decides what it was.
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// An answer whose texts have their control characters spelled out, since the text of a process must not control the
/// terminal that it is printed on. In JSON, a backslash occurs only in texts.
fn printable(json: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(json.len());
    let mut rest = json;
    while let Some(first) = rest.first() {
        let (length, code) = match rest {
            [b'\\', b'u', digits @ ..] => (6, code(digits)),
            [b'\\', b'b', ..] => (2, Some(0x08)),
            [b'\\', b't', ..] => (2, Some(0x09)),
            [b'\\', b'n', ..] => (2, Some(0x0a)),
            [b'\\', b'f', ..] => (2, Some(0x0c)),
            [b'\\', b'r', ..] => (2, Some(0x0d)),
            [b'\\', _, ..] => (2, None),
            [0xc2, second @ 0x80..=0x9f, ..] => (2, Some(u32::from(*second))),
            _ => (1, Some(u32::from(*first)).filter(|code| *code == 0x7f)),
        };
        let (token, behind) = rest.split_at(length.min(rest.len()));
        match code.and_then(char::from_u32).filter(|found| found.is_control()) {
            Some(control) => text.extend(format!("\\{}", control.escape_default()).into_bytes()),
            None => text.extend_from_slice(token),
        }
        rest = behind;
    }
    text
}

/// The number that four hexadecimal digits stand for.
fn code(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits.get(..4)?).ok()?;
    digits.chars().try_fold(0, |code, digit| Some(16 * code + digit.to_digit(16)?))
}

/// Returns which process listens behind a socket file, and its user. If it is too busy to be connected to at once, this
/// does not wait for it.
fn look(path: &Path) -> io::Result<(u32, u32)> {
    open(path, None).map(|(_, pid, uid)| (pid, uid))
}

/// Connects, and asks the kernel which process listens, and as which user.
fn open(path: &Path, until: Option<Instant>) -> io::Result<(UnixStream, u32, u32)> {
    let stream = reach(path, until)?;
    let Peer { pid, uid } = peer::of(&stream)?;
    let pid = pid.ok_or_else(|| io::Error::other("it is a process of another PID namespace"))?;
    Ok((stream, pid, uid))
}

fn explained(pid: u32, path: PathBuf, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::Gone { pid, path },
        io::ErrorKind::NotFound => Error::NoSocket { pid },
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Silent { pid, source },
        _ => {
            let remedy = "ask as the user that the process runs as, or as root";
            Error::Os { what: "connect to the control socket", path, remedy, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn whoever_answers_takes_no_time_from_the_others_of_a_program_and_whoever_is_silent_does() {
        let (pid, directory) =
            (std::process::id(), std::env::temp_dir().join(format!("lull-patience-{}", std::process::id())));
        std::fs::create_dir_all(&directory).unwrap();
        let listener = UnixListener::bind(directory.join(crate::place::file_name(pid))).unwrap();
        let server = std::thread::spawn(move || {
            let mut answers = 1;
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A client that only looks who listens sends no request.
                let mut line = String::new();
                if io::BufReader::new(&stream).read_line(&mut line).unwrap() == 0 {
                    continue;
                }
                if answers == 0 {
                    return;
                }
                answers -= 1;
                let answer = serde_json::to_string(&Answer::Refused("not now".to_owned())).unwrap();
                stream.write_all((answer + "\n").as_bytes()).unwrap();
            }
        });
        let mut client = Client::connect(pid, &Places::only(&directory)).unwrap();
        let patience = Patience::with_silence(Duration::from_secs(600));
        client.share(&patience);
        assert!(matches!(client.ask(&Request::Show), Err(Error::Refused { .. })));
        assert_eq!(patience.next(), Duration::from_secs(300));
        assert!(matches!(client.ask(&Request::Show), Err(Error::Silent { .. })));
        assert!(patience.next() < Duration::from_secs(300));
        server.join().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn control_characters_are_spelled_out_and_nothing_else() {
        let said = "\"a\\u001b[2J\\n\\\\n\\\"\u{7f}\u{9b}\u{e9}\\u00e9\\ud83d\\ude00 {}\"\n";
        let text: String = serde_json::from_slice(&printable(said.as_bytes())).unwrap();
        assert_eq!(text, "a\\u{1b}[2J\\n\\n\"\\u{7f}\\u{9b}\u{e9}\u{e9}\u{1f600} {}");
        for cut in [&b"\"\\"[..], b"\"\\u", b"\"\\u00", b"\"\\u+01b\"", b"\xc2"] {
            assert_eq!(printable(cut), cut);
        }
    }
}
