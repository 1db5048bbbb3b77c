//! Latencies that a service reports of itself, or whoever measures it: over a datagram socket, since the kernel plane
//! cannot know them.

use std::fs;
use std::io::{self, ErrorKind::ConnectionRefused};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lull_slo::Latency;
use lull_units::time_ns;

use crate::error::{Error, Result};

/// Latencies of a window that are kept.
const KEPT_MAX: usize = 1 << 20;
/// After so long without a report latency is no longer known.
const SILENCE: Duration = Duration::from_secs(10);

/// A socket for reports. A datagram is text: latencies of single answers with their units, such as `85us 1.2ms`,
/// separated by white space. Dropping it removes the file.
#[derive(Debug)]
pub struct Report {
    socket: UnixDatagram,
    path: PathBuf,
    ns: Vec<u64>,
    heard: Option<Instant>,
    /// Words that were no latency, since somebody asked.
    unread: u64,
}

impl Report {
    /// Makes the socket. Whoever can reach the file may report: the rights of its directory decide. A socket that a killed
    /// controller has left there is replaced.
    ///
    /// # Errors
    /// The file cannot be made there, for one because another file has the name, or somebody listens there.
    pub fn bind(path: &Path) -> Result<Report> {
        let failed = |source: io::Error| Error::Os {
            what: format!("make the socket {} for reports of latency", path.display()),
            remedy: "name a file that is not there, in a directory that you may write to".to_owned(),
            source,
            said: None,
        };
        if is_left_over(path) {
            fs::remove_file(path).map_err(failed)?;
        }
        let socket = UnixDatagram::bind(path).map_err(failed)?;
        let report = Report { socket, path: path.to_owned(), ns: Vec::new(), heard: None, unread: 0 };
        report.socket.set_nonblocking(true).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(report)
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what was reported; how many latencies there are since the last [`Report::take`].
    pub fn drain(&mut self) -> u64 {
        let mut datagram = [0; 65_536];
        // A limit, so that one who reports without end does not keep the controller from deciding.
        for _ in 0..KEPT_MAX {
            let Ok(bytes) = self.socket.recv(&mut datagram) else { break };
            self.heard = Some(Instant::now());
            self.read(&String::from_utf8_lossy(&datagram[..bytes]));
        }
        self.ns.len() as u64
    }

    fn read(&mut self, text: &str) {
        for word in text.split_whitespace() {
            match time_ns(word) {
                Ok(ns) if self.ns.len() < KEPT_MAX => self.ns.push(ns),
                Ok(_) => {}
                Err(_) => self.unread += 1,
            }
        }
    }

    /// Words since the last call that were no latency.
    pub fn take_unread(&mut self) -> u64 {
        std::mem::take(&mut self.unread)
    }

    /// The latencies since the last call; nothing where nobody reports, or no longer.
    pub fn take(&mut self) -> Option<Latency> {
        self.heard.filter(|heard| heard.elapsed() < SILENCE)?;
        self.ns.sort_unstable();
        let answers = self.ns.len();
        let at =
            |percent: usize| self.ns.get((answers * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0);
        let sum: u128 = self.ns.iter().map(|ns| u128::from(*ns)).sum();
        let latency = Latency {
            answers: answers as u64,
            avg_ns: (sum / answers.max(1) as u128) as u64,
            p50_ns: at(50),
            p95_ns: at(95),
            p99_ns: at(99),
        };
        self.ns.clear();
        Some(latency)
    }
}

/// Whether a file is a socket on which nobody listens any more.
fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = |probe: UnixDatagram| probe.connect(path).is_err_and(|error| error.kind() == ConnectionRefused);
    is_socket && UnixDatagram::unbound().is_ok_and(refused)
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_read_from_datagrams_and_the_rest_is_counted() {
        let path = std::env::temp_dir().join(format!("lull-report-{}", std::process::id()));
        let mut report = Report::bind(&path).unwrap();
        assert_eq!(report.take(), None, "nobody has reported");
        let service = UnixDatagram::unbound().unwrap();
        let words: String = (1..=100).map(|us| format!("{us}us ")).collect();
        service.send_to(words.as_bytes(), &path).unwrap();
        service.send_to(b"20 fast\n", &path).unwrap();
        assert_eq!((report.drain(), report.take_unread(), report.take_unread()), (100, 2, 0));
        let latency = report.take().unwrap();
        let ns = (latency.avg_ns, latency.p50_ns, latency.p95_ns, latency.p99_ns);
        assert_eq!((latency.answers, ns), (100, (50_500, 50_000, 95_000, 99_000)));
        // Somebody reports, and there was nothing to report.
        assert_eq!(report.take().unwrap().answers, 0);
        assert!(Report::bind(&path).unwrap_err().to_string().contains("name a file"));
        drop(report);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_controller_left_is_replaced_and_other_files_are_not() {
        let path = std::env::temp_dir().join(format!("lull-report-left-{}", std::process::id()));
        // Its file stays, as after SIGKILL.
        drop(UnixDatagram::bind(&path).unwrap());
        let report = Report::bind(&path).unwrap();
        UnixDatagram::unbound().unwrap().send_to(b"1us", &path).unwrap();
        drop(report);
        fs::write(&path, "somebody's").unwrap();
        assert!(Report::bind(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
        fs::remove_file(&path).unwrap();
    }
}
