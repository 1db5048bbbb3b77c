//! Serves `GET /metrics` for Prometheus.
//!
//! One thread serves all clients and waits for none of them. Their sockets do not block, each client has a time for its
//! request and one for reading the answer, and when there are too many the oldest is closed. So neither a client that
//! has stopped reading nor many that send nothing delay other clients or the end of the process. Small libraries of
//! HTTP servers limit none of these times, and those that do bring an executor of their own.

mod answer;

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Error, Source};

/// The most clients at a time.
const CLIENTS_MAX: usize = 32;
/// How long a client may take for its request, and then for reading the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest head of a request.
const REQUEST_BYTES_MAX: usize = 16 * 1024;
/// How long no client is accepted after a failure, for example because there are no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves figures until it is dropped.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    /// Closing it ends the thread.
    ends: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Serves what `source` reads at each scrape, on `address`; port 0 means any free one.
    ///
    /// # Errors
    ///
    /// This fails if the address cannot be listened on.
    pub fn start(address: SocketAddr, source: Box<dyn Source>) -> Result<Exporter, Error> {
        Exporter::start_with(address, source, CLIENT_TIMEOUT).map_err(|source| Error::Listen { address, source })
    }

    fn start_with(address: SocketAddr, mut source: Box<dyn Source>, timeout: Duration) -> io::Result<Exporter> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (ended, ends) = io::pipe()?;
        let serve = move || serve(&listener, &ended, source.as_mut(), timeout);
        let thread = std::thread::Builder::new().name("lull-metrics".to_owned()).spawn(serve)?;
        Ok(Exporter { address, ends: Some(ends), thread: Some(thread) })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// Serves until the other end of `ended` is closed.
fn serve(listener: &TcpListener, ended: &PipeReader, source: &mut dyn Source, timeout: Duration) {
    // The clients, in the order in which they came.
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let mut waits = vec![PollFd::new(ended, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        waits.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())));
        let first = clients.iter().map(|client| client.until).min();
        let left = first.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec::try_from(left).expect("it is no longer than a client's time"));
        match poll(&mut waits, left.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => {
                std::thread::sleep(PAUSE);
                continue;
            }
        }
        let mut came = waits.iter().map(|wait| !wait.revents().is_empty()).collect::<Vec<_>>().into_iter();
        if came.next() == Some(true) {
            return;
        }
        let comes = came.next() == Some(true);
        // What a client has sent in time counts, however long the source has worked for others meanwhile.
        clients.retain_mut(|client| {
            let goes_on = came.next() != Some(true) || client.step(source, timeout);
            goes_on && Instant::now() < client.until
        });
        if !comes {
            continue;
        }
        match listener.accept().and_then(|(stream, _)| Client::new(stream, timeout)) {
            Ok(client) => {
                if clients.len() == CLIENTS_MAX {
                    clients.remove(0);
                }
                clients.push(client);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// A connection, on which one request is answered.
struct Client {
    stream: TcpStream,
    until: Instant,
    state: State,
}

enum State {
    /// It has sent this much of its request.
    Asks(Vec<u8>),
    /// It is being sent the rest of its answer.
    Reads { answer: Vec<u8>, sent: usize },
    /// It has its answer, and has to end the connection. If lull closed it first, with input unread, the answer could
    /// be lost.
    Leaves,
}

impl Client {
    fn new(stream: TcpStream, timeout: Duration) -> io::Result<Client> {
        stream.set_nonblocking(true)?;
        Ok(Client { stream, until: Instant::now() + timeout, state: State::Asks(Vec::new()) })
    }

    fn waits_for(&self) -> PollFlags {
        if matches!(self.state, State::Reads { .. }) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Reads or writes once; returns false if the connection is over. A client's fault ends only its own connection.
    fn step(&mut self, source: &mut dyn Source, timeout: Duration) -> bool {
        match self.try_step(source, timeout) {
            Ok(goes_on) => goes_on,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn try_step(&mut self, source: &mut dyn Source, timeout: Duration) -> io::Result<bool> {
        let mut part = [0; 4096];
        match &mut self.state {
            State::Asks(request) => {
                let count = self.stream.read(&mut part)?;
                if count == 0 {
                    return Ok(false);
                }
                request.extend_from_slice(&part[..count]);
                let answer = match answer::head_end(request) {
                    Some(end) => answer::answer(&request[..end], source),
                    None if request.len() < REQUEST_BYTES_MAX => return Ok(true),
                    None => answer::refused("431 Request Header Fields Too Large", "the request is too long"),
                };
                // The time that the source took does not count as the client's.
                self.until = Instant::now() + timeout;
                self.state = State::Reads { answer, sent: 0 };
            }
            State::Reads { answer, sent } => {
                *sent += self.stream.write(&answer[*sent..])?;
                if *sent == answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Leaves;
                }
            }
            State::Leaves => return Ok(self.stream.read(&mut part)? > 0),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::{Figures, Napi};

    /// A source that fails at its third reading.
    struct Twice(u32);

    impl Source for Twice {
        fn read(&mut self) -> Result<Vec<Figures>, Error> {
            self.0 += 1;
            if self.0 > 2 {
                return Err(Error::Watching { device: "v0".to_owned(), why: "it is gone".to_owned() });
            }
            Ok(vec![Figures {
                napis: vec![Napi { counted: true, packets: 5, ..Napi::default() }],
                ..Figures::default()
            }])
        }
    }

    fn ask_for(exporter: &Exporter, what: &str, accept: &str) -> String {
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        // The timeout only bounds a failure.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "{what} HTTP/1.1\r\nHost: lull\r\nConnection: close\r\n{accept}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ask(exporter: &Exporter, what: &str) -> String {
        ask_for(exporter, what, "")
    }

    #[test]
    fn metrics_are_served_and_a_source_that_fails_says_why() {
        let exporter = Exporter::start((Ipv4Addr::LOCALHOST, 0).into(), Box::new(Twice(0))).unwrap();
        // This is the header that Prometheus sends.
        let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3\r\n";
        let newer = ask_for(&exporter, "GET /metrics", accept);
        assert!(newer.starts_with("HTTP/1.1 200") && newer.contains("# TYPE lull_napi_packets counter\n"), "{newer}");
        assert!(newer.contains("application/openmetrics-text") && newer.contains("# EOF"), "{newer}");
        let older = ask(&exporter, "GET /metrics");
        assert!(older.contains("text/plain; version=0.0.4"), "{older}");
        assert!(older.contains("# TYPE lull_napi_packets_total counter\n"), "{older}");
        let third = ask(&exporter, "GET /metrics");
        assert!(third.starts_with("HTTP/1.1 503") && third.contains("cannot go on watching v0: it is gone"), "{third}");
        assert!(ask(&exporter, "GET /").starts_with("HTTP/1.1 404"));
        assert!(ask(&exporter, "POST /metrics").starts_with("HTTP/1.1 405"));
        let head = ask(&exporter, "HEAD /");
        assert!(head.contains("Content-Length: 36\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(&exporter, "GET").starts_with("HTTP/1.1 400"));
        let taken = Exporter::start(exporter.address(), Box::new(Twice(0))).unwrap_err();
        assert!(taken.to_string().contains("give --prometheus another address"), "{taken}");
    }

    /// A source with more text than the buffers of a connection hold.
    struct Long;

    impl Source for Long {
        fn read(&mut self) -> Result<Vec<Figures>, Error> {
            let name = "v".repeat(1 << 21);
            let subject = crate::Subject { name, ..crate::Subject::default() };
            Ok(vec![Figures { subject, napis: vec![Napi { counted: true, ..Napi::default() }], ..Figures::default() }])
        }
    }

    fn start(source: impl Source + 'static) -> Exporter {
        Exporter::start((Ipv4Addr::LOCALHOST, 0).into(), Box::new(source)).unwrap()
    }

    #[test]
    fn a_client_that_reads_nothing_keeps_neither_others_nor_the_end_waiting() {
        let exporter = start(Long);
        let deaf: Vec<TcpStream> = (0..3)
            .map(|_| {
                let mut stream = TcpStream::connect(exporter.address()).unwrap();
                stream.write_all("GET /metrics HTTP/1.1\r\nHost: lull\r\n\r\n".repeat(20).as_bytes()).unwrap();
                stream
            })
            .collect();
        // Its answer has begun to arrive.
        assert_eq!(deaf[0].peek(&mut [0]).unwrap(), 1);
        let other = ask(&exporter, "GET /metrics");
        assert!(other.starts_with("HTTP/1.1 200") && other.len() > 8 << 20, "{} bytes", other.len());
        drop(exporter);
        drop(deaf);
    }

    #[test]
    fn clients_that_say_nothing_make_room_for_one_that_asks() {
        let exporter = start(Twice(0));
        let connect = |_| TcpStream::connect(exporter.address()).unwrap();
        let silent: Vec<TcpStream> = (0..CLIENTS_MAX + 10).map(connect).collect();
        assert!(ask(&exporter, "GET /metrics").starts_with("HTTP/1.1 200"));
        assert_eq!((&silent[0]).read(&mut [0]).unwrap(), 0, "the oldest was closed");
    }

    #[test]
    fn a_client_whose_time_is_over_is_closed() {
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let exporter = Exporter::start_with(address, Box::new(Twice(0)), Duration::from_millis(1)).unwrap();
        let mut slow = TcpStream::connect(exporter.address()).unwrap();
        slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(slow.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_request_that_comes_in_pieces_is_one_and_an_endless_one_is_refused() {
        let exporter = start(Twice(0));
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in b"GET / HTTP/1.0\n\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        let long = format!("GET /{}", "x".repeat(REQUEST_BYTES_MAX));
        assert!(ask(&exporter, &long).starts_with("HTTP/1.1 431"));
    }
}
