//! The command's side: finds the socket of a process and asks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;
use crate::place::Places;
use crate::schema::{Answer, LINE_BYTES_MAX, Request};

/// How long an answer may take: a process that is stopped must not hold an operator's terminal for ever.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a process that runs lull's user plane.
#[derive(Debug)]
pub struct Client {
    pid: u32,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to process `pid`.
    ///
    /// # Errors
    /// The process offers no socket, is gone, or belongs to another user.
    pub fn connect(pid: u32, places: &Places) -> Result<Client, Error> {
        let mut failure = Error::NoSocket { pid };
        for path in places.candidates(pid) {
            let named = path.file_name().is_some_and(|name| *name == *crate::place::file_name(pid));
            match open(&path) {
                Ok((stream, found)) if found == pid => return Client::over(pid, stream),
                Ok((_, found)) if named => failure = Error::Impostor { pid, found, path },
                Err(error) if named => failure = explained(pid, path, error),
                _ => {}
            }
        }
        Err(failure)
    }

    /// Connects to every process that offers a socket and may be asked by this user. A file that nobody listens behind
    /// is passed over.
    pub fn connect_all(places: &Places) -> Vec<Client> {
        let clients = places.files().into_iter().filter_map(|path| {
            let (stream, pid) = open(&path).ok()?;
            Client::over(pid, stream).ok()
        });
        clients.collect()
    }

    fn over(pid: u32, stream: UnixStream) -> Result<Client, Error> {
        let timeout = Some(ANSWER_TIMEOUT);
        let set = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout));
        set.map_err(|source| Error::Silent { pid, source })?;
        Ok(Client { pid, stream: BufReader::new(stream) })
    }

    /// The process, by its number in this PID namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The process refused, fell silent, ended, or answered what this version does not know.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        let pid = self.pid;
        let mut line = serde_json::to_string(request).expect("a request is plain data");
        line.push('\n');
        let silent = |source| Error::Silent { pid, source };
        self.stream.get_mut().write_all(line.as_bytes()).map_err(silent)?;
        let mut answer = Vec::new();
        let mut limited = self.stream.by_ref().take(LINE_BYTES_MAX as u64);
        limited.read_until(b'\n', &mut answer).map_err(silent)?;
        if answer.last() != Some(&b'\n') {
            return Err(silent(io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_slice(&answer) {
            Ok(Answer::Refused(why)) => Err(Error::Refused { pid, why }),
            Ok(answer) => Ok(answer),
            Err(error) => Err(Error::Foreign { pid, why: error.to_string() }),
        }
    }
}

/// Connects, and asks the kernel who listens.
fn open(path: &Path) -> io::Result<(UnixStream, u32)> {
    let stream = UnixStream::connect(path)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    Ok((stream, peer.pid.as_raw_nonzero().get() as u32))
}

fn explained(pid: u32, path: PathBuf, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::Gone { pid, path },
        io::ErrorKind::NotFound => Error::NoSocket { pid },
        _ => {
            let remedy = "ask as the user that the process runs as, or as root";
            Error::Os { what: "connect to the control socket", path, remedy, source }
        }
    }
}
