//! The command's side: finds the socket of a process and asks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;
use crate::peer;
use crate::place::Places;
use crate::schema::{ANSWER_BYTES_MAX, Answer, Request};

/// How long an answer may take: a process that is stopped must not hold an operator's terminal for ever.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that runs lull's user plane, found by its socket. Each question is a connection of its own.
#[derive(Debug)]
pub struct Client {
    pid: u32,
    path: PathBuf,
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
            match open(&path) {
                Ok((_, found)) if found == pid => return Ok(Client { pid, path }),
                Ok((_, found)) if named => failure = Error::Impostor { pid, found, path },
                Err(error) if named => failure = explained(pid, path, error),
                _ => {}
            }
        }
        Err(failure)
    }

    /// Every process that offers a socket and may be asked by this user. What killed processes of this user left is
    /// removed, and any other file that nobody listens behind is passed over.
    pub fn connect_all(places: &Places) -> Vec<Client> {
        places.sweep();
        let found = |path: PathBuf| open(&path).ok().map(|(_, pid)| Client { pid, path });
        places.files().into_iter().filter_map(found).collect()
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
        let stream = match open(&self.path) {
            Ok((stream, found)) if found == pid => stream,
            Ok((_, found)) => return Err(Error::Impostor { pid, found, path: self.path.clone() }),
            Err(error) => return Err(explained(pid, self.path.clone(), error)),
        };
        let mut line = serde_json::to_string(request).expect("a request is plain data");
        line.push('\n');
        let answer = exchange(&stream, line.as_bytes()).map_err(|source| Error::Silent { pid, source })?;
        match serde_json::from_slice(&answer) {
            Ok(Answer::Refused(why)) => Err(Error::Refused { pid, why }),
            Ok(answer) => Ok(answer),
            Err(error) => Err(Error::Foreign { pid, why: error.to_string() }),
        }
    }
}

fn exchange(mut stream: &UnixStream, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(ANSWER_BYTES_MAX as u64).read_until(b'\n', &mut answer)?;
    if answer.last() == Some(&b'\n') { Ok(answer) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Connects, and asks the kernel who listens.
fn open(path: &Path) -> io::Result<(UnixStream, u32)> {
    let stream = UnixStream::connect(path)?;
    let pid = peer::of(&stream)?.pid.ok_or_else(|| io::Error::other("it is a process of another PID namespace"))?;
    Ok((stream, pid))
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
