//! What Prometheus scrapes: `GET /metrics`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tiny_http::{Header, Method, Request, Response, Server};

use crate::{Error, Source, prometheus};

/// The media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    let response = match (request.method(), request.url()) {
        (Method::Get | Method::Head, "/metrics") => match source.read() {
            Ok(figures) => {
                let media = Header::from_bytes("Content-Type", OPEN_METRICS).expect("it is plain ASCII");
                text(prometheus::text(figures), 200).with_header(media)
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

    /// Fails at its second reading.
    struct Once(bool);

    impl Source for Once {
        fn read(&mut self) -> Result<Vec<Figures>, Error> {
            if std::mem::replace(&mut self.0, true) {
                return Err(Error::Watching { device: "v0".to_owned(), why: "it is gone".to_owned() });
            }
            Ok(vec![Figures {
                napis: vec![Napi { counted: true, packets: 5, ..Napi::default() }],
                ..Figures::default()
            }])
        }
    }

    fn ask(exporter: &Exporter, what: &str) -> String {
        let mut stream = TcpStream::connect(exporter.address().unwrap()).unwrap();
        write!(stream, "{what} HTTP/1.1\r\nHost: lull\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_served_and_a_source_that_fails_says_why() {
        let exporter = Exporter::start((Ipv4Addr::LOCALHOST, 0).into(), Box::new(Once(false))).unwrap();
        let first = ask(&exporter, "GET /metrics");
        assert!(first.starts_with("HTTP/1.1 200") && first.contains("lull_napi_packets_total"), "{first}");
        assert!(first.contains("application/openmetrics-text"), "{first}");
        let second = ask(&exporter, "GET /metrics");
        assert!(
            second.starts_with("HTTP/1.1 503") && second.contains("cannot go on watching v0: it is gone"),
            "{second}"
        );
        assert!(ask(&exporter, "GET /").starts_with("HTTP/1.1 404"));
        assert!(ask(&exporter, "POST /metrics").starts_with("HTTP/1.1 405"));
        let taken = Exporter::start(exporter.address().unwrap(), Box::new(Once(false))).unwrap_err();
        assert!(taken.to_string().contains("give --prometheus another address"), "{taken}");
    }
}
