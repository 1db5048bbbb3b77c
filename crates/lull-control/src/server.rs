//! The process's side: a thread that answers on the control socket.

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

/// How long a client may take for its request, and for reading the answer. Clients are served one after the other, and one
/// that is stopped must not keep the others waiting for long.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// What is written at a time.
const PART_BYTES: usize = 16 * 1024;

/// How often it is looked whether a controller is still there.
const CONTROLLER_LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A control socket that is offered. Dropping it ends the thread and removes the file.
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
    /// Offers `host` to `lull show`, `lull stat` and `lull set`, by the number of this process. `service` says in a word
    /// or two what the process is.
    ///
    /// # Errors
    /// No directory of the user's own can be had, or the socket cannot be made in it.
    pub fn start(host: &Host, service: &str, places: &Places) -> Result<Offer, Error> {
        Offer::start_with_sockets(host, service, places, Box::new(|| None))
    }

    /// As [`Offer::start`], for a process that has sockets to show. `sockets` is called for each `lull ss`; nothing while there
    /// is no network. The process and the service need not be filled in.
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
        // The number is ours alone while we live: what lies there was left by a process that died.
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
                // A process without a controller is not woken for one.
                let looks = lock(&asked).has_controller();
                let comes = poll(&mut [PollFd::new(&listener, PollFlags::IN)], looks.then_some(&CONTROLLER_LOOK_EVERY));
                if comes != Ok(1) {
                    continue;
                }
                // Nobody else takes what has come.
                let client = own::made_for_no_child(|| listener.accept().map(|(client, _)| OwnedFd::from(client)));
                if ends.load(Ordering::Acquire) {
                    return;
                }
                match client {
                    // Whatever a client does wrong ends its own connection only.
                    Ok(client) => drop(converse(client.into(), &asked)),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    // Out of descriptors, perhaps: the next client may find one free.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let started = std::thread::Builder::new().name("lull-control".to_owned()).spawn(serve);
        let thread = started.map_err(failed("start the thread of the control socket"))?;
        Ok(Offer { path, answers, stopping, thread: Some(thread) })
    }

    /// Answers a request of this process's own, as it answers those that come over the socket.
    pub fn ask(&self, request: &Request) -> Answer {
        answer(&self.answers, request)
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // The thread waits in `accept`: a connection is what it wakes for. If the file was removed by somebody there is
        // no way to reach it, and it ends with the process.
        let reached = UnixStream::connect(&self.path).is_ok();
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| reached) {
            // A thread that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}

/// Answers one client's one request. A client asks again over a new connection, so that nobody who stays connected keeps
/// the others, or the end of the service, waiting.
fn converse(stream: UnixStream, answers: &Mutex<Answers>) -> io::Result<()> {
    // The file's mode keeps others out already; after a `setuid` of ours, this does as well.
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

/// Writes the answer. However slowly the client reads, all of it is written within [`CLIENT_TIMEOUT`].
fn reply(mut stream: &UnixStream, mut answer: &[u8]) -> io::Result<()> {
    let end = Instant::now() + CLIENT_TIMEOUT;
    while !answer.is_empty() {
        // The kernel grants the timeout anew to each buffer that it needs for what is written; it needs one for a part.
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(&answer[..answer.len().min(PART_BYTES)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => answer = &answer[count..],
            // The time that is left says what it was.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn answer(answers: &Mutex<Answers>, request: &Request) -> Answer {
    lock(answers).answer(request)
}

/// A request that panicked has changed what it changed; what is remembered is whole entries.
fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client's line. However it dribbles in, all of it comes within [`CLIENT_TIMEOUT`].
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
