//! The measurements of generators, as files that can be added up: HdrHistogram's interval log, which its tools read,
//! with a generator's counters in a comment.
//!
//! A log holds the part of a run that counts as one interval, with two histograms of nanoseconds: `latency` and `lag`
//! (as [`Summary`] names them). A merge of logs is a log as well, so generators can be added up in any order.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use super::recorder::{Counts, Recorder, Summary, Window};

/// The beginning of the comment with the counters, with the version of what follows.
const COUNTERS: &str = "lull load, version 1: ";
const LATENCY: &str = "latency";
const LAG: &str = "lag";
/// The nanoseconds in a millisecond: an interval's maximum is given in milliseconds, as is usual in such logs.
const MAX_DIVISOR: f64 = 1e6;

/// The measurements of one generator, or of several.
#[derive(Clone, Debug)]
pub struct LoadLog {
    counters: Counters,
    recorder: Recorder,
}

/// The part of a log besides its histograms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Counters {
    /// The generators, as one number for each of their runs.
    generators: Vec<u64>,
    /// The servers, each once.
    servers: Vec<String>,
    open_loop: bool,
    connections: usize,
    /// The beginning of the window, in nanoseconds since 1970, and its length.
    from_unix_ns: u64,
    window_ns: u64,
    /// Answers per second, as the sum over generators.
    qps: f64,
    unanswered: u64,
    backlog: u64,
    reconnects: u64,
    /// Whether each generator kept up with its load.
    kept_up: bool,
    counts: Counts,
}

/// The reason why a log cannot be used, or two cannot be added up.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogError {
    /// The file is no interval log.
    #[error("it is no histogram log (HdrHistogram's interval log)")]
    NoLog,
    /// The file has no counters.
    #[error(
        "it has no counters of a generator's: it was not written by `lull load --hdr`, or by another version of it"
    )]
    NoCounters,
    /// The file has several logs.
    #[error(
        "it holds {0} logs one behind the other, whose histograms would mix: give each its own file, and merge these"
    )]
    Several(usize),
    /// A histogram is missing or damaged.
    #[error("its histogram '{0}' is missing, damaged, or not a generator's")]
    NoHistogram(&'static str),
    /// The same generator is in both logs.
    #[error("both have the same run of a generator, which would count twice; name each run once")]
    Twice,
    /// The generators did not measure at the same time.
    #[error(
        "they did not measure at the same time: one ended before the other began, so their rates do not add up; \
             start generators with the same --start-at"
    )]
    Apart,
}

impl LoadLog {
    /// Makes the log of a run that has just ended, from its `summary` and `recorder`, and the time `now_ns` of its
    /// clock.
    pub fn new(
        servers: &[String],
        connections: usize,
        open_loop: bool,
        (summary, recorder): (&Summary, Recorder),
        (now, now_ns): (SystemTime, u64),
    ) -> LoadLog {
        let window = recorder.window();
        let since = Duration::from_nanos(now_ns.saturating_sub(window.from_ns));
        let from_unix_ns = unix_ns(now).saturating_sub(since.as_nanos() as u64);
        let counters = Counters {
            // Two runs that begin in the same nanosecond are usually on different machines or in different processes.
            // The process's number distinguishes those of one machine.
            generators: vec![unix_ns(now) ^ u64::from(std::process::id()).rotate_right(22)],
            servers: servers.to_vec(),
            open_loop,
            connections,
            from_unix_ns,
            window_ns: window.to_ns - window.from_ns,
            qps: summary.qps,
            unanswered: summary.unanswered,
            backlog: summary.backlog,
            reconnects: summary.reconnects,
            kept_up: summary.kept_up,
            counts: *recorder.counts(),
        };
        LoadLog { counters, recorder }
    }

    /// Returns the number of generators.
    pub fn generators(&self) -> usize {
        self.counters.generators.len()
    }

    /// Returns the number of connections over all generators.
    pub fn connections(&self) -> usize {
        self.counters.connections
    }

    /// Returns the servers, each once.
    pub fn servers(&self) -> &[String] {
        &self.counters.servers
    }

    /// Returns when the window began.
    pub fn began(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.counters.from_unix_ns)
    }

    /// Returns the figures. Rates are the sum over the generators, each over its own window. The window is the part
    /// that theirs have in common.
    pub fn summary(&self) -> Summary {
        let Counters { open_loop, unanswered, backlog, .. } = self.counters;
        Summary {
            qps: self.counters.qps,
            duration_s: self.counters.window_ns as f64 / 1e9,
            reconnects: self.counters.reconnects,
            kept_up: self.counters.kept_up,
            ..self.recorder.summarize(open_loop, unanswered, backlog)
        }
    }

    /// Adds the measurements that others made at the same time. The window is then the part that both have in common.
    ///
    /// # Errors
    ///
    /// This fails with [`LogError::Twice`] or [`LogError::Apart`], and then leaves this log as it was.
    pub fn add(&mut self, other: &LoadLog) -> Result<(), LogError> {
        let (ours, theirs) = (&mut self.counters, &other.counters);
        if ours.generators.iter().any(|generator| theirs.generators.contains(generator)) {
            return Err(LogError::Twice);
        }
        let end = |counters: &Counters| counters.from_unix_ns.saturating_add(counters.window_ns);
        let from_unix_ns = ours.from_unix_ns.max(theirs.from_unix_ns);
        let to_unix_ns = end(ours).min(end(theirs));
        if to_unix_ns <= from_unix_ns {
            return Err(LogError::Apart);
        }
        ours.generators.extend(&theirs.generators);
        for server in &theirs.servers {
            if !ours.servers.contains(server) {
                ours.servers.push(server.clone());
            }
        }
        ours.open_loop |= theirs.open_loop;
        ours.connections += theirs.connections;
        (ours.from_unix_ns, ours.window_ns) = (from_unix_ns, to_unix_ns - from_unix_ns);
        ours.qps += theirs.qps;
        ours.unanswered += theirs.unanswered;
        ours.backlog += theirs.backlog;
        ours.reconnects += theirs.reconnects;
        ours.kept_up &= theirs.kept_up;
        self.recorder.merge(&other.recorder);
        ours.counts = *self.recorder.counts();
        Ok(())
    }

    /// Returns the log's bytes in a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let counters = serde_json::to_string(&self.counters).expect("numbers and texts have a JSON");
        let mut bytes = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let mut builder = IntervalLogWriterBuilder::new();
        builder.add_comment(&format!("{COUNTERS}{counters}"));
        builder.with_start_time(self.began()).with_base_time(self.began()).with_max_value_divisor(MAX_DIVISOR);
        let mut writer =
            builder.begin_log_with(&mut bytes, &mut serializer).expect("memory takes what is written to it");
        let duration = Duration::from_nanos(self.counters.window_ns);
        for (tag, histogram) in [(LATENCY, self.recorder.latency()), (LAG, self.recorder.lag())] {
            writer
                .write_histogram(histogram, Duration::ZERO, duration, Tag::new(tag))
                .expect("memory takes what is written to it");
        }
        bytes
    }

    /// Reads what [`LoadLog::to_bytes`] made.
    ///
    /// # Errors
    ///
    /// This fails with a [`LogError`] for anything else.
    pub fn parse(bytes: &[u8]) -> Result<LoadLog, LogError> {
        // The comments hold the counters, and the log's iterator leaves them out.
        let text = std::str::from_utf8(bytes).map_err(|_| LogError::NoLog)?;
        let comment = |line: &str| line.strip_prefix('#')?.strip_prefix(COUNTERS).map(str::to_owned);
        let logs = text.lines().filter_map(comment).count();
        if logs > 1 {
            return Err(LogError::Several(logs));
        }
        let (mut latency, mut lag) = (None, None);
        for entry in IntervalLogIterator::new(bytes) {
            let LogEntry::Interval(interval) = entry.map_err(|_| LogError::NoLog)? else { continue };
            let (place, name) = match interval.tag().map(|tag| tag.as_str()) {
                Some(LATENCY) => (&mut latency, LATENCY),
                Some(LAG) => (&mut lag, LAG),
                _ => continue,
            };
            let histogram = decode(interval.encoded_histogram());
            if place.replace(histogram.ok_or(LogError::NoHistogram(name))?).is_some() {
                return Err(LogError::NoHistogram(name));
            }
        }
        let counters = text.lines().find_map(comment).ok_or(LogError::NoCounters)?;
        let counters: Counters = serde_json::from_str(&counters).map_err(|_| LogError::NoCounters)?;
        let latency = latency.ok_or(LogError::NoHistogram(LATENCY))?;
        let lag = lag.ok_or(LogError::NoHistogram(LAG))?;
        let window = Window { from_ns: 0, to_ns: counters.window_ns };
        let recorder = Recorder::from_parts(window, latency, lag, counters.counts);
        Ok(LoadLog { recorder: recorder.ok_or(LogError::NoHistogram(LATENCY))?, counters })
    }
}

fn decode(encoded: &str) -> Option<Histogram<u64>> {
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded).ok()?;
    Deserializer::new().deserialize(&mut &bytes[..]).ok()
}

fn unix_ns(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::checker::Outcome;

    const START: Duration = Duration::from_secs(1_790_000_000);

    /// Makes the log of a generator whose window of a second began `after` the others', with the given latencies in
    /// nanoseconds.
    fn measured(generator: u64, after: Duration, latencies: &[u64]) -> LoadLog {
        let mut recorder = Recorder::new(Window { from_ns: 1_000, to_ns: 1_000_001_000 });
        for latency in latencies {
            recorder.sent(2_000, 2_000, 2_010);
            recorder.answered(2_000, 2_000 + latency, Outcome::Hit);
        }
        let summary = recorder.summarize(true, 1, 2);
        let now = UNIX_EPOCH + START + after + Duration::from_secs(1);
        let server = ["10.0.0.2:11211".to_owned()];
        let mut log = LoadLog::new(&server, 4, true, (&summary, recorder), (now, 1_000_001_000));
        log.counters.generators = vec![generator];
        log
    }

    #[test]
    fn a_log_is_read_back_as_it_was_written() {
        let log = measured(1, Duration::ZERO, &[50_000, 80_000, 90_000_000]);
        let read = LoadLog::parse(&log.to_bytes()).unwrap();
        assert_eq!(read.counters, log.counters);
        assert_eq!(read.summary(), log.summary());
        assert_eq!((read.recorder.latency(), read.recorder.lag()), (log.recorder.latency(), log.recorder.lag()));
        assert_eq!(read.began(), UNIX_EPOCH + START);
    }

    #[test]
    fn generators_add_up_in_any_order_and_a_sum_is_a_log() {
        let all = [
            measured(1, Duration::ZERO, &[10_000, 20_000]),
            measured(2, Duration::from_millis(100), &[30_000]),
            measured(3, Duration::from_millis(50), &[40_000, 50_000, 60_000]),
        ];
        let sum = |order: [usize; 3]| {
            let mut sum = all[order[0]].clone();
            sum.add(&all[order[1]]).unwrap();
            let mut sum = LoadLog::parse(&sum.to_bytes()).unwrap();
            sum.add(&all[order[2]]).unwrap();
            sum
        };
        let (one, other) = (sum([0, 1, 2]), sum([2, 1, 0]));
        assert_eq!(one.summary(), other.summary());
        let summary = one.summary();
        assert_eq!((one.generators(), one.connections(), summary.received, summary.unanswered), (3, 12, 6, 3));
        assert_eq!((summary.qps, summary.duration_s, summary.latency_max_ns / 1_000), (6.0, 0.9, 60));
        assert!((summary.latency_p50_ns as f64 - 30_000.0).abs() < 100.0, "{summary:?}");
        assert_eq!(one.servers(), ["10.0.0.2:11211"]);
    }

    #[test]
    fn one_that_did_not_keep_up_spoils_the_sum() {
        let mut late = measured(1, Duration::ZERO, &[10_000]);
        late.counters.kept_up = false;
        let mut sum = measured(2, Duration::ZERO, &[10_000]);
        sum.add(&late).unwrap();
        assert!(!sum.summary().kept_up);
    }

    #[test]
    fn what_does_not_add_up_is_refused_and_changes_nothing() {
        let mut log = measured(1, Duration::ZERO, &[10_000]);
        let before = log.counters.clone();
        assert_eq!(log.add(&measured(1, Duration::ZERO, &[10_000])), Err(LogError::Twice));
        assert_eq!(log.add(&measured(2, Duration::from_secs(1), &[10_000])), Err(LogError::Apart));
        assert_eq!(log.counters, before);
    }

    #[test]
    fn what_is_no_log_of_a_generators_is_refused() {
        let bytes = measured(1, Duration::ZERO, &[10_000]).to_bytes();
        let text = String::from_utf8(bytes).unwrap();
        let without = |what: &str| -> String {
            text.lines().filter(|line| !line.contains(what)).map(|line| format!("{line}\n")).collect()
        };
        let parse = |text: String| LoadLog::parse(text.as_bytes()).map(|_| ()).unwrap_err();
        assert_eq!(parse("not a log".to_owned()), LogError::NoLog);
        assert_eq!(parse(without(COUNTERS)), LogError::NoCounters);
        assert_eq!(parse(without("Tag=lag")), LogError::NoHistogram(LAG));
        // Several logs in one file would have the counters of the first and the histograms of the last.
        assert_eq!(parse(format!("{text}{text}")), LogError::Several(2));
        assert_eq!(parse(format!("{text}{}", without(COUNTERS))), LogError::NoHistogram(LATENCY));
        assert_eq!(parse(text.replace("version 1", "version 2")), LogError::NoCounters);
        assert_eq!(LoadLog::parse(&[0xff; 32]).map(|_| ()).unwrap_err(), LogError::NoLog);
    }
}
