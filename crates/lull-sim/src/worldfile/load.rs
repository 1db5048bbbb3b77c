//! `[load]`: when and what clients send, and how long their machine takes for it.

use std::path::Path;

use toml::Spanned;

use super::check::Check;
use super::error::WorldFileError;
use super::raw::Raw;
use crate::engine::traffic::{FrameSizes, GeneralizedPareto, KeyValueSizes};
use crate::units::Time;
use crate::world::{GeneratorSpec, TraceSpec, Traffic};

/// The shape of the gaps that mutilate draws for `fb_ia`.
const FACEBOOK_SHAPE: f64 = 0.154_971;
/// Longer traces are not read.
const TRACE_BYTES_MAX: u64 = 1 << 28;
/// How long a generator may take for a frame.
const FRAME_NS: std::ops::RangeInclusive<u64> = 0..=10_000_000;
/// Ethernet, IP and TCP with time stamps around a payload.
const HEADERS: u32 = 66;

/// When the clients of an open loop send (`load.arrivals`).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Arrivals {
    /// A Poisson process over all connections (`"poisson"`, the default).
    #[default]
    Poisson,
    /// Each connection has gaps of its own, of a generalised Pareto distribution, as Facebook's clients (`"facebook"`,
    /// mutilate's `fb_ia`).
    Facebook,
    /// As recorded (`load.trace`), stretched to the rate that is asked for.
    Trace(TraceSpec),
}

impl Arrivals {
    /// Returns the part of an open loop of `per_s` over all connections that a group with this share of them gets.
    pub(super) fn traffic(&self, per_s: f64, share: f64) -> Traffic {
        match self {
            Arrivals::Poisson => Traffic::Open { per_s: per_s * share },
            Arrivals::Facebook => Traffic::Renewal { per_s: per_s * share, shape: FACEBOOK_SHAPE },
            Arrivals::Trace(_) => Traffic::Trace { per_s },
        }
    }

    pub(super) fn trace(&self) -> Option<TraceSpec> {
        match self {
            Arrivals::Trace(trace) => Some(trace.clone()),
            Arrivals::Poisson | Arrivals::Facebook => None,
        }
    }

    /// Describes the arrivals, if they are not the default.
    pub(super) fn describe(&self) -> Option<String> {
        match self {
            Arrivals::Poisson => None,
            Arrivals::Facebook => Some("Facebook's arrivals".to_owned()),
            Arrivals::Trace(trace) => Some(format!("arrivals of a trace of {:.0} a second", trace.per_s())),
        }
    }
}

/// Returns frames without a distribution of sizes: all requests have one size, and all answers.
pub(super) fn fixed_sizes(request_bytes: u64, answer_bytes: u64) -> FrameSizes {
    FrameSizes::KeyValue(KeyValueSizes {
        ack: HEADERS,
        request: HEADERS + request_bytes as u32,
        answer: HEADERS + answer_bytes as u32,
        update_share: 0,
        small_share: 1_024,
        small: 0,
        value: GeneralizedPareto { location: 0.0, scale: 1.0, shape: 0.5 },
    })
}

/// Whether the sizes are Facebook's (`load.sizes`).
pub(super) fn facebook_sizes(check: &Check<'_>, raw: &Raw) -> Result<bool, WorldFileError> {
    let Some(sizes) = &raw.load.sizes else { return Ok(false) };
    match sizes.get_ref().as_str() {
        "fixed" => Ok(false),
        "facebook" => Ok(true),
        other => {
            let problem = format!(
                "'{other}' is no distribution of sizes: allowed are \"fixed\" (request_size and answer_size) and \
                 \"facebook\""
            );
            Err(check.error("load.sizes", sizes, problem))
        }
    }
}

pub(super) fn arrivals(check: &Check<'_>, raw: &Raw) -> Result<Arrivals, WorldFileError> {
    let (arrivals, trace) = (&raw.load.arrivals, &raw.load.trace);
    let word = arrivals.as_ref().map(|word| (word, word.get_ref().as_str()));
    match (word, trace) {
        (Some((_, "trace")) | None, Some(file)) => read_trace(check, file).map(Arrivals::Trace),
        (Some((word, "trace")), None) => {
            let problem = "needs trace, a file with the time of a request in each line, such as trace = \"times.txt\"";
            Err(check.error("load.arrivals", word, problem))
        }
        (Some((_, "poisson" | "facebook")), Some(file)) => {
            Err(check.error("load.trace", file, "only arrivals = \"trace\" has one: remove one of the two"))
        }
        (Some((_, "facebook")), None) => Ok(Arrivals::Facebook),
        (Some((_, "poisson")) | None, None) => Ok(Arrivals::Poisson),
        (Some((word, other)), _) => {
            let problem =
                format!("'{other}' is no arrival process: allowed are \"poisson\", \"facebook\" and \"trace\"");
            Err(check.error("load.arrivals", word, problem))
        }
    }
}

/// Reads the times of a trace, whose file is named relative to the world file.
fn read_trace(check: &Check<'_>, named: &Spanned<String>) -> Result<TraceSpec, WorldFileError> {
    let path = Path::new(check.file()).parent().unwrap_or(Path::new("")).join(named.get_ref());
    let refuse = |problem: String| check.error("load.trace", named, problem);
    let unreadable = |error: std::io::Error| refuse(format!("cannot read the trace {}: {error}", path.display()));
    let metadata = std::fs::metadata(&path).map_err(unreadable)?;
    if !metadata.is_file() {
        // A pipe or a device may have no end.
        return Err(refuse(format!("{} is no regular file: name one that holds the times", path.display())));
    }
    let bytes = metadata.len();
    if bytes > TRACE_BYTES_MAX {
        return Err(refuse(format!("the trace has {bytes} bytes, and at most {TRACE_BYTES_MAX} are read: cut it")));
    }
    let text = std::fs::read_to_string(&path).map_err(unreadable)?;
    let mut times = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let Some(at_ns) = moment_ns(line) else {
            let (file, number) = (path.display(), number + 1);
            return Err(refuse(format!(
                "line {number} of {file} is no time: write seconds (1732240000.000125) or a time with its unit (125us)"
            )));
        };
        times.push(at_ns);
    }
    TraceSpec::new(times)
        .ok_or_else(|| refuse(format!("{} needs two times or more, in order and not all the same", path.display())))
}

/// Reads a moment in nanoseconds: decimal seconds, or a time with its unit. Seconds since 1970 have more digits than a
/// float.
fn moment_ns(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.is_empty() {
        return lull_units::time_ns(text).ok();
    }
    let part: u64 = format!("{part:0<9}")[..9].parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(part)
}

/// Reads the times of the generator's threads, if any is given.
pub(super) fn generator(check: &Check<'_>, raw: &Raw) -> Result<Option<GeneratorSpec>, WorldFileError> {
    let load = &raw.load;
    let of = |key: &str, value: &Option<Spanned<Time>>| check.time_or(key, value, &FRAME_NS, 0);
    let given = load.generator_send.is_some() || load.generator_answer.is_some() || load.generator_raise.is_some();
    let generator = GeneratorSpec {
        send_ns: of("load.generator_send", &load.generator_send)?,
        answer_ns: of("load.generator_answer", &load.generator_answer)?,
        raise_ns: of("load.generator_raise", &load.generator_raise)?,
    };
    Ok(given.then_some(generator))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_keep_their_nanoseconds() {
        assert_eq!(moment_ns("1732240000.000000125"), Some(1_732_240_000_000_000_125));
        assert_eq!(moment_ns("3"), Some(3_000_000_000));
        assert_eq!(moment_ns("12.5us"), Some(12_500));
        for bad in ["", "x", "-1", "1.2.3", "."] {
            assert_eq!(moment_ns(bad), None, "{bad}");
        }
    }
}
