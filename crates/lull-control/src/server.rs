//! The server's side: a thread of the process answers on the control socket.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lull_host::Host;
use lull_nic::own;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;
use crate::host::{Answers, ListSockets};
use crate::peer;
use crate::place::{Places, file_name};
use crate::reach::left;
use crate::schema::{Answer, REQUEST_BYTES_MAX, Request};

/// How long a client may take to send its request, and to read the answer. Clients are served one after the other, and
/// one that is stopped must not keep the others waiting for long.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// How many bytes are written at a time.
const PART_BYTES: usize = 16 * 1024;

/// How often the thread looks whether a controller is still there.
const CONTROLLER_LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A control socket on offer. Dropping it ends the thread and removes the file.
///
/// It does not keep the host alive: once the last handle of the host is gone, requests are refused with that reason.
#[derive(Debug)]
pub struct Offer {
    path: PathBuf,
    answers: Arc<Mutex<Answers>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Offer {
    /// Offers `host` to `lull show`, `lull stat` and `lull set`, by the process id of this process. `service` says in a
    /// word or two what the process is.
    ///
    /// # Errors
    /// No directory of the user's own can be had, or the socket cannot be made in it.
    pub fn start(host: &Host, service: &str, places: &Places) -> Result<Offer, Error> {
        Offer::start_with_sockets(host, service, places, Box::new(|| None))
    }

    /// As [`Offer::start`], for a process that has sockets to show. `sockets` is called for each `lull ss`, and returns
    /// `None` while there is no network. It need not fill in the process and the service.
    ///
    /// # Errors
    /// Those of [`Offer::start`].
    pub fn start_with_sockets(
        host: &Host,
        service: &str,
        places: &Places,
        sockets: ListSockets,
    ) -> Result<Offer, Error> {
        let path = places.make()?.join(file_name(std::process::id()));
        places.sweep();
        let failed = |what| {
            let path = path.clone();
            move |source| Error::Os { what, path, remedy: "the service runs without a control socket", source }
        };
        // No other process has this number while this one lives, so a file that lies there was left by one that died.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("replace the control socket")(error));
            }
            _ => {}
        }
        let bound = own::made_for_no_child(|| UnixListener::bind(&path).map(OwnedFd::from));
        let bound = bound.map_err(failed("make the control socket"))?;
        let listener = UnixListener::from(bound);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed("protect the control socket"))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(Mutex::new(Answers::new(host, service, sockets)));
        let (asked, ends) = (answers.clone(), stopping.clone());
        let serve = move || {
            loop {
                // A process without a controller is not woken to look for one.
                let looks = lock(&asked).has_controller();
                let comes = poll(&mut [PollFd::new(&listener, PollFlags::IN)], looks.then_some(&CONTROLLER_LOOK_EVERY));
                if comes != Ok(1) {
                    continue;
                }
                // Only this thread takes connections, so the one that has come is still there.
                let client = own::made_for_no_child(|| listener.accept().map(|(client, _)| OwnedFd::from(client)));
                if ends.load(Ordering::Acquire) {
                    return;
                }
                match client {
                    // A client's error ends only its own connection.
                    Ok(client) => drop(converse(client.into(), &asked)),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    // There may be no free descriptor; when the next client comes, there may be one.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let started = std::thread::Builder::new().name("lull-control".to_owned()).spawn(serve);
        let thread = started.map_err(failed("start the thread of the control socket"))?;
        Ok(Offer { path, answers, stopping, thread: Some(thread) })
    }

    /// Answers a request of this process itself, just as those that come over the socket.
    pub fn ask(&self, request: &Request) -> Answer {
        answer(&self.answers, request)
    }

    /// The path of the socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // The thread waits for a connection, and one wakes it. If somebody has removed the file, the thread cannot be
        // reached, and ends with the process.
        let reached = UnixStream::connect(&self.path).is_ok();
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| reached) {
            // A thread that panicked has reported that on stderr.
            let _ = thread.join();
        }
    }
}

/// Answers the one request of a client. A client takes a new connection for each request, so that one that stays
/// connected keeps neither the others nor the end of the service waiting.
fn converse(stream: UnixStream, answers: &Mutex<Answers>) -> io::Result<()> {
    // The file's mode keeps other users out already; after this process has called `setuid`, this check does.
    let uid = peer::of(&stream)?.uid;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let line = request(&stream)?;
    let answer = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => answer(answers, &request),
        Err(error) => Answer::Refused(format!(
            "the request is not one that lull {} understands ({error}); use the command of that version",
            env!("CARGO_PKG_VERSION")
        )),
    };
    let mut text = serde_json::to_string(&answer).map_err(io::Error::other)?;
    text.push('\n');
    reply(&stream, text.as_bytes())
}

/// Writes the answer, all of it within [`CLIENT_TIMEOUT`], however slowly the client reads.
fn reply(mut stream: &UnixStream, mut answer: &[u8]) -> io::Result<()> {
    let end = Instant::now() + CLIENT_TIMEOUT;
    while !answer.is_empty() {
        // The kernel grants the timeout anew for each buffer that it needs for a write; a part needs only one.
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(&answer[..answer.len().min(PART_BYTES)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => answer = &answer[count..],
            // The time that is left decides what it was.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn answer(answers: &Mutex<Answers>, request: &Request) -> Answer {
    lock(answers).answer(request)
}

/// A panic in a request leaves its changes behind, but never half of an entry.
fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the client's line. All of it comes within [`CLIENT_TIMEOUT`], in however many pieces.
fn request(mut stream: &UnixStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + CLIENT_TIMEOUT;
    let mut line = Vec::new();
    let mut part = [0; 4096];
    while line.last() != Some(&b'\n') {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || line.len() > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => line.extend_from_slice(&part[..count]),
        }
    }
    Ok(line)
}
