//! `[transmit]`: transmit queues with a queueing discipline, by which answers leave.

use std::ops::RangeInclusive;

use lull_qdisc::{Kind, Limits};
use toml::Spanned;

use super::check::Check;
use super::error::WorldFileError;
use super::raw::{self, Raw};
use crate::units::Count;

/// How many frames a ring or a discipline may hold.
const FRAMES: RangeInclusive<u64> = 1..=1_000_000;
/// How many frames a transmit ring may hold.
const RING: RangeInclusive<u64> = 1..=65_536;
const RING_DEFAULT: u64 = 1_024;

/// The transmit queues that a machine has, one beside each queue of `nic.queues`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitQueues {
    /// The discipline (`transmit.qdisc`).
    pub qdisc: Kind,
    /// How much the discipline holds (`transmit.limit`, `transmit.flow_limit`; the defaults are Linux's).
    pub limits: Limits,
    /// Frames that each ring holds (`transmit.ring`; default 1024).
    pub ring_frames: u32,
}

impl TransmitQueues {
    /// Describes them.
    pub(super) fn describe(&self) -> String {
        format!("{} before each transmit ring of {}", self.qdisc, self.ring_frames)
    }
}

/// Reads the transmit queues, if the file has them.
pub(super) fn resolve(check: &Check<'_>, raw: &Raw) -> Result<Option<TransmitQueues>, WorldFileError> {
    let Some(transmit) = &raw.transmit else { return Ok(None) };
    let refuse = |problem: &str| Err(check.error("transmit.qdisc", &transmit.qdisc, problem));
    if raw.is_af_xdp() {
        return refuse("frames of AF_XDP sockets pass no queueing discipline: remove [transmit]");
    }
    if raw.service.kind.get_ref() == "proxy" {
        return refuse("what a proxy sends to the server behind it passes no simulated discipline: remove [transmit]");
    }
    let qdisc = transmit.qdisc.get_ref().parse::<Kind>();
    let qdisc = qdisc.map_err(|error| check.error("transmit.qdisc", &transmit.qdisc, error.to_string()))?;
    let ring = check.count_or("transmit.ring", &transmit.ring, &RING, RING_DEFAULT)?;
    Ok(Some(TransmitQueues { qdisc, limits: limits(check, transmit, qdisc)?, ring_frames: ring as u32 }))
}

/// Reads how much the discipline holds, if it has such a limit.
fn limits(check: &Check<'_>, transmit: &raw::Transmit, qdisc: Kind) -> Result<Limits, WorldFileError> {
    let default = Limits::of(qdisc);
    let limit = |key: &str, value: &Option<Spanned<Count>>, default: usize, has: bool, whose: &str| match value {
        None => Ok(default),
        Some(value) if !has => {
            Err(check.error(key, value, format!("{qdisc} has no such limit, only {whose} has: remove this")))
        }
        Some(value) => check.count(key, value, &FRAMES).map(|frames| frames as usize),
    };
    let (all, fq) = (qdisc != Kind::NoQueue, qdisc == Kind::Fq);
    Ok(Limits {
        frames: limit("transmit.limit", &transmit.limit, default.frames, all, "pfifo_fast or fq")?,
        flow_frames: limit("transmit.flow_limit", &transmit.flow_limit, default.flow_frames, fq, "fq")?,
    })
}
