//! What Prometheus scrapes: `GET /metrics`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tiny_http::{Header, Method, Request, Response, Server};

use crate::{Error, Source, prometheus};

/// The media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// That of Prometheus' older text, which everybody gets who does not ask for OpenMetrics.
const OLDER: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves figures until it is dropped.
pub struct Exporter {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Exporter {
    /// Serves what `source` reads at each scrape, on `address`; port 0 is any free one.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn start(address: SocketAddr, source: Box<dyn Source>) -> Result<Exporter, Error> {
        let server = Server::http(address).map_err(|source| Error::Listen { address, source })?;
        let server = Arc::new(server);
        let (served, mut source) = (server.clone(), source);
        let serve = move || {
            for request in served.incoming_requests() {
                answer(request, source.as_mut());
            }
        };
        let started = std::thread::Builder::new().name("lull-metrics".to_owned()).spawn(serve);
        let thread = started.map_err(|source| Error::Listen { address, source: source.into() })?;
        Ok(Exporter { server, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.server_addr().to_ip()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}

fn answer(request: Request, source: &mut dyn Source) {
    let text = |text: String, code: u16| Response::from_string(text).with_status_code(code);
    let accepts = |header: &Header| {
        header.field.equiv("Accept") && header.value.as_str().contains("application/openmetrics-text")
    };
    let newer = request.headers().iter().any(accepts);
    let response = match (request.method(), request.url()) {
        (Method::Get | Method::Head, "/metrics") => match source.read() {
            Ok(figures) => {
                let open_metrics = prometheus::text(figures);
                let (media, body) = match newer {
                    true => (OPEN_METRICS, open_metrics),
                    false => (OLDER, prometheus::older(&open_metrics)),
                };
                text(body, 200).with_header(Header::from_bytes("Content-Type", media).expect("it is plain ASCII"))
            }
            Err(error) => text(format!("{error}\n"), 503),
        },
        (Method::Get | Method::Head, _) => text("lull serves its metrics at /metrics\n".to_owned(), 404),
        _ => text("only GET is answered\n".to_owned(), 405),
    };
    // Whoever asked may have gone.
    let _ = request.respond(response);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::{Figures, Napi};

    /// Fails at its third reading.
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
        let mut stream = TcpStream::connect(exporter.address().unwrap()).unwrap();
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
        // As Prometheus asks.
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
        let taken = Exporter::start(exporter.address().unwrap(), Box::new(Twice(0))).unwrap_err();
        assert!(taken.to_string().contains("give --prometheus another address"), "{taken}");
    }
}
