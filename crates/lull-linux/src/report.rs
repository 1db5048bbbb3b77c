//! Latencies that a service reports of itself, or that come from whoever measures it. They come over a datagram socket,
//! since the kernel plane cannot know them.

use std::fs;
use std::io::{self, ErrorKind::ConnectionRefused};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lull_slo::{Latency, Slo, Statistic};
use lull_units::time_ns;

use crate::error::{Error, Result};

/// The most latencies of a window that are kept.
const KEPT_MAX: usize = 1 << 20;
/// The bytes that are read at a time, which is milliseconds of work. The rest is read the next time.
const DRAINED_BYTES_MAX: usize = 1 << 19;
/// What a datagram counts for besides its bytes, as an empty one takes a call as well.
const DATAGRAM_BYTES: usize = 64;
/// When nothing was reported for this long, the latency is no longer known.
const SILENCE: Duration = Duration::from_secs(10);

/// A socket for reports. A datagram is text, words separated by white space: latencies of single answers with their units,
/// such as `85us 1.2ms`, or a summary of several, such as `answers=1200 p50=40us p99=180us`. Dropping it removes the file.
#[derive(Debug)]
pub struct Report {
    socket: UnixDatagram,
    path: PathBuf,
    /// The statistics without which a summary says nothing about the objective.
    wanted: Vec<Statistic>,
    ns: Vec<u64>,
    /// What summaries said.
    summed: Latency,
    heard: Option<Instant>,
    unread: Unread,
}

/// What was reported since the last call and could not be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Words that were no latency.
    pub words: u64,
    /// Summaries that do not say how many answers they are of, or that lack a statistic that the objective bounds.
    pub summaries: u64,
}

impl Report {
    /// Makes the socket. Whoever can reach the file may report, which the rights of its directory decide. A socket that
    /// a killed controller has left there is replaced.
    ///
    /// # Errors
    /// The file cannot be made there, for example because another file has the name, or somebody listens there.
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
        let (wanted, ns, path) = (Vec::new(), Vec::new(), path.to_owned());
        let (summed, unread) = (Latency::default(), Unread::default());
        let report = Report { socket, path, wanted, ns, summed, heard: None, unread };
        report.socket.set_nonblocking(true).map_err(failed)?;
        fs::set_permissions(&report.path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(report)
    }

    /// Sets the objective that the reports are held against.
    pub fn is_for(&mut self, slo: &Slo) {
        self.wanted = slo.bounds().iter().map(|bound| bound.statistic).collect();
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what was reported, or a part of it if that is a lot. Returns how many latencies there are since the last
    /// [`Report::take`].
    pub fn drain(&mut self) -> u64 {
        let mut datagram = [0; 65_536];
        // The limit keeps a sender that reports without end from keeping the controller from deciding.
        let mut drained = 0;
        while drained < DRAINED_BYTES_MAX {
            let Ok(bytes) = self.socket.recv(&mut datagram) else { break };
            drained += DATAGRAM_BYTES + bytes;
            self.heard = Some(Instant::now());
            self.read(&String::from_utf8_lossy(&datagram[..bytes]));
        }
        (self.ns.len() as u64).saturating_add(self.summed.answers)
    }

    fn read(&mut self, text: &str) {
        let mut summary = Summary::default();
        for word in text.split_whitespace() {
            match (summary.read(word), time_ns(word)) {
                (true, _) => {}
                (false, Ok(ns)) if self.ns.len() < KEPT_MAX => self.ns.push(ns),
                (false, Ok(_)) => {}
                (false, Err(_)) => self.unread.words += 1,
            }
        }
        match summary.latency(&self.wanted) {
            Some(latency) => self.summed = together(self.summed, latency),
            None if summary != Summary::default() => self.unread.summaries += 1,
            None => {}
        }
    }

    /// What could not be used since the last call.
    pub fn take_unread(&mut self) -> Unread {
        std::mem::take(&mut self.unread)
    }

    /// The latencies since the last call. There is nothing where nobody reports, or where reports have ceased.
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
        Some(together(latency, std::mem::take(&mut self.summed)))
    }
}

/// What one datagram summarises.
#[derive(Debug, Default, PartialEq)]
struct Summary {
    answers: Option<u64>,
    ns: Vec<(Statistic, u64)>,
}

impl Summary {
    /// Whether a word is part of a summary.
    fn read(&mut self, word: &str) -> bool {
        let Some((name, value)) = word.split_once('=') else { return false };
        if name == "answers" {
            return value.parse().map(|answers| self.answers = Some(answers)).is_ok();
        }
        let statistic = Statistic::ALL.iter().find(|(_, known)| *known == name);
        let Some((&(statistic, _), ns)) = statistic.zip(time_ns(value).ok()) else { return false };
        self.ns.push((statistic, ns));
        true
    }

    fn ns_of(&self, statistic: Statistic) -> Option<u64> {
        self.ns.iter().find(|(known, _)| *known == statistic).map(|(_, ns)| *ns)
    }

    /// The summary as a latency, if it has what is wanted, as a percentile that is not known would pass for a good one.
    fn latency(&self, wanted: &[Statistic]) -> Option<Latency> {
        let answers = self.answers?;
        if answers > 0 && (self.ns.is_empty() || wanted.iter().any(|statistic| self.ns_of(*statistic).is_none())) {
            return None;
        }
        let ns = |statistic| self.ns_of(statistic).unwrap_or(0);
        Some(Latency {
            answers,
            avg_ns: ns(Statistic::Avg),
            p50_ns: ns(Statistic::P50),
            p95_ns: ns(Statistic::P95),
            p99_ns: ns(Statistic::P99),
        })
    }
}

/// Combines two reports of one window. Percentiles cannot be added up, so the larger one holds for both: an objective
/// that both meet is met by that one.
fn together(one: Latency, other: Latency) -> Latency {
    let answers = one.answers.saturating_add(other.answers);
    let sum = |it: Latency| u128::from(it.answers) * u128::from(it.avg_ns);
    let avg_ns = sum(one).saturating_add(sum(other)) / u128::from(answers.max(1));
    Latency {
        answers,
        avg_ns: u64::try_from(avg_ns).unwrap_or(u64::MAX),
        p50_ns: one.p50_ns.max(other.p50_ns),
        p95_ns: one.p95_ns.max(other.p95_ns),
        p99_ns: one.p99_ns.max(other.p99_ns),
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
        let unread = Unread { words: 2, summaries: 0 };
        assert_eq!((report.drain(), report.take_unread(), report.take_unread()), (100, unread, Unread::default()));
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
    fn summaries_add_up_to_the_worse_and_those_that_lack_the_objectives_statistic_do_not_pass_for_good_ones() {
        let path = std::env::temp_dir().join(format!("lull-report-summed-{}", std::process::id()));
        let mut report = Report::bind(&path).unwrap();
        report.is_for(&"p99<200us,avg<80us".parse().unwrap());
        let service = UnixDatagram::unbound().unwrap();
        for datagram in ["answers=900 avg=40us p50=30us p99=180us", "answers=100 p99=90us avg=140us", "answers=0"] {
            service.send_to(datagram.as_bytes(), &path).unwrap();
        }
        assert_eq!((report.drain(), report.take_unread()), (1_000, Unread::default()));
        let latency = Latency { answers: 1_000, avg_ns: 50_000, p50_ns: 30_000, p95_ns: 0, p99_ns: 180_000 };
        assert_eq!(report.take(), Some(latency));
        for datagram in ["answers=900 p99=30us", "avg=3us p99=3us", "answers=many p99=1us avg=1us", "p98=1us"] {
            service.send_to(datagram.as_bytes(), &path).unwrap();
        }
        assert_eq!((report.drain(), report.take_unread()), (0, Unread { words: 2, summaries: 3 }));
        assert_eq!(report.take().unwrap().answers, 0);
        // This comes beside single answers.
        service.send_to(b"answers=1 p99=300us avg=300us", &path).unwrap();
        service.send_to(b"100us 100us 100us", &path).unwrap();
        assert_eq!(report.drain(), 4);
        let latency = report.take().unwrap();
        assert_eq!((latency.answers, latency.avg_ns, latency.p99_ns), (4, 150_000, 300_000));
    }

    #[test]
    fn no_report_is_too_large_to_be_read() {
        let path = std::env::temp_dir().join(format!("lull-report-large-{}", std::process::id()));
        let mut report = Report::bind(&path).unwrap();
        let service = UnixDatagram::unbound().unwrap();
        let most = u64::MAX;
        for datagram in [format!("answers={most} avg={most}ns p99={most}ns"), format!("{most}ns {most}ns")] {
            service.send_to(datagram.as_bytes(), &path).unwrap();
        }
        service.send_to(format!("answers={most} avg={most}ns").as_bytes(), &path).unwrap();
        assert_eq!(report.drain(), most);
        let latency = report.take().unwrap();
        assert_eq!((latency.answers, latency.avg_ns, latency.p99_ns), (most, most, most));
    }

    #[test]
    fn one_reading_ends_though_more_lies_there() {
        let path = std::env::temp_dir().join(format!("lull-report-much-{}", std::process::id()));
        let mut report = Report::bind(&path).unwrap();
        // As many as a socket's queue holds unless that was changed (net.unix.max_dgram_qlen). Each comes from a sender
        // of its own, whose buffer would be full otherwise.
        let datagrams = 10;
        let words = "1us ".repeat(1 << 14);
        let senders: Vec<UnixDatagram> = (0..datagrams).map(|_| UnixDatagram::unbound().unwrap()).collect();
        for service in &senders {
            service.set_nonblocking(true).unwrap();
            service.send_to(words.as_bytes(), &path).unwrap();
        }
        let (of_one, all) = (1 << 14, datagrams << 14);
        let first = report.drain();
        let most = (DRAINED_BYTES_MAX / 4) as u64 + of_one;
        assert!((of_one..=most).contains(&first) && first < all, "{first} of {all}");
        // The rest is not lost.
        assert_eq!(report.drain(), all);
    }

    #[test]
    fn what_a_killed_controller_left_is_replaced_and_other_files_are_not() {
        let path = std::env::temp_dir().join(format!("lull-report-left-{}", std::process::id()));
        // The file stays, as it does after SIGKILL.
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
