//! Answers a request, as HTTP/1.1. A connection has one request, and ends with the answer.

use crate::{Source, prometheus};

/// The media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of Prometheus' older text, which a client gets that does not ask for OpenMetrics.
const OLDER: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The media type of the other answers.
const TEXT: &str = "text/plain; charset=utf-8";

/// Returns where a request's head ends, behind its first empty line, if all of it is there.
pub fn head_end(request: &[u8]) -> Option<usize> {
    let mut end = 0;
    for line in request.split_inclusive(|byte| *byte == b'\n') {
        end += line.len();
        if matches!(line, b"\n" | b"\r\n") && end > line.len() {
            return Some(end);
        }
    }
    None
}

/// Answers a request's head.
pub fn answer(head: &[u8], source: &mut dyn Source) -> Vec<u8> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else { return refused("400 Bad Request", "this is not an HTTP request") };
    if !version.starts_with("HTTP/1.") {
        return refused("505 HTTP Version Not Supported", "only HTTP/1.0 and HTTP/1.1 are answered");
    }
    let accepts = |line: &str| {
        let header = line.split_once(':');
        header.is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("accept") && value.contains("application/openmetrics-text")
        })
    };
    let newer = lines.any(accepts);
    let (status, media, body) = match (method, target) {
        ("GET" | "HEAD", "/metrics") => match source.read() {
            Ok(figures) => {
                let open_metrics = prometheus::text(figures);
                match newer {
                    true => ("200 OK", OPEN_METRICS, open_metrics),
                    false => ("200 OK", OLDER, prometheus::older(&open_metrics)),
                }
            }
            Err(error) => ("503 Service Unavailable", TEXT, format!("{error}\n")),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", TEXT, "lull serves its metrics at /metrics\n".to_owned()),
        _ => return refused("405 Method Not Allowed", "only GET is answered"),
    };
    let mut answer = headers(status, media, body.len());
    if method == "GET" {
        answer += &body;
    }
    answer.into_bytes()
}

/// Returns the answer to a request that is refused.
pub fn refused(status: &str, why: &str) -> Vec<u8> {
    format!("{}{why}\n", headers(status, TEXT, why.len() + 1)).into_bytes()
}

fn headers(status: &str, media: &str, body_bytes: usize) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {body_bytes}\r\nConnection: close\r\n\r\n")
}
